/* Finds a checkpoint's files: the single file, the files of the index, or all that are present.
 *
 * The order of preference is that of the frameworks that write such directories, so that the served
 * weights are those that the frameworks would serve. */
#include "model/shards.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "model/file.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_MAX_BYTES ((size_t)256 << 20)
#define SUFFIX ".safetensors"

static bool has_suffix(const char *name)
{
    size_t n = strlen(name), m = strlen(SUFFIX);
    return n > m && strcmp(name + n - m, SUFFIX) == 0;
}

static moepage_status add_name(mp_shards *shards, uint32_t *capacity, const char *name)
{
    if (shards->n_names == *capacity) {
        uint32_t grown = *capacity ? *capacity * 2 : 16;
        char **names = mp_realloc(shards->names, grown * sizeof *names);
        if (!names)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u file names", grown);
        shards->names = names;
        *capacity = grown;
    }
    char *copy = mp_strdup(name);
    if (!copy)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a file name");
    shards->names[shards->n_names++] = copy;
    return MOEPAGE_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Accepts only plain names: an index must not lead outside its own directory. */
static moepage_status check_name(const char *tensor, const char *name)
{
    if (!name)
        return mp_fail(MOEPAGE_E_FORMAT,
                       INDEX_NAME ": the file of tensor \"%.160s\" is not a string", tensor);
    if (strchr(name, '/') || strstr(name, "..") || !has_suffix(name))
        return mp_fail(MOEPAGE_E_FORMAT,
                       INDEX_NAME ": tensor \"%.160s\" is placed in \"%.160s\": a "
                                  "plain name ending in " SUFFIX " is needed",
                       tensor, name);
    return MOEPAGE_OK;
}

/* Collects the distinct values of weight_map. Entries of one file are mostly adjacent, so a
 * comparison with the preceding one removes most repetitions; the sort removes the rest. */
static moepage_status list_indexed(mp_shards *shards)
{
    json_t *map = json_object_get(shards->index.root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return mp_fail(MOEPAGE_E_FORMAT,
                       INDEX_NAME ": \"weight_map\" must be an object that places "
                                  "at least one tensor");
    uint32_t capacity = 0;
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        moepage_status status = check_name(tensor, name);
        if (!status && shards->n_names && strcmp(shards->names[shards->n_names - 1], name) == 0)
            continue;
        if (!status)
            status = add_name(shards, &capacity, name);
        if (status)
            return status;
    }
    qsort(shards->names, shards->n_names, sizeof *shards->names, by_text);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < shards->n_names; i++) {
        if (strcmp(shards->names[kept - 1], shards->names[i]) == 0)
            mp_free(shards->names[i]);
        else
            shards->names[kept++] = shards->names[i];
    }
    shards->n_names = kept;
    return MOEPAGE_OK;
}

static moepage_status list_directory(const char *dir, mp_shards *shards)
{
    DIR *entries = opendir(dir);
    if (!entries)
        return mp_file_fail("the directory", "list");
    uint32_t capacity = 0;
    moepage_status status = MOEPAGE_OK;
    struct dirent *entry;
    while (!status && (errno = 0, entry = readdir(entries)))
        if (entry->d_name[0] != '.' && has_suffix(entry->d_name))
            status = add_name(shards, &capacity, entry->d_name);
    if (!status && errno)
        status = mp_file_fail("the directory", "list");
    closedir(entries);
    if (status)
        return status;
    if (shards->n_names == 0)
        return mp_fail(MOEPAGE_E_NOT_FOUND, "no " SUFFIX " file beside config.json: other formats "
                                            "of weights are not read");
    qsort(shards->names, shards->n_names, sizeof *shards->names, by_text);
    return MOEPAGE_OK;
}

static moepage_status read_index(const char *path, mp_shards *shards)
{
    size_t n_bytes;
    moepage_status status = mp_file_read_text(path, INDEX_MAX_BYTES, &shards->index_text, &n_bytes);
    if (status)
        return status;
    return mp_json_parse(INDEX_NAME, shards->index_text, n_bytes, &shards->index);
}

moepage_status mp_shards_list(const char *dir, mp_shards *out)
{
    memset(out, 0, sizeof *out);
    char *single = mp_path_join(dir, SINGLE_NAME), *index = mp_path_join(dir, INDEX_NAME);
    uint32_t capacity = 0;
    moepage_status status;
    if (!single || !index)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    else if (access(single, F_OK) == 0)
        status = add_name(out, &capacity, SINGLE_NAME);
    else if (access(index, F_OK) != 0)
        status = list_directory(dir, out);
    else if (!(status = read_index(index, out)))
        status = list_indexed(out);
    mp_free(single);
    mp_free(index);
    if (status)
        mp_shards_free(out);
    return status;
}

void mp_shards_free(mp_shards *shards)
{
    for (uint32_t i = 0; i < shards->n_names; i++)
        mp_free(shards->names[i]);
    mp_free(shards->names);
    mp_free(shards->index_text);
    json_decref(shards->index.root);
    memset(shards, 0, sizeof *shards);
}
