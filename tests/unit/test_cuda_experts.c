/* The expert kernels block by block on the CPU: their results within the error of single precision, in FP32 the
 * bits of the host's kernels, the same bits whatever goes together, and nothing else touched.
 *
 * Blocks run in a random order, one after another, on shared memory and registers full of garbage,
 * with their threads in a random order. Tensors end where readable memory does. */

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "device/kernels.h"
#include "expert_kernels.h"
#include "kernel_sets.h"
#include "moepage.h"
#include "numbers.h"
#include "reference.h"
#include "testing.h"

#define F32 MOEPAGE_DTYPE_F32
#define F16 MOEPAGE_DTYPE_F16
#define BF16 MOEPAGE_DTYPE_BF16
#define F8 MOEPAGE_DTYPE_F8_E4M3

static uint32_t below(uint32_t n)
{
    return num_random_bits() % n;
}

static void *new_bytes(size_t n)
{
    void *bytes = calloc(n ? n : 1, 1);
    assert_non_null(bytes);
    return bytes;
}

/* ---- A layer ---- */

#define MAX_EXPERTS 8
#define MAX_TENSORS (MAX_EXPERTS * 6 + 1)

typedef struct shape {
    uint32_t tokens, top_k, experts, hidden, intermediate;
} shape;

typedef struct layer {
    shape s;
    uint32_t dtype, math, operand_bytes, n_rows;
    mp_block_scale scale;
    bool unaligned;                    /* tensors and x */
    mp_ffn_expert expert[MAX_EXPERTS]; /* with the rows of all tokens */
    mp_ffn_expert plain[MAX_EXPERTS];  /* FP8 as F32 */
    struct {
        void *memory;
        uint64_t bytes;
    } guarded[MAX_TENSORS];
    float *values[MAX_EXPERTS * 3];
    uint32_t n_guarded, n_values;
    void *x;
    uint32_t *rows;
} layer;

/* Memory from a multiple of 16, or one element further: NaNs follow it, and soon nothing. */
static void *put(layer *l, uint64_t bytes, uint32_t element)
{
    const uint32_t off = l->unaligned ? element : 0;
    const uint64_t whole = (off + bytes + 15) / 16 * 16;
    char *memory = guarded_alloc(whole);
    assert_true(l->n_guarded < MAX_TENSORS);
    l->guarded[l->n_guarded].memory = memory;
    l->guarded[l->n_guarded++].bytes = whole;
    memset(memory, 0xff, whole);
    return memory + off;
}

static const void *tensor(layer *l, size_t n, double scale, bool coarse)
{
    char *out = put(l, n * reference_size(l->dtype), reference_size(l->dtype));
    char one[4];
    for (size_t i = 0; i < n; i++) {
        double value = (double)num_random() / 4 * scale;
        /* Biases have few digits: whether BF16 math rounds them is left open. */
        reference_store(one, 0, l->dtype, coarse ? floor(value * 32) / 64 : value);
        memcpy(out + i * reference_size(l->dtype), one, reference_size(l->dtype));
    }
    return out;
}

static void fp8(layer *l, uint32_t rows, uint32_t columns, double scale, const void **weights,
                const void **scales, const void **plain)
{
    const uint32_t high = (rows - 1) / l->scale.rows + 1,
                   wide = (columns - 1) / l->scale.columns + 1;
    const size_t scale_bytes = l->scale.dtype ? reference_size(l->scale.dtype) : 0;
    uint8_t *codes = put(l, (size_t)rows * columns, 1);
    char *blocks = scale_bytes ? guarded_alloc(high * wide * scale_bytes) : NULL;
    float *values = l->values[l->n_values++] = new_bytes((size_t)rows * columns * sizeof *values);
    if (blocks) {
        l->guarded[l->n_guarded].memory = blocks;
        l->guarded[l->n_guarded++].bytes = high * wide * scale_bytes;
        for (size_t i = 0; i < (size_t)high * wide; i++)
            reference_store(blocks, i, l->scale.dtype, scale / 448 * (1.5 + num_random() / 8));
    }
    for (size_t i = 0; i < (size_t)rows * columns; i++) {
        do
            codes[i] = (uint8_t)below(256);
        while ((codes[i] & 0x7f) == 0x7f || (!blocks && (codes[i] & 0x7f) > 0x38));
        double value = reference_load(codes, i, F8);
        size_t block = i / columns / l->scale.rows * wide + i % columns / l->scale.columns;
        values[i] = (float)(blocks ? value * reference_load(blocks, block, l->scale.dtype) : value);
    }
    *weights = codes;
    *scales = blocks;
    *plain = values;
}

