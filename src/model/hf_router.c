/* Refuses routers with invalid weights. */
#include "base/status.h"
#include "model/finite.h"
#include "model/hf.h"

static moepage_status check_finite(const mp_tensor *tensor, uint64_t row_length)
{
    if (tensor->computed || !mp_finite_is_checked(tensor->type->dtype))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.200s: router tensor \"%.160s\" is %s, it must be F32, "
                       "F16 or BF16",
                       tensor->file->file.name, tensor->name,
                       tensor->computed ? "computed from others" : tensor->type->name);
    return mp_finite_check_router(&(const mp_router_tensor){
        .file = &tensor->file->file,
        .name = tensor->name,
        .offset = tensor->offset,
        .bytes = tensor->bytes,
        .dtype = tensor->type->dtype,
        .row_length = row_length,
    });
}

/* Checks one of a router's tensors in one layer. */
static moepage_status check_tensor(const mp_hf_config *config, const mp_checkpoint *checkpoint,
                                   const char *pattern, uint32_t layer, uint32_t rank)
{
    const uint64_t shape[2] = {config->experts, config->hidden};
    mp_hf_name name = mp_hf_name_of(pattern, layer, 0);
    mp_tensor *tensor;
    moepage_status status = mp_checkpoint_require(checkpoint, name.text, &tensor);
    if (!status)
        status = mp_hf_shape_check(tensor, shape, rank);
    if (!status)
        status = check_finite(tensor, rank == 2 ? config->hidden : config->experts);
    return status;
}

moepage_status mp_hf_routers_check(const mp_hf_config *config, const mp_hf_layout *layout,
                                   const mp_checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < config->moe_layers; i++) {
        uint32_t layer = (uint32_t)config->layer_of_moe[i];
        moepage_status status = check_tensor(config, checkpoint, layout->router, layer, 2);
        if (!status && layout->router_bias &&
            mp_checkpoint_find(checkpoint, mp_hf_name_of(layout->router_bias, layer, 0).text))
            status = check_tensor(config, checkpoint, layout->router_bias, layer, 1);
        if (status)
            return status;
    }
    return MOEPAGE_OK;
}
