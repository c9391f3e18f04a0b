/* Products in integers with AVX-512 and VNNI: one row of x.
 *
 * It meets four rows of weights at a time, straight from registers. Of weights with a scale for 32, lanes of
 * 128 bits of two vectors are the halves of a group: what is summed over both needs no halves added. The sums
 * of four rows are transposed, so that one fused multiply-add serves four rows and four groups. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include "device/host_int8_rows.h"
#include "device/host_int8_scales.h"
#include "device/host_int8_vnni.h"

/* Most bytes of rows that are fetched to the first-level cache, of 48 KiB, while those before them are multiplied. */
#define MP_NEAR_BYTES (28u << 10)
#define MP_QUADS 2 /* times four rows of weights that a run of x meets */

/* ---- Weights ---- */

/* 16 bytes of each of four blocks, of which those of block i begin at i * bytes + offset: of the 64 bytes at
 * `block`, or, for those not wholly among them, of the 64 from `second` on. Both are even. */
MP_INLINE __m512i sixteens_of(const uint8_t *block, uint32_t bytes, uint32_t offset,
                              uint32_t second)
{
    uint64_t order[8];
    MP_EACH (i, 4) {
        const uint32_t at = i * bytes + offset;
        const uint64_t word = at + 16 <= 64 ? at / 2 : 32 + (at - second) / 2;
        order[2 * i] = word * 0x0001000100010001ull + 0x0003000200010000ull;
        order[2 * i + 1] = order[2 * i] + 0x0004000400040004ull;
    }
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(block),
                                     _mm512_setr_epi64((int64_t)order[0], (int64_t)order[1],
                                                       (int64_t)order[2], (int64_t)order[3],
                                                       (int64_t)order[4], (int64_t)order[5],
                                                       (int64_t)order[6], (int64_t)order[7]),
                                     _mm512_loadu_si512(block + second));
}

/* The same of blocks of 17 bytes, from their second on: of every other block of four from either load. */
MP_INLINE __m512i sixteens_of_mxfp4(const uint8_t *block)
{
    const __m512i order =
        _mm512_setr_epi64(0x0003000200010000, 0x0007000600050004, 0x002a002900280027,
                          0x002e002d002c002b, 0x0014001300120011, 0x0018001700160015,
                          0x003b003a00390038, 0x003f003e003d003c);
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(block + 1), order,
                                     _mm512_loadu_si512(block + 4));
}

/* 16 bits of each of four blocks. */
MP_INLINE __mmask64 fifth_bits(const uint8_t *from, uint32_t distance)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < 4; i++)
        bits |= (uint64_t)(uint16_t)mp_load_u16(from + i * distance) << 16 * i;
    return bits;
}

MP_INLINE void unpack_q8_0(const uint8_t *block, __m512i *out)
{
    const __m512i offset = _mm512_set1_epi8((char)0x80);
    out[0] = _mm512_xor_si512(sixteens_of(block, 34, 2, 64), offset);
    out[1] = _mm512_xor_si512(sixteens_of(block + 4, 34, 14, 68), offset);
}

/* Four blocks of 32 with one scale: the first halves, and the second ones. */
MP_INLINE void unpack_four(uint32_t dtype, const uint8_t *block, __m512i *out)
{
    const uint32_t bytes = mp_block_bytes(dtype);
    const uint8_t *high = block + mp_block_high_bits(dtype);
    const __m512i mask = _mm512_set1_epi8(15);
    if (dtype == MOEPAGE_DTYPE_Q8_0) {
        unpack_q8_0(block, out);
        return;
    }
    const __m512i all =
        dtype == MOEPAGE_DTYPE_MXFP4
            ? sixteens_of_mxfp4(block)
            : sixteens_of(block, bytes, mp_block_low_bits(dtype), second_load(dtype));
    out[0] = _mm512_and_si512(all, mask);
    out[1] = _mm512_and_si512(_mm512_srli_epi16(all, 4), mask);
    MP_EACH (half, 2) {
        if (dtype == MOEPAGE_DTYPE_Q5_0 || dtype == MOEPAGE_DTYPE_Q5_1)
            out[half] = _mm512_mask_add_epi8(out[half], fifth_bits(high + 2 * half, bytes),
                                             out[half], _mm512_set1_epi8(16));
        if (mp_block_is_table(dtype))
            out[half] = looked_up(dtype, out[half]);
    }
}

/* Q4_K and Q5_K, a whole run: the first halves of groups 0, 2, 4 and 6, the second ones, and both of groups
 * 1, 3, 5 and 7. Of Q4_K the latter are 16 times as great. */
