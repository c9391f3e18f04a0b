/* Products in integers with AVX-512 and VNNI: several rows of x.
 *
 * They meet 16 rows of weights that have been rearranged in memory, one lane to each; eight rows of x meet
 * twice as many. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include "device/host_int8_vnni.h"

#define MP_PACKED 16 /* rows of weights that are the lanes of a vector */
#define MP_VECTORS 2 /* vectors that a whole pass meets: what is loaded of x serves both */
#define MP_PASS 8    /* rows of x at a time */
#define MP_ALONE 2   /* so few are faster one by one, with weights taken apart for each */

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

/* ---- Weights ---- */

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

/* ---- x ---- */

/* A run of the rows of a pass side by side: one address reaches them all. `begin` is what sums begin with:
 * the offset of weights, subtracted. */
typedef struct x_pass {
    int8_t q[MP_PASS][MP_BLOCK_RUN];
    float scale[MP_PASS][MP_BLOCK_RUN / MP_INT8_GROUP];
    float sum[MP_PASS][16];
    int32_t begin[MP_PASS][16];
} x_pass;

/* Takes the groups of n elements from element `from` on. */
MP_VNNI static void take_pass(const packed_format *f, const mp_int8_row *x, uint32_t rows,
                              uint32_t from, uint32_t n, x_pass *out)
{
    const uint32_t by = f->group == 16 ? MP_INT8_BY_16 : MP_INT8_BY_32, g = from / f->group;
    const __mmask16 groups = (__mmask16)((1u << n / f->group) - 1);
    const __mmask8 scales = (__mmask8)((1u << n / MP_INT8_GROUP) - 1);
    const __m128i shift = _mm_cvtsi32_si128((int)f->shift);
    for (uint32_t r = 0; r < rows; r++) {
        const int8_t *q = x[r].q + from;
        MP_EACH (part, MP_BLOCK_RUN / 32)
            if (32 * part < n)
                _mm256_storeu_si256((void *)(out->q[r] + 32 * part),
                                    _mm256_loadu_si256((const void *)(q + 32 * part)));
        _mm256_storeu_ps(out->scale[r],
                         _mm256_maskz_loadu_ps(scales, x[r].scale + from / MP_INT8_GROUP));
        const __m512i negative = _mm512_maskz_loadu_epi32(groups, x[r].negative[by] + g);
        _mm512_storeu_si512(out->begin[r], f->has_minimum ? _mm512_setzero_si512()
                                                          : _mm512_sra_epi32(negative, shift));
        _mm512_storeu_ps(out->sum[r], _mm512_maskz_loadu_ps(groups, x[r].sum[by] + g));
    }
}

/* ---- Products ---- */

/* Lanes of the sums of a row of x with vectors of 16 rows of weights. */
typedef __m512 packed_sums[MP_INT8_LANES][MP_VECTORS];

/* Adds group j of a packed run to the lanes `lane` of some rows of x. */
MP_INLINE void add_group(const packed_format *f, uint32_t vectors, uint32_t rows, const x_pass *x,
                         uint32_t j, const packed_run *run, uint32_t lane, packed_sums *sums)
{
    __m512i dots[MP_PASS][MP_VECTORS];
    MP_EACH (r, rows)
        MP_EACH (v, vectors)
            dots[r][v] = _mm512_set1_epi32(x->begin[r][j]);
    for (uint32_t i = j * f->group / 4, end = i + f->group / 4; i < end; i += 4)
        MP_EACH (part, 4)
            MP_EACH (r, rows) {
                int four;
                memcpy(&four, x->q[r] + 4 * (i + part), sizeof four);
                MP_EACH (v, vectors)
                    dots[r][v] = _mm512_dpbusd_epi32(dots[r][v], run[v].quad[i + part],
                                                     _mm512_set1_epi32(four));
            }
    MP_EACH (r, rows) {
        const __m512 of_x = _mm512_set1_ps(x->scale[r][j * f->group / MP_INT8_GROUP]);
        MP_EACH (v, vectors) {
            __m512 sum = sums[r][lane][v];
            sum = _mm512_fmadd_ps(_mm512_mul_ps(run[v].scale[j], of_x),
                                  _mm512_cvtepi32_ps(dots[r][v]), sum);
            if (f->has_minimum)
                sum = _mm512_fnmadd_ps(run[v].minimum[j], _mm512_set1_ps(x->sum[r][j]), sum);
            sums[r][lane][v] = sum;
        }
    }
}

/* Adds `groups` of a packed run, of which the first is number g of its row. */
MP_INLINE void add_packed(const packed_format *f, uint32_t vectors, uint32_t rows, const x_pass *x,
                          uint32_t g, uint32_t groups, const packed_run *run, packed_sums *sums)
{
    for (uint32_t j = 0; j < groups; j++)
        add_group(f, vectors, rows, x, j, run, (g + j) % MP_INT8_LANES, sums);
}

#define MP_PASS_OF(name, vectors, rows)                                                            \
    MP_VNNI static void name(const packed_format *f, const x_pass *x, uint32_t g, uint32_t groups, \
                             const packed_run *run, packed_sums *sums)                             \
    {                                                                                              \
        add_packed(f, vectors, rows, x, g, groups, run, sums);                                     \
    }

