package moepage

/*
#include <stdlib.h>
#include "moepage.h"

// The configs come one by one: a struct in Go's memory must not hold Go's pointers.
static moepage_status open_engine(const char *path, const char *options,
                                  moepage_engine_config config, moepage_device_config device,
                                  moepage_expert_pool_config experts,
                                  moepage_precision_config *precision,
                                  moepage_kv_pool_config kv, const uint32_t *bytes_per_token,
                                  moepage_session_config session,
                                  moepage_predictor_config predictor, int has_predictor,
                                  moepage_engine **out)
{
    experts.precision = precision;
    kv.bytes_per_token = bytes_per_token;
    config.device = &device;
    config.experts = &experts;
    config.kv = kv.struct_size ? &kv : NULL;
    config.session = &session;
    config.predictor = has_predictor ? &predictor : NULL;
    return moepage_engine_open(path, options, &config, out);
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// EngineConfig is how an engine is opened. BudgetBytes is all that the device may hold; BudgetPercent
// instead gives so many of the experts a slot, with workspace and KV on top. Without either the config
// of the experts has their number. Sizes of Device are the engine's to set: they must be 0.
type EngineConfig struct {
	BudgetBytes         uint64
	BudgetPercent       float64
	DeviceName          string // "" = "host"
	Device              DeviceConfig
	Experts             ExpertPoolConfig
	KV                  *KVPoolConfig // nil = no KV pool
	Session             SessionConfig
	Predictor           *PredictorConfig // nil = none, unless the options name one
	ExtraWorkspaceBytes uint64
	ExtraArenaBytes     uint64
	Sessions            uint32
}

// Engine is everything that a model's experts are served with. Its parts are closed with it, and not by
// themselves; KV and Predictor are nil where it has none.
type Engine struct {
	lender    *lender
	Device    *Device
	Model     *Model
	Experts   *ExpertPool
	KV        *KVPool
	Predictor *Predictor
	Session   *Session
}

// lender closes the library's engine once no part of it is reachable any more.
type lender struct {
	object
	c     *C.moepage_engine
	box   unsafe.Pointer // of the log
	model *Model         // the caller's, or nil
}

// OpenEngine opens what OpenModel opens, with everything that it is served with.
// `options` is text for command lines, "budget=8G policy=cycle", as moepage_engine_open reads it; it
// takes precedence over the config, and may be empty.
func OpenEngine(path, options string, config EngineConfig) (*Engine, error) {
	return openEngine(path, nil, options, config)
}

// NewEngine is the same over a model that is open, and stays the caller's.
func NewEngine(model *Model, options string, config EngineConfig) (*Engine, error) {
	if model == nil {
		return nil, refuse("open engine", ErrArgument, "no model")
	}
	return openEngine("", model, options, config)
}

func openEngine(path string, model *Model, options string, config EngineConfig) (*Engine, error) {
	const op = "open engine"
	if err := config.whole(op, path, options); err != nil {
		return nil, err
	}
	l := &lender{model: model}
	parents := []*object{}
	if model != nil {
		parents = append(parents, &model.object)
	}
	if config.Session.Predictor != nil {
		parents = append(parents, &config.Session.Predictor.object)
	}
	err := func() error {
		setUp.Lock()
		defer setUp.Unlock()
		if err := enterAll(parents...); err != nil {
			return err
		}
		defer leaveAll(parents...)
		return l.openAll(op, path, options, &config)
	}()
	if err != nil {
		freeBox(l.box)
		return nil, model.explain(err)
	}
	born(l)
	e, err := l.lend(&config)
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// whole refuses texts that C would take to end early.
func (config *EngineConfig) whole(op string, texts ...string) error {
	texts = append(texts, config.DeviceName, config.Experts.Policy)
	if config.Predictor != nil {
		texts = append(texts, config.Predictor.Name)
	}
	return whole(op, texts...)
}

// openAll has the library open the engine.
func (l *lender) openAll(op, path, options string, config *EngineConfig) error {
	c := C.moepage_engine_config{
		struct_size:           C.sizeof_moepage_engine_config,
		budget_bytes:          C.uint64_t(config.BudgetBytes),
		budget_percent:        C.double(config.BudgetPercent),
		device_name:           cstring(config.DeviceName),
		extra_workspace_bytes: C.uint64_t(config.ExtraWorkspaceBytes),
		extra_arena_bytes:     C.uint64_t(config.ExtraArenaBytes),
		sessions:              C.uint32_t(config.Sessions),
	}
	defer free(c.device_name)
	text, words := cstring(path), cstring(options)
	defer free(text)
	defer free(words)
	if l.model != nil {
		c.model = l.model.c
	}
	device := config.Device.c()
	l.box = device.log_user
	experts, precision := config.Experts.c()
	defer free(experts.policy)
	var kv C.moepage_kv_pool_config
	var perToken []uint32
	if config.KV != nil {
		kv, perToken = config.KV.c(), config.KV.BytesPerToken
	}
	var predictor C.moepage_predictor_config
	hasPredictor := C.int(0)
	if config.Predictor != nil {
		predictor, hasPredictor = config.Predictor.c(), 1
		defer free(predictor.name)
	}
	session := config.Session.c()
	return call(op, func() C.moepage_status {
		return C.open_engine(text, words, c, device, experts, precision, kv, (*C.uint32_t)(first(perToken)),
			session, predictor, hasPredictor, &l.c)
	})
}

// lend makes the engine's objects usable as this package's.
func (l *lender) lend(config *EngineConfig) (*Engine, error) {
	e := &Engine{lender: l, Model: l.model}
	e.Device = &Device{c: C.moepage_engine_device(l.c)}
	e.Device.object = object{open: true, lender: l}
	if err := e.Device.learn(); err != nil {
		return e, err
	}
	if e.Model == nil {
		e.Model = &Model{c: C.moepage_engine_model(l.c)}
		e.Model.object = object{open: true, lender: l}
		if err := e.Model.learn(); err != nil {
			return e, err
		}
	}
	e.Experts = &ExpertPool{c: C.moepage_engine_expert_pool(l.c), devices: []*Device{e.Device}, model: e.Model}
	e.Experts.object = object{open: true, lender: l}
	if kv := C.moepage_engine_kv_pool(l.c); kv != nil {
		e.KV = &KVPool{c: kv, device: e.Device, perToken: append([]uint32(nil), config.KV.BytesPerToken...)}
		e.KV.object = object{open: true, lender: l}
		if err := e.KV.learn(); err != nil {
			return e, err
		}
	}
	predictor := config.Session.Predictor
	if c := C.moepage_engine_predictor(l.c); c != nil {
		e.Predictor = &Predictor{c: c}
		e.Predictor.object = object{open: true, lender: l}
		predictor = e.Predictor
	}
	e.Session = &Session{c: C.moepage_engine_session(l.c), experts: e.Experts, kv: e.KV, predictor: predictor,
		plans: map[int]uint64{}}
	e.Session.object = object{open: true, lender: l}
	// A step that is open when nobody holds the session any more would keep others from being set up.
	runtime.SetFinalizer(e.Session, func(s *Session) { _ = s.Cancel() })
	return e, nil
}

// Layers is the number of the model's MoE layers.
func (e *Engine) Layers() int {
	if e.lender.enter() != nil {
		return 0
	}
	defer e.lender.leave()
	return int(C.moepage_engine_layers(e.lender.c))
}

// parts are the objects that close with the engine.
func (e *Engine) parts() []*object {
	var out []*object
	if e.Session != nil {
		out = append(out, &e.Session.object)
	}
	if e.Predictor != nil {
		out = append(out, &e.Predictor.object)
	}
	if e.KV != nil {
		out = append(out, &e.KV.object)
	}
	if e.Experts != nil {
		out = append(out, &e.Experts.object)
	}
	if e.Model != nil && e.Model != e.lender.model {
		out = append(out, &e.Model.object)
	}
	return append(out, &e.Device.object)
}

// Close closes everything, an open step of its session included. ErrBusy while a session or a
// controller of the caller's uses a part: the engine's own session is closed then, and Close is to be
// called again.
func (e *Engine) Close() error {
	if e.lender == nil {
		return ErrClosed
	}
	if e.Session != nil {
		if err := e.Session.Cancel(); err != nil && err != ErrClosed {
			return err
		}
	}
	return whileIdle("close engine", []*Device{e.Device}, e.closeIdle)
}

func (e *Engine) closeIdle() error {
	parts := e.parts()
	for i, o := range parts {
		if !o.alone.TryLock() {
			unlockAll(parts[:i])
			return ErrConcurrent
		}
		o.life.Lock()
	}
	defer unlockAll(parts)
	err := e.lender.close()
	for _, o := range parts {
		o.open = o.open && err != nil
	}
	if err != nil && e.Session != nil && C.moepage_engine_session(e.lender.c) == nil {
		e.Session.open = false
	}
	return err
}

func unlockAll(objects []*object) {
	for _, o := range objects {
		o.life.Unlock()
		o.alone.Unlock()
	}
}

// close has the library close the engine; set-up is the caller's to hold.
func (l *lender) close() error {
	err := l.shut("close engine", func() C.moepage_status { return C.moepage_engine_close(l.c) })
	if err == nil {
		freeBox(l.box)
	}
	return err
}

// Close is for the collector.
func (l *lender) Close() error {
	setUp.Lock()
	defer setUp.Unlock()
	return l.close()
}
