/* The forward pass. */
#include "common/decoder.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/fail.h"
#include "common/kernels.h"
#include "common/rope.h"
#include "common/router.h"

#define HINTS_PER_TOKEN 2
#define EMBEDDED_AT_ONCE 256u /* values; whole blocks of any format */

/* ---- Set-up ------------------------------------------------------------------------------ */

static bool take_buffers(dense *d, const model_config *c, uint32_t n, decoder_buffers *b)
{
    const latent_config *l = &c->latent;
    const size_t kv_width = (size_t)c->kv_heads * c->head_dim;
    const uint32_t mlp = c->dense_intermediate > c->shared_intermediate ? c->dense_intermediate
                                                                        : c->shared_intermediate;
    const struct {
        float **buffer;
        size_t rows, width;
    } wanted[] = {
        {&b->hidden, n, c->hidden},
        {&b->normed, n, c->hidden},
        {&b->added, n, c->hidden},
        {&b->shared, n, c->shared_intermediate ? c->hidden : 0},
        {&b->shared_gate, n, 1},
        {&b->q, n, config_q_width(c)},
        {&b->attended, n, (size_t)c->heads * c->value_dim},
        {&b->q_low, n, l->q_rank},
        {&b->absorbed, n, l->rank ? (size_t)c->heads * c->head_dim : 0},
        {&b->expanded, n, l->rank ? config_o_width(c) : 0},
        {&b->k, n, kv_width},
        {&b->v, n, kv_width},
        {&b->scores, n, c->experts},
        {&b->gate, n, mlp},
        {&b->up, n, mlp},
        {&b->logits, DECODER_LOGIT_ROWS, c->vocabulary},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*wanted[i].buffer = d->ops->take(d, wanted[i].rows, wanted[i].width)))
            return false;
    return true;
}

/* Allocates the rows that the library gets in addition to the routing. */
static bool allocate_told(const decoder_config *config, decoder_rows *r)
{
    const struct {
        bool wanted;
        float **rows;
        size_t width;
    } told[] = {
        {config->tell_logits, &r->logits, config->model->experts},
        {config->tell_hidden, &r->hidden, config->model->hidden},
        {config->tell_semantic, &r->semantic, config->model->hidden},
    };
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (told[i].wanted &&
            !(*told[i].rows = calloc(config->max_tokens, told[i].width * sizeof(float))))
            return false;
    return true;
}

static bool allocate_rows(const decoder_config *config, decoder_rows *r)
{
    const model_config *c = config->model;
    const uint32_t n = config->max_tokens;
    r->cosines = calloc(n, (c->rope.dims / 2) * sizeof *r->cosines);
    r->sines = calloc(n, (c->rope.dims / 2) * sizeof *r->sines);
    r->ids = calloc((size_t)n * c->top_k, sizeof *r->ids);
    r->weights = calloc((size_t)n * c->top_k, sizeof *r->weights);
    r->hint = calloc(c->experts, sizeof *r->hint);
    r->hinted = calloc(c->experts, sizeof *r->hinted);
    r->inputs = calloc(n, sizeof *r->inputs);
    r->sequences = calloc(n, sizeof *r->sequences);
    return r->cosines && r->sines && r->ids && r->weights && r->hint && r->hinted && r->inputs &&
           r->sequences && allocate_told(config, r);
}

/* Returns the largest fetch: router scores of a step, or their input if the library gets it, or
 * logits. */
static uint64_t largest_fetch(const decoder_config *config)
{
    const model_config *c = config->model;
    uint64_t width = config->tell_hidden && c->hidden > c->experts ? c->hidden : c->experts;
    uint64_t rows = config->max_tokens * width;
    uint64_t logits = (uint64_t)DECODER_LOGIT_ROWS * c->vocabulary;
    return rows > logits ? rows : logits;
}