MP_INLINE void unpack_k(uint32_t dtype, const uint8_t *run, __m512i *out)
{
    const uint8_t *low = run + mp_block_low_bits(dtype), *high = run + mp_block_high_bits(dtype);
    const __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(low + 64);
    const __m512i turn = _mm512_setr_epi32(28, 28, 28, 28, 30, 30, 30, 30, 0, 0, 0, 0, 2, 2, 2, 2);
    const __m512i halves[] = {_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)};
    MP_EACH (half, 2) {
        out[half] = _mm512_and_si512(halves[half], _mm512_set1_epi8(15));
        if (dtype == MOEPAGE_DTYPE_Q4_K) {
            out[2 + half] = _mm512_and_si512(halves[half], _mm512_set1_epi8((char)0xf0));
            continue;
        }
        const __m512i bits =
            _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(high + 16 * half)));
        const __m512i even = _mm512_rorv_epi32(bits, turn);
        out[2 + half] = _mm512_and_si512(_mm512_srli_epi16(halves[half], 4), _mm512_set1_epi8(15));
        out[half] = joined(out[half], even, 0x10);
        out[2 + half] = joined(out[2 + half], _mm512_srli_epi16(even, 1), 0x10);
    }
}

MP_INLINE bool is_k_of_32(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_Q4_K || dtype == MOEPAGE_DTYPE_Q5_K;
}

/* 16 bytes of each of groups 4 * j and on, of blocks that have more of them. */
MP_INLINE __m512i sixteens_of_groups(uint32_t dtype, const uint8_t *run, uint32_t j)
{
    const uint8_t *low = run + mp_block_low_bits(dtype);
    if (mp_block_weights(dtype) == 64) {
        low += 2 * j * mp_block_bytes(dtype);
        const __m512i all = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)low));
        return _mm512_inserti64x4(all,
                                  _mm256_loadu_si256((const void *)(low + mp_block_bytes(dtype))),
                                  1);
    }
    return _mm512_loadu_si512(
        low + (mp_block_weights(dtype) == 128 ? j * mp_block_bytes(dtype) : 64 * j));
}

/* Other weights with a scale for 32: of groups 4 * j and on the first halves, and the second ones. */
MP_INLINE void unpack_halves(uint32_t dtype, const uint8_t *run, uint32_t j, __m512i *out)
{
    if (mp_block_is_plain(dtype)) {
        unpack_four(dtype, run + 4 * j * mp_block_bytes(dtype), out);
        return;
    }
    const __m512i all = sixteens_of_groups(dtype, run, j), mask = _mm512_set1_epi8(15);
    out[0] = _mm512_and_si512(all, mask);
    out[1] = _mm512_and_si512(_mm512_srli_epi16(all, 4), mask);
    MP_EACH (half, 2)
        if (mp_block_is_table(dtype))
            out[half] = looked_up(dtype, out[half]);
}

/* ---- x ---- */

/* A run of it: bytes in the order of the weights; and numbers of four groups each, in four lanes each. */
typedef struct x_run {
    __m512i q[4];
    __m512i begin
        [4]; /* what sums begin with, in the first of four lanes: the offset of weights, subtracted */
    __m512 scale[4], sum[4];
    __mmask16 exist[4]; /* the lanes of groups that are there */
} x_run;

/* Four numbers, in four lanes each. */
MP_INLINE __m512 each_four(__m128 four)
{
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(order, _mm512_castps128_ps512(four));
}

