/* Operands in images and in pieces. */
#include "session/operands.h"

#include <stddef.h>

#include "base/alloc.h"
#include "base/status.h"

/* Where each operand is found in a layout, and where it goes in a launch. */
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
static uint32_t tensor_at(const mp_layout *slot, uint32_t n_tensors, uint64_t offset)
{
    uint32_t t = 0;
    while (t + 1 < n_tensors && (offset < slot->tensors[t].offset ||
                                 offset - slot->tensors[t].offset >= slot->tensors[t].bytes))
        t++;
    return t;
}

/* An image's parts, for experts of one layout. */
typedef struct coded_image {
    const mp_layout *slot;
    uint32_t n_tensors;
    uint32_t form, group;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
} coded_image;

/* Moves a matrix from where it is in a slot to where its integers are in an image; false unless it is
 * quantised there. */
static bool find_integers(const coded_image *image, uint64_t from, uint64_t *packed,
                          uint64_t *scales)
{
    const uint32_t t = tensor_at(image->slot, image->n_tensors, from);
    const moepage_expert_tensor *tensor = &image->slot->tensors[t];
    const mp_quant_shape shape = {tensor->shape[0], tensor->shape[1], mp_quant_bits_of(image->form),
                                  image->group};
    mp_quant_layout layout;
    if (image->parts[t].form != image->form || tensor->rank != 2 ||
        !mp_quant_layout_of(&shape, &layout))
        return false;
    const uint64_t row = (from - tensor->offset) / (tensor->bytes / tensor->shape[0]);
    *packed = image->parts[t].offset + row * layout.row_bytes;
    *scales =
        image->parts[t].offset + layout.scale_offset + row * layout.row_groups * sizeof(uint16_t);
    return true;
}

/* What is raw in an image stays as it is. */
static uint64_t find_raw(const coded_image *image, uint64_t from)
{
    const uint32_t t = tensor_at(image->slot, image->n_tensors, from);
    if (from == UINT64_MAX)
        return from;
    return image->parts[t].form == MOEPAGE_FORM_DENSE
               ? image->parts[t].offset + from - image->slot->tensors[t].offset
               : UINT64_MAX;
}

/* The first layer with a layout: its experts' images are like those of all that have it. */
static uint32_t layer_with(const struct moepage_model *model, uint32_t layout)
{
    uint32_t layer = 0;
    while (mp_model_layout(model, layer) != &model->layouts[layout])
        layer++;
    return layer;
}

/* All three matrices are integers, or none is; the rest is raw. */
static mp_image_layout find_in_image(const struct moepage_model *model, uint32_t of, uint32_t form)
{
    const mp_ffn_layout *from = &model->layouts[of].ffn;
    mp_image_layout layout = {.ffn = *from, .form = MOEPAGE_FORM_DENSE};
    mp_ffn_layout *to = &layout.ffn;
    if (form == MOEPAGE_FORM_DENSE)
        return layout;
    if (!from->supported || !mp_model_has_form(model, form)) {
        to->supported = 0;
        return layout;
    }
    coded_image image = {.slot = &model->layouts[of],
                         .n_tensors = model->info.expert_tensors,
                         .form = form,
                         .group = mp_model_group(model, form)};
    mp_model_find_parts(model, layer_with(model, of), 0, form, image.parts);
    for (uint32_t o = 0; o < MP_OPERANDS; o++)
        *offset_in(to, o) = find_raw(&image, offset_of(from, o));
    const uint32_t n = find_integers(&image, from->gate, &to->gate, &to->gate_scale) +
                       find_integers(&image, from->up, &to->up, &to->up_scale) +
                       find_integers(&image, from->down, &to->down, &to->down_scale);
    if (n > 0) {
        layout.form = form;
        layout.group = image.group;
    }
    to->supported = n == 3 || (n == 0 && to->gate != UINT64_MAX && to->up != UINT64_MAX &&
                               to->down != UINT64_MAX);
    return layout;
}

/* ---- pieces ---- */

static uint64_t operand_bytes(const mp_layout *slot, uint32_t n_tensors, uint32_t operand)
{
    const moepage_expert_tensor *tensor =
        &slot->tensors[tensor_at(slot, n_tensors, offset_of(&slot->ffn, operand))];
    const bool fused = tensor->role == MOEPAGE_ROLE_GATE_UP ||
                       tensor->role == MOEPAGE_ROLE_GATE_UP_BIAS ||
                       tensor->role == MOEPAGE_ROLE_GATE_UP_SCALE;
    return fused ? tensor->bytes / 2 : tensor->bytes;
}

/* Each operand must be in one piece. */
static mp_piece_layout find_in_pieces(const struct moepage_model *model, const mp_layout *slot)
{
    mp_piece_layout layout = {.supported = model->sources && slot->ffn.supported};
    for (uint32_t o = 0; o < MP_OPERANDS && layout.supported; o++) {
        const uint64_t from = offset_of(&slot->ffn, o);
        layout.piece[o] = UINT32_MAX;
        if (from == UINT64_MAX)
            continue;
        const uint64_t bytes = operand_bytes(slot, model->info.expert_tensors, o);
        for (uint32_t p = 0; p < model->n_pieces; p++) {
            const mp_piece *piece = &slot->pieces[p];
            if (from < piece->slot_offset || from - piece->slot_offset >= piece->bytes ||
                piece->bytes - (from - piece->slot_offset) < bytes)
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

moepage_status mp_operands_open(const mp_pool_shape *shape, bool on_host, mp_operands *out)
{
    const struct moepage_model *model = shape->model;
    *out = (mp_operands){.of = mp_alloc_array(model->n_layouts, sizeof *out->of)};
    if (!out->of)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u layouts of experts",
                       model->n_layouts);
    add_lot(out, shape->slot_form, false);
    if (shape->precision)
        add_lot(out, shape->precision->lo_form, false);
    if (on_host)
        add_lot(out, shape->slot_form, true);
    for (uint32_t i = 0; i < model->n_layouts; i++) {
        for (uint32_t l = 0; l < out->n_lots; l++)
            out->of[i].images[out->lots[l].form] = find_in_image(model, i, out->lots[l].form);
        if (on_host)
            out->of[i].pieces = find_in_pieces(model, &model->layouts[i]);
    }
    return MOEPAGE_OK;
}

void mp_operands_close(mp_operands *operands)
{
    mp_free(operands->of);
}

const mp_layout_operands *mp_operands_of_layer(const mp_operands *operands,
                                               const struct moepage_model *model, uint32_t layer)
{
    return &operands->of[mp_model_layout(model, layer) - model->layouts];
}

moepage_status mp_operands_check(const mp_operands *operands, const struct moepage_model *model)
{
    for (uint32_t i = 0; i < model->n_layouts; i++)
        for (uint32_t l = 0; l < operands->n_lots; l++)
            if (!operands->of[i].images[operands->lots[l].form].ffn.supported)
                return mp_fail(
                    MOEPAGE_E_UNSUPPORTED,
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

void mp_operands_of(const mp_layout_operands *operands, const mp_pool_shape *shape,
                    const mp_hold *hold, mp_ffn_expert *out)
{
    if (hold->address)
        in_image(&operands->images[hold->form], hold->address, out);
    else
        in_pieces(&operands->pieces, shape, hold->key, out);
}
