/* Launches with coded weights. */
#include "coded_launch.h"

#include <stdlib.h>
#include <string.h>

#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define BF16 MOEPAGE_DTYPE_BF16

uint64_t coded_launch_partial_bytes(const coded_launch *l)
{
    return (uint64_t)l->n_tokens * CODED_TOP_K * l->hidden * sizeof(float);
}

static uint64_t inner_bytes(const coded_launch *l)
{
    return (uint64_t)l->n_rows * l->intermediate * l->operand_bytes;
}

static uint32_t rows_of(const coded_launch *l, uint32_t which)
{
    return which == MP_DOWN ? l->hidden : l->intermediate;
}

static mp_ffn_expert expert_of(const void *const *weights, const void *const *scales,
                               uint32_t first, uint32_t n_rows)
{
    return (mp_ffn_expert){.gate = weights[MP_GATE],
                           .up = weights[MP_UP],
                           .down = weights[MP_DOWN],
                           .gate_scale = scales[MP_GATE],
                           .up_scale = scales[MP_UP],
                           .down_scale = scales[MP_DOWN],
                           .first_row = first,
                           .n_rows = n_rows};
}

static void open_expert(coded_launch *l, uint32_t e, uint32_t n_rows)
{
    const void *coded[MP_MATRICES], *scales[MP_MATRICES], *plain[MP_MATRICES];
    const void *none[MP_MATRICES] = {NULL};
    const uint32_t first = l->n_rows + CODED_INNER_BASE;
    for (uint32_t w = 0; w < MP_MATRICES; w++) {
        coded_matrix *m = &l->matrices[e][w];
        l->open_matrix(l, w, rows_of(l, w), w == MP_DOWN ? l->intermediate : l->hidden, m);
        coded[w] = m->coded;
        scales[w] = m->scales;
        plain[w] = m->values;
    }
    l->coded[e] = expert_of(coded, scales, first, n_rows);
    l->plain[e] = expert_of(plain, none, first, n_rows);
    l->n_rows += n_rows;
}

/* Biases stay what the checkpoint has, here BF16; those of the launch to compare with are F32. */
static void add_biases(coded_launch *l)
{
    for (uint32_t w = 0; w < MP_MATRICES; w++) {
        l->bias[w] = num_array(BF16, rows_of(l, w));
        l->wide_bias[w] = malloc(rows_of(l, w) * sizeof(float));
        assert_non_null(l->wide_bias[w]);
        for (uint32_t i = 0; i < rows_of(l, w); i++)
            l->wide_bias[w][i] = num_get(BF16, l->bias[w], i);
    }
    for (uint32_t e = 1; e < CODED_EXPERTS; e++) { /* the first has none */
        l->coded[e].gate_bias = l->bias[MP_GATE];
        l->coded[e].up_bias = l->bias[MP_UP];
        l->coded[e].down_bias = l->bias[MP_DOWN];
        l->plain[e].gate_bias = l->wide_bias[MP_GATE];
        l->plain[e].up_bias = l->wide_bias[MP_UP];
        l->plain[e].down_bias = l->wide_bias[MP_DOWN];
    }
}

static void convert(coded_launch *l)
{
    const uint64_t n = (uint64_t)l->n_tokens * l->hidden;
    mp_kernel_args args = {.convert = {.x_stride = l->hidden,
                                       .x_dtype = F32,
                                       .math = l->math,
                                       .n_tokens = l->n_tokens,
                                       .hidden = l->hidden}};
    l->from = num_array(F32, n);
    l->x = guarded_alloc(n * l->operand_bytes);
    memset(l->x, 0xa5, n * l->operand_bytes);
    args.convert.x = l->from;
    args.convert.out = l->x;
    mp_host_kernel_run(kernel_sets[0], MP_KERNEL_CONVERT, &args, 0, 0, 1);
}

