/* host_int8_scales.h — the scales of a run of four rows of weights with AVX-512, for products in integers:
 * decoded in registers, four rows and four groups at a time.
 *
 * Lane 4 * i + r of scale[j] is of group 4 * j + i of row r. A format is a constant wherever these functions
 * are called. */
#ifndef MP_DEVICE_HOST_INT8_SCALES_H
#define MP_DEVICE_HOST_INT8_SCALES_H

#include "device/host_int8_vnni.h"

typedef struct mp_run_scales {
    __m512 scale[4], minimum[4];
} mp_run_scales;

/* ---- Blocks with groups ---- */

/* 16 bytes of each of four rows. */
MP_INLINE __m512i heads_of(const uint8_t *const *rows, uint32_t offset)
{
    __m512i all = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(rows[0] + offset)));
    all = _mm512_inserti32x4(all, _mm_loadu_si128((const void *)(rows[1] + offset)), 1);
    all = _mm512_inserti32x4(all, _mm_loadu_si128((const void *)(rows[2] + offset)), 2);
    return _mm512_inserti32x4(all, _mm_loadu_si128((const void *)(rows[3] + offset)), 3);
}

/* Four numbers of 32 bits of each row: lane 4 * i + r is number i of row r. */
MP_INLINE __m512i by_rows(__m512i heads)
{
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7,
                                                      11, 15),
                                    heads);
}

/* Bytes a, b, c, d of every 16, then those after them, four times. */
MP_INLINE __m512i byte_fours(__m512i heads, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const uint32_t first = a | b << 8 | c << 16 | d << 24, next = 0x01010101;
    const __m128i order = _mm_setr_epi32((int)first, (int)(first + next), (int)(first + 2 * next),
                                         (int)(first + 3 * next));
    return _mm512_shuffle_epi8(heads, _mm512_broadcast_i32x4(order));
}

/* Word `word` of every 16 bytes as a half, of each row in every group. */
MP_INLINE __m512 half_of_heads(__m512i heads, uint32_t word)
{
    const __m256i order = _mm256_set1_epi64x(
        (int64_t)((24ull + word) << 48 | (16ull + word) << 32 | (8ull + word) << 16 | word));
    return _mm512_cvtph_ps(
        _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_castsi256_si512(order), heads)));
}

/* Halves of four rows, in every group. */
MP_INLINE __m512 halves_of(const uint8_t *const *rows, uint32_t offset)
{
    return _mm512_broadcast_f32x4(mp_load_halves(rows, offset));
}

/* Byte `i` of every lane, times a factor. */
MP_INLINE __m512 times_byte(__m512i lanes, uint32_t i, bool is_signed, __m512 factor)
{
    __m512i byte;
    if (is_signed)
        byte = _mm512_srai_epi32(_mm512_slli_epi32(lanes, 24 - 8 * i), 24);
    else if (i == 3)
        byte = _mm512_srli_epi32(lanes, 24);
    else
        byte = _mm512_and_si512(_mm512_srli_epi32(lanes, 8 * i), _mm512_set1_epi32(255));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(byte), factor);
}

/* a | (b & mask), of bytes that repeat. */
MP_INLINE __m512i with_bits(__m512i a, __m512i b, uint32_t mask)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32((int)mask), 0xf8);
}

/* Q4_K and Q5_K: of every lane the scales of groups i and 4 + i, and the minima. */
MP_INLINE void run_scales_q4_k(const uint8_t *const *rows, mp_run_scales *out)
{
    const __m512i heads = heads_of(rows, 0);
    const __m512i low = byte_fours(heads, 4, 12, 8, 12), high = byte_fours(heads, 0, 4, 0, 8);
    __m512i all = _mm512_and_si512(low, _mm512_set1_epi32(0x003f0f3f));
    all = with_bits(all, _mm512_srli_epi32(low, 4), 0x0f000000);
    all = by_rows(with_bits(all, _mm512_srli_epi32(high, 2), 0x30003000));
    const __m512 d = half_of_heads(heads, 0), e = half_of_heads(heads, 1);
    MP_EACH (j, 2) {
        out->scale[j] = times_byte(all, j, false, d);
        out->minimum[j] = times_byte(all, 2 + j, false, e);
    }
}

