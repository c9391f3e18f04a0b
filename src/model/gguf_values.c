/* Gives the values of a GGUF file's metadata, by key and element by element. */
#include "model/gguf_values.h"

#include <string.h>

const mp_gguf_value *mp_gguf_metadata_find(const mp_gguf_metadata *metadata, const char *key)
{
    uint64_t first = 0, n = metadata->n_values;
    while (n) {
        uint64_t half = n / 2;
        int order = strcmp(metadata->values[first + half].key, key);
        if (order == 0)
            return &metadata->values[first + half];
        if (order < 0)
            first += half + 1;
        n = order < 0 ? n - half - 1 : half;
    }
    return NULL;
}

/* ---- Elements ---- */

/* Gives any integer as 64 bits in two's complement; *negative says how to read them. */
static bool read_integer(const mp_gguf_value *value, uint64_t i, uint64_t *out, bool *negative)
{
    const unsigned char *at = value->at;
    *negative = false;
    switch (value->element) {
    case MP_GGUF_U8: *out = at[i]; return true;
    case MP_GGUF_U16: *out = mp_get16(at + 2 * i); return true;
    case MP_GGUF_U32: *out = mp_get32(at + 4 * i); return true;
    case MP_GGUF_U64: *out = mp_get64(at + 8 * i); return true;
    case MP_GGUF_I8: *out = (uint64_t)(int64_t)(int8_t)at[i]; break;
    case MP_GGUF_I16: *out = (uint64_t)(int64_t)(int16_t)mp_get16(at + 2 * i); break;
    case MP_GGUF_I32: *out = (uint64_t)(int64_t)(int32_t)mp_get32(at + 4 * i); break;
    case MP_GGUF_I64: *out = mp_get64(at + 8 * i); break;
    default: return false;
    }
    *negative = *out >> 63;
    return true;
}

bool mp_gguf_value_int(const mp_gguf_value *value, uint64_t i, int64_t *out)
{
    bool negative;
    uint64_t bits;
    if (!read_integer(value, i, &bits, &negative) || (!negative && bits > INT64_MAX))
        return false;
    *out = (int64_t)bits;
    return true;
}

bool mp_gguf_value_real(const mp_gguf_value *value, uint64_t i, double *out)
{
    if (value->element == MP_GGUF_F32) {
        uint32_t bits = mp_get32(value->at + 4 * i);
        float number;
        memcpy(&number, &bits, sizeof number);
        *out = number;
        return true;
    }
    if (value->element != MP_GGUF_F64)
        return false;
    uint64_t bits = mp_get64(value->at + 8 * i);
    memcpy(out, &bits, sizeof *out);
    return true;
}

bool mp_gguf_value_bool(const mp_gguf_value *value, uint64_t i, bool *out)
{
    if (value->element != MP_GGUF_BOOL)
        return false;
    *out = value->at[i];
    return true;
}

bool mp_gguf_value_text(const mp_gguf_value *value, const unsigned char **at, mp_gguf_text *out)
{
    const unsigned char *end = value->at + value->n_bytes;
    if (!*at)
        *at = value->at;
    if (value->element != MP_GGUF_TEXT || *at == end)
        return false;
    out->n_bytes = mp_get64(*at);
    out->bytes = (const char *)*at + 8;
    *at += 8 + out->n_bytes;
    return true;
}

/* ---- By key ---- */

static moepage_status fail_missing(const char *key)
{
    return mp_fail(MOEPAGE_E_FORMAT, "metadata key \"%.160s\" is missing", key);
}

static moepage_status read_uint(const mp_gguf_value *value, uint32_t min, uint32_t max,
                                uint32_t *out)
{
    uint64_t bits;
    bool negative;
    if (value->type == MP_GGUF_ARRAY || !read_integer(value, 0, &bits, &negative))
        return mp_fail(MOEPAGE_E_FORMAT,
                       "metadata key \"%.160s\" is of type %u, it must be an integer", value->key,
                       value->type);
    if (negative)
        return mp_fail(MOEPAGE_E_FORMAT, "metadata key \"%.160s\" is %lld, it must be %u to %u",
                       value->key, (long long)bits, min, max);
    if (bits < min || bits > max)
        return mp_fail(MOEPAGE_E_FORMAT, "metadata key \"%.160s\" is %llu, it must be %u to %u",
                       value->key, (unsigned long long)bits, min, max);
    *out = (uint32_t)bits;
    return MOEPAGE_OK;
}

moepage_status mp_gguf_get_uint(const mp_gguf_metadata *metadata, const char *key, uint32_t min,
                                uint32_t max, uint32_t *out)
{
    const mp_gguf_value *value = mp_gguf_metadata_find(metadata, key);
    return value ? read_uint(value, min, max, out) : fail_missing(key);
}

moepage_status mp_gguf_get_uint_or(const mp_gguf_metadata *metadata, const char *key, uint32_t min,
                                   uint32_t max, uint32_t fallback, uint32_t *out)
{
    const mp_gguf_value *value = mp_gguf_metadata_find(metadata, key);
    *out = fallback;
    return value ? read_uint(value, min, max, out) : MOEPAGE_OK;
}

moepage_status mp_gguf_get_text(const mp_gguf_metadata *metadata, const char *key,
                                mp_gguf_text *out)
{
    const mp_gguf_value *value = mp_gguf_metadata_find(metadata, key);
    const unsigned char *at = NULL;
    if (!value)
        return fail_missing(key);
    if (value->type == MP_GGUF_ARRAY || !mp_gguf_value_text(value, &at, out))
        return mp_fail(MOEPAGE_E_FORMAT, "metadata key \"%.160s\" is of type %u, it must be a text",
                       key, value->type);
    return MOEPAGE_OK;
}
