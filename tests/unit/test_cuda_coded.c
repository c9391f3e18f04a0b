/* The expert kernels over weights in blocks and integers: the same bits as the same kernels over the F32
 * weights that the formats' decoders say they are, in FP32 the host's. Those are compared with double precision
 * by test_cuda_experts.c; the decoders, with the formats' own packages, by test_blocks.c.
 *
 * Matrices end where readable memory does. */

#include <stdlib.h>
#include <string.h>

#include "codec/blocks.h"
#include "coded_launch.h"
#include "expert_kernels.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "random_blocks.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16
#define FIRST MOEPAGE_DTYPE_Q4_0
#define N_FORMATS (MOEPAGE_DTYPE_NVFP4G256_F32 - MOEPAGE_DTYPE_Q4_0 + 1)

static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};
static bool odd_scales; /* of the blocks of down */

static uint32_t below(uint32_t n)
{
    return num_random_bits() % n;
}

/* ---- A matrix, and what it stands for ---- */

static float *new_floats(uint64_t n)
{
    float *floats = aligned_alloc(16, n * sizeof *floats);
    assert_non_null(floats);
    return floats;
}

/* From a multiple of 16; what comes behind the matrix, to the next, is no weight. */
static uint8_t *new_coded(uint64_t bytes, uint64_t *whole)
{
    *whole = (bytes + 15) / 16 * 16;
    uint8_t *coded = guarded_alloc(*whole);
    memset(coded, 0xff, *whole);
    return coded;
}

static void open_blocks(const coded_launch *l, uint32_t which, uint32_t rows, uint32_t columns,
                        coded_matrix *m)
{
    const mp_block_format *format = mp_block_format_of(l->dtypes[which]);
    const uint64_t n = (uint64_t)rows * columns, n_blocks = n / format->weights;
    assert_int_equal(columns % format->weights, 0);
    m->coded = new_coded(n_blocks * format->bytes, &m->coded_bytes);
    m->values = new_floats(n);
    if (odd_scales && which == MP_DOWN)
        random_blocks_wild(format->dtype, n_blocks, m->coded);
    else
        random_blocks(format->dtype, n_blocks, m->coded);
    mp_block_decode(format, m->coded, n_blocks, m->values);
}

/* Rows of integers and their scales, apart. Int2 has groups of both kinds. */
static void open_integers(const coded_launch *l, uint32_t which, uint32_t rows, uint32_t columns,
                          coded_matrix *m)
{
    const mp_quant_shape shape = {rows, columns, mp_quant_bits_of(l->form), l->group};
    mp_quant_layout layout;
    (void)which;
    assert_true(mp_quant_layout_of(&shape, &layout));
    const uint64_t n = (uint64_t)rows * columns;
    float *weights = new_floats(n);
    uint8_t *whole = calloc(1, layout.bytes);
    assert_non_null(whole);
    for (uint64_t i = 0; i < n; i++)
        weights[i] = num_random() * (i / 96 % 2 ? 1.0f : i % 3 ? 0.01f : 1.0f);
    assert_int_equal(mp_quant_encode(&shape, F32, weights, 1, whole), MOEPAGE_OK);
    m->coded = new_coded(rows * layout.row_bytes, &m->coded_bytes);
    memcpy(m->coded, whole, rows * layout.row_bytes);
    m->scale_bytes = rows * layout.row_groups * 2;
    m->scales = guarded_alloc(m->scale_bytes);
    memcpy(m->scales, whole + layout.scale_offset, m->scale_bytes);
    m->values = weights;
    for (uint32_t r = 0; r < rows; r++)
        mp_quant_decode_row(&shape, whole, r, 0, columns, weights + (uint64_t)r * columns);
    free(whole);
}

/* ---- Running a launch ---- */

static uint32_t dtype_of(const coded_launch *l, uint32_t which)
{
    const uint32_t bits = mp_quant_bits_of(l->form);
    return bits ? bits == 8   ? MP_CODED_INT8
                  : bits == 4 ? MP_CODED_INT4
                              : MP_CODED_INT2
                : mp_gpu_experts_dtype(l->dtypes[which]);
}