static int open_dense(const decoder_config *config, const moepage_kv_pool_info *kv, workers *pool,
                      dense **out)
{
    dense_config how = {.device = config->device,
                        .model = config->model,
                        .weights = config->weights,
                        .math = config->math,
                        .workers = pool,
                        .max_tokens = config->max_tokens,
                        .max_positions = config->max_positions,
                        .max_blocks = config->max_blocks ? config->max_blocks : kv->blocks,
                        .block_tokens = kv->block_tokens,
                        .max_fetch = largest_fetch(config),
                        .ordinal = config->ordinal,
                        .cublas = config->cublas,
                        .fail = fail};
    if (config->cuda && config->model->sinks)
        return fail(RUN_REFUSED, "attention with sinks is computed on the host only");
    if (config->cuda && config->model->latent.rank)
        return fail(RUN_REFUSED, "attention with latents is computed on the host only");
    return config->cuda ? config->cuda->open(&how, out) : dense_host_open(&how, out);
}

int decoder_open(const decoder_config *config, decoder *out)
{
    const model_config *model = config->model;
    *out = (decoder){.config = model,
                     .session = config->session,
                     .kv = config->kv,
                     .hints = config->hints,
                     .reserved = config->reserved,
                     .before_layer = config->before_layer,
                     .before_user = config->before_user,
                     .stored = config->weights,
                     .choose = config->choose ? config->choose : router_choose,
                     .choose_user = config->choose_user};
    moepage_kv_pool_info kv = {.struct_size = sizeof kv};
    if (moepage_kv_pool_get_info(config->kv, &kv))
        return fail_library(RUN_FAILED, "KV pool");
    out->workers =
        workers_start(config->threads, dense_host_scratch(config->max_positions, kv.block_tokens));
    out->views = calloc(model->layers, sizeof *out->views);
    if (!out->workers || !out->views || !allocate_rows(config, &out->rows))
        return fail(RUN_FAILED, "no memory or no threads (%u) for the decoder", config->threads);
    int code = open_dense(config, &kv, out->workers, &out->dense);
    if (!code && !take_buffers(out->dense, model, config->max_tokens, &out->buffers))
        code = RUN_FAILED;
    return code;
}

void decoder_close(decoder *d)
{
    decoder_rows *r = &d->rows;
    void *owned[] = {r->cosines,  r->sines, r->ids,    r->weights, r->logits,    r->hidden,
                     r->semantic, r->hint,  r->hinted, r->inputs,  r->sequences, d->views};
    if (d->dense)
        d->dense->ops->close(d->dense);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    workers_stop(d->workers);
}

/* ---- Pieces of a layer ------------------------------------------------------------------- */

static const layer_weights *layer_of(const decoder *d, uint32_t layer)
{
    return &d->dense->weights->layers[layer];
}

/* The CPU chooses, wherever the weights of operations are. */
static const float *choice_bias(const decoder *d, uint32_t layer)
{
    return d->stored->layers[layer].choice_bias;
}

static void normalize(const decoder *d, const float *x, uint32_t n, const norm_weights *norm,
                      float *out)
{
    const model_config *c = d->config;
    const dense_ops *ops = d->dense->ops;
    ops->norm(d->dense, x, n, c->hidden, norm, c->layer_norm, out);
    ops->round(d->dense, out, (size_t)n * c->hidden);
}

/* Normalises the heads of queries or keys, clips them, and rotates them to their positions. */
static void place_heads(const decoder *d, float *x, uint32_t n, uint32_t heads,
                        const norm_weights *norm)
{
    const model_config *c = d->config;
    const dense_ops *ops = d->dense->ops;
    const uint32_t width = heads * c->head_dim;
    if (c->qk_norm == QK_NORM_HEAD)
        ops->norm(d->dense, x, n * heads, c->head_dim, norm, false, x);
    if (c->qk_norm == QK_NORM_WIDTH)
        ops->norm(d->dense, x, n, width, norm, false, x);
    if (c->clip_qkv > 0)
        ops->clip(d->dense, x, (size_t)n * width, c->clip_qkv);
    ops->turn(d->dense, x, heads, c->head_dim, 0);
    ops->round(d->dense, x, (size_t)n * width);
}

