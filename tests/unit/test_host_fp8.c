/* EXPERTS with FP8 weights and block scales, on every instruction set that this CPU runs: the same
 * bits as with the F32 weights that they stand for, which test_host_kernels.c compares with naive
 * sums. Those weights are worked out here, one by one, from the definition. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_kernel_set.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"

#define F8 MOEPAGE_DTYPE_F8_E4M3
#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16

/* ---- A matrix, and what it stands for ---- */

typedef struct matrix {
    uint32_t rows, columns;
    uint8_t *codes; /* they and the scales end where readable memory does */
    void *scales;
    uint64_t n_scales;
    float *values;
} matrix;

/* The product of 4 and 24 digits is exact in double: it is rounded here, once. */
static void work_out(matrix *m, const mp_block_scale *scale)
{
    const uint64_t blocks = scale->dtype ? (m->columns + scale->columns - 1) / scale->columns : 0;
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t c = 0; c < m->columns; c++) {
            const uint64_t i = (uint64_t)r * m->columns + c;
            double s = 1;
            if (scale->dtype)
                s = num_get(scale->dtype, m->scales, r / scale->rows * blocks + c / scale->columns);
            m->values[i] = (float)(num_e4m3(m->codes[i]) * s);
        }
}

static void open_matrix(matrix *m, uint32_t rows, uint32_t columns, const mp_block_scale *scale)
{
    const uint64_t n = (uint64_t)rows * columns;
    *m = (matrix){.rows = rows, .columns = columns, .codes = num_e4m3_array(n)};
    if (scale->dtype) {
        m->n_scales = (uint64_t)((rows + scale->rows - 1) / scale->rows) *
                      ((columns + scale->columns - 1) / scale->columns);
        m->scales = guarded_alloc(m->n_scales * num_bytes(scale->dtype));
        for (uint64_t i = 0; i < m->n_scales; i++)
            num_put(scale->dtype, m->scales, i, num_rounded(scale->dtype, num_random() / 256.0f));
    }
    m->values = malloc(n * sizeof *m->values);
    assert_non_null(m->values);
    work_out(m, scale);
}

static void close_matrix(matrix *m, const mp_block_scale *scale)
{
    guarded_free(m->codes, (uint64_t)m->rows * m->columns);
    guarded_free(m->scales, m->n_scales * num_bytes(scale->dtype));
    free(m->values);
}

/* ---- A launch ---- */

#define N_EXPERTS 3
#define TOP_K 2

typedef struct launch {
    mp_block_scale scale;
    uint32_t hidden, intermediate, operand;
    uint32_t n_rows, n_tokens;
    matrix gate[N_EXPERTS], up[N_EXPERTS], down[N_EXPERTS];
    mp_ffn_expert fp8[N_EXPERTS], plain[N_EXPERTS];
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
    open_matrix(gate, l->intermediate, l->hidden, &l->scale);
    open_matrix(up, l->intermediate, l->hidden, &l->scale);
    open_matrix(down, l->hidden, l->intermediate, &l->scale);
    l->fp8[e] = (mp_ffn_expert){.gate = gate->codes,
                                .up = up->codes,
                                .down = down->codes,
                                .gate_scale = gate->scales,
                                .up_scale = up->scales,
                                .down_scale = down->scales,
                                .first_row = l->n_rows,
                                .n_rows = n_rows};
    l->plain[e] = (mp_ffn_expert){.gate = gate->values,
                                  .up = up->values,
                                  .down = down->values,
                                  .first_row = l->n_rows,
                                  .n_rows = n_rows};
    l->n_rows += n_rows;
}

