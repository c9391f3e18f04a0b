/* Tensor names of the architectures, and checks of shapes against the config. */
#include "common/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/kernels.h"

/* Vectors, and matrices that are decoded. */
#define MAX_OWNED_PER_LAYER 32
#define MAX_OWNED_BESIDE 8

/* The state of a search; after the first failure later calls do nothing. */
typedef struct finder {
    const moepage_model *model;
    const model_config *config;
    bool decode; /* what is in blocks */
    model_weights *out;
    int code;
} finder;

static bool is_float(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 || dtype == MOEPAGE_DTYPE_F16 || dtype == MOEPAGE_DTYPE_BF16;
}

static bool is_blocks(uint32_t dtype)
{
    return dtype >= MOEPAGE_DTYPE_Q4_0 && dtype <= MOEPAGE_DTYPE_NVFP4;
}

/* Allocates n floats that live as long as the weights. */
static float *own(finder *f, uint64_t n)
{
    float *owned = malloc(n * sizeof *owned);
    if (!owned)
        f->code = fail_memory();
    else
        f->out->owned[f->out->n_owned++] = owned;
    return owned;
}

/* Turns a matrix in blocks into floats: the value of every weight, exactly. */
static matrix decode_matrix(finder *f, const char *name, const moepage_tensor_view *view,
                            uint32_t rows, uint32_t columns)
{
    const uint64_t n = (uint64_t)rows * columns;
    float *decoded = own(f, n);
    if (!decoded)
        return (matrix){0};
    if (moepage_blocks_decode(view->dtype, view->data, view->bytes, decoded, n))
        f->code = fail_library(RUN_REFUSED, name);
    f->out->bytes += n * sizeof *decoded;
    f->out->decoded_bytes += n * sizeof *decoded;
    return (matrix){decoded, MOEPAGE_DTYPE_F32, rows, columns, 0};
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
                       "%s implies",
                       name, rows, columns, f->config->source);
    else if (is_blocks(view.dtype) && f->decode)
        return decode_matrix(f, name, &view, rows, columns);
    else if (!is_float(view.dtype) && !is_blocks(view.dtype))
        f->code = fail(RUN_REFUSED, "checkpoint: %s is neither F32, F16 nor BF16%s", name,
                       f->config->gguf ? ", nor in blocks" : "");
    f->out->bytes += view.bytes;
    return (matrix){view.data, view.dtype, rows, columns,
                    is_blocks(view.dtype) ? view.bytes / rows : 0};
}

static const float *find_vector(finder *f, const char *name, uint32_t n)
{
    matrix stored = find_matrix(f, name, 1, n);
    if (f->code)
        return NULL;
    float *vector = own(f, n);
    if (vector)
        weights_read_row(&stored, 0, 0, n, vector);
    return vector;
}

/* ---- Names ------------------------------------------------------------------------------- */

#define MAX_NAME 128

/* What GGUF files call the parts that checkpoints have under the names on the left. */
static const char *const gguf_names[][2] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.sinks", "attn_sinks"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
};

/* Returns a name of the files that the model is in; `part` has no suffix. */
static const char *name_in(const finder *f, const char *part)
{
    if (f->config->gguf && !strcmp(part, "post_attention_layernorm"))
        return f->config->post_norm;
    for (size_t i = 0; i < sizeof gguf_names / sizeof *gguf_names && f->config->gguf; i++)
        if (!strcmp(gguf_names[i][0], part))
            return gguf_names[i][1];
    return part;
}

static const char *layer_name(const finder *f, char *out, uint32_t layer, const char *part,
                              const char *suffix)
{
    snprintf(out, MAX_NAME, f->config->gguf ? "blk.%u.%s%s" : "model.layers.%u.%s%s", layer,
             name_in(f, part), suffix);
    return out;
}

/* The name of a tensor outside the layers. */
static const char *whole_name(const finder *f, char *out, const char *part, const char *suffix)
{
    snprintf(out, MAX_NAME, "%s%s", name_in(f, part), suffix);
    return out;
}

static matrix layer_matrix(finder *f, uint32_t layer, const char *part, const char *suffix,
                           uint32_t rows, uint32_t columns)
{
    char name[MAX_NAME];
    return find_matrix(f, layer_name(f, name, layer, part, suffix), rows, columns);
}

static const float *layer_vector(finder *f, uint32_t layer, const char *part, const char *suffix,
                                 uint32_t n)
{
    char name[MAX_NAME];
    return find_vector(f, layer_name(f, name, layer, part, suffix), n);
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
    size_t last = f->config->gguf ? 0 : sizeof names / sizeof *names - 1, i = 0;
    moepage_tensor_view view = {.struct_size = sizeof view};
    while (
        i < last &&
        moepage_model_find_tensor(f->model, layer_name(f, name, layer, names[i], ".weight"), &view))
        i++;
    return layer_matrix(f, layer, names[i], ".weight", config->experts, config->hidden);
}

