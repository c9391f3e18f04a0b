/* Refuses routers with invalid weights. */
#include <string.h>

#include "base/status.h"
#include "model/hf.h"

/* Returns the bits that are all ones in an infinity or NaN, in the element's own width; 0 for types
 * that are not checked. */
static uint32_t exponent_mask(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_F32: return 0x7f800000u;
    case MOEPAGE_DTYPE_F16: return 0x7c00u;
    case MOEPAGE_DTYPE_BF16: return 0x7f80u;
    default: return 0;
    }
}

static moepage_status check_finite(const mp_tensor *tensor, uint64_t row_length)
{
    uint32_t bytes = tensor->type->bits / 8, exponent = exponent_mask(tensor->type->dtype);
    uint32_t fraction = bytes == 4 ? 0x7fffffffu ^ exponent : 0x7fffu ^ exponent;
    if (!exponent)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.200s: router tensor \"%.160s\" is %s, it must be F32, "
                       "F16 or BF16",
                       tensor->file->name, tensor->name, tensor->type->name);
    for (uint64_t i = 0; i < tensor->bytes / bytes; i++) {
        uint32_t bits = 0;
        memcpy(&bits, tensor->data + i * bytes, bytes);
        if ((bits & exponent) == exponent)
            return mp_fail(
                MOEPAGE_E_FORMAT,
                "%.120s: router tensor \"%.160s\" has %s at row %llu, column %llu: every "
                "element must be finite",
                tensor->file->name, tensor->name, bits & fraction ? "NaN" : "an infinity",
                (unsigned long long)(i / row_length), (unsigned long long)(i % row_length));
    }
    return MOEPAGE_OK;
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
