/* The SHAPE section of a .moepack file: the numbers of moepage_model_info, the tensors of an
 * expert, and the layers with experts. */
#include <string.h>

#include "base/alloc.h"
#include "base/floats.h"
#include "base/status.h"
#include "model/pack.h"
#include "model/pack_sections.h"
#include "model/shape.h"
#include "model/slot.h"

/* Offsets of the section's numbers. */
enum {
    AT_LAYERS = MP_PACK_NAME_BYTES,
    AT_MOE_LAYERS = 68,
    AT_EXPERTS = 72,
    AT_TOP_K = 76,
    AT_HIDDEN = 80,
    AT_INTERMEDIATE = 84,
    AT_SHARED = 88,
    AT_VOCABULARY = 92,
    AT_TENSORS = 96,
    AT_FLAGS = 100,
    AT_SCALE_DTYPE = 104,
    AT_SCALE_ROWS = 108,
    AT_SCALE_COLUMNS = 112,
    AT_RESERVED = 116,
    AT_SLOT_BYTES = 120
};

uint64_t mp_pack_shape_bytes(const struct moepage_model *model)
{
    return MP_PACK_SHAPE_BYTES + (uint64_t)model->info.expert_tensors * MP_PACK_SHAPE_TENSOR_BYTES +
           (uint64_t)model->info.moe_layers * 4 +
           (model->info.activation == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED ? MP_PACK_CLAMPED_BYTES
                                                                        : 0);
}

/* Other experts are paged only, whatever the reader. */
static uint32_t encode_flags(const struct moepage_model *model)
{
    const bool in_order = model->layouts[0].ffn.in_order;
    if (model->info.activation == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED)
        return MP_PACK_FLAG_CLAMPED | (in_order ? 0 : MP_PACK_FLAG_INTERLEAVED);
    return model->info.activation == MOEPAGE_ACTIVATION_SWIGLU && in_order ? MP_PACK_FLAG_SWIGLU
                                                                           : 0;
}

static void encode_tensor(const moepage_expert_tensor *tensor, unsigned char *out)
{
    mp_put32(out, tensor->role);
    mp_put32(out + 4, tensor->dtype);
    mp_put32(out + 8, tensor->rank);
    for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
        mp_put64(out + 16 + 8 * d, tensor->shape[d]);
    mp_put64(out + 48, tensor->bytes);
    mp_put64(out + 56, tensor->offset);
}

void mp_pack_shape_encode(const struct moepage_model *model, unsigned char *out)
{
    const moepage_model_info *info = &model->info;
    memset(out, 0, mp_pack_shape_bytes(model));
    strncpy((char *)out, info->architecture, MP_PACK_NAME_BYTES - 1);
    mp_put32(out + AT_LAYERS, info->layers);
    mp_put32(out + AT_MOE_LAYERS, info->moe_layers);
    mp_put32(out + AT_EXPERTS, info->experts);
    mp_put32(out + AT_TOP_K, info->top_k);
    mp_put32(out + AT_HIDDEN, info->hidden);
    mp_put32(out + AT_INTERMEDIATE, info->expert_intermediate);
    mp_put32(out + AT_SHARED, info->shared_experts);
    mp_put32(out + AT_VOCABULARY, info->vocabulary);
    mp_put32(out + AT_TENSORS, info->expert_tensors);
    mp_put32(out + AT_FLAGS, encode_flags(model));
    mp_put32(out + AT_SCALE_DTYPE, model->layouts[0].ffn.scale.dtype);
    mp_put32(out + AT_SCALE_ROWS, model->layouts[0].ffn.scale.rows);
    mp_put32(out + AT_SCALE_COLUMNS, model->layouts[0].ffn.scale.columns);
    mp_put64(out + AT_SLOT_BYTES, info->slot_bytes);
    unsigned char *at = out + MP_PACK_SHAPE_BYTES;
    for (uint32_t i = 0; i < info->expert_tensors; i++, at += MP_PACK_SHAPE_TENSOR_BYTES)
        encode_tensor(&model->layouts[0].tensors[i], at);
    for (uint32_t i = 0; i < info->moe_layers; i++, at += 4)
        mp_put32(at, (uint32_t)model->layer_of_moe[i]);
    if (info->activation == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED) {
        mp_put32(at, mp_bits_of(info->activation_alpha));
        mp_put32(at + 4, mp_bits_of(info->activation_limit));
    }
}

