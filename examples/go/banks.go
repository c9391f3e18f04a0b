package moepage

/*
#include <stdlib.h>
#include "moepage.h"

// The arrays come by themselves: a struct in Go's memory must not hold Go's pointers.
static moepage_status open_banks(moepage_banks banks, const moepage_expert_tensor *tensors,
                                 const void *const *data, const int32_t *layer_index,
                                 const moepage_dense_tensor *dense,
                                 const moepage_model_config *config, moepage_model **out)
{
    banks.struct_size = sizeof banks;
    banks.tensors = tensors;
    banks.data = data;
    banks.layer_index = layer_index;
    banks.dense = dense;
    return moepage_model_open_banks(&banks, config, out);
}
*/
import "C"

import (
	"math/bits"
	"unsafe"
)

// DenseTensor is a tensor of banks that is never paged. Its bytes are copied.
type DenseTensor struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte
}

// Banks are experts that the program holds. Exactly one of Data and Read is set.
type Banks struct {
	MoELayers          uint32
	Experts            uint32 // per layer
	TopK               uint32
	Hidden             uint32
	ExpertIntermediate uint32
	Tensors            []ExpertTensor

	// Data has MoELayers * Experts * len(Tensors) entries: the tensors of layer 0's expert 0, then
	// those of its expert 1, and so on. They are copied to memory that Go does not manage.
	Data [][]byte
	Read ReadFunc

	// What else a whole model is; all of it may be left out.
	Architecture  string
	ConfigJSON    string
	LayerIndex    []int32
	Layers        uint32
	SharedExperts uint32
	Vocabulary    uint32
	Dense         []DenseTensor

	Activation      Activation
	ActivationAlpha float32 // of ActivationSwiGLUClamped; 0 = 1.702
	ActivationLimit float32 // of the same; 0 = 7
}

// bankMemory is what the library borrows until the model is closed: in C's memory, for it keeps the
// addresses.
type bankMemory struct {
	blocks []unsafe.Pointer
	box    unsafe.Pointer // of the reader
}

func (m *bankMemory) free() {
	if m == nil {
		return
	}
	freeBox(m.box)
	for _, block := range m.blocks {
		C.free(block)
	}
	m.blocks = nil
}

// keep copies data, which is not empty.
func (m *bankMemory) keep(data []byte) unsafe.Pointer {
	const alignment = 64 // of the widest loads that kernels use
	block := C.aligned_alloc(alignment, C.size_t((len(data)+alignment-1)/alignment*alignment))
	if block != nil {
		copy(unsafe.Slice((*byte)(block), len(data)), data)
		m.blocks = append(m.blocks, block)
	}
	return block
}

// text copies a string; nil stays for an empty one.
func (m *bankMemory) text(s string) *C.char {
	text := cstring(s)
	if text != nil {
		m.blocks = append(m.blocks, unsafe.Pointer(text))
	}
	return text
}

func (t *ExpertTensor) elements() uint64 { return elements(t.Shape) }

// elements of a shape whose dimensions are above 0; what no memory could hold is not told apart.
func elements(shape []int) uint64 {
	const most = 1 << 56
	n := uint64(1)
	for _, d := range shape {
		if high, low := bits.Mul64(n, uint64(d)); high == 0 && low < most {
			n = low
		} else {
			n = most
		}
	}
	return n
}

func setShape(op string, shape []int, rank *C.uint32_t, out *[C.MOEPAGE_MAX_RANK]C.uint64_t) error {
	if len(shape) > len(out) {
		return refuse(op, ErrArgument, "shape %v: at most %d dimensions", shape, len(out))
	}
	for i, d := range shape {
		if d <= 0 {
			return refuse(op, ErrArgument, "shape %v: dimensions are above 0", shape)
		}
		out[i] = C.uint64_t(d)
	}
	*rank = C.uint32_t(len(shape))
	return nil
}

const openBanks = "open banks"

