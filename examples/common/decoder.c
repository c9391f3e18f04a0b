/* The forward pass. */
#include "common/decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/fail.h"
#include "common/router.h"

#define HINTS_PER_TOKEN 2

/* ---- Set-up ------------------------------------------------------------------------------ */

static float *rows_of(uint32_t n, size_t width)
{
    return calloc((size_t)n, width ? width * sizeof(float) : sizeof(float));
}

static bool allocate(const model_config *c, uint32_t n, decoder_buffers *b)
{
    uint32_t mlp = c->dense_intermediate > c->shared_intermediate ? c->dense_intermediate
                                                                  : c->shared_intermediate;
    b->hidden = rows_of(n, c->hidden);
    b->normed = rows_of(n, c->hidden);
    b->added = rows_of(n, c->hidden);
    b->shared = rows_of(n, c->shared_intermediate ? c->hidden : 0);
    b->shared_gate = rows_of(n, 1);
    b->q = rows_of(n, (size_t)c->heads * c->head_dim);
    b->attended = rows_of(n, (size_t)c->heads * c->head_dim);
    b->k = rows_of(n, (size_t)c->kv_heads * c->head_dim);
    b->v = rows_of(n, (size_t)c->kv_heads * c->head_dim);
    b->cosines = rows_of(n, c->head_dim / 2);
    b->sines = rows_of(n, c->head_dim / 2);
    b->scores = rows_of(n, c->experts);
    b->weights = rows_of(n, c->top_k);
    b->gate = rows_of(n, mlp);
    b->up = rows_of(n, mlp);
    b->ids = calloc((size_t)n * c->top_k, sizeof *b->ids);
    b->hint = calloc(c->experts, sizeof *b->hint);
    b->hinted = calloc(c->experts, sizeof *b->hinted);
    b->rows = calloc(n, sizeof *b->rows);
    b->sequences = calloc(n, sizeof *b->sequences);
    return b->hidden && b->normed && b->added && b->shared && b->shared_gate && b->q &&
           b->attended && b->k && b->v && b->cosines && b->sines && b->scores && b->weights &&
           b->gate && b->up && b->ids && b->hint && b->hinted && b->rows && b->sequences;
}

static size_t scratch_floats(const model_config *c, uint64_t max_positions)
{
    uint32_t widths[] = {c->hidden, c->heads * c->head_dim, c->dense_intermediate,
                         c->shared_intermediate};
    uint32_t widest = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        widest = widths[i] > widest ? widths[i] : widest;
    size_t linear = compute_scratch_floats(widest);
    size_t scores = attention_scratch_floats(max_positions);
    return linear > scores ? linear : scores;
}

int decoder_open(const model_config *config, const model_weights *w, moepage_session *session,
                 moepage_kv_pool *kv, uint32_t math, bool hints, uint32_t threads,
                 uint32_t max_tokens, uint64_t max_positions, decoder *out)
{
    *out = (decoder){.config = config,
                     .weights = w,
                     .session = session,
                     .kv = kv,
                     .hints = hints,
                     .max_tokens = max_tokens};
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    if (moepage_kv_pool_get_info(kv, &info))
        return fail_library(RUN_FAILED, "KV pool");
    out->compute.kernels = kernels_choose();
    out->compute.math = math;
    out->compute.workers = workers_start(threads, scratch_floats(config, max_positions));
    out->views = calloc(config->layers, sizeof *out->views);
    if (!out->compute.workers || !out->views || !allocate(config, max_tokens, &out->buffers))
        return fail(RUN_FAILED, "cannot have the memory or the %u threads of the decoder", threads);
    out->attention = (attention){&out->compute, config->heads, config->kv_heads, config->head_dim,
                                 info.block_tokens};
    return RUN_OK;
}

void decoder_close(decoder *d)
{
    decoder_buffers *b = &d->buffers;
    void *owned[] = {b->hidden,   b->normed,    b->added, b->shared,  b->shared_gate, b->q,
                     b->attended, b->k,         b->v,     b->cosines, b->sines,       b->scores,
                     b->weights,  b->gate,      b->up,    b->ids,     b->hint,        b->hinted,
                     b->rows,     b->sequences, d->views};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    workers_stop(d->compute.workers);
}

