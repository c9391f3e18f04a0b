package moepage_test

import (
	"encoding/binary"
	"io"
	"math/rand"
	"path/filepath"
	"strings"
	"testing"

	"moepage"
)

func TestModelTellsItsShapeAndTensors(t *testing.T) {
	banks := newBank(30).banks(moepage.DTypeBF16)
	banks.Architecture, banks.ConfigJSON, banks.LayerIndex, banks.Layers = "mine", `{"a": 1}`, []int32{1, 2, 4}, 5
	values := []float32{1, -2.5, 0.375, 65280}
	halves := []byte{0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0x00, 0x7c} // 1, -2, 2^-24, +inf
	banks.Dense = []moepage.DenseTensor{
		{Name: "plain", DType: moepage.DTypeF32, Shape: []int{2, 2}, Data: float32Bytes(values)},
		{Name: "brain", DType: moepage.DTypeBF16, Shape: []int{4}, Data: bfloat16Bytes(values)},
		{Name: "half", DType: moepage.DTypeF16, Shape: []int{4}, Data: halves},
		{Name: strings.Repeat("long", 200), DType: moepage.DTypeI32, Shape: []int{1}, Data: make([]byte, 4)}}
	m := must(moepage.OpenBanks(banks, moepage.ModelConfig{}))(t)
	defer m.Close()
	if info := must(m.Info())(t); info.Architecture != "mine" || info.MoELayers != layers || info.Hidden != hidden ||
		info.TopK != topK || info.Layers != 5 || !info.FFNSupported || info.Activation != moepage.ActivationSwiGLU {
		t.Errorf("%+v", info)
	}
	banks.Activation, banks.ActivationLimit = moepage.ActivationSwiGLUClamped, 5
	clamped := must(moepage.OpenBanks(banks, moepage.ModelConfig{}))(t)
	defer clamped.Close()
	if info := must(clamped.Info())(t); info.Activation != moepage.ActivationSwiGLUClamped ||
		info.ActivationAlpha != 1.702 || info.ActivationLimit != 5 {
		t.Errorf("%+v", info)
	}
	if text := must(m.ConfigJSON())(t); string(text) != `{"a": 1}` {
		t.Errorf("%s", text)
	}
	if layer := must(m.LayerIndex(2))(t); layer != 4 {
		t.Error(layer)
	}
	_, err := m.LayerIndex(-1)
	fails(t, err, moepage.ErrArgument)
	names := map[string]bool{}
	for i := range banks.Dense {
		names[must(m.TensorName(i))(t)] = true
	}
	for _, d := range banks.Dense {
		if !names[d.Name] {
			t.Errorf("%s is not listed", d.Name)
		}
	}
	_, err = m.TensorName(len(banks.Dense))
	fails(t, err, moepage.ErrNotFound)
	for name, want := range map[string][]float32{"plain": values, "brain": values, "half": {1, -2, 1.0 / (1 << 24), 0}} {
		tensor := must(m.FindTensor(name))(t)
		got := must(tensor.Float32s())(t)
		for i, w := range want {
			if got[i] != w && i < 3 {
				t.Errorf("%s[%d] is %v, want %v", name, i, got[i], w)
			}
		}
	}
	plain := must(m.FindTensor("plain"))(t)
	if data := must(plain.Bytes())(t); string(data) != string(float32Bytes(values)) || len(plain.Shape) != 2 {
		t.Errorf("%v %v", plain.Shape, data)
	}
	part := make([]byte, 8)
	ok(t, m.ReadTensor("plain", 4, part))
	if string(part) != string(float32Bytes(values)[4:12]) {
		t.Errorf("a part of plain is %v", part)
	}
	fails(t, m.ReadTensor("plain", uint64(4*len(values)), part), moepage.ErrArgument)
	_, err = must(m.FindTensor(banks.Dense[3].Name))(t).Float32s()
	fails(t, err, moepage.ErrUnsupported)
	_, err = m.FindTensor("missing")
	fails(t, err, moepage.ErrNotFound)
	if form := must(m.Form(moepage.FormDense))(t); !form.Present || form.Form != moepage.FormDense {
		t.Errorf("%+v", form)
	}
	ok(t, m.Close())
	_, err = plain.Bytes()
	fails(t, err, moepage.ErrClosed)
}

