/* Reads the config.json of nine architectures, and the metadata of four, into one struct. */
#include "common/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/gguf_config.h"

/* An architecture's properties that config.json does not override: its defaults for absent keys,
 * and fixed choices. */
typedef struct family {
    const char *name; /* NULL = checkpoints have others */
    const char *gguf; /* its name in GGUF files; NULL = these are not run */
    double norm_eps;
    rope_traits rope;
    const char *bias_key; /* biases of q, k and v */
    bool bias_default;
    bool output_bias;      /* the key above covers the output projection too */
    bool norm_top_k_fixed; /* always normalised, regardless of norm_topk_prob */
    bool norm_top_k_never; /* refused: implementations differ */
    bool layer_norm;
    bool router_bias;
    bool sinks;
    bool windowed; /* some layers see a window, which no default says */
    bool latent;
    bool qk_norm_optional; /* with use_qk_norm alone */
    uint32_t activation;   /* of the experts: MOEPAGE_ACTIVATION_* */
    const char *post_norm; /* NULL = "ffn_norm" */
    qk_norm qk_norm;
    router_kind router;
    shared_kind shared;
} family;

static const family families[] = {
    {.name = "qwen3_moe",
     .gguf = "qwen3moe",
     .norm_eps = 1e-6,
     .rope = {.theta = 1e4},
     .bias_key = "attention_bias",
     .output_bias = true,
     .qk_norm = QK_NORM_HEAD},
    {.name = "qwen2_moe",
     .norm_eps = 1e-6,
     .rope = {.theta = 1e4},
     .bias_key = "qkv_bias",
     .bias_default = true,
     .shared = SHARED_GATED},
    {.name = "mixtral", .norm_eps = 1e-5, .rope = {.theta = 1e6}, .norm_top_k_fixed = true},
    {.name = "olmoe",
     .norm_eps = 1e-5,
     .rope = {.theta = 1e4},
     .bias_key = "attention_bias",
     .output_bias = true,
     .qk_norm = QK_NORM_WIDTH},
    {.name = "phimoe",
     .norm_eps = 1e-5,
     .rope = {.theta = 1e6},
     .bias_key = "attention_bias",
     .output_bias = true,
     .layer_norm = true,
     .router = ROUTER_SPARSEMIXER},
    {.name = "gpt_oss", /* a softmax over the chosen logits is that over all, normalised */
     .gguf = "gpt-oss",
     .norm_eps = 1e-5,
     .rope = {.theta = 1.5e5},
     .bias_key = "attention_bias",
     .bias_default = true,
     .output_bias = true,
     .norm_top_k_fixed = true,
     .router_bias = true,
     .sinks = true,
     .windowed = true,
     .activation = MOEPAGE_ACTIVATION_SWIGLU_CLAMPED,
     .post_norm = "post_attention_norm"},
    {.name = "deepseek_v2",
     .norm_eps = 1e-6,
     .rope = {.theta = 1e4, .interleaved = true},
     .norm_top_k_never = true,
     .latent = true,
     .shared = SHARED_PLAIN},
    {.name = "deepseek_v3",
     .norm_eps = 1e-6,
     .rope = {.theta = 1e4, .interleaved = true},
     .latent = true,
     .router = ROUTER_SIGMOID,
     .shared = SHARED_PLAIN},
    {.gguf = "deepseek2", /* both; files say which router */
     .norm_eps = 1e-6,
     .rope = {.theta = 1e4, .interleaved = true},
     .latent = true,
     .shared = SHARED_PLAIN},
    {.name = "glm4_moe",
     .gguf = "glm4moe",
     .norm_eps = 1e-5,
     .rope = {.theta = 1e4, .partial = 0.5},
     .bias_key = "attention_bias",
     .post_norm = "post_attention_norm",
     .qk_norm = QK_NORM_HEAD,
     .qk_norm_optional = true,
     .router = ROUTER_SIGMOID,
     .shared = SHARED_PLAIN},
};

static const family *find_family(const char *architecture, bool gguf)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *name = gguf ? families[i].gguf : families[i].name;
        if (name && !strcmp(name, architecture))
            return &families[i];
    }
    return NULL;
}

