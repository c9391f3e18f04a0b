package moepage

/*
#include <stdlib.h>
#include "moepage.h"

// The second version's config comes by itself: a struct in Go's memory must not hold Go's pointers.
static moepage_status create_experts(moepage_device *const *devices, uint32_t n_devices,
                                     moepage_model *model, moepage_expert_pool_config config,
                                     const moepage_precision_config *precision,
                                     moepage_expert_pool **out)
{
    config.precision = precision;
    return moepage_expert_pool_create(devices, n_devices, model, &config, out);
}

static moepage_status size_experts(const moepage_model *model, moepage_expert_pool_config config,
                                   const moepage_precision_config *precision, uint32_t n_devices,
                                   uint64_t *workspace, uint64_t *arena)
{
    config.precision = precision;
    return moepage_expert_pool_sizes(model, &config, n_devices, workspace, arena);
}
*/
import "C"

// Scope is which layers compete for slots.
type Scope uint32

const (
	ScopeGlobal Scope = C.MOEPAGE_SCOPE_GLOBAL
	ScopeLayer  Scope = C.MOEPAGE_SCOPE_LAYER
)

// Placement is how many experts are kept compressed.
type Placement uint32

const (
	PlacementExplicit  Placement = C.MOEPAGE_PLACEMENT_EXPLICIT
	PlacementBandwidth Placement = C.MOEPAGE_PLACEMENT_BANDWIDTH
)

// Serve is what experts in two versions are for.
type Serve uint32

const (
	ServeVersions Serve = C.MOEPAGE_SERVE_VERSIONS
	ServeCache    Serve = C.MOEPAGE_SERVE_CACHE
)

// Hotness is what makes an expert hot.
type Hotness uint32

const (
	HotnessChoices Hotness = C.MOEPAGE_HOTNESS_CHOICES
	HotnessWeights Hotness = C.MOEPAGE_HOTNESS_WEIGHTS
)

// PrecisionConfig is a second version of every expert, of fewer bits. What is computed is then an
// approximation.
type PrecisionConfig struct {
	Serve       Serve
	HiForm      Form
	LoForm      Form
	LoFetched   bool
	HiExperts   uint32
	IntervalUS  uint32
	WindowSteps uint32
	Alpha       float64
	Margin      float64
	Transitions uint32
	Hotness     Hotness
}

// ExpertPoolConfig is how many experts are resident, and how they are replaced.
type ExpertPoolConfig struct {
	Scope             Scope
	Slots             uint64
	Policy            string
	ScanPercent       uint32
	ChunkBytes        uint32
	HostTierBytes     uint64
	BusForm           Form
	CompressedExperts uint32
	Placement         Placement
	StagingExperts    uint32
	Precision         *PrecisionConfig
	SlotForm          Form
}

// ExpertState is where an expert is.
type ExpertState uint32

const (
	ExpertAbsent   ExpertState = C.MOEPAGE_EXPERT_ABSENT
	ExpertLoading  ExpertState = C.MOEPAGE_EXPERT_LOADING
	ExpertResident ExpertState = C.MOEPAGE_EXPERT_RESIDENT
)

// ExpertPool is the slots that experts are resident in. It may be shared by goroutines.
type ExpertPool struct {
	object
	c       *C.moepage_expert_pool
	devices []*Device
	model   *Model
}

// c is the config for the library; policy is to be freed.
func (config *ExpertPoolConfig) c() (c C.moepage_expert_pool_config, precision *C.moepage_precision_config) {
	c = C.moepage_expert_pool_config{
		struct_size:        C.sizeof_moepage_expert_pool_config,
		scope:              C.uint32_t(config.Scope),
		slots:              C.uint64_t(config.Slots),
		policy:             cstring(config.Policy),
		scan_percent:       C.uint32_t(config.ScanPercent),
		chunk_bytes:        C.uint32_t(config.ChunkBytes),
		host_tier_bytes:    C.uint64_t(config.HostTierBytes),
		bus_form:           C.uint32_t(config.BusForm),
		compressed_experts: C.uint32_t(config.CompressedExperts),
		placement:          C.uint32_t(config.Placement),
		staging_experts:    C.uint32_t(config.StagingExperts),
		slot_form:          C.uint32_t(config.SlotForm),
	}
	if p := config.Precision; p != nil {
		precision = &C.moepage_precision_config{
			struct_size:  C.sizeof_moepage_precision_config,
			serve:        C.uint32_t(p.Serve),
			hi_form:      C.uint32_t(p.HiForm),
			lo_form:      C.uint32_t(p.LoForm),
			lo_fetched:   flag(p.LoFetched),
			hi_experts:   C.uint32_t(p.HiExperts),
			interval_us:  C.uint32_t(p.IntervalUS),
			window_steps: C.uint32_t(p.WindowSteps),
			alpha:        C.double(p.Alpha),
			margin:       C.double(p.Margin),
			transitions:  C.uint32_t(p.Transitions),
			hotness:      C.uint32_t(p.Hotness),
		}
	}
	return c, precision
}

