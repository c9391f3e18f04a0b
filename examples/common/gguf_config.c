/* Reads the metadata of qwen3moe and gpt-oss files, and writes it as their config.json has it. */
#include "common/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/fail.h"

/* The state of reading; after the first failure later calls do nothing. */
typedef struct reader {
    const moepage_model *model;
    const moepage_model_info *info;
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

static bool is_gpt_oss(const reader *r)
{
    return !strcmp(r->info->architecture, "gpt-oss");
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

static void read_attention(reader *r)
{
    const uint32_t heads = read_count(r, "attention.head_count", 0);
    const uint32_t kv_heads = read_count(r, "attention.head_count_kv", heads ? heads : 1);
    const uint32_t own = heads ? r->info->hidden / heads : 1;
    const uint32_t head_dim = read_count(r, "attention.key_length", own ? own : 1);
    expect_count(r, "attention.value_length", head_dim);
    expect_count(r, "rope.dimension_count", head_dim);
    if (is_gpt_oss(r))
        read_alternating_window(r);
    else
        expect_count(r, "attention.sliding_window", 0);
    put(r, "num_attention_heads", json_integer(heads));
    put(r, "num_key_value_heads", json_integer(kv_heads));
    put(r, "head_dim", json_integer(head_dim));
    put(r, "rms_norm_eps", json_real(read_positive(r, "attention.layer_norm_rms_epsilon", 0)));
    const uint32_t context = read_count(r, "context_length", 1 << 30);
    put(r, "max_position_embeddings", json_integer(context));
}

/* Further numbers of a scaling: files have them where a model departs from its method. */
static void expect_no_departures(reader *r)
{
    static const char *const keys[] = {"rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor",
                                       "rope.scaling.yarn_attn_factor"};
    moepage_metadata value;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const key_text key = key_of(r, keys[i]);
        if (find(r, key.text, MOEPAGE_METADATA_REAL, &value) && value.real != 1)
            r->code = fail(RUN_REFUSED, "metadata: %s is %g, only 1 is supported by this example",
                           key.text, value.real);
    }
}

/* YaRN as gpt-oss was trained with it: the range between fast and slow is not rounded. */
static void read_yarn(reader *r)
{
    expect_no_departures(r);
    const double factor = read_positive(r, "rope.scaling.factor", 0);
    const uint32_t trained = read_count(r, "rope.scaling.original_context_length", 0);
    const double fast = read_positive(r, "rope.scaling.yarn_beta_fast", 32);
    const double slow = read_positive(r, "rope.scaling.yarn_beta_slow", 1);
    put(r, "rope_scaling",
        json_pack("{s:s, s:f, s:i, s:f, s:f, s:b}", "type", "yarn", "factor", factor,
                  "original_max_position_embeddings", (int)trained, "beta_fast", fast, "beta_slow",
                  slow, "truncate", 0));
}

static void read_rope(reader *r)
{
    const key_text key = key_of(r, "rope.scaling.type");
    moepage_metadata type;
    put(r, "rope_theta", json_real(read_positive(r, "rope.freq_base", 1e4)));
    if (!find(r, key.text, MOEPAGE_METADATA_TEXT, &type))
        return;
    if (type.text_bytes == 4 && !memcmp(type.text, "none", 4))
        return;
    if (is_gpt_oss(r) && type.text_bytes == 4 && !memcmp(type.text, "yarn", 4)) {
        read_yarn(r);
        return;
    }
    if (type.text_bytes != 6 || memcmp(type.text, "linear", 6)) {
        r->code = fail(RUN_REFUSED,
                       "metadata: %s is '%.*s', none and linear are supported by this example "
                       "(yarn of gpt-oss alone)",
                       key.text, (int)(type.text_bytes < 40 ? type.text_bytes : 40), type.text);
        return;
    }
    put(r, "rope_scaling",
        json_pack("{s:s, s:f}", "type", "linear", "factor",
                  read_positive(r, "rope.scaling.factor", 0)));
}

/* These models take a softmax over all experts, and files say so only if they are newer than the
 * keys. */
static void read_routing(reader *r)
{
    enum { SOFTMAX = 1, SOFTMAX_OF_CHOSEN = 3 };
    const key_text norm = key_of(r, "expert_weights_norm"),
                   scale = key_of(r, "expert_weights_scale");
    moepage_metadata value;
    bool normalised = true;
    if (find(r, norm.text, MOEPAGE_METADATA_TRUTH, &value))
        normalised = value.integer;
    put(r, "norm_topk_prob", json_boolean(normalised));
    expect_count(r, "expert_gating_func", is_gpt_oss(r) ? SOFTMAX_OF_CHOSEN : SOFTMAX);
    if (find(r, scale.text, MOEPAGE_METADATA_REAL, &value) && value.real != 1 && value.real != 0)
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

int gguf_config_read(const moepage_model *model, const moepage_model_info *info, json_t **out)
{
    moepage_tensor_view head = {.struct_size = sizeof head};
    reader r = {.model = model, .info = info, .json = json_object()};
    if (!r.json)
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
    const bool tied =
        moepage_model_find_tensor(model, "output.weight", &head) == MOEPAGE_E_NOT_FOUND;
    put(&r, "tie_word_embeddings", json_boolean(tied));
    if (r.code)
        json_decref(r.json);
    else
        *out = r.json;
    return r.code;
}
