/* Reads the metadata of GGUF files, and writes it as the config.json of their architecture has it. */
#include "common/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/fail.h"

enum { SOFTMAX = 1, SIGMOID = 2, SOFTMAX_OF_CHOSEN = 3 }; /* values of expert_gating_func */

/* What files of an architecture say, or leave out. */
typedef struct dialect {
    const char *name;
    int64_t gating;       /* where the file does not say; the only one without `any_gating` */
    bool any_gating;      /* a softmax or sigmoids */
    bool normalised;      /* weights of experts, where the file does not say */
    bool scaled;          /* they have a scale */
    bool latent;          /* attention is with latents */
    bool partial;         /* a part of each head may be rotated */
    bool windows;         /* every other layer sees a window */
    bool optional;        /* biases and norms of heads are there where their tensors are */
    const char *scalings; /* of RoPE */
} dialect;

static const dialect dialects[] = {
    {.name = "qwen3moe", .gating = SOFTMAX, .normalised = true, .scalings = "linear"},
    {.name = "gpt-oss",
     .gating = SOFTMAX_OF_CHOSEN,
     .normalised = true,
     .windows = true,
     .scalings = "linear, yarn"},
    {.name = "deepseek2",
     .gating = SOFTMAX,
     .any_gating = true,
     .scaled = true,
     .latent = true,
     .scalings = "yarn"},
    {.name = "glm4moe",
     .gating = SIGMOID,
     .scaled = true,
     .partial = true,
     .optional = true,
     .scalings = "linear"},
};

/* The state of reading; after the first failure later calls do nothing. */
typedef struct reader {
    const moepage_model *model;
    const moepage_model_info *info;
    const dialect *dialect;
    json_t *json;
    int code;
} reader;

typedef struct key_text {
    char text[128];
} key_text;

/* A key of the architecture's own begins with its name. */
static key_text key_of(const reader *r, const char *rest)
{
    key_text key;
    snprintf(key.text, sizeof key.text, "%s.%s", r->info->architecture, rest);
    return key;
}

static bool has_key(const moepage_model *model, const char *key)
{
    uint64_t count;
    return moepage_model_get_metadata(model, key, 0, NULL, 0, &count) == MOEPAGE_OK;
}

bool gguf_is(const moepage_model *model)
{
    return has_key(model, "general.architecture");
}

bool gguf_has_tokens(const moepage_model *model)
{
    return has_key(model, "tokenizer.ggml.tokens");
}

/* ---- Values ------------------------------------------------------------------------------ */

/* Returns true if there is a value under the key; it is then of that type, or the reading fails. */
static bool find(reader *r, const char *key, uint32_t type, moepage_metadata *out)
{
    static const char *const types[] = {[MOEPAGE_METADATA_INTEGER] = "an integer",
                                        [MOEPAGE_METADATA_REAL] = "a floating-point number",
                                        [MOEPAGE_METADATA_TRUTH] = "a truth value",
                                        [MOEPAGE_METADATA_TEXT] = "a text"};
    uint64_t count;
    if (r->code || !has_key(r->model, key))
        return false;
    *out = (moepage_metadata){0};
    if (moepage_model_get_metadata(r->model, key, 0, out, 1, &count))
        r->code = fail_library(RUN_REFUSED, "metadata");
    else if (out->is_array || !count)
        r->code = fail(RUN_REFUSED,
                       "metadata: %s differs from layer to layer, which is not supported by this "
                       "example",
                       key);
    else if (out->type != type)
        r->code = fail(RUN_REFUSED, "metadata: %s must be %s", key, types[type]);
    return !r->code;
}

static void put(reader *r, const char *name, json_t *value)
{
    if (json_object_set_new(r->json, name, value) && !r->code)
        r->code = fail_memory();
}

