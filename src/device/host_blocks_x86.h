/* host_blocks_x86.h — blocks taken apart with AVX2, for the vector sets: 32 weights at a time as
 * bytes in order, and the scales and minima of a block's groups. A weight is scale * byte - minimum.
 *
 * A format is a constant wherever these functions are called: all its cases but one disappear. */
#ifndef MP_DEVICE_HOST_BLOCKS_X86_H
#define MP_DEVICE_HOST_BLOCKS_X86_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/floats.h"
#include "device/host_kernel_set.h"

#define MP_BLOCKS_INLINE \
    __attribute__((target("avx2,fma,f16c"))) static inline __attribute__((always_inline))

/* Weights of a step, which one call takes apart; and of a run, whose scales are decoded while the run
 * before is: they are long on their way. */
#define MP_BLOCK_STEP 32
#define MP_BLOCK_RUN 256

/* ---- Layouts: docs/format-blocks.md ---- */

static inline __attribute__((always_inline)) uint32_t mp_block_weights(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q2_K:
    case MOEPAGE_DTYPE_Q3_K:
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_K:
    case MOEPAGE_DTYPE_Q6_K:
    case MOEPAGE_DTYPE_IQ4_XS:
    case MOEPAGE_DTYPE_NVFP4G256_F32: return 256;
    case MOEPAGE_DTYPE_W4G128_F16:
    case MOEPAGE_DTYPE_W4G128_BF16:
    case MOEPAGE_DTYPE_NVFP4G128_F32: return 128;
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_W4G64_F16:
    case MOEPAGE_DTYPE_W4G64_BF16: return 64;
    default: return 32;
    }
}

static inline __attribute__((always_inline)) uint32_t mp_block_bytes(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q4_1: return 20;
    case MOEPAGE_DTYPE_Q5_0: return 22;
    case MOEPAGE_DTYPE_Q5_1: return 24;
    case MOEPAGE_DTYPE_Q8_0: return 34;
    case MOEPAGE_DTYPE_Q2_K: return 84;
    case MOEPAGE_DTYPE_Q3_K: return 110;
    case MOEPAGE_DTYPE_Q4_K: return 144;
    case MOEPAGE_DTYPE_Q5_K: return 176;
    case MOEPAGE_DTYPE_Q6_K: return 210;
    case MOEPAGE_DTYPE_IQ4_XS: return 136;
    case MOEPAGE_DTYPE_MXFP4: return 17;
    case MOEPAGE_DTYPE_NVFP4: return 36;
    case MOEPAGE_DTYPE_W4G32_F16:
    case MOEPAGE_DTYPE_W4G32_BF16: return 20;
    case MOEPAGE_DTYPE_W4G64_F16:
    case MOEPAGE_DTYPE_W4G64_BF16: return 36;
    case MOEPAGE_DTYPE_W4G128_F16:
    case MOEPAGE_DTYPE_W4G128_BF16: return 68;
    case MOEPAGE_DTYPE_NVFP4G64_F32: return 40;
    case MOEPAGE_DTYPE_NVFP4G128_F32: return 76;
    case MOEPAGE_DTYPE_NVFP4G256_F32: return 148;
    default: return 18; /* Q4_0, IQ4_NL */
    }
}

/* Offset of the bytes with four, two or eight bits of every weight. */
static inline __attribute__((always_inline)) uint32_t mp_block_low_bits(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q4_1: return 4;
    case MOEPAGE_DTYPE_Q5_0: return 6;
    case MOEPAGE_DTYPE_Q5_1: return 8;
    case MOEPAGE_DTYPE_Q2_K: return 16;
    case MOEPAGE_DTYPE_Q3_K: return 32;
    case MOEPAGE_DTYPE_Q4_K: return 16;
    case MOEPAGE_DTYPE_Q5_K: return 48;
    case MOEPAGE_DTYPE_Q6_K: return 0;
    case MOEPAGE_DTYPE_IQ4_XS: return 8;
    case MOEPAGE_DTYPE_MXFP4: return 1;
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_W4G32_F16:
    case MOEPAGE_DTYPE_W4G64_F16:
    case MOEPAGE_DTYPE_W4G128_F16:
    case MOEPAGE_DTYPE_W4G32_BF16:
    case MOEPAGE_DTYPE_W4G64_BF16:
    case MOEPAGE_DTYPE_W4G128_BF16: return 4;
    case MOEPAGE_DTYPE_NVFP4G64_F32: return 8;
    case MOEPAGE_DTYPE_NVFP4G128_F32: return 12;
    case MOEPAGE_DTYPE_NVFP4G256_F32: return 20;
    default: return 2; /* Q4_0, Q8_0, IQ4_NL */
    }
}

