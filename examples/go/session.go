package moepage

/*
#include "moepage.h"

// Arrays come by themselves: a struct in Go's memory must not hold Go's pointers.
static moepage_status begin(moepage_session *session, moepage_step step,
                            const moepage_step_sequence *sequences, const float *semantic)
{
    step.struct_size = sizeof step;
    step.sequences = sequences;
    step.semantic = semantic;
    return moepage_session_begin(session, &step);
}

// Rows come as characters: of a void pointer Go would check all of the object that it points into,
// which may be a struct that has pointers beside the rows.
static moepage_status ffn(moepage_session *session, uint32_t layer, moepage_ffn ffn, const char *x,
                          char *y)
{
    ffn.struct_size = sizeof ffn;
    ffn.x = x;
    ffn.y = y;
    return moepage_session_ffn(session, layer, &ffn);
}
*/
import "C"

import "unsafe"

// Math is the arithmetic of Session.FFN.
type Math uint32

const (
	MathFP32     Math = C.MOEPAGE_MATH_FP32
	MathBF16     Math = C.MOEPAGE_MATH_BF16
	MathBF16Fast Math = C.MOEPAGE_MATH_BF16_FAST
	MathINT8     Math = C.MOEPAGE_MATH_INT8
)

// Prefetch is what a session loads ahead of need.
type Prefetch uint32

const (
	PrefetchOff       Prefetch = C.MOEPAGE_PREFETCH_OFF
	PrefetchHint      Prefetch = C.MOEPAGE_PREFETCH_HINT
	PrefetchPrevious  Prefetch = C.MOEPAGE_PREFETCH_PREVIOUS
	PrefetchPredictor Prefetch = C.MOEPAGE_PREFETCH_PREDICTOR
)

// Grouping is how a layer that does not fit is divided.
type Grouping uint32

const (
	GroupExperts Grouping = C.MOEPAGE_GROUP_EXPERTS
	GroupTokens  Grouping = C.MOEPAGE_GROUP_TOKENS
)

// Miss is what a session does about an expert that is not on the device.
type Miss uint32

const (
	MissWait Miss = C.MOEPAGE_MISS_WAIT
	MissLow  Miss = C.MOEPAGE_MISS_LOW
	MissHost Miss = C.MOEPAGE_MISS_HOST
)

// Regime is how a layer's experts are served.
type Regime uint32

const (
	RegimeAuto   Regime = C.MOEPAGE_REGIME_AUTO
	RegimeCache  Regime = C.MOEPAGE_REGIME_CACHE
	RegimeStream Regime = C.MOEPAGE_REGIME_STREAM
)

// Phase is what a sequence does in a step.
type Phase uint32

const (
	PhaseDecode  Phase = C.MOEPAGE_PHASE_DECODE
	PhasePrefill Phase = C.MOEPAGE_PHASE_PREFILL
)

// NoExpert is a routed id that names no expert.
const NoExpert int32 = C.MOEPAGE_NO_EXPERT

// SessionConfig is how large the steps of a session are, and how it serves them.
type SessionConfig struct {
	MaxTokens       uint32
	MaxSequences    uint32
	MaxTopK         uint32
	Math            Math
	Prefetch        Prefetch
	PrefetchDepth   uint32
	Grouping        Grouping
	MaxGroupExperts uint32
	Regime          Regime
	Miss            Miss
	Predictor       *Predictor // of PrefetchPredictor; may be shared
}

// StepSequence is one sequence's share of a step. Seq may be nil.
type StepSequence struct {
	Seq    *Sequence
	Tokens int
	Phase  Phase
}

// Step is what Session.Begin opens. Without Sequences it is one anonymous sequence in Phase.
type Step struct {
	Tokens      int
	Phase       Phase
	Sequences   []StepSequence
	Semantic    []float32 // [len(Sequences)][SemanticDim], or nil
	SemanticDim int
}

