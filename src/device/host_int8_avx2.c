/* Products in integers with AVX2.
 *
 * Four rows of weights are taken apart to signed bytes, a run at a time, and meet all rows of x. The
 * instruction that multiplies bytes wants one factor without a sign, which goes to the other, and adds two
 * products in 16 bits: 2 * 128 * 127 fits. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/host_blocks_x86.h"

#define MP_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MP_INLINE MP_AVX2 static inline __attribute__((always_inline))

#define MP_FEW 4

/* ---- Rows of x ---- */

MP_INLINE uint32_t greatest(const __m256 *in)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    MP_EACH (i, 4)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(in[i]), mask));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}

/* Four times eight floats times a factor, as bytes. */
MP_INLINE __m256i to_bytes(const __m256 *in, __m256 factor)
{
    __m256i q[4];
    MP_EACH (i, 4)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(in[i], factor));
    const __m256i all =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of 16 bytes each. */
MP_INLINE void add_bytes(__m256i q, int32_t *sums)
{
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    __m256i all = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    all = _mm256_hadd_epi32(all, all);
    all = _mm256_hadd_epi32(all, all);
    sums[0] = _mm256_extract_epi32(all, 0);
    sums[1] = _mm256_extract_epi32(all, 4);
}

MP_AVX2 static void round_group(const float *in, mp_int8_row out)
{
    const float infinity = mp_float_of(0x7f800000u);
    __m256 x[4];
    __m256i q = _mm256_setzero_si256();
    int32_t sums[2];
    MP_EACH (i, 4)
        x[i] = _mm256_loadu_ps(in + 8 * i);
    const float most = mp_float_of(greatest(x));
    float scale = most < MP_INT8_LEAST ? 0 : mp_float_of(0x7fc00000u);
    if (most >= MP_INT8_LEAST && most < infinity) {
        q = to_bytes(x, _mm256_set1_ps(127 / most));
        scale = most / 127;
    }
    _mm256_storeu_si256((void *)out.q, q);
    add_bytes(q, sums);
    out.scale[0] = scale;
    for (uint32_t half = 0; half < 2; half++) {
        out.sum[MP_INT8_BY_16][half] = scale * (float)sums[half];
        out.negative[MP_INT8_BY_16][half] = -128 * sums[half];
    }
    out.sum[MP_INT8_BY_32][0] = scale * (float)(sums[0] + sums[1]);
    out.negative[MP_INT8_BY_32][0] = -128 * (sums[0] + sums[1]);
}

MP_AVX2 void mp_int8_quantise_avx2(const float *in, uint32_t n_groups, mp_int8_row row)
{
    for (uint32_t g = 0; g < n_groups; g++)
        round_group(in + g * MP_INT8_GROUP, mp_int8_row_from(row, g));
}

/* ---- Weights ---- */

/* A run of four rows. */
typedef struct unpacked_run {
    _Alignas(32) int8_t q[MP_BLOCK_RUN / 32][MP_FEW][32];
    __m128 scale[16], minimum[16]; /* of a group of each row */
} unpacked_run;

MP_INLINE void order_scales(uint32_t dtype, uint32_t n_groups, const float *rows, __m128 *out)
{
    if (mp_block_is_plain(dtype)) {
        for (uint32_t g = 0; g < n_groups; g++)
            out[g] = _mm_load_ps(rows + 4 * g);
        return;
    }
    for (uint32_t g = 0; g < n_groups; g += 4) {
        MP_EACH (r, 4)
            out[g + r] = _mm_load_ps(rows + 16 * r + g);
        _MM_TRANSPOSE4_PS(out[g], out[g + 1], out[g + 2], out[g + 3]);
    }
}

MP_INLINE uint32_t group_of(uint32_t dtype)
{
    return mp_block_group(dtype, 1, 1) == 3 ? 16 : 32;
}

/* Takes `n` weights, a run or less, of four rows apart. */
MP_INLINE void unpack(uint32_t dtype, const uint8_t *const *rows, uint32_t n, unpacked_run *out)
{
    const uint32_t weights = mp_block_weights(dtype), steps = weights / MP_BLOCK_STEP;
    const uint32_t n_groups = n / group_of(dtype);
    mp_block_scales scales;
    mp_scales_of_rows(dtype, rows, n / weights, &scales);
    order_scales(dtype, n_groups, scales.scale, out->scale);
    if (mp_block_has_minimum(dtype))
        order_scales(dtype, n_groups, scales.minimum, out->minimum);
    for (uint32_t b = 0; b < n / weights; b++)
        MP_EACH (step, steps)
            MP_EACH (c, MP_FEW)
                _mm256_store_si256((void *)out->q[b * steps + step][c],
                                   mp_block_bytes_at(dtype, rows[c] + b * mp_block_bytes(dtype),
                                                     step));
}

/* What a format means for runs that have been taken apart. */
typedef struct unpacked_format {
    uint32_t dtype, group;
    bool has_minimum;
    void (*unpack)(const uint8_t *const *rows, uint32_t n, unpacked_run *out);
} unpacked_format;

/* ---- Products ---- */

