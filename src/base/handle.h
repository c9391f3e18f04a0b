/* The first member of every opaque object: its kind, and whether it is alive.
 *
 * The struct of a destroyed pool or session stays readable in its device's graveyard (the last
 * MP_GRAVEYARD_HANDLES objects; everything they owned is freed at once), so that a stale handle
 * gives an error with a sentence rather than a read of freed memory. */
#ifndef MP_BASE_HANDLE_H
#define MP_BASE_HANDLE_H

#include <pthread.h>
#include <stdbool.h>

#include "moepage.h"

typedef enum mp_kind {
    MP_KIND_DEVICE = 0x4d504431, /* "MPD1": distinct from small integers and from text */
    MP_KIND_MODEL = 0x4d504d31,
    MP_KIND_EXPERTS = 0x4d504531,
    MP_KIND_KV = 0x4d504b31,
    MP_KIND_SESSION = 0x4d505331,
    MP_KIND_TRACE = 0x4d505431,
    MP_KIND_PAGED = 0x4d505031,
    MP_KIND_PATH = 0x4d504c31,
    MP_KIND_CONTROLLER = 0x4d504331,
    MP_KIND_PREDICTOR = 0x4d505231,
    MP_KIND_ENGINE = 0x4d504e31,
    MP_KIND_DEAD = 0x4d500000
} mp_kind;

typedef struct mp_handle {
    _Atomic uint32_t kind; /* mp_kind */
} mp_handle;

static inline void mp_handle_open(mp_handle *handle, mp_kind kind)
{
    __atomic_store_n((uint32_t *)&handle->kind, (uint32_t)kind, __ATOMIC_RELEASE);
}

static inline void mp_handle_kill(mp_handle *handle)
{
    mp_handle_open(handle, MP_KIND_DEAD);
}

/* Returns MOEPAGE_OK if `object` (whose first member is an mp_handle) is alive and of this kind. */
moepage_status mp_handle_check(const void *object, mp_kind kind);

#define MP_GRAVEYARD_HANDLES 256

/* A ring of destroyed objects: when it is full, adding one frees the oldest. */
typedef struct mp_graveyard {
    void *dead[MP_GRAVEYARD_HANDLES];
    uint32_t next;
    pthread_mutex_t lock;
} mp_graveyard;

void mp_graveyard_init(mp_graveyard *graveyard);

/* Marks `object` dead and keeps its struct for a while. The caller has freed everything that the
 * struct points to. */
void mp_graveyard_bury(mp_graveyard *graveyard, void *object);

void mp_graveyard_free(mp_graveyard *graveyard);

#endif
