/* The AVX-512 decoder (with VBMI): up to 64 lanes, those of two tiles, decode one symbol each per
 * step.
 *
 * Each lane has a 64-bit window: lane (q, j) is quadword q of register j. One multishift under a
 * mask takes the next 8 bits of register j's lanes to byte j of their quadwords, so that eight
 * multishifts make one register of 64 table indices. The table of 256 entries is four registers. A
 * run's eight registers of symbols, transposed bytewise, are eight registers of eight lanes' runs;
 * the mapping of lanes to (q, j) is chosen so that these come out in memory order. */
#include "codec/exph_decoder.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* A function attribute instead of compiler flags, so that the file is built like all others. */
#define MP_AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")))
#define MP_INLINE MP_AVX512 static inline __attribute__((always_inline))

/* Registers of windows for two tiles' lanes, or for one tile's. Always a compile-time constant in
 * calls. */
enum { REGISTERS = 8, HALF = 4, SET_LANES = 8 * REGISTERS };

/* A window holds 64 bits, up to 7 of them spent when it is loaded. Half a run may take 4 * 8
 * bits. */
enum { HALF_RUN = MP_EXPH_RUN / 2, MOST_SPENT = 64 - HALF_RUN * MP_EXPH_MAX_LENGTH };

/* Three-operand truth tables for vpternlog. */
enum { OR3 = 0xfe, SELECT = 0xca /* first ? second : third */ };

typedef struct tables {
    __m512i entry[4];
    __m512i low;  /* by symbol: the exponent's bits in an element's low byte, */
    __m512i high; /* and in its high byte */
} tables;

typedef struct lanes {
    __m512i window[REGISTERS];
    __m512i spent;          /* spent bits of each window: lane (q, j)'s in byte j of quadword q */
    uint64_t at[SET_LANES]; /* first byte of each window: lane (q, j)'s at 8 * j + q */
} lanes;

MP_AVX512 static void load_tables(const mp_exph_book *book, tables *out)
{
    uint8_t low[MP_EXPH_SYMBOLS], high[MP_EXPH_SYMBOLS];
    for (uint32_t i = 0; i < 4; i++)
        out->entry[i] = _mm512_loadu_si512(book->entry + 64 * i);
    for (uint32_t s = 0; s < MP_EXPH_SYMBOLS; s++) {
        low[s] = (uint8_t)(book->exponent[s] << 7);
        high[s] = book->exponent[s] >> 1;
    }
    out->low = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)low));
    out->high = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)high));
}

/* ---- Windows ---- */

MP_INLINE __m128i load_two(const uint8_t *low, const uint8_t *high)
{
    return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64((const __m128i *)low)),
                                         (const double *)high));
}

MP_INLINE __m256i load_four(const uint8_t *base, const uint64_t *at)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_two(base + at[0], base + at[1])),
                                   load_two(base + at[2], base + at[3]), 1);
}

/* Loads the windows with eight loads and shuffles, which are faster than a gather. */
MP_INLINE __m512i load_windows(const uint8_t *base, const uint64_t *at)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_four(base, at)), load_four(base, at + 4),
                              1);
}

/* Returns the lane that the transposition expects in quadword q of register j. */
MP_INLINE uint32_t lane_at(uint32_t q, uint32_t j)
{
    return 8 * ((q & 1) + 2 * (j >> 1)) + (q >> 1) + 4 * (j & 1);
}

MP_INLINE void open_lanes(const uint8_t *base, const uint32_t *start, uint32_t registers,
                          lanes *out)
{
    uint8_t spent[SET_LANES] = {0};
    for (uint32_t j = 0; j < registers; j++) {
        for (uint32_t q = 0; q < 8; q++) {
            const uint32_t bit = start[lane_at(q, j)];
            out->at[8 * j + q] = bit / 8;
            spent[8 * q + j] = bit % 8;
        }
    }
    out->spent = _mm512_loadu_si512(spent);
    MP_UNROLL
    for (uint32_t j = 0; j < registers; j++)
        out->window[j] = load_windows(base, out->at + 8 * j);
}

MP_INLINE void refill(const uint8_t *base, uint32_t registers, lanes *of)
{
    const __m512i bytes = _mm512_and_si512(_mm512_srli_epi16(of->spent, 3), _mm512_set1_epi8(15));
    MP_UNROLL
    for (uint32_t j = 0; j < registers; j++) {
        const __m512i moved =
            _mm512_and_si512(_mm512_srli_epi64(bytes, 8 * j), _mm512_set1_epi64(0xff));
        _mm512_storeu_si512(of->at + 8 * j,
                            _mm512_add_epi64(_mm512_loadu_si512(of->at + 8 * j), moved));
    }
    MP_UNROLL
    for (uint32_t j = 0; j < registers; j++)
        of->window[j] = load_windows(base, of->at + 8 * j);
    of->spent = _mm512_and_si512(of->spent, _mm512_set1_epi8(7));
}

