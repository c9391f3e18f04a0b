/* Dequantisation and products with quantised weights, against the formats' definitions. */

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "codec/quant.h"
#include "kernel_rig.h"
#include "numbers.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define F16 MOEPAGE_DTYPE_F16
#define BF16 MOEPAGE_DTYPE_BF16
#define E4M3 MOEPAGE_DTYPE_F8_E4M3
#define NONE MOEPAGE_DTYPE_NONE

static const uint32_t dtypes[] = {F32, F16, BF16};

/* ---- Matrices as docs/format-moepack.md defines them ---- */

typedef struct matrix {
    uint32_t bits, group;
    uint64_t rows, columns;
    uint64_t row_bytes, row_groups, scales_at, bytes;
    unsigned char *memory; /* ends at an inaccessible page */
} matrix;

static uint32_t form_of(const matrix *m)
{
    return m->bits == 8 ? MOEPAGE_FORM_INT8 : m->bits == 4 ? MOEPAGE_FORM_INT4 : MOEPAGE_FORM_INT2;
}

/* Of the magnitude. */
static double half_value(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31);
    return exponent ? ldexp(1024 + (int)(bits & 1023), exponent - 25)
                    : ldexp((int)(bits & 1023), -24);
}

static uint32_t scale_bits(const matrix *m, uint64_t row, uint64_t column)
{
    const unsigned char *at =
        m->memory + m->scales_at + 2 * (row * m->row_groups + column / m->group);
    return at[0] | (uint32_t)at[1] << 8;
}

static double value_at(const matrix *m, uint64_t row, uint64_t column)
{
    const uint64_t bit = column * m->bits;
    int q = m->memory[row * m->row_bytes + bit / 8] >> bit % 8 & ((1 << m->bits) - 1);
    if (q >> (m->bits - 1))
        q -= 1 << m->bits;
    const uint32_t scale = scale_bits(m, row, column);
    return (scale >> 15 ? q + 0.5 : q) * half_value(scale);
}

/* Random integers, the least of each width too, and padding that is not zero: both may be read, but
 * must not matter to other values. `plain`: scales are 1/4 to 4. */
static matrix matrix_make(uint32_t bits, uint32_t group, uint64_t rows, uint64_t columns,
                          bool plain)
{
    matrix m = {.bits = bits, .group = group, .rows = rows, .columns = columns};
    m.row_bytes = (columns * bits + 7) / 8;
    m.row_groups = (columns + group - 1) / group;
    m.scales_at = (rows * m.row_bytes + 15) / 16 * 16;
    m.bytes = (m.scales_at + rows * m.row_groups * 2 + 15) / 16 * 16;
    m.memory = guarded_alloc(m.bytes);
    for (uint64_t i = 0; i < m.bytes; i++)
        m.memory[i] = (unsigned char)num_random_bits();
    for (uint64_t i = 0; i < rows * m.row_groups; i++) {
        uint32_t half = plain ? (13 + num_random_bits() % 5) << 10 : num_random_bits() % 0x7c00;
        if (bits == 2 && half && num_random_bits() % 2)
            half |= 0x8000; /* four levels */
        m.memory[m.scales_at + 2 * i] = (unsigned char)half;
        m.memory[m.scales_at + 2 * i + 1] = (unsigned char)(half >> 8);
    }
    return m;
}

static void matrix_free(matrix *m)
{
    guarded_free(m->memory, m->bytes);
}

/* ---- Dequantisation ---- */

/* `shift`: the output begins so many elements past a multiple of 16 bytes. */
static void expect_dequantised(const matrix *m, uint32_t dtype, uint64_t shift, uint32_t blocks)
{
    const uint64_t n = m->rows * m->columns, bytes = (n + shift) * num_bytes(dtype);
    const uint64_t padded = (bytes + 15) / 16 * 16;
    unsigned char *out = guarded_alloc(padded);
    void *values = out + shift * num_bytes(dtype);
    memset(out, 0xa5, padded);
    const moepage_cuda_dequant args = {
        .struct_size = sizeof args,
        .form = form_of(m),
        .group = m->group,
        .dst_dtype = dtype,
        .rows = m->rows,
        .columns = m->columns,
        .src = m->memory,
        .dst = values,
    };
    const mp_quant_shape shape = {m->rows, m->columns, m->bits, m->group};
    float host;
    mp_cuda *gpu = kernel_rig(4);
    kernel_rig_cut(blocks);
    assert_int_equal(mp_cuda_call_dequant(gpu, NULL, &args), MOEPAGE_OK);
    for (uint64_t i = 0; i < n; i++) {
        const double exact = value_at(m, i / m->columns, i % m->columns);
        const float got = num_get(dtype, values, i);
        assert_true(got == num_rounded(dtype, (float)exact));
        mp_quant_decode_row(&shape, m->memory, i / m->columns, i % m->columns, 1, &host);
        assert_true(host == exact);
    }
    for (uint64_t i = 0; i < shift * num_bytes(dtype); i++)
        assert_int_equal(out[i], 0xa5);
    for (uint64_t i = bytes; i < padded; i++)
        assert_int_equal(out[i], 0xa5);
    guarded_free(out, padded);
}

