/* Encoding: one pass over the tensor to build its code, one to write its chunks. */
#include "codec/exph_code.h"

/* ---- Splitting elements ---- */

#define EACH_OF_FOUR(x) ((x)*UINT64_C(0x0001000100010001))

static uint32_t element_at(mp_exph_type type, const uint8_t *in, uint64_t i)
{
    return type.bytes == 2 ? mp_exph_get16(in + 2 * i) : in[i];
}

/* Packs four 16-bit numbers below 256 into bytes. */
static inline uint32_t four_bytes(uint64_t numbers)
{
    numbers = (numbers | numbers >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(numbers | numbers >> 16);
}

static void take_exponents(mp_exph_type type, const uint8_t *in, uint32_t n, uint8_t *out)
{
    const uint32_t field = (1u << type.exponent_bits) - 1;
    uint32_t i = 0;
    if (type.rest_bits == 8) { /* BF16, four at a time */
        for (; i + 4 <= n; i += 4)
            mp_exph_put32(out + i, four_bytes(mp_exph_get64(in + 2 * i) >> 7 & EACH_OF_FOUR(0xff)));
    }
    for (; i < n; i++)
        out[i] = (uint8_t)(element_at(type, in, i) >> type.mantissa_bits & field);
}

/* Puts element i of a run at bits [i * rest_bits, ...) of the run's rest_bits bytes. */
static void put_run(mp_exph_type type, const uint8_t *in, uint32_t n, uint8_t *out)
{
    uint8_t run[2 * MP_EXPH_RUN] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t element = element_at(type, in, i), at = i * type.rest_bits;
        const uint32_t sign = element >> (type.mantissa_bits + type.exponent_bits);
        const uint32_t rest =
            sign << type.mantissa_bits | (element & ((1u << type.mantissa_bits) - 1));
        mp_exph_put32(run + at / 8, mp_exph_get32(run + at / 8) | rest << at % 8);
    }
    memcpy(out, run, type.rest_bits);
}

static inline uint32_t four_rests(uint64_t elements)
{
    return four_bytes((elements >> 8 & EACH_OF_FOUR(0x80)) | (elements & EACH_OF_FOUR(0x7f)));
}

static void put_rests(mp_exph_type type, const uint8_t *in, uint32_t n, uint8_t *out)
{
    const uint8_t *end = out + mp_exph_rest_bytes(&type, n);
    uint32_t i = 0;
    if (type.rest_bits == 8) { /* BF16 */
        for (; i + MP_EXPH_RUN <= n; i += MP_EXPH_RUN, out += MP_EXPH_RUN) {
            mp_exph_put32(out, four_rests(mp_exph_get64(in + 2 * i)));
            mp_exph_put32(out + 4, four_rests(mp_exph_get64(in + 2 * i + 8)));
        }
    }
    for (; i < n; i += MP_EXPH_RUN, out += type.rest_bits)
        put_run(type, in + i * type.bytes, n - i < MP_EXPH_RUN ? n - i : MP_EXPH_RUN, out);
    memset(out, 0, (size_t)(end - out));
}

/* ---- The code of a tensor ---- */

typedef struct coder {
    uint8_t exponents[MP_EXPH_SYMBOLS];
    uint8_t lengths[MP_EXPH_SYMBOLS];
    /* Indexed by exponent, so that the loops over a chunk look up only once. */
    uint16_t code_of[256]; /* bits | length << 8 */
    uint32_t cost_of[256]; /* length | 1 << 16 for an escape: both sums in one addition */
} coder;

/* Counts exponents in four tables, so that increments for equal neighbours do not wait for each
 * other. */
static void count_exponents(mp_exph_type type, const uint8_t *in, uint64_t n, uint64_t counts[256])
{
    uint32_t tables[4][256];
    uint8_t exponents[MP_EXPH_TILE];
    for (uint64_t done = 0; done < n; done += MP_EXPH_TILE) {
        const uint32_t some = n - done < MP_EXPH_TILE ? (uint32_t)(n - done) : MP_EXPH_TILE;
        memset(tables, 0, sizeof tables);
        take_exponents(type, in + done * type.bytes, some, exponents);
        for (uint32_t i = 0; i < some; i++)
            tables[i % 4][exponents[i]]++;
        for (uint32_t e = 0; e < 256; e++)
            counts[e] += (uint64_t)tables[0][e] + tables[1][e] + tables[2][e] + tables[3][e];
    }
}