static void fill_expert(layer *l, mp_ffn_expert *x, mp_ffn_expert *plain, uint32_t biases)
{
    const uint32_t h = l->s.hidden, i = l->s.intermediate;
    const double wide = 4 / sqrt(h), high = 4 / sqrt(i);
    if (l->dtype == F8) {
        *plain = *x;
        fp8(l, i, h, wide, &x->gate, &x->gate_scale, &plain->gate);
        fp8(l, i, h, wide, &x->up, &x->up_scale, &plain->up);
        fp8(l, h, i, high, &x->down, &x->down_scale, &plain->down);
        return;
    }
    x->gate = tensor(l, (size_t)h * i, wide, false);
    x->up = tensor(l, (size_t)h * i, wide, false);
    x->down = tensor(l, (size_t)h * i, high, false);
    x->gate_bias = biases & 1 ? tensor(l, i, 1, true) : NULL;
    x->up_bias = biases & 2 ? tensor(l, i, 1, true) : NULL;
    x->down_bias = biases & 4 ? tensor(l, h, 1, true) : NULL;
    *plain = *x;
}

/* Every slot of a token goes to a different expert, or, one in eight, to none. */
static void route(layer *l)
{
    const uint32_t n = l->s.tokens * l->s.top_k;
    int32_t *ids = new_bytes(n * sizeof *ids);
    l->rows = new_bytes(n * sizeof *l->rows);
    for (uint32_t t = 0; t < l->s.tokens; t++) {
        uint32_t first = below(l->s.experts);
        for (uint32_t k = 0; k < l->s.top_k; k++)
            ids[t * l->s.top_k + k] =
                below(8) ? (int32_t)((first + k) % l->s.experts) : MOEPAGE_NO_EXPERT;
    }
    for (uint32_t e = 0; e < l->s.experts; e++) {
        l->expert[e].first_row = l->n_rows;
        for (uint32_t row = 0; row < n; row++) {
            if (ids[row] == (int32_t)e)
                l->rows[l->n_rows++] = row;
        }
        l->expert[e].n_rows = l->n_rows - l->expert[e].first_row;
    }
    free(ids);
}

static layer *new_layer(shape s, uint32_t dtype, uint32_t math, bool biased, mp_block_scale scale,
                        bool unaligned)
{
    layer *l = new_bytes(sizeof *l);
    *l = (layer){.s = s, .dtype = dtype, .math = math, .scale = scale, .unaligned = unaligned};
    l->operand_bytes = math == MOEPAGE_MATH_FP32 ? 4 : 2;
    assert_true(s.experts <= MAX_EXPERTS);
    route(l);
    for (uint32_t e = 0; e < s.experts; e++)
        fill_expert(l, &l->expert[e], &l->plain[e], biased ? e + 1 : 0);
    const uint32_t operand = math == MOEPAGE_MATH_FP32 ? F32 : BF16;
    char *x = new_bytes((size_t)s.tokens * s.hidden * 4);
    for (size_t i = 0; i < (size_t)s.tokens * s.hidden; i++)
        reference_store(x, i, operand, num_random());
    l->x = put(l, (uint64_t)s.tokens * s.hidden * l->operand_bytes, l->operand_bytes);
    memcpy(l->x, x, (size_t)s.tokens * s.hidden * l->operand_bytes);
    free(x);
    return l;
}

static void free_layer(layer *l)
{
    for (uint32_t i = 0; i < l->n_guarded; i++)
        guarded_free(l->guarded[i].memory, l->guarded[i].bytes);
    for (uint32_t i = 0; i < l->n_values; i++)
        free(l->values[i]);
    free(l->rows);
    free(l);
}

/* ---- Running it ---- */

/* How: experts of up to `thin_rows` rows by `form`, the others by `form2`. */
typedef struct plan {
    uint32_t form, form2, thin_rows;
    bool any;     /* kernels for unaligned operands */
    bool counted; /* the number of experts is in memory */
    uint32_t blocks;
} plan;

