/* cache.h — the door of the cache room: experts in slots, and the clients that hold them.
 *
 * An expert's key is layer * experts + expert. A map names its slot, and each slot has one 64-bit
 * word {key, state, users} that decides every race:
 *
 *        take             last byte landed           users == 0
 *   FREE -----> LOADING ------------------> RESIDENT -----------> FREE
 *                  |        its source failed                |
 *                  +----------------------> FAILED           | its slot leaves the cache
 *                                                            v
 *                                                         DRAINING
 *
 * FAILED and DRAINING slots are in no map, and FREE when their last user lets go.
 *
 * A client holds an expert by exchanging the word of the slot that the map names, {key, RESIDENT,
 * n}, for {key, RESIDENT, n + 1}; an evictor exchanges {key, RESIDENT, 0} for FREE. So a slot in
 * use cannot be given away, and finding everything resident takes no lock. Everything else, the
 * policy's state included, is under the owner's lock; hits reach the policy through touch rings.
 *
 * The room has six doors, by caller and subject:
 *   cache.h            the cache as a whole: its life, its clients, sets that miss
 *   client.h           a session's own calls; they take the lock themselves if they need it
 *   hold.h             one held expert: plain data, which rooms above pass around
 *   slots.h            single slots: claiming, filling, emptying
 *   bounds.h           how many slots each client or device may have
 *   published_stats.h  what sessions have done, for readers on any thread
 *
 * The lock is held only in calls that say so. */
#ifndef MP_CACHE_CACHE_H
#define MP_CACHE_CACHE_H

#include "cache/bundle.h"
#include "cache/client.h"
#include "policy/policy.h"
#include "transfer/transfer.h"

#define MP_NO_SLOT UINT32_MAX
#define MP_MAX_CLIENTS MP_MAX_READERS
#define MP_MAX_KEYS 0x7fffffffu /* a touch needs one bit more */

typedef struct mp_cache mp_cache; /* over all devices of a pool */
/* The cache's part on one device. */
typedef struct mp_shard mp_shard;
struct mp_watch;

typedef struct mp_cache_setup {
    pthread_mutex_t *lock;
    const mp_policy *policy;
    uint32_t layers, experts;
    const mp_deal *deal;     /* outlives the cache: which device has which experts */
    bool per_layer;          /* a layer's share of the slots is its own */
    const mp_bundle *bundle; /* outlives the cache */
    uint32_t scan_percent;   /* slots that prefill may take, 0 = as many as decode */
    uint32_t slot_form;      /* MOEPAGE_FORM_* of what slots hold */
    bool fixed; /* no slot is taken for a session: what slots hold is decided elsewhere */
    /* Called when an attended load ends, before its slot changes state; the lock is held. */
    void (*load_ended)(void *owner, uint32_t device, uint32_t slot);
} mp_cache_setup;

/* Slots of one device: `first` of them belong to others, `slots` follow; never more than `most`. All are
 * whole bundles. */
typedef struct mp_shard_setup {
    mp_transfer *transfer;
    unsigned char *base; /* of slot 0 */
    uint32_t first, slots, most;
} mp_shard_setup;

/* ---- life (cache.c); the lock is not held ---- */

moepage_status mp_cache_open(const mp_cache_setup *setup, mp_cache **out);
moepage_status mp_cache_add_device(mp_cache *cache, const mp_shard_setup *setup);
/* Sets the owner that load_ended is called with. Called before the first load. */
void mp_cache_set_owner(mp_cache *cache, void *owner);
/* NULL is a no-op. */
void mp_cache_close(mp_cache *cache);
/* Experts of a layer on a device. */
uint32_t mp_cache_members(const mp_cache *cache, uint32_t device);

mp_shard *mp_cache_shard(const mp_cache *cache, uint32_t device);
mp_shard *mp_cache_shard_of(const mp_cache *cache, uint32_t key);
mp_transfer *mp_shard_transfer(const mp_shard *shard);
uint32_t mp_shard_device(const mp_shard *shard);

/* Replays hits, then adds the cache's counters and slots to *info. The lock is held. */
void mp_cache_describe(mp_cache *cache, moepage_expert_pool_info *info);
/* Tells where an expert is. Lock-free. */
void mp_cache_lookup(const mp_cache *cache, uint32_t key, moepage_residency *out);
/* Sets all counters to 0. The lock is held. */
void mp_cache_reset_counters(mp_cache *cache);
/* Sets the cache's one watch, or removes it (NULL). The lock is held. */
void mp_cache_set_watch(mp_cache *cache, struct mp_watch *watch);
struct mp_watch *mp_cache_watch(const mp_cache *cache);
const mp_policy *mp_cache_policy(const mp_cache *cache);

/* ---- clients (clients.c); the lock is not held ---- */

/* Adds a client; `need` >= 1: the slots that it has to hold at once, which a smaller cache leaves it if
 * it has them. Fails with BUDGET if a client's share of the slots would be nothing, and with NO_MEMORY. */
moepage_status mp_client_join(mp_cache *cache, uint32_t need, mp_client **out);
/* Removes a client; the room above has already dropped what it wanted ahead of need. */
void mp_client_leave(mp_client *client);
uint32_t mp_client_index(const mp_client *client);
uint32_t mp_cache_clients(const mp_cache *cache);

/* Releases a hold that has a slot (hits.c). */
void mp_cache_release(mp_cache *cache, mp_hold *hold);

/* ---- a routed set that is not all there (hits.c); the lock is held ---- */

/* Replays all clients' hits into the policy. */
void mp_cache_drain_touches(mp_cache *cache);
/* Begins a set: replays hits and tells the policy what is routed, before victims are chosen. */
void mp_cache_begin_set(mp_cache *cache, const mp_hold *holds, uint32_t n);
/* Ends a step's set, in slots or perhaps low versions: counts it, and makes it recent in order. !`routed`: refused. */
void mp_cache_end_set(mp_cache *cache, const mp_hold *holds, uint32_t n, uint32_t decodes,
                      bool routed);
void mp_cache_end_low_set(mp_cache *cache, const mp_hold *holds, uint32_t n, uint32_t decodes);

#endif
