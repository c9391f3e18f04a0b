/* Opening a GGUF model: its parts, and the directory of their tensors. */
#include "model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/model.h"

#define NO_KEY "split.no"
#define COUNT_KEY "split.count"
#define TENSORS_KEY "split.tensors.count"

#define MAX_PARTS 65535u /* COUNT_KEY is an integer of 16 bits */

/* A part's own numbers of the split. */
typedef struct split {
    uint32_t no;    /* from 0 */
    uint32_t count; /* 0 or 1: the model is not split */
    uint32_t tensors;
} split;

static moepage_status read_split(const mp_gguf_file *file, split *out)
{
    const mp_gguf_metadata *metadata = &file->metadata;
    *out = (split){0};
    moepage_status status = mp_gguf_get_uint_or(metadata, COUNT_KEY, 0, MAX_PARTS, 0, &out->count);
    if (!status && out->count > 1) {
        status = mp_gguf_get_uint(metadata, NO_KEY, 0, out->count - 1, &out->no);
        if (!status)
            status = mp_gguf_get_uint(metadata, TENSORS_KEY, 0, INT32_MAX, &out->tensors);
    }
    return status ? mp_fail_within(status, "%.200s", file->file.name) : MOEPAGE_OK;
}

/* ---- Names of parts ---- */

/* The end of a part's name, its number counted from 1. */
typedef struct suffix {
    char text[40];
} suffix;

static suffix suffix_of(uint32_t no, uint32_t count)
{
    suffix out;
    snprintf(out.text, sizeof out.text, "-%05u-of-%05u.gguf", no + 1, count);
    return out;
}

/* Checks that the path ends as that of this part, and gives the length before that end. */
static moepage_status find_stem(const char *path, const split *of, size_t *stem)
{
    suffix end = suffix_of(of->no, of->count);
    size_t n = strlen(path), m = strlen(end.text);
    *stem = n < m ? 0 : n - m;
    if (n > m && strcmp(path + *stem, end.text) == 0)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "%.200s: is part %u of %u by its metadata, its name must then end in %s",
                   mp_path_name(path), of->no + 1, of->count, end.text);
}

static char *part_path(const char *path, size_t stem, uint32_t no, uint32_t count)
{
    suffix end = suffix_of(no, count);
    size_t bytes = stem + sizeof end.text;
    char *part = mp_alloc(bytes);
    if (part)
        snprintf(part, bytes, "%.*s%s", (int)stem, path, end.text);
    return part;
}

static moepage_status fail_not_first(const char *path, size_t stem, const split *of)
{
    char *first = part_path(path, stem, 0, of->count);
    if (!first)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    moepage_status status =
        mp_fail(MOEPAGE_E_UNSUPPORTED, "%.160s: is part %u of %u; open the first, %.160s",
                mp_path_name(path), of->no + 1, of->count, mp_path_name(first));
    mp_free(first);
    return status;
}

/* ---- Parts ---- */

static moepage_status add_file(mp_gguf *gguf, const char *path)
{
    mp_gguf_file *file = mp_alloc(sizeof *file);
    if (!file)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a file");
    moepage_status status = mp_gguf_file_open(path, file);
    if (status) {
        mp_free(file);
        return status;
    }
    gguf->files[gguf->n_files++] = file;
    gguf->n_tensors += file->n_tensors;
    return MOEPAGE_OK;
}

/* Checks that a part's numbers of the split agree with the first part's and with its name. */
static moepage_status check_part(const mp_gguf_file *file, uint32_t no, const split *first)
{
    split own;
    moepage_status status = read_split(file, &own);
    if (status)
        return status;
    if (own.count != first->count || own.tensors != first->tensors)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: belongs to a model of %u parts and %u tensors, the first part to "
                       "one of %u parts and %u tensors",
                       file->file.name, own.count, own.tensors, first->count, first->tensors);
    if (own.no != no)
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: is part %u by its metadata, part %u by its name",
                       file->file.name, own.no + 1, no + 1);
    return MOEPAGE_OK;
}

static moepage_status add_part(mp_gguf *gguf, const char *path, size_t stem, uint32_t no,
                               const split *first)
{
    char *part = part_path(path, stem, no, first->count);
    if (!part)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a path");
    moepage_status status = add_file(gguf, part);
    mp_free(part);
    if (status == MOEPAGE_E_NOT_FOUND)
        return mp_fail_within(status, "part %u of %u is missing", no + 1, first->count);
    return status ? status : check_part(gguf->files[no], no, first);
}

static moepage_status add_parts(mp_gguf *gguf, const char *path, const split *first)
{
    size_t stem;
    moepage_status status = find_stem(path, first, &stem);
    if (status)
        return status;
    if (first->no != 0)
        return fail_not_first(path, stem, first);
    mp_gguf_file **files = mp_realloc(gguf->files, first->count * sizeof *files);
    if (!files)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u files", first->count);
    gguf->files = files;
    for (uint32_t no = 1; !status && no < first->count; no++)
        status = add_part(gguf, path, stem, no, first);
    if (!status && gguf->n_tensors != first->tensors)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: the model has %u tensors by its metadata, its %u parts have %llu",
                       gguf->files[0]->file.name, first->tensors, first->count,
                       (unsigned long long)gguf->n_tensors);
    return status;
}

