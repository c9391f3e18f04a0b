/* Exponent-Huffman streams, read, decoded whatever they hold, and measured: the slow way. */
#include "exph_naive.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "moepage.h"

enum { CHUNK = 32768, TILE = 8192, GROUP = 256, RUN = 8, LANES = 32, ESCAPE = 15 };

typedef struct shape {
    uint32_t bytes, exponent_bits, mantissa_bits;
} shape;

static shape shape_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_BF16: return (shape){2, 8, 7};
    case MOEPAGE_DTYPE_F16: return (shape){2, 5, 10};
    case MOEPAGE_DTYPE_F8_E4M3: return (shape){1, 4, 3};
    default: return (shape){1, 5, 2};
    }
}

static uint64_t number(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < bytes; i++)
        value += (uint64_t)at[i] << (8 * i);
    return value;
}

static uint32_t bit(const uint8_t *from, uint64_t i)
{
    return from[i / 8] >> i % 8 & 1;
}

static uint64_t up_to_16(uint64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static uint64_t rest_bytes(shape s, uint64_t n)
{
    return up_to_16((n + RUN - 1) / RUN * (s.mantissa_bits + 1));
}

static int all_zero(const uint8_t *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (from[i])
            return 0;
    }
    return 1;
}

/* ---- The code ---- */

typedef struct book {
    uint32_t exponent[16], length[16], code[16]; /* code: first bit highest */
    int complete;
} book;

static book read_book(const uint8_t *stream)
{
    book b = {.complete = 0};
    uint32_t code = 0, shares = 0, longest = 0;
    for (uint32_t s = 0; s < 16; s++) {
        b.exponent[s] = stream[12 + s];
        b.length[s] = s % 2 ? stream[28 + s / 2] >> 4 : stream[28 + s / 2] & 15;
        shares += b.length[s] ? 1u << 8 >> b.length[s] : 0;
        longest = b.length[s] > longest ? b.length[s] : longest;
    }
    for (uint32_t length = 1; length <= 8; length++, code <<= 1) {
        for (uint32_t s = 0; s < 16; s++) {
            if (b.length[s] == length)
                b.code[s] = code++;
        }
    }
    b.complete = shares == 256 && longest <= 8;
    return b;
}

/* The symbol whose code comes next; *at moves behind it. 16: none. */
static uint32_t next_symbol(const book *b, const uint8_t *from, uint64_t *at)
{
    uint32_t code = 0;
    for (uint32_t length = 1; length <= 8; length++) {
        code = code << 1 | bit(from, (*at)++);
        for (uint32_t s = 0; s < 16; s++) {
            if (b->length[s] == length && b->code[s] == code)
                return s;
        }
    }
    return 16;
}

/* ---- Chunks ---- */

typedef struct chunk {
    const uint8_t *base;
    uint64_t bytes; /* at least */
    uint32_t n, value;
    shape s;
    const book *b;
    uint8_t exponents[CHUNK];
} chunk;

static void put_element(shape s, uint32_t exponent, const uint8_t *rests, uint32_t i, uint8_t *out)
{
    const uint32_t r = s.mantissa_bits + 1;
    uint32_t rest = 0;
    for (uint32_t k = 0; k < r; k++)
        rest |= bit(rests + i / RUN * r, i % RUN * r + k) << k;
    const uint32_t sign = rest >> s.mantissa_bits, mantissa = rest - (sign << s.mantissa_bits);
    const uint32_t element =
        sign << (s.mantissa_bits + s.exponent_bits) | exponent << s.mantissa_bits | mantissa;
    for (uint32_t k = 0; k < s.bytes; k++)
        out[i * s.bytes + k] = (uint8_t)(element >> (8 * k));
}

static const char *read_lane(chunk *c, uint32_t tile, uint32_t lane, const uint8_t *bits,
                             uint64_t *at, uint32_t length, uint32_t unit)
{
    const uint64_t begin = *at;
    for (uint32_t k = 0; k < TILE / LANES; k++) {
        const uint32_t i = tile * TILE + k / RUN * GROUP + lane * RUN + k % RUN;
        if (i >= c->n)
            continue;
        const uint32_t symbol = next_symbol(c->b, bits, at);
        if (symbol > ESCAPE)
            return "no such code";
        c->exponents[i] = (uint8_t)c->b->exponent[symbol];
        if (symbol == ESCAPE) {
            if (!c->value--)
                return "more escapes than listed";
        }
    }
    if (*at - begin > length || length - (*at - begin) >= unit)
        return "a lane's length is not that of its codes";
    for (; *at < begin + length; (*at)++) {
        if (bit(bits, *at))
            return "a lane is not padded by zeros";
    }
    return NULL;
}

