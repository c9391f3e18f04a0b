/* The SHAPE section of a .moepack file: the numbers of moepage_model_info, the tensors of an
 * expert, and the layers with experts; where their types differ from layer to layer, also the layout of
 * each layer, and the layouts after the first; of a clamped activation, its numbers. */
#include <string.h>

#include "base/alloc.h"
#include "base/floats.h"
#include "base/status.h"
#include "model/pack.h"
#include "model/pack_sections.h"
#include "model/shape.h"
#include "model/slot.h"

#define QUOTED(value) #value
#define TEXT(macro) QUOTED(macro)

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
    AT_SCALE = 104,
    AT_LAYOUTS = 116, /* 0 where there is one */
    AT_SLOT_BYTES = 120
};

/* Offsets in the head of a further layout. */
enum { AT_OWN_SCALE = 0, AT_OWN_RESERVED = 12, AT_OWN_SLOT_BYTES = 16 };

static uint64_t tensors_bytes(const struct moepage_model *model)
{
    return (uint64_t)model->info.expert_tensors * MP_PACK_SHAPE_TENSOR_BYTES;
}

/* Returns the offset of the layout of each layer, which is the end of a file whose experts are alike. */
static uint64_t at_layout_of(const struct moepage_model *model)
{
    return MP_PACK_SHAPE_BYTES + tensors_bytes(model) + (uint64_t)model->info.moe_layers * 4;
}

/* Returns the offset of a layout after the first. */
static uint64_t at_further(const struct moepage_model *model, uint32_t l)
{
    return at_layout_of(model) + (uint64_t)model->info.moe_layers * 4 +
           (l - 1) * (MP_PACK_SHAPE_LAYOUT_BYTES + tensors_bytes(model));
}

uint64_t mp_pack_shape_bytes(const struct moepage_model *model)
{
    const bool clamped = model->info.activation == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED;
    return (model->n_layouts > 1 ? at_further(model, model->n_layouts) : at_layout_of(model)) +
           (clamped ? MP_PACK_CLAMPED_BYTES : 0);
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

static void encode_tensors(const struct moepage_model *model, uint32_t l, unsigned char *out)
{
    for (uint32_t i = 0; i < model->info.expert_tensors; i++)
        encode_tensor(&model->layouts[l].tensors[i],
                      out + (uint64_t)i * MP_PACK_SHAPE_TENSOR_BYTES);
}

static void encode_scale(const mp_block_scale *scale, unsigned char *out)
{
    mp_put32(out, scale->dtype);
    mp_put32(out + 4, scale->rows);
    mp_put32(out + 8, scale->columns);
}

static void encode_layouts(const struct moepage_model *model, unsigned char *out)
{
    mp_put32(out + AT_LAYOUTS, model->n_layouts);
    for (uint32_t i = 0; i < model->info.moe_layers; i++)
        mp_put32(out + at_layout_of(model) + (uint64_t)i * 4, model->layout_of[i]);
    for (uint32_t l = 1; l < model->n_layouts; l++) {
        unsigned char *head = out + at_further(model, l);
        encode_scale(&model->layouts[l].ffn.scale, head + AT_OWN_SCALE);
        mp_put64(head + AT_OWN_SLOT_BYTES, model->layouts[l].slot_bytes);
        encode_tensors(model, l, head + MP_PACK_SHAPE_LAYOUT_BYTES);
    }
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
    encode_scale(&model->layouts[0].ffn.scale, out + AT_SCALE);
    mp_put64(out + AT_SLOT_BYTES, model->layouts[0].slot_bytes);
    encode_tensors(model, 0, out + MP_PACK_SHAPE_BYTES);
    unsigned char *at = out + MP_PACK_SHAPE_BYTES + tensors_bytes(model);
    for (uint32_t i = 0; i < info->moe_layers; i++, at += 4)
        mp_put32(at, (uint32_t)model->layer_of_moe[i]);
    if (model->n_layouts > 1)
        encode_layouts(model, out);
    if (info->activation == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED) {
        at = out + mp_pack_shape_bytes(model) - MP_PACK_CLAMPED_BYTES;
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

/* Reads how many layouts there are: a number that only files of experts that differ have. */
static moepage_status decode_count(uint32_t count, uint32_t major, struct moepage_model *model)
{
    const bool mixed = major >= MP_PACK_MIXED;
    if (mixed ? count < 2 || count > MP_MAX_LAYOUTS : count != 0)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the number of layouts is %u, in format version %u it must be %s", count,
                       major, mixed ? "2 to " TEXT(MP_MAX_LAYOUTS) : "0");
    model->n_layouts = mixed ? count : 1;
    return MOEPAGE_OK;
}

static moepage_status decode_numbers(const unsigned char *in, uint32_t major,
                                     struct moepage_model *model)
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
    moepage_status status = decode_flags(mp_get32(in + AT_FLAGS), model);
    if (!status)
        status = decode_count(mp_get32(in + AT_LAYOUTS), major, model);
    return status ? status : mp_shape_check_counts(&model->info, MOEPAGE_E_FORMAT);
}

static moepage_status decode_scale(const unsigned char *in, mp_block_scale *scale)
{
    *scale = (mp_block_scale){.dtype = mp_get32(in),
                              .rows = mp_get32(in + 4),
                              .columns = mp_get32(in + 8)};
    bool none = scale->dtype == MOEPAGE_DTYPE_NONE;
    bool known = none || scale->dtype == MOEPAGE_DTYPE_F32 || scale->dtype == MOEPAGE_DTYPE_BF16;
    if (known && none == !scale->rows && none == !scale->columns)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "block scales are of dtype %u and cover %u x %u weights: they must be F32 or "
                   "BF16 and cover at least 1 x 1, or be all 0",
                   scale->dtype, scale->rows, scale->columns);
}