/* Offset of further bits of every weight. */
static inline __attribute__((always_inline)) uint32_t mp_block_high_bits(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q5_0: return 2;
    case MOEPAGE_DTYPE_Q5_1: return 4;
    case MOEPAGE_DTYPE_Q5_K: return 16;
    case MOEPAGE_DTYPE_Q6_K: return 128;
    default: return 0; /* Q3_K */
    }
}

/* Returns true if a block has one scale. */
static inline __attribute__((always_inline)) bool mp_block_is_plain(uint32_t dtype)
{
    return mp_block_weights(dtype) == 32;
}

/* Returns true if a block has a zero-point, and values are rounded to the type of its scale. */
static inline __attribute__((always_inline)) bool mp_block_has_zero(uint32_t dtype)
{
    return dtype >= MOEPAGE_DTYPE_W4G32_F16 && dtype <= MOEPAGE_DTYPE_W4G128_BF16;
}

/* Of those: returns true if it is BF16. */
static inline __attribute__((always_inline)) bool mp_block_is_bf16(uint32_t dtype)
{
    return dtype >= MOEPAGE_DTYPE_W4G32_BF16;
}

/* Returns true if a block of FP4 begins with a factor of its scales. */
static inline __attribute__((always_inline)) bool mp_block_has_factor(uint32_t dtype)
{
    return dtype >= MOEPAGE_DTYPE_NVFP4G64_F32 && dtype <= MOEPAGE_DTYPE_NVFP4G256_F32;
}

static inline __attribute__((always_inline)) bool mp_block_has_minimum(uint32_t dtype)
{
    return mp_block_has_zero(dtype) || dtype == MOEPAGE_DTYPE_Q4_1 || dtype == MOEPAGE_DTYPE_Q5_1 ||
           dtype == MOEPAGE_DTYPE_Q2_K || dtype == MOEPAGE_DTYPE_Q4_K ||
           dtype == MOEPAGE_DTYPE_Q5_K;
}

/* Which of a block's scales is that of weights [16 * half, 16 * half + 16) of a step. */
static inline __attribute__((always_inline)) uint32_t mp_block_group(uint32_t dtype, uint32_t step,
                                                                     uint32_t half)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q2_K:
    case MOEPAGE_DTYPE_Q3_K:
    case MOEPAGE_DTYPE_Q6_K:
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32: return 2 * step + half;
    default: return step;
    }
}

/* Returns true if four bits of a weight are an index of 16 integers. */
static inline __attribute__((always_inline)) bool mp_block_is_table(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_IQ4_NL || dtype == MOEPAGE_DTYPE_IQ4_XS ||
           dtype == MOEPAGE_DTYPE_MXFP4 || dtype == MOEPAGE_DTYPE_NVFP4 ||
           mp_block_has_factor(dtype);
}

/* Those integers; of the FP4 formats twice the values, whose scales count half. */
MP_BLOCKS_INLINE __m128i mp_block_table(uint32_t dtype)
{
    if (dtype == MOEPAGE_DTYPE_IQ4_NL || dtype == MOEPAGE_DTYPE_IQ4_XS)
        return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
                             113);
    return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
}

/* ---- Scales ---- */

/* Of a run of each of four rows. */
typedef struct mp_block_scales {
    _Alignas(64) float scale[4 * 16];
    _Alignas(64) float minimum[4 * 16];
    _Alignas(64) float zero[4 * 16]; /* zero-points; minima are these times the scales */
} mp_block_scales;

/* Where the scale of a group is, in block `number` of a row's run. Blocks with one scale have the four
 * rows' side by side. */
