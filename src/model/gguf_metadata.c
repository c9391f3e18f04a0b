/* Reads the keys and values of a GGUF file's header. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_values.h"

#define MAX_NAME 65535u /* bytes: the format's own limit for keys */

/* The least that a key with its value takes: a length, one byte, a type, and a value of one byte. */
#define LEAST_VALUE_BYTES 14u

/* Returns the bytes of one element; 0 for texts, whose lengths differ, and for unknown types. */
static uint32_t element_bytes(uint32_t type)
{
    static const unsigned char bytes[] = {
        [MP_GGUF_U8] = 1,  [MP_GGUF_I8] = 1,  [MP_GGUF_U16] = 2, [MP_GGUF_I16] = 2,
        [MP_GGUF_U32] = 4, [MP_GGUF_I32] = 4, [MP_GGUF_F32] = 4, [MP_GGUF_BOOL] = 1,
        [MP_GGUF_U64] = 8, [MP_GGUF_I64] = 8, [MP_GGUF_F64] = 8,
    };
    return type < sizeof bytes ? bytes[type] : 0;
}

moepage_status mp_gguf_take_name(mp_gguf_cursor *from, const unsigned char **out, uint32_t *n_bytes)
{
    uint64_t n = 0;
    moepage_status status = mp_gguf_take_text(from, out, &n);
    if (status)
        return status;
    if (n < 1 || n > MAX_NAME)
        return mp_fail(MOEPAGE_E_FORMAT, "the name has %llu bytes, it must have 1 to %u",
                       (unsigned long long)n, MAX_NAME);
    for (uint64_t i = 0; i < n; i++)
        if ((*out)[i] < 0x20 || (*out)[i] == 0x7f)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "byte %llu of the name is 0x%02x, which is no printable character",
                           (unsigned long long)i, (*out)[i]);
    *n_bytes = (uint32_t)n;
    return MOEPAGE_OK;
}

/* ---- One value ---- */

static moepage_status skip_texts(mp_gguf_cursor *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *bytes;
        uint64_t n_bytes;
        moepage_status status = mp_gguf_take_text(from, &bytes, &n_bytes);
        if (status)
            return mp_fail_within(status, "text %llu of %llu", (unsigned long long)i,
                                  (unsigned long long)n);
    }
    return MOEPAGE_OK;
}

static moepage_status check_truths(const unsigned char *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] > 1)
            return mp_fail(MOEPAGE_E_FORMAT, "a truth value is %u, it must be 0 or 1", bytes[i]);
    return MOEPAGE_OK;
}

/* Takes value->n elements and checks all that a reader of them will rely on. */
static moepage_status take_elements(mp_gguf_cursor *from, mp_gguf_value *value)
{
    if (value->element == MP_GGUF_TEXT)
        return skip_texts(from, value->n);
    uint32_t element = element_bytes(value->element);
    if (value->element == MP_GGUF_ARRAY)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "it is an array of arrays, which is not read");
    if (!element)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "its type is %u, known are 0 to %d", value->element,
                       MP_GGUF_F64);
    if (value->n > from->left / element)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%llu elements of %u bytes are needed where %llu bytes remain: truncated, "
                       "or damaged",
                       (unsigned long long)value->n, element, (unsigned long long)from->left);
    const unsigned char *bytes;
    moepage_status status = mp_gguf_take(from, value->n * element, &bytes);
    if (!status && value->element == MP_GGUF_BOOL)
        status = check_truths(bytes, value->n);
    return status;
}

static moepage_status read_value(mp_gguf_cursor *from, mp_gguf_value *value)
{
    moepage_status status = mp_gguf_take32(from, &value->type);
    if (status)
        return status;
    value->element = value->type;
    value->n = 1;
    if (value->type == MP_GGUF_ARRAY) {
        status = mp_gguf_take32(from, &value->element);
        if (!status)
            status = mp_gguf_take64(from, &value->n);
    }
    if (status)
        return status;
    value->at = from->at;
    status = take_elements(from, value);
    value->n_bytes = (uint64_t)(from->at - value->at);
    return status;
}