/* Makes the most frequent exponents symbols 0, 1, ... in that order; the others escape. */
static void choose_symbols(const uint64_t counts[256], uint8_t exponents[MP_EXPH_SYMBOLS],
                           uint8_t symbol_of[256], uint64_t of[MP_EXPH_SYMBOLS])
{
    uint64_t left[256];
    memcpy(left, counts, sizeof left);
    memset(symbol_of, MP_EXPH_ESCAPE, 256);
    for (uint32_t s = 0; s < MP_EXPH_ESCAPE; s++) {
        uint32_t most = 0;
        for (uint32_t e = 1; e < 256; e++)
            most = left[e] > left[most] ? e : most;
        if (!left[most])
            break;
        exponents[s] = (uint8_t)most;
        symbol_of[most] = (uint8_t)s;
        of[s] = left[most];
        left[most] = 0;
    }
    for (uint32_t e = 0; e < 256; e++)
        of[MP_EXPH_ESCAPE] += left[e];
}

/* Builds the code; all zeros if there are fewer than two distinct symbols, and then no chunk is
 * coded. */
static void find_code(const uint64_t counts[256], coder *out)
{
    uint64_t of[MP_EXPH_SYMBOLS] = {0};
    uint8_t symbol_of[256], codes[MP_EXPH_SYMBOLS] = {0};
    memset(out, 0, sizeof *out);
    choose_symbols(counts, out->exponents, symbol_of, of);
    if (!of[1]) {
        out->exponents[0] = 0;
        return;
    }
    mp_exph_code_lengths(of, out->lengths);
    mp_exph_code_assign(out->lengths, codes);
    for (uint32_t e = 0; e < 256; e++) {
        const uint32_t s = symbol_of[e];
        out->code_of[e] = (uint16_t)(codes[s] | out->lengths[s] << 8);
        out->cost_of[e] = out->lengths[s] | (uint32_t)(s == MP_EXPH_ESCAPE) << 16;
    }
}

/* ---- One chunk ---- */

typedef struct tile_plan {
    uint32_t shortest; /* bits of a lane */
    uint32_t shift;
    uint32_t bytes;
    uint32_t escapes;
    uint8_t length[MP_EXPH_LANES]; /* (bits - shortest) >> shift, rounded up */
} tile_plan;

typedef struct chunk_plan {
    uint32_t mode;
    uint32_t value; /* field of the chunk table */
    uint64_t bytes;
    tile_plan tiles[MP_EXPH_TILES];
} chunk_plan;

/* Returns length | escapes << 16: a lane has at most 2048 bits. */
static uint32_t lane_cost(const coder *code, const uint8_t *exponents, uint32_t n, uint32_t lane)
{
    uint32_t cost = 0, i = lane * MP_EXPH_RUN;
    for (; i + MP_EXPH_RUN <= n; i += MP_EXPH_GROUP) {
        MP_UNROLL
        for (uint32_t k = 0; k < MP_EXPH_RUN; k++)
            cost += code->cost_of[exponents[i + k]];
    }
    for (const uint32_t end = i + MP_EXPH_RUN; i < n && i < end; i++)
        cost += code->cost_of[exponents[i]];
    return cost;
}

/* Plans a tile with the smallest unit in which each lane's length fits a byte. */
static void plan_tile(const coder *code, const uint8_t *exponents, uint32_t n, tile_plan *out)
{
    uint32_t bits[MP_EXPH_LANES], longest = 0, sum = 0;
    *out = (tile_plan){.shortest = UINT32_MAX};
    for (uint32_t lane = 0; lane < MP_EXPH_LANES; lane++) {
        const uint32_t cost = lane_cost(code, exponents, n, lane);
        bits[lane] = cost & 0xffff;
        out->escapes += cost >> 16;
        longest = bits[lane] > longest ? bits[lane] : longest;
        out->shortest = bits[lane] < out->shortest ? bits[lane] : out->shortest;
    }
    while ((255u << out->shift) < longest - out->shortest)
        out->shift++;
    for (uint32_t lane = 0; lane < MP_EXPH_LANES; lane++) {
        const uint32_t unit = 1u << out->shift;
        out->length[lane] = (uint8_t)((bits[lane] - out->shortest + unit - 1) >> out->shift);
        sum += out->shortest + ((uint32_t)out->length[lane] << out->shift);
    }
    out->bytes = (sum + 7) / 8;
}

static bool all_equal(const uint8_t *exponents, uint32_t n)
{
    return n && memcmp(exponents, exponents + 1, n - 1) == 0;
}