static inline __attribute__((always_inline)) uint32_t
mp_scale_index(uint32_t dtype, uint32_t row, uint32_t number, uint32_t group)
{
    const uint32_t group_weights = mp_block_group(dtype, 1, 1) == 3 ? 16 : 32;
    return mp_block_is_plain(dtype)
               ? number * 4 + row
               : row * 16 + number * (mp_block_weights(dtype) / group_weights) + group;
}

MP_BLOCKS_INLINE uint32_t mp_load_u32(const uint8_t *from)
{
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

MP_BLOCKS_INLINE int mp_load_u16(const uint8_t *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

/* A half. */
MP_BLOCKS_INLINE __m256 mp_load_half(const uint8_t *from)
{
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(mp_load_u16(from))));
}

/* A half of each of four rows. */
MP_BLOCKS_INLINE __m128 mp_load_halves(const uint8_t *const *block, uint32_t offset)
{
    __m128i halves = _mm_cvtsi32_si128(mp_load_u16(block[0] + offset));
    halves = _mm_insert_epi16(halves, mp_load_u16(block[1] + offset), 1);
    halves = _mm_insert_epi16(halves, mp_load_u16(block[2] + offset), 2);
    halves = _mm_insert_epi16(halves, mp_load_u16(block[3] + offset), 3);
    return _mm_cvtph_ps(halves);
}

/* 2^(e - 128) of the first byte of each of four rows, which of 0 and 1 are denormals: there, and only
 * there, the second number below is the greater. */
MP_BLOCKS_INLINE __m128 mp_load_e8m0(const uint8_t *const *block)
{
    __m128i bytes = _mm_cvtsi32_si128(block[0][0]);
    bytes = _mm_insert_epi8(bytes, block[1][0], 1);
    bytes = _mm_insert_epi8(bytes, block[2][0], 2);
    bytes = _mm_insert_epi8(bytes, block[3][0], 3);
    const __m128i e = _mm_cvtepu8_epi32(bytes);
    const __m128i normal = _mm_sub_epi32(_mm_slli_epi32(e, 23), _mm_set1_epi32(1 << 23));
    const __m128i denormal = _mm_add_epi32(_mm_slli_epi32(e, 21), _mm_set1_epi32(1 << 21));
    return _mm_castsi128_ps(_mm_max_epi32(normal, denormal));
}

/* From number `at` on, scales and zero-points of four blocks of W4, of which each lane has the first 32
 * bits. Of longer blocks all lanes are one, a scale of each 32 weights; what is too many is written over. */
MP_BLOCKS_INLINE void mp_scales_w4(uint32_t dtype, __m128i heads, uint32_t at, mp_block_scales *out)
{
    const __m128i halves =
        _mm_shuffle_epi8(heads, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13));
    const __m128 s = mp_block_is_bf16(dtype) ? _mm_castsi128_ps(_mm_slli_epi32(heads, 16))
                                             : _mm_cvtph_ps(halves);
    const __m128 z = _mm_cvtepi32_ps(_mm_and_si128(_mm_srli_epi32(heads, 16), _mm_set1_epi32(15)));
    _mm_storeu_ps(out->scale + at, s);
    _mm_storeu_ps(out->minimum + at, _mm_mul_ps(s, z));
    _mm_storeu_ps(out->zero + at, z);
}

MP_BLOCKS_INLINE __m128i mp_heads(const uint8_t *const *block)
{
    return _mm_setr_epi32((int)mp_load_u32(block[0]), (int)mp_load_u32(block[1]),
                          (int)mp_load_u32(block[2]), (int)mp_load_u32(block[3]));
}

/* Of block `number` of four rows. */
MP_BLOCKS_INLINE void mp_scales_of_w4(uint32_t dtype, const uint8_t *const *block, uint32_t number,
                                      mp_block_scales *out)
{
    if (mp_block_is_plain(dtype))
        mp_scales_w4(dtype, mp_heads(block), 4 * number, out);
    for (uint32_t r = 0; r < 4 && !mp_block_is_plain(dtype); r++)
        mp_scales_w4(dtype, _mm_set1_epi32((int)mp_load_u32(block[r])),
                     mp_scale_index(dtype, r, number, 0), out);
}

