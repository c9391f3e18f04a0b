/* Models of experts that the caller holds. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/dtype.h"
#include "model/model.h"
#include "model/slot.h"

/* The same bounds as for checkpoints: products of counts then fit 64 bits. */
#define MAX_LAYERS 65536u
#define MAX_EXPERTS 65536u

static moepage_status check_count(const char *name, uint32_t value, uint32_t max)
{
    if (value >= 1 && value <= max)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT, "banks: %s is %u, it must be 1 to %u", name, value, max);
}

static moepage_status check_counts(const moepage_banks *banks)
{
    moepage_status status = check_count("moe_layers", banks->moe_layers, MAX_LAYERS);
    if (!status)
        status = check_count("experts", banks->experts, MAX_EXPERTS);
    if (!status)
        status = check_count("top_k", banks->top_k, banks->experts);
    if (!status)
        status = check_count("hidden", banks->hidden, INT32_MAX);
    if (!status)
        status = check_count("expert_intermediate", banks->expert_intermediate, INT32_MAX);
    if (!status)
        status = check_count("n_tensors", banks->n_tensors, MOEPAGE_MAX_EXPERT_TENSORS);
    if (!status && banks->reserved)
        status =
            mp_fail(MOEPAGE_E_ARGUMENT, "banks: reserved is %u, it must be 0", banks->reserved);
    if (!status && !banks->tensors)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "banks: tensors is NULL");
    if (!status && !banks->data == !banks->read)
        status =
            mp_fail(MOEPAGE_E_ARGUMENT, "banks: %s of data and read is set, exactly one must be",
                    banks->data ? "each" : "neither");
    return status;
}

static moepage_status check_shape(uint32_t i, const moepage_expert_tensor *tensor)
{
    if (tensor->rank < 1 || tensor->rank > MOEPAGE_MAX_RANK)
        return mp_fail(MOEPAGE_E_ARGUMENT, "banks: tensor %u has rank %u, it must be 1 to %d", i,
                       tensor->rank, MOEPAGE_MAX_RANK);
    for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
        if ((tensor->shape[d] != 0) != (d < tensor->rank))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "banks: tensor %u has rank %u and shape[%u] = %llu: "
                           "dimensions up to the rank must be at least 1, others 0",
                           i, tensor->rank, d, (unsigned long long)tensor->shape[d]);
    return MOEPAGE_OK;
}

static moepage_status check_tensor(uint32_t i, const moepage_expert_tensor *tensor)
{
    if (tensor->role < MOEPAGE_ROLE_GATE_UP || tensor->role > MOEPAGE_ROLE_DOWN_BIAS)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "banks: tensor %u has role %u, it must be a "
                       "MOEPAGE_ROLE_* from %d to %d",
                       i, tensor->role, MOEPAGE_ROLE_GATE_UP, MOEPAGE_ROLE_DOWN_BIAS);
    if (!mp_dtype_bytes(tensor->dtype))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "banks: tensor %u has dtype %u, it must be a "
                       "MOEPAGE_DTYPE_* from %d to %d",
                       i, tensor->dtype, MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_I64);
    if (tensor->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "banks: tensor %u has reserved = %u, it must be 0", i,
                       tensor->reserved);
    return check_shape(i, tensor);
}

static uint32_t role_bit(uint32_t role)
{
    return 1u << role;
}

/* Each role at most once, and nothing both fused and in halves. */
static moepage_status check_roles(const moepage_banks *banks)
{
    static const uint32_t fused[][3] = {
        {MOEPAGE_ROLE_GATE_UP, MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_UP},
        {MOEPAGE_ROLE_GATE_UP_SCALE, MOEPAGE_ROLE_GATE_SCALE, MOEPAGE_ROLE_UP_SCALE},
        {MOEPAGE_ROLE_GATE_UP_BIAS, MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_ROLE_UP_BIAS},
    };
    uint32_t seen = 0;
    for (uint32_t i = 0; i < banks->n_tensors; i++) {
        moepage_status status = check_tensor(i, &banks->tensors[i]);
        if (status)
            return status;
        if (seen & role_bit(banks->tensors[i].role))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "banks: tensor %u has role %u, which another has too", i,
                           banks->tensors[i].role);
        seen |= role_bit(banks->tensors[i].role);
    }
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
        if ((seen & role_bit(fused[i][0])) &&
            (seen & (role_bit(fused[i][1]) | role_bit(fused[i][2]))))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "banks: role %u is fused of roles %u and %u, which "
                           "must not be given beside it",
                           fused[i][0], fused[i][1], fused[i][2]);
    return MOEPAGE_OK;
}

static void set_shape(struct moepage_model *model, const moepage_banks *banks)
{
    model->info = (moepage_model_info){
        .struct_size = sizeof model->info,
        .layers = banks->moe_layers,
        .moe_layers = banks->moe_layers,
        .experts = banks->experts,
        .top_k = banks->top_k,
        .hidden = banks->hidden,
        .expert_intermediate = banks->expert_intermediate,
        .expert_tensors = banks->n_tensors,
        .architecture = "banks",
    };
    memcpy(model->tensors, banks->tensors, banks->n_tensors * sizeof *banks->tensors);
    model->n_pieces = banks->n_tensors;
    for (uint32_t i = 0; i < banks->n_tensors; i++)
        model->pieces[i] = (mp_piece){.tensor = i};
}

static moepage_status copy_sources(struct moepage_model *model, const moepage_banks *banks)
{
    moepage_status status = mp_slot_alloc_sources(model);
    if (status)
        return status;
    uint64_t n = (uint64_t)banks->moe_layers * banks->experts * banks->n_tensors;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t expert = i / banks->n_tensors;
        if (!banks->data[i])
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "banks: data of layer %u, expert %u, tensor %u is NULL",
                           (uint32_t)(expert / banks->experts), (uint32_t)(expert % banks->experts),
                           (uint32_t)(i % banks->n_tensors));
        model->sources[i] = banks->data[i];
    }
    return MOEPAGE_OK;
}

static moepage_status list_layers(struct moepage_model *model)
{
    model->layer_of_moe = mp_alloc_array(model->info.moe_layers, sizeof *model->layer_of_moe);
    if (!model->layer_of_moe)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers",
                       model->info.moe_layers);
    for (uint32_t i = 0; i < model->info.moe_layers; i++)
        model->layer_of_moe[i] = (int32_t)i;
    return MOEPAGE_OK;
}

static moepage_status build(struct moepage_model *model, const moepage_banks *banks)
{
    set_shape(model, banks);
    moepage_status status = mp_slot_layout(model, MOEPAGE_E_ARGUMENT);
    if (status)
        return status;
    for (uint32_t i = 0; i < model->n_pieces; i++)
        model->pieces[i].bytes = model->tensors[i].bytes;
    mp_slot_find_ffn(model, true);
    status = list_layers(model);
    if (!status && banks->data)
        status = copy_sources(model, banks);
    model->read = banks->read;
    model->read_user = banks->read_user;
    return status;
}

moepage_status mp_model_open_banks(const moepage_banks *banks, const mp_log *log,
                                   struct moepage_model **out)
{
    moepage_status status = check_counts(banks);
    if (!status)
        status = check_roles(banks);
    if (status)
        return status;
    struct moepage_model *model = mp_alloc(sizeof *model);
    if (!model)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    status = build(model, banks);
    if (status) {
        mp_model_free(model);
        return status;
    }
    model->log = *log;
    mp_handle_open(&model->handle, MP_KIND_MODEL);
    *out = model;
    return MOEPAGE_OK;
}
