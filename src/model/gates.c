/* Reads a model's routers, whichever source holds its dense tensors. */
#include "model/gates.h"

#include <string.h>

#include "base/alloc.h"
#include "base/floats.h"
#include "base/status.h"
#include "model/dtype.h"
#include "model/hf.h"

static const mp_hf_architecture *architecture_of(const struct moepage_model *model)
{
    for (const mp_hf_architecture *a = mp_hf_architectures; a->model_type; a++)
        if (strcmp(a->model_type, model->info.architecture) == 0)
            return a;
    return NULL;
}

/* GGUF files name routers alike, whatever the architecture. */
static const mp_hf_layout gguf_names = {
    .router = "blk.{L}.ffn_gate_inp.weight",
    .router_bias = "blk.{L}.ffn_gate_inp.bias",
};

static moepage_status find(const struct moepage_model *model, const char *pattern,
                           uint32_t moe_layer, mp_dense_tensor *out)
{
    uint32_t layer = (uint32_t)model->layer_of_moe[moe_layer];
    return mp_model_locate_tensor(model, mp_hf_name_of(pattern, layer, 0).text, out);
}

/* Finds the layout whose router tensor the first layer has. */
static moepage_status find_layout(const struct moepage_model *model, const mp_hf_layout **out)
{
    const mp_hf_architecture *architecture = architecture_of(model);
    mp_dense_tensor tensor;
    *out = &gguf_names;
    if (!find(model, gguf_names.router, 0, &tensor))
        return MOEPAGE_OK;
    if (!architecture)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "the model's architecture \"%.64s\" is unknown, so its routers cannot be found",
            model->info.architecture);
    for (uint32_t i = 0; i < MP_HF_MAX_LAYOUTS && architecture->layouts[i]; i++) {
        *out = architecture->layouts[i];
        moepage_status status = find(model, (*out)->router, 0, &tensor);
        if (status != MOEPAGE_E_NOT_FOUND)
            return status;
    }
    return mp_fail_within(MOEPAGE_E_UNSUPPORTED, "the model has no routers");
}

/* Returns true if the layout's bias is added to the router's logits: one named after the router is;
 * one beside the gate (e_score_correction_bias) only affects the choice among sigmoids. */
static bool is_added(const mp_hf_layout *layout)
{
    const char *bias = layout->router_bias, *router = layout->router;
    size_t stem = strlen(router) - strlen("weight");
    return bias && strncmp(bias, router, stem) == 0 && strcmp(bias + stem, "bias") == 0;
}

static float widened(uint32_t dtype, const unsigned char *data, uint64_t i)
{
    uint16_t half;
    float whole;
    if (dtype == MOEPAGE_DTYPE_F32) {
        memcpy(&whole, data + 4 * i, sizeof whole);
        return whole;
    }
    memcpy(&half, data + 2 * i, sizeof half);
    return dtype == MOEPAGE_DTYPE_BF16 ? mp_from_bf16(half) : mp_from_f16(half);
}

/* Reads a tensor of n numbers and widens them. */
static moepage_status read_widened(const mp_dense_tensor *tensor, uint64_t n, float *out)
{
    unsigned char *data = mp_alloc(tensor->bytes);
    if (!data)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to read tensor \"%.160s\"", tensor->name);
    moepage_status status = mp_dense_read(tensor, data);
    for (uint64_t i = 0; !status && i < n; i++)
        out[i] = widened(tensor->dtype, data, i);
    mp_free(data);
    return status;
}

/* Widens one tensor of n numbers to FP32; its shape for `rank` 2 is [experts][n / experts]. */
static moepage_status widen(const struct moepage_model *model, const char *pattern, uint32_t layer,
                            uint32_t rank, uint64_t n, float *out)
{
    mp_dense_tensor tensor;
    moepage_status status = find(model, pattern, layer, &tensor);
    if (status)
        return status == MOEPAGE_E_NOT_FOUND
                   ? mp_fail_within(MOEPAGE_E_UNSUPPORTED, "MoE layer %u has no router", layer)
                   : status;
    uint32_t experts = model->info.experts;
    if (tensor.dtype != MOEPAGE_DTYPE_F32 && tensor.dtype != MOEPAGE_DTYPE_F16 &&
        tensor.dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the router of MoE layer %u is %s, it must be F32, F16 or BF16", layer,
                       mp_dtype_name(tensor.dtype));
    if (tensor.rank != rank || tensor.shape[0] != experts ||
        (rank == 2 && tensor.shape[1] != n / experts) ||
        tensor.bytes != n * mp_dtype_bytes(tensor.dtype))
        return mp_fail(
            MOEPAGE_E_FORMAT,
            "a router tensor of MoE layer %u is of rank %u and begins with %llu rows, it "
            "must be of rank %u with %u rows and %llu numbers",
            layer, tensor.rank, (unsigned long long)tensor.shape[0], rank, experts,
            (unsigned long long)n);
    return read_widened(&tensor, n, out);
}

static moepage_status open_layer(const struct moepage_model *model, const mp_hf_layout *layout,
                                 uint32_t layer, float *values, mp_gates *out)
{
    const uint64_t experts = model->info.experts, n = experts * model->info.hidden;
    out->weights[layer] = values;
    moepage_status status = widen(model, layout->router, layer, 2, n, values);
    if (!status && out->biases) {
        out->biases[layer] = values + n;
        status = widen(model, layout->router_bias, layer, 1, experts, values + n);
    }
    return status;
}

moepage_status mp_gates_open(const struct moepage_model *model, mp_gates *out)
{
    const mp_hf_layout *layout = NULL;
    mp_dense_tensor tensor;
    *out = (mp_gates){0};
    moepage_status status = find_layout(model, &layout);
    if (status)
        return status;
    const uint32_t layers = model->info.moe_layers;
    bool biased = is_added(layout) && !find(model, layout->router_bias, 0, &tensor);
    uint64_t per_layer = (uint64_t)model->info.experts * (model->info.hidden + (biased ? 1ull : 0));
    out->bytes = layers * per_layer * sizeof(float) + 2ull * layers * sizeof *out->weights;
    out->values = mp_alloc_array(layers, per_layer * sizeof(float));
    out->weights = mp_alloc_array(layers, sizeof *out->weights);
    out->biases = biased ? mp_alloc_array(layers, sizeof *out->biases) : NULL;
    if (!out->values || !out->weights || (biased && !out->biases))
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u routers, %llu bytes", layers,
                         (unsigned long long)out->bytes);
    for (uint32_t l = 0; !status && l < layers; l++)
        status = open_layer(model, layout, l, out->values + l * per_layer, out);
    if (status)
        mp_gates_close(out);
    return status;
}

void mp_gates_close(mp_gates *gates)
{
    mp_free(gates->values);
    mp_free((void *)gates->weights);
    mp_free((void *)gates->biases);
    *gates = (mp_gates){0};
}
