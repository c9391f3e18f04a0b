/* Entry points of models. */
#include <stddef.h>
#include <sys/stat.h>

#include "base/config.h"
#include "base/status.h"
#include "model/gguf_values.h"
#include "model/model.h"

static moepage_status read_config(const moepage_model_config *config, mp_log *log)
{
    moepage_model_config own;
    moepage_status status = MP_CONFIG_READ(own, config);
    if (status)
        return status;
    if (own.reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "config: reserved is %u, it must be 0", own.reserved);
    *log = (mp_log){.fn = own.log, .user = own.log_user};
    return MOEPAGE_OK;
}

moepage_status moepage_model_open(const char *path, const moepage_model_config *config,
                                  moepage_model **out)
{
    if (!path || !*path)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "path is %s, it must name a checkpoint's directory, a .gguf or a .moepack file",
            path ? "empty" : "NULL");
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    mp_log log;
    moepage_status status = read_config(config, &log);
    if (status)
        return status;
    struct stat found;
    if (!stat(path, &found) && S_ISREG(found.st_mode))
        return mp_model_is_gguf(path) ? mp_model_open_gguf(path, &log, out)
                                      : mp_model_open_pack(path, &log, out);
    return mp_model_open_checkpoint(path, &log, out);
}

moepage_status moepage_model_open_banks(const moepage_banks *banks,
                                        const moepage_model_config *config, moepage_model **out)
{
    if (!banks)
        return mp_fail(MOEPAGE_E_ARGUMENT, "banks is NULL");
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    moepage_banks own;
    mp_log log;
    /* The first published form of the struct ends before `architecture`. */
    moepage_status status =
        mp_config_read(&own, sizeof own, offsetof(moepage_banks, architecture), banks, "banks");
    if (!status)
        status = read_config(config, &log);
    return status ? status : mp_model_open_banks(&own, &log, out);
}

moepage_status moepage_model_close(moepage_model *model)
{
    if (!model)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    uint32_t users = atomic_load(&model->users);
    if (users)
        return mp_fail(MOEPAGE_E_BUSY,
                       "%u expert pool%s or PagedTensor%s still use%s the model: destroy %s first",
                       users, users == 1 ? "" : "s", users == 1 ? "" : "s", users == 1 ? "s" : "",
                       users == 1 ? "it" : "them");
    mp_model_free(model);
    return MOEPAGE_OK;
}

#define INFO_MIN_BYTES 88 /* moepage_model_info as first published */

moepage_status moepage_model_get_info(const moepage_model *model, moepage_model_info *info)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    return status ? status
                  : mp_config_write(info, &model->info, sizeof model->info, INFO_MIN_BYTES, "info");
}

moepage_status moepage_model_get_expert_tensors(const moepage_model *model,
                                                moepage_expert_tensor *out, uint32_t capacity)
{
    return moepage_model_get_layer_tensors(model, 0, out, capacity);
}

moepage_status moepage_model_get_layer_tensors(const moepage_model *model, uint32_t layer,
                                               moepage_expert_tensor *out, uint32_t capacity)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (layer >= model->info.moe_layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                       model->info.moe_layers);
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (capacity < model->info.expert_tensors)
        return mp_fail(MOEPAGE_E_ARGUMENT, "capacity is %u, the model's experts have %u tensors",
                       capacity, model->info.expert_tensors);
    for (uint32_t i = 0; i < model->info.expert_tensors; i++)
        out[i] = mp_model_layout(model, layer)->tensors[i];
    return MOEPAGE_OK;
}

moepage_status moepage_model_find_tensor(const moepage_model *model, const char *name,
                                         moepage_tensor_view *out)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (!name)
        return mp_fail(MOEPAGE_E_ARGUMENT, "name is NULL");
    moepage_tensor_view view;
    status = mp_model_find_tensor(model, name, &view);
    return status ? status : MP_CONFIG_WRITE(out, view);
}

