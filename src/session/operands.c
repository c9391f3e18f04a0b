/* Operands in images and in pieces. */
#include "session/operands.h"

#include <stddef.h>

#include "base/status.h"

/* The operands, in a layout and in a launch. */
static const struct {
    size_t in_layout, in_expert;
} operands_of[MP_OPERANDS] = {
#define OPERAND(name)                                                \
    {                                                                \
        offsetof(mp_ffn_layout, name), offsetof(mp_ffn_expert, name) \
    }
    OPERAND(gate),       OPERAND(up),       OPERAND(down),
    OPERAND(gate_bias),  OPERAND(up_bias),  OPERAND(down_bias),
    OPERAND(gate_scale), OPERAND(up_scale), OPERAND(down_scale),
#undef OPERAND
};

static uint64_t *offset_in(mp_ffn_layout *layout, uint32_t operand)
{
    return (uint64_t *)(void *)((char *)layout + operands_of[operand].in_layout);
}

static uint64_t offset_of(const mp_ffn_layout *layout, uint32_t operand)
{
    return *(const uint64_t *)(const void *)((const char *)layout + operands_of[operand].in_layout);
}

static const void **operand_in(mp_ffn_expert *expert, uint32_t operand)
{
    return (const void **)(void *)((char *)expert + operands_of[operand].in_expert);
}

/* ---- images of integers ---- */

/* The tensor that a byte of a slot belongs to. */
static uint32_t tensor_at(const struct moepage_model *model, uint64_t offset)
{
    uint32_t t = 0;
    while (t + 1 < model->info.expert_tensors &&
           (offset < model->tensors[t].offset ||
            offset - model->tensors[t].offset >= model->tensors[t].bytes))
        t++;
    return t;
}

/* Moves a matrix from where it is in a slot to where its integers are in an image; false unless it is
 * quantised there. */
static bool find_integers(const struct moepage_model *model, const mp_image_part *parts,
                          uint32_t form, uint32_t group, uint64_t from, uint64_t *packed,
                          uint64_t *scales)
{
    const uint32_t t = tensor_at(model, from);
    const moepage_expert_tensor *tensor = &model->tensors[t];
    const mp_quant_shape shape = {tensor->shape[0], tensor->shape[1], mp_quant_bits_of(form),
                                  group};
    mp_quant_layout layout;
    if (parts[t].form != form || tensor->rank != 2 || !mp_quant_layout_of(&shape, &layout))
        return false;
    const uint64_t row = (from - tensor->offset) / (tensor->bytes / tensor->shape[0]);
    *packed = parts[t].offset + row * layout.row_bytes;
    *scales = parts[t].offset + layout.scale_offset + row * layout.row_groups * sizeof(uint16_t);
    return true;
}

/* What is raw in an image stays as it is. */
static uint64_t find_raw(const struct moepage_model *model, const mp_image_part *parts,
                         uint64_t from)
{
    const uint32_t t = tensor_at(model, from);
    if (from == UINT64_MAX)
        return from;
    return parts[t].form == MOEPAGE_FORM_DENSE ? parts[t].offset + from - model->tensors[t].offset
                                               : UINT64_MAX;
}

/* All three matrices are integers, or none is; the rest is raw. */
static mp_image_layout find_in_image(const struct moepage_model *model, uint32_t form)
{
    mp_image_layout layout = {.ffn = model->ffn, .form = MOEPAGE_FORM_DENSE};
    if (form == MOEPAGE_FORM_DENSE)
        return layout;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    const mp_ffn_layout *from = &model->ffn;
    mp_ffn_layout *to = &layout.ffn;
    if (!from->supported || !mp_model_has_form(model, form)) {
        to->supported = 0;
        return layout;
    }
    mp_model_find_parts(model, 0, 0, form, parts);
    for (uint32_t o = 0; o < MP_OPERANDS; o++)
        *offset_in(to, o) = find_raw(model, parts, offset_of(from, o));
    const uint32_t group = mp_model_group(model, form);
    const uint32_t n =
        find_integers(model, parts, form, group, from->gate, &to->gate, &to->gate_scale) +
        find_integers(model, parts, form, group, from->up, &to->up, &to->up_scale) +
        find_integers(model, parts, form, group, from->down, &to->down, &to->down_scale);
    if (n > 0) {
        layout.form = form;
        layout.group = group;
    }
    to->supported = n == 3 || (n == 0 && to->gate != UINT64_MAX && to->up != UINT64_MAX &&
                               to->down != UINT64_MAX);
    return layout;
}

