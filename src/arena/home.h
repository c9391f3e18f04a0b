/* home.h — a device's memory context: the machine behind the seam, its budget, its arena, a count
 * of the pools on it, and the stream of calls that belong to no pool. moepage_device points to this. */
#ifndef MP_ARENA_HOME_H
#define MP_ARENA_HOME_H

#include <pthread.h>
#include <stdbool.h>

#include "arena/arena.h"
#include "base/handle.h"
#include "base/ledger.h"
#include "device/seam.h"

struct moepage_device {
    mp_handle handle;
    mp_device *device;   /* the machine behind the seam */
    mp_ledger ledger;    /* arena claims + workspaces; limit = the budget */
    mp_ledger workspace; /* the workspaces' share of the budget */
    mp_arena arena;
    _Atomic uint32_t residents;     /* live pools on this device */
    _Atomic uint64_t next_sequence; /* next KV sequence id; no id is used twice */
    pthread_mutex_t compute_lock;
    mp_stream *compute; /* NULL until the first call; under compute_lock */
    mp_graveyard graveyard;
};

/* Creates the context of an open device: splits config->budget_bytes into workspace and arena
 * (defaults are filled in already) and allocates the arena. BUDGET, NO_MEMORY; the device is
 * unchanged then. */
moepage_status mp_home_open(mp_device *device, const moepage_device_config *config,
                            struct moepage_device **out);
/* Closes the context and its device. No pool may be left on it. */
void mp_home_close(struct moepage_device *home);

/* Allocates device memory for scratch, charged to the workspace share; BUDGET with a sentence. */
moepage_status mp_home_workspace_alloc(struct moepage_device *home, uint64_t bytes, void **out);
void mp_home_workspace_free(struct moepage_device *home, void *memory, uint64_t bytes);

/* The COMPUTE stream of calls that compute and wait, made for the first one; the device's own.
 * NO_MEMORY. */
moepage_status mp_home_compute(struct moepage_device *home, mp_stream **out);

#endif
