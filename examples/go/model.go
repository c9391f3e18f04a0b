package moepage

/*
#include <stdlib.h>
#include "moepage.h"

// Bytes come as characters: of a void pointer Go would check all of the object that it points into.
static moepage_status read_expert(const moepage_model *model, uint32_t layer, uint32_t expert,
                                  char *out, uint64_t capacity)
{
    return moepage_model_read_expert(model, layer, expert, out, capacity);
}

static moepage_status read_tensor(const moepage_model *model, const char *name, uint64_t offset,
                                  uint64_t bytes, char *out)
{
    return moepage_model_read_tensor(model, name, offset, bytes, out, NULL);
}
*/
import "C"

import "unsafe"

// ModelConfig is how a model is opened.
type ModelConfig struct {
	Log LogFunc
}

// Model is a model's weights where they come from: a checkpoint, a pack, or the program itself.
type Model struct {
	object
	c      *C.moepage_model
	info   ModelInfo
	box    unsafe.Pointer // of the log
	reader *reader        // of banks that are read
	banks  *bankMemory    // what banks borrow
}

// ExpertTensor is one tensor of every expert of a model. Bytes and Offset are the library's to say.
type ExpertTensor struct {
	Role   Role
	DType  DType
	Shape  []int
	Bytes  uint64
	Offset uint64
}

// Form is how an expert's weights are stored.
type Form uint32

const (
	FormNone  Form = C.MOEPAGE_FORM_NONE
	FormDense Form = C.MOEPAGE_FORM_DENSE
	FormExph  Form = C.MOEPAGE_FORM_EXPH
	FormInt8  Form = C.MOEPAGE_FORM_INT8
	FormInt4  Form = C.MOEPAGE_FORM_INT4
	FormInt2  Form = C.MOEPAGE_FORM_INT2
)

// OpenModel opens a checkpoint directory, a .gguf file or a .moepack file. Once a file has been
// truncated or changed, what reads it fails with ErrIO; renaming another over it is safe.
func OpenModel(path string, config ModelConfig) (*Model, error) {
	if err := whole("open model", path); err != nil {
		return nil, err
	}
	text := C.CString(path)
	defer free(text)
	return openModel("open model", config, &Model{},
		func(c *C.moepage_model_config, out **C.moepage_model) C.moepage_status {
			return C.moepage_model_open(text, c, out)
		})
}

// openModel completes m, which owns what it borrows from then on, and in any case the log's box.
func openModel(op string, config ModelConfig, m *Model,
	open func(*C.moepage_model_config, **C.moepage_model) C.moepage_status) (*Model, error) {
	c := C.moepage_model_config{struct_size: C.sizeof_moepage_model_config}
	c.log, c.log_user = logBox(config.Log)
	m.box = c.log_user
	var handle *C.moepage_model
	if err := call(op, func() C.moepage_status { return open(&c, &handle) }); err != nil {
		m.release()
		return nil, err
	}
	m.c = handle
	born(m)
	return opened(m, m.learn())
}

// learn asks for what never changes.
func (m *Model) learn() (err error) {
	info := C.moepage_model_info{struct_size: C.sizeof_moepage_model_info}
	m.info, err = fetch(&m.object, "model info", &info, func() C.moepage_status {
		return C.moepage_model_get_info(m.c, &info)
	}, newModelInfo)
	return err
}

// explain is that of the model's reader, where there are either.
func (m *Model) explain(err error) error {
	if m == nil {
		return err
	}
	return m.reader.explain(err)
}

func (m *Model) release() {
	freeBox(m.box)
	m.banks.free()
}

// Close is ErrBusy while an expert pool or a PagedTensor uses the model. Slices over its tensors are
// dead afterwards.
func (m *Model) Close() error {
	setUp.Lock()
	defer setUp.Unlock()
	err := m.shut("close model", func() C.moepage_status { return C.moepage_model_close(m.c) })
	if err == nil {
		m.release()
	}
	return err
}

// Info is the model's shape.
func (m *Model) Info() (ModelInfo, error) {
	if err := m.enter(); err != nil {
		return ModelInfo{}, err
	}
	defer m.leave()
	return m.info, nil
}

// ExpertTensors is the layout of an expert of the first MoE layer.
func (m *Model) ExpertTensors() ([]ExpertTensor, error) {
	return m.expertTensors("expert tensors", func(out *C.moepage_expert_tensor) C.moepage_status {
		return C.moepage_model_get_expert_tensors(m.c, out, C.MOEPAGE_MAX_EXPERT_TENSORS)
	})
}

// LayerTensors is the layout of an expert of an MoE layer: where ModelInfo.Layouts is more than 1, types
// differ from layer to layer, and so do sizes and offsets.
func (m *Model) LayerTensors(layer int) ([]ExpertTensor, error) {
	return m.expertTensors("layer tensors", func(out *C.moepage_expert_tensor) C.moepage_status {
		return C.moepage_model_get_layer_tensors(m.c, u32(layer), out, C.MOEPAGE_MAX_EXPERT_TENSORS)
	})
}

