/* Validating a .gguf file. */
#include "model/gguf_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/file.h"
#include "model/ggml_type.h"
#include "model/model.h"

#define MAGIC "GGUF"
#define OLDEST_VERSION 2u
#define NEWEST_VERSION 3u

/* What is read at first, and what a header may have at most: those of the largest vocabularies have a
 * tenth of it. */
#define FIRST_BYTES 65536u
#define MAX_HEADER (256u << 20)

#define ALIGNMENT_KEY "general.alignment"
#define DEFAULT_ALIGNMENT 32u
#define LEAST_ALIGNMENT 8u /* the format's own, and the most that elements of a dtype need */

/* The least that a tensor's description takes: a name of one byte, no dimensions, type, offset. */
#define LEAST_TENSOR_BYTES 25u

/* The file and its unread rest, while the header is being read. */
typedef struct reading {
    mp_gguf_file *file;
    mp_gguf_cursor at;
    uint64_t n_tensors, n_values; /* as the header claims */
    uint32_t *name_bytes;         /* [n_tensors] */
    uint64_t data;                /* offset of the data section */
} reading;

/* ---- The header's first bytes ---- */

static moepage_status check_version(uint32_t version)
{
    if (version >= OLDEST_VERSION && version <= NEWEST_VERSION)
        return MOEPAGE_OK;
    uint32_t swapped = __builtin_bswap32(version);
    if (swapped >= 1 && swapped <= NEWEST_VERSION)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the file is GGUF version %u in big-endian order, only little-endian files "
                       "are read",
                       swapped);
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "the file is GGUF version %u, versions %u and %u are read", version,
                   OLDEST_VERSION, NEWEST_VERSION);
}

static moepage_status read_start(reading *from)
{
    const unsigned char *magic;
    uint32_t version = 0;
    moepage_status status = mp_gguf_take(&from->at, strlen(MAGIC), &magic);
    if (status)
        return status;
    if (memcmp(magic, MAGIC, strlen(MAGIC)) != 0)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the file does not start with \"" MAGIC "\": not a .gguf file");
    status = mp_gguf_take32(&from->at, &version);
    if (!status)
        status = check_version(version);
    if (!status)
        status = mp_gguf_take64(&from->at, &from->n_tensors);
    if (!status)
        status = mp_gguf_take64(&from->at, &from->n_values);
    return status;
}

static moepage_status read_alignment(mp_gguf_file *file)
{
    uint32_t alignment;
    moepage_status status = mp_gguf_get_uint_or(&file->metadata, ALIGNMENT_KEY, LEAST_ALIGNMENT,
                                                1u << 31, DEFAULT_ALIGNMENT, &alignment);
    if (status)
        return status;
    if (alignment & (alignment - 1))
        return mp_fail(MOEPAGE_E_FORMAT,
                       "metadata key \"" ALIGNMENT_KEY "\" is %u, it must be a power of two",
                       alignment);
    file->alignment = alignment;
    return MOEPAGE_OK;
}

/* ---- Descriptions of tensors ---- */

static moepage_status read_shape(mp_gguf_cursor *from, mp_gguf_tensor *tensor)
{
    moepage_status status = mp_gguf_take32(from, &tensor->rank);
    if (!status && tensor->rank > MOEPAGE_MAX_RANK)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "it has %u dimensions, at most %d are read",
                       tensor->rank, MOEPAGE_MAX_RANK);
    for (uint32_t i = 0; !status && i < tensor->rank; i++)
        status = mp_gguf_take64(from, &tensor->shape[i]);
    return status;
}

/* Computes the bytes of a tensor. One of unknown type counts with one byte: it begins somewhere. */
static moepage_status find_size(mp_gguf_tensor *tensor)
{
    mp_ggml_type type = {.weights = 1, .bytes = 1};
    tensor->sized = mp_ggml_type_find(tensor->ggml_type, &type);
    tensor->dtype = type.dtype;
    uint64_t first = tensor->rank ? tensor->shape[0] : 1, bytes;
    if (first % type.weights)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "its first dimension is %llu, which is no multiple of the %u weights of a "
                       "block of type %u",
                       (unsigned long long)first, type.weights, tensor->ggml_type);
    bool fits = !__builtin_mul_overflow(first / type.weights, type.bytes, &bytes);
    for (uint32_t i = 1; fits && i < tensor->rank; i++)
        fits = !__builtin_mul_overflow(bytes, tensor->shape[i], &bytes);
    if (!fits)
        return mp_fail(MOEPAGE_E_FORMAT, "its size overflows 64 bits");
    tensor->bytes = tensor->sized ? bytes : bytes > 0;
    return MOEPAGE_OK;
}

