package moepage_test

import (
	"errors"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"moepage"
)

func TestErrorsCarryStatusAndSentence(t *testing.T) {
	_, err := moepage.OpenDevice("no-such-device", moepage.DeviceConfig{BudgetBytes: 1 << 20})
	fails(t, err, moepage.ErrNotFound)
	var failure *moepage.Error
	if !errors.As(err, &failure) || failure.Status != moepage.ErrNotFound || errors.Is(err, moepage.ErrBusy) {
		t.Errorf("%#v", err)
	}
	if moepage.ErrBusy.Error() == moepage.ErrNotFound.Error() || moepage.ErrBusy.Error() == "" {
		t.Errorf("statuses have no texts of their own: %v", moepage.ErrBusy)
	}
}

// The sentence belongs to the thread of the call that failed. Calls that take long lose their
// processor, and would go on in another thread; each goroutine gets its own sentence all the same.
func TestErrorsAreNotMixedUpBetweenGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	long := []byte("[" + strings.Repeat("1,", 1<<15) + "1]") // no config, as is known when it has been read
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		path := filepath.Join(t.TempDir(), "model")
		ok(t, os.Mkdir(path, 0o755))
		ok(t, os.WriteFile(filepath.Join(path, "config.json"), long, 0o644))
		group.Add(1)
		go func() {
			defer group.Done()
			for round := 0; round < 20; round++ {
				_, err := moepage.OpenModel(path, moepage.ModelConfig{})
				var failure *moepage.Error
				if !errors.As(err, &failure) || !strings.Contains(failure.Text, path) {
					t.Errorf("%s: %v", path, err)
					return
				}
			}
		}()
	}
	group.Wait()
}

func TestClosingTwiceIsErrClosed(t *testing.T) {
	r := simpleRig(t)
	seq := must(r.kv.NewSequence())(t)
	for _, c := range []interface{ Close() error }{seq, r.session, r.kv, r.experts, r.model, r.device} {
		ok(t, c.Close())
		if err := c.Close(); err != moepage.ErrClosed {
			t.Errorf("%T: second Close: %v", c, err)
		}
	}
}

