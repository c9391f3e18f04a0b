/* Random models: dense tensors in memory, experts made when they are read. */
#include "pack/synthetic.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/expert_pair.h"
#include "common/fail.h"

#define SIGMA 0.02 /* standard deviation of initialised weights, and about that of trained ones */
#define MAX_NAME 96
#define LAYER_TENSORS 24 /* at most, of one layer */
#define BF16_BYTES 2

/* Random dense tensors are windows into one pool, each starting at its own place within this many
 * elements: as random as separate memory, which only the largest needs. */
#define WINDOW_PLACES (1u << 20)
#define NOT_AN_EXPERT UINT32_MAX /* in place of the layer, in the keys of such tensors */

struct synthetic {
    const shape *shape;
    uint32_t layers;
    uint32_t moe_layers;
    uint64_t seed;
    moepage_model *model;
    random_weights weights;
    random_weights router_weights;
    moepage_dense_tensor *dense;
    uint32_t n_dense;
    char (*names)[MAX_NAME];
    int32_t *layer_index;
    char *config_json;
    uint16_t *pool;
    uint16_t *ones, *zeros; /* as long as the longest vector */
    uint16_t *routers;      /* of all layers */
};

/* ---- Experts ----------------------------------------------------------------------------- */

static int32_t read_expert(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                           uint64_t offset, uint64_t bytes, void *out)
{
    const synthetic *s = user;
    random_weights_fill(&s->weights, random_key(s->seed, layer, expert, tensor), offset, bytes,
                        out);
    return 0;
}

/* ---- Tensors that are never paged -------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t longest_matrix(const shape *s)
{
    uint64_t most = larger(s->vocabulary, (uint64_t)s->heads * s->head_dim);
    return larger(most, larger(s->shared_intermediate, s->intermediate)) * s->hidden;
}

static uint64_t longest_vector(const shape *s)
{
    return larger(larger(s->vocabulary, s->hidden), (uint64_t)s->heads * s->head_dim);
}

/* Gives the logits of a normalised hidden state a spread of 1: some experts stand out, but none
 * always wins. */
static double router_sigma(const shape *s)
{
    return 1 / sqrt(s->hidden);
}

static int make_pools(synthetic *s)
{
    const shape *h = s->shape;
    uint64_t n_routers = (uint64_t)s->moe_layers * h->experts * h->hidden;
    random_weights_init(&s->router_weights, WEIGHTS_GAUSSIAN, router_sigma(h));
    s->routers = malloc(n_routers * BF16_BYTES);
    if (!s->routers)
        return fail_memory();
    random_weights_fill(&s->router_weights, random_key(s->seed, NOT_AN_EXPERT, 0, 0), 0,
                        n_routers * BF16_BYTES, s->routers);
    if (!h->family->runs)
        return RUN_OK;
    uint64_t n_pool = longest_matrix(h) + WINDOW_PLACES, n_vector = longest_vector(h);
    s->pool = malloc(n_pool * BF16_BYTES);
    s->ones = malloc(n_vector * BF16_BYTES);
    s->zeros = calloc(n_vector, BF16_BYTES);
    if (!s->pool || !s->ones || !s->zeros)
        return fail_memory();
    random_weights_fill(&s->weights, random_key(s->seed, NOT_AN_EXPERT, 1, 0), 0,
                        n_pool * BF16_BYTES, s->pool);
    for (uint64_t i = 0; i < n_vector; i++)
        s->ones[i] = 0x3f80; /* 1 in BF16 */
    return RUN_OK;
}

