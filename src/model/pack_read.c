/* Reads experts' images from a .moepack file: whole pages around a record, past the page cache if
 * the file system allows, checked before use. */
#include <assert.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/status.h"
#include "codec/exph.h"
#include "model/bounce.h"
#include "model/file.h"
#include "model/pack.h"
#include "model/planes.h"
#include "model/slot.h"

static uint32_t layer_of(const struct moepage_model *model, uint64_t key)
{
    return (uint32_t)(key / model->info.experts);
}

/* Adds the record's name to a failure's sentence. */
static moepage_status fail_in_record(moepage_status status, const struct moepage_model *model,
                                     uint32_t form, uint64_t key)
{
    return mp_fail_within(status, "%.160s: section %s: layer %u, expert %u", model->pack->file.name,
                          mp_pack_section_name(MP_PACK_EXPERT_DATA, form).text,
                          layer_of(model, key), (uint32_t)(key % model->info.experts));
}

/* ---- checks ---- */

static moepage_status check_parts(const struct moepage_model *model, uint32_t layer, uint32_t form,
                                  const mp_pack_record *record, const unsigned char *image)
{
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_pack_parts_of(model, layer, form, record, parts);
    for (uint32_t i = 0; i < model->info.expert_tensors; i++) {
        const moepage_expert_tensor *tensor = &mp_model_layout(model, layer)->tensors[i];
        const unsigned char *part = image + parts[i].offset;
        moepage_status status = MOEPAGE_OK;
        mp_quant_shape shape;
        if (parts[i].form == MOEPAGE_FORM_EXPH)
            status = mp_exph_check(part, parts[i].bytes, tensor->dtype, mp_pack_elements(tensor));
        else if (mp_pack_quant_shape(tensor, parts[i].form, model->pack->forms[form].group, &shape))
            status = mp_quant_check(&shape, part, parts[i].bytes);
        if (status)
            return mp_fail_within(status, "tensor %u", i);
    }
    return MOEPAGE_OK;
}

/* Checks a record's bytes and padding against the index, and everything that decoders rely on. */
static moepage_status check_record(const struct moepage_model *model, uint32_t layer, uint32_t form,
                                   const mp_pack_record *record, const unsigned char *bytes)
{
    uint64_t n = mp_pack_round_up(record->bytes, MP_PACK_RECORD_ALIGN);
    if (XXH3_64bits(bytes, n) != record->xxh3)
        return mp_fail(MOEPAGE_E_FORMAT, "its bytes do not match their checksum");
    return form == MOEPAGE_FORM_DENSE ? MOEPAGE_OK : check_parts(model, layer, form, record, bytes);
}

/* ---- images ---- */

/* Reads the pages around a record and checks it; its bytes are at out[offset % page) afterwards. A
 * changed file is reported as such, rather than as the damage that it may have caused. */
static moepage_status read_record(const struct moepage_model *model, bool direct, uint32_t form,
                                  uint64_t key, unsigned char *out, mp_image_read *read)
{
    mp_pack_record record = mp_pack_record_of(&model->pack->forms[form], key);
    uint64_t skew = record.offset % MP_PACK_PAGE;
    assert((uintptr_t)out % MP_PACK_PAGE == 0);
    uint64_t n = mp_pack_round_up(skew + record.bytes, MP_PACK_PAGE);
    bool buffered = true;
    const mp_model_file *file = &model->pack->file;
    moepage_status status =
        direct ? mp_direct_read_pages(file, record.offset - skew, n, out, &buffered)
               : mp_model_file_read(file, record.offset - skew, n, out);
    if (!status)
        status = check_record(model, layer_of(model, key), form, &record, out + skew);
    if (status)
        return fail_in_record(status, model, form, key);
    *read = (mp_image_read){.bytes = n, .buffered = buffered};
    return MOEPAGE_OK;
}

/* Expands one frame to exactly the n bytes of an expert, whatever size the frame claims. */
static moepage_status expand(uint64_t n, const mp_pack_record *record, const unsigned char *frame,
                             unsigned char *planes)
{
    if (ZSTD_getFrameContentSize(frame, record->bytes) != n ||
        ZSTD_findFrameCompressedSize(frame, record->bytes) != record->bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "its record is not one zstd frame of %llu bytes",
                       (unsigned long long)n);
    size_t got = ZSTD_decompress(planes, n, frame, record->bytes);
    if (ZSTD_isError(got) || got != n)
        return mp_fail(MOEPAGE_E_FORMAT, "its zstd frame cannot be decoded: %s",
                       ZSTD_isError(got) ? ZSTD_getErrorName(got) : "too few bytes");
    return MOEPAGE_OK;
}

static moepage_status read_zstd(const struct moepage_model *model, uint64_t key,
                                unsigned char *slot, mp_image_read *read)
{
    const mp_pack_form *of = &model->pack->forms[MOEPAGE_FORM_DENSE];
    const mp_layout *layout = mp_model_layout(model, layer_of(model, key));
    mp_pack_record record = mp_pack_record_of(of, key);
    mp_bounce frame = {0}, planes = {0};
    moepage_status status;
    if (!mp_bounce_alloc(of->room, &frame) || !mp_bounce_alloc(layout->expert_bytes, &planes)) {
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to decode an expert of %llu bytes",
                         (unsigned long long)layout->expert_bytes);
        goto done;
    }
    status = read_record(model, true, MOEPAGE_FORM_DENSE, key, frame.bytes, read);
    if (status)
        goto done;
    status = expand(layout->expert_bytes, &record, frame.bytes + record.offset % MP_PACK_PAGE,
                    planes.bytes);
    if (status) {
        fail_in_record(status, model, MOEPAGE_FORM_DENSE, key);
        goto done;
    }
    mp_planes_merge(layout, model->info.expert_tensors, planes.bytes, slot);
    mp_slot_clear_padding(layout, model->info.expert_tensors, slot);
