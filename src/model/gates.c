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

static moepage_status find(const struct moepage_model *model, const char *pattern,
                           uint32_t moe_layer, moepage_tensor_view *out)
{
    uint32_t layer = (uint32_t)model->layer_of_moe[moe_layer];
    return mp_model_find_tensor(model, mp_hf_name_of(pattern, layer, 0).text, out);
}

/* Finds the layout whose router tensor the first layer has. */
static moepage_status find_layout(const struct moepage_model *model, const mp_hf_layout **out)
{
    const mp_hf_architecture *architecture = architecture_of(model);
    if (!architecture)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "the model's architecture \"%.64s\" is unknown, so its routers cannot be found",
            model->info.architecture);
    moepage_tensor_view view;
    for (uint32_t i = 0; i < MP_HF_MAX_LAYOUTS && architecture->layouts[i]; i++) {
        *out = architecture->layouts[i];
        moepage_status status = find(model, (*out)->router, 0, &view);
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

static float widened(const moepage_tensor_view *view, uint64_t i)
{
    uint16_t half;
    float whole;
    if (view->dtype == MOEPAGE_DTYPE_F32) {
        memcpy(&whole, (const char *)view->data + 4 * i, sizeof whole);
        return whole;
    }
    memcpy(&half, (const char *)view->data + 2 * i, sizeof half);
    return view->dtype == MOEPAGE_DTYPE_BF16 ? mp_from_bf16(half) : mp_from_f16(half);
}

/* Widens one tensor of n numbers to FP32; its shape for `rank` 2 is [experts][n / experts]. */
static moepage_status widen(const struct moepage_model *model, const char *pattern, uint32_t layer,
                            uint32_t rank, uint64_t n, float *out)
{
    moepage_tensor_view view;
    moepage_status status = find(model, pattern, layer, &view);
    if (status)
        return status == MOEPAGE_E_NOT_FOUND
                   ? mp_fail_within(MOEPAGE_E_UNSUPPORTED, "MoE layer %u has no router", layer)
                   : status;
    uint32_t experts = model->info.experts;
    if (view.dtype != MOEPAGE_DTYPE_F32 && view.dtype != MOEPAGE_DTYPE_F16 &&
        view.dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the router of MoE layer %u is %s, it must be F32, F16 or BF16", layer,
                       mp_dtype_name(view.dtype));
    if (view.rank != rank || view.shape[0] != experts ||
        (rank == 2 && view.shape[1] != n / experts) || view.bytes != n * mp_dtype_bytes(view.dtype))
        return mp_fail(
            MOEPAGE_E_FORMAT,
            "a router tensor of MoE layer %u is of rank %u and begins with %llu rows, it "
            "must be of rank %u with %u rows and %llu numbers",
            layer, view.rank, (unsigned long long)view.shape[0], rank, experts,
            (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++)
        out[i] = widened(&view, i);
    return MOEPAGE_OK;
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
    moepage_tensor_view view;
    *out = (mp_gates){0};
    moepage_status status = find_layout(model, &layout);
    if (status)
        return status;
    const uint32_t layers = model->info.moe_layers;
    bool biased = is_added(layout) && !find(model, layout->router_bias, 0, &view);
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