/* ---- Fields ------------------------------------------------------------------------------ */

static bool read_bool(const json_t *json, const char *key, bool otherwise)
{
    const json_t *value = key ? json_object_get(json, key) : NULL;
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static float read_float(const json_t *json, const char *key, double otherwise)
{
    const json_t *value = json_object_get(json, key);
    return (float)(json_is_number(value) ? json_number_value(value) : otherwise);
}

/* Reads a count from 1 to 2^30. If it is missing or null: `otherwise`; 0 there makes the field
 * required. */
static int read_count(const json_t *json, const char *key, uint32_t otherwise, uint32_t *out)
{
    const json_t *value = json_object_get(json, key);
    if ((!value || json_is_null(value)) && otherwise) {
        *out = otherwise;
        return RUN_OK;
    }
    json_int_t count = json_is_integer(value) ? json_integer_value(value) : 0;
    if (count < 1 || count > 1 << 30)
        return fail(RUN_REFUSED, "config.json: %s must be a whole number from 1 to 2^30", key);
    *out = (uint32_t)count;
    return RUN_OK;
}

/* The cache has one key for all heads, whose first elements are the value. */
static int read_latent(const json_t *json, model_config *out)
{
    latent_config *latent = &out->latent;
    const json_t *q_rank = json_object_get(json, "q_lora_rank");
    int code;
    if ((code = read_count(json, "kv_lora_rank", 0, &latent->rank)) ||
        (code = read_count(json, "qk_nope_head_dim", 0, &latent->plain)) ||
        (code = read_count(json, "qk_rope_head_dim", 0, &latent->turned)) ||
        (code = read_count(json, "v_head_dim", 0, &latent->value)))
        return code;
    if (q_rank && !json_is_null(q_rank) &&
        (code = read_count(json, "q_lora_rank", 0, &latent->q_rank)))
        return code;
    const uint64_t widest = latent->plain > latent->value ? latent->plain : latent->value;
    if ((widest + latent->turned) * out->heads > 1u << 24)
        return fail(RUN_REFUSED, "%s: %u heads of %" PRIu64 " are more than 2^24 elements",
                    out->source, out->heads, widest + latent->turned);
    out->kv_heads = 1;
    out->head_dim = latent->rank + latent->turned;
    out->value_dim = latent->rank;
    return RUN_OK;
}

static int read_heads(const json_t *json, model_config *out)
{
    int code = read_count(json, "num_key_value_heads", out->heads, &out->kv_heads);
    if (!code)
        code = read_count(json, "head_dim", out->hidden / out->heads, &out->head_dim);
    out->value_dim = out->head_dim;
    return code;
}

static int read_attention(const json_t *json, const family *kin, model_config *out)
{
    int code;
    if ((code = read_count(json, "num_attention_heads", 0, &out->heads)) ||
        (code = read_count(json, "max_position_embeddings", UINT32_MAX, &out->max_positions)) ||
        (code = kin->latent ? read_latent(json, out) : read_heads(json, out)))
        return code;
    if (out->heads % out->kv_heads)
        return fail(RUN_REFUSED, "%s: %u attention heads are not a multiple of %u key-value heads",
                    out->source, out->heads, out->kv_heads);
    if (out->head_dim % 2 || (uint64_t)out->heads * out->head_dim > 1u << 24)
        return fail(RUN_REFUSED,
                    "%s: %u heads of %u: head_dim must be even and the product at most 2^24",
                    out->source, out->heads, out->head_dim);
    return RUN_OK;
}

/* Reads eos_token_id: a number, a list, or absent. */
static int read_eos(const json_t *json, model_config *out)
{
    const json_t *value = json_object_get(json, "eos_token_id");
    size_t n = json_is_array(value) ? json_array_size(value) : json_is_integer(value);
    if (n > MAX_EOS)
        return fail(RUN_REFUSED, "config.json: %zu eos_token_id entries, at most %d are supported",
                    n, MAX_EOS);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_is_array(value) ? json_array_get(value, i) : value;
        if (json_is_integer(entry) && json_integer_value(entry) >= 0)
            out->eos[out->n_eos++] = (uint32_t)json_integer_value(entry);
    }
    return RUN_OK;
}

