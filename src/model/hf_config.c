/* Reads config.json. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/hf.h"

/* Far above any real model, far below values whose products would overflow. */
#define MAX_LAYERS 65536u
#define MAX_EXPERTS 65536u
#define MAX_WIDTH (1u << 24)

#define DEFAULT_BLOCK 128u

static moepage_status find_architecture(const mp_json *json, const mp_hf_architecture **out)
{
    const char *type;
    moepage_status status = mp_json_get_text_or(json, "model_type", NULL, &type);
    if (status)
        return status;
    if (!type)
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"model_type\" is missing: it names the architecture",
                       json->what);
    char known[256] = "";
    size_t used = 0;
    for (const mp_hf_architecture *a = mp_hf_architectures; a->model_type; a++) {
        if (strcmp(a->model_type, type) == 0) {
            *out = a;
            return MOEPAGE_OK;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                 a->model_type);
    }
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "%s: model_type \"%.60s\" is not recognised; these are: %s", json->what, type,
                   known);
}

static moepage_status read_experts(const mp_json *json, mp_hf_config *out)
{
    const char *const *keys = out->architecture->experts_keys;
    const char *key = keys[0];
    for (size_t i = 0; i < sizeof out->architecture->experts_keys / sizeof *keys; i++)
        if (json_object_get(json->root, keys[i])) {
            key = keys[i];
            break;
        }
    moepage_status status = mp_json_get_uint(json, key, 1, MAX_EXPERTS, &out->experts);
    if (status)
        return status;
    status = mp_json_get_uint(json, "num_experts_per_tok", 1, MAX_EXPERTS, &out->top_k);
    if (status)
        return status;
    if (out->top_k > out->experts)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%s: num_experts_per_tok is %u, but there are only %u "
                       "experts (%s)",
                       json->what, out->top_k, out->experts, key);
    return MOEPAGE_OK;
}

static moepage_status read_sizes(const mp_json *json, mp_hf_config *out)
{
    const mp_hf_architecture *architecture = out->architecture;
    moepage_status status =
        mp_json_get_uint(json, "num_hidden_layers", 1, MAX_LAYERS, &out->layers);
    if (!status)
        status = mp_json_get_uint(json, "hidden_size", 1, MAX_WIDTH, &out->hidden);
    if (!status)
        status = mp_json_get_uint(json, architecture->intermediate_key, 1, MAX_WIDTH,
                                  &out->intermediate);
    if (!status)
        status = mp_json_get_uint_or(json, "vocab_size", 0, INT32_MAX, 0, &out->vocabulary);
    if (!status && architecture->shared_key)
        status = mp_json_get_uint_or(json, architecture->shared_key, 0, MAX_WIDTH,
                                     architecture->shared_default, &out->shared);
    if (!status && architecture->shared_is_width && out->shared)
        out->shared = 1;
    return status;
}

static moepage_status read_limit(const mp_json *json, mp_activation *out)
{
    const char *key = "swiglu_limit";
    const json_t *limit = json_object_get(json->root, key);
    *out = (mp_activation){MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, MP_CLAMPED_ALPHA, MP_CLAMPED_LIMIT};
    if (!limit || json_is_null(limit))
        return MOEPAGE_OK;
    out->limit = json_is_number(limit) ? (float)json_number_value(limit) : 0;
    if (mp_activation_is_sound(out))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT, "%s: \"%s\" must be a number above 0 that a float can hold",
                   json->what, key);
}

/* Reads the activation; "swish" is an older name of silu. */
static moepage_status read_activation(const mp_json *json, mp_hf_config *out)
{
    const char *name;
    moepage_status status = mp_json_get_text_or(json, "hidden_act", "silu", &name);
    if (status)
        return status;
    const bool silu = strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0;
    out->activation.kind = silu ? MOEPAGE_ACTIVATION_SWIGLU : MOEPAGE_ACTIVATION_OTHER;
    return silu && out->architecture->clamped ? read_limit(json, &out->activation) : MOEPAGE_OK;
}

static moepage_status read_block(const json_t *quantization, mp_hf_config *out)
{
    const char *key = "weight_block_size", *what = "config.json: quantization_config";
    const json_t *block = json_object_get(quantization, key);
    if (!block)
        return MOEPAGE_OK;
    if (json_is_null(block))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: \"%s\" is null: of quant_method fp8 only "
                       "block scales are read",
                       what, key);
    if (json_array_size(block) != 2)
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"%s\" must be an array of two integers", what, key);
    uint64_t sizes[2];
    for (size_t i = 0; i < 2; i++) {
        moepage_status status =
            mp_json_integer(what, key, json_array_get(block, i), 1, MAX_WIDTH, &sizes[i]);
        if (status)
            return status;
    }
    out->block_rows = (uint32_t)sizes[0];
    out->block_columns = (uint32_t)sizes[1];
    return MOEPAGE_OK;
}

