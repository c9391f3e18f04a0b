/* The operations of dense.h on a GPU: each is a kernel or two on one stream, on which the library's
 * calls go too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "cuda/machine.h"
#include "cuda/upload.h"

/* More rows than this are worth cuBLAS, and with it the widening of weights. */
#define FEW_ROWS (2 * GPU_LINEAR_ROWS)
/* Weights widened at a time. */
#define WIDE_BYTES ((size_t)64 << 20)
#define ALIGN 256u

typedef struct gpu_dense {
    dense base;
    machine machine;
    const model_config *config;
    model_weights weights; /* in device memory */
    uint32_t block_tokens;
    bool bf16;
    uint32_t n_rows; /* of the step */
    unsigned char *step, *step_pinned;
    bool step_is_read; /* step_pinned may be written */
    gpu_places places;
    const float *cosines, *sines;
    float *fetched; /* pinned */
    void *operand;  /* cuBLAS: weights widened, or activations in BF16 */
} gpu_dense;

static gpu_dense *gpu_of(dense *d)
{
    return (gpu_dense *)d;
}

static uint64_t stretches(uint64_t n)
{
    return (n + GPU_STRETCH - 1) / GPU_STRETCH;
}

/* ---- Memory ------------------------------------------------------------------------------ */

static float *on_gpu_take(dense *d, size_t rows, size_t width)
{
    gpu_dense *g = gpu_of(d);
    const size_t bytes = (rows ? rows : 1) * (width ? width : 1) * sizeof(float);
    float *taken = machine_take(&g->machine, bytes);
    if (taken)
        machine_zero(&g->machine, taken, bytes);
    d->device_bytes = g->machine.bytes;
    return taken;
}

static float *on_gpu_fetch(dense *d, float *x, size_t n)
{
    gpu_dense *g = gpu_of(d);
    machine_copy(&g->machine, g->fetched, x, n * sizeof *x);
    if (machine_settle(&g->machine))
        return NULL;
    g->step_is_read = true;
    return g->fetched;
}

static void on_gpu_close(dense *d)
{
    gpu_dense *g = gpu_of(d);
    machine_close(&g->machine);
    free(g->weights.layers);
    free(g);
}

/* ---- The step ---------------------------------------------------------------------------- */

/* Where the parts of a step lie in its buffer; `bytes` is the whole. */
typedef struct step_layout {
    size_t positions, tables, tokens, cosines, sines, blocks, bytes;
} step_layout;

static size_t lay(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static step_layout lay_out(uint64_t rows, uint32_t half, uint64_t blocks)
{
    step_layout l = {0};
    l.positions = lay(&l.bytes, rows * sizeof(uint64_t));
    l.tables = lay(&l.bytes, rows * sizeof(uint32_t));
    l.tokens = lay(&l.bytes, rows * sizeof(uint32_t));
    l.cosines = lay(&l.bytes, rows * half * sizeof(float));
    l.sines = lay(&l.bytes, rows * half * sizeof(float));
    l.blocks = lay(&l.bytes, blocks * sizeof(uint32_t));
    return l;
}

static void write_step(const dense_step *step, uint32_t half, const step_layout *l,
                       unsigned char *out)
{
    uint64_t *positions = (uint64_t *)(void *)(out + l->positions);
    uint32_t *tables = (uint32_t *)(void *)(out + l->tables);
    uint32_t *tokens = (uint32_t *)(void *)(out + l->tokens);
    uint32_t *blocks = (uint32_t *)(void *)(out + l->blocks), used = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const dense_sequence *s = &step->sequences[i];
        for (uint32_t t = 0; t < s->n_tokens; t++) {
            *positions++ = s->position + t;
            *tables++ = used;
            *tokens++ = s->tokens[t];
        }
        memcpy(blocks + used, s->blocks, s->n_blocks * sizeof *blocks);
        used += (uint32_t)s->n_blocks;
    }
    memcpy(out + l->cosines, step->cosines, (size_t)step->n_rows * half * sizeof(float));
    memcpy(out + l->sines, step->sines, (size_t)step->n_rows * half * sizeof(float));
}

static int on_gpu_begin(dense *d, const dense_step *step, float *hidden)
{
    gpu_dense *g = gpu_of(d);
    const uint32_t half = g->config->rope.dims / 2;
    uint64_t n_blocks = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        n_blocks += step->sequences[i].n_blocks;
    const step_layout l = lay_out(step->n_rows, half, n_blocks);
    /* The last step may have fetched nothing. */
    if (!g->step_is_read && machine_settle(&g->machine))
        return g->machine.code;
    write_step(step, half, &l, g->step_pinned);
    g->step_is_read = false;
    machine_copy(&g->machine, g->step, g->step_pinned, l.bytes);
    g->n_rows = step->n_rows;
    g->places = (gpu_places){(const uint64_t *)(void *)(g->step + l.positions),
                             (const uint32_t *)(void *)(g->step + l.tables),
                             (const uint32_t *)(void *)(g->step + l.blocks)};
    g->cosines = (const float *)(void *)(g->step + l.cosines);
    g->sines = (const float *)(void *)(g->step + l.sines);
    const matrix *table = &d->weights->embedding;
    gpu_embed_args args = {.table = table->data,
                           .tokens = (const uint32_t *)(void *)(g->step + l.tokens),
                           .out = hidden,
                           .dtype = table->dtype,
                           .width = table->columns};
    machine_launch(&g->machine, MACHINE_embed, step->n_rows, &args);
    return g->machine.code;
}