/* ---- Layers ------------------------------------------------------------------------------ */

/* Reads which layers see only a sliding window. Architectures with use_sliding_window have it off
 * by default; some of them list a type per layer. */
static int read_windows(const json_t *json, const family *kin, model_config *out)
{
    const json_t *types = json_object_get(json, "layer_types");
    bool has_switch = json_object_get(json, "use_sliding_window") != NULL;
    bool wanted = !has_switch || read_bool(json, "use_sliding_window", false);
    bool by_layer = json_is_array(types) && json_array_size(types) == out->layers;
    uint32_t window = UINT32_MAX;
    int code;
    if (!by_layer && (kin->windowed || (types && !json_is_null(types))))
        return fail(RUN_REFUSED,
                    "config.json: layer_types must have an entry for each of %u layers",
                    out->layers);
    if (wanted &&
        (code = read_count(json, "sliding_window", kin->windowed ? 0 : UINT32_MAX, &window)))
        return code;
    if (window != UINT32_MAX && has_switch && !by_layer &&
        json_object_get(json, "max_window_layers"))
        return fail(RUN_REFUSED, "config.json: use_sliding_window needs layer_types to say which "
                                 "layers it means");
    for (uint32_t l = 0; l < out->layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        bool sliding = !by_layer || (type && !strcmp(type, "sliding_attention"));
        out->window[l] = sliding ? window : UINT32_MAX;
    }
    return RUN_OK;
}

static int read_layers(const moepage_model *model, const json_t *json, const family *kin,
                       uint32_t moe_layers, model_config *out)
{
    out->window = calloc(out->layers, sizeof *out->window);
    out->moe_layer = calloc(out->layers, sizeof *out->moe_layer);
    if (!out->window || !out->moe_layer)
        return fail_memory();
    for (uint32_t l = 0; l < out->layers; l++)
        out->moe_layer[l] = -1;
    for (uint32_t m = 0; m < moe_layers; m++)
        out->moe_layer[moepage_model_layer_index(model, m)] = (int32_t)m;
    int code = read_windows(json, kin, out);
    if (!code && moe_layers < out->layers)
        code = read_count(json, "intermediate_size", 0, &out->dense_intermediate);
    return code;
}

/* ---- The whole config --------------------------------------------------------------------- */

/* Reads how the router's logits become scores, where the config says so. */
static int read_scoring(const json_t *json, const family *kin, model_config *out)
{
    const char *scoring = json_string_value(json_object_get(json, "scoring_func"));
    out->router = kin->router;
    if (scoring && !strcmp(scoring, "softmax"))
        out->router = ROUTER_SOFTMAX;
    if (scoring && !strcmp(scoring, "sigmoid"))
        out->router = ROUTER_SIGMOID;
    const bool known = out->router == ROUTER_SIGMOID || !scoring || !strcmp(scoring, "softmax");
    if (!known || (kin->name && out->router != kin->router))
        return fail(RUN_REFUSED, "config.json: scoring_func '%s' is not supported by this example",
                    scoring);
    return RUN_OK;
}

/* Fails if it is left open how sigmoids weigh experts: implementations have defaults of their own. */
static int check_sigmoids(const json_t *json, const model_config *out)
{
    static const char *const numbers[] = {"routed_scaling_factor", "n_group", "topk_group"};
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !missing; i++)
        missing = json_is_number(json_object_get(json, numbers[i])) ? NULL : numbers[i];
    if (!missing && !json_is_boolean(json_object_get(json, "norm_topk_prob")))
        missing = "norm_topk_prob";
    return missing && out->router == ROUTER_SIGMOID
               ? fail(RUN_REFUSED, "config.json: %s is missing", missing)
               : RUN_OK;
}