static uint32_t shift_of(const coded_launch *l, uint32_t which)
{
    return mp_quant_bits_of(l->form) ? (uint32_t)__builtin_ctz(l->group)
                                     : mp_gpu_experts_block_shift(l->dtypes[which]);
}

/* A layer's other half: its activation, and what its biases are. */
typedef struct around {
    bool clamped;
    bool wide_biases; /* F32, as those of the launch to compare with, instead of BF16 */
} around;

static void run(coded_launch *l, bool coded, const around *how, uint32_t form, float *partial)
{
    mp_gpu_expert *table = aligned_alloc(16, CODED_EXPERTS * sizeof *table);
    uint32_t *rows = malloc((l->n_rows + CODED_INNER_BASE) * sizeof *rows);
    assert_true(table && rows);
    memcpy(table, coded ? l->coded : l->plain, CODED_EXPERTS * sizeof *table);
    for (uint32_t e = 0; how->wide_biases && e < CODED_EXPERTS; e++) {
        table[e].gate_bias = l->plain[e].gate_bias;
        table[e].up_bias = l->plain[e].up_bias;
        table[e].down_bias = l->plain[e].down_bias;
    }
    memcpy(rows, l->rows, (l->n_rows + CODED_INNER_BASE) * sizeof *rows);
    memset(partial, 0x5b, coded_launch_partial_bytes(l));
    for (uint32_t down = 0; down < 2; down++) {
        const uint32_t which = down ? MP_DOWN : MP_GATE;
        const mp_gpu_experts_args args = {
            .x = l->x,
            .experts = table,
            .rows = rows,
            .inner = l->inner,
            .partial = partial,
            .n_experts = CODED_EXPERTS,
            .inner_base = CODED_INNER_BASE,
            .top_k = CODED_TOP_K,
            .hidden = l->hidden,
            .intermediate = l->intermediate,
            .dtype = coded ? dtype_of(l, which) : F32,
            .bias_dtype = coded && !how->wide_biases ? BF16 : F32,
            .group_shift = shift_of(l, which),
            .down = down,
            .least_rows = 1,
            .most_rows = UINT32_MAX,
            .clamped = how->clamped,
            .alpha = 1.702f,
            .limit = 7,
        };
        expert_kernel_launch(mp_gpu_experts_name(form, args.dtype, 1), form, &args, 1 + below(4));
    }
    free(table);
    free(rows);
}

/* Those of the launch to compare with. */
static void take_wanted(coded_launch *l, const around *how, uint32_t form)
{
    run(l, false, how, form, l->want);
    if (form != MP_EXPERTS_PLAIN)
        return;
    const uint64_t n = (uint64_t)l->n_rows * l->hidden; /* lines that have rows */
    const uint64_t bytes = coded_launch_partial_bytes(l);
    memcpy(l->partial, l->want, bytes);
    if (how->clamped)
        l->args.experts.activation = (mp_activation){MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 7};
    coded_launch_run_plain(l);
    l->args.experts.activation = (mp_activation){0};
    for (uint64_t i = 0; i < n; i++)
        if (!num_same(l->partial[i], l->want[i]))
            fail_msg("H %u, I %u: element %llu is %a, on the host %a", l->hidden, l->intermediate,
                     (unsigned long long)i, (double)l->partial[i], (double)l->want[i]);
    memcpy(l->want, l->partial, bytes);
}

static void expect_around(coded_launch *l, const around *how, uint32_t form)
{
    const uint64_t n = coded_launch_partial_bytes(l) / sizeof(float);
    take_wanted(l, how, form);
    run(l, true, how, form, l->partial);
    for (uint64_t i = 0; i < n; i++)
        if (!num_same(l->partial[i], l->want[i]))
            fail_msg("dtypes %u, %u, %u, form %u, groups of %u, kernel's form %u, H %u, I %u: "
                     "element %llu is %a, it must be %a",
                     l->dtypes[0], l->dtypes[1], l->dtypes[2], l->form, l->group, form, l->hidden,
                     l->intermediate, (unsigned long long)i, (double)l->partial[i],
                     (double)l->want[i]);
}

