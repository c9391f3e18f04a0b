package moepage_test

import (
	"runtime"
	"strings"
	"testing"

	"moepage"
)

func newEngine(t *testing.T, options string, config moepage.EngineConfig) (*moepage.Engine, *bank) {
	t.Helper()
	b := newBank(40)
	model := must(moepage.OpenBanks(b.banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	t.Cleanup(func() { ok(t, model.Close()) })
	config.Session.MaxTokens = 16
	return must(moepage.NewEngine(model, options, config))(t), b
}

func runSteps(t *testing.T, s *moepage.Session, layers int) []float32 {
	t.Helper()
	const n = 4
	x, y := make([]float32, n*hidden), make([]float32, n*hidden)
	ids, weights := make([]int32, n*topK), make([]float32, n*topK)
	for i := range x {
		x[i] = float32(i%17)/16 - 0.5
	}
	for i := range ids {
		ids[i], weights[i] = int32((i*3+i/topK)%experts), 0.25
	}
	ok(t, s.Begin(moepage.Step{Tokens: n}))
	for layer := 0; layer < layers; layer++ {
		ok(t, s.Route(layer, moepage.Routing{IDs: ids, Weights: weights}))
		ok(t, s.FFN(layer, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y), Accumulate: true}))
		ok(t, s.Retire(layer))
	}
	must(s.End())(t)
	return y
}

func TestEngineGivesTheBitsOfItsPartsOpenedOneByOne(t *testing.T) {
	r := newRig(t, newBank(40).banks(moepage.DTypeF32), 8, moepage.SessionConfig{})
	want := runSteps(t, r.session, layers)
	for _, options := range []string{"budget=100%", "budget=30% policy=cycle", "slots=3", "budget=1M"} {
		e, _ := newEngine(t, options, moepage.EngineConfig{})
		if e.Layers() != layers {
			t.Error(e.Layers())
		}
		for i, got := range runSteps(t, e.Session, e.Layers()) {
			if got != want[i] {
				t.Fatalf("%s: y[%d] is %v, want %v", options, i, got, want[i])
			}
		}
		ok(t, e.Close())
		fails(t, e.Close(), moepage.ErrClosed)
		fails(t, e.Session.Begin(moepage.Step{Tokens: 1}), moepage.ErrClosed)
		_, err := e.Device.Info()
		fails(t, err, moepage.ErrClosed)
	}
}

func TestEnginePartsAreThoseOfTheLibrary(t *testing.T) {
	kv := moepage.KVPoolConfig{BytesPerToken: []uint32{64, 0, 64}, Blocks: 5, BlockTokens: 4}
	e, _ := newEngine(t, "threads=1", moepage.EngineConfig{BudgetPercent: 50, KV: &kv,
		Predictor: &moepage.PredictorConfig{Name: "hit-count"}})
	defer e.Close()
	if info := must(e.Experts.Info())(t); info.Slots != layers*experts/2 {
		t.Errorf("%+v", info)
	}
	if info := must(e.KV.Info())(t); info.Blocks != 5 {
		t.Errorf("%+v", info)
	}
	info := must(e.Device.Info())(t)
	if want := must(moepage.KVPoolSizes(kv))(t); info.Threads != 1 || info.ArenaKVBytes != want {
		t.Errorf("%+v, and KV of %d", info, want)
	}
	if info := must(e.Predictor.Info())(t); info.Name != "hit-count" {
		t.Errorf("%+v", info)
	}
	ok(t, e.Session.Hint(0, []int32{1}))
	runSteps(t, e.Session, layers)
	for _, c := range []interface{ Close() error }{e.Session, e.Experts, e.KV, e.Device, e.Predictor} {
		fails(t, c.Close(), moepage.ErrState)
	}
}

func TestEngineIsClosedWithAStepOpenAndNotUnderAGuest(t *testing.T) {
	e, _ := newEngine(t, "budget=50% sessions=2", moepage.EngineConfig{})
	guest := must(moepage.NewSession(e.Experts, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	ok(t, e.Session.Begin(moepage.Step{Tokens: 1}))
	fails(t, e.Close(), moepage.ErrBusy)
	runSteps(t, guest, layers)
	ok(t, guest.Close())
	ok(t, e.Close())
}

func TestEngineThatIsDroppedLivesAsLongAsItsParts(t *testing.T) {
	pool := func() *moepage.ExpertPool {
		e, _ := newEngineOfItsOwn(t)
		return e.Experts
	}()
	runtime.GC()
	runtime.GC()
	if info := must(pool.Info())(t); info.Slots == 0 {
		t.Errorf("%+v", info)
	}
}

func newEngineOfItsOwn(t *testing.T) (*moepage.Engine, *bank) {
	b := newBank(41)
	model := must(moepage.OpenBanks(b.banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	return must(moepage.NewEngine(model, "budget=50% max_tokens=4", moepage.EngineConfig{}))(t), b
}

func TestEngineRefusalsSayWhatIsWrong(t *testing.T) {
	model := must(moepage.OpenBanks(newBank(42).banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	defer model.Close()
	for options, want := range map[string]error{"polcy=lru": moepage.ErrArgument, "": moepage.ErrBudget,
		"budget=1K": moepage.ErrBudget, "budget=50% policy=none-such": moepage.ErrNotFound,
		"budget=50%\x00": moepage.ErrArgument, "budget=50% slots=4": moepage.ErrArgument} {
		_, err := moepage.NewEngine(model, options, moepage.EngineConfig{})
		fails(t, err, want)
		if options == "polcy=lru" && !strings.Contains(err.Error(), `there is no "polcy"`) {
			t.Error(err)
		}
	}
	_, err := moepage.OpenEngine("no-such-model", "budget=1G", moepage.EngineConfig{})
	fails(t, err, moepage.ErrNotFound)
	_, err = moepage.NewEngine(nil, "", moepage.EngineConfig{})
	fails(t, err, moepage.ErrArgument)
	_, err = moepage.NewEngine(model, "budget=50%",
		moepage.EngineConfig{Device: moepage.DeviceConfig{BudgetBytes: 1}})
	fails(t, err, moepage.ErrArgument)
	e := must(moepage.OpenEngine("../models/tiny-qwen3moe", "budget=10%", moepage.EngineConfig{}))(t)
	ok(t, e.Close())
}
