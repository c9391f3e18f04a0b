/* Tensor names of the architectures, and checks of shapes against config.json. */
#include "common/weights.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/fail.h"
#include "common/kernels.h"

#define MAX_VECTORS_PER_LAYER 12

/* The state of a search; after the first failure later calls do nothing. */
typedef struct finder {
    const moepage_model *model;
    const kernels *kernels;
    model_weights *out;
    int code;
} finder;

static bool is_float(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 || dtype == MOEPAGE_DTYPE_F16 || dtype == MOEPAGE_DTYPE_BF16;
}

/* Finds a matrix or, with rows == 1, also a vector of `columns`. */
static matrix find_matrix(finder *f, const char *name, uint32_t rows, uint32_t columns)
{
    moepage_tensor_view view = {.struct_size = sizeof view};
    if (f->code)
        return (matrix){0};
    if (moepage_model_find_tensor(f->model, name, &view)) {
        f->code = fail_library(RUN_REFUSED, "checkpoint");
        return (matrix){0};
    }
    bool fits = view.rank == 2 ? view.shape[0] == rows && view.shape[1] == columns
                               : view.rank == 1 && rows == 1 && view.shape[0] == columns;
    if (!fits)
        f->code = fail(RUN_REFUSED,
                       "checkpoint: %s does not have the shape [%u, %u] that "
                       "config.json implies",
                       name, rows, columns);
    else if (!is_float(view.dtype))
        f->code = fail(RUN_REFUSED, "checkpoint: %s is neither F32, F16 nor BF16", name);
    return (matrix){view.data, view.dtype, rows, columns};
}

static const float *find_vector(finder *f, const char *name, uint32_t n)
{
    matrix stored = find_matrix(f, name, 1, n);
    if (f->code)
        return NULL;
    float *vector = malloc(n * sizeof *vector);
    if (!vector) {
        f->code = fail_memory();
        return NULL;
    }
    f->kernels->widen(vector, stored.data, stored.dtype, n);
    f->out->vectors[f->out->n_vectors++] = vector;
    return vector;
}

/* ---- Names ------------------------------------------------------------------------------- */

#define MAX_NAME 128

static const char *layer_name(char *out, uint32_t layer, const char *part, const char *suffix)
{
    snprintf(out, MAX_NAME, "model.layers.%u.%s%s", layer, part, suffix);
    return out;
}

static matrix layer_matrix(finder *f, uint32_t layer, const char *part, const char *suffix,
                           uint32_t rows, uint32_t columns)
{
    char name[MAX_NAME];
    return find_matrix(f, layer_name(name, layer, part, suffix), rows, columns);
}

static const float *layer_vector(finder *f, uint32_t layer, const char *part, const char *suffix,
                                 uint32_t n)
{
    char name[MAX_NAME];
    return find_vector(f, layer_name(name, layer, part, suffix), n);
}

static norm_weights layer_norm(finder *f, uint32_t layer, const char *part, uint32_t n, bool shift)
{
    norm_weights found = {.scale = layer_vector(f, layer, part, ".weight", n)};
    if (shift)
        found.shift = layer_vector(f, layer, part, ".bias", n);
    return found;
}

/* Finds the router under whichever of its several names exists. */
static matrix find_router(finder *f, uint32_t layer, const model_config *config)
{
    static const char *const names[] = {"mlp.gate", "block_sparse_moe.gate", "mlp.router",
                                        "block_sparse_moe.router"};
    char name[MAX_NAME];
    size_t last = sizeof names / sizeof *names - 1, i = 0;
    moepage_tensor_view view = {.struct_size = sizeof view};
    while (i < last &&
           moepage_model_find_tensor(f->model, layer_name(name, layer, names[i], ".weight"), &view))
        i++;
    return layer_matrix(f, layer, names[i], ".weight", config->experts, config->hidden);
}

