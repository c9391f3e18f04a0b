/* slots.h — the cache room's door to single slots, for the rooms that fill and empty them. The lock
 * is held in every call unless its comment says otherwise. */
#ifndef MP_CACHE_SLOTS_H
#define MP_CACHE_SLOTS_H

#include "cache/cache.h"

enum {
    MP_SLOT_FREE = 0,
    MP_SLOT_LOADING = 1,
    MP_SLOT_RESIDENT = 2,
    MP_SLOT_FAILED = 3,
    MP_SLOT_DRAINING = 4
};

/* A slot's client, if several clients want the expert or the one that did has left. */
#define MP_SHARED_WANT (UINT32_MAX - 1)

/* The purpose of a load. It decides which experts may be evicted for it, and what is counted. */
typedef enum mp_purpose {
    MP_FOR_DECODE,
    MP_FOR_SCAN,     /* prefill alone, in a pool that protects itself against scans */
    MP_FOR_PREFETCH, /* a guess: evicts only what is not in recent use */
    MP_FOR_VERSION   /* of a version: may evict as little, but counts as no guess */
} mp_purpose;

typedef struct mp_slot_view {
    uint32_t key, state, users;
} mp_slot_view;

/* ---- looking; callable without the lock, but the answer stays true only under it ---- */

/* Returns the slot that the map names for a key, or MP_NO_SLOT. */
uint32_t mp_cache_find(const mp_cache *cache, uint32_t key);
mp_slot_view mp_shard_view(const mp_shard *shard, uint32_t slot);

/* ---- taking and filling ---- */

typedef enum mp_claim {
    MP_CLAIMED,
    MP_CLAIM_LATER,     /* a prefetch has to wait for its turn */
    MP_CLAIM_NO_SOURCE, /* every entry of the host tier is in use */
    MP_CLAIM_NO_SLOT    /* no slot may be given away */
} mp_claim;

/* Gives an absent expert a slot, LOADING with `users` users, and its load a source: the one place
 * that decides whether a load may start. Evicts if it must, but never for a load without a
 * source. The caller has yet to advance the passage that brings the bytes, and to rank the key
 * with the policy. */
mp_claim mp_shard_claim(mp_shard *shard, uint32_t key, mp_purpose purpose, mp_pipe_kind pipe,
                        uint32_t users, uint32_t *slot);
/* Tells the policy of a new key, or of the use of a key that another session has ranked already. */
void mp_shard_rank(mp_shard *shard, uint32_t slot, uint32_t key);
/* Settles a LOADING slot if its bytes have all landed: RESIDENT, or FAILED and out of the map. Returns
 * the slot's state. */
uint32_t mp_shard_settle(mp_shard *shard, uint32_t slot);
void mp_shard_settle_all(mp_shard *shard);
void mp_shard_add_user(mp_shard *shard, uint32_t slot);
/* Fills in where a hold's expert is; the hold's user has been added. */
void mp_shard_hold(mp_shard *shard, uint32_t slot, mp_hold *hold, uint8_t kind);
/* Settles the expert's load if it has landed; returns true if the expert is resident. */
bool mp_cache_is_resident(mp_cache *cache, uint32_t key);

/* ---- emptying ---- */

/* Removes a slot's expert: the word {key, state, no users} becomes FREE. Returns false if
 * the word differs. */
bool mp_shard_drop(mp_shard *shard, uint32_t slot, uint32_t key, uint32_t state);
/* Drops a RESIDENT expert. One in use but not pinned leaves the map at once and its slot with the
 * last user. */
void mp_shard_vacate(mp_shard *shard, uint32_t slot);
/* Frees FAILED and DRAINING slots that have no users left, though nothing has freed them yet; returns true
 * if there were any. */
bool mp_shard_reclaim(mp_shard *shard);
/* Drops a LOADING slot that is neither held nor finished; its load was not wasted but called off. False
 * if it is held. */
bool mp_shard_call_off(mp_shard *shard, uint32_t slot);
/* Finds, among the loads that keep an expert from a source or a slot, the one that will end
 * soonest; MP_NO_SLOT if there is none. */
uint32_t mp_shard_load_in_the_way(mp_shard *shard, uint32_t key, bool lacks_source);

/* ---- what came ahead of need ---- */

/* Marks the load of a slot just taken as a client's fetch ahead of need: load_ended is called when
 * it ends. */
void mp_shard_attend(mp_shard *shard, uint32_t slot, uint32_t client);
void mp_shard_stop_attending(mp_shard *shard, uint32_t slot);
bool mp_shard_is_attended(const mp_shard *shard, uint32_t slot);
uint32_t mp_shard_client(const mp_shard *shard, uint32_t slot);
/* Notes that `client` wants the expert, too. */
void mp_shard_want_again(mp_shard *shard, uint32_t slot, uint32_t client);
/* Adds to the bytes of the slot's expert that crossed the bus ahead of need. */
void mp_shard_add_ahead(mp_shard *shard, uint32_t slot, uint64_t bytes);
/* Tells a policy that asks for it how likely each expert of a coming layer is to be routed:
 * p[experts] > 0. Takes the lock. */
void mp_cache_expect(mp_cache *cache, uint32_t layer, const float *p);

/* Return how many layers a client, or the nearest client, is away from `layer`: a whole pass if it
 * is there now. */
uint32_t mp_cache_layers_to(const mp_cache *cache, uint32_t client, uint32_t layer);
uint32_t mp_cache_nearest(const mp_cache *cache, uint32_t layer);

/* What became of one layer's experts that were fetched ahead for a session. */
typedef struct mp_prefetch_tally {
    uint64_t useful; /* routed, including those that were late */
    uint64_t late;   /* routed while still loading */
    uint64_t wasted; /* left unused */
} mp_prefetch_tally;

/* Returns one layer's tally of a client that has opened one. Takes the lock. */
mp_prefetch_tally mp_client_get_tally(const mp_client *client, uint32_t layer);

/* ---- the streaming window (window.c) ---- */

/* Returns how many experts of `key`'s layer, which streams, could be loaded now, up to `most`. */
uint32_t mp_shard_window_room(const mp_shard *shard, uint32_t key, uint32_t most);

#endif
