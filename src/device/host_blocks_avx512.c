/* The values of blocks with AVX-512. Four bits are at most 16 values per group, which are computed once,
 * as a table, and looked up; five bits are two tables. Others become bytes and then numbers. */
#include "device/host_kernel_set.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/host_bf16_x86.h"
#include "device/host_blocks_x86.h"

#define MP_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define MP_INLINE MP_AVX512 static inline __attribute__((always_inline))

/* A number from memory in all places. As an integer: of Zen 4's two instructions for this, floats' takes
 * a shuffle's time and integers' none. */
MP_INLINE __m512 everywhere(const float *from)
{
    int bits;
    memcpy(&bits, from, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

/* scale * value - minimum. */
MP_INLINE __m512 scaled(uint32_t dtype, const mp_block_at *at, uint32_t group, __m512 value)
{
    const uint32_t i = mp_scale_index(dtype, at->row, at->number, group);
    const __m512 scale = everywhere(&at->scales->scale[i]);
    return mp_block_has_minimum(dtype)
               ? _mm512_fmsub_ps(value, scale, everywhere(&at->scales->minimum[i]))
               : _mm512_mul_ps(value, scale);
}

/* 16 bytes in 32-bit places. */
MP_INLINE __m512i widened(const uint8_t *from)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
}

/* ---- Looked up ---- */

/* What four bits stand for, before scale and minimum; with a fifth, which is 16. Q2_K's two high bits
 * are another weight's. */
MP_INLINE __m512 levels_of(uint32_t dtype, bool fifth)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q4_0:
        return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    case MOEPAGE_DTYPE_Q5_0:
        if (!fifth)
            return _mm512_setr_ps(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2,
                                  -1);
        return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    case MOEPAGE_DTYPE_Q4_1:
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_1:
    case MOEPAGE_DTYPE_Q5_K:
        if (fifth)
            return _mm512_setr_ps(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
        return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    case MOEPAGE_DTYPE_Q2_K: return _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    case MOEPAGE_DTYPE_IQ4_NL:
    case MOEPAGE_DTYPE_IQ4_XS:
        return _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
                              113);
    default: return _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    }
}

/* By the lowest four bits of each place of `indices`, in a group's table. */
MP_INLINE __m512 look_up(uint32_t dtype, const mp_block_at *at, uint32_t group, __m512i indices)
{
    const __m512 table = scaled(dtype, at, group, levels_of(dtype, false));
    return _mm512_permutexvar_ps(indices, table);
}

/* As above, with a fifth bit of each place in a mask. */
MP_INLINE __m512 look_up_five(uint32_t dtype, const mp_block_at *at, uint32_t group,
                              __m512i indices, __mmask16 fifth)
{
    const __m512 table = scaled(dtype, at, group, levels_of(dtype, true));
    return _mm512_mask_permutexvar_ps(look_up(dtype, at, group, indices), fifth, indices, table);
}

MP_INLINE __m512i indices_nvfp4(const uint8_t *from)
{
    const __m128i eight = _mm_loadl_epi64((const void *)from);
    const __m512i twice = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(eight, eight));
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    return _mm512_srlv_epi32(twice, shift);
}

/* Formats of 32 weights: of 16 bytes first the low halves and then the high ones. */
MP_INLINE void values_plain(uint32_t dtype, const mp_block_at *at, __m512 *out)
{
    const __m512i bits = widened(at->block + mp_block_low_bits(dtype));
    const bool five = dtype == MOEPAGE_DTYPE_Q5_0 || dtype == MOEPAGE_DTYPE_Q5_1;
    const uint32_t fifth = five ? mp_load_u32(at->block + mp_block_high_bits(dtype)) : 0;
    MP_EACH (half, 2) {
        const __m512i indices = half ? _mm512_srli_epi32(bits, 4) : bits;
        out[half] = five ? look_up_five(dtype, at, 0, indices, (__mmask16)(fifth >> 16 * half))
                         : look_up(dtype, at, 0, indices);
    }
}

/* Numbers in the place of BF16 ones, rounded to them. NaNs stay NaNs: those of BF16 scales end in zeros. */
MP_INLINE __m512 rounded_to_bf16(__m512 value)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u)));
}

