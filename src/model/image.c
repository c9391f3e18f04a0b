/* Experts' images of any model: gathered from a checkpoint's mapping, from the caller's memory or
 * through the caller's read callback, or read from a pack. */
#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "model/bank_extras.h"
#include "model/pack.h"
#include "model/slot.h"

bool mp_model_has_form(const struct moepage_model *model, uint32_t form)
{
    if (form >= MP_FORMS)
        return false;
    if (model->phantom)
        return model->phantom->images[form].bytes;
    return model->pack ? model->pack->forms[form].present : form == MOEPAGE_FORM_DENSE;
}

uint32_t mp_model_group(const struct moepage_model *model, uint32_t form)
{
    assert(mp_quant_bits_of(form) && mp_model_has_form(model, form));
    return model->phantom ? model->phantom->group : model->pack->forms[form].group;
}

/* Returns true if the file holds images of this form byte for byte. */
static bool is_stored(const struct moepage_model *model, uint32_t form)
{
    return model->pack && model->pack->forms[form].present && !model->pack->forms[form].zstd;
}

uint64_t mp_model_image_room(const struct moepage_model *model, uint32_t form)
{
    if (model->phantom)
        return model->phantom->images[form].bytes;
    return is_stored(model, form) ? model->pack->forms[form].room : model->info.slot_bytes;
}

uint64_t mp_model_most_bytes(const struct moepage_model *model, uint32_t form)
{
    if (!mp_model_has_form(model, form))
        return 0;
    if (model->phantom)
        return model->phantom->images[form].bytes;
    return model->pack ? model->pack->forms[form].most_bytes : model->info.slot_bytes;
}

void mp_model_find_image(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image *out)
{
    *out = (mp_image){.bytes = model->info.slot_bytes};
    if (model->phantom)
        *out = (mp_image){.mapped = model->phantom->mapped,
                          .bytes = model->phantom->images[form].bytes};
    if (!is_stored(model, form))
        return;
    mp_pack_record record =
        mp_pack_record_of(&model->pack->forms[form], mp_pack_key(model, layer, expert));
    out->mapped = model->pack->map.bytes + record.offset;
    out->bytes = record.bytes;
    out->skew = record.offset % MP_PACK_PAGE;
}

void mp_model_find_parts(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image_part *parts)
{
    assert(form != MOEPAGE_FORM_DENSE && mp_model_has_form(model, form));
    if (model->phantom) {
        memcpy(parts, model->phantom->images[form].parts,
               model->info.expert_tensors * sizeof *parts);
        return;
    }
    mp_pack_record record =
        mp_pack_record_of(&model->pack->forms[form], mp_pack_key(model, layer, expert));
    mp_pack_parts_of(model, form, &record, parts);
}

/* ---- gathering ---- */

static moepage_status call_read(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                                const mp_piece *piece, unsigned char *out)
{
    int32_t failure = model->read(model->read_user, layer, expert, piece->tensor,
                                  piece->tensor_offset, piece->bytes, out);
    if (!failure)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_CALLBACK,
                   "the read callback failed with %d for layer %u, expert %u, tensor %u", failure,
                   layer, expert, piece->tensor);
}

/* Copies all pieces to their places; the gaps between them become 0. */
static moepage_status gather(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                             unsigned char *slot)
{
    const void **sources =
        model->sources ? model->sources + mp_model_source_index(model, layer, expert) : NULL;
    for (uint32_t i = 0; i < model->n_pieces; i++) {
        const mp_piece *piece = &model->pieces[i];
        moepage_status status = MOEPAGE_OK;
        if (sources)
            memcpy(slot + piece->slot_offset, sources[i], piece->bytes);
        else
            status = call_read(model, layer, expert, piece, slot + piece->slot_offset);
        if (status)
            return status;
    }
    mp_slot_clear_padding(model, slot);
    return MOEPAGE_OK;
}

moepage_status mp_model_read_cold(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, void *buffer, uint64_t room,
                                  mp_image_read *read)
{
    bool lossless = form == MOEPAGE_FORM_DENSE;
    if (!lossless && !mp_model_has_form(model, form))
        return mp_fail(MOEPAGE_E_NOT_FOUND, "the model's experts are not stored in form %u", form);
    if (room < mp_model_image_room(model, form))
        return mp_fail(MOEPAGE_E_ARGUMENT, "an image of form %u needs %llu bytes, not %llu", form,
                       (unsigned long long)mp_model_image_room(model, form),
                       (unsigned long long)room);
    if (model->phantom)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the model is a shape without weights: its experts cannot be read");
    if (model->pack)
        return mp_pack_read_image(model, layer, expert, form, buffer, read);
    moepage_status status = gather(model, layer, expert, buffer);
    if (!status)
        *read = (mp_image_read){.bytes = model->info.expert_bytes, .buffered = true};
    return status;
}

moepage_status mp_model_read_image(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t form, void *buffer, uint64_t room,
                                   uint64_t *read_bytes)
{
    mp_image_read read;
    moepage_status status = mp_model_read_cold(model, layer, expert, form, buffer, room, &read);
    if (!status)
        *read_bytes = read.bytes;
    return status;
}

/* ---- mapped images ---- */

bool mp_model_mapped_is_checked(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                                uint32_t form)
{
    if (!model->pack)
        return true;
    const mp_pack_form *of = &model->pack->forms[form];
    uint64_t key = mp_pack_key(model, layer, expert);
    return of->present &&
           atomic_load_explicit(&of->checked[key / 32], memory_order_acquire) >> key % 32 & 1;
}

moepage_status mp_model_check_mapped(const struct moepage_model *model, uint32_t layer,
                                     uint32_t expert, uint32_t form)
{
    if (mp_model_mapped_is_checked(model, layer, expert, form))
        return MOEPAGE_OK;
    if (!is_stored(model, form))
        return mp_fail(MOEPAGE_E_STATE, "the model's file has no images of form %u to map", form);
    return mp_pack_check_mapped(model, layer, expert, form);
}
