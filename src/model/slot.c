/* Computes offsets inside a slot, and locates the kernels' operands among them; keeps where each
 * expert's pieces come from. */
#include "model/slot.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "codec/blocks.h"
#include "model/dtype.h"
#include "model/shape.h"

/* ---- layouts ---- */

const mp_layout *mp_model_layout(const struct moepage_model *model, uint32_t layer)
{
    return &model->layouts[model->layout_of ? model->layout_of[layer] : 0];
}

static bool has_tensors(const mp_layout *layout, const moepage_expert_tensor *tensors, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (layout->tensors[i].role != tensors[i].role ||
            layout->tensors[i].dtype != tensors[i].dtype ||
            layout->tensors[i].rank != tensors[i].rank ||
            memcmp(layout->tensors[i].shape, tensors[i].shape, sizeof tensors[i].shape) != 0)
            return false;
    return true;
}

moepage_status mp_slot_choose_layout(struct moepage_model *model, uint32_t layer,
                                     const moepage_expert_tensor *tensors)
{
    const uint32_t n = model->info.expert_tensors;
    if (layer == 0) {
        model->n_layouts = 0;
        model->layout_of = mp_alloc_array(model->info.moe_layers, sizeof *model->layout_of);
    }
    if (!model->layout_of)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers",
                       model->info.moe_layers);
    uint32_t l = 0;
    while (l < model->n_layouts && !has_tensors(&model->layouts[l], tensors, n))
        l++;
    if (l == MP_MAX_LAYOUTS)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "MoE layer %u: its experts' types differ from those of %u kinds of layers before "
            "it, which is the most",
            layer, l);
    if (l == model->n_layouts) {
        memcpy(model->layouts[l].tensors, tensors, n * sizeof *tensors);
        model->n_layouts++;
    }
    model->layout_of[layer] = (uint8_t)l;
    return MOEPAGE_OK;
}

/* ---- places ---- */

static bool place(moepage_expert_tensor *tensor, mp_layout *layout)
{
    tensor->offset = layout->slot_bytes;
    uint64_t end;
    if (!mp_shape_bytes(tensor->dtype, tensor->rank, tensor->shape, &tensor->bytes) ||
        __builtin_add_overflow(tensor->offset, tensor->bytes, &end) ||
        __builtin_add_overflow(end, MP_SLOT_ALIGN - 1, &end))
        return false;
    layout->slot_bytes = end - end % MP_SLOT_ALIGN;
    layout->expert_bytes += tensor->bytes;
    return true;
}

static void place_pieces(mp_layout *layout, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_piece *piece = &layout->pieces[i];
        const moepage_expert_tensor *tensor = &layout->tensors[piece->tensor];
        piece->slot_offset = tensor->offset + piece->tensor_offset;
        if (!piece->bytes)
            piece->bytes = tensor->bytes;
    }
}

/* The experts of all layers, in slots of their own layouts; false if that overflows. */
static bool sum_layers(struct moepage_model *model)
{
    moepage_model_info *info = &model->info;
    uint64_t bytes, slots = 0;
    info->routed_bytes = 0;
    for (uint32_t layer = 0; layer < info->moe_layers; layer++) {
        const mp_layout *layout = mp_model_layout(model, layer);
        if (__builtin_mul_overflow(layout->slot_bytes, (uint64_t)info->experts, &bytes) ||
            __builtin_add_overflow(slots, bytes, &slots))
            return false;
        info->routed_bytes += info->experts * layout->expert_bytes; /* less than the slots */
    }
    return true;
}

moepage_status mp_slot_layout(struct moepage_model *model, moepage_status refuse)
{
    moepage_model_info *info = &model->info;
    info->slot_bytes = info->expert_bytes = 0;
    for (uint32_t l = 0; l < model->n_layouts; l++) {
        mp_layout *layout = &model->layouts[l];
        for (uint32_t i = 0; i < info->expert_tensors; i++)
            if (!place(&layout->tensors[i], layout))
                return mp_fail(refuse, "expert tensor %u: the size of a slot overflows 64 bits", i);
        place_pieces(layout, model->n_pieces);
        if (layout->slot_bytes > info->slot_bytes)
            info->slot_bytes = layout->slot_bytes;
        if (layout->expert_bytes > info->expert_bytes)
            info->expert_bytes = layout->expert_bytes;
    }
    info->layouts = model->n_layouts;
    if (!sum_layers(model))
        return mp_fail(refuse, "%u layers of %u experts of %llu bytes: the total overflows 64 bits",
                       info->moe_layers, info->experts, (unsigned long long)info->slot_bytes);
    return MOEPAGE_OK;
}