done:
    mp_bounce_free(&frame);
    mp_bounce_free(&planes);
    return status;
}

void mp_pack_decode_exph(const struct moepage_model *model, uint32_t layer,
                         const mp_image_part *parts, const unsigned char *image,
                         unsigned char *slot)
{
    const mp_layout *layout = mp_model_layout(model, layer);
    const mp_exph_decoder *decoder = mp_exph_decoder_best();
    for (uint32_t i = 0; i < model->info.expert_tensors; i++) {
        const moepage_expert_tensor *tensor = &layout->tensors[i];
        const unsigned char *part = image + parts[i].offset;
        uint64_t n = mp_pack_elements(tensor);
        if (parts[i].form == MOEPAGE_FORM_EXPH)
            mp_exph_decode(decoder, part, parts[i].bytes, tensor->dtype, n, 0, mp_exph_chunks(n),
                           slot + tensor->offset);
        else
            memcpy(slot + tensor->offset, part, tensor->bytes);
    }
    mp_slot_clear_padding(layout, model->info.expert_tensors, slot);
}

static moepage_status read_decoded(const struct moepage_model *model, uint64_t key,
                                   unsigned char *slot, mp_image_read *read)
{
    const mp_pack_form *of = &model->pack->forms[MOEPAGE_FORM_EXPH];
    mp_pack_record record = mp_pack_record_of(of, key);
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_bounce image;
    if (!mp_bounce_alloc(of->room, &image))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to decode an expert of %llu bytes",
                       (unsigned long long)model->info.expert_bytes);
    moepage_status status = read_record(model, true, MOEPAGE_FORM_EXPH, key, image.bytes, read);
    if (!status) {
        uint32_t layer = layer_of(model, key);
        mp_pack_parts_of(model, layer, MOEPAGE_FORM_EXPH, &record, parts);
        mp_pack_decode_exph(model, layer, parts, image.bytes + record.offset % MP_PACK_PAGE, slot);
    }
    mp_bounce_free(&image);
    return status;
}

moepage_status mp_pack_read_image(const struct moepage_model *model, uint32_t layer,
                                  uint32_t expert, uint32_t form, void *buffer, mp_image_read *read)
{
    uint64_t key = mp_pack_key(model, layer, expert);
    const mp_pack_form *of = &model->pack->forms[form];
    if (!of->present)
        return read_decoded(model, key, buffer, read);
    return of->zstd ? read_zstd(model, key, buffer, read)
                    : read_record(model, true, form, key, buffer, read);
}

/* ---- stored images, in ranges ---- */

static moepage_status open_desk(mp_pack *pack)
{
    uint64_t room = 0;
    for (uint32_t form = 0; form < MP_FORMS; form++)
        if (pack->forms[form].room > room)
            room = pack->forms[form].room;
    if (pack->desk.bytes || mp_bounce_alloc(room, &pack->desk))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to check an image of %llu bytes",
                   (unsigned long long)room);
}

moepage_status mp_pack_prepare(mp_pack *pack)
{
    pthread_mutex_lock(&pack->desk_lock);
    moepage_status status = open_desk(pack);
    pthread_mutex_unlock(&pack->desk_lock);
    return status;
}

/* Reads a whole record to the desk, of which the lock is held, and marks it as checked. Through the
 * page cache: ranges of it will be read from there. */
static moepage_status check_whole(const struct moepage_model *model, uint32_t form, uint64_t key)
{
    mp_pack_form *of = &model->pack->forms[form];
    mp_image_read read;
    moepage_status status = open_desk(model->pack);
    if (!status)
        status = read_record(model, false, form, key, model->pack->desk.bytes, &read);
    if (!status)
        atomic_fetch_or_explicit(&of->checked[key / 32], 1u << key % 32, memory_order_release);
    return status;
}

moepage_status mp_pack_check_stored(const struct moepage_model *model, uint32_t layer,
                                    uint32_t expert, uint32_t form)
{
    return mp_pack_read_stored(model, layer, expert, form, 0, 0, NULL);
}

moepage_status mp_pack_read_stored(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint32_t form, uint64_t offset, uint64_t bytes,
                                   void *out)
{
    mp_pack *pack = model->pack;
    uint64_t key = mp_pack_key(model, layer, expert);
    mp_pack_record record = mp_pack_record_of(&pack->forms[form], key);
    moepage_status status;
    if (mp_pack_is_checked(&pack->forms[form], key)) {
        status = mp_model_file_read(&pack->file, record.offset + offset, bytes, out);
        return status ? fail_in_record(status, model, form, key) : MOEPAGE_OK;
    }
    pthread_mutex_lock(&pack->desk_lock);
    status = check_whole(model, form, key);
    if (!status && bytes)
        memcpy(out, pack->desk.bytes + record.offset % MP_PACK_PAGE + offset, bytes);
    pthread_mutex_unlock(&pack->desk_lock);
    return status;
}