/* Chooses the storage of a chunk that takes the fewest bytes. */
static void plan_chunk(mp_exph_type type, const coder *code, const uint8_t *exponents, uint32_t n,
                       chunk_plan *out)
{
    const uint64_t rest_bytes = mp_exph_rest_bytes(&type, n);
    const uint64_t raw_bytes = mp_exph_align((uint64_t)n * type.bytes);
    if (all_equal(exponents, n)) {
        *out = (chunk_plan){MP_EXPH_CONSTANT, exponents[0], rest_bytes, {{0}}};
        return;
    }
    uint64_t bits_bytes = 0;
    *out = (chunk_plan){.mode = MP_EXPH_CODED};
    for (uint32_t t = 0; t < mp_exph_tiles(n); t++) {
        plan_tile(code, exponents + t * MP_EXPH_TILE, mp_exph_tile_elements(n, t), &out->tiles[t]);
        bits_bytes += out->tiles[t].bytes;
        out->value += out->tiles[t].escapes;
    }
    out->bytes = mp_exph_align(mp_exph_index_bytes(n, out->value) + bits_bytes) + rest_bytes;
    if (out->bytes >= raw_bytes)
        *out = (chunk_plan){MP_EXPH_RAW, 0, raw_bytes, {{0}}};
}

/* A flush stores the whole word but keeps the bits of an incomplete byte; the bytes stored beyond
 * are overwritten later. */
typedef struct bit_writer {
    uint8_t *at;
    uint64_t bits;
    uint32_t n;
} bit_writer;

static inline bit_writer flush(bit_writer to)
{
    mp_exph_put64(to.at, to.bits);
    return (bit_writer){to.at + to.n / 8, to.bits >> (to.n & ~7u), to.n % 8};
}

static inline bit_writer put_symbol(bit_writer to, const coder *code, uint32_t exponent)
{
    const uint32_t found = code->code_of[exponent];
    return (bit_writer){to.at, to.bits | (uint64_t)(found & 0xff) << to.n, to.n + (found >> 8)};
}

/* Appends four symbols, which always fit beside the 7 bits that a flush leaves. */
static inline bit_writer put_four(bit_writer to, const coder *code, const uint8_t exponents[4])
{
    MP_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        to = put_symbol(to, code, exponents[i]);
    return flush(to);
}

static bit_writer put_lane(bit_writer to, const coder *code, const uint8_t *exponents, uint32_t n,
                           uint32_t lane)
{
    uint32_t i = lane * MP_EXPH_RUN;
    for (; i + MP_EXPH_RUN <= n; i += MP_EXPH_GROUP) {
        to = put_four(to, code, exponents + i);
        to = put_four(to, code, exponents + i + 4);
    }
    for (const uint32_t end = i + MP_EXPH_RUN; i < n && i < end; i++)
        to = flush(put_symbol(to, code, exponents[i]));
    return to;
}

/* Writes a tile's lanes without gaps; zeros fill a lane to its length and the tile to a byte. */
static void put_tile(const coder *code, const tile_plan *plan, const uint8_t *exponents, uint32_t n,
                     uint8_t *out)
{
    bit_writer to = {.at = out};
    uint64_t end = 0;
    for (uint32_t lane = 0; lane < MP_EXPH_LANES; lane++) {
        to = put_lane(to, code, exponents, n, lane);
        end += plan->shortest + ((uint32_t)plan->length[lane] << plan->shift);
        to.n = (uint32_t)(end - (uint64_t)(to.at - out) * 8);
        to = flush(to);
    }
}

static bool run_escapes(const coder *code, const uint8_t exponents[MP_EXPH_RUN])
{
    uint32_t any = 0;
    MP_UNROLL
    for (uint32_t i = 0; i < MP_EXPH_RUN; i++)
        any |= code->cost_of[exponents[i]];
    return any >> 16;
}

/* Writes positions, then exponents; returns their end. Escapes are rare: runs without any are
 * skipped. */
static uint8_t *put_escapes(const coder *code, const uint8_t *exponents, uint32_t n,
                            uint32_t escapes, uint8_t *out)
{
    uint8_t *values = out + escapes * 2, *end = values + escapes;
    for (uint32_t i = 0; values < end; i++) {
        while (i + MP_EXPH_RUN <= n && !run_escapes(code, exponents + i))
            i += MP_EXPH_RUN;
        if (!(code->cost_of[exponents[i]] >> 16))
            continue;
        mp_exph_put16(out, i);
        out += 2;
        *values++ = exponents[i];
    }
    return end;
}