/* Gives a count from 1 to 2^30; `otherwise` if it is missing, where 0 makes it required. */
static uint32_t read_count(reader *r, const char *rest, uint32_t otherwise)
{
    const key_text key = key_of(r, rest);
    moepage_metadata value;
    if (!find(r, key.text, MOEPAGE_METADATA_INTEGER, &value)) {
        if (!r->code && !otherwise)
            r->code = fail(RUN_REFUSED, "metadata: %s is missing", key.text);
        return otherwise;
    }
    if (value.integer < 1 || value.integer > 1 << 30)
        r->code = fail(RUN_REFUSED, "metadata: %s is %" PRId64 ", it must be 1 to 2^30", key.text,
                       value.integer);
    return (uint32_t)value.integer;
}

/* Gives a number above 0; `otherwise` if it is missing, where 0 makes it required. */
static double read_positive(reader *r, const char *rest, double otherwise)
{
    const key_text key = key_of(r, rest);
    moepage_metadata value;
    if (!find(r, key.text, MOEPAGE_METADATA_REAL, &value)) {
        if (!r->code && !(otherwise > 0))
            r->code = fail(RUN_REFUSED, "metadata: %s is missing", key.text);
        return otherwise;
    }
    if (!(value.real > 0) || isinf(value.real))
        r->code = fail(RUN_REFUSED, "metadata: %s is %g, it must be above 0", key.text, value.real);
    return value.real;
}

/* Refuses a count other than `expected`, if it is there. */
static void expect_count(reader *r, const char *rest, int64_t expected)
{
    const key_text key = key_of(r, rest);
    moepage_metadata value;
    if (find(r, key.text, MOEPAGE_METADATA_INTEGER, &value) && value.integer != expected)
        r->code = fail(RUN_REFUSED,
                       "metadata: %s is %" PRId64 ", only %" PRId64 " is supported by this example",
                       key.text, value.integer, expected);
}

static bool has_tensor(const reader *r, const char *name)
{
    moepage_tensor_view view = {.struct_size = sizeof view};
    return moepage_model_find_tensor(r->model, name, &view) != MOEPAGE_E_NOT_FOUND;
}

/* ---- Parts ------------------------------------------------------------------------------- */

/* The first of two layers, and so on, sees only a window; files do not say which. */
static void read_alternating_window(reader *r)
{
    json_t *types = json_array();
    put(r, "sliding_window", json_integer(read_count(r, "attention.sliding_window", 0)));
    for (uint32_t l = 0; l < r->info->layers; l++)
        if (json_array_append_new(types,
                                  json_string(l % 2 ? "full_attention" : "sliding_attention")))
            r->code = fail_memory();
    put(r, "layer_types", types);
}

/* Lengths of a head are those of the cache's vectors in newer files, which have its own besides. */
static void read_latent(reader *r)
{
    const uint32_t rank = read_count(r, "attention.kv_lora_rank", 0);
    const uint32_t turned = read_count(r, "rope.dimension_count", 0);
    const uint32_t key = read_count(r, "attention.key_length", 0);
    const uint32_t value = read_count(r, "attention.value_length", 0);
    const uint32_t key_own = read_count(r, "attention.key_length_mla", key ? key : 1);
    const uint32_t value_own = read_count(r, "attention.value_length_mla", value ? value : 1);
    if (!r->code && key_own <= turned)
        r->code = fail(RUN_REFUSED, "metadata: heads of %u elements, of which %u are rotated",
                       key_own, turned);
    const key_text low = key_of(r, "attention.q_lora_rank");
    if (has_key(r->model, low.text))
        put(r, "q_lora_rank", json_integer(read_count(r, "attention.q_lora_rank", 0)));
    put(r, "kv_lora_rank", json_integer(rank));
    put(r, "qk_nope_head_dim", json_integer((json_int_t)key_own - turned));
    put(r, "qk_rope_head_dim", json_integer(turned));
    put(r, "v_head_dim", json_integer(value_own));
}

static void read_heads(reader *r, uint32_t heads)
{
    const uint32_t kv_heads = read_count(r, "attention.head_count_kv", heads ? heads : 1);
    const uint32_t own = heads ? r->info->hidden / heads : 1;
    const uint32_t head_dim = read_count(r, "attention.key_length", own ? own : 1);
    expect_count(r, "attention.value_length", head_dim);
    if (r->dialect->partial)
        put(r, "partial_rotary_factor",
            json_real((double)read_count(r, "rope.dimension_count", 0) / head_dim));
    else
        expect_count(r, "rope.dimension_count", head_dim);
    put(r, "num_key_value_heads", json_integer(kv_heads));
    put(r, "head_dim", json_integer(head_dim));
}

