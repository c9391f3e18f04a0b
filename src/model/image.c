/* Experts' images of any model: gathered from a checkpoint's files, from the caller's memory or
 * through the caller's read callback, or read from a pack. */
#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "model/file.h"
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

uint64_t mp_model_slot_bytes(const struct moepage_model *model, uint32_t form)
{
    uint64_t bytes = mp_model_most_bytes(model, form);
    return form == MOEPAGE_FORM_DENSE ? model->info.slot_bytes
                                      : (bytes + MP_SLOT_ALIGN - 1) / MP_SLOT_ALIGN * MP_SLOT_ALIGN;
}

void mp_model_find_image(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                         uint32_t form, mp_image *out)
{
    *out = (mp_image){.bytes = mp_model_layout(model, layer)->slot_bytes};
    if (model->phantom)
        *out = (mp_image){.address = model->phantom->mapped,
                          .bytes = model->phantom->images[form].bytes};
    if (!is_stored(model, form))
        return;
    mp_pack_record record =
        mp_pack_record_of(&model->pack->forms[form], mp_pack_key(model, layer, expert));
    out->stored = true;
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
    mp_pack_parts_of(model, layer, form, &record, parts);
}

/* ---- gathering ---- */

static moepage_status call_read(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                                const mp_piece *piece, uint64_t offset, uint64_t bytes, void *out)
{
    int32_t failure = model->read(model->read_user, layer, expert, piece->tensor,
                                  piece->tensor_offset + offset, bytes, out);
    if (!failure)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_CALLBACK,
                   "the read callback failed with %d for layer %u, expert %u, tensor %u", failure,
                   layer, expert, piece->tensor);
}

moepage_status mp_model_read_piece(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t piece, uint64_t offset, uint64_t bytes,
                                   void *out)
{
    const mp_piece *of = &mp_model_layout(model, layer)->pieces[piece];
    if (model->read)
        return call_read(model, layer, expert, of, offset, bytes, out);
    if (model->sources) {
        const void *source = model->sources[mp_model_source_index(model, layer, expert) + piece];
        memcpy(out, (const unsigned char *)source + offset, bytes);
        return MOEPAGE_OK;
    }
    const mp_file_span *span = mp_model_spans(model, layer, expert) + of->span;
    moepage_status status = of->how.kind
                                ? mp_repack_read(&of->how, span, model->rooms, offset, bytes, out)
                                : mp_model_file_read(span->file, span->offset + offset, bytes, out);
    return status ? mp_fail_within(status, "layer %u, expert %u", layer, expert) : MOEPAGE_OK;
}

/* Copies all pieces to their places, past the page cache if a piece is one range of a file that has such
 * reads; the gaps between them become 0. */
static moepage_status gather(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                             const mp_direct_desk *desk, unsigned char *slot, bool *buffered)
{
    const mp_layout *layout = mp_model_layout(model, layer);
    moepage_status status = MOEPAGE_OK;
    *buffered = false;
    for (uint32_t i = 0; i < model->n_pieces && !status; i++) {
        const mp_piece *piece = &layout->pieces[i];
        unsigned char *out = slot + piece->slot_offset;
        bool cached = true;
        if (!desk->block || piece->how.kind) {
            status = mp_model_read_piece(model, layer, expert, i, 0, piece->bytes, out);
        } else {
            const mp_file_span *span = mp_model_spans(model, layer, expert) + piece->span;
            status = mp_direct_read(span->file, span->offset, piece->bytes, desk, out, &cached);
            if (status)
                status = mp_fail_within(status, "layer %u, expert %u", layer, expert);
        }
        *buffered |= cached;
    }
    if (!status)
        mp_slot_clear_padding(layout, model->info.expert_tensors, slot);
    return status;
}

/* The same with a desk of its own, if the model's files need one. */
static moepage_status gather_alone(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, unsigned char *slot, bool *buffered)
{
    mp_direct_desk desk = {0};
    if (model->spans && !mp_direct_desk_open(&desk))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "layer %u, expert %u: no memory to read it", layer,
                       expert);
    moepage_status status = gather(model, layer, expert, &desk, slot, buffered);
    mp_direct_desk_close(&desk);
    return status;
}

moepage_status mp_model_read_cold(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, const mp_direct_desk *desk,
                                  void *buffer, mp_image_read *read)
{
    if (model->phantom)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the model is a shape without weights: its experts cannot be read");
    if (model->pack)
        return mp_pack_read_image(model, layer, expert, form, buffer, read);
    bool buffered;
    moepage_status status = desk ? gather(model, layer, expert, desk, buffer, &buffered)
                                 : gather_alone(model, layer, expert, buffer, &buffered);
    if (!status)
        *read = (mp_image_read){.bytes = mp_model_layout(model, layer)->expert_bytes,
                                .buffered = buffered};
    return status;
}

moepage_status mp_model_read_image(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t form, void *buffer, uint64_t room,
                                   uint64_t *read_bytes)
{
    bool lossless = form == MOEPAGE_FORM_DENSE;
    if (!lossless && !mp_model_has_form(model, form))
        return mp_fail(MOEPAGE_E_NOT_FOUND, "the model's experts are not stored in form %u", form);
    if (room < mp_model_image_room(model, form))
        return mp_fail(MOEPAGE_E_ARGUMENT, "an image of form %u needs %llu bytes, not %llu", form,
                       (unsigned long long)mp_model_image_room(model, form),
                       (unsigned long long)room);
    mp_image_read read;
    moepage_status status = mp_model_read_cold(model, layer, expert, form, NULL, buffer, &read);
    if (!status)
        *read_bytes = read.bytes;
    return status;
}

/* ---- stored images ---- */

moepage_status mp_model_prepare_stored(const struct moepage_model *model)
{
    return model->pack ? mp_pack_prepare(model->pack) : MOEPAGE_OK;
}

moepage_status mp_model_read_stored(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form, uint64_t offset, uint64_t bytes,
                                    void *out)
{
    assert(is_stored(model, form));
    return mp_pack_read_stored(model, layer, expert, form, offset, bytes, out);
}

bool mp_model_image_is_checked(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                               uint32_t form)
{
    return !model->pack ||
           mp_pack_is_checked(&model->pack->forms[form], mp_pack_key(model, layer, expert));
}

/* Looks for a change of the files, and for stored values that a slot cannot hold. */
static moepage_status check_pieces(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert)
{
    const mp_layout *layout = mp_model_layout(model, layer);
    for (uint32_t i = 0; model->spans && i < model->n_pieces; i++) {
        const mp_piece *piece = &layout->pieces[i];
        const mp_file_span *span = mp_model_spans(model, layer, expert) + piece->span;
        moepage_status status = piece->how.kind ? mp_repack_check(&piece->how, span, model->rooms)
                                                : mp_model_file_check(span->file);
        if (status)
            return mp_fail_within(status, "layer %u, expert %u", layer, expert);
    }
    return MOEPAGE_OK;
}

moepage_status mp_model_check_image(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form)
{
    if (!model->pack)
        return check_pieces(model, layer, expert);
    moepage_status status = mp_model_file_check(&model->pack->file);
    if (status)
        return mp_fail_within(status, "layer %u, expert %u", layer, expert);
    if (mp_model_image_is_checked(model, layer, expert, form))
        return MOEPAGE_OK;
    if (!is_stored(model, form))
        return mp_fail(MOEPAGE_E_STATE,
                       "the model's file does not store images of form %u as they are", form);
    return mp_pack_check_stored(model, layer, expert, form);
}