static moepage_status read_quantization(const mp_json *json, mp_hf_config *out)
{
    out->block_rows = out->block_columns = DEFAULT_BLOCK;
    json_t *quantization = json_object_get(json->root, "quantization_config");
    if (!quantization || json_is_null(quantization))
        return MOEPAGE_OK;
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    if (!method)
        return mp_fail(MOEPAGE_E_FORMAT, "%s: quantization_config has no string quant_method",
                       json->what);
    if (strcmp(method, "mxfp4") == 0)
        return MOEPAGE_OK;
    if (strcmp(method, "fp8") == 0)
        return read_block(quantization, out);
    const mp_json object = {"config.json: quantization_config", quantization};
    moepage_status status = mp_hf_fp4_read(&object, method, &out->fp4);
    if (status || !out->fp4)
        return status ? status : mp_hf_w4_read(&object, method, &out->w4);
    out->block_rows = out->block_columns = MAX_WIDTH; /* whole matrices */
    return MOEPAGE_OK;
}

/* Clears moe[layer] for the layers that mlp_only_layers names. */
static moepage_status clear_mlp_only(const mp_json *json, uint32_t layers, unsigned char *moe)
{
    const char *key = "mlp_only_layers";
    const json_t *list = json_object_get(json->root, key);
    if (!list || json_is_null(list))
        return MOEPAGE_OK;
    if (!json_is_array(list))
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"%s\" must be an array of layer numbers", json->what,
                       key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint64_t layer;
        moepage_status status =
            mp_json_integer(json->what, key, json_array_get(list, i), 0, layers - 1, &layer);
        if (status)
            return status;
        moe[layer] = 0;
    }
    return MOEPAGE_OK;
}

/* Sets moe[layer] to 1 for every layer with routed experts. */
static moepage_status apply_rule(const mp_json *json, const mp_hf_config *config,
                                 unsigned char *moe)
{
    uint32_t first = 0, every = 1, phase = 0;
    moepage_status status = MOEPAGE_OK;
    switch (config->architecture->rule) {
    case MP_RULE_EVERY_LAYER: break;
    case MP_RULE_SPARSE_STEP:
        phase = 1;
        status = mp_json_get_uint_or(json, "decoder_sparse_step", 1, MAX_LAYERS, 1, &every);
        break;
    case MP_RULE_FIRST_DENSE:
        status = mp_json_get_uint_or(json, "first_k_dense_replace", 0, MAX_LAYERS,
                                     config->architecture->first_dense, &first);
        if (!status)
            status = mp_json_get_uint_or(json, "moe_layer_freq", 1, MAX_LAYERS, 1, &every);
        break;
    }
    if (status)
        return status;
    for (uint32_t layer = first; layer < config->layers; layer++)
        moe[layer] = (layer + phase) % every == 0;
    if (config->architecture->rule == MP_RULE_SPARSE_STEP)
        return clear_mlp_only(json, config->layers, moe);
    return MOEPAGE_OK;
}

static moepage_status list_moe_layers(const mp_json *json, mp_hf_config *out)
{
    unsigned char *moe = mp_alloc(out->layers);
    out->layer_of_moe = mp_alloc_array(out->layers, sizeof *out->layer_of_moe);
    moepage_status status;
    if (!moe || !out->layer_of_moe)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers", out->layers);
    else
        status = apply_rule(json, out, moe);
    for (uint32_t layer = 0; !status && layer < out->layers; layer++)
        if (moe[layer])
            out->layer_of_moe[out->moe_layers++] = (int32_t)layer;
    mp_free(moe);
    if (!status && out->moe_layers == 0)
        return mp_fail(MOEPAGE_E_FORMAT, "%s: none of its %u layers has routed experts", json->what,
                       out->layers);
    return status;
}

moepage_status mp_hf_config_read(const mp_json *json, mp_hf_config *out)
{
    memset(out, 0, sizeof *out);
    moepage_status status = find_architecture(json, &out->architecture);
    if (!status)
        status = read_experts(json, out);
    if (!status)
        status = read_sizes(json, out);
    if (!status)
        status = read_activation(json, out);
    if (!status)
        status = read_quantization(json, out);
    if (!status)
        status = list_moe_layers(json, out);
    return status;
}

void mp_hf_config_free(mp_hf_config *config)
{
    mp_free(config->layer_of_moe);
    config->layer_of_moe = NULL;
}
