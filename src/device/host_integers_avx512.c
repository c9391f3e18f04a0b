/* The values of integer weights with AVX-512. Integers of up to four bits have at most 16 values per
 * group: these are computed once, as a table, and looked up. */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "device/host_bf16_x86.h"

#define MP_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define MP_INLINE MP_AVX512 static inline __attribute__((always_inline))

/* How 16 values become bfloat16. */
typedef enum round_method { ROUND_BY_BITS, ROUND_BY_INSTRUCTION } round_method;

MP_INLINE __m512 scale_at(const void *scales, uint32_t group)
{
    uint16_t bits;
    memcpy(&bits, (const char *)scales + (uint64_t)group * sizeof bits, sizeof bits);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

/* To nearest even, into the upper halves; the lower ones are anything. */
MP_INLINE __m512i rounded_up(__m512 value)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
}

MP_INLINE __m256i to_bf16(round_method method, __m512 value)
{
    if (method == ROUND_BY_INSTRUCTION)
        return mp_round_16(value);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_up(value), 16));
}

/* ---- Integers as indexes: of each element the lowest `bits` bits count ---- */

/* Of 16 elements in 32-bit places. */
MP_INLINE __m512i indexes_32(uint32_t bits, const uint8_t *packed)
{
    if (bits == 4) {
        const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const void *)packed));
        return _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    }
    uint32_t all;
    memcpy(&all, packed, sizeof all);
    return _mm512_srlv_epi32(_mm512_set1_epi32((int)all),
                             _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
                                               28, 30));
}

/* Of 32 elements in 16-bit places. */
MP_INLINE __m512i indexes_16(uint32_t bits, const uint8_t *packed)
{
    if (bits == 4) {
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)packed));
        return _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
    }
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const void *)packed));
    const __m512i two = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    return _mm512_or_si512(two, _mm512_slli_epi32(two, 14));
}

/* ---- Values ---- */

MP_INLINE __m512 eight_bits(const uint8_t *packed, __m512 scale)
{
    const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)packed));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale);
}

/* The table of a group's values; for eight bits its scale. */
typedef struct group_table {
    __m512 f32;
    __m512i bf16; /* the table, twice */
} group_table;

MP_INLINE group_table table_of(uint32_t bits, bool narrow, round_method method, const void *scales,
                               uint32_t group)
{
    const __m512 four = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512 two = _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
    const __m512 scale = scale_at(scales, group);
    group_table table = {scale, _mm512_setzero_si512()};
    if (bits == 4)
        table.f32 = _mm512_mul_ps(four, scale);
    if (bits == 2) { /* a negative scale says that the group has four levels */
        const __mmask16 negative = _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_LT_OQ);
        const __m512 levels = _mm512_mask_add_ps(two, negative, two, _mm512_set1_ps(0.5f));
        table.f32 = _mm512_mul_ps(levels, _mm512_abs_ps(scale));
    }
    if (bits != 8 && narrow)
        table.bf16 = _mm512_broadcast_i64x4(to_bf16(method, table.f32));
    return table;
}

/* 16 values. */
MP_INLINE __m512 values_f32(uint32_t bits, const uint8_t *packed, const group_table *table)
{
    return bits == 8 ? eight_bits(packed, table->f32)
                     : _mm512_permutexvar_ps(indexes_32(bits, packed), table->f32);
}

/* 32 values. */
MP_INLINE __m512i values_bf16(round_method method, uint32_t bits, const uint8_t *packed,
                              const group_table *table)
{
    if (bits != 8)
        return _mm512_permutexvar_epi16(indexes_16(bits, packed), table->bf16);
    if (method == ROUND_BY_INSTRUCTION)
        return mp_round_pairs(eight_bits(packed + MP_LANES, table->f32),
                              eight_bits(packed, table->f32));
    const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)packed));
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24);
    const __m512i odd = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 24);
    const __m512i low = rounded_up(_mm512_mul_ps(_mm512_cvtepi32_ps(even), table->f32));
    const __m512i high = rounded_up(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), table->f32));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}

