/* bounce.h — page-aligned memory for the length of a call. */
#ifndef MP_MODEL_BOUNCE_H
#define MP_MODEL_BOUNCE_H

#include <stdbool.h>

#include "base/alloc.h"

#define MP_BOUNCE_ALIGN 4096u

typedef struct mp_bounce {
    void *block;          /* allocation to free */
    unsigned char *bytes; /* MP_BOUNCE_ALIGN-aligned, zero-filled */
} mp_bounce;

static inline bool mp_bounce_alloc(uint64_t bytes, mp_bounce *out)
{
    out->block = bytes > SIZE_MAX - MP_BOUNCE_ALIGN ? NULL : mp_alloc(bytes + MP_BOUNCE_ALIGN);
    uintptr_t skew = (uintptr_t)out->block % MP_BOUNCE_ALIGN;
    out->bytes =
        out->block ? (unsigned char *)out->block + (skew ? MP_BOUNCE_ALIGN - skew : 0) : NULL;
    return out->block;
}

/* Frees the memory; safe on a zero-filled struct. */
static inline void mp_bounce_free(mp_bounce *bounce)
{
    mp_free(bounce->block);
}

#endif
