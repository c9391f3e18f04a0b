/* EXPERTS with weights in int8, int4 and int2, on every instruction set that this CPU runs: the same
 * bits as with the F32 weights that mp_quant_decode_row says they are, which test_host_kernels.c
 * compares with naive sums. */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "coded_launch.h"
#include "device/host_kernel_set.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "slow.h"
#include "testing.h"

#define BF16 MOEPAGE_DTYPE_BF16

static const uint32_t forms[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
static const uint32_t groups[] = {32, 64, 128};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

/* ---- A matrix, and what it stands for ---- */

static uint64_t scale_bytes(const mp_quant_shape *shape, const mp_quant_layout *layout)
{
    return shape->rows * layout->row_groups * 2;
}

/* Scales of all sizes, zeros and denormals among them; half of those of two bits stand for four
 * levels. */
static uint16_t random_scale(uint32_t bits)
{
    static const uint16_t odd_ones[] = {0, 1, 0x3ff, 0x400, 0x7bff};
    const uint32_t random = num_random_bits() >> 8;
    const uint16_t half =
        random % 64 < 5 ? odd_ones[random % 5] : (uint16_t)(0x1800 + random % 0x1400);
    return bits == 2 && half && random >> 20 & 1 ? half | 0x8000 : half;
}

static int32_t random_integer(uint32_t bits, bool four)
{
    const uint32_t top = (1u << (bits - 1)) - 1, random = num_random_bits() >> 8;
    return four ? (int32_t)(random % 4) - 2 : (int32_t)(random % (2 * top + 1)) - (int32_t)top;
}

static void fill_image(const mp_quant_shape *shape, const mp_quant_layout *layout, uint8_t *image)
{
    const uint32_t bits = shape->bits;
    for (uint64_t r = 0; r < shape->rows; r++)
        for (uint64_t g = 0; g < layout->row_groups; g++) {
            const uint16_t scale = random_scale(bits);
            const uint64_t first = g * shape->group, end = first + shape->group;
            memcpy(image + layout->scale_offset + 2 * (r * layout->row_groups + g), &scale, 2);
            for (uint64_t c = first; c < end && c < shape->columns; c++) {
                const uint32_t field = (uint32_t)random_integer(bits, scale >> 15);
                image[r * layout->row_bytes + c * bits / 8] |=
                    (uint8_t)((field & ((1u << bits) - 1)) << c * bits % 8);
            }
        }
}

static void open_matrix(const coded_launch *l, uint32_t which, uint32_t rows, uint32_t columns,
                        coded_matrix *m)
{
    const mp_quant_shape shape = {rows, columns, mp_quant_bits_of(l->form), l->group};
    mp_quant_layout layout;
    (void)which;
    assert_true(mp_quant_layout_of(&shape, &layout));
    uint8_t *image = calloc(1, layout.bytes);
    m->coded_bytes = rows * layout.row_bytes;
    m->scale_bytes = scale_bytes(&shape, &layout);
    m->coded = guarded_alloc(m->coded_bytes);
    m->scales = guarded_alloc(m->scale_bytes);
    m->values = malloc((uint64_t)rows * columns * sizeof *m->values);
    assert_true(image && m->values);
    fill_image(&shape, &layout, image);
    assert_int_equal(mp_quant_check(&shape, image, layout.bytes), MOEPAGE_OK);
    for (uint32_t r = 0; r < rows; r++)
        mp_quant_decode_row(&shape, image, r, 0, columns, m->values + (uint64_t)r * columns);
    memcpy(m->coded, image, m->coded_bytes);
    memcpy(m->scales, image + layout.scale_offset, m->scale_bytes);
    free(image);
}

/* ---- A launch ---- */

static void expect_decoded_bits(uint32_t hidden, uint32_t intermediate, uint32_t form,
                                uint32_t group, uint32_t math, const uint32_t *counts)
{
    coded_launch l = {.dtypes = {BF16, BF16, BF16},
                      .form = form,
                      .group = group,
                      .math = math,
                      .hidden = hidden,
                      .intermediate = intermediate,
                      .open_matrix = open_matrix};
    coded_launch_open(&l, counts);
    coded_launch_run_plain(&l);
    for (size_t s = 0; s < n_kernel_sets; s++)
        coded_launch_try(&l, kernel_sets[s]);
    coded_launch_close(&l);
}

/* ---- Tests ---- */

static void test_host_integers_sum_as_the_decoded_weights_do(void **state)
{
    static const uint32_t counts[] = {1, 7, 0};
    static const uint32_t sizes[][2] = {{1, 1},    {15, 17},  {33, 31},   {64, 32},
                                        {130, 65}, {129, 97}, {256, 127}, {131, 160}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t f = 0; f < 3; f++)
            for (size_t g = 0; g < 3; g++)
                for (size_t m = 0; m < 2; m++)
                    expect_decoded_bits(sizes[i][0], sizes[i][1], forms[f], groups[g], maths[m],
                                        counts);
}

static void test_host_integers_any_number_of_rows_gives_the_same(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 40; rows += rows < 14 ? 1 : 13) {
        const uint32_t counts[] = {rows, 0, 41 - rows};
        for (size_t f = 0; f < 3; f++)
            for (size_t m = 0; m < 2; m++)
                expect_decoded_bits(70, 45, forms[f], groups[rows % 3], maths[m], counts);
    }
}