/* Of four blocks with one scale. */
MP_BLOCKS_INLINE void mp_scales_plain(uint32_t dtype, const uint8_t *const *block, float *scale,
                                      float *minimum)
{
    if (dtype == MOEPAGE_DTYPE_MXFP4) {
        _mm_store_ps(scale, mp_load_e8m0(block));
        return;
    }
    _mm_store_ps(scale, mp_load_halves(block, 0));
    if (mp_block_has_minimum(dtype))
        _mm_store_ps(minimum, _mm_xor_ps(mp_load_halves(block, 2), _mm_set1_ps(-0.0f)));
}

/* 16 bytes as floats, times a factor. */
MP_BLOCKS_INLINE void mp_scale_bytes(__m128i bytes, bool are_signed, __m256 factor, float *out)
{
    for (uint32_t half = 0; half < 2; half++) {
        const __m128i some = half ? _mm_srli_si128(bytes, 8) : bytes;
        const __m256i wide = are_signed ? _mm256_cvtepi8_epi32(some) : _mm256_cvtepu8_epi32(some);
        _mm256_store_ps(out + 8 * half, _mm256_mul_ps(_mm256_cvtepi32_ps(wide), factor));
    }
}

MP_BLOCKS_INLINE void mp_scales_q2_k(const uint8_t *block, float *scale, float *minimum)
{
    const __m128i both = _mm_loadu_si128((const void *)block), mask = _mm_set1_epi8(15);
    mp_scale_bytes(_mm_and_si128(both, mask), false, mp_load_half(block + 80), scale);
    mp_scale_bytes(_mm_and_si128(_mm_srli_epi16(both, 4), mask), false, mp_load_half(block + 82),
                   minimum);
}

MP_BLOCKS_INLINE void mp_scales_q3_k(const uint8_t *block, float *scale)
{
    const __m128i eight = _mm_loadl_epi64((const void *)(block + 96));
    const __m128i low =
        _mm_and_si128(_mm_unpacklo_epi64(eight, _mm_srli_epi16(eight, 4)), _mm_set1_epi8(15));
    const __m128i four = _mm_set1_epi32((int)mp_load_u32(block + 104));
    const __m128i high =
        _mm_and_si128(_mm_srlv_epi32(four, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    const __m128i all = _mm_or_si128(low, _mm_slli_epi16(high, 4));
    mp_scale_bytes(_mm_sub_epi8(all, _mm_set1_epi8(32)), true, mp_load_half(block + 108), scale);
}

/* Q4_K and Q5_K. */
MP_BLOCKS_INLINE void mp_scales_q4_k(const uint8_t *block, float *scale, float *minimum)
{
    const uint32_t a = mp_load_u32(block + 4), b = mp_load_u32(block + 8),
                   c = mp_load_u32(block + 12);
    const uint32_t scales[] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u)};
    const uint32_t minima[] = {b & 0x3f3f3f3fu, (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)};
    const __m128i s = _mm_cvtsi64_si128((int64_t)((uint64_t)scales[1] << 32 | scales[0]));
    const __m128i m = _mm_cvtsi64_si128((int64_t)((uint64_t)minima[1] << 32 | minima[0]));
    const __m256 of_s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(s));
    const __m256 of_m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(m));
    _mm256_store_ps(scale, _mm256_mul_ps(of_s, mp_load_half(block)));
    _mm256_store_ps(minimum, _mm256_mul_ps(of_m, mp_load_half(block + 2)));
}

MP_BLOCKS_INLINE void mp_scales_iq4_xs(const uint8_t *block, float *scale)
{
    const __m256i lows = _mm256_set1_epi32((int)mp_load_u32(block + 4));
    const __m256i highs = _mm256_set1_epi32(mp_load_u16(block + 2));
    const __m256i low =
        _mm256_and_si256(_mm256_srlv_epi32(lows, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                         _mm256_set1_epi32(15));
    const __m256i high =
        _mm256_and_si256(_mm256_srlv_epi32(highs, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                         _mm256_set1_epi32(3));
    const __m256i all = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
    const __m256 value = _mm256_cvtepi32_ps(_mm256_sub_epi32(all, _mm256_set1_epi32(32)));
    _mm256_store_ps(scale, _mm256_mul_ps(value, mp_load_half(block)));
}

/* Halves of four E4M3 numbers without their signs, 0x7f being 0. The bits, moved to a half's place,
 * are the half of 2^-8 times the value. */
MP_BLOCKS_INLINE __m128 mp_halves_of_e4m3(const uint8_t *from)
{
    const __m128i bytes = _mm_cvtsi32_si128((int)mp_load_u32(from));
    const __m128i none = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7f));
    const __m128i live = _mm_and_si128(_mm_andnot_si128(none, bytes), _mm_set1_epi8(0x7f));
    const __m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(live), 7);
    return _mm_mul_ps(_mm_cvtph_ps(halves), _mm_set1_ps(0x1p7f));
}

