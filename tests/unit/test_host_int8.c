/* EXPERTS with MATH_INT8 on every instruction set that this CPU runs: the same bits as naive sums in the
 * order of docs/host-kernels.md, over what codec/blocks.h says blocks consist of; and sums in double
 * precision of the decoded weights and of activations as they were before rounding. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/floats.h"
#include "codec/blocks.h"
#include "coded_launch.h"
#include "device/host_kernel_set.h"
#include "device/host_math.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "naive_int8.h"
#include "numbers.h"
#include "random_blocks.h"
#include "slow.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16
#define FIRST MOEPAGE_DTYPE_Q4_0
#define N_FORMATS (MOEPAGE_DTYPE_NVFP4G256_F32 - MOEPAGE_DTYPE_Q4_0 + 1)
#define INT8 MOEPAGE_MATH_INT8

/* ---- Rounding ---- */

static void expect_rounded(const float *in, uint32_t n_groups)
{
    const uint32_t k = n_groups * 32;
    for (size_t s = 0; s < n_kernel_sets; s++) {
        void *memory = guarded_alloc(mp_int8_row_bytes(k));
        const mp_int8_row row = mp_int8_row_at(memory, k);
        kernel_sets[s]->int8->quantise(in, n_groups, row);
        for (uint32_t g = 0; g < n_groups; g++) {
            int q[32], sums[2] = {0};
            float scale;
            naive_int8_round(in + g * 32, q, &scale);
            assert_true(num_same(row.scale[g], scale));
            for (uint32_t i = 0; i < 32; i++) {
                assert_int_equal(row.q[g * 32 + i], q[i]);
                sums[i / 16] += q[i];
            }
            for (uint32_t half = 0; half < 2; half++) {
                assert_true(
                    num_same(row.sum[MP_INT8_BY_16][2 * g + half], scale * (float)sums[half]));
                assert_int_equal(row.negative[MP_INT8_BY_16][2 * g + half], -128 * sums[half]);
            }
            assert_true(num_same(row.sum[MP_INT8_BY_32][g], scale * (float)(sums[0] + sums[1])));
            assert_int_equal(row.negative[MP_INT8_BY_32][g], -128 * (sums[0] + sums[1]));
        }
        guarded_free(memory, mp_int8_row_bytes(k));
    }
}

static void test_host_int8_rounds_to_the_nearest_of_127_steps(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t n_groups = 1 + round % 9;
        float *in = num_array(F32, n_groups * 32ull);
        for (uint32_t i = 0; i < n_groups * 32 && round % 2;
             i++) /* ties, and what must not pass 127 */
            in[i] =
                (float)((int)(num_random_bits() >> 8) % 255 - 127) * (round % 4 == 1 ? 0.5f : 1);
        expect_rounded(in, n_groups);
        guarded_free(in, n_groups * 32 * sizeof(float));
    }
}

static void test_host_int8_rounds_hostile_values_as_documented(void **state)
{
    static const float hostile[] = {NAN,       -NAN,       INFINITY,
                                    -INFINITY, 0x1p-100f,  0x1.fffffep-101f,
                                    0x1p-149f, -0x1p-126f, 0x1.fffffep+127f,
                                    -0.0f,     0x1p-99f};
    (void)state;
    for (size_t h = 0; h < sizeof hostile / sizeof *hostile; h++)
        for (uint32_t at = 0; at < 96; at += 5) {
            float in[96];
            for (uint32_t i = 0; i < 96; i++)
                in[i] = i / 32 == 1 ? num_random() : (i % 3 ? 0 : 0x1p-110f);
            in[at] = hostile[h];
            expect_rounded(in, 3);
        }
}

/* ---- Products ---- */

typedef struct operands {
    uint8_t *weights;
    float *from; /* [n_rows][k] */
    void *x[MP_INT8_ROWS];
    float *out, *want;
} operands;