/* ---- pieces ---- */

static uint64_t operand_bytes(const struct moepage_model *model, uint32_t operand)
{
    const moepage_expert_tensor *tensor =
        &model->tensors[tensor_at(model, offset_of(&model->ffn, operand))];
    const bool fused = tensor->role == MOEPAGE_ROLE_GATE_UP ||
                       tensor->role == MOEPAGE_ROLE_GATE_UP_BIAS ||
                       tensor->role == MOEPAGE_ROLE_GATE_UP_SCALE;
    return fused ? tensor->bytes / 2 : tensor->bytes;
}

/* Each operand must be in one piece. */
static mp_piece_layout find_in_pieces(const struct moepage_model *model)
{
    mp_piece_layout layout = {.supported = model->sources && model->ffn.supported};
    for (uint32_t o = 0; o < MP_OPERANDS && layout.supported; o++) {
        const uint64_t from = offset_of(&model->ffn, o);
        layout.piece[o] = UINT32_MAX;
        if (from == UINT64_MAX)
            continue;
        for (uint32_t p = 0; p < model->n_pieces; p++) {
            const mp_piece *piece = &model->pieces[p];
            if (from < piece->slot_offset || from - piece->slot_offset >= piece->bytes ||
                piece->bytes - (from - piece->slot_offset) < operand_bytes(model, o))
                continue;
            layout.piece[o] = p;
            layout.at[o] = from - piece->slot_offset;
        }
        layout.supported = layout.piece[o] != UINT32_MAX;
    }
    return layout;
}

/* ---- the whole ---- */

static void add_lot(mp_operands *operands, uint32_t form, bool on_host)
{
    operands->lots[operands->n_lots++] = (mp_lot){form, on_host};
}

void mp_operands_find(const mp_pool_shape *shape, bool on_host, mp_operands *out)
{
    *out = (mp_operands){0};
    add_lot(out, shape->slot_form, false);
    if (shape->precision)
        add_lot(out, shape->precision->lo_form, false);
    if (on_host)
        add_lot(out, MOEPAGE_FORM_DENSE, true);
    for (uint32_t l = 0; l < out->n_lots; l++)
        out->images[out->lots[l].form] = find_in_image(shape->model, out->lots[l].form);
    if (on_host)
        out->pieces = find_in_pieces(shape->model);
}

moepage_status mp_operands_check(const mp_operands *operands, const struct moepage_model *model)
{
    for (uint32_t l = 0; l < operands->n_lots; l++)
        if (!operands->images[operands->lots[l].form].ffn.supported)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "the experts of this %s model cannot be run in form %u by the library: "
                           "only some of their matrices are integers there",
                           model->info.architecture, operands->lots[l].form);
    return MOEPAGE_OK;
}

static void in_image(const mp_image_layout *layout, const unsigned char *image, mp_ffn_expert *out)
{
    for (uint32_t o = 0; o < MP_OPERANDS; o++) {
        const uint64_t offset = offset_of(&layout->ffn, o);
        *operand_in(out, o) = offset == UINT64_MAX ? NULL : image + offset;
    }
}

static void in_pieces(const mp_piece_layout *layout, const mp_pool_shape *shape, uint32_t key,
                      mp_ffn_expert *out)
{
    const struct moepage_model *model = shape->model;
    const void **sources =
        model->sources + mp_model_source_index(model, key / shape->experts, key % shape->experts);
    for (uint32_t o = 0; o < MP_OPERANDS; o++)
        *operand_in(out, o) =
            layout->piece[o] == UINT32_MAX
                ? NULL
                : (const unsigned char *)sources[layout->piece[o]] + layout->at[o];
}

void mp_operands_of(const mp_operands *operands, const mp_pool_shape *shape, const mp_hold *hold,
                    mp_ffn_expert *out)
{
    if (hold->address)
        in_image(&operands->images[hold->form], hold->address, out);
    else
        in_pieces(&operands->pieces, shape, hold->key, out);
}
