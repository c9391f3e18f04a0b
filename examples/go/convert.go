package moepage

// #include <stdlib.h>
// #include "moepage.h"
import "C"

import (
	"math"
	"strings"
	"unsafe"
)

// Stream is a cudaStream_t; nil is the default stream. Host devices ignore it.
type Stream unsafe.Pointer

// u32 is an index or a count for the library. What does not fit becomes the largest number, which
// every function refuses as out of range: to cut it off could name something else.
func u32(v int) C.uint32_t {
	if uint64(v) > math.MaxUint32 {
		return math.MaxUint32
	}
	return C.uint32_t(v)
}

// first is the address of a slice's first element, nil for an empty one.
func first[T any](s []T) *T {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}

func characters(s []byte) *C.char { return (*C.char)(unsafe.Pointer(first(s))) }

// copied is a Go slice of n elements in the library's memory; nil stays nil.
func copied[T, S any](from *S, n int) []T {
	if from == nil {
		return nil
	}
	return append(make([]T, 0, n), unsafe.Slice((*T)(unsafe.Pointer(from)), n)...)
}

// cstring is nil for an empty string, which the library takes for "the default".
func cstring(s string) *C.char {
	if s == "" {
		return nil
	}
	return C.CString(s)
}

// whole refuses texts that C would take to end early.
func whole(op string, texts ...string) error {
	for _, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return refuse(op, ErrArgument, "%q contains a NUL", text)
		}
	}
	return nil
}

func free(p *C.char) { C.free(unsafe.Pointer(p)) }

func flag(on bool) C.uint32_t {
	if on {
		return 1
	}
	return 0
}