/* ---- All ---- */

/* Reads one key and its value. The key points into the file, without a NUL, for as long as its
 * length is not lost. */
static moepage_status read_pair(mp_gguf_cursor *from, uint64_t i, uint64_t n, mp_gguf_value *value,
                                uint32_t *key_bytes)
{
    const unsigned char *key;
    moepage_status status = mp_gguf_take_name(from, &key, key_bytes);
    if (status)
        return mp_fail_within(status, "metadata key %llu of %llu", (unsigned long long)i,
                              (unsigned long long)n);
    value->key = (const char *)key;
    status = read_value(from, value);
    if (status)
        return mp_fail_within(status, "metadata key \"%.*s\"",
                              (int)(*key_bytes < 160 ? *key_bytes : 160), (const char *)key);
    return MOEPAGE_OK;
}

/* Copies the keys and ends each with a NUL. */
static moepage_status copy_keys(mp_gguf_metadata *metadata, const uint32_t *key_bytes)
{
    size_t n_bytes = 0;
    for (uint64_t i = 0; i < metadata->n_values; i++)
        n_bytes += key_bytes[i] + 1;
    char *key = metadata->keys = mp_alloc(n_bytes);
    if (!key)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu metadata keys",
                       (unsigned long long)metadata->n_values);
    for (uint64_t i = 0; i < metadata->n_values; i++) {
        metadata->values[i].key = memcpy(key, metadata->values[i].key, key_bytes[i]);
        key += key_bytes[i] + 1;
    }
    return MOEPAGE_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const mp_gguf_value *)a)->key, ((const mp_gguf_value *)b)->key);
}

static moepage_status sort_keys(mp_gguf_metadata *metadata)
{
    if (metadata->n_values)
        qsort(metadata->values, metadata->n_values, sizeof *metadata->values, by_key);
    for (uint64_t i = 1; i < metadata->n_values; i++)
        if (strcmp(metadata->values[i - 1].key, metadata->values[i].key) == 0)
            return mp_fail(MOEPAGE_E_FORMAT, "metadata key \"%.160s\" is there twice",
                           metadata->values[i].key);
    return MOEPAGE_OK;
}

static moepage_status read_pairs(mp_gguf_cursor *from, uint64_t n, mp_gguf_metadata *out,
                                 uint32_t *key_bytes)
{
    moepage_status status = MOEPAGE_OK;
    for (uint64_t i = 0; !status && i < n; i++)
        status = read_pair(from, i, n, &out->values[i], &key_bytes[i]);
    if (status)
        return status;
    out->n_values = n;
    status = copy_keys(out, key_bytes);
    return status ? status : sort_keys(out);
}

moepage_status mp_gguf_metadata_read(mp_gguf_cursor *from, uint64_t n_values, mp_gguf_metadata *out)
{
    if (n_values > from->left / LEAST_VALUE_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "the header claims %llu metadata keys, for which the remaining %llu bytes "
                       "have no room",
                       (unsigned long long)n_values, (unsigned long long)from->left);
    out->stored = from->at;
    uint32_t *key_bytes = mp_alloc_array(n_values, sizeof *key_bytes);
    out->values = mp_alloc_array(n_values, sizeof *out->values);
    moepage_status status;
    if (!key_bytes || !out->values)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu metadata values",
                         (unsigned long long)n_values);
    else
        status = read_pairs(from, n_values, out, key_bytes);
    out->stored_bytes = (uint64_t)(from->at - out->stored);
    mp_free(key_bytes);
    return status;
}

void mp_gguf_metadata_free(mp_gguf_metadata *metadata)
{
    mp_free(metadata->values);
    mp_free(metadata->keys);
    *metadata = (mp_gguf_metadata){0};
}