/* Refills the windows unless each still holds half a run. */
MP_INLINE void refill_if_low(const uint8_t *base, uint32_t registers, lanes *of)
{
    if (_mm512_cmpgt_epu8_mask(of->spent, _mm512_set1_epi8(MOST_SPENT)))
        refill(base, registers, of);
}

/* ---- Symbols ---- */

/* Returns the next 8 bits of lane (q, j) in byte j of quadword q. */
MP_INLINE __m512i next_bits(uint32_t registers, const lanes *of)
{
    __m512i part[REGISTERS];
    MP_UNROLL
    for (uint32_t j = 0; j < registers; j++)
        part[j] = _mm512_maskz_multishift_epi64_epi8(UINT64_C(0x0101010101010101) << j, of->spent,
                                                     of->window[j]);
    __m512i all = _mm512_ternarylogic_epi64(part[0], part[1], part[2], OR3);
    if (registers == HALF)
        return _mm512_or_si512(all, part[3]);
    all = _mm512_ternarylogic_epi64(all, part[6], part[7], OR3);
    return _mm512_or_si512(all, _mm512_ternarylogic_epi64(part[3], part[4], part[5], OR3));
}

/* Decodes one symbol of every lane; returns its table entry, symbol << 4 | length. */
MP_INLINE __m512i next_entries(const tables *table, uint32_t registers, lanes *of)
{
    const __m512i index = next_bits(registers, of);
    const __m512i low = _mm512_permutex2var_epi8(table->entry[0], index, table->entry[1]);
    const __m512i high = _mm512_permutex2var_epi8(table->entry[2], index, table->entry[3]);
    const __m512i entry = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
    of->spent = _mm512_add_epi8(of->spent, _mm512_and_si512(entry, _mm512_set1_epi8(15)));
    return entry;
}

/* Transposes symbols. In: entry[s] has symbol s of each lane. Out: out[x] has the runs of lanes 8x
 * to 8x + 7, in the order 0, 4, 1, 5, 2, 6, 3, 7. */
MP_INLINE void transpose(const __m512i entry[MP_EXPH_RUN], __m512i out[REGISTERS])
{
    __m512i two[2][4], four[2][2][2]; /* by parity of q, by half of j, by half of the run */
    MP_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        two[0][i] = _mm512_unpacklo_epi8(entry[2 * i], entry[2 * i + 1]);
        two[1][i] = _mm512_unpackhi_epi8(entry[2 * i], entry[2 * i + 1]);
    }
    MP_UNROLL
    for (uint32_t q = 0; q < 2; q++) {
        MP_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            four[q][0][i] = _mm512_unpacklo_epi16(two[q][2 * i], two[q][2 * i + 1]);
            four[q][1][i] = _mm512_unpackhi_epi16(two[q][2 * i], two[q][2 * i + 1]);
        }
    }
    MP_UNROLL
    for (uint32_t q = 0; q < 2; q++) {
        MP_UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            out[4 * j + q] = _mm512_unpacklo_epi32(four[q][j][0], four[q][j][1]);
            out[4 * j + 2 + q] = _mm512_unpackhi_epi32(four[q][j][0], four[q][j][1]);
        }
    }
}

/* ---- Elements ---- */

/* Joins 64 elements from their entries, which are in the transposition's order; unpacking undoes
 * it. */
MP_INLINE void join(const tables *table, __m512i entries, const uint8_t *rests, uint8_t *out)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i rest = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(rests));
    const __m512i symbol = _mm512_and_si512(_mm512_srli_epi16(entries, 4), _mm512_set1_epi8(15));
    const __m512i low_part = _mm512_shuffle_epi8(table->low, symbol);
    const __m512i high_part = _mm512_shuffle_epi8(table->high, symbol);
    const __m512i mantissa = _mm512_set1_epi8(0x7f);
    const __m512i low = _mm512_ternarylogic_epi64(mantissa, rest, low_part, SELECT);
    const __m512i high = _mm512_ternarylogic_epi64(mantissa, high_part, rest, SELECT);
    _mm512_storeu_si512(out, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(out + 64, _mm512_unpackhi_epi8(low, high));
}

MP_INLINE void join_group(const tables *table, const __m512i entries[HALF], const uint8_t *rests,
                          uint8_t *out)
{
    MP_UNROLL
    for (uint32_t x = 0; x < HALF; x++)
        join(table, entries[x], rests + 64 * x, out + 128 * x);
}

/* Writes one group of `tile` from its transposed entries. The group may be the chunk's last and
 * short, or lie past the end. */