/* ---- Pieces of a layer ------------------------------------------------------------------- */

static void normalize(const decoder *d, const float *x, uint32_t n, const norm_weights *norm,
                      float *out)
{
    const model_config *c = d->config;
    if (c->layer_norm)
        compute_layer_norm(&d->compute, x, n, c->hidden, norm, c->norm_eps, out);
    else
        compute_rms_norm(&d->compute, x, n, c->hidden, norm->scale, c->norm_eps, out);
    compute_round(&d->compute, out, (size_t)n * c->hidden);
}

static void add_to(float *x, const float *added, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += added[i];
}

static void clip(float *x, size_t n, float limit)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

/* Normalises the heads of queries or keys, clips them, and turns them to their positions. */
static void place_heads(const decoder *d, float *x, uint32_t n, uint32_t heads,
                        const norm_weights *norm)
{
    const model_config *c = d->config;
    uint32_t half = c->head_dim / 2, width = heads * c->head_dim;
    if (c->qk_norm == QK_NORM_HEAD)
        compute_rms_norm(&d->compute, x, n * heads, c->head_dim, norm->scale, c->norm_eps, x);
    if (c->qk_norm == QK_NORM_WIDTH)
        compute_rms_norm(&d->compute, x, n, width, norm->scale, c->norm_eps, x);
    if (c->clip_qkv > 0)
        clip(x, (size_t)n * width, c->clip_qkv);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < heads; h++)
            rope_turn(c->head_dim, d->buffers.cosines + (size_t)r * half,
                      d->buffers.sines + (size_t)r * half,
                      x + (size_t)r * width + (size_t)h * c->head_dim);
    compute_round(&d->compute, x, (size_t)n * width);
}

static void run_attention(decoder *d, uint32_t layer, uint32_t n)
{
    const model_config *c = d->config;
    const layer_weights *w = &d->weights->layers[layer];
    decoder_buffers *b = &d->buffers;
    size_t kv_width = (size_t)c->kv_heads * c->head_dim;
    normalize(d, b->hidden, n, &w->input_norm, b->normed);
    compute_linear(&d->compute, b->normed, n, &w->q, w->q_bias, b->q);
    compute_linear(&d->compute, b->normed, n, &w->k, w->k_bias, b->k);
    compute_linear(&d->compute, b->normed, n, &w->v, w->v_bias, b->v);
    place_heads(d, b->q, n, c->heads, &w->q_norm);
    place_heads(d, b->k, n, c->kv_heads, &w->k_norm);
    if (c->clip_qkv > 0)
        clip(b->v, n * kv_width, c->clip_qkv);
    compute_round(&d->compute, b->v, n * kv_width);
    attention_store(&d->attention, &d->views[layer], b->rows, n, b->k, b->v);
    attention_run(&d->attention, &d->views[layer], b->rows, n, c->window[layer], b->q, b->attended);
    compute_round(&d->compute, b->attended, (size_t)n * c->heads * c->head_dim);
    compute_linear(&d->compute, b->attended, n, &w->o, w->o_bias, b->added);
    add_to(b->hidden, b->added, (size_t)n * c->hidden);
}

static void run_mlp(decoder *d, const mlp_weights *w, uint32_t n, float *out)
{
    decoder_buffers *b = &d->buffers;
    size_t inner = (size_t)n * w->gate.rows;
    compute_linear(&d->compute, b->normed, n, &w->gate, NULL, b->gate);
    compute_linear(&d->compute, b->normed, n, &w->up, NULL, b->up);
    compute_swiglu(b->gate, b->up, inner);
    compute_round(&d->compute, b->gate, inner);
    compute_linear(&d->compute, b->gate, n, &w->down, NULL, out);
}

/* The expert that every token takes, weighted by a sigmoid of its own. */
static void run_shared_expert(decoder *d, const layer_weights *w, uint32_t n)
{
    decoder_buffers *b = &d->buffers;
    run_mlp(d, &w->mlp, n, b->shared);
    compute_linear(&d->compute, b->normed, n, &w->shared_gate, NULL, b->shared_gate);
    for (uint32_t r = 0; r < n; r++) {
        float weight = 1.0f / (1.0f + expf(-b->shared_gate[r]));
        float *row = b->shared + (size_t)r * d->config->hidden;
        for (uint32_t i = 0; i < d->config->hidden; i++)
            row[i] *= weight;
    }
}

