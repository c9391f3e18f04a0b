/* Seeds of the codec targets: exph_decode, exph_roundtrip and quant.
 *
 * The lies about streams are told to a good one, whose checksums the target then makes right. */
#include <stdlib.h>
#include <string.h>

#include "codec/exph_format.h"
#include "corpus.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { SEAL = 0x80, BF16 = CORPUS_BF16, F16, E4M3, E5M2 };

static const uint32_t dtypes[] = {MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_F8_E4M3,
                                  MOEPAGE_DTYPE_F8_E5M2};

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static uint32_t weight(unsigned type, uint32_t rare, uint32_t *state)
{
    static const struct {
        int mantissa, most, all;
    } fields[] = {{7, 124, 256}, {10, 14, 32}, {3, 7, 16}, {2, 15, 32}};
    uint32_t exponent = (uint32_t)fields[type].most;
    while (exponent > 1 && next_random(state) % 2)
        exponent--;
    if (rare && next_random(state) % rare == 0)
        exponent = next_random(state) % (uint32_t)fields[type].all;
    uint32_t bits = type == BF16 || type == F16 ? 16 : 8;
    uint32_t mantissa = next_random(state) & ((1u << fields[type].mantissa) - 1);
    uint32_t sign = next_random(state) & 1;
    return sign << (bits - 1) | exponent << fields[type].mantissa | mantissa;
}

uint8_t *corpus_weights(unsigned type, uint64_t n, uint32_t rare)
{
    uint32_t state = 7, element = type == BF16 || type == F16 ? 2 : 1;
    uint8_t *weights = malloc(n * element + 1);
    if (!weights)
        exit(1);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t value = weight(type, rare, &state);
        memcpy(weights + i * element, &value, element);
    }
    return weights;
}

/* ---- Streams ----------------------------------------------------------------------------- */

typedef struct stream {
    unsigned type;
    uint64_t n, bytes;
    uint8_t *at;
} stream;

static stream encode(unsigned type, uint64_t n, const uint8_t *weights)
{
    stream out = {.type = type, .n = n};
    uint64_t bound = mp_exph_bound(dtypes[type], n);
    if (posix_memalign((void **)&out.at, MP_EXPH_ALIGN, bound + MP_EXPH_ALIGN))
        exit(1);
    out.bytes = mp_exph_encode(dtypes[type], weights, n, out.at);
    return out;
}

static stream encode_random(unsigned type, uint64_t n, uint32_t rare)
{
    uint8_t *weights = corpus_weights(type, n, rare);
    stream out = encode(type, n, weights);
    free(weights);
    return out;
}

static void write_stream(const stream *of, unsigned flags, const char *name)
{
    corpus_bytes file = {0};
    corpus_add_uint(&file, of->type | flags, 1);
    corpus_add_uint(&file, of->n, 3);
    corpus_add(&file, of->at, of->bytes);
    corpus_finish(&file, "exph_decode", name);
}

static void make_good_streams(void)
{
    static const struct {
        const char *name;
        unsigned type;
        uint32_t n, rare;
    } seeds[] = {
        {"good-bf16-1", BF16, 1, 0},          {"good-bf16-256", BF16, 256, 0},
        {"good-bf16-1000", BF16, 1000, 100},  {"good-f16-500", F16, 500, 50},
        {"good-e4m3-500", E4M3, 500, 50},     {"good-e5m2-500", E5M2, 500, 50},
        {"good-bf16-8200", BF16, 8200, 1000},
    };
    for (size_t i = 0; i < COUNT(seeds); i++) {
        stream of = encode_random(seeds[i].type, seeds[i].n, seeds[i].rare);
        write_stream(&of, 0, seeds[i].name);
        free(of.at);
    }
    stream none = encode(BF16, 0, NULL);
    write_stream(&none, 0, "good-bf16-0");
    free(none.at);
}

/* A constant tensor's stream is the smallest of two chunks. */
static void make_constant_streams(void)
{
    uint64_t n = MP_EXPH_CHUNK + 9;
    uint8_t *weights = calloc(n, 1);
    stream of = encode(E5M2, n, weights);
    for (uint64_t i = 0; i < of.bytes; i++) /* rests of zeros would hide wrong places */
        if (i >= mp_exph_front_bytes(n) && i % 512 < 2)
            of.at[i] = (uint8_t)(i / 512);
    write_stream(&of, SEAL, "constant-two-chunks");
    mp_exph_put40(of.at + MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_BYTES, 5);
    write_stream(&of, SEAL, "chunk-inside-another");
    free(of.at);
    free(weights);
}

/* ---- Lies -------------------------------------------------------------------------------- */

typedef struct lie {
    const char *name;
    uint32_t at;
    uint32_t bytes;
    uint64_t value;
} lie;