MP_INLINE void run_scales_q2_k(const uint8_t *const *rows, mp_run_scales *out)
{
    const __m512i all = by_rows(byte_fours(heads_of(rows, 0), 0, 4, 8, 12));
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i low = _mm512_and_si512(all, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi32(all, 4), mask);
    const __m512 d = halves_of(rows, 80), e = halves_of(rows, 82);
    MP_EACH (j, 4) {
        out->scale[j] = times_byte(low, j, false, d);
        out->minimum[j] = times_byte(high, j, false, e);
    }
}

/* The heads begin two bytes before the scales and end with the half. */
MP_INLINE void run_scales_q3_k(const uint8_t *const *rows, mp_run_scales *out)
{
    const __m512i heads = heads_of(rows, 94);
    const __m512i low = byte_fours(heads, 2, 6, 2, 6), high = byte_fours(heads, 10, 10, 10, 10);
    __m512i all = _mm512_and_si512(low, _mm512_set1_epi32(0x00000f0f));
    all = with_bits(all, _mm512_srli_epi32(low, 4), 0x0f0f0000);
    all = with_bits(all, _mm512_slli_epi32(high, 4), 0x00000030);
    all = with_bits(all, _mm512_slli_epi32(high, 2), 0x00003000);
    all = with_bits(all, high, 0x00300000);
    all = with_bits(all, _mm512_srli_epi32(high, 2), 0x30000000);
    all = by_rows(_mm512_sub_epi8(all, _mm512_set1_epi8(32)));
    const __m512 d = half_of_heads(heads, 7);
    MP_EACH (j, 4)
        out->scale[j] = times_byte(all, j, true, d);
}

MP_INLINE void run_scales_q6_k(const uint8_t *const *rows, mp_run_scales *out)
{
    const __m512i all = by_rows(byte_fours(heads_of(rows, 192), 0, 4, 8, 12));
    const __m512 d = halves_of(rows, 208);
    MP_EACH (j, 4)
        out->scale[j] = times_byte(all, j, true, d);
}

MP_INLINE void run_scales_iq4_xs(const uint8_t *const *rows, mp_run_scales *out)
{
    const __m512i heads = heads_of(rows, 0);
    const __m512i first = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4, 8, 12));
    const __m512i highs = _mm512_permutexvar_epi32(first, heads);
    const __m512i lows =
        _mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(1)), heads);
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512 d = half_of_heads(heads, 0);
    MP_EACH (j,
             2) { /* group g: nibble g of the lows, bits 16 + 2 * g and up of the highs to bit 4 */
        const __m512i g = _mm512_add_epi32(lane, _mm512_set1_epi32((int)(4 * j)));
        const __m512i low = _mm512_srlv_epi32(lows, _mm512_slli_epi32(g, 2));
        const __m512i high = _mm512_srlv_epi32(highs, _mm512_add_epi32(_mm512_add_epi32(g, g),
                                                                       _mm512_set1_epi32(12)));
        const __m512i all = with_bits(_mm512_and_si512(low, _mm512_set1_epi32(15)), high, 0x30);
        out->scale[j] =
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(all, _mm512_set1_epi32(32))), d);
    }
}

/* 32 bits of each of four rows. */
MP_INLINE __m128i words_at(const uint8_t *const *rows, uint32_t at)
{
    return _mm_setr_epi32((int)mp_load_u32(rows[0] + at), (int)mp_load_u32(rows[1] + at),
                          (int)mp_load_u32(rows[2] + at), (int)mp_load_u32(rows[3] + at));
}