void mp_slot_whole_pieces(struct moepage_model *model)
{
    model->n_pieces = model->info.expert_tensors;
    for (uint32_t l = 0; l < model->n_layouts; l++)
        for (uint32_t i = 0; i < model->n_pieces; i++)
            model->layouts[l].pieces[i] = (mp_piece){.tensor = i};
}

void mp_slot_clear_padding(const mp_layout *layout, uint32_t n_tensors, unsigned char *slot)
{
    for (uint32_t i = 0; i < n_tensors; i++) {
        uint64_t end = layout->tensors[i].offset + layout->tensors[i].bytes;
        uint64_t next = (end + MP_SLOT_ALIGN - 1) / MP_SLOT_ALIGN * MP_SLOT_ALIGN;
        memset(slot + end, 0, next - end);
    }
}

/* ---- places of pieces ---- */

uint64_t mp_model_source_index(const struct moepage_model *model, uint32_t layer, uint32_t expert)
{
    return ((uint64_t)layer * model->info.experts + expert) * model->n_pieces;
}

mp_file_span *mp_model_spans(const struct moepage_model *model, uint32_t layer, uint32_t expert)
{
    return model->spans + ((uint64_t)layer * model->info.experts + expert) * model->n_spans;
}

static moepage_status no_memory_for_places(uint64_t experts)
{
    return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the places of %llu experts",
                   (unsigned long long)experts);
}

moepage_status mp_slot_alloc_sources(struct moepage_model *model)
{
    const moepage_model_info *info = &model->info;
    uint64_t experts = (uint64_t)info->moe_layers * info->experts;
    model->sources = mp_alloc_array(experts, model->n_pieces * sizeof *model->sources);
    return model->sources ? MOEPAGE_OK : no_memory_for_places(experts);
}

/* Numbers the spans of a layout's pieces; an expert has room for those of any layout. */
static void number_spans(struct moepage_model *model, mp_layout *layout, uint64_t *room)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < model->n_pieces; i++) {
        mp_piece *piece = &layout->pieces[i];
        piece->span = n;
        n += piece->how.kind ? piece->how.n_sources : 1;
        const uint64_t needed = piece->how.kind ? mp_repack_room(&piece->how) : 0;
        *room = needed > *room ? needed : *room;
    }
    model->n_spans = n > model->n_spans ? n : model->n_spans;
}

moepage_status mp_slot_alloc_spans(struct moepage_model *model)
{
    const moepage_model_info *info = &model->info;
    const uint64_t experts = (uint64_t)info->moe_layers * info->experts;
    uint64_t room = 0;
    model->n_spans = 0;
    for (uint32_t l = 0; l < model->n_layouts; l++)
        number_spans(model, &model->layouts[l], &room);
    model->spans = mp_alloc_array(experts, model->n_spans * sizeof *model->spans);
    if (!model->spans)
        return no_memory_for_places(experts);
    return room ? mp_repack_rooms_create(room, &model->rooms) : MOEPAGE_OK;
}

/* ---- operands ---- */

/* The experts of one layout. */
typedef struct laid_out {
    const moepage_model_info *info;
    mp_layout *layout;
} laid_out;

static const moepage_expert_tensor *of_role(const laid_out *of, uint32_t role)
{
    for (uint32_t i = 0; i < of->info->expert_tensors; i++)
        if (of->layout->tensors[i].role == role)
            return &of->layout->tensors[i];
    return NULL;
}

/* Gate, up and down: their weights, their biases or their scales. */
#define MP_OPERAND_SET 3

/* One operand: a separate tensor, or half of a fused one. */
typedef struct operand {
    uint32_t role;
    uint32_t fused_role; /* NONE: never fused */
    uint32_t half;       /* which half of the fused tensor */
    uint64_t rows;       /* of the separate tensor */
    uint64_t columns;    /* 0 for a vector */
    uint64_t *offset;
    uint32_t *dtype; /* NONE where there is no such tensor */
} operand;

static bool has_shape(const moepage_expert_tensor *tensor, uint64_t rows, uint64_t columns)
{
    return tensor->shape[0] == rows && tensor->rank == (columns ? 2u : 1u) &&
           (columns == 0 || tensor->shape[1] == columns);
}

