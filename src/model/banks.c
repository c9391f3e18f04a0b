/* Models of experts that the caller holds. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/bank_extras.h"
#include "model/bank_files.h"
#include "model/model.h"
#include "model/shape.h"
#include "model/slot.h"

static moepage_model_info info_of(const moepage_banks *banks)
{
    return (moepage_model_info){
        .struct_size = sizeof(moepage_model_info),
        .layers = banks->layers ? banks->layers : banks->moe_layers,
        .moe_layers = banks->moe_layers,
        .experts = banks->experts,
        .top_k = banks->top_k,
        .hidden = banks->hidden,
        .expert_intermediate = banks->expert_intermediate,
        .shared_experts = banks->shared_experts,
        .vocabulary = banks->vocabulary,
        .expert_tensors = banks->n_tensors,
        .architecture = "banks",
    };
}

/* With the defaults filled in. */
static mp_activation activation_of(const moepage_banks *banks)
{
    mp_activation of = {banks->activation, banks->activation_alpha, banks->activation_limit};
    if (of.kind == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED) {
        of.alpha = of.alpha == 0 ? MP_CLAMPED_ALPHA : of.alpha;
        of.limit = of.limit == 0 ? MP_CLAMPED_LIMIT : of.limit;
    }
    return of;
}

static moepage_status check_activation(const moepage_banks *banks)
{
    const mp_activation of = activation_of(banks);
    if (of.kind > MOEPAGE_ACTIVATION_OTHER)
        return mp_fail(MOEPAGE_E_ARGUMENT, "activation is %u, the last one is %d", of.kind,
                       MOEPAGE_ACTIVATION_OTHER);
    if (mp_activation_is_sound(&of))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "activation_alpha is %g and activation_limit %g: with SWIGLU_CLAMPED they must "
                   "be 2^-10 to 2^10 and above 0, else both 0",
                   (double)of.alpha, (double)of.limit);
}

static moepage_status check_layer(const moepage_banks *banks, uint32_t layer)
{
    const moepage_expert_tensor *first = banks->layer_tensors;
    const moepage_expert_tensor *tensors = first + (uint64_t)layer * banks->n_tensors;
    moepage_status status = mp_shape_check_tensors(tensors, banks->n_tensors, MOEPAGE_E_ARGUMENT);
    for (uint32_t i = 0; i < banks->n_tensors && !status; i++)
        if (tensors[i].role != first[i].role || tensors[i].rank != first[i].rank ||
            memcmp(tensors[i].shape, first[i].shape, sizeof first[i].shape) != 0)
            status =
                mp_fail(MOEPAGE_E_ARGUMENT,
                        "tensor %u has another role or shape than in the first MoE layer: only "
                        "types may differ",
                        i);
    return status ? mp_fail_within(status, "MoE layer %u", layer) : MOEPAGE_OK;
}

static moepage_status check_tensors(const moepage_banks *banks)
{
    moepage_status status = MOEPAGE_OK;
    if (banks->tensors)
        return mp_shape_check_tensors(banks->tensors, banks->n_tensors, MOEPAGE_E_ARGUMENT);
    for (uint32_t layer = 0; layer < banks->moe_layers && !status; layer++)
        status = check_layer(banks, layer);
    return status;
}

static moepage_status check_source(const moepage_banks *banks)
{
    const int n = !!banks->data + !!banks->read + !!banks->places;
    if (n != 1)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%s of data, read and places is set, exactly one must be",
                       n ? "more than one" : "none");
    if (!banks->places == !banks->files && !banks->places == !banks->n_files)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT, "places, files and n_files must be set together");
}

