/* Models without weights: a slot's layout and the sizes of images, from a shape. */
#include "simulated/phantom.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/status.h"
#include "model/shape.h"
#include "model/slot.h"

#define PART_ALIGN 16u
#define SCALE_BLOCK 128u
#define GROUP 64u /* weights per scale, of the integer forms */

/* ---- the shape ---- */

static moepage_status check(const mp_phantom_shape *shape)
{
    if (!shape->name || !*shape->name ||
        strlen(shape->name) >= sizeof((mp_phantom *)0)->architecture)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the shape's name is %s, it must have 1 to %zu bytes",
                       !shape->name   ? "NULL"
                       : *shape->name ? "too long"
                                      : "empty",
                       sizeof((mp_phantom *)0)->architecture - 1);
    if (shape->dtype != MOEPAGE_DTYPE_BF16 && shape->dtype != MOEPAGE_DTYPE_F8_E4M3)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dtype is %u, it must be BF16 or F8_E4M3", shape->dtype);
    if (!(shape->exph_ratio >= 0 && shape->exph_ratio <= 1))
        return mp_fail(MOEPAGE_E_ARGUMENT, "exph_ratio is %g, it must be 0 to 1",
                       shape->exph_ratio);
    return MOEPAGE_OK;
}

static uint64_t blocks(uint64_t length)
{
    return (length + SCALE_BLOCK - 1) / SCALE_BLOCK;
}

static void add_tensor(struct moepage_model *model, uint32_t role, uint32_t dtype, uint64_t rows,
                       uint64_t columns)
{
    uint32_t t = model->info.expert_tensors++;
    model->layouts[0].tensors[t] =
        (moepage_expert_tensor){.role = role, .dtype = dtype, .rank = 2, .shape = {rows, columns}};
}

/* Adds an expert's tensors. FP8 weights have one scale per block; gate's rows and up's have
 * separate blocks. */
static void add_tensors(struct moepage_model *model, uint32_t dtype)
{
    const uint64_t h = model->info.hidden, i = model->info.expert_intermediate;
    if (dtype == MOEPAGE_DTYPE_BF16) {
        add_tensor(model, MOEPAGE_ROLE_GATE_UP, dtype, 2 * i, h);
        add_tensor(model, MOEPAGE_ROLE_DOWN, dtype, h, i);
        return;
    }
    add_tensor(model, MOEPAGE_ROLE_GATE, dtype, i, h);
    add_tensor(model, MOEPAGE_ROLE_UP, dtype, i, h);
    add_tensor(model, MOEPAGE_ROLE_DOWN, dtype, h, i);
    add_tensor(model, MOEPAGE_ROLE_GATE_SCALE, MOEPAGE_DTYPE_F32, blocks(i), blocks(h));
    add_tensor(model, MOEPAGE_ROLE_UP_SCALE, MOEPAGE_DTYPE_F32, blocks(i), blocks(h));
    add_tensor(model, MOEPAGE_ROLE_DOWN_SCALE, MOEPAGE_DTYPE_F32, blocks(h), blocks(i));
    model->layouts[0].ffn.scale.rows = model->layouts[0].ffn.scale.columns = SCALE_BLOCK;
}

static moepage_status lay_out(struct moepage_model *model, const mp_phantom_shape *shape)
{
    model->info = (moepage_model_info){
        .struct_size = sizeof model->info,
        .layers = shape->layers,
        .moe_layers = shape->moe_layers,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .hidden = shape->hidden,
        .expert_intermediate = shape->expert_intermediate,
    };
    add_tensors(model, shape->dtype);
    mp_slot_whole_pieces(model);
    moepage_status status = mp_shape_check_counts(&model->info, MOEPAGE_E_ARGUMENT);
    if (!status)
        status = mp_slot_layout(model, MOEPAGE_E_ARGUMENT);
    if (status)
        return status;
    mp_slot_find_ffn(model, &(mp_activation){0}, true);
    return MOEPAGE_OK;
}

/* Lists the MoE layers, which are the last ones. */
static moepage_status list_layers(struct moepage_model *model)
{
    const uint32_t moe = model->info.moe_layers, dense = model->info.layers - moe;
    model->layer_of_moe = mp_alloc_array(moe, sizeof *model->layer_of_moe);
    if (!model->layer_of_moe)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers", moe);
    for (uint32_t i = 0; i < moe; i++)
        model->layer_of_moe[i] = (int32_t)(dense + i);
    return MOEPAGE_OK;
}