/* To 300 weights of one chunk, which begins at 48: a tile of two groups, the second not whole. */
enum {
    LIED_ABOUT = 300,
    CHUNK = 48,
    LENGTHS = CHUNK + MP_EXPH_HEAD_BYTES,
    ESCAPES = LENGTHS + MP_EXPH_LANES
};

static const lie lies[] = {
    {"version-0", MP_EXPH_AT_VERSION, 1, 0},
    {"version-2", MP_EXPH_AT_VERSION, 1, 2},
    {"dtype-other", MP_EXPH_AT_DTYPE, 1, MOEPAGE_DTYPE_F16},
    {"dtype-none", MP_EXPH_AT_DTYPE, 1, 200},
    {"elements-fewer", MP_EXPH_AT_ELEMENTS, 5, LIED_ABOUT - 1},
    {"elements-2-40-less-1", MP_EXPH_AT_ELEMENTS, 5, (UINT64_C(1) << 40) - 1},
    {"reserved", MP_EXPH_AT_RESERVED, 1, 1},
    {"exponent-twice", MP_EXPH_AT_EXPONENTS, 2, 0x7b7b},
    {"exponent-16th", MP_EXPH_AT_EXPONENTS + 15, 1, 9},
    {"lengths-all-0", MP_EXPH_AT_LENGTHS, 8, 0},
    {"lengths-all-1", MP_EXPH_AT_LENGTHS, 8, 0x1111111111111111},
    {"lengths-all-4", MP_EXPH_AT_LENGTHS, 8, 0x4444444444444444},
    {"lengths-all-15", MP_EXPH_AT_LENGTHS, 8, 0xffffffffffffffff},
    {"lengths-one-1", MP_EXPH_AT_LENGTHS, 8, 1},
    {"chunk-at-0", MP_EXPH_AT_TABLE, 5, 0},
    {"chunk-later", MP_EXPH_AT_TABLE, 5, 4},
    {"chunk-past-the-end", MP_EXPH_AT_TABLE, 5, 1000},
    {"chunk-at-2-44", MP_EXPH_AT_TABLE, 5, 0xffffffffff},
    {"mode-constant", MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_MODE, 1, MP_EXPH_CONSTANT},
    {"mode-raw", MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_MODE, 1, MP_EXPH_RAW},
    {"mode-3", MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_MODE, 1, 3},
    {"escapes-0", MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_VALUE, 2, 0},
    {"escapes-13", MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_VALUE, 2, 13},
    {"escapes-65535", MP_EXPH_AT_TABLE + MP_EXPH_ENTRY_VALUE, 2, 65535},
    {"tile-bits-65535", CHUNK, 2, 65535},
    {"tile-bits-1", CHUNK, 2, 1},
    {"shortest-4095", CHUNK + 2, 2, 4095},
    {"shift-15", CHUNK + 2, 2, 0xf000 | 30},
    {"lane-longer", LENGTHS, 1, 255},
    {"lane-shorter", LENGTHS + 3, 1, 0},
    {"last-lane-longer", LENGTHS + 31, 1, 255},
    {"escape-past-the-end", ESCAPES, 2, LIED_ABOUT},
    {"escape-at-65535", ESCAPES, 2, 65535},
    {"escape-twice", ESCAPES, 4, 0x00050005},
};

static void make_lies(void)
{
    stream of = encode_random(BF16, LIED_ABOUT, 15);
    uint8_t *kept = malloc(of.bytes);
    memcpy(kept, of.at, of.bytes);
    for (size_t i = 0; i < COUNT(lies); i++) {
        memcpy(of.at + lies[i].at, &lies[i].value, lies[i].bytes);
        write_stream(&of, SEAL, lies[i].name);
        memcpy(of.at, kept, of.bytes);
    }
    free(kept);
    of.at[CHUNK + 200] ^= 1;
    write_stream(&of, 0, "checksum-of-chunk");
    write_stream(&of, SEAL, "bits-changed");
    of.at[CHUNK + 200] ^= 1;
    of.at[MP_EXPH_AT_EXPONENTS] ^= 1;
    write_stream(&of, 0, "checksum-of-front");
    of.at[MP_EXPH_AT_EXPONENTS] ^= 1;
    of.type = F16;
    write_stream(&of, 0, "asked-for-f16");
    of.type = BF16;
    of.n++;
    write_stream(&of, 0, "asked-for-one-more");
    of.n--;
    for (unsigned cut = 1; cut <= 16; cut *= 16) {
        of.bytes -= cut;
        write_stream(&of, SEAL, cut == 1 ? "cut-by-1" : "cut-by-17");
    }
    of.bytes = 32;
    write_stream(&of, SEAL, "cut-to-32");
    of.bytes = 0;
    write_stream(&of, SEAL, "cut-to-0");
    free(of.at);
}

