/* Finds the experts of a Hugging Face checkpoint: which of its tensors make up which slot. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/hf.h"
#include "model/shape.h"
#include "model/slot.h"

/* Where a piece gets its bytes: a part, and the index of one of its names. */
typedef struct piece_name {
    const mp_hf_part *part;
    const char *pattern;
} piece_name;

typedef struct binding {
    const mp_hf_config *config;
    const mp_hf_layout *layout;
    mp_checkpoint *checkpoint;
    struct moepage_model *model;
    piece_name names[MP_MAX_PIECES];
} binding;

static uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

static uint64_t dim_length(const mp_hf_config *config, mp_hf_dim dim)
{
    uint64_t h = config->hidden, i = config->intermediate;
    uint64_t rows = config->block_rows, columns = config->block_columns;
    switch (dim) {
    case MP_DIM_NONE: return 0;
    case MP_DIM_H: return h;
    case MP_DIM_I: return i;
    case MP_DIM_2I: return 2 * i;
    case MP_DIM_H_BLOCK_ROWS: return divide_up(h, rows);
    case MP_DIM_I_BLOCK_ROWS: return divide_up(i, rows);
    case MP_DIM_2I_BLOCK_ROWS: return divide_up(2 * i, rows);
    case MP_DIM_H_BLOCK_COLUMNS: return divide_up(h, columns);
    case MP_DIM_I_BLOCK_COLUMNS: return divide_up(i, columns);
    case MP_DIM_H_MX_GROUPS: return divide_up(h, 32);
    case MP_DIM_I_MX_GROUPS: return divide_up(i, 32);
    case MP_DIM_MXFP4_BYTES: return 16;
    }
    return 0;
}

mp_hf_name mp_hf_name_of(const char *pattern, uint32_t layer, uint32_t expert)
{
    mp_hf_name name;
    size_t n = 0;
    assert(pattern);
    while (*pattern) {
        if (*pattern == '{') {
            uint32_t number = pattern[1] == 'L' ? layer : expert;
            n += (size_t)snprintf(name.text + n, sizeof name.text - n, "%u", number);
            pattern += 3;
        } else {
            name.text[n++] = *pattern++;
        }
        assert(n < sizeof name.text);
    }
    name.text[n] = 0;
    return name;
}

moepage_status mp_hf_shape_check(const mp_tensor *tensor, const uint64_t *shape, uint32_t rank)
{
    bool same = tensor->rank == rank;
    for (uint32_t i = 0; same && i < rank; i++)
        same = tensor->shape[i] == shape[i];
    if (same)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "%.120s: tensor \"%.160s\" has shape %s, config.json makes it %s",
                   tensor->file->file.name, tensor->name,
                   mp_shape_show(tensor->shape, tensor->rank).text,
                   mp_shape_show(shape, rank).text);
}

moepage_status mp_hf_layout_find(const mp_hf_config *config, const mp_checkpoint *checkpoint,
                                 const mp_hf_layout **out)
{
    const mp_hf_layout *const *layouts = config->architecture->layouts;
    uint32_t layer = (uint32_t)config->layer_of_moe[0];
    char tried[400] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < MP_HF_MAX_LAYOUTS && layouts[i]; i++) {
        mp_hf_name name = mp_hf_name_of(layouts[i]->parts[0].names[0], layer, 0);
        if (mp_checkpoint_find(checkpoint, name.text)) {
            *out = layouts[i];
            return MOEPAGE_OK;
        }
        used += (size_t)snprintf(tried + used, sizeof tried - used, "%s\"%s\"", i ? " nor " : "",
                                 name.text);
    }
    return mp_fail(MOEPAGE_E_NOT_FOUND,
                   "no tensor %s: %s layer %u has routed experts by config.json", tried,
                   config->architecture->model_type, layer);
}

/* Computes the shape of one named tensor, preceded by the stack's dimension if there is one. */
static uint32_t named_shape(const binding *b, const mp_hf_part *part, uint64_t *shape)
{
    uint32_t rank = 0;
    if (b->layout->stacked)
        shape[rank++] = b->config->experts;
    for (uint32_t i = 0; rank < MOEPAGE_MAX_RANK && part->dims[i]; i++)
        shape[rank++] = dim_length(b->config, part->dims[i]);
    return rank;
}

