/* host_int8_vnni.h — what the products in integers with AVX-512 and VNNI share: weights taken apart, and the
 * scales of four rows of them.
 *
 * Weights are taken apart 64 at a time, as unsigned bytes: of formats without minimums all are an offset
 * too great, which the sums of x make up for. A format is a constant wherever these functions are called. */
#ifndef MP_DEVICE_HOST_INT8_VNNI_H
#define MP_DEVICE_HOST_INT8_VNNI_H

#include <immintrin.h>

#include "device/host_blocks_x86.h"
#include "device/host_int8.h"

#define MP_VNNI \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define MP_INLINE MP_VNNI static inline __attribute__((always_inline))

#define MP_STEP 64 /* weights that one call takes apart */

/* ---- Formats ---- */

/* What the bytes of weights are too great by, as a power of two: -128 >> shift makes up for it. */
MP_INLINE uint32_t offset_shift(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q3_K: return 5;
    case MOEPAGE_DTYPE_Q4_0: return 4;
    case MOEPAGE_DTYPE_Q5_0:
    case MOEPAGE_DTYPE_MXFP4:
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32: return 3;
    case MOEPAGE_DTYPE_Q6_K: return 2;
    default: return 0; /* Q8_0, IQ4_NL, IQ4_XS */
    }
}

/* Weights that share a scale. */
MP_INLINE uint32_t group_of(uint32_t dtype)
{
    return mp_block_group(dtype, 1, 1) == 3 ? 16 : 32;
}

/* 16 bytes of each of two places, twice. */
MP_INLINE __m512i twice(const uint8_t *first, const uint8_t *second)
{
    const __m512i low = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)first));
    return _mm512_mask_broadcast_i32x4(low, 0xff00, _mm_loadu_si128((const void *)second));
}

/* 32 bytes, twice. */
MP_INLINE __m512i both(const uint8_t *from)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)from));
}

/* Every byte's low half, of the second 16 and the fourth its high half. */
MP_INLINE __m512i halves_of_16(__m512i bytes)
{
    const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    return _mm512_and_si512(_mm512_srlv_epi64(bytes, shift), _mm512_set1_epi8(15));
}

/* Of 32 bytes' fields twice: bits `first` and up, then bits `second` and up, moved to bit `to`. */
MP_INLINE __m512i fields(__m512i bytes, uint32_t first, uint32_t second, uint32_t to)
{
    const int a = (int)(first - to) & 31, b = (int)(second - to) & 31;
    return _mm512_rorv_epi32(bytes,
                             _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b));
}

/* low | (high & mask). */
MP_INLINE __m512i joined(__m512i low, __m512i high, uint8_t mask)
{
    return _mm512_ternarylogic_epi64(low, high, _mm512_set1_epi8((char)mask), 0xf8);
}

/* The table of a format, plus its offset. */
MP_INLINE __m512i looked_up(uint32_t dtype, __m512i indices)
{
    const __m128i offset = _mm_set1_epi8((char)(128 >> offset_shift(dtype)));
    const __m128i table = _mm_add_epi8(mp_block_table(dtype), offset);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices);
}

MP_INLINE __m512i with_fifth_bits(__m512i low, const uint8_t *first, const uint8_t *second)
{
    const uint64_t bits = mp_load_u32(first) | (uint64_t)mp_load_u32(second) << 32;
    return _mm512_mask_add_epi8(low, bits, low, _mm512_set1_epi8(16));
}

/* Weights of two blocks of 32. */
MP_INLINE __m512i unpack_plain(uint32_t dtype, const uint8_t *first, const uint8_t *second)
{
    const uint32_t low = mp_block_low_bits(dtype), high = mp_block_high_bits(dtype);
    if (dtype == MOEPAGE_DTYPE_Q8_0) {
        const __m256i a = _mm256_loadu_si256((const void *)(first + low));
        const __m256i b = _mm256_loadu_si256((const void *)(second + low));
        return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1),
                                _mm512_set1_epi8((char)0x80));
    }
    const __m512i four = halves_of_16(twice(first + low, second + low));
    switch (dtype) {
    case MOEPAGE_DTYPE_Q5_0:
    case MOEPAGE_DTYPE_Q5_1: return with_fifth_bits(four, first + high, second + high);
    case MOEPAGE_DTYPE_IQ4_NL:
    case MOEPAGE_DTYPE_MXFP4: return looked_up(dtype, four);
    default: return four; /* Q4_0, Q4_1 */
    }
}

