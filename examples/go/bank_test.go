package moepage_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand"
	"testing"

	"moepage"
)

// The model of the tests: small enough to compute by hand.
const (
	layers       = 3
	experts      = 8
	topK         = 2
	hidden       = 16
	intermediate = 24
)

// bank is a model's experts as float32: gate and up rows, then down rows.
type bank struct{ gateUp, down [][]float32 }

func newBank(seed int64) *bank {
	random := rand.New(rand.NewSource(seed))
	b := &bank{}
	fill := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(random.Intn(257)-128) / 256 // exact in F32, F16 and BF16
		}
		return x
	}
	for i := 0; i < layers*experts; i++ {
		b.gateUp = append(b.gateUp, fill(2*intermediate*hidden))
		b.down = append(b.down, fill(hidden*intermediate))
	}
	return b
}

func float32Bytes(x []float32) []byte {
	out := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
	}
	return out
}

func bfloat16s(x []float32) []uint16 {
	out := make([]uint16, len(x))
	for i, v := range x {
		out[i] = uint16(math.Float32bits(v) >> 16)
	}
	return out
}

func bfloat16Bytes(x []float32) []byte {
	out := make([]byte, 2*len(x))
	for i, v := range bfloat16s(x) {
		binary.LittleEndian.PutUint16(out[2*i:], v)
	}
	return out
}

// banks describes b with weights of dtype: F32 or BF16.
func (b *bank) banks(dtype moepage.DType) moepage.Banks {
	bytes := float32Bytes
	if dtype == moepage.DTypeBF16 {
		bytes = bfloat16Bytes
	}
	out := moepage.Banks{MoELayers: layers, Experts: experts, TopK: topK, Hidden: hidden,
		ExpertIntermediate: intermediate,
		Tensors: []moepage.ExpertTensor{
			{Role: moepage.RoleGateUp, DType: dtype, Shape: []int{2 * intermediate, hidden}},
			{Role: moepage.RoleDown, DType: dtype, Shape: []int{hidden, intermediate}}}}
	for i := range b.gateUp {
		out.Data = append(out.Data, bytes(b.gateUp[i]), bytes(b.down[i]))
	}
	return out
}

// swiglu is what an expert computes of a row, term by term in float64.
func swiglu(gateUp, down, x []float32) []float64 {
	hidden := len(x)
	intermediate := len(down) / hidden
	inner := make([]float64, intermediate)
	for i := range inner {
		var gate, up float64
		for j, v := range x {
			gate += float64(gateUp[i*hidden+j]) * float64(v)
			up += float64(gateUp[(intermediate+i)*hidden+j]) * float64(v)
		}
		inner[i] = gate / (1 + math.Exp(-gate)) * up
	}
	out := make([]float64, hidden)
	for i := range out {
		for j, v := range inner {
			out[i] += float64(down[i*intermediate+j]) * v
		}
	}
	return out
}

// routed is what a layer's routed experts compute.
func (b *bank) routed(layer int, x []float32, ids []int32, weights []float32) []float64 {
	out := make([]float64, len(x))
	for i, id := range ids {
		if id == moepage.NoExpert {
			continue
		}
		row := i / topK * hidden
		e := layer*experts + int(id)
		for j, v := range swiglu(b.gateUp[e], b.down[e], x[row:row+hidden]) {
			out[row+j] += float64(weights[i]) * v
		}
	}
	return out
}

// batch is random rows with a random routing.
func batch(random *rand.Rand, tokens int) (x []float32, ids []int32, weights []float32) {
	for i := 0; i < tokens*hidden; i++ {
		x = append(x, float32(random.Intn(65)-32)/32)
	}
	for i := 0; i < tokens; i++ {
		for _, e := range random.Perm(experts)[:topK] {
			ids, weights = append(ids, int32(e)), append(weights, float32(random.Intn(8)+1)/8)
		}
	}
	return x, ids, weights
}

// rig is one of everything.
type rig struct {
	bank    *bank
	device  *moepage.Device
	model   *moepage.Model
	experts *moepage.ExpertPool
	kv      *moepage.KVPool
	session *moepage.Session
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fails checks that err is of a kind and says something.
func fails(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %v", err, kind)
	}
	var failure *moepage.Error
	if errors.As(err, &failure) && (failure.Op == "" || failure.Text == "") {
		t.Errorf("%#v does not say what failed", failure)
	}
}

func openDevice(t *testing.T) *moepage.Device {
	return must(moepage.OpenDevice("host",
		moepage.DeviceConfig{Threads: 1, BudgetBytes: 8 << 20, WorkspaceBytes: 1 << 20}))(t)
}

// newRig has one of everything, with `slots` of slots; the test closes what it has left open.
func newRig(t *testing.T, banks moepage.Banks, slots uint64, config moepage.SessionConfig) *rig {
	t.Helper()
	r := &rig{device: openDevice(t)}
	r.model = must(moepage.OpenBanks(banks, moepage.ModelConfig{}))(t)
	r.experts = must(moepage.NewExpertPool([]*moepage.Device{r.device}, r.model,
		moepage.ExpertPoolConfig{Slots: slots}))(t)
	r.kv = must(moepage.NewKVPool(r.device,
		moepage.KVPoolConfig{BytesPerToken: []uint32{64, 0, 64}, Blocks: 16, BlockTokens: 4}))(t)
	config.MaxTokens = 16
	r.session = must(moepage.NewSession(r.experts, r.kv, config))(t)
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{r.session, r.kv, r.experts, r.model, r.device} {
			if err := c.Close(); err != nil && !errors.Is(err, moepage.ErrClosed) {
				t.Error(err)
			}
		}
	})
	return r
}

func simpleRig(t *testing.T) *rig {
	t.Helper()
	b := newBank(1)
	r := newRig(t, b.banks(moepage.DTypeF32), 8, moepage.SessionConfig{})
	r.bank = b
	return r
}