static bool can_align(const layer *l, uint32_t down)
{
    return !l->unaligned && mp_gpu_experts_aligned(down ? l->s.intermediate : l->s.hidden, l->dtype,
                                                   l->scale.dtype, l->scale.columns);
}

/* The rows [from, to) of the layer, experts in a random order, empty ones among them. */
static uint32_t table_of(const layer *l, uint32_t from, uint32_t to, mp_gpu_expert *table)
{
    uint32_t order[MAX_EXPERTS];
    random_order(order, l->s.experts);
    for (uint32_t i = 0; i < l->s.experts; i++) {
        const mp_ffn_expert *x = &l->expert[order[i]];
        uint32_t begin = x->first_row > from ? x->first_row : from;
        uint32_t end = x->first_row + x->n_rows < to ? x->first_row + x->n_rows : to;
        assert_int_equal(sizeof table[i], sizeof *x);
        memcpy(&table[i], x, sizeof *x);
        table[i].first_row = begin;
        table[i].n_rows = begin < end ? end - begin : 0;
        if (!table[i].n_rows) /* nothing else of it may be looked at */
            table[i].gate = table[i].up = table[i].down = table[i].gate_bias = (void *)1;
    }
    return l->s.experts;
}

static void run_half(const layer *l, const plan *p, mp_gpu_experts_args *args, uint32_t down)
{
    const bool aligned = can_align(l, down) && !p->any;
    const uint32_t forms[2] = {p->form, p->form2};
    args->down = down;
    for (uint32_t i = 0; i < 2; i++) {
        args->least_rows = i ? p->thin_rows + 1 : 0;
        args->most_rows = i ? UINT32_MAX : p->thin_rows;
        /* What is not aligned has no BROAD. */
        uint32_t form = forms[i] == MP_EXPERTS_BROAD && !aligned ? MP_EXPERTS_THIN : forms[i];
        expert_kernel_launch(mp_gpu_experts_name(form, l->dtype, aligned), form, args, p->blocks);
    }
}

#define MARK 0x5b /* where nothing was written */

static size_t partial_bytes(const layer *l)
{
    return (size_t)l->s.tokens * l->s.top_k * l->s.hidden * sizeof(float);
}

static void run_rows(const layer *l, const plan *p, uint32_t from, uint32_t to, float *partial)
{
    mp_gpu_expert *table = new_bytes(MAX_EXPERTS * sizeof *table);
    uint32_t *n = new_bytes(sizeof *n);
    *n = table_of(l, from, to, table);
    const size_t inner_bytes = (size_t)(to - from) * l->s.intermediate * l->operand_bytes;
    char *inner = aligned_alloc(64, (inner_bytes + 64 + 63) / 64 * 64);
    memset(inner, MARK, inner_bytes + 64);
    mp_gpu_experts_args args = {
        .x = l->x,
        .experts = table,
        .rows = l->rows,
        .n_experts_at = p->counted ? n : NULL,
        .inner = inner,
        .partial = partial,
        .n_experts = p->counted ? MAX_EXPERTS : *n,
        .inner_base = from,
        .top_k = l->s.top_k,
        .hidden = l->s.hidden,
        .intermediate = l->s.intermediate,
        .dtype = l->dtype,
        .bias_dtype = l->dtype == F8 ? MOEPAGE_DTYPE_NONE : l->dtype,
        .scale_dtype = l->scale.dtype,
        .scale_rows = l->scale.rows,
        .scale_columns = l->scale.columns,
    };
    run_half(l, p, &args, 0);
    run_half(l, p, &args, 1);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(inner[inner_bytes + i], MARK);
    free(inner);
    free(n);
    free(table);
}

static float *new_partial(const layer *l)
{
    float *partial = new_bytes(partial_bytes(l));
    memset(partial, MARK, partial_bytes(l));
    return partial;
}

/* ---- Against double precision ---- */

/* Of a launch's rows; those of a big one are sampled. */
#define MOST_CHECKED 10

static bool is_marked(const float *row, uint32_t hidden)
{
    for (size_t i = 0; i < hidden * sizeof *row; i++) {
        if (((const unsigned char *)row)[i] != MARK)
            return false;
    }
    return true;
}