moepage_status moepage_model_read_tensor(const moepage_model *model, const char *name,
                                         uint64_t offset, uint64_t bytes, void *out,
                                         moepage_tensor_view *view)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (!name || (bytes && !out))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", name ? "out" : "name");
    moepage_tensor_view found;
    status = mp_model_read_tensor(model, name, offset, bytes, out, &found);
    return status || !view ? status : MP_CONFIG_WRITE(view, found);
}

const char *moepage_model_config_json(const moepage_model *model)
{
    if (mp_handle_check(model, MP_KIND_MODEL))
        return NULL;
    return mp_model_config_text(model);
}

/* Gives element `i`; texts are taken one after the other, from *at on. */
static moepage_status give_element(const mp_gguf_value *value, uint64_t i, const unsigned char **at,
                                   moepage_metadata *out)
{
    mp_gguf_text text;
    bool truth;
    *out = (moepage_metadata){.is_array = value->type == MP_GGUF_ARRAY};
    if (mp_gguf_value_text(value, at, &text)) {
        out->type = MOEPAGE_METADATA_TEXT;
        out->text = text.bytes;
        out->text_bytes = text.n_bytes;
    } else if (mp_gguf_value_bool(value, i, &truth)) {
        out->type = MOEPAGE_METADATA_TRUTH;
        out->integer = truth;
    } else if (mp_gguf_value_int(value, i, &out->integer)) {
        out->type = MOEPAGE_METADATA_INTEGER;
    } else if (mp_gguf_value_real(value, i, &out->real)) {
        out->type = MOEPAGE_METADATA_REAL;
    } else {
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "metadata key \"%.160s\" has an integer past 2^63 - 1", value->key);
    }
    return MOEPAGE_OK;
}

/* Checks all elements before any is written: a failed call changes nothing. */
static moepage_status give_elements(const mp_gguf_value *value, uint64_t first, uint64_t n,
                                    moepage_metadata *out)
{
    const unsigned char *at = NULL;
    moepage_metadata element;
    mp_gguf_text text;
    moepage_status status = MOEPAGE_OK;
    for (uint64_t i = 0; i < n && !status && value->element == MP_GGUF_U64; i++)
        status = give_element(value, first + i, &at, &element);
    for (uint64_t i = 0; i < first && value->element == MP_GGUF_TEXT; i++)
        mp_gguf_value_text(value, &at, &text);
    for (uint64_t i = 0; i < n && !status; i++)
        status = give_element(value, first + i, &at, &out[i]);
    return status;
}

moepage_status moepage_model_get_metadata(const moepage_model *model, const char *key,
                                          uint64_t first, moepage_metadata *out, uint64_t capacity,
                                          uint64_t *count)
{
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (status)
        return status;
    if (!key || !count || (!out && capacity))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", !key ? "key" : !count ? "count" : "out");
    const mp_gguf_metadata *metadata = mp_model_metadata(model);
    const mp_gguf_value *value = metadata ? mp_gguf_metadata_find(metadata, key) : NULL;
    if (!value)
        return mp_fail(MOEPAGE_E_NOT_FOUND, "no metadata key \"%.160s\"%s", key,
                       metadata ? "" : ": only GGUF files and packs of them have metadata");
    if (first > value->n)
        return mp_fail(MOEPAGE_E_ARGUMENT, "first is %llu, but \"%.160s\" has %llu elements",
                       (unsigned long long)first, key, (unsigned long long)value->n);
    status =
        give_elements(value, first, capacity < value->n - first ? capacity : value->n - first, out);
    if (!status)
        *count = value->n;
    return status;
}

int32_t moepage_model_layer_index(const moepage_model *model, uint32_t moe_layer)
{
    if (mp_handle_check(model, MP_KIND_MODEL) || moe_layer >= model->info.moe_layers)
        return -1;
    return model->layer_of_moe[moe_layer];
}
