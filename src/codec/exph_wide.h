/* exph_wide.h — several symbols per look-up, four lanes at a time, in plain C: the part of decoding
 * that needs no vectors. One lane's look-up runs while another's waits.
 *
 * Included by the decoders that join exponents and rests in their own ways, and inlined, so that
 * each compiles it for its instruction set. */
#ifndef MP_CODEC_EXPH_WIDE_H
#define MP_CODEC_EXPH_WIDE_H

#include "codec/exph_decoder.h"

#define MP_EXPH_INLINE static inline __attribute__((always_inline))

/* ---- The table ---- */

/* An entry for a window of k bits: the exponents of the symbols that lie completely in it, the
 * first one in the lowest byte; their length in bits from bit 48; their number from bit 56. Entries
 * for windows of k bits are at index 2^k + window. */
enum { MP_WIDE_MOST_SYMBOLS = 6, MP_WIDE_AT_LENGTH = 48, MP_WIDE_AT_COUNT = 56 };

/* Longer windows hold more symbols per look-up, but their table takes longer to build. */
enum {
    MP_WIDE_SHORT_WINDOW = 9,
    MP_WIDE_LONG_WINDOW = 11,
    MP_WIDE_LONG_FROM = 65536 /* elements */
};

#define MP_WIDE_ONE_MORE (UINT64_C(1) << MP_WIDE_AT_COUNT)
#define MP_WIDE_EXPONENTS ((UINT64_C(1) << MP_WIDE_AT_LENGTH) - 1)

typedef struct mp_wide_table {
    uint32_t window; /* bits */
    uint32_t reserved;
    uint64_t entries[2 << MP_WIDE_LONG_WINDOW];
} mp_wide_table;

_Static_assert(sizeof(mp_wide_table) <= MP_EXPH_SCRATCH_BYTES, "tables fit the scratch");

/* Builds the entry of a window with more symbols than fit: the first MP_WIDE_MOST_SYMBOLS, one by
 * one. */
