/* Finds the experts of a GGUF model: which tensors make up the slots of which layer.
 *
 * A tensor holds one part of all experts of a layer, one expert after the other. Its type may differ
 * from layer to layer: each mixture of types is one of the model's layouts. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/dtype.h"
#include "model/gguf_model.h"
#include "model/shape.h"
#include "model/slot.h"

/* A length in terms of the config; NONE: the part has no such dimension. */
typedef enum length { NONE, OF_H, OF_I, OF_2I } length;

typedef struct part {
    uint32_t role;
    const char *name; /* after "blk.{L}." */
    length rows, columns;
} part;

static const part all_parts[] = {
    {MOEPAGE_ROLE_GATE_UP, "ffn_gate_up_exps.weight", OF_2I, OF_H},
    {MOEPAGE_ROLE_GATE, "ffn_gate_exps.weight", OF_I, OF_H},
    {MOEPAGE_ROLE_UP, "ffn_up_exps.weight", OF_I, OF_H},
    {MOEPAGE_ROLE_DOWN, "ffn_down_exps.weight", OF_H, OF_I},
    {MOEPAGE_ROLE_GATE_UP_BIAS, "ffn_gate_up_exps.bias", OF_2I, NONE},
    {MOEPAGE_ROLE_GATE_BIAS, "ffn_gate_exps.bias", OF_I, NONE},
    {MOEPAGE_ROLE_UP_BIAS, "ffn_up_exps.bias", OF_I, NONE},
    {MOEPAGE_ROLE_DOWN_BIAS, "ffn_down_exps.bias", OF_H, NONE},
};

#define N_ALL (sizeof all_parts / sizeof *all_parts)

typedef struct binding {
    const mp_gguf_config *config;
    mp_gguf *gguf;
    struct moepage_model *model;
    const part *parts[N_ALL]; /* [n_parts] that the first layer with experts has */
    uint32_t n_parts;
    mp_gguf_tensor **found; /* [moe_layers][n_parts] */
} binding;

mp_gguf_name mp_gguf_name_of(uint32_t layer, const char *rest)
{
    mp_gguf_name name;
    snprintf(name.text, sizeof name.text, "blk.%u.%s", layer, rest);
    return name;
}

/* ---- Shapes ---- */

moepage_status mp_gguf_shape_check(const mp_gguf_tensor *tensor, const uint64_t *shape,
                                   uint32_t rank)
{
    if (tensor->rank == rank && memcmp(tensor->shape, shape, rank * sizeof *shape) == 0)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "%.120s: tensor \"%.120s\" has dimensions %s, the metadata makes them %s",
                   tensor->file->file.name, tensor->name,
                   mp_shape_show(tensor->shape, tensor->rank).text,
                   mp_shape_show(shape, rank).text);
}

static uint64_t length_of(const mp_gguf_config *config, length of)
{
    switch (of) {
    case NONE: return 0;
    case OF_H: return config->hidden;
    case OF_I: return config->intermediate;
    case OF_2I: return 2 * (uint64_t)config->intermediate;
    }
    return 0;
}

/* ---- The parts of an expert ---- */

static bool has_role(const binding *b, uint32_t role)
{
    for (uint32_t p = 0; p < b->n_parts; p++)
        if (b->parts[p]->role == role)
            return true;
    return false;
}

static bool has_name(const binding *b, const char *name)
{
    for (uint32_t p = 0; p < b->n_parts; p++)
        if (strcmp(b->parts[p]->name, name) == 0)
            return true;
    return false;
}

/* Checks that gate and up are either in one tensor or apart. */
static moepage_status check_fusion(const binding *b, uint32_t fused, uint32_t gate, uint32_t up)
{
    if (!has_role(b, fused) || !(has_role(b, gate) || has_role(b, up)))
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "layer %u has gate and up of its experts in one tensor and apart as well",
                   b->config->first_moe);
}

/* Checks that the parts make an expert: gate and up, each alone or both in one, and down. */
static moepage_status check_parts(const binding *b)
{
    static const char *const needed[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                         "ffn_down_exps.weight"};
    const uint32_t layer = b->config->first_moe;
    for (size_t i = has_role(b, MOEPAGE_ROLE_GATE_UP) ? 2 : 0; i < 3; i++)
        if (!has_name(b, needed[i]))
            return mp_fail(MOEPAGE_E_NOT_FOUND,
                           "no tensor \"%s\": %s layer %u has routed experts by the metadata",
                           mp_gguf_name_of(layer, needed[i]).text, b->config->architecture->name,
                           layer);
    moepage_status status =
        check_fusion(b, MOEPAGE_ROLE_GATE_UP, MOEPAGE_ROLE_GATE, MOEPAGE_ROLE_UP);
    return status ? status
                  : check_fusion(b, MOEPAGE_ROLE_GATE_UP_BIAS, MOEPAGE_ROLE_GATE_BIAS,
                                 MOEPAGE_ROLE_UP_BIAS);
}

