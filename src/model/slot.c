/* Computes offsets inside a slot, and locates the SwiGLU operands among them. */
#include "model/slot.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/shape.h"

static bool place(moepage_expert_tensor *tensor, moepage_model_info *info)
{
    tensor->offset = info->slot_bytes;
    uint64_t end;
    if (!mp_shape_bytes(tensor->dtype, tensor->rank, tensor->shape, &tensor->bytes) ||
        __builtin_add_overflow(tensor->offset, tensor->bytes, &end) ||
        __builtin_add_overflow(end, MP_SLOT_ALIGN - 1, &end))
        return false;
    info->slot_bytes = end - end % MP_SLOT_ALIGN;
    info->expert_bytes += tensor->bytes;
    return true;
}

moepage_status mp_slot_layout(struct moepage_model *model, moepage_status refuse)
{
    moepage_model_info *info = &model->info;
    info->slot_bytes = info->expert_bytes = 0;
    for (uint32_t i = 0; i < info->expert_tensors; i++)
        if (!place(&model->tensors[i], info))
            return mp_fail(refuse, "expert tensor %u: the size of a slot overflows 64 bits", i);
    for (uint32_t i = 0; i < model->n_pieces; i++)
        model->pieces[i].slot_offset =
            model->tensors[model->pieces[i].tensor].offset + model->pieces[i].tensor_offset;
    uint64_t experts = (uint64_t)info->moe_layers * info->experts, slots;
    info->routed_bytes = experts * info->expert_bytes; /* cannot exceed the slots' bytes */
    if (__builtin_mul_overflow(experts, info->slot_bytes, &slots))
        return mp_fail(refuse, "%u layers of %u experts of %llu bytes: the total overflows 64 bits",
                       info->moe_layers, info->experts, (unsigned long long)info->slot_bytes);
    return MOEPAGE_OK;
}

void mp_slot_clear_padding(const struct moepage_model *model, unsigned char *slot)
{
    for (uint32_t i = 0; i < model->info.expert_tensors; i++) {
        uint64_t end = model->tensors[i].offset + model->tensors[i].bytes;
        uint64_t next = (end + MP_SLOT_ALIGN - 1) / MP_SLOT_ALIGN * MP_SLOT_ALIGN;
        memset(slot + end, 0, next - end);
    }
}

moepage_status mp_slot_alloc_sources(struct moepage_model *model)
{
    const moepage_model_info *info = &model->info;
    uint64_t experts = (uint64_t)info->moe_layers * info->experts;
    model->sources = mp_alloc_array(experts, model->n_pieces * sizeof *model->sources);
    if (!model->sources)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the places of %llu experts",
                       (unsigned long long)experts);
    return MOEPAGE_OK;
}

static const moepage_expert_tensor *of_role(const struct moepage_model *model, uint32_t role)
{
    for (uint32_t i = 0; i < model->info.expert_tensors; i++)
        if (model->tensors[i].role == role)
            return &model->tensors[i];
    return NULL;
}

/* One operand: a separate tensor, or half of a fused one. */
typedef struct operand {
    uint32_t role;
    uint32_t fused_role; /* NONE: never fused */
    uint32_t half;       /* which half of the fused tensor */
    uint64_t rows;       /* of the separate tensor */
    uint64_t columns;    /* 0 for a vector */
    uint64_t *offset;
} operand;

static bool has_shape(const moepage_expert_tensor *tensor, uint64_t rows, uint64_t columns)
{
    return tensor->shape[0] == rows && tensor->rank == (columns ? 2u : 1u) &&
           (columns == 0 || tensor->shape[1] == columns);
}

/* Locates an operand; returns false if its tensor exists but not in a form that the kernels
 * read. */
static bool find_operand(const struct moepage_model *model, const operand *of, uint32_t dtype)
{
    const moepage_expert_tensor *tensor = of_role(model, of->role);
    uint64_t rows = of->rows, skip = 0;
    if (!tensor && of->fused_role) {
        tensor = of_role(model, of->fused_role);
        skip = tensor ? of->half * (tensor->bytes / 2) : 0;
        rows *= 2;
    }
    *of->offset = tensor ? tensor->offset + skip : UINT64_MAX;
    return !tensor || (tensor->dtype == dtype && has_shape(tensor, rows, of->columns));
}

static bool find_operands(const struct moepage_model *model, const operand *operands, size_t n,
                          uint32_t dtype)
{
    bool readable = true;
    for (size_t i = 0; i < n; i++)
        readable &= find_operand(model, &operands[i], dtype);
    return readable;
}

#define FIND_OPERANDS(model, operands, dtype) \
    find_operands(model, operands, sizeof(operands) / sizeof *(operands), dtype)

/* ---- Block scales of FP8 weights ---- */

