/* A model from its opening to its end. */
#include "model/model.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/checkpoint.h"
#include "model/hf.h"

static void set_info(struct moepage_model *model, const mp_hf_config *config)
{
    model->info = (moepage_model_info){
        .struct_size = sizeof model->info,
        .layers = config->layers,
        .moe_layers = config->moe_layers,
        .experts = config->experts,
        .top_k = config->top_k,
        .hidden = config->hidden,
        .expert_intermediate = config->intermediate,
        .shared_experts = config->shared,
        .vocabulary = config->vocabulary,
        .architecture = config->architecture->model_type,
    };
}

static moepage_status read_checkpoint(const char *path, struct moepage_model *model)
{
    mp_json json;
    mp_hf_config config = {0};
    const mp_hf_layout *layout = NULL;
    moepage_status status = mp_checkpoint_open(path, &model->checkpoint, &json);
    if (status)
        return status;
    status = mp_hf_config_read(&json, &config);
    if (!status)
        status = mp_hf_layout_find(&config, model->checkpoint, &layout);
    if (!status)
        status = mp_hf_routers_check(&config, layout, model->checkpoint);
    if (!status) {
        set_info(model, &config);
        status = mp_hf_experts_bind(&config, layout, model->checkpoint, model);
    }
    if (!status) {
        model->layer_of_moe = config.layer_of_moe;
        config.layer_of_moe = NULL;
    }
    mp_hf_config_free(&config);
    json_decref(json.root);
    return status;
}

/* Names the directory, by its end where it is long: the sentence inside matters more. */
static moepage_status fail_within_path(moepage_status status, const char *path)
{
    const size_t room = 160;
    size_t n = strlen(path);
    if (n > room)
        return mp_fail_within(status, "...%s", path + n - room);
    return mp_fail_within(status, "%s", path);
}

moepage_status mp_model_open_checkpoint(const char *path, const mp_log *log,
                                        struct moepage_model **out)
{
    struct moepage_model *model = mp_alloc(sizeof *model);
    if (!model)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    moepage_status status = read_checkpoint(path, model);
    if (status) {
        mp_model_free(model);
        return fail_within_path(status, path);
    }
    model->log = *log;
    mp_handle_open(&model->handle, MP_KIND_MODEL);
    *out = model;
    return MOEPAGE_OK;
}

void mp_model_free(struct moepage_model *model)
{
    if (!model)
        return;
    mp_handle_kill(&model->handle);
    mp_checkpoint_close(model->checkpoint);
    mp_free((void *)model->sources);
    mp_free(model->layer_of_moe);
    mp_free(model);
}

moepage_status mp_model_find_tensor(const struct moepage_model *model, const char *name,
                                    moepage_tensor_view *out)
{
    if (!model->checkpoint)
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "no tensor \"%.200s\": a model of caller-held experts "
                       "has no checkpoint",
                       name);
    mp_tensor *tensor;
    moepage_status status = mp_checkpoint_require(model->checkpoint, name, &tensor);
    if (status)
        return status;
    if (tensor->type->dtype == MOEPAGE_DTYPE_NONE || tensor->rank > MOEPAGE_MAX_RANK)
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
                     "%.160s: tensor \"%.160s\" lies askew of its %s "
                     "elements; %llu bytes were copied to align it",
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

const char *mp_model_config_text(const struct moepage_model *model)
{
    return model->checkpoint ? model->checkpoint->config_text : NULL;
}
