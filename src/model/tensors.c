/* A model's dense tensors, which are never paged, from any source: by name and in order. */
#include <string.h>

#include "base/status.h"
#include "model/bank_extras.h"
#include "model/checkpoint.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/pack.h"

/* Returns true if a view can express the checkpoint's tensor. */
static bool is_viewable(const mp_tensor *tensor)
{
    return tensor->type->dtype != MOEPAGE_DTYPE_NONE && tensor->rank <= MOEPAGE_MAX_RANK;
}

static void describe(mp_tensor *tensor, mp_dense_tensor *out)
{
    *out = (mp_dense_tensor){.name = tensor->name,
                             .bytes = tensor->bytes,
                             .file = &tensor->file->file,
                             .offset = tensor->offset,
                             .computed = tensor->computed,
                             .held = &tensor->held};
    if (!is_viewable(tensor))
        return;
    out->dtype = tensor->type->dtype;
    out->rank = tensor->rank;
    memcpy(out->shape, tensor->shape, sizeof out->shape);
}

/* Turns the dimensions around: rows come first here, last in the file. */
static void describe_gguf(mp_gguf_tensor *tensor, mp_dense_tensor *out)
{
    *out = (mp_dense_tensor){.name = tensor->name,
                             .bytes = tensor->bytes,
                             .file = &tensor->file->file,
                             .offset = tensor->offset,
                             .computed = tensor->computed,
                             .held = &tensor->held};
    if (tensor->dtype == MOEPAGE_DTYPE_NONE)
        return;
    out->dtype = tensor->dtype;
    out->rank = tensor->rank;
    for (uint32_t i = 0; i < tensor->rank; i++)
        out->shape[i] = tensor->shape[tensor->rank - 1 - i];
}

static uint64_t dense_count(const struct moepage_model *model)
{
    if (model->checkpoint)
        return model->checkpoint->n_dense;
    if (model->gguf)
        return model->gguf->n_dense;
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
    else if (model->gguf)
        describe_gguf(model->gguf->dense[index], out);
    else if (model->pack)
        mp_pack_dense_at(model->pack, index, out);
    else
        *out = model->extras->dense[index];
    return true;
}

/* ---- names ---- */

static moepage_status locate_in_checkpoint(const struct moepage_model *model, const char *name,
                                           mp_dense_tensor *out)
{
    mp_tensor *tensor;
    moepage_status status = mp_checkpoint_require(model->checkpoint, name, &tensor);
    if (status)
        return status;
    if (!is_viewable(tensor))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.160s: tensor \"%.160s\" is %s of rank %u, a view can "
                       "be of MOEPAGE_DTYPE_* and at most %d dimensions",
                       tensor->file->file.name, tensor->name, tensor->type->name, tensor->rank,
                       MOEPAGE_MAX_RANK);
    describe(tensor, out);
    return MOEPAGE_OK;
}

static moepage_status locate_in_gguf(const struct moepage_model *model, const char *name,
                                     mp_dense_tensor *out)
{
    mp_gguf_tensor *tensor;
    moepage_status status = mp_gguf_require(model->gguf, name, &tensor);
    if (status)
        return status;
    if (tensor->dtype == MOEPAGE_DTYPE_NONE)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.160s: tensor \"%.160s\" is of ggml type %u, a view can be of "
                       "MOEPAGE_DTYPE_*",
                       tensor->file->file.name, tensor->name, tensor->ggml_type);
    describe_gguf(tensor, out);
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

moepage_status mp_model_locate_tensor(const struct moepage_model *model, const char *name,
                                      mp_dense_tensor *out)
{
    if (model->checkpoint)
        return locate_in_checkpoint(model, name, out);
    if (model->gguf)
        return locate_in_gguf(model, name, out);
    if (!find_dense(model, name, out))
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "no tensor \"%.200s\" among the model's %llu dense ones", name,
                       (unsigned long long)dense_count(model));
    if (out->dtype == MOEPAGE_DTYPE_NONE)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.160s: tensor \"%.160s\" is of a type or a rank that no view can express",
                       model->pack->file.name, name);
    return MOEPAGE_OK;
}

/* ---- views ---- */

/* Gives the tensor's bytes in memory. One thread reads at a time, so that none reads in vain. */
static moepage_status hold(const struct moepage_model *model, const mp_dense_tensor *tensor,
                           const void **out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&model->held_lock;
    *out = tensor->data;
    if (!tensor->file)
        return MOEPAGE_OK;
    pthread_mutex_lock(lock);
    moepage_status status = *tensor->held ? MOEPAGE_OK : mp_dense_hold(tensor);
    *out = *tensor->held;
    pthread_mutex_unlock(lock);
    return status;
}

static moepage_tensor_view view_of(const mp_dense_tensor *tensor, const void *data)
{
    moepage_tensor_view view = {.struct_size = sizeof view,
                                .dtype = tensor->dtype,
                                .rank = tensor->rank,
                                .bytes = tensor->bytes,
                                .data = data};
    memcpy(view.shape, tensor->shape, sizeof view.shape);
    return view;
}

moepage_status mp_model_find_tensor(const struct moepage_model *model, const char *name,
                                    moepage_tensor_view *out)
{
    mp_dense_tensor tensor;
    const void *data;
    moepage_status status = mp_model_locate_tensor(model, name, &tensor);
    if (!status)
        status = hold(model, &tensor, &data);
    if (!status)
        *out = view_of(&tensor, data);
    return status;
}

moepage_status mp_model_read_tensor(const struct moepage_model *model, const char *name,
                                    uint64_t offset, uint64_t bytes, void *out,
                                    moepage_tensor_view *view)
{
    mp_dense_tensor tensor;
    moepage_status status = mp_model_locate_tensor(model, name, &tensor);
    if (status)
        return status;
    if (offset > tensor.bytes || bytes > tensor.bytes - offset)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "tensor \"%.160s\" has %llu bytes: %llu at %llu are not all of it",
                       tensor.name, (unsigned long long)tensor.bytes, (unsigned long long)bytes,
                       (unsigned long long)offset);
    if (bytes)
        status = mp_dense_read_part(&tensor, offset, bytes, out);
    if (!status)
        *view = view_of(&tensor, NULL);
    return status;
}

const char *mp_model_config_text(const struct moepage_model *model)
{
    if (model->checkpoint)
        return model->checkpoint->config_text;
    if (model->pack)
        return model->pack->config_text;
    return model->extras ? model->extras->config_text : NULL;
}

const mp_gguf_metadata *mp_model_metadata(const struct moepage_model *model)
{
    if (model->gguf)
        return mp_gguf_metadata_of(model->gguf);
    return model->pack && model->pack->metadata_section ? &model->pack->metadata : NULL;
}
