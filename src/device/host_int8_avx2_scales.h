/* host_int8_avx2_scales.h — the scales of a run of two rows of weights with AVX2, for products in integers.
 *
 * Element i of either half of scale[j] is of group 4 * j + i of a row. A format is a constant wherever these
 * functions are called. */
#ifndef MP_DEVICE_HOST_INT8_AVX2_SCALES_H
#define MP_DEVICE_HOST_INT8_AVX2_SCALES_H

#include "device/host_int8_avx2.h"

typedef struct run_scales {
    __m256 scale[4], minimum[4];
} run_scales;

/* 16 bytes of each of two rows. */
MP_INLINE __m256i both(const uint8_t *const *rows, uint32_t offset)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(
                                       _mm_loadu_si128((const void *)(rows[0] + offset))),
                                   _mm_loadu_si128((const void *)(rows[1] + offset)), 1);
}

/* ---- Blocks with groups ---- */

/* Two halves of each row: the first everywhere, and the second. */
MP_INLINE void two_halves(const uint8_t *const *rows, uint32_t offset, __m256 *out)
{
    const __m256 all = _mm256_cvtph_ps(_mm_setr_epi32((int)mp_load_u32(rows[0] + offset),
                                                      (int)mp_load_u32(rows[1] + offset), 0, 0));
    out[0] = _mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
    out[1] = _mm256_permutevar8x32_ps(all, _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
}

/* One of them. */
MP_INLINE __m256 one_half(const uint8_t *const *rows, uint32_t offset)
{
    const __m128i words = _mm_insert_epi16(_mm_cvtsi32_si128(mp_load_u16(rows[0] + offset)),
                                           mp_load_u16(rows[1] + offset), 1);
    return _mm256_permutevar8x32_ps(_mm256_cvtph_ps(words),
                                    _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}

/* Bytes 4 * j to 4 * j + 3 of either half, times a factor. */
MP_INLINE __m256 times_bytes(__m256i bytes, uint32_t j, bool is_signed, __m256 factor)
{
    const uint32_t at = 4 * j, top = is_signed ? 24 : 0, none = ~(0xffu << top);
    const __m128i order =
        _mm_setr_epi32((int)(at << top | none), (int)((at + 1) << top | none),
                       (int)((at + 2) << top | none), (int)((at + 3) << top | none));
    __m256i wide = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order));
    if (is_signed)
        wide = _mm256_srai_epi32(wide, 24);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wide), factor);
}

/* Q4_K and Q5_K. */
MP_INLINE void scales_q4_k(const uint8_t *const *rows, run_scales *out)
{
    const __m256i heads = both(rows, 0);
    const __m256i low = _mm256_srlv_epi32(_mm256_shuffle_epi32(heads, 0xed), /* 1, 3, 2, 3 */
                                          _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
    const __m256i high = _mm256_srli_epi32(_mm256_shuffle_epi32(heads, 0xa5), 2); /* 1, 1, 2, 2 */
    const __m256i all =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f)),
                        _mm256_and_si256(high, _mm256_set1_epi64x(0x3030303000000000)));
    __m256 d[2];
    two_halves(rows, 0, d);
    MP_EACH (j, 2) {
        out->scale[j] = times_bytes(all, j, false, d[0]);
        out->minimum[j] = times_bytes(all, 2 + j, false, d[1]);
    }
}

MP_INLINE void scales_q2_k(const uint8_t *const *rows, run_scales *out)
{
    const __m256i all = both(rows, 0), mask = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(all, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(all, 4), mask);
    __m256 d[2];
    two_halves(rows, 80, d);
    MP_EACH (j, 4) {
        out->scale[j] = times_bytes(low, j, false, d[0]);
        out->minimum[j] = times_bytes(high, j, false, d[1]);
    }
}

