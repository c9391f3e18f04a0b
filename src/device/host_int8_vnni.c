/* Products in integers with AVX-512 and VNNI.
 *
 * Weights are taken apart 64 at a time, as unsigned bytes: of formats without minimums all are an offset
 * too great, which the sums of x make up for. One row of x meets four rows of weights straight from
 * registers. Several meet 16 rows that have been rearranged in memory, one lane to each. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/host_blocks_x86.h"

#define MP_VNNI \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define MP_INLINE MP_VNNI static inline __attribute__((always_inline))

#define MP_STEP 64   /* weights that one call takes apart */
#define MP_FEW 4     /* rows of weights that meet one row of x */
#define MP_PACKED 16 /* rows of weights that meet several */
#define MP_PASS 8    /* rows of x that meet them at a time */

/* ---- Formats ---- */

/* What the bytes of weights are too great by, as a power of two: -128 >> shift makes up for it. */
MP_INLINE uint32_t offset_shift(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_Q3_K: return 5;
    case MOEPAGE_DTYPE_Q4_0: return 4;
    case MOEPAGE_DTYPE_Q5_0:
    case MOEPAGE_DTYPE_MXFP4:
    case MOEPAGE_DTYPE_NVFP4: return 3;
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
    case MOEPAGE_DTYPE_NVFP4: return unpack_nvfp4(low + bytes * step);
    default: return unpack_plain(dtype, run + 2 * step * bytes, run + (2 * step + second) * bytes);
    }
}

/* ---- Scales of four rows, group after group ---- */

/* Lane 4 * i + r is group 4 * part + i of row r. */
MP_INLINE void transpose_16(const float *rows, __m512 *out)
{
    const __m512 r0 = _mm512_load_ps(rows), r1 = _mm512_load_ps(rows + 16);
    const __m512 r2 = _mm512_load_ps(rows + 32), r3 = _mm512_load_ps(rows + 48);
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
    const __m512 g0 = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)); /* groups 0, 4, 8, 12 */
    const __m512 g1 = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    const __m512 g2 = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    const __m512 g3 = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    const __m512 low01 = _mm512_shuffle_f32x4(g0, g1, 0x44); /* 0 4 1 5 */
    const __m512 high01 = _mm512_shuffle_f32x4(g0, g1, 0xee);
    const __m512 low23 = _mm512_shuffle_f32x4(g2, g3, 0x44);
    const __m512 high23 = _mm512_shuffle_f32x4(g2, g3, 0xee);
    out[0] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    out[1] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
    out[2] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    out[3] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
}

MP_INLINE void transpose_8(const float *rows, __m512 *out)
{
    const __m512i order =
        _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512 a = _mm512_insertf32x8(_mm512_load_ps(rows), _mm256_load_ps(rows + 16), 1);
    const __m512 b = _mm512_insertf32x8(_mm512_load_ps(rows + 32), _mm256_load_ps(rows + 48), 1);
    out[0] = _mm512_permutex2var_ps(a, order, b);
    out[1] = _mm512_permutex2var_ps(a, _mm512_add_epi32(order, _mm512_set1_epi32(4)), b);
}

/* Of a run of four rows; out[i] is of its groups 4 * i and on. */
MP_INLINE void order_scales(uint32_t dtype, const float *rows, __m512 *out)
{
    if (mp_block_is_plain(dtype)) {
        out[0] = _mm512_load_ps(rows);
        out[1] = _mm512_load_ps(rows + 16);
    } else if (group_of(dtype) == 16) {
        transpose_16(rows, out);
    } else {
        transpose_8(rows, out);
    }
}

/* ---- One row of x ---- */

/* Numbers of four groups, in four lanes each. */
MP_INLINE __m512 each_four(__m128 four)
{
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(order, _mm512_castps128_ps512(four));
}

/* Four sums of 16 of each of four rows: lane 4 * i + r is sum i of row r. */
MP_INLINE __m512i sum_sixteens(const __m512i *rows)
{
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]),
                                       _mm512_unpackhi_epi32(rows[0], rows[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]),
                                       _mm512_unpackhi_epi32(rows[2], rows[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Sums of the products of 64 elements of x with a step of four rows. */
MP_INLINE __m512i multiply_step(uint32_t dtype, const uint8_t *const *run, uint32_t step,
                                bool second, __m512i x)
{
    __m512i sums[MP_FEW];
    MP_EACH (c, MP_FEW)
        sums[c] =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), unpack(dtype, run[c], step, second), x);
    return sum_sixteens(sums);
}