static void read_attention(reader *r)
{
    const uint32_t heads = read_count(r, "attention.head_count", 0);
    if (r->dialect->latent)
        read_latent(r);
    else
        read_heads(r, heads);
    if (r->dialect->windows)
        read_alternating_window(r);
    else
        expect_count(r, "attention.sliding_window", 0);
    if (r->dialect->optional) {
        put(r, "attention_bias", json_boolean(has_tensor(r, "blk.0.attn_q.bias")));
        put(r, "use_qk_norm", json_boolean(has_tensor(r, "blk.0.attn_q_norm.weight")));
    }
    put(r, "num_attention_heads", json_integer(heads));
    put(r, "rms_norm_eps", json_real(read_positive(r, "attention.layer_norm_rms_epsilon", 0)));
    const uint32_t context = read_count(r, "context_length", 1 << 30);
    put(r, "max_position_embeddings", json_integer(context));
}

/* Refuses numbers other than 1, if they are there. */
static void expect_ones(reader *r, const char *const *keys, size_t n)
{
    moepage_metadata value;
    for (size_t i = 0; i < n; i++) {
        const key_text key = key_of(r, keys[i]);
        if (find(r, key.text, MOEPAGE_METADATA_REAL, &value) && value.real != 1)
            r->code = fail(RUN_REFUSED, "metadata: %s is %g, only 1 is supported by this example",
                           key.text, value.real);
    }
}

/* DeepSeek's files have a tenth of mscale_all_dim, and mscale is the same: else the product of both
 * would show in the angles, for which there is no key. */
static void put_mscale(reader *r, json_t *scaling)
{
    const double tenth = read_positive(r, "rope.scaling.yarn_log_multiplier", 0);
    if (json_object_set_new(scaling, "mscale", json_real(10 * tenth)) ||
        json_object_set_new(scaling, "mscale_all_dim", json_real(10 * tenth)))
        r->code = r->code ? r->code : fail_memory();
}

/* gpt-oss was trained without rounding the range between fast and slow. */
static void read_yarn(reader *r)
{
    /* files have these where a model departs from the method */
    static const char *const further[] = {"rope.scaling.attn_factor",
                                          "rope.scaling.yarn_ext_factor",
                                          "rope.scaling.yarn_attn_factor"};
    expect_ones(r, further, sizeof further / sizeof *further);
    const double factor = read_positive(r, "rope.scaling.factor", 0);
    const uint32_t trained = read_count(r, "rope.scaling.original_context_length", 0);
    const double fast = read_positive(r, "rope.scaling.yarn_beta_fast", 32);
    const double slow = read_positive(r, "rope.scaling.yarn_beta_slow", 1);
    json_t *scaling = json_pack("{s:s, s:f, s:i, s:f, s:f, s:b}", "type", "yarn", "factor", factor,
                                "original_max_position_embeddings", (int)trained, "beta_fast", fast,
                                "beta_slow", slow, "truncate", r->dialect->latent);
    if (r->dialect->latent)
        put_mscale(r, scaling);
    put(r, "rope_scaling", scaling);
}

static bool is_text(const moepage_metadata *value, const char *text)
{
    return value->text_bytes == strlen(text) && !memcmp(value->text, text, value->text_bytes);
}

static void read_rope(reader *r)
{
    /* older files have a factor and no type */
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear"};
    const key_text key = key_of(r, "rope.scaling.type");
    moepage_metadata type;
    put(r, "rope_theta", json_real(read_positive(r, "rope.freq_base", 1e4)));
    if (!find(r, key.text, MOEPAGE_METADATA_TEXT, &type)) {
        expect_ones(r, factors, sizeof factors / sizeof *factors);
        return;
    }
    if (is_text(&type, "none"))
        return;
    if (is_text(&type, "yarn") && strstr(r->dialect->scalings, "yarn"))
        read_yarn(r);
    else if (is_text(&type, "linear") && strstr(r->dialect->scalings, "linear"))
        put(r, "rope_scaling",
            json_pack("{s:s, s:f}", "type", "linear", "factor",
                      read_positive(r, "rope.scaling.factor", 0)));
    else
        r->code = fail(RUN_REFUSED,
                       "metadata: %s is '%.*s', none, %s are supported by this example for %s",
                       key.text, (int)(type.text_bytes < 40 ? type.text_bytes : 40), type.text,
                       r->dialect->scalings, r->dialect->name);
}