static void check_row(const layer *l, uint32_t e, uint32_t row, const float *got)
{
    const uint32_t hidden = l->s.hidden;
    double *want = new_bytes(hidden * sizeof *want), *bound = new_bytes(hidden * sizeof *bound);
    char *x = new_bytes((size_t)hidden * l->operand_bytes);
    memcpy(x, (const char *)l->x + (size_t)(row / l->s.top_k) * hidden * l->operand_bytes,
           (size_t)hidden * l->operand_bytes);
    mp_ffn_expert plain = l->plain[e];
    reference_expert_row(&plain, x, hidden, l->s.intermediate, l->dtype == F8 ? F32 : l->dtype,
                         l->math, want, bound);
    for (uint32_t h = 0; h < hidden; h++) {
        if (!(fabs(got[h] - want[h]) <= bound[h]))
            fail_msg("expert %u, row %u, element %u is %.9g, should be %.9g +- %.2g", e, row, h,
                     got[h], want[h], bound[h]);
    }
    free(x);
    free(want);
    free(bound);
}

static void check_rows(const layer *l, uint32_t from, uint32_t to, const float *partial)
{
    const uint32_t n = l->s.tokens * l->s.top_k;
    bool *written = new_bytes(n * sizeof *written);
    for (uint32_t e = 0; e < l->s.experts; e++) {
        for (uint32_t i = 0; i < l->expert[e].n_rows; i++) {
            uint32_t at = l->expert[e].first_row + i, row = l->rows[at];
            if (at < from || at >= to)
                continue;
            written[row] = true;
            if (below(to - from) < MOST_CHECKED)
                check_row(l, e, row, partial + (size_t)row * l->s.hidden);
        }
    }
    for (uint32_t row = 0; row < n; row++)
        assert_int_equal(is_marked(partial + (size_t)row * l->s.hidden, l->s.hidden),
                         !written[row]);
    free(written);
}

static plan random_plan(const layer *l)
{
    plan p = {.any = below(4) == 0, .counted = below(2), .blocks = 1 + below(9)};
    p.form = l->math == MOEPAGE_MATH_FP32 ? MP_EXPERTS_PLAIN
             : below(2)                   ? MP_EXPERTS_THIN
                                          : MP_EXPERTS_BROAD;
    p.form2 = l->math == MOEPAGE_MATH_FP32 ? MP_EXPERTS_PLAIN
              : below(2)                   ? MP_EXPERTS_THIN
                                           : MP_EXPERTS_BROAD;
    p.thin_rows = below(2) ? below(20) : UINT32_MAX - 1;
    return p;
}

static mp_block_scale random_scale(uint32_t dtype)
{
    mp_block_scale scale = {.dtype = MOEPAGE_DTYPE_NONE, .rows = 1, .columns = 1};
    if (dtype == F8 && below(4)) {
        scale.dtype = below(2) ? F32 : BF16;
        scale.rows = 1 + below(40);
        scale.columns = below(2) ? 8 * (1 + below(8)) : 1 + below(40);
    }
    return scale;
}

static const uint32_t dtypes[] = {F32, F16, BF16, F8};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

static void test_experts_agree_with_double_precision(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {1, 1, 1, 1, 1},    {1, 2, 3, 16, 16},  {2, 1, 2, 33, 7},    {9, 3, 5, 24, 40},
        {5, 4, 8, 96, 31},  {30, 2, 3, 65, 66}, {17, 4, 4, 256, 48}, {1, 2, 2, 1000, 24},
        {70, 1, 1, 40, 48}, {3, 1, 1, 24, 520},
    };
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t c = 0; c < 8; c++) {
            const uint32_t dtype = dtypes[c % 4];
            layer *l = new_layer(shapes[i], dtype, maths[c / 4], below(2), random_scale(dtype),
                                 c % 3 == 2);
            for (uint32_t form = 0; form < 2; form++) {
                float *partial = new_partial(l);
                plan p = random_plan(l);
                if (l->math == MOEPAGE_MATH_BF16) {
                    p.form = p.form2 = form ? MP_EXPERTS_BROAD : MP_EXPERTS_THIN;
                    p.any = false;
                }
                run_rows(l, &p, 0, l->n_rows, partial);
                check_rows(l, 0, l->n_rows, partial);
                free(partial);
            }
            free_layer(l);
        }
    }
}

static void expect_agreement(const layer *l, uint32_t form)
{
    float *partial = new_partial(l);
    const plan p = {.form = form, .form2 = form, .thin_rows = UINT32_MAX - 1, .blocks = 3};
    run_rows(l, &p, 0, l->n_rows, partial);
    check_rows(l, 0, l->n_rows, partial);
    free(partial);
}

