/* Tensor names of the architectures, and checks of shapes against the config. */
#include "common/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

/* Tensors that are read, and so vectors and matrices that are decoded. */
#define MAX_PER_LAYER 40
#define MAX_BESIDE 8
#define MAX_NAME 128
#define SCALES "_scale_inv"
#define FP8_BLOCK 128u     /* rows and columns of weights that share a scale, unless it is said */
#define READ_AT_ONCE 4096u /* values of an embedding; whole blocks of any format */

/* The state of a search; after the first failure later calls do nothing. */
typedef struct finder {
    const moepage_model *model;
    const model_config *config;
    bool on_gpu; /* decode what is in blocks, and read whole tables */
    model_weights *out;
    char **read; /* [n_read] names of the tensors found */
    size_t n_read;
    int code;
} finder;

static bool is_float(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 || dtype == MOEPAGE_DTYPE_F16 || dtype == MOEPAGE_DTYPE_BF16;
}

static bool is_blocks(uint32_t dtype)
{
    return dtype >= MOEPAGE_DTYPE_Q4_0 && dtype <= MOEPAGE_DTYPE_NVFP4G256_F32;
}

/* Allocates bytes that live as long as the weights. */
static void *own(finder *f, uint64_t bytes)
{
    void *owned = malloc(bytes);
    if (!owned)
        f->code = fail_memory();
    else
        f->out->owned[f->out->n_owned++] = owned;
    return owned;
}

/* Decodes a matrix, to be read in place of the stored one: the value of every weight, exactly. */
static matrix in_floats(finder *f, const matrix *m)
{
    const uint64_t bytes = (uint64_t)m->rows * m->columns * sizeof(float);
    float *values = f->code ? NULL : own(f, bytes);
    if (!values)
        return (matrix){0};
    for (uint32_t r = 0; r < m->rows; r++)
        matrix_read(m, r, 0, m->columns, values + (size_t)r * m->columns);
    f->out->bytes += bytes - matrix_bytes(m);
    f->out->decoded_bytes += bytes;
    return (
        matrix){.data = values, .dtype = MOEPAGE_DTYPE_F32, .rows = m->rows, .columns = m->columns};
}

/* Returns true if the tensor has these elements: a matrix, one for each head, or with rows == 1 also a
 * vector of `columns`. */
static bool fits(const model_config *c, const moepage_tensor_view *view, uint32_t rows,
                 uint32_t columns)
{
    const uint64_t *shape = view->shape;
    if (view->rank == 1)
        return rows == 1 && shape[0] == columns;
    if (view->rank == 3)
        return shape[0] == c->heads && shape[1] * shape[0] == rows && shape[2] == columns;
    return view->rank == 2 && shape[0] == rows && shape[1] == columns;
}

/* Finds a tensor, and notes that it is read: whole and now, or `by_row` and later. */
static bool find_view(finder *f, const char *name, bool by_row, moepage_tensor_view *view)
{
    *view = (moepage_tensor_view){.struct_size = sizeof *view};
    if (f->code)
        return false;
    if (by_row ? moepage_model_read_tensor(f->model, name, 0, 0, NULL, view)
               : moepage_model_find_tensor(f->model, name, view))
        f->code = fail_library(RUN_REFUSED, "checkpoint");
    else if (!(f->read[f->n_read++] = strdup(name)))
        f->code = fail_memory();
    return !f->code;
}

/* Checks a view's shape and type, and gives the matrix, without its scales if these are beside it. */
static matrix matrix_of(finder *f, const char *name, const moepage_tensor_view *view, uint32_t rows,
                        uint32_t columns)
{
    const bool blocks = is_blocks(view->dtype);
    if (!fits(f->config, view, rows, columns))
        f->code = fail(RUN_REFUSED,
                       "checkpoint: %s does not have the shape [%u, %u] that "
                       "%s implies",
                       name, rows, columns, f->config->source);
    else if (!is_float(view->dtype) && !blocks && view->dtype != MOEPAGE_DTYPE_F8_E4M3)
        f->code = fail(RUN_REFUSED,
                       "checkpoint: %s is neither F32, F16, BF16, F8_E4M3 nor in blocks", name);
    return (matrix){.data = view->data,
                    .dtype = view->dtype,
                    .rows = rows,
                    .columns = columns,
                    .blocks = blocks && !f->code ? view->bytes / rows : 0};
}

