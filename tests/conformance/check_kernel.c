/* Kernels against their definition, and against themselves in other company.
 *
 * CONVERT and COMBINE are defined to the last bit and compared so. EXPERTS is compared with double
 * precision within a bound on the error of single precision; that its bits do not depend on how the
 * work is split is checked separately. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"
#include "rig.h"

static void *new_bytes(size_t n)
{
    void *bytes = calloc(1, n);
    assert_non_null(bytes);
    return bytes;
}

/* ---- CONVERT ---------------------------------------------------------------------------- */

/* Equal bits, or both NaN (whose payload a conversion may change). */
static void assert_same_number(const void *got, const void *want, size_t i, uint32_t dtype)
{
    double a = reference_load(got, i, dtype), b = reference_load(want, i, dtype);
    if (isnan(a) && isnan(b))
        return;
    uint32_t size = reference_size(dtype);
    if (memcmp((const char *)got + i * size, (const char *)want + i * size, size))
        fail_msg("element %zu is %.17g, should be %.17g", i, a, b);
}

/* Rows of `stride` elements, whose gaps must not matter. */
static void check_convert(rig *r, mp_stream *stream, const void *x, uint32_t dtype, uint32_t math,
                          uint32_t tokens, uint32_t hidden, uint32_t stride)
{
    uint32_t to = math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    size_t n = (size_t)tokens * hidden, size = reference_size(to);
    unsigned char *want = new_bytes((n + 8) * size), *got = new_bytes((n + 8) * size);
    memset(want, 0x5c, (n + 8) * size);
    void *out = rig_put(r, want, (n + 8) * size);
    mp_kernel_convert_args args = {
        .x = rig_put(r, x, (size_t)tokens * stride * reference_size(dtype)),
        .x_stride = stride,
        .x_dtype = dtype,
        .math = math,
        .n_tokens = tokens,
        .hidden = hidden,
        .out = out,
    };
    MUST(r->ops->sync(stream, rig_launch(r, stream, MP_KERNEL_CONVERT, &args)));
    for (size_t i = 0; i < n; i++)
        reference_store(want, i, to, reference_load(x, i / hidden * stride + i % hidden, dtype));
    rig_read(r, out, got, (n + 8) * size);
    for (size_t i = 0; i < n; i++)
        assert_same_number(got, want, i, to);
    assert_memory_equal(got + n * size, want + n * size, 8 * size);
    free(want);
    free(got);
}

void test_convert_is_exact_for_every_value(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};
    enum { ALL = 65536, STRIDE = 271, HIDDEN = 257 };
    rig r;
    rig_open(&r, 2, 0);
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    uint16_t *halves = new_bytes(ALL * sizeof *halves);
    uint32_t *singles = new_bytes(ALL * sizeof *singles);
    uint64_t seed = 11;
    for (uint32_t i = 0; i < ALL; i++) {
        halves[i] = (uint16_t)i;
        /* Every upper half, with lower halves at, around and between rounding's ties. */
        static const uint16_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        uint32_t pick = random_below(&seed, 8);
        singles[i] = i << 16 | (pick < 6 ? low[pick] : random_below(&seed, 65536));
    }
    for (uint32_t m = 0; m < 2; m++) {
        check_convert(&r, stream, halves, MOEPAGE_DTYPE_F16, maths[m], 1, ALL, ALL);
        check_convert(&r, stream, halves, MOEPAGE_DTYPE_BF16, maths[m], 1, ALL, ALL);
        check_convert(&r, stream, singles, MOEPAGE_DTYPE_F32, maths[m], 1, ALL, ALL);
        check_convert(&r, stream, halves, MOEPAGE_DTYPE_F16, maths[m], 200, HIDDEN, STRIDE);
        check_convert(&r, stream, singles, MOEPAGE_DTYPE_F32, maths[m], 200, HIDDEN, STRIDE);
        check_convert(&r, stream, singles, MOEPAGE_DTYPE_F32, maths[m], 3, 1, 2);
    }
    free(halves);
    free(singles);
    rig_close(&r);
}

/* ---- COMBINE ---------------------------------------------------------------------------- */