/* Reads how many groups of experts there are, and from how many of these a token chooses. */
static int read_groups(const json_t *json, model_config *out)
{
    const char *method = json_string_value(json_object_get(json, "topk_method"));
    const char *grouped = out->router == ROUTER_SIGMOID ? "noaux_tc" : "group_limited_greedy";
    out->groups = out->top_groups = 1;
    if (method && !strcmp(method, "greedy") && out->router == ROUTER_SOFTMAX)
        return RUN_OK;
    if (method && strcmp(method, grouped) != 0)
        return fail(RUN_REFUSED, "config.json: topk_method '%s' is not supported by this example",
                    method);
    int code = read_count(json, "n_group", 1, &out->groups);
    if (!code)
        code = read_count(json, "topk_group", 1, &out->top_groups);
    if (code)
        return code;
    const uint32_t each = out->experts / out->groups, least = out->router == ROUTER_SIGMOID ? 2 : 1;
    if (out->experts % out->groups || out->top_groups > out->groups ||
        (out->groups > 1 && each < least) || (uint64_t)out->top_groups * each < out->top_k)
        return fail(RUN_REFUSED, "%s: %u of %u experts cannot be chosen from %u of %u groups",
                    out->source, out->top_k, out->experts, out->top_groups, out->groups);
    return RUN_OK;
}

static int read_router(const json_t *json, const moepage_model_info *info, const family *kin,
                       model_config *out)
{
    int code = read_scoring(json, kin, out);
    out->normalize_top_k = kin->norm_top_k_fixed || read_bool(json, "norm_topk_prob", false);
    out->router_jitter = read_float(json, "router_jitter_noise", 0.01);
    out->router_scale = read_float(json, "routed_scaling_factor", 1);
    if (!code)
        code = check_sigmoids(json, out);
    if (!code)
        code = read_groups(json, out);
    if (code)
        return code;
    if (kin->norm_top_k_never && out->normalize_top_k)
        return fail(RUN_REFUSED,
                    "config.json: norm_topk_prob is not supported by this example for "
                    "%s",
                    kin->name);
    if (out->router == ROUTER_SPARSEMIXER && out->top_k != 2)
        return fail(RUN_REFUSED,
                    "config.json: sparsemixer routing takes 2 experts per token, not "
                    "%u",
                    out->top_k);
    out->shared = info->shared_experts || kin->shared == SHARED_GATED ? kin->shared : SHARED_NONE;
    if (out->shared == SHARED_GATED)
        return read_count(json, "shared_expert_intermediate_size", 5632, &out->shared_intermediate);
    if (out->shared == SHARED_PLAIN)
        out->shared_intermediate = info->shared_experts * info->expert_intermediate;
    return RUN_OK;
}

/* Reads how many weights in FP8 share a scale. */
static int read_blocks(const json_t *json, model_config *out)
{
    const json_t *quantization = json_object_get(json, "quantization_config");
    const json_t *block = json_object_get(quantization, "weight_block_size");
    if (!block || json_is_null(block))
        return RUN_OK;
    const json_int_t rows = json_integer_value(json_array_get(block, 0));
    const json_int_t columns = json_integer_value(json_array_get(block, 1));
    if (rows < 1 || rows > 1 << 30 || columns < 1 || columns > 1 << 30)
        return fail(RUN_REFUSED,
                    "config.json: weight_block_size must be two whole numbers from 1 to 2^30");
    out->block_rows = (uint32_t)rows;
    out->block_columns = (uint32_t)columns;
    return RUN_OK;
}

static void set_score_scale(model_config *c)
{
    const uint32_t dims = c->latent.rank ? c->latent.plain + c->latent.turned : c->head_dim;
    c->score_scale = 1.0f / sqrtf((float)dims);
    if (c->latent.rank)
        c->score_scale *= c->rope.score_factor;
}