/* Rows end in a unit's midst; blocks of scales are such that aligned weights may, and may not, be
 * read eight at a time. */
static void test_experts_agree_for_every_dtype_of_scales_and_alignment(void **state)
{
    static const struct {
        uint32_t dtype;
        mp_block_scale scale;
    } cases[] = {{F32, {MOEPAGE_DTYPE_NONE, 1, 1}},
                 {F16, {MOEPAGE_DTYPE_NONE, 1, 1}},
                 {BF16, {MOEPAGE_DTYPE_NONE, 1, 1}},
                 {F8, {MOEPAGE_DTYPE_NONE, 1, 1}},
                 {F8, {F32, 5, 8}},
                 {F8, {BF16, 7, 40}},
                 {F8, {F32, 2, 3}},
                 {F8, {BF16, 9, 70}}};
    static const shape shapes[] = {{24, 1, 2, 328, 296}, {24, 1, 2, 301, 77}};
    (void)state;
    for (uint32_t i = 0; i < 2 * 2 * sizeof cases / sizeof *cases; i++) {
        layer *l = new_layer(shapes[i % 2], cases[i / 4].dtype, MOEPAGE_MATH_BF16, true,
                             cases[i / 4].scale, i / 2 % 2);
        expect_agreement(l, MP_EXPERTS_THIN);
        expect_agreement(l, MP_EXPERTS_BROAD);
        free_layer(l);
    }
}

static void test_experts_leave_other_rows_alone(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < 2; m++) {
        layer *l =
            new_layer((shape){20, 3, 4, 40, 24}, BF16, maths[m], true, random_scale(BF16), false);
        for (uint32_t from = 0; from < l->n_rows; from += 7) {
            uint32_t to = from + 7 < l->n_rows ? from + 7 : l->n_rows;
            float *partial = new_partial(l);
            plan p = random_plan(l);
            run_rows(l, &p, from, to, partial);
            check_rows(l, from, to, partial);
            free(partial);
        }
        free_layer(l);
    }
}

/* ---- The same bits ---- */

static void run_split(const layer *l, uint32_t most, float *partial)
{
    for (uint32_t from = 0, n; from < l->n_rows; from += n) {
        plan p = random_plan(l);
        n = 1 + below(most);
        n = n < l->n_rows - from ? n : l->n_rows - from;
        run_rows(l, &p, from, from + n, partial);
    }
}

static void test_experts_bits_depend_on_a_row_and_its_weights_alone(void **state)
{
    (void)state;
    static const shape shapes[] = {{12, 4, 5, 67, 45},
                                   {80, 1, 1, 72, 40},
                                   {9, 3, 4, 256, 96},
                                   {5, 3, 6, 264, 136}};
    const uint32_t rounds = getenv("MP_TEST_LONG") ? 12 : 1;
    for (uint32_t i = 0; i < rounds * sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t c = 0; c < 8; c++) {
            const shape s = shapes[i % (sizeof shapes / sizeof *shapes)];
            layer *l =
                new_layer(s, dtypes[c % 4], maths[c / 4], true, random_scale(dtypes[c % 4]), false);
            float *first = new_partial(l), *got = new_partial(l);
            const plan one = {.form = maths[c / 4] ? MP_EXPERTS_THIN : MP_EXPERTS_PLAIN,
                              .form2 = maths[c / 4] ? MP_EXPERTS_THIN : MP_EXPERTS_PLAIN,
                              .thin_rows = UINT32_MAX - 1,
                              .blocks = 1};
            run_rows(l, &one, 0, l->n_rows, first);
            for (uint32_t most = 1; most <= 2 * l->n_rows; most *= 8) {
                memset(got, MARK, partial_bytes(l));
                run_split(l, most, got);
                assert_memory_equal(got, first, partial_bytes(l));
            }
            free(first);
            free(got);
            free_layer(l);
        }
    }
}

/* ---- The host's bits ---- */

