/* scratch.h — page-aligned host memory for one image while a pool is set up. */
#ifndef MP_ARENA_SCRATCH_H
#define MP_ARENA_SCRATCH_H

#include <stdbool.h>

#include "arena/home.h"

typedef struct mp_scratch {
    void *memory;
    uint64_t bytes;
    unsigned char *aligned;
    uint64_t room; /* usable bytes from `aligned` on */
} mp_scratch;

/* Allocates `room` usable bytes; NO_MEMORY on failure. */
moepage_status mp_scratch_open(struct moepage_device *home, uint64_t room, mp_scratch *out);

/* Frees the memory; safe after a failed open. */
void mp_scratch_close(struct moepage_device *home, mp_scratch *scratch);

/* Returns true if the failure concerns one expert's image alone; other images may be sound. */
static inline bool mp_is_image_fault(moepage_status status)
{
    return status == MOEPAGE_E_FORMAT || status == MOEPAGE_E_IO || status == MOEPAGE_E_CALLBACK;
}

#endif