static moepage_status open_files(mp_gguf *gguf, const char *path)
{
    split first;
    gguf->files = mp_alloc(sizeof *gguf->files);
    if (!gguf->files)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a file");
    moepage_status status = add_file(gguf, path);
    if (!status)
        status = read_split(gguf->files[0], &first);
    return status || first.count < 2 ? status : add_parts(gguf, path, &first);
}

/* ---- The directory ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(mp_gguf_tensor *const *)a)->name, (*(mp_gguf_tensor *const *)b)->name);
}

static moepage_status check_names(const mp_gguf *gguf)
{
    for (uint64_t i = 1; i < gguf->n_tensors; i++) {
        const mp_gguf_tensor *a = gguf->tensors[i - 1], *b = gguf->tensors[i];
        if (strcmp(a->name, b->name) != 0)
            continue;
        if (a->file == b->file)
            return mp_fail(MOEPAGE_E_FORMAT, "%.200s: tensor \"%.160s\" is there twice",
                           a->file->file.name, a->name);
        return mp_fail(MOEPAGE_E_FORMAT, "tensor \"%.160s\" is in two files, %.120s and %.120s",
                       a->name, a->file->file.name, b->file->file.name);
    }
    return MOEPAGE_OK;
}

static moepage_status build_directory(mp_gguf *gguf)
{
    gguf->tensors = mp_alloc_array(gguf->n_tensors, sizeof *gguf->tensors);
    if (!gguf->tensors)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a directory of %llu tensors",
                       (unsigned long long)gguf->n_tensors);
    uint64_t n = 0;
    for (uint32_t f = 0; f < gguf->n_files; f++)
        for (uint64_t i = 0; i < gguf->files[f]->n_tensors; i++) {
            gguf->tensors[n] = &gguf->files[f]->tensors[i];
            gguf->tensor_bytes += gguf->tensors[n++]->bytes;
        }
    if (n)
        qsort(gguf->tensors, n, sizeof *gguf->tensors, by_name);
    return check_names(gguf);
}

moepage_status mp_gguf_open(const char *path, mp_gguf **out)
{
    mp_gguf *gguf = mp_alloc(sizeof *gguf);
    if (!gguf)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model's files");
    moepage_status status = open_files(gguf, path);
    if (!status)
        status = build_directory(gguf);
    if (status) {
        mp_gguf_close(gguf);
        return status;
    }
    *out = gguf;
    return MOEPAGE_OK;
}

void mp_gguf_close(mp_gguf *gguf)
{
    if (!gguf)
        return;
    for (uint32_t i = 0; i < gguf->n_files; i++) {
        mp_gguf_file_close(gguf->files[i]);
        mp_free(gguf->files[i]);
    }
    mp_free(gguf->files);
    mp_free(gguf->tensors);
    mp_free(gguf->dense);
    for (uint64_t i = 0; i < gguf->n_computed; i++)
        mp_dense_free(gguf->computed[i].tensor.held);
    mp_free(gguf->computed);
    mp_free(gguf);
}

const mp_gguf_metadata *mp_gguf_metadata_of(const mp_gguf *gguf)
{
    return &gguf->files[0]->metadata;
}

uint64_t mp_gguf_lower_bound(const mp_gguf *gguf, const char *name)
{
    uint64_t first = 0, n = gguf->n_tensors;
    while (n) {
        uint64_t half = n / 2;
        if (strcmp(gguf->tensors[first + half]->name, name) < 0) {
            first += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return first;
}

mp_gguf_tensor *mp_gguf_find(const mp_gguf *gguf, const char *name)
{
    uint64_t i = mp_gguf_lower_bound(gguf, name);
    if (i == gguf->n_tensors || strcmp(gguf->tensors[i]->name, name) != 0)
        return NULL;
    return gguf->tensors[i];
}

moepage_status mp_gguf_require(const mp_gguf *gguf, const char *name, mp_gguf_tensor **out)
{
    *out = mp_gguf_find(gguf, name);
    if (!*out)
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "%.120s: no tensor \"%.200s\" among the %llu in %u file%s",
                       gguf->files[0]->file.name, name, (unsigned long long)gguf->n_tensors,
                       gguf->n_files, gguf->n_files == 1 ? "" : "s");
    return MOEPAGE_OK;
}

bool mp_gguf_is_dense(const mp_gguf_tensor *tensor)
{
    return !tensor->routed && !tensor->is_part;
}

moepage_status mp_gguf_list_dense(mp_gguf *gguf)
{
    gguf->dense = mp_alloc_array(gguf->n_tensors, sizeof *gguf->dense);
    if (!gguf->dense)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of %llu tensors",
                       (unsigned long long)gguf->n_tensors);
    for (uint64_t i = 0; i < gguf->n_tensors; i++)
        if (mp_gguf_is_dense(gguf->tensors[i]))
            gguf->dense[gguf->n_dense++] = gguf->tensors[i];
    return MOEPAGE_OK;
}