/* Decides on how many weights share a scale. Where config.json does not say, one scale is that of the whole matrix, as
 * ModelOpt stores it. */
static void choose_block(const finder *f, const moepage_tensor_view *scales, matrix *m)
{
    const bool whole = scales->rank == 2 && scales->shape[0] == 1 && scales->shape[1] == 1;
    m->block_rows = f->config->block_rows;
    m->block_columns = f->config->block_columns;
    if (m->block_rows)
        return;
    m->block_rows = whole ? m->rows : FP8_BLOCK;
    m->block_columns = whole ? m->columns : FP8_BLOCK;
}

/* Finds the scales beside a matrix in FP8. */
static void find_scales(finder *f, const char *name, matrix *m)
{
    char beside[MAX_NAME + sizeof SCALES];
    moepage_tensor_view view = {.struct_size = sizeof view};
    snprintf(beside, sizeof beside, "%s" SCALES, name);
    if (moepage_model_find_tensor(f->model, beside, &view) == MOEPAGE_E_NOT_FOUND)
        f->code = fail(RUN_REFUSED, "checkpoint: %s is in F8_E4M3, and its scales, %s, are missing",
                       name, beside);
    if (!find_view(f, beside, false, &view))
        return;
    choose_block(f, &view, m);
    m->scales = view.data;
    m->scale_dtype = view.dtype;
    const matrix scales = matrix_scales(m);
    if (view.rank != 2 || view.shape[0] != scales.rows || view.shape[1] != scales.columns)
        f->code = fail(RUN_REFUSED,
                       "checkpoint: %s does not have the shape [%u, %u] that blocks of %u x %u "
                       "weights imply",
                       beside, scales.rows, scales.columns, m->block_rows, m->block_columns);
    else if (view.dtype != MOEPAGE_DTYPE_F32 && view.dtype != MOEPAGE_DTYPE_BF16)
        f->code = fail(RUN_REFUSED, "checkpoint: %s is neither F32 nor BF16", beside);
    f->out->bytes += view.bytes;
}

/* Finds a matrix, those of all heads, or a vector. */
static matrix find_matrix(finder *f, const char *name, uint32_t rows, uint32_t columns)
{
    moepage_tensor_view view;
    if (!find_view(f, name, false, &view))
        return (matrix){0};
    matrix stored = matrix_of(f, name, &view, rows, columns);
    f->out->bytes += view.bytes;
    if (!f->code && stored.dtype == MOEPAGE_DTYPE_F8_E4M3)
        find_scales(f, name, &stored);
    return f->on_gpu && (stored.blocks || stored.scales) ? in_floats(f, &stored) : stored;
}

/* Describes a matrix whose rows are read when they are needed; in FP8 it is whole, for rows share scales. */
static matrix find_table(finder *f, const char *name, uint32_t rows, uint32_t columns)
{
    moepage_tensor_view view;
    if (!find_view(f, name, true, &view))
        return (matrix){0};
    if (view.dtype == MOEPAGE_DTYPE_F8_E4M3)
        return find_matrix(f, name, rows, columns);
    return matrix_of(f, name, &view, rows, columns);
}

static const float *find_vector(finder *f, const char *name, uint32_t n)
{
    matrix stored = find_matrix(f, name, 1, n);
    if (f->code)
        return NULL;
    float *vector = own(f, n * sizeof *vector);
    if (vector)
        matrix_read(&stored, 0, 0, n, vector);
    return vector;
}

/* ---- Names ------------------------------------------------------------------------------- */

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
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate.e_score_correction", "exp_probs_b"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
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
    norm_weights found = {.scale = layer_vector(f, layer, part, ".weight", n),
                          .eps = f->config->norm_eps};
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

