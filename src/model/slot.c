/* Offsets inside a slot, and where the SwiGLU operands are among them. */
#include "model/slot.h"

#include "base/alloc.h"
#include "base/status.h"
#include "model/dtype.h"

static bool tensor_bytes(const moepage_expert_tensor *tensor, uint64_t *out)
{
    *out = mp_dtype_bytes(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(*out, tensor->shape[i], out))
            return false;
    return true;
}

static bool place(moepage_expert_tensor *tensor, moepage_model_info *info)
{
    tensor->offset = info->slot_bytes;
    uint64_t end;
    if (!tensor_bytes(tensor, &tensor->bytes) ||
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
    uint64_t experts = (uint64_t)info->moe_layers * info->experts;
    if (__builtin_mul_overflow(experts, info->expert_bytes, &info->routed_bytes))
        return mp_fail(refuse, "%u layers of %u experts of %llu bytes: the total overflows 64 bits",
                       info->moe_layers, info->experts, (unsigned long long)info->expert_bytes);
    return MOEPAGE_OK;
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

/* One operand: a tensor of its own, or half of a fused one. */
typedef struct operand {
    uint32_t role;
    uint32_t fused_role; /* NONE: never fused */
    uint32_t half;       /* which half of the fused tensor */
    uint64_t rows;       /* of the tensor of its own */
    uint64_t columns;    /* 0: a vector */
    uint64_t *offset;
} operand;

static bool has_shape(const moepage_expert_tensor *tensor, uint64_t rows, uint64_t columns)
{
    return tensor->shape[0] == rows && tensor->rank == (columns ? 2u : 1u) &&
           (columns == 0 || tensor->shape[1] == columns);
}

/* False where there is such a tensor, but not as the kernels read it. */
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

static bool has_scales(const struct moepage_model *model)
{
    return of_role(model, MOEPAGE_ROLE_GATE_UP_SCALE) || of_role(model, MOEPAGE_ROLE_GATE_SCALE) ||
           of_role(model, MOEPAGE_ROLE_UP_SCALE) || of_role(model, MOEPAGE_ROLE_DOWN_SCALE);
}

void mp_slot_find_ffn(struct moepage_model *model, bool swiglu)
{
    uint64_t h = model->info.hidden, i = model->info.expert_intermediate;
    mp_ffn_layout *ffn = &model->ffn;
    const moepage_expert_tensor *down = of_role(model, MOEPAGE_ROLE_DOWN);
    ffn->dtype = down ? down->dtype : MOEPAGE_DTYPE_NONE;
    const operand operands[] = {
        {MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_GATE_UP, 0, i, h, &ffn->gate},
        {MOEPAGE_ROLE_UP, MOEPAGE_ROLE_GATE_UP, 1, i, h, &ffn->up},
        {MOEPAGE_ROLE_DOWN, MOEPAGE_ROLE_NONE, 0, h, i, &ffn->down},
        {MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_ROLE_GATE_UP_BIAS, 0, i, 0, &ffn->gate_bias},
        {MOEPAGE_ROLE_UP_BIAS, MOEPAGE_ROLE_GATE_UP_BIAS, 1, i, 0, &ffn->up_bias},
        {MOEPAGE_ROLE_DOWN_BIAS, MOEPAGE_ROLE_NONE, 0, h, 0, &ffn->down_bias},
    };
    bool readable = true;
    for (size_t o = 0; o < sizeof operands / sizeof *operands; o++)
        readable &= find_operand(model, &operands[o], ffn->dtype);
    bool complete = ffn->gate != UINT64_MAX && ffn->up != UINT64_MAX && ffn->down != UINT64_MAX;
    bool dense = ffn->dtype == MOEPAGE_DTYPE_F32 || ffn->dtype == MOEPAGE_DTYPE_F16 ||
                 ffn->dtype == MOEPAGE_DTYPE_BF16;
    ffn->supported = swiglu && readable && complete && dense && !has_scales(model);
    model->info.ffn_supported = ffn->supported;
}
