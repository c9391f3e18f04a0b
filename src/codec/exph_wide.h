/* exph_wide.h — several symbols per look-up, eight lanes at a time, in plain C: the part of decoding
 * that needs no vectors. One lane's look-up runs while the others' wait.
 *
 * Included by the decoders that join exponents and rests in their own ways, each of which compiles
 * it for its instruction set: MP_WIDE_TARGET, if defined before, is an attribute of every function
 * that decodes. */
#ifndef MP_CODEC_EXPH_WIDE_H
#define MP_CODEC_EXPH_WIDE_H

#include <stddef.h>

#include "codec/exph_decoder.h"

#ifndef MP_WIDE_TARGET
#define MP_WIDE_TARGET
#endif
#define MP_WIDE_INLINE MP_WIDE_TARGET static inline __attribute__((always_inline))

/* ---- The table ---- */

/* An entry for a window of k bits, of the symbols that lie completely in it:
 *
 *   bits 0-7  their length in bits | 8-15  their number | 16-63  their exponents, the first highest
 *
 * A shift by an entry is one by its lowest 6 bits, so the length needs no extraction. Exponents are
 * written downwards, so that an entry is stored whole: its lowest bytes lie where the next symbols
 * go. Entries for windows of k bits are at index 2^k + window. */
enum { MP_WIDE_MOST_SYMBOLS = 6, MP_WIDE_AT_COUNT = 8, MP_WIDE_AT_FIRST = 56 };

/* Longer windows hold more symbols per look-up, but their table takes longer to build. */
enum {
    MP_WIDE_SHORT_WINDOW = 9,
    MP_WIDE_LONG_WINDOW = 11,
    MP_WIDE_LONG_FROM = 65536 /* elements */
};

#define MP_WIDE_ONE_MORE (UINT64_C(1) << MP_WIDE_AT_COUNT)
#define MP_WIDE_EXPONENTS (~UINT64_C(0xffff))

typedef struct mp_wide_table {
    uint32_t window; /* bits */
    uint32_t reserved;
    uint64_t entries[2 << MP_WIDE_LONG_WINDOW];
} mp_wide_table;

_Static_assert(sizeof(mp_wide_table) <= MP_EXPH_SCRATCH_BYTES, "tables fit the scratch");

/* Returns an exponent as entries hold it: rotated right, which leaves its bits where an element's
 * two bytes have them, the lowest in bit 7 of the low byte, the others in bits 0 to 6 of the high
 * byte. */
static inline uint64_t mp_wide_exponent(const mp_exph_book *book, uint32_t symbol)
{
    const uint32_t exponent = book->exponent[symbol];
    return exponent >> 1 | (exponent & 1) << 7;
}

/* Builds the entry of a window with more symbols than fit: the first MP_WIDE_MOST_SYMBOLS, one by
 * one. */
static inline uint64_t mp_wide_full_entry(const mp_exph_book *book, uint32_t window)
{
    uint64_t entry = 0;
    for (uint32_t i = 0; i < MP_WIDE_MOST_SYMBOLS; i++) {
        const uint32_t found = book->entry[window % MP_EXPH_WINDOWS], length = found & 15;
        entry |= mp_wide_exponent(book, found >> 4) << (MP_WIDE_AT_FIRST - 8 * i);
        entry += MP_WIDE_ONE_MORE + length;
        window >>= length;
    }
    return entry;
}

/* Fills the entries of all windows of k bits that begin with symbol s from the entries of their
 * remaining bits. */
static inline void mp_wide_fill_symbol(const mp_exph_book *book, uint32_t s, uint32_t first,
                                       uint32_t k, uint64_t *entries)
{
    const uint32_t length = book->length[s];
    const uint64_t *rests = entries + (1u << (k - length));
    const uint64_t head = mp_wide_exponent(book, s) << MP_WIDE_AT_FIRST | MP_WIDE_ONE_MORE | length;
    uint64_t *out = entries + (1u << k) + first;
    for (uint32_t i = 0; i < 1u << (k - length); i++, out += 1u << length) {
        const uint64_t rest = rests[i];
        if ((rest & ~MP_WIDE_EXPONENTS) >> MP_WIDE_AT_COUNT < MP_WIDE_MOST_SYMBOLS)
            *out = (rest >> 8 & MP_WIDE_EXPONENTS) + (rest & ~MP_WIDE_EXPONENTS) + head;
        else
            *out = mp_wide_full_entry(book, first + (i << length));
    }
}

static inline void mp_wide_prepare(const mp_exph_book *book, uint64_t elements, void *scratch)
{
    mp_wide_table *table = scratch;
    uint8_t codes[MP_EXPH_SYMBOLS];
    table->window = elements < MP_WIDE_LONG_FROM ? MP_WIDE_SHORT_WINDOW : MP_WIDE_LONG_WINDOW;
    mp_exph_code_assign(book->length, codes);
    for (uint32_t k = 0; k <= table->window; k++) {
        if (k < MP_EXPH_MAX_LENGTH) /* windows that begin with a longer code hold no symbol */
            memset(table->entries + (1u << k), 0, sizeof *table->entries << k);
        for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++) {
            if (book->length[s] && book->length[s] <= k)
                mp_wide_fill_symbol(book, s, codes[s], k, table->entries);
        }
    }
}

