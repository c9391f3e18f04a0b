/* Encodes an expert: verbatim, as a zstd frame of byte planes, exponent-coded, or quantised. */
#include "model/pack_encode.h"

#include <string.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/alloc.h"
#include "base/status.h"
#include "codec/exph.h"
#include "model/dtype.h"
#include "model/pack.h"
#include "model/planes.h"

#define MAX_COLUMNS (1u << 20)

static uint64_t raw_bytes(const moepage_expert_tensor *tensor)
{
    return mp_pack_round_up(tensor->bytes, MP_PACK_PART_ALIGN);
}

/* Returns the room needed to encode a tensor's part; 0 if an integer form cannot hold it. */
static uint64_t part_bound(const moepage_expert_tensor *tensor, uint32_t form, uint32_t group)
{
    uint64_t raw = raw_bytes(tensor);
    if (form == MOEPAGE_FORM_EXPH) {
        uint64_t coded = mp_exph_bound(tensor->dtype, mp_pack_elements(tensor));
        return coded > raw ? coded : raw;
    }
    mp_quant_shape shape;
    mp_quant_layout layout;
    if (mp_pack_quant_shape(tensor, form, group, &shape))
        return mp_quant_layout_of(&shape, &layout) ? layout.bytes : 0;
    return mp_pack_is_weight(tensor->role) ? 0 : raw;
}

/* Adds up the room for the parts of an expert of this layout. */
static moepage_status bound_parts(const mp_layout *layout, const mp_pack_storage *storage,
                                  uint64_t *bytes)
{
    *bytes = 0;
    for (uint32_t i = 0; i < storage->n_parts; i++) {
        const moepage_expert_tensor *tensor = &layout->tensors[i];
        uint64_t bound = part_bound(tensor, storage->form, storage->group);
        if (!bound)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "expert tensor %u is %s of rank %u: integer forms are made of matrices "
                           "of F32, F16 or BF16",
                           i, mp_dtype_name(tensor->dtype), tensor->rank);
        if (bound > (uint64_t)MP_PACK_PART_UNITS * MP_PACK_PART_ALIGN)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "expert tensor %u can take %llu bytes, a part of an image at most %llu",
                           i, (unsigned long long)bound,
                           (unsigned long long)MP_PACK_PART_UNITS * MP_PACK_PART_ALIGN);
        *bytes += bound;
    }
    return MOEPAGE_OK;
}

/* Gives room for the parts of any expert. */
static moepage_status bound_images(mp_pack_encoder *encoder)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t l = 0; !status && l < encoder->model->n_layouts; l++) {
        uint64_t bytes;
        status = bound_parts(&encoder->model->layouts[l], &encoder->storage, &bytes);
        if (!status && bytes > encoder->out_bytes)
            encoder->out_bytes = bytes;
    }
    return status;
}

moepage_status mp_pack_encoder_init(const struct moepage_model *model,
                                    const mp_pack_options *options, uint32_t form,
                                    mp_pack_encoder *out)
{
    bool dense = form == MOEPAGE_FORM_DENSE;
    bool zstd = dense && options->cold_level;
    *out = (mp_pack_encoder){
        .model = model,
        .storage = {.form = form,
                    .group = form >= MOEPAGE_FORM_INT8 ? options->group : 0,
                    .stored = zstd ? MP_PACK_STORED_ZSTD : MP_PACK_STORED_PLAIN,
                    .n_parts = dense ? 0 : model->info.expert_tensors,
                    .n_records = (uint64_t)model->info.moe_layers * model->info.experts},
        .level = options->cold_level,
        .search = options->search,
        .moments = options->moments,
        .moments_user = options->moments_user,
        .source_bytes = mp_model_image_room(model, MOEPAGE_FORM_DENSE),
    };
    if (zstd) {
        out->out_bytes = ZSTD_compressBound(model->info.expert_bytes);
        out->scratch_bytes = model->info.expert_bytes;
    }
    moepage_status status = dense ? MOEPAGE_OK : bound_images(out);
    if (out->out_bytes)
        out->out_bytes = mp_pack_round_up(out->out_bytes, MP_PACK_RECORD_ALIGN);
    return status;
}

moepage_status mp_pack_encode_read(const struct moepage_model *model, uint32_t layer,
                                   uint32_t expert, uint64_t source_bytes, mp_pack_encoded *item)
{
    mp_image image;
    uint64_t read_bytes;
    mp_model_find_image(model, layer, expert, MOEPAGE_FORM_DENSE, &image);
    item->layer = layer;
    item->expert = expert;
    item->layout = mp_model_layout(model, layer);
    item->slot = item->source + image.skew;
    return mp_model_read_image(model, layer, expert, MOEPAGE_FORM_DENSE, item->source, source_bytes,
                               &read_bytes);
}

uint32_t mp_pack_default_form(const struct moepage_model *model)
{
    for (uint32_t l = 0; l < model->n_layouts; l++)
        for (uint32_t i = 0; i < model->info.expert_tensors; i++) {
            const moepage_expert_tensor *tensor = &model->layouts[l].tensors[i];
            if (mp_pack_is_weight(tensor->role) && mp_exph_bound(tensor->dtype, 1))
                return MOEPAGE_FORM_EXPH;
        }
    return MOEPAGE_FORM_DENSE;
}

