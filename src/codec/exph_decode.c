/* Decoding: choosing an instruction set, finding chunks in untrusted bytes, patching escapes. */
#include "codec/exph_decoder.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---- Choosing ---- */

static bool runs_anywhere(void)
{
    return true;
}

#if defined(__x86_64__)

enum { LZCNT = 1 << 5 }; /* of CPUID 0x80000001, ecx: not every compiler's builtin knows it */

/* The builtins also check that the operating system saves the registers. */
static bool runs_avx2(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
           __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & LZCNT);
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi");
}

#endif

/* Fastest first; the last entry runs on any CPU. */
static const struct {
    const mp_exph_decoder *decoder;
    bool (*runs_here)(void);
} choices[] = {
#if defined(__x86_64__)
    {&mp_exph_avx512, runs_avx512},
    {&mp_exph_avx2, runs_avx2},
#endif
    {&mp_exph_portable, runs_anywhere},
};

const mp_exph_decoder *mp_exph_decoder_best(void)
{
    size_t i = 0;
    while (!choices[i].runs_here())
        i++;
    return choices[i].decoder;
}

const mp_exph_decoder *mp_exph_decoder_find(const char *name)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (strcmp(choices[i].decoder->name, name) == 0)
            return choices[i].runs_here() ? choices[i].decoder : NULL;
    }
    return NULL;
}

const char *mp_exph_decoder_name(const mp_exph_decoder *decoder)
{
    return decoder->name;
}

/* ---- One chunk ---- */

/* A stream and its tensor's code. */
typedef struct source {
    const uint8_t *stream;
    uint64_t bytes;
    uint64_t chunks; /* of the tensor */
    mp_exph_type type;
    mp_exph_book book;
} source;

typedef struct range {
    const uint8_t *base;
    uint64_t bytes; /* to the next chunk, or to the end */
    uint32_t mode;
    uint32_t value;
    uint32_t n;
} range;

static bool find_range(const source *from, uint64_t index, range *out)
{
    const uint8_t *entry = from->stream + MP_EXPH_AT_TABLE + index * MP_EXPH_ENTRY_BYTES;
    const uint64_t begin = mp_exph_get40(entry + MP_EXPH_ENTRY_OFFSET) * MP_EXPH_ALIGN;
    uint64_t end = from->bytes;
    if (index + 1 < from->chunks)
        end = mp_exph_get40(entry + MP_EXPH_ENTRY_BYTES + MP_EXPH_ENTRY_OFFSET) * MP_EXPH_ALIGN;
    if (begin > end || end > from->bytes)
        return false;
    out->base = from->stream + begin;
    out->bytes = end - begin;
    out->mode = entry[MP_EXPH_ENTRY_MODE];
    out->value = mp_exph_get16(entry + MP_EXPH_ENTRY_VALUE);
    return true;
}

static void find_lanes(const range *in, mp_exph_coded *coded)
{
    const uint32_t tiles = mp_exph_tiles(in->n);
    const uint32_t bits = mp_exph_index_bytes(in->n, in->value) * 8;
    const uint8_t *lengths = in->base + tiles * MP_EXPH_HEAD_BYTES;
    for (uint32_t t = 0; t < tiles; t++, lengths += MP_EXPH_LANES) {
        const uint8_t *head = in->base + t * MP_EXPH_HEAD_BYTES;
        const uint32_t shape = mp_exph_get16(head + 2), shift = shape >> MP_EXPH_SHORTEST_BITS;
        const uint32_t shortest = shape & ((1u << MP_EXPH_SHORTEST_BITS) - 1);
        uint32_t at = bits + mp_exph_get16(head) * 8;
        for (uint32_t lane = 0; lane < MP_EXPH_LANES; lane++) {
            coded->start[t * MP_EXPH_LANES + lane] = at;
            at += shortest + ((uint32_t)lengths[lane] << shift);
        }
    }
}

/* Returns true if every lane's longest possible read stays inside the stream. */
static bool lanes_within(const mp_exph_coded *chunk)
{
    uint32_t last = 0;
    for (uint32_t lane = 0; lane < mp_exph_tiles(chunk->n) * MP_EXPH_LANES; lane++)
        last = chunk->start[lane] > last ? chunk->start[lane] : last;
    return last / 8 + (uint64_t)MP_EXPH_LANE_REACH <= chunk->readable;
}