static moepage_status decode_tensors(const unsigned char *in, uint32_t l,
                                     struct moepage_model *model)
{
    uint32_t n = model->info.expert_tensors;
    for (uint32_t i = 0; i < n; i++) {
        const unsigned char *at = in + (uint64_t)i * MP_PACK_SHAPE_TENSOR_BYTES;
        moepage_expert_tensor *tensor = &model->layouts[l].tensors[i];
        *tensor = (moepage_expert_tensor){.role = mp_get32(at),
                                          .dtype = mp_get32(at + 4),
                                          .rank = mp_get32(at + 8),
                                          .reserved = mp_get32(at + 12)};
        for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
            tensor->shape[d] = mp_get64(at + 16 + 8 * d);
    }
    return mp_shape_check_tensors(model->layouts[l].tensors, n, MOEPAGE_E_FORMAT);
}

/* Only types differ from layout to layout. */
static moepage_status check_alike(const struct moepage_model *model, uint32_t l)
{
    const moepage_expert_tensor *first = model->layouts[0].tensors;
    const moepage_expert_tensor *own = model->layouts[l].tensors;
    for (uint32_t i = 0; i < model->info.expert_tensors; i++)
        if (own[i].role != first[i].role || own[i].rank != first[i].rank ||
            memcmp(own[i].shape, first[i].shape, sizeof own[i].shape) != 0)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "tensor %u has another role or shape than in the first layout", i);
    return MOEPAGE_OK;
}

/* Checks sizes and offsets against those that follow from the shapes: a writer that disagrees laid
 * out its images differently. */
static moepage_status check_places(const unsigned char *in, uint64_t slot_bytes, uint32_t l,
                                   const struct moepage_model *model)
{
    const mp_layout *layout = &model->layouts[l];
    for (uint32_t i = 0; i < model->n_pieces; i++) {
        const unsigned char *at = in + (uint64_t)i * MP_PACK_SHAPE_TENSOR_BYTES;
        if (mp_get64(at + 48) != layout->tensors[i].bytes ||
            mp_get64(at + 56) != layout->tensors[i].offset)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "tensor %u has %llu bytes at %llu of the slot, its shape makes it %llu "
                           "at %llu",
                           i, (unsigned long long)mp_get64(at + 48),
                           (unsigned long long)mp_get64(at + 56),
                           (unsigned long long)layout->tensors[i].bytes,
                           (unsigned long long)layout->tensors[i].offset);
    }
    if (slot_bytes != layout->slot_bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "a slot has %llu bytes, its tensors make it %llu",
                       (unsigned long long)slot_bytes, (unsigned long long)layout->slot_bytes);
    return MOEPAGE_OK;
}