void coded_launch_open(coded_launch *l, const uint32_t *counts)
{
    l->operand_bytes = l->math == MOEPAGE_MATH_BF16 ? 2 : 4;
    for (uint32_t e = 0; e < CODED_EXPERTS; e++)
        open_expert(l, e, counts[e]);
    add_biases(l);
    l->n_tokens = l->n_rows / CODED_TOP_K + 1;
    convert(l);
    l->inner = guarded_alloc(inner_bytes(l));
    l->rows = malloc((l->n_rows + CODED_INNER_BASE) * sizeof *l->rows);
    l->partial = malloc(coded_launch_partial_bytes(l));
    l->want = malloc(coded_launch_partial_bytes(l));
    assert_true(l->rows && l->partial && l->want);
    for (uint32_t i = 0; i < l->n_rows; i++)
        l->rows[CODED_INNER_BASE + i] = l->n_rows - 1 - i;
    l->args.experts = (mp_kernel_experts_args){.x = l->x,
                                               .rows = l->rows,
                                               .inner = l->inner,
                                               .inner_base = CODED_INNER_BASE,
                                               .n_experts = CODED_EXPERTS,
                                               .top_k = CODED_TOP_K,
                                               .hidden = l->hidden,
                                               .intermediate = l->intermediate,
                                               .math = l->math};
}

void coded_launch_close(coded_launch *l)
{
    for (uint32_t e = 0; e < CODED_EXPERTS; e++)
        for (uint32_t w = 0; w < MP_MATRICES; w++) {
            coded_matrix *m = &l->matrices[e][w];
            guarded_free(m->coded, m->coded_bytes);
            guarded_free(m->scales, m->scale_bytes);
            free(m->values);
        }
    for (uint32_t w = 0; w < MP_MATRICES; w++) {
        guarded_free(l->bias[w], rows_of(l, w) * 2);
        free(l->wide_bias[w]);
    }
    const uint64_t n = (uint64_t)l->n_tokens * l->hidden;
    guarded_free(l->from, n * sizeof(float));
    guarded_free(l->x, n * l->operand_bytes);
    guarded_free(l->inner, inner_bytes(l));
    free(l->rows);
    free(l->partial);
    free(l->want);
}

static void clear(coded_launch *l, float *partial)
{
    memset(partial, 0xa5, coded_launch_partial_bytes(l));
    memset(l->inner, 0xa5, inner_bytes(l));
    l->args.experts.partial = partial;
}

static void run(const mp_host_kernel_set *set, coded_launch *l, uint32_t n_parts)
{
    for (uint32_t phase = 0; phase < 2; phase++)
        for (uint32_t part = n_parts; part-- > 0;)
            mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &l->args, phase, part, n_parts);
}

static void take_coded(coded_launch *l)
{
    clear(l, l->partial);
    l->args.experts.experts = l->coded;
    memcpy(l->args.experts.dtypes, l->dtypes, sizeof l->dtypes);
    l->args.experts.bias_dtype = BF16;
    l->args.experts.form = l->form;
    l->args.experts.group = l->group;
}

void coded_launch_run(coded_launch *l, const mp_host_kernel_set *set, uint32_t n_parts)
{
    take_coded(l);
    run(set, l, n_parts);
}

void coded_launch_run_plain(coded_launch *l)
{
    clear(l, l->want);
    l->args.experts.experts = l->plain;
    experts_set_dtype(&l->args.experts, F32);
    l->args.experts.form = MOEPAGE_FORM_DENSE;
    run(kernel_sets[0], l, 1);
}

static void expect_same(const coded_launch *l, const mp_host_kernel_set *set)
{
    const uint64_t n = coded_launch_partial_bytes(l) / sizeof(float);
    uint64_t i = 0;
    while (i < n && num_same(l->partial[i], l->want[i]))
        i++;
    if (i == n)
        return;
    fail_msg("%s: dtypes %u, %u, %u, form %u, groups of %u, math %u, H %u, I %u, rows %u, %u, %u: "
             "element %llu is %a, it must be %a",
             mp_host_kernels_name(set), l->dtypes[0], l->dtypes[1], l->dtypes[2], l->form, l->group,
             l->math, l->hidden, l->intermediate, l->coded[0].n_rows, l->coded[1].n_rows,
             l->coded[2].n_rows, (unsigned long long)i, (double)l->partial[i], (double)l->want[i]);
}

void coded_launch_try(coded_launch *l, const mp_host_kernel_set *set)
{
    static const uint32_t n_parts[] = {1, 3};
    for (size_t p = 0; p < 2; p++) {
        coded_launch_run(l, set, n_parts[p]);
        expect_same(l, set);
    }
    take_coded(l);
    for (uint32_t e = CODED_EXPERTS; e-- > 0;) {
        l->args.experts.experts = &l->coded[e];
        l->args.experts.n_experts = 1;
        run(set, l, 2);
    }
    l->args.experts.n_experts = CODED_EXPERTS;
    expect_same(l, set);
}
