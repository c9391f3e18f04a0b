package moepage_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand"
	"testing"

	"moepage"
)

func near(t *testing.T, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	for i, w := range want {
		if math.Abs(float64(got[i])-w) > tolerance*(1+math.Abs(w)) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], w)
		}
	}
}

func TestFFNEqualsANaiveSwiGLU(t *testing.T) {
	for _, test := range []struct {
		dtype  moepage.DType
		slots  uint64
		tokens int
	}{
		{moepage.DTypeF32, layers * experts, 1},
		{moepage.DTypeF32, layers * experts, 16},
		{moepage.DTypeF32, 3, 16},
		{moepage.DTypeBF16, 24, 5},
		{moepage.DTypeBF16, 2, 16},
	} {
		t.Run(fmt.Sprintf("%v/%d_slots/%d_tokens", test.dtype, test.slots, test.tokens), func(t *testing.T) {
			b, random := newBank(2), rand.New(rand.NewSource(3))
			s := newRig(t, b.banks(test.dtype), test.slots, moepage.SessionConfig{}).session
			for step := 0; step < 3; step++ {
				ok(t, s.Begin(moepage.Step{Tokens: test.tokens}))
				for layer := 0; layer < layers; layer++ {
					x, ids, weights := batch(random, test.tokens)
					ids[len(ids)-1] = moepage.NoExpert
					y := make([]float32, len(x))
					ok(t, s.Route(layer, moepage.Routing{IDs: ids, Weights: weights}))
					ok(t, s.FFN(layer, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)}))
					ok(t, s.Retire(layer))
					near(t, fmt.Sprint("layer ", layer), y, b.routed(layer, x, ids, weights), 1e-5)
				}
				if stats := must(s.End())(t); stats.Layers != layers || stats.Tokens != uint64(test.tokens) {
					t.Errorf("stats of the step: %+v", stats)
				}
			}
		})
	}
}

func TestFFNTakesStridesAndAddsUp(t *testing.T) {
	r := simpleRig(t)
	const tokens, stride = 3, hidden + 5
	x, ids, weights := batch(rand.New(rand.NewSource(4)), tokens)
	wide, y := make([]float32, tokens*stride), make([]float32, tokens*hidden)
	for i := range y {
		copy(wide[i/hidden*stride:], x[i/hidden*hidden:][:hidden])
		y[i] = float32(i)
	}
	ok(t, r.session.Begin(moepage.Step{Tokens: tokens}))
	ok(t, r.session.Route(1, moepage.Routing{IDs: ids, Weights: weights}))
	ok(t, r.session.FFN(1, moepage.FFN{X: moepage.Float32s(wide), XStride: stride, Y: moepage.Float32s(y),
		Accumulate: true}))
	want := r.bank.routed(1, x, ids, weights)
	for i := range want {
		want[i] += float64(i)
	}
	near(t, "y", y, want, 1e-5)
	ok(t, r.session.Retire(1))
	must(r.session.End())(t)
}

func TestFFNTakesBFloat16Rows(t *testing.T) {
	r := simpleRig(t)
	x, ids, weights := batch(rand.New(rand.NewSource(5)), 2)
	y := make([]uint16, len(x))
	ok(t, r.session.Begin(moepage.Step{Tokens: 2}))
	ok(t, r.session.Route(0, moepage.Routing{IDs: ids, Weights: weights}))
	ok(t, r.session.FFN(0, moepage.FFN{X: moepage.BFloat16s(bfloat16s(x)), Y: moepage.BFloat16s(y)}))
	ok(t, r.session.Cancel())
	got := make([]float32, len(y))
	for i, v := range y {
		got[i] = math.Float32frombits(uint32(v) << 16)
	}
	near(t, "y", got, r.bank.routed(0, x, ids, weights), 1.0/128)
}