#define USUAL_BLOCK 128u

static bool has_scales(const struct moepage_model *model)
{
    return of_role(model, MOEPAGE_ROLE_GATE_UP_SCALE) || of_role(model, MOEPAGE_ROLE_GATE_SCALE) ||
           of_role(model, MOEPAGE_ROLE_UP_SCALE) || of_role(model, MOEPAGE_ROLE_DOWN_SCALE);
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
static void complete_scale(const struct moepage_model *model, mp_block_scale *scale)
{
    const uint64_t h = model->info.hidden, i = model->info.expert_intermediate;
    const moepage_expert_tensor *fused = of_role(model, MOEPAGE_ROLE_GATE_UP_SCALE);
    const moepage_expert_tensor *gate = fused ? fused : of_role(model, MOEPAGE_ROLE_GATE_SCALE);
    const moepage_expert_tensor *down = of_role(model, MOEPAGE_ROLE_DOWN_SCALE);
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
static bool find_scales(const struct moepage_model *model, mp_ffn_layout *ffn)
{
    ffn->gate_scale = ffn->up_scale = ffn->down_scale = UINT64_MAX;
    if (ffn->dtype != MOEPAGE_DTYPE_F8_E4M3)
        ffn->scale = (mp_block_scale){0};
    else
        complete_scale(model, &ffn->scale);
    if (ffn->scale.dtype == MOEPAGE_DTYPE_NONE)
        return false;
    const uint64_t h = model->info.hidden, i = model->info.expert_intermediate;
    const uint64_t rows = ffn->scale.rows, columns = ffn->scale.columns;
    const uint64_t h_rows = (h + rows - 1) / rows, i_rows = (i + rows - 1) / rows;
    const uint64_t h_columns = (h + columns - 1) / columns;
    const uint64_t i_columns = (i + columns - 1) / columns;
    const operand scales[] = {
        {MOEPAGE_ROLE_GATE_SCALE, MOEPAGE_ROLE_GATE_UP_SCALE, 0, i_rows, h_columns,
         &ffn->gate_scale},
        {MOEPAGE_ROLE_UP_SCALE, MOEPAGE_ROLE_GATE_UP_SCALE, 1, i_rows, h_columns, &ffn->up_scale},
        {MOEPAGE_ROLE_DOWN_SCALE, MOEPAGE_ROLE_NONE, 0, h_rows, i_columns, &ffn->down_scale},
    };
    return FIND_OPERANDS(model, scales, ffn->scale.dtype) && ffn->gate_scale != UINT64_MAX &&
           ffn->up_scale != UINT64_MAX && ffn->down_scale != UINT64_MAX;
}

/* ---- All operands ---- */

void mp_slot_find_ffn(struct moepage_model *model, bool swiglu)
{
    const uint64_t h = model->info.hidden, i = model->info.expert_intermediate;
    mp_ffn_layout *ffn = &model->ffn;
    const moepage_expert_tensor *down = of_role(model, MOEPAGE_ROLE_DOWN);
    ffn->swiglu = swiglu;
    ffn->dtype = down ? down->dtype : MOEPAGE_DTYPE_NONE;
    const operand matrices[] = {
        {MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_GATE_UP, 0, i, h, &ffn->gate},
        {MOEPAGE_ROLE_UP, MOEPAGE_ROLE_GATE_UP, 1, i, h, &ffn->up},
        {MOEPAGE_ROLE_DOWN, MOEPAGE_ROLE_NONE, 0, h, i, &ffn->down},
    };
    const operand biases[] = {
        {MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_ROLE_GATE_UP_BIAS, 0, i, 0, &ffn->gate_bias},
        {MOEPAGE_ROLE_UP_BIAS, MOEPAGE_ROLE_GATE_UP_BIAS, 1, i, 0, &ffn->up_bias},
        {MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_ROLE_NONE, 0, h, 0, &ffn->down_bias},
    };
    bool readable = FIND_OPERANDS(model, matrices, ffn->dtype);
    readable &= FIND_OPERANDS(model, biases, ffn->dtype);
    const bool scaled = find_scales(model, ffn);
    const bool complete =
        ffn->gate != UINT64_MAX && ffn->up != UINT64_MAX && ffn->down != UINT64_MAX;
    const bool biased =
        ffn->gate_bias != UINT64_MAX || ffn->up_bias != UINT64_MAX || ffn->down_bias != UINT64_MAX;
    const bool dense = ffn->dtype == MOEPAGE_DTYPE_F32 || ffn->dtype == MOEPAGE_DTYPE_F16 ||
                       ffn->dtype == MOEPAGE_DTYPE_BF16;
    ffn->supported =
        swiglu && readable && complete && (dense ? !has_scales(model) : scaled && !biased);
    model->info.ffn_supported = ffn->supported;
}