/* As mp_halves_of_e4m3, of four rows: the bits of E4M3 numbers become halves of 2^-8 times the values. */
MP_INLINE __m512 halves_of_e4m3(const uint8_t *const *rows, uint32_t at)
{
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i heads = words_at(rows, at);
    const __m128i none = _mm_cmpeq_epi8(heads, _mm_set1_epi8(0x7f));
    const __m128i live = _mm_and_si128(_mm_andnot_si128(none, heads), _mm_set1_epi8(0x7f));
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(live, order));
    const __m512 halves = _mm512_cvtph_ps(_mm256_slli_epi16(wide, 7));
    return _mm512_mul_ps(halves, _mm512_set1_ps(0x1p7f));
}

MP_INLINE void run_scales_nvfp4(const uint8_t *const *rows, mp_run_scales *out)
{
    MP_EACH (j, 4)
        out->scale[j] = halves_of_e4m3(rows, j * 36);
}

/* As mp_scales_nvfp4g. */
MP_INLINE void run_scales_nvfp4g(uint32_t dtype, const uint8_t *const *rows, mp_run_scales *out)
{
    MP_EACH (j, 4) {
        const uint32_t weights = mp_block_weights(dtype);
        const uint32_t block = 64 * j / weights * mp_block_bytes(dtype);
        const __m128 four = _mm_castsi128_ps(words_at(rows, block));
        const __m512 factor = _mm512_broadcast_f32x4(four);
        const __m512 divisor = _mm512_xor_ps(factor, _mm512_set1_ps(-0.0f));
        const __m512 halves = halves_of_e4m3(rows, block + 4 + 64 * j % weights / 16);
        out->scale[j] = _mm512_mul_ps(halves, factor);
        if (_mm_movemask_ps(four))
            out->scale[j] =
                _mm512_mask_div_ps(out->scale[j], _mm512_movepi32_mask(_mm512_castps_si512(factor)),
                                   halves, divisor);
    }
}

/* ---- Blocks with one scale ---- */

/* Four blocks are taken in two loads: of the first 64 bytes and of those from here on. Words that are inside
 * the first are taken from there. */
MP_INLINE uint32_t second_load(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_Q8_0 ? 64 : 4 * mp_block_bytes(dtype) - 64;
}

/* Of four blocks of even size the word at `offset`: lane 4 * i + r is of block i of row r. */
MP_INLINE __m256i words_of(uint32_t dtype, const uint8_t *const *rows, uint32_t offset)
{
    const uint32_t second = second_load(dtype);
    uint64_t order[4];
    bool is_inside = true;
    MP_EACH (i, 4) {
        const uint32_t at = i * mp_block_bytes(dtype) + offset;
        const uint64_t word = at < 63 ? at / 2 : 32 + (at - second) / 2;
        is_inside = is_inside && at < 63;
        order[i] = word * 0x0001000100010001ull;
    }
    const __m512i from =
        _mm512_castsi256_si512(_mm256_setr_epi64x((int64_t)order[0], (int64_t)order[1],
                                                  (int64_t)order[2], (int64_t)order[3]));
    __m256i all = _mm256_setzero_si256();
    MP_EACH (r, 4) {
        const __m512i first = _mm512_loadu_si512(rows[r]);
        const __m512i words =
            is_inside
                ? _mm512_permutexvar_epi16(from, first)
                : _mm512_permutex2var_epi16(first, from, _mm512_loadu_si512(rows[r] + second));
        all = _mm256_mask_mov_epi16(all, (__mmask16)(0x1111 << r), _mm512_castsi512_si256(words));
    }
    return all;
}

