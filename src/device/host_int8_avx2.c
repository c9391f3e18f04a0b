/* Products in integers with AVX2: rounding rows of x, and several rows of them.
 *
 * They meet eight rows of weights that have been rearranged in memory, one lane of 32 bits to each. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include "device/host_int8_avx2.h"

#define MP_PACKED 8 /* rows of weights that are the lanes of a vector */
#define MP_PASS 4   /* rows of x that meet them at a time */
#define MP_ALONE 2  /* so few are faster one by one, with weights taken apart for each */

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

/* A run of eight rows of weights: bytes 4 * i to 4 * i + 3 of every row are quad[i], one row to a lane; and
 * scales and minima of its groups. */
typedef struct packed_run {
    __m256i quad[MP_BLOCK_RUN / 4];
    __m256 scale[16], minimum[16];
} packed_run;

/* Scales of groups, of which those of four rows are a half. */
MP_INLINE void put_scales(uint32_t dtype, uint32_t n_groups, const float *rows, uint32_t half,
                          __m256 *out)
{
    for (uint32_t g = 0; g < n_groups; g += 4) {
        __m128 four[4];
        MP_EACH (r, 4)
            four[r] =
                _mm_load_ps(mp_block_is_plain(dtype) ? rows + 4 * (g + r) : rows + 16 * r + g);
        if (!mp_block_is_plain(dtype))
            _MM_TRANSPOSE4_PS(four[0], four[1], four[2], four[3]);
        MP_EACH (r, 4)
            _mm_store_ps((float *)&out[g + r] + 4 * half, four[r]);
    }
}

/* 32 bytes of each of four rows: one half of eight quads. */
MP_INLINE void put_quads(const __m256i *r, uint32_t half, __m256i *out)
{
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    const __m256i quads[] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                             _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
    MP_EACH (i, 4) {
        _mm_store_si128((__m128i *)&out[i] + half, _mm256_castsi256_si128(quads[i]));
        _mm_store_si128((__m128i *)&out[4 + i] + half, _mm256_extracti128_si256(quads[i], 1));
    }
}

MP_INLINE __m256i bytes_of(uint32_t dtype, const uint8_t *block, uint32_t step)
{
    const __m256i all = mp_block_bytes_raised(dtype, block, step);
    return is_fp4(dtype) ? _mm256_add_epi8(all, _mm256_set1_epi8(16)) : all;
}

/* Packs `n` weights, a run or less, of eight rows. */
MP_INLINE void pack(uint32_t dtype, const uint8_t *const *rows, uint32_t n, packed_run *out)
{
    const uint32_t weights = mp_block_weights(dtype), steps = weights / MP_BLOCK_STEP;
    const uint32_t bytes = mp_block_bytes(dtype), n_groups = n / group_of(dtype);
    for (uint32_t half = 0; half < 2; half++, rows += 4) {
        mp_block_scales scales;
        mp_scales_of_rows(dtype, rows, n / weights, &scales);
        put_scales(dtype, n_groups, scales.scale, half, out->scale);
        if (mp_block_has_minimum(dtype))
            put_scales(dtype, n_groups, scales.minimum, half, out->minimum);
        for (uint32_t b = 0; b < n / weights; b++)
            MP_EACH (step, steps) {
                __m256i r[4];
                MP_EACH (c, 4)
                    r[c] = bytes_of(dtype, rows[c] + b * bytes, step);
                put_quads(r, half, out->quad + (b * steps + step) * 8);
            }
    }
}

/* What a format means for packed runs. */
typedef struct packed_format {
    uint32_t dtype, group, weights, bytes, products, shift;
    bool has_minimum, has_offset;
    void (*pack)(const uint8_t *const *rows, uint32_t n, packed_run *out);
} packed_format;

/* ---- Products ---- */

/* Lanes of the sums of a row of x with eight rows of weights. */
typedef __m256 packed_sums[MP_INT8_LANES];