/* Those of four groups and more, times the factor before them; by its magnitude if it is negative. */
MP_BLOCKS_INLINE void mp_scales_nvfp4g(uint32_t dtype, const uint8_t *block, float *scale)
{
    const __m128 factor = _mm_castsi128_ps(_mm_set1_epi32((int)mp_load_u32(block)));
    const __m128 divisor = _mm_xor_ps(factor, _mm_set1_ps(-0.0f));
    const bool divides = _mm_movemask_ps(factor);
    MP_EACH (i, mp_block_weights(dtype) / 64) {
        const __m128 halves = mp_halves_of_e4m3(block + 4 + 4 * i);
        _mm_store_ps(scale + 4 * i,
                     divides ? _mm_div_ps(halves, divisor) : _mm_mul_ps(halves, factor));
    }
}

/* Of a block with groups. */
MP_BLOCKS_INLINE void mp_scales_groups(uint32_t dtype, const uint8_t *block, float *scale,
                                       float *minimum)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q2_K: mp_scales_q2_k(block, scale, minimum); break;
    case MOEPAGE_DTYPE_Q3_K: mp_scales_q3_k(block, scale); break;
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_K: mp_scales_q4_k(block, scale, minimum); break;
    case MOEPAGE_DTYPE_Q6_K:
        mp_scale_bytes(_mm_loadu_si128((const void *)(block + 192)), true,
                       mp_load_half(block + 208), scale);
        break;
    case MOEPAGE_DTYPE_IQ4_XS: mp_scales_iq4_xs(block, scale); break;
    case MOEPAGE_DTYPE_NVFP4: _mm_store_ps(scale, mp_halves_of_e4m3(block)); break;
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32: mp_scales_nvfp4g(dtype, block, scale); break;
    default: break;
    }
}

/* Of `n` blocks, a run or less, of each of four rows. */
MP_BLOCKS_INLINE void mp_scales_of_rows(uint32_t dtype, const uint8_t *const *rows, uint32_t n,
                                        mp_block_scales *out)
{
    const uint32_t bytes = mp_block_bytes(dtype);
    for (uint32_t b = 0; b < n; b++) {
        const uint8_t *block[] = {rows[0] + b * bytes, rows[1] + b * bytes, rows[2] + b * bytes,
                                  rows[3] + b * bytes};
        const uint32_t at = mp_scale_index(dtype, 0, b, 0);
        if (mp_block_has_zero(dtype)) {
            mp_scales_of_w4(dtype, block, b, out);
            continue;
        }
        if (mp_block_is_plain(dtype))
            mp_scales_plain(dtype, block, out->scale + at, out->minimum + at);
        for (uint32_t r = 0; r < 4 && !mp_block_is_plain(dtype); r++)
            mp_scales_groups(dtype, block[r], out->scale + 16 * r + at, out->minimum + 16 * r + at);
    }
    __asm__("" : "+m"(*out)); /* loads spread a scale over a vector for nothing, shuffles do not */
}

