/* dtype.h — element types: the library's, and the names that safetensors files use for theirs. */
#ifndef MP_MODEL_DTYPE_H
#define MP_MODEL_DTYPE_H

#include "moepage.h"

/* A type that a .safetensors header can name. */
typedef struct mp_stored_dtype {
    const char *name; /* "BF16" */
    uint32_t bits;    /* of one element; some are smaller than a byte */
    uint32_t dtype;   /* MOEPAGE_DTYPE_*, or NONE for a type outside the public API */
} mp_stored_dtype;

/* Returns the type of that name; NULL if no known version of the format defines it. */
const mp_stored_dtype *mp_stored_dtype_find(const char *name);

/* Returns the bytes of one element; 0 unless `dtype` is a MOEPAGE_DTYPE_* with elements. */
uint32_t mp_dtype_bytes(uint32_t dtype);

/* Returns a name such as "BF16"; "no dtype" for any other value. */
const char *mp_dtype_name(uint32_t dtype);

#endif