/* W4: of 16 bytes first the low halves and then the high ones, in a table of rounded products. */
MP_INLINE void values_w4(uint32_t dtype, const mp_block_at *at, uint32_t step, __m512 *out)
{
    const uint32_t i = mp_scale_index(dtype, at->row, at->number, 0);
    const __m512 q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 level = _mm512_sub_ps(q, everywhere(&at->scales->zero[i]));
    const __m512 value = _mm512_mul_ps(level, everywhere(&at->scales->scale[i]));
    const __m512 table = mp_block_is_bf16(dtype)
                             ? rounded_to_bf16(value)
                             : _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    const __m512i bits = widened(at->block + mp_block_low_bits(dtype) + 16 * step);
    out[0] = _mm512_permutexvar_ps(bits, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bits, 4), table);
}

/* Q4_K and Q5_K: of 32 bytes first the low halves and then the high ones. */
MP_INLINE void values_k(uint32_t dtype, const mp_block_at *at, uint32_t step, __m512 *out)
{
    const uint8_t *low = at->block + mp_block_low_bits(dtype) + step / 2 * 32;
    const uint8_t *high = at->block + mp_block_high_bits(dtype);
    __mmask32 fifth = 0;
    if (dtype == MOEPAGE_DTYPE_Q5_K)
        fifth = _mm256_test_epi8_mask(_mm256_loadu_si256((const void *)high),
                                      _mm256_set1_epi8((char)(1 << step)));
    MP_EACH (half, 2) {
        const __m512i bits = widened(low + 16 * half);
        const __m512i indices = step % 2 ? _mm512_srli_epi32(bits, 4) : bits;
        out[half] = dtype == MOEPAGE_DTYPE_Q5_K
                        ? look_up_five(dtype, at, step, indices, (__mmask16)(fifth >> 16 * half))
                        : look_up(dtype, at, step, indices);
    }
}

/* ---- Converted ---- */

MP_INLINE void convert(uint32_t dtype, const mp_block_at *at, uint32_t step, __m512 *out)
{
    const __m256i bytes = mp_block_bytes_at(dtype, at->block, step);
    MP_EACH (half, 2) {
        const __m128i some =
            half ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
        const __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(some));
        out[half] = scaled(dtype, at, mp_block_group(dtype, step, half), value);
    }
}

MP_INLINE void values_q8_0(const mp_block_at *at, __m512 *out)
{
    MP_EACH (half, 2) {
        const __m128i some = _mm_loadu_si128((const void *)(at->block + 2 + 16 * half));
        const __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(some));
        out[half] = scaled(MOEPAGE_DTYPE_Q8_0, at, 0, value);
    }
}

/* ---- All formats ---- */

/* Weights [32 * step, 32 * step + 32) of a block. */
MP_INLINE void values(uint32_t dtype, const mp_block_at *at, uint32_t step, __m512 *out)
{
    const uint8_t *low = at->block + mp_block_low_bits(dtype);
    if (mp_block_has_zero(dtype)) {
        values_w4(dtype, at, step, out);
        return;
    }
    switch (dtype) {
    case MOEPAGE_DTYPE_Q8_0: values_q8_0(at, out); break;
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_K: values_k(dtype, at, step, out); break;
    case MOEPAGE_DTYPE_Q3_K:
    case MOEPAGE_DTYPE_Q6_K: convert(dtype, at, step, out); break;
    case MOEPAGE_DTYPE_Q2_K:
        MP_EACH (half, 2) {
            const __m512i bits = widened(low + step / 4 * 32 + 16 * half);
            out[half] = look_up(dtype, at, 2 * step + half, _mm512_srli_epi32(bits, step % 4 * 2));
        }
        break;
    case MOEPAGE_DTYPE_IQ4_XS:
        MP_EACH (half, 2)
            out[half] =
                look_up(dtype, at, step, _mm512_srli_epi32(widened(low + 16 * step), 4 * half));
        break;
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32:
        MP_EACH (half, 2)
            out[half] =
                look_up(dtype, at, 2 * step + half, indices_nvfp4(low + 16 * step + 8 * half));
        break;
    default: values_plain(dtype, at, out);
    }
}

/* ---- Rows ---- */

MP_INLINE void put_values(uint32_t dtype, const mp_block_at *at, uint32_t step, float *out)
{
    __m512 some[2];
    values(dtype, at, step, some);
    _mm512_storeu_ps(out, some[0]);
    _mm512_storeu_ps(out + MP_LANES, some[1]);
}

MP_DECODE_ROW(MP_INLINE)

/* ---- One row of x, four rows of weights ---- */

typedef __m512 row_sums[MP_TILE_WEIGHTS];

/* Adds the products of a step of four rows with elements of x from i on. It is bound by the decoding, whose
 * shifts are the better for being constants. */