/* Four groups of 32 from two steps. */
MP_INLINE __m512i sum_groups(__m512i first, __m512i second)
{
    return _mm512_add_epi32(_mm512_shuffle_i32x4(first, second, 0x88),
                            _mm512_shuffle_i32x4(first, second, 0xdd));
}

/* Adds four groups, of which `exist` are there, to the lanes. */
MP_INLINE __m512 add_groups(uint32_t dtype, const mp_int8_row *x, uint32_t g, __mmask16 exist,
                            __m512i dots, __m512 scale, __m512 minimum, __m512 lanes)
{
    const uint32_t by = group_of(dtype) == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32;
    const __mmask8 groups =
        (__mmask8)((exist & 1) | (exist >> 3 & 2) | (exist >> 6 & 4) | (exist >> 9 & 8));
    const bool whole = exist == 0xffff;
    __m512 of_x;
    if (by == MP_INT8_BY_16) {
        const __m128 two = _mm_castsi128_ps(_mm_loadl_epi64((const void *)(x->scale + g / 2)));
        of_x = each_four(_mm_unpacklo_ps(two, two));
    } else {
        of_x = each_four(whole ? _mm_loadu_ps(x->scale + g)
                               : _mm_maskz_loadu_ps(groups, x->scale + g));
    }
    if (!mp_block_has_minimum(dtype)) {
        const void *at = x->negative[by] + g;
        const __m128 four =
            _mm_castsi128_ps(whole ? _mm_loadu_si128(at) : _mm_maskz_loadu_epi32(groups, at));
        const __m512i all = _mm512_castps_si512(each_four(four));
        dots = _mm512_add_epi32(dots, _mm512_srai_epi32(all, offset_shift(dtype)));
    }
    lanes =
        _mm512_mask3_fmadd_ps(_mm512_mul_ps(scale, of_x), _mm512_cvtepi32_ps(dots), lanes, exist);
    if (mp_block_has_minimum(dtype)) {
        const float *at = x->sum[by] + g;
        const __m512 sums = each_four(whole ? _mm_loadu_ps(at) : _mm_maskz_loadu_ps(groups, at));
        lanes = _mm512_mask3_fnmadd_ps(minimum, sums, lanes, exist);
    }
    return lanes;
}

/* A run of 256 weights of four rows, which begins at group g of x. */
MP_INLINE __m512 add_run(uint32_t dtype, const mp_int8_row *x, uint32_t g,
                         const uint8_t *const *run, const mp_block_scales *scales, __m512 lanes)
{
    const uint32_t group = group_of(dtype), n = MP_BLOCK_RUN / group / 4;
    const int8_t *q = x->q + g * group;
    __m512 scale[4], minimum[4] = {_mm512_setzero_ps()};
    order_scales(dtype, scales->scale, scale);
    if (mp_block_has_minimum(dtype))
        order_scales(dtype, scales->minimum, minimum);
    MP_EACH (i, n) {
        __m512i dots;
        if (group == 16)
            dots = multiply_step(dtype, run, i, true, _mm512_loadu_si512(q + i * MP_STEP));
        else
            dots = sum_groups(multiply_step(dtype, run, 2 * i, true,
                                            _mm512_loadu_si512(q + 2 * i * MP_STEP)),
                              multiply_step(dtype, run, 2 * i + 1, true,
                                            _mm512_loadu_si512(q + (2 * i + 1) * MP_STEP)));
        lanes = add_groups(dtype, x, g + 4 * i, 0xffff, dots, scale[i], minimum[i], lanes);
    }
    return lanes;
}

/* A run of fewer blocks: pairs of steps, of which the last may be short. */
MP_INLINE __m512 add_short_run(uint32_t dtype, const mp_int8_row *x, uint32_t g, uint32_t n,
                               const uint8_t *const *run, const mp_block_scales *scales,
                               __m512 lanes)
{
    const uint32_t group = group_of(dtype);
    __m512 scale[4], minimum[4] = {_mm512_setzero_ps()};
    order_scales(dtype, scales->scale, scale);
    if (mp_block_has_minimum(dtype))
        order_scales(dtype, scales->minimum, minimum);
    for (uint32_t i = 0; i * 4 * group < n; i++) {
        const uint32_t from = i * 4 * group; /* in weights */
        const uint32_t left = n - from;
        const int8_t *q = x->q + g * group + from;
        const uint32_t here = left < 4 * group ? left : 4 * group;
        const uint64_t first = here >= 64 ? ~0ull : 0xffffffffull;
        const uint64_t rest = here >= 128 ? ~0ull : here > 64 ? 0xffffffffull : 0;
        __m512i dots = multiply_step(dtype, run, group == 16 ? i : 2 * i, here > 32,
                                     _mm512_maskz_loadu_epi8(first, q));
        if (group == 32) {
            __m512i more = _mm512_setzero_si512();
            if (rest)
                more = multiply_step(dtype, run, 2 * i + 1, here > 96,
                                     _mm512_maskz_loadu_epi8(rest, q + MP_STEP));
            dots = sum_groups(dots, more);
        }
        const __mmask16 exist = (__mmask16)((1u << here / group * 4) - 1);
        lanes = add_groups(dtype, x, g + 4 * i, exist, dots, scale[i], minimum[i], lanes);
    }
    return lanes;
}