/* Computes the queries, keys and values of each head. */
static void project_heads(decoder *d, const layer_weights *w, uint32_t n)
{
    const model_config *c = d->config;
    const dense_ops *ops = d->dense->ops;
    decoder_buffers *b = &d->buffers;
    const size_t kv_width = (size_t)c->kv_heads * c->head_dim;
    ops->linear(d->dense, b->normed, n, &w->q, w->q_bias, b->q);
    ops->linear(d->dense, b->normed, n, &w->k, w->k_bias, b->k);
    ops->linear(d->dense, b->normed, n, &w->v, w->v_bias, b->v);
    place_heads(d, b->q, n, c->heads, &w->q_norm);
    place_heads(d, b->k, n, c->kv_heads, &w->k_norm);
    if (c->clip_qkv > 0)
        ops->clip(d->dense, b->v, n * kv_width, c->clip_qkv);
    ops->round(d->dense, b->v, n * kv_width);
}

/* Norms, but of a vector of low rank. */
static void normalize_low(const decoder *d, float *x, uint32_t n, const matrix *from,
                          const norm_weights *norm)
{
    d->dense->ops->norm(d->dense, x, n, from->rows, norm, false, x);
    d->dense->ops->round(d->dense, x, (size_t)n * from->rows);
}

/* Computes each head's queries of latents, the latent vector, and its rotated key. */
static void project_latent(decoder *d, const layer_weights *w, uint32_t n)
{
    const model_config *c = d->config;
    const latent_config *l = &c->latent;
    const latent_weights *low = &w->latent;
    const dense_ops *ops = d->dense->ops;
    decoder_buffers *b = &d->buffers;
    const float *queried = l->q_rank ? b->q_low : b->normed;
    if (l->q_rank) {
        ops->linear(d->dense, b->normed, n, &low->q_low, NULL, b->q_low);
        normalize_low(d, b->q_low, n, &low->q_low, &low->q_norm);
    }
    ops->linear(d->dense, queried, n, &w->q, NULL, b->q);
    ops->linear(d->dense, b->normed, n, &low->vector, NULL, b->v);
    ops->linear(d->dense, b->normed, n, &low->turned, NULL, b->k);
    normalize_low(d, b->v, n, &low->vector, &low->norm);
    ops->turn(d->dense, b->q, c->heads, l->plain + l->turned, l->plain);
    ops->turn(d->dense, b->k, 1, l->turned, 0);
    ops->round(d->dense, b->q, (size_t)n * config_q_width(c));
    ops->round(d->dense, b->k, (size_t)n * l->turned);
    ops->absorb(d->dense, b->q, n, &low->keys, b->absorbed);
    ops->round(d->dense, b->absorbed, (size_t)n * c->heads * c->head_dim);
}

static void run_attention(decoder *d, uint32_t layer, uint32_t n)
{
    const model_config *c = d->config;
    const layer_weights *w = layer_of(d, layer);
    const dense_ops *ops = d->dense->ops;
    const dense_attention how = {&d->views[layer], c->window[layer], w->sinks};
    decoder_buffers *b = &d->buffers;
    const bool latent = c->latent.rank > 0;
    float *summed = latent ? b->expanded : b->attended;
    normalize(d, b->hidden, n, &w->input_norm, b->normed);
    (latent ? project_latent : project_heads)(d, w, n);
    ops->store(d->dense, &how, b->k, b->v);
    ops->attend(d->dense, &how, latent ? b->absorbed : b->q, b->attended);
    ops->round(d->dense, b->attended, (size_t)n * c->heads * c->value_dim);
    if (latent) {
        ops->expand(d->dense, b->attended, n, &w->latent.values, b->expanded);
        ops->round(d->dense, b->expanded, (size_t)n * config_o_width(c));
    }
    ops->linear(d->dense, summed, n, &w->o, w->o_bias, b->added);
    ops->add(d->dense, b->hidden, b->added, (size_t)n * c->hidden);
}

static void run_mlp(decoder *d, const mlp_weights *w, uint32_t n, float *out)
{
    const dense_ops *ops = d->dense->ops;
    decoder_buffers *b = &d->buffers;
    const size_t inner = (size_t)n * w->gate.rows;
    ops->linear(d->dense, b->normed, n, &w->gate, NULL, b->gate);
    ops->linear(d->dense, b->normed, n, &w->up, NULL, b->up);
    ops->swiglu(d->dense, b->gate, b->up, inner);
    ops->round(d->dense, b->gate, inner);
    ops->linear(d->dense, b->gate, n, &w->down, NULL, out);
}