MP_INLINE __m512i unpack_q6_k(const uint8_t *block, uint32_t step)
{
    __m512i low = _mm512_loadu_si512(block + step / 2 * 64);
    if (step % 2)
        low = _mm512_srli_epi16(low, 4);
    const __m512i high =
        fields(both(block + 128 + step / 2 * 32), step % 2 * 4, step % 2 * 4 + 2, 4);
    return joined(_mm512_and_si512(low, _mm512_set1_epi8(15)), high, 0x30);
}

/* Of 16 weights first eight low halves and then eight high ones. */
MP_INLINE __m512i unpack_nvfp4(const uint8_t *bytes)
{
    const __m512i order = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    const __m512i shift = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    const __m512i all = _mm512_permutexvar_epi64(order, both(bytes));
    return looked_up(MOEPAGE_DTYPE_NVFP4,
                     _mm512_and_si512(_mm512_srlv_epi64(all, shift), _mm512_set1_epi8(15)));
}

/* Of each 32 weights first 16 low halves and then 16 high ones. */
MP_INLINE __m512i unpack_w4(const uint8_t *bytes)
{
    return halves_of_16(twice(bytes, bytes + 16));
}

/* Weights [64 * step, 64 * step + 64) of a run that begins at `run`; of blocks of 32 the second of the two
 * blocks is the first again if there is none. */
MP_INLINE __m512i unpack(uint32_t dtype, const uint8_t *run, uint32_t step, bool second)
{
    const uint32_t bytes = mp_block_bytes(dtype);
    const uint8_t *low = run + mp_block_low_bits(dtype), *high = run + mp_block_high_bits(dtype);
    const uint32_t s = 2 * step % 4 * 2; /* of two bits, in a half of 128 weights */
    const __m512i two = _mm512_set1_epi8(3);
    switch (dtype) {
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_K: {
        const __m512i four =
            _mm512_and_si512(fields(both(low + 32 * step), 0, 4, 0), _mm512_set1_epi8(15));
        if (dtype == MOEPAGE_DTYPE_Q4_K)
            return four;
        return joined(four, fields(both(high), 2 * step, 2 * step + 1, 4), 0x10);
    }
    case MOEPAGE_DTYPE_Q2_K:
        return _mm512_and_si512(fields(both(low + step / 2 * 32), s, s + 2, 0), two);
    case MOEPAGE_DTYPE_Q3_K:
        return joined(_mm512_and_si512(fields(both(low + step / 2 * 32), s, s + 2, 0), two),
                      fields(both(high), 2 * step, 2 * step + 1, 2), 4);
    case MOEPAGE_DTYPE_Q6_K: return unpack_q6_k(run, step);
    case MOEPAGE_DTYPE_IQ4_XS:
        return looked_up(dtype, halves_of_16(twice(low + 32 * step, low + 32 * step + 16)));
    case MOEPAGE_DTYPE_NVFP4:
    case MOEPAGE_DTYPE_NVFP4G64_F32: return unpack_nvfp4(low + bytes * step);
    case MOEPAGE_DTYPE_NVFP4G128_F32: return unpack_nvfp4(low + step / 2 * bytes + step % 2 * 32);
    case MOEPAGE_DTYPE_NVFP4G256_F32: return unpack_nvfp4(low + 32 * step);
    case MOEPAGE_DTYPE_W4G64_F16:
    case MOEPAGE_DTYPE_W4G64_BF16: return unpack_w4(low + bytes * step);
    case MOEPAGE_DTYPE_W4G128_F16:
    case MOEPAGE_DTYPE_W4G128_BF16: return unpack_w4(low + step / 2 * bytes + step % 2 * 32);
    default: return unpack_plain(dtype, run + 2 * step * bytes, run + (2 * step + second) * bytes);
    }
}

/* One row of x times any number of rows of weights: of the file for that. */
void mp_int8_vnni_row(const mp_int8_product *product);

#endif