/* A row of x times four rows of weights. */
MP_INLINE __m128 multiply_four(uint32_t dtype, const mp_int8_product *p, const mp_int8_row *x,
                               const uint8_t *const *rows)
{
    const uint32_t run_bytes = MP_BLOCK_RUN / mp_block_weights(dtype) * mp_block_bytes(dtype);
    const uint32_t group = group_of(dtype), k = p->k;
    mp_block_scales scales[2];
    const uint8_t *run[MP_FEW], *ahead[MP_FEW];
    __m512 lanes = _mm512_setzero_ps();
    const uint8_t *next = rows[0] + p->ahead_bytes; /* four rows lie next to each other */
    MP_EACH (c, MP_FEW)
        run[c] = ahead[c] = rows[c];
    for (uint32_t i = 0, turn = 0; i < k + MP_BLOCK_RUN; i += MP_BLOCK_RUN, turn ^= 1) {
        if (i < k)
            mp_scales_of_rows(dtype, ahead, mp_run_blocks(dtype, i, k), &scales[turn]);
        MP_EACH (c, MP_FEW)
            ahead[c] += run_bytes;
        if (i == 0)
            continue;
        const uint32_t from = i - MP_BLOCK_RUN;
        if (p->ahead_bytes)
            for (uint32_t line = 0; line < MP_FEW * run_bytes; line += 64)
                _mm_prefetch((const char *)next + line, _MM_HINT_T1);
        next += MP_FEW * run_bytes;
        if (mp_block_weights(dtype) == MP_BLOCK_RUN || k - from >= MP_BLOCK_RUN)
            lanes = add_run(dtype, x, from / group, run, &scales[turn ^ 1], lanes);
        else
            lanes = add_short_run(dtype, x, from / group, k - from, run, &scales[turn ^ 1], lanes);
        MP_EACH (c, MP_FEW)
            run[c] += run_bytes;
    }
    const __m128 even = _mm_add_ps(_mm512_castps512_ps128(lanes), _mm512_extractf32x4_ps(lanes, 2));
    const __m128 odd =
        _mm_add_ps(_mm512_extractf32x4_ps(lanes, 1), _mm512_extractf32x4_ps(lanes, 3));
    return _mm_add_ps(even, odd);
}

MP_INLINE void multiply_row(uint32_t dtype, const mp_int8_product *p)
{
    const mp_int8_row x = mp_int8_row_at(p->x[0], p->k);
    for (uint32_t first = 0; first < p->n_weights; first += MP_FEW) {
        const uint8_t *rows[MP_FEW];
        MP_EACH (c, MP_FEW)
            rows[c] = p->weights + (first + c < p->n_weights ? first + c : first) * p->row_bytes;
        const __m128 sums = multiply_four(dtype, p, &x, rows);
        const uint32_t left = p->n_weights - first;
        _mm_mask_storeu_ps(p->out + first, (__mmask8)(left < MP_FEW ? (1u << left) - 1 : 15), sums);
    }
}

/* ---- Several rows of x ---- */

/* A run of 16 rows of weights: bytes 4 * i to 4 * i + 3 of every row are quad[i], one row to a lane; and
 * scales and minima of its groups. */
typedef struct packed_run {
    __m512i quad[MP_BLOCK_RUN / 4];
    __m512 scale[16], minimum[16];
} packed_run;

MP_INLINE void transpose_quads(__m512i *r)
{
    __m512i t[16];
    MP_UNROLL
    for (uint32_t i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        const __m512i b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
        const __m512i d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    MP_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x44);
        const __m512i b = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xee);
        const __m512i c = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x44);
        const __m512i d = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xee);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        r[4 + i] = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[8 + i] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