MP_INLINE void put_group(const tables *table, const mp_exph_coded *chunk,
                         const __m512i entries[HALF], uint32_t tile, uint32_t group, uint8_t *out)
{
    const uint32_t first = tile * MP_EXPH_TILE + group * MP_EXPH_GROUP;
    if (first + MP_EXPH_GROUP <= chunk->n) {
        join_group(table, entries, chunk->rests + first, out + 2 * first);
    } else if (first < chunk->n) {
        uint8_t rests[MP_EXPH_GROUP] = {0}, elements[2 * MP_EXPH_GROUP];
        memcpy(rests, chunk->rests + first, chunk->n - first);
        join_group(table, entries, rests, elements);
        memcpy(out + 2 * first, elements, 2 * (chunk->n - first));
    }
}

MP_INLINE void put_groups(const tables *table, const mp_exph_coded *chunk,
                          const __m512i entry[MP_EXPH_RUN], uint32_t registers, uint32_t tile,
                          uint32_t group, uint8_t *out)
{
    __m512i entries[REGISTERS];
    transpose(entry, entries);
    put_group(table, chunk, entries, tile, group, out);
    if (registers == REGISTERS)
        put_group(table, chunk, entries + HALF, tile + 1, group, out);
}

/* ---- Tiles ---- */

MP_INLINE uint32_t groups_of(const mp_exph_coded *chunk, uint32_t tile)
{
    const uint32_t n = mp_exph_tile_elements(chunk->n, tile);
    return (n + MP_EXPH_GROUP - 1) / MP_EXPH_GROUP;
}

/* Decodes one tile or two, as `registers` says. */
MP_INLINE void decode_set(const tables *table, const mp_exph_coded *chunk, uint32_t registers,
                          uint32_t tile, uint8_t *out)
{
    const uint32_t groups = groups_of(chunk, tile);
    lanes set;
    open_lanes(chunk->base, chunk->start + tile * MP_EXPH_LANES, registers, &set);
    for (uint32_t group = 0; group < groups; group++) {
        __m512i entry[MP_EXPH_RUN];
        MP_UNROLL
        for (uint32_t i = 0; i < MP_EXPH_RUN; i++) {
            if (i % HALF_RUN == 0)
                refill_if_low(chunk->base, registers, &set);
            entry[i] = next_entries(table, registers, &set);
        }
        put_groups(table, chunk, entry, registers, tile, group, out);
    }
}

MP_AVX512 static void decode_one(const tables *table, const mp_exph_coded *chunk, uint32_t tile,
                                 uint8_t *out)
{
    decode_set(table, chunk, HALF, tile, out);
}

MP_AVX512 static void decode_two(const tables *table, const mp_exph_coded *chunk, uint32_t tile,
                                 uint8_t *out)
{
    decode_set(table, chunk, REGISTERS, tile, out);
}

/* Decodes two sets side by side, so that one's steps run during the other's latencies. */
MP_AVX512 static void decode_four(const tables *table, const mp_exph_coded *chunk, uint8_t *out)
{
    lanes a, b;
    open_lanes(chunk->base, chunk->start, REGISTERS, &a);
    open_lanes(chunk->base, chunk->start + SET_LANES, REGISTERS, &b);
    for (uint32_t group = 0; group < MP_EXPH_TILE_GROUPS; group++) {
        __m512i entry_a[MP_EXPH_RUN], entry_b[MP_EXPH_RUN];
        MP_UNROLL
        for (uint32_t i = 0; i < MP_EXPH_RUN; i++) {
            if (i % HALF_RUN == 0) {
                refill_if_low(chunk->base, REGISTERS, &a);
                refill_if_low(chunk->base, REGISTERS, &b);
            }
            entry_a[i] = next_entries(table, REGISTERS, &a);
            entry_b[i] = next_entries(table, REGISTERS, &b);
        }
        put_groups(table, chunk, entry_a, REGISTERS, 0, group, out);
        put_groups(table, chunk, entry_b, REGISTERS, 2, group, out);
    }
}

MP_AVX512 static void decode(const mp_exph_book *book, const void *scratch,
                             const mp_exph_coded *chunk, uint8_t *out)
{
    tables table;
    (void)scratch;
    load_tables(book, &table);
    switch (mp_exph_tiles(chunk->n)) {
    case 1: decode_one(&table, chunk, 0, out); break;
    case 2: decode_two(&table, chunk, 0, out); break;
    case 3:
        decode_two(&table, chunk, 0, out);
        decode_one(&table, chunk, 2, out);
        break;
    default: decode_four(&table, chunk, out); break;
    }
}

const mp_exph_decoder mp_exph_avx512 = {.name = "avx512", .decode = decode};

#endif