static void route_row(void *arg, uint32_t row, float *scratch)
{
    const decoder *d = arg;
    const model_config *c = d->config;
    (void)scratch;
    router_choose(c, d->buffers.scores + (size_t)row * c->experts,
                  d->buffers.ids + (size_t)row * c->top_k,
                  d->buffers.weights + (size_t)row * c->top_k);
}

static void run_router(decoder *d, const layer_weights *w, uint32_t n)
{
    const model_config *c = d->config;
    compute_linear(&d->compute, d->buffers.normed, n, &w->router, NULL, d->buffers.scores);
    workers_run(d->compute.workers, n, (uint64_t)n * c->experts * (c->top_k + 16), route_row, d);
}

/* ---- The step ---------------------------------------------------------------------------- */

/* Ends a stretch of time that began at `start`. */
static int timed(uint64_t start, uint64_t *total, moepage_status status, const char *doing)
{
    *total += clock_now_ns() - start;
    return status ? fail_library(RUN_FAILED, doing) : RUN_OK;
}

/* Names the experts that the next layer's router would put first if this layer's experts added
 * nothing: what they add is small beside the residual stream. Only its first choices are sure
 * enough to be worth the bus. */
static moepage_status hint_next(decoder *d, uint32_t layer, uint32_t n)
{
    const model_config *c = d->config;
    decoder_buffers *b = &d->buffers;
    uint32_t next = layer + 1, named = 0;
    if (!d->hints || next == c->layers || c->moe_layer[next] < 0)
        return MOEPAGE_OK;
    uint64_t start = clock_now_ns();
    normalize(d, b->hidden, n, &d->weights->layers[next].post_norm, b->added);
    compute_linear(&d->compute, b->added, n, &d->weights->layers[next].router, NULL, b->scores);
    memset(b->hinted, 0, c->experts * sizeof *b->hinted);
    for (uint32_t r = 0; r < n; r++) {
        int32_t *ids = b->ids + (size_t)r * c->top_k;
        router_choose(c, b->scores + (size_t)r * c->experts, ids,
                      b->weights + (size_t)r * c->top_k);
        for (uint32_t k = 0; k < HINTS_PER_TOKEN && k < c->top_k; k++)
            if (!b->hinted[ids[k]]) {
                b->hinted[ids[k]] = true;
                b->hint[named++] = ids[k];
            }
    }
    d->dense_ns += clock_now_ns() - start;
    return moepage_session_hint(d->session, (uint32_t)c->moe_layer[next], b->hint, named);
}

/* The routed experts: announce, use the loading time for hints and the shared expert, run,
 * retire. */
static int run_experts(decoder *d, uint32_t layer, uint32_t n)
{
    const model_config *c = d->config;
    decoder_buffers *b = &d->buffers;
    uint32_t moe_layer = (uint32_t)c->moe_layer[layer];
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = c->top_k,
                               .ids = b->ids,
                               .weights = b->weights,
                               .probabilities = b->scores};
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = b->normed,
                       .y = b->added};
    uint64_t start = clock_now_ns();
    int code = timed(start, &d->library_ns,
                     moepage_session_route(d->session, moe_layer, &routing, NULL), "routing");
    if (!code && hint_next(d, layer, n))
        code = fail_library(RUN_FAILED, "hint");
    if (code)
        return code;
    if (c->shared_intermediate) {
        start = clock_now_ns();
        run_shared_expert(d, &d->weights->layers[layer], n);
        d->dense_ns += clock_now_ns() - start;
    }
    start = clock_now_ns();
    moepage_status status = moepage_session_ffn(d->session, moe_layer, &ffn);
    if (!status)
        status = moepage_session_retire(d->session, moe_layer);
    return timed(start, &d->library_ns, status, "experts");
}