static moepage_status read_description(mp_gguf_cursor *from, mp_gguf_tensor *tensor)
{
    moepage_status status = read_shape(from, tensor);
    if (!status)
        status = mp_gguf_take32(from, &tensor->ggml_type);
    if (!status)
        status = mp_gguf_take64(from, &tensor->offset);
    return status ? status : find_size(tensor);
}

static moepage_status read_tensor(reading *from, uint64_t i)
{
    mp_gguf_tensor *tensor = &from->file->tensors[i];
    const unsigned char *name;
    moepage_status status = mp_gguf_take_name(&from->at, &name, &from->name_bytes[i]);
    if (status)
        return mp_fail_within(status, "tensor %llu of %llu", (unsigned long long)i,
                              (unsigned long long)from->n_tensors);
    tensor->file = from->file;
    tensor->name = (const char *)name; /* without a NUL until the names are copied */
    status = read_description(&from->at, tensor);
    if (status)
        return mp_fail_within(status, "tensor \"%.*s\"",
                              (int)(from->name_bytes[i] < 160 ? from->name_bytes[i] : 160),
                              tensor->name);
    return MOEPAGE_OK;
}

static moepage_status copy_names(reading *from)
{
    mp_gguf_file *file = from->file;
    size_t n_bytes = 0;
    for (uint64_t i = 0; i < file->n_tensors; i++)
        n_bytes += from->name_bytes[i] + 1;
    char *name = file->names = mp_alloc(n_bytes);
    if (!name)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the names of %llu tensors",
                       (unsigned long long)file->n_tensors);
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        file->tensors[i].name = memcpy(name, file->tensors[i].name, from->name_bytes[i]);
        name += from->name_bytes[i] + 1;
    }
    return MOEPAGE_OK;
}

static moepage_status read_tensors(reading *from)
{
    mp_gguf_file *file = from->file;
    if (from->n_tensors > from->at.left / LEAST_TENSOR_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the header claims %llu tensors, for which the remaining %llu bytes have no "
                       "room",
                       (unsigned long long)from->n_tensors, (unsigned long long)from->at.left);
    from->name_bytes = mp_alloc_array(from->n_tensors, sizeof *from->name_bytes);
    file->tensors = mp_alloc_array(from->n_tensors, sizeof *file->tensors);
    if (!from->name_bytes || !file->tensors)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu tensors",
                       (unsigned long long)from->n_tensors);
    for (uint64_t i = 0; i < from->n_tensors; i++) {
        moepage_status status = read_tensor(from, i);
        if (status)
            return status;
    }
    file->n_tensors = from->n_tensors;
    return copy_names(from);
}

/* ---- Places of tensors ---- */

/* Finds where the data section begins; a file without tensors may end before it. */
static moepage_status find_data(reading *from)
{
    const mp_gguf_file *file = from->file;
    uint64_t header = file->file.bytes - from->at.left;
    uint64_t padding = -header & (file->alignment - 1);
    if (file->n_tensors && padding > from->at.left)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the file ends at byte %llu, the tensors' data begins at %llu: truncated, "
                       "or damaged",
                       (unsigned long long)file->file.bytes,
                       (unsigned long long)(header + padding));
    from->data = header + padding;
    return MOEPAGE_OK;
}

/* Locates a tensor, whose offset so far counts from the data section. */
static moepage_status place(const reading *from, mp_gguf_tensor *tensor)
{
    const mp_gguf_file *file = from->file;
    uint64_t data_bytes = file->file.bytes - from->data;
    if (tensor->offset & (file->alignment - 1))
        return mp_fail(MOEPAGE_E_FORMAT,
                       "tensor \"%.160s\" is at offset %llu, which is no multiple of the alignment "
                       "of %llu",
                       tensor->name, (unsigned long long)tensor->offset,
                       (unsigned long long)file->alignment);
    if (tensor->offset > data_bytes || tensor->bytes > data_bytes - tensor->offset)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "tensor \"%.160s\" has %llu bytes from offset %llu of a data section of "
                       "%llu: truncated, or damaged",
                       tensor->name, (unsigned long long)tensor->bytes,
                       (unsigned long long)tensor->offset, (unsigned long long)data_bytes);
    tensor->offset += from->data;
    return MOEPAGE_OK;
}