/* Vectors of 16 bytes each of first halves of groups of 32, and of second ones, in the order of the weights. */
MP_INLINE void take_halves(uint32_t dtype, const int8_t *q, __m512i *out)
{
    __m512i halves[4];
    MP_EACH (j, 2) {
        const __m512i a = _mm512_loadu_si512(q + 128 * j), b = _mm512_loadu_si512(q + 128 * j + 64);
        halves[2 * j] = _mm512_shuffle_i32x4(a, b, 0x88);
        halves[2 * j + 1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    }
    MP_EACH (half, 2) {
        const __m512i a = halves[half], b = halves[2 + half];
        out[half] = is_k_of_32(dtype) ? _mm512_shuffle_i32x4(a, b, 0x88) : a;
        out[2 + half] = is_k_of_32(dtype) ? _mm512_shuffle_i32x4(a, b, 0xdd) : b;
    }
}

MP_INLINE void take_x(uint32_t dtype, const mp_int8_row *x, uint32_t g, x_run *out)
{
    const bool by_16 = group_of(dtype) == 16;
    const uint32_t by = by_16 ? MP_INT8_BY_16 : MP_INT8_BY_32, n = by_16 ? 4 : 2;
    const __m512i firsts = _mm512_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0);
    const __m512i twos = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const int8_t *q = x->q + g * group_of(dtype);
    if (by_16)
        MP_EACH (j, 4)
            out->q[j] = _mm512_loadu_si512(q + 64 * j);
    else
        take_halves(dtype, q, out->q);
    MP_EACH (j, n) {
        const uint32_t at = g + 4 * j;
        if (by_16) {
            const __m128i two = _mm_loadl_epi64((const void *)(x->scale + at / 2));
            out->scale[j] =
                _mm512_castsi512_ps(_mm512_permutexvar_epi32(twos, _mm512_castsi128_si512(two)));
        } else {
            out->scale[j] = each_four(_mm_loadu_ps(x->scale + at));
        }
        if (mp_block_has_minimum(dtype)) {
            out->sum[j] = each_four(_mm_loadu_ps(x->sum[by] + at));
            out->begin[j] = _mm512_setzero_si512();
        } else {
            const __m128i four = _mm_loadu_si128((const void *)(x->negative[by] + at));
            out->begin[j] =
                _mm512_srai_epi32(_mm512_maskz_permutexvar_epi32(0x1111, firsts,
                                                                 _mm512_castsi128_si512(four)),
                                  offset_shift(dtype));
        }
    }
}

/* ---- Sums ---- */

/* Four sums of 16 bytes each of four rows: lane 4 * i + r is sum i of row r. */
MP_INLINE __m512i sum_sixteens(const __m512i *rows)
{
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]),
                                       _mm512_unpackhi_epi32(rows[0], rows[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]),
                                       _mm512_unpackhi_epi32(rows[2], rows[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Of Q4_K and Q5_K the sums of a run's groups with four rows. */
MP_INLINE void sum_k(uint32_t dtype, const x_run *x, const uint8_t *const *run, __m512i *out)
{
    const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    __m512i dots[2][MP_FEW], weights[4];
    MP_EACH (c, MP_FEW) {
        unpack_k(dtype, run[c], weights);
        MP_EACH (j, 2)
            dots[j][c] =
                _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x->begin[j], weights[2 * j], x->q[2 * j]),
                                    weights[2 * j + 1], x->q[2 * j + 1]);
    }
    const __m512i even = sum_sixteens(dots[0]), all = sum_sixteens(dots[1]);
    const __m512i odd = dtype == MOEPAGE_DTYPE_Q4_K ? _mm512_srai_epi32(all, 4) : all;
    out[0] = _mm512_permutex2var_epi64(even, order, odd);
    out[1] = _mm512_permutex2var_epi64(even, _mm512_add_epi64(order, _mm512_set1_epi64(4)), odd);
}

/* Of others those of groups 4 * j and on. */
MP_INLINE __m512i sum_four(uint32_t dtype, const x_run *x, const uint8_t *const *run, uint32_t j)
{
    __m512i dots[MP_FEW], weights[2];
    MP_EACH (c, MP_FEW) {
        if (group_of(dtype) == 16) {
            dots[c] = _mm512_dpbusd_epi32(x->begin[j], unpack(dtype, run[c], j, true), x->q[j]);
        } else {
            unpack_halves(dtype, run[c], j, weights);
            dots[c] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x->begin[j], weights[0], x->q[2 * j]),
                                          weights[1], x->q[2 * j + 1]);
        }
    }
    return sum_sixteens(dots);
}

/* Adds a run of 256 weights of four rows to the lanes. */
MP_INLINE __m512 add_run(uint32_t dtype, const x_run *x, const uint8_t *const *run, __m512 lanes)
{
    const uint32_t n = MP_BLOCK_RUN / group_of(dtype) / 4;
    mp_run_scales scales;
    __m512i sums[4];
    run_scales(dtype, run, &scales);
    if (is_k_of_32(dtype))
        sum_k(dtype, x, run, sums);
    MP_EACH (j, n) {
        if (!is_k_of_32(dtype))
            sums[j] = sum_four(dtype, x, run, j);
        const __m512 scale = _mm512_mul_ps(scales.scale[j], x->scale[j]);
        lanes = _mm512_mask3_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[j]), lanes, x->exist[j]);
        if (mp_block_has_minimum(dtype))
            lanes = _mm512_mask3_fnmadd_ps(scales.minimum[j], x->sum[j], lanes, x->exist[j]);
    }
    return lanes;
}