static void test_cuda_dequant_gives_the_values_of_the_format(void **state)
{
    static const struct {
        uint64_t rows, columns;
    } shapes[] = {{1, 1}, {3, 5}, {2, 37}, {5, 64}, {4, 200}, {3, 256}, {7, 129}, {40, 384}};
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2)
        for (uint32_t group = 32; group <= 128; group *= 2)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                matrix m = matrix_make(bits, group, shapes[s].rows, shapes[s].columns, false);
                for (size_t d = 0; d < 3; d++)
                    expect_dequantised(&m, dtypes[d], s % 3 * d, 1000);
                matrix_free(&m);
            }
}

static void test_cuda_dequant_is_the_same_in_one_turn_and_in_several(void **state)
{
    (void)state;
    matrix whole = matrix_make(4, 64, 67, 512, true), ragged = matrix_make(2, 64, 301, 111, true);
    for (uint32_t blocks = 1; blocks < 7; blocks += 2) { /* of 5 and 5 */
        expect_dequantised(&whole, BF16, 0, blocks);
        expect_dequantised(&ragged, F16, 0, blocks);
    }
    matrix_free(&whole);
    matrix_free(&ragged);
}

/* Several rounds of pieces, of rows that are whole and ragged, to places that are aligned and not. */
static void test_cuda_dequant_of_many_pieces_ends_anywhere_in_every_dtype(void **state)
{
    static const uint64_t rows[] = {83, 83, 1}, columns[] = {111, 120, 8195};
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2)
        for (size_t c = 0; c < 3; c++) {
            matrix m = matrix_make(bits, 32, rows[c], columns[c], false);
            for (size_t d = 0; d < 3; d++) {
                expect_dequantised(&m, dtypes[d], 0, 1000);
                expect_dequantised(&m, dtypes[d], 1 + d, 1);
            }
            matrix_free(&m);
        }
}

/* ---- FP8 ---- */

static double e4m3_value(uint32_t byte)
{
    const int exponent = (int)(byte >> 3 & 15), digits = (int)(byte & 7);
    const double value = exponent ? ldexp(8 + digits, exponent - 10) : ldexp(digits, -9);
    if ((byte & 0x7f) == 0x7f)
        return NAN;
    return byte >> 7 ? -value : value;
}

typedef struct f8_case {
    uint64_t rows, columns;
    uint32_t block_rows, block_columns; /* 0 = no scales */
    uint32_t scale_dtype, dtype;
    uint32_t src_shift; /* bytes past a multiple of 16 */
} f8_case;

static void expect_f8(const f8_case *c)
{
    const uint64_t n = c->rows * c->columns, bytes = n * num_bytes(c->dtype);
    const uint64_t across =
        c->block_rows ? (c->columns + c->block_columns - 1) / c->block_columns : 1;
    const uint64_t down = c->block_rows ? (c->rows + c->block_rows - 1) / c->block_rows : 1;
    const uint32_t scale_dtype = c->block_rows ? c->scale_dtype : F32;
    const uint64_t src_bytes = c->src_shift ? (n + 31) / 16 * 16 : n;
    unsigned char *memory = guarded_alloc(src_bytes), *src = memory + c->src_shift;
    void *scales = num_array(scale_dtype, across * down), *dst = guarded_alloc(bytes);
    for (uint64_t i = 0; i < n; i++)
        src[i] = (unsigned char)(i < 256 ? i : num_random_bits());
    const moepage_cuda_dequant args = {
        .struct_size = sizeof args,
        .form = MOEPAGE_FORM_DENSE,
        .group = c->block_columns,
        .src_dtype = E4M3,
        .dst_dtype = c->dtype,
        .scale_dtype = c->block_rows ? scale_dtype : NONE,
        .rows = c->rows,
        .columns = c->columns,
        .block_rows = c->block_rows,
        .src = src,
        .scales = c->block_rows ? scales : NULL,
        .dst = dst,
    };
    assert_int_equal(mp_cuda_call_dequant(kernel_rig(4), NULL, &args), MOEPAGE_OK);
    for (uint64_t i = 0; i < n; i++) {
        double want = e4m3_value(src[i]);
        if (c->block_rows)
            want *= num_get(scale_dtype, scales,
                            i / c->columns / c->block_rows * across +
                                i % c->columns / c->block_columns);
        const float got = num_get(c->dtype, dst, i);
        assert_true(isnan(want) ? isnan(got) : got == num_rounded(c->dtype, (float)want));
    }
    guarded_free(memory, src_bytes);
    guarded_free(scales, across * down * num_bytes(scale_dtype));
    guarded_free(dst, bytes);
}

