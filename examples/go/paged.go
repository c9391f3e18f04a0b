package moepage

// #include "moepage.h"
import "C"

import "unsafe"

// PagedConfig is how many layers have memory at once, and what feeds them.
type PagedConfig struct {
	Buffers           uint32 // 0 = 2
	CompressedExperts uint32 // of each layer, kept compressed in device memory
	HostTierBytes     uint64 // host memory for experts that are read from a file or pack; 0 = none
}

func (config *PagedConfig) c() C.moepage_paged_config {
	return C.moepage_paged_config{
		struct_size:        C.sizeof_moepage_paged_config,
		buffers:            C.uint32_t(config.Buffers),
		compressed_experts: C.uint32_t(config.CompressedExperts),
		host_tier_bytes:    C.uint64_t(config.HostTierBytes),
	}
}

// PagedState is where a layer of a PagedTensor is.
type PagedState uint32

const (
	PagedUnmapped PagedState = C.MOEPAGE_PAGED_UNMAPPED
	PagedLoading  PagedState = C.MOEPAGE_PAGED_LOADING
	PagedResident PagedState = C.MOEPAGE_PAGED_RESIDENT
	PagedEvicting PagedState = C.MOEPAGE_PAGED_EVICTING
)

// Paged is expert weights at addresses that never change, for kernels that know nothing of paging.
// Materialise, Acquire, Release and Bytes are for one goroutine at a time.
type Paged struct {
	object
	c        *C.moepage_paged
	device   *Device
	model    *Model
	acquired map[int]bool
}

// PagedTensor is where one tensor of all experts of all layers lies: layer i, expert j at Base +
// i * LayerStride + j * ExpertStride.
type PagedTensor struct {
	Role         Role
	DType        DType
	Shape        []int // of one expert's tensor
	Base         unsafe.Pointer
	ExpertStride uint64
	LayerStride  uint64
}

// PagedSizes is what NewPaged would take of the device's workspace and arena.
func PagedSizes(device *Device, model *Model, config PagedConfig) (workspace, arena uint64, err error) {
	const op = "paged sizes"
	if device == nil || model == nil {
		return 0, 0, refuse(op, ErrArgument, "a device and a model are needed")
	}
	if err := enterAll(&device.object, &model.object); err != nil {
		return 0, 0, err
	}
	defer leaveAll(&device.object, &model.object)
	c := config.c()
	var w, a C.uint64_t
	err = call(op, func() C.moepage_status { return C.moepage_paged_sizes(device.c, model.c, &c, &w, &a) })
	return uint64(w), uint64(a), err
}

// NewPaged takes the experts' side of the device's arena, in an expert pool's place.
func NewPaged(device *Device, model *Model, config PagedConfig) (*Paged, error) {
	const op = "create paged tensor"
	if device == nil || model == nil {
		return nil, refuse(op, ErrArgument, "a device and a model are needed")
	}
	c := config.c()
	p := &Paged{device: device, model: model, acquired: map[int]bool{}}
	err := whileIdle(op, []*Device{device}, func() error {
		if err := enterAll(&device.object, &model.object); err != nil {
			return err
		}
		defer leaveAll(&device.object, &model.object)
		return call(op, func() C.moepage_status { return C.moepage_paged_create(device.c, model.c, &c, &p.c) })
	})
	if err != nil {
		return nil, err
	}
	born(p)
	return p, nil
}

// Close is ErrBusy while a layer is acquired.
func (p *Paged) Close() error {
	const op = "close paged tensor"
	return whileIdle(op, []*Device{p.device}, func() error {
		return p.shut(op, func() C.moepage_status { return C.moepage_paged_destroy(p.c) })
	})
}

// Tensor is where a tensor lies, which never changes; tensors count as in Model.ExpertTensors.
func (p *Paged) Tensor(tensor int) (PagedTensor, error) {
	c := C.moepage_paged_tensor{struct_size: C.sizeof_moepage_paged_tensor}
	return fetch(&p.object, "paged tensor", &c, func() C.moepage_status {
		return C.moepage_paged_get_tensor(p.c, u32(tensor), &c)
	}, func(c *C.moepage_paged_tensor) PagedTensor {
		return PagedTensor{Role(c.role), DType(c.dtype), shapeOf(c.rank, &c.shape), c.base,
			uint64(c.expert_stride), uint64(c.layer_stride)}
	})
}

