/* Entry points of PagedTensor: check arguments, call down. */
#include <stddef.h>

#include "base/config.h"
#include "base/status.h"
#include "controllers/balance.h"
#include "controllers/controller.h"
#include "paged_tensor/paged.h"

/* Of the config's first published form. */
#define MIN_BYTES (offsetof(moepage_paged_config, buffers) + sizeof(uint32_t))

static moepage_status read_config(const moepage_device *device, const moepage_model *model,
                                  const moepage_paged_config *config, moepage_paged_config *own)
{
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    if (!status)
        status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status)
        status = mp_config_read(own, sizeof *own, MIN_BYTES, config, "config");
    return status;
}

moepage_status moepage_paged_sizes(moepage_device *device, const moepage_model *model,
                                   const moepage_paged_config *config, uint64_t *workspace_bytes,
                                   uint64_t *arena_bytes)
{
    moepage_paged_config own;
    uint64_t workspace, arena;
    moepage_status status = read_config(device, model, config, &own);
    if (!status)
        status = mp_paged_sizes(device, model, &own, &arena, &workspace);
    if (status)
        return status;
    if (workspace_bytes)
        *workspace_bytes = workspace;
    if (arena_bytes)
        *arena_bytes = arena;
    return MOEPAGE_OK;
}

moepage_status moepage_paged_create(moepage_device *device, moepage_model *model,
                                    const moepage_paged_config *config, moepage_paged **out)
{
    moepage_paged_config own;
    moepage_status status = read_config(device, model, config, &own);
    if (!status && !out)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    return status ? status : mp_paged_create(device, model, &own, out);
}

moepage_status moepage_paged_destroy(moepage_paged *paged)
{
    if (!paged)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(paged, MP_KIND_PAGED);
    return status ? status : mp_paged_destroy(paged);
}

moepage_status moepage_paged_get_tensor(const moepage_paged *paged, uint32_t tensor,
                                        moepage_paged_tensor *out)
{
    moepage_status status = mp_handle_check(paged, MP_KIND_PAGED);
    if (status)
        return status;
    if (tensor >= paged->model->info.expert_tensors)
        return mp_fail(MOEPAGE_E_ARGUMENT, "tensor is %u, the model's experts have %u", tensor,
                       paged->model->info.expert_tensors);
    const moepage_expert_tensor *of = &paged->model->layouts[0].tensors[tensor];
    const mp_paged_type *type = &paged->layout.types[tensor];
    const mp_paged_range *range = &paged->layout.ranges[type->range];
    moepage_paged_tensor own = {
        .role = of->role,
        .dtype = of->dtype,
        .rank = of->rank,
        .base = range->base + type->offset,
        .expert_stride = type->expert_stride,
        .layer_stride = range->layer_stride,
    };
    for (uint32_t i = 0; i < MOEPAGE_MAX_RANK; i++)
        own.shape[i] = of->shape[i];
    return MP_CONFIG_WRITE(out, own);
}

static moepage_status check_layer(const moepage_paged *paged, uint32_t layer)
{
    moepage_status status = mp_handle_check(paged, MP_KIND_PAGED);
    if (!status && layer >= paged->n_layers)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                         paged->n_layers);
    return status;
}

moepage_status moepage_paged_materialise(moepage_paged *paged, uint32_t layer)
{
    moepage_status status = check_layer(paged, layer);
    return status ? status : mp_paged_materialise(paged, layer);
}

moepage_status moepage_paged_acquire(moepage_paged *paged, uint32_t layer, void *stream)
{
    moepage_status status = check_layer(paged, layer);
    return status ? status : mp_paged_acquire(paged, layer, stream);
}

moepage_status moepage_paged_release(moepage_paged *paged, uint32_t layer, void *stream)
{
    moepage_status status = check_layer(paged, layer);
    return status ? status : mp_paged_release(paged, layer, stream);
}

moepage_status moepage_paged_get_state(moepage_paged *paged, uint32_t layer, uint32_t *state)
{
    moepage_status status = check_layer(paged, layer);
    if (!status && !state)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "state is NULL");
    if (!status)
        *state = mp_paged_state(paged, layer);
    return status;
}

moepage_status moepage_paged_resize(moepage_paged *paged, uint32_t compressed)
{
    moepage_status status = mp_handle_check(paged, MP_KIND_PAGED);
    return status ? status : mp_paged_resize(paged, compressed);
}

moepage_status moepage_paged_get_info(moepage_paged *paged, moepage_paged_info *info)
{
    moepage_paged_info own;
    moepage_status status = mp_handle_check(paged, MP_KIND_PAGED);
    if (status)
        return status;
    mp_paged_get_info(paged, &own);
    return MP_CONFIG_WRITE(info, own);
}

moepage_status moepage_paged_balance(moepage_paged *paged, moepage_kv_pool *kv,
                                     uint32_t headroom_permille, void *stream,
                                     moepage_controller_report *report)
{
    moepage_controller_report own = {0};
    moepage_status status = mp_handle_check(paged, MP_KIND_PAGED);
    if (!status)
        status = mp_handle_check(kv, MP_KIND_KV);
    if (!status && report)
        status = MP_REPORT_CHECK(report);
    if (!status)
        status = mp_balance(paged, kv, headroom_permille / 1000.0, stream, &own);
    return status || !report ? status : MP_REPORT_WRITE(report, own);
}