/* Scales of 16 rows from those of four times four: out[g] has group g of every row. */
MP_VNNI static void pack_scales(const __m512 (*fours)[4], uint32_t n, __m512 *out)
{
    for (uint32_t i = 0; i < n; i += 4) {
        const __m512 a = fours[0][i / 4], b = fours[1][i / 4];
        const __m512 c = fours[2][i / 4], d = fours[3][i / 4];
        const __m512 ab_low = _mm512_shuffle_f32x4(a, b, 0x44);
        const __m512 ab_high = _mm512_shuffle_f32x4(a, b, 0xee);
        const __m512 cd_low = _mm512_shuffle_f32x4(c, d, 0x44);
        const __m512 cd_high = _mm512_shuffle_f32x4(c, d, 0xee);
        out[i] = _mm512_shuffle_f32x4(ab_low, cd_low, 0x88);
        out[i + 1] = _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd);
        out[i + 2] = _mm512_shuffle_f32x4(ab_high, cd_high, 0x88);
        out[i + 3] = _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd);
    }
}

/* Packs `n` weights, a run or less, of 16 rows. */
MP_INLINE void pack(uint32_t dtype, const uint8_t *const *rows, uint32_t n, uint64_t ahead_bytes,
                    packed_run *out)
{
    const uint32_t n_blocks = n / mp_block_weights(dtype), groups = MP_BLOCK_RUN / group_of(dtype);
    __m512 scale[4][4], minimum[4][4];
    for (uint32_t c = 0; c < 4; c++) {
        mp_block_scales scales;
        mp_scales_of_rows(dtype, rows + 4 * c, n_blocks, &scales);
        order_scales(dtype, scales.scale, scale[c]);
        if (mp_block_has_minimum(dtype))
            order_scales(dtype, scales.minimum, minimum[c]);
    }
    pack_scales((const __m512(*)[4])scale, groups, out->scale);
    if (mp_block_has_minimum(dtype))
        pack_scales((const __m512(*)[4])minimum, groups, out->minimum);
    for (uint32_t c = 0; c < MP_PACKED && ahead_bytes; c++)
        mp_prefetch_run(dtype, rows[c], ahead_bytes);
    MP_EACH (step, MP_BLOCK_RUN / MP_STEP) {
        __m512i r[MP_PACKED];
        if (step * MP_STEP >= n)
            return;
        MP_UNROLL
        for (uint32_t c = 0; c < MP_PACKED; c++)
            r[c] = unpack(dtype, rows[c], step, n - step * MP_STEP > 32);
        transpose_quads(r);
        MP_UNROLL
        for (uint32_t c = 0; c < MP_PACKED; c++)
            out->quad[step * MP_STEP / 4 + c] = r[c];
    }
}

/* What a format means for packed runs. */
typedef struct packed_format {
    uint32_t group, weights, bytes, shift;
    bool has_minimum;
    void (*pack)(const uint8_t *const *rows, uint32_t n, uint64_t ahead_bytes, packed_run *out);
} packed_format;

/* Lanes of the sums of every row of x with 16 rows of weights. */
typedef __m512 packed_sums[MP_INT8_ROWS][MP_INT8_LANES];

/* Adds n weights of a packed run, from group g of x on, for some rows of x. */
MP_INLINE void add_packed(const packed_format *f, uint32_t rows, const mp_int8_row *x, uint32_t g,
                          uint32_t n, const packed_run *run, __m512 (*sums)[MP_INT8_LANES])
{
    const uint32_t by = f->group == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32;
    const __m128i shift = _mm_cvtsi32_si128((int)f->shift);
    const __m512i *quad = run->quad;
    for (uint32_t j = 0; j < n / f->group; j++, g++) {
        const uint32_t in_32 = g * f->group / MP_INT8_GROUP;
        __m512i dots[MP_PASS];
        MP_EACH (r, rows)
            dots[r] = f->has_minimum
                          ? _mm512_setzero_si512()
                          : _mm512_sra_epi32(_mm512_set1_epi32(x[r].negative[by][g]), shift);
        for (uint32_t i = 0; i < f->group / 4; i += 4, quad += 4)
            MP_EACH (part, 4)
                MP_EACH (r, rows) {
                    int four;
                    memcpy(&four, x[r].q + g * f->group + 4 * (i + part), sizeof four);
                    dots[r] = _mm512_dpbusd_epi32(dots[r], quad[part], _mm512_set1_epi32(four));
                }
        MP_EACH (r, rows) {
            __m512 *lane = &sums[r][g % MP_INT8_LANES];
            const __m512 scale = _mm512_mul_ps(run->scale[j], _mm512_set1_ps(x[r].scale[in_32]));
            *lane = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dots[r]), *lane);
            if (f->has_minimum)
                *lane = _mm512_fnmadd_ps(run->minimum[j], _mm512_set1_ps(x[r].sum[by][g]), *lane);
        }
    }
}