/* Of `n` blocks of one row, as the first of four; blocks with one scale as all four in turn. */
MP_BLOCKS_INLINE void mp_scales_of_row(uint32_t dtype, const uint8_t *row, uint32_t n,
                                       mp_block_scales *out)
{
    const uint32_t bytes = mp_block_bytes(dtype);
    for (uint32_t b = 0; b < n && mp_block_is_plain(dtype); b += 4) {
        const uint8_t *block[4];
        MP_EACH (r, 4)
            block[r] = row + (b + r < n ? b + r : n - 1) * bytes;
        if (mp_block_has_zero(dtype))
            mp_scales_w4(dtype, mp_heads(block), b, out);
        else
            mp_scales_plain(dtype, block, out->scale + b, out->minimum + b);
    }
    for (uint32_t b = 0; b < n && !mp_block_is_plain(dtype); b++) {
        const uint32_t at = mp_scale_index(dtype, 0, b, 0);
        if (mp_block_has_zero(dtype))
            mp_scales_w4(dtype, _mm_set1_epi32((int)mp_load_u32(row + b * bytes)), at, out);
        mp_scales_groups(dtype, row + b * bytes, out->scale + at, out->minimum + at);
    }
    __asm__("" : "+m"(*out));
}

/* Blocks of the run that begins at weight i of n. */
static inline __attribute__((always_inline)) uint32_t mp_run_blocks(uint32_t dtype, uint32_t i,
                                                                    uint32_t n)
{
    const uint32_t weights = mp_block_weights(dtype);
    if (weights == MP_BLOCK_RUN || n - i >= MP_BLOCK_RUN)
        return MP_BLOCK_RUN / weights;
    return (n - i) / weights;
}

MP_BLOCKS_INLINE void mp_prefetch_run(uint32_t dtype, const uint8_t *run, uint64_t ahead_bytes)
{
    const char *ahead = (const char *)run + ahead_bytes;
    const uint32_t bytes = MP_BLOCK_RUN / mp_block_weights(dtype) * mp_block_bytes(dtype);
    for (uint32_t line = 0; line < bytes; line += 64)
        _mm_prefetch(ahead + line, _MM_HINT_T1);
}

/* ---- Rows ---- */

/* The block being decoded, and where its scales are. */
typedef struct mp_block_at {
    const uint8_t *block;
    const mp_block_scales *scales;
    uint32_t row, number;
} mp_block_at;

/* Defines decode_row(dtype, in, out), which writes the values of a row of blocks:
 * `put_values(dtype, at, step, out)`, which writes those of a step, is the file's. */
#define MP_DECODE_ROW(target_inline)                                                     \
    target_inline void decode_row(uint32_t dtype, const mp_blocks *in, float *out)       \
    {                                                                                    \
        const uint32_t weights = mp_block_weights(dtype), bytes = mp_block_bytes(dtype); \
        const bool plain = mp_block_is_plain(dtype);                                     \
        mp_block_scales scales[2];                                                       \
        const uint8_t *block = in->blocks, *ahead = block;                               \
        for (uint32_t i = 0, turn = 0, n = 0; i < in->n + MP_BLOCK_RUN;                  \
             i += MP_BLOCK_RUN, turn ^= 1) {                                             \
            const uint32_t next = i < in->n ? mp_run_blocks(dtype, i, in->n) : 0;        \
            if (next)                                                                    \
                mp_scales_of_row(dtype, ahead, next, &scales[turn]);                     \
            ahead += next * bytes;                                                       \
            if (n && in->ahead_bytes)                                                    \
                mp_prefetch_run(dtype, block, in->ahead_bytes);                          \
            for (uint32_t b = 0; b < n; b++, block += bytes)                             \
                MP_EACH (step, weights / MP_BLOCK_STEP) {                                \
                    const mp_block_at at = {block, &scales[turn ^ 1], plain ? b % 4 : 0, \
                                            plain ? b / 4 : b};                          \
                    put_values(dtype, &at, step, out);                                   \
                    out += MP_BLOCK_STEP;                                                \
                }                                                                        \
            n = next;                                                                    \
        }                                                                                \
    }

/* ---- Bytes ---- */

/* Low and then high halves of 16 bytes. */
MP_BLOCKS_INLINE __m256i mp_nibbles(const uint8_t *from)
{
    const __m128i raw = _mm_loadu_si128((const void *)from);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(raw, 4), raw), _mm256_set1_epi8(15));
}

/* As above, of each eight of the 16 bytes. */
MP_BLOCKS_INLINE __m256i mp_nibbles_by_eight(const uint8_t *from)
{
    const __m128i raw = _mm_loadu_si128((const void *)from), mask = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(raw, mask),
                  high = _mm_and_si128(_mm_srli_epi16(raw, 4), mask);
    return _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
}

