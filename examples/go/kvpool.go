package moepage

/*
#include "moepage.h"

// The array comes by itself: a struct in Go's memory must not hold Go's pointers.
static moepage_status create_kv(moepage_device *device, moepage_kv_pool_config config,
                                const uint32_t *bytes_per_token, moepage_kv_pool **out)
{
    config.bytes_per_token = bytes_per_token;
    return moepage_kv_pool_create(device, &config, out);
}

static moepage_status size_kv(moepage_kv_pool_config config, const uint32_t *bytes_per_token,
                              uint64_t *bytes)
{
    config.bytes_per_token = bytes_per_token;
    return moepage_kv_pool_sizes(&config, bytes);
}
*/
import "C"

import (
	"sync"
	"unsafe"
)

// KVPoolConfig is how the KV cache is laid out. BytesPerToken, with an entry for every layer, is
// required.
type KVPoolConfig struct {
	BlockTokens      uint32
	BlocksPerGranule uint32
	BytesPerToken    []uint32
	Blocks           uint64
	MaxSequences     uint64
}

// KVPool is the blocks of the KV cache. It may be shared by goroutines.
type KVPool struct {
	object
	c           *C.moepage_kv_pool
	device      *Device
	blockTokens int
	perToken    []uint32
	views       []KVLayerView
}

// KVLayerView is how to address one layer's blocks: block b's bytes start at Base + Offset(b).
type KVLayerView struct {
	Base         unsafe.Pointer // device memory; nil for a layer that keeps no KV
	IDStride     uint32
	BlockBytes   uint64
	GranuleBytes uint64
}

// Offset is where a block of a table begins.
func (v *KVLayerView) Offset(block uint32) uint64 {
	return uint64(block/v.IDStride)*v.GranuleBytes + uint64(block%v.IDStride)*v.BlockBytes
}

// c is the config for the library, without the array.
func (config *KVPoolConfig) c() C.moepage_kv_pool_config {
	return C.moepage_kv_pool_config{
		struct_size:        C.sizeof_moepage_kv_pool_config,
		block_tokens:       C.uint32_t(config.BlockTokens),
		layers:             C.uint32_t(len(config.BytesPerToken)),
		blocks_per_granule: C.uint32_t(config.BlocksPerGranule),
		blocks:             C.uint64_t(config.Blocks),
		max_sequences:      C.uint64_t(config.MaxSequences),
	}
}

// KVPoolSizes is what a pool with this config, whose Blocks are given, takes of a device's arena.
func KVPoolSizes(config KVPoolConfig) (uint64, error) {
	var bytes C.uint64_t
	err := call("KV pool sizes", func() C.moepage_status {
		return C.size_kv(config.c(), (*C.uint32_t)(first(config.BytesPerToken)), &bytes)
	})
	return uint64(bytes), err
}

// NewKVPool makes a KV cache of a device's arena.
func NewKVPool(device *Device, config KVPoolConfig) (*KVPool, error) {
	const op = "create KV pool"
	if device == nil {
		return nil, refuse(op, ErrArgument, "no device")
	}
	c := config.c()
	p := &KVPool{device: device, perToken: append([]uint32(nil), config.BytesPerToken...)}
	err := whileIdle(op, []*Device{device}, func() error {
		return device.any(op, func() C.moepage_status {
			return C.create_kv(device.c, c, (*C.uint32_t)(first(p.perToken)), &p.c)
		})
	})
	if err != nil {
		return nil, err
	}
	born(p)
	return opened(p, p.learn())
}

// learn asks for what never changes.
func (p *KVPool) learn() error {
	info, err := p.Info()
	if err != nil {
		return err
	}
	p.blockTokens = int(info.BlockTokens)
	p.views = make([]KVLayerView, len(p.perToken))
	for layer := range p.views {
		c := C.moepage_kv_layer_view{struct_size: C.sizeof_moepage_kv_layer_view}
		err := p.any("KV layer", func() C.moepage_status {
			return C.moepage_kv_pool_get_layer(p.c, u32(layer), &c)
		})
		if err != nil {
			return err
		}
		p.views[layer] = KVLayerView{c.base, uint32(c.id_stride), uint64(c.block_bytes), uint64(c.granule_bytes)}
	}
	return nil
}

// Close destroys every sequence in the pool, too. ErrBusy while a session or a controller uses it.
func (p *KVPool) Close() error {
	const op = "close KV pool"
	return whileIdle(op, []*Device{p.device}, func() error {
		return p.shut(op, func() C.moepage_status { return C.moepage_kv_pool_destroy(p.c) })
	})
}

// Info is what the pool holds and has done.
func (p *KVPool) Info() (KVPoolInfo, error) {
	c := C.moepage_kv_pool_info{struct_size: C.sizeof_moepage_kv_pool_info}
	return fetch(&p.object, "KV pool info", &c, func() C.moepage_status {
		return C.moepage_kv_pool_get_info(p.c, &c)
	}, newKVPoolInfo)
}

// Layer is how to address a layer's blocks: the same for the pool's whole life.
func (p *KVPool) Layer(layer int) (KVLayerView, error) {
	if err := p.enter(); err != nil {
		return KVLayerView{}, err
	}
	defer p.leave()
	if layer < 0 || layer >= len(p.views) {
		return KVLayerView{}, refuse("KV layer", ErrArgument, "layer %d: the pool has %d", layer, len(p.views))
	}
	return p.views[layer], nil
}

// Admit says whether new sequences of so many tokens each would fit now. It takes nothing.
func (p *KVPool) Admit(tokens []uint64) (KVAdmission, error) {
	c := C.moepage_kv_admission{struct_size: C.sizeof_moepage_kv_admission}
	return fetch(&p.object, "KV admission", &c, func() C.moepage_status {
		return C.moepage_kv_admit(p.c, (*C.uint64_t)(first(tokens)), u32(len(tokens)), &c)
	}, newKVAdmission)
}

// SetSplit moves the boundary between experts and KV; 0 leaves that pool as it is, and either pool
// may be nil. A refused move leaves the old split.
func SetSplit(experts *ExpertPool, kv *KVPool, expertSlots, kvBlocks uint64, stream Stream) error {
	var parents []*object
	var e *C.moepage_expert_pool
	var k *C.moepage_kv_pool
	if experts != nil {
		parents, e = append(parents, &experts.object), experts.c
	}
	if kv != nil {
		parents, k = append(parents, &kv.object), kv.c
	}
	if err := enterAll(parents...); err != nil {
		return err
	}
	defer leaveAll(parents...)
	return moving(kv, func() error {
		return call("set split", func() C.moepage_status {
			return C.moepage_split_set(e, k, C.uint64_t(expertSlots), C.uint64_t(kvBlocks), unsafe.Pointer(stream))
		})
	})
}

// split is held by what moves the boundary of any pools.
var split sync.Mutex

// moving runs what may move blocks, while no block table is read.
func moving(kv *KVPool, work func() error) error {
	split.Lock()
	defer split.Unlock()
	if kv != nil {
		kv.device.tables.Lock()
		defer kv.device.tables.Unlock()
	}
	return work()
}