/* Rows longer than a piece, for one group of rows and for several. */
static void test_host_integers_long_rows_go_on_between_pieces(void **state)
{
    static const uint32_t counts[] = {2, 13, 0};
    (void)state;
    for (size_t f = 0; f < 3; f++)
        for (size_t m = 0; m < 2; m++) {
            expect_decoded_bits(2211, 6, forms[f], groups[f], maths[m], counts);
            expect_decoded_bits(5, 2181, forms[f], groups[(f + 1) % 3], maths[m], counts);
        }
}

static void test_host_integers_random_shapes(void **state)
{
    const int rounds = getenv("MP_TEST_LONG") ? 2000 : slow_here() ? 12 : 40;
    (void)state;
    for (int i = 0; i < rounds; i++) {
        const uint32_t random = num_random_bits() >> 8, more = num_random_bits() >> 8;
        const uint32_t counts[] = {random % 9, more % 17, 1 + more % 3};
        expect_decoded_bits(1 + random % 311, 1 + more % 171, forms[random % 3],
                            groups[more / 7 % 3], maths[random / 5 % 2], counts);
    }
}

/* Both ways by which a set can come to an integer's value. */
static void test_host_integers_every_integer_has_its_value(void **state)
{
    (void)state;
    for (size_t f = 0; f < 3; f++)
        for (size_t g = 0; g < 3; g++) {
            const coded_launch l = {.form = forms[f], .group = groups[g]};
            coded_matrix m;
            open_matrix(&l, MP_GATE, 1, 997, &m);
            for (size_t s = 0; s < n_kernel_sets; s++) {
                const mp_integer_set *integers = kernel_sets[s]->integers;
                if (!integers->as_f32[f])
                    continue;
                float wide[1024];
                uint16_t narrow[1024];
                mp_integers in = {.packed = m.coded,
                                  .scales = m.scales,
                                  .group = groups[g],
                                  .n = 997};
                integers->as_f32[f](&in, wide);
                integers->as_bf16[f](&in, narrow);
                assert_memory_equal(wide, m.values, 997 * sizeof *wide);
                for (uint32_t i = 0; i < 997; i++)
                    assert_true(num_get(BF16, narrow, i) == (float)num_rounded(BF16, m.values[i]));
            }
            guarded_free(m.coded, m.coded_bytes);
            guarded_free(m.scales, m.scale_bytes);
            free(m.values);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_integers_sum_as_the_decoded_weights_do),
        cmocka_unit_test(test_host_integers_any_number_of_rows_gives_the_same),
        cmocka_unit_test(test_host_integers_long_rows_go_on_between_pieces),
        cmocka_unit_test(test_host_integers_random_shapes),
        cmocka_unit_test(test_host_integers_every_integer_has_its_value),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