/* The products of some rows of x from `q` on with quads, `quads` of them at a time in 16 bits. */
MP_INLINE void dot_quads(uint32_t quads, uint32_t rows, uint32_t n, const int8_t *const *q,
                         uint32_t at, const __m256i *quad, __m256i *dots)
{
    for (uint32_t i = 0; i < n; i += quads) {
        __m256i sums[MP_PASS];
        MP_EACH (part, quads)
            MP_EACH (r, rows) {
                int four;
                memcpy(&four, q[r] + at + 4 * (i + part), sizeof four);
                const __m256i two =
                    multiply_bytes(quads == 1, quad[i + part], _mm256_set1_epi32(four));
                sums[r] = part == 0 ? two : _mm256_add_epi16(sums[r], two);
                /* in another order they do not stay in registers */
                __asm__("" : "+x"(sums[r]));
            }
        MP_EACH (r, rows)
            dots[r] = _mm256_add_epi32(dots[r], add_pairs(sums[r]));
    }
}

/* Adds `n` groups of a packed run, from group g of x on, for some rows of x. */
MP_INLINE void add_packed(uint32_t quads, uint32_t rows, const packed_format *f,
                          const mp_int8_row *x, uint32_t g, uint32_t n, const packed_run *run,
                          packed_sums *sums)
{
    const uint32_t by = f->group == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32;
    const __m256i shift = _mm256_set1_epi32((int)f->shift);
    const int8_t *q[MP_PASS];
    MP_EACH (r, rows)
        q[r] = x[r].q;
    for (uint32_t j = 0; j < n; j++, g++) {
        __m256i dots[MP_PASS];
        MP_EACH (r, rows)
            dots[r] = f->has_offset
                          ? _mm256_srav_epi32(_mm256_set1_epi32(x[r].negative[by][g]), shift)
                          : _mm256_setzero_si256();
        dot_quads(quads, rows, f->group / 4, q, g * f->group, run->quad + j * f->group / 4, dots);
        MP_EACH (r, rows) {
            __m256 *lane = &sums[r][g % MP_INT8_LANES], sum = *lane;
            const __m256 of_x = _mm256_set1_ps(x[r].scale[g * f->group / MP_INT8_GROUP]);
            sum = _mm256_fmadd_ps(_mm256_mul_ps(run->scale[j], of_x), _mm256_cvtepi32_ps(dots[r]),
                                  sum);
            if (f->has_minimum)
                sum = _mm256_fnmadd_ps(run->minimum[j], _mm256_set1_ps(x[r].sum[by][g]), sum);
            *lane = sum;
        }
    }
}

#define MP_PASS_OF(quads)                                                             \
    MP_AVX2 static void pass_of_##quads(const packed_format *f, uint32_t rows,        \
                                        const mp_int8_row *x, uint32_t g, uint32_t n, \
                                        const packed_run *run, packed_sums *sums)     \
    {                                                                                 \
        switch (rows) {                                                               \
        case 1: add_packed(quads, 1, f, x, g, n, run, sums); break;                   \
        case 2: add_packed(quads, 2, f, x, g, n, run, sums); break;                   \
        case 3: add_packed(quads, 3, f, x, g, n, run, sums); break;                   \
        default: add_packed(quads, MP_PASS, f, x, g, n, run, sums);                   \
        }                                                                             \
    }

MP_PASS_OF(1)
MP_PASS_OF(2)
MP_PASS_OF(4)
MP_PASS_OF(8)

/* Adds a run of n weights from element `from` on to the sums of every row of x. */
MP_AVX2 static void add_run(const packed_format *f, const mp_int8_product *p, const mp_int8_row *x,
                            uint32_t from, uint32_t n, const packed_run *run, packed_sums *sums)
{
    const uint32_t quads = f->products / 2 < f->group / 4 ? f->products / 2 : f->group / 4;
    const uint32_t g = from / f->group, groups = n / f->group;
    for (uint32_t r = 0; r < p->n_rows; r += MP_PASS) {
        const uint32_t rows = p->n_rows - r;
        switch (quads) {
        case 1: pass_of_1(f, rows, x + r, g, groups, run, sums + r); break;
        case 2: pass_of_2(f, rows, x + r, g, groups, run, sums + r); break;
        case 4: pass_of_4(f, rows, x + r, g, groups, run, sums + r); break;
        default: pass_of_8(f, rows, x + r, g, groups, run, sums + r);
        }
    }
}