MP_VNNI static void add_packed_rows(const packed_format *f, uint32_t rows, const mp_int8_row *x,
                                    uint32_t g, uint32_t n, const packed_run *run,
                                    __m512 (*sums)[MP_INT8_LANES])
{
    switch (rows) {
    case 1: add_packed(f, 1, x, g, n, run, sums); break;
    case 2: add_packed(f, 2, x, g, n, run, sums); break;
    case 3: add_packed(f, 3, x, g, n, run, sums); break;
    case 4: add_packed(f, 4, x, g, n, run, sums); break;
    case 5: add_packed(f, 5, x, g, n, run, sums); break;
    case 6: add_packed(f, 6, x, g, n, run, sums); break;
    case 7: add_packed(f, 7, x, g, n, run, sums); break;
    default: add_packed(f, MP_PASS, x, g, n, run, sums);
    }
}

/* Rows of x times 16 rows of weights, from number `first` on. */
MP_VNNI static void multiply_packed(const packed_format *f, const mp_int8_product *p,
                                    const mp_int8_row *x, uint32_t first)
{
    const uint32_t left = p->n_weights - first;
    const uint32_t run_bytes = MP_BLOCK_RUN / f->weights * f->bytes;
    const uint8_t *rows[MP_PACKED];
    packed_sums sums;
    packed_run run;
    for (uint32_t c = 0; c < MP_PACKED; c++)
        rows[c] = p->weights + (first + (c < left ? c : 0)) * p->row_bytes;
    for (uint32_t r = 0; r < p->n_rows; r++)
        MP_EACH (lane, MP_INT8_LANES)
            sums[r][lane] = _mm512_setzero_ps();
    for (uint32_t from = 0; from < p->k; from += MP_BLOCK_RUN) {
        const uint32_t n = p->k - from < MP_BLOCK_RUN ? p->k - from : MP_BLOCK_RUN;
        f->pack(rows, n, p->ahead_bytes, &run);
        for (uint32_t r = 0; r < p->n_rows; r += MP_PASS)
            add_packed_rows(f, p->n_rows - r, x + r, from / f->group, n, &run, sums + r);
        for (uint32_t c = 0; c < MP_PACKED; c++)
            rows[c] += run_bytes;
    }
    for (uint32_t r = 0; r < p->n_rows; r++)
        _mm512_mask_storeu_ps(p->out + r * p->stride + first,
                              (__mmask16)(left < MP_PACKED ? (1u << left) - 1 : 0xffff),
                              _mm512_add_ps(_mm512_add_ps(sums[r][0], sums[r][2]),
                                            _mm512_add_ps(sums[r][1], sums[r][3])));
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                                              \
    MP_VNNI static void name##_row(const mp_int8_product *product)                          \
    {                                                                                       \
        multiply_row(dtype, product);                                                       \
    }                                                                                       \
    MP_VNNI static void name##_pack(const uint8_t *const *rows, uint32_t n, uint64_t ahead, \
                                    packed_run *out)                                        \
    {                                                                                       \
        pack(dtype, rows, n, ahead, out);                                                   \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

MP_VNNI static void multiply(const mp_int8_product *product)
{
    static void (*const rows[])(const mp_int8_product *) = MP_BLOCK_FUNCTIONS(row);
    static void (*const packs[])(const uint8_t *const *, uint32_t, uint64_t, packed_run *) =
        MP_BLOCK_FUNCTIONS(pack);
    const uint32_t dtype = product->dtype, which = dtype - MOEPAGE_DTYPE_Q4_0;
    if (product->n_rows == 1) {
        rows[which](product);
        return;
    }
    const packed_format format = {.group = group_of(dtype),
                                  .weights = mp_block_weights(dtype),
                                  .bytes = mp_block_bytes(dtype),
                                  .shift = offset_shift(dtype),
                                  .has_minimum = mp_block_has_minimum(dtype),
                                  .pack = packs[which]};
    mp_int8_row x[MP_INT8_ROWS];
    for (uint32_t r = 0; r < product->n_rows; r++)
        x[r] = mp_int8_row_at(product->x[r], product->k);
    for (uint32_t first = 0; first < product->n_weights; first += MP_PACKED)
        multiply_packed(&format, product, x, first);
}

const mp_int8_set mp_int8_vnni = {.quantise = mp_int8_quantise_avx2, .multiply = multiply};

#endif