MP_INLINE void tile_step(uint32_t dtype, bool pairs, row_sums acc, const void *x, uint32_t i,
                         const uint8_t *const *block, const mp_block_scales *scales,
                         uint32_t number, uint32_t step)
{
    MP_EACH (c, MP_TILE_WEIGHTS) {
        const mp_block_at at = {block[c], scales, c, number};
        __m512 some[2];
        values(dtype, &at, step, some);
        if (pairs) {
            const __m512i row = _mm512_loadu_si512((const uint16_t *)x + i);
            acc[c] = mp_dot_pairs(acc[c], row, mp_round_pairs(some[1], some[0]));
        } else {
            const float *row = (const float *)x + i;
            acc[c] = _mm512_fmadd_ps(_mm512_loadu_ps(row), some[0], acc[c]);
            acc[c] = _mm512_fmadd_ps(_mm512_loadu_ps(row + MP_LANES), some[1], acc[c]);
        }
    }
}

/* A run of four rows, from element i of x on. */
MP_INLINE void tile_run(uint32_t dtype, bool pairs, row_sums acc, const void *x, uint32_t i,
                        uint32_t n_blocks, const uint8_t **block, const mp_block_scales *scales)
{
    for (uint32_t b = 0; b < n_blocks; b++, i += mp_block_weights(dtype)) {
        MP_EACH (step, mp_block_weights(dtype) / MP_BLOCK_STEP)
            tile_step(dtype, pairs, acc, x, i + step * MP_BLOCK_STEP, block, scales, b, step);
        MP_EACH (c, MP_TILE_WEIGHTS)
            block[c] += mp_block_bytes(dtype);
    }
}

MP_INLINE void tile_row(uint32_t dtype, bool pairs, const mp_tile *tile)
{
    const uint32_t k = tile->k;
    const uint32_t run_bytes = MP_BLOCK_RUN / mp_block_weights(dtype) * mp_block_bytes(dtype);
    const void *x = tile->x[0];
    mp_block_scales scales[2];
    row_sums acc;
    const uint8_t *block[MP_TILE_WEIGHTS], *ahead[MP_TILE_WEIGHTS];
    const uint64_t ahead_bytes = tile->ahead_bytes;
    MP_EACH (c, MP_TILE_WEIGHTS) {
        block[c] = ahead[c] = tile->w[c];
        acc[c] = tile->resume ? _mm512_load_ps(tile->acc + c * MP_LANES) : _mm512_setzero_ps();
    }
    for (uint32_t i = 0, turn = 0; i < k + MP_BLOCK_RUN; i += MP_BLOCK_RUN, turn ^= 1) {
        if (i < k)
            mp_scales_of_rows(dtype, ahead, mp_run_blocks(dtype, i, k), &scales[turn]);
        MP_EACH (c, MP_TILE_WEIGHTS)
            ahead[c] += run_bytes;
        if (i == 0)
            continue;
        if (ahead_bytes)
            MP_EACH (c, MP_TILE_WEIGHTS)
                mp_prefetch_run(dtype, block[c], ahead_bytes);
        tile_run(dtype, pairs, acc, x, i - MP_BLOCK_RUN, mp_run_blocks(dtype, i - MP_BLOCK_RUN, k),
                 block, &scales[turn ^ 1]);
    }
    MP_EACH (c, MP_TILE_WEIGHTS)
        _mm512_store_ps(tile->acc + c * MP_LANES, acc[c]);
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                        \
    MP_AVX512 static void name##_f32(const mp_blocks *in, float *out) \
    {                                                                 \
        decode_row(dtype, in, out);                                   \
    }                                                                 \
    MP_AVX512 static void name##_tile_f32(const mp_tile *tile)        \
    {                                                                 \
        tile_row(dtype, false, tile);                                 \
    }                                                                 \
    MP_AVX512 static void name##_tile_dot(const mp_tile *tile)        \
    {                                                                 \
        tile_row(dtype, true, tile);                                  \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

const mp_block_set mp_blocks_avx512 = {
    .as_f32 = MP_BLOCK_FUNCTIONS(f32),
    .tile_rows = 1,
    .tile_f32 = MP_BLOCK_FUNCTIONS(tile_f32),
};

const mp_block_set mp_blocks_avx512_bf16 = {
    .as_f32 = MP_BLOCK_FUNCTIONS(f32),
    .tile_rows = 1,
    .tile_f32 = MP_BLOCK_FUNCTIONS(tile_f32),
    .tile_dot = MP_BLOCK_FUNCTIONS(tile_dot),
};

#endif
