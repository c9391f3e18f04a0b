/* Opens a GGUF file as a model. */
#include "model/gguf_model.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

bool mp_model_is_gguf(const char *path)
{
    int fd;
    uint64_t n_bytes;
    char magic[4];
    if (mp_file_open(path, mp_path_name(path), &fd, &n_bytes))
        return false;
    const bool is = read(fd, magic, sizeof magic) == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
    close(fd);
    return is;
}

static void close_gguf(struct moepage_model *model)
{
    mp_gguf_close(model->gguf);
}

static void set_info(struct moepage_model *model, const mp_gguf_config *config)
{
    model->info = (moepage_model_info){
        .struct_size = sizeof model->info,
        .layers = config->layers,
        .moe_layers = config->layers - config->first_moe,
        .experts = config->experts,
        .top_k = config->top_k,
        .hidden = config->hidden,
        .expert_intermediate = config->intermediate,
        .shared_experts = config->shared,
        .vocabulary = config->vocabulary,
        .architecture = config->architecture->name,
    };
}

static moepage_status list_layers(struct moepage_model *model, uint32_t first)
{
    const uint32_t n = model->info.moe_layers;
    model->layer_of_moe = mp_alloc_array(n, sizeof *model->layer_of_moe);
    if (!model->layer_of_moe)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %u layers", n);
    for (uint32_t i = 0; i < n; i++)
        model->layer_of_moe[i] = (int32_t)(first + i);
    return MOEPAGE_OK;
}

static moepage_status read_gguf(const char *path, struct moepage_model *model)
{
    mp_gguf_config config;
    moepage_status status = mp_gguf_open(path, &model->gguf);
    if (status)
        return status;
    model->close = close_gguf;
    status = mp_gguf_config_read(model->gguf, &config);
    if (status)
        return status;
    status = mp_gguf_fp4_complete(model->gguf);
    if (status)
        return status;
    set_info(model, &config);
    status = list_layers(model, config.first_moe);
    if (!status)
        status = mp_gguf_routers_check(&config, model->gguf);
    if (!status)
        status = mp_gguf_experts_bind(&config, model->gguf, model);
    if (!status)
        status = mp_gguf_list_dense(model->gguf);
    return status;
}

/* Puts the directory before the sentence: the file's own name is in it. */
static moepage_status fail_within_directory(moepage_status status, const char *path)
{
    const char *name = mp_path_name(path);
    char *dir = name == path ? NULL : mp_strdup(path);
    if (dir) {
        dir[name - path - (name - path > 1)] = 0;
        mp_path_fail_within(status, dir);
    }
    mp_free(dir);
    return status;
}

moepage_status mp_model_open_gguf(const char *path, const mp_log *log, struct moepage_model **out)
{
    struct moepage_model *model = mp_model_alloc();
    if (!model)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    moepage_status status = read_gguf(path, model);
    if (status) {
        mp_model_free(model);
        return fail_within_directory(status, path);
    }
    model->log = *log;
    mp_handle_open(&model->handle, MP_KIND_MODEL);
    *out = model;
    return MOEPAGE_OK;
}