static void try_product(uint32_t dtype, uint32_t k, uint32_t n_weights, uint32_t n_rows, bool wild)
{
    const mp_block_format *format = mp_block_format_of(dtype);
    const uint64_t row_bytes = k / format->weights * format->bytes;
    const uint32_t stride = n_weights + n_rows % 3;
    const uint64_t out_bytes = (uint64_t)n_rows * stride * sizeof(float);
    operands o = {.weights = guarded_alloc(n_weights * row_bytes),
                  .from = num_array(F32, (uint64_t)n_rows * k),
                  .out = guarded_alloc(out_bytes),
                  .want = malloc(out_bytes)};
    (wild ? random_blocks_wild : random_blocks)(dtype, n_weights * (k / format->weights),
                                                o.weights);
    for (uint32_t r = 0; r < n_rows; r++) {
        o.x[r] = guarded_alloc(mp_int8_row_bytes(k));
        if (wild && r % 2)
            o.from[r * k + r % k] = r % 4 == 1 ? NAN : 0;
        mp_int8_portable.quantise(o.from + r * k, k / 32, mp_int8_row_at(o.x[r], k));
        for (uint32_t c = 0; c < n_weights; c++)
            o.want[r * stride + c] =
                naive_int8_dot(dtype, o.weights + c * row_bytes, o.from + r * k, k);
    }
    for (size_t s = 0; s < n_kernel_sets; s++) {
        const mp_int8_product product = {.weights = o.weights,
                                         .row_bytes = row_bytes,
                                         .dtype = dtype,
                                         .k = k,
                                         .n_weights = n_weights,
                                         .n_rows = n_rows,
                                         .x = (const void *const *)o.x,
                                         .ahead_bytes = s % 2 ? row_bytes : 0,
                                         .out = o.out,
                                         .stride = stride};
        memset(o.out, 0xa5, out_bytes);
        kernel_sets[s]->int8->multiply(&product);
        for (uint32_t i = 0; i < n_rows * n_weights; i++) {
            const uint32_t at = i / n_weights * stride + i % n_weights;
            if (!num_same(o.out[at], o.want[at]))
                fail_msg("%s: %s, k %u, row %u of %u, weight row %u of %u: %a, it must be %a",
                         mp_host_kernels_name(kernel_sets[s]), format->name, k, i / n_weights,
                         n_rows, i % n_weights, n_weights, (double)o.out[at], (double)o.want[at]);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++)
        guarded_free(o.x[r], mp_int8_row_bytes(k));
    guarded_free(o.weights, n_weights * row_bytes);
    guarded_free(o.from, (uint64_t)n_rows * k * sizeof(float));
    guarded_free(o.out, out_bytes);
    free(o.want);
}

static uint32_t weights_of(uint32_t dtype)
{
    return mp_block_format_of(dtype)->weights;
}

/* Every length up to two runs and a bit, one row of x and several. */
static void test_host_int8_dots_have_the_documented_bits(void **state)
{
    static const uint32_t rows[] = {1, 3, 1, 8, 2};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (uint32_t k = weights_of(dtype), i = 0; k <= 800; k += weights_of(dtype), i++) {
            try_product(dtype, k, 4 + i % 3, rows[i % 5], false);
            try_product(dtype, k, 1 + i % 5, 1 + i % 2, true);
        }
}

static void test_host_int8_any_number_of_rows_gives_the_same(void **state)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 64};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
            try_product(dtype, weights_of(dtype) * (1 + i % 2), 1 + (5 * (uint32_t)i + dtype) % 35,
                        rows[i], false);
}

/* Products of the greatest magnitude: 127 times whatever bits there are. */
static void test_host_int8_the_greatest_products_do_not_saturate(void **state)
{
    static const uint8_t fills[] = {0x00, 0xff, 0x80, 0x7f, 0x88, 0x77, 0xaa};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t f = 0; f < sizeof fills; f++)
            for (uint32_t n_rows = 1; n_rows <= 2; n_rows++) {
                const mp_block_format *format = mp_block_format_of(dtype);
                uint8_t block[256];
                float x[256], want;
                char rows[2][1024];
                float got[2];
                memset(block, fills[f], sizeof block);
                for (uint32_t i = 0; i < 256; i++)
                    x[i] = f % 2 ? -5 : 5;
                const uint32_t k = format->weights;
                const void *const at[] = {rows[0], rows[1]};
                for (uint32_t r = 0; r < n_rows; r++)
                    mp_int8_portable.quantise(x, k / 32, mp_int8_row_at(rows[r], k));
                want = naive_int8_dot(dtype, block, x, k);
                for (size_t s = 0; s < n_kernel_sets; s++) {
                    const mp_int8_product product = {.weights = block,
                                                     .row_bytes = format->bytes,
                                                     .dtype = dtype,
                                                     .k = k,
                                                     .n_weights = 1,
                                                     .n_rows = n_rows,
                                                     .x = at,
                                                     .out = got,
                                                     .stride = 1};
                    kernel_sets[s]->int8->multiply(&product);
                    assert_true(num_same(got[0], want));
                    assert_true(num_same(got[n_rows - 1], want));
                }
            }
}

/* ---- Launches ---- */

/* Blocks, or BF16 numbers. */
static void open_matrix(const coded_launch *l, uint32_t which, uint32_t rows, uint32_t columns,
                        coded_matrix *m)
{
    const mp_block_format *format = mp_block_format_of(l->dtypes[which]);
    const uint64_t n = (uint64_t)rows * columns;
    m->coded_bytes = format ? n / format->weights * format->bytes : n * 2;
    m->values = malloc(n * sizeof *m->values);
    assert_non_null(m->values);
    if (!format) {
        m->coded = num_array(BF16, n);
        for (uint64_t i = 0; i < n; i++)
            m->values[i] = num_get(BF16, m->coded, i);
        return;
    }
    m->coded = guarded_alloc(m->coded_bytes);
    random_blocks(format->dtype, n / format->weights, m->coded);
    mp_block_decode(format, m->coded, n / format->weights, m->values);
}

