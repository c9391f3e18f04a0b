package moepage

/*
#include "moepage.h"

// Arrays come by themselves: a struct in Go's memory must not hold Go's pointers.
static moepage_status route(moepage_session *session, uint32_t layer, uint32_t top_k,
                            const int32_t *ids, const float *weights, const float *probabilities,
                            const float *logits, const float *hidden, void *stream,
                            moepage_plan *plan)
{
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = top_k,
                                     .ids = ids,
                                     .weights = weights,
                                     .probabilities = probabilities,
                                     .stream = stream,
                                     .logits = logits,
                                     .hidden = hidden};
    return moepage_session_route(session, layer, &routing, plan);
}
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Routing is what a layer's router chose for the step's tokens.
type Routing struct {
	TopK          int       // 0 = the model's
	IDs           []int32   // [tokens][TopK]
	Weights       []float32 // [tokens][TopK]; nil where a plan is asked for: they are then 1
	Probabilities []float32 // [tokens][experts], or nil
	Logits        []float32 // [tokens][experts], or nil: remapping needs it
	Hidden        []float32 // [tokens][hidden], or nil: the "gate" predictor needs it
	Stream        Stream    // of the kernels that read the plan's slots
}

// PlanExpert is an expert of a group, and the rows that go to it.
type PlanExpert struct {
	Expert int
	Slot   int // -1: its low version, which is in none
	Device int
	DType  DType    // of a numeric version's weights
	Rows   []uint32 // of Plan.Rows
}

// Plan is one group of one layer: which experts see which rows, and where their weights are. Its
// lists are copies. The weights are the device's, until the layer is retired, the next group is
// taken or the step ends: from then on Weights and Pointer refuse.
type Plan struct {
	Layer     int
	Group     int
	Groups    int
	TopK      int
	Experts   []PlanExpert
	Rows      []uint32  // row = token * TopK + k, sorted by expert
	Tokens    []uint32  // tokens of this group; nil = all
	IDs       []int32   // [step tokens][TopK] effective ids
	Weighting []float32 // [step tokens][TopK] effective weights
	ExpertMap []int32   // [experts] slot of each expert of this group, else -1

	session *Session
	number  uint64
	c       C.moepage_plan
	filled  bool // by the last call for a group
}

// check refuses a routing whose lists are not as long as the step and the model want.
func (s *Session) check(op string, routing *Routing, planned bool) error {
	info := &s.experts.model.info
	if s.tokens == 0 {
		return refuse(op, ErrState, "no step is open")
	}
	for _, list := range []struct {
		name     string
		n, width int
		required bool
	}{
		{"IDs", len(routing.IDs), routing.TopK, true},
		{"Weights", len(routing.Weights), routing.TopK, !planned},
		{"Probabilities", len(routing.Probabilities), int(info.Experts), false},
		{"Logits", len(routing.Logits), int(info.Experts), false},
		{"Hidden", len(routing.Hidden), int(info.Hidden), false},
	} {
		if (list.n > 0 || list.required) && list.n != s.tokens*list.width {
			return refuse(op, ErrArgument, "%s has %d entries, %d tokens of %d are %d",
				list.name, list.n, s.tokens, list.width, s.tokens*list.width)
		}
	}
	return nil
}

// route has the session's lock.
func (s *Session) route(layer int, r Routing, plan *C.moepage_plan) error {
	const op = "route"
	if r.TopK == 0 {
		r.TopK = int(s.experts.model.info.TopK)
	}
	if err := s.check(op, &r, plan != nil); err != nil {
		return err
	}
	return s.experts.model.reader.explain(call(op, func() C.moepage_status {
		return C.route(s.c, u32(layer), u32(r.TopK), (*C.int32_t)(first(r.IDs)),
			(*C.float)(first(r.Weights)), (*C.float)(first(r.Probabilities)),
			(*C.float)(first(r.Logits)), (*C.float)(first(r.Hidden)), unsafe.Pointer(r.Stream), plan)
	}))
}

// Route announces an MoE layer's routing, for FFN. Loads start.
func (s *Session) Route(layer int, routing Routing) error {
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	return s.route(layer, routing, nil)
}

// RoutePlan announces an MoE layer's routing, waits for the first group's experts, and says where
// they are.
func (s *Session) RoutePlan(layer int, routing Routing) (*Plan, error) {
	if err := s.enterAlone(); err != nil {
		return nil, err
	}
	defer s.leaveAlone()
	c := C.moepage_plan{struct_size: C.sizeof_moepage_plan}
	if err := s.route(layer, routing, &c); err != nil {
		return nil, err
	}
	s.planned++
	s.plans[layer] = s.planned
	p := &Plan{session: s, number: s.planned, c: c}
	p.fill()
	return p, nil
}

// open says whether the plan's layer is, and has not been routed anew.
func (p *Plan) open() bool { return p.session.plans[p.Layer] == p.number }

// fill copies the library's lists.
func (p *Plan) fill() {
	c, n := &p.c, p.session.tokens*int(p.c.top_k)
	p.Layer, p.Group, p.Groups, p.TopK = int(c.layer), int(c.group), int(c.n_groups), int(c.top_k)
	p.Rows = copied[uint32](c.rows, int(c.n_rows))
	p.Tokens = copied[uint32](c.tokens, int(c.n_tokens))
	p.IDs, p.Weighting = copied[int32](c.ids, n), copied[float32](c.weights, n)
	p.ExpertMap = copied[int32](c.expert_map, int(p.session.experts.model.info.Experts))
	p.Experts = make([]PlanExpert, c.n_experts)
	for i, e := range p.list() {
		p.Experts[i] = PlanExpert{int(e.expert), int(e.slot), int(e.device), DType(e.dtype),
			p.Rows[e.first_row : e.first_row+e.n_rows]}
	}
	p.filled = true
}

// lost says whether a call that takes a group may have given back the one before: unless it was
// refused.
func lost(err error) bool {
	return !errors.Is(err, ErrState) && !errors.Is(err, ErrArgument) && !errors.Is(err, ErrUnsupported)
}

// list is the library's own, while the group is held.
func (p *Plan) list() []C.moepage_plan_expert {
	return unsafe.Slice(p.c.experts, int(p.c.n_experts))
}

// Next gives the group's slots back and takes the next group. ErrState after the last; after any
// other failure no group is held, and Next may be called again.
func (p *Plan) Next() error {
	const op = "next group"
	s := p.session
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	if !p.open() {
		return refuse(op, ErrState, "layer %d is no longer open for this plan", p.Layer)
	}
	c := C.moepage_plan{struct_size: C.sizeof_moepage_plan}
	err := call(op, func() C.moepage_status { return C.moepage_session_next_group(s.c, u32(p.Layer), &c) })
	if err == nil {
		p.c = c
		p.fill()
	} else if lost(err) {
		p.filled = false
	}
	return s.experts.model.reader.explain(err)
}

// Retire ends the plan's layer.
func (p *Plan) Retire() error { return p.session.Retire(p.Layer) }

// Pointer is the device address of a tensor of the group's i-th expert; tensors count as in
// Model.ExpertTensors.
func (p *Plan) Pointer(i, tensor int) (unsafe.Pointer, error) {
	s := p.session
	if err := s.enterAlone(); err != nil {
		return nil, err
	}
	defer s.leaveAlone()
	return p.pointer("plan", i, tensor)
}

func (p *Plan) pointer(op string, i, tensor int) (unsafe.Pointer, error) {
	n := int(p.session.experts.model.info.ExpertTensors)
	if !p.open() || !p.filled {
		return nil, refuse(op, ErrState, "layer %d's group is no longer held: its weights may be gone", p.Layer)
	}
	if i < 0 || i >= len(p.list()) || tensor < 0 || tensor >= n {
		return nil, refuse(op, ErrArgument, "expert %d, tensor %d: the group has %d of %d", i, tensor,
			len(p.list()), n)
	}
	return unsafe.Slice(p.list()[i].tensors, n)[tensor], nil
}

// Weights is a tensor of the group's i-th expert as the checkpoint has it, on a host device, not to be
// written. The slice may be used until the layer is retired, the next group is taken or the step
// ends: then another expert may lie there.
func (p *Plan) Weights(i, tensor int) ([]byte, error) {
	const op = "plan"
	s := p.session
	if err := s.enterAlone(); err != nil {
		return nil, err
	}
	defer s.leaveAlone()
	pointer, err := p.pointer(op, i, tensor)
	if err != nil {
		return nil, err
	}
	e := &p.list()[i]
	if !s.experts.devices[e.device].host {
		return nil, refuse(op, ErrUnsupported, "device %d's memory is not the program's: Pointer has the address", e.device)
	}
	if dtype := DType(e.dtype); dtype == DTypeInt8 || dtype == DTypeInt4 || dtype == DTypeInt2 {
		return nil, refuse(op, ErrUnsupported,
			"a version of %v, laid out as docs/format-moepack.md says: Pointer has the address", dtype)
	}
	tensors, err := s.experts.model.LayerTensors(p.Layer)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(pointer), int(tensors[tensor].Bytes)), nil
}
