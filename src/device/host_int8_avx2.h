/* host_int8_avx2.h — what the products in integers with AVX2 share: what weights mean as bytes without a sign.
 *
 * The instruction that multiplies bytes wants one factor without a sign and adds two products in 16 bits.
 * Weights of six bits and fewer are an offset too great, which the sums of x make up for; as many of their
 * products as fit stay in 16 bits. Of eight bits, and of tables with great numbers, the sign goes to x: two
 * products fit. A format is a constant wherever these functions are called. */
#ifndef MP_DEVICE_HOST_INT8_AVX2_H
#define MP_DEVICE_HOST_INT8_AVX2_H

#include <immintrin.h>

#include "device/host_blocks_x86.h"
#include "device/host_int8.h"

#define MP_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

/* Weights that share a scale. */
MP_INLINE uint32_t group_of(uint32_t dtype)
{
    return mp_block_group(dtype, 1, 1) == 3 ? 16 : 32;
}

MP_INLINE bool is_fp4(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_MXFP4 || dtype == MOEPAGE_DTYPE_NVFP4 ||
           mp_block_has_factor(dtype);
}

/* Products with 127 that are added in 16 bits. */
MP_INLINE uint32_t products_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q8_0:
    case MOEPAGE_DTYPE_IQ4_NL:
    case MOEPAGE_DTYPE_IQ4_XS: return 2; /* of 128 */
    case MOEPAGE_DTYPE_Q6_K: return 4;   /* of 63 */
    case MOEPAGE_DTYPE_MXFP4:
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32: /* of 28 */
    case MOEPAGE_DTYPE_Q5_0:
    case MOEPAGE_DTYPE_Q5_1:
    case MOEPAGE_DTYPE_Q5_K: return 8; /* of 31 */
    default: return 16;                /* of 15 */
    }
}

/* Of sums that each take two bytes of four in turn: 1 << depth of them fit, or are all of a group. */
MP_INLINE uint32_t depth_of(uint32_t dtype)
{
    switch (products_of(dtype)) {
    case 2: return 0;
    case 4: return 1;
    case 8: return 2;
    default: return group_of(dtype) == 16 ? 2 : 3;
    }
}

/* Returns true if weights keep their signs. */
MP_INLINE bool has_signs(uint32_t dtype)
{
    return products_of(dtype) == 2;
}

MP_INLINE bool has_offset(uint32_t dtype)
{
    return !has_signs(dtype) && !mp_block_has_minimum(dtype);
}

/* What the bytes of weights are too great by, as a power of two: -128 >> shift makes up for it. */
MP_INLINE uint32_t offset_shift(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q3_K: return 5; /* 4 */
    case MOEPAGE_DTYPE_Q4_0: return 4; /* 8 */
    case MOEPAGE_DTYPE_Q6_K: return 2; /* 32 */
    default: return 3;                 /* Q5_0 and FP4: 16 */
    }
}

/* Sums of two products each, of 16 bits. */
MP_INLINE __m256i multiply_bytes(bool with_signs, __m256i w, __m256i x)
{
    return with_signs ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                      : _mm256_maddubs_epi16(w, x);
}

/* Sums of two of them, of 32 bits. */
MP_INLINE __m256i add_pairs(__m256i sums)
{
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

/* One row of x times any number of rows of weights: of the file for that. */
void mp_int8_avx2_row(const mp_int8_product *product);

#endif