static inline uint64_t mp_wide_full_entry(const mp_exph_book *book, uint32_t window)
{
    uint64_t entry = 0;
    for (uint32_t i = 0; i < MP_WIDE_MOST_SYMBOLS; i++) {
        const uint32_t found = book->entry[window % MP_EXPH_WINDOWS], length = found & 15;
        entry |= (uint64_t)book->exponent[found >> 4] << (8 * i);
        entry += MP_WIDE_ONE_MORE | (uint64_t)length << MP_WIDE_AT_LENGTH;
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
    const uint64_t head =
        MP_WIDE_ONE_MORE | (uint64_t)length << MP_WIDE_AT_LENGTH | book->exponent[s];
    uint64_t *out = entries + (1u << k) + first;
    for (uint32_t i = 0; i < 1u << (k - length); i++, out += 1u << length) {
        const uint64_t rest = rests[i];
        if (rest >> MP_WIDE_AT_COUNT < MP_WIDE_MOST_SYMBOLS)
            *out = ((rest & MP_WIDE_EXPONENTS) << 8) + (rest & ~MP_WIDE_EXPONENTS) + head;
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

/* ---- Lanes ---- */

/* A turn is one load of each of the four lanes' bits, and the look-ups for which one load
 * suffices. */
enum {
    MP_WIDE_ABREAST = 4,
    MP_WIDE_TURN_LOOKUPS = 5,
    MP_WIDE_LANE_SYMBOLS = MP_EXPH_TILE / MP_EXPH_LANES,
    MP_WIDE_LANE_ROOM = MP_WIDE_LANE_SYMBOLS + MP_WIDE_TURN_LOOKUPS * MP_WIDE_MOST_SYMBOLS + 2
};
_Static_assert(7 + MP_WIDE_TURN_LOOKUPS * MP_WIDE_LONG_WINDOW <= 64, "a load suffices for a turn");

/* A finished lane continues with the others, and its surplus symbols are overwritten. One symbol
 * per look-up at least bounds how far it can read on in the stream. */
_Static_assert(MP_WIDE_LANE_SYMBOLS / MP_WIDE_TURN_LOOKUPS * MP_WIDE_TURN_LOOKUPS *
                           MP_WIDE_LONG_WINDOW / 8 +
                       24 <=
                   MP_EXPH_LANE_REACH,
               "no lane reads further than was checked");

typedef struct mp_wide_lane {
    const uint8_t *at;
    uint64_t place; /* spent bits of the byte at `at` | symbols decoded << 8 */
} mp_wide_lane;

MP_EXPH_INLINE void mp_wide_turn(const uint64_t *entries, uint64_t mask, mp_wide_lane *of,
                                 uint8_t *out)
{
    uint64_t place = of->place;
    uint64_t bits = mp_exph_get64(of->at) >> (place & 7);
    MP_UNROLL
    for (uint32_t i = 0; i < MP_WIDE_TURN_LOOKUPS; i++) {
        const uint64_t entry = entries[bits & mask], both = entry >> MP_WIDE_AT_LENGTH;
        mp_exph_put64(out + (place >> 8), entry);
        bits >>= both & 63;
        place += both;
    }
    of->at += (place & 0xff) >> 3;
    place &= ~UINT64_C(0xf8);
    const uint64_t end = (uint64_t)MP_WIDE_LANE_SYMBOLS << 8;
    of->place = place < end ? place : end;
}

MP_EXPH_INLINE void mp_wide_decode_lanes(const mp_wide_table *table, const uint8_t *base,
                                         const uint32_t *start, uint32_t symbols,
                                         uint8_t out[MP_WIDE_ABREAST][MP_WIDE_LANE_ROOM])
{
    const uint64_t *entries = table->entries + (1u << table->window);
    const uint64_t mask = (1u << table->window) - 1, enough = (uint64_t)symbols << 8;
    mp_wide_lane lanes[MP_WIDE_ABREAST];
    MP_UNROLL
    for (uint32_t i = 0; i < MP_WIDE_ABREAST; i++)
        lanes[i] = (mp_wide_lane){.at = base + start[i] / 8, .place = start[i] % 8};
    uint64_t least;
    do {
        least = UINT64_MAX;
        MP_UNROLL
        for (uint32_t i = 0; i < MP_WIDE_ABREAST; i++) {
            mp_wide_turn(entries, mask, &lanes[i], out[i]);
            least = lanes[i].place < least ? lanes[i].place : least;
        }
    } while (least < enough);
}

/* ---- Tiles ---- */

/* Joins a group of elements from its lanes' exponents and its rests. */
typedef void mp_wide_join(uint8_t exponents[MP_EXPH_LANES][MP_WIDE_LANE_ROOM], uint32_t group,
                          const uint8_t *rests, uint8_t *out);

/* Decodes a tile's exponents lane by lane into a buffer, then joins elements from it group by
 * group. */
MP_EXPH_INLINE void mp_wide_decode_tile(const mp_wide_table *table, mp_wide_join *join,
                                        const uint8_t *base, const uint32_t *start,
                                        const uint8_t *rests, uint32_t n, uint8_t *out)
{
    uint8_t exponents[MP_EXPH_LANES][MP_WIDE_LANE_ROOM];
    const uint32_t groups = n / MP_EXPH_GROUP, left = n % MP_EXPH_GROUP;
    const uint32_t symbols = (groups + (left != 0)) * MP_EXPH_RUN;
    for (uint32_t l = 0; l < MP_EXPH_LANES; l += MP_WIDE_ABREAST)
        mp_wide_decode_lanes(table, base, start + l, symbols, exponents + l);
    for (uint32_t g = 0; g < groups; g++)
        join(exponents, g, rests + g * MP_EXPH_GROUP, out + 2 * g * MP_EXPH_GROUP);
    if (left) {
        uint8_t last_rests[MP_EXPH_GROUP] = {0}, last[2 * MP_EXPH_GROUP];
        memcpy(last_rests, rests + groups * MP_EXPH_GROUP, left);
        join(exponents, groups, last_rests, last);
        memcpy(out + 2 * groups * MP_EXPH_GROUP, last, 2 * left);
    }
}

/* `join` is a compile-time constant wherever this is inlined. */
MP_EXPH_INLINE void mp_wide_decode(const mp_wide_table *table, mp_wide_join *join,
                                   const mp_exph_coded *chunk, uint8_t *out)
{
    for (uint32_t t = 0; t < mp_exph_tiles(chunk->n); t++)
        mp_wide_decode_tile(table, join, chunk->base, chunk->start + t * MP_EXPH_LANES,
                            chunk->rests + t * MP_EXPH_TILE, mp_exph_tile_elements(chunk->n, t),
                            out + 2 * t * MP_EXPH_TILE);
}

#endif