static mlp_weights find_mlp(finder *f, uint32_t layer, const char *part, uint32_t intermediate,
                            uint32_t hidden)
{
    mlp_weights found;
    found.gate = layer_matrix(f, layer, part, ".gate_proj.weight", intermediate, hidden);
    found.up = layer_matrix(f, layer, part, ".up_proj.weight", intermediate, hidden);
    found.down = layer_matrix(f, layer, part, ".down_proj.weight", hidden, intermediate);
    return found;
}

/* ---- Parts of a layer -------------------------------------------------------------------- */

static void find_attention(finder *f, uint32_t l, const model_config *c, layer_weights *out)
{
    uint32_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    out->q = layer_matrix(f, l, "self_attn.q_proj", ".weight", q_width, c->hidden);
    out->k = layer_matrix(f, l, "self_attn.k_proj", ".weight", kv_width, c->hidden);
    out->v = layer_matrix(f, l, "self_attn.v_proj", ".weight", kv_width, c->hidden);
    out->o = layer_matrix(f, l, "self_attn.o_proj", ".weight", c->hidden, q_width);
    if (c->qkv_bias) {
        out->q_bias = layer_vector(f, l, "self_attn.q_proj", ".bias", q_width);
        out->k_bias = layer_vector(f, l, "self_attn.k_proj", ".bias", kv_width);
        out->v_bias = layer_vector(f, l, "self_attn.v_proj", ".bias", kv_width);
    }
    if (c->output_bias)
        out->o_bias = layer_vector(f, l, "self_attn.o_proj", ".bias", c->hidden);
    if (c->qk_norm != QK_NORM_NONE) {
        bool head = c->qk_norm == QK_NORM_HEAD;
        out->q_norm = layer_norm(f, l, "self_attn.q_norm", head ? c->head_dim : q_width, false);
        out->k_norm = layer_norm(f, l, "self_attn.k_norm", head ? c->head_dim : kv_width, false);
    }
}

static void find_layer(finder *f, uint32_t l, const model_config *c, layer_weights *out)
{
    out->input_norm = layer_norm(f, l, "input_layernorm", c->hidden, c->layer_norm);
    out->post_norm = layer_norm(f, l, "post_attention_layernorm", c->hidden, c->layer_norm);
    find_attention(f, l, c, out);
    if (c->moe_layer[l] < 0) {
        out->mlp = find_mlp(f, l, "mlp", c->dense_intermediate, c->hidden);
        return;
    }
    out->router = find_router(f, l, c);
    if (c->shared_intermediate) {
        out->mlp = find_mlp(f, l, "mlp.shared_expert", c->shared_intermediate, c->hidden);
        out->shared_gate = layer_matrix(f, l, "mlp.shared_expert_gate", ".weight", 1, c->hidden);
    }
}

int weights_open(const moepage_model *model, const model_config *config, model_weights *out)
{
    *out = (model_weights){0};
    out->layers = calloc(config->layers, sizeof *out->layers);
    out->vectors = calloc((size_t)config->layers * MAX_VECTORS_PER_LAYER + 3, sizeof *out->vectors);
    if (!out->layers || !out->vectors)
        return fail_memory();
    finder f = {.model = model, .kernels = kernels_choose(), .out = out};
    out->embedding =
        find_matrix(&f, "model.embed_tokens.weight", config->vocabulary, config->hidden);
    out->head = config->tied_embeddings
                    ? out->embedding
                    : find_matrix(&f, "lm_head.weight", config->vocabulary, config->hidden);
    if (config->head_bias)
        out->head_bias = find_vector(&f, "lm_head.bias", config->vocabulary);
    out->final_norm.scale = find_vector(&f, "model.norm.weight", config->hidden);
    if (config->layer_norm)
        out->final_norm.shift = find_vector(&f, "model.norm.bias", config->hidden);
    for (uint32_t l = 0; l < config->layers && !f.code; l++)
        find_layer(&f, l, config, &out->layers[l]);
    return f.code;
}

void weights_close(model_weights *w)
{
    for (size_t i = 0; i < w->n_vectors; i++)
        free(w->vectors[i]);
    free(w->vectors);
    free(w->layers);
}