static int by_place(const void *a, const void *b)
{
    const mp_gguf_tensor *x = *(mp_gguf_tensor *const *)a, *y = *(mp_gguf_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that no tensor begins inside the one before it, and extends tensors of unknown size as far
 * as they can be. */
static moepage_status check_places(const mp_gguf_file *file, mp_gguf_tensor **sorted)
{
    for (uint64_t i = 0; i < file->n_tensors; i++)
        sorted[i] = &file->tensors[i];
    if (file->n_tensors)
        qsort(sorted, file->n_tensors, sizeof *sorted, by_place);
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        mp_gguf_tensor *tensor = sorted[i];
        const bool last = i + 1 == file->n_tensors;
        uint64_t room = (last ? file->file.bytes : sorted[i + 1]->offset) - tensor->offset;
        if (tensor->bytes > room)
            return mp_fail(MOEPAGE_E_FORMAT, "tensors \"%.150s\" and \"%.150s\" overlap",
                           tensor->name, sorted[i + 1]->name);
        if (!tensor->sized && tensor->bytes)
            tensor->bytes = room;
    }
    return MOEPAGE_OK;
}

static moepage_status place_tensors(reading *from)
{
    mp_gguf_file *file = from->file;
    moepage_status status = find_data(from);
    for (uint64_t i = 0; !status && i < file->n_tensors; i++)
        status = place(from, &file->tensors[i]);
    if (status)
        return status;
    mp_gguf_tensor **sorted = mp_alloc_array(file->n_tensors, sizeof *sorted);
    if (!sorted)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to sort %llu tensors",
                       (unsigned long long)file->n_tensors);
    status = check_places(file, sorted);
    mp_free(sorted);
    return status;
}

/* ---- The file ---- */

/* Reads the file's first n_bytes. */
static moepage_status load_header(mp_gguf_file *file, uint64_t n_bytes)
{
    mp_free(file->header);
    file->header_bytes = n_bytes;
    return mp_model_file_load(&file->file, 0, n_bytes, &file->header);
}

/* Reads the header, or as much of it as is in memory. */
static moepage_status read_header(reading *from)
{
    mp_gguf_file *file = from->file;
    moepage_status status = read_start(from);
    if (!status)
        status = mp_gguf_metadata_read(&from->at, from->n_values, &file->metadata);
    if (!status)
        status = read_alignment(file);
    if (!status)
        status = read_tensors(from);
    if (!status)
        status = place_tensors(from);
    mp_free(from->name_bytes);
    return status;
}

static void forget_header(mp_gguf_file *file)
{
    mp_gguf_metadata_free(&file->metadata);
    mp_free(file->tensors);
    mp_free(file->names);
    file->tensors = NULL;
    file->names = NULL;
    file->n_tensors = 0;
}

/* How much of the file to try next: the header's end is nowhere stated. */
static moepage_status choose_bytes(const reading *from, uint64_t *n_bytes)
{
    const mp_gguf_file *file = from->file;
    uint64_t least = (uint64_t)(from->at.at - file->header) + from->at.held + from->at.needed;
    uint64_t twice = 2 * file->header_bytes;
    if (least > MAX_HEADER)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "its header is longer than %u bytes", MAX_HEADER);
    *n_bytes = twice > least ? twice : least;
    *n_bytes = *n_bytes < file->file.bytes ? *n_bytes : file->file.bytes;
    return MOEPAGE_OK;
}

static moepage_status read_file(mp_gguf_file *file)
{
    uint64_t n_bytes = file->file.bytes < FIRST_BYTES ? file->file.bytes : FIRST_BYTES;
    for (;;) {
        moepage_status status = load_header(file, n_bytes);
        if (status)
            return status;
        reading from = {.file = file,
                        .at = {.at = file->header, .left = file->file.bytes, .held = n_bytes}};
        status = read_header(&from);
        if (!from.at.needed)
            return status ? mp_fail_within(status, "%.200s", file->file.name) : MOEPAGE_OK;
        forget_header(file);
        status = choose_bytes(&from, &n_bytes);
        if (status)
            return mp_fail_within(status, "%.200s", file->file.name);
    }
}

moepage_status mp_gguf_file_open(const char *path, mp_gguf_file *out)
{
    memset(out, 0, sizeof *out);
    moepage_status status = mp_model_file_open(path, &out->file);
    if (!status && out->file.bytes == 0)
        status = mp_fail(MOEPAGE_E_FORMAT, "%.200s is empty", out->file.name);
    if (!status)
        status = read_file(out);
    if (!status)
        status = mp_direct_open(path, &out->file);
    if (status)
        mp_gguf_file_close(out);
    return status;
}

void mp_gguf_file_close(mp_gguf_file *file)
{
    for (uint64_t i = 0; i < file->n_tensors; i++)
        mp_dense_free(file->tensors[i].held);
    forget_header(file);
    mp_free(file->header);
    mp_model_file_close(&file->file);
    memset(file, 0, sizeof *file);
}