/* The last step's bytes, of which fewer than a whole step may be readable, and zeros. */
#define MP_STEP_BYTES_MOST 32
MP_INLINE void copy_last(uint32_t bits, const uint8_t *packed, uint32_t n, uint8_t *out)
{
    const uint32_t bytes = (n * bits + 7) / 8;
    const __m256i last = _mm256_maskz_loadu_epi8((__mmask32)((1ull << bytes) - 1), packed);
    _mm256_storeu_si256((void *)out, last);
}

/* ---- Tiles ---- */

/* How the values of a tile are multiplied. */
typedef enum tile_method { TILE_FP32, TILE_PAIRS_BY_FMA, TILE_PAIRS_BY_INSTRUCTION } tile_method;

typedef __m512 tile_sums[MP_TILE_ROWS][MP_TILE_WEIGHTS];

MP_INLINE void step_fp32(uint32_t bits, uint32_t rows, tile_sums acc, const void *const *x,
                         uint32_t i, const uint8_t *const *packed, const group_table *tables,
                         uint32_t live)
{
    MP_EACH (half, 2) {
        const __mmask16 lanes = (__mmask16)(live >> half * MP_LANES);
        MP_EACH (c, MP_TILE_WEIGHTS) {
            const uint8_t *from = packed[c] + half * 2 * bits;
            const __m512 values = _mm512_maskz_mov_ps(lanes, values_f32(bits, from, &tables[c]));
            MP_EACH (r, rows) {
                const float *row = (const float *)x[r] + i + half * MP_LANES;
                acc[r][c] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, row), values, acc[r][c]);
            }
        }
    }
}

/* The odd elements of 16 pairs, or the even ones, widened. */
MP_INLINE __m512 half_of_pairs(__m512i pairs, bool odd)
{
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000))
                                   : _mm512_slli_epi32(pairs, 16));
}

MP_INLINE void step_pairs(tile_method how, uint32_t bits, uint32_t rows, tile_sums acc,
                          const void *const *x, uint32_t i, const uint8_t *const *packed,
                          const group_table *tables, uint32_t live)
{
    const round_method method =
        how == TILE_PAIRS_BY_INSTRUCTION ? ROUND_BY_INSTRUCTION : ROUND_BY_BITS;
    MP_EACH (c, MP_TILE_WEIGHTS) {
        const __m512i values =
            _mm512_maskz_mov_epi16(live, values_bf16(method, bits, packed[c], &tables[c]));
        MP_EACH (r, rows) {
            const __m512i row = _mm512_maskz_loadu_epi16(live, (const uint16_t *)x[r] + i);
            if (how == TILE_PAIRS_BY_INSTRUCTION) {
                acc[r][c] = mp_dot_pairs(acc[r][c], row, values);
            } else {
                acc[r][c] = _mm512_fmadd_ps(half_of_pairs(row, true), half_of_pairs(values, true),
                                            acc[r][c]);
                acc[r][c] = _mm512_fmadd_ps(half_of_pairs(row, false), half_of_pairs(values, false),
                                            acc[r][c]);
            }
        }
    }
}

MP_INLINE void tile_step(tile_method how, uint32_t bits, uint32_t rows, tile_sums acc,
                         const void *const *x, uint32_t i, const uint8_t *const *packed,
                         const group_table *tables, uint32_t live)
{
    if (how == TILE_FP32)
        step_fp32(bits, rows, acc, x, i, packed, tables, live);
    else
        step_pairs(how, bits, rows, acc, x, i, packed, tables, live);
}