/* Locates an operand; returns false if its tensor exists, but in another shape. */
static bool find_operand(const laid_out *experts, const operand *of)
{
    const moepage_expert_tensor *tensor = of_role(experts, of->role);
    uint64_t rows = of->rows, skip = 0;
    if (!tensor && of->fused_role) {
        tensor = of_role(experts, of->fused_role);
        skip = tensor ? of->half * (tensor->bytes / 2) : 0;
        rows *= 2;
    }
    *of->offset = tensor ? tensor->offset + skip : UINT64_MAX;
    *of->dtype = tensor ? tensor->dtype : MOEPAGE_DTYPE_NONE;
    return !tensor || has_shape(tensor, rows, of->columns);
}

static bool find_operands(const laid_out *experts, const operand operands[MP_OPERAND_SET])
{
    bool readable = true;
    for (uint32_t i = 0; i < MP_OPERAND_SET; i++)
        readable &= find_operand(experts, &operands[i]);
    return readable;
}

/* ---- Block scales of FP8 weights ---- */

#define USUAL_BLOCK 128u

static bool has_scales(const laid_out *experts)
{
    return of_role(experts, MOEPAGE_ROLE_GATE_UP_SCALE) ||
           of_role(experts, MOEPAGE_ROLE_GATE_SCALE) || of_role(experts, MOEPAGE_ROLE_UP_SCALE) ||
           of_role(experts, MOEPAGE_ROLE_DOWN_SCALE);
}

static bool is_cut(uint64_t length, uint64_t block, uint64_t blocks)
{
    return (length + block - 1) / block == blocks;
}

/* One side of all blocks: two matrices have lengths a and b along it. */
typedef struct side {
    uint64_t a, a_blocks;
    uint64_t b, b_blocks;
    bool whole; /* only a block size that divides a is valid */
} side;

static bool is_side(const side *of, uint32_t block)
{
    return is_cut(of->a, block, of->a_blocks) && is_cut(of->b, block, of->b_blocks) &&
           !(of->whole && of->a % block);
}

/* Returns the power of two that cuts both lengths accordingly, or 0. Several fit only if one block
 * covers both lengths, and then they are equivalent. */
static uint32_t deduce_block(const side *of)
{
    if (is_side(of, USUAL_BLOCK))
        return USUAL_BLOCK;
    for (uint32_t power = 0; power < 32; power++)
        if (is_side(of, 1u << power))
            return 1u << power;
    return 0;
}

/* If the source does not state a block size, deduces it from the scales' shapes. In a fused tensor
 * a block must then begin at up's first row; otherwise the shapes would be ambiguous. */
static void complete_scale(const laid_out *experts, mp_block_scale *scale)
{
    const uint64_t h = experts->info->hidden, i = experts->info->expert_intermediate;
    const moepage_expert_tensor *fused = of_role(experts, MOEPAGE_ROLE_GATE_UP_SCALE);
    const moepage_expert_tensor *gate = fused ? fused : of_role(experts, MOEPAGE_ROLE_GATE_SCALE);
    const moepage_expert_tensor *down = of_role(experts, MOEPAGE_ROLE_DOWN_SCALE);
    if (!gate || !down) {
        *scale = (mp_block_scale){0};
        return;
    }
    if (!scale->rows || !scale->columns) {
        const side rows = {i, gate->shape[0] / (fused ? 2 : 1), h, down->shape[0], fused};
        const side columns = {h, gate->shape[1], i, down->shape[1], false};
        scale->rows = deduce_block(&rows);
        scale->columns = deduce_block(&columns);
    }
    scale->dtype = down->dtype;
    if (!scale->rows || !scale->columns ||
        (down->dtype != MOEPAGE_DTYPE_F32 && down->dtype != MOEPAGE_DTYPE_BF16))
        *scale = (mp_block_scale){0};
}

/* Locates the scales; returns false unless every matrix has scales that the kernels can read. */
static bool find_scales(const laid_out *experts, mp_ffn_layout *ffn)
{
    ffn->gate_scale = ffn->up_scale = ffn->down_scale = UINT64_MAX;
    if (mp_ffn_dtype(ffn) != MOEPAGE_DTYPE_F8_E4M3)
        ffn->scale = (mp_block_scale){0};
    else
        complete_scale(experts, &ffn->scale);
    if (ffn->scale.dtype == MOEPAGE_DTYPE_NONE)
        return false;
    const uint64_t h = experts->info->hidden, i = experts->info->expert_intermediate;
    const uint64_t rows = ffn->scale.rows, columns = ffn->scale.columns;
    const uint64_t h_rows = (h + rows - 1) / rows, i_rows = (i + rows - 1) / rows;
    const uint64_t h_columns = (h + columns - 1) / columns;
    const uint64_t i_columns = (i + columns - 1) / columns;
    uint32_t dtypes[MP_OPERAND_SET];
    const operand scales[MP_OPERAND_SET] = {
        {MOEPAGE_ROLE_GATE_SCALE, MOEPAGE_ROLE_GATE_UP_SCALE, 0, i_rows, h_columns,
         &ffn->gate_scale, &dtypes[0]},
        {MOEPAGE_ROLE_UP_SCALE, MOEPAGE_ROLE_GATE_UP_SCALE, 1, i_rows, h_columns, &ffn->up_scale,
         &dtypes[1]},
        {MOEPAGE_ROLE_DOWN_SCALE, MOEPAGE_ROLE_NONE, 0, h_rows, i_columns, &ffn->down_scale,
         &dtypes[2]},
    };
    bool readable = find_operands(experts, scales);
    for (uint32_t d = 0; d < MP_OPERAND_SET; d++)
        readable &= dtypes[d] == ffn->scale.dtype; /* there is one */
    return readable;
}

