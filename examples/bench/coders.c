/* memcpy, exph by decoder, zstd and LZ4. */
#include "bench/coders.h"

#include <string.h>
#include <zstd.h>
#if __has_include(<lz4.h>)
#include <lz4.h>
#define HAVE_LZ4 1
#endif

#include "moepage.h"

uint64_t coder_room(uint64_t elements)
{
    uint64_t most = moepage_exph_bound(MOEPAGE_DTYPE_BF16, elements);
    uint64_t zstd = 2 * ZSTD_compressBound(elements) + 64;
    uint64_t lz4 = 2 * (elements + elements / 255 + 16) + 64;
    most = most > zstd ? most : zstd;
    return most > lz4 ? most : lz4;
}

/* ---- memcpy ------------------------------------------------------------------------------ */

static uint64_t copy_in(const coder *self, const bench_tensor *in, void *scratch, void *out)
{
    (void)self, (void)scratch;
    memcpy(out, in->data, in->elements * 2);
    return in->elements * 2;
}

static bool copy_out(const coder *self, const bench_tensor *of, const void *in, uint64_t bytes,
                     void *scratch, void *out)
{
    (void)self, (void)of, (void)scratch;
    memcpy(out, in, bytes);
    return true;
}

/* ---- exph -------------------------------------------------------------------------------- */

static uint64_t exph_encode(const coder *self, const bench_tensor *in, void *scratch, void *out)
{
    (void)self, (void)scratch;
    uint64_t bytes = 0;
    moepage_status status =
        moepage_exph_encode(in->dtype, in->data, in->elements, out,
                            moepage_exph_bound(in->dtype, in->elements), &bytes);
    return status ? 0 : bytes;
}

static bool exph_decode(const coder *self, const bench_tensor *of, const void *in, uint64_t bytes,
                        void *scratch, void *out)
{
    (void)scratch;
    return moepage_exph_decode(self->decoder, of->dtype, in, bytes, out, of->elements) ==
           MOEPAGE_OK;
}

/* ---- General coders, on bytes as they are or on two planes ------------------------------- */

/* Compresses one stream; returns 0 on failure. */
static uint64_t pack_bytes(int level, const void *in, uint64_t bytes, void *out, uint64_t room)
{
#ifdef HAVE_LZ4
    if (!level) {
        int n = LZ4_compress_default(in, out, (int)bytes, (int)room);
        return n > 0 ? (uint64_t)n : 0;
    }
#endif
    size_t n = ZSTD_compress(out, room, in, bytes, level);
    return ZSTD_isError(n) ? 0 : n;
}

static bool unpack_bytes(int level, const void *in, uint64_t n, void *out, uint64_t bytes)
{
#ifdef HAVE_LZ4
    if (!level)
        return LZ4_decompress_safe(in, out, (int)n, (int)bytes) == (int)bytes;
#endif
    (void)level; /* of zstd: a frame says what it needs */
    return ZSTD_decompress(out, bytes, in, n) == bytes;
}

/* Spreads four bytes over the low halves of four 16-bit lanes, and back. */
static uint64_t spread(uint32_t bytes)
{
    uint64_t x = bytes;
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    return (x | x << 8) & 0x00ff00ff00ff00ffu;
}

static uint32_t gather(uint64_t lanes)
{
    uint64_t x = lanes & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(x | x >> 16);
}

static void split_planes(const unsigned char *in, uint64_t n, unsigned char *low,
                         unsigned char *high)
{
    uint64_t i = 0, lanes;
    for (; i + 4 <= n; i += 4) {
        memcpy(&lanes, in + 2 * i, sizeof lanes);
        uint32_t l = gather(lanes), h = gather(lanes >> 8);
        memcpy(low + i, &l, sizeof l);
        memcpy(high + i, &h, sizeof h);
    }
    for (; i < n; i++) {
        low[i] = in[2 * i];
        high[i] = in[2 * i + 1];
    }
}

static void join_planes(const unsigned char *low, const unsigned char *high, uint64_t n,
                        unsigned char *out)
{
    uint64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint32_t l, h;
        memcpy(&l, low + i, sizeof l);
        memcpy(&h, high + i, sizeof h);
        uint64_t lanes = spread(l) | spread(h) << 8;
        memcpy(out + 2 * i, &lanes, sizeof lanes);
    }
    for (; i < n; i++) {
        out[2 * i] = low[i];
        out[2 * i + 1] = high[i];
    }
}

/* Encodes one stream, or with planes the first stream's length, then both streams. */
static uint64_t general_encode(const coder *self, const bench_tensor *in, void *scratch, void *out)
{
    uint64_t n = in->elements, room = coder_room(n);
    if (!self->planes)
        return pack_bytes(self->level, in->data, n * 2, out, room);
    unsigned char *low = scratch, *high = low + n, *to = out;
    uint64_t first, second;
    split_planes(in->data, n, low, high);
    first = pack_bytes(self->level, low, n, to + sizeof first, room - sizeof first);
    memcpy(to, &first, sizeof first);
    second =
        pack_bytes(self->level, high, n, to + sizeof first + first, room - sizeof first - first);
    return first && second ? sizeof first + first + second : 0;
}

static bool general_decode(const coder *self, const bench_tensor *of, const void *in,
                           uint64_t bytes, void *scratch, void *out)
{
    uint64_t n = of->elements, first;
    if (!self->planes)
        return unpack_bytes(self->level, in, bytes, out, n * 2);
    const unsigned char *from = in;
    unsigned char *low = scratch, *high = low + n;
    memcpy(&first, from, sizeof first);
    from += sizeof first;
    if (!unpack_bytes(self->level, from, first, low, n) ||
        !unpack_bytes(self->level, from + first, bytes - sizeof first - first, high, n))
        return false;
    join_planes(low, high, n, out);
    return true;
}

/* ---- The list ---------------------------------------------------------------------------- */

const coder coders[] = {
    {"memcpy", copy_in, copy_out, .level = -1},
    {"exph, portable", exph_encode, exph_decode, .decoder = "portable"},
    {"exph, avx2", NULL, exph_decode, .decoder = "avx2"},
    {"exph, avx512", NULL, exph_decode, .decoder = "avx512"},
    {"zstd -1", general_encode, general_decode, .level = 1},
    {"zstd -1, byte planes", general_encode, general_decode, .level = 1, .planes = true},
    {"zstd -3", general_encode, general_decode, .level = 3},
    {"zstd -3, byte planes", general_encode, general_decode, .level = 3, .planes = true},
#ifdef HAVE_LZ4
    {"lz4", general_encode, general_decode, .planes = false},
    {"lz4, byte planes", general_encode, general_decode, .planes = true},
#endif
};

const uint32_t n_coders = sizeof coders / sizeof *coders;