func TestUseAfterCloseIsErrClosed(t *testing.T) {
	r := simpleRig(t)
	tensor := must(r.model.ExpertTensors())(t)
	seq, plan := must(r.kv.NewSequence())(t), (*moepage.Plan)(nil)
	x, ids, weights := batch(rand.New(rand.NewSource(7)), 1)
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	plan = must(r.session.RoutePlan(0, moepage.Routing{IDs: ids, Weights: weights}))(t)
	ok(t, r.session.Close())
	ok(t, r.kv.Close())
	ok(t, r.experts.Close())
	ok(t, r.model.Close())
	ok(t, r.device.Close())
	array := moepage.Float32s(x)
	second := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"device info":    second(r.device.Info()),
		"model info":     second(r.model.Info()),
		"expert tensors": second(r.model.ExpertTensors()),
		"find tensor":    second(r.model.FindTensor("x")),
		"read tensor":    r.model.ReadTensor("x", 0, make([]byte, 1)),
		"tensor name":    second(r.model.TensorName(0)),
		"config":         second(r.model.ConfigJSON()),
		"layer index":    second(r.model.LayerIndex(0)),
		"form":           second(r.model.Form(moepage.FormDense)),
		"read expert":    r.model.ReadExpert(0, 0, make([]byte, tensor[0].Bytes)),
		"pool":           second(moepage.NewExpertPool([]*moepage.Device{r.device}, r.model, moepage.ExpertPoolConfig{})),
		"kv pool":        second(moepage.NewKVPool(r.device, moepage.KVPoolConfig{BytesPerToken: []uint32{4}})),
		"new session":    second(moepage.NewSession(r.experts, r.kv, moepage.SessionConfig{})),
		"controller":     second(moepage.NewController(r.experts, nil, moepage.ControllerConfig{})),
		"paged":          second(moepage.NewPaged(r.device, r.model, moepage.PagedConfig{})),
		"predictor":      second(moepage.NewPredictor(r.model, moepage.PredictorConfig{})),
		"pool info":      second(r.experts.Info()),
		"pool stats":     second(r.experts.Stats()),
		"lookup":         second(r.experts.Lookup(0, 0)),
		"pin":            r.experts.Pin(0, 0),
		"kv info":        second(r.kv.Info()),
		"kv layer":       second(r.kv.Layer(0)),
		"new sequence":   second(r.kv.NewSequence()),
		"append":         seq.Append(1, nil),
		"table":          second(seq.Table()),
		"blocks":         second(seq.Blocks(0)),
		"fork":           second(seq.Fork()),
		"close sequence": seq.Close(),
		"split":          moepage.SetSplit(r.experts, r.kv, 1, 1, nil),
		"budget":         r.device.SetBudget(1, nil),
		"follow":         r.device.FollowMemory(nil),
		"begin":          r.session.Begin(moepage.Step{Tokens: 1}),
		"hint":           r.session.Hint(0, []int32{1}),
		"route":          r.session.Route(0, moepage.Routing{IDs: ids, Weights: weights}),
		"ffn":            r.session.FFN(0, moepage.FFN{X: array, Y: array}),
		"retire":         r.session.Retire(0),
		"cancel":         r.session.Cancel(),
		"end":            second(r.session.End()),
		"stats":          second(r.session.Stats()),
		"record":         r.session.Record(nil),
		"remap":          r.session.SetRemap(nil),
		"plan weights":   second(plan.Weights(0, 0)),
		"plan next":      plan.Next(),
		"stats text":     second(moepage.StatsText(moepage.StatsSource{Device: r.device})),
		"pack":           second(moepage.WritePack(r.model, filepath.Join(t.TempDir(), "x"), moepage.PackConfig{})),
	} {
		if !errors.Is(err, moepage.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClosingAParentIsErrBusy(t *testing.T) {
	r := simpleRig(t)
	fails(t, r.device.Close(), moepage.ErrBusy)
	fails(t, r.model.Close(), moepage.ErrBusy)
	fails(t, r.experts.Close(), moepage.ErrBusy)
	fails(t, r.kv.Close(), moepage.ErrBusy)
	must(r.experts.Info())(t) // all of them can still be used
	must(r.kv.NewSequence())(t)
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	must(r.session.End())(t)
}

func TestSetUpDuringAStepIsErrBusy(t *testing.T) {
	r := simpleRig(t)
	other := must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	defer other.Close()
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	_, err := moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4})
	fails(t, err, moepage.ErrBusy)
	_, err = moepage.NewController(r.experts, nil, moepage.ControllerConfig{})
	fails(t, err, moepage.ErrBusy)
	fails(t, r.experts.Close(), moepage.ErrBusy)
	ok(t, r.session.Cancel())
	third := must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	ok(t, third.Close())
}

// A step may be open on one session when it is closed: what waited for its end can then go on.
func TestClosingASessionEndsItsStep(t *testing.T) {
	r := simpleRig(t)
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	ok(t, r.session.Close())
	s := must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	ok(t, s.Close())
}

