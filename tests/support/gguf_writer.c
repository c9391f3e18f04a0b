/* Writing small GGUF files. */
#include "gguf_writer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "testing.h"

void gguf_init(gguf_writer *w)
{
    memset(w, 0, sizeof *w);
    w->version = 3;
    w->alignment = 32;
}

void gguf_free(gguf_writer *w)
{
    for (uint32_t i = 0; i < w->n_tensors; i++)
        free(w->tensors[i].data);
    free(w->values.at);
    gguf_init(w);
}

void gguf_append(gguf_bytes *to, const void *bytes, size_t n_bytes)
{
    to->at = realloc(to->at, to->n + n_bytes + 1);
    assert_non_null(to->at);
    if (n_bytes)
        memcpy(to->at + to->n, bytes, n_bytes);
    to->n += n_bytes;
}

void gguf_append_uint(gguf_bytes *to, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++, value /= 256)
        gguf_append(to, &(unsigned char){(unsigned char)(value % 256)}, 1);
}

void gguf_append_text(gguf_bytes *to, const char *text)
{
    gguf_append_uint(to, strlen(text), 8);
    gguf_append(to, text, strlen(text));
}

/* ---- Metadata ---- */

void gguf_key(gguf_writer *w, const char *key, uint32_t type)
{
    gguf_append_text(&w->values, key);
    gguf_append_uint(&w->values, type, 4);
    w->n_values++;
}

void gguf_u32(gguf_writer *w, const char *key, uint32_t value)
{
    gguf_key(w, key, W_U32);
    gguf_append_uint(&w->values, value, 4);
}

void gguf_u16(gguf_writer *w, const char *key, uint16_t value)
{
    gguf_key(w, key, W_U16);
    gguf_append_uint(&w->values, value, 2);
}

void gguf_f32(gguf_writer *w, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    gguf_key(w, key, W_F32);
    gguf_append_uint(&w->values, bits, 4);
}

void gguf_bool(gguf_writer *w, const char *key, bool value)
{
    gguf_key(w, key, W_BOOL);
    gguf_append_uint(&w->values, value, 1);
}

void gguf_text(gguf_writer *w, const char *key, const char *value)
{
    gguf_key(w, key, W_TEXT);
    gguf_append_text(&w->values, value);
}

void gguf_array(gguf_writer *w, const char *key, uint32_t element, uint64_t n)
{
    gguf_key(w, key, W_ARRAY);
    gguf_append_uint(&w->values, element, 4);
    gguf_append_uint(&w->values, n, 8);
}

void gguf_clear_values(gguf_writer *w)
{
    free(w->values.at);
    w->values = (gguf_bytes){0};
    w->n_values = 0;
}

/* ---- Tensors ---- */

uint64_t gguf_type_bytes(uint32_t type, uint64_t n)
{
    switch (type) {
    case GGML_F32:
    case GGML_I32: return n * 4;
    case GGML_F16:
    case GGML_BF16:
    case GGML_I16: return n * 2;
    case GGML_I64:
    case GGML_F64: return n * 8;
    case GGML_I8:
    case GGML_UNKNOWN: return n;
    case GGML_Q4_0: return n / 32 * (2 + 16);
    case GGML_Q4_1: return n / 32 * (2 + 2 + 16);
    case GGML_Q5_0: return n / 32 * (2 + 4 + 16);
    case GGML_Q5_1: return n / 32 * (2 + 2 + 4 + 16);
    case GGML_Q8_0: return n / 32 * (2 + 32);
    case GGML_Q2_K: return n / 256 * (16 + 64 + 2 + 2);
    case GGML_Q3_K: return n / 256 * (32 + 64 + 12 + 2);
    case GGML_Q4_K: return n / 256 * (2 + 2 + 12 + 128);
    case GGML_Q5_K: return n / 256 * (2 + 2 + 12 + 32 + 128);
    case GGML_Q6_K: return n / 256 * (128 + 64 + 16 + 2);
    case GGML_IQ4_NL: return n / 32 * (2 + 16);
    case GGML_IQ4_XS: return n / 256 * (2 + 2 + 4 + 128);
    case GGML_MXFP4: return n / 32 * (1 + 16);
    case GGML_NVFP4: return n / 64 * (4 + 32);
    }
    fail_msg("type %u is not one of the writer's", type);
    return 0;
}

