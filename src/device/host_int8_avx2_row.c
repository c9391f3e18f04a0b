/* Products in integers with AVX2: one row of x.
 *
 * It meets two rows of weights at a time, one in either half of a vector, straight from registers: 16 bytes of
 * each with 16 of x. The sums of four groups are added up side by side, so that one fused multiply-add serves two
 * rows and four groups: element i of either half is of group 4 * j + i, and of lane i. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include "device/host_int8_avx2.h"
#include "device/host_int8_avx2_scales.h"
#include "device/host_int8_rows.h"

/* Most bytes of rows that are fetched to the first-level cache, of 32 KiB, while those before them are multiplied. */
#define MP_NEAR_BYTES (12u << 10)

/* ---- Weights ---- */

/* Bits [shift, shift + width of mask) of every byte, moved to where the mask has them. */
MP_INLINE __m256i field(__m256i bytes, uint32_t shift, uint32_t to, uint8_t mask)
{
    if (shift > to)
        bytes = _mm256_srli_epi16(bytes, (int)(shift - to));
    else if (shift < to)
        bytes = _mm256_slli_epi16(bytes, (int)(to - shift));
    return _mm256_and_si256(bytes, _mm256_set1_epi8((char)mask));
}

MP_INLINE __m256i looked_up(uint32_t dtype, __m256i indices)
{
    const __m128i offset = _mm_set1_epi8(is_fp4(dtype) ? 16 : 0);
    const __m128i table = _mm_add_epi8(mp_block_table(dtype), offset);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices);
}

/* 32 bits at `offset` of either row, four times. */
MP_INLINE __m256i bits_of(const uint8_t *const *rows, uint32_t offset)
{
    return _mm256_set_m128i(_mm_set1_epi32((int)mp_load_u32(rows[1] + offset)),
                            _mm_set1_epi32((int)mp_load_u32(rows[0] + offset)));
}

/* Half of them as bytes of 16 or 0. */
MP_INLINE __m256i fifth_bits(__m256i bits, uint32_t half)
{
    const __m128i spread = half ? _mm_setr_epi8(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)
                                : _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const __m256i all = _mm256_shuffle_epi8(bits, _mm256_broadcastsi128_si256(spread));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit),
                            _mm256_set1_epi8(16));
}

/* Where the 16 bytes of group g are, of formats of which they hold first halves and second ones. */
MP_INLINE uint32_t offset_of_group(uint32_t dtype, uint32_t g)
{
    const uint32_t in_block = mp_block_weights(dtype) / 32;
    return g / in_block * mp_block_bytes(dtype) + mp_block_low_bits(dtype) + g % in_block * 16;
}

/* The first and the second half of group g of a run, of formats with a scale for 32. */
MP_INLINE void unpack_halves(uint32_t dtype, const uint8_t *const *run, uint32_t g, __m256i *out)
{
    const uint32_t at = offset_of_group(dtype, g);
    const uint32_t high = g * mp_block_bytes(dtype) + mp_block_high_bits(dtype);
    if (dtype == MOEPAGE_DTYPE_Q8_0) {
        MP_EACH (half, 2)
            out[half] = both(run, g * 34 + 2 + 16 * half);
        return;
    }
    const __m256i all = both(run, at);
    MP_EACH (half, 2) {
        out[half] = field(all, 4 * half, 0, 15);
        if (dtype == MOEPAGE_DTYPE_Q5_0 || dtype == MOEPAGE_DTYPE_Q5_1)
            out[half] = _mm256_or_si256(out[half], fifth_bits(bits_of(run, high), half));
        if (mp_block_is_table(dtype))
            out[half] = looked_up(dtype, out[half]);
    }
}

/* The same of Q4_K and Q5_K, of which 32 bytes hold two groups. */
MP_INLINE void unpack_k(uint32_t dtype, const uint8_t *const *run, uint32_t g, __m256i *out)
{
    const uint32_t at = mp_block_low_bits(dtype) + g / 2 * 32, high = mp_block_high_bits(dtype);
    MP_EACH (half, 2) {
        out[half] = field(both(run, at + 16 * half), g % 2 * 4, 0, 15);
        if (dtype == MOEPAGE_DTYPE_Q5_K)
            out[half] = _mm256_or_si256(out[half], field(both(run, high + 16 * half), g, 4, 0x10));
    }
}

