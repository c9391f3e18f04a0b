/* json.h — typed reading of a JSON object, with sentences that name file, key, value and range. */
#ifndef MP_BASE_JSON_H
#define MP_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "moepage.h"

/* An object and what to call it in an error. */
typedef struct mp_json {
    const char *what; /* "config.json"; borrowed */
    json_t *root;
} mp_json;

/* Parses text that must be one JSON object without repeated keys. The caller frees out->root with
 * json_decref. */
moepage_status mp_json_parse(const char *what, const char *text, size_t n_bytes, mp_json *out);

/* `value` must be an integer within min..max. */
moepage_status mp_json_integer(const char *what, const char *key, const json_t *value, uint64_t min,
                               uint64_t max, uint64_t *out);

/* The member `key`; FORMAT when absent. */
moepage_status mp_json_get_uint(const mp_json *json, const char *key, uint32_t min, uint32_t max,
                                uint32_t *out);

/* The same, with a value for a member that is absent or null. */
moepage_status mp_json_get_uint_or(const mp_json *json, const char *key, uint32_t min, uint32_t max,
                                   uint32_t fallback, uint32_t *out);

/* A string, borrowed from the object; `fallback` (which may be NULL) when absent or null. */
moepage_status mp_json_get_text_or(const mp_json *json, const char *key, const char *fallback,
                                   const char **out);

#endif