func TestExpertPoolPinsAndCounts(t *testing.T) {
	r := simpleRig(t)
	ok(t, r.experts.Pin(2, 5))
	if where := must(r.experts.Lookup(2, 5))(t); where.State != moepage.ExpertResident || where.Slot < 0 {
		t.Errorf("%+v", where)
	}
	if where := must(r.experts.Lookup(0, 0))(t); where.State != moepage.ExpertAbsent || where.Slot != -1 {
		t.Errorf("%+v", where)
	}
	ok(t, compute(t, r.session, r.bank, 1))
	info := must(r.experts.Info())(t)
	if info.Slots != 8 || info.Pinned != 1 || info.Misses == 0 {
		t.Errorf("%+v", info)
	}
	if stats := must(r.experts.Stats())(t); stats.Misses != info.Misses || stats.Steps != 1 {
		t.Errorf("%+v", stats)
	}
	ok(t, r.experts.Unpin(2, 5))
	fails(t, r.experts.Unpin(2, 5), moepage.ErrState)
	fails(t, r.experts.Pin(-1, 0), moepage.ErrArgument)
	fails(t, r.experts.Pin(0, experts), moepage.ErrArgument)
}

func TestExpertPoolConfigIsHeard(t *testing.T) {
	r := simpleRig(t)
	ok(t, r.session.Close())
	ok(t, r.experts.Close())
	create := func(config moepage.ExpertPoolConfig) (*moepage.ExpertPool, error) {
		return moepage.NewExpertPool([]*moepage.Device{r.device}, r.model, config)
	}
	_, err := create(moepage.ExpertPoolConfig{Policy: "no-such-policy"})
	fails(t, err, moepage.ErrNotFound)
	_, err = moepage.NewExpertPool([]*moepage.Device{r.device, r.device}, r.model, moepage.ExpertPoolConfig{})
	if err == nil {
		t.Error("the same device twice")
	}
	precise := moepage.ExpertPoolConfig{Precision: &moepage.PrecisionConfig{LoForm: moepage.FormInt4, HiExperts: 2}}
	b := newBank(31)
	banks := b.banks(moepage.DTypeBF16)
	model := must(moepage.OpenBanks(banks, moepage.ModelConfig{}))(t)
	defer model.Close()
	_, err = moepage.NewExpertPool([]*moepage.Device{r.device}, model, precise)
	fails(t, err, moepage.ErrUnsupported) // no low version is stored
	workspace, arena, err := moepage.ExpertPoolSizes(r.model, moepage.ExpertPoolConfig{Slots: 8}, 1)
	if err != nil || arena < 8*2*4*hidden*intermediate {
		t.Error(workspace, arena, err)
	}
}

