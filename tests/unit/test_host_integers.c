/* EXPERTS with weights in int8, int4 and int2, on every instruction set that this CPU runs: the same
 * bits as with the F32 weights that mp_quant_decode_row says they are, which test_host_kernels.c
 * compares with naive sums. */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_kernel_set.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "slow.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16

static const uint32_t forms[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
static const uint32_t groups[] = {32, 64, 128};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

/* ---- A matrix, and what it stands for ---- */

typedef struct matrix {
    mp_quant_shape shape;
    mp_quant_layout layout;
    uint8_t *packed, *scales; /* both end where readable memory does */
    float *values;
} matrix;

static uint64_t scale_bytes(const matrix *m)
{
    return m->shape.rows * m->layout.row_groups * 2;
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

static void fill_image(const matrix *m, uint8_t *image)
{
    const uint32_t bits = m->shape.bits;
    for (uint64_t r = 0; r < m->shape.rows; r++)
        for (uint64_t g = 0; g < m->layout.row_groups; g++) {
            const uint16_t scale = random_scale(bits);
            const uint64_t first = g * m->shape.group, end = first + m->shape.group;
            memcpy(image + m->layout.scale_offset + 2 * (r * m->layout.row_groups + g), &scale, 2);
            for (uint64_t c = first; c < end && c < m->shape.columns; c++) {
                const uint32_t field = (uint32_t)random_integer(bits, scale >> 15);
                image[r * m->layout.row_bytes + c * bits / 8] |=
                    (uint8_t)((field & ((1u << bits) - 1)) << c * bits % 8);
            }
        }
}

static void open_matrix(matrix *m, uint32_t rows, uint32_t columns, uint32_t form, uint32_t group)
{
    *m = (matrix){.shape = {rows, columns, mp_quant_bits_of(form), group}};
    assert_true(mp_quant_layout_of(&m->shape, &m->layout));
    uint8_t *image = calloc(1, m->layout.bytes);
    m->packed = guarded_alloc(rows * m->layout.row_bytes);
    m->scales = guarded_alloc(scale_bytes(m));
    m->values = malloc((uint64_t)rows * columns * sizeof *m->values);
    assert_true(image && m->values);
    fill_image(m, image);
    assert_int_equal(mp_quant_check(&m->shape, image, m->layout.bytes), MOEPAGE_OK);
    for (uint32_t r = 0; r < rows; r++)
        mp_quant_decode_row(&m->shape, image, r, 0, columns, m->values + (uint64_t)r * columns);
    memcpy(m->packed, image, rows * m->layout.row_bytes);
    memcpy(m->scales, image + m->layout.scale_offset, scale_bytes(m));
    free(image);
}

static void close_matrix(matrix *m)
{
    guarded_free(m->packed, m->shape.rows * m->layout.row_bytes);
    guarded_free(m->scales, scale_bytes(m));
    free(m->values);
}

/* ---- A launch ---- */

#define N_EXPERTS 3
#define TOP_K 2
#define INNER_BASE 3

typedef struct launch {
    uint32_t form, group, math;
    uint32_t hidden, intermediate, operand;
    uint32_t n_rows, n_tokens;
    matrix gate[N_EXPERTS], up[N_EXPERTS], down[N_EXPERTS];
    uint16_t *bias[3];
    float *wide_bias[3];
    mp_ffn_expert packed[N_EXPERTS], plain[N_EXPERTS];
    mp_kernel_args args;
    void *x, *inner;
    uint32_t *rows;
    float *partial, *want;
} launch;

static uint64_t partial_bytes(const launch *l)
{
    return (uint64_t)l->n_tokens * TOP_K * l->hidden * sizeof(float);
}

static void open_expert(launch *l, uint32_t e, uint32_t n_rows)
{
    matrix *gate = &l->gate[e], *up = &l->up[e], *down = &l->down[e];
    open_matrix(gate, l->intermediate, l->hidden, l->form, l->group);
    open_matrix(up, l->intermediate, l->hidden, l->form, l->group);
    open_matrix(down, l->hidden, l->intermediate, l->form, l->group);
    const uint32_t first = l->n_rows + INNER_BASE;
    l->packed[e] = (mp_ffn_expert){.gate = gate->packed,
                                   .up = up->packed,
                                   .down = down->packed,
                                   .gate_scale = gate->scales,
                                   .up_scale = up->scales,
                                   .down_scale = down->scales,
                                   .first_row = first,
                                   .n_rows = n_rows};
    l->plain[e] = (mp_ffn_expert){.gate = gate->values,
                                  .up = up->values,
                                  .down = down->values,
                                  .first_row = first,
                                  .n_rows = n_rows};
    l->n_rows += n_rows;
}

/* Biases stay what the checkpoint has, here BF16; those of the launch to compare with are F32. */
static void add_biases(launch *l)
{
    const uint32_t lengths[] = {l->intermediate, l->intermediate, l->hidden};
    for (uint32_t b = 0; b < 3; b++) {
        l->bias[b] = num_array(BF16, lengths[b]);
        l->wide_bias[b] = malloc(lengths[b] * sizeof(float));
        assert_non_null(l->wide_bias[b]);
        for (uint32_t i = 0; i < lengths[b]; i++)
            l->wide_bias[b][i] = num_get(BF16, l->bias[b], i);
    }
    for (uint32_t e = 1; e < N_EXPERTS; e++) { /* the first has none */
        l->packed[e].gate_bias = l->bias[0];
        l->packed[e].up_bias = l->bias[1];
        l->packed[e].down_bias = l->bias[2];
        l->plain[e].gate_bias = l->wide_bias[0];
        l->plain[e].up_bias = l->wide_bias[1];
        l->plain[e].down_bias = l->wide_bias[2];
    }
}

static void open_launch(launch *l, uint32_t hidden, uint32_t intermediate, uint32_t form,
                        uint32_t group, uint32_t math, const uint32_t *counts)
{
    *l = (launch){.form = form, .group = group, .math = math};
    l->hidden = hidden;
    l->intermediate = intermediate;
    l->operand = math == MOEPAGE_MATH_BF16 ? BF16 : F32;
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        open_expert(l, e, counts[e]);
    add_biases(l);
    l->n_tokens = l->n_rows / TOP_K + 1;
    l->x = num_array(l->operand, (uint64_t)l->n_tokens * hidden);
    l->inner = malloc((uint64_t)l->n_rows * intermediate * num_bytes(l->operand));
    l->rows = malloc((l->n_rows + INNER_BASE) * sizeof *l->rows);
    l->partial = malloc(partial_bytes(l));
    l->want = malloc(partial_bytes(l));
    assert_true(l->inner && l->rows && l->partial && l->want);
    for (uint32_t i = 0; i < l->n_rows; i++)
        l->rows[INNER_BASE + i] = l->n_rows - 1 - i;
    l->args.experts = (mp_kernel_experts_args){.x = l->x,
                                               .rows = l->rows,
                                               .inner = l->inner,
                                               .inner_base = INNER_BASE,
                                               .n_experts = N_EXPERTS,
                                               .top_k = TOP_K,
                                               .hidden = hidden,
                                               .intermediate = intermediate,
                                               .math = math};
}

static void close_launch(launch *l)
{
    const uint32_t lengths[] = {l->intermediate, l->intermediate, l->hidden};
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        close_matrix(&l->gate[e]);
        close_matrix(&l->up[e]);
        close_matrix(&l->down[e]);
    }
    for (uint32_t b = 0; b < 3; b++) {
        guarded_free(l->bias[b], lengths[b] * 2);
        free(l->wide_bias[b]);
    }
    guarded_free(l->x, (uint64_t)l->n_tokens * l->hidden * num_bytes(l->operand));
    free(l->inner);
    free(l->rows);
    free(l->partial);
    free(l->want);
}

static void clear(launch *l, float *partial)
{
    memset(partial, 0xa5, partial_bytes(l));
    memset(l->inner, 0xa5, (uint64_t)l->n_rows * l->intermediate * num_bytes(l->operand));
    l->args.experts.partial = partial;
}

static void run(const mp_host_kernel_set *set, launch *l, uint32_t n_parts)
{
    for (uint32_t phase = 0; phase < 2; phase++)
        for (uint32_t part = n_parts; part-- > 0;)
            mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &l->args, phase, part, n_parts);
}

