package moepage_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"moepage"
)

const data = "../../tests/data/"

// blockFormats are the names of the block formats, as files of data/blocks have them, in order.
var blockFormats = []string{"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
	"IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
	"W4G32_F16", "W4G64_F16", "W4G128_F16", "W4G32_BF16", "W4G64_BF16", "W4G128_BF16",
	"NVFP4G64_F32", "NVFP4G128_F32", "NVFP4G256_F32"}

// bitsOf is a value's bits, those of every NaN the same.
func bitsOf(value float32) uint32 {
	if value != value {
		return 0x7fc00000
	}
	return math.Float32bits(value)
}

// data/blocks has 16 blocks per format and what another decoder makes of them: a hash of all values, and
// the bits of four.
func TestBlocksDecodeToTheReferenceValues(t *testing.T) {
	const results = 8 + 4*4
	for i, name := range blockFormats {
		dtype := moepage.DTypeQ4_0 + moepage.DType(i)
		weights, bytes := dtype.Block()
		file := must(os.ReadFile(data + "blocks/" + name + ".bin"))(t)
		if dtype.String() != name || dtype.Size() != 0 || len(file) != 16*(bytes+results) {
			t.Fatalf("%s is %v, with elements of %d bytes and blocks of %d", name, dtype, dtype.Size(), bytes)
		}
		for ; len(file) > 0; file = file[bytes+results:] {
			values := must(moepage.BlocksDecode(dtype, file[:bytes]))(t)
			if len(values) != weights {
				t.Fatalf("a block of %s has %d weights, not %d", name, len(values), weights)
			}
			hash := fnv.New64a()
			for _, value := range values {
				ok(t, binary.Write(hash, binary.LittleEndian, bitsOf(value)))
			}
			if want := binary.LittleEndian.Uint64(file[bytes:]); hash.Sum64() != want {
				t.Errorf("%s: the values' hash is %x, want %x", name, hash.Sum64(), want)
			}
			for k := 0; k < 4; k++ {
				want := math.Float32frombits(binary.LittleEndian.Uint32(file[bytes+8+4*k:]))
				if got := values[k*(weights+1)/4]; bitsOf(got) != bitsOf(want) {
					t.Errorf("%s: value %d is %v, want %v", name, k*(weights+1)/4, got, want)
				}
			}
		}
	}
}

func TestWhatIsNoBlocksIsRefused(t *testing.T) {
	if values := must(moepage.BlocksDecode(moepage.DTypeQ8_0, nil))(t); len(values) != 0 {
		t.Error(values)
	}
	_, err := moepage.BlocksDecode(moepage.DTypeQ8_0, make([]byte, 33))
	fails(t, err, moepage.ErrArgument)
	_, err = moepage.BlocksDecode(moepage.DTypeF32, make([]byte, 64))
	fails(t, err, moepage.ErrArgument)
	for dtype, name := range map[moepage.DType]string{14: "dtype(14)", 15: "dtype(15)", 63: "dtype(63)"} {
		if weights, bytes := dtype.Block(); weights != 0 || bytes != 0 || dtype.String() != name {
			t.Errorf("%v has blocks of %d weights in %d bytes", dtype, weights, bytes)
		}
	}
}

// made is n bytes of a tensor of data/gguf from byte `from` on: they follow from its name.
func made(name string, from, n int) []byte {
	first := uint64(5381)
	for _, c := range []byte(name) {
		first = first*33 + uint64(c)
	}
	out := make([]byte, n)
	for i := range out {
		out[i] = byte((first + uint64(from+i)) * 0x9e3779b97f4a7c15 >> 58)
	}
	return out
}

