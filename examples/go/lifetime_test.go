package moepage_test

import (
	"bytes"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"moepage"
)

// collect runs the garbage collector, and finalisers, until `done` says so.
func collect(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in 20 s of collections", what)
		}
		runtime.GC()
	}
}

// finalise returns when finalisers have run of an object that was dropped after all others.
func finalise(t *testing.T) {
	t.Helper()
	done := make(chan bool, 1)
	runtime.SetFinalizer(&rig{}, func(*rig) { done <- true })
	collect(t, "a finaliser", func() bool { return len(done) > 0 })
}

// openArenas says whether any host device is open, as the system sees it.
func openArenas(t *testing.T) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("this system does not show a process's mappings")
	}
	return bytes.Contains(maps, []byte("moepage-arena"))
}

// everything is opened, used, and dropped without a Close, some of it in the middle of a step.
func dropEverything(t *testing.T, path string, seed int64, inStep bool) {
	b := newBank(seed)
	banks := b.banks(moepage.DTypeF32)
	if seed%2 == 0 {
		banks = readBanks(b, nil)
	}
	device := openDevice(t)
	model := must(moepage.OpenBanks(banks, moepage.ModelConfig{Log: func(moepage.LogLevel, string) {}}))(t)
	pool := must(moepage.NewExpertPool([]*moepage.Device{device}, model, moepage.ExpertPoolConfig{Slots: 6}))(t)
	kv := must(moepage.NewKVPool(device, moepage.KVPoolConfig{BytesPerToken: []uint32{16}, Blocks: 8}))(t)
	control := must(moepage.NewController(pool, kv, moepage.ControllerConfig{Mode: moepage.ControlObserve}))(t)
	predictor := must(moepage.NewPredictor(model, moepage.PredictorConfig{Name: "coactivation"}))(t)
	ok(t, control.Rightsize([]*moepage.Predictor{predictor}, 500))
	session := must(moepage.NewSession(pool, kv, moepage.SessionConfig{MaxTokens: 4,
		Prefetch: moepage.PrefetchPredictor, Predictor: predictor}))(t)
	trace := must(moepage.CreateTrace(path, moepage.TraceInfo{MoELayers: layers, Experts: experts, MaxTopK: topK}))(t)
	ok(t, session.Record(trace))
	seq := must(kv.NewSequence())(t)
	ok(t, seq.Append(3, nil))
	ok(t, compute(t, session, b, int(seed)%layers))
	if inStep {
		_, ids, weights := batch(rand.New(rand.NewSource(seed)), 1)
		ok(t, session.Begin(moepage.Step{Tokens: 1, Sequences: []moepage.StepSequence{{Seq: seq, Tokens: 1}}}))
		must(session.RoutePlan(0, moepage.Routing{IDs: ids, Weights: weights}))(t)
	}
}

// What was dropped is closed, children before parents: the device could not be closed before.
func TestDroppedObjectsAreClosedInOrder(t *testing.T) {
	for seed := int64(0); seed < 4; seed++ {
		path := filepath.Join(t.TempDir(), "trace")
		dropEverything(t, path, seed, seed >= 2)
		if !openArenas(t) {
			t.Fatal("the device is closed while it is in use")
		}
		collect(t, "closing the device", func() bool { return !openArenas(t) })
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the trace was not finished: %v", err)
		}
	}
}

// A child keeps its parents: with nothing but the session left, everything that it needs is there.
func TestAChildKeepsItsParents(t *testing.T) {
	b := newBank(20)
	session := func() *moepage.Session {
		pool := must(moepage.NewExpertPool([]*moepage.Device{openDevice(t)},
			must(moepage.OpenBanks(readBanks(b, nil), moepage.ModelConfig{}))(t), moepage.ExpertPoolConfig{Slots: 4}))(t)
		return must(moepage.NewSession(pool, nil, moepage.SessionConfig{MaxTokens: 4}))(t)
	}()
	for i := 0; i < 20; i++ {
		runtime.GC()
		ok(t, compute(t, session, b, i%layers))
	}
	session = nil
	collect(t, "closing the device", func() bool { return !openArenas(t) })
}

// What cannot be closed when the collector finds it, because a step is open, is closed later.
func TestABusyObjectIsClosedLater(t *testing.T) {
	r := simpleRig(t)
	ok(t, r.session.Close())
	ok(t, r.kv.Close())
	session := must(moepage.NewSession(r.experts, nil, moepage.SessionConfig{MaxTokens: 1}))(t)
	defer session.Close()
	config := moepage.KVPoolConfig{BytesPerToken: []uint32{16}, Blocks: 8}
	must(moepage.NewKVPool(r.device, config))(t)
	ok(t, session.Begin(moepage.Step{Tokens: 1}))
	for i := 0; i < 3; i++ {
		finalise(t)
	}
	must(session.End())(t)
	collect(t, "closing the dropped pool", func() bool {
		kv, err := moepage.NewKVPool(r.device, config) // the device has one KV pool at a time
		return err == nil && kv.Close() == nil
	})
}

// Sequences that are dropped give their blocks back.
func TestDroppedSequencesFreeTheirBlocks(t *testing.T) {
	r := simpleRig(t)
	for i := 0; i < 8; i++ {
		ok(t, must(r.kv.NewSequence())(t).Append(8, nil))
	}
	if info := must(r.kv.Info())(t); info.FreeBlocks != 0 {
		t.Fatalf("%d blocks are free", info.FreeBlocks)
	}
	collect(t, "freeing the blocks", func() bool { return must(r.kv.Info())(t).FreeBlocks == 16 })
}

// Collections at every moment of calls and of callbacks, while objects come and go.
func TestCollectionsDuringUseAreHarmless(t *testing.T) {
	stop := make(chan bool)
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	b := newBank(21)
	for round := 0; round < 6; round++ {
		dropEverything(t, filepath.Join(t.TempDir(), "trace"), int64(round), round%3 == 0)
		s := newRig(t, readBanks(b, nil), 3, moepage.SessionConfig{Prefetch: moepage.PrefetchPrevious}).session
		for layer := 0; layer < layers; layer++ {
			ok(t, compute(t, s, b, layer))
		}
	}
	close(stop)
	group.Wait()
	// The rigs are closed by the test's end; the rest by the collector.
}