/* Runs the experts that every token takes. */
static void run_shared_expert(decoder *d, const layer_weights *w, uint32_t n)
{
    const dense_ops *ops = d->dense->ops;
    decoder_buffers *b = &d->buffers;
    run_mlp(d, &w->mlp, n, b->shared);
    if (d->config->shared != SHARED_GATED)
        return;
    ops->linear(d->dense, b->normed, n, &w->shared_gate, NULL, b->shared_gate);
    ops->scale(d->dense, b->shared, n, d->config->hidden, b->shared_gate);
}

/* Returns router logits of `x` in memory where the CPU can turn them into probabilities; NULL on
 * failure. */
static float *fetch_scores(decoder *d, const float *x, const layer_weights *w, uint32_t n)
{
    decoder_buffers *b = &d->buffers;
    d->dense->ops->linear(d->dense, x, n, &w->router, w->router_bias, b->scores);
    return d->dense->ops->fetch(d->dense, b->scores, (size_t)n * d->config->experts);
}

typedef struct routing_job {
    const decoder *d;
    const float *bias;
    float *scores;
} routing_job;

static void route_row(void *arg, uint32_t row, float *scratch)
{
    const routing_job *job = arg;
    const model_config *c = job->d->config;
    float *scores = job->scores + (size_t)row * c->experts;
    (void)scratch;
    if (job->d->rows.logits)
        memcpy(job->d->rows.logits + (size_t)row * c->experts, scores, c->experts * sizeof *scores);
    job->d->choose(job->d->choose_user, c, job->bias, scores,
                   job->d->rows.ids + (size_t)row * c->top_k,
                   job->d->rows.weights + (size_t)row * c->top_k);
}

/* Copies the router's input to memory that the library can read. */
static bool keep_hidden(decoder *d, uint32_t n)
{
    const size_t values = (size_t)n * d->config->hidden;
    if (!d->rows.hidden)
        return true;
    const float *hidden = d->dense->ops->fetch(d->dense, d->buffers.normed, values);
    if (hidden)
        memcpy(d->rows.hidden, hidden, values * sizeof *hidden);
    return hidden != NULL;
}

/* Computes the rows' experts and their weights; *probabilities is valid until the next fetch. */
static int run_router(decoder *d, uint32_t layer, uint32_t n, float **probabilities)
{
    const model_config *c = d->config;
    if (!keep_hidden(d, n))
        return RUN_FAILED;
    routing_job job = {d, choice_bias(d, layer),
                       fetch_scores(d, d->buffers.normed, layer_of(d, layer), n)};
    if (!job.scores)
        return RUN_FAILED;
    workers_run(d->workers, n, (uint64_t)n * c->experts * (c->top_k + 16), route_row, &job);
    *probabilities = job.scores;
    return RUN_OK;
}

/* ---- The step ---------------------------------------------------------------------------- */

/* Adds the time since `start` to a total, and reports a failure. */
static int timed(uint64_t start, uint64_t *total, moepage_status status, const char *doing)
{
    *total += clock_now_ns() - start;
    return status ? fail_library(RUN_FAILED, doing) : RUN_OK;
}

/* Names the experts that the next layer's router would choose if this layer's experts added
 * nothing: their contribution is small compared with the residual stream. Only the first choices
 * are likely enough to be worth the bus. */
static int hint_next(decoder *d, uint32_t layer, uint32_t n)
{
    const model_config *c = d->config;
    decoder_rows *r = &d->rows;
    uint32_t next = layer + 1, named = 0;
    if (!d->hints || next == c->layers || c->moe_layer[next] < 0)
        return RUN_OK;
    uint64_t start = clock_now_ns();
    normalize(d, d->buffers.hidden, n, &layer_of(d, next)->post_norm, d->buffers.added);
    float *scores = fetch_scores(d, d->buffers.added, layer_of(d, next), n);
    if (!scores)
        return RUN_FAILED;
    memset(r->hinted, 0, c->experts * sizeof *r->hinted);
    for (uint32_t row = 0; row < n; row++) {
        int32_t *ids = r->ids + (size_t)row * c->top_k;
        router_choose(NULL, c, choice_bias(d, next), scores + (size_t)row * c->experts, ids,
                      r->weights + (size_t)row * c->top_k);
        for (uint32_t k = 0; k < HINTS_PER_TOKEN && k < c->top_k; k++)
            if (!r->hinted[ids[k]]) {
                r->hinted[ids[k]] = true;
                r->hint[named++] = ids[k];
            }
    }
    d->dense_ns += clock_now_ns() - start;
    if (moepage_session_hint(d->session, (uint32_t)c->moe_layer[next], r->hint, named))
        return fail_library(RUN_FAILED, "hint");
    return RUN_OK;
}

