/* Finds the experts of a Hugging Face checkpoint: which of its tensors make up which slot. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/hf.h"
#include "model/shape.h"
#include "model/slot.h"

/* What a piece is made of: a part, one of its names, and the types of the first expert's tensors. */
typedef struct piece_parts {
    const mp_hf_part *part;
    const char *pattern;
    const mp_stored_dtype *types[MP_REPACK_SOURCES];
} piece_parts;

typedef struct binding {
    const mp_hf_config *config;
    const mp_hf_layout *layout;
    mp_checkpoint *checkpoint;
    struct moepage_model *model;
    piece_parts pieces[MP_MAX_PIECES];
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

/* ---- stored tensors ---- */

static uint32_t n_stored(const mp_hf_part *part)
{
    return part->repack ? part->repack->n_stored : 1;
}

/* Returns stored tensor `i` of a part: without a repacking, the named one itself. */
static mp_hf_stored stored_of(const mp_hf_part *part, uint32_t i)
{
    if (part->repack)
        return part->repack->stored[i];
    mp_hf_stored named = {"", part->dtype, {0}};
    memcpy(named.dims, part->dims, sizeof named.dims);
    return named;
}

static mp_hf_name stored_name(const mp_hf_part *part, const char *pattern, uint32_t i,
                              uint32_t layer, uint32_t expert)
{
    char full[sizeof(mp_hf_name)];
    snprintf(full, sizeof full, "%s%s", pattern, stored_of(part, i).suffix);
    return mp_hf_name_of(full, layer, expert);
}

moepage_status mp_hf_layout_find(const mp_hf_config *config, const mp_checkpoint *checkpoint,
                                 const mp_hf_layout **out)
{
    const mp_hf_layout *const *layouts = config->architecture->layouts;
    uint32_t layer = (uint32_t)config->layer_of_moe[0];
    char tried[400] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < MP_HF_MAX_LAYOUTS && layouts[i]; i++) {
        const mp_hf_part *part = &layouts[i]->parts[0];
        mp_hf_name name = stored_name(part, part->names[0], 0, layer, 0);
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

/* Finds stored tensor `i` of a part under one of its names. */
static moepage_status find_stored(const binding *b, const mp_hf_part *part, const char *pattern,
                                  uint32_t i, uint32_t layer, uint32_t expert, mp_tensor **out)
{
    const mp_hf_name name = stored_name(part, pattern, i, layer, expert);
    return mp_checkpoint_require(b->checkpoint, name.text, out);
}

/* Computes the lengths of dimensions; returns how many there are. */
static uint32_t shape_of(const mp_hf_config *config, const mp_hf_dim *dims, uint64_t *shape)
{
    uint32_t rank = 0;
    for (; rank < MOEPAGE_MAX_RANK && dims[rank]; rank++)
        shape[rank] = dim_length(config, dims[rank]);
    return rank;
}

/* The same of a stored tensor, preceded by the stack's dimension if there is one. */
static uint32_t stored_shape(const binding *b, const mp_hf_stored *stored, uint64_t *shape)
{
    uint64_t own[MOEPAGE_MAX_RANK];
    const uint32_t rank = shape_of(b->config, stored->dims, own), skip = b->layout->stacked;
    assert(rank + skip <= MOEPAGE_MAX_RANK);
    shape[0] = b->config->experts;
    memcpy(shape + skip, own, rank * sizeof *own);
    return rank + skip;
}

/* ---- parts ---- */

static bool is_fp8(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F8_E4M3 || dtype == MOEPAGE_DTYPE_F8_E5M2;
}

/* Finds the types of the first expert's tensors. */
static moepage_status find_types(const binding *b, const mp_hf_part *part,
                                 const mp_stored_dtype **types)
{
    const uint32_t layer = (uint32_t)b->config->layer_of_moe[0];
    for (uint32_t i = 0; i < n_stored(part); i++) {
        const uint32_t required = stored_of(part, i).dtype;
        mp_tensor *first;
        moepage_status status = find_stored(b, part, part->names[0], i, layer, 0, &first);
        if (status)
            return status;
        if (first->type->dtype == MOEPAGE_DTYPE_NONE || (part->repack && first->computed) ||
            (required && first->type->dtype != required))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "%.200s: tensor \"%.160s\" is %s, which experts of %s "
                           "stored this way cannot be",
                           first->file->file.name, first->name, first->type->name,
                           b->model->info.architecture);
        types[i] = first->type;
    }
    return MOEPAGE_OK;
}

/* Describes how a piece of the slot is computed. */
static void describe_repack(const binding *b, const mp_hf_repack *from,
                            const mp_stored_dtype *const *types, uint64_t rows,
                            uint64_t piece_bytes, mp_repack *out)
{
    *out = (mp_repack){.kind = from->kind,
                       .rows = rows,
                       .row_bytes = piece_bytes / rows,
                       .interleaved = from->interleaved,
                       .n_sources = from->n_stored};
    for (uint32_t i = 0; i < from->n_stored; i++) {
        uint64_t shape[MOEPAGE_MAX_RANK];
        const uint32_t rank = shape_of(b->config, from->stored[i].dims, shape);
        out->sources[i] = (mp_repack_source){shape[0], types[i]->bits / 8};
        for (uint32_t d = 1; d < rank; d++)
            out->sources[i].row_bytes *= shape[d];
    }
}

/* Returns how one expert's matrix of a computed tensor is computed. */
static mp_repack one_expert(const binding *b, const mp_tensor *tensor)
{
    return mp_repack_one_of(&tensor->computed->how, b->layout->stacked ? b->config->experts : 1);
}

/* Takes over how the first expert's tensor is computed, if it is. */
static moepage_status take_computed(const binding *b, const mp_hf_part *part, uint32_t name,
                                    mp_repack *out)
{
    const uint32_t layer = (uint32_t)b->config->layer_of_moe[0];
    mp_tensor *first;
    moepage_status status = find_stored(b, part, part->names[name], 0, layer, 0, &first);
    if (!status && first->computed)
        *out = one_expert(b, first);
    return status;
}

/* Adds a part to the slot, with the first expert's dtype. */
static moepage_status add_part(binding *b, const mp_hf_part *part)
{
    moepage_model_info *info = &b->model->info;
    const uint32_t n_names = part->names[1] ? 2 : 1;
    piece_parts parts = {.part = part};
    moepage_status status = find_types(b, part, parts.types);
    if (status)
        return status;
    moepage_expert_tensor *tensor = &b->model->layouts[0].tensors[info->expert_tensors];
    tensor->role = part->role;
    tensor->dtype = part->dtype ? part->dtype : parts.types[0]->dtype;
    tensor->rank = shape_of(b->config, part->dims, tensor->shape);
    uint64_t piece_bytes;
    if (!mp_shape_bytes(tensor->dtype, tensor->rank, tensor->shape, &piece_bytes))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "experts' rows of %llu weights are no whole blocks of %s",
                       (unsigned long long)tensor->shape[tensor->rank - 1],
                       mp_dtype_name(tensor->dtype));
    for (uint32_t i = 0; i < n_names; i++) {
        mp_piece piece = {
            .tensor = info->expert_tensors,
            .tensor_offset = i * piece_bytes,
            .bytes = piece_bytes,
        };
        if (part->repack)
            describe_repack(b, part->repack, parts.types, tensor->shape[0], piece_bytes,
                            &piece.how);
        else
            status = take_computed(b, part, i, &piece.how);
        if (status)
            return status;
        parts.pattern = part->names[i];
        b->pieces[b->model->n_pieces] = parts;
        b->model->layouts[0].pieces[b->model->n_pieces++] = piece;
    }
    tensor->shape[0] *= n_names;
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

/* ---- spans ---- */

/* Finds stored tensor `i` of a piece and checks that it matches the first expert's in every
 * respect. */
static moepage_status find_piece(const binding *b, uint32_t piece, uint32_t i, uint32_t layer,
                                 uint32_t expert, mp_tensor **out)
{
    const piece_parts *parts = &b->pieces[piece];
    moepage_status status = find_stored(b, parts->part, parts->pattern, i, layer, expert, out);
    if (status)
        return status;
    uint64_t shape[MOEPAGE_MAX_RANK];
    const mp_hf_stored stored = stored_of(parts->part, i);
    status = mp_hf_shape_check(*out, shape, stored_shape(b, &stored, shape));
    if (status)
        return status;
    if ((*out)->type != parts->types[i])
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: tensor \"%.160s\" is %s, the first expert's is %s: "
                       "all experts must be alike",
                       (*out)->file->file.name, (*out)->name, (*out)->type->name,
                       parts->types[i]->name);
    const mp_repack *how = &b->model->layouts[0].pieces[piece].how;
    const mp_repack own = (*out)->computed ? one_expert(b, *out) : (mp_repack){0};
    if ((*out)->computed ? !mp_repack_is_same(&own, how) : how->kind && !parts->part->repack)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: the parts of tensor \"%.160s\" have other shapes than the first "
                       "expert's: all experts must be alike",
                       (*out)->file->file.name, (*out)->name);
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
        const piece_parts *parts = &b->pieces[p];
        mp_tensor *tensor;
        for (uint32_t i = 0; !status && i < n_stored(parts->part); i++)
            status = find_stored(b, parts->part, parts->pattern, i, layer, b->config->experts - 1,
                                 &tensor);
    }
    return status;
}