static void put_exponent(mp_exph_type type, uint32_t exponent, uint8_t *at)
{
    const uint32_t field = (1u << type.exponent_bits) - 1;
    uint32_t element = 0;
    memcpy(&element, at, type.bytes);
    element &= ~(field << type.mantissa_bits);
    element |= (exponent & field) << type.mantissa_bits;
    memcpy(at, &element, type.bytes);
}

static void patch_escapes(const range *in, mp_exph_type type, uint8_t *out)
{
    const uint8_t *positions = in->base + mp_exph_index_bytes(in->n, 0);
    const uint8_t *exponents = positions + in->value * 2;
    for (uint32_t i = 0; i < in->value; i++) {
        const uint32_t position = mp_exph_get16(positions + i * 2);
        if (position < in->n)
            put_exponent(type, exponents[i], out + position * type.bytes);
    }
}

static bool decode_coded(const mp_exph_decoder *decoder, const source *from, const void *scratch,
                         const range *in, uint8_t *out)
{
    mp_exph_coded coded;
    const uint64_t rest_bytes = mp_exph_rest_bytes(&from->type, in->n);
    if (!from->book.valid || in->bytes < mp_exph_index_bytes(in->n, in->value) + rest_bytes)
        return false;
    coded.base = in->base;
    coded.readable = (uint64_t)(from->stream + from->bytes - in->base);
    coded.rests = in->base + in->bytes - rest_bytes;
    coded.n = in->n;
    coded.type = from->type;
    find_lanes(in, &coded);
    if (decoder && lanes_within(&coded))
        decoder->decode(&from->book, scratch, &coded, out);
    else
        mp_exph_decode_plain(&from->book, &coded, out);
    patch_escapes(in, from->type, out);
    return true;
}

/* Decodes a chunk without bits: all its elements have one exponent. */
static bool decode_constant(const source *from, const range *in, uint8_t *out)
{
    if (in->bytes < mp_exph_rest_bytes(&from->type, in->n))
        return false;
    mp_exph_book book = {0};
    mp_exph_coded coded = {.base = in->base, .rests = in->base, .n = in->n, .type = from->type};
    book.exponent[0] = (uint8_t)in->value;
    mp_exph_decode_plain(&book, &coded, out);
    return true;
}

static bool decode_raw(const source *from, const range *in, uint8_t *out)
{
    const uint64_t bytes = (uint64_t)in->n * from->type.bytes;
    if (in->bytes < bytes)
        return false;
    memcpy(out, in->base, bytes);
    return true;
}

static bool decode_chunk(const mp_exph_decoder *decoder, const source *from, const void *scratch,
                         const range *in, uint8_t *out)
{
    switch (in->mode) {
    case MP_EXPH_CODED: return decode_coded(decoder, from, scratch, in, out);
    case MP_EXPH_CONSTANT: return decode_constant(from, in, out);
    case MP_EXPH_RAW: return decode_raw(from, in, out);
    default: return false;
    }
}

/* ---- Many ---- */

void mp_exph_decode(const mp_exph_decoder *decoder, const void *stream, uint64_t bytes,
                    uint32_t dtype, uint64_t n, uint64_t first, uint64_t count, void *out)
{
    _Alignas(64) uint8_t scratch[MP_EXPH_SCRATCH_BYTES];
    source from = {.stream = stream, .bytes = bytes, .chunks = mp_exph_chunks(n)};
    from.type = mp_exph_type_of(dtype);
    const bool whole = n <= MP_EXPH_MAX_ELEMENTS && bytes >= mp_exph_front_bytes(n);
    const uint64_t left = first < from.chunks ? from.chunks - first : 0;
    const uint64_t end = first + (count < left ? count : left);
    if (whole)
        mp_exph_book_read(stream, &from.book);
    if (dtype != MOEPAGE_DTYPE_BF16)
        decoder = NULL;
    if (decoder && decoder->prepare && from.book.valid)
        decoder->prepare(&from.book, (end - first) * MP_EXPH_CHUNK, scratch);
    for (uint64_t i = first; i < end; i++) {
        range in = {0};
        uint8_t *place = (uint8_t *)out + i * MP_EXPH_CHUNK * from.type.bytes;
        const bool found = whole && find_range(&from, i, &in);
        in.n = mp_exph_chunk_elements(n, i);
        if (!found || !decode_chunk(decoder, &from, scratch, &in, place))
            memset(place, 0xff, (size_t)in.n * from.type.bytes);
    }
}
