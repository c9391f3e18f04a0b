package moepage_test

import (
	"os"
	"path/filepath"
	"testing"

	"moepage"
)

// inFiles is banks of Data whose tensors lie in two files, from the last to the first, at any offset.
func inFiles(t *testing.T, banks moepage.Banks) moepage.Banks {
	t.Helper()
	var files [2][]byte
	banks.Places = make([]moepage.FilePlace, len(banks.Data))
	for i := len(banks.Data) - 1; i >= 0; i-- {
		f := i / 3 % 2
		files[f] = append(files[f], make([]byte, i%5)...)
		banks.Places[i] = moepage.FilePlace{File: f, Offset: uint64(len(files[f]))}
		files[f] = append(files[f], banks.Data[i]...)
	}
	dir := t.TempDir()
	for f, name := range []string{"a.bin", "b.bin"} {
		banks.Files = append(banks.Files, filepath.Join(dir, name))
		ok(t, os.WriteFile(banks.Files[f], files[f], 0o600))
	}
	banks.Data = nil
	return banks
}

// A plan needs no weights; what is computed does.
func TestExpertsLieInFiles(t *testing.T) {
	given, _ := mixed()
	r := newRig(t, inFiles(t, given), 6, moepage.SessionConfig{})
	ids := []int32{3, 6, 0, 3}
	ok(t, r.session.Begin(moepage.Step{Tokens: 2}))
	for layer := 0; layer < layers; layer++ {
		fails(t, r.session.Route(layer, moepage.Routing{IDs: ids}), moepage.ErrArgument)
		plan := must(r.session.RoutePlan(layer, moepage.Routing{IDs: ids}))(t)
		for i, weight := range plan.Weighting {
			if len(plan.Weighting) != len(ids) || weight != 1 {
				t.Errorf("weight %d is %v", i, weight)
			}
		}
		for seen := 0; ; ok(t, plan.Next()) {
			for i, e := range plan.Experts {
				at := (layer*experts + e.Expert) * 2
				for tensor := 0; tensor < 2; tensor++ {
					if got := must(plan.Weights(i, tensor))(t); string(got) != string(given.Data[at+tensor]) {
						t.Errorf("layer %d, expert %d, tensor %d: %d other bytes", layer, e.Expert, tensor, len(got))
					}
				}
			}
			if seen += len(plan.Experts); plan.Group+1 == plan.Groups {
				if seen != 3 {
					t.Errorf("layer %d: %d experts, and not 3", layer, seen)
				}
				break
			}
		}
		ok(t, r.session.Retire(layer))
	}
	must(r.session.End())(t)
}

func TestWrongPlacesAreRefused(t *testing.T) {
	for name, of := range map[string]struct {
		spoil func(*moepage.Banks)
		kind  error
	}{
		"data too":        {func(b *moepage.Banks) { given, _ := mixed(); b.Data = given.Data }, moepage.ErrArgument},
		"too few":         {func(b *moepage.Banks) { b.Places = b.Places[1:] }, moepage.ErrArgument},
		"none":            {func(b *moepage.Banks) { b.Places = nil }, moepage.ErrArgument},
		"no files":        {func(b *moepage.Banks) { b.Files = nil }, moepage.ErrArgument},
		"another file":    {func(b *moepage.Banks) { b.Places[5].File = 2 }, moepage.ErrArgument},
		"a file below 0":  {func(b *moepage.Banks) { b.Places[5].File = -1 }, moepage.ErrArgument},
		"a name with NUL": {func(b *moepage.Banks) { b.Files[1] += "\x00" }, moepage.ErrArgument},
		"a missing file":  {func(b *moepage.Banks) { b.Files[1] += "x" }, moepage.ErrNotFound},
		"past the end":    {func(b *moepage.Banks) { b.Places[0].Offset++ }, moepage.ErrFormat},
		"far away":        {func(b *moepage.Banks) { b.Places[7].Offset = 1<<64 - 1 }, moepage.ErrFormat},
	} {
		given, _ := mixed()
		banks := inFiles(t, given)
		of.spoil(&banks)
		if _, err := moepage.OpenBanks(banks, moepage.ModelConfig{}); err == nil {
			t.Errorf("%s: it was opened", name)
		} else {
			fails(t, err, of.kind)
		}
	}
}

// A load from a file that has changed since it was opened fails, and serves nothing.
func TestAChangedFileIsNotServed(t *testing.T) {
	given, _ := mixed()
	banks := inFiles(t, given)
	r := newRig(t, banks, 6, moepage.SessionConfig{})
	ok(t, os.Truncate(banks.Files[0], 9))
	ok(t, os.Truncate(banks.Files[1], 9))
	ok(t, r.session.Begin(moepage.Step{Tokens: 1}))
	_, err := r.session.RoutePlan(0, moepage.Routing{IDs: []int32{0, 1}})
	fails(t, err, moepage.ErrIO)
	ok(t, r.session.Cancel())
}