func TestNilObjectsAreRefused(t *testing.T) {
	r := simpleRig(t)
	for name, create := range map[string]func() error{
		"pool without model": func() error {
			_, err := moepage.NewExpertPool([]*moepage.Device{r.device}, nil, moepage.ExpertPoolConfig{})
			return err
		},
		"pool without devices": func() error { _, err := moepage.NewExpertPool(nil, r.model, moepage.ExpertPoolConfig{}); return err },
		"pool on nil": func() error {
			_, err := moepage.NewExpertPool([]*moepage.Device{nil}, r.model, moepage.ExpertPoolConfig{})
			return err
		},
		"kv pool":    func() error { _, err := moepage.NewKVPool(nil, moepage.KVPoolConfig{}); return err },
		"session":    func() error { _, err := moepage.NewSession(nil, nil, moepage.SessionConfig{}); return err },
		"controller": func() error { _, err := moepage.NewController(nil, nil, moepage.ControllerConfig{}); return err },
		"predictor":  func() error { _, err := moepage.NewPredictor(nil, moepage.PredictorConfig{}); return err },
		"paged":      func() error { _, err := moepage.NewPaged(nil, nil, moepage.PagedConfig{}); return err },
		"workspace":  func() error { _, err := moepage.SessionWorkspace(nil, moepage.SessionConfig{}); return err },
		"split":      func() error { return moepage.SetSplit(nil, nil, 1, 1, nil) },
	} {
		if err := create(); !errors.Is(err, moepage.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The library takes a handle that is NULL for "none", and would do without what was asked for.
func TestZeroValuesAreClosed(t *testing.T) {
	r := simpleRig(t)
	second := func(_ any, err error) error { return err }
	one := moepage.SessionConfig{MaxTokens: 1}
	for name, err := range map[string]error{
		"session over a zero KV pool":  second(moepage.NewSession(r.experts, new(moepage.KVPool), one)),
		"controller of a zero KV pool": second(moepage.NewController(r.experts, new(moepage.KVPool), moepage.ControllerConfig{})),
		"recording to a zero trace":    r.session.Record(new(moepage.Trace)),
		"split of zero pools":          moepage.SetSplit(new(moepage.ExpertPool), r.kv, 1, 0, nil),
		"stats of a zero device":       second(moepage.StatsText(moepage.StatsSource{Device: new(moepage.Device)})),
		"device":                       second(new(moepage.Device).Info()),
		"budget":                       new(moepage.Device).SetBudget(1, nil),
		"model":                        second(new(moepage.Model).FindTensor("x")),
		"config":                       second(new(moepage.Model).ConfigJSON()),
		"pin":                          new(moepage.ExpertPool).Pin(0, 0),
		"sequence":                     new(moepage.Sequence).Append(1, nil),
		"blocks":                       second(new(moepage.Sequence).Blocks(0)),
		"begin":                        new(moepage.Session).Begin(moepage.Step{Tokens: 1}),
		"remap":                        new(moepage.Session).SetRemap(&moepage.RemapConfig{}),
		"tick":                         second(new(moepage.Controller).Tick(nil)),
		"acquire":                      new(moepage.Paged).Acquire(0, nil),
		"bytes":                        second(new(moepage.Paged).Bytes(0, 0)),
		"next":                         second(new(moepage.Trace).Next()),
	} {
		if err != moepage.ErrClosed {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []interface{ Close() error }{new(moepage.Device), new(moepage.Model), new(moepage.ExpertPool),
		new(moepage.KVPool), new(moepage.Session), new(moepage.Sequence), new(moepage.Controller),
		new(moepage.Paged), new(moepage.Predictor), new(moepage.Trace)} {
		if err := c.Close(); err != moepage.ErrClosed {
			t.Errorf("%T: Close: %v", c, err)
		}
	}
}

func TestWrongRoutingIsRefusedAndTheStepGoesOn(t *testing.T) {
	r := simpleRig(t)
	_, ids, weights := batch(rand.New(rand.NewSource(8)), 2)
	good := moepage.Routing{IDs: ids, Weights: weights}
	fails(t, r.session.Route(0, good), moepage.ErrState) // no step
	ok(t, r.session.Begin(moepage.Step{Tokens: 2}))
	fails(t, r.session.Begin(moepage.Step{Tokens: 2}), moepage.ErrState)
	for name, wrong := range map[string]moepage.Routing{
		"nothing":             {},
		"short ids":           {IDs: ids[1:], Weights: weights},
		"short weights":       {IDs: ids, Weights: weights[1:]},
		"no weights":          {IDs: ids},
		"top-k of one":        {TopK: 1, IDs: ids, Weights: weights},
		"top-k below 0":       {TopK: -2, IDs: ids, Weights: weights},
		"short probabilities": {IDs: ids, Weights: weights, Probabilities: make([]float32, experts)},
		"short logits":        {IDs: ids, Weights: weights, Logits: make([]float32, 1)},
		"short hidden":        {IDs: ids, Weights: weights, Hidden: make([]float32, hidden)},
		"an unknown expert":   {IDs: []int32{0, 1, 2, experts}, Weights: weights},
		"weights not finite":  {IDs: ids, Weights: []float32{1, 1, 1, float32(math.NaN())}},
	} {
		if err := r.session.Route(0, wrong); !errors.Is(err, moepage.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, layer := range []int{-1, layers, 1 << 32, math.MaxInt64} {
		fails(t, r.session.Route(layer, good), moepage.ErrArgument)
	}
	ok(t, r.session.Route(0, good))
	ok(t, r.session.Retire(0))
	must(r.session.End())(t)
}

func TestWrongArraysAreRefusedBeforeTheCall(t *testing.T) {
	r := simpleRig(t)
	x, ids, weights := batch(rand.New(rand.NewSource(9)), 4)
	y := make([]float32, len(x))
	half := make([]uint16, len(x))
	ok(t, r.session.Begin(moepage.Step{Tokens: 4}))
	ok(t, r.session.Route(0, moepage.Routing{IDs: ids, Weights: weights}))
	for name, wrong := range map[string]moepage.FFN{
		"nothing":         {},
		"no y":            {X: moepage.Float32s(x)},
		"mixed dtypes":    {X: moepage.Float32s(x), Y: moepage.BFloat16s(half)},
		"a short x":       {X: moepage.Float32s(x[1:]), Y: moepage.Float32s(y)},
		"a short y":       {X: moepage.Float32s(x), Y: moepage.Float32s(y[1:])},
		"a small stride":  {X: moepage.Float32s(x), XStride: hidden - 1, Y: moepage.Float32s(y)},
		"a stride past x": {X: moepage.Float32s(x), XStride: hidden + 1, Y: moepage.Float32s(y)},
		"stride below 0":  {X: moepage.Float32s(x), XStride: -hidden, Y: moepage.Float32s(y)},
		"a huge stride":   {X: moepage.Float32s(x), XStride: math.MaxInt64 / 2, Y: moepage.Float32s(y)},
		"integers": {X: moepage.DeviceArray(moepage.DTypeI32, nil, len(x)),
			Y: moepage.DeviceArray(moepage.DTypeI32, nil, len(x))},
		"no memory": {X: moepage.DeviceArray(moepage.DTypeF32, nil, len(x)), Y: moepage.Float32s(y)},
	} {
		if err := r.session.FFN(0, wrong); !errors.Is(err, moepage.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok(t, r.session.FFN(0, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)}))
	near(t, "y", y, r.bank.routed(0, x, ids, weights), 1e-5)
	ok(t, r.session.Cancel())
}

func TestForeignSequencesAreRefused(t *testing.T) {
	r, other := simpleRig(t), simpleRig(t)
	seq := must(other.kv.NewSequence())(t)
	defer seq.Close()
	of := func(s *moepage.Sequence) moepage.Step {
		return moepage.Step{Tokens: 1, Sequences: []moepage.StepSequence{{Seq: s, Tokens: 1}}}
	}
	fails(t, r.session.Begin(of(seq)), moepage.ErrHandle)
	mine := must(r.kv.NewSequence())(t)
	ok(t, mine.Close())
	fails(t, r.session.Begin(of(mine)), moepage.ErrHandle)
	fails(t, r.session.Begin(moepage.Step{Tokens: -1}), moepage.ErrArgument)
	fails(t, r.session.Begin(moepage.Step{Tokens: 17}), moepage.ErrArgument)
	fails(t, r.session.Begin(moepage.Step{Tokens: 2, Sequences: []moepage.StepSequence{{Tokens: 1}}}), moepage.ErrArgument)
	fails(t, r.session.Begin(moepage.Step{Tokens: 1, Semantic: []float32{1}}), moepage.ErrArgument)
}

// Go's memory on a device that cannot read it, and the other way round.
func TestTheWrongDeviceIsRefused(t *testing.T) {
	_, err := moepage.OpenDevice("host", moepage.DeviceConfig{BudgetBytes: 1 << 20, Ranges: true})
	fails(t, err, moepage.ErrUnsupported)
	model := must(moepage.OpenBanks(newBank(1).banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	defer model.Close()
	device := must(moepage.OpenDevice("sim:../machines/h200.json", moepage.DeviceConfig{BudgetBytes: 64 << 20}))(t)
	defer device.Close()
	host := openDevice(t)
	defer host.Close()
	_, err = moepage.NewExpertPool([]*moepage.Device{host, device}, model, moepage.ExpertPoolConfig{})
	fails(t, err, moepage.ErrUnsupported)
	pool := must(moepage.NewExpertPool([]*moepage.Device{device}, model, moepage.ExpertPoolConfig{}))(t)
	defer pool.Close()
	kv := must(moepage.NewKVPool(device, moepage.KVPoolConfig{BytesPerToken: []uint32{64}, Blocks: 4}))(t)
	defer kv.Close()
	other := must(moepage.NewKVPool(host, moepage.KVPoolConfig{BytesPerToken: []uint32{64}, Blocks: 4}))(t)
	defer other.Close()
	fails(t, moepage.SetSplit(pool, other, 4, 4, nil), moepage.ErrArgument)
	s := must(moepage.NewSession(pool, kv, moepage.SessionConfig{MaxTokens: 4}))(t)
	defer s.Close()
	x, ids, weights := batch(rand.New(rand.NewSource(1)), 1)
	ok(t, s.Begin(moepage.Step{Tokens: 1}))
	plan := must(s.RoutePlan(0, moepage.Routing{IDs: ids, Weights: weights}))(t)
	_, err = plan.Weights(0, 0)
	fails(t, err, moepage.ErrUnsupported)
	fails(t, s.FFN(0, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(x)}), moepage.ErrArgument)
	ok(t, s.Cancel())
	seq := must(kv.NewSequence())(t)
	defer seq.Close()
	ok(t, seq.Append(1, nil))
	_, err = seq.Blocks(0)
	fails(t, err, moepage.ErrUnsupported)
}

func TestWrongBanksAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*moepage.Banks){
		"too few entries": func(b *moepage.Banks) { b.Data = b.Data[1:] },
		"a short entry":   func(b *moepage.Banks) { b.Data[3] = b.Data[3][4:] },
		"an empty entry":  func(b *moepage.Banks) { b.Data[3] = nil },
		"no dimension":    func(b *moepage.Banks) { b.Tensors[0].Shape = []int{0, hidden} },
		"five dimensions": func(b *moepage.Banks) { b.Tensors[0].Shape = []int{1, 1, 1, 1, 1} },
		"a huge shape":    func(b *moepage.Banks) { b.Tensors[0].Shape = []int{math.MaxInt64, math.MaxInt64, 8} },
		"an unknown type": func(b *moepage.Banks) { b.Tensors[0].DType = 99 },
		"no tensors":      func(b *moepage.Banks) { b.Tensors = nil },
		"data and read": func(b *moepage.Banks) {
			b.Read = func(int, int, int, int64, []byte) error { return nil }
		},
		"neither":            func(b *moepage.Banks) { b.Data = nil },
		"a short layer list": func(b *moepage.Banks) { b.LayerIndex = []int32{0} },
		"short dense": func(b *moepage.Banks) {
			b.Dense = []moepage.DenseTensor{{Name: "a", DType: moepage.DTypeF32, Shape: []int{2}, Data: make([]byte, 7)}}
		},
	} {
		banks := newBank(1).banks(moepage.DTypeF32)
		spoil(&banks)
		if _, err := moepage.OpenBanks(banks, moepage.ModelConfig{}); !errors.Is(err, moepage.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// C would take such a text to end early, and could find something of that name.
func TestTextsWithANULAreRefused(t *testing.T) {
	r := simpleRig(t)
	predictor := must(moepage.NewPredictor(r.model, moepage.PredictorConfig{Name: "coactivation"}))(t)
	defer predictor.Close()
	path := filepath.Join(t.TempDir(), "a") + "\x00b"
	banks := func(spoil func(*moepage.Banks)) error {
		banks := newBank(1).banks(moepage.DTypeF32)
		banks.Dense = []moepage.DenseTensor{{Name: "a", DType: moepage.DTypeU8, Shape: []int{1}, Data: []byte{1}}}
		spoil(&banks)
		_, err := moepage.OpenBanks(banks, moepage.ModelConfig{})
		return err
	}
	for name, call := range map[string]func() error{
		"device": func() error {
			_, err := moepage.OpenDevice("host\x00", moepage.DeviceConfig{BudgetBytes: 1 << 20})
			return err
		},
		"model":        func() error { _, err := moepage.OpenModel(path, moepage.ModelConfig{}); return err },
		"tensor":       func() error { _, err := r.model.FindTensor("\x00"); return err },
		"part":         func() error { return r.model.ReadTensor("\x00", 0, nil) },
		"architecture": func() error { return banks(func(b *moepage.Banks) { b.Architecture = "a\x00" }) },
		"config":       func() error { return banks(func(b *moepage.Banks) { b.ConfigJSON = "{}\x00" }) },
		"dense":        func() error { return banks(func(b *moepage.Banks) { b.Dense[0].Name = "a\x00" }) },
		"policy": func() error {
			_, _, err := moepage.ExpertPoolSizes(r.model, moepage.ExpertPoolConfig{Policy: "lru\x00"}, 1)
			return err
		},
		"predictor": func() error {
			_, err := moepage.NewPredictor(r.model, moepage.PredictorConfig{Name: "maps\x00"})
			return err
		},
		"save": func() error { return predictor.Save(path) },
		"load": func() error { return predictor.Load(path) },
		"pack": func() error { _, err := moepage.WritePack(r.model, path, moepage.PackConfig{}); return err },
		"decoder": func() error {
			return moepage.ExphDecode("portable\x00", moepage.DTypeBF16, nil, nil)
		},
		"labels": func() error { _, err := moepage.StatsText(moepage.StatsSource{Labels: "a=\"b\"\x00"}); return err },
		"trace":  func() error { _, err := moepage.OpenTrace(path); return err },
		"new trace": func() error {
			_, err := moepage.CreateTrace(path, moepage.TraceInfo{MoELayers: 1, Experts: 1, MaxTopK: 1})
			return err
		},
		"traced model": func() error {
			_, err := moepage.CreateTrace(path[:len(path)-2], moepage.TraceInfo{MoELayers: 1, Experts: 1, MaxTopK: 1, Model: "\x00"})
			return err
		},
	} {
		if err := call(); !errors.Is(err, moepage.ErrArgument) || !strings.Contains(err.Error(), "NUL") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A session is for one goroutine at a time: whoever comes second is told so, and nothing is harmed.
func TestGoroutinesThatShareASessionAreToldSo(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	banks := newBank(1).banks(moepage.DTypeF32)
	data := banks.Data
	banks.Data = nil
	banks.Read = func(layer, expert, tensor int, offset int64, out []byte) error {
		if layer == 2 {
			entered <- true
			<-leave
		}
		copy(out, data[(layer*experts+expert)*2+tensor][offset:])
		return nil
	}
	s := newRig(t, banks, 8, moepage.SessionConfig{}).session
	ok(t, s.Begin(moepage.Step{Tokens: 1}))
	done := make(chan error)
	go func() {
		_, err := s.RoutePlan(2, moepage.Routing{IDs: []int32{0, 0}, Weights: []float32{1, 1}})
		done <- err
	}()
	<-entered // the other goroutine is inside, until both tensors have been read
	for name, err := range map[string]error{
		"route":  s.Route(0, moepage.Routing{IDs: []int32{0, 0}, Weights: []float32{1, 1}}),
		"begin":  s.Begin(moepage.Step{Tokens: 1}),
		"cancel": s.Cancel(),
		"close":  s.Close(),
	} {
		if err != moepage.ErrConcurrent {
			t.Errorf("%s: %v", name, err)
		}
	}
	leave <- true
	<-entered
	leave <- true
	ok(t, <-done)
	ok(t, s.Cancel())
}

// Without any care for order: no crash, and no error but the ones that say what is wrong.
func TestAnyNumberOfGoroutinesOnASessionAreSafe(t *testing.T) {
	r := simpleRig(t)
	var group sync.WaitGroup
	for g := 0; g < 4; g++ {
		random := rand.New(rand.NewSource(int64(g)))
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 500; i++ {
				x, ids, weights := batch(random, 1)
				var err error
				switch random.Intn(6) {
				case 0:
					err = r.session.Begin(moepage.Step{Tokens: 1})
				case 1:
					err = r.session.Route(random.Intn(layers), moepage.Routing{IDs: ids, Weights: weights})
				case 2:
					y := make([]float32, hidden)
					err = r.session.FFN(random.Intn(layers), moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)})
				case 3:
					err = r.session.Retire(random.Intn(layers))
				case 4:
					_, err = r.session.End()
				default:
					err = r.session.Cancel()
				}
				if err != nil && !errors.Is(err, moepage.ErrConcurrent) && !errors.Is(err, moepage.ErrState) &&
					!errors.Is(err, moepage.ErrBusy) {
					t.Errorf("unexpected: %v", err)
				}
			}
		}()
	}
	group.Wait()
	if err := r.session.Cancel(); err != nil && !errors.Is(err, moepage.ErrState) {
		t.Error(err)
	}
}

// Who reads tables, who moves the split, and who would close the pool wait for each other, and all
// come to their end.
func TestTablesSplitsAndClosingDoNotLockUp(t *testing.T) {
	r := simpleRig(t)
	seq := must(r.kv.NewSequence())(t)
	ok(t, seq.Append(8, nil))
	var group sync.WaitGroup
	for _, work := range []func() error{
		func() error { _, err := seq.Table(); return err },
		func() error { return moepage.SetSplit(r.experts, r.kv, 0, 0, nil) },
		func() error {
			if err := r.kv.Close(); !errors.Is(err, moepage.ErrBusy) {
				return errors.New("the pool was closed under its session")
			}
			return nil
		},
	} {
		group.Add(1)
		go func(work func() error) {
			defer group.Done()
			for i := 0; i < 20000; i++ {
				if err := work(); err != nil {
					t.Error(err)
					return
				}
			}
		}(work)
	}
	group.Wait()
}

// Sessions of one pool in parallel, each in a goroutine of its own, compute what they would alone.
func TestSessionsOfOnePoolRunInParallel(t *testing.T) {
	r := simpleRig(t)
	ok(t, r.session.Close())
	var sessions [2]*moepage.Session // all of them before the first step: none is made during one
	for g := range sessions {
		sessions[g] = must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
		defer sessions[g].Close()
	}
	var group sync.WaitGroup
	for g, s := range sessions {
		s, random := s, rand.New(rand.NewSource(int64(g)))
		group.Add(1)
		go func() {
			defer group.Done()
			for step := 0; step < 50; step++ {
				x, ids, weights := batch(random, 2)
				y, layer := make([]float32, len(x)), step%layers
				for _, err := range []error{
					s.Begin(moepage.Step{Tokens: 2}),
					s.Route(layer, moepage.Routing{IDs: ids, Weights: weights}),
					s.FFN(layer, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)}),
					s.Retire(layer),
				} {
					if err != nil {
						t.Error(err)
						return
					}
				}
				if _, err := s.End(); err != nil {
					t.Error(err)
				}
				for i, w := range r.bank.routed(layer, x, ids, weights) {
					if math.Abs(float64(y[i])-w) > 1e-5*(1+math.Abs(w)) {
						t.Errorf("step %d: %v, want %v", step, y[i], w)
						return
					}
				}
			}
		}()
	}
	group.Wait()
}
