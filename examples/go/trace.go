package moepage

// #include <stdlib.h>
// #include "moepage.h"
import "C"

import (
	"io"
	"sync/atomic"
	"unsafe"
)

// TraceInfo is the shape of a recorded model.
type TraceInfo struct {
	MoELayers        uint32
	Experts          uint32
	MaxTopK          uint32
	SemanticDim      uint32
	HasProbabilities bool
	Model            string
}

// TraceStep is one recorded step. It is a copy.
type TraceStep struct {
	Step          uint64
	Tokens        int
	TopK          int
	Sequences     []TraceSequence
	LayerPresent  []bool    // [MoELayers]
	IDs           []int32   // [MoELayers][Tokens][TopK]
	Weights       []float32 // [MoELayers][Tokens][TopK]
	Probabilities []float32 // [MoELayers][Tokens][Experts] or nil
	Semantic      []float32 // [sequences][SemanticDim] or nil
}

// TraceSequence is a sequence's share of a recorded step.
type TraceSequence struct {
	Seq    uint64
	Tokens int
	Phase  Phase
}

// Trace is a file of routing, written by sessions or read. It is for one goroutine at a time.
type Trace struct {
	object
	c         *C.moepage_trace
	info      TraceInfo
	recording atomic.Bool // by a session, in whichever goroutine that is
}

// CreateTrace begins a file, which appears under its name when it is closed.
func CreateTrace(path string, info TraceInfo) (*Trace, error) {
	const op = "create trace"
	if err := whole(op, path, info.Model); err != nil {
		return nil, err
	}
	c := C.moepage_trace_info{
		struct_size:       C.sizeof_moepage_trace_info,
		moe_layers:        C.uint32_t(info.MoELayers),
		experts:           C.uint32_t(info.Experts),
		max_top_k:         C.uint32_t(info.MaxTopK),
		semantic_dim:      C.uint32_t(info.SemanticDim),
		has_probabilities: flag(info.HasProbabilities),
	}
	if len(info.Model) >= len(c.model) {
		return nil, refuse(op, ErrArgument, "a model's name of %d bytes: at most %d", len(info.Model), len(c.model)-1)
	}
	for i := range info.Model {
		c.model[i] = C.char(info.Model[i])
	}
	text := C.CString(path)
	defer free(text)
	return newTrace(op, func(out **C.moepage_trace) C.moepage_status {
		return C.moepage_trace_create(text, &c, out)
	})
}

// OpenTrace opens a file for reading.
func OpenTrace(path string) (*Trace, error) {
	if err := whole("open trace", path); err != nil {
		return nil, err
	}
	text := C.CString(path)
	defer free(text)
	return newTrace("open trace", func(out **C.moepage_trace) C.moepage_status {
		return C.moepage_trace_open(text, out)
	})
}

func newTrace(op string, open func(**C.moepage_trace) C.moepage_status) (*Trace, error) {
	var handle *C.moepage_trace
	if err := call(op, func() C.moepage_status { return open(&handle) }); err != nil {
		return nil, err
	}
	t := &Trace{c: handle}
	born(t)
	c := C.moepage_trace_info{struct_size: C.sizeof_moepage_trace_info}
	info, err := fetch(&t.object, "trace info", &c, func() C.moepage_status {
		return C.moepage_trace_get_info(t.c, &c)
	}, func(c *C.moepage_trace_info) TraceInfo {
		return TraceInfo{uint32(c.moe_layers), uint32(c.experts), uint32(c.max_top_k),
			uint32(c.semantic_dim), c.has_probabilities != 0, C.GoString(&c.model[0])}
	})
	t.info = info
	return opened(t, err)
}

// Info is the recorded model's shape.
func (t *Trace) Info() (TraceInfo, error) {
	if err := t.enter(); err != nil {
		return TraceInfo{}, err
	}
	defer t.leave()
	return t.info, nil
}

// Close ends the trace whatever it returns, ErrBusy excepted: while a session records to it. For a
// writer this finishes the file, and an error means that there is none.
func (t *Trace) Close() error {
	const op = "close trace"
	if !t.alone.TryLock() {
		return ErrConcurrent
	}
	defer t.alone.Unlock()
	t.life.Lock()
	defer t.life.Unlock()
	if !t.open {
		return ErrClosed
	}
	if t.recording.Load() {
		return refuse(op, ErrBusy, "a session records to the trace: Record(nil) stops it")
	}
	err := call(op, func() C.moepage_status { return C.moepage_trace_close(t.c) })
	failure, failed := err.(*Error)
	t.open = failed && (failure.Status == ErrBusy || failure.Status == ErrHandle)
	return err
}

// Next reads the next step; io.EOF after the last.
func (t *Trace) Next() (TraceStep, error) {
	const op = "read trace"
	if err := t.enterAlone(); err != nil {
		return TraceStep{}, err
	}
	defer t.leaveAlone()
	if t.recording.Load() {
		return TraceStep{}, refuse(op, ErrState, "a session records to the trace: it cannot be read")
	}
	c := C.moepage_trace_step{struct_size: C.sizeof_moepage_trace_step}
	err := call(op, func() C.moepage_status { return C.moepage_trace_next(t.c, &c) })
	if failure, ok := err.(*Error); ok && failure.Status == ErrEnd {
		return TraceStep{}, io.EOF
	} else if err != nil {
		return TraceStep{}, err
	}
	return t.copy(&c), nil
}

func (t *Trace) copy(c *C.moepage_trace_step) TraceStep {
	layers, rows := int(t.info.MoELayers), int(t.info.MoELayers)*int(c.n_tokens)
	step := TraceStep{
		Step:          uint64(c.step),
		Tokens:        int(c.n_tokens),
		TopK:          int(c.top_k),
		LayerPresent:  make([]bool, layers),
		IDs:           copied[int32](c.ids, rows*int(c.top_k)),
		Weights:       copied[float32](c.weights, rows*int(c.top_k)),
		Probabilities: copied[float32](c.probabilities, rows*int(t.info.Experts)),
		Semantic:      copied[float32](c.semantic, int(c.n_sequences)*int(t.info.SemanticDim)),
	}
	for i, present := range unsafe.Slice((*byte)(c.layer_present), layers) {
		step.LayerPresent[i] = present != 0
	}
	for _, q := range unsafe.Slice(c.sequences, int(c.n_sequences)) {
		step.Sequences = append(step.Sequences, TraceSequence{uint64(q.seq), int(q.n_tokens), Phase(q.phase)})
	}
	return step
}