/* ---- Rows ---- */

/* Every lane has a row of 256 bytes for its exponents, the first in the highest. Lanes are decoded
 * in sets, and each lane of a set has its row in another strip:
 *
 *   strip i:  surplus | row of lane 4i + 3 | of 4i + 2 | of 4i + 1 | of 4i
 *
 * A finished lane continues with the others of its set. Its surplus exponents go to rows below,
 * which are filled later, or to the strip's surplus. */
enum {
    MP_WIDE_ABREAST = 8,
    MP_WIDE_SETS = MP_EXPH_LANES / MP_WIDE_ABREAST,
    MP_WIDE_LOOKUPS = 5, /* for which one load of a lane's bits suffices */
    MP_WIDE_ROW = MP_EXPH_TILE / MP_EXPH_LANES,
    MP_WIDE_MOST_TURNS = (MP_WIDE_ROW + MP_WIDE_LOOKUPS - 1) / MP_WIDE_LOOKUPS,
    MP_WIDE_SURPLUS = MP_WIDE_MOST_TURNS * MP_WIDE_LOOKUPS * MP_WIDE_MOST_SYMBOLS - MP_WIDE_ROW + 8,
    MP_WIDE_STRIP = MP_WIDE_SURPLUS + MP_WIDE_SETS * MP_WIDE_ROW,
    MP_WIDE_ROOM = MP_WIDE_ABREAST * MP_WIDE_STRIP
};

MP_WIDE_INLINE uint8_t *mp_wide_row(uint8_t *room, uint32_t lane)
{
    return room + lane / MP_WIDE_SETS * MP_WIDE_STRIP + MP_WIDE_SURPLUS +
           (MP_WIDE_SETS - 1 - lane % MP_WIDE_SETS) * MP_WIDE_ROW;
}

/* Returns the 8 exponents that a lane has in a group, the first one highest. */
MP_WIDE_INLINE const uint8_t *mp_wide_run(const uint8_t *room, uint32_t lane, uint32_t group)
{
    return mp_wide_row((uint8_t *)room, lane) + MP_WIDE_ROW - (group + 1) * MP_EXPH_RUN;
}

/* ---- Lanes ---- */

typedef struct mp_wide_lane {
    const uint8_t *at; /* of its next bit */
    uint64_t spent;    /* bits of that byte */
    uint8_t *to;       /* of its next exponent, as if its row were in the first strip */
} mp_wide_lane;

/* More lanes side by side keep more of their state in memory, fewer wait for their look-ups. */
enum { MP_WIDE_BESIDE = 4 };

/* A bit above the window marks its end: the zeros above it count the bits that are spent. */
#define MP_WIDE_MARK (UINT64_C(1) << 63)
_Static_assert(7 + MP_WIDE_LOOKUPS * MP_WIDE_LONG_WINDOW < 64, "a load suffices for a turn");

/* One symbol per look-up at least bounds how far a finished lane can read on in the stream. */
_Static_assert((7 + (MP_WIDE_MOST_TURNS - 1) * MP_WIDE_LOOKUPS * MP_WIDE_LONG_WINDOW) / 8 + 8 <=
                   MP_EXPH_LANE_REACH,
               "no lane reads further than was checked");

/* Decodes a turn of the lanes whose strips are `strip` and the next: one load of each lane's bits,
 * and its look-ups. */
MP_WIDE_INLINE void mp_wide_turn(const uint64_t *entries, uint64_t mask, uint32_t strip,
                                 mp_wide_lane *of)
{
    uint64_t bits[MP_WIDE_BESIDE];
    uint8_t *to[MP_WIDE_BESIDE];
    MP_UNROLL
    for (uint32_t l = 0; l < MP_WIDE_BESIDE; l++) {
        bits[l] = (mp_exph_get64(of[l].at) | MP_WIDE_MARK) >> of[l].spent;
        to[l] = of[l].to;
    }
    MP_UNROLL
    for (uint32_t i = 0; i < MP_WIDE_LOOKUPS; i++) {
        MP_UNROLL
        for (uint32_t l = 0; l < MP_WIDE_BESIDE; l++) {
            const uint64_t entry = entries[bits[l] & mask];
            mp_exph_put64(to[l] + (strip + l) * MP_WIDE_STRIP - 7, entry);
            to[l] -= entry >> MP_WIDE_AT_COUNT & 0xff;
            bits[l] >>= entry & 63;
        }
    }
    MP_UNROLL
    for (uint32_t l = 0; l < MP_WIDE_BESIDE; l++) {
        const uint32_t spent = (uint32_t)__builtin_clzll(bits[l]);
        of[l].at += spent / 8;
        of[l].spent = spent % 8;
        of[l].to = to[l];
    }
}