/* Group 4 * j + i of a run, of formats with a scale for 16. */
MP_INLINE __m256i unpack_16(uint32_t dtype, const uint8_t *const *run, uint32_t j, uint32_t i)
{
    const uint32_t low = mp_block_low_bits(dtype), high = mp_block_high_bits(dtype);
    const uint32_t half = j / 2, quarter = j % 2 * 2 + i / 2, side = i % 2 * 16;
    if (dtype == MOEPAGE_DTYPE_Q6_K)
        return _mm256_or_si256(field(both(run, low + 64 * half + 16 * i), j % 2 * 4, 0, 15),
                               field(both(run, high + 32 * half + side), 2 * quarter, 4, 0x30));
    if (is_fp4(dtype)) {
        const uint32_t weights = mp_block_weights(dtype);
        const uint32_t block = 64 * j / weights * mp_block_bytes(dtype);
        const __m256i all = both(run, block + low + 64 * j % weights / 2 + i / 2 * 16);
        const __m256i first = field(all, 0, 0, 15), second = field(all, 4, 0, 15);
        return looked_up(dtype, i % 2 ? _mm256_unpackhi_epi64(first, second)
                                      : _mm256_unpacklo_epi64(first, second));
    }
    const __m256i two = field(both(run, low + 32 * half + side), 2 * quarter, 0, 3);
    if (dtype == MOEPAGE_DTYPE_Q2_K)
        return two;
    return _mm256_or_si256(two, field(both(run, high + side), 4 * half + quarter, 2, 4));
}

/* ---- Sums ---- */

/* 16 elements of x for both rows. */
MP_INLINE __m256i x_at(const int8_t *q)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)q));
}

/* Four numbers of x, for both rows; and two, twice each. */
MP_INLINE __m256i four_ints(const int32_t *from)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)from));
}

MP_INLINE __m256 four_floats(const float *from)
{
    return _mm256_broadcast_ps((const void *)from);
}

MP_INLINE __m256 two_twice(const float *from)
{
    double two;
    memcpy(&two, from, sizeof two);
    return _mm256_permute_ps(_mm256_castpd_ps(_mm256_set1_pd(two)), 0x50);
}

/* Lanes of groups 4 * j and on: of those that exist the first, of others the second. */
MP_INLINE __m256 chosen(uint32_t exist, uint32_t j, __m256 first, __m256 second)
{
    const __m256i order = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
    const __m256i left = _mm256_set1_epi32((int)exist - 4 * (int)j);
    return _mm256_blendv_ps(second, first, _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, order)));
}

/* The products of group 4 * j + i, in 16 bits; of weights with signs in 32. */
MP_INLINE __m256i dot(uint32_t dtype, const int8_t *q, const uint8_t *const *run, uint32_t j,
                      uint32_t i)
{
    const bool with_signs = has_signs(dtype);
    __m256i w[2], sums[2];
    if (group_of(dtype) == 16)
        return multiply_bytes(with_signs, unpack_16(dtype, run, j, i), x_at(q + 64 * j + 16 * i));
    if (mp_block_weights(dtype) == MP_BLOCK_RUN && dtype != MOEPAGE_DTYPE_IQ4_XS)
        unpack_k(dtype, run, 4 * j + i, w);
    else
        unpack_halves(dtype, run, 4 * j + i, w);
    MP_EACH (half, 2) {
        sums[half] = multiply_bytes(with_signs, w[half], x_at(q + 128 * j + 32 * i + 16 * half));
        if (with_signs)
            sums[half] = add_pairs(sums[half]);
    }
    return with_signs ? _mm256_add_epi32(sums[0], sums[1]) : _mm256_add_epi16(sums[0], sums[1]);
}

/* The sums of four groups: neighbours are added in 16 bits as long as products fit. */
MP_INLINE __m256i sum_four(uint32_t dtype, const __m256i *dots)
{
    if (has_signs(dtype))
        return _mm256_hadd_epi32(_mm256_hadd_epi32(dots[0], dots[1]),
                                 _mm256_hadd_epi32(dots[2], dots[3]));
    const __m256i a = _mm256_hadd_epi16(dots[0], dots[1]), b = _mm256_hadd_epi16(dots[2], dots[3]);
    if (products_of(dtype) >= group_of(dtype) / 2)
        return add_pairs(_mm256_hadd_epi16(a, b));
    return _mm256_hadd_epi32(add_pairs(a), add_pairs(b));
}