/* Both ways where there are many rows. */
static void expect_form(coded_launch *l, uint32_t form)
{
    const bool one = below(2);
    expect_around(l, &(around){.clamped = one, .wide_biases = !one}, form);
    if (l->n_rows > 10)
        expect_around(l, &(around){.clamped = !one, .wide_biases = one}, form);
}

static void expect_bits(coded_launch l, const uint32_t *counts)
{
    l.open_matrix = l.form ? open_integers : open_blocks;
    coded_launch_open(&l, counts);
    if (l.math == MOEPAGE_MATH_FP32) {
        expect_form(&l, MP_EXPERTS_PLAIN);
    } else {
        expect_form(&l, MP_EXPERTS_THIN);
        expect_form(&l, MP_EXPERTS_BROAD);
    }
    coded_launch_close(&l);
}

static void expect_bits_of(uint32_t gate, uint32_t n_gate, uint32_t down, uint32_t n_down,
                           uint32_t math, const uint32_t *counts)
{
    expect_bits((coded_launch){.dtypes = {gate, gate, down},
                               .math = math,
                               .hidden = n_gate * mp_block_format_of(gate)->weights,
                               .intermediate = n_down * mp_block_format_of(down)->weights},
                counts);
}

/* ---- Tests ---- */

/* Form PLAIN takes up to 8 rows at a time: here every number of them. */
static const uint32_t plain_counts[][CODED_EXPERTS] = {{2, 4, 11}, {7, 5, 6}, {1, 0, 3}};

static void test_cuda_coded_blocks_sum_as_the_decoded_weights_do(void **state)
{
    static const uint32_t counts[] = {1, 3, 0}, many[] = {1, 0, 19};
    (void)state;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t m = 0; m < 2; m++) {
            const uint32_t long_row = 768 / mp_block_format_of(dtype)->weights;
            expect_bits_of(dtype, long_row, MOEPAGE_DTYPE_Q4_1, 1, maths[m],
                           m ? many : plain_counts[0]);
            expect_bits_of(MOEPAGE_DTYPE_Q8_0, 1, dtype, 1 + dtype % 2, maths[m],
                           !m          ? plain_counts[1]
                           : dtype % 2 ? many
                                       : counts);
        }
}

/* A scale that is zero, denormal, infinite or a NaN counts as such. A result is a sum over one block: a NaN of
 * one hides no other. */
static void test_cuda_coded_blocks_keep_odd_scales(void **state)
{
    static const uint32_t counts[] = {2, 0, 1};
    (void)state;
    odd_scales = true;
    for (uint32_t dtype = FIRST; dtype < FIRST + N_FORMATS; dtype++)
        for (size_t m = 0; m < 2; m++)
            expect_bits_of(MOEPAGE_DTYPE_Q8_0, 3, dtype, 1, maths[m], counts);
    odd_scales = false;
}

/* Rows that are no multiple of a group, too. */
static void test_cuda_coded_integers_sum_as_the_decoded_weights_do(void **state)
{
    static const uint32_t forms[] = {MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2};
    static const uint32_t counts[] = {1, 3, 0}, many[] = {1, 0, 19};
    (void)state;
    for (uint32_t i = 0; i < 18; i++)
        expect_bits((coded_launch){.dtypes = {BF16, BF16, BF16},
                                   .form = forms[i % 3],
                                   .group = 32u << i / 3 % 3,
                                   .math = maths[i / 9],
                                   .hidden = 256 + i % 2 * 40,
                                   .intermediate = 64 - i % 2 * 24},
                    i < 9   ? plain_counts[i / 3]
                    : i % 2 ? counts
                            : many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_coded_blocks_sum_as_the_decoded_weights_do),
        cmocka_unit_test(test_cuda_coded_blocks_keep_odd_scales),
        cmocka_unit_test(test_cuda_coded_integers_sum_as_the_decoded_weights_do),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