static moepage_status encode_zstd(const mp_pack_encoder *encoder, mp_pack_encoded *item)
{
    const uint64_t bytes = item->layout->expert_bytes;
    mp_planes_split(item->layout, encoder->model->info.expert_tensors, item->slot, item->scratch);
    size_t n = ZSTD_compress(item->out, encoder->out_bytes, item->scratch, bytes, encoder->level);
    if (ZSTD_isError(n))
        return mp_fail(ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation ? MOEPAGE_E_NO_MEMORY
                                                                            : MOEPAGE_E_STATE,
                       "zstd cannot compress %llu bytes at level %d: %s", (unsigned long long)bytes,
                       encoder->level, ZSTD_getErrorName(n));
    item->bytes = n;
    return MOEPAGE_OK;
}

static uint64_t put_raw(const moepage_expert_tensor *tensor, const unsigned char *in,
                        unsigned char *out)
{
    uint64_t n = raw_bytes(tensor);
    memcpy(out, in, tensor->bytes);
    memset(out + tensor->bytes, 0, n - tensor->bytes);
    return n;
}

/* Writes a tensor's coded part; keeps it raw if coding makes it no smaller, since raw parts need no
 * decoding. */
static uint64_t put_exph(const moepage_expert_tensor *tensor, const unsigned char *in,
                         unsigned char *out, bool *raw)
{
    uint64_t elements = mp_pack_elements(tensor), n = 0;
    if (mp_exph_bound(tensor->dtype, elements))
        n = mp_exph_encode(tensor->dtype, in, elements, out);
    *raw = n == 0 || n >= raw_bytes(tensor);
    return *raw ? put_raw(tensor, in, out) : n;
}

/* Rounds a matrix for inputs of the moments that the caller gives. */
static moepage_status quantise_calibrated(const mp_pack_encoder *encoder,
                                          const mp_pack_encoded *item, uint32_t tensor,
                                          const mp_quant_shape *shape, unsigned char *out)
{
    const moepage_expert_tensor *of = &item->layout->tensors[tensor];
    const uint64_t n = shape->columns;
    float *moments = n > MAX_COLUMNS ? NULL : mp_alloc_array(n * n, sizeof *moments);
    if (!moments)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the moments of %llu columns",
                       (unsigned long long)n);
    int32_t code = encoder->moments(encoder->moments_user, item->layer, item->expert, tensor,
                                    item->slot, n, moments);
    moepage_status status =
        code ? mp_fail(MOEPAGE_E_CALLBACK, "the moments callback returned %d", code)
             : mp_quant_encode_for(shape, of->dtype, item->slot + of->offset, (int)encoder->search,
                                   moments, out);
    mp_free(moments);
    return status;
}

static moepage_status quantise(const mp_pack_encoder *encoder, const mp_pack_encoded *item,
                               uint32_t tensor, const mp_quant_shape *shape, unsigned char *out)
{
    const moepage_expert_tensor *of = &item->layout->tensors[tensor];
    if (encoder->moments)
        return quantise_calibrated(encoder, item, tensor, shape, out);
    return mp_quant_encode(shape, of->dtype, item->slot + of->offset, (int)encoder->search, out);
}

static moepage_status encode_parts(const mp_pack_encoder *encoder, mp_pack_encoded *item)
{
    const mp_pack_storage *storage = &encoder->storage;
    item->bytes = item->n_raw = 0;
    for (uint32_t i = 0; i < storage->n_parts; i++) {
        const moepage_expert_tensor *tensor = &item->layout->tensors[i];
        const unsigned char *in = item->slot + tensor->offset;
        unsigned char *out = item->out + item->bytes;
        mp_quant_shape shape;
        mp_quant_layout layout;
        uint64_t n;
        bool raw = false;
        if (storage->form == MOEPAGE_FORM_EXPH) {
            n = put_exph(tensor, in, out, &raw);
            item->n_raw += raw;
        } else if (mp_pack_quant_shape(tensor, storage->form, storage->group, &shape)) {
            mp_quant_layout_of(&shape, &layout);
            n = layout.bytes;
            moepage_status status = quantise(encoder, item, i, &shape, out);
            if (status)
                return mp_fail_within(status, "tensor %u", i);
        } else {
            n = put_raw(tensor, in, out);
            raw = true;
        }
        item->parts[i] = (uint32_t)(n / MP_PACK_PART_ALIGN) | (raw ? MP_PACK_PART_RAW : 0);
        item->bytes += n;
    }
    return MOEPAGE_OK;
}

moepage_status mp_pack_encode(const mp_pack_encoder *encoder, mp_pack_encoded *item)
{
    moepage_status status = MOEPAGE_OK;
    item->record = item->out;
    if (encoder->storage.form != MOEPAGE_FORM_DENSE) {
        status = encode_parts(encoder, item);
    } else if (encoder->storage.stored == MP_PACK_STORED_ZSTD) {
        status = encode_zstd(encoder, item);
    } else {
        item->record = item->slot;
        item->bytes = item->layout->slot_bytes;
    }
    if (status)
        return status;
    uint64_t end = mp_pack_round_up(item->bytes, MP_PACK_RECORD_ALIGN);
    if (end > item->bytes)
        memset(item->out + item->bytes, 0, end - item->bytes);
    item->xxh3 = XXH3_64bits(item->record, end);
    return MOEPAGE_OK;
}
