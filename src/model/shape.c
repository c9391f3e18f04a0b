/* Bounds and rules for a model's numbers. */
#include "model/shape.h"

#include <stdio.h>

#include "base/status.h"
#include "codec/blocks.h"
#include "model/dtype.h"

/* With this bound products of counts fit 64 bits. */
#define MAX_LAYERS 65536u
#define MAX_EXPERTS 65536u

static moepage_status check_count(const char *name, uint32_t value, uint32_t min, uint32_t max,
                                  moepage_status refuse)
{
    if (value >= min && value <= max)
        return MOEPAGE_OK;
    return mp_fail(refuse, "%s is %u, it must be %u to %u", name, value, min, max);
}

moepage_status mp_shape_check_counts(const moepage_model_info *info, moepage_status refuse)
{
    const struct {
        const char *name;
        uint32_t value, min, max;
    } counts[] = {
        {"moe_layers", info->moe_layers, 1, MAX_LAYERS},
        {"layers", info->layers, info->moe_layers, MAX_LAYERS},
        {"experts", info->experts, 1, MAX_EXPERTS},
        {"top_k", info->top_k, 1, info->experts},
        {"hidden", info->hidden, 1, INT32_MAX},
        {"expert_intermediate", info->expert_intermediate, 1, INT32_MAX},
        {"n_tensors", info->expert_tensors, 1, MOEPAGE_MAX_EXPERT_TENSORS},
        {"shared_experts", info->shared_experts, 0, INT32_MAX},
        {"vocabulary", info->vocabulary, 0, INT32_MAX},
    };
    moepage_status status = MOEPAGE_OK;
    for (size_t i = 0; !status && i < sizeof counts / sizeof *counts; i++)
        status = check_count(counts[i].name, counts[i].value, counts[i].min, counts[i].max, refuse);
    return status;
}

static moepage_status check_dims(uint32_t i, const moepage_expert_tensor *tensor,
                                 moepage_status refuse)
{
    if (tensor->rank < 1 || tensor->rank > MOEPAGE_MAX_RANK)
        return mp_fail(refuse, "tensor %u has rank %u, it must be 1 to %d", i, tensor->rank,
                       MOEPAGE_MAX_RANK);
    for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
        if ((tensor->shape[d] != 0) != (d < tensor->rank))
            return mp_fail(refuse,
                           "tensor %u has rank %u and shape[%u] = %llu: "
                           "dimensions up to the rank must be at least 1, others 0",
                           i, tensor->rank, d, (unsigned long long)tensor->shape[d]);
    return MOEPAGE_OK;
}

moepage_status mp_shape_check_dtype(const char *kind, uint32_t i, uint32_t dtype,
                                    moepage_status refuse)
{
    if (mp_dtype_is_stored(dtype))
        return MOEPAGE_OK;
    return mp_fail(refuse,
                   "%s %u has dtype %u, it must be a MOEPAGE_DTYPE_* from %d to %d, or from %d to "
                   "%d for blocks",
                   kind, i, dtype, MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_I64, MOEPAGE_DTYPE_Q4_0,
                   MOEPAGE_DTYPE_NVFP4G256_F32);
}

moepage_status mp_shape_check_blocks(const char *kind, uint32_t i, uint32_t dtype, uint32_t rank,
                                     const uint64_t *shape, moepage_status refuse)
{
    const mp_block_format *blocks = mp_block_format_of(dtype);
    if (blocks && !rank)
        return mp_fail(refuse, "%s %u has rank 0, but blocks of %s lie along a dimension", kind, i,
                       blocks->name);
    if (blocks && shape[rank - 1] % blocks->weights)
        return mp_fail(refuse,
                       "%s %u is %s and its last dimension %llu: it must be a multiple of the %u "
                       "weights of a block",
                       kind, i, blocks->name, (unsigned long long)shape[rank - 1], blocks->weights);
    return MOEPAGE_OK;
}

