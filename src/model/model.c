/* A model's life cycle. */
#include "model/model.h"

#include "base/alloc.h"
#include "base/status.h"
#include "model/checkpoint.h"
#include "model/hf.h"

struct moepage_model *mp_model_alloc(void)
{
    struct moepage_model *model = mp_alloc(sizeof *model);
    if (!model)
        return NULL;
    model->n_layouts = 1;
    pthread_mutex_init(&model->held_lock, NULL);
    return model;
}

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

static void close_checkpoint(struct moepage_model *model)
{
    mp_checkpoint_close(model->checkpoint);
}

static moepage_status read_checkpoint(const char *path, struct moepage_model *model)
{
    mp_json json;
    mp_hf_config config = {0};
    const mp_hf_layout *layout = NULL;
    moepage_status status = mp_checkpoint_open(path, &model->checkpoint, &json);
    if (status)
        return status;
    model->close = close_checkpoint;
    status = mp_hf_fp4_complete_config(path, &json);
    if (!status)
        status = mp_hf_config_read(&json, &config);
    if (!status)
        status = mp_hf_w4_complete(&config.w4, model->checkpoint);
    if (!status)
        status = mp_hf_fp4_complete(config.fp4, model->checkpoint);
    if (!status)
        status = mp_hf_layout_find(&config, model->checkpoint, &layout);
    if (!status)
        status = mp_hf_routers_check(&config, layout, model->checkpoint);
    if (!status) {
        set_info(model, &config);
        status = mp_hf_experts_bind(&config, layout, model->checkpoint, model);
    }
    if (!status)
        status = mp_checkpoint_list_dense(model->checkpoint);
    if (!status) {
        model->layer_of_moe = config.layer_of_moe;
        config.layer_of_moe = NULL;
    }
    mp_hf_config_free(&config);
    json_decref(json.root);
    return status;
}

moepage_status mp_model_open_checkpoint(const char *path, const mp_log *log,
                                        struct moepage_model **out)
{
    struct moepage_model *model = mp_model_alloc();
    if (!model)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    moepage_status status = read_checkpoint(path, model);
    if (status) {
        mp_model_free(model);
        return mp_path_fail_within(status, path);
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
    if (model->close)
        model->close(model);
    mp_free((void *)model->sources);
    mp_free(model->spans);
    mp_repack_rooms_free(model->rooms);
    mp_free(model->layer_of_moe);
    mp_free(model->layout_of);
    pthread_mutex_destroy(&model->held_lock);
    mp_free(model);
}