// NewExpertPool makes a model's experts available on one or several devices.
func NewExpertPool(devices []*Device, model *Model, config ExpertPoolConfig) (*ExpertPool, error) {
	const op = "create expert pool"
	if model == nil || len(devices) == 0 || len(devices) > MaxDevices {
		return nil, refuse(op, ErrArgument, "a model and 1 to %d devices are needed", MaxDevices)
	}
	if err := whole(op, config.Policy); err != nil {
		return nil, err
	}
	p := &ExpertPool{devices: append([]*Device(nil), devices...), model: model}
	parents := []*object{&model.object}
	handles := make([]*C.moepage_device, len(devices))
	for i, d := range devices {
		if d == nil {
			return nil, refuse(op, ErrArgument, "device %d is nil", i)
		}
		if d.host != devices[0].host {
			return nil, refuse(op, ErrUnsupported, "devices 0 and %d are of different kinds", i)
		}
		handles[i] = d.c
		parents = append(parents, &d.object)
	}
	c, precision := config.c()
	defer free(c.policy)
	err := whileIdle(op, distinct(devices), func() error {
		if err := enterAll(parents...); err != nil {
			return err
		}
		defer leaveAll(parents...)
		return call(op, func() C.moepage_status {
			return C.create_experts(&handles[0], C.uint32_t(len(handles)), model.c, c, precision, &p.c)
		})
	})
	if err != nil {
		return nil, model.reader.explain(err)
	}
	born(p)
	return p, nil
}

// distinct leaves out repetitions, which the library is to refuse.
func distinct(devices []*Device) []*Device {
	var out []*Device
	seen := map[*Device]bool{nil: true}
	for _, d := range devices {
		if !seen[d] {
			seen[d] = true
			out = append(out, d)
		}
	}
	return out
}

// ExpertPoolSizes is what a pool with this config takes from each of so many devices: of their
// workspace, and of their arena.
func ExpertPoolSizes(model *Model, config ExpertPoolConfig, devices int) (workspace, arena uint64, err error) {
	const op = "expert pool sizes"
	if model == nil {
		return 0, 0, refuse(op, ErrArgument, "no model")
	}
	if err := whole(op, config.Policy); err != nil {
		return 0, 0, err
	}
	c, precision := config.c()
	defer free(c.policy)
	var w, a C.uint64_t
	err = model.any(op, func() C.moepage_status {
		return C.size_experts(model.c, c, precision, u32(devices), &w, &a)
	})
	return uint64(w), uint64(a), err
}

// Close is ErrBusy while a session or a controller uses the pool.
func (p *ExpertPool) Close() error {
	const op = "close expert pool"
	return whileIdle(op, distinct(p.devices), func() error {
		return p.shut(op, func() C.moepage_status { return C.moepage_expert_pool_destroy(p.c) })
	})
}

// Info is what the pool holds and has done.
func (p *ExpertPool) Info() (ExpertPoolInfo, error) {
	c := C.moepage_expert_pool_info{struct_size: C.sizeof_moepage_expert_pool_info}
	return fetch(&p.object, "expert pool info", &c, func() C.moepage_status {
		return C.moepage_expert_pool_get_info(p.c, &c)
	}, newExpertPoolInfo)
}

// Stats sums the ended steps of all sessions that the pool has had.
func (p *ExpertPool) Stats() (SessionStats, error) {
	c := C.moepage_session_stats{struct_size: C.sizeof_moepage_session_stats}
	return fetch(&p.object, "expert pool stats", &c, func() C.moepage_status {
		return C.moepage_expert_pool_get_stats(p.c, &c)
	}, newSessionStats)
}

// Lookup is where an expert is: a snapshot.
func (p *ExpertPool) Lookup(layer, expert int) (Residency, error) {
	c := C.moepage_residency{struct_size: C.sizeof_moepage_residency}
	return fetch(&p.object, "look up expert", &c, func() C.moepage_status {
		return C.moepage_expert_pool_lookup(p.c, u32(layer), u32(expert), &c)
	}, newResidency)
}

// Pin loads an expert if it is absent and keeps it until as many calls of Unpin.
func (p *ExpertPool) Pin(layer, expert int) error {
	return p.model.explain(p.any("pin expert", func() C.moepage_status {
		return C.moepage_expert_pool_pin(p.c, u32(layer), u32(expert))
	}))
}

// Unpin is ErrState when the expert has no pin.
func (p *ExpertPool) Unpin(layer, expert int) error {
	return p.any("unpin expert", func() C.moepage_status {
		return C.moepage_expert_pool_unpin(p.c, u32(layer), u32(expert))
	})
}
