/* Sorts a model's layouts into classes of slots, and lays a bundle out. */
#include "cache/bundle.h"

#include "base/alloc.h"
#include "base/divisor.h"
#include "base/status.h"

static uint32_t class_for(mp_bundle *bundle, uint64_t slot_bytes)
{
    uint32_t c = 0;
    while (c < bundle->n_classes && bundle->classes[c].slot_bytes != slot_bytes)
        c++;
    if (c == bundle->n_classes)
        bundle->classes[bundle->n_classes++] = (mp_slot_class){.slot_bytes = slot_bytes};
    return c;
}

static void count_slots(mp_bundle *bundle)
{
    uint32_t divisor = 0;
    for (uint32_t c = 0; c < bundle->n_classes; c++)
        divisor = mp_common_divisor(bundle->classes[c].layers, divisor);
    for (uint32_t c = 0; c < bundle->n_classes; c++) {
        bundle->classes[c].slots = bundle->classes[c].layers / divisor;
        bundle->n_slots += bundle->classes[c].slots;
    }
}

static moepage_status lay_out(mp_bundle *bundle)
{
    bundle->class_of_slot = mp_alloc_array(bundle->n_slots, sizeof *bundle->class_of_slot);
    bundle->offset = mp_alloc_array(bundle->n_slots, sizeof *bundle->offset);
    if (!bundle->class_of_slot || !bundle->offset)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for bundles of %u slots", bundle->n_slots);
    uint32_t slot = 0;
    for (uint32_t c = 0; c < bundle->n_classes; c++) {
        for (uint32_t i = 0; i < bundle->classes[c].slots; i++, slot++) {
            bundle->class_of_slot[slot] = (uint8_t)c;
            bundle->offset[slot] = bundle->bytes;
            bundle->bytes += bundle->classes[c].slot_bytes;
        }
    }
    return MOEPAGE_OK;
}

static uint64_t slot_bytes_of(const struct moepage_model *model, uint32_t layer, uint32_t form)
{
    return form == MOEPAGE_FORM_DENSE ? mp_model_layout(model, layer)->slot_bytes
                                      : mp_model_slot_bytes(model, form);
}

/* The sum of a bundle's bytes cannot overflow: the model's slots have been added up (mp_slot_layout). */
moepage_status mp_bundle_open(const struct moepage_model *model, uint32_t form, mp_bundle *out)
{
    const uint32_t layers = model->info.moe_layers;
    *out = (mp_bundle){.class_of_layer = mp_alloc_array(layers, 1)};
    if (!out->class_of_layer)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u layers", layers);
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t c = class_for(out, slot_bytes_of(model, layer, form));
        out->class_of_layer[layer] = (uint8_t)c;
        out->classes[c].layers++;
    }
    count_slots(out);
    return lay_out(out);
}

void mp_bundle_close(mp_bundle *bundle)
{
    mp_free(bundle->class_of_layer);
    mp_free(bundle->class_of_slot);
    mp_free(bundle->offset);
}

uint64_t mp_bundle_offset(const mp_bundle *bundle, uint32_t slot)
{
    return slot / bundle->n_slots * bundle->bytes + bundle->offset[slot % bundle->n_slots];
}

int32_t mp_bundle_number(const mp_bundle *bundle, uint32_t slot)
{
    return (int32_t)(mp_bundle_offset(bundle, slot) / mp_bundle_stride(bundle));
}

uint64_t mp_bundle_stride(const mp_bundle *bundle)
{
    return bundle->n_slots == 1 ? bundle->bytes : MP_SLOT_ALIGN;
}