static moepage_status find_parts(binding *b)
{
    for (size_t i = 0; i < N_ALL; i++)
        if (mp_gguf_find(b->gguf, mp_gguf_name_of(b->config->first_moe, all_parts[i].name).text))
            b->parts[b->n_parts++] = &all_parts[i];
    b->model->info.expert_tensors = b->n_parts;
    moepage_status status = check_parts(b);
    return status ? mp_fail_within(status, "%.200s", b->gguf->files[0]->file.name) : MOEPAGE_OK;
}

/* Finds a part of one layer and checks that it holds all experts, in a type that is known. */
static moepage_status find_part(const binding *b, uint32_t layer, const part *of,
                                mp_gguf_tensor **out)
{
    moepage_status status = mp_gguf_require(b->gguf, mp_gguf_name_of(layer, of->name).text, out);
    if (status)
        return status;
    uint64_t shape[3];
    uint32_t rank = 0;
    if (of->columns)
        shape[rank++] = length_of(b->config, of->columns);
    shape[rank++] = length_of(b->config, of->rows);
    shape[rank++] = b->config->experts;
    status = mp_gguf_shape_check(*out, shape, rank);
    if (status)
        return status;
    if ((*out)->dtype == MOEPAGE_DTYPE_NONE)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "%.200s: tensor \"%.160s\" is of ggml type %u, in which experts are not read",
            (*out)->file->file.name, (*out)->name, (*out)->ggml_type);
    (*out)->routed = true;
    return MOEPAGE_OK;
}

static moepage_status find_all(binding *b)
{
    const uint32_t moe_layers = b->model->info.moe_layers;
    b->found = mp_alloc_array(moe_layers, b->n_parts * sizeof *b->found);
    if (!b->found)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the tensors of %u layers", moe_layers);
    for (uint32_t i = 0; i < moe_layers; i++)
        for (uint32_t p = 0; p < b->n_parts; p++) {
            moepage_status status = find_part(b, b->config->first_moe + i, b->parts[p],
                                              &b->found[(uint64_t)i * b->n_parts + p]);
            if (status)
                return status;
        }
    return MOEPAGE_OK;
}

/* ---- Layouts ---- */

static bool is_alike(const binding *b, const mp_layout *layout, mp_gguf_tensor *const *found)
{
    for (uint32_t p = 0; p < b->n_parts; p++)
        if (layout->tensors[p].dtype != found[p]->dtype)
            return false;
    return true;
}

static void fill_layout(const binding *b, mp_gguf_tensor *const *found, mp_layout *layout)
{
    for (uint32_t p = 0; p < b->n_parts; p++) {
        const part *of = b->parts[p];
        layout->tensors[p] = (moepage_expert_tensor){
            .role = of->role,
            .dtype = found[p]->dtype,
            .rank = of->columns ? 2 : 1,
            .shape = {length_of(b->config, of->rows), length_of(b->config, of->columns)},
        };
    }
}

/* Gives every layer the layout of its mixture of types, in the order in which they appear. */
static moepage_status list_layouts(binding *b)
{
    struct moepage_model *model = b->model;
    model->layout_of = mp_alloc(model->info.moe_layers);
    if (!model->layout_of)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the layouts of %u layers",
                       model->info.moe_layers);
    model->n_layouts = 0;
    for (uint32_t i = 0; i < model->info.moe_layers; i++) {
        mp_gguf_tensor *const *found = b->found + (uint64_t)i * b->n_parts;
        uint32_t l = 0;
        while (l < model->n_layouts && !is_alike(b, &model->layouts[l], found))
            l++;
        if (l == MP_MAX_LAYOUTS)
            return mp_fail(
                MOEPAGE_E_UNSUPPORTED,
                "%.200s: the layers mix the types of their experts' tensors in more than %d ways",
                b->gguf->files[0]->file.name, MP_MAX_LAYOUTS);
        if (l == model->n_layouts)
            fill_layout(b, found, &model->layouts[model->n_layouts++]);
        model->layout_of[i] = (uint8_t)l;
    }
    return MOEPAGE_OK;
}