static moepage_status decode_name(const unsigned char *in, char *out)
{
    size_t n = strnlen((const char *)in, MP_PACK_NAME_BYTES);
    if (n == 0 || n == MP_PACK_NAME_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "the architecture has %s, it must have 1 to %d bytes",
                       n ? "no end" : "no name", MP_PACK_NAME_BYTES - 1);
    for (size_t i = n; i < MP_PACK_NAME_BYTES; i++)
        if (in[i])
            return mp_fail(MOEPAGE_E_FORMAT, "byte %zu, behind the architecture's name, is not 0",
                           i);
    memcpy(out, in, MP_PACK_NAME_BYTES);
    return MOEPAGE_OK;
}

static moepage_status decode_flags(uint32_t flags, struct moepage_model *model)
{
    const bool clamped = flags & MP_PACK_FLAG_CLAMPED, swiglu = flags & MP_PACK_FLAG_SWIGLU;
    const bool interleaved = flags & MP_PACK_FLAG_INTERLEAVED;
    if (flags & ~MP_PACK_FLAGS || (clamped && swiglu) || (interleaved && !clamped))
        return mp_fail(MOEPAGE_E_FORMAT, "flags are %#x: 0, %#x, %#x and %#x are known", flags,
                       MP_PACK_FLAG_SWIGLU, MP_PACK_FLAG_CLAMPED,
                       MP_PACK_FLAG_CLAMPED | MP_PACK_FLAG_INTERLEAVED);
    model->info.activation = clamped  ? MOEPAGE_ACTIVATION_SWIGLU_CLAMPED
                             : swiglu ? MOEPAGE_ACTIVATION_SWIGLU
                                      : MOEPAGE_ACTIVATION_OTHER;
    model->layouts[0].ffn.in_order = !interleaved;
    return MOEPAGE_OK;
}

/* Finds the operands, of the activation whose numbers end the section. */
static moepage_status decode_activation(const unsigned char *end, struct moepage_model *model)
{
    mp_activation of = {.kind = model->info.activation};
    if (of.kind == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED) {
        of.alpha = mp_float_of(mp_get32(end - 8));
        of.limit = mp_float_of(mp_get32(end - 4));
    }
    if (!mp_activation_is_sound(&of))
        return mp_fail(MOEPAGE_E_FORMAT, "the activation has alpha %g and limit %g",
                       (double)of.alpha, (double)of.limit);
    mp_slot_find_ffn(model, &of, model->layouts[0].ffn.in_order);
    return MOEPAGE_OK;
}

static moepage_status decode_numbers(const unsigned char *in, struct moepage_model *model)
{
    model->info = (moepage_model_info){
        .struct_size = sizeof model->info,
        .layers = mp_get32(in + AT_LAYERS),
        .moe_layers = mp_get32(in + AT_MOE_LAYERS),
        .experts = mp_get32(in + AT_EXPERTS),
        .top_k = mp_get32(in + AT_TOP_K),
        .hidden = mp_get32(in + AT_HIDDEN),
        .expert_intermediate = mp_get32(in + AT_INTERMEDIATE),
        .shared_experts = mp_get32(in + AT_SHARED),
        .vocabulary = mp_get32(in + AT_VOCABULARY),
        .expert_tensors = mp_get32(in + AT_TENSORS),
        .architecture = model->pack->architecture,
    };
    model->layouts[0].ffn.scale = (mp_block_scale){.dtype = mp_get32(in + AT_SCALE_DTYPE),
                                                   .rows = mp_get32(in + AT_SCALE_ROWS),
                                                   .columns = mp_get32(in + AT_SCALE_COLUMNS)};
    moepage_status status = decode_flags(mp_get32(in + AT_FLAGS), model);
    if (status)
        return status;
    if (mp_get32(in + AT_RESERVED))
        return mp_fail(MOEPAGE_E_FORMAT, "reserved is %#x, it must be 0",
                       mp_get32(in + AT_RESERVED));
    return mp_shape_check_counts(&model->info, MOEPAGE_E_FORMAT);
}

static moepage_status check_scale(const mp_block_scale *scale)
{
    bool none = scale->dtype == MOEPAGE_DTYPE_NONE;
    bool known = none || scale->dtype == MOEPAGE_DTYPE_F32 || scale->dtype == MOEPAGE_DTYPE_BF16;
    if (known && none == !scale->rows && none == !scale->columns)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "block scales are of dtype %u and cover %u x %u weights: they must be F32 or "
                   "BF16 and cover at least 1 x 1, or be all 0",
                   scale->dtype, scale->rows, scale->columns);
}

