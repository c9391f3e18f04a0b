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

/* Told, with budget_lock held, that the budget or its aim may have moved. */
typedef struct mp_budget_watch {
    void (*moved)(struct mp_budget_watch *watch);
} mp_budget_watch;

struct moepage_device {
    mp_handle handle;
    mp_device *device;   /* the machine behind the seam */
    mp_ledger ledger;    /* arena claims + workspaces; limit = the budget */
    mp_ledger workspace; /* the workspaces' share of the budget */
    mp_arena arena;
    _Atomic uint32_t residents;     /* live pools on this device */
    _Atomic uint64_t next_sequence; /* next KV sequence id; no id is used twice */
    uint64_t max_budget;            /* addresses are there for so much */
    uint64_t reserve_bytes;         /* to be left to others by a budget that follows memory */
    _Atomic uint64_t aim; /* the budget that it moves to; the ledger's limit if it does not move */
    /* Held while the budget moves; protects the rest of this part. Its place: controllers/controller.h. */
    pthread_mutex_t budget_lock;
    struct moepage_expert_pool *experts; /* that lives here, or NULL */
    struct moepage_kv_pool *kv;
    uint64_t owed_slots, owed_blocks; /* that smaller budgets have taken from them */
    mp_budget_watch *budget_watch;    /* or NULL */
    pthread_mutex_t compute_lock;
    mp_stream *compute; /* NULL until the first call; under compute_lock */
    mp_graveyard graveyard;
};

/* Creates the context of an open device: splits config->budget_bytes into workspace and arena
 * (defaults are filled in already, max_budget_bytes among them) and allocates the arena. BUDGET, NO_MEMORY,
 * UNSUPPORTED; the device is unchanged then. */
moepage_status mp_home_open(mp_device *device, const moepage_device_config *config,
                            struct moepage_device **out);
/* Closes the context and its device. No pool may be left on it. */
void mp_home_close(struct moepage_device *home);

/* Allocates device memory for scratch, charged to the workspace share; BUDGET with a sentence. */
moepage_status mp_home_workspace_alloc(struct moepage_device *home, uint64_t bytes, void **out);
void mp_home_workspace_free(struct moepage_device *home, void *memory, uint64_t bytes);

/* ---- the budget; budget_lock is held ---- */

/* Checks that the budget could be so much: BUDGET, UNSUPPORTED. */
moepage_status mp_home_check_budget(const struct moepage_device *home, uint64_t budget);
/* Sets an aim below the budget, or the budget: claims obey it from now on. Returns the arena's part of it. */
uint64_t mp_home_aim(struct moepage_device *home, uint64_t budget);
/* Makes the aim the budget, and gives memory back. False, and nothing done, while claims are in the way. */
bool mp_home_settle(struct moepage_device *home);
/* Raises the budget, and the aim with it. NO_MEMORY, and nothing has changed. */
moepage_status mp_home_grow(struct moepage_device *home, uint64_t budget);

/* Say which pool lives on the device now, and what watches its budget, NULL for none; they wait for a move of
 * the budget. Not with the lock. */
void mp_home_set_experts(struct moepage_device *home, struct moepage_expert_pool *experts);
void mp_home_set_kv(struct moepage_device *home, struct moepage_kv_pool *kv);
void mp_home_set_budget_watch(struct moepage_device *home, mp_budget_watch *watch);

/* ---- streams ---- */

/* The COMPUTE stream of calls that compute and wait, made for the first one; the device's own.
 * NO_MEMORY. */
moepage_status mp_home_compute(struct moepage_device *home, mp_stream **out);

#endif