/* Rows of x times eight rows of weights, from number `first` on. */
MP_AVX2 static void multiply_packed(const packed_format *f, const mp_int8_product *p,
                                    const mp_int8_row *x, uint32_t first)
{
    const uint32_t left = p->n_weights - first;
    const uint32_t run_bytes = MP_BLOCK_RUN / f->weights * f->bytes;
    const uint8_t *rows[MP_PACKED];
    packed_sums sums[MP_INT8_ROWS];
    packed_run run;
    for (uint32_t c = 0; c < MP_PACKED; c++)
        rows[c] = p->weights + (first + (c < left ? c : 0)) * p->row_bytes;
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (uint32_t lane = 0; lane < MP_INT8_LANES; lane++)
            sums[r][lane] = _mm256_setzero_ps();
    for (uint32_t from = 0; from < p->k; from += MP_BLOCK_RUN) {
        const uint32_t n = p->k - from < MP_BLOCK_RUN ? p->k - from : MP_BLOCK_RUN;
        for (uint32_t c = 0; c < MP_PACKED && p->ahead_bytes; c++)
            mp_prefetch_run(f->dtype, rows[c], p->ahead_bytes);
        f->pack(rows, n, &run);
        add_run(f, p, x, from, n, &run, sums);
        for (uint32_t c = 0; c < MP_PACKED; c++)
            rows[c] += run_bytes;
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        float all[MP_PACKED];
        _mm256_storeu_ps(all, _mm256_add_ps(_mm256_add_ps(sums[r][0], sums[r][2]),
                                            _mm256_add_ps(sums[r][1], sums[r][3])));
        memcpy(p->out + r * p->stride + first, all,
               (left < MP_PACKED ? left : MP_PACKED) * sizeof *all);
    }
}

/* One row of x after the other. */
MP_AVX2 static void multiply_alone(const mp_int8_product *product)
{
    for (uint32_t r = 0; r < product->n_rows; r++) {
        mp_int8_product row = *product;
        row.n_rows = 1;
        row.x += r;
        row.out += r * product->stride;
        row.ahead_bytes = r == 0 ? product->ahead_bytes : 0;
        mp_int8_avx2_row(&row);
    }
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                                               \
    MP_AVX2 static void name##_pack(const uint8_t *const *rows, uint32_t n, packed_run *out) \
    {                                                                                        \
        pack(dtype, rows, n, out);                                                           \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

MP_AVX2 static void multiply(const mp_int8_product *product)
{
    static void (*const packs[])(const uint8_t *const *, uint32_t, packed_run *) =
        MP_BLOCK_FUNCTIONS(pack);
    const uint32_t dtype = product->dtype;
    if (product->n_rows <= MP_ALONE) {
        multiply_alone(product);
        return;
    }
    const packed_format format = {.dtype = dtype,
                                  .group = group_of(dtype),
                                  .weights = mp_block_weights(dtype),
                                  .bytes = mp_block_bytes(dtype),
                                  .products = products_of(dtype),
                                  .shift = offset_shift(dtype),
                                  .has_minimum = mp_block_has_minimum(dtype),
                                  .has_offset = has_offset(dtype),
                                  .pack = packs[dtype - MOEPAGE_DTYPE_Q4_0]};
    mp_int8_row x[MP_INT8_ROWS];
    for (uint32_t r = 0; r < product->n_rows; r++)
        x[r] = mp_int8_row_at(product->x[r], product->k);
    for (uint32_t first = 0; first < product->n_weights; first += MP_PACKED)
        multiply_packed(&format, product, x, first);
}

const mp_int8_set mp_int8_avx2 = {.quantise = mp_int8_quantise_avx2, .multiply = multiply};

#endif
