package abi

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const listings = "../../../../lib/abi/"

// lines calls `each` with the words of every line of a file.
func lines(t *testing.T, path string, each func(words []string)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n := 0
	for scanner := bufio.NewScanner(file); scanner.Scan(); n++ {
		each(strings.Fields(scanner.Text()))
	}
	if n < 50 {
		t.Fatalf("%s has %d lines: is it the listing?", path, n)
	}
}

// cgo puts an underscore before a field whose name is a word of Go.
func fieldOf(s reflect.Type, name string) (reflect.StructField, bool) {
	if f, ok := s.FieldByName(name); ok {
		return f, true
	}
	return s.FieldByName("_" + name)
}

func TestStructsAreLaidOutAsTheListingSays(t *testing.T) {
	structs, fields := map[string]int{}, map[string]int{}
	lines(t, listings+"structs.txt", func(words []string) {
		switch words[0] {
		case "struct", "type":
			c, ok := Types[words[1]]
			if !ok {
				t.Errorf("%s is not in the table: go generate", words[1])
			} else if got := fmt.Sprint(c.Size()); got != words[2] {
				t.Errorf("%s has %s bytes, the listing says %s", words[1], got, words[2])
			}
			structs[words[1]]++
		case "field":
			of, name, _ := strings.Cut(words[1], ".")
			fields[of]++
			f, ok := fieldOf(Types[of], name)
			if !ok {
				t.Errorf("%s has no field %s: go generate", of, name)
			} else if got := fmt.Sprint(f.Offset, " ", f.Type.Size()); got != words[2]+" "+words[3] {
				t.Errorf("%s is at offset and has bytes %s, the listing says %s %s", words[1], got, words[2], words[3])
			}
		}
	})
	for name, c := range Types {
		if structs[name] != 1 || c.Kind() == reflect.Struct && c.NumField() < fields[name] {
			t.Errorf("%s: the listing has it %d times, with %d fields of %v", name, structs[name], fields[name], c)
		}
	}
}

func TestConstantsAreThoseOfTheListing(t *testing.T) {
	seen := 0
	lines(t, listings+"structs.txt", func(words []string) {
		if words[0] != "constant" {
			return
		}
		seen++
		if value, ok := Constants[words[1]]; !ok || fmt.Sprint(value) != words[2] {
			t.Errorf("%s is %d, the listing says %s", words[1], value, words[2])
		}
	})
	if seen != len(Constants) {
		t.Errorf("the table has %d constants, the listing %d", len(Constants), seen)
	}
}

// source is everything that package moepage is written in.
func source(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../../*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			all.Write(text)
		}
	}
	return all.String()
}

// What a session's own methods do, for an engine has a session; and shares of a product, which are for hosts with
// threads and operations of their own, in C.
var notInGo = map[string]bool{"moepage_engine_begin": true, "moepage_engine_experts": true,
	"moepage_engine_end": true, "moepage_session_convert": true, "moepage_session_multiply": true}

// moepage_cuda.h is for programs that launch kernels of their own, which are not written in Go.
func TestEveryFunctionIsReachable(t *testing.T) {
	text := source(t)
	lines(t, listings+"symbols.txt", func(words []string) {
		name := words[0]
		if strings.HasPrefix(name, "moepage_cuda_") {
			return
		}
		if !notInGo[name] && !regexp.MustCompile(`\b`+name+`\(`).MatchString(text) {
			t.Errorf("nothing in the package calls %s", name)
		}
	})
}

func TestEveryConstantIsReachable(t *testing.T) {
	text := source(t)
	for name := range Constants {
		if strings.HasPrefix(name, "MOEPAGE_CUDA_") || strings.HasPrefix(name, "MOEPAGE_ROWS_") ||
			name == "MOEPAGE_OK" {
			continue
		}
		if !regexp.MustCompile(`\bC\.` + name + `\b`).MatchString(text) {
			t.Errorf("nothing in the package names %s", name)
		}
	}
}

// A field of a config that the package never sets could not be reached by a program.
func TestEveryConfigFieldIsReachable(t *testing.T) {
	text := source(t)
	for name, c := range Types {
		if !strings.HasSuffix(name, "_config") || strings.HasPrefix(name, "moepage_cuda_") {
			continue
		}
		for i := 0; i < c.NumField(); i++ {
			field := c.Field(i).Name
			// memory of another runtime's is given by functions in C
			left := map[string]bool{"reserved": true, "tp_rank": true, "tp_size": true, "external": true, "_": true}
			if !left[field] && !regexp.MustCompile(`\b`+field+`(:|,| \|?=|\b.*= )`).MatchString(text) {
				t.Errorf("nothing in the package sets %s.%s", name, field)
			}
		}
	}
}