func TestSequencesGrowForkSwapAndEnd(t *testing.T) {
	r := simpleRig(t)
	a := must(r.kv.NewSequence())(t)
	ok(t, a.Append(6, nil))
	blocks := must(a.Blocks(0))(t)
	if len(blocks) != 2 || len(blocks[0]) != 4*64 {
		t.Fatalf("%d blocks of %d bytes", len(blocks), len(blocks[0]))
	}
	copy(blocks[1], "what a sequence holds")
	b := must(a.Fork())(t)
	ok(t, b.Append(1, nil)) // into the shared block, which is copied first
	ok(t, a.SwapOut(nil))
	if table := must(a.Table())(t); !table.Swapped || table.Blocks != nil || table.Tokens != 6 {
		t.Errorf("%+v", table)
	}
	_, err := a.Blocks(0)
	fails(t, err, moepage.ErrState)
	fails(t, a.SwapOut(nil), moepage.ErrState)
	ok(t, a.SwapIn(nil))
	for _, s := range []*moepage.Sequence{a, b} {
		if blocks := must(s.Blocks(0))(t); string(blocks[1][:21]) != "what a sequence holds" {
			t.Errorf("the block holds %q", blocks[1][:21])
		}
	}
	ok(t, b.Truncate(1))
	fails(t, b.Truncate(-1), moepage.ErrArgument)
	fails(t, b.Append(-1, nil), moepage.ErrArgument)
	fails(t, b.Append(1000, nil), moepage.ErrWouldNotFit)
	if table := must(b.Table())(t); len(table.Blocks) != 1 || table.Tokens != 1 {
		t.Errorf("%+v", table)
	}
	_, err = a.Blocks(1)
	fails(t, err, moepage.ErrArgument) // keeps no KV
	_, err = a.Blocks(-1)
	fails(t, err, moepage.ErrArgument)
	if answer := must(r.kv.Admit([]uint64{4, 4}))(t); !answer.Fits || answer.NeededBlocks != 2 {
		t.Errorf("%+v", answer)
	}
	view := must(r.kv.Layer(2))(t)
	table := must(a.Table())(t)
	if view.Base == nil || view.IDStride == 0 || view.Offset(table.Blocks[0]) == view.Offset(table.Blocks[1]) {
		t.Errorf("%+v", view)
	}
	ok(t, a.Close())
	ok(t, b.Close())
	if info := must(r.kv.Info())(t); info.FreeBlocks != info.Blocks || info.Sequences != 0 || info.CopiesOnWrite != 1 {
		t.Errorf("%+v", info)
	}
}

func TestTheBudgetMoves(t *testing.T) {
	const mib = 1 << 20
	config := moepage.DeviceConfig{Threads: 1, BudgetBytes: 2 * mib, WorkspaceBytes: mib, MaxBudgetBytes: 4 * mib}
	d := must(moepage.OpenDevice("host", config))(t)
	kv := must(moepage.NewKVPool(d, moepage.KVPoolConfig{BlockTokens: 4, BytesPerToken: []uint32{64}, Blocks: 8}))(t)
	for _, bytes := range []uint64{4 * mib, mib + 65536, 3 * mib} {
		ok(t, d.SetBudget(bytes, nil))
		if info := must(d.Info())(t); info.BudgetBytes != bytes || info.BudgetAimBytes != bytes || info.MaxBudgetBytes != 4*mib {
			t.Errorf("%+v", info)
		}
	}
	fails(t, d.SetBudget(5*mib, nil), moepage.ErrBudget)
	ok(t, d.FollowMemory(nil))
	if info := must(d.Info())(t); info.BudgetBytes != 4*mib || info.ReserveBytes != 4*mib/16 {
		t.Errorf("%+v", info)
	}
	ok(t, kv.Close())
	ok(t, d.Close())
	config.BudgetBytes = moepage.BudgetAuto
	d = must(moepage.OpenDevice("host", config))(t)
	if info := must(d.Info())(t); info.BudgetBytes != 4*mib {
		t.Errorf("%+v", info)
	}
	ok(t, d.Close())
}

func TestTheSplitMovesAndAControllerWatches(t *testing.T) {
	r := simpleRig(t)
	ok(t, moepage.SetSplit(r.experts, r.kv, 6, 8, nil))
	if info := must(r.experts.Info())(t); info.Slots != 6 {
		t.Errorf("%+v", info)
	}
	fails(t, moepage.SetSplit(r.experts, nil, 1<<40, 0, nil), moepage.ErrBudget)
	c := must(moepage.NewController(r.experts, r.kv,
		moepage.ControllerConfig{Mode: moepage.ControlObserve, BurstSteps: 4}))(t)
	fails(t, r.experts.Close(), moepage.ErrBusy)
	for step := 0; step < 12; step++ {
		ok(t, compute(t, r.session, r.bank, step%layers))
		must(c.Tick(nil))(t)
	}
	ok(t, c.KVUse(7, 12))
	if info := must(c.Info())(t); info.Mode != moepage.ControlObserve || info.Steps == 0 {
		t.Errorf("%+v", info)
	}
	if misses := must(c.ExpertCurve([]uint64{0, 24}))(t); misses[0] < misses[1] {
		t.Errorf("more slots, more misses: %v", misses)
	}
	must(c.KVCurve(nil))(t)
	_, err := moepage.NewController(r.experts, r.kv, moepage.ControllerConfig{})
	fails(t, err, moepage.ErrBusy)
	text := must(moepage.StatsText(moepage.StatsSource{Device: r.device, Experts: r.experts, KV: r.kv,
		Controller: c, Labels: `host="a"`}))(t)
	if !strings.Contains(text, "# TYPE ") || !strings.Contains(text, `host="a"`) {
		t.Errorf("%.300s", text)
	}
	_, err = moepage.StatsText(moepage.StatsSource{Device: r.device, Labels: `=`})
	fails(t, err, moepage.ErrArgument)
	ok(t, c.Close())
	fails(t, c.Close(), moepage.ErrClosed)
}