/* Finds a dense layer's MLP, or with `part` "mlp.shared_expert" an expert for every token. */
static mlp_weights find_mlp(finder *f, uint32_t layer, const char *part, uint32_t intermediate,
                            uint32_t hidden)
{
    mlp_weights found;
    char gate[MAX_NAME], up[MAX_NAME], down[MAX_NAME];
    snprintf(gate, sizeof gate, "%s.gate_proj", part);
    snprintf(up, sizeof up, "%s.up_proj", part);
    snprintf(down, sizeof down, "%s.down_proj", part);
    found.gate = layer_matrix(f, layer, gate, ".weight", intermediate, hidden);
    found.up = layer_matrix(f, layer, up, ".weight", intermediate, hidden);
    found.down = layer_matrix(f, layer, down, ".weight", hidden, intermediate);
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
    if (c->sinks)
        out->sinks = layer_vector(f, l, "self_attn.sinks", c->gguf ? ".weight" : "", c->heads);
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
    if (c->router_bias)
        out->router_bias =
            layer_vector(f, l, c->gguf ? "mlp.gate" : "mlp.router", ".bias", c->experts);
    if (c->shared_intermediate) {
        out->mlp = find_mlp(f, l, "mlp.shared_expert", c->shared_intermediate, c->hidden);
        out->shared_gate = layer_matrix(f, l, "mlp.shared_expert_gate", ".weight", 1, c->hidden);
    }
}

/* Finds what lies before the first layer and behind the last one. */
static void find_ends(finder *f, const model_config *c, model_weights *out)
{
    char name[MAX_NAME];
    out->embedding = find_matrix(f, whole_name(f, name, "model.embed_tokens", ".weight"),
                                 c->vocabulary, c->hidden);
    out->head = c->tied_embeddings ? out->embedding
                                   : find_matrix(f, whole_name(f, name, "lm_head", ".weight"),
                                                 c->vocabulary, c->hidden);
    if (c->head_bias)
        out->head_bias = find_vector(f, whole_name(f, name, "lm_head", ".bias"), c->vocabulary);
    out->final_norm.scale = find_vector(f, whole_name(f, name, "model.norm", ".weight"), c->hidden);
    if (c->layer_norm)
        out->final_norm.shift =
            find_vector(f, whole_name(f, name, "model.norm", ".bias"), c->hidden);
}

/* Returns true if `part` has a bias that is found above. */
static bool has_bias(const model_config *c, const char *part)
{
    if (!strcmp(part, "attn_q") || !strcmp(part, "attn_k") || !strcmp(part, "attn_v"))
        return c->qkv_bias;
    return (c->output_bias && !strcmp(part, "attn_output")) ||
           (c->router_bias && !strcmp(part, "ffn_gate_inp"));
}

/* Returns true if the name, which begins with that of `part`, is of a tensor that is found above. */
static bool is_tensor_of(const char *name, const char *part, const model_config *c)
{
    const char *suffix = name + strlen(part);
    return !strcmp(suffix, ".weight") || (!strcmp(suffix, ".bias") && has_bias(c, part));
}

/* Returns true if the name is of a tensor that is found above, or of a layer behind the last. */
static bool is_used(const char *name, const model_config *c)
{
    unsigned layer = 0;
    int prefix = 0;
    if (sscanf(name, "blk.%u.%n", &layer, &prefix) == 1 && prefix)
        name += prefix;
    if (layer >= c->layers)
        return true;
    if (!strncmp(name, c->post_norm, strlen(c->post_norm)))
        return is_tensor_of(name, c->post_norm, c);
    for (size_t i = 0; i < sizeof gguf_names / sizeof *gguf_names; i++) {
        const char *part = gguf_names[i][1];
        if (!strncmp(name, part, strlen(part)) && is_tensor_of(name, part, c))
            return c->sinks || strcmp(part, "attn_sinks") != 0;
    }
    return false;
}

/* Refuses a tensor that nothing above reads, such as a bias: the model would be another without
 * it. Checkpoints say in config.json that there is one. */
static void check_names(finder *f)
{
    char name[MAX_NAME];
    for (uint64_t i = 0; !f->code; i++) {
        moepage_status status = moepage_model_get_tensor_name(f->model, i, name, sizeof name);
        if (status == MOEPAGE_E_NOT_FOUND)
            return;
        if (status)
            f->code = fail_library(RUN_REFUSED, "checkpoint");
        else if (!is_used(name, f->config))
            f->code =
                fail(RUN_REFUSED, "checkpoint: tensor %s is not supported by this example", name);
    }
}

int weights_open(const moepage_model *model, const model_config *config, bool decode,
                 model_weights *out)
{
    *out = (model_weights){0};
    out->layers = calloc(config->layers, sizeof *out->layers);
    out->owned =
        calloc((size_t)config->layers * MAX_OWNED_PER_LAYER + MAX_OWNED_BESIDE, sizeof *out->owned);
    if (!out->layers || !out->owned)
        return fail_memory();
    finder f = {.model = model, .config = config, .decode = decode, .out = out};
    find_ends(&f, config, out);
    for (uint32_t l = 0; l < config->layers && !f.code; l++)
        find_layer(&f, l, config, &out->layers[l]);
    if (config->gguf && !f.code)
        check_names(&f);
    return f.code;
}

void weights_close(model_weights *w)
{
    for (size_t i = 0; i < w->n_owned; i++)
        free(w->owned[i]);
    free(w->owned);
    free(w->layers);
}

void weights_read_row(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out)
{
    const unsigned char *start = (const unsigned char *)m->data + row * matrix_row_bytes(m);
    const size_t offset = matrix_row_bytes(m) * first / m->columns;
    if (!m->blocks)
        kernels_choose()->widen(out, start + offset, m->dtype, n);
    else
        (void)moepage_blocks_decode(m->dtype, start + offset, matrix_row_bytes(m) * n / m->columns,
                                    out, n); /* cannot fail: the shape was checked */
}