/* ---- Rows -------------------------------------------------------------------------------- */

static void on_gpu_norm(dense *d, const float *x, uint32_t n, uint32_t width,
                        const norm_weights *norm, bool layer_norm, float *out)
{
    gpu_dense *g = gpu_of(d);
    gpu_norm_args args = {.x = x,
                          .scale = norm->scale,
                          .shift = layer_norm ? norm->shift : NULL,
                          .out = out,
                          .width = width,
                          .centre = layer_norm,
                          .eps = norm->eps};
    machine_launch(&g->machine, MACHINE_norm, n, &args);
}

static void each(dense *d, gpu_each_args args)
{
    machine_launch(&gpu_of(d)->machine, MACHINE_each, stretches(args.n), &args);
}

static void on_gpu_round(dense *d, float *x, size_t n)
{
    if (gpu_of(d)->bf16)
        each(d, (gpu_each_args){.x = x, .n = n, .what = GPU_ROUND});
}

static void on_gpu_clip(dense *d, float *x, size_t n, float limit)
{
    each(d, (gpu_each_args){.x = x, .n = n, .what = GPU_CLIP, .limit = limit});
}

static void on_gpu_swiglu(dense *d, float *gate, const float *up, size_t n)
{
    each(d, (gpu_each_args){.x = gate, .other = up, .n = n, .what = GPU_SWIGLU});
}

static void on_gpu_scale(dense *d, float *x, uint32_t n, uint32_t width, const float *gate)
{
    each(d,
         (gpu_each_args){
             .x = x, .other = gate, .n = (uint64_t)n * width, .what = GPU_SCALE, .width = width});
}

static void on_gpu_add(dense *d, float *x, const float *added, size_t n)
{
    each(d, (gpu_each_args){.x = x, .other = added, .n = n, .what = GPU_ADD});
}

/* ---- Products ---------------------------------------------------------------------------- */

static void convert(gpu_dense *g, const void *x, uint32_t dtype, uint64_t n, bool to_bf16)
{
    gpu_convert_args args = {.x = x, .out = g->operand, .n = n, .dtype = dtype, .to_bf16 = to_bf16};
    machine_launch(&g->machine, MACHINE_convert, stretches(n), &args);
}

static void multiply_bf16(gpu_dense *g, const float *x, uint32_t n, const matrix *w, float *y)
{
    convert(g, x, GPU_F32, (uint64_t)n * w->columns, true);
    machine_gemm(&g->machine, w->data, g->operand, true, w->rows, w->columns, n, y, w->rows);
}

/* Weights are widened piece by piece, unless they are floats. */
static void multiply_f32(gpu_dense *g, const float *x, uint32_t n, const matrix *w, float *y)
{
    const bool wide = w->dtype == MOEPAGE_DTYPE_F32;
    const uint32_t fit = (uint32_t)(WIDE_BYTES / sizeof(float) / w->columns);
    const uint32_t piece = wide ? w->rows : fit;
    for (uint32_t row = 0; row < w->rows; row += piece) {
        const uint32_t rows = w->rows - row < piece ? w->rows - row : piece;
        const unsigned char *stored = (const unsigned char *)w->data + row * matrix_row_bytes(w);
        if (!wide)
            convert(g, stored, w->dtype, (uint64_t)rows * w->columns, false);
        machine_gemm(&g->machine, wide ? stored : g->operand, x, false, rows, w->columns, n,
                     y + row, w->rows);
    }
}

static void on_gpu_linear(dense *d, const float *x, uint32_t n, const matrix *w, const float *bias,
                          float *y)
{
    gpu_dense *g = gpu_of(d);
    if (!g->operand || n <= FEW_ROWS || w->columns > WIDE_BYTES / sizeof(float)) {
        gpu_linear_args args = {.x = x,
                                .w = w->data,
                                .bias = bias,
                                .y = y,
                                .n_rows = n,
                                .n_out = w->rows,
                                .columns = w->columns,
                                .dtype = w->dtype};
        machine_launch(&g->machine, MACHINE_linear, gpu_linear_blocks(n, w->rows), &args);
        return;
    }
    if (g->bf16)
        multiply_bf16(g, x, n, w, y);
    else
        multiply_f32(g, x, n, w, y);
    if (bias)
        each(d, (gpu_each_args){.x = y,
                                .other = bias,
                                .n = (uint64_t)n * w->rows,
                                .what = GPU_BIAS,
                                .width = w->rows});
}

/* ---- Heads ------------------------------------------------------------------------------- */

