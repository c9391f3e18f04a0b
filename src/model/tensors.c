/* A model's dense tensors, which are never paged, from any source: by name and in order. */
#include <string.h>

#include "base/status.h"
#include "model/bank_extras.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "model/pack.h"

/* Returns true if a view can express the checkpoint's tensor. */
static bool is_viewable(const mp_tensor *tensor)
{
    return tensor->type->dtype != MOEPAGE_DTYPE_NONE && tensor->rank <= MOEPAGE_MAX_RANK;
}

static void describe(const mp_tensor *tensor, mp_dense_tensor *out)
{
    *out = (mp_dense_tensor){.name = tensor->name, .bytes = tensor->bytes, .data = tensor->data};
    if (!is_viewable(tensor))
        return;
    out->dtype = tensor->type->dtype;
    out->rank = tensor->rank;
    memcpy(out->shape, tensor->shape, sizeof out->shape);
}

static uint64_t dense_count(const struct moepage_model *model)
{
    if (model->checkpoint)
        return model->checkpoint->n_dense;
    if (model->pack)
        return model->pack->n_dense;
    return model->extras ? model->extras->n_dense : 0;
}

bool mp_model_dense_at(const struct moepage_model *model, uint64_t index, mp_dense_tensor *out)
{
    if (index >= dense_count(model))
        return false;
    if (model->checkpoint)
        describe(model->checkpoint->dense[index], out);
    else if (model->pack)
        mp_pack_dense_at(model->pack, index, out);
    else
        *out = model->extras->dense[index];
    return true;
}

static moepage_status find_in_checkpoint(const struct moepage_model *model, const char *name,
                                         moepage_tensor_view *out)
{
    mp_tensor *tensor;
    moepage_status status = mp_checkpoint_require(model->checkpoint, name, &tensor);
    if (status)
        return status;
    if (!is_viewable(tensor))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.160s: tensor \"%.160s\" is %s of rank %u, a view can "
                       "be of MOEPAGE_DTYPE_* and at most %d dimensions",
                       tensor->file->name, tensor->name, tensor->type->name, tensor->rank,
                       MOEPAGE_MAX_RANK);
    bool copied;
    const void *data;
    status = mp_checkpoint_align(model->checkpoint, tensor, &data, &copied);
    if (status)
        return status;
    if (copied)
        mp_log_write(&model->log, MOEPAGE_LOG_INFO,
                     "%.160s: tensor \"%.160s\" is not aligned to its %s elements; %llu bytes were "
                     "copied to align it",
                     tensor->file->name, tensor->name, tensor->type->name,
                     (unsigned long long)tensor->bytes);
    *out = (moepage_tensor_view){
        .struct_size = sizeof *out,
        .dtype = tensor->type->dtype,
        .rank = tensor->rank,
        .bytes = tensor->bytes,
        .data = data,
    };
    memcpy(out->shape, tensor->shape, sizeof out->shape);
    return MOEPAGE_OK;
}

/* Searches by bisection: the order is that of the names. */
static bool find_dense(const struct moepage_model *model, const char *name, mp_dense_tensor *out)
{
    uint64_t first = 0, n = dense_count(model);
    while (n) {
        uint64_t half = n / 2;
        if (!mp_model_dense_at(model, first + half, out))
            return false;
        int order = strcmp(out->name, name);
        if (order == 0)
            return true;
        if (order < 0)
            first += half + 1;
        n = order < 0 ? n - half - 1 : half;
    }
    return false;
}

moepage_status mp_model_find_tensor(const struct moepage_model *model, const char *name,
                                    moepage_tensor_view *out)
{
    if (model->checkpoint)
        return find_in_checkpoint(model, name, out);
    mp_dense_tensor tensor;
    if (!find_dense(model, name, &tensor))
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "no tensor \"%.200s\" among the model's %llu dense ones", name,
                       (unsigned long long)dense_count(model));
    if (tensor.dtype == MOEPAGE_DTYPE_NONE)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.160s: tensor \"%.160s\" is of a type or a rank that no view can express",
                       model->pack->name, name);
    *out = (moepage_tensor_view){
        .struct_size = sizeof *out,
        .dtype = tensor.dtype,
        .rank = tensor.rank,
        .bytes = tensor.bytes,
        .data = tensor.data,
    };
    memcpy(out->shape, tensor.shape, sizeof out->shape);
    return MOEPAGE_OK;
}

const char *mp_model_config_text(const struct moepage_model *model)
{
    if (model->checkpoint)
        return model->checkpoint->config_text;
    if (model->pack)
        return model->pack->config_text;
    return model->extras ? model->extras->config_text : NULL;
}