static moepage_status decode_tensors(const unsigned char *in, struct moepage_model *model)
{
    uint32_t n = model->info.expert_tensors;
    for (uint32_t i = 0; i < n; i++) {
        const unsigned char *at = in + (uint64_t)i * MP_PACK_SHAPE_TENSOR_BYTES;
        moepage_expert_tensor *tensor = &model->layouts[0].tensors[i];
        *tensor = (moepage_expert_tensor){.role = mp_get32(at),
                                          .dtype = mp_get32(at + 4),
                                          .rank = mp_get32(at + 8),
                                          .reserved = mp_get32(at + 12)};
        for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
            tensor->shape[d] = mp_get64(at + 16 + 8 * d);
    }
    return mp_shape_check_tensors(model->layouts[0].tensors, n, MOEPAGE_E_FORMAT);
}

/* Checks sizes and offsets against those that follow from the shapes: a writer that disagrees laid
 * out its images differently. */
static moepage_status check_layout(const unsigned char *in, struct moepage_model *model)
{
    mp_slot_whole_pieces(model);
    moepage_status status = mp_slot_layout(model, MOEPAGE_E_FORMAT);
    if (status)
        return status;
    for (uint32_t i = 0; i < model->n_pieces; i++) {
        const unsigned char *at =
            in + MP_PACK_SHAPE_BYTES + (uint64_t)i * MP_PACK_SHAPE_TENSOR_BYTES;
        if (mp_get64(at + 48) != model->layouts[0].tensors[i].bytes ||
            mp_get64(at + 56) != model->layouts[0].tensors[i].offset)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "tensor %u has %llu bytes at %llu of the slot, its shape makes it %llu "
                           "at %llu",
                           i, (unsigned long long)mp_get64(at + 48),
                           (unsigned long long)mp_get64(at + 56),
                           (unsigned long long)model->layouts[0].tensors[i].bytes,
                           (unsigned long long)model->layouts[0].tensors[i].offset);
    }
    if (mp_get64(in + AT_SLOT_BYTES) != model->info.slot_bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "a slot has %llu bytes, its tensors make it %llu",
                       (unsigned long long)mp_get64(in + AT_SLOT_BYTES),
                       (unsigned long long)model->info.slot_bytes);
    return MOEPAGE_OK;
}

static moepage_status decode_layers(const unsigned char *in, struct moepage_model *model)
{
    uint32_t n = model->info.moe_layers;
    model->layer_of_moe = mp_alloc_array(n, sizeof *model->layer_of_moe);
    if (!model->layer_of_moe)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers", n);
    for (uint32_t i = 0; i < n; i++)
        model->layer_of_moe[i] = (int32_t)mp_get32(in + (uint64_t)i * 4);
    return mp_shape_check_layers(&model->info, model->layer_of_moe, MOEPAGE_E_FORMAT);
}

moepage_status mp_pack_shape_decode(const unsigned char *section, uint64_t bytes,
                                    struct moepage_model *model)
{
    if (bytes < MP_PACK_SHAPE_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "it has %llu bytes, at least %d are needed",
                       (unsigned long long)bytes, MP_PACK_SHAPE_BYTES);
    moepage_status status = decode_name(section, model->pack->architecture);
    if (!status)
        status = decode_numbers(section, model);
    if (!status && bytes != mp_pack_shape_bytes(model))
        status = mp_fail(MOEPAGE_E_FORMAT, "it has %llu bytes, %u tensors and %u layers make %llu",
                         (unsigned long long)bytes, model->info.expert_tensors,
                         model->info.moe_layers, (unsigned long long)mp_pack_shape_bytes(model));
    if (!status)
        status = check_scale(&model->layouts[0].ffn.scale);
    if (!status)
        status = decode_tensors(section + MP_PACK_SHAPE_BYTES, model);
    if (!status)
        status = check_layout(section, model);
    if (!status)
        status =
            decode_layers(section + MP_PACK_SHAPE_BYTES +
                              (uint64_t)model->info.expert_tensors * MP_PACK_SHAPE_TENSOR_BYTES,
                          model);
    return status ? status : decode_activation(section + bytes, model);
}