/* ---- images ---- */

static bool has_form(const struct moepage_model *model, uint32_t form, double exph_ratio)
{
    if (mp_quant_bits_of(form))
        return model->layouts[0].tensors[0].dtype == MOEPAGE_DTYPE_BF16;
    return form == MOEPAGE_FORM_DENSE || (form == MOEPAGE_FORM_EXPH && exph_ratio > 0);
}

/* Scales are not coded. */
static bool is_coded(const moepage_expert_tensor *tensor)
{
    return tensor->dtype != MOEPAGE_DTYPE_F32;
}

static uint64_t part_bytes(uint32_t form, double exph_ratio, const moepage_expert_tensor *tensor)
{
    mp_quant_shape shape = {.rows = tensor->shape[0],
                            .columns = tensor->shape[1],
                            .bits = mp_quant_bits_of(form),
                            .group = GROUP};
    mp_quant_layout layout;
    if (shape.bits && mp_quant_layout_of(&shape, &layout))
        return layout.bytes;
    uint64_t bytes = tensor->bytes;
    if (is_coded(tensor))
        bytes = 1 + (uint64_t)((double)(tensor->bytes - 1) * exph_ratio);
    return (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

static void size_image(const struct moepage_model *model, uint32_t form, double exph_ratio,
                       mp_phantom_image *out)
{
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const moepage_expert_tensor *tensor = &model->layouts[0].tensors[t];
        out->parts[t] = (mp_image_part){
            .offset = out->bytes,
            .bytes = part_bytes(form, exph_ratio, tensor),
            .form = is_coded(tensor) ? form : MOEPAGE_FORM_DENSE,
        };
        out->bytes += out->parts[t].bytes;
    }
}

static void size_images(const struct moepage_model *model, double exph_ratio, mp_phantom *out)
{
    out->group = GROUP;
    out->images[MOEPAGE_FORM_DENSE].bytes = model->info.slot_bytes;
    for (uint32_t form = MOEPAGE_FORM_DENSE + 1; form < MP_FORMS; form++)
        if (has_form(model, form, exph_ratio))
            size_image(model, form, exph_ratio, &out->images[form]);
}

/* ---- life ---- */

/* Reserves addresses that fault: one place for all images, as long as the largest (EXPH images may
 * be padded past their slot). */
static moepage_status map_nothing(mp_phantom *phantom)
{
    uint64_t bytes = 0;
    for (uint32_t form = 0; form < MP_FORMS; form++)
        bytes = phantom->images[form].bytes > bytes ? phantom->images[form].bytes : bytes;
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%llu bytes of address space for a shape: %s",
                       (unsigned long long)bytes, mp_errno_text_of(errno).text);
    phantom->mapped = base;
    phantom->mapped_bytes = bytes;
    return MOEPAGE_OK;
}

static void close_phantom(struct moepage_model *model)
{
    mp_phantom *phantom = model->phantom;
    if (phantom->mapped)
        munmap(phantom->mapped, phantom->mapped_bytes);
    mp_free(phantom);
}

static moepage_status build(struct moepage_model *model, const mp_phantom_shape *shape)
{
    mp_phantom *phantom = mp_alloc(sizeof *phantom);
    if (!phantom)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a shape");
    model->phantom = phantom;
    model->close = close_phantom;
    memcpy(phantom->architecture, shape->name, strlen(shape->name) + 1);
    moepage_status status = lay_out(model, shape);
    if (!status)
        status = list_layers(model);
    if (!status)
        size_images(model, shape->exph_ratio, phantom);
    if (!status && !shape->cold)
        status = map_nothing(phantom);
    model->info.architecture = phantom->architecture;
    return status;
}

moepage_status mp_model_open_phantom(const mp_phantom_shape *shape, struct moepage_model **out)
{
    moepage_status status = check(shape);
    if (status)
        return status;
    struct moepage_model *model = mp_model_alloc();
    if (!model)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    status = build(model, shape);
    if (status) {
        mp_model_free(model);
        return status;
    }
    mp_handle_open(&model->handle, MP_KIND_MODEL);
    *out = model;
    return MOEPAGE_OK;
}
