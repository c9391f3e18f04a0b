package moepage

// #include "moepage.h"
import "C"

import "unsafe"

// ControlMode is what a controller does.
type ControlMode uint32

const (
	ControlMVWSA      ControlMode = C.MOEPAGE_CONTROL_MV_WSA
	ControlDualResize ControlMode = C.MOEPAGE_CONTROL_DUAL_RESIZE
	ControlPlanner    ControlMode = C.MOEPAGE_CONTROL_PLANNER
	ControlObserve    ControlMode = C.MOEPAGE_CONTROL_OBSERVE
	ControlFixed      ControlMode = C.MOEPAGE_CONTROL_FIXED
	ControlFlux       ControlMode = C.MOEPAGE_CONTROL_FLUX
)

// KVMiss is what the host does about KV that is not on the device.
type KVMiss uint32

const (
	KVMissSwap      KVMiss = C.MOEPAGE_KV_MISS_SWAP
	KVMissRecompute KVMiss = C.MOEPAGE_KV_MISS_RECOMPUTE
)

// ControlOutcome is why a controller did what it did.
type ControlOutcome uint32

const (
	ControlWaits      ControlOutcome = C.MOEPAGE_CONTROL_WAITS
	ControlStays      ControlOutcome = C.MOEPAGE_CONTROL_STAYS
	ControlMoved      ControlOutcome = C.MOEPAGE_CONTROL_MOVED
	ControlDraining   ControlOutcome = C.MOEPAGE_CONTROL_DRAINING
	ControlRefused    ControlOutcome = C.MOEPAGE_CONTROL_REFUSED
	ControlInfeasible ControlOutcome = C.MOEPAGE_CONTROL_INFEASIBLE
)

// ControllerConfig is how a controller decides.
type ControllerConfig struct {
	Mode             ControlMode
	BurstSteps       uint32
	KVMiss           KVMiss
	ContextTokens    uint64
	Concurrency      uint32
	ExpertPercent    uint32
	DecayPermille    uint32
	GatePermille     uint32
	RatePermille     uint32
	DeadZone         uint32
	HeadroomPermille uint32
	ThetaPermille    uint32
	MaxSamples       uint32
	Admission        bool   // also decides how many sequences run at once, which KVPool.Admit heeds
	TargetTtftNS     uint64 // with Admission: of the mean time to the first token; 0 = none
	TargetTpotNS     uint64 // and of that between a sequence's tokens
}

// Controller moves the split between a pair of pools while they serve.
type Controller struct {
	object
	c       *C.moepage_controller
	experts *ExpertPool
	kv      *KVPool
	users   []*Predictor
}

// NewController watches both pools; kv may be nil.
func NewController(experts *ExpertPool, kv *KVPool, config ControllerConfig) (*Controller, error) {
	const op = "create controller"
	if experts == nil {
		return nil, refuse(op, ErrArgument, "no expert pool")
	}
	c := C.moepage_controller_config{
		struct_size:       C.sizeof_moepage_controller_config,
		mode:              C.uint32_t(config.Mode),
		burst_steps:       C.uint32_t(config.BurstSteps),
		kv_miss:           C.uint32_t(config.KVMiss),
		context_tokens:    C.uint64_t(config.ContextTokens),
		concurrency:       C.uint32_t(config.Concurrency),
		expert_percent:    C.uint32_t(config.ExpertPercent),
		admission:         flag(config.Admission),
		decay_permille:    C.uint32_t(config.DecayPermille),
		gate_permille:     C.uint32_t(config.GatePermille),
		rate_permille:     C.uint32_t(config.RatePermille),
		dead_zone:         C.uint32_t(config.DeadZone),
		headroom_permille: C.uint32_t(config.HeadroomPermille),
		theta_permille:    C.uint32_t(config.ThetaPermille),
		max_samples:       C.uint32_t(config.MaxSamples),
		target_ttft_ns:    C.uint64_t(config.TargetTtftNS),
		target_tpot_ns:    C.uint64_t(config.TargetTpotNS),
	}
	out := &Controller{experts: experts, kv: kv}
	parents, pool := []*object{&experts.object}, (*C.moepage_kv_pool)(nil)
	if kv != nil {
		parents, pool = append(parents, &kv.object), kv.c
	}
	err := whileIdle(op, out.devices(), func() error {
		if err := enterAll(parents...); err != nil {
			return err
		}
		defer leaveAll(parents...)
		return call(op, func() C.moepage_status {
			return C.moepage_controller_create(experts.c, pool, &c, &out.c)
		})
	})
	if err != nil {
		return nil, err
	}
	born(out)
	return out, nil
}