static bool is_fp8(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F8_E4M3 || dtype == MOEPAGE_DTYPE_F8_E5M2;
}

/* Adds a part to the slot, with the first expert's dtype. */
static moepage_status add_part(binding *b, const mp_hf_part *part)
{
    moepage_model_info *info = &b->model->info;
    uint32_t layer = (uint32_t)b->config->layer_of_moe[0], n_names = part->names[1] ? 2 : 1;
    mp_tensor *first;
    mp_hf_name name = mp_hf_name_of(part->names[0], layer, 0);
    moepage_status status = mp_checkpoint_require(b->checkpoint, name.text, &first);
    if (status)
        return status;
    if (first->type->dtype == MOEPAGE_DTYPE_NONE ||
        (part->dtype && first->type->dtype != part->dtype))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.200s: tensor \"%.160s\" is %s, which experts of %s "
                       "stored this way cannot be",
                       first->file->file.name, first->name, first->type->name, info->architecture);

    moepage_expert_tensor *tensor = &b->model->layouts[0].tensors[info->expert_tensors];
    tensor->role = part->role;
    tensor->dtype = first->type->dtype;
    for (; tensor->rank < MOEPAGE_MAX_RANK && part->dims[tensor->rank]; tensor->rank++)
        tensor->shape[tensor->rank] = dim_length(b->config, part->dims[tensor->rank]);
    uint64_t piece_bytes = mp_dtype_bytes(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++)
        piece_bytes *= tensor->shape[i];
    tensor->shape[0] *= n_names;

    for (uint32_t i = 0; i < n_names; i++) {
        b->names[b->model->n_pieces] = (piece_name){part, part->names[i]};
        b->model->layouts[0].pieces[b->model->n_pieces++] = (mp_piece){
            .tensor = info->expert_tensors,
            .tensor_offset = i * piece_bytes,
            .bytes = piece_bytes,
        };
    }
    info->expert_tensors++;
    return MOEPAGE_OK;
}

static moepage_status add_parts(binding *b)
{
    for (uint32_t i = 0; i < b->layout->n_parts; i++) {
        const mp_hf_part *part = &b->layout->parts[i];
        if (part->when == MP_WHEN_FP8 && !is_fp8(b->model->layouts[0].tensors[0].dtype))
            continue;
        moepage_status status = add_part(b, part);
        if (status)
            return status;
    }
    return MOEPAGE_OK;
}

/* Finds the named tensor of a piece and checks that it matches the first expert's in every
 * respect. */
static moepage_status find_piece(const binding *b, uint32_t piece, uint32_t layer, uint32_t expert,
                                 mp_tensor **out)
{
    const mp_hf_part *part = b->names[piece].part;
    mp_hf_name name = mp_hf_name_of(b->names[piece].pattern, layer, expert);
    moepage_status status = mp_checkpoint_require(b->checkpoint, name.text, out);
    if (status)
        return status;
    uint64_t shape[MOEPAGE_MAX_RANK];
    status = mp_hf_shape_check(*out, shape, named_shape(b, part, shape));
    if (status)
        return status;
    uint32_t dtype = b->model->layouts[0].tensors[b->model->layouts[0].pieces[piece].tensor].dtype;
    if ((*out)->type->dtype != dtype)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: tensor \"%.160s\" is %s, the first expert's is %s: "
                       "all experts must be alike",
                       (*out)->file->file.name, (*out)->name, (*out)->type->name,
                       mp_dtype_name(dtype));
    (*out)->routed = 1;
    return MOEPAGE_OK;
}

/* Checks that the checkpoint extends as far as config.json says, before memory is allocated on the
 * config's word. */
static moepage_status check_last(const binding *b)
{
    uint32_t layer = (uint32_t)b->config->layer_of_moe[b->config->moe_layers - 1];
    moepage_status status = MOEPAGE_OK;
    for (uint32_t p = 0; !status && p < b->model->n_pieces; p++) {
        mp_tensor *tensor;
        mp_hf_name name = mp_hf_name_of(b->names[p].pattern, layer, b->config->experts - 1);
        status = mp_checkpoint_require(b->checkpoint, name.text, &tensor);
    }
    return status;
}

