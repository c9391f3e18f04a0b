/* Checking an opened GGUF model: values and tensors inside their files, tensors painted over the
 * file's bytes, sizes by the writer's own table. */
#include "gguf_sound.h"

#include <stdlib.h>
#include <string.h>

#include "gguf_writer.h"

/* Uses the sum, so that no compiler leaves the reading out. */
static void keep(uint64_t sum)
{
    volatile uint64_t kept = sum;
    (void)kept;
}

static const char *check_texts(const mp_gguf_value *value, uint64_t *sum)
{
    const unsigned char *at = NULL, *end = value->at + value->n_bytes;
    mp_gguf_text text;
    uint64_t n = 0;
    while (mp_gguf_value_text(value, &at, &text)) {
        const unsigned char *bytes = (const unsigned char *)text.bytes;
        if (bytes < value->at || bytes > end || text.n_bytes > (uint64_t)(end - bytes))
            return "a text reaches out of its value";
        for (uint64_t i = 0; i < text.n_bytes; i++)
            *sum += bytes[i];
        n++;
    }
    return n == value->n && at == end ? NULL : "a value has not as many texts as it says";
}

/* Returns true for a number without a sign that none with one in 64 bits is. */
static bool is_too_large(const mp_gguf_value *value, uint64_t i)
{
    return value->element == MP_GGUF_U64 && value->at[8 * i + 7] & 0x80;
}

/* Reads every element in every way; only that of its type may give something. */
static const char *check_elements(const mp_gguf_value *value, uint64_t *sum)
{
    for (uint64_t i = 0; i < value->n; i++) {
        int64_t number = 0;
        double real = 0;
        bool truth = false;
        const int ways = mp_gguf_value_int(value, i, &number) +
                         mp_gguf_value_real(value, i, &real) + mp_gguf_value_bool(value, i, &truth);
        if (ways != !is_too_large(value, i))
            return "an element is of no type or of two";
        *sum += (uint64_t)number + truth + (real > 0);
    }
    return NULL;
}

static const char *check_value(const mp_gguf_file *file, const mp_gguf_value *value)
{
    static const unsigned char sizes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t sum = 0;
    if (value->type > 12 || value->element > 12 || value->element == W_ARRAY)
        return "a value's type is none";
    if (value->type != W_ARRAY && (value->element != value->type || value->n != 1))
        return "a value that is no array has elements";
    if (value->at < file->header || value->n_bytes > file->header_bytes ||
        (uint64_t)(value->at - file->header) > file->header_bytes - value->n_bytes)
        return "a value reaches out of the header";
    const char *wrong;
    if (value->element == W_TEXT) {
        wrong = check_texts(value, &sum);
    } else {
        wrong = check_elements(value, &sum);
        if (value->n_bytes != value->n * sizes[value->element])
            wrong = "a value has more bytes than its elements";
    }
    keep(sum);
    return wrong;
}

static const char *check_values(const mp_gguf_file *file)
{
    for (uint64_t i = 0; i < file->metadata.n_values; i++) {
        const mp_gguf_value *value = &file->metadata.values[i];
        if (i && strcmp(value[-1].key, value->key) >= 0)
            return "two keys are not in order";
        if (mp_gguf_metadata_find(&file->metadata, value->key) != value)
            return "a key is not found";
        const char *wrong = check_value(file, value);
        if (wrong)
            return wrong;
    }
    return NULL;
}

static const char *check_size(const mp_gguf_tensor *tensor)
{
    unsigned __int128 weights = 1;
    if (tensor->rank > MOEPAGE_MAX_RANK)
        return "a tensor has too many dimensions";
    for (uint32_t i = 0; i < tensor->rank; i++)
        weights *= tensor->shape[i];
    if (!tensor->sized)
        return tensor->dtype || !weights != !tensor->bytes ? "a tensor has a size from nowhere"
                                                           : NULL;
    if (weights > UINT64_MAX || gguf_type_bytes(tensor->ggml_type, weights) != tensor->bytes)
        return "a tensor's size is not that of its dimensions";
    return NULL;
}

static const char *paint(const mp_gguf_tensor *tensor, unsigned char *painted)
{
    unsigned char *bytes;
    uint64_t sum = 0;
    if (mp_model_file_load(&tensor->file->file, tensor->offset, tensor->bytes, &bytes))
        return "a tensor cannot be read";
    for (uint64_t i = 0; i < tensor->bytes; i++) {
        sum ^= bytes[i];
        if (painted[tensor->offset + i]++) {
            free(bytes);
            return "two tensors overlap";
        }
    }
    free(bytes);
    keep(sum);
    return NULL;
}

static const char *check_tensors(const mp_gguf_file *file, unsigned char *painted)
{
    const char *wrong = NULL;
    for (uint64_t i = 0; !wrong && i < file->n_tensors; i++) {
        const mp_gguf_tensor *tensor = &file->tensors[i];
        if (tensor->file != file)
            return "a tensor is in another file than it says";
        if (tensor->offset > file->file.bytes || tensor->bytes > file->file.bytes - tensor->offset)
            return "a tensor reaches out of the file";
        if (tensor->offset % file->alignment)
            return "a tensor is not aligned";
        wrong = check_size(tensor);
        if (!wrong)
            wrong = paint(tensor, painted);
    }
    return wrong;
}

static const char *check_file(const mp_gguf_file *file)
{
    unsigned char *painted = calloc(file->file.bytes, 1);
    const char *wrong = painted ? check_values(file) : "no memory";
    if (!wrong)
        wrong = check_tensors(file, painted);
    free(painted);
    return wrong;
}

uint64_t gguf_stored_bytes(const mp_gguf_tensor *tensor)
{
    const mp_computed *computed = tensor->computed;
    const mp_repack_source *stored = computed ? &computed->how.sources[0] : NULL;
    return stored ? stored->rows * stored->row_bytes : tensor->bytes;
}

const char *gguf_unsound(const mp_gguf *gguf)
{
    const char *wrong = NULL;
    uint64_t n = 0, bytes = 0;
    for (uint32_t f = 0; !wrong && f < gguf->n_files; n += gguf->files[f++]->n_tensors)
        wrong = check_file(gguf->files[f]);
    for (uint64_t i = 0; !wrong && i < gguf->n_tensors; i++) {
        bytes += gguf_stored_bytes(gguf->tensors[i]);
        if (i && strcmp(gguf->tensors[i - 1]->name, gguf->tensors[i]->name) >= 0)
            wrong = "two tensors are not in order";
        if (mp_gguf_find(gguf, gguf->tensors[i]->name) != gguf->tensors[i])
            wrong = "a tensor is not found";
    }
    if (!wrong && (n != gguf->n_tensors || bytes != gguf->tensor_bytes))
        wrong = "the directory does not add up";
    return wrong;
}
