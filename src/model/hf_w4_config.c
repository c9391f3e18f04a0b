/* Reads quantization_config of W4A16 checkpoints. What would make the weights others than those that are
 * computed is refused; what the tensors show by themselves is not asked for. */
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "model/hf_quantised.h"
#include "model/hf_w4.h"

#define MAX_GROUP (1u << 24)

static moepage_status expect_four_bits(const mp_json *json, const char *key)
{
    uint32_t bits;
    moepage_status status = mp_json_get_uint(json, key, 1, 64, &bits);
    if (!status && bits != 4)
        status = mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: \"%s\" is %u, weights of 4 bits are read",
                         json->what, key, bits);
    return status;
}

/* Reads a group's columns; -1, as null, is all of them. */
static moepage_status read_group(const mp_json *json, const char *key, uint32_t *out)
{
    const json_t *value = json_object_get(json->root, key);
    *out = 0;
    if (json_is_integer(value) && json_integer_value(value) == -1)
        return MOEPAGE_OK;
    return mp_json_get_uint_or(json, key, 1, MAX_GROUP, 0, out);
}

/* ---- GPTQ ---- */

static moepage_status read_gptq(const mp_json *json, mp_hf_w4 *out)
{
    const char *format = NULL;
    bool marlin = false;
    moepage_status status = expect_four_bits(json, "bits");
    if (!status)
        status = read_group(json, "group_size", &out->group);
    if (!status)
        status = mp_hf_read_flag(json, "desc_act", false, &out->reordered);
    if (!status)
        status = mp_hf_read_flag(json, "is_marlin_format", false, &marlin);
    if (!status)
        status = mp_hf_expect_text(json, "pack_dtype", "int32");
    if (!status)
        status =
            mp_json_get_text_or(json, "checkpoint_format", marlin ? "marlin" : "gptq", &format);
    if (status)
        return status;
    out->layout = strcmp(format, "gptq_v2") == 0 ? MP_W4_GPTQ_V2 : MP_W4_GPTQ_V1;
    if (out->layout == MP_W4_GPTQ_V1 && strcmp(format, "gptq") != 0)
        return mp_hf_refuse_value(json, "checkpoint_format", format, "gptq or gptq_v2");
    return MOEPAGE_OK;
}

/* ---- AWQ ---- */

/* Old files have capitals. */
static moepage_status expect_gemm(const mp_json *json)
{
    const char *version;
    moepage_status status = mp_json_get_text_or(json, "version", "gemm", &version);
    if (!status && strcasecmp(version, "gemm") != 0)
        status = mp_hf_refuse_value(json, "version", version, "gemm");
    return status;
}

static moepage_status read_awq(const mp_json *json, mp_hf_w4 *out)
{
    const bool old_names = json_object_get(json->root, "w_bit") != NULL;
    bool zeros = true;
    out->layout = MP_W4_AWQ;
    moepage_status status = expect_four_bits(json, old_names ? "w_bit" : "bits");
    if (!status)
        status = read_group(json, old_names ? "q_group_size" : "group_size", &out->group);
    if (!status)
        status = expect_gemm(json);
    if (!status)
        status = mp_hf_read_flag(json, "zero_point", true, &zeros);
    if (!status && !zeros)
        status = mp_fail(MOEPAGE_E_UNSUPPORTED,
                         "%s: \"zero_point\" is false, only weights with zero-points are read",
                         json->what);
    return status;
}

/* ---- compressed-tensors ---- */

static moepage_status read_order(const mp_json *weights, mp_hf_w4 *out)
{
    const json_t *value = json_object_get(weights->root, "actorder");
    const char *order = json_string_value(value);
    if (!value || json_is_null(value) || json_is_false(value)) {
        out->in_order = true;
        return MOEPAGE_OK;
    }
    const bool by_group = json_is_true(value) ||
                          (order && (strcmp(order, "group") == 0 || strcmp(order, "dynamic") == 0));
    if (!by_group && !(order && (strcmp(order, "weight") == 0 || strcmp(order, "static") == 0)))
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: \"actorder\" is neither group nor weight",
                       weights->what);
    out->reordered |= by_group;
    out->in_order |= !by_group;
    return MOEPAGE_OK;
}

static moepage_status read_weights(const mp_json *weights, mp_hf_w4 *out)
{
    bool symmetric = true;
    const char *strategy = NULL;
    moepage_status status = expect_four_bits(weights, "num_bits");
    if (!status)
        status = mp_hf_expect_text(weights, "type", "int");
    if (!status)
        status = mp_hf_read_flag(weights, "symmetric", true, &symmetric);
    if (!status)
        status = mp_json_get_text_or(weights, "strategy", "group", &strategy);
    if (!status && strcmp(strategy, "group") != 0 && strcmp(strategy, "channel") != 0)
        status = mp_hf_refuse_value(weights, "strategy", strategy, "group or channel");
    if (!status)
        status = read_order(weights, out);
    out->symmetric |= symmetric;
    out->asymmetric |= !symmetric;
    return status;
}

static moepage_status read_scheme(const json_t *scheme, const char *format, mp_hf_w4 *out)
{
    const mp_json json = {"config.json: quantization_config: config_groups", (json_t *)scheme};
    const mp_json weights = {"config.json: quantization_config: weights",
                             json_object_get(scheme, "weights")};
    const char *own = NULL;
    if (!json_is_object(weights.root))
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "%s: a group without \"weights\" is not read",
                       json.what);
    moepage_status status = mp_json_get_text_or(&json, "format", format, &own);
    if (!status && strcmp(own, "pack-quantized") != 0)
        status = mp_hf_refuse_value(&json, "format", own, "pack-quantized");
    return status ? status : read_weights(&weights, out);
}

static moepage_status read_packed(const mp_json *json, mp_hf_w4 *out)
{
    const json_t *groups = json_object_get(json->root, "config_groups");
    const char *format = NULL, *name;
    json_t *scheme;
    out->layout = MP_W4_PACKED;
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return mp_fail(MOEPAGE_E_FORMAT, "%s: \"config_groups\" must be an object with a group",
                       json->what);
    moepage_status status = mp_json_get_text_or(json, "format", "pack-quantized", &format);
    if (!status)
        status = mp_hf_expect_none(json, "transform_config");
    if (!status)
        status = mp_hf_expect_none(json, "sparsity_config");
    json_object_foreach((json_t *)groups, name, scheme)
    {
        if (!status)
            status = read_scheme(scheme, format, out);
    }
    return status;
}

/* ---- all ---- */

moepage_status mp_hf_w4_read(const mp_json *quantization, const char *quant_method, mp_hf_w4 *out)
{
    *out = (mp_hf_w4){.given = true};
    if (strcmp(quant_method, "gptq") == 0)
        return read_gptq(quantization, out);
    if (strcmp(quant_method, "awq") == 0)
        return read_awq(quantization, out);
    if (strcmp(quant_method, "compressed-tensors") == 0)
        return read_packed(quantization, out);
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "config.json: quant_method \"%.60s\" is not read; fp8 (block scales), mxfp4, "
                   "modelopt, gptq, awq and compressed-tensors are",
                   quant_method);
}