/* The definition, one element at a time. */
static double combined(const float *partial, const float *weights, const int32_t *ids, double y,
                       const mp_kernel_combine_args *a, uint32_t t, uint32_t h)
{
    float sum = 0;
    for (uint32_t k = 0; k < a->top_k; k++) {
        size_t row = (size_t)t * a->top_k + k;
        if (ids[row] >= 0)
            sum = fmaf(weights[row], partial[row * a->hidden + h], sum);
    }
    return a->accumulate ? (float)y + sum : sum;
}

static void check_combine(rig *r, mp_stream *stream, uint64_t *seed, uint32_t tokens,
                          uint32_t top_k, uint32_t hidden, uint32_t gap, uint32_t dtype,
                          uint32_t accumulate)
{
    size_t rows = (size_t)tokens * top_k, stride = hidden + gap, n = tokens * stride;
    size_t bytes = n * reference_size(dtype);
    float *partial = new_bytes(rows * hidden * sizeof *partial);
    float *weights = new_bytes(rows * sizeof *weights);
    int32_t *ids = new_bytes(rows * sizeof *ids);
    void *want = new_bytes(bytes), *got = new_bytes(bytes);
    for (size_t i = 0; i < rows * hidden; i++)
        partial[i] = (float)(random_unit(seed) * 3);
    for (size_t i = 0; i < rows; i++) {
        weights[i] = (float)random_unit(seed);
        ids[i] = random_below(seed, 4) ? (int32_t)random_below(seed, 100) : MOEPAGE_NO_EXPERT;
        /* Nothing of a skipped slot may be read into the sum. */
        for (uint32_t h = 0; h < hidden && ids[i] < 0; h++)
            partial[i * hidden + h] = NAN;
    }
    for (size_t i = 0; i < n; i++)
        reference_store(want, i, dtype, random_unit(seed));
    mp_kernel_combine_args args = {
        .partial = rig_put(r, partial, rows * hidden * sizeof *partial),
        .weights = rig_table(r, weights, rows * sizeof *weights),
        .ids = rig_table(r, ids, rows * sizeof *ids),
        .y = rig_put(r, want, bytes),
        .y_stride = stride,
        .y_dtype = dtype,
        .n_tokens = tokens,
        .top_k = top_k,
        .hidden = hidden,
        .accumulate = accumulate,
    };
    MUST(r->ops->sync(stream, rig_launch(r, stream, MP_KERNEL_COMBINE, &args)));
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t h = 0; h < hidden; h++) {
            size_t i = t * stride + h;
            double y = reference_load(want, i, dtype);
            reference_store(want, i, dtype, combined(partial, weights, ids, y, &args, t, h));
        }
    }
    rig_read(r, args.y, got, bytes);
    assert_memory_equal(got, want, bytes); /* gaps included */
    free(partial);
    free(weights);
    free(ids);
    free(want);
    free(got);
}

void test_combine_sums_in_the_documented_order(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
    static const struct {
        uint32_t tokens, top_k, hidden, gap;
    } shapes[] = {{1, 1, 1, 0}, {1, 8, 64, 0}, {3, 2, 17, 0}, {5, 6, 33, 3}, {40, 8, 1000, 8}};
    rig r;
    rig_open(&r, 3, 0);
    mp_stream *stream = rig_stream(&r, MP_STREAM_COMPUTE);
    uint64_t seed = 5;
    for (uint32_t d = 0; d < 3; d++) {
        for (uint32_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            for (uint32_t accumulate = 0; accumulate < 2; accumulate++)
                check_combine(&r, stream, &seed, shapes[s].tokens, shapes[s].top_k,
                              shapes[s].hidden, shapes[s].gap, dtypes[d], accumulate);
        }
    }
    rig_close(&r);
}

/* ---- EXPERTS ---------------------------------------------------------------------------- */

typedef struct shape {
    uint32_t tokens, top_k, experts, hidden, intermediate;
} shape;

/* A routed layer: in host memory for the reference, and a copy in a device. */
typedef struct layer {
    shape s;
    uint32_t dtype, math;
    void *x;                /* [tokens][H] operand type */
    mp_ffn_expert *experts; /* pointers to host memory, rows of the whole layer */
    mp_ffn_expert *plain;   /* the same for the reference: FP8 weights as the F32 they stand for */
    uint32_t plain_dtype;
    mp_block_scale scale; /* of FP8 weights */
    uint32_t *rows;
    uint32_t n_rows;
    void *blocks[9 * 16]; /* the tensors: freed with it */
    uint32_t n_blocks;
} layer;

