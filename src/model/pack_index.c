/* The EXPERT INDEX sections of a .moepack file: the location and parts of each expert's record. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "codec/exph.h"
#include "model/dtype.h"
#include "model/pack.h"
#include "model/pack_sections.h"

/* ---- writing ---- */

static uint32_t entry_bytes_of(uint32_t n_parts)
{
    return (uint32_t)mp_pack_round_up(MP_PACK_RECORD_BYTES + 4u * n_parts, 8);
}

uint64_t mp_pack_index_bytes(const mp_pack_storage *storage)
{
    return MP_PACK_INDEX_HEAD_BYTES + storage->n_records * entry_bytes_of(storage->n_parts);
}

void mp_pack_index_head_encode(const mp_pack_storage *storage, unsigned char *out)
{
    memset(out, 0, MP_PACK_INDEX_HEAD_BYTES);
    mp_put32(out, storage->form);
    mp_put32(out + 4, storage->group);
    mp_put32(out + 8, storage->stored);
    mp_put32(out + 12, storage->n_parts);
    mp_put64(out + 16, storage->n_records);
}

void mp_pack_index_entry_encode(const mp_pack_storage *storage, uint64_t offset, uint64_t bytes,
                                uint64_t xxh3, const uint32_t *parts, unsigned char *out)
{
    memset(out, 0, entry_bytes_of(storage->n_parts));
    mp_put64(out, offset);
    mp_put64(out + 8, bytes);
    mp_put64(out + 16, xxh3);
    for (uint32_t i = 0; i < storage->n_parts; i++)
        mp_put32(out + MP_PACK_RECORD_BYTES + 4 * i, parts[i]);
}

/* ---- reading ---- */

static bool is_integer(uint32_t form)
{
    return mp_quant_bits_of(form) != 0;
}

bool mp_pack_is_weight(uint32_t role)
{
    return role == MOEPAGE_ROLE_GATE_UP || role == MOEPAGE_ROLE_GATE || role == MOEPAGE_ROLE_UP ||
           role == MOEPAGE_ROLE_DOWN;
}

bool mp_pack_quant_shape(const moepage_expert_tensor *tensor, uint32_t form, uint32_t group,
                         mp_quant_shape *out)
{
    if (!is_integer(form) || !mp_dtype_is_float(tensor->dtype) || tensor->rank != 2 ||
        !mp_pack_is_weight(tensor->role))
        return false;
    *out = (mp_quant_shape){.rows = tensor->shape[0],
                            .columns = tensor->shape[1],
                            .bits = mp_quant_bits_of(form),
                            .group = group};
    return true;
}

uint64_t mp_pack_elements(const moepage_expert_tensor *tensor)
{
    return mp_dtype_weights(tensor->dtype, tensor->bytes);
}

void mp_pack_parts_of(const struct moepage_model *model, uint32_t layer, uint32_t form,
                      const mp_pack_record *record, mp_image_part *parts)
{
    const moepage_expert_tensor *tensors = mp_model_layout(model, layer)->tensors;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < model->info.expert_tensors; i++) {
        uint32_t size = mp_get32(record->parts + 4 * i);
        uint64_t bytes = (uint64_t)(size & MP_PACK_PART_UNITS) * MP_PACK_PART_ALIGN;
        bool raw = size & MP_PACK_PART_RAW;
        parts[i] = (mp_image_part){.offset = offset,
                                   .bytes = raw ? tensors[i].bytes : bytes,
                                   .form = raw ? MOEPAGE_FORM_DENSE : form};
        offset += bytes;
    }
}

static moepage_status check_head(const struct moepage_model *model, uint32_t form, uint64_t bytes)
{
    const mp_pack_form *of = &model->pack->forms[form];
    bool dense = form == MOEPAGE_FORM_DENSE;
    const mp_pack_storage right = {
        .form = form,
        .group = of->group,
        .stored = of->zstd ? MP_PACK_STORED_ZSTD : MP_PACK_STORED_PLAIN,
        .n_parts = dense ? 0 : model->info.expert_tensors,
        .n_records = (uint64_t)model->info.moe_layers * model->info.experts,
    };
    unsigned char head[MP_PACK_INDEX_HEAD_BYTES];
    mp_pack_index_head_encode(&right, head);
    bool grouped = of->group == 32 || of->group == 64 || of->group == 128;
    if (memcmp(head, of->index, sizeof head) != 0 || (of->zstd && !dense) ||
        (is_integer(form) ? !grouped : of->group != 0))
        return mp_fail(MOEPAGE_E_FORMAT,
                       "its head is not that of %llu images of %u parts: form %u, groups of %u, "
                       "stored as %u, %u parts, %llu images",
                       (unsigned long long)right.n_records, right.n_parts, mp_get32(of->index),
                       of->group, mp_get32(of->index + 8), mp_get32(of->index + 12),
                       (unsigned long long)mp_get64(of->index + 16));
    if (bytes != mp_pack_index_bytes(&right))
        return mp_fail(MOEPAGE_E_FORMAT, "it has %llu bytes, %llu images make it %llu",
                       (unsigned long long)bytes, (unsigned long long)right.n_records,
                       (unsigned long long)mp_pack_index_bytes(&right));
    return MOEPAGE_OK;
}