static void open_launch(launch *l, uint32_t hidden, uint32_t intermediate, mp_block_scale scale,
                        uint32_t math, const uint32_t *counts)
{
    *l = (launch){.scale = scale, .hidden = hidden, .intermediate = intermediate};
    l->operand = math == MOEPAGE_MATH_BF16 ? BF16 : F32;
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        open_expert(l, e, counts[e]);
    l->n_tokens = l->n_rows / TOP_K + 1;
    l->x = num_array(l->operand, (uint64_t)l->n_tokens * hidden);
    l->inner = malloc((uint64_t)l->n_rows * intermediate * num_bytes(l->operand));
    l->rows = malloc(l->n_rows * sizeof *l->rows);
    l->partial = malloc(partial_bytes(l));
    l->want = malloc(partial_bytes(l));
    assert_true(l->inner && l->rows && l->partial && l->want);
    for (uint32_t i = 0; i < l->n_rows; i++)
        l->rows[i] = l->n_rows - 1 - i;
    l->args.experts = (mp_kernel_experts_args){.x = l->x,
                                               .rows = l->rows,
                                               .inner = l->inner,
                                               .n_experts = N_EXPERTS,
                                               .top_k = TOP_K,
                                               .hidden = hidden,
                                               .intermediate = intermediate,
                                               .math = math};
}

static void close_launch(launch *l)
{
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        close_matrix(&l->gate[e], &l->scale);
        close_matrix(&l->up[e], &l->scale);
        close_matrix(&l->down[e], &l->scale);
    }
    guarded_free(l->x, (uint64_t)l->n_tokens * l->hidden * num_bytes(l->operand));
    free(l->inner);
    free(l->rows);
    free(l->partial);
    free(l->want);
}

static void run(const mp_host_kernel_set *set, launch *l, uint32_t n_parts, float *partial)
{
    memset(partial, 0xa5, partial_bytes(l));
    memset(l->inner, 0xa5, (uint64_t)l->n_rows * l->intermediate * num_bytes(l->operand));
    l->args.experts.partial = partial;
    for (uint32_t phase = 0; phase < 2; phase++)
        for (uint32_t part = n_parts; part-- > 0;)
            mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &l->args, phase, part, n_parts);
}

static void run_plain(launch *l)
{
    l->args.experts.experts = l->plain;
    experts_set_dtype(&l->args.experts, F32);
    l->args.experts.scale = (mp_block_scale){0};
    run(kernel_sets[0], l, 1, l->want);
}

static void run_fp8(const mp_host_kernel_set *set, launch *l, uint32_t n_parts)
{
    l->args.experts.experts = l->fp8;
    experts_set_dtype(&l->args.experts, F8);
    l->args.experts.scale = l->scale;
    run(set, l, n_parts, l->partial);
}

static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

/* Both maths, all instruction sets, in one part and in several. */
static void expect_plain_bits(uint32_t hidden, uint32_t intermediate, mp_block_scale scale,
                              const uint32_t *counts)
{
    for (size_t m = 0; m < 2; m++) {
        launch l;
        open_launch(&l, hidden, intermediate, scale, maths[m], counts);
        run_plain(&l);
        for (size_t s = 0; s < n_kernel_sets; s++) {
            run_fp8(kernel_sets[s], &l, 1);
            assert_memory_equal(l.partial, l.want, partial_bytes(&l));
            run_fp8(kernel_sets[s], &l, 3);
            assert_memory_equal(l.partial, l.want, partial_bytes(&l));
        }
        close_launch(&l);
    }
}

/* ---- Tests ---- */