/* Of 32 elements of x with four rows: the sums of the first 16, and of the others. */
MP_INLINE __m256i multiply_step(__m256i x, const int8_t (*rows)[32])
{
    __m256i sums[MP_FEW];
    MP_EACH (c, MP_FEW) {
        const __m256i w = _mm256_load_si256((const void *)rows[c]);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        sums[c] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    return _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]),
                             _mm256_hadd_epi32(sums[2], sums[3]));
}

/* Adds group g of x, the run's group j. */
MP_INLINE void add_group(const unpacked_format *f, const mp_int8_row *x, uint32_t g, __m128i dots,
                         const unpacked_run *run, uint32_t j, __m128 *lanes)
{
    const uint32_t by = f->group == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32;
    const float of_x = x->scale[g * f->group / MP_INT8_GROUP];
    __m128 *lane = &lanes[g % MP_INT8_LANES];
    *lane =
        _mm_fmadd_ps(_mm_mul_ps(run->scale[j], _mm_set1_ps(of_x)), _mm_cvtepi32_ps(dots), *lane);
    if (f->has_minimum)
        *lane = _mm_fnmadd_ps(run->minimum[j], _mm_set1_ps(x->sum[by][g]), *lane);
}

MP_AVX2 static void add_run(const unpacked_format *f, const mp_int8_row *x, uint32_t from,
                            uint32_t n, const unpacked_run *run, __m128 *lanes)
{
    for (uint32_t step = 0; step < n / 32; step++) {
        const uint32_t g = (from + 32 * step) / f->group, j = 32 * step / f->group;
        const __m256i q = _mm256_loadu_si256((const void *)(x->q + from + 32 * step));
        const __m256i dots = multiply_step(q, run->q[step]);
        const __m128i low = _mm256_castsi256_si128(dots), high = _mm256_extracti128_si256(dots, 1);
        if (f->group == 16) {
            add_group(f, x, g, low, run, j, lanes);
            add_group(f, x, g + 1, high, run, j + 1, lanes);
        } else {
            add_group(f, x, g, _mm_add_epi32(low, high), run, j, lanes);
        }
    }
}

/* All rows of x times four rows of weights, from number `first` on. */
MP_AVX2 static void multiply_four(const unpacked_format *f, const mp_int8_product *p,
                                  uint32_t first)
{
    const uint32_t left = p->n_weights - first;
    const uint32_t run_bytes = MP_BLOCK_RUN / mp_block_weights(f->dtype) * mp_block_bytes(f->dtype);
    const uint8_t *rows[MP_FEW];
    __m128 lanes[MP_INT8_ROWS][MP_INT8_LANES];
    unpacked_run run;
    for (uint32_t c = 0; c < MP_FEW; c++)
        rows[c] = p->weights + (first + (c < left ? c : 0)) * p->row_bytes;
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (uint32_t lane = 0; lane < MP_INT8_LANES; lane++)
            lanes[r][lane] = _mm_setzero_ps();
    for (uint32_t from = 0; from < p->k; from += MP_BLOCK_RUN) {
        const uint32_t n = p->k - from < MP_BLOCK_RUN ? p->k - from : MP_BLOCK_RUN;
        for (uint32_t c = 0; c < MP_FEW && p->ahead_bytes; c++)
            mp_prefetch_run(f->dtype, rows[c], p->ahead_bytes);
        f->unpack(rows, n, &run);
        for (uint32_t r = 0; r < p->n_rows; r++) {
            const mp_int8_row x = mp_int8_row_at(p->x[r], p->k);
            add_run(f, &x, from, n, &run, lanes[r]);
        }
        for (uint32_t c = 0; c < MP_FEW; c++)
            rows[c] += run_bytes;
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        float sums[MP_FEW];
        _mm_storeu_ps(sums, _mm_add_ps(_mm_add_ps(lanes[r][0], lanes[r][2]),
                                       _mm_add_ps(lanes[r][1], lanes[r][3])));
        memcpy(p->out + r * p->stride + first, sums,
               (left < MP_FEW ? left : MP_FEW) * sizeof *sums);
    }
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                                                   \
    MP_AVX2 static void name##_unpack(const uint8_t *const *rows, uint32_t n, unpacked_run *out) \
    {                                                                                            \
        unpack(dtype, rows, n, out);                                                             \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

MP_AVX2 static void multiply(const mp_int8_product *product)
{
    static void (*const unpacks[])(const uint8_t *const *, uint32_t, unpacked_run *) =
        MP_BLOCK_FUNCTIONS(unpack);
    const unpacked_format format = {.dtype = product->dtype,
                                    .group = group_of(product->dtype),
                                    .has_minimum = mp_block_has_minimum(product->dtype),
                                    .unpack = unpacks[product->dtype - MOEPAGE_DTYPE_Q4_0]};
    for (uint32_t first = 0; first < product->n_weights; first += MP_FEW)
        multiply_four(&format, product, first);
}

const mp_int8_set mp_int8_avx2 = {.quantise = mp_int8_quantise_avx2, .multiply = multiply};

#endif