/* ---- Weights ----------------------------------------------------------------------------- */

static void write_weights(const char *name, unsigned type, uint64_t n, const void *bytes,
                          size_t n_bytes)
{
    corpus_bytes file = {0};
    corpus_add_uint(&file, type, 1);
    corpus_add_uint(&file, n, 3);
    corpus_add(&file, bytes, n_bytes);
    corpus_finish(&file, "exph_roundtrip", name);
}

/* The first run of the first lane has codes of 8 bits only: 64 bits in a row, from a whole byte on. */
static void make_rare_run(void)
{
    enum { N = 2048 };
    uint8_t *weights = corpus_weights(BF16, N, 0);
    for (uint32_t i = 0; i < MP_EXPH_RUN; i++) {
        const uint16_t rare = (uint16_t)((i + 1) << 7);
        memcpy(weights + 2 * i, &rare, sizeof rare);
    }
    write_weights("bf16-rare-run", BF16, 0, weights, 2 * N);
    free(weights);
}

static void make_weight_seeds(void)
{
    static const char *const names[] = {"bf16", "f16", "e4m3", "e5m2"};
    for (unsigned type = BF16; type <= E5M2; type++) {
        uint8_t *weights = corpus_weights(type, 600, 60);
        write_weights(names[type], type, 0, weights, type <= F16 ? 1200 : 600);
        free(weights);
    }
    uint8_t *weights = corpus_weights(BF16, 400, 90);
    write_weights("bf16-tile", BF16, 8192, weights, 800);
    write_weights("bf16-tile-and-one", BF16, 8193, weights, 799);
    write_weights("bf16-chunk", BF16, 32768, weights, 798);
    write_weights("bf16-chunk-and-one", BF16, 32769, weights, 797);
    free(weights);
    make_rare_run();
    uint8_t every[512];
    for (unsigned i = 0; i < 256; i++) {
        every[2 * i] = (uint8_t)(i << 7);
        every[2 * i + 1] = (uint8_t)(i >> 1);
    }
    write_weights("every-exponent", BF16, 0, every, sizeof every);
    write_weights("every-exponent-chunk", BF16, 40000, every, sizeof every);
    write_weights("every-byte-e4m3", E4M3, 1000, every, sizeof every);
    write_weights("zeros", BF16, 33000, "\0", 1);
    write_weights("two-exponents", BF16, 9000, "\x80\x3f\x00\x40", 4);
    write_weights("one-other-exponent", BF16, 300, every, 2);
    write_weights("nans", F16, 300, "\xff\xff\x01\x7c", 4);
}

/* ---- Matrices ---------------------------------------------------------------------------- */

static void make_matrices(void)
{
    static const float numbers[] = {1, -0.5f, 3.25f, 0, 1e-30f, -7, 0.1f, 65504, -1e-7f, 2.5f};
    static const struct {
        const char *name;
        uint8_t kind, row;
        uint16_t columns;
    } shapes[] = {
        {"int8-g64-f32", 0x24, 2, 99},   {"int4-g32-f32", 0x21, 3, 32},
        {"int2-g128-f32", 0x2a, 1, 290}, {"int8-g32-f16", 0x10, 2, 40},
        {"int4-g64-bf16", 0x05, 2, 130}, {"int2-g32-bf16", 0x02, 4, 33},
        {"int4-one-column", 0x21, 7, 0},
    };
    corpus_bytes file = {0};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        corpus_add_uint(&file, shapes[i].kind, 1);
        corpus_add_uint(&file, shapes[i].row, 1);
        corpus_add_uint(&file, shapes[i].columns, 2);
        if (shapes[i].kind & 0x20)
            corpus_add(&file, numbers, sizeof numbers);
        else
            corpus_add(&file, "\x80\x3f\x00\x40\xc0\xbf\x33\x3e\x01\x00", 10);
        corpus_finish(&file, "quant", shapes[i].name);
    }
    static const struct {
        const char *name;
        uint32_t bits;
    } wrong[] = {{"infinity", 0x7f800000}, {"nan", 0x7fc00000}, {"too-large", 0x7f000000},
                 {"smallest", 1},          {"zero", 0},         {"minus-zero", 0x80000000}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        corpus_add(&file, "\x21\x01\x28\x00", 4);
        corpus_add_uint(&file, wrong[i].bits, 4);
        corpus_finish(&file, "quant", wrong[i].name);
    }
}

void corpus_make_codec(void)
{
    make_good_streams();
    make_constant_streams();
    make_lies();
    make_weight_seeds();
    make_matrices();
}