func (c *Controller) devices() []*Device { return devicesOf(c.experts, c.kv) }

// devicesOf is the devices of a pair of pools, each once.
func devicesOf(experts *ExpertPool, kv *KVPool) []*Device {
	if experts == nil {
		return []*Device{nil}
	}
	devices := experts.devices
	if kv != nil {
		devices = append(devices[:len(devices):len(devices)], kv.device)
	}
	return distinct(devices)
}

// Close comes before that of the pools.
func (c *Controller) Close() error {
	const op = "close controller"
	return whileIdle(op, c.devices(), func() error {
		return c.shut(op, func() C.moepage_status { return C.moepage_controller_destroy(c.c) })
	})
}

// Tick is to be called between steps: at a burst's end it decides and acts. For one goroutine at a
// time.
func (c *Controller) Tick(stream Stream) (ControllerReport, error) {
	if err := c.enterAlone(); err != nil {
		return ControllerReport{}, err
	}
	defer c.leaveAlone()
	report := C.moepage_controller_report{struct_size: C.sizeof_moepage_controller_report}
	err := moving(c.kv, func() error {
		return call("tick", func() C.moepage_status {
			return C.moepage_controller_tick(c.c, unsafe.Pointer(stream), &report)
		})
	})
	if err != nil {
		return ControllerReport{}, err
	}
	return newControllerReport(&report), nil
}

// KVUse names a prefix of the host's own that was used, and its length.
func (c *Controller) KVUse(key, tokens uint64) error {
	return c.any("KV use", func() C.moepage_status {
		return C.moepage_controller_kv_use(c.c, C.uint64_t(key), C.uint64_t(tokens))
	})
}

// Rightsize names the users that the controller serves: "coactivation" predictors, one for each, of their
// own sessions. Experts get no more slots than these need to cover so much of their choices; 0 = 990. It
// replaces those named before; none end it. For one goroutine at a time, as Tick.
func (c *Controller) Rightsize(users []*Predictor, coveragePermille uint32) error {
	const op = "rightsize"
	parents, raw := make([]*object, len(users)), make([]*C.moepage_predictor, len(users))
	for i, user := range users {
		if user == nil {
			return refuse(op, ErrArgument, "users[%d] is nil", i)
		}
		parents[i], raw[i] = &user.object, user.c
	}
	if err := enterAll(parents...); err != nil {
		return err
	}
	defer leaveAll(parents...)
	return c.one(op, func() C.moepage_status {
		status := C.moepage_controller_rightsize(c.c, first(raw), u32(len(raw)),
			C.uint32_t(coveragePermille))
		if status == C.MOEPAGE_OK {
			c.users = append([]*Predictor(nil), users...)
		}
		return status
	})
}

// User is what a user needs; 0 experts: not sure yet.
func (c *Controller) User(index int) (Rightsize, error) {
	size := C.moepage_rightsize{struct_size: C.sizeof_moepage_rightsize}
	return fetch(&c.object, "user", &size, func() C.moepage_status {
		return C.moepage_controller_get_rightsize(c.c, u32(index), &size)
	}, newRightsize)
}

// Info is what has been measured.
func (c *Controller) Info() (ControllerInfo, error) {
	info := C.moepage_controller_info{struct_size: C.sizeof_moepage_controller_info}
	return fetch(&c.object, "controller info", &info, func() C.moepage_status {
		return C.moepage_controller_get_info(c.c, &info)
	}, newControllerInfo)
}

// ExpertCurve is the predicted misses of a burst with so many slots each.
func (c *Controller) ExpertCurve(slots []uint64) ([]float64, error) { return c.curve(0, slots) }

// KVCurve is the predicted misses of a burst, in blocks, with so many blocks each.
func (c *Controller) KVCurve(blocks []uint64) ([]float64, error) { return c.curve(1, blocks) }

func (c *Controller) curve(kv C.uint32_t, sizes []uint64) ([]float64, error) {
	misses := make([]float64, len(sizes))
	err := c.any("miss curve", func() C.moepage_status {
		return C.moepage_controller_get_curve(c.c, kv, (*C.uint64_t)(first(sizes)), u32(len(sizes)),
			(*C.double)(first(misses)))
	})
	return misses, err
}