// FFN is what Session.FFN computes: Y = sum over k of weight_k * expert_k(X), row by row. X and Y
// have the same dtype: F32, F16 or BF16. Strides are in elements; 0 = the model's hidden size.
type FFN struct {
	X, Y             Array
	XStride, YStride int
	Accumulate       bool
	Stream           Stream
}

// Session steps a model. It is for one goroutine at a time: a second one gets ErrConcurrent.
type Session struct {
	object
	c         *C.moepage_session
	experts   *ExpertPool
	kv        *KVPool
	predictor *Predictor
	trace     *Trace
	tokens    int            // of the open step; 0 = none is open
	sequences []StepSequence // of the open step, kept from their finalisers
	// Numbers of the plans of layers that are open. The plans themselves would make a cycle, which
	// keeps the collector from calling finalisers.
	plans   map[int]uint64
	planned uint64
}

func (config *SessionConfig) c() C.moepage_session_config {
	c := C.moepage_session_config{
		struct_size:       C.sizeof_moepage_session_config,
		max_tokens:        C.uint32_t(config.MaxTokens),
		max_sequences:     C.uint32_t(config.MaxSequences),
		max_top_k:         C.uint32_t(config.MaxTopK),
		math:              C.uint32_t(config.Math),
		prefetch:          C.uint32_t(config.Prefetch),
		prefetch_depth:    C.uint32_t(config.PrefetchDepth),
		grouping:          C.uint32_t(config.Grouping),
		max_group_experts: C.uint32_t(config.MaxGroupExperts),
		regime:            C.uint32_t(config.Regime),
		miss:              C.uint32_t(config.Miss),
	}
	if config.Predictor != nil {
		c.predictor = config.Predictor.c
	}
	return c
}

// SessionWorkspace is the device bytes of scratch that a session with this config takes.
func SessionWorkspace(model *Model, config SessionConfig) (uint64, error) {
	const op = "session workspace"
	if model == nil {
		return 0, refuse(op, ErrArgument, "no model")
	}
	parents := []*object{&model.object}
	if config.Predictor != nil {
		parents = append(parents, &config.Predictor.object)
	}
	if err := enterAll(parents...); err != nil {
		return 0, err
	}
	defer leaveAll(parents...)
	c := config.c()
	var bytes C.uint64_t
	err := call(op, func() C.moepage_status { return C.moepage_session_workspace(model.c, &c, &bytes) })
	return uint64(bytes), err
}

// NewSession makes a session over an expert pool and, unless nil, a KV pool.
func NewSession(experts *ExpertPool, kv *KVPool, config SessionConfig) (*Session, error) {
	const op = "create session"
	if experts == nil {
		return nil, refuse(op, ErrArgument, "no expert pool")
	}
	s := &Session{experts: experts, kv: kv, predictor: config.Predictor, plans: map[int]uint64{}}
	parents, pool := []*object{&experts.object}, (*C.moepage_kv_pool)(nil)
	if kv != nil {
		parents, pool = append(parents, &kv.object), kv.c
	}
	if config.Predictor != nil {
		parents = append(parents, &config.Predictor.object)
	}
	err := whileIdle(op, s.devices(), func() error {
		if err := enterAll(parents...); err != nil {
			return err
		}
		defer leaveAll(parents...)
		c := config.c()
		return call(op, func() C.moepage_status { return C.moepage_session_create(experts.c, pool, &c, &s.c) })
	})
	if err != nil {
		return nil, err
	}
	born(s)
	return s, nil
}

func (s *Session) devices() []*Device { return devicesOf(s.experts, s.kv) }

// Close cancels an open step.
func (s *Session) Close() error {
	return s.shut("close session", func() C.moepage_status {
		status := C.moepage_session_destroy(s.c)
		if status == C.MOEPAGE_OK {
			s.over()
			s.recordTo(nil)
		}
		return status
	})
}

