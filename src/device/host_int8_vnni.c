/* Products in integers with AVX-512 and VNNI: several rows of x.
 *
 * They meet 16 rows of weights that have been rearranged in memory, one lane to each. */
#include "device/host_int8.h"

#if defined(__x86_64__)

#include "device/host_int8_vnni.h"

#define MP_PACKED 16 /* rows of weights that meet several */
#define MP_PASS 8    /* rows of x that meet them at a time */

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
    if (product->n_rows == 1) {
        mp_int8_vnni_row(product);
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