/* Of 32 bytes, bits [shift, shift + width of mask) moved to where the mask has them. */
MP_BLOCKS_INLINE __m256i mp_field(const uint8_t *from, uint32_t shift, uint32_t to, uint8_t mask)
{
    __m256i raw = _mm256_loadu_si256((const void *)from);
    if (shift > to)
        raw = _mm256_srli_epi16(raw, (int)(shift - to));
    else if (shift < to)
        raw = _mm256_slli_epi16(raw, (int)(to - shift));
    return _mm256_and_si256(raw, _mm256_set1_epi8((char)mask));
}

/* 32 bits as bytes of 16 or 0. */
MP_BLOCKS_INLINE __m256i mp_fifth_bits(const uint8_t *from)
{
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                            2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32((int)mp_load_u32(from)), spread);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

MP_BLOCKS_INLINE __m256i mp_bytes_q6_k(const uint8_t *block, uint32_t step)
{
    const uint32_t half = step / 4, quarter = step % 4;
    const __m256i low = mp_field(block + 64 * half + 32 * (quarter % 2), quarter / 2 * 4, 0, 15);
    return _mm256_or_si256(low, mp_field(block + 128 + 32 * half, 2 * quarter, 4, 0x30));
}

/* 32 weights as bytes without a sign, before scale and minimum, the offset too great; those that are of a
 * table have signs and no offset. */
MP_BLOCKS_INLINE __m256i mp_block_bytes_raised(uint32_t dtype, const uint8_t *block, uint32_t step)
{
    const uint8_t *low = block + mp_block_low_bits(dtype),
                  *high = block + mp_block_high_bits(dtype);
    switch (dtype) {
    case MOEPAGE_DTYPE_Q5_0:
    case MOEPAGE_DTYPE_Q5_1: return _mm256_or_si256(mp_nibbles(low), mp_fifth_bits(high));
    case MOEPAGE_DTYPE_Q8_0: return _mm256_loadu_si256((const void *)low);
    case MOEPAGE_DTYPE_Q2_K: return mp_field(low + step / 4 * 32, step % 4 * 2, 0, 3);
    case MOEPAGE_DTYPE_Q3_K:
        return _mm256_or_si256(mp_field(low + step / 4 * 32, step % 4 * 2, 0, 3),
                               mp_field(high, step, 2, 4));
    case MOEPAGE_DTYPE_Q4_K: return mp_field(low + step / 2 * 32, step % 2 * 4, 0, 15);
    case MOEPAGE_DTYPE_Q5_K:
        return _mm256_or_si256(mp_field(low + step / 2 * 32, step % 2 * 4, 0, 15),
                               mp_field(high, step, 4, 16));
    case MOEPAGE_DTYPE_Q6_K: return mp_bytes_q6_k(block, step);
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32:
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(mp_block_table(dtype)),
                                   mp_nibbles_by_eight(low + 16 * step));
    case MOEPAGE_DTYPE_IQ4_NL:
    case MOEPAGE_DTYPE_IQ4_XS:
    case MOEPAGE_DTYPE_MXFP4:
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(mp_block_table(dtype)),
                                   mp_nibbles(low + 16 * step));
    default: return mp_nibbles(low + 16 * step); /* Q4_0, Q4_1, W4 */
    }
}

/* What those without a table are too great by. */
static inline __attribute__((always_inline)) uint32_t mp_block_raise(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q3_K: return 4;
    case MOEPAGE_DTYPE_Q4_0: return 8;
    case MOEPAGE_DTYPE_Q5_0: return 16;
    case MOEPAGE_DTYPE_Q6_K: return 32;
    default: return 0;
    }
}

/* 32 weights as signed bytes, before scale and minimum. */
MP_BLOCKS_INLINE __m256i mp_block_bytes_at(uint32_t dtype, const uint8_t *block, uint32_t step)
{
    const __m256i raised = mp_block_bytes_raised(dtype, block, step);
    if (mp_block_raise(dtype) == 0)
        return raised;
    return _mm256_sub_epi8(raised, _mm256_set1_epi8((char)mp_block_raise(dtype)));
}

#endif
