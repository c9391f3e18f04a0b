package moepage_test

import (
	"encoding/binary"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"moepage"
)

// readBanks has the bank's experts read by `read`, which may do as it likes before it copies.
func readBanks(b *bank, before func(layer, expert int) error) moepage.Banks {
	banks := b.banks(moepage.DTypeF32)
	data := banks.Data
	banks.Data = nil
	banks.Read = func(layer, expert, tensor int, offset int64, out []byte) error {
		if before != nil {
			if err := before(layer, expert); err != nil {
				return err
			}
		}
		copy(out, data[(layer*experts+expert)*2+tensor][offset:])
		return nil
	}
	return banks
}

// compute runs one layer for four tokens and compares it with the bank.
func compute(t *testing.T, s *moepage.Session, b *bank, layer int) error {
	t.Helper()
	x, ids, weights := batch(rand.New(rand.NewSource(int64(layer))), 4)
	y := make([]float32, len(x))
	ok(t, s.Begin(moepage.Step{Tokens: 4}))
	defer func() { ok(t, s.Cancel()) }()
	if err := s.Route(layer, moepage.Routing{IDs: ids, Weights: weights}); err != nil {
		return err
	}
	if err := s.FFN(layer, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)}); err != nil {
		return err
	}
	near(t, "y", y, b.routed(layer, x, ids, weights), 1e-5)
	return s.Retire(layer)
}

func TestExpertsCanBeReadByACallback(t *testing.T) {
	b := newBank(10)
	s := newRig(t, readBanks(b, nil), 4, moepage.SessionConfig{}).session
	for layer := 0; layer < layers; layer++ {
		ok(t, compute(t, s, b, layer))
	}
}

var errBroken = errors.New("the disk is gone")

// A failing callback fails the load with its own error; once it works again, so does the session.
func TestAFailingCallbackIsTheCause(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errBroken },
		"panic": func() error { panic("boom") },
		"exit":  func() error { runtime.Goexit(); return nil },
		"nil pointer": func() error {
			var m *bank
			return errors.New(string(rune(len(m.down))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			broken := true
			b := newBank(11)
			banks := readBanks(b, func(layer, expert int) error {
				mu.Lock()
				defer mu.Unlock()
				if broken && layer == 1 {
					return fail()
				}
				return nil
			})
			r := newRig(t, banks, 8, moepage.SessionConfig{})
			err := compute(t, r.session, b, 1)
			fails(t, err, moepage.ErrCallback)
			var panicked *moepage.PanicError
			if name == "exit" {
				if errors.Unwrap(err) == nil || errors.As(err, &panicked) {
					t.Errorf("the exit is not the cause: %v", err)
				}
			} else if name == "error" && !errors.Is(err, errBroken) {
				t.Errorf("the callback's error is not the cause: %v", err)
			} else if name != "error" && (!errors.As(err, &panicked) || len(panicked.Stack) == 0) {
				t.Errorf("the panic is not the cause: %v", err)
			}
			fails(t, r.experts.Pin(1, 0), moepage.ErrCallback)
			info := must(r.model.Info())(t)
			fails(t, r.model.ReadExpert(1, 0, make([]byte, info.SlotBytes)), moepage.ErrCallback)
			mu.Lock()
			broken = false
			mu.Unlock()
			ok(t, compute(t, r.session, b, 1))
		})
	}
}

func TestProgressIsToldAndCanEndAPack(t *testing.T) {
	b := newBank(12)
	model := must(moepage.OpenBanks(b.banks(moepage.DTypeBF16), moepage.ModelConfig{}))(t)
	defer model.Close()
	path := filepath.Join(t.TempDir(), "a.moepack")
	var last, all uint64
	stats := must(moepage.WritePack(model, path, moepage.PackConfig{Verify: true, Threads: 1,
		Progress: func(done, total uint64) error { last, all = done, total; return nil }}))(t)
	if last == 0 || last != all || stats.FileBytes == 0 || stats.FormBytes[moepage.FormExph] == 0 {
		t.Errorf("told %d of %d; %+v", last, all, stats)
	}
	_, err := moepage.WritePack(model, path, moepage.PackConfig{Progress: func(_, _ uint64) error { return errBroken }})
	fails(t, err, moepage.ErrCallback)
	if !errors.Is(err, errBroken) {
		t.Errorf("the callback's error is not the cause: %v", err)
	}
	for _, end := range []func(){func() { panic(1) }, func() { panic(nil) }, runtime.Goexit} {
		_, err = moepage.WritePack(model, path, moepage.PackConfig{Progress: func(_, _ uint64) error { end(); return nil }})
		fails(t, err, moepage.ErrCallback)
	}

	// What was there before the refused calls is there still, and is the model.
	packed := must(moepage.OpenModel(path, moepage.ModelConfig{}))(t)
	defer packed.Close()
	info := must(packed.Info())(t)
	have, want := make([]byte, info.SlotBytes), make([]byte, info.SlotBytes)
	for layer := 0; layer < layers; layer++ {
		ok(t, packed.ReadExpert(layer, 3, have))
		ok(t, model.ReadExpert(layer, 3, want))
		if string(have) != string(want) {
			t.Errorf("layer %d's expert 3 differs in the pack", layer)
		}
	}
}

