package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T) *listing {
	t.Helper()
	abi, err := readListing(filepath.Join(root, "../../lib/abi/structs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return abi
}

func TestGeneratedFilesAreWhatTheListingGives(t *testing.T) {
	abi := read(t)
	for name, generate := range outputs {
		want, err := generate(abi)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is not what lib/abi/structs.txt gives: go generate", name)
		}
	}
}

// A struct that is new in the ABI and that the library fills in must not be forgotten.
func TestEveryFilledStructHasAGoType(t *testing.T) {
	known := map[string]bool{"moepage_rightsize": true, "moepage_trace_info": true, "moepage_trace_step": true}
	for _, f := range filled {
		known[f.c] = true
	}
	for _, s := range read(t).structs {
		answers := strings.HasSuffix(s.name, "_info") || strings.HasSuffix(s.name, "_stats") ||
			strings.HasSuffix(s.name, "_report")
		if answers && !known[s.name] && !strings.HasPrefix(s.name, "moepage_cuda_") {
			t.Errorf("%s has no Go type: add it to filled", s.name)
		}
	}
}

func TestAFieldWithoutARuleIsAnError(t *testing.T) {
	if _, _, _, err := member("moepage_x", field{"odd", "long double"}); err == nil {
		t.Error("a field of type long double was translated")
	}
}
