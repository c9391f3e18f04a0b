/* Any bytes as an exponent-Huffman stream. What passes the check decodes, to the same bits with
 * every decoder, whole or chunk by chunk. What does not is decoded all the same: nothing outside the
 * stream may be read, nothing outside the chunks' places written, and the decoders still agree.
 *
 *   u8 dtype (low 2 bits) and flags, u24 elements, stream
 *
 * With flag 0x80 the stream's checksums are made right first (docs/format-exph.md), so that the
 * check looks at what is behind them. */
#include <stdlib.h>
#include <string.h>

#include "codec/exph.h"
#include "fuzz.h"
#include "seal.h"

enum { MOST_ELEMENTS = 5 * MP_EXPH_CHUNK, UNTOUCHED = 0xcd };

/* Sorted as the input names them. */
static const struct {
    uint32_t dtype, bytes;
} types[] = {{MOEPAGE_DTYPE_BF16, 2},
             {MOEPAGE_DTYPE_F16, 2},
             {MOEPAGE_DTYPE_F8_E4M3, 1},
             {MOEPAGE_DTYPE_F8_E5M2, 1}};

typedef struct stream {
    fuzz_fence of;
    uint32_t dtype, element;
    uint64_t n;
} stream;

/* ---- Decoding ---------------------------------------------------------------------------- */

/* NULL: a symbol at a time, which shares nothing with the decoders that look up several. */
static fuzz_fence decode(const stream *in, const mp_exph_decoder *decoder)
{
    fuzz_fence out = fuzz_fence_make(in->n * in->element);
    mp_exph_decode(decoder, in->of.bytes, in->of.n_bytes, in->dtype, in->n, 0,
                   mp_exph_chunks(in->n), out.bytes);
    return out;
}

static void check_decoders(const stream *in, const fuzz_fence *expected)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const mp_exph_decoder *decoder = mp_exph_decoder_find(names[i]);
        if (!decoder)
            continue;
        fuzz_fence out = decode(in, decoder);
        FUZZ_CHECK(memcmp(out.bytes, expected->bytes, out.n_bytes) == 0, "decoder %s", names[i]);
        fuzz_fence_free(&out);
    }
}

/* Each chunk alone: its place is filled as before, all other places stay as they were. */
static void check_chunks(const stream *in, const fuzz_fence *expected)
{
    uint64_t chunk_bytes = (uint64_t)MP_EXPH_CHUNK * in->element;
    for (uint64_t i = 0; i < mp_exph_chunks(in->n); i++) {
        fuzz_fence out = fuzz_fence_make(in->n * in->element);
        memset(out.bytes, UNTOUCHED, out.n_bytes);
        mp_exph_decode(mp_exph_decoder_best(), in->of.bytes, in->of.n_bytes, in->dtype, in->n, i, 1,
                       out.bytes);
        for (uint64_t b = 0; b < out.n_bytes; b++)
            FUZZ_CHECK(out.bytes[b] ==
                           (b / chunk_bytes == i ? expected->bytes[b] : (unsigned char)UNTOUCHED),
                       "chunk %llu, byte %llu", (unsigned long long)i, (unsigned long long)b);
        fuzz_fence_free(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    unsigned flags = (unsigned)fuzz_take(&input, 1);
    stream in = {.dtype = types[flags & 3].dtype, .element = types[flags & 3].bytes};
    in.n = fuzz_take(&input, 3);
    if (in.n > MOST_ELEMENTS)
        return 0;
    /* Exactly as long as it is, for the check; a multiple of the alignment, for decoders. */
    uint8_t *bytes = malloc(input.left ? input.left : 1);
    memcpy(bytes, input.at, input.left);
    if (flags & 0x80)
        seal_exph(bytes, input.left, in.n);
    moepage_status status = mp_exph_check(bytes, input.left, in.dtype, in.n);
    if (status)
        fuzz_check_refusal(status);
    else
        fuzz_accepted++;
    FUZZ_CHECK(status || input.left % MP_EXPH_ALIGN == 0);
    in.of = fuzz_fence_copy(bytes, input.left / MP_EXPH_ALIGN * MP_EXPH_ALIGN);
    free(bytes);
    fuzz_fence expected = decode(&in, NULL);
    check_decoders(&in, &expected);
    check_chunks(&in, &expected);
    fuzz_fence_free(&expected);
    fuzz_fence_free(&in.of);
    return 0;
}
