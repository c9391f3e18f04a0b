/* The tensor directory of a checkpoint. */
#include "model/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/model.h"
#include "model/shards.h"

#define CONFIG_NAME "config.json"
#define CONFIG_MAX_BYTES ((size_t)16 << 20)

static moepage_status read_config(const char *dir, mp_checkpoint *checkpoint, mp_json *config)
{
    char *path = mp_path_join(dir, CONFIG_NAME);
    if (!path)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    size_t n_bytes = 0;
    moepage_status status =
        mp_file_read_text(path, CONFIG_MAX_BYTES, &checkpoint->config_text, &n_bytes);
    mp_free(path);
    if (status)
        return status;
    return mp_json_parse(CONFIG_NAME, checkpoint->config_text, n_bytes, config);
}

static moepage_status open_files(const char *dir, const mp_shards *shards,
                                 mp_checkpoint *checkpoint)
{
    checkpoint->files = mp_alloc_array(shards->n_names, sizeof *checkpoint->files);
    if (!checkpoint->files)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u files", shards->n_names);
    for (uint32_t i = 0; i < shards->n_names; i++) {
        char *path = mp_path_join(dir, shards->names[i]);
        if (!path)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
        moepage_status status = mp_safetensors_open(path, &checkpoint->files[i]);
        mp_free(path);
        if (status == MOEPAGE_E_NOT_FOUND && shards->index.root)
            return mp_fail_within(status, "%s names a missing file", shards->index.what);
        if (status)
            return status;
        checkpoint->n_files++;
        checkpoint->n_tensors += checkpoint->files[i].n_tensors;
    }
    return MOEPAGE_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(mp_tensor *const *)a)->name, (*(mp_tensor *const *)b)->name);
}

static moepage_status sort_directory(mp_checkpoint *checkpoint)
{
    const uint64_t n = checkpoint->n_tensors;
    if (n)
        qsort(checkpoint->tensors, n, sizeof *checkpoint->tensors, by_name);
    for (uint64_t i = 1; i < n; i++) {
        const mp_tensor *a = checkpoint->tensors[i - 1], *b = checkpoint->tensors[i];
        if (strcmp(a->name, b->name) != 0)
            continue;
        if (a->computed || b->computed)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "%.120s: tensor \"%.160s\" is stored, and so are parts from which it is "
                           "computed",
                           (a->computed ? b : a)->file->file.name, a->name);
        return mp_fail(MOEPAGE_E_FORMAT, "tensor \"%.160s\" is in two files, %.120s and %.120s",
                       a->name, a->file->file.name, b->file->file.name);
    }
    return MOEPAGE_OK;
}

static moepage_status build_directory(mp_checkpoint *checkpoint)
{
    checkpoint->tensors = mp_alloc_array(checkpoint->n_tensors, sizeof *checkpoint->tensors);
    if (!checkpoint->tensors)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a directory of %llu tensors",
                       (unsigned long long)checkpoint->n_tensors);
    uint64_t n = 0;
    for (uint32_t f = 0; f < checkpoint->n_files; f++)
        for (uint64_t i = 0; i < checkpoint->files[f].n_tensors; i++)
            checkpoint->tensors[n++] = &checkpoint->files[f].tensors[i];
    return sort_directory(checkpoint);
}

moepage_status mp_computed_alloc(uint64_t n, uint64_t name_bytes, mp_computed_tensors *to)
{
    to->tensors = mp_alloc_array(n, sizeof *to->tensors);
    to->computed = mp_alloc_array(n, sizeof *to->computed);
    to->names = mp_alloc_array(name_bytes, 1);
    if (to->tensors && to->computed && to->names)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %llu matrices",
                   (unsigned long long)n);
}

moepage_status mp_checkpoint_add_computed(mp_checkpoint *checkpoint)
{
    const mp_computed_tensors *computed = &checkpoint->computed;
    const uint64_t most = checkpoint->n_tensors + computed->n;
    uint64_t n = checkpoint->n_tensors;
    mp_tensor **all = mp_realloc(checkpoint->tensors, most * sizeof *all);
    if (!all)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a directory of %llu tensors",
                       (unsigned long long)most);
    checkpoint->tensors = all;
    for (uint64_t i = 0; i < computed->n; i++) {
        mp_tensor *tensor = &computed->tensors[i];
        const uint64_t at = mp_checkpoint_lower_bound(checkpoint, tensor->name);
        const bool is_in_place = at < checkpoint->n_tensors && all[at]->is_part &&
                                 strcmp(all[at]->name, tensor->name) == 0;
        all[is_in_place ? at : n++] = tensor;
    }
    checkpoint->n_tensors = n;
    return sort_directory(checkpoint);
}