/* ---- Rows ---- */

/* Fours of rows of weights. */
typedef struct quads {
    const uint8_t *first;
    uint64_t row_bytes;  /* 0: all four are one */
    uint64_t step_bytes; /* from four to four */
    uint32_t n;
} quads;

/* The lanes of fours of rows. Rows of a few runs are too short for the processor to see ahead, and are fetched
 * in the order of their addresses. */
MP_INLINE void multiply_quads(uint32_t dtype, const mp_int8_product *p, const mp_int8_row *x,
                              const quads *rows, __m512 *lanes)
{
    const uint32_t weights = mp_block_weights(dtype), bytes = mp_block_bytes(dtype);
    const uint32_t run_bytes = MP_BLOCK_RUN / weights * bytes, group = group_of(dtype);
    const uint64_t ahead = MP_QUADS * MP_FEW * p->row_bytes;
    const uint64_t near = ahead <= MP_NEAR_BYTES ? ahead : 0;
    const uint8_t *at = rows->first, *next = at;
    x_run some;
    mp_short_run rest;
    for (uint32_t q = 0; q < rows->n; q++)
        lanes[q] = _mm512_setzero_ps();
    for (uint32_t from = 0; from < p->k; from += MP_BLOCK_RUN, at += run_bytes) {
        const uint32_t left = p->k - from;
        const bool is_short = weights < MP_BLOCK_RUN && left < MP_BLOCK_RUN;
        if (is_short) {
            const mp_int8_row tail = mp_short_x(x, from, left, &rest);
            take_x(dtype, &tail, 0, &some);
        } else {
            take_x(dtype, x, from / group, &some);
        }
        const uint64_t exist = is_short ? ~(~0ull << left / group * 4) : ~0ull;
        MP_EACH (j, 4)
            some.exist[j] = (__mmask16)(exist >> 16 * j);
        for (uint32_t q = 0; q < rows->n; q++) {
            const uint8_t *base = at + q * rows->step_bytes;
            const uint8_t *run[] = {base, base + rows->row_bytes, base + 2 * rows->row_bytes,
                                    base + 3 * rows->row_bytes};
            if (is_short)
                mp_short_rows(run, left / weights * bytes, &rest);
            mp_fetch_run(next, near, p->ahead_bytes, MP_FEW * run_bytes);
            next += MP_FEW * run_bytes;
            lanes[q] = add_run(dtype, &some, run, lanes[q]);
        }
    }
}

/* Of three rows or fewer each is taken for four. The last four may have been among those before. */
MP_INLINE void multiply_row(uint32_t dtype, const mp_int8_product *p)
{
    const mp_int8_row x = mp_int8_row_at(p->x[0], p->k);
    const bool alone = p->n_weights < MP_FEW;
    const uint32_t step = alone ? 1 : MP_FEW, most = MP_QUADS * step;
    for (uint32_t first = 0, n; first < p->n_weights; first += n) {
        __m512 lanes[MP_QUADS];
        if (p->n_weights - first < step)
            first = p->n_weights - step;
        n = p->n_weights - first < most ? (p->n_weights - first) / step * step : most;
        const quads rows = {.first = p->weights + first * p->row_bytes,
                            .row_bytes = alone ? 0 : p->row_bytes,
                            .step_bytes = step * p->row_bytes,
                            .n = n / step};
        multiply_quads(dtype, p, &x, &rows, lanes);
        for (uint32_t q = 0; q < rows.n; q++) {
            const __m512 l = lanes[q];
            const __m128 even = _mm_add_ps(_mm512_castps512_ps128(l), _mm512_extractf32x4_ps(l, 2));
            const __m128 odd =
                _mm_add_ps(_mm512_extractf32x4_ps(l, 1), _mm512_extractf32x4_ps(l, 3));
            _mm_mask_storeu_ps(p->out + first + q * step, alone ? 1 : 15, _mm_add_ps(even, odd));
        }
    }
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                     \
    MP_VNNI static void name##_row(const mp_int8_product *product) \
    {                                                              \
        multiply_row(dtype, product);                              \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

MP_VNNI void mp_int8_vnni_row(const mp_int8_product *product)
{
    static void (*const rows[])(const mp_int8_product *) = MP_BLOCK_FUNCTIONS(row);
    rows[product->dtype - MOEPAGE_DTYPE_Q4_0](product);
}

#endif