/* A group, or the part of it inside the row: elements [i, end). */
MP_INLINE void tile_group(tile_method how, uint32_t bits, uint32_t rows, tile_sums acc,
                          const mp_tile *tile, const void *const *x, const uint8_t *const *w,
                          uint32_t i, uint32_t end)
{
    const round_method method =
        how == TILE_PAIRS_BY_INSTRUCTION ? ROUND_BY_INSTRUCTION : ROUND_BY_BITS;
    const uint8_t *packed[MP_TILE_WEIGHTS];
    group_table tables[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS) {
        tables[c] = table_of(bits, how != TILE_FP32, method, tile->scales[c], i / tile->group);
        packed[c] = w[c] + (uint64_t)i * bits / 8;
        for (uint32_t line = 0; line < tile->group * bits / 8; line += 64)
            _mm_prefetch((const char *)packed[c] + tile->ahead_bytes + line, _MM_HINT_T1);
    }
    for (; i < end; i += MP_TILE_STEP) {
        uint8_t last[MP_TILE_WEIGHTS][MP_STEP_BYTES_MOST];
        uint32_t live = 0xffffffffu;
        if (end - i < MP_TILE_STEP) {
            live = (1u << (end - i)) - 1u;
            MP_EACH (c, MP_TILE_WEIGHTS) {
                copy_last(bits, packed[c], end - i, last[c]);
                packed[c] = last[c];
            }
        }
        tile_step(how, bits, rows, acc, x, i, packed, tables, live);
        MP_EACH (c, MP_TILE_WEIGHTS)
            packed[c] += MP_TILE_STEP * bits / 8;
    }
}

MP_INLINE void tile_rows(tile_method how, uint32_t bits, uint32_t rows, const mp_tile *tile)
{
    tile_sums acc;
    const void *x[MP_TILE_ROWS];
    const uint8_t *w[MP_TILE_WEIGHTS];
    MP_EACH (c, MP_TILE_WEIGHTS)
        w[c] = tile->w[c];
    MP_EACH (r, rows) {
        x[r] = tile->x[r];
        MP_EACH (c, MP_TILE_WEIGHTS)
            acc[r][c] = tile->resume
                            ? _mm512_load_ps(tile->acc + (r * MP_TILE_WEIGHTS + c) * MP_LANES)
                            : _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < tile->k; i += tile->group)
        tile_group(how, bits, rows, acc, tile, x, w, i,
                   tile->k - i < tile->group ? tile->k : i + tile->group);
    MP_EACH (r, rows) {
        MP_EACH (c, MP_TILE_WEIGHTS)
            _mm512_store_ps(tile->acc + (r * MP_TILE_WEIGHTS + c) * MP_LANES, acc[r][c]);
    }
}

/* Under flush-to-zero, which changes no value of an integer: none is denormal. */
#define MP_FLUSHED_FUNCTION(name)                   \
    static void name##_flushed(const mp_tile *tile) \
    {                                               \
        mp_tile_under_flush(name, tile);            \
    }

MP_TILE_FUNCTION(MP_AVX512, int8_fp32, TILE_FP32, 8)
MP_TILE_FUNCTION(MP_AVX512, int4_fp32, TILE_FP32, 4)
MP_TILE_FUNCTION(MP_AVX512, int2_fp32, TILE_FP32, 2)
MP_TILE_FUNCTION(MP_AVX512, int8_pairs, TILE_PAIRS_BY_INSTRUCTION, 8)
MP_TILE_FUNCTION(MP_AVX512, int4_pairs, TILE_PAIRS_BY_INSTRUCTION, 4)
MP_TILE_FUNCTION(MP_AVX512, int2_pairs, TILE_PAIRS_BY_INSTRUCTION, 2)
MP_TILE_FUNCTION(MP_AVX512, int8_pairs_fma, TILE_PAIRS_BY_FMA, 8)
MP_TILE_FUNCTION(MP_AVX512, int4_pairs_fma, TILE_PAIRS_BY_FMA, 4)
MP_TILE_FUNCTION(MP_AVX512, int2_pairs_fma, TILE_PAIRS_BY_FMA, 2)
MP_FLUSHED_FUNCTION(int8_pairs_fma)
MP_FLUSHED_FUNCTION(int4_pairs_fma)
MP_FLUSHED_FUNCTION(int2_pairs_fma)

const mp_integer_set mp_integers_avx512 = {
    .tile_f32 = {int8_fp32, int4_fp32, int2_fp32},
    .tile_dot = {int8_pairs_fma_flushed, int4_pairs_fma_flushed, int2_pairs_fma_flushed},
};

const mp_integer_set mp_integers_avx512_bf16 = {
    .tile_f32 = {int8_fp32, int4_fp32, int2_fp32},
    .tile_dot = {int8_pairs, int4_pairs, int2_pairs},
};

#endif