static const char *read_coded(chunk *c, uint64_t *used, exph_naive_stats *stats)
{
    const uint32_t tiles = (c->n + TILE - 1) / TILE, escapes = c->value;
    const uint8_t *lengths = c->base + 4 * tiles, *positions = lengths + LANES * tiles;
    const uint8_t *exponents = positions + 2 * escapes, *bits = exponents + escapes;
    uint64_t at = 0;
    for (uint32_t t = 0; t < tiles; t++, lengths += LANES) {
        const uint64_t unit = number(c->base + 4 * t + 2, 2), begin = at;
        if (at % 8 || number(c->base + 4 * t, 2) != at / 8)
            return "a tile is not where the one before ends";
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const char *wrong =
                read_lane(c, t, lane, bits, &at,
                          (uint32_t)((unit & 4095) + ((uint64_t)lengths[lane] << (unit >> 12))),
                          1u << (unit >> 12));
            if (wrong)
                return wrong;
        }
        stats->code_bits += at - begin;
        stats->coarse += unit >> 12 != 0;
        for (; at % 8; at++) {
            if (bit(bits, at))
                return "a tile is not padded by zeros";
        }
    }
    if (c->value)
        return "fewer escapes than listed";
    for (uint32_t i = 0; i < escapes; i++) {
        if (i && number(positions + 2 * i, 2) <= number(positions + 2 * i - 2, 2))
            return "escapes are not in order";
        c->exponents[number(positions + 2 * i, 2)] = exponents[i];
    }
    const uint8_t *rests = c->base + up_to_16((uint64_t)(bits - c->base) + at / 8);
    if (!all_zero(bits + at / 8, (uint64_t)(rests - bits) - at / 8))
        return "the bits are not padded by zeros";
    stats->escapes += escapes;
    *used = (uint64_t)(rests - c->base);
    return NULL;
}

/* Sets *used to the chunk's bytes. */
static const char *read_chunk(chunk *c, uint32_t mode, uint8_t *out, uint64_t *used,
                              exph_naive_stats *stats)
{
    if (mode == 2) {
        stats->raw++;
        memcpy(out, c->base, c->n * c->s.bytes);
        *used = up_to_16(c->n * c->s.bytes);
        if (!all_zero(c->base + c->n * c->s.bytes, *used - c->n * c->s.bytes))
            return "a raw chunk is not padded by zeros";
        return c->value ? "a raw chunk has a value" : NULL;
    }
    *used = 0;
    if (mode == 1) {
        stats->constant++;
        memset(c->exponents, (int)c->value, sizeof c->exponents);
    } else if (mode == 0) {
        stats->coded++;
        const char *wrong = c->b->complete ? read_coded(c, used, stats) : "there is no code";
        if (wrong)
            return wrong;
    } else {
        return "no such mode";
    }
    for (uint32_t i = 0; i < c->n; i++)
        put_element(c->s, c->exponents[i], c->base + *used, i, out);
    const uint64_t r = c->s.mantissa_bits + 1, runs_end = c->n / RUN * r + (c->n % RUN * r + 7) / 8;
    if (!all_zero(c->base + *used + runs_end, rest_bytes(c->s, c->n) - runs_end))
        return "the rests are not padded by zeros";
    *used += rest_bytes(c->s, c->n);
    return NULL;
}

