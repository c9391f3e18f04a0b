/* Reads what ModelOpt and compressed-tensors say of NVFP4 checkpoints. What would make the weights others than
 * those that are computed is refused; what the tensors show by themselves is not asked for. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/file.h"
#include "model/hf_fp4.h"
#include "model/hf_quantised.h"

#define BESIDE_NAME "hf_quant_config.json"
#define BESIDE_MAX_BYTES ((size_t)16 << 20)
#define MODELOPT "config.json or " BESIDE_NAME ": quantization" /* where it has been found */
#define PACKED "nvfp4-pack-quantized"
#define GROUP 16u

static moepage_status expect_number(const mp_json *json, const char *key, uint32_t only)
{
    uint32_t number;
    moepage_status status = mp_json_get_uint_or(json, key, 0, UINT32_MAX, only, &number);
    if (!status && number != only)
        status = mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: \"%s\" is %u, only %u is read", json->what,
                         key, number, only);
    return status;
}

/* ---- ModelOpt ---- */

static moepage_status expect_algorithm(const mp_json *json, const char *name)
{
    if (strcmp(name, "NVFP4") == 0 || strcmp(name, "W4A16_NVFP4") == 0)
        return expect_number(json, "group_size", GROUP);
    if (strcmp(name, "FP8") == 0)
        return MOEPAGE_OK;
    return mp_hf_refuse_value(json, "quant_algo", name,
                              "NVFP4, W4A16_NVFP4, FP8 or a MIXED_PRECISION of these");
}

static moepage_status expect_algorithms(const mp_json *json)
{
    const json_t *layers = json_object_get(json->root, "quantized_layers");
    const char *layer;
    json_t *value;
    if (!json_is_object(layers))
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"quantized_layers\" must be an object", json->what);
    json_object_foreach((json_t *)layers, layer, value)
    {
        const mp_json of_layer = {MODELOPT ": quantized_layers", value};
        const char *name = json_string_value(json_object_get(value, "quant_algo"));
        if (!name)
            return mp_fail(MOEPAGE_E_FORMAT, "%s: \"%.160s\" has no string quant_algo",
                           of_layer.what, layer);
        moepage_status status = expect_algorithm(&of_layer, name);
        if (status)
            return status;
    }
    return MOEPAGE_OK;
}

static moepage_status read_modelopt(json_t *quantization)
{
    const mp_json json = {MODELOPT, quantization};
    const char *name;
    moepage_status status = mp_json_get_text_or(&json, "quant_algo", NULL, &name);
    if (status || !name)
        return status;
    return strcmp(name, "MIXED_PRECISION") == 0 ? expect_algorithms(&json)
                                                : expect_algorithm(&json, name);
}

static moepage_status add_beside(const mp_json *beside, mp_json *config)
{
    json_t *quantization = json_object_get(beside->root, "quantization");
    if (!json_is_object(quantization))
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"quantization\" must be an object", beside->what);
    if (json_object_set_new(quantization, "quant_method", json_string("modelopt")) ||
        json_object_set(config->root, "quantization_config", quantization))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %s", beside->what);
    return MOEPAGE_OK;
}

moepage_status mp_hf_fp4_complete_config(const char *dir, mp_json *config)
{
    const json_t *said = json_object_get(config->root, "quantization_config");
    mp_json beside = {BESIDE_NAME, NULL};
    char *text = NULL;
    size_t n_bytes;
    if (said && !json_is_null(said))
        return MOEPAGE_OK;
    char *path = mp_path_join(dir, BESIDE_NAME);
    if (!path)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    moepage_status status = MOEPAGE_OK;
    if (access(path, F_OK) == 0) {
        status = mp_file_read_text(path, BESIDE_MAX_BYTES, &text, &n_bytes);
        if (!status)
            status = mp_json_parse(BESIDE_NAME, text, n_bytes, &beside);
        if (!status)
            status = add_beside(&beside, config);
    }
    json_decref(beside.root);
    mp_free(text);
    mp_free(path);
    return status;
}

/* ---- compressed-tensors ---- */

static bool is_packed(const json_t *of)
{
    const char *format = json_string_value(json_object_get(of, "format"));
    return format && strcmp(format, PACKED) == 0;
}

/* Returns true if the format of all matrices, or of a group of them, is this one. */
static bool says_packed(const json_t *quantization)
{
    json_t *groups = json_object_get(quantization, "config_groups"), *group;
    const char *name;
    bool any = is_packed(quantization);
    json_object_foreach(groups, name, group) any |= is_packed(group);
    return any;
}

static moepage_status expect_scheme(const json_t *group)
{
    const mp_json json = {"config.json: quantization_config: config_groups", (json_t *)group};
    const mp_json weights = {"config.json: quantization_config: weights",
                             json_object_get(group, "weights")};
    bool symmetric;
    if (!json_is_object(weights.root))
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: a group without \"weights\" is not read",
                       json.what);
    moepage_status status = mp_hf_expect_text(&json, "format", PACKED);
    if (!status)
        status = expect_number(&weights, "num_bits", 4);
    if (!status)
        status = mp_hf_expect_text(&weights, "type", "float");
    if (!status)
        status = expect_number(&weights, "group_size", GROUP);
    if (!status)
        status = mp_hf_expect_text(&weights, "strategy", "tensor_group");
    if (!status)
        status = mp_hf_read_flag(&weights, "symmetric", true, &symmetric);
    if (!status && !symmetric)
        status = mp_fail(MOEPAGE_E_UNSUPPORTED,
                         "%s: \"symmetric\" is false, only weights without zero-points are read",
                         weights.what);
    return status;
}

static moepage_status read_packed(const mp_json *json)
{
    json_t *groups = json_object_get(json->root, "config_groups"), *group;
    const char *name;
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"config_groups\" must be an object with a group",
                       json->what);
    moepage_status status = mp_hf_expect_none(json, "transform_config");
    if (!status)
        status = mp_hf_expect_none(json, "sparsity_config");
    json_object_foreach(groups, name, group)
    {
        if (!status)
            status = expect_scheme(group);
    }
    return status;
}

/* ---- all ---- */

moepage_status mp_hf_fp4_read(const mp_json *quantization, const char *quant_method,
                              mp_fp4_layout *out)
{
    *out = MP_FP4_NONE;
    if (strcmp(quant_method, "modelopt") == 0)
        *out = MP_FP4_MODELOPT;
    else if (strcmp(quant_method, "compressed-tensors") == 0 && says_packed(quantization->root))
        *out = MP_FP4_PACKED;
    switch (*out) {
    case MP_FP4_MODELOPT: return read_modelopt(quantization->root);
    case MP_FP4_PACKED: return read_packed(quantization);
    default: return MOEPAGE_OK;
    }
}