func TestTracesAreWrittenAndRead(t *testing.T) {
	r := simpleRig(t)
	path := filepath.Join(t.TempDir(), "a.trace")
	info := moepage.TraceInfo{MoELayers: layers, Experts: experts, MaxTopK: topK, SemanticDim: 2, Model: "banks"}
	_, err := moepage.CreateTrace(path, moepage.TraceInfo{Model: strings.Repeat("x", 64)})
	fails(t, err, moepage.ErrArgument)
	trace := must(moepage.CreateTrace(path, info))(t)
	ok(t, r.session.Record(trace))
	fails(t, trace.Close(), moepage.ErrBusy)
	_, err = trace.Next()
	fails(t, err, moepage.ErrState)
	other := must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	fails(t, other.Record(trace), moepage.ErrBusy)
	ok(t, other.Close())
	_, ids, weights := batch(rand.New(rand.NewSource(32)), 3)
	ok(t, r.session.Begin(moepage.Step{Tokens: 3, Semantic: []float32{1, 2, 3, 4}, SemanticDim: 2,
		Sequences: []moepage.StepSequence{{Tokens: 2, Phase: moepage.PhasePrefill}, {Tokens: 1}}}))
	fails(t, r.session.Record(nil), moepage.ErrState)
	ok(t, r.session.Route(1, moepage.Routing{IDs: ids, Weights: weights}))
	ok(t, r.session.Retire(1))
	must(r.session.End())(t)
	ok(t, r.session.Record(nil))
	ok(t, trace.Close())

	back := must(moepage.OpenTrace(path))(t)
	if got := must(back.Info())(t); got != info {
		t.Errorf("%+v", got)
	}
	step := must(back.Next())(t)
	at := 1 * 3 * topK
	if step.Tokens != 3 || len(step.Sequences) != 2 || step.Sequences[0].Phase != moepage.PhasePrefill ||
		step.LayerPresent[0] || !step.LayerPresent[1] || step.Semantic[3] != 4 || step.Probabilities != nil {
		t.Errorf("%+v", step)
	}
	for i := range ids {
		if step.IDs[at+i] != ids[i] || step.Weights[at+i] != weights[i] {
			t.Errorf("choice %d: %d, %v", i, step.IDs[at+i], step.Weights[at+i])
		}
	}
	for i := 0; i < 2; i++ {
		if _, err := back.Next(); err != io.EOF {
			t.Errorf("after the last step: %v", err)
		}
	}
	ok(t, back.Close())
	if _, err := back.Next(); err != moepage.ErrClosed {
		t.Error(err)
	}
}

func TestControllersSizeUsers(t *testing.T) {
	r := simpleRig(t)
	one := must(moepage.NewPredictor(r.model, moepage.PredictorConfig{Name: "coactivation"}))(t)
	other := must(moepage.NewPredictor(r.model, moepage.PredictorConfig{Name: "maps"}))(t)
	control := must(moepage.NewController(r.experts, nil, moepage.ControllerConfig{Mode: moepage.ControlObserve}))(t)
	fails(t, control.Rightsize([]*moepage.Predictor{one, other}, 0), moepage.ErrUnsupported)
	fails(t, control.Rightsize([]*moepage.Predictor{nil}, 0), moepage.ErrArgument)
	ok(t, control.Rightsize([]*moepage.Predictor{one}, 500))
	if info := must(control.Info())(t); info.Users != 1 || info.CapSlots != 0 {
		t.Fatalf("%+v", info)
	}
	if size := must(control.User(0))(t); size.Experts != 0 || size.Coverage != 0.5 {
		t.Fatalf("%+v", size)
	}
	_, err := control.User(1)
	fails(t, err, moepage.ErrArgument)
	fails(t, one.Close(), moepage.ErrBusy)
	ok(t, control.Close())
	ok(t, one.Close())
	ok(t, other.Close())
}

