/* Dense operations on the CPU, on ordinary memory: products by the library, and those of compute.h and
 * attention.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/attention.h"
#include "common/compute.h"
#include "common/dense.h"
#include "common/fail.h"
#include "common/rope.h"

#define MAX_TAKEN 32

typedef struct host_dense {
    dense base;
    const model_config *config;
    const dense_step *step;
    compute compute;
    attention attention;
    moepage_device *device;
    attention_row *rows; /* [max_tokens] */
    uint16_t *operands;  /* BF16 math: a product's rows */
    float *head,
        *head_out; /* of several rows, latent attention alone: one head's, and their product */
    int code;      /* the first failure */
    void *taken[MAX_TAKEN];
    uint32_t n_taken;
} host_dense;

static host_dense *host_of(dense *d)
{
    return (host_dense *)d;
}

/* ---- Memory ------------------------------------------------------------------------------ */

static float *host_take(dense *d, size_t rows, size_t width)
{
    host_dense *h = host_of(d);
    float *taken = NULL;
    if (h->n_taken < MAX_TAKEN)
        taken = calloc(rows ? rows : 1, (width ? width : 1) * sizeof *taken);
    if (!taken) {
        fail_memory();
        return NULL;
    }
    h->taken[h->n_taken++] = taken;
    return taken;
}

static void host_close(dense *d)
{
    host_dense *h = host_of(d);
    for (uint32_t i = 0; i < h->n_taken; i++)
        free(h->taken[i]);
    free(h->rows);
    free(h->operands);
    free(h->head);
    free(h->head_out);
    free(h);
}

static float *host_fetch(dense *d, float *x, size_t n)
{
    (void)n;
    return host_of(d)->code ? NULL : x;
}

/* ---- The step ---------------------------------------------------------------------------- */

static int host_begin(dense *d, const dense_step *step, float *hidden)
{
    host_dense *h = host_of(d);
    const uint32_t width = d->weights->embedding.columns;
    attention_row *row = h->rows;
    int code = h->code;
    h->step = step;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const dense_sequence *s = &step->sequences[i];
        for (uint32_t t = 0; t < s->n_tokens && !code; t++, hidden += width) {
            *row++ = (attention_row){s->blocks, s->position + t};
            code = weights_read_embedding(d->weights, s->tokens[t], 0, width, hidden);
        }
    }
    return code;
}

static void host_turn(dense *d, float *x, uint32_t heads, uint32_t width, uint32_t first)
{
    const host_dense *h = host_of(d);
    const rope *turn = &h->config->rope;
    const uint32_t half = turn->dims / 2;
    for (uint32_t r = 0; r < h->step->n_rows; r++)
        for (uint32_t i = 0; i < heads; i++)
            rope_turn(turn, h->step->cosines + (size_t)r * half, h->step->sines + (size_t)r * half,
                      x + ((size_t)r * heads + i) * width + first);
}

static void host_store(dense *d, const dense_attention *a, const float *k, const float *v)
{
    const host_dense *h = host_of(d);
    attention_store(&h->attention, a->view, h->rows, h->step->n_rows, k, v);
}

static void host_attend(dense *d, const dense_attention *a, const float *q, float *out)
{
    const host_dense *h = host_of(d);
    attention_run(&h->attention, a->view, h->rows, h->step->n_rows, a->window, a->sinks, q, out);
}

/* ---- Rows -------------------------------------------------------------------------------- */

static void host_norm(dense *d, const float *x, uint32_t n, uint32_t width,
                      const norm_weights *norm, bool layer_norm, float *out)
{
    const host_dense *h = host_of(d);
    if (layer_norm)
        compute_layer_norm(&h->compute, x, n, width, norm, norm->eps, out);
    else
        compute_rms_norm(&h->compute, x, n, width, norm->scale, norm->eps, out);
}

/* Returns rows as the operands of BF16 products: callers have rounded them, so that the upper halves are
 * all of them. */
static const uint16_t *narrow(host_dense *h, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        h->operands[i] = (uint16_t)(bits >> 16);
    }
    return h->operands;
}

/* In 8 bits a matrix of floats, such as a router, is multiplied as it is stored: rounding x for it
 * would gain nothing. */
static uint32_t math_of(const host_dense *h, const matrix *w)
{
    const bool floats = w->dtype < MOEPAGE_DTYPE_Q4_0;
    return h->compute.math == MOEPAGE_MATH_INT8 && floats ? MOEPAGE_MATH_FP32 : h->compute.math;
}

static void host_linear(dense *d, const float *x, uint32_t n, const matrix *w, const float *bias,
                        float *y)
{
    host_dense *h = host_of(d);
    const uint32_t math = math_of(h, w);
    const bool bf16 = math == MOEPAGE_MATH_BF16 || math == MOEPAGE_MATH_BF16_FAST;
    const moepage_linear linear =
        MOEPAGE_LINEAR(.math = math, .n_rows = n, .n_in = w->columns, .n_out = w->rows,
                       .x_dtype = bf16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32,
                       .w_dtype = w->dtype,
                       .x = bf16 ? (const void *)narrow(h, x, (size_t)n * w->columns) : x,
                       .w = w->data, .bias = bias, .out = y, .scales = w->scales,
                       .scale_dtype = w->scale_dtype, .block_rows = w->block_rows,
                       .block_columns = w->block_columns);
    if (!h->code && moepage_device_linear(h->device, &linear))
        h->code = fail_library(RUN_FAILED, "dense product");
}