static void run_plain(launch *l)
{
    clear(l, l->want);
    l->args.experts.experts = l->plain;
    experts_set_dtype(&l->args.experts, F32);
    l->args.experts.form = MOEPAGE_FORM_DENSE;
    run(kernel_sets[0], l, 1);
}

static void take_packed(launch *l)
{
    clear(l, l->partial);
    l->args.experts.experts = l->packed;
    experts_set_dtype(&l->args.experts, BF16);
    l->args.experts.form = l->form;
    l->args.experts.group = l->group;
}

static void expect_same(const launch *l, const mp_host_kernel_set *set)
{
    if (memcmp(l->partial, l->want, partial_bytes(l)) == 0)
        return;
    fail_msg("%s: form %u, groups of %u, math %u, H %u, I %u, rows %u, %u, %u",
             mp_host_kernels_name(set), l->form, l->group, l->math, l->hidden, l->intermediate,
             l->packed[0].n_rows, l->packed[1].n_rows, l->packed[2].n_rows);
}

/* In one share and in several, in one launch and in one per expert. */
static void try_set(launch *l, const mp_host_kernel_set *set)
{
    static const uint32_t n_parts[] = {1, 3};
    for (size_t p = 0; p < 2; p++) {
        take_packed(l);
        run(set, l, n_parts[p]);
        expect_same(l, set);
    }
    take_packed(l);
    for (uint32_t e = N_EXPERTS; e-- > 0;) {
        l->args.experts.experts = &l->packed[e];
        l->args.experts.n_experts = 1;
        run(set, l, 2);
    }
    l->args.experts.n_experts = N_EXPERTS;
    expect_same(l, set);
}

static void expect_decoded_bits(uint32_t hidden, uint32_t intermediate, uint32_t form,
                                uint32_t group, uint32_t math, const uint32_t *counts)
{
    launch l;
    open_launch(&l, hidden, intermediate, form, group, math, counts);
    run_plain(&l);
    for (size_t s = 0; s < n_kernel_sets; s++)
        try_set(&l, kernel_sets[s]);
    close_launch(&l);
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
            matrix m;
            open_matrix(&m, 1, 997, forms[f], groups[g]);
            for (size_t s = 0; s < n_kernel_sets; s++) {
                const mp_integer_set *integers = kernel_sets[s]->integers;
                if (!integers->as_f32[f])
                    continue;
                float wide[1024];
                uint16_t narrow[1024];
                mp_integers in = {.packed = m.packed,
                                  .scales = m.scales,
                                  .group = groups[g],
                                  .n = 997};
                integers->as_f32[f](&in, wide);
                integers->as_bf16[f](&in, narrow);
                assert_memory_equal(wide, m.values, 997 * sizeof *wide);
                for (uint32_t i = 0; i < 997; i++)
                    assert_true(num_get(BF16, narrow, i) == (float)num_rounded(BF16, m.values[i]));
            }
            close_matrix(&m);
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
