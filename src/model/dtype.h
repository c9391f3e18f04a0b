/* dtype.h — element types: ours, and the names that safetensors files use for theirs. */
#ifndef MP_MODEL_DTYPE_H
#define MP_MODEL_DTYPE_H

#include "moepage.h"

/* A type that a .safetensors header can name. */
typedef struct mp_stored_dtype {
    const char *name; /* "BF16" */
    uint32_t bits;    /* of one element; some are smaller than a byte */
    uint32_t dtype;   /* MOEPAGE_DTYPE_*, or NONE for a type that the public API does not have */
} mp_stored_dtype;

/* NULL for a name that no version of the format that we know defines. */
const mp_stored_dtype *mp_stored_dtype_find(const char *name);

/* Bytes of one element; 0 when `dtype` is no MOEPAGE_DTYPE_* with elements. */
uint32_t mp_dtype_bytes(uint32_t dtype);

/* "BF16"; "no dtype" when it is none. */
const char *mp_dtype_name(uint32_t dtype);

#endif