func openGGUF(t *testing.T) *moepage.Model {
	m := must(moepage.OpenModel(data+"gguf/whole.gguf", moepage.ModelConfig{}))(t)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestMetadataOfAGGUFFileIsToldInGoTypes(t *testing.T) {
	m := openGGUF(t)
	for key, want := range map[string]any{
		"general.architecture":          "deepseek2",
		"deepseek2.block_count":         int64(3),
		"deepseek2.rope.freq_base":      10000.5,
		"tokenizer.ggml.add_bos_token":  true,
		"tokenizer.ggml.tokens":         []string{"<s>", "\u0120the", "", "\xff\xfe", "\u65e5"},
		"tokenizer.ggml.token_type":     []int64{3, 1, 1, 6, -1},
		"deepseek2.expert_shared_count": int64(1),
	} {
		if got := must(m.Metadata(key))(t); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %#v, want %#v", key, got, want)
		}
	}
	_, err := m.Metadata("moepage.largest") // 2^64 - 1
	fails(t, err, moepage.ErrUnsupported)
	_, err = m.Metadata("none such")
	fails(t, err, moepage.ErrNotFound)
	_, err = m.Metadata("a\x00b")
	fails(t, err, moepage.ErrArgument)
	banks := must(moepage.OpenBanks(newBank(1).banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	defer banks.Close()
	_, err = banks.Metadata("general.architecture")
	fails(t, err, moepage.ErrNotFound)
	ok(t, m.Close())
	_, err = m.Metadata("general.architecture")
	fails(t, err, moepage.ErrClosed)
}

func TestLayersOfAGGUFFileHaveTheirOwnTypes(t *testing.T) {
	m := openGGUF(t)
	info := must(m.Info())(t)
	if info.Layouts != 2 || info.MoELayers != 2 {
		t.Fatalf("%+v", info)
	}
	names := map[moepage.Role]string{moepage.RoleGate: "gate", moepage.RoleUp: "up", moepage.RoleDown: "down"}
	for layer, down := range []moepage.DType{moepage.DTypeQ5_1, moepage.DTypeMXFP4} {
		tensors := must(m.LayerTensors(layer))(t)
		if first := must(m.ExpertTensors())(t); len(tensors) != 3 || reflect.DeepEqual(first, tensors) != (layer == 0) {
			t.Errorf("layer %d: %+v; all: %+v", layer, tensors, first)
		}
		slot := make([]byte, info.SlotBytes)
		ok(t, m.ReadExpert(layer, 1, slot))
		for _, tensor := range tensors {
			want := moepage.ExpertTensor{Role: tensor.Role, DType: moepage.DTypeQ4_0, Shape: []int{64, 32}, Bytes: 64 * 18,
				Offset: tensor.Offset}
			if tensor.Role == moepage.RoleDown {
				_, bytes := down.Block()
				want.DType, want.Shape, want.Bytes = down, []int{32, 64}, uint64(64*bytes)
			}
			if !reflect.DeepEqual(tensor, want) {
				t.Errorf("layer %d: %+v, want %+v", layer, tensor, want)
			}
			name := fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer+1, names[tensor.Role])
			n := int(tensor.Bytes) // of expert 0, which comes first in the file
			if string(slot[tensor.Offset:][:n]) != string(made(name, n, n)) {
				t.Errorf("%s of expert 1 has other bytes", name)
			}
		}
	}
	_, err := m.LayerTensors(2)
	fails(t, err, moepage.ErrArgument)
	_, err = m.LayerTensors(-1)
	fails(t, err, moepage.ErrArgument)
}

// halfOf is a half float of whose sixteen bits the sign is 0.
func halfOf(b []byte) float64 {
	bits := int(b[0]) | int(b[1])<<8
	if bits < 1<<10 {
		return math.Ldexp(float64(bits), -24)
	}
	return math.Ldexp(float64(1<<10|bits&0x3ff), bits>>10-25)
}

// q8 is the values of blocks of Q8_0: a scale and 32 integers each.
func q8(blocks []byte) (values []float32) {
	for ; len(blocks) > 0; blocks = blocks[34:] {
		for _, q := range blocks[2:34] {
			values = append(values, float32(halfOf(blocks)*float64(int8(q))))
		}
	}
	return values
}

// q4 is the values of blocks of Q4_0: a scale, then the low and after them the high halves of 16 bytes.
func q4(blocks []byte) (values []float32) {
	for ; len(blocks) > 0; blocks = blocks[18:] {
		for shift := 0; shift < 8; shift += 4 {
			for _, q := range blocks[2:18] {
				values = append(values, float32(halfOf(blocks)*float64(int(q>>shift&15)-8)))
			}
		}
	}
	return values
}

func TestTensorsInBlocksAreWidened(t *testing.T) {
	tensor := must(openGGUF(t).FindTensor("token_embd.weight"))(t)
	if tensor.DType != moepage.DTypeQ8_0 || !reflect.DeepEqual(tensor.Shape, []int{5, 32}) {
		t.Errorf("%v %v", tensor.DType, tensor.Shape)
	}
	want := made("token_embd.weight", 0, 5*34)
	if got := must(tensor.Bytes())(t); string(got) != string(want) {
		t.Errorf("% x, want % x", got, want)
	}
	if got := must(tensor.Float32s())(t); !reflect.DeepEqual(got, q8(want)) {
		t.Errorf("%v, want %v", got, q8(want))
	}
}

const width = 32 // of the experts below, of which blocks have a whole row

// mixed is a model of which every layer has other types, and what it is in float32.
func mixed() (banks moepage.Banks, weights [][]float32) {
	random := rand.New(rand.NewSource(40))
	shapes := [][]int{{2 * width, width}, {width, width}}
	roles := []moepage.Role{moepage.RoleGateUp, moepage.RoleDown}
	types := [][]moepage.DType{{moepage.DTypeF32, moepage.DTypeF32}, {moepage.DTypeQ8_0, moepage.DTypeBF16},
		{moepage.DTypeQ4_0, moepage.DTypeQ4_0}}
	scaled := func(n, bytes int) []byte { // blocks with scales of 2^-8
		out := make([]byte, n/width*bytes)
		random.Read(out)
		for at := 0; at < len(out); at += bytes {
			binary.LittleEndian.PutUint16(out[at:], 0x1c00)
		}
		return out
	}
	banks = moepage.Banks{MoELayers: layers, Experts: experts, TopK: topK, Hidden: width, ExpertIntermediate: width}
	for _, of := range types {
		banks.LayerTensors = append(banks.LayerTensors, []moepage.ExpertTensor{
			{Role: roles[0], DType: of[0], Shape: shapes[0]}, {Role: roles[1], DType: of[1], Shape: shapes[1]}})
		for i := 0; i < 2*experts; i++ {
			n := shapes[i%2][0] * width
			values := make([]float32, n)
			for j := range values {
				values[j] = float32(random.Intn(257)-128) / 256
			}
			var bytes []byte
			switch of[i%2] {
			case moepage.DTypeF32:
				bytes = float32Bytes(values)
			case moepage.DTypeBF16:
				bytes = bfloat16Bytes(values)
			case moepage.DTypeQ8_0:
				bytes = scaled(n, 34)
				values = q8(bytes)
			case moepage.DTypeQ4_0:
				bytes = scaled(n, 18)
				values = q4(bytes)
			}
			banks.Data, weights = append(banks.Data, bytes), append(weights, values)
		}
	}
	return banks, weights
}

func TestBanksMayHaveOtherTypesInEachLayer(t *testing.T) {
	banks, weights := mixed()
	r := newRig(t, banks, 0, moepage.SessionConfig{})
	if info := must(r.model.Info())(t); info.Layouts != layers || !info.FFNSupported {
		t.Errorf("%+v", info)
	}
	x, y := make([]float32, width), make([]float32, width)
	for i := range x {
		x[i] = float32(i%9-4) / 8
	}
	ids, top := []int32{3, 6}, []float32{0.75, 0.5}
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	for layer := 0; layer < layers; layer++ {
		for i, tensor := range must(r.model.LayerTensors(layer))(t) {
			if tensor.DType != banks.LayerTensors[layer][i].DType {
				t.Errorf("layer %d's tensor %d is %v", layer, i, tensor.DType)
			}
		}
		plan := must(r.session.RoutePlan(layer, moepage.Routing{IDs: ids, Weights: top}))(t)
		want := make([]float64, width)
		for i, e := range plan.Experts {
			at := (layer*experts + e.Expert) * 2
			for tensor := 0; tensor < 2; tensor++ {
				if got := must(plan.Weights(i, tensor))(t); string(got) != string(banks.Data[at+tensor]) {
					t.Errorf("layer %d, expert %d, tensor %d: %d other bytes", layer, e.Expert, tensor, len(got))
				}
			}
			for j, v := range swiglu(weights[at], weights[at+1], x) {
				want[j] += float64(top[i]) * v
			}
		}
		ok(t, r.session.FFN(layer, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)}))
		near(t, fmt.Sprint("layer ", layer), y, want, 1e-5)
		ok(t, plan.Retire())
	}
	must(r.session.End())(t)
}

func TestWrongLayersOfBanksAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*moepage.Banks){
		"both lists":       func(b *moepage.Banks) { b.Tensors = b.LayerTensors[0] },
		"no list":          func(b *moepage.Banks) { b.LayerTensors, b.Data = nil, nil },
		"too few layers":   func(b *moepage.Banks) { b.LayerTensors = b.LayerTensors[1:] },
		"too few tensors":  func(b *moepage.Banks) { b.LayerTensors[1] = b.LayerTensors[1][:1] },
		"another role":     func(b *moepage.Banks) { b.LayerTensors[1][1].Role = moepage.RoleDownBias },
		"a cut block":      func(b *moepage.Banks) { b.LayerTensors[2][1].Shape = []int{2 * width, width / 2} },
		"no dimension":     func(b *moepage.Banks) { b.LayerTensors[2][1].Shape = nil },
		"a packed form":    func(b *moepage.Banks) { b.LayerTensors[2][1].DType = moepage.DTypeInt4 },
		"an unknown dtype": func(b *moepage.Banks) { b.LayerTensors[2][1].DType = 15 },
		"another layer's":  func(b *moepage.Banks) { b.Data[2*experts] = b.Data[0] },
		"a short entry":    func(b *moepage.Banks) { b.Data[4*experts+1] = b.Data[4*experts+1][18:] },
		"a dense tensor in half a block": func(b *moepage.Banks) {
			b.Dense = []moepage.DenseTensor{{Name: "a", DType: moepage.DTypeQ4_0, Shape: []int{16}, Data: make([]byte, 9)}}
		},
	} {
		banks, _ := mixed()
		spoil(&banks)
		if _, err := moepage.OpenBanks(banks, moepage.ModelConfig{}); err == nil {
			t.Errorf("%s: it was opened", name)
		} else {
			fails(t, err, moepage.ErrArgument)
		}
	}
}

