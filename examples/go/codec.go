package moepage

/*
#include <stdlib.h>
#include "moepage.h"

// Bytes come as characters: of a void pointer Go would check all of the object that it points into.
static moepage_status encode(uint32_t dtype, const char *in, uint64_t n, char *out,
                             uint64_t capacity, uint64_t *size)
{
    return moepage_exph_encode(dtype, in, n, out, capacity, size);
}

static moepage_status decode(const char *decoder, uint32_t dtype, const char *in, uint64_t bytes,
                             char *out, uint64_t n)
{
    return moepage_exph_decode(decoder, dtype, in, bytes, out, n);
}

static moepage_status decode_blocks(uint32_t dtype, const char *in, uint64_t bytes, float *out,
                                    uint64_t n)
{
    return moepage_blocks_decode(dtype, in, bytes, out, n);
}
*/
import "C"

// ExphBound is the most bytes that an exponent-Huffman stream of n elements can take; 0 for a dtype
// that is not BF16, F16, F8_E4M3 or F8_E5M2.
func ExphBound(dtype DType, n int) uint64 {
	if n < 0 {
		return 0
	}
	return uint64(C.moepage_exph_bound(C.uint32_t(dtype), C.uint64_t(n)))
}

// codecElements is how many elements data holds, where that is a whole number of them.
func codecElements(op string, dtype DType, data []byte) (int, error) {
	if ExphBound(dtype, 1) == 0 {
		return 0, refuse(op, ErrArgument, "%v: bf16, f16, f8_e4m3 and f8_e5m2 are coded", dtype)
	}
	if len(data)%dtype.Size() != 0 {
		return 0, refuse(op, ErrArgument, "%d bytes are no whole elements of %v", len(data), dtype)
	}
	return len(data) / dtype.Size(), nil
}

// ExphEncode encodes numbers of dtype.
func ExphEncode(dtype DType, in []byte) ([]byte, error) {
	const op = "encode exph"
	n, err := codecElements(op, dtype, in)
	if err != nil {
		return nil, err
	}
	out := make([]byte, ExphBound(dtype, n))
	var size C.uint64_t
	err = call(op, func() C.moepage_status {
		return C.encode(C.uint32_t(dtype), characters(in), C.uint64_t(n), characters(out),
			C.uint64_t(len(out)), &size)
	})
	if err != nil {
		return nil, err
	}
	return out[:size], nil
}

// ExphDecode decodes a stream to out, which is as long as what was encoded. decoder is "" for the
// fastest, or "portable", "avx2", "avx512".
func ExphDecode(decoder string, dtype DType, in, out []byte) error {
	const op = "decode exph"
	n, err := codecElements(op, dtype, out)
	if err != nil {
		return err
	}
	if err := whole(op, decoder); err != nil {
		return err
	}
	name := cstring(decoder)
	defer free(name)
	return call(op, func() C.moepage_status {
		return C.decode(name, C.uint32_t(dtype), characters(in), C.uint64_t(len(in)), characters(out),
			C.uint64_t(n))
	})
}

// BlocksDecode is the weights of whole blocks of a block format: docs/format-blocks.md has their values.
func BlocksDecode(dtype DType, in []byte) ([]float32, error) {
	const op = "decode blocks"
	weights, bytes := dtype.Block()
	if weights == 0 {
		return nil, refuse(op, ErrArgument, "%v is no block format", dtype)
	}
	if len(in)%bytes != 0 {
		return nil, refuse(op, ErrArgument, "%d bytes are no whole blocks of %v, of %d each", len(in), dtype, bytes)
	}
	out := make([]float32, len(in)/bytes*weights)
	err := call(op, func() C.moepage_status {
		return C.decode_blocks(C.uint32_t(dtype), characters(in), C.uint64_t(len(in)), (*C.float)(first(out)),
			C.uint64_t(len(out)))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