/* Elements' memory that is fetched while lanes are decoded, a few lines per turn: stores to it do
 * not wait later. In the second cache, for the first is full of the table and the rows. */
typedef struct mp_wide_ahead {
    const uint8_t *at, *end;
} mp_wide_ahead;

enum { MP_WIDE_LINE = 64, MP_WIDE_TURN_LINES = 5 };

MP_WIDE_INLINE void mp_wide_fetch(mp_wide_ahead *ahead)
{
    if (ahead->end - ahead->at < MP_WIDE_TURN_LINES * MP_WIDE_LINE)
        return;
    MP_UNROLL
    for (uint32_t i = 0; i < MP_WIDE_TURN_LINES; i++)
        __builtin_prefetch(ahead->at + i * MP_WIDE_LINE, 1, 2);
    ahead->at += MP_WIDE_TURN_LINES * MP_WIDE_LINE;
}

/* Decodes the lanes of a set, the first of which has `row` and whose starts are MP_WIDE_SETS apart.
 * A function of its own, so that the loop has all registers. */
MP_WIDE_TARGET __attribute__((noinline)) static void
mp_wide_decode_set(const uint64_t *entries, uint64_t mask, const uint8_t *base,
                   const uint32_t *start, uint32_t symbols, uint8_t *row, mp_wide_ahead *ahead)
{
    mp_wide_lane lanes[MP_WIDE_ABREAST];
    uint8_t *const last = row + MP_WIDE_ROW - symbols;
    mp_wide_ahead fetch = *ahead;
    MP_UNROLL
    for (uint32_t i = 0; i < MP_WIDE_ABREAST; i++)
        lanes[i] = (mp_wide_lane){.at = base + start[i * MP_WIDE_SETS] / 8,
                                  .spent = start[i * MP_WIDE_SETS] % 8,
                                  .to = row + MP_WIDE_ROW - 1};
    ptrdiff_t left; /* negative when all lanes are below their last symbols */
    do {
        left = -1;
        mp_wide_fetch(&fetch);
        MP_UNROLL
        for (uint32_t i = 0; i < MP_WIDE_ABREAST; i += MP_WIDE_BESIDE)
            mp_wide_turn(entries, mask, i, lanes + i);
        MP_UNROLL
        for (uint32_t i = 0; i < MP_WIDE_ABREAST; i++)
            left &= lanes[i].to - last;
    } while (left >= 0);
    *ahead = fetch;
}

/* ---- Tiles ---- */

/* Joins a group of elements from its lanes' exponents and its rests. */
typedef void mp_wide_join(const uint8_t *room, uint32_t group, const uint8_t *rests, uint8_t *out);

/* Decodes a tile's exponents set by set into rows, then joins elements from them group by group. */
MP_WIDE_INLINE void mp_wide_decode_tile(const mp_wide_table *table, mp_wide_join *join,
                                        const uint8_t *base, const uint32_t *start,
                                        const uint8_t *rests, uint32_t n, uint8_t *out)
{
    uint8_t room[MP_WIDE_ROOM];
    const uint32_t windows = 1u << table->window;
    const uint32_t groups = n / MP_EXPH_GROUP, left = n % MP_EXPH_GROUP;
    const uint32_t symbols = (groups + (left != 0)) * MP_EXPH_RUN;
    mp_wide_ahead ahead = {.at = out, .end = out + (size_t)2 * n};
    for (uint32_t l = 0; l < MP_WIDE_SETS; l++)
        mp_wide_decode_set(table->entries + windows, windows - 1, base, start + l, symbols,
                           mp_wide_row(room, l), &ahead);
    for (uint32_t g = 0; g < groups; g++)
        join(room, g, rests + g * MP_EXPH_GROUP, out + 2 * g * MP_EXPH_GROUP);
    if (left) {
        uint8_t last_rests[MP_EXPH_GROUP] = {0}, last[2 * MP_EXPH_GROUP];
        memcpy(last_rests, rests + groups * MP_EXPH_GROUP, left);
        join(room, groups, last_rests, last);
        memcpy(out + 2 * groups * MP_EXPH_GROUP, last, 2 * left);
    }
}

/* `join` is a compile-time constant wherever this is inlined. */
MP_WIDE_INLINE void mp_wide_decode(const mp_wide_table *table, mp_wide_join *join,
                                   const mp_exph_coded *chunk, uint8_t *out)
{
    for (uint32_t t = 0; t < mp_exph_tiles(chunk->n); t++)
        mp_wide_decode_tile(table, join, chunk->base, chunk->start + t * MP_EXPH_LANES,
                            chunk->rests + t * MP_EXPH_TILE, mp_exph_tile_elements(chunk->n, t),
                            out + 2 * t * MP_EXPH_TILE);
}

#endif