static int read_fields(const moepage_model *model, const moepage_model_info *info,
                       const family *kin, const json_t *json, model_config *out)
{
    const char *activation = json_string_value(json_object_get(json, "hidden_act"));
    /* "swish" is an older name of silu. */
    if (activation && strcmp(activation, "silu") && strcmp(activation, "swish"))
        return fail(RUN_REFUSED, "config.json: hidden_act '%s' is not supported by this example",
                    activation);
    out->layers = info->layers;
    out->hidden = info->hidden;
    out->experts = info->experts;
    out->top_k = info->top_k;
    out->vocabulary = info->vocabulary;
    out->qk_norm = kin->qk_norm;
    if (kin->qk_norm_optional && !read_bool(json, "use_qk_norm", false))
        out->qk_norm = QK_NORM_NONE;
    out->layer_norm = kin->layer_norm;
    out->norm_eps = read_float(json, "rms_norm_eps", kin->norm_eps);
    out->clip_qkv = read_float(json, "clip_qkv", 0);
    out->qkv_bias = read_bool(json, kin->bias_key, kin->bias_default);
    out->head_bias = read_bool(json, "lm_head_bias", false);
    out->tied_embeddings = read_bool(json, "tie_word_embeddings", false);
    out->output_bias = kin->output_bias && out->qkv_bias;
    out->router_bias = kin->router_bias;
    out->sinks = kin->sinks;
    out->post_norm = kin->post_norm ? kin->post_norm : "ffn_norm";
    int code;
    if (!info->vocabulary)
        return fail(RUN_REFUSED, "config.json: vocab_size is missing");
    if ((code = read_attention(json, kin, out)) || (code = read_router(json, info, kin, out)) ||
        (code = read_eos(json, out)) || (code = read_blocks(json, out)) ||
        (code = read_layers(model, json, kin, info->moe_layers, out)) ||
        (code = rope_read(json, kin->latent ? out->latent.turned : out->head_dim, &kin->rope,
                          &out->rope)))
        return code;
    set_score_scale(out);
    return RUN_OK;
}

static int read_json(const moepage_model *model, const moepage_model_info *info, json_t **out)
{
    json_error_t error;
    const char *text = moepage_model_config_json(model);
    if (!text)
        return fail(RUN_REFUSED,
                    "the model (%s) has no config.json, which says what its attention is",
                    info->architecture);
    *out = json_loads(text, 0, &error);
    return *out ? RUN_OK : fail(RUN_REFUSED, "config.json: %s", error.text);
}

int config_read(const moepage_model *model, model_config *out)
{
    const bool gguf = gguf_is(model);
    *out = (model_config){.source = gguf ? "the metadata" : "config.json", .gguf = gguf};
    moepage_model_info info = {.struct_size = sizeof info};
    if (moepage_model_get_info(model, &info))
        return fail_library(RUN_FAILED, "model");
    json_t *json = NULL;
    int code = gguf ? RUN_OK : read_json(model, &info, &json);
    const family *kin = find_family(info.architecture, gguf);
    if (!code && (!kin || !info.ffn_supported || info.activation != kin->activation))
        code = fail(RUN_REFUSED, "%s of %s%s is not supported by this example",
                    kin ? "the expert format" : "attention", info.architecture,
                    gguf ? " in GGUF files" : "");
    if (!code && gguf)
        code = gguf_config_read(model, &info, &json);
    if (!code)
        code = read_fields(model, &info, kin, json, out);
    out->has_tokens = gguf && gguf_has_tokens(model);
    json_decref(json);
    return code;
}

void config_free(model_config *config)
{
    rope_free(&config->rope);
    free(config->window);
    free(config->moe_layer);
}

bool config_is_eos(const model_config *config, uint32_t token)
{
    for (uint32_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == token)
            return true;
    return false;
}

bool config_weighs_by_softmax(const model_config *config)
{
    return config->router == ROUTER_SOFTMAX && config->groups == 1 && config->router_scale == 1;
}

uint32_t config_q_width(const model_config *config)
{
    const latent_config *l = &config->latent;
    return config->heads * (l->rank ? l->plain + l->turned : config->head_dim);
}

uint32_t config_o_width(const model_config *config)
{
    return config->heads * (config->latent.rank ? config->latent.value : config->head_dim);
}

uint32_t config_widest(const model_config *config)
{
    const uint32_t widths[] = {config->hidden,
                               config_o_width(config),
                               config->latent.rank,
                               config->latent.q_rank,
                               config->latent.plain,
                               config->dense_intermediate,
                               config->shared_intermediate};
    uint32_t most = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        most = widths[i] > most ? widths[i] : most;
    return most;
}
