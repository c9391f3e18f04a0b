/* ggml_type.h — the types of tensors that a GGUF file can name, by number. */
#ifndef MP_MODEL_GGML_TYPE_H
#define MP_MODEL_GGML_TYPE_H

#include <stdbool.h>

#include "moepage.h"

typedef struct mp_ggml_type {
    uint32_t weights; /* of one block: 1 for types whose elements stand alone */
    uint32_t bytes;   /* of one block */
    uint32_t dtype;   /* MOEPAGE_DTYPE_*, or NONE for a type outside the public API */
} mp_ggml_type;

/* Gives the type of that number; returns false if the size of its tensors is not known. */
bool mp_ggml_type_find(uint32_t number, mp_ggml_type *out);

#endif