/* Notes where a span of an expert's piece is; of a stack, where all experts' are, so many bytes apart. */
static void put_spans(const binding *b, uint32_t moe_layer, uint32_t expert, uint32_t span,
                      mp_file_span at, uint64_t apart)
{
    const uint32_t end = b->layout->stacked ? b->config->experts : expert + 1;
    for (; expert < end; expert++, at.offset += apart)
        mp_model_spans(b->model, moe_layer, expert)[span] = at;
}

/* The same of what a computed tensor is computed from. A source of a stack that is no longer than one expert's is all
 * experts'. */
static void put_computed(const binding *b, uint32_t moe_layer, uint32_t expert,
                         const mp_piece *piece, const mp_computed *computed)
{
    for (uint32_t s = 0; s < piece->how.n_sources; s++) {
        const mp_repack_source *one = &piece->how.sources[s], *all = &computed->how.sources[s];
        put_spans(b, moe_layer, expert, piece->span + s, computed->stored[s],
                  one->rows == all->rows ? 0 : one->rows * one->row_bytes);
    }
}

/* Locates the stored tensors of one piece of an expert. */
static moepage_status bind_piece(const binding *b, uint32_t p, uint32_t moe_layer, uint32_t expert)
{
    const mp_piece *piece = &b->model->layouts[0].pieces[p];
    for (uint32_t i = 0; i < n_stored(b->pieces[p].part); i++) {
        mp_tensor *tensor;
        moepage_status status =
            find_piece(b, p, i, (uint32_t)b->config->layer_of_moe[moe_layer], expert, &tensor);
        if (status)
            return status;
        const mp_repack_source *source = &piece->how.sources[i];
        if (tensor->computed)
            put_computed(b, moe_layer, expert, piece, tensor->computed);
        else
            put_spans(b, moe_layer, expert, piece->span + i,
                      (mp_file_span){&tensor->file->file, tensor->offset},
                      piece->how.kind ? source->rows * source->row_bytes : piece->bytes);
    }
    return MOEPAGE_OK;
}

static moepage_status bind_layer(const binding *b, uint32_t moe_layer)
{
    const uint32_t named = b->layout->stacked ? 1 : b->config->experts;
    for (uint32_t expert = 0; expert < named; expert++)
        for (uint32_t p = 0; p < b->model->n_pieces; p++) {
            moepage_status status = bind_piece(b, p, moe_layer, expert);
            if (status)
                return status;
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
            if (mp_checkpoint_is_dense(tensor))
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
    info->dense_bytes = 0;
    for (uint64_t i = 0; i < checkpoint->n_tensors; i++)
        if (mp_checkpoint_is_dense(checkpoint->tensors[i]))
            info->dense_bytes += checkpoint->tensors[i]->bytes;
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
    mp_slot_find_ffn(model, &config->activation, state_blocks(&b));
    count_dense(checkpoint, &model->info);
    return MOEPAGE_OK;
}