func (m *Model) expertTensors(op string, get func(*C.moepage_expert_tensor) C.moepage_status) ([]ExpertTensor, error) {
	var c [C.MOEPAGE_MAX_EXPERT_TENSORS]C.moepage_expert_tensor
	if err := m.any(op, func() C.moepage_status { return get(&c[0]) }); err != nil {
		return nil, err
	}
	tensors := make([]ExpertTensor, m.info.ExpertTensors)
	for i := range tensors {
		tensors[i] = ExpertTensor{Role(c[i].role), DType(c[i].dtype), shapeOf(c[i].rank, &c[i].shape),
			uint64(c[i].bytes), uint64(c[i].offset)}
	}
	return tensors, nil
}

func shapeOf(rank C.uint32_t, shape *[C.MOEPAGE_MAX_RANK]C.uint64_t) []int {
	out := make([]int, rank)
	for i := range out {
		out[i] = int(shape[i])
	}
	return out
}

// FindTensor finds a tensor that is never paged by its checkpoint name.
func (m *Model) FindTensor(name string) (*Tensor, error) {
	if err := whole("find tensor", name); err != nil {
		return nil, err
	}
	c := C.moepage_tensor_view{struct_size: C.sizeof_moepage_tensor_view}
	text := C.CString(name)
	defer free(text)
	err := m.any("find tensor", func() C.moepage_status {
		return C.moepage_model_find_tensor(m.c, text, &c)
	})
	if err != nil {
		return nil, err
	}
	return &Tensor{DType: DType(c.dtype), Shape: shapeOf(c.rank, &c.shape),
		data: unsafe.Slice((*byte)(c.data), int(c.bytes)), model: m}, nil
}

// ReadTensor copies bytes of a tensor that is never paged, from byte offset of it on, to out: of a file they
// are read, and the model keeps none. For tables of which a step needs a few rows.
func (m *Model) ReadTensor(name string, offset uint64, out []byte) error {
	if err := whole("read tensor", name); err != nil {
		return err
	}
	text := C.CString(name)
	defer free(text)
	return m.any("read tensor", func() C.moepage_status {
		return C.read_tensor(m.c, text, C.uint64_t(offset), C.uint64_t(len(out)), characters(out))
	})
}

// TensorName is the name of the index-th tensor that is never paged; ErrNotFound past the last.
func (m *Model) TensorName(index int) (string, error) {
	const longest = 1 << 16
	if index < 0 {
		return "", refuse("tensor name", ErrArgument, "index %d: they count from 0", index)
	}
	for capacity := 256; ; capacity *= 4 {
		name := make([]byte, capacity)
		err := m.any("tensor name", func() C.moepage_status {
			return C.moepage_model_get_tensor_name(m.c, C.uint64_t(index),
				(*C.char)(unsafe.Pointer(&name[0])), C.uint64_t(capacity))
		})
		if err == nil {
			return C.GoString((*C.char)(unsafe.Pointer(&name[0]))), nil
		}
		if failure, ok := err.(*Error); !ok || failure.Status != ErrArgument || capacity >= longest {
			return "", err
		}
	}
}

// ConfigJSON is the model's config.json; nil where there is none.
func (m *Model) ConfigJSON() ([]byte, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	text := C.moepage_model_config_json(m.c)
	if text == nil {
		return nil, nil
	}
	return []byte(C.GoString(text)), nil
}

// LayerIndex is the transformer layer that an MoE layer is.
func (m *Model) LayerIndex(moeLayer int) (int, error) {
	if err := m.enter(); err != nil {
		return 0, err
	}
	defer m.leave()
	layer := C.moepage_model_layer_index(m.c, u32(moeLayer))
	if layer < 0 {
		return 0, refuse("layer index", ErrArgument, "MoE layer %d: the model has %d", moeLayer, m.info.MoELayers)
	}
	return int(layer), nil
}

// Form says whether and how big the model's experts are in a form.
func (m *Model) Form(form Form) (FormInfo, error) {
	c := C.moepage_form_info{struct_size: C.sizeof_moepage_form_info}
	return fetch(&m.object, "form", &c, func() C.moepage_status {
		return C.moepage_model_get_form(m.c, C.uint32_t(form), &c)
	}, newFormInfo)
}

// ReadExpert reads one expert's weights into out, laid out as in a slot: at least
// ModelInfo.SlotBytes of them.
func (m *Model) ReadExpert(layer, expert int, out []byte) error {
	return m.reader.explain(m.any("read expert", func() C.moepage_status {
		return C.read_expert(m.c, u32(layer), u32(expert), characters(out), C.uint64_t(len(out)))
	}))
}