/* Gives the function that turns logits into scores; files say so only if they are newer than the key. */
static int64_t read_gating(reader *r)
{
    const key_text key = key_of(r, "expert_gating_func");
    moepage_metadata value;
    if (!r->dialect->any_gating) {
        expect_count(r, "expert_gating_func", r->dialect->gating);
        return r->dialect->gating;
    }
    if (!find(r, key.text, MOEPAGE_METADATA_INTEGER, &value))
        return r->dialect->gating;
    if (value.integer != SOFTMAX && value.integer != SIGMOID)
        r->code = fail(RUN_REFUSED,
                       "metadata: %s is %" PRId64 ", %d and %d are supported by this example",
                       key.text, value.integer, SOFTMAX, SIGMOID);
    return value.integer;
}

static void read_routing(reader *r)
{
    const key_text norm = key_of(r, "expert_weights_norm"),
                   scale = key_of(r, "expert_weights_scale");
    moepage_metadata value;
    bool normalised = r->dialect->normalised;
    if (find(r, norm.text, MOEPAGE_METADATA_TRUTH, &value))
        normalised = value.integer;
    put(r, "norm_topk_prob", json_boolean(normalised));
    put(r, "scoring_func", json_string(read_gating(r) == SIGMOID ? "sigmoid" : "softmax"));
    put(r, "n_group", json_integer(read_count(r, "expert_group_count", 1)));
    put(r, "topk_group", json_integer(read_count(r, "expert_group_used_count", 1)));
    if (r->dialect->scaled)
        put(r, "routed_scaling_factor", json_real(read_positive(r, "expert_weights_scale", 1)));
    else if (find(r, scale.text, MOEPAGE_METADATA_REAL, &value) && value.real != 1 &&
             value.real != 0)
        r->code = fail(RUN_REFUSED, "metadata: %s is %g, only 1 is supported by this example",
                       scale.text, value.real);
}

/* The tokens that end a text: the model's own end, and that of a turn. */
static void read_ends(reader *r)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    json_t *ends = json_array();
    moepage_metadata value;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (find(r, keys[i], MOEPAGE_METADATA_INTEGER, &value) &&
            json_array_append_new(ends, json_integer(value.integer)))
            r->code = fail_memory();
    put(r, "eos_token_id", ends);
}

static const dialect *find_dialect(const char *architecture)
{
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
        if (!strcmp(dialects[i].name, architecture))
            return &dialects[i];
    return NULL;
}

int gguf_config_read(const moepage_model *model, const moepage_model_info *info, json_t **out)
{
    reader r = {.model = model, .info = info, .dialect = find_dialect(info->architecture)};
    if (!r.dialect)
        return fail(RUN_REFUSED, "attention of %s in GGUF files is not supported by this example",
                    info->architecture);
    if (!(r.json = json_object()))
        return fail_memory();
    if (!info->vocabulary)
        r.code = fail(RUN_REFUSED,
                      "metadata: neither tokenizer.ggml.tokens nor %s says how many "
                      "tokens there are",
                      key_of(&r, "vocab_size").text);
    read_attention(&r);
    read_rope(&r);
    read_routing(&r);
    read_ends(&r);
    if (info->moe_layers < info->layers)
        put(&r, "intermediate_size", json_integer(read_count(&r, "feed_forward_length", 0)));
    put(&r, "tie_word_embeddings", json_boolean(!has_tensor(&r, "output.weight")));
    if (r.code)
        json_decref(r.json);
    else
        *out = r.json;
    return r.code;
}