/* Every tensor that the index places must be in the file where it places it. */
static moepage_status check_places(const mp_shards *shards, const mp_checkpoint *checkpoint)
{
    json_t *map = json_object_get(shards->index.root, "weight_map");
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const mp_tensor *tensor = mp_checkpoint_find(checkpoint, name);
        if (!tensor || strcmp(tensor->file->file.name, json_string_value(value)) != 0)
            return mp_fail(tensor ? MOEPAGE_E_FORMAT : MOEPAGE_E_NOT_FOUND,
                           "%s: tensor \"%.160s\" is placed in %.120s, it is %s%.120s",
                           shards->index.what, name, json_string_value(value),
                           tensor ? "in " : "in no file", tensor ? tensor->file->file.name : "");
    }
    return MOEPAGE_OK;
}

moepage_status mp_checkpoint_open(const char *dir, mp_checkpoint **out, mp_json *config)
{
    mp_shards shards = {0};
    config->root = NULL;
    mp_checkpoint *checkpoint = mp_alloc(sizeof *checkpoint);
    if (!checkpoint)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a checkpoint");
    moepage_status status = read_config(dir, checkpoint, config);
    if (status)
        goto fail;
    status = mp_shards_list(dir, &shards);
    if (status)
        goto fail;
    status = open_files(dir, &shards, checkpoint);
    if (status)
        goto fail;
    status = build_directory(checkpoint);
    if (status)
        goto fail;
    status = check_places(&shards, checkpoint);
    if (status)
        goto fail;
    mp_shards_free(&shards);
    *out = checkpoint;
    return MOEPAGE_OK;

fail:
    mp_shards_free(&shards);
    json_decref(config->root);
    config->root = NULL;
    mp_checkpoint_close(checkpoint);
    return status;
}

void mp_checkpoint_close(mp_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (uint32_t i = 0; i < checkpoint->n_files; i++)
        mp_safetensors_close(&checkpoint->files[i]);
    for (uint64_t i = 0; i < checkpoint->computed.n; i++)
        mp_dense_free(checkpoint->computed.tensors[i].held);
    mp_free(checkpoint->computed.tensors);
    mp_free(checkpoint->computed.computed);
    mp_free(checkpoint->computed.names);
    mp_free(checkpoint->files);
    mp_free(checkpoint->tensors);
    mp_free(checkpoint->dense);
    mp_free(checkpoint->config_text);
    mp_free(checkpoint);
}

uint64_t mp_checkpoint_lower_bound(const mp_checkpoint *checkpoint, const char *name)
{
    uint64_t first = 0, n = checkpoint->n_tensors;
    while (n) {
        uint64_t half = n / 2;
        if (strcmp(checkpoint->tensors[first + half]->name, name) < 0) {
            first += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return first;
}

mp_tensor *mp_checkpoint_find(const mp_checkpoint *checkpoint, const char *name)
{
    uint64_t i = mp_checkpoint_lower_bound(checkpoint, name);
    if (i == checkpoint->n_tensors || strcmp(checkpoint->tensors[i]->name, name) != 0)
        return NULL;
    return checkpoint->tensors[i];
}

moepage_status mp_checkpoint_require(const mp_checkpoint *checkpoint, const char *name,
                                     mp_tensor **out)
{
    mp_tensor *tensor = mp_checkpoint_find(checkpoint, name);
    if (!tensor)
        return mp_fail(MOEPAGE_E_NOT_FOUND, "no tensor \"%.200s\" among the %llu in %u files", name,
                       (unsigned long long)checkpoint->n_tensors, checkpoint->n_files);
    *out = tensor;
    return MOEPAGE_OK;
}

bool mp_checkpoint_is_dense(const mp_tensor *tensor)
{
    return !tensor->routed && !tensor->is_part;
}

moepage_status mp_checkpoint_list_dense(mp_checkpoint *checkpoint)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < checkpoint->n_tensors; i++)
        n += mp_checkpoint_is_dense(checkpoint->tensors[i]);
    checkpoint->dense = mp_alloc_array(n, sizeof *checkpoint->dense);
    if (!checkpoint->dense)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %llu tensors",
                       (unsigned long long)n);
    for (uint64_t i = 0; i < checkpoint->n_tensors; i++)
        if (mp_checkpoint_is_dense(checkpoint->tensors[i]))
            checkpoint->dense[checkpoint->n_dense++] = checkpoint->tensors[i];
    return MOEPAGE_OK;
}
