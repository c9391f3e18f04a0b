/* inside.h — the ahead room's private header for prefetching: wants, and each device's prefetcher.
 * (versions_inside.h is the one for versions.) */
#ifndef MP_AHEAD_INSIDE_H
#define MP_AHEAD_INSIDE_H

#include <stdatomic.h>

#include "ahead/ahead.h"
#include "transfer/tiers.h"

typedef struct mp_want {
    uint32_t key;
    uint32_t client; /* that wants it, or MP_SHARED_WANT */
    float p;         /* how likely it is to be routed, or one of the values below */
} mp_want;

/* A hint of the host. Hints go before guesses, in the order in which they were given. */
#define MP_HINTED 2.0f
/* An expert that was routed already, and computed without a slot: it takes one as a demand does. */
#define MP_MISSED 3.0f

/* The experts that are wanted ahead of need on one device, oldest first, and the task that fetches
 * them: hints in their order, then guesses by p / (layers still to go) (FineMoE 4.5). */
typedef struct mp_prefetcher {
    mp_task task; /* first: the task is found from its address */
    mp_ahead *ahead;
    uint32_t device;
    mp_device *machine;
    mp_shard *shard;
    mp_transfer *transfer;
    mp_want *wants; /* ring */
    uint32_t capacity, head, count;
    uint32_t *active; /* slots whose prefetch is under way, oldest first */
    uint32_t n_active;
    bool *stale;         /* [slots] under way but no longer wanted */
    mp_tick batch[2];    /* the last two submissions: at most two are in flight */
    bool images_counted; /* `pending` counts this device's compressed images to come */
    bool posted;
    bool stopping;
} mp_prefetcher;

struct mp_ahead {
    mp_cache *cache;
    pthread_mutex_t *lock;
    uint32_t layers, experts, keys;
    const mp_deal *deal;
    uint32_t n_devices; /* so far */
    uint32_t scan_percent;
    uint32_t chunk_bytes;
    uint64_t slot_bytes;
    mp_prefetcher *prefetchers; /* [n_devices] */
    bool *wanted;               /* [keys] queued */
    _Atomic uint32_t pending; /* wants queued, prefetches under way, devices with images to come */
    uint64_t cancelled, refused;
};

static inline mp_want *mp_want_at(mp_prefetcher *prefetcher, uint32_t i)
{
    return &prefetcher->wants[(prefetcher->head + i) % prefetcher->capacity];
}

/* ---- queue.c; the lock is held ---- */

/* Moves the most urgent want to the front; among equals, the oldest. */
void mp_wants_bring_forward(mp_prefetcher *prefetcher);
/* Takes the first want off the queue. */
mp_want mp_wants_pop(mp_prefetcher *prefetcher);
/* Drops the wants of one client (any: UINT32_MAX) for one layer (any: UINT32_MAX). */
void mp_wants_drop(mp_prefetcher *prefetcher, uint32_t client, uint32_t layer);

/* ---- prefetch.c; the lock is held ---- */

/* Gives up an unfinished prefetch, of which nothing is in flight, and frees its slot; does nothing
 * if a plan holds it. */
void mp_prefetcher_give_up(mp_prefetcher *prefetcher, uint32_t slot);

#endif
