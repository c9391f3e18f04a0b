/* gguf_values.h — the metadata of one GGUF file: typed values under keys.
 *
 * A value is one number, truth or text, or an array of such. Arrays are not copied: a value points
 * to its elements in the header, which the file keeps, little-endian and at any alignment. */
#ifndef MP_MODEL_GGUF_VALUES_H
#define MP_MODEL_GGUF_VALUES_H

#include <stdbool.h>

#include "model/gguf_cursor.h"
#include "moepage.h"

/* The format's numbers for types of values. */
typedef enum mp_gguf_type {
    MP_GGUF_U8 = 0,
    MP_GGUF_I8 = 1,
    MP_GGUF_U16 = 2,
    MP_GGUF_I16 = 3,
    MP_GGUF_U32 = 4,
    MP_GGUF_I32 = 5,
    MP_GGUF_F32 = 6,
    MP_GGUF_BOOL = 7,
    MP_GGUF_TEXT = 8,
    MP_GGUF_ARRAY = 9,
    MP_GGUF_U64 = 10,
    MP_GGUF_I64 = 11,
    MP_GGUF_F64 = 12
} mp_gguf_type;

typedef struct mp_gguf_value {
    const char *key;         /* owned by the metadata */
    uint32_t type;           /* mp_gguf_type */
    uint32_t element;        /* of an array its elements' type, else `type`; never ARRAY */
    uint64_t n;              /* elements of an array, else 1 */
    const unsigned char *at; /* the first element, in the header */
    uint64_t n_bytes;        /* of all elements */
} mp_gguf_value;

typedef struct mp_gguf_metadata {
    mp_gguf_value *values; /* [n_values] sorted by key */
    uint64_t n_values;
    char *keys;                  /* back to back */
    const unsigned char *stored; /* all keys and values as they were read, in their own order */
    uint64_t stored_bytes;
} mp_gguf_metadata;

/* A text in the header, without a NUL; any bytes. */
typedef struct mp_gguf_text {
    const char *bytes;
    uint64_t n_bytes;
} mp_gguf_text;

/* Reads n_values keys and values. *out is zero-filled before the call; free it after a failure
 * too. */
moepage_status mp_gguf_metadata_read(mp_gguf_cursor *from, uint64_t n_values,
                                     mp_gguf_metadata *out);

/* Frees the metadata; safe on a zero-filled struct. */
void mp_gguf_metadata_free(mp_gguf_metadata *metadata);

/* Returns the value under the key, or NULL. */
const mp_gguf_value *mp_gguf_metadata_find(const mp_gguf_metadata *metadata, const char *key);

/* ---- Elements: `i` is below value->n, 0 for a value that is no array ---- */

/* Gives an integer that 64 bits with a sign can hold; returns false for any other. */
bool mp_gguf_value_int(const mp_gguf_value *value, uint64_t i, int64_t *out);

/* Gives a floating-point number, which may be infinite or no number. */
bool mp_gguf_value_real(const mp_gguf_value *value, uint64_t i, double *out);

bool mp_gguf_value_bool(const mp_gguf_value *value, uint64_t i, bool *out);

/* Gives the text at *at and moves on to the next one; *at is NULL before the first. Returns false
 * after the last, and for values that are no text. The cost of reading all is that of one pass. */
bool mp_gguf_value_text(const mp_gguf_value *value, const unsigned char **at, mp_gguf_text *out);

/* ---- By key: errors name the key, its value and the range ---- */

/* Reads an integer within min..max; FORMAT if it is absent. */
moepage_status mp_gguf_get_uint(const mp_gguf_metadata *metadata, const char *key, uint32_t min,
                                uint32_t max, uint32_t *out);

/* Reads the same, or gives `fallback` if it is absent. */
moepage_status mp_gguf_get_uint_or(const mp_gguf_metadata *metadata, const char *key, uint32_t min,
                                   uint32_t max, uint32_t fallback, uint32_t *out);

/* Reads a text; FORMAT if it is absent. */
moepage_status mp_gguf_get_text(const mp_gguf_metadata *metadata, const char *key,
                                mp_gguf_text *out);

#endif