void gguf_reshape(gguf_made *tensor, uint32_t type, uint32_t rank, const uint64_t *shape)
{
    uint64_t n = 1;
    assert_in_range(rank, 0, 8);
    tensor->type = type;
    tensor->rank = rank;
    for (uint32_t i = 0; i < rank; i++)
        n *= tensor->shape[i] = shape[i];
    tensor->bytes = gguf_type_bytes(type, n);
    free(tensor->data);
    tensor->data = malloc(tensor->bytes + 1);
    assert_non_null(tensor->data);
    for (uint64_t i = 0; i < tensor->bytes; i++)
        tensor->data[i] = maker_byte(tensor->name, i);
}

gguf_made *gguf_tensor(gguf_writer *w, uint32_t type, uint32_t rank, const uint64_t *shape,
                       const char *format, ...)
{
    assert_in_range(w->n_tensors, 0, GGUF_MAX_TENSORS - 1);
    gguf_made *tensor = &w->tensors[w->n_tensors++];
    memset(tensor, 0, sizeof *tensor);
    va_list args;
    va_start(args, format);
    vsnprintf(tensor->name, sizeof tensor->name, format, args);
    va_end(args);
    gguf_reshape(tensor, type, rank, shape);
    return tensor;
}

gguf_made *gguf_made_of(gguf_writer *w, const char *name)
{
    for (uint32_t i = 0; i < w->n_tensors; i++)
        if (strcmp(w->tensors[i].name, name) == 0)
            return &w->tensors[i];
    fail_msg("no tensor %s was made", name);
    return NULL;
}

void gguf_remove(gguf_writer *w, const char *name)
{
    gguf_made *tensor = gguf_made_of(w, name);
    free(tensor->data);
    w->n_tensors--;
    memmove(tensor, tensor + 1, (size_t)(w->tensors + w->n_tensors - tensor) * sizeof *tensor);
}

/* ---- The file ---- */

static void pad(gguf_bytes *file, uint64_t alignment)
{
    while (file->n % alignment)
        gguf_append_uint(file, 0, 1);
}

unsigned char *gguf_whole(gguf_writer *w, size_t *n_bytes)
{
    gguf_bytes file = {0};
    gguf_append(&file, "GGUF", 4);
    gguf_append_uint(&file, w->version, 4);
    gguf_append_uint(&file, w->n_tensors + w->more_tensors, 8);
    gguf_append_uint(&file, w->n_values + w->more_values, 8);
    gguf_append(&file, w->values.at, w->values.n);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        gguf_made *tensor = &w->tensors[i];
        tensor->offset = offset;
        gguf_append_text(&file, tensor->name);
        gguf_append_uint(&file, tensor->rank, 4);
        for (uint32_t d = 0; d < tensor->rank; d++)
            gguf_append_uint(&file, tensor->shape[d], 8);
        gguf_append_uint(&file, tensor->type, 4);
        gguf_append_uint(&file, offset + tensor->lie, 8);
        offset += (tensor->bytes + w->alignment - 1) / w->alignment * w->alignment;
    }
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        pad(&file, w->alignment);
        gguf_append(&file, w->tensors[i].data, w->tensors[i].bytes);
    }
    *n_bytes = file.n;
    return file.at;
}

void gguf_write(gguf_writer *w, const char *dir, const char *name)
{
    size_t n_bytes;
    unsigned char *bytes = gguf_whole(w, &n_bytes);
    maker_write(dir, name, bytes, n_bytes);
    free(bytes);
}