static coded_launch launch_of(uint32_t hidden, uint32_t intermediate, const uint32_t *dtypes)
{
    coded_launch l = {.math = INT8,
                      .hidden = hidden,
                      .intermediate = intermediate,
                      .open_matrix = open_matrix};
    memcpy(l.dtypes, dtypes, sizeof l.dtypes);
    return l;
}

/* A dot product of BF16 math: the tile of the portable set, which test_host_kernels.c compares. */
static float dot_of_pairs(const uint16_t *weights, const float *x, uint32_t k)
{
    _Alignas(64) float acc[MP_TILE_WEIGHTS * MP_LANES];
    float sums[MP_TILE_WEIGHTS];
    uint16_t *rounded = malloc(k * sizeof *rounded);
    assert_non_null(rounded);
    mp_host_set_portable.narrow[BF16](x, rounded, k);
    const mp_tile tile = {
        .x = {rounded}, .w = {weights, weights, weights, weights}, .n_rows = 1, .k = k, .acc = acc};
    mp_host_set_portable.tile[MP_TILE_DOT](&tile);
    mp_host_set_portable.reduce(acc, sums, MP_TILE_WEIGHTS);
    free(rounded);
    return sums[0];
}

static float dot_of(const coded_launch *l, uint32_t e, uint32_t which, uint32_t row, const float *x)
{
    const coded_matrix *m = &l->matrices[e][which];
    const uint32_t rows = which == MP_DOWN ? l->hidden : l->intermediate;
    const uint32_t k = which == MP_DOWN ? l->intermediate : l->hidden;
    const uint8_t *weights = m->coded + row * (m->coded_bytes / rows);
    const float sum = mp_block_format_of(l->dtypes[which])
                          ? naive_int8_dot(l->dtypes[which], weights, x, k)
                          : dot_of_pairs((const uint16_t *)(const void *)weights, x, k);
    return e > 0 ? sum + l->wide_bias[which][row] : sum;
}

/* Fills `want` one row at a time. */
static void naive_launch(coded_launch *l)
{
    float *inner = malloc(l->intermediate * sizeof *inner);
    assert_non_null(inner);
    memset(l->want, 0xa5, coded_launch_partial_bytes(l));
    for (uint32_t e = 0; e < CODED_EXPERTS; e++)
        for (uint32_t r = 0; r < l->coded[e].n_rows; r++) {
            const uint32_t row = l->rows[l->coded[e].first_row + r];
            const float *x = l->from + (uint64_t)row / CODED_TOP_K * l->hidden;
            for (uint32_t i = 0; i < l->intermediate; i++)
                inner[i] = mp_swiglu(dot_of(l, e, MP_GATE, i, x), dot_of(l, e, MP_UP, i, x));
            for (uint32_t h = 0; h < l->hidden; h++)
                l->want[(uint64_t)row * l->hidden + h] = dot_of(l, e, MP_DOWN, h, inner);
        }
    free(inner);
}

static void expect_naive_bits(uint32_t hidden, uint32_t intermediate, const uint32_t *dtypes,
                              const uint32_t *counts)
{
    coded_launch l = launch_of(hidden, intermediate, dtypes);
    coded_launch_open(&l, counts);
    naive_launch(&l);
    for (size_t s = 0; s < n_kernel_sets; s++)
        coded_launch_try(&l, kernel_sets[s]);
    coded_launch_close(&l);
}

static void test_host_int8_experts_have_the_documented_bits(void **state)
{
    static const uint32_t counts[] = {1, 7, 0}, more[] = {2, 0, 66};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++) {
        const uint32_t same[MP_MATRICES] = {dtype, dtype, dtype}, n = weights_of(dtype);
        expect_naive_bits(n, n, same, counts);
        if (!slow_here())
            expect_naive_bits(n, n < 256 ? 3 * n : n, same, more);
    }
}

