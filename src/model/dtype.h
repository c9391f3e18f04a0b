/* dtype.h — element types: the library's, and the names that safetensors files use for theirs. */
#ifndef MP_MODEL_DTYPE_H
#define MP_MODEL_DTYPE_H

#include <stdbool.h>

#include "moepage.h"

/* A type that a .safetensors header can name. */
typedef struct mp_stored_dtype {
    const char *name; /* "BF16" */
    uint32_t bits;    /* of one element; some are smaller than a byte */
    uint32_t dtype;   /* MOEPAGE_DTYPE_*, or NONE for a type outside the public API */
} mp_stored_dtype;

/* Returns the type of that name; NULL if no known version of the format defines it. */
const mp_stored_dtype *mp_stored_dtype_find(const char *name);

/* Returns the bytes of one element; 0 unless `dtype` is a MOEPAGE_DTYPE_* with elements. Block
 * formats have none: see codec/blocks.h. */
uint32_t mp_dtype_bytes(uint32_t dtype);

/* Returns true for F32, F16 and BF16, the floats that need no scales. */
bool mp_dtype_is_float(uint32_t dtype);

/* Returns true if tensors can be of this dtype: one with elements, or a block format. */
bool mp_dtype_is_stored(uint32_t dtype);

/* Returns how many weights take `bytes`, which is a tensor's size; 0 if tensors cannot be of this
 * dtype. */
uint64_t mp_dtype_weights(uint32_t dtype, uint64_t bytes);

/* Returns what the address of a tensor must be a multiple of where kernels read it: the bytes of an
 * element; for blocks 2 where every block begins at an even byte of the tensor, else 1. */
uint32_t mp_dtype_align(uint32_t dtype);

/* Returns a name such as "BF16"; "no dtype" for any other value. */
const char *mp_dtype_name(uint32_t dtype);

#endif