const char *exph_naive_read(const void *stream, uint64_t bytes, uint32_t dtype, uint64_t n,
                            void *out, exph_naive_stats *stats)
{
    exph_naive_stats ignored;
    stats = stats ? stats : &ignored;
    memset(stats, 0, sizeof *stats);
    const uint8_t *from = stream;
    const uint64_t chunks = (n + CHUNK - 1) / CHUNK, front = up_to_16(36 + 12 * chunks);
    if (bytes < front || from[0] != 1 || from[1] != dtype || number(from + 2, 5) != n || from[7])
        return "the header is not this tensor's";
    if ((uint32_t)XXH3_64bits_withSeed(from + 12, front - 12, number(from, 8)) !=
        number(from + 8, 4))
        return "the front's checksum is wrong";
    const book b = read_book(from);
    chunk *c = malloc(sizeof *c);
    const char *wrong = c ? NULL : "no memory";
    uint64_t at = front;
    for (uint64_t i = 0; !wrong && i < chunks; i++) {
        const uint8_t *entry = from + 36 + 12 * i;
        uint64_t used = 0;
        c->base = from + at;
        c->n = n - i * CHUNK < CHUNK ? (uint32_t)(n - i * CHUNK) : CHUNK;
        c->value = (uint32_t)number(entry + 6, 2);
        c->s = shape_of(dtype);
        c->b = &b;
        if (number(entry, 5) * 16 != at)
            wrong = "a chunk is not where the one before ends";
        else
            wrong = read_chunk(c, entry[5], (uint8_t *)out + i * CHUNK * c->s.bytes, &used, stats);
        if (!wrong && (uint32_t)XXH3_64bits(c->base, used) != number(entry + 8, 4))
            wrong = "a chunk's checksum is wrong";
        at += used;
    }
    free(c);
    return wrong ? wrong : at == bytes ? NULL : "the stream does not end with its chunks";
}

/* ---- Whatever it holds ---- */

/* Where the stream's memory ends; bits from there on are zeros. */
typedef struct window {
    const uint8_t *stream;
    uint64_t bytes;
} window;

static uint32_t symbol_at(const book *b, window in, uint64_t *at)
{
    uint8_t next[2] = {0};
    uint64_t used = 0;
    for (uint32_t k = 0; k < 8; k++, (*at)++)
        next[0] |= (uint8_t)(*at / 8 < in.bytes ? bit(in.stream, *at) << k : 0);
    const uint32_t symbol = next_symbol(b, next, &used);
    *at -= 8 - used;
    return symbol;
}

static void decode_lanes(chunk *c, window in)
{
    const uint32_t tiles = (c->n + TILE - 1) / TILE, own = (1u << c->s.exponent_bits) - 1;
    const uint8_t *heads = c->base, *lengths = heads + 4 * tiles;
    const uint8_t *positions = lengths + LANES * tiles, *listed = positions + 2 * c->value;
    const uint64_t bits = (uint64_t)(listed + c->value - in.stream);
    for (uint32_t t = 0; t < tiles; t++) {
        const uint64_t unit = number(heads + 4 * t + 2, 2);
        uint64_t begin = (bits + number(heads + 4 * t, 2)) * 8;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            uint64_t at = begin;
            for (uint32_t k = 0; k < TILE / LANES; k++) {
                const uint32_t i = t * TILE + k / RUN * GROUP + lane * RUN + k % RUN;
                const uint32_t symbol = i < c->n ? symbol_at(c->b, in, &at) : ESCAPE;
                if (i < c->n)
                    c->exponents[i] = (uint8_t)(symbol < ESCAPE ? c->b->exponent[symbol] & own : 0);
            }
            begin += (unit & 4095) + ((uint64_t)lengths[t * LANES + lane] << (unit >> 12));
        }
    }
    for (uint32_t k = 0; k < c->value; k++) {
        if (number(positions + 2 * k, 2) < c->n)
            c->exponents[number(positions + 2 * k, 2)] = listed[k] & own;
    }
}

/* False where there is no code, no such mode, or no room for what the mode needs. */
static int decode_chunk(chunk *c, window in, uint32_t mode, uint8_t *out)
{
    const uint64_t rests = rest_bytes(c->s, c->n);
    const uint64_t index = (c->n + TILE - 1) / TILE * (4 + LANES) + 3 * c->value;
    if (mode == 2 && c->bytes >= c->n * c->s.bytes) {
        memcpy(out, c->base, c->n * c->s.bytes);
        return 1;
    }
    if (mode > 1 || c->bytes < rests ||
        (mode == 0 && (!c->b->complete || c->bytes < index + rests)))
        return 0;
    if (mode == 1)
        memset(c->exponents, (int)(c->value & ((1u << c->s.exponent_bits) - 1)), CHUNK);
    else
        decode_lanes(c, in);
    const uint8_t *rest = mode == 1 ? c->base : c->base + c->bytes - rests;
    for (uint32_t i = 0; i < c->n; i++)
        put_element(c->s, c->exponents[i], rest, i, out);
    return 1;
}