MP_PASS_OF(pass_1, 1, 1)
MP_PASS_OF(pass_2, 1, 2)
MP_PASS_OF(pass_3, 1, 3)
MP_PASS_OF(pass_4, 1, 4)
MP_PASS_OF(pass_5, 1, 5)
MP_PASS_OF(pass_6, 1, 6)
MP_PASS_OF(pass_7, 1, 7)
MP_PASS_OF(pass_8, 1, 8)
MP_PASS_OF(pass_8_by_2, 2, 8)

/* Adds a run to the sums of every row of x. */
MP_VNNI static void add_run(const packed_format *f, const mp_int8_product *p, const mp_int8_row *x,
                            uint32_t from, uint32_t n, uint32_t vectors, const packed_run *run,
                            packed_sums *sums)
{
    static void (*const passes[])(const packed_format *, const x_pass *, uint32_t, uint32_t,
                                  const packed_run *, packed_sums *) = {pass_1, pass_2, pass_3,
                                                                        pass_4, pass_5, pass_6,
                                                                        pass_7, pass_8};
    const uint32_t g = from / f->group, groups = n / f->group;
    x_pass pass;
    for (uint32_t r = 0; r < p->n_rows; r += MP_PASS) {
        const uint32_t rows = p->n_rows - r < MP_PASS ? p->n_rows - r : MP_PASS;
        take_pass(f, x + r, rows, from, n, &pass);
        if (rows == MP_PASS && vectors == MP_VECTORS) {
            pass_8_by_2(f, &pass, g, groups, run, sums + r);
            continue;
        }
        passes[rows - 1](f, &pass, g, groups, run, sums + r);
        if (vectors == MP_VECTORS) /* the others: of each pair of lanes the second */
            passes[rows - 1](f, &pass, g, groups, run + 1,
                             (packed_sums *)(void *)((__m512 *)(void *)(sums + r) + 1));
    }
}

/* Rows of x times 32 rows of weights at most, from number `first` on. */
MP_VNNI static void multiply_packed(const packed_format *f, const mp_int8_product *p,
                                    const mp_int8_row *x, uint32_t first)
{
    const uint32_t left = p->n_weights - first;
    const uint32_t run_bytes = MP_BLOCK_RUN / f->weights * f->bytes;
    const uint32_t vectors = left > MP_PACKED ? MP_VECTORS : 1;
    const uint8_t *rows[MP_VECTORS * MP_PACKED];
    packed_sums sums[MP_INT8_ROWS];
    packed_run run[MP_VECTORS];
    for (uint32_t c = 0; c < vectors * MP_PACKED; c++)
        rows[c] = p->weights + (first + (c < left ? c : 0)) * p->row_bytes;
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (uint32_t lane = 0; lane < MP_INT8_LANES * MP_VECTORS; lane++)
            sums[r][lane / MP_VECTORS][lane % MP_VECTORS] = _mm512_setzero_ps();
    for (uint32_t from = 0; from < p->k; from += MP_BLOCK_RUN) {
        const uint32_t n = p->k - from < MP_BLOCK_RUN ? p->k - from : MP_BLOCK_RUN;
        for (uint32_t v = 0; v < vectors; v++)
            f->pack(rows + v * MP_PACKED, n, p->ahead_bytes, &run[v]);
        add_run(f, p, x, from, n, vectors, run, sums);
        for (uint32_t c = 0; c < vectors * MP_PACKED; c++)
            rows[c] += run_bytes;
    }
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (uint32_t v = 0; v < vectors; v++) {
            const uint32_t at = v * MP_PACKED, n = left - at < MP_PACKED ? left - at : MP_PACKED;
            _mm512_mask_storeu_ps(p->out + r * p->stride + first + at, (__mmask16)((1u << n) - 1),
                                  _mm512_add_ps(_mm512_add_ps(sums[r][0][v], sums[r][2][v]),
                                                _mm512_add_ps(sums[r][1][v], sums[r][3][v])));
        }
}

/* One row of x after the other. */
MP_VNNI static void multiply_alone(const mp_int8_product *product)
{
    for (uint32_t r = 0; r < product->n_rows; r++) {
        mp_int8_product row = *product;
        row.n_rows = 1;
        row.x += r;
        row.out += r * product->stride;
        row.ahead_bytes = r == 0 ? product->ahead_bytes : 0;
        mp_int8_vnni_row(&row);
    }
}

/* ---- Every format ---- */

#define MP_FORMAT(name, dtype)                                                              \
    MP_VNNI static void name##_pack(const uint8_t *const *rows, uint32_t n, uint64_t ahead, \
                                    packed_run *out)                                        \
    {                                                                                       \
        pack(dtype, rows, n, ahead, out);                                                   \
    }

MP_EVERY_BLOCK_FORMAT(MP_FORMAT)

MP_VNNI static void multiply(const mp_int8_product *product)
{
    static void (*const packs[])(const uint8_t *const *, uint32_t, uint64_t, packed_run *) =
        MP_BLOCK_FUNCTIONS(pack);
    const uint32_t dtype = product->dtype, which = dtype - MOEPAGE_DTYPE_Q4_0;
    if (product->n_rows <= MP_ALONE) {
        multiply_alone(product);
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
    for (uint32_t first = 0; first < product->n_weights; first += MP_VECTORS * MP_PACKED)
        multiply_packed(&format, product, x, first);
}

const mp_int8_set mp_int8_vnni = {.quantise = mp_int8_quantise_avx2, .multiply = multiply};

#endif