static int run_layer(decoder *d, uint32_t layer, uint32_t n)
{
    const layer_weights *w = &d->weights->layers[layer];
    decoder_buffers *b = &d->buffers;
    size_t width = d->config->hidden;
    bool sparse = d->config->moe_layer[layer] >= 0;

    uint64_t start = clock_now_ns();
    run_attention(d, layer, n);
    normalize(d, b->hidden, n, &w->post_norm, b->normed);
    if (sparse)
        run_router(d, w, n);
    else
        run_mlp(d, &w->mlp, n, b->added);
    d->dense_ns += clock_now_ns() - start;
    if (sparse) {
        int code = run_experts(d, layer, n);
        if (code)
            return code;
    }
    start = clock_now_ns();
    if (sparse && d->config->shared_intermediate)
        add_to(b->added, b->shared, n * width);
    add_to(b->hidden, b->added, n * width);
    d->dense_ns += clock_now_ns() - start;
    return RUN_OK;
}

/* Makes room for the new tokens and says where every row goes. */
static int place_rows(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    attention_row *row = d->buffers.rows;
    for (uint32_t i = 0; i < n_inputs; i++)
        if (moepage_kv_append(d->kv, inputs[i].seq, inputs[i].n_tokens, NULL))
            return fail_library(RUN_FAILED, "KV cache");
    for (uint32_t i = 0; i < n_inputs; i++) {
        moepage_kv_table table = {.struct_size = sizeof table};
        if (moepage_kv_get_table(d->kv, inputs[i].seq, &table))
            return fail_library(RUN_FAILED, "KV cache");
        for (uint32_t t = 0; t < inputs[i].n_tokens; t++)
            *row++ = (attention_row){table.blocks, inputs[i].position + t};
        d->buffers.sequences[i] =
            (moepage_step_sequence){inputs[i].seq, inputs[i].n_tokens, inputs[i].phase};
    }
    for (uint32_t l = 0; l < d->config->layers; l++) {
        d->views[l].struct_size = sizeof d->views[l];
        if (moepage_kv_pool_get_layer(d->kv, l, &d->views[l]))
            return fail_library(RUN_FAILED, "KV cache");
    }
    return RUN_OK;
}

/* Embeds the tokens and computes the angles of their positions. */
static uint32_t embed(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    const matrix *table = &d->weights->embedding;
    uint32_t half = d->config->head_dim / 2, n = 0;
    size_t row_bytes = matrix_row_bytes(table);
    for (uint32_t i = 0; i < n_inputs; i++)
        for (uint32_t t = 0; t < inputs[i].n_tokens; t++, n++) {
            const unsigned char *row = table->data;
            d->compute.kernels->widen(d->buffers.hidden + (size_t)n * table->columns,
                                      row + inputs[i].tokens[t] * row_bytes, table->dtype,
                                      table->columns);
            rope_angles(&d->config->rope, d->buffers.rows[n].position,
                        d->buffers.cosines + (size_t)n * half, d->buffers.sines + (size_t)n * half);
        }
    return n;
}

int decoder_step(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    int code = place_rows(d, inputs, n_inputs);
    if (code)
        return code;
    uint64_t start = clock_now_ns();
    uint32_t n = embed(d, inputs, n_inputs);
    d->dense_ns += clock_now_ns() - start;
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = n,
                         .n_sequences = n_inputs,
                         .sequences = d->buffers.sequences};
    start = clock_now_ns();
    code = timed(start, &d->library_ns, moepage_session_begin(d->session, &step), "step");
    if (code)
        return code;
    for (uint32_t l = 0; l < d->config->layers && !code; l++)
        code = run_layer(d, l, n);
    if (!code) {
        start = clock_now_ns();
        code = timed(start, &d->library_ns, moepage_session_end(d->session, NULL), "step");
    }
    if (code)
        moepage_session_cancel(d->session);
    return code;
}

void decoder_logits(decoder *d, uint32_t first_row, uint32_t n, float *out)
{
    uint64_t start = clock_now_ns();
    normalize(d, d->buffers.hidden + (size_t)first_row * d->config->hidden, n,
              &d->weights->final_norm, d->buffers.normed);
    compute_linear(&d->compute, d->buffers.normed, n, &d->weights->head, d->weights->head_bias,
                   out);
    d->dense_ns += clock_now_ns() - start;
}