func TestPredictorsLearnSaveAndLoad(t *testing.T) {
	b := newBank(33)
	model := must(moepage.OpenBanks(b.banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	defer model.Close()
	_, err := moepage.NewPredictor(model, moepage.PredictorConfig{Name: "no-such-predictor"})
	fails(t, err, moepage.ErrNotFound)
	p := must(moepage.NewPredictor(model, moepage.PredictorConfig{Name: "coactivation"}))(t)
	defer p.Close()
	_, err = p.Rightsize(0.5)
	fails(t, err, moepage.ErrState)
	r := newRig(t, b.banks(moepage.DTypeF32), 8, moepage.SessionConfig{Prefetch: moepage.PrefetchPredictor, Predictor: p})
	fails(t, p.Close(), moepage.ErrBusy)
	// A busy predictor leaves passes out: how many it takes until it has learnt from one is not known.
	for err != nil {
		_, ids, weights := batch(rand.New(rand.NewSource(34)), 4)
		ok(t, r.session.Begin(moepage.Step{Tokens: 4}))
		for layer := 0; layer < layers; layer++ {
			ok(t, r.session.Route(layer, moepage.Routing{IDs: ids, Weights: weights}))
			ok(t, r.session.Retire(layer))
		}
		must(r.session.End())(t)
		_, err = p.Rightsize(0.5)
	}
	must(r.session.Prefetched(0))(t)
	ok(t, r.session.Close())
	path := filepath.Join(t.TempDir(), "learnt")
	ok(t, p.Save(path))
	other := must(moepage.NewPredictor(model, moepage.PredictorConfig{Name: "coactivation"}))(t)
	defer other.Close()
	ok(t, other.Load(path))
	fails(t, other.Load(path+"x"), moepage.ErrNotFound)
	if size := must(other.Rightsize(0.5))(t); size.Layers != layers || size.Experts == 0 || size.Bytes == 0 {
		t.Errorf("%+v", size)
	}
	if info := must(other.Info())(t); info.Name != "coactivation" {
		t.Errorf("%+v", info)
	}
}

func TestHintsAndRemapping(t *testing.T) {
	r := simpleRig(t)
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	fails(t, r.session.Hint(0, []int32{1}), moepage.ErrState)
	fails(t, r.session.SetRemap(&moepage.RemapConfig{Alpha: 1, Beta: 1}), moepage.ErrState)
	ok(t, r.session.Cancel())
	fails(t, r.session.SetRemap(&moepage.RemapConfig{}), moepage.ErrArgument)
	fails(t, r.session.SetRemap(&moepage.RemapConfig{Alphas: []float32{1}}), moepage.ErrArgument)
	ok(t, r.session.SetRemap(&moepage.RemapConfig{Alphas: []float32{1, 1, 0}, Betas: []float32{1, 2, 0}}))
	_, ids, weights := batch(rand.New(rand.NewSource(35)), 4)
	ok(t, r.session.Begin(moepage.Step{Tokens: 4}))
	fails(t, r.session.Route(0, moepage.Routing{IDs: ids, Weights: weights}), moepage.ErrArgument) // no logits
	ok(t, r.session.Route(0, moepage.Routing{IDs: ids, Weights: weights, Logits: make([]float32, 4*experts)}))
	ok(t, r.session.Cancel())
	ok(t, r.session.SetRemap(nil))
	s := must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 4, Prefetch: moepage.PrefetchHint}))(t)
	defer s.Close()
	ok(t, s.Begin(moepage.Step{Tokens: 1}))
	ok(t, s.Hint(2, []int32{1, 4}))
	fails(t, s.Hint(2, []int32{experts}), moepage.ErrArgument)
	ok(t, s.Cancel())
}