/* The heads begin two bytes before the scales and end with the half. */
MP_INLINE void scales_q3_k(const uint8_t *const *rows, run_scales *out)
{
    const __m256i heads = both(rows, 94);
    const __m128i eight = _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9);
    const __m128i four =
        _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13);
    const __m256i low =
        _mm256_srlv_epi64(_mm256_shuffle_epi8(heads, _mm256_broadcastsi128_si256(eight)),
                          _mm256_setr_epi64x(0, 4, 0, 4));
    const __m256i high =
        _mm256_srlv_epi32(_mm256_shuffle_epi8(heads, _mm256_broadcastsi128_si256(four)),
                          _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    const __m256i all =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)),
                        _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4));
    const __m256i bytes = _mm256_sub_epi8(all, _mm256_set1_epi8(32));
    const __m256 d = one_half(rows, 108);
    MP_EACH (j, 4)
        out->scale[j] = times_bytes(bytes, j, true, d);
}

MP_INLINE void scales_q6_k(const uint8_t *const *rows, run_scales *out)
{
    const __m256i all = both(rows, 192);
    const __m256 d = one_half(rows, 208);
    MP_EACH (j, 4)
        out->scale[j] = times_bytes(all, j, true, d);
}

/* Group g: four bits of the lows from 4 * g on, and two of the highs from 2 * g on above them. */
MP_INLINE void scales_iq4_xs(const uint8_t *const *rows, run_scales *out)
{
    const __m256i heads = both(rows, 0), g = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
    const __m256i lows = _mm256_shuffle_epi32(heads, 0x55);
    const __m256i highs = _mm256_srli_epi32(_mm256_shuffle_epi32(heads, 0), 12);
    const __m256 d = one_half(rows, 0);
    MP_EACH (j, 2) {
        const __m256i at = _mm256_add_epi32(g, _mm256_set1_epi32((int)(4 * j)));
        const __m256i low = _mm256_srlv_epi32(lows, _mm256_slli_epi32(at, 2));
        const __m256i high = _mm256_srlv_epi32(highs, _mm256_add_epi32(at, at));
        const __m256i all = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                            _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
        out->scale[j] =
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(all, _mm256_set1_epi32(32))), d);
    }
}

/* As mp_halves_of_e4m3, of either row. */
MP_INLINE __m256 halves_of_e4m3(const uint8_t *const *rows, uint32_t offset)
{
    const __m128i bytes = _mm_setr_epi32((int)mp_load_u32(rows[0] + offset),
                                         (int)mp_load_u32(rows[1] + offset), 0, 0);
    const __m128i none = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7f));
    const __m128i live = _mm_and_si128(_mm_andnot_si128(none, bytes), _mm_set1_epi8(0x7f));
    const __m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(live), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(0x1p7f));
}

MP_INLINE void scales_nvfp4(const uint8_t *const *rows, run_scales *out)
{
    MP_EACH (j, 4)
        out->scale[j] = halves_of_e4m3(rows, 36 * j);
}

/* As mp_scales_nvfp4g. */
MP_INLINE void scales_nvfp4g(uint32_t dtype, const uint8_t *const *rows, run_scales *out)
{
    MP_EACH (j, 4) {
        const uint32_t weights = mp_block_weights(dtype);
        const uint32_t block = 64 * j / weights * mp_block_bytes(dtype);
        const int first = (int)mp_load_u32(rows[0] + block);
        const int second = (int)mp_load_u32(rows[1] + block);
        const __m256 factor = _mm256_castsi256_ps(
            _mm256_setr_epi32(first, first, first, first, second, second, second, second));
        const __m256 halves = halves_of_e4m3(rows, block + 4 + 64 * j % weights / 16);
        out->scale[j] = _mm256_mul_ps(halves, factor);
        if (_mm256_movemask_ps(factor)) {
            const __m256 divisor = _mm256_xor_ps(factor, _mm256_set1_ps(-0.0f));
            out->scale[j] = _mm256_blendv_ps(out->scale[j], _mm256_div_ps(halves, divisor), factor);
        }
    }
}

/* ---- Blocks with one scale ---- */

/* The word at `offset` of blocks 4 * j and on of both rows. */
MP_INLINE __m128i words_of(uint32_t dtype, const uint8_t *const *rows, uint32_t j, uint32_t offset)
{
    const uint32_t bytes = mp_block_bytes(dtype), at = 4 * j * bytes + offset;
    __m128i all = _mm_cvtsi32_si128(mp_load_u16(rows[0] + at));
    all = _mm_insert_epi16(all, mp_load_u16(rows[0] + at + bytes), 1);
    all = _mm_insert_epi16(all, mp_load_u16(rows[0] + at + 2 * bytes), 2);
    all = _mm_insert_epi16(all, mp_load_u16(rows[0] + at + 3 * bytes), 3);
    all = _mm_insert_epi16(all, mp_load_u16(rows[1] + at), 4);
    all = _mm_insert_epi16(all, mp_load_u16(rows[1] + at + bytes), 5);
    all = _mm_insert_epi16(all, mp_load_u16(rows[1] + at + 2 * bytes), 6);
    return _mm_insert_epi16(all, mp_load_u16(rows[1] + at + 3 * bytes), 7);
}