static void test_host_fp8_sums_as_the_scaled_weights_do(void **state)
{
    static const uint32_t counts[] = {1, 7, 0};
    static const uint32_t sizes[][2] = {{1, 1}, {15, 17}, {33, 31}, {130, 65}, {129, 150}};
    static const mp_block_scale scales[] = {
        {F32, 128, 128}, {BF16, 128, 128}, {F32, 16, 24},  {BF16, 7, 33},
        {F32, 1, 1},     {F32, 1, 1000},   {BF16, 500, 1}, {MOEPAGE_DTYPE_NONE, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
            expect_plain_bits(sizes[i][0], sizes[i][1], scales[s], counts);
}

/* Rows of several pieces, whose ends are no ends of blocks, for one group of rows and for several. */
static void test_host_fp8_blocks_need_not_end_with_pieces(void **state)
{
    static const uint32_t counts[] = {2, 13, 0};
    static const mp_block_scale scales[] = {{F32, 128, 128}, {BF16, 3, 100}, {F32, 2, 1500}};
    (void)state;
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        expect_plain_bits(3111, 5, scales[s], counts);
        expect_plain_bits(6, 3111, scales[s], counts);
    }
}

/* Scales that leave the range of normal floats, and of floats. */
static void test_host_fp8_rounds_the_product_once(void **state)
{
    static const float extremes[] = {0x1.234568p-140f, 0x1.fffffep127f, 0x1.5p-133f, 0};
    static const uint32_t counts[] = {3, 1, 0};
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        launch l;
        open_launch(&l, 37, 40, (mp_block_scale){F32, 8, 8}, maths[m], counts);
        for (uint32_t e = 0; e < N_EXPERTS; e++) {
            for (uint64_t i = 0; i < l.down[e].n_scales; i++)
                num_put(F32, l.down[e].scales, i, extremes[i % 4]);
            work_out(&l.down[e], &l.scale);
        }
        run_plain(&l);
        for (size_t s = 0; s < n_kernel_sets; s++) {
            run_fp8(kernel_sets[s], &l, 2);
            for (uint64_t i = 0; i < partial_bytes(&l) / sizeof(float); i++)
                assert_true(num_same(l.partial[i], l.want[i]));
        }
        close_launch(&l);
    }
}

/* Rows of down that have a NaN weight, or a NaN scale, give NaN; no other does. */
static void test_host_fp8_keeps_nans(void **state)
{
    enum { H = 50, I = 70, BAD_WEIGHT = 31, BAD_SCALE = 45 };
    static const uint32_t counts[] = {2, 0, 0};
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        launch l;
        open_launch(&l, H, I, (mp_block_scale){F32, 1, 64}, maths[m], counts);
        l.down[0].codes[BAD_WEIGHT * I + 69] = m ? 0xff : 0x7f;
        num_put(F32, l.down[0].scales, BAD_SCALE * 2 + 1, NAN);
        for (size_t s = 0; s < n_kernel_sets; s++) {
            run_fp8(kernel_sets[s], &l, 1);
            for (uint32_t row = 0; row < 2; row++)
                for (uint32_t h = 0; h < H; h++)
                    assert_int_equal(!!isnan(l.partial[row * H + h]),
                                     h == BAD_WEIGHT || h == BAD_SCALE);
        }
        close_launch(&l);
    }
}

static void test_host_fp8_every_number_has_its_value(void **state)
{
    static const float scales[] = {1, -0.75f, 0x1.234568p-3f, 0x1.8p-140f, 0x1.2p125f, INFINITY};
    uint8_t *codes = guarded_alloc(256);
    float *out = guarded_alloc(256 * sizeof *out);
    (void)state;
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (size_t s = 0; s < n_kernel_sets; s++)
        for (size_t k = 0; k < sizeof scales / sizeof *scales; k++)
            for (uint32_t first = 0; first < 256; first++) { /* of every length */
                const uint32_t n = 256 - first;
                kernel_sets[s]->widen_f8(codes + first, scales[k], out + first, n);
                for (uint32_t i = first; i < 256; i++)
                    assert_true(
                        num_same(out[i], (float)(num_e4m3((uint8_t)i) * (double)scales[k])));
            }
    guarded_free(codes, 256);
    guarded_free(out, 256 * sizeof *out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_fp8_sums_as_the_scaled_weights_do),
        cmocka_unit_test(test_host_fp8_blocks_need_not_end_with_pieces),
        cmocka_unit_test(test_host_fp8_rounds_the_product_once),
        cmocka_unit_test(test_host_fp8_keeps_nans),
        cmocka_unit_test(test_host_fp8_every_number_has_its_value),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