static void *random_tensor(layer *l, uint64_t *seed, size_t n, double scale, bool coarse)
{
    void *tensor = l->blocks[l->n_blocks++] = new_bytes(n * reference_size(l->dtype));
    for (size_t i = 0; i < n; i++) {
        /* Biases have few digits: whether BF16 math rounds them is left open. */
        double value = coarse ? floor(random_unit(seed) * 32) / 64 : random_unit(seed) * scale;
        reference_store(tensor, i, l->dtype, value);
    }
    return tensor;
}

/* An FP8 matrix with its scales, and the same in F32. */
static void random_fp8(layer *l, uint64_t *seed, uint32_t rows, uint32_t columns, double scale,
                       const void **weights, const void **scales, const void **plain)
{
    const uint32_t row_blocks = (rows - 1) / l->scale.rows + 1;
    const uint32_t column_blocks = (columns - 1) / l->scale.columns + 1;
    const size_t n = (size_t)rows * columns, n_scales = (size_t)row_blocks * column_blocks;
    uint8_t *codes = l->blocks[l->n_blocks++] = new_bytes(n);
    void *blocks = l->blocks[l->n_blocks++] = new_bytes(n_scales * sizeof(float));
    float *values = l->blocks[l->n_blocks++] = new_bytes(n * sizeof *values);
    for (size_t i = 0; i < n_scales; i++)
        reference_store(blocks, i, l->scale.dtype, scale / 448 * (1.5 + random_unit(seed)));
    for (size_t i = 0; i < n; i++) {
        do
            codes[i] = (uint8_t)random_below(seed, 256);
        while ((codes[i] & 0x7f) == 0x7f); /* NaN */
        size_t block = i / columns / l->scale.rows * column_blocks + i % columns / l->scale.columns;
        values[i] = (float)(reference_load(codes, i, l->dtype) *
                            reference_load(blocks, block, l->scale.dtype));
    }
    *weights = codes;
    *scales = blocks;
    *plain = values;
}

static void random_fp8_expert(layer *l, uint64_t *seed, mp_ffn_expert *x, mp_ffn_expert *plain)
{
    const uint32_t h = l->s.hidden, i = l->s.intermediate;
    random_fp8(l, seed, i, h, 2 / sqrt(h), &x->gate, &x->gate_scale, &plain->gate);
    random_fp8(l, seed, i, h, 2 / sqrt(h), &x->up, &x->up_scale, &plain->up);
    random_fp8(l, seed, h, i, 2 / sqrt(i), &x->down, &x->down_scale, &plain->down);
}

/* Every token takes top_k different experts; each in four of its slots names none. */
static void route(layer *l, uint64_t *seed)
{
    shape s = l->s;
    int32_t *ids = new_bytes(s.tokens * s.top_k * sizeof *ids);
    for (uint32_t t = 0; t < s.tokens; t++) {
        uint32_t first = random_below(seed, s.experts);
        for (uint32_t k = 0; k < s.top_k; k++)
            ids[t * s.top_k + k] = random_below(seed, 4) ? (int32_t)((first + k) % s.experts) : -1;
    }
    l->rows = new_bytes(s.tokens * s.top_k * sizeof *l->rows);
    for (uint32_t e = 0; e < s.experts; e++) {
        l->experts[e].first_row = l->n_rows;
        for (uint32_t row = 0; row < s.tokens * s.top_k; row++) {
            if (ids[row] == (int32_t)e)
                l->rows[l->n_rows++] = row;
        }
        l->experts[e].n_rows = l->n_rows - l->experts[e].first_row;
    }
    free(ids);
}

static void random_expert(layer *l, uint64_t *seed, uint32_t e, bool biased)
{
    const shape s = l->s;
    const size_t area = (size_t)s.hidden * s.intermediate;
    mp_ffn_expert *x = &l->experts[e];
    x->gate = random_tensor(l, seed, area, 4 / sqrt(s.hidden), false);
    x->up = random_tensor(l, seed, area, 4 / sqrt(s.hidden), false);
    x->down = random_tensor(l, seed, area, 4 / sqrt(s.intermediate), false);
    /* Each of the three may be there or not. */
    if (biased && e % 2 == 0)
        x->gate_bias = random_tensor(l, seed, s.intermediate, 0, true);
    if (biased && e % 3 != 1)
        x->up_bias = random_tensor(l, seed, s.intermediate, 0, true);
    if (biased)
        x->down_bias = random_tensor(l, seed, s.hidden, 0, true);
    l->plain[e] = *x;
}

