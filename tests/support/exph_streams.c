/* Streams of arbitrary legal choices: each choice that the format leaves to an encoder is drawn at
 * random. */
#include "exph_streams.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "numbers.h"

enum { CHUNK = 32768, TILE = 8192, GROUP = 256, RUN = 8, LANES = 32, SYMBOLS = 16, ESCAPE = 15 };
enum { AT_CODEBOOK = 12, AT_LENGTHS = 28, AT_TABLE = 36, ENTRY = 12 };

static void put(uint8_t *at, uint32_t bytes, uint64_t value)
{
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static uint64_t up_to_16(uint64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static uint64_t front_bytes(uint64_t n)
{
    return up_to_16(AT_TABLE + (n + CHUNK - 1) / CHUNK * ENTRY);
}

/* ---- The code ---- */

typedef struct maker {
    exph_random *random;
    uint32_t bytes, exponent_bits, mantissa_bits; /* of an element */
    uint32_t length[SYMBOLS], code[SYMBOLS], exponent[SYMBOLS];
    uint32_t used[SYMBOLS], n_used; /* symbols that have a code */
    uint32_t n;                     /* elements of the chunk */
    uint8_t symbol[CHUNK];
    uint8_t exponents[CHUNK]; /* of the elements */
} maker;

static uint32_t draw(maker *m, uint32_t limit)
{
    return (uint32_t)exph_below(m->random, limit);
}

/* A leaf after another becomes a node with two: whichever is picked, the code stays complete. */
static void draw_lengths(maker *m, uint32_t n, uint32_t *lengths)
{
    uint32_t have = 1;
    lengths[0] = 0;
    while (have < n) {
        uint32_t leaf = draw(m, 3) ? have - 1 : draw(m, have);
        if (lengths[leaf] == 8) {
            for (leaf = 0; lengths[leaf] == 8;)
                leaf++;
        }
        lengths[have++] = ++lengths[leaf];
    }
}

static void shuffle(maker *m, uint32_t *numbers, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t at = draw(m, i), last = numbers[i - 1];
        numbers[i - 1] = numbers[at];
        numbers[at] = last;
    }
}

/* The codes before a symbol's take these shares of 256; its own is the first that is left. */
static uint32_t code_of(const maker *m, uint32_t symbol)
{
    uint32_t shares = 0;
    for (uint32_t s = 0; s < SYMBOLS; s++) {
        const int before =
            m->length[s] < m->length[symbol] || (m->length[s] == m->length[symbol] && s < symbol);
        if (m->length[s] && before)
            shares += 256u >> m->length[s];
    }
    return shares >> (8 - m->length[symbol]);
}

static void draw_code(maker *m)
{
    uint32_t lengths[SYMBOLS], places[ESCAPE], exponents[256];
    const uint32_t all = 1u << m->exponent_bits, most = all < ESCAPE ? all : ESCAPE;
    const uint32_t escape = draw(m, 4) != 0, plain = 2 - escape + draw(m, most - 1 + escape);
    draw_lengths(m, plain + escape, lengths);
    shuffle(m, lengths, plain + escape);
    for (uint32_t i = 0; i < ESCAPE; i++)
        places[i] = i;
    for (uint32_t e = 0; e < all; e++)
        exponents[e] = e;
    if (draw(m, 2))
        shuffle(m, places, ESCAPE);
    shuffle(m, exponents, all);
    for (uint32_t i = 0; i < plain; i++) {
        m->length[places[i]] = lengths[i];
        m->exponent[places[i]] = exponents[i];
    }
    m->length[ESCAPE] = escape ? lengths[plain] : 0;
    for (uint32_t s = 0; s < SYMBOLS; s++) {
        if (m->length[s]) {
            m->code[s] = code_of(m, s);
            m->used[m->n_used++] = s;
        }
    }
}

static void put_code(const maker *m, uint8_t *stream)
{
    for (uint32_t s = 0; s < SYMBOLS; s++) {
        stream[AT_CODEBOOK + s] = (uint8_t)m->exponent[s];
        stream[AT_LENGTHS + s / 2] |= (uint8_t)(m->length[s] << (s % 2 * 4));
    }
}

/* ---- Symbols ---- */

static uint32_t any_symbol(maker *m)
{
    return m->used[draw(m, m->n_used)];
}

static uint32_t longest_symbol(const maker *m)
{
    uint32_t best = m->used[0];
    for (uint32_t i = 1; i < m->n_used; i++)
        best = m->length[m->used[i]] > m->length[best] ? m->used[i] : best;
    return best;
}

/* From one symbol everywhere to lanes as unequal as can be. */
static void draw_symbols(maker *m)
{
    const uint32_t kind = draw(m, 7), dear = longest_symbol(m), period = 1 + draw(m, 40);
    const uint32_t a = any_symbol(m), b = any_symbol(m);
    uint32_t of_lane[LANES], left = 0, now = a;
    for (uint32_t l = 0; l < LANES; l++)
        of_lane[l] = kind == 3 ? (draw(m, 2) ? dear : a) : any_symbol(m);
    for (uint32_t i = 0; i < m->n; i++) {
        if (kind == 5 && left-- == 0) {
            left = draw(m, 3000);
            now = any_symbol(m);
        }
        const uint32_t by_kind[] = {
            a,   i / period % 2 ? a : b, dear, of_lane[i / RUN % LANES], now,
            now, draw(m, 300) ? dear : a};
        m->symbol[i] = (uint8_t)(kind == 4 ? any_symbol(m) : by_kind[kind]);
    }
    if (m->length[ESCAPE] && draw(m, 2)) { /* at the edges of chunk and tiles */
        for (uint32_t i = 0; i < m->n; i += TILE)
            m->symbol[i] = m->symbol[i ? i - 1 : m->n - 1] = ESCAPE;
    }
}

/* ---- Chunks ---- */

/* How a tile's lanes are measured: any base up to the shortest, any unit that then suffices. */
typedef struct lanes {
    uint32_t bits[LANES], base, shift;
} lanes;

static lanes measure_lanes(maker *m, uint32_t tile)
{
    lanes of = {.base = UINT32_MAX};
    uint32_t most = 0;
    for (uint32_t i = tile * TILE; i < m->n && i < (tile + 1) * TILE; i++)
        of.bits[i / RUN % LANES] += m->length[m->symbol[i]];
    for (uint32_t l = 0; l < LANES; l++) {
        of.base = of.bits[l] < of.base ? of.bits[l] : of.base;
        most = of.bits[l] > most ? of.bits[l] : most;
    }
    of.base -= draw(m, 4) ? 0 : draw(m, of.base + 1);
    while (most - of.base > 255u << of.shift)
        of.shift++;
    of.shift += draw(m, 5) ? 0 : draw(m, 5);
    return of;
}

static void put_bit(uint8_t *bits, uint64_t at, uint32_t bit)
{
    bits[at / 8] |= (uint8_t)(bit << at % 8);
}

/* The symbols of one lane from bit `at` on, then padding up to bit `end`. */
static void put_lane(maker *m, uint32_t tile, uint32_t lane, uint8_t *bits, uint64_t at,
                     uint64_t end)
{
    for (uint32_t k = 0; k < TILE / LANES; k++) {
        const uint32_t i = tile * TILE + k / RUN * GROUP + lane * RUN + k % RUN;
        if (i >= m->n)
            break;
        for (uint32_t left = m->length[m->symbol[i]]; left; left--)
            put_bit(bits, at++, m->code[m->symbol[i]] >> (left - 1) & 1);
    }
    if (draw(m, 2)) {
        while (at < end)
            put_bit(bits, at++, draw(m, 2));
    }
}

/* Returns the tile's bytes. */
static uint64_t put_tile(maker *m, uint32_t tile, uint8_t *lengths, uint8_t *head, uint8_t *bits)
{
    const lanes of = measure_lanes(m, tile);
    uint64_t at = 0;
    put(head, 2, of.base | of.shift << 12);
    for (uint32_t l = 0; l < LANES; l++) {
        const uint32_t units = (of.bits[l] - of.base + (1u << of.shift) - 1) >> of.shift;
        const uint64_t end = at + of.base + ((uint64_t)units << of.shift);
        lengths[l] = (uint8_t)units;
        put_lane(m, tile, l, bits, at, end);
        at = end;
    }
    return (at + 7) / 8;
}

/* Everything before the rests. Returns its bytes; the entry's value is the number of escapes. */
static uint64_t put_coded(maker *m, uint8_t *chunk, uint32_t *escapes)
{
    const uint32_t tiles = (m->n + TILE - 1) / TILE;
    uint8_t *lengths = chunk + 4 * tiles, *positions = lengths + LANES * tiles;
    draw_symbols(m);
    *escapes = 0;
    for (uint32_t i = 0; i < m->n; i++)
        *escapes += m->symbol[i] == ESCAPE;
    uint8_t *listed = positions + 2 * *escapes, *bits = listed + *escapes, *at = bits;
    for (uint32_t i = 0; i < m->n; i++) {
        m->exponents[i] = (uint8_t)m->exponent[m->symbol[i]];
        if (m->symbol[i] == ESCAPE) {
            put(positions, 2, i);
            positions += 2;
            *listed++ = m->exponents[i] = (uint8_t)draw(m, 1u << m->exponent_bits);
        }
    }
    for (uint32_t t = 0; t < tiles; t++) {
        put(chunk + 4 * t, 2, (uint64_t)(at - bits));
        at += put_tile(m, t, lengths + t * LANES, chunk + 4 * t + 2, at);
    }
    return up_to_16((uint64_t)(at - chunk));
}

/* Elements of these exponents with any sign and mantissa, and their rests. */
static void put_rests(maker *m, uint8_t *rests, uint8_t *elements)
{
    const uint32_t r = m->mantissa_bits + 1;
    for (uint32_t i = 0; i < m->n; i++) {
        const uint32_t rest = draw(m, 1u << r), sign = rest >> m->mantissa_bits;
        for (uint32_t k = 0; k < r; k++)
            put_bit(rests + i / RUN * r, i % RUN * r + k, rest >> k & 1);
        put(elements + i * m->bytes, m->bytes,
            sign << (m->mantissa_bits + m->exponent_bits) |
                (uint32_t)m->exponents[i] << m->mantissa_bits |
                (rest & ((1u << m->mantissa_bits) - 1)));
    }
}

/* Returns the chunk's bytes. */
static uint64_t put_chunk(maker *m, uint8_t *entry, uint8_t *chunk, uint8_t *elements)
{
    const uint32_t dice = draw(m, 12), mode = dice < 10 ? 0 : dice - 9;
    uint32_t value = 0;
    uint64_t bytes = 0;
    if (mode == 0)
        bytes = put_coded(m, chunk, &value);
    if (mode == 1) {
        value = draw(m, 1u << m->exponent_bits);
        memset(m->exponents, (int)value, CHUNK);
    }
    if (mode == 2) {
        for (uint32_t i = 0; i < m->n * m->bytes; i++)
            chunk[i] = elements[i] = (uint8_t)draw(m, 256);
        bytes = up_to_16(m->n * m->bytes);
    } else {
        put_rests(m, chunk + bytes, elements);
        bytes += up_to_16((m->n + RUN - 1) / RUN * (m->mantissa_bits + 1));
    }
    entry[5] = (uint8_t)mode;
    put(entry + 6, 2, value);
    return bytes;
}

/* ---- Streams ---- */

/* Of whatever chunks the table finds inside the stream. */
static void seal(exph_stream *s)
{
    const uint64_t chunks = (s->n + CHUNK - 1) / CHUNK, front = front_bytes(s->n);
    for (uint64_t i = 0; i < chunks; i++) {
        uint8_t *entry = s->bytes + AT_TABLE + i * ENTRY;
        const uint64_t begin = get(entry, 5) * 16;
        const uint64_t end = i + 1 < chunks ? get(entry + ENTRY, 5) * 16 : s->n_bytes;
        if (begin <= end && end <= s->n_bytes)
            put(entry + 8, 4, XXH3_64bits(s->bytes + begin, end - begin));
    }
    put(s->bytes + 8, 4,
        XXH3_64bits_withSeed(s->bytes + AT_CODEBOOK, front - AT_CODEBOOK, get(s->bytes, 8)));
}

static maker *maker_of(exph_random *random, uint32_t dtype)
{
    maker *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->random = random;
    m->bytes = (uint32_t)exph_element_bytes(dtype);
    m->exponent_bits = dtype == MOEPAGE_DTYPE_BF16 ? 8 : dtype == MOEPAGE_DTYPE_F8_E4M3 ? 4 : 5;
    m->mantissa_bits = 8 * m->bytes - 1 - m->exponent_bits;
    draw_code(m);
    return m;
}

exph_stream exph_stream_make(exph_random *random, uint32_t dtype, uint64_t n)
{
    /* Per element an escape, a code and the element; heads, lengths and lanes' padding. */
    const uint64_t room = front_bytes(n) + 8 * n + (n / TILE + 1) * 4096 + 4096;
    uint8_t *wide = calloc(1, room);
    if (!wide)
        abort();
    maker *m = maker_of(random, dtype);
    exph_stream s = {.dtype = dtype, .n = n, .n_bytes = front_bytes(n)};
    s.element_bytes = n * m->bytes;
    s.elements = guarded_alloc(s.element_bytes);
    wide[0] = 1;
    wide[1] = (uint8_t)dtype;
    put(wide + 2, 5, n);
    put_code(m, wide);
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint8_t *entry = wide + AT_TABLE + first / CHUNK * ENTRY;
        m->n = n - first < CHUNK ? (uint32_t)(n - first) : CHUNK;
        put(entry, 5, s.n_bytes / 16);
        s.n_bytes += put_chunk(m, entry, wide + s.n_bytes, s.elements + first * m->bytes);
    }
    s.bytes = guarded_alloc(s.n_bytes);
    memcpy(s.bytes, wide, s.n_bytes);
    seal(&s);
    free(wide);
    free(m);
    return s;
}