func TestPagedTensorsShowALayerAtATime(t *testing.T) {
	b := newBank(36)
	device := openDevice(t)
	model := must(moepage.OpenBanks(b.banks(moepage.DTypeF32), moepage.ModelConfig{}))(t)
	_, arena, err := moepage.PagedSizes(device, model, moepage.PagedConfig{})
	if err != nil || arena == 0 {
		t.Error(arena, err)
	}
	p := must(moepage.NewPaged(device, model, moepage.PagedConfig{}))(t)
	fails(t, device.Close(), moepage.ErrBusy)
	tensor := must(p.Tensor(1))(t)
	if tensor.Role != moepage.RoleDown || len(tensor.Shape) != 2 || tensor.ExpertStride != 4*hidden*intermediate {
		t.Errorf("%+v", tensor)
	}
	_, err = p.Bytes(0, 1)
	fails(t, err, moepage.ErrState)
	for layer := 0; layer < layers; layer++ {
		ok(t, p.Materialise(layer))
		ok(t, p.Acquire(layer, nil))
		fails(t, p.Close(), moepage.ErrBusy)
		data := must(p.Bytes(layer, 1))(t)
		for e := 0; e < experts; e++ {
			want := float32Bytes(b.down[layer*experts+e])
			if string(data[e*len(want):(e+1)*len(want)]) != string(want) {
				t.Errorf("layer %d, expert %d has other weights", layer, e)
			}
		}
		ok(t, p.Release(layer, nil))
		_, err = p.Bytes(layer, 1)
		fails(t, err, moepage.ErrState)
	}
	if state := must(p.State(layers - 1))(t); state != moepage.PagedResident {
		t.Error(state)
	}
	_, err = p.State(layers)
	fails(t, err, moepage.ErrArgument)
	ok(t, p.Close())
	_, err = p.Tensor(0)
	fails(t, err, moepage.ErrClosed)
	ok(t, model.Close())
	ok(t, device.Close())
}

func TestTheCodecGivesBackWhatItTook(t *testing.T) {
	random := rand.New(rand.NewSource(37))
	in := make([]byte, 2*5000)
	for i := 0; i < len(in); i += 2 {
		binary.LittleEndian.PutUint16(in[i:], 0x3f00|uint16(random.Intn(256)))
	}
	coded := must(moepage.ExphEncode(moepage.DTypeBF16, in))(t)
	if len(coded) >= len(in) {
		t.Errorf("%d bytes became %d", len(in), len(coded))
	}
	for _, decoder := range []string{"", "portable"} {
		out := make([]byte, len(in))
		ok(t, moepage.ExphDecode(decoder, moepage.DTypeBF16, coded, out))
		if string(out) != string(in) {
			t.Errorf("decoder %q gives other bytes", decoder)
		}
	}
	fails(t, moepage.ExphDecode("abacus", moepage.DTypeBF16, coded, make([]byte, len(in))), moepage.ErrNotFound)
	fails(t, moepage.ExphDecode("", moepage.DTypeBF16, coded, make([]byte, len(in)-2)), moepage.ErrFormat)
	fails(t, moepage.ExphDecode("", moepage.DTypeBF16, coded, make([]byte, 3)), moepage.ErrArgument)
	fails(t, moepage.ExphDecode("", moepage.DTypeF32, coded, make([]byte, 4)), moepage.ErrArgument)
	_, err := moepage.ExphEncode(moepage.DTypeI64, in)
	fails(t, err, moepage.ErrArgument)
}

func TestTheLibraryIsTheHeadersVersion(t *testing.T) {
	if moepage.Version() != moepage.HeaderVersion || !strings.HasPrefix(moepage.VersionText(), "0.") {
		t.Error(moepage.Version(), moepage.HeaderVersion, moepage.VersionText())
	}
}