static layer *new_layer(shape s, uint32_t dtype, uint32_t math, bool biased, uint64_t *seed)
{
    const uint32_t operand = math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    const bool fp8 = dtype == MOEPAGE_DTYPE_F8_E4M3;
    const size_t n = (size_t)s.tokens * s.hidden;
    layer *l = new_bytes(sizeof *l);
    assert_true(s.experts <= 16);
    *l = (layer){.s = s,
                 .dtype = dtype,
                 .plain_dtype = fp8 ? MOEPAGE_DTYPE_F32 : dtype,
                 .math = math,
                 .x = new_bytes(n * reference_size(operand)),
                 .experts = new_bytes(s.experts * sizeof *l->experts),
                 .plain = new_bytes(s.experts * sizeof *l->plain)};
    for (size_t i = 0; i < n; i++)
        reference_store(l->x, i, operand, random_unit(seed) * 2);
    if (fp8) {
        l->scale.dtype = random_below(seed, 2) ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
        l->scale.rows = 1 + random_below(seed, 40);
        l->scale.columns = 1 + random_below(seed, 40);
    }
    for (uint32_t e = 0; e < s.experts; e++) {
        if (fp8)
            random_fp8_expert(l, seed, &l->experts[e], &l->plain[e]);
        else
            random_expert(l, seed, e, biased);
    }
    route(l, seed);
    return l;
}

static void free_layer(layer *l)
{
    for (uint32_t i = 0; i < l->n_blocks; i++)
        free(l->blocks[i]);
    free(l->x);
    free(l->experts);
    free(l->plain);
    free(l->rows);
    free(l);
}

/* A layer in a device's memory. */
typedef struct placed {
    rig *r;
    const layer *l;
    mp_stream *stream;
    void *x, *inner;
    float *partial;
    mp_ffn_expert *experts; /* device pointers, in host memory */
} placed;

static const void *put_tensor(placed *p, const void *tensor, size_t n)
{
    return tensor ? rig_put(p->r, tensor, n * reference_size(p->l->dtype)) : NULL;
}

static const void *put_scales(placed *p, const void *scales, uint32_t rows, uint32_t columns)
{
    const mp_block_scale *scale = &p->l->scale;
    if (!scales)
        return NULL;
    size_t n = (size_t)((rows - 1) / scale->rows + 1) * ((columns - 1) / scale->columns + 1);
    return rig_put(p->r, scales, n * reference_size(scale->dtype));
}

/* What partial holds where no kernel has written. */
#define UNTOUCHED 0x7b

static size_t partial_bytes(const layer *l)
{
    return (size_t)l->s.tokens * l->s.top_k * l->s.hidden * sizeof(float);
}

static void clear_partial(placed *p)
{
    size_t n = partial_bytes(p->l);
    void *blank = new_bytes(n);
    memset(blank, UNTOUCHED, n);
    rig_write(p->r, p->partial, blank, n);
    free(blank);
}

static void place_layer(placed *p, rig *r, const layer *l)
{
    shape s = l->s;
    size_t operand = l->math == MOEPAGE_MATH_BF16 ? 2 : 4;
    size_t area = (size_t)s.hidden * s.intermediate;
    *p = (placed){.r = r, .l = l, .stream = rig_stream(r, MP_STREAM_COMPUTE)};
    p->x = rig_put(r, l->x, s.tokens * s.hidden * operand);
    p->inner = rig_alloc(r, MP_MEMORY_WORKSPACE, l->n_rows * s.intermediate * operand);
    p->partial = rig_alloc(r, MP_MEMORY_WORKSPACE, partial_bytes(l));
    clear_partial(p);
    p->experts = new_bytes(s.experts * sizeof *p->experts);
    for (uint32_t e = 0; e < s.experts; e++) {
        const mp_ffn_expert *from = &l->experts[e];
        p->experts[e] = (mp_ffn_expert){
            .gate = put_tensor(p, from->gate, area),
            .up = put_tensor(p, from->up, area),
            .down = put_tensor(p, from->down, area),
            .gate_bias = put_tensor(p, from->gate_bias, s.intermediate),
            .up_bias = put_tensor(p, from->up_bias, s.intermediate),
            .down_bias = put_tensor(p, from->down_bias, s.hidden),
            .gate_scale = put_scales(p, from->gate_scale, s.intermediate, s.hidden),
            .up_scale = put_scales(p, from->up_scale, s.intermediate, s.hidden),
            .down_scale = put_scales(p, from->down_scale, s.hidden, s.intermediate),
            .first_row = from->first_row,
            .n_rows = from->n_rows,
        };
    }
}