static uint64_t random_size(exph_random *random)
{
    static const uint32_t edges[] = {256, 512, 8192, 8448, 16384, 24576, 32768, 65536};
    const uint64_t dice = exph_below(random, 100);
    if (dice < 30)
        return 1 + exph_below(random, 40);
    if (dice < 60)
        return 1 + exph_below(random, 2600);
    if (dice < 80)
        return edges[exph_below(random, sizeof edges / sizeof *edges)] + exph_below(random, 19) - 9;
    return 1 + exph_below(random, dice < 97 ? 34000 : 110000);
}

exph_stream exph_stream_any(exph_random *random)
{
    const uint64_t dice = exph_below(random, 8);
    return exph_stream_make(random, exph_dtypes[dice < 4 ? dice : 0], random_size(random));
}

void exph_stream_free(exph_stream *stream)
{
    guarded_free(stream->bytes, stream->n_bytes);
    guarded_free(stream->elements, stream->element_bytes);
}

/* Lanes that lead to the stream's last bytes and past them. */
static void point_at_end(exph_random *random, exph_stream *s, const uint8_t *entry)
{
    const uint64_t chunk = get(entry, 5) * 16, front = front_bytes(s->n);
    const uint64_t first = (uint64_t)(entry - s->bytes - AT_TABLE) / ENTRY * CHUNK;
    const uint64_t n = s->n - first < CHUNK ? s->n - first : CHUNK, tiles = (n + TILE - 1) / TILE;
    const uint64_t bits = chunk + tiles * (4 + LANES) + 3 * get(entry + 6, 2);
    const uint64_t target = s->n_bytes - exph_below(random, 2048);
    if (chunk < front || bits > s->n_bytes || target < bits)
        return;
    uint8_t *head = s->bytes + chunk + exph_below(random, tiles) * 4;
    put(head, 2, target - bits);
    put(head + 2, 2, exph_below(random, 300));
}

void exph_stream_damage(exph_random *random, exph_stream *s)
{
    const uint64_t chunks = (s->n + CHUNK - 1) / CHUNK, front = front_bytes(s->n);
    for (uint64_t left = 1 + exph_below(random, 4); left; left--) {
        const uint8_t *entry = s->bytes + AT_TABLE + exph_below(random, chunks) * ENTRY;
        const uint64_t where = exph_below(random, 5);
        uint64_t at = exph_below(random, s->n_bytes);
        if (where == 1)
            at = AT_CODEBOOK + exph_below(random, front - AT_CODEBOOK);
        if (where == 2 || where == 3) /* what says where a chunk's lanes are */
            at = get(entry, 5) * 16 + exph_below(random, 4 * (4 + LANES) + 16);
        if (where == 4)
            point_at_end(random, s, entry);
        else if (at < s->n_bytes)
            s->bytes[at] = (uint8_t)exph_below(random, 256);
    }
    seal(s);
}