/* Adds a run of 256 weights of two rows, of which the first `exist` groups are there, to the lanes. */
MP_INLINE __m256 add_run(uint32_t dtype, const mp_int8_row *x, uint32_t g,
                         const uint8_t *const *run, uint32_t exist, __m256 lanes)
{
    const uint32_t group = group_of(dtype), by = group == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32;
    const uint32_t n = MP_BLOCK_RUN / group / 4;
    const int8_t *q = x->q + g * group;
    run_scales scales;
    decode_scales(dtype, run, &scales);
    MP_EACH (j, n) {
        const uint32_t at = g + 4 * j;
        __m256i dots[4];
        MP_EACH (i, 4)
            dots[i] = dot(dtype, q, run, j, i);
        __m256i sums = sum_four(dtype, dots);
        if (has_offset(dtype))
            sums = _mm256_add_epi32(sums, _mm256_srai_epi32(four_ints(x->negative[by] + at),
                                                            (int)offset_shift(dtype)));
        const __m256 of_x = group == 16 ? two_twice(x->scale + at / 2) : four_floats(x->scale + at);
        __m256 next =
            _mm256_fmadd_ps(_mm256_mul_ps(scales.scale[j], of_x), _mm256_cvtepi32_ps(sums), lanes);
        if (mp_block_has_minimum(dtype))
            next = _mm256_fnmadd_ps(scales.minimum[j], four_floats(x->sum[by] + at), next);
        lanes = mp_block_weights(dtype) < MP_BLOCK_RUN ? chosen(exist, j, next, lanes) : next;
    }
    return lanes;
}

/* ---- Rows ---- */

/* The lanes of two pairs of rows. Rows of a few runs are too short for the processor to see ahead, and are
 * fetched in the order of their addresses. */
MP_INLINE void multiply_four(uint32_t dtype, const mp_int8_product *p, const mp_int8_row *x,
                             const uint8_t **rows, __m256 *lanes)
{
    const uint32_t weights = mp_block_weights(dtype), bytes = mp_block_bytes(dtype);
    const uint32_t run_bytes = MP_BLOCK_RUN / weights * bytes, group = group_of(dtype);
    const uint64_t ahead = MP_FEW * p->row_bytes;
    const uint64_t near = ahead <= MP_NEAR_BYTES ? ahead : 0;
    const uint8_t *next = rows[0];
    lanes[0] = lanes[1] = _mm256_setzero_ps();
    for (uint32_t from = 0; from < p->k; from += MP_BLOCK_RUN) {
        const uint32_t left = p->k - from;
        mp_int8_row some = *x;
        uint32_t g = from / group;
        mp_short_run rest;
        mp_fetch_run(next, near, p->ahead_bytes, MP_FEW * run_bytes);
        next += MP_FEW * run_bytes;
        if (weights < MP_BLOCK_RUN && left < MP_BLOCK_RUN) {
            some = mp_short_x(x, from, left, &rest);
            mp_short_rows(rows, left / weights * bytes, &rest);
            g = 0;
        }
        MP_EACH (pair, 2)
            lanes[pair] = add_run(dtype, &some, g, rows + 2 * pair, left / group, lanes[pair]);
        MP_EACH (c, MP_FEW)
            rows[c] += run_bytes;
    }
}

/* Where fewer than four rows are left, the first of them counts for the others. */
MP_INLINE void multiply_row(uint32_t dtype, const mp_int8_product *p)
{
    const mp_int8_row x = mp_int8_row_at(p->x[0], p->k);
    for (uint32_t first = 0; first < p->n_weights; first += MP_FEW) {
        const uint32_t left = p->n_weights - first;
        const uint8_t *rows[MP_FEW];
        __m256 lanes[2];
        float sums[MP_FEW];
        for (uint32_t c = 0; c < MP_FEW; c++)
            rows[c] = p->weights + (first + (c < left ? c : 0)) * p->row_bytes;
        multiply_four(dtype, p, &x, rows, lanes);
        /* lanes 0 and 2, 1 and 3; then both */
        const __m256 a = _mm256_unpacklo_ps(lanes[0], lanes[1]);
        const __m256 b = _mm256_unpackhi_ps(lanes[0], lanes[1]);
        const __m256 two = _mm256_add_ps(a, b);
        const __m256 all = _mm256_add_ps(two, _mm256_permute_ps(two, 0x4e));
        _mm_storeu_ps(sums,
                      _mm_unpacklo_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
        memcpy(p->out + first, sums, (left < MP_FEW ? left : MP_FEW) * sizeof *sums);
    }
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                     \
    MP_AVX2 static void name##_row(const mp_int8_product *product) \
    {                                                              \
        multiply_row(dtype, product);                              \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

MP_AVX2 void mp_int8_avx2_row(const mp_int8_product *product)
{
    static void (*const rows[])(const mp_int8_product *) = MP_BLOCK_FUNCTIONS(row);
    rows[product->dtype - MOEPAGE_DTYPE_Q4_0](product);
}

#endif