/* Adds a tensor; rows 0 makes it a vector. */
static void add(synthetic *s, const uint16_t *data, uint64_t rows, uint64_t columns,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

static void add(synthetic *s, const uint16_t *data, uint64_t rows, uint64_t columns,
                const char *format, ...)
{
    char *name = s->names[s->n_dense];
    va_list args;
    va_start(args, format);
    vsnprintf(name, MAX_NAME, format, args);
    va_end(args);
    s->dense[s->n_dense++] =
        (moepage_dense_tensor){.name = name,
                               .dtype = MOEPAGE_DTYPE_BF16,
                               .rank = rows ? 2 : 1,
                               .shape = {rows ? rows : columns, rows ? columns : 0},
                               .data = data};
}

/* Returns the next tensor's window. */
static const uint16_t *window(const synthetic *s)
{
    uint64_t key = random_key(s->seed, NOT_AN_EXPERT, 2, s->n_dense);
    return s->pool + key % WINDOW_PLACES / 64 * 64;
}

static void add_router(synthetic *s, uint32_t layer)
{
    const shape *h = s->shape;
    uint64_t elements = (uint64_t)h->experts * h->hidden;
    add(s, s->routers + (layer - h->first_dense) * elements, h->experts, h->hidden,
        "model.layers.%" PRIu32 ".%s.weight", layer, h->family->router);
}

static void add_norm(synthetic *s, uint32_t layer, const char *part)
{
    add(s, s->ones, 0, s->shape->hidden, "model.layers.%" PRIu32 ".%s.weight", layer, part);
    if (s->shape->family->layer_norm)
        add(s, s->zeros, 0, s->shape->hidden, "model.layers.%" PRIu32 ".%s.bias", layer, part);
}

static void add_projection(synthetic *s, uint32_t layer, const char *part, uint64_t rows,
                           uint64_t columns, bool bias)
{
    add(s, window(s), rows, columns, "model.layers.%" PRIu32 ".%s.weight", layer, part);
    if (bias)
        add(s, s->zeros, 0, rows, "model.layers.%" PRIu32 ".%s.bias", layer, part);
}

static void add_attention(synthetic *s, uint32_t layer)
{
    const shape *h = s->shape;
    const shape_family *f = h->family;
    uint64_t q_width = (uint64_t)h->heads * h->head_dim;
    uint64_t kv_width = (uint64_t)h->kv_heads * h->head_dim;
    add_projection(s, layer, "self_attn.q_proj", q_width, h->hidden, f->qkv_bias);
    add_projection(s, layer, "self_attn.k_proj", kv_width, h->hidden, f->qkv_bias);
    add_projection(s, layer, "self_attn.v_proj", kv_width, h->hidden, f->qkv_bias);
    add_projection(s, layer, "self_attn.o_proj", h->hidden, q_width, f->output_bias);
    if (f->head_norm || f->width_norm) {
        add(s, s->ones, 0, f->head_norm ? h->head_dim : q_width,
            "model.layers.%" PRIu32 ".self_attn.q_norm.weight", layer);
        add(s, s->ones, 0, f->head_norm ? h->head_dim : kv_width,
            "model.layers.%" PRIu32 ".self_attn.k_norm.weight", layer);
    }
}

static void add_shared_expert(synthetic *s, uint32_t layer)
{
    uint64_t width = s->shape->shared_intermediate, hidden = s->shape->hidden;
    add_projection(s, layer, "mlp.shared_expert.gate_proj", width, hidden, false);
    add_projection(s, layer, "mlp.shared_expert.up_proj", width, hidden, false);
    add_projection(s, layer, "mlp.shared_expert.down_proj", hidden, width, false);
    add_projection(s, layer, "mlp.shared_expert_gate", 1, hidden, false);
}

static int make_dense(synthetic *s)
{
    const shape *h = s->shape;
    size_t most = (size_t)s->layers * LAYER_TENSORS + 8;
    s->dense = calloc(most, sizeof *s->dense);
    s->names = calloc(most, sizeof *s->names);
    if (!s->dense || !s->names)
        return fail_memory();
    int code = make_pools(s);
    if (code)
        return code;
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        if (layer >= h->first_dense)
            add_router(s, layer);
        if (!h->family->runs)
            continue;
        add_norm(s, layer, "input_layernorm");
        add_norm(s, layer, "post_attention_layernorm");
        add_attention(s, layer);
        if (h->shared_intermediate)
            add_shared_expert(s, layer);
    }
    if (!h->family->runs)
        return RUN_OK;
    add(s, window(s), h->vocabulary, h->hidden, "model.embed_tokens.weight");
    add(s, window(s), h->vocabulary, h->hidden, "lm_head.weight");
    add(s, s->ones, 0, h->hidden, "model.norm.weight");
    if (h->family->layer_norm)
        add(s, s->zeros, 0, h->hidden, "model.norm.bias");
    if (h->family->output_bias)
        add(s, s->zeros, 0, h->vocabulary, "lm_head.bias");
    return RUN_OK;
}

/* ---- The model --------------------------------------------------------------------------- */

static int open_model(synthetic *s)
{
    const shape *h = s->shape;
    s->layer_index = calloc(s->moe_layers, sizeof *s->layer_index);
    s->config_json = shape_config_json(h, s->layers);
    if (!s->layer_index || !s->config_json)
        return fail_memory();
    for (uint32_t i = 0; i < s->moe_layers; i++)
        s->layer_index[i] = (int32_t)(h->first_dense + i);
    moepage_expert_tensor tensors[EXPERT_PAIR];
    expert_pair(MOEPAGE_DTYPE_BF16, h->hidden, h->expert_intermediate, tensors);
    const moepage_banks banks = {.struct_size = sizeof banks,
                                 .moe_layers = s->moe_layers,
                                 .experts = h->experts,
                                 .top_k = h->top_k,
                                 .hidden = h->hidden,
                                 .expert_intermediate = h->expert_intermediate,
                                 .n_tensors = EXPERT_PAIR,
                                 .tensors = tensors,
                                 .read = read_expert,
                                 .read_user = s,
                                 .architecture = h->family->model_type,
                                 .config_json = s->config_json,
                                 .layer_index = s->layer_index,
                                 .layers = s->layers,
                                 .shared_experts = h->shared_experts,
                                 .vocabulary = h->vocabulary,
                                 .n_dense = s->n_dense,
                                 .dense = s->dense};
    if (moepage_model_open_banks(&banks, NULL, &s->model))
        return fail_library(RUN_FAILED, h->name);
    return RUN_OK;
}

int synthetic_open(const shape *s, uint32_t layers, weight_shape weights, uint64_t seed,
                   synthetic **out)
{
    uint32_t n = layers ? layers : s->layers;
    if (n > s->layers)
        return fail(RUN_REFUSED, "--layers %" PRIu32 ": %s has %" PRIu32 " layers", n, s->name,
                    s->layers);
    if (n <= s->first_dense)
        return fail(RUN_REFUSED,
                    "--layers %" PRIu32 ": the first %" PRIu32 " layers of %s have no experts, at "
                    "least %" PRIu32 " are needed",
                    n, s->first_dense, s->name, s->first_dense + 1);
    synthetic *made = calloc(1, sizeof *made);
    if (!made)
        return fail_memory();
    made->shape = s;
    made->layers = n;
    made->moe_layers = n - s->first_dense;
    made->seed = seed;
    random_weights_init(&made->weights, weights, SIGMA);
    int code = make_dense(made);
    if (!code)
        code = open_model(made);
    if (code)
        synthetic_close(made);
    else
        *out = made;
    return code;
}

moepage_model *synthetic_model(synthetic *s)
{
    return s->model;
}

void synthetic_close(synthetic *s)
{
    if (!s)
        return;
    moepage_model_close(s->model);
    free(s->dense);
    free(s->names);
    free(s->layer_index);
    free(s->config_json);
    free(s->pool);
    free(s->ones);
    free(s->zeros);
    free(s->routers);
    free(s);
}