/* Where a head's elements are in rows of all heads. */
typedef struct head_rows {
    float *x;
    uint32_t head_width;
    uint32_t row_width;
} head_rows;

static void copy_rows(float *to, size_t to_width, const float *from, size_t from_width, uint32_t n,
                      uint32_t width)
{
    for (uint32_t r = 0; r < n; r++)
        memcpy(to + r * to_width, from + r * from_width, width * sizeof *to);
}

/* Multiplies each head's rows by its matrix. A product takes and gives rows without gaps. */
static void multiply_heads(dense *d, const head_rows *x, uint32_t n, const head_matrices *w,
                           const head_rows *y)
{
    host_dense *h = host_of(d);
    for (uint32_t i = 0; i < h->config->heads; i++) {
        const matrix own = head_matrix(w, i);
        const float *from = x->x + (size_t)i * x->head_width;
        float *to = y->x + (size_t)i * y->head_width;
        if (n == 1) {
            host_linear(d, from, 1, &own, NULL, to);
            continue;
        }
        copy_rows(h->head, own.columns, from, x->row_width, n, own.columns);
        host_linear(d, h->head, n, &own, NULL, h->head_out);
        copy_rows(to, y->row_width, h->head_out, own.rows, n, own.rows);
    }
}

static head_rows rows_of_heads(const host_dense *h, const float *x, uint32_t head_width)
{
    return (head_rows){(float *)(uintptr_t)x, head_width, h->config->heads * head_width};
}

static void host_absorb(dense *d, const float *q, uint32_t n, const head_matrices *keys, float *out)
{
    const host_dense *h = host_of(d);
    const latent_config *l = &h->config->latent;
    const head_rows from = rows_of_heads(h, q, l->plain + l->turned);
    const head_rows to = rows_of_heads(h, out, l->rank + l->turned);
    multiply_heads(d, &from, n, keys, &to);
    copy_rows(out + l->rank, to.head_width, q + l->plain, from.head_width, n * h->config->heads,
              l->turned);
}

static void host_expand(dense *d, const float *x, uint32_t n, const head_matrices *values,
                        float *out)
{
    const host_dense *h = host_of(d);
    const head_rows from = rows_of_heads(h, x, h->config->latent.rank);
    const head_rows to = rows_of_heads(h, out, h->config->latent.value);
    multiply_heads(d, &from, n, values, &to);
}

static void host_round(dense *d, float *x, size_t n)
{
    compute_round(&host_of(d)->compute, x, n);
}

static void host_clip(dense *d, float *x, size_t n, float limit)
{
    (void)d;
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

static void host_swiglu(dense *d, float *gate, const float *up, size_t n)
{
    (void)d;
    compute_swiglu(gate, up, n);
}

static void host_scale(dense *d, float *x, uint32_t n, uint32_t width, const float *gate)
{
    (void)d;
    for (uint32_t r = 0; r < n; r++) {
        float weight = 1.0f / (1.0f + expf(-gate[r]));
        float *row = x + (size_t)r * width;
        for (uint32_t i = 0; i < width; i++)
            row[i] *= weight;
    }
}

static void host_add(dense *d, float *x, const float *added, size_t n)
{
    (void)d;
    for (size_t i = 0; i < n; i++)
        x[i] += added[i];
}

static const dense_ops host_ops = {
    .take = host_take,
    .begin = host_begin,
    .norm = host_norm,
    .linear = host_linear,
    .round = host_round,
    .clip = host_clip,
    .turn = host_turn,
    .absorb = host_absorb,
    .expand = host_expand,
    .store = host_store,
    .attend = host_attend,
    .swiglu = host_swiglu,
    .scale = host_scale,
    .add = host_add,
    .fetch = host_fetch,
    .close = host_close,
};

/* ---- Set-up ------------------------------------------------------------------------------ */

size_t dense_host_scratch(uint64_t max_positions, uint32_t block_tokens)
{
    return attention_scratch_floats(max_positions, block_tokens);
}

int dense_host_open(const dense_config *config, dense **out)
{
    const model_config *c = config->model;
    host_dense *h = calloc(1, sizeof *h);
    if (!h)
        return fail_memory();
    *h = (host_dense){
        .base = {.ops = &host_ops, .weights = config->weights, .products = "host"},
        .config = c,
        .compute = {config->workers, kernels_choose(), config->math},
        .device = config->device,
        .rows = calloc(config->max_tokens, sizeof *h->rows),
        .operands = malloc((size_t)config->max_tokens * config_widest(c) * sizeof *h->operands),
    };
    h->attention = attention_of(c, &h->compute, config->block_tokens);
    const uint32_t widest = config_widest(c);
    if (c->latent.rank) {
        h->head = malloc((size_t)config->max_tokens * widest * sizeof *h->head);
        h->head_out = malloc((size_t)config->max_tokens * widest * sizeof *h->head_out);
    }
    if (!h->rows || !h->operands || (c->latent.rank && (!h->head || !h->head_out))) {
        host_close(&h->base);
        return fail_memory();
    }
    *out = &h->base;
    return RUN_OK;
}