/* Launches the rows [from, to) of the layer alone: those experts, or parts of them, that have any.
 * Lines of `inner` count from the first row. */
static mp_tick launch_rows(placed *p, uint32_t from, uint32_t to)
{
    const layer *l = p->l;
    mp_ffn_expert chosen[16];
    uint32_t n = 0;
    for (uint32_t e = 0; e < l->s.experts; e++) {
        mp_ffn_expert part = p->experts[e];
        uint32_t end = part.first_row + part.n_rows;
        uint32_t first = part.first_row > from ? part.first_row : from;
        end = end < to ? end : to;
        if (first >= end)
            continue;
        part.first_row = first;
        part.n_rows = end - first;
        chosen[n++] = part;
    }
    mp_kernel_experts_args args = {
        .x = p->x,
        .experts = rig_table(p->r, chosen, n * sizeof *chosen),
        .rows = rig_table(p->r, l->rows, l->n_rows * sizeof *l->rows),
        .inner = p->inner,
        .partial = p->partial,
        .inner_base = from,
        .n_experts = n,
        .top_k = l->s.top_k,
        .hidden = l->s.hidden,
        .intermediate = l->s.intermediate,
        MP_ONE_DTYPE(l->dtype),
        .math = l->math,
        .scale = l->scale,
    };
    return rig_launch(p->r, p->stream, MP_KERNEL_EXPERTS, &args);
}

static void read_partial(placed *p, float *out)
{
    rig_read(p->r, p->partial, out, partial_bytes(p->l));
}

static bool is_untouched(const float *row, uint32_t hidden)
{
    const unsigned char *bytes = (const unsigned char *)row;
    for (size_t i = 0; i < hidden * sizeof *row; i++) {
        if (bytes[i] != UNTOUCHED)
            return false;
    }
    return true;
}

/* The rows in [from, to) hold what the reference says, and no other row was written. */
static void check_partial(const layer *l, const float *partial, uint32_t from, uint32_t to)
{
    uint32_t hidden = l->s.hidden, rows = l->s.tokens * l->s.top_k;
    size_t row_bytes = hidden * (l->math == MOEPAGE_MATH_BF16 ? 2u : 4u);
    double *want = new_bytes(hidden * sizeof *want), *bound = new_bytes(hidden * sizeof *bound);
    bool *written = new_bytes(rows * sizeof *written);
    for (uint32_t e = 0; e < l->s.experts; e++) {
        const mp_ffn_expert *expert = &l->experts[e];
        for (uint32_t i = expert->first_row; i < expert->first_row + expert->n_rows; i++) {
            if (i < from || i >= to)
                continue;
            uint32_t row = l->rows[i];
            written[row] = true;
            const char *x = (const char *)l->x + row / l->s.top_k * row_bytes;
            reference_expert_row(&l->plain[e], x, hidden, l->s.intermediate, l->plain_dtype,
                                 l->math, want, bound);
            for (uint32_t h = 0; h < hidden; h++) {
                double got = partial[(size_t)row * hidden + h];
                if (!(fabs(got - want[h]) <= bound[h]))
                    fail_msg("expert %u, row %u, element %u is %.9g, should be %.9g +- %.2g", e,
                             row, h, got, want[h], bound[h]);
            }
        }
    }
    for (uint32_t row = 0; row < rows; row++)
        assert_int_equal(is_untouched(partial + (size_t)row * hidden, hidden), !written[row]);
    free(want);
    free(bound);
    free(written);
}