func (b *Banks) tensors() ([]C.moepage_expert_tensor, error) {
	out := make([]C.moepage_expert_tensor, len(b.Tensors))
	for i, t := range b.Tensors {
		out[i].role, out[i].dtype = C.uint32_t(t.Role), C.uint32_t(t.DType)
		if err := setShape(openBanks, t.Shape, &out[i].rank, &out[i].shape); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// data copies the experts, after it has seen that each is as long as its shape says.
func (b *Banks) data(memory *bankMemory) ([]unsafe.Pointer, error) {
	if b.Data == nil {
		return nil, nil
	}
	n := uint64(b.MoELayers) * uint64(b.Experts) * uint64(len(b.Tensors))
	if uint64(len(b.Data)) != n {
		return nil, refuse(openBanks, ErrArgument, "%d entries of Data for %d layers of %d experts of %d tensors",
			len(b.Data), b.MoELayers, b.Experts, len(b.Tensors))
	}
	out := make([]unsafe.Pointer, n)
	for i, data := range b.Data {
		tensor := &b.Tensors[i%len(b.Tensors)]
		size := uint64(tensor.DType.Size())
		if size == 0 || uint64(len(data)) != tensor.elements()*size {
			return nil, refuse(openBanks, ErrArgument, "Data[%d] has %d bytes, not those of shape %v of %v",
				i, len(data), tensor.Shape, tensor.DType)
		}
		if out[i] = memory.keep(data); out[i] == nil {
			return nil, refuse(openBanks, ErrNoMemory, "no memory for a copy of the experts")
		}
	}
	return out, nil
}

func (b *Banks) dense(memory *bankMemory) ([]C.moepage_dense_tensor, error) {
	out := make([]C.moepage_dense_tensor, len(b.Dense))
	for i, t := range b.Dense {
		out[i].name, out[i].dtype = memory.text(t.Name), C.uint32_t(t.DType)
		if err := setShape(openBanks, t.Shape, &out[i].rank, &out[i].shape); err != nil {
			return nil, err
		}
		size := uint64(t.DType.Size())
		if size == 0 || uint64(len(t.Data)) != elements(t.Shape)*size {
			return nil, refuse(openBanks, ErrArgument, "dense tensor %q has %d bytes, not those of shape %v of %v",
				t.Name, len(t.Data), t.Shape, t.DType)
		}
		if out[i].data = memory.keep(t.Data); out[i].data == nil {
			return nil, refuse(openBanks, ErrNoMemory, "no memory for a copy of %q", t.Name)
		}
	}
	return out, nil
}

func (b *Banks) texts() []string {
	out := []string{b.Architecture, b.ConfigJSON}
	for _, t := range b.Dense {
		out = append(out, t.Name)
	}
	return out
}

func (b *Banks) header(memory *bankMemory) C.moepage_banks {
	return C.moepage_banks{
		moe_layers:          C.uint32_t(b.MoELayers),
		experts:             C.uint32_t(b.Experts),
		top_k:               C.uint32_t(b.TopK),
		hidden:              C.uint32_t(b.Hidden),
		expert_intermediate: C.uint32_t(b.ExpertIntermediate),
		n_tensors:           C.uint32_t(len(b.Tensors)),
		architecture:        memory.text(b.Architecture),
		config_json:         memory.text(b.ConfigJSON),
		layers:              C.uint32_t(b.Layers),
		shared_experts:      C.uint32_t(b.SharedExperts),
		vocabulary:          C.uint32_t(b.Vocabulary),
		n_dense:             C.uint32_t(len(b.Dense)),
		activation:          C.uint32_t(b.Activation),
		activation_alpha:    C.float(b.ActivationAlpha),
		activation_limit:    C.float(b.ActivationLimit),
	}
}

// OpenBanks opens a model by its expert banks.
func OpenBanks(banks Banks, config ModelConfig) (*Model, error) {
	m := &Model{banks: &bankMemory{}}
	if banks.LayerIndex != nil && len(banks.LayerIndex) != int(banks.MoELayers) {
		return nil, refuse(openBanks, ErrArgument, "%d entries of LayerIndex for %d MoE layers",
			len(banks.LayerIndex), banks.MoELayers)
	}
	if err := whole(openBanks, banks.texts()...); err != nil {
		return nil, err
	}
	tensors, err := banks.tensors()
	if err != nil {
		return nil, err
	}
	data, err := banks.data(m.banks)
	if err != nil {
		m.release()
		return nil, err
	}
	dense, err := banks.dense(m.banks)
	if err != nil {
		m.release()
		return nil, err
	}
	c := banks.header(m.banks)
	if banks.Read != nil {
		m.reader = &reader{read: banks.Read}
		m.banks.box = newBox(m.reader)
		c.read, c.read_user = goRead, m.banks.box
	}
	return openModel(openBanks, config, m, func(config *C.moepage_model_config, out **C.moepage_model) C.moepage_status {
		return C.open_banks(c, first(tensors), first(data), (*C.int32_t)(first(banks.LayerIndex)),
			first(dense), config, out)
	})
}