static void find_heads(finder *f, uint32_t l, const model_config *c, layer_weights *out)
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

/* Transposes, of each `apart` rows, the first `columns`. */
static head_matrices transpose_each(finder *f, const matrix *from, uint32_t apart, uint32_t columns)
{
    const uint32_t heads = f->config->heads;
    matrix to = {.dtype = from->blocks ? MOEPAGE_DTYPE_F32 : from->dtype,
                 .rows = from->columns,
                 .columns = columns};
    const size_t bytes = matrix_row_bytes(&to) * to.rows;
    unsigned char *transposed = f->code ? NULL : own(f, heads * bytes);
    for (uint32_t h = 0; h < heads && !f->code; h++)
        if (!matrix_transpose(from, h * apart, columns, transposed + h * bytes))
            f->code = fail_memory();
    to.data = transposed;
    return (head_matrices){.first = to, .apart = bytes};
}

/* Points at rows [first, first + n) of each `apart` rows. */
static head_matrices rows_of_each(const matrix *m, uint32_t apart, uint32_t first, uint32_t n)
{
    head_matrices out = {.first = matrix_rows(m, first, n), .apart = apart * matrix_row_bytes(m)};
    if (m->scales) {
        const matrix scales = matrix_scales(m);
        out.scales_apart = apart / m->block_rows * matrix_row_bytes(&scales);
    }
    return out;
}

/* Takes keys and values apart that are projected together, each head's keys before its values. */
static void split_latent(finder *f, const matrix *both, const model_config *c, latent_weights *out)
{
    const latent_config *l = &c->latent;
    const uint32_t each = l->plain + l->value;
    out->keys = transpose_each(f, both, each, l->plain);
    if (both->scales) {
        const matrix stored = matrix_scales(both);
        const head_matrices scales =
            transpose_each(f, &stored, each / both->block_rows, l->plain / both->block_rows);
        matrix *keys = &out->keys.first;
        keys->scales = scales.first.data;
        keys->scale_dtype = stored.dtype;
        keys->block_rows = both->block_columns;
        keys->block_columns = both->block_rows;
        out->keys.scales_apart = scales.apart;
    }
    out->values = rows_of_each(both, each, l->plain, l->value);
    if (!both->blocks)
        return;
    const uint64_t floats = c->heads * out->keys.apart;
    f->out->bytes += floats - (uint64_t)c->heads * l->plain * both->blocks;
    f->out->decoded_bytes += floats;
}

/* Finds the matrices of all heads, one after the other. */
static head_matrices find_each(finder *f, uint32_t l, const char *name, uint32_t rows,
                               uint32_t columns)
{
    const uint32_t heads = f->config->heads;
    const matrix all = layer_matrix(f, l, name, ".weight", heads * rows, columns);
    return f->code ? (head_matrices){0} : rows_of_each(&all, rows, 0, rows);
}

/* Newer GGUF files have keys and values of latents apart, the keys already transposed. */
static void find_latent_heads(finder *f, uint32_t l, const model_config *c, latent_weights *out)
{
    const latent_config *latent = &c->latent;
    char name[MAX_NAME];
    moepage_tensor_view view = {.struct_size = sizeof view};
    layer_name(f, name, l, "attn_k_b", ".weight");
    if (c->gguf && !moepage_model_find_tensor(f->model, name, &view)) {
        out->keys = find_each(f, l, "attn_k_b", latent->rank, latent->plain);
        out->values = find_each(f, l, "attn_v_b", latent->value, latent->rank);
        return;
    }
    matrix both = layer_matrix(f, l, "self_attn.kv_b_proj", ".weight",
                               c->heads * (latent->plain + latent->value), latent->rank);
    if (f->code)
        return;
    if (!matrix_parts(&both, latent->plain) || !matrix_parts(&both, latent->value))
        both = in_floats(f, &both);
    if (!f->code)
        split_latent(f, &both, c, out);
}