/* As mp_load_e8m0, of the words that hold a block's first byte. */
MP_INLINE __m256 e8m0_of(const uint8_t *const *rows, uint32_t j)
{
    const __m256i words = _mm256_cvtepu16_epi32(words_of(MOEPAGE_DTYPE_MXFP4, rows, j, 0));
    const __m256i e = _mm256_and_si256(words, _mm256_set1_epi32(255));
    const __m256i normal = _mm256_sub_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(1 << 23));
    const __m256i denormal = _mm256_add_epi32(_mm256_slli_epi32(e, 21), _mm256_set1_epi32(1 << 21));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, denormal));
}

MP_INLINE void scales_plain(uint32_t dtype, const uint8_t *const *rows, run_scales *out)
{
    MP_EACH (j, 2) {
        if (dtype == MOEPAGE_DTYPE_MXFP4) {
            out->scale[j] = e8m0_of(rows, j);
            continue;
        }
        out->scale[j] = _mm256_cvtph_ps(words_of(dtype, rows, j, 0));
        if (mp_block_has_minimum(dtype))
            out->minimum[j] =
                _mm256_xor_ps(_mm256_cvtph_ps(words_of(dtype, rows, j, 2)), _mm256_set1_ps(-0.0f));
    }
}

/* ---- Blocks with a zero-point ---- */

/* The first 32 bits of the block in which group g of a row lies. */
MP_INLINE int head_of_w4(uint32_t dtype, const uint8_t *row, uint32_t g)
{
    return (int)mp_load_u32(row + g / (mp_block_weights(dtype) / 32) * mp_block_bytes(dtype));
}

/* As mp_scales_w4. */
MP_INLINE void scales_w4(uint32_t dtype, const uint8_t *const *rows, run_scales *out)
{
    const __m128i first = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    MP_EACH (j, 2) {
        int at[8];
        MP_EACH (i, 8)
            at[i] = head_of_w4(dtype, rows[i / 4], 4 * j + i % 4);
        const __m256i heads =
            _mm256_setr_epi32(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
        const __m256i words =
            _mm256_permute4x64_epi64(_mm256_shuffle_epi8(heads, _mm256_broadcastsi128_si256(first)),
                                     0x08);
        const __m256i zeros = _mm256_and_si256(_mm256_srli_epi32(heads, 16), _mm256_set1_epi32(15));
        out->scale[j] = mp_block_is_bf16(dtype) ? _mm256_castsi256_ps(_mm256_slli_epi32(heads, 16))
                                                : _mm256_cvtph_ps(_mm256_castsi256_si128(words));
        out->minimum[j] = _mm256_mul_ps(out->scale[j], _mm256_cvtepi32_ps(zeros));
    }
}

/* ---- Every format ---- */

/* Of a whole run of either row. */
MP_INLINE void decode_scales(uint32_t dtype, const uint8_t *const *rows, run_scales *out)
{
    if (mp_block_has_zero(dtype)) {
        scales_w4(dtype, rows, out);
        return;
    }
    switch (dtype) {
    case MOEPAGE_DTYPE_Q2_K: scales_q2_k(rows, out); break;
    case MOEPAGE_DTYPE_Q3_K: scales_q3_k(rows, out); break;
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_K: scales_q4_k(rows, out); break;
    case MOEPAGE_DTYPE_Q6_K: scales_q6_k(rows, out); break;
    case MOEPAGE_DTYPE_IQ4_XS: scales_iq4_xs(rows, out); break;
    case MOEPAGE_DTYPE_NVFP4: scales_nvfp4(rows, out); break;
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32: scales_nvfp4g(dtype, rows, out); break;
    default: scales_plain(dtype, rows, out);
    }
}

#endif