static int announce(decoder *d, uint32_t layer, const float *probabilities)
{
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = d->config->top_k,
                               .ids = d->rows.ids,
                               .weights = d->rows.weights,
                               .probabilities = probabilities,
                               .stream = d->dense->stream,
                               .logits = d->rows.logits,
                               .hidden = d->rows.hidden};
    uint64_t start = clock_now_ns();
    moepage_status status =
        moepage_session_route(d->session, (uint32_t)d->config->moe_layer[layer], &routing, NULL);
    return timed(start, &d->library_ns, status, "routing");
}

/* Runs the routed experts: announces them, uses the loading time for hints and the shared expert,
 * computes, retires. */
static int run_experts(decoder *d, uint32_t layer, uint32_t n, const float *probabilities)
{
    const uint32_t moe_layer = (uint32_t)d->config->moe_layer[layer];
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = d->buffers.normed,
                       .y = d->buffers.added,
                       .stream = d->dense->stream};
    int code = announce(d, layer, probabilities);
    if (!code)
        code = hint_next(d, layer, n);
    if (code)
        return code;
    uint64_t start = clock_now_ns();
    if (d->config->shared_intermediate) {
        run_shared_expert(d, layer_of(d, layer), n);
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
    const layer_weights *w = layer_of(d, layer);
    const dense_ops *ops = d->dense->ops;
    decoder_buffers *b = &d->buffers;
    const size_t width = d->config->hidden;
    const bool sparse = d->config->moe_layer[layer] >= 0;
    float *probabilities = NULL;
    int code = RUN_OK;

    uint64_t start = clock_now_ns();
    run_attention(d, layer, n);
    normalize(d, b->hidden, n, &w->post_norm, b->normed);
    if (sparse)
        code = run_router(d, layer, n, &probabilities);
    else
        run_mlp(d, &w->mlp, n, b->added);
    d->dense_ns += clock_now_ns() - start;
    if (sparse && !code)
        code = run_experts(d, layer, n, probabilities);
    if (code)
        return code;
    start = clock_now_ns();
    if (sparse && d->config->shared_intermediate)
        ops->add(d->dense, b->added, b->shared, n * width);
    ops->add(d->dense, b->hidden, b->added, n * width);
    d->dense_ns += clock_now_ns() - start;
    return RUN_OK;
}

/* Computes the embedding of a sequence's part of the step: the mean of its tokens' embeddings. */
static int embed_mean(const decoder *d, const decoder_input *input, float *out)
{
    const matrix *e = &d->stored->embedding;
    const kernels *k = kernels_choose();
    const float share = 1.0f / (float)input->n_tokens;
    float row[EMBEDDED_AT_ONCE];
    memset(out, 0, e->columns * sizeof *out);
    for (uint32_t t = 0; t < input->n_tokens; t++)
        for (uint32_t c = 0, n; c < e->columns; c += n) {
            n = e->columns - c < EMBEDDED_AT_ONCE ? e->columns - c : EMBEDDED_AT_ONCE;
            if (weights_read_embedding(d->stored, input->tokens[t], c, n, row))
                return RUN_FAILED;
            k->add_scaled(out + c, row, share, n);
        }
    return RUN_OK;
}

static int embed_inputs(decoder *d, const decoder_input *inputs, uint32_t n_inputs,
                        moepage_step *step)
{
    const uint32_t width = d->config->hidden;
    if (!d->rows.semantic)
        return RUN_OK;
    uint64_t start = clock_now_ns();
    int code = RUN_OK;
    for (uint32_t i = 0; i < n_inputs && !code; i++)
        code = embed_mean(d, &inputs[i], d->rows.semantic + (size_t)i * width);
    step->semantic = d->rows.semantic;
    step->semantic_dim = width;
    d->dense_ns += clock_now_ns() - start;
    return code;
}