static gpu_kv kv_of(const gpu_dense *g, const moepage_kv_layer_view *view)
{
    return (gpu_kv){.base = view->base,
                    .block_bytes = view->block_bytes,
                    .granule_bytes = view->granule_bytes,
                    .id_stride = view->id_stride,
                    .block_tokens = g->block_tokens,
                    .kv_heads = g->config->kv_heads,
                    .head_dim = g->config->head_dim};
}

static void on_gpu_turn(dense *d, float *x, uint32_t heads, uint32_t width, uint32_t first)
{
    gpu_dense *g = gpu_of(d);
    gpu_turn_args args = {.x = x + first,
                          .cosines = g->cosines,
                          .sines = g->sines,
                          .heads = heads,
                          .width = width,
                          .half = g->config->rope.dims / 2};
    machine_launch(&g->machine, MACHINE_turn, g->n_rows, &args);
}

static void on_gpu_store(dense *d, const dense_attention *a, const float *k, const float *v)
{
    gpu_dense *g = gpu_of(d);
    gpu_store_args args = {.kv = kv_of(g, a->view), .at = g->places, .k = k, .v = v};
    machine_launch(&g->machine, MACHINE_store, g->n_rows, &args);
}

static void on_gpu_attend(dense *d, const dense_attention *a, const float *q, float *out)
{
    gpu_dense *g = gpu_of(d);
    gpu_attend_args args = {.kv = kv_of(g, a->view),
                            .at = g->places,
                            .q = q,
                            .out = out,
                            .heads = g->config->heads,
                            .window = a->window,
                            .scale = g->config->score_scale};
    machine_launch(&g->machine, MACHINE_attend, (uint64_t)g->n_rows * args.heads, &args);
}

static const dense_ops gpu_ops = {
    .take = on_gpu_take,
    .begin = on_gpu_begin,
    .norm = on_gpu_norm,
    .linear = on_gpu_linear,
    .round = on_gpu_round,
    .clip = on_gpu_clip,
    .turn = on_gpu_turn,
    .store = on_gpu_store,
    .attend = on_gpu_attend,
    .swiglu = on_gpu_swiglu,
    .scale = on_gpu_scale,
    .add = on_gpu_add,
    .fetch = on_gpu_fetch,
    .close = on_gpu_close,
};

/* ---- Set-up ------------------------------------------------------------------------------ */

static size_t operand_bytes(const dense_config *config)
{
    const model_config *c = config->model;
    const uint32_t widths[] = {c->hidden, c->heads * c->head_dim, c->dense_intermediate,
                               c->shared_intermediate};
    uint32_t widest = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        widest = widths[i] > widest ? widths[i] : widest;
    return config->math == MOEPAGE_MATH_FP32
               ? WIDE_BYTES
               : (size_t)config->max_tokens * widest * sizeof(uint16_t);
}

static int take_all(gpu_dense *g, const dense_config *config)
{
    machine *m = &g->machine;
    const step_layout most =
        lay_out(config->max_tokens, config->model->rope.dims / 2, config->max_blocks);
    g->step = machine_take(m, most.bytes);
    g->step_pinned = machine_take_pinned(m, most.bytes);
    g->fetched = machine_take_pinned(m, config->max_fetch * sizeof *g->fetched);
    if (m->blas_handle && !m->code)
        g->operand = machine_take(m, operand_bytes(config));
    return m->code;
}

static int on_gpu_open(const dense_config *config, dense **out)
{
    const model_config *c = config->model;
    if (c->head_dim > GPU_MAX_HEAD_DIM)
        return config->fail(RUN_REFUSED,
                            "cuda:%u: heads of %u elements are more than the %u that the example's "
                            "attention has room for: --device host has no limit",
                            config->ordinal, c->head_dim, GPU_MAX_HEAD_DIM);
    gpu_dense *g = calloc(1, sizeof *g);
    if (!g)
        return config->fail(RUN_FAILED, "not enough memory");
    g->base = (dense){.ops = &gpu_ops, .weights = &g->weights};
    g->config = c;
    g->block_tokens = config->block_tokens;
    g->bf16 = config->math != MOEPAGE_MATH_FP32;
    g->step_is_read = true;
    int code = machine_open(&g->machine, config->ordinal, config->cublas, config->fail);
    if (!code)
        code = upload_weights(&g->machine, c, config->weights, config->math, &g->weights);
    if (!code)
        code = take_all(g, config);
    if (code) {
        on_gpu_close(&g->base);
        return code;
    }
    g->base.stream = g->machine.stream;
    g->base.device_bytes = g->machine.bytes;
    g->base.products = g->operand ? "cublas" : "plain";
    *out = &g->base;
    return RUN_OK;
}

extern const dense_plugin dense_cuda_plugin;
__attribute__((visibility("default")))
const dense_plugin dense_cuda_plugin = {DENSE_CUDA_BUILD, sizeof(dense_config), sizeof(dense),
                                        sizeof(dense_ops), on_gpu_open};