/* ---- All operands ---- */

/* Locates the weights; returns false unless all three are there, in types that need no scales. */
static bool find_weights(const laid_out *experts, mp_ffn_layout *ffn, bool *readable)
{
    const uint64_t h = experts->info->hidden, i = experts->info->expert_intermediate;
    const operand weights[MP_OPERAND_SET] = {
        {MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_GATE_UP, 0, i, h, &ffn->gate, &ffn->gate_dtype},
        {MOEPAGE_ROLE_UP, MOEPAGE_ROLE_GATE_UP, 1, i, h, &ffn->up, &ffn->up_dtype},
        {MOEPAGE_ROLE_DOWN, MOEPAGE_ROLE_NONE, 0, h, i, &ffn->down, &ffn->down_dtype},
    };
    *readable = find_operands(experts, weights);
    bool plain = true;
    for (uint32_t m = 0; m < MP_OPERAND_SET; m++)
        plain &= mp_dtype_is_float(*weights[m].dtype) || mp_block_format_of(*weights[m].dtype);
    return plain;
}

/* Locates the biases; returns false unless those that there are have one type. */
static bool find_biases(const laid_out *experts, mp_ffn_layout *ffn, bool *any)
{
    const uint64_t h = experts->info->hidden, i = experts->info->expert_intermediate;
    uint32_t dtypes[MP_OPERAND_SET];
    const operand biases[MP_OPERAND_SET] = {
        {MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_ROLE_GATE_UP_BIAS, 0, i, 0, &ffn->gate_bias, &dtypes[0]},
        {MOEPAGE_ROLE_UP_BIAS, MOEPAGE_ROLE_GATE_UP_BIAS, 1, i, 0, &ffn->up_bias, &dtypes[1]},
        {MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_ROLE_NONE, 0, h, 0, &ffn->down_bias, &dtypes[2]},
    };
    bool readable = find_operands(experts, biases);
    ffn->bias_dtype = MOEPAGE_DTYPE_NONE;
    for (uint32_t b = 0; b < MP_OPERAND_SET; b++) {
        if (!dtypes[b])
            continue;
        readable &=
            mp_dtype_is_float(dtypes[b]) && (!ffn->bias_dtype || ffn->bias_dtype == dtypes[b]);
        ffn->bias_dtype = dtypes[b];
    }
    *any = ffn->bias_dtype != MOEPAGE_DTYPE_NONE;
    return readable;
}

static void find_ffn(const laid_out *experts, bool in_order)
{
    mp_ffn_layout *ffn = &experts->layout->ffn;
    bool shaped, biased;
    ffn->in_order = in_order;
    const bool plain = find_weights(experts, ffn, &shaped);
    const bool right_biases = find_biases(experts, ffn, &biased);
    const bool scaled = find_scales(experts, ffn);
    const bool complete =
        ffn->gate != UINT64_MAX && ffn->up != UINT64_MAX && ffn->down != UINT64_MAX;
    ffn->supported = in_order && experts->info->activation != MOEPAGE_ACTIVATION_OTHER && shaped &&
                     complete && right_biases && (plain ? !has_scales(experts) : scaled && !biased);
}

void mp_slot_find_ffn(struct moepage_model *model, const mp_activation *activation, bool in_order)
{
    model->info.activation = activation->kind;
    model->info.activation_alpha = activation->alpha;
    model->info.activation_limit = activation->limit;
    model->info.ffn_supported = 1;
    for (uint32_t l = 0; l < model->n_layouts; l++) {
        find_ffn(&(laid_out){&model->info, &model->layouts[l]}, in_order);
        model->info.ffn_supported &= model->layouts[l].ffn.supported;
    }
}
