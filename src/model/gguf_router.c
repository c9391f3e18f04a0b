/* Refuses routers of GGUF models with invalid weights. */
#include "model/finite.h"
#include "model/gguf_model.h"

static moepage_status check_finite(const mp_gguf_tensor *tensor)
{
    if (!mp_finite_is_checked(tensor->dtype))
        return MOEPAGE_OK;
    return mp_finite_check_router(&(const mp_router_tensor){
        .file = &tensor->file->file,
        .name = tensor->name,
        .offset = tensor->offset,
        .bytes = tensor->bytes,
        .dtype = tensor->dtype,
        .row_length = tensor->shape[0],
    });
}

static moepage_status check_bias(const mp_gguf_config *config, const mp_gguf *gguf, uint32_t layer,
                                 const char *name)
{
    const mp_gguf_tensor *bias = mp_gguf_find(gguf, mp_gguf_name_of(layer, name).text);
    if (!bias)
        return MOEPAGE_OK;
    moepage_status status = mp_gguf_shape_check(bias, &(const uint64_t){config->experts}, 1);
    return status ? status : check_finite(bias);
}

moepage_status mp_gguf_routers_check(const mp_gguf_config *config, const mp_gguf *gguf)
{
    const uint64_t shape[2] = {config->hidden, config->experts};
    for (uint32_t layer = config->first_moe; layer < config->layers; layer++) {
        mp_gguf_tensor *router;
        moepage_status status =
            mp_gguf_require(gguf, mp_gguf_name_of(layer, "ffn_gate_inp.weight").text, &router);
        if (!status)
            status = mp_gguf_shape_check(router, shape, 2);
        if (!status)
            status = check_finite(router);
        if (!status)
            status = check_bias(config, gguf, layer, "ffn_gate_inp.bias");
        if (!status)
            status = check_bias(config, gguf, layer, "exp_probs_b.bias");
        if (status)
            return status;
    }
    return MOEPAGE_OK;
}
