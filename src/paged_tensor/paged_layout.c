/* PagedTensor's sizes: offsets in a buffer and in a layer's addresses, and what a config comes to. */
#include "paged_tensor/paged.h"

#include "base/status.h"
#include "model/slot.h"

#define DEFAULT_BUFFERS 2u /* the paper's 2L blocks per type */
#define DECODE_ALIGN 16u   /* alignment that a decoder's output needs */

static moepage_status too_large(const struct moepage_model *model)
{
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "%u layers of %u experts of %llu bytes exceed the address space",
                   model->info.moe_layers, model->info.experts,
                   (unsigned long long)model->info.expert_bytes);
}

/* Rounds *bytes up to a multiple of `to`; returns false on overflow. */
static bool round_up(uint64_t *bytes, uint64_t to)
{
    if (__builtin_add_overflow(*bytes, to - 1, bytes))
        return false;
    *bytes -= *bytes % to;
    return true;
}

/* ---- layout ---- */

/* Appends `bytes` of a layer to a range; *offset is their place. */
static bool append(mp_paged_range *range, uint64_t bytes, uint64_t *offset)
{
    *offset = range->layer_stride;
    return !__builtin_add_overflow(range->layer_stride, bytes, &range->layer_stride) &&
           round_up(&range->layer_stride, MP_SLOT_ALIGN);
}

/* Experts are packed at their own size, so the smallest mappable piece is a whole layer of a
 * tensor. Small tensors share a range: otherwise each bias would cost a whole unit of mapping,
 * which on a GPU may be 32 MiB. */
static bool place_types(const struct moepage_model *model, uint64_t view_bytes,
                        mp_paged_layout *out)
{
    uint32_t shared = MP_PAGED_NONE;
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        uint64_t bytes;
        mp_paged_type *type = &out->types[t];
        type->expert_stride = model->layouts[0].tensors[t].bytes;
        if (__builtin_mul_overflow(type->expert_stride, (uint64_t)model->info.experts, &bytes))
            return false;
        if (bytes >= view_bytes)
            type->range = out->n_ranges++;
        else if (shared == MP_PAGED_NONE)
            type->range = shared = out->n_ranges++;
        else
            type->range = shared;
        if (!append(&out->ranges[type->range], bytes, &type->offset))
            return false;
    }
    return true;
}

static bool place_ranges(const struct moepage_model *model, uint64_t view_bytes,
                         mp_paged_layout *out)
{
    for (uint32_t r = 0; r < out->n_ranges; r++) {
        mp_paged_range *range = &out->ranges[r];
        uint64_t addresses;
        range->offset = out->unit;
        if (!round_up(&range->layer_stride, view_bytes) ||
            __builtin_add_overflow(out->unit, range->layer_stride, &out->unit) ||
            __builtin_mul_overflow(range->layer_stride, (uint64_t)model->info.moe_layers,
                                   &addresses))
            return false;
    }
    return true;
}

moepage_status mp_paged_lay_out(const struct moepage_model *model, uint64_t view_bytes,
                                mp_paged_layout *out)
{
    *out = (mp_paged_layout){0};
    if (!place_types(model, view_bytes, out) || !place_ranges(model, view_bytes, out))
        return too_large(model);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const mp_paged_type *type = &out->types[t];
        out->scatter[t] = (mp_scatter){.at = out->ranges[type->range].offset + type->offset,
                                       .stride = type->expert_stride};
    }
    return MOEPAGE_OK;
}

/* ---- choosing ---- */

static moepage_status check_model(const struct moepage_model *model)
{
    if (model->phantom)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the model \"%s\" is a shape without weights: there is nothing to page",
                       model->info.architecture);
    if (model->n_layouts > 1)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "the experts of this %s model differ in type from layer to layer: one tensor "
            "cannot hold them",
            model->info.architecture);
    return MOEPAGE_OK;
}

static moepage_status choose_buffers(const struct moepage_model *model, uint32_t *buffers)
{
    uint32_t layers = model->info.moe_layers, asked = *buffers;
    uint32_t least = layers < DEFAULT_BUFFERS ? layers : DEFAULT_BUFFERS;
    *buffers = asked ? asked : least;
    if (*buffers >= least && *buffers <= layers)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "buffers is %u, it must be 0 or %u to %u, the model's MoE layers", asked, least,
                   layers);
}

/* Experts are packed at their own size, so that not every place has the alignment
 * that decoders need. */
static bool can_decode(const struct moepage_model *model)
{
    for (uint32_t t = 0; t < model->info.expert_tensors; t++)
        if (model->layouts[0].tensors[t].bytes % DECODE_ALIGN)
            return false;
    return true;
}

static moepage_status choose_form(const struct moepage_model *model,
                                  const moepage_paged_config *config, uint32_t *bus_form)
{
    uint32_t form = config->bus_form;
    if (!can_decode(model)) {
        if (form == MOEPAGE_FORM_EXPH || config->compressed_experts)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "experts cannot be decoded in place: the bytes of one of their tensors "
                           "are no multiple of %u",
                           DECODE_ALIGN);
        form = MOEPAGE_FORM_DENSE;
    }
    const moepage_expert_pool_config tiers = mp_paged_tiers(config, form);
    return mp_transfer_check(model, &tiers, bus_form);
}

moepage_status mp_paged_choose(const struct moepage_device *home, const struct moepage_model *model,
                               moepage_paged_config *config, uint32_t *bus_form)
{
    if (!home->device->view_bytes)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device %s cannot map its memory at a second address: use an expert pool",
                       home->device->name);
    if (config->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "reserved is %u, it must be 0", config->reserved);
    moepage_status status = check_model(model);
    if (!status)
        status = choose_buffers(model, &config->buffers);
    return status ? status : choose_form(model, config, bus_form);
}

moepage_expert_pool_config mp_paged_tiers(const moepage_paged_config *config, uint32_t bus_form)
{
    return (moepage_expert_pool_config){
        .bus_form = bus_form,
        .compressed_experts = config->compressed_experts,
        .staging_experts = config->staging_experts,
        .host_tier_bytes = config->host_tier_bytes,
    };
}

/* ---- sizes ---- */

moepage_status mp_paged_sizes(const struct moepage_device *home, const struct moepage_model *model,
                              const moepage_paged_config *config, uint64_t *arena_bytes,
                              uint64_t *workspace_bytes)
{
    uint32_t bus_form;
    mp_paged_layout layout;
    moepage_paged_config own = *config;
    uint64_t images = 0;
    moepage_status status = mp_paged_choose(home, model, &own, &bus_form);
    if (!status)
        status = mp_paged_lay_out(model, home->device->view_bytes, &layout);
    if (status)
        return status;
    const moepage_expert_pool_config tiers = mp_paged_tiers(&own, bus_form);
    mp_transfer_sizes(model, &tiers, bus_form, 1, workspace_bytes, &images);
    if (__builtin_mul_overflow(layout.unit, (uint64_t)own.buffers, arena_bytes) ||
        !round_up(&images, home->device->view_bytes) ||
        __builtin_add_overflow(*arena_bytes, images, arena_bytes))
        return too_large(model);
    return MOEPAGE_OK;
}
