package moepage

/*
#include <stdlib.h>
#include "moepage.h"

// The arrays come by themselves: a struct in Go's memory must not hold Go's pointers.
static moepage_status open_banks(moepage_banks banks, const moepage_expert_tensor *tensors,
                                 const moepage_expert_tensor *layer_tensors,
                                 const void *const *data, const int32_t *layer_index,
                                 const moepage_dense_tensor *dense, const char *const *files,
                                 const moepage_file_place *places,
                                 const moepage_model_config *config, moepage_model **out)
{
    banks.struct_size = sizeof banks;
    banks.tensors = tensors;
    banks.layer_tensors = layer_tensors;
    banks.data = data;
    banks.layer_index = layer_index;
    banks.dense = dense;
    banks.files = files;
    banks.places = places;
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

// FilePlace is where a tensor of an expert begins.
type FilePlace struct {
	File   int // index into Banks.Files
	Offset uint64
}

// Banks are experts that the program holds. Exactly one of Data, Read and Places is set.
type Banks struct {
	MoELayers          uint32
	Experts            uint32 // per layer
	TopK               uint32
	Hidden             uint32
	ExpertIntermediate uint32
	Tensors            []ExpertTensor

	// LayerTensors has an expert's tensors for each MoE layer, in place of Tensors, where types differ
	// from layer to layer. Roles and shapes must not.
	LayerTensors [][]ExpertTensor

	// Data has MoELayers * Experts entries for each of an expert's tensors: those of layer 0's expert 0,
	// then those of its expert 1, and so on. They are copied to memory that Go does not manage.
	Data [][]byte
	Read ReadFunc

	// Places has as many entries as Data would, of files of any format: a tensor's bytes there are those
	// that a slot is to hold. Files stay open until the model is closed.
	Places []FilePlace
	Files  []string

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

// bytesOf is how many bytes a tensor of a shape has.
func bytesOf(op string, dtype DType, shape []int) (uint64, error) {
	if size := uint64(dtype.Size()); size != 0 {
		return elements(shape) * size, nil
	}
	weights, bytes := dtype.Block()
	if weights == 0 {
		return 0, refuse(op, ErrArgument, "a tensor of %v: banks have numbers, or blocks of GGUF files", dtype)
	}
	if len(shape) == 0 || shape[len(shape)-1]%weights != 0 {
		return 0, refuse(op, ErrArgument, "shape %v of %v: the last dimension is a multiple of the %d weights of a block",
			shape, dtype, weights)
	}
	return elements(shape) / uint64(weights) * uint64(bytes), nil
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

// nTensors is how many tensors an expert has.
func (b *Banks) nTensors() int { return len(b.layer(0)) }

// layer is the tensors of an expert of a layer.
func (b *Banks) layer(i int) []ExpertTensor {
	if len(b.LayerTensors) > 0 {
		return b.LayerTensors[i]
	}
	return b.Tensors
}

// check refuses lists of tensors that do not say how long each other list is.
func (b *Banks) check() error {
	if b.LayerIndex != nil && len(b.LayerIndex) != int(b.MoELayers) {
		return refuse(openBanks, ErrArgument, "%d entries of LayerIndex for %d MoE layers",
			len(b.LayerIndex), b.MoELayers)
	}
	if b.LayerTensors == nil {
		return nil
	}
	if b.Tensors != nil {
		return refuse(openBanks, ErrArgument, "each of Tensors and LayerTensors is set, exactly one must be")
	}
	if len(b.LayerTensors) != int(b.MoELayers) {
		return refuse(openBanks, ErrArgument, "%d entries of LayerTensors for %d MoE layers",
			len(b.LayerTensors), b.MoELayers)
	}
	for i, tensors := range b.LayerTensors {
		if len(tensors) != b.nTensors() {
			return refuse(openBanks, ErrArgument, "%d tensors in layer %d, and %d in layer 0", len(tensors), i, b.nTensors())
		}
	}
	return nil
}

func rawTensors(tensors []ExpertTensor) ([]C.moepage_expert_tensor, error) {
	out := make([]C.moepage_expert_tensor, len(tensors))
	for i, t := range tensors {
		out[i].role, out[i].dtype = C.uint32_t(t.Role), C.uint32_t(t.DType)
		if err := setShape(openBanks, t.Shape, &out[i].rank, &out[i].shape); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// layerTensors is those of all layers in a row; nil where all layers have the same.
func (b *Banks) layerTensors() (out []C.moepage_expert_tensor, err error) {
	for _, tensors := range b.LayerTensors {
		raw, err := rawTensors(tensors)
		if err != nil {
			return nil, err
		}
		out = append(out, raw...)
	}
	return out, nil
}

// sizes is the bytes of each of a layer's tensors.
func (b *Banks) sizes(layer int) ([]uint64, error) {
	tensors := b.layer(layer)
	out := make([]uint64, len(tensors))
	for i, t := range tensors {
		size, err := bytesOf(openBanks, t.DType, t.Shape)
		if err != nil {
			return nil, err
		}
		out[i] = size
	}
	return out, nil
}

// data copies the experts, after it has seen that each is as long as its shape says.
func (b *Banks) data(memory *bankMemory) ([]unsafe.Pointer, error) {
	if b.Data == nil {
		return nil, nil
	}
	each := b.nTensors()
	n := uint64(b.MoELayers) * uint64(b.Experts) * uint64(each)
	if uint64(len(b.Data)) != n {
		return nil, refuse(openBanks, ErrArgument, "%d entries of Data for %d layers of %d experts of %d tensors",
			len(b.Data), b.MoELayers, b.Experts, each)
	}
	out := make([]unsafe.Pointer, n)
	var sizes []uint64
	for i, data := range b.Data {
		layer, tensor := i/each/int(b.Experts), i%each
		if i%(each*int(b.Experts)) == 0 {
			var err error
			if sizes, err = b.sizes(layer); err != nil {
				return nil, err
			}
		}
		if uint64(len(data)) != sizes[tensor] {
			t := &b.layer(layer)[tensor]
			return nil, refuse(openBanks, ErrArgument, "Data[%d] has %d bytes, not those of shape %v of %v",
				i, len(data), t.Shape, t.DType)
		}
		if out[i] = memory.keep(data); out[i] == nil {
			return nil, refuse(openBanks, ErrNoMemory, "no memory for a copy of the experts")
		}
	}
	return out, nil
}

// places is Places in C's words, as many as the tensors of all experts.
func (b *Banks) places() ([]C.moepage_file_place, error) {
	n := uint64(b.MoELayers) * uint64(b.Experts) * uint64(b.nTensors())
	if b.Places != nil && uint64(len(b.Places)) != n {
		return nil, refuse(openBanks, ErrArgument, "%d entries of Places for %d layers of %d experts of %d tensors",
			len(b.Places), b.MoELayers, b.Experts, b.nTensors())
	}
	out := make([]C.moepage_file_place, len(b.Places))
	for i, place := range b.Places {
		if place.File < 0 || place.File >= len(b.Files) {
			return nil, refuse(openBanks, ErrArgument, "Places[%d] is in file %d of %d", i, place.File, len(b.Files))
		}
		out[i].file, out[i].offset = C.uint32_t(place.File), C.uint64_t(place.Offset)
	}
	return out, nil
}

func (b *Banks) files(memory *bankMemory) []*C.char {
	out := make([]*C.char, len(b.Files))
	for i, path := range b.Files {
		out[i] = memory.text(path)
	}
	return out
}

func (b *Banks) dense(memory *bankMemory) ([]C.moepage_dense_tensor, error) {
	out := make([]C.moepage_dense_tensor, len(b.Dense))
	for i, t := range b.Dense {
		out[i].name, out[i].dtype = memory.text(t.Name), C.uint32_t(t.DType)
		if err := setShape(openBanks, t.Shape, &out[i].rank, &out[i].shape); err != nil {
			return nil, err
		}
		size, err := bytesOf(openBanks, t.DType, t.Shape)
		if err != nil {
			return nil, err
		}
		if uint64(len(t.Data)) != size {
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
	out := append([]string{b.Architecture, b.ConfigJSON}, b.Files...)
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
		n_tensors:           C.uint32_t(b.nTensors()),
		architecture:        memory.text(b.Architecture),
		config_json:         memory.text(b.ConfigJSON),
		layers:              C.uint32_t(b.Layers),
		shared_experts:      C.uint32_t(b.SharedExperts),
		vocabulary:          C.uint32_t(b.Vocabulary),
		n_dense:             C.uint32_t(len(b.Dense)),
		n_files:             C.uint32_t(len(b.Files)),
		activation:          C.uint32_t(b.Activation),
		activation_alpha:    C.float(b.ActivationAlpha),
		activation_limit:    C.float(b.ActivationLimit),
	}
}

// OpenBanks opens a model by its expert banks.
func OpenBanks(banks Banks, config ModelConfig) (*Model, error) {
	m := &Model{banks: &bankMemory{}}
	if err := banks.check(); err != nil {
		return nil, err
	}
	if err := whole(openBanks, banks.texts()...); err != nil {
		return nil, err
	}
	tensors, err := rawTensors(banks.Tensors)
	if err != nil {
		return nil, err
	}
	layerTensors, err := banks.layerTensors()
	if err != nil {
		return nil, err
	}
	places, err := banks.places()
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
	files := banks.files(m.banks)
	c := banks.header(m.banks)
	if banks.Read != nil {
		m.reader = &reader{read: banks.Read}
		m.banks.box = newBox(m.reader)
		c.read, c.read_user = goRead, m.banks.box
	}
	return openModel(openBanks, config, m, func(config *C.moepage_model_config, out **C.moepage_model) C.moepage_status {
		return C.open_banks(c, first(tensors), first(layerTensors), first(data),
			(*C.int32_t)(first(banks.LayerIndex)), first(dense), first(files), first(places), config, out)
	})
}