// over forgets the step that was open.
func (s *Session) over() {
	s.plans = map[int]uint64{}
	if s.tokens > 0 {
		for _, d := range s.devices() {
			d.steps.RUnlock()
		}
	}
	s.tokens, s.sequences = 0, nil
}

func (s *Session) step(op string, step *Step) (c C.moepage_step, sequences []C.moepage_step_sequence, err error) {
	c = C.moepage_step{n_tokens: u32(step.Tokens), n_sequences: u32(len(step.Sequences)),
		phase: C.uint32_t(step.Phase), semantic_dim: u32(step.SemanticDim)}
	if want := len(step.Sequences) * step.SemanticDim; step.Semantic != nil && len(step.Semantic) != want {
		return c, nil, refuse(op, ErrArgument, "Semantic has %d numbers; %d sequences of %d are %d",
			len(step.Semantic), len(step.Sequences), step.SemanticDim, want)
	}
	sequences = make([]C.moepage_step_sequence, len(step.Sequences))
	for i, q := range step.Sequences {
		sequences[i] = C.moepage_step_sequence{n_tokens: u32(q.Tokens), phase: C.uint32_t(q.Phase)}
		if q.Seq != nil && q.Seq.pool != s.kv {
			return c, nil, refuse(op, ErrHandle, "sequence %d is not of the session's KV pool", i)
		}
		if q.Seq != nil {
			sequences[i].seq = q.Seq.id
		}
	}
	return c, sequences, nil
}

// Begin opens a step. ErrState if one is open.
func (s *Session) Begin(step Step) error {
	const op = "begin step"
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	if s.tokens > 0 {
		return refuse(op, ErrState, "a step is open: end or cancel it first")
	}
	c, sequences, err := s.step(op, &step)
	if err != nil {
		return err
	}
	for _, d := range s.devices() {
		d.steps.RLock()
	}
	err = call(op, func() C.moepage_status {
		return C.begin(s.c, c, first(sequences), (*C.float)(first(step.Semantic)))
	})
	if err != nil {
		for _, d := range s.devices() {
			d.steps.RUnlock()
		}
		return err
	}
	s.tokens, s.sequences = step.Tokens, append(s.sequences[:0], step.Sequences...)
	return nil
}

// Hint says which experts a layer will probably be routed to next. ErrState with PrefetchOff.
func (s *Session) Hint(layer int, experts []int32) error {
	return s.one("hint", func() C.moepage_status {
		return C.moepage_session_hint(s.c, u32(layer), (*C.int32_t)(first(experts)), u32(len(experts)))
	})
}

// rows checks that an array has the step's rows, and returns its stride for the library.
func (s *Session) rows(name string, a *Array, stride int) (C.uint64_t, error) {
	const op = "ffn"
	hidden := int(s.experts.model.info.Hidden)
	host := s.experts.devices[0].host
	if !host && !a.device && a.data != nil {
		return 0, refuse(op, ErrArgument, "%s is Go's memory, which the pool's device cannot read: DeviceArray", name)
	}
	if stride == 0 {
		stride = hidden
	}
	if stride < hidden {
		return 0, refuse(op, ErrArgument, "%s has a stride of %d, the model's hidden size is %d", name, stride, hidden)
	}
	if rows := (a.n - hidden + stride) / stride; rows < s.tokens && (a.data != nil || host) {
		return 0, refuse(op, ErrArgument, "%s has %d elements, not those of %d rows of %d, %d apart", name, a.n,
			s.tokens, hidden, stride)
	}
	return C.uint64_t(stride), nil
}