/* As mp_load_e8m0, of the words that hold a block's first byte. */
MP_INLINE __m512 e8m0_of(const uint8_t *const *rows)
{
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 0, 0, 0, 0, 8, 8, 8, 8);
    const __m512i words = _mm512_cvtepu16_epi32(words_of(MOEPAGE_DTYPE_MXFP4, rows, 0));
    const __m512i e = _mm512_and_si512(_mm512_srlv_epi32(words, shift), _mm512_set1_epi32(255));
    const __m512i normal = _mm512_sub_epi32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(1 << 23));
    const __m512i denormal = _mm512_add_epi32(_mm512_slli_epi32(e, 21), _mm512_set1_epi32(1 << 21));
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, denormal));
}

MP_INLINE void run_scales_plain(uint32_t dtype, const uint8_t *const *rows, mp_run_scales *out)
{
    MP_EACH (j, 2) {
        const uint32_t at = j * 4 * mp_block_bytes(dtype);
        const uint8_t *const four[] = {rows[0] + at, rows[1] + at, rows[2] + at, rows[3] + at};
        if (dtype == MOEPAGE_DTYPE_MXFP4) {
            out->scale[j] = e8m0_of(four);
            continue;
        }
        out->scale[j] = _mm512_cvtph_ps(words_of(dtype, four, 0));
        if (mp_block_has_minimum(dtype))
            out->minimum[j] =
                _mm512_xor_ps(_mm512_cvtph_ps(words_of(dtype, four, 2)), _mm512_set1_ps(-0.0f));
    }
}

/* ---- Blocks with a zero-point ---- */

/* The first 32 bits of the block in which group `group` of a row lies. */
MP_INLINE int head_of_w4(uint32_t dtype, const uint8_t *row, uint32_t group)
{
    return (int)mp_load_u32(row + group / (mp_block_weights(dtype) / 32) * mp_block_bytes(dtype));
}

/* As mp_scales_w4. */
MP_INLINE void run_scales_w4(uint32_t dtype, const uint8_t *const *rows, mp_run_scales *out)
{
    MP_EACH (j, 2) {
        _Alignas(64) int lanes[16];
        MP_EACH (lane, 16)
            lanes[lane] = head_of_w4(dtype, rows[lane % 4], 4 * j + lane / 4);
        const __m512i heads = _mm512_load_si512(lanes);
        const __m512i zeros = _mm512_and_si512(_mm512_srli_epi32(heads, 16), _mm512_set1_epi32(15));
        out->scale[j] = mp_block_is_bf16(dtype) ? _mm512_castsi512_ps(_mm512_slli_epi32(heads, 16))
                                                : _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads));
        out->minimum[j] = _mm512_mul_ps(out->scale[j], _mm512_cvtepi32_ps(zeros));
    }
}

/* ---- Every format ---- */

/* Of a whole run of each of four rows. */
MP_INLINE void run_scales(uint32_t dtype, const uint8_t *const *rows, mp_run_scales *out)
{
    if (mp_block_has_zero(dtype)) {
        run_scales_w4(dtype, rows, out);
        return;
    }
    switch (dtype) {
    case MOEPAGE_DTYPE_Q2_K: run_scales_q2_k(rows, out); break;
    case MOEPAGE_DTYPE_Q3_K: run_scales_q3_k(rows, out); break;
    case MOEPAGE_DTYPE_Q4_K:
    case MOEPAGE_DTYPE_Q5_K: run_scales_q4_k(rows, out); break;
    case MOEPAGE_DTYPE_Q6_K: run_scales_q6_k(rows, out); break;
    case MOEPAGE_DTYPE_IQ4_XS: run_scales_iq4_xs(rows, out); break;
    case MOEPAGE_DTYPE_NVFP4: run_scales_nvfp4(rows, out); break;
    case MOEPAGE_DTYPE_NVFP4G64_F32:
    case MOEPAGE_DTYPE_NVFP4G128_F32:
    case MOEPAGE_DTYPE_NVFP4G256_F32: run_scales_nvfp4g(dtype, rows, out); break;
    default: run_scales_plain(dtype, rows, out);
    }
}

#endif