/* Makes room for the new tokens unless the caller has done so, and begins a step of them. */
static int open_step(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    moepage_step step = {.struct_size = sizeof step,
                         .n_sequences = n_inputs,
                         .sequences = d->rows.sequences};
    for (uint32_t i = 0; i < n_inputs; i++) {
        if (!d->reserved &&
            moepage_kv_append(d->kv, inputs[i].seq, inputs[i].n_tokens, d->dense->stream))
            return fail_library(RUN_FAILED, "KV cache");
        d->rows.sequences[i] =
            (moepage_step_sequence){inputs[i].seq, inputs[i].n_tokens, inputs[i].phase};
        step.n_tokens += inputs[i].n_tokens;
    }
    int code = embed_inputs(d, inputs, n_inputs, &step);
    if (code)
        return code;
    uint64_t start = clock_now_ns();
    return timed(start, &d->library_ns, moepage_session_begin(d->session, &step), "step");
}

/* Gives every row its place. Block tables do not change between the beginning and the end of a
 * step. */
static int place_rows(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    for (uint32_t i = 0; i < n_inputs; i++) {
        moepage_kv_table table = {.struct_size = sizeof table};
        if (moepage_kv_get_table(d->kv, inputs[i].seq, &table))
            return fail_library(RUN_FAILED, "KV cache");
        d->rows.inputs[i] = (dense_sequence){inputs[i].tokens, inputs[i].n_tokens,
                                             inputs[i].position, table.blocks, table.n_blocks};
    }
    for (uint32_t l = 0; l < d->config->layers; l++) {
        d->views[l].struct_size = sizeof d->views[l];
        if (moepage_kv_pool_get_layer(d->kv, l, &d->views[l]))
            return fail_library(RUN_FAILED, "KV cache");
    }
    return RUN_OK;
}

/* Embeds the tokens and computes the angles of their positions. */
static int begin(decoder *d, uint32_t n_inputs, uint32_t *n_rows)
{
    const uint32_t half = d->config->rope.dims / 2;
    decoder_rows *r = &d->rows;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_inputs; i++)
        for (uint32_t t = 0; t < r->inputs[i].n_tokens; t++, n++)
            rope_angles(&d->config->rope, r->inputs[i].position + t, r->cosines + (size_t)n * half,
                        r->sines + (size_t)n * half);
    d->step = (dense_step){r->inputs, n_inputs, n, r->cosines, r->sines};
    *n_rows = n;
    return d->dense->ops->begin(d->dense, &d->step, d->buffers.hidden);
}

static int run_step(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    uint32_t n = 0;
    int code = place_rows(d, inputs, n_inputs);
    if (code)
        return code;
    uint64_t start = clock_now_ns();
    code = begin(d, n_inputs, &n);
    d->dense_ns += clock_now_ns() - start;
    for (uint32_t l = 0; l < d->config->layers && !code; l++) {
        if (d->before_layer)
            code = d->before_layer(d->before_user, l);
        if (!code)
            code = run_layer(d, l, n);
    }
    if (code)
        return code;
    start = clock_now_ns();
    return timed(start, &d->library_ns, moepage_session_end(d->session, NULL), "step");
}

int decoder_step(decoder *d, const decoder_input *inputs, uint32_t n_inputs)
{
    int code = open_step(d, inputs, n_inputs);
    if (code)
        return code;
    code = run_step(d, inputs, n_inputs);
    if (code)
        moepage_session_cancel(d->session);
    return code;
}

const float *decoder_logits(decoder *d, uint32_t first_row, uint32_t n)
{
    const dense_ops *ops = d->dense->ops;
    const model_weights *w = d->dense->weights;
    decoder_buffers *b = &d->buffers;
    uint64_t start = clock_now_ns();
    normalize(d, b->hidden + (size_t)first_row * d->config->hidden, n, &w->final_norm, b->normed);
    ops->linear(d->dense, b->normed, n, &w->head, w->head_bias, b->logits);
    const float *logits = ops->fetch(d->dense, b->logits, (size_t)n * d->config->vocabulary);
    d->dense_ns += clock_now_ns() - start;
    return logits;
}
