/* A layer of a device-driven path: checks it and describes it to the device, whose kernels run on
 * the caller's stream. Their arguments are the same in every replay of a graph. */
#include "base/status.h"
#include "device_paths/path.h"

static moepage_status check_layer(const moepage_cuda_path *path, const moepage_cuda_layer *layer)
{
    uint32_t hidden = path->shape.model->info.hidden;
    if (layer->layer >= path->shape.layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer->layer,
                       path->shape.layers);
    if (layer->n_tokens < 1 || layer->n_tokens > path->max_tokens)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n_tokens is %u, it must be 1 to max_tokens (%u)",
                       layer->n_tokens, path->max_tokens);
    if (layer->top_k < 1 || layer->top_k > path->max_top_k)
        return mp_fail(MOEPAGE_E_ARGUMENT, "top_k is %u, it must be 1 to max_top_k (%u)",
                       layer->top_k, path->max_top_k);
    if (layer->dtype != MOEPAGE_DTYPE_F32 && layer->dtype != MOEPAGE_DTYPE_F16 &&
        layer->dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dtype of x and y is %u, it must be F32, F16 or BF16",
                       layer->dtype);
    if (layer->accumulate > 1)
        return mp_fail(MOEPAGE_E_ARGUMENT, "accumulate is %u, it must be 0 or 1",
                       layer->accumulate);
    if (!layer->ids || !layer->weights || !layer->x || !layer->y)
        return mp_fail(MOEPAGE_E_ARGUMENT, "ids, weights, x or y is NULL");
    if ((layer->x_stride && layer->x_stride < hidden) ||
        (layer->y_stride && layer->y_stride < hidden))
        return mp_fail(MOEPAGE_E_ARGUMENT, "a stride is shorter than a row of %u elements", hidden);
    return MOEPAGE_OK;
}

static mp_path_layout layout_of(const mp_ffn_layout *ffn, uint32_t form)
{
    const bool scaled = ffn->scale.dtype != MOEPAGE_DTYPE_NONE || mp_quant_bits_of(form);
    return (mp_path_layout){
        .gate = ffn->gate,
        .up = ffn->up,
        .down = ffn->down,
        .gate_bias = ffn->gate_bias,
        .up_bias = ffn->up_bias,
        .down_bias = ffn->down_bias,
        .gate_scale = scaled ? ffn->gate_scale : UINT64_MAX,
        .up_scale = scaled ? ffn->up_scale : UINT64_MAX,
        .down_scale = scaled ? ffn->down_scale : UINT64_MAX,
    };
}

moepage_status mp_path_layer(moepage_cuda_path *path, const moepage_cuda_layer *layer, void *stream)
{
    const mp_pool_shape *shape = &path->shape;
    mp_ffn_layout image;
    moepage_status status = check_layer(path, layer);
    if (status)
        return status;
    mp_cuda_path_layer described = {
        .layer = layer,
        .memory = path->memory,
        .mail = path->shared.device,
        .timeout_ns = path->timeout_ms * 1000000ull,
        .n_keys = shape->keys,
        .experts = shape->experts,
        .kind = mp_session_experts(path->session, layer->layer, &image),
        .slots = shape->slots,
        .slot_bytes = shape->slot_bytes,
        .x = path->scratch.x,
    };
    described.layout = layout_of(&image, described.kind.form);
    described.kind.math = path->scratch.math;
    described.kind.inner = path->scratch.inner;
    described.kind.partial = path->scratch.partial;
    described.kind.top_k = layer->top_k;
    return path->device->ops->cuda->path_layer(path->device, &described, stream);
}