// Materialise begins to bring a layer and returns at once.
func (p *Paged) Materialise(layer int) error {
	return p.one("materialise", func() C.moepage_status { return C.moepage_paged_materialise(p.c, u32(layer)) })
}

// Acquire waits for the layer's bytes, on a CUDA device for what the stream does from now on.
func (p *Paged) Acquire(layer int, stream Stream) error {
	return p.model.explain(p.one("acquire", func() C.moepage_status {
		status := C.moepage_paged_acquire(p.c, u32(layer), unsafe.Pointer(stream))
		if status == C.MOEPAGE_OK {
			p.acquired[layer] = true
		}
		return status
	}))
}

// Release says that what was submitted to the stream was the last to read the layer.
func (p *Paged) Release(layer int, stream Stream) error {
	return p.one("release", func() C.moepage_status {
		status := C.moepage_paged_release(p.c, u32(layer), unsafe.Pointer(stream))
		if status == C.MOEPAGE_OK {
			delete(p.acquired, layer)
		}
		return status
	})
}

// Resize keeps so many experts of each layer compressed in device memory: ErrBusy while those that are to go are
// in use, after which the same call succeeds soon.
func (p *Paged) Resize(compressed uint32) error {
	return p.any("resize paged tensor", func() C.moepage_status {
		return C.moepage_paged_resize(p.c, C.uint32_t(compressed))
	})
}

// Balance divides the arena between compressed experts and a KV pool of the same device at the end of a burst: KV
// gets the most blocks that it has used since the last call, with a headroom, experts the rest.
func (p *Paged) Balance(kv *KVPool, headroomPermille uint32, stream Stream) (ControllerReport, error) {
	const op = "balance"
	report := C.moepage_controller_report{struct_size: C.sizeof_moepage_controller_report}
	if kv == nil {
		return ControllerReport{}, refuse(op, ErrArgument, "a KV pool is needed")
	}
	err := moving(kv, func() error {
		if err := enterAll(&kv.object); err != nil {
			return err
		}
		defer leaveAll(&kv.object)
		return p.one(op, func() C.moepage_status {
			return C.moepage_paged_balance(p.c, kv.c, C.uint32_t(headroomPermille), unsafe.Pointer(stream), &report)
		})
	})
	if err != nil {
		return ControllerReport{}, err
	}
	return newControllerReport(&report), nil
}

// Info is its memory, and what it has done.
func (p *Paged) Info() (PagedInfo, error) {
	info := C.moepage_paged_info{struct_size: C.sizeof_moepage_paged_info}
	return fetch(&p.object, "paged info", &info, func() C.moepage_status {
		return C.moepage_paged_get_info(p.c, &info)
	}, newPagedInfo)
}

// State is where a layer is.
func (p *Paged) State(layer int) (PagedState, error) {
	var state C.uint32_t
	err := p.any("paged state", func() C.moepage_status {
		return C.moepage_paged_get_state(p.c, u32(layer), &state)
	})
	return PagedState(state), err
}

// Bytes is one tensor of all experts of an acquired layer, on a host device. Release ends its use:
// its addresses may be empty then, or another layer's. It cannot be written.
func (p *Paged) Bytes(layer, tensor int) ([]byte, error) {
	const op = "paged bytes"
	if err := p.enterAlone(); err != nil {
		return nil, err
	}
	defer p.leaveAlone()
	if !p.device.host {
		return nil, refuse(op, ErrUnsupported, "the device's memory is not the program's: Tensor has its addresses")
	}
	if !p.acquired[layer] {
		return nil, refuse(op, ErrState, "layer %d is not acquired", layer)
	}
	t, err := p.Tensor(tensor)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(unsafe.Add(t.Base, uint64(layer)*t.LayerStride)),
		int(uint64(p.model.info.Experts)*t.ExpertStride)), nil
}
