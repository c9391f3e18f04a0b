/* Validating a .safetensors file. */
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/status.h"
#include "model/file.h"
#include "model/model.h"

#define PREFIX_BYTES 8u
#define METADATA_KEY "__metadata__"

/* The data section and its owner while the header is being read. */
typedef struct reading {
    mp_safetensors *file;
    uint64_t data; /* offset within the file */
    uint64_t data_bytes;
    char *text; /* the header, which the parsed one points into */
    mp_json header;
} reading;

static moepage_status fail_tensor(const mp_tensor *tensor, const char *what)
{
    return mp_fail(MOEPAGE_E_FORMAT, "%.200s: tensor \"%.160s\" %s", tensor->file->file.name,
                   tensor->name, what);
}

/* Reads the length of the header, and checks that it can be one. */
static moepage_status read_prefix(const mp_safetensors *file, uint64_t *header_bytes)
{
    const char *name = file->file.name;
    uint64_t n_bytes = file->file.bytes;
    unsigned char prefix[PREFIX_BYTES];
    if (n_bytes == 0)
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s is empty", name);
    if (n_bytes < PREFIX_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: %llu bytes are too few for a .safetensors file",
                       name, (unsigned long long)n_bytes);
    moepage_status status = mp_model_file_read(&file->file, 0, PREFIX_BYTES, prefix);
    if (status)
        return status;
    *header_bytes = mp_get64(prefix);
    if (*header_bytes > n_bytes - PREFIX_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: the header claims %llu bytes where %llu remain: "
                       "truncated, or not a .safetensors file",
                       name, (unsigned long long)*header_bytes,
                       (unsigned long long)(n_bytes - PREFIX_BYTES));
    if (*header_bytes > MP_SAFETENSORS_MAX_HEADER)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: the header claims %llu bytes, the format allows %u", name,
                       (unsigned long long)*header_bytes, MP_SAFETENSORS_MAX_HEADER);
    return MOEPAGE_OK;
}

static moepage_status read_header(mp_safetensors *file, reading *out)
{
    const char *name = file->file.name;
    uint64_t header_bytes;
    out->file = file;
    moepage_status status = read_prefix(file, &header_bytes);
    if (status)
        return status;
    out->text = mp_alloc(header_bytes + 1);
    if (!out->text)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory for a header of %llu bytes", name,
                       (unsigned long long)header_bytes);
    status = mp_model_file_read(&file->file, PREFIX_BYTES, header_bytes, out->text);
    if (status)
        return status;
    if (*out->text != '{')
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: the header does not start with '{': not a "
                       ".safetensors file",
                       name);
    out->data = PREFIX_BYTES + header_bytes;
    out->data_bytes = file->file.bytes - out->data;
    return mp_json_parse(name, out->text, header_bytes, &out->header);
}

/* Checks the metadata: free text for people, but its JSON shape is part of the format. */
static moepage_status check_metadata(const reading *from)
{
    json_t *metadata = json_object_get(from->header.root, METADATA_KEY);
    if (metadata && !json_is_object(metadata))
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: " METADATA_KEY " must be an object of strings",
                       from->file->file.name);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return mp_fail(MOEPAGE_E_FORMAT, "%.200s: " METADATA_KEY ".%.100s must be a string",
                           from->file->file.name, key);
    }
    return MOEPAGE_OK;
}

static moepage_status read_dtype(const json_t *entry, mp_tensor *tensor)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return fail_tensor(tensor, "has no dtype, it must be a string such as \"BF16\"");
    tensor->type = mp_stored_dtype_find(name);
    if (!tensor->type)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%.200s: tensor \"%.160s\" has the unknown dtype "
                       "\"%.40s\"",
                       tensor->file->file.name, tensor->name, name);
    return MOEPAGE_OK;
}

/* Reads the shape and computes its bytes. */
static moepage_status read_shape(const json_t *entry, mp_tensor *tensor)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return fail_tensor(tensor, "has no shape, it must be an array of integers");
    uint64_t bits = tensor->type->bits;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return fail_tensor(tensor, "has a dimension that is not an integer of at least 0");
        uint64_t length = (uint64_t)json_integer_value(dim);
        if (__builtin_mul_overflow(bits, length, &bits))
            return fail_tensor(tensor, "has a shape whose size overflows 64 bits");
        if (i < MOEPAGE_MAX_RANK)
            tensor->shape[i] = length;
    }
    if (bits % 8)
        return fail_tensor(tensor, "does not end on a whole byte");
    tensor->rank = (uint32_t)json_array_size(shape);
    tensor->bytes = bits / 8;
    return MOEPAGE_OK;
}