/* Returns true if a tensor's part can have this size in this form. */
static bool part_fits(const moepage_expert_tensor *tensor, uint32_t form, uint32_t group,
                      uint32_t size)
{
    uint64_t bytes = (uint64_t)(size & MP_PACK_PART_UNITS) * MP_PACK_PART_ALIGN;
    mp_quant_shape shape;
    bool quantised = mp_pack_quant_shape(tensor, form, group, &shape);
    if (size & MP_PACK_PART_RAW)
        return !quantised && bytes == mp_pack_round_up(tensor->bytes, MP_PACK_PART_ALIGN);
    if (form == MOEPAGE_FORM_EXPH)
        return bytes && bytes <= mp_exph_bound(tensor->dtype, mp_pack_elements(tensor));
    mp_quant_layout layout;
    return quantised && mp_quant_layout_of(&shape, &layout) && bytes == layout.bytes;
}

static moepage_status check_parts(const struct moepage_model *model, uint32_t layer, uint32_t form,
                                  const mp_pack_record *record)
{
    const mp_pack_form *of = &model->pack->forms[form];
    const moepage_expert_tensor *tensors = mp_model_layout(model, layer)->tensors;
    uint64_t total = 0;
    for (uint32_t i = 0; i < of->n_parts; i++) {
        uint32_t size = mp_get32(record->parts + 4 * i);
        if (!part_fits(&tensors[i], form, of->group, size))
            return mp_fail(MOEPAGE_E_FORMAT, "part %u of size %#x cannot hold the tensor", i, size);
        total += (uint64_t)(size & MP_PACK_PART_UNITS) * MP_PACK_PART_ALIGN;
    }
    for (uint32_t i = MP_PACK_RECORD_BYTES + 4 * of->n_parts; i < of->entry_bytes; i++)
        if (record->parts[i - MP_PACK_RECORD_BYTES])
            return mp_fail(MOEPAGE_E_FORMAT, "byte %u of its entry is not 0", i);
    if (total != record->bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "its parts have %llu bytes, its record %llu",
                       (unsigned long long)total, (unsigned long long)record->bytes);
    return MOEPAGE_OK;
}

/* Checks that a record starts where the preceding one ended, and ends within its section. */
static moepage_status check_record(const struct moepage_model *model, uint32_t layer, uint32_t form,
                                   const mp_pack_record *record, uint64_t at, uint64_t end)
{
    const mp_pack_form *of = &model->pack->forms[form];
    const uint64_t slot_bytes = mp_model_layout(model, layer)->slot_bytes;
    if (record->offset != at || !record->bytes || record->bytes > end - at ||
        mp_pack_round_up(record->bytes, MP_PACK_RECORD_ALIGN) > end - at)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%llu bytes at %llu: the record must start at %llu and end before %llu",
                       (unsigned long long)record->bytes, (unsigned long long)record->offset,
                       (unsigned long long)at, (unsigned long long)end);
    if (form != MOEPAGE_FORM_DENSE)
        return check_parts(model, layer, form, record);
    if (!of->zstd && record->bytes != slot_bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "its record has %llu bytes, a slot has %llu",
                       (unsigned long long)record->bytes, (unsigned long long)slot_bytes);
    return MOEPAGE_OK;
}

static void count_record(const struct moepage_model *model, uint32_t layer, mp_pack_form *of,
                         const mp_pack_record *record)
{
    uint64_t image = of->zstd ? mp_model_layout(model, layer)->slot_bytes : record->bytes;
    uint64_t first = record->offset - record->offset % MP_PACK_PAGE;
    uint64_t end = mp_pack_round_up(record->offset + record->bytes, MP_PACK_PAGE);
    of->stored_bytes += record->bytes;
    of->image_bytes += image;
    if (image > of->most_bytes)
        of->most_bytes = image;
    if (end - first > of->room)
        of->room = end - first;
}

static moepage_status check_records(struct moepage_model *model, uint32_t form,
                                    const mp_pack_section *data)
{
    mp_pack_form *of = &model->pack->forms[form];
    uint64_t n = (uint64_t)model->info.moe_layers * model->info.experts;
    uint64_t at = data->offset, end = data->offset + data->bytes;
    for (uint64_t key = 0; key < n; key++) {
        uint32_t layer = (uint32_t)(key / model->info.experts);
        mp_pack_record record = mp_pack_record_of(of, key);
        moepage_status status = check_record(model, layer, form, &record, at, end);
        if (status)
            return mp_fail_within(status, "layer %u, expert %u", layer,
                                  (uint32_t)(key % model->info.experts));
        count_record(model, layer, of, &record);
        at = mp_pack_round_up(at + record.bytes, MP_PACK_RECORD_ALIGN);
    }
    if (at != end)
        return mp_fail(MOEPAGE_E_FORMAT, "its records end at %llu, their section at %llu",
                       (unsigned long long)at, (unsigned long long)end);
    return MOEPAGE_OK;
}

moepage_status mp_pack_index_check(struct moepage_model *model, uint32_t form, uint64_t index_bytes,
                                   const mp_pack_section *data)
{
    mp_pack_form *of = &model->pack->forms[form];
    if (index_bytes < MP_PACK_INDEX_HEAD_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "it has %llu bytes, at least %d are needed",
                       (unsigned long long)index_bytes, MP_PACK_INDEX_HEAD_BYTES);
    of->group = mp_get32(of->index + 4);
    of->zstd = mp_get32(of->index + 8) == MP_PACK_STORED_ZSTD;
    of->n_parts = form == MOEPAGE_FORM_DENSE ? 0 : model->info.expert_tensors;
    of->entry_bytes = entry_bytes_of(of->n_parts);
    moepage_status status = check_head(model, form, index_bytes);
    if (!status)
        status = check_records(model, form, data);
    if (status)
        return status;
    uint64_t n = (uint64_t)model->info.moe_layers * model->info.experts;
    of->checked = mp_alloc_array((n + 31) / 32, sizeof *of->checked);
    if (!of->checked)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a set of %llu experts",
                       (unsigned long long)n);
    of->present = true;
    return MOEPAGE_OK;
}