static const uint32_t weight_dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16,
                                         MOEPAGE_DTYPE_F8_E4M3};
static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16};

void test_experts_agree_with_double_precision(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    static const shape shapes[] = {
        {1, 1, 1, 1, 1},   {1, 2, 3, 16, 16},  {2, 1, 2, 33, 7},    {9, 3, 5, 24, 40},
        {5, 4, 8, 96, 31}, {30, 2, 3, 65, 66}, {17, 4, 4, 256, 96},
    };
    uint64_t seed = 99;
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t c = all_cases() ? 0 : i % 5; c < 16; c += all_cases() ? 1 : 5) {
            layer *l = new_layer(shapes[i], weight_dtypes[c % 4], maths[c / 4 % 2], c >= 8, &seed);
            if (l->n_rows > 0) {
                float *partial = new_bytes(partial_bytes(l));
                rig r;
                placed p;
                rig_open(&r, 2, 0);
                place_layer(&p, &r, l);
                MUST(r.ops->sync(p.stream, launch_rows(&p, 0, l->n_rows)));
                read_partial(&p, partial);
                check_partial(l, partial, 0, l->n_rows);
                rig_close(&r);
                free(p.experts);
                free(partial);
            }
            free_layer(l);
        }
    }
}

void test_experts_leave_other_rows_alone(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    uint64_t seed = 4;
    layer *l =
        new_layer((shape){8, 3, 4, 40, 24}, MOEPAGE_DTYPE_BF16, MOEPAGE_MATH_FP32, true, &seed);
    float *partial = new_bytes(partial_bytes(l));
    rig r;
    placed p;
    rig_open(&r, 1, 0);
    place_layer(&p, &r, l);
    assert_true(l->n_rows > 6);
    for (uint32_t from = 0; from < l->n_rows; from += 3) {
        uint32_t to = from + 3 < l->n_rows ? from + 3 : l->n_rows;
        clear_partial(&p);
        MUST(r.ops->sync(p.stream, launch_rows(&p, from, to)));
        read_partial(&p, partial);
        check_partial(l, partial, from, to);
    }
    rig_close(&r);
    free(p.experts);
    free(partial);
    free_layer(l);
}

/* All rows, in launches of 1..most rows each. */
static void run_split(placed *p, uint32_t most, uint64_t *seed, float *out)
{
    mp_tick tick = 0;
    clear_partial(p);
    for (uint32_t from = 0, n; from < p->l->n_rows; from += n) {
        n = 1 + random_below(seed, most);
        n = n < p->l->n_rows - from ? n : p->l->n_rows - from;
        tick = launch_rows(p, from, from + n);
    }
    MUST(p->r->ops->sync(p->stream, tick));
    read_partial(p, out);
}

static void check_bits(const layer *l, uint64_t *seed)
{
    size_t n = partial_bytes(l);
    float *first = new_bytes(n), *got = new_bytes(n);
    for (uint32_t threads = 1; threads <= (all_cases() ? 3 : 1); threads++) {
        rig r;
        placed p;
        rig_open(&r, threads, 0);
        place_layer(&p, &r, l);
        MUST(r.ops->sync(p.stream, launch_rows(&p, 0, l->n_rows)));
        read_partial(&p, threads == 1 ? first : got);
        if (threads > 1)
            assert_memory_equal(got, first, n);
        for (uint32_t most = 1; most <= l->n_rows; most = most * (all_cases() ? 2 : 5) + 1) {
            run_split(&p, most, seed, got);
            assert_memory_equal(got, first, n);
        }
        rig_close(&r);
        free(p.experts);
    }
    free(first);
    free(got);
}

void test_experts_bits_do_not_depend_on_splits_or_threads(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    static const shape shapes[] = {{12, 4, 5, 67, 45}, {20, 2, 2, 256, 160}, {5, 3, 6, 512, 513}};
    uint64_t seed = 21;
    for (uint32_t i = 0; i < (all_cases() ? 3 : 2); i++) {
        for (uint32_t c = all_cases() ? 0 : i; c < 8; c += all_cases() ? 1 : 3) {
            layer *l = new_layer(shapes[i], weight_dtypes[c % 4], maths[c / 4], c % 2, &seed);
            check_bits(l, &seed);
            free_layer(l);
        }
    }
}