func TestIntegersAreRoundedForTheMomentsGiven(t *testing.T) {
	model := must(moepage.OpenBanks(newBank(14).banks(moepage.DTypeBF16), moepage.ModelConfig{}))(t)
	defer model.Close()
	tensors := must(model.LayerTensors(0))(t)
	folder := t.TempDir()
	pack := func(name string, moments moepage.MomentsFunc) ([]byte, error) {
		path := filepath.Join(folder, name)
		_, err := moepage.WritePack(model, path, moepage.PackConfig{Moments: moments,
			Forms: []moepage.Form{moepage.FormDense, moepage.FormInt2}})
		bytes, _ := os.ReadFile(path)
		return bytes, err
	}
	plain := must(pack("plain", nil))(t)
	even := must(pack("even", func(_, _, tensor int, slot []byte, columns int, out []float32) error {
		of := tensors[tensor]
		if columns != of.Shape[1] || uint64(len(slot)) < of.Offset+of.Bytes || len(out) != columns*columns {
			return errBroken
		}
		for i := 0; i < columns; i++ {
			out[i*(columns+1)] = 3
		}
		return nil
	}))(t)
	along := must(pack("along", func(_, _, _ int, _ []byte, _ int, out []float32) error {
		for i := range out {
			out[i] = 1
		}
		return nil
	}))(t)
	if string(even) != string(plain) || string(along) == string(plain) {
		t.Errorf("even moments change the pack, or others do not")
	}
	for _, end := range []func() error{func() error { return errBroken }, func() error { panic(1) }} {
		_, err := pack("lost", func(_, _, _ int, _ []byte, _ int, _ []float32) error { return end() })
		fails(t, err, moepage.ErrCallback)
	}
	_, err := pack("lost", func(_, _, _ int, _ []byte, _ int, _ []float32) error { return errBroken })
	if !errors.Is(err, errBroken) {
		t.Errorf("the callback's error is not the cause: %v", err)
	}
}

// damaged is a pack of which the first expert's coded image is not what its checksum says: a pool that
// is to keep it in device memory logs that it does not.
func damaged(t *testing.T) string {
	const header, entry, expertData = 128, 32, 6 // docs/format-moepack.md
	model := must(moepage.OpenBanks(newBank(13).banks(moepage.DTypeBF16), moepage.ModelConfig{}))(t)
	defer model.Close()
	path := filepath.Join(t.TempDir(), "a.moepack")
	must(moepage.WritePack(model, path, moepage.PackConfig{Forms: []moepage.Form{moepage.FormExph}}))(t)
	pack := must(os.ReadFile(path))(t)
	sections := pack[header:][:entry*binary.LittleEndian.Uint32(pack[32:])]
	for ; binary.LittleEndian.Uint32(sections) != expertData; sections = sections[entry:] {
	}
	pack[binary.LittleEndian.Uint64(sections[8:])] ^= 1
	ok(t, os.WriteFile(path, pack, 0o666))
	return path
}

// A log that does not return is no reason to stop.
func TestLogMessagesArriveAndEndHere(t *testing.T) {
	model := must(moepage.OpenModel(damaged(t), moepage.ModelConfig{}))(t)
	defer model.Close()
	for name, end := range map[string]func(){"return": func() {}, "panic": func() { panic("log") }, "exit": runtime.Goexit} {
		var told []string
		device := must(moepage.OpenDevice("host", moepage.DeviceConfig{Threads: 1, BudgetBytes: 8 << 20,
			WorkspaceBytes: 1 << 20, Log: func(level moepage.LogLevel, text string) {
				if level == moepage.LogWarning {
					told = append(told, text)
				}
				end()
			}}))(t)
		pool := must(moepage.NewExpertPool([]*moepage.Device{device}, model,
			moepage.ExpertPoolConfig{Slots: 8, CompressedExperts: experts}))(t)
		if len(told) != 1 || !strings.Contains(told[0], "not kept compressed") || !strings.Contains(told[0], "expert 0") {
			t.Errorf("%s: %q", name, told)
		}
		ok(t, pool.Pin(0, 1))
		fails(t, pool.Pin(0, 0), moepage.ErrFormat)
		ok(t, pool.Close())
		ok(t, device.Close())
	}
}
