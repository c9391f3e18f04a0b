/* json.h — typed reading of a JSON object; errors name the file, the key, the value
 * and the range. */
#ifndef MP_BASE_JSON_H
#define MP_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "moepage.h"

/* A JSON object, and its name in errors. */
typedef struct mp_json {
    const char *what; /* "config.json"; borrowed */
    json_t *root;
} mp_json;

/* Parses text that must be one JSON object without repeated keys. The caller frees
 * out->root with json_decref. */
moepage_status mp_json_parse(const char *what, const char *text, size_t n_bytes, mp_json *out);

/* Reads `value`, which must be an integer within min..max. */
moepage_status mp_json_integer(const char *what, const char *key, const json_t *value, uint64_t min,
                               uint64_t max, uint64_t *out);

/* Reads the member `key`; FORMAT if it is absent. */
moepage_status mp_json_get_uint(const mp_json *json, const char *key, uint32_t min, uint32_t max,
                                uint32_t *out);

/* Reads the member `key`, or gives `fallback` if it is absent or null. */
moepage_status mp_json_get_uint_or(const mp_json *json, const char *key, uint32_t min, uint32_t max,
                                   uint32_t fallback, uint32_t *out);

/* Reads a string, borrowed from the object; gives `fallback` (which may be NULL) if it is
 * absent or null. */
moepage_status mp_json_get_text_or(const mp_json *json, const char *key, const char *fallback,
                                   const char **out);

#endif