static moepage_status read_span(const reading *from, const json_t *entry, mp_tensor *tensor)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return fail_tensor(tensor, "has no data_offsets [begin, end] with 0 <= begin <= end");
    uint64_t begin = (uint64_t)json_integer_value(first), end = (uint64_t)json_integer_value(last);
    if (end > from->data_bytes)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: tensor \"%.160s\" ends at byte %llu of a data "
                       "section of %llu: the file is truncated or damaged",
                       tensor->file->file.name, tensor->name, (unsigned long long)end,
                       (unsigned long long)from->data_bytes);
    if (end - begin != tensor->bytes)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: tensor \"%.160s\" has data_offsets of %llu bytes, "
                       "its shape and dtype need %llu",
                       tensor->file->file.name, tensor->name, (unsigned long long)(end - begin),
                       (unsigned long long)tensor->bytes);
    tensor->offset = from->data + begin;
    return MOEPAGE_OK;
}

static moepage_status read_tensor(const reading *from, const json_t *entry, mp_tensor *tensor)
{
    if (!json_is_object(entry))
        return fail_tensor(tensor, "must be an object with dtype, shape and data_offsets");
    moepage_status status = read_dtype(entry, tensor);
    if (!status)
        status = read_shape(entry, tensor);
    if (!status)
        status = read_span(from, entry, tensor);
    return status;
}

/* Allocates all tensors and their names: two allocations, whatever the number of tensors. */
static moepage_status reserve(const reading *from)
{
    mp_safetensors *file = from->file;
    size_t name_bytes = 0, n = 0;
    const char *key;
    json_t *value;
    json_object_foreach(from->header.root, key, value)
    {
        if (strcmp(key, METADATA_KEY) == 0)
            continue;
        name_bytes += strlen(key) + 1;
        n++;
    }
    file->names = mp_alloc(name_bytes);
    file->tensors = mp_alloc_array(n, sizeof *file->tensors);
    if (!file->names || !file->tensors)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory for the names of %zu tensors",
                       file->file.name, n);
    return MOEPAGE_OK;
}

static moepage_status read_tensors(const reading *from)
{
    mp_safetensors *file = from->file;
    char *name = file->names;
    const char *key;
    json_t *value;
    json_object_foreach(from->header.root, key, value)
    {
        if (strcmp(key, METADATA_KEY) == 0)
            continue;
        mp_tensor *tensor = &file->tensors[file->n_tensors++];
        size_t bytes = strlen(key) + 1;
        tensor->name = memcpy(name, key, bytes);
        tensor->file = file;
        name += bytes;
        moepage_status status = read_tensor(from, value, tensor);
        if (status)
            return status;
    }
    return MOEPAGE_OK;
}

static int by_place(const void *a, const void *b)
{
    const mp_tensor *x = *(mp_tensor *const *)a, *y = *(mp_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that each tensor starts where the preceding one ends and the last one ends with the file:
 * damage that moves a tensor is then detected. */
static moepage_status check_places(const reading *from, mp_tensor **sorted)
{
    const mp_safetensors *file = from->file;
    for (uint64_t i = 0; i < file->n_tensors; i++)
        sorted[i] = &file->tensors[i];
    if (file->n_tensors)
        qsort(sorted, file->n_tensors, sizeof *sorted, by_place);
    uint64_t filled = 0;
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        uint64_t begin = sorted[i]->offset - from->data;
        if (begin < filled)
            return mp_fail(MOEPAGE_E_FORMAT, "%.100s: tensors \"%.150s\" and \"%.150s\" overlap",
                           file->file.name, sorted[i - 1]->name, sorted[i]->name);
        if (begin > filled)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "%.200s: %llu bytes before tensor \"%.160s\" belong to "
                           "no tensor",
                           file->file.name, (unsigned long long)(begin - filled), sorted[i]->name);
        filled += sorted[i]->bytes;
    }
    if (filled != from->data_bytes)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: %llu bytes after the last tensor belong to no tensor",
                       file->file.name, (unsigned long long)(from->data_bytes - filled));
    return MOEPAGE_OK;
}

static moepage_status sort_and_check_places(const reading *from)
{
    mp_tensor **sorted = mp_alloc_array(from->file->n_tensors, sizeof *sorted);
    if (!sorted)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory to sort %llu tensors",
                       from->file->file.name, (unsigned long long)from->file->n_tensors);
    moepage_status status = check_places(from, sorted);
    mp_free(sorted);
    return status;
}

moepage_status mp_safetensors_open(const char *path, mp_safetensors *out)
{
    memset(out, 0, sizeof *out);
    reading from = {0};
    moepage_status status = mp_model_file_open(path, &out->file);
    if (!status)
        status = read_header(out, &from);
    if (!status)
        status = check_metadata(&from);
    if (!status)
        status = reserve(&from);
    if (!status)
        status = read_tensors(&from);
    if (!status)
        status = sort_and_check_places(&from);
    json_decref(from.header.root);
    mp_free(from.text);
    if (!status)
        status = mp_direct_open(path, &out->file);
    if (status)
        mp_safetensors_close(out);
    return status;
}

void mp_safetensors_close(mp_safetensors *file)
{
    for (uint64_t i = 0; i < file->n_tensors; i++)
        mp_dense_free(file->tensors[i].held);
    mp_free(file->tensors);
    mp_free(file->names);
    mp_model_file_close(&file->file);
    memset(file, 0, sizeof *file);
}