static void run_host(const layer *l, float *partial)
{
    float *inner = new_bytes((size_t)l->n_rows * l->s.intermediate * sizeof *inner);
    mp_kernel_args args = {.experts = {.x = l->x,
                                       .experts = l->expert,
                                       .rows = l->rows,
                                       .inner = inner,
                                       .partial = partial,
                                       .n_experts = l->s.experts,
                                       .top_k = l->s.top_k,
                                       .hidden = l->s.hidden,
                                       .intermediate = l->s.intermediate,
                                       .math = l->math,
                                       .scale = l->scale}};
    experts_set_dtype(&args.experts, l->dtype);
    for (uint32_t phase = 0; phase < 2; phase++)
        mp_host_kernel_run(kernel_sets[0], MP_KERNEL_EXPERTS, &args, phase, 0, 1);
    free(inner);
}

/* Rows that end in a step's or a turn's midst, or with them; sums of which some are denormal, or zeros of
 * either sign. */
static void test_experts_in_fp32_have_the_bits_of_the_host(void **state)
{
    (void)state;
    static const shape shapes[] = {{1, 1, 1, 1, 1},     {1, 1, 1, 24, 40},   {2, 2, 3, 16, 17},
                                   {3, 1, 2, 255, 31},  {9, 3, 5, 264, 40},  {20, 1, 1, 15, 33},
                                   {4, 2, 3, 520, 272}, {17, 4, 4, 256, 512}};
    static const float sizes[] = {1, 0x1p-140f, 0x1p-75f};
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t c = 0; c < 8; c++) {
            const uint32_t dtype = dtypes[c % 4], size = (i + c) % 3;
            layer *l =
                new_layer(shapes[i], dtype, MOEPAGE_MATH_FP32, true, random_scale(dtype), c / 4);
            float *want = new_partial(l), *got = new_partial(l);
            for (size_t k = 0; k < (size_t)l->s.tokens * l->s.hidden; k++)
                ((float *)l->x)[k] *= sizes[size];
            for (uint32_t e = 0; e < l->s.experts && size; e++)
                l->expert[e].gate_bias = l->expert[e].up_bias = l->expert[e].down_bias = NULL;
            const plan p = random_plan(l);
            run_host(l, want);
            run_rows(l, &p, 0, l->n_rows, got);
            assert_memory_equal(got, want, partial_bytes(l));
            free(want);
            free(got);
            free_layer(l);
        }
    }
}

/* ---- Infinities and NaN ---- */

/* One token's x has an infinity in its last element, another's a NaN: they reach all of
 * these tokens' results and none of their neighbours', and memory past the end of a row
 * reaches no result. */
static void test_experts_carry_infinity_and_nan_where_arithmetic_does(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 8; c++) {
        layer *l = new_layer((shape){20, 1, 1, c % 2 ? 72 : 71, 24}, c / 4 ? F16 : BF16,
                             maths[c / 2 % 2], false, random_scale(BF16), false);
        const uint32_t operand = l->operand_bytes == 4 ? F32 : BF16, h = l->s.hidden;
        reference_store(l->x, 3 * h + h - 1, operand, INFINITY);
        reference_store(l->x, 7 * h + h - 1, operand, NAN);
        for (uint32_t form = 0; form < 2; form++) {
            float *partial = new_partial(l);
            plan p = random_plan(l);
            if (l->math == MOEPAGE_MATH_BF16)
                p.form = p.form2 = form ? MP_EXPERTS_BROAD : MP_EXPERTS_THIN;
            run_rows(l, &p, 0, l->n_rows, partial);
            for (uint32_t i = 0; i < l->n_rows; i++) {
                const uint32_t row = l->rows[i];
                for (uint32_t at = 0; at < h; at++) {
                    const float value = partial[(size_t)row * h + at];
                    /* Infinity times some down is plus, some minus infinity: their sum is NaN. */
                    assert_int_equal(!isfinite(value), row == 3 || row == 7);
                }
            }
            free(partial);
        }
        free_layer(l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_agree_with_double_precision),
        cmocka_unit_test(test_experts_agree_for_every_dtype_of_scales_and_alignment),
        cmocka_unit_test(test_experts_leave_other_rows_alone),
        cmocka_unit_test(test_experts_bits_depend_on_a_row_and_its_weights_alone),
        cmocka_unit_test(test_experts_in_fp32_have_the_bits_of_the_host),
        cmocka_unit_test(test_experts_carry_infinity_and_nan_where_arithmetic_does),
    };
    return cmocka_run_group_tests(tests, kernel_sets_find, NULL);
}