/* The norm of a low rank has an epsilon of its own, whatever the config says. */
static norm_weights low_rank_norm(finder *f, uint32_t l, const char *part, uint32_t n)
{
    norm_weights found = layer_norm(f, l, part, n, false);
    found.eps = 1e-6f;
    return found;
}

static void find_latent(finder *f, uint32_t l, const model_config *c, layer_weights *out)
{
    const latent_config *latent = &c->latent;
    const uint32_t q_width = config_q_width(c);
    if (latent->q_rank) {
        out->latent.q_low =
            layer_matrix(f, l, "self_attn.q_a_proj", ".weight", latent->q_rank, c->hidden);
        out->latent.q_norm = low_rank_norm(f, l, "self_attn.q_a_layernorm", latent->q_rank);
        out->q = layer_matrix(f, l, "self_attn.q_b_proj", ".weight", q_width, latent->q_rank);
    } else {
        out->q = layer_matrix(f, l, "self_attn.q_proj", ".weight", q_width, c->hidden);
    }
    matrix low = layer_matrix(f, l, "self_attn.kv_a_proj_with_mqa", ".weight",
                              latent->rank + latent->turned, c->hidden);
    if (!f->code && !matrix_parts(&low, latent->rank))
        low = in_floats(f, &low);
    out->latent.norm = low_rank_norm(f, l, "self_attn.kv_a_layernorm", latent->rank);
    out->o = layer_matrix(f, l, "self_attn.o_proj", ".weight", c->hidden, config_o_width(c));
    if (f->code)
        return;
    out->latent.vector = matrix_rows(&low, 0, latent->rank);
    out->latent.turned = matrix_rows(&low, latent->rank, latent->turned);
    find_latent_heads(f, l, c, &out->latent);
}

static void find_layer(finder *f, uint32_t l, const model_config *c, layer_weights *out)
{
    out->input_norm = layer_norm(f, l, "input_layernorm", c->hidden, c->layer_norm);
    out->post_norm = layer_norm(f, l, "post_attention_layernorm", c->hidden, c->layer_norm);
    if (c->latent.rank)
        find_latent(f, l, c, out);
    else
        find_heads(f, l, c, out);
    if (c->moe_layer[l] < 0) {
        out->mlp = find_mlp(f, l, "mlp", c->dense_intermediate, c->hidden);
        return;
    }
    out->router = find_router(f, l, c);
    if (c->router_bias)
        out->router_bias =
            layer_vector(f, l, c->gguf ? "mlp.gate" : "mlp.router", ".bias", c->experts);
    if (c->router == ROUTER_SIGMOID)
        out->choice_bias = layer_vector(f, l, "mlp.gate.e_score_correction",
                                        c->gguf ? ".bias" : "_bias", c->experts);
    if (c->shared == SHARED_PLAIN)
        out->mlp = find_mlp(f, l, "mlp.shared_experts", c->shared_intermediate, c->hidden);
    if (c->shared == SHARED_GATED) {
        out->mlp = find_mlp(f, l, "mlp.shared_expert", c->shared_intermediate, c->hidden);
        out->shared_gate = layer_matrix(f, l, "mlp.shared_expert_gate", ".weight", 1, c->hidden);
    }
}

/* Finds what lies before the first layer and behind the last one. */
static void find_ends(finder *f, const model_config *c, model_weights *out)
{
    char name[MAX_NAME];
    out->model = f->model;
    out->embedding_name = c->gguf ? "token_embd.weight" : "model.embed_tokens.weight";
    out->embedding = c->tied_embeddings || f->on_gpu
                         ? find_matrix(f, out->embedding_name, c->vocabulary, c->hidden)
                         : find_table(f, out->embedding_name, c->vocabulary, c->hidden);
    out->head = c->tied_embeddings ? out->embedding
                                   : find_matrix(f, whole_name(f, name, "lm_head", ".weight"),
                                                 c->vocabulary, c->hidden);
    if (c->head_bias)
        out->head_bias = find_vector(f, whole_name(f, name, "lm_head", ".bias"), c->vocabulary);
    out->final_norm.eps = c->norm_eps;
    out->final_norm.scale = find_vector(f, whole_name(f, name, "model.norm", ".weight"), c->hidden);
    if (c->layer_norm)
        out->final_norm.shift =
            find_vector(f, whole_name(f, name, "model.norm", ".bias"), c->hidden);
}