/* ---- Spans ---- */

/* The piece of expert e of a tensor. */
static void fill_piece(const mp_gguf_tensor *tensor, const mp_piece *piece, uint64_t e,
                       mp_file_span *spans)
{
    if (!tensor->computed)
        spans[piece->span] = (mp_file_span){&tensor->file->file, tensor->offset + e * piece->bytes};
    for (uint32_t s = 0; tensor->computed && s < piece->how.n_sources; s++) {
        const mp_repack_source *source = &piece->how.sources[s];
        const mp_file_span *all = &tensor->computed->stored[s];
        spans[piece->span + s] =
            (mp_file_span){all->file, all->offset + e * source->rows * source->row_bytes};
    }
}

static void fill_spans(const binding *b)
{
    struct moepage_model *model = b->model;
    for (uint32_t i = 0; i < model->info.moe_layers; i++)
        for (uint32_t e = 0; e < model->info.experts; e++) {
            mp_file_span *spans = mp_model_spans(model, i, e);
            for (uint32_t p = 0; p < b->n_parts; p++)
                fill_piece(b->found[(uint64_t)i * b->n_parts + p],
                           &mp_model_layout(model, i)->pieces[p], e, spans);
        }
}

/* Refuses a tensor beside the experts' that no slot uses, such as a scale of a whole expert: serving
 * the experts without it would be wrong. */
static moepage_status refuse_strays(const binding *b)
{
    static const char *const prefixes[] = {"ffn_gate_exps.", "ffn_up_exps.", "ffn_down_exps.",
                                           "ffn_gate_up_exps."};
    const mp_gguf *gguf = b->gguf;
    for (uint32_t layer = 0; layer < b->config->layers; layer++)
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
            mp_gguf_name prefix = mp_gguf_name_of(layer, prefixes[k]);
            uint64_t i = mp_gguf_lower_bound(gguf, prefix.text);
            for (; i < gguf->n_tensors &&
                   strncmp(gguf->tensors[i]->name, prefix.text, strlen(prefix.text)) == 0;
                 i++)
                if (mp_gguf_is_dense(gguf->tensors[i]))
                    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                                   "%.120s: tensor \"%.160s\" is part of no routed expert that the "
                                   "metadata and layer %u describe",
                                   gguf->tensors[i]->file->file.name, gguf->tensors[i]->name,
                                   b->config->first_moe);
        }
    return MOEPAGE_OK;
}

/* Describes how pieces of tensors that are computed are: as the tensor, but of one expert. */
static void describe_pieces(const binding *b)
{
    struct moepage_model *model = b->model;
    for (uint32_t i = 0; i < model->info.moe_layers; i++)
        for (uint32_t p = 0; p < b->n_parts; p++) {
            const mp_gguf_tensor *tensor = b->found[(uint64_t)i * b->n_parts + p];
            mp_repack *how = &model->layouts[model->layout_of[i]].pieces[p].how;
            if (tensor->computed)
                *how = mp_repack_one_of(&tensor->computed->how, model->info.experts);
        }
}

static void count_dense(const mp_gguf *gguf, moepage_model_info *info)
{
    info->dense_bytes = 0;
    for (uint64_t i = 0; i < gguf->n_tensors; i++)
        if (mp_gguf_is_dense(gguf->tensors[i]))
            info->dense_bytes += gguf->tensors[i]->bytes;
}

static moepage_status bind(binding *b)
{
    struct moepage_model *model = b->model;
    moepage_status status = find_parts(b);
    if (!status)
        status = find_all(b);
    if (!status)
        status = refuse_strays(b);
    if (!status)
        status = list_layouts(b);
    if (status)
        return status;
    mp_slot_whole_pieces(model);
    describe_pieces(b);
    status = mp_slot_layout(model, MOEPAGE_E_FORMAT);
    if (!status)
        status = mp_slot_alloc_spans(model);
    if (status)
        return status;
    fill_spans(b);
    mp_slot_find_ffn(model, &b->config->architecture->activation, true);
    count_dense(b->gguf, &model->info);
    return MOEPAGE_OK;
}

moepage_status mp_gguf_experts_bind(const mp_gguf_config *config, mp_gguf *gguf,
                                    struct moepage_model *model)
{
    binding b = {.config = config, .gguf = gguf, .model = model};
    moepage_status status = bind(&b);
    mp_free(b.found);
    return status;
}
