/* slots.h — the cache room's second door: single slots, for rooms that fill and empty them. The lock is
 * held in every call, unless a comment says otherwise. */
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

#define MP_SHARED_WANT (UINT32_MAX - 1) /* as a slot's client: that of no one client */

/* What a slot is wanted for: decides which victims may go, and what is counted. */
typedef enum mp_purpose {
    MP_FOR_DECODE,
    MP_FOR_SCAN,     /* prefill alone, in a pool that protects itself against scans */
    MP_FOR_PREFETCH, /* a guess: evicts little */
    MP_FOR_VERSION   /* decided elsewhere: evicts as little, and is no guess */
} mp_purpose;

typedef struct mp_slot_view {
    uint32_t key, state, users;
} mp_slot_view;

/* ---- looking; no lock, but the answer stays true only under it ---- */

/* The slot that the map names for a key, or MP_NO_SLOT. */
uint32_t mp_cache_find(const mp_cache *cache, uint32_t key);
mp_slot_view mp_shard_view(const mp_shard *shard, uint32_t slot);

/* ---- taking and filling ---- */

typedef enum mp_claim {
    MP_CLAIMED,
    MP_CLAIM_LATER,     /* a prefetch has to wait for its turn */
    MP_CLAIM_NO_SOURCE, /* every entry of the host tier is in use */
    MP_CLAIM_NO_SLOT    /* no slot may be given away */
} mp_claim;

/* Gives an absent expert a slot, LOADING with `users` users, and its load a source: the one place that
 * decides whether a load may start. Evicts if it must, but nothing for a load that has no source. The
 * bytes are still to be advanced, and the policy does not know the key before it is ranked. */
mp_claim mp_shard_claim(mp_shard *shard, uint32_t key, mp_purpose purpose, mp_pipe_kind pipe,
                        uint32_t users, uint32_t *slot);
/* Tells the policy of a new key, or that a key ranked by another session was used. */
void mp_shard_rank(mp_shard *shard, uint32_t slot, uint32_t key);
/* Settles a LOADING slot if its bytes have all landed: RESIDENT, or FAILED and out of the map. */
void mp_shard_settle(mp_shard *shard, uint32_t slot);
/* Settles every slot, and frees those of failed loads without users. */
void mp_shard_settle_all(mp_shard *shard);
void mp_shard_add_user(mp_shard *shard, uint32_t slot);
/* Tells a hold, whose user has been added, where its expert is. */
void mp_shard_hold(mp_shard *shard, uint32_t slot, mp_hold *hold, uint8_t kind);
/* Settles the expert's load; returns true if the expert is resident. */
bool mp_cache_is_resident(mp_cache *cache, uint32_t key);

/* ---- emptying ---- */

/* Takes a slot's expert away: the word {key, state, no users} becomes FREE. False if the word is
 * another. */
bool mp_shard_drop(mp_shard *shard, uint32_t slot, uint32_t key, uint32_t state);
/* Drops a RESIDENT expert, or, if it is in use but not pinned, takes it out of the map for good. */
void mp_shard_vacate(mp_shard *shard, uint32_t slot);
/* Drops a LOADING slot that is neither held nor finished; its load was not wasted but called off. False
 * if it is held. */
bool mp_shard_call_off(mp_shard *shard, uint32_t slot);
/* Finds the load that ends soonest among those in the way of an expert that lacks a source, or a slot;
 * MP_NO_SLOT if none is. */
uint32_t mp_shard_load_in_the_way(mp_shard *shard, uint32_t key, bool lacks_source);

/* ---- what came ahead of need ---- */

/* The load of a slot just taken is a client's fetch ahead of need, whose end is attended to: load_ended
 * is called for it. */
void mp_shard_attend(mp_shard *shard, uint32_t slot, uint32_t client);
void mp_shard_stop_attending(mp_shard *shard, uint32_t slot);
bool mp_shard_is_attended(const mp_shard *shard, uint32_t slot);
uint32_t mp_shard_client(const mp_shard *shard, uint32_t slot);
/* Another client wants the expert, too. */
void mp_shard_want_again(mp_shard *shard, uint32_t slot, uint32_t client);
/* So many of its bytes crossed the bus ahead of need. */
void mp_shard_add_ahead(mp_shard *shard, uint32_t slot, uint64_t bytes);
/* Tells the policy, if it asks, how likely each expert of a layer to come is: p[experts] > 0. Takes the
 * lock. */
void mp_cache_expect(mp_cache *cache, uint32_t layer, const float *p);

/* Layers that a client, or the nearest one, has to go until it comes to `layer`: all of them if it is
 * there. */
uint32_t mp_cache_layers_to(const mp_cache *cache, uint32_t client, uint32_t layer);
uint32_t mp_cache_nearest(const mp_cache *cache, uint32_t layer);

/* What has become of the experts of one layer that a session had fetched ahead. */
typedef struct mp_prefetch_tally {
    uint64_t useful; /* routed, those that were late among them */
    uint64_t late;   /* routed while still loading */
    uint64_t wasted; /* left unused */
} mp_prefetch_tally;

/* Of a client with an open tally. Takes the lock. */
mp_prefetch_tally mp_client_get_tally(const mp_client *client, uint32_t layer);

/* ---- the streaming window (window.c) ---- */

/* Experts of `key`'s layer, a streaming one, that could be brought now, up to `most`. */
uint32_t mp_shard_window_room(const mp_shard *shard, uint32_t key, uint32_t most);

#endif
