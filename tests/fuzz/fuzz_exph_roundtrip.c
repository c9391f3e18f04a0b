/* Any bytes as weights: the encoded stream is within its bound, passes the check, and decodes to the
 * very same bytes with every decoder.
 *
 *   u8 dtype (low 2 bits), u24 elements, bytes
 *
 * The bytes are repeated to as many elements as are asked for; with 0, each is used once. */
#include <string.h>

#include "codec/exph.h"
#include "fuzz.h"

enum { MOST_ELEMENTS = 3 * MP_EXPH_CHUNK };

static const struct {
    uint32_t dtype, bytes;
} types[] = {{MOEPAGE_DTYPE_BF16, 2},
             {MOEPAGE_DTYPE_F16, 2},
             {MOEPAGE_DTYPE_F8_E4M3, 1},
             {MOEPAGE_DTYPE_F8_E5M2, 1}};

static void check_decodes(const fuzz_fence *stream, uint32_t dtype, uint64_t n,
                          const fuzz_fence *weights)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const mp_exph_decoder *decoder = mp_exph_decoder_find(names[i]);
        if (!decoder)
            continue;
        fuzz_fence out = fuzz_fence_make(weights->n_bytes);
        mp_exph_decode(decoder, stream->bytes, stream->n_bytes, dtype, n, 0, mp_exph_chunks(n),
                       out.bytes);
        FUZZ_CHECK(memcmp(out.bytes, weights->bytes, out.n_bytes) == 0, "decoder %s", names[i]);
        fuzz_fence_free(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    unsigned type = (unsigned)fuzz_take(&input, 1) & 3;
    uint64_t n = fuzz_take(&input, 3) % (MOST_ELEMENTS + 1);
    uint32_t dtype = types[type].dtype;
    if (!n)
        n = input.left / types[type].bytes;
    if (!input.left)
        return 0;
    fuzz_fence weights = fuzz_fence_make(n * types[type].bytes);
    for (size_t i = 0; i < weights.n_bytes; i++)
        weights.bytes[i] = input.at[i % input.left];
    uint64_t bound = mp_exph_bound(dtype, n);
    FUZZ_CHECK(bound % MP_EXPH_ALIGN == 0);
    fuzz_fence room = fuzz_fence_make(bound);
    uint64_t bytes = mp_exph_encode(dtype, weights.bytes, n, room.bytes);
    FUZZ_CHECK(bytes && bytes <= bound && bytes % MP_EXPH_ALIGN == 0);
    fuzz_fence stream = fuzz_fence_copy(room.bytes, bytes);
    fuzz_fence_free(&room);
    FUZZ_CHECK(!mp_exph_check(stream.bytes, bytes, dtype, n));
    check_decodes(&stream, dtype, n, &weights);
    fuzz_accepted++;
    fuzz_fence_free(&stream);
    fuzz_fence_free(&weights);
    return 0;
}