// What goes in may be part of a struct that has pointers of Go's beside it.
func TestSlicesOfStructsAreTaken(t *testing.T) {
	r := simpleRig(t)
	type state struct {
		self  *state
		x, y  [hidden]float32
		bytes [64]byte
	}
	s := new(state)
	s.self = s
	x, ids, weights := batch(rand.New(rand.NewSource(6)), 1)
	copy(s.x[:], x)
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	ok(t, r.session.Route(0, moepage.Routing{IDs: ids, Weights: weights}))
	ok(t, r.session.FFN(0, moepage.FFN{X: moepage.Float32s(s.x[:]), Y: moepage.Float32s(s.y[:])}))
	ok(t, r.session.Cancel())
	near(t, "y", s.y[:], r.bank.routed(0, x, ids, weights), 1e-5)

	fails(t, r.model.ReadExpert(0, 0, s.bytes[:]), moepage.ErrArgument) // too short, but looked at
	stream := must(moepage.ExphEncode(moepage.DTypeBF16, s.bytes[:]))(t)
	ok(t, moepage.ExphDecode("", moepage.DTypeBF16, stream, s.bytes[:]))
}

// The weights that a plan shows are the bank's bytes, group after group, and together they are what
// was routed.
func TestPlanShowsTheRoutedWeights(t *testing.T) {
	r := simpleRig(t)
	_, ids, weights := batch(rand.New(rand.NewSource(6)), 16)
	ok(t, r.session.Begin(moepage.Step{Tokens: 16}))
	p := must(r.session.RoutePlan(2, moepage.Routing{IDs: ids, Weights: weights}))(t)
	seen := map[uint32]int32{}
	for {
		for i, e := range p.Experts {
			data := must(p.Weights(i, 0))(t)
			if want := float32Bytes(r.bank.gateUp[2*experts+e.Expert]); string(data) != string(want) {
				t.Errorf("expert %d in slot %d has other weights", e.Expert, e.Slot)
			}
			for _, row := range e.Rows {
				seen[row] = int32(e.Expert)
			}
		}
		if p.Group+1 == p.Groups {
			break
		}
		ok(t, p.Next())
	}
	for row, id := range ids {
		if seen[uint32(row)] != id || p.IDs[row] != id || p.Weighting[row] != weights[row] {
			t.Errorf("row %d went to expert %d, not %d", row, seen[uint32(row)], id)
		}
	}
	fails(t, p.Next(), moepage.ErrState)
	if _, err := p.Weights(0, 0); err != nil {
		t.Errorf("after a refused Next: %v", err)
	}
	ok(t, p.Retire())
	_, err := p.Weights(0, 0)
	fails(t, err, moepage.ErrState)
	must(r.session.End())(t)
}

func TestDevicesMultiplyByDenseWeights(t *testing.T) {
	device := openDevice(t)
	x, w := []float32{1, 2, 3, -1, 0.5, 4}, []float32{1, 0, -2, 0.25, 8, 1}
	out := make([]float32, 4)
	l := moepage.Linear{In: 3, X: moepage.Float32s(x), W: moepage.Float32s(w),
		Bias: moepage.Float32s([]float32{0, 0.5}), Out: out}
	for _, l.Math = range []moepage.Math{moepage.MathFP32, moepage.MathBF16} {
		ok(t, device.Linear(l))
		near(t, "out", out, []float64{-5, 19.75, -9, 8.25}, 0)
	}
	l.W, l.BlockRows, l.BlockColumns = moepage.Float8E4M3s([]byte{0x38, 0x40, 0xb8, 0x30, 0, 0x48}), 1, 2
	l.Scales = moepage.Float32s([]float32{2, 4, 1, 0.5}) // of 1, 2 and -1, and of 0.5, 0 and 4
	for _, l.Math = range []moepage.Math{moepage.MathFP32, moepage.MathBF16} {
		ok(t, device.Linear(l))
		near(t, "out", out, []float64{-2, 7, -16, 8}, 0)
	}
	l.BlockColumns = 1
	if err := device.Linear(l); !errors.Is(err, moepage.ErrArgument) {
		t.Errorf("other blocks than the scales': %v", err)
	}
	l.Scales, l.BlockRows, l.BlockColumns = moepage.Array{}, 0, 0
	if err := device.Linear(l); !errors.Is(err, moepage.ErrArgument) {
		t.Errorf("no scales: %v", err)
	}
	l.W = moepage.Float32s(w[1:])
	if err := device.Linear(l); !errors.Is(err, moepage.ErrArgument) {
		t.Errorf("a short matrix: %v", err)
	}
	ok(t, device.Close())
}