static moepage_status decode_further(const unsigned char *in, uint32_t l,
                                     struct moepage_model *model)
{
    const unsigned char *head = in + at_further(model, l);
    moepage_status status = decode_scale(head + AT_OWN_SCALE, &model->layouts[l].ffn.scale);
    if (!status && mp_get32(head + AT_OWN_RESERVED))
        status = mp_fail(MOEPAGE_E_FORMAT, "reserved is %#x, it must be 0",
                         mp_get32(head + AT_OWN_RESERVED));
    if (!status)
        status = decode_tensors(head + MP_PACK_SHAPE_LAYOUT_BYTES, l, model);
    if (!status)
        status = check_alike(model, l);
    return status ? mp_fail_within(status, "layout %u", l) : MOEPAGE_OK;
}

/* Reads which layout each layer has: they are numbered in the order in which they appear. */
static moepage_status decode_layout_of(const unsigned char *in, struct moepage_model *model)
{
    const uint32_t n = model->info.moe_layers;
    uint32_t seen = 0;
    model->layout_of = mp_alloc_array(n, sizeof *model->layout_of);
    if (!model->layout_of)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers", n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t l = mp_get32(in + at_layout_of(model) + (uint64_t)i * 4);
        if (l > seen || l >= model->n_layouts)
            return mp_fail(
                MOEPAGE_E_FORMAT,
                "MoE layer %u has layout %u of %u, of which the layers before it have %u", i, l,
                model->n_layouts, seen);
        seen += l == seen;
        model->layout_of[i] = (uint8_t)l;
    }
    if (seen < model->n_layouts)
        return mp_fail(MOEPAGE_E_FORMAT, "no layer has layout %u of %u", seen, model->n_layouts);
    return MOEPAGE_OK;
}

static moepage_status decode_layouts(const unsigned char *in, struct moepage_model *model)
{
    moepage_status status = decode_scale(in + AT_SCALE, &model->layouts[0].ffn.scale);
    if (!status)
        status = decode_tensors(in + MP_PACK_SHAPE_BYTES, 0, model);
    for (uint32_t l = 1; !status && l < model->n_layouts; l++)
        status = decode_further(in, l, model);
    if (!status && model->n_layouts > 1)
        status = decode_layout_of(in, model);
    if (status)
        return status;
    mp_slot_whole_pieces(model);
    status = mp_slot_layout(model, MOEPAGE_E_FORMAT);
    if (!status)
        status = check_places(in + MP_PACK_SHAPE_BYTES, mp_get64(in + AT_SLOT_BYTES), 0, model);
    for (uint32_t l = 1; !status && l < model->n_layouts; l++) {
        const unsigned char *head = in + at_further(model, l);
        status = check_places(head + MP_PACK_SHAPE_LAYOUT_BYTES, mp_get64(head + AT_OWN_SLOT_BYTES),
                              l, model);
        if (status)
            mp_fail_within(status, "layout %u", l);
    }
    return status;
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

moepage_status mp_pack_shape_decode(const unsigned char *section, uint64_t bytes, uint32_t major,
                                    struct moepage_model *model)
{
    if (bytes < MP_PACK_SHAPE_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "it has %llu bytes, at least %d are needed",
                       (unsigned long long)bytes, MP_PACK_SHAPE_BYTES);
    moepage_status status = decode_name(section, model->pack->architecture);
    if (!status)
        status = decode_numbers(section, major, model);
    if (!status && bytes != mp_pack_shape_bytes(model))
        status =
            mp_fail(MOEPAGE_E_FORMAT,
                    "it has %llu bytes, %u tensors, %u layers and %u layouts make %llu",
                    (unsigned long long)bytes, model->info.expert_tensors, model->info.moe_layers,
                    model->n_layouts, (unsigned long long)mp_pack_shape_bytes(model));
    if (!status)
        status = decode_layouts(section, model);
    if (!status)
        status = decode_layers(section + MP_PACK_SHAPE_BYTES + tensors_bytes(model), model);
    return status ? status : decode_activation(section + bytes, model);
}