void exph_naive_decode(const void *stream, uint64_t bytes, uint32_t dtype, uint64_t n, void *out)
{
    const window in = {stream, bytes};
    const uint64_t chunks = (n + CHUNK - 1) / CHUNK;
    const int whole = bytes >= up_to_16(36 + 12 * chunks);
    const book b = whole ? read_book(stream) : (book){.complete = 0};
    chunk *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    *c = (chunk){.s = shape_of(dtype), .b = &b};
    for (uint64_t i = 0; i < chunks; i++) {
        const uint8_t *entry = in.stream + 36 + 12 * i;
        const uint64_t begin = whole ? number(entry, 5) * 16 : 0;
        const uint64_t end = whole && i + 1 < chunks ? number(entry + 12, 5) * 16 : bytes;
        uint8_t *place = (uint8_t *)out + i * CHUNK * c->s.bytes;
        c->n = n - i * CHUNK < CHUNK ? (uint32_t)(n - i * CHUNK) : CHUNK;
        c->bytes = whole && begin <= end && end <= bytes ? end - begin : 0;
        c->base = in.stream + (c->bytes ? begin : 0);
        c->value = whole ? (uint32_t)number(entry + 6, 2) : 0;
        if (!c->bytes || !decode_chunk(c, in, entry[5], place))
            memset(place, 0xff, c->n * c->s.bytes);
    }
    free(c);
}

/* ---- Sizes ---- */

static uint32_t exponent_of(uint32_t dtype, const void *elements, uint64_t i)
{
    const shape s = shape_of(dtype);
    const uint64_t element = number((const uint8_t *)elements + i * s.bytes, s.bytes);
    return (uint32_t)(element >> s.mantissa_bits) & ((1u << s.exponent_bits) - 1);
}

static int falling(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The commonest symbols get the shortest codes: `room` is what is left of 256 shares, of which a
 * code of k bits takes 256 >> k. */
static uint64_t fewest(const uint64_t *counts, uint32_t n, uint32_t length, uint32_t room)
{
    if (n == 0)
        return 0;
    if (length > 8)
        return UINT64_MAX;
    uint64_t best = fewest(counts, n, length + 1, room), bits = 0;
    for (uint32_t k = 1; k <= n && k * (256u >> length) <= room; k++) {
        bits += counts[k - 1] * length;
        const uint64_t more = fewest(counts + k, n - k, length + 1, room - k * (256u >> length));
        if (more != UINT64_MAX && bits + more < best)
            best = bits + more;
    }
    return best;
}

uint64_t exph_naive_fewest_bits(const uint64_t *counts, uint32_t n)
{
    uint64_t sorted[16];
    uint32_t used = 0;
    memcpy(sorted, counts, n * sizeof *counts);
    qsort(sorted, n, sizeof *sorted, falling);
    while (used < n && sorted[used])
        used++;
    return fewest(sorted, used, 1, 256);
}

/* Without the lanes' padding, which a chunk has only where lanes differ by more than 255 bits. */
uint64_t exph_naive_size(uint32_t dtype, const void *elements, uint64_t n)
{
    const shape s = shape_of(dtype);
    const uint64_t chunks = (n + CHUNK - 1) / CHUNK;
    uint64_t counts[256] = {0}, of[16] = {0}, index = 0;
    for (uint64_t i = 0; i < n; i++)
        counts[exponent_of(dtype, elements, i)]++;
    qsort(counts, 256, sizeof *counts, falling);
    for (uint32_t e = 0; e < 256; e++)
        of[e < ESCAPE ? e : ESCAPE] += counts[e];
    for (uint64_t i = 0; i < chunks; i++) {
        const uint64_t some = n - i * CHUNK < CHUNK ? n - i * CHUNK : CHUNK;
        index += (some + TILE - 1) / TILE * 36 + rest_bytes(s, some);
    }
    return up_to_16(36 + 12 * chunks) + index + 3 * of[ESCAPE] + exph_naive_fewest_bits(of, 16) / 8;
}