static void test_cuda_dequant_scales_fp8_by_blocks(void **state)
{
    static const f8_case cases[] = {
        {16, 16, 0, 0, NONE, F32, 0},   {4, 64, 0, 0, NONE, F16, 0},
        {9, 31, 0, 0, NONE, BF16, 0},   {16, 32, 8, 16, F32, F32, 0},
        {20, 48, 8, 16, BF16, BF16, 0}, {300, 264, 128, 128, F32, BF16, 0},
        {33, 77, 5, 3, F32, BF16, 0},   {7, 100, 1, 100, BF16, F32, 0},
        {12, 40, 100, 7, F32, F16, 0},  {50, 24, 3, 1, BF16, BF16, 0},
        {1, 1, 1, 1, F32, F32, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_f8(&cases[i]);
}

/* Several rounds of pieces, in blocks that a piece may and may not be cut by. */
static void test_cuda_dequant_of_many_fp8_pieces_in_every_dtype(void **state)
{
    static const struct {
        uint32_t block_rows, block_columns, scale_dtype;
    } scales[] = {{0, 0, NONE}, {9, 16, F32}, {9, 16, BF16}, {4, 5, F32}, {4, 5, BF16}};
    static const uint64_t columns[] = {111, 120};
    (void)state;
    for (size_t i = 0; i < 3 * 2 * sizeof scales / sizeof *scales; i++) {
        const f8_case c = {.rows = 83,
                           .columns = columns[i / 3 % 2],
                           .block_rows = scales[i / 6].block_rows,
                           .block_columns = scales[i / 6].block_columns,
                           .scale_dtype = scales[i / 6].scale_dtype,
                           .dtype = dtypes[i % 3],
                           .src_shift = i % 2 ? 3 : 0};
        expect_f8(&c);
    }
}

/* ---- Products ---- */

typedef struct product {
    const matrix *m;
    uint32_t dtype, n_tokens;
    void *x, *y;
} product;

static uint64_t x_bytes(const product *p)
{
    return p->n_tokens * p->m->columns * num_bytes(p->dtype);
}

static uint64_t y_bytes(const product *p)
{
    return p->n_tokens * p->m->rows * num_bytes(p->dtype);
}

static void product_run(product *p, uint32_t multiprocessors)
{
    const moepage_cuda_gemv args = {
        .struct_size = sizeof args,
        .form = form_of(p->m),
        .group = p->m->group,
        .dtype = p->dtype,
        .n_tokens = p->n_tokens,
        .rows = p->m->rows,
        .columns = p->m->columns,
        .w = p->m->memory,
        .x = p->x,
        .y = p->y,
    };
    memset(p->y, 0x77, y_bytes(p));
    assert_int_equal(mp_cuda_call_gemv(kernel_rig(multiprocessors), NULL, &args), MOEPAGE_OK);
}

static product product_make(const matrix *m, uint32_t dtype, uint32_t n_tokens, bool whole)
{
    product p = {.m = m, .dtype = dtype, .n_tokens = n_tokens};
    p.x = num_array(dtype, n_tokens * m->columns);
    p.y = guarded_alloc(y_bytes(&p));
    for (uint64_t i = 0; whole && i < n_tokens * m->columns; i++)
        num_put(dtype, p.x, i, num_random_bits() % 2 ? 1 + num_random_bits() % 3 : -2.0);
    return p;
}

static void product_free(product *p)
{
    guarded_free(p->x, x_bytes(p));
    guarded_free(p->y, y_bytes(p));
}

/* The sum, and the sum of magnitudes. */
static double dot(const product *p, uint32_t token, uint64_t row, double *magnitudes)
{
    double sum = 0;
    *magnitudes = 0;
    for (uint64_t c = 0; c < p->m->columns; c++) {
        const double term =
            value_at(p->m, row, c) * num_get(p->dtype, p->x, token * p->m->columns + c);
        sum += term;
        *magnitudes += fabs(term);
    }
    return sum;
}

/* Of whole numbers and powers of two every partial sum is exact, in whatever order. */
static void expect_products(const matrix *m, uint32_t dtype, uint32_t n_tokens,
                            uint32_t multiprocessors)
{
    product p = product_make(m, dtype, n_tokens, true);
    double magnitudes;
    product_run(&p, multiprocessors);
    for (uint64_t at = 0; at < p.n_tokens * m->rows; at++) {
        const double want = dot(&p, (uint32_t)(at / m->rows), at % m->rows, &magnitudes);
        assert_true(num_get(dtype, p.y, at) == num_rounded(dtype, (float)want));
    }
    product_free(&p);
}

static void test_cuda_gemv_sums_every_product_once(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1},   {3, 33},    {16, 32},  {17, 200},
                                         {5, 513}, {40, 1056}, {33, 2050}};
    static const uint32_t tokens[] = {1, 2, 4, 5, 8, 9, 16};
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2)
        for (size_t i = 0; i < 3 * 7; i++) {
            const size_t s = i % 7, other = i + 2 * (i / 7);
            matrix m = matrix_make(bits, 32u << s % 3, shapes[s][0], shapes[s][1], true);
            expect_products(&m, dtypes[other % 3], tokens[other % 7], 1 + (uint32_t)s);
            matrix_free(&m);
        }
}