/* Matrices of other types among them are those of BF16 math. */
static void test_host_int8_experts_of_mixed_types(void **state)
{
    static const uint32_t counts[] = {1, 3, 26}, q4_k = MOEPAGE_DTYPE_Q4_K;
    static const uint32_t mixtures[][MP_MATRICES] = {
        {BF16, MOEPAGE_DTYPE_Q8_0, MOEPAGE_DTYPE_Q4_1},
        {q4_k, BF16, MOEPAGE_DTYPE_NVFP4},
        {q4_k, MOEPAGE_DTYPE_MXFP4, BF16},
        {BF16, BF16, MOEPAGE_DTYPE_Q5_0},
        {BF16, BF16, BF16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        expect_naive_bits(256, 192, mixtures[i], counts);
    expect_naive_bits(33, 17, mixtures[4], counts); /* not whole groups */
}

/* ---- Double precision ---- */

/* A value and how far off it may be. */
typedef struct near {
    double value, off;
} near;

/* What x may be off by once it is rounded: half a step, and the roundings of the step. */
static void rounded(near *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32) {
        double most = 0;
        for (uint32_t j = 0; j < 32; j++)
            most = fmax(most, fabs(x[i + j].value) + x[i + j].off);
        for (uint32_t j = 0; j < 32; j++)
            x[i + j].off += most / 127 * (0.5 + 0x1p-14);
    }
}

/* Products of the decoded weights: each group's sum is exact but for its scale's two roundings, and a
 * minimum's; a lane adds n / 64 groups at most. */
static near exact_dot(const coded_launch *l, uint32_t e, uint32_t which, uint32_t row,
                      const near *x)
{
    const uint32_t k = which == MP_DOWN ? l->intermediate : l->hidden;
    const mp_block_format *format = mp_block_format_of(l->dtypes[which]);
    const uint8_t *coded =
        l->matrices[e][which].coded + row * (k / format->weights) * format->bytes;
    double sum = 0, off = 0, size = 0;
    mp_block_integers block;
    for (uint32_t i = 0; i < k; i++) {
        if (i % format->weights == 0)
            format->unpack(coded + i / format->weights * format->bytes, &block);
        const uint32_t at = i % format->weights, g = at / format->group;
        const double product = (double)block.scale[g] * block.q[at];
        const double minimum = format->has_minimum ? (double)block.minimum[g] : 0;
        sum += (product - minimum) * x[i].value;
        off += fabs(product - minimum) * x[i].off;
        size += (fabs(product) + fabs(minimum)) * (fabs(x[i].value) + x[i].off);
    }
    if (e > 0)
        sum += (double)l->wide_bias[which][row];
    return (near){sum, off + (k / 32.0 + 8) * 0x1p-24 * (size + fabs(sum))};
}

static near exact_swiglu(near g, near u)
{
    const double silu = g.value / (1 + exp(-g.value)), value = silu * u.value;
    const double off = 1.1 * g.off * (fabs(u.value) + u.off) + fabs(silu) * u.off;
    return (near){value, off + 0x1p-20 * (fabs(value) + off)};
}

static void expect_near(const coded_launch *l, uint32_t e)
{
    const uint32_t row = l->rows[l->coded[e].first_row];
    near x[256], inner[256];
    for (uint32_t i = 0; i < l->hidden; i++)
        x[i] = (near){(double)l->from[(uint64_t)row / CODED_TOP_K * l->hidden + i], 0};
    rounded(x, l->hidden);
    for (uint32_t i = 0; i < l->intermediate; i++)
        inner[i] = exact_swiglu(exact_dot(l, e, MP_GATE, i, x), exact_dot(l, e, MP_UP, i, x));
    rounded(inner, l->intermediate);
    for (uint32_t h = 0; h < l->hidden; h++) {
        const near want = exact_dot(l, e, MP_DOWN, h, inner);
        const double got = (double)l->partial[(uint64_t)row * l->hidden + h];
        if (!(fabs(got - want.value) <= want.off))
            fail_msg("dtype %u, element %u: %.9g, it must be %.9g +- %.2g", l->dtypes[0], h, got,
                     want.value, want.off);
    }
}

static void test_host_int8_agrees_with_double_precision(void **state)
{
    static const uint32_t counts[] = {2, 1, 9};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++) {
        const uint32_t same[MP_MATRICES] = {dtype, dtype, dtype}, n = weights_of(dtype);
        coded_launch l = launch_of(n, n, same);
        coded_launch_open(&l, counts);
        coded_launch_run(&l, mp_host_kernels_best(), 1);
        for (uint32_t e = 0; e < CODED_EXPERTS; e++)
            expect_near(&l, e);
        coded_launch_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_int8_rounds_to_the_nearest_of_127_steps),
        cmocka_unit_test(test_host_int8_rounds_hostile_values_as_documented),
        cmocka_unit_test(test_host_int8_dots_have_the_documented_bits),
        cmocka_unit_test(test_host_int8_any_number_of_rows_gives_the_same),
        cmocka_unit_test(test_host_int8_the_greatest_products_do_not_saturate),
        cmocka_unit_test(test_host_int8_experts_have_the_documented_bits),
        cmocka_unit_test(test_host_int8_experts_of_mixed_types),
        cmocka_unit_test(test_host_int8_agrees_with_double_precision),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