static moepage_status check(const moepage_banks *banks)
{
    moepage_model_info info = info_of(banks);
    moepage_status status = mp_shape_check_counts(&info, MOEPAGE_E_ARGUMENT);
    if (status)
        return status;
    if (banks->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "reserved is %u, it must be 0", banks->reserved);
    status = check_activation(banks);
    if (status)
        return status;
    if (!banks->tensors == !banks->layer_tensors)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%s of tensors and layer_tensors is set, exactly one must be",
                       banks->tensors ? "each" : "neither");
    status = check_source(banks);
    if (!status)
        status = check_tensors(banks);
    if (!status && banks->layer_index)
        status = mp_shape_check_layers(&info, banks->layer_index, MOEPAGE_E_ARGUMENT);
    return status;
}

static moepage_status set_shape(struct moepage_model *model, const moepage_banks *banks)
{
    moepage_status status = MOEPAGE_OK;
    model->info = info_of(banks);
    if (banks->tensors)
        memcpy(model->layouts[0].tensors, banks->tensors,
               banks->n_tensors * sizeof *banks->tensors);
    for (uint32_t layer = 0; layer < banks->moe_layers && banks->layer_tensors && !status; layer++)
        status = mp_slot_choose_layout(model, layer,
                                       banks->layer_tensors + (uint64_t)layer * banks->n_tensors);
    mp_slot_whole_pieces(model);
    return status;
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
            return mp_fail(MOEPAGE_E_ARGUMENT, "data of layer %u, expert %u, tensor %u is NULL",
                           (uint32_t)(expert / banks->experts), (uint32_t)(expert % banks->experts),
                           (uint32_t)(i % banks->n_tensors));
        model->sources[i] = banks->data[i];
    }
    return MOEPAGE_OK;
}

static moepage_status list_layers(struct moepage_model *model, const int32_t *layer_index)
{
    model->layer_of_moe = mp_alloc_array(model->info.moe_layers, sizeof *model->layer_of_moe);
    if (!model->layer_of_moe)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers",
                       model->info.moe_layers);
    for (uint32_t i = 0; i < model->info.moe_layers; i++)
        model->layer_of_moe[i] = layer_index ? layer_index[i] : (int32_t)i;
    return MOEPAGE_OK;
}

static void close_held(struct moepage_model *model)
{
    mp_bank_extras_free(model->extras);
    mp_bank_files_close(model->bank_files);
}

static moepage_status add_extras(struct moepage_model *model, const moepage_banks *banks)
{
    if (!mp_bank_extras_needed(banks))
        return MOEPAGE_OK;
    moepage_status status = mp_bank_extras_create(banks, &model->extras);
    if (status)
        return status;
    model->info.dense_bytes = model->extras->dense_bytes;
    if (model->extras->architecture)
        model->info.architecture = model->extras->architecture;
    return MOEPAGE_OK;
}

static moepage_status build(struct moepage_model *model, const moepage_banks *banks)
{
    moepage_status status = set_shape(model, banks);
    if (!status)
        status = mp_slot_layout(model, MOEPAGE_E_ARGUMENT);
    if (status)
        return status;
    model->close = close_held;
    const mp_activation activation = activation_of(banks);
    mp_slot_find_ffn(model, &activation, true);
    status = list_layers(model, banks->layer_index);
    if (!status && banks->data)
        status = copy_sources(model, banks);
    if (!status && banks->places)
        status = mp_bank_files_open(model, banks);
    if (!status)
        status = add_extras(model, banks);
    model->read = banks->read;
    model->read_user = banks->read_user;
    return status;
}

moepage_status mp_model_open_banks(const moepage_banks *banks, const mp_log *log,
                                   struct moepage_model **out)
{
    moepage_status status = check(banks);
    if (status)
        return mp_fail_within(status, "banks");
    struct moepage_model *model = mp_model_alloc();
    if (!model)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    status = build(model, banks);
    if (status) {
        mp_model_free(model);
        return mp_fail_within(status, "banks");
    }
    model->log = *log;
    mp_handle_open(&model->handle, MP_KIND_MODEL);
    *out = model;
    return MOEPAGE_OK;
}