static moepage_status check_tensor(uint32_t i, const moepage_expert_tensor *tensor,
                                   moepage_status refuse)
{
    if (tensor->role < MOEPAGE_ROLE_GATE_UP || tensor->role > MOEPAGE_ROLE_DOWN_BIAS)
        return mp_fail(refuse, "tensor %u has role %u, it must be a MOEPAGE_ROLE_* from %d to %d",
                       i, tensor->role, MOEPAGE_ROLE_GATE_UP, MOEPAGE_ROLE_DOWN_BIAS);
    moepage_status status = mp_shape_check_dtype("tensor", i, tensor->dtype, refuse);
    if (status)
        return status;
    if (tensor->reserved)
        return mp_fail(refuse, "tensor %u has reserved = %u, it must be 0", i, tensor->reserved);
    status = check_dims(i, tensor, refuse);
    return status ? status
                  : mp_shape_check_blocks("tensor", i, tensor->dtype, tensor->rank, tensor->shape,
                                          refuse);
}

static uint32_t role_bit(uint32_t role)
{
    return 1u << role;
}

moepage_status mp_shape_check_tensors(const moepage_expert_tensor *tensors, uint32_t n,
                                      moepage_status refuse)
{
    static const uint32_t fused[][3] = {
        {MOEPAGE_ROLE_GATE_UP, MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_UP},
        {MOEPAGE_ROLE_GATE_UP_SCALE, MOEPAGE_ROLE_GATE_SCALE, MOEPAGE_ROLE_UP_SCALE},
        {MOEPAGE_ROLE_GATE_UP_BIAS, MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_ROLE_UP_BIAS},
    };
    uint32_t seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        moepage_status status = check_tensor(i, &tensors[i], refuse);
        if (status)
            return status;
        if (seen & role_bit(tensors[i].role))
            return mp_fail(refuse, "tensor %u has role %u, which another tensor has too", i,
                           tensors[i].role);
        seen |= role_bit(tensors[i].role);
    }
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
        if ((seen & role_bit(fused[i][0])) &&
            (seen & (role_bit(fused[i][1]) | role_bit(fused[i][2]))))
            return mp_fail(refuse,
                           "role %u is fused of roles %u and %u, which must not be given beside "
                           "it",
                           fused[i][0], fused[i][1], fused[i][2]);
    return MOEPAGE_OK;
}

moepage_status mp_shape_check_layers(const moepage_model_info *info, const int32_t *layer_of_moe,
                                     moepage_status refuse)
{
    int64_t before = -1;
    for (uint32_t i = 0; i < info->moe_layers; before = layer_of_moe[i++])
        if (layer_of_moe[i] <= before || (uint32_t)layer_of_moe[i] >= info->layers)
            return mp_fail(refuse,
                           "MoE layer %u is layer %d, it must come after %lld and before %u", i,
                           layer_of_moe[i], (long long)before, info->layers);
    return MOEPAGE_OK;
}

bool mp_shape_bytes(uint32_t dtype, uint32_t rank, const uint64_t *shape, uint64_t *out)
{
    const mp_block_format *blocks = mp_block_format_of(dtype);
    const uint64_t weights = blocks ? blocks->weights : 1;
    uint64_t bytes = blocks ? blocks->bytes : mp_dtype_bytes(dtype);
    if (!bytes || (blocks && (!rank || shape[rank - 1] % weights)))
        return false;
    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bytes, i + 1 < rank ? shape[i] : shape[i] / weights, &bytes))
            return false;
    *out = bytes;
    return true;
}

mp_shape_text mp_shape_show(const uint64_t *shape, uint32_t rank)
{
    mp_shape_text out;
    const uint32_t shown = rank < MOEPAGE_MAX_RANK ? rank : MOEPAGE_MAX_RANK;
    size_t n = (size_t)snprintf(out.text, sizeof out.text, "[");
    for (uint32_t i = 0; i < shown; i++)
        n += (size_t)snprintf(out.text + n, sizeof out.text - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)shape[i]);
    snprintf(out.text + n, sizeof out.text - n, shown < rank ? ", ...]" : "]");
    return out;
}