/* Of rows that are whole and ragged. */
static void test_cuda_gemv_sums_every_product_once_in_every_dtype(void **state)
{
    static const uint64_t columns[] = {1088, 1099};
    static const uint32_t tokens[] = {1, 3, 7, 15};
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2)
        for (size_t c = 0; c < 2; c++) {
            matrix m = matrix_make(bits, 64, 5, columns[c], true);
            for (size_t i = 0; i < 3 * 4; i++)
                expect_products(&m, dtypes[i % 3], tokens[i / 3], 4);
            matrix_free(&m);
        }
}

static void test_cuda_gemv_rounds_no_worse_than_its_sums(void **state)
{
    double magnitudes;
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2) {
        matrix m = matrix_make(bits, 128, 24, 1500, true);
        product p = product_make(&m, F32, 3, false);
        product_run(&p, 2);
        for (uint64_t i = 0; i < p.n_tokens * m.rows; i++) {
            const double want = dot(&p, (uint32_t)(i / m.rows), i % m.rows, &magnitudes);
            /* A lane's 2 or 3 chunks of at most 32, and 31 lanes after the first. */
            assert_true(fabs(num_get(F32, p.y, i) - want) <= 130 * 0x1p-24 * magnitudes);
        }
        product_free(&p);
        matrix_free(&m);
    }
}

static void test_cuda_gemv_depends_on_no_other_token_nor_on_the_gpu(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits *= 2) {
        matrix m = matrix_make(bits, 64, 70, 1344, true);
        product all = product_make(&m, F32, 16, false);
        product_run(&all, 1);
        assert_int_equal(kernel_rig_threads(0), 128);
        for (uint32_t n = 1; n <= 16; n++) {
            product some = all;
            some.n_tokens = n;
            some.y = guarded_alloc(y_bytes(&some));
            product_run(&some, n % 2 ? 100 : 3); /* cut finer */
            assert_true(kernel_rig_threads(0) < 128);
            assert_memory_equal(some.y, all.y, y_bytes(&some));
            guarded_free(some.y, y_bytes(&some));
        }
        product_free(&all);
        matrix_free(&m);
    }
}

static void test_cuda_gemv_of_no_tokens_launches_nothing(void **state)
{
    (void)state;
    const moepage_cuda_gemv args = {.struct_size = sizeof args,
                                    .form = MOEPAGE_FORM_INT4,
                                    .group = 32,
                                    .rows = 1,
                                    .columns = 1};
    assert_int_equal(mp_cuda_call_gemv(kernel_rig(4), NULL, &args), MOEPAGE_OK);
    assert_int_equal(kernel_rig_launches(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_dequant_gives_the_values_of_the_format),
        cmocka_unit_test(test_cuda_dequant_is_the_same_in_one_turn_and_in_several),
        cmocka_unit_test(test_cuda_dequant_of_many_pieces_ends_anywhere_in_every_dtype),
        cmocka_unit_test(test_cuda_dequant_scales_fp8_by_blocks),
        cmocka_unit_test(test_cuda_dequant_of_many_fp8_pieces_in_every_dtype),
        cmocka_unit_test(test_cuda_gemv_sums_every_product_once),
        cmocka_unit_test(test_cuda_gemv_sums_every_product_once_in_every_dtype),
        cmocka_unit_test(test_cuda_gemv_rounds_no_worse_than_its_sums),
        cmocka_unit_test(test_cuda_gemv_depends_on_no_other_token_nor_on_the_gpu),
        cmocka_unit_test(test_cuda_gemv_of_no_tokens_launches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