// The pool's slots may hold a smaller form of a pack's experts: what is computed is near, and not the same.
func TestSlotsMayHoldASmallerForm(t *testing.T) {
	b := newBank(41)
	model := must(moepage.OpenBanks(b.banks(moepage.DTypeBF16), moepage.ModelConfig{}))(t)
	defer model.Close()
	path := filepath.Join(t.TempDir(), "a.moepack")
	must(moepage.WritePack(model, path,
		moepage.PackConfig{Forms: []moepage.Form{moepage.FormDense, moepage.FormInt8}}))(t)
	packed := must(moepage.OpenModel(path, moepage.ModelConfig{}))(t)
	defer packed.Close()
	device := openDevice(t)
	defer device.Close()
	config := moepage.ExpertPoolConfig{Slots: 8, SlotForm: moepage.FormInt4}
	_, err := moepage.NewExpertPool([]*moepage.Device{device}, packed, config)
	fails(t, err, moepage.ErrUnsupported) // that form is not stored
	config.SlotForm = moepage.FormInt8
	pool := must(moepage.NewExpertPool([]*moepage.Device{device}, packed, config))(t)
	defer pool.Close()
	form, dense := must(packed.Form(moepage.FormInt8))(t), must(packed.Form(moepage.FormDense))(t)
	if info := must(pool.Info())(t); info.SlotForm != moepage.FormInt8 || info.SlotBytes < form.MostBytes ||
		info.SlotBytes >= dense.MostBytes {
		t.Errorf("%+v", info)
	}
	session := must(moepage.NewSession(pool, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	defer session.Close()
	x, ids, weights := batch(rand.New(rand.NewSource(42)), 4)
	y := make([]float32, len(x))
	ok(t, session.Begin(moepage.Step{Tokens: 4}))
	plan := must(session.RoutePlan(1, moepage.Routing{IDs: ids, Weights: weights}))(t)
	if plan.Experts[0].DType != moepage.DTypeInt8 {
		t.Errorf("%+v", plan.Experts[0])
	}
	_, err = plan.Weights(0, 0)
	fails(t, err, moepage.ErrUnsupported)
	ok(t, session.FFN(1, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)}))
	want, exact := b.routed(1, x, ids, weights), true
	near(t, "y", y, want, 0.02)
	for i, w := range want {
		exact = exact && math.Abs(float64(y[i])-w) < 1e-5
	}
	if exact {
		t.Error("the outputs are those of the dense form")
	}
	ok(t, plan.Retire())
	must(session.End())(t)
}
