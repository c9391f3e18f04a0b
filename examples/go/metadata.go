package moepage

// #include <stdlib.h>
// #include "moepage.h"
import "C"

import "unsafe"

// Metadata is what a GGUF file's metadata has under a key: an int64, a float64, a bool or a string, whose
// bytes need not be UTF-8; of an array a slice of one of them, or an empty []any where it has no
// elements. ErrNotFound where there is no such key: models that are no GGUF files have none.
func (m *Model) Metadata(key string) (any, error) {
	const op = "metadata"
	if err := whole(op, key); err != nil {
		return nil, err
	}
	text := C.CString(key)
	defer free(text)
	if err := m.enter(); err != nil { // texts are the model's: it stays open until they are copied
		return nil, err
	}
	defer m.leave()
	get := func(out []C.moepage_metadata, count *C.uint64_t) error {
		return call(op, func() C.moepage_status {
			return C.moepage_model_get_metadata(m.c, text, 0, first(out), C.uint64_t(len(out)), count)
		})
	}
	var count C.uint64_t
	if err := get(nil, &count); err != nil {
		return nil, err
	}
	values := make([]C.moepage_metadata, count)
	if err := get(values, &count); err != nil {
		return nil, err
	}
	return metadata(op, values)
}

// metadata is the library's values as Go's. All elements of an array are of one type.
func metadata(op string, values []C.moepage_metadata) (any, error) {
	if len(values) == 0 {
		return []any{}, nil
	}
	switch values[0]._type {
	case C.MOEPAGE_METADATA_INTEGER:
		return each(values, func(v *C.moepage_metadata) int64 { return int64(v.integer) }), nil
	case C.MOEPAGE_METADATA_REAL:
		return each(values, func(v *C.moepage_metadata) float64 { return float64(v.real) }), nil
	case C.MOEPAGE_METADATA_TRUTH:
		return each(values, func(v *C.moepage_metadata) bool { return v.integer != 0 }), nil
	case C.MOEPAGE_METADATA_TEXT:
		return each(values, func(v *C.moepage_metadata) string {
			return string(unsafe.Slice((*byte)(unsafe.Pointer(v.text)), int(v.text_bytes)))
		}), nil
	}
	return nil, refuse(op, ErrUnsupported, "a value of type %d, which this package does not know", values[0]._type)
}

// each is the one value, or a slice of an array's.
func each[T any](values []C.moepage_metadata, convert func(*C.moepage_metadata) T) any {
	if values[0].is_array == 0 {
		return convert(&values[0])
	}
	out := make([]T, len(values))
	for i := range values {
		out[i] = convert(&values[i])
	}
	return out
}