// FFN runs a layer's routed experts over all groups. A plan of the layer has no pointers afterwards.
func (s *Session) FFN(layer int, ffn FFN) error {
	const op = "ffn"
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	if s.tokens == 0 {
		return refuse(op, ErrState, "no step is open")
	}
	if ffn.X.dtype != ffn.Y.dtype {
		return refuse(op, ErrArgument, "X is %v and Y is %v: they have the same dtype", ffn.X.dtype, ffn.Y.dtype)
	}
	c := C.moepage_ffn{dtype: C.uint32_t(ffn.X.dtype), accumulate: flag(ffn.Accumulate),
		stream: unsafe.Pointer(ffn.Stream)}
	var err error
	if c.x_stride, err = s.rows("X", &ffn.X, ffn.XStride); err != nil {
		return err
	}
	if c.y_stride, err = s.rows("Y", &ffn.Y, ffn.YStride); err != nil {
		return err
	}
	err = call(op, func() C.moepage_status {
		return C.ffn(s.c, u32(layer), c, (*C.char)(ffn.X.data), (*C.char)(ffn.Y.data))
	})
	if lost(err) {
		delete(s.plans, layer)
	}
	return s.experts.model.reader.explain(err)
}

// Retire ends a layer. Its plan has no pointers afterwards.
func (s *Session) Retire(layer int) error {
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	err := call("retire", func() C.moepage_status { return C.moepage_session_retire(s.c, u32(layer)) })
	if err == nil {
		delete(s.plans, layer)
	}
	return err
}

// End closes the step and says what it did. ErrState while a layer is not retired.
func (s *Session) End() (SessionStats, error) {
	if err := s.enterAlone(); err != nil {
		return SessionStats{}, err
	}
	defer s.leaveAlone()
	c := C.moepage_session_stats{struct_size: C.sizeof_moepage_session_stats}
	err := call("end step", func() C.moepage_status { return C.moepage_session_end(s.c, &c) })
	if err != nil {
		return SessionStats{}, err
	}
	s.over()
	return newSessionStats(&c), nil
}

// Cancel drops an open step and retires its layers.
func (s *Session) Cancel() error {
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	err := call("cancel step", func() C.moepage_status { return C.moepage_session_cancel(s.c) })
	if err == nil {
		s.over()
	}
	return err
}

// Stats sums all ended or cancelled steps.
func (s *Session) Stats() (SessionStats, error) {
	if err := s.enterAlone(); err != nil {
		return SessionStats{}, err
	}
	defer s.leaveAlone()
	c := C.moepage_session_stats{struct_size: C.sizeof_moepage_session_stats}
	return fetch(&s.object, "session stats", &c, func() C.moepage_status {
		return C.moepage_session_get_stats(s.c, &c)
	}, newSessionStats)
}

// Prefetched is what prefetching for a layer has brought. ErrState without PrefetchPredictor.
func (s *Session) Prefetched(layer int) (PrefetchInfo, error) {
	if err := s.enterAlone(); err != nil {
		return PrefetchInfo{}, err
	}
	defer s.leaveAlone()
	c := C.moepage_prefetch_info{struct_size: C.sizeof_moepage_prefetch_info}
	return fetch(&s.object, "prefetch info", &c, func() C.moepage_status {
		return C.moepage_session_get_prefetch(s.c, u32(layer), &c)
	}, newPrefetchInfo)
}

// Record writes every step to the trace from now on; nil stops. ErrState while a step is open, ErrBusy
// while another session records to it.
func (s *Session) Record(trace *Trace) error {
	const op = "record"
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	var c *C.moepage_trace
	if trace != nil {
		if err := trace.enterAlone(); err != nil {
			return err
		}
		defer trace.leaveAlone()
		if trace != s.trace && trace.recording.Load() {
			return refuse(op, ErrBusy, "another session records to the trace")
		}
		c = trace.c
	}
	err := call(op, func() C.moepage_status { return C.moepage_session_record(s.c, c) })
	if err == nil {
		s.recordTo(trace)
	}
	return err
}

func (s *Session) recordTo(trace *Trace) {
	if s.trace != nil {
		s.trace.recording.Store(false)
	}
	if trace != nil {
		trace.recording.Store(true)
	}
	s.trace = trace
}
