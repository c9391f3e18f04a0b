/* Typed reading of JSON objects. */
#include "base/json.h"

#include <string.h>

#include "base/status.h"

/* A JSON value as text, cut to fit a sentence. */
typedef struct shown {
    char text[80];
} shown;

static shown show(const json_t *value)
{
    shown out = {"nothing"};
    size_t room = sizeof out.text - 1;
    if (value) {
        size_t n = json_dumpb(value, out.text, room, JSON_ENCODE_ANY | JSON_COMPACT);
        out.text[n < room ? n : room] = 0;
    }
    return out;
}

moepage_status mp_json_parse(const char *what, const char *text, size_t n_bytes, mp_json *out)
{
    json_error_t error;
    const char *nul = memchr(text, 0, n_bytes); /* the parser overlooks a NUL behind a number */
    if (nul)
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: not valid JSON at byte %zu: a NUL", what,
                       (size_t)(nul - text));
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%.200s: no memory to parse its JSON", what);
    if (!root)
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: not valid JSON at byte %d: %s", what,
                       error.position, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: its JSON is not an object", what);
    }
    out->what = what;
    out->root = root;
    return MOEPAGE_OK;
}

moepage_status mp_json_integer(const char *what, const char *key, const json_t *value, uint64_t min,
                               uint64_t max, uint64_t *out)
{
    json_int_t found = json_is_integer(value) ? json_integer_value(value) : -1;
    if (found < 0 || (uint64_t)found < min || (uint64_t)found > max)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: \"%.100s\" is %s, it must be an integer from %llu "
                       "to %llu",
                       what, key, show(value).text, (unsigned long long)min,
                       (unsigned long long)max);
    *out = (uint64_t)found;
    return MOEPAGE_OK;
}

moepage_status mp_json_get_uint(const mp_json *json, const char *key, uint32_t min, uint32_t max,
                                uint32_t *out)
{
    const json_t *value = json_object_get(json->root, key);
    if (!value)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.200s: \"%.100s\" is missing, it must be an integer from "
                       "%u to %u",
                       json->what, key, min, max);
    uint64_t found;
    moepage_status status = mp_json_integer(json->what, key, value, min, max, &found);
    if (status)
        return status;
    *out = (uint32_t)found;
    return MOEPAGE_OK;
}

moepage_status mp_json_get_uint_or(const mp_json *json, const char *key, uint32_t min, uint32_t max,
                                   uint32_t fallback, uint32_t *out)
{
    const json_t *value = json_object_get(json->root, key);
    if (value && !json_is_null(value))
        return mp_json_get_uint(json, key, min, max, out);
    *out = fallback;
    return MOEPAGE_OK;
}

moepage_status mp_json_get_text_or(const mp_json *json, const char *key, const char *fallback,
                                   const char **out)
{
    const json_t *value = json_object_get(json->root, key);
    if (value && !json_is_null(value) && !json_is_string(value))
        return mp_fail(MOEPAGE_E_FORMAT, "%.200s: \"%.100s\" is %s, it must be a string",
                       json->what, key, show(value).text);
    *out = json_is_string(value) ? json_string_value(value) : fallback;
    return MOEPAGE_OK;
}