static void put_coded(mp_exph_type type, const coder *code, const chunk_plan *plan,
                      const uint8_t *exponents, uint32_t n, uint8_t *out)
{
    const uint32_t tiles = mp_exph_tiles(n);
    uint8_t *at = out + tiles * MP_EXPH_HEAD_BYTES;
    uint32_t offset = 0;
    for (uint32_t t = 0; t < tiles; t++) {
        const tile_plan *tile = &plan->tiles[t];
        mp_exph_put16(out + t * MP_EXPH_HEAD_BYTES, offset);
        mp_exph_put16(out + t * MP_EXPH_HEAD_BYTES + 2,
                      tile->shortest | tile->shift << MP_EXPH_SHORTEST_BITS);
        memcpy(at, tile->length, MP_EXPH_LANES);
        at += MP_EXPH_LANES;
        offset += tile->bytes;
    }
    at = put_escapes(code, exponents, n, plan->value, at);
    for (uint32_t t = 0; t < tiles; t++) {
        put_tile(code, &plan->tiles[t], exponents + t * MP_EXPH_TILE, mp_exph_tile_elements(n, t),
                 at);
        at += plan->tiles[t].bytes;
    }
    const uint64_t rest_bytes = mp_exph_rest_bytes(&type, n);
    memset(at, 0, (size_t)(out + plan->bytes - rest_bytes - at));
}

static void put_chunk(mp_exph_type type, const coder *code, const chunk_plan *plan,
                      const uint8_t *exponents, const uint8_t *in, uint32_t n, uint8_t *out)
{
    if (plan->mode == MP_EXPH_RAW) {
        memcpy(out, in, (size_t)n * type.bytes);
        memset(out + (size_t)n * type.bytes, 0, plan->bytes - (size_t)n * type.bytes);
        return;
    }
    if (plan->mode == MP_EXPH_CODED)
        put_coded(type, code, plan, exponents, n, out);
    put_rests(type, in, n, out + plan->bytes - mp_exph_rest_bytes(&type, n));
}

/* ---- The stream ---- */

uint64_t mp_exph_bound(uint32_t dtype, uint64_t n)
{
    const mp_exph_type type = mp_exph_type_of(dtype);
    if (!type.bytes || n > MP_EXPH_MAX_ELEMENTS)
        return 0;
    return mp_exph_front_bytes(n) + mp_exph_align(n * type.bytes);
}

static void put_front(uint32_t dtype, uint64_t n, const coder *code, uint8_t *out)
{
    memset(out, 0, mp_exph_front_bytes(n));
    out[MP_EXPH_AT_VERSION] = MP_EXPH_VERSION;
    out[MP_EXPH_AT_DTYPE] = (uint8_t)dtype;
    mp_exph_put40(out + MP_EXPH_AT_ELEMENTS, n);
    memcpy(out + MP_EXPH_AT_EXPONENTS, code->exponents, MP_EXPH_SYMBOLS);
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s += 2)
        out[MP_EXPH_AT_LENGTHS + s / 2] = (uint8_t)(code->lengths[s] | code->lengths[s + 1] << 4);
}

static void put_entry(const chunk_plan *plan, uint64_t offset, const uint8_t *chunk, uint8_t *entry)
{
    mp_exph_put40(entry + MP_EXPH_ENTRY_OFFSET, offset / MP_EXPH_ALIGN);
    entry[MP_EXPH_ENTRY_MODE] = (uint8_t)plan->mode;
    mp_exph_put16(entry + MP_EXPH_ENTRY_VALUE, plan->value);
    mp_exph_put32(entry + MP_EXPH_ENTRY_CHECKSUM, mp_exph_chunk_checksum(chunk, plan->bytes));
}

uint64_t mp_exph_encode(uint32_t dtype, const void *in, uint64_t n, void *out)
{
    const mp_exph_type type = mp_exph_type_of(dtype);
    uint8_t exponents[MP_EXPH_CHUNK];
    uint64_t counts[256] = {0};
    uint8_t *stream = out;
    coder code;
    count_exponents(type, in, n, counts);
    find_code(counts, &code);
    put_front(dtype, n, &code, stream);
    uint64_t offset = mp_exph_front_bytes(n);
    for (uint64_t i = 0; i < mp_exph_chunks(n); i++) {
        const uint8_t *from = (const uint8_t *)in + i * MP_EXPH_CHUNK * type.bytes;
        const uint32_t elements = mp_exph_chunk_elements(n, i);
        chunk_plan plan;
        take_exponents(type, from, elements, exponents);
        plan_chunk(type, &code, exponents, elements, &plan);
        put_chunk(type, &code, &plan, exponents, from, elements, stream + offset);
        put_entry(&plan, offset, stream + offset,
                  stream + MP_EXPH_AT_TABLE + i * MP_EXPH_ENTRY_BYTES);
        offset += plan.bytes;
    }
    mp_exph_put32(stream + MP_EXPH_AT_CHECKSUM,
                  mp_exph_front_checksum(stream, mp_exph_front_bytes(n)));
    return offset;
}