/* ---- Names that nothing reads ------------------------------------------------------------ */

static int order_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Returns true if the model is the same without the tensor: it is of a layer behind the last one, which
 * predicts further tokens, or says again what the config does. */
static bool is_spare(const char *name, const model_config *c)
{
    unsigned layer = 0;
    if (sscanf(name, c->gguf ? "blk.%u." : "model.layers.%u.", &layer) == 1 && layer >= c->layers)
        return true;
    return !c->gguf && (ends_with(name, ".rotary_emb.inv_freq") ||
                        (c->tied_embeddings && !strcmp(name, "lm_head.weight")));
}

/* Refuses a tensor that nothing above has read, such as a bias: the model would be another without
 * it. */
static void check_names(finder *f)
{
    char name[MAX_NAME];
    const char *wanted = name;
    qsort(f->read, f->n_read, sizeof *f->read, order_names);
    for (uint64_t i = 0; !f->code; i++) {
        moepage_status status = moepage_model_get_tensor_name(f->model, i, name, sizeof name);
        if (status == MOEPAGE_E_NOT_FOUND)
            return;
        if (status)
            f->code = fail_library(RUN_REFUSED, "checkpoint");
        else if (!bsearch(&wanted, f->read, f->n_read, sizeof *f->read, order_names) &&
                 !is_spare(name, f->config))
            f->code =
                fail(RUN_REFUSED, "checkpoint: tensor %s is not supported by this example", name);
    }
}

/* ---- The whole --------------------------------------------------------------------------- */

static void find_all(finder *f)
{
    find_ends(f, f->config, f->out);
    for (uint32_t l = 0; l < f->config->layers && !f->code; l++)
        find_layer(f, l, f->config, &f->out->layers[l]);
    if (!f->code)
        check_names(f);
}

int weights_open(const moepage_model *model, const model_config *config, bool on_gpu,
                 model_weights *out)
{
    const size_t most = (size_t)config->layers * MAX_PER_LAYER + MAX_BESIDE;
    finder f = {.model = model, .config = config, .on_gpu = on_gpu, .out = out};
    *out = (model_weights){0};
    out->layers = calloc(config->layers, sizeof *out->layers);
    out->owned = calloc(most, sizeof *out->owned);
    f.read = calloc(most, sizeof *f.read);
    if (out->layers && out->owned && f.read)
        find_all(&f);
    else
        f.code = fail_memory();
    for (size_t i = 0; i < f.n_read; i++)
        free(f.read[i]);
    free(f.read);
    return f.code;
}

void weights_close(model_weights *w)
{
    for (size_t i = 0; i < w->n_owned; i++)
        free(w->owned[i]);
    free(w->owned);
    free(w->layers);
}

int weights_read_embedding(const model_weights *w, uint32_t token, uint32_t first, uint32_t n,
                           float *out)
{
    const matrix *m = &w->embedding;
    unsigned char stored[READ_AT_ONCE * sizeof(float)];
    if (m->data) {
        matrix_read(m, token, first, n, out);
        return RUN_OK;
    }
    for (uint32_t done = 0, some; done < n; done += some) {
        some = n - done < READ_AT_ONCE ? n - done : READ_AT_ONCE;
        const uint64_t bytes = matrix_row_bytes(m) * some / m->columns;
        if (moepage_model_read_tensor(w->model, w->embedding_name,
                                      matrix_offset(m, token, first + done), bytes, stored, NULL))
            return fail_library(RUN_FAILED, "embeddings");
        matrix_values(m, stored, some, out + done);
    }
    return RUN_OK;
}