static moepage_status bind_layer(const binding *b, uint32_t moe_layer)
{
    struct moepage_model *model = b->model;
    uint32_t layer = (uint32_t)b->config->layer_of_moe[moe_layer];
    for (uint32_t expert = 0; expert < model->info.experts; expert++) {
        mp_file_span *spans = model->spans + mp_model_source_index(model, moe_layer, expert);
        for (uint32_t p = 0; p < model->n_pieces; p++) {
            const mp_piece *piece = &model->layouts[0].pieces[p];
            if (b->layout->stacked && expert > 0) {
                const mp_file_span *before = &spans[(int64_t)p - (int64_t)model->n_pieces];
                spans[p] = (mp_file_span){before->file, before->offset + piece->bytes};
                continue;
            }
            mp_tensor *tensor;
            moepage_status status = find_piece(b, p, layer, expert, &tensor);
            if (status)
                return status;
            spans[p] = (mp_file_span){&tensor->file->file, tensor->offset};
        }
    }
    return MOEPAGE_OK;
}

/* Refuses a tensor under the experts' prefix that no slot uses: config and checkpoint disagree, or
 * the experts have parts unknown to this layout, and serving them without those would be wrong.
 * Layers past the config's last (multi-token prediction) are not part of the model and stay
 * dense. */
static moepage_status refuse_strays(const binding *b)
{
    const mp_checkpoint *checkpoint = b->checkpoint;
    for (uint32_t layer = 0; layer < b->config->layers; layer++) {
        mp_hf_name prefix = mp_hf_name_of(b->layout->prefix, layer, 0);
        size_t length = strlen(prefix.text);
        for (uint64_t i = mp_checkpoint_lower_bound(checkpoint, prefix.text);
             i < checkpoint->n_tensors &&
             strncmp(checkpoint->tensors[i]->name, prefix.text, length) == 0;
             i++) {
            const mp_tensor *tensor = checkpoint->tensors[i];
            if (!tensor->routed)
                return mp_fail(MOEPAGE_E_FORMAT,
                               "%.120s: tensor \"%.160s\" is not part of any routed "
                               "expert that config.json describes: %u experts in %u of %u layers",
                               tensor->file->file.name, tensor->name, b->config->experts,
                               b->config->moe_layers, b->config->layers);
        }
    }
    return MOEPAGE_OK;
}

/* Gives the model its block size of scales. Returns false if one block of a stacked gate_up holds
 * rows of both gate and up. */
static bool state_blocks(const binding *b)
{
    if (!is_fp8(b->model->layouts[0].tensors[0].dtype))
        return true;
    b->model->layouts[0].ffn.scale.rows = b->config->block_rows;
    b->model->layouts[0].ffn.scale.columns = b->config->block_columns;
    return !b->layout->stacked || b->config->intermediate % b->config->block_rows == 0;
}

static void count_dense(const mp_checkpoint *checkpoint, moepage_model_info *info)
{
    info->dense_bytes = checkpoint->tensor_bytes;
    for (uint64_t i = 0; i < checkpoint->n_tensors; i++)
        if (checkpoint->tensors[i]->routed)
            info->dense_bytes -= checkpoint->tensors[i]->bytes;
}

moepage_status mp_hf_experts_bind(const mp_hf_config *config, const mp_hf_layout *layout,
                                  mp_checkpoint *checkpoint, struct moepage_model *model)
{
    binding b = {.config = config, .layout = layout, .checkpoint = checkpoint, .model = model};
    moepage_status status = add_parts(&b);
    if (!status)
        status = mp_slot_layout(model, MOEPAGE_E_FORMAT);
    if (!status)
        status = check_last(&b);
    if (!status)
        status = mp_slot_alloc_spans(model);
    for (uint32_t layer = 0; !status && layer < config->moe_layers; layer++)
        status = bind_layer(&b, layer);
    if (!status)
        status = refuse_strays(&b);
    if (status)
        return status;
    const bool in_order = state_blocks(&b) && !layout->interleaved;
    mp_slot_find_ffn(model, &config->activation, in_order);
    count_dense(checkpoint, &model->info);
    return MOEPAGE_OK;
}
