/* bounds.h — the cache room's third door: how many slots each may have. Shares of sessions, pins, slots
 * that leave, layers that stream. The lock is held in every call, unless a comment says otherwise. */
#ifndef MP_CACHE_BOUNDS_H
#define MP_CACHE_BOUNDS_H

#include "cache/cache.h"

/* Slots [first, end). */
typedef struct mp_span {
    uint32_t first, end;
} mp_span;

/* ---- sessions' shares (bounds.c) ---- */

/* BUDGET if `n_clients` could not have a slot each. */
moepage_status mp_cache_check_share(const mp_cache *cache, uint32_t n_clients);
/* Clients that divide the slots that are not pinned. No lock. */
uint32_t mp_cache_sharers(const mp_cache *cache);
/* Takes `asked` slots (0 = as many as the client may hold) out of what clients divide, `least` of them
 * for one layer; BUDGET. One device. */
moepage_status mp_cache_set_aside(mp_cache *cache, const mp_client *client, uint32_t asked,
                                  uint32_t least, uint32_t *slots, uint32_t *per_scope);
void mp_cache_put_back(mp_cache *cache, uint32_t per_scope);

/* ---- pins (bounds.c) ---- */

/* Pins an expert that is pinned already; false if it is not. */
bool mp_cache_pin_again(mp_cache *cache, uint32_t key);
/* Reserves a slot for a pin, leaving `keep` to evict from, or BUDGET; and gives it back. */
moepage_status mp_cache_reserve_pin(mp_cache *cache, uint32_t key, uint32_t keep);
void mp_cache_unreserve_pin(mp_cache *cache, uint32_t key);
/* Pins the held expert; *again: another thread was faster. False if its slot is about to leave. */
bool mp_cache_pin_held(mp_cache *cache, const mp_hold *hold, bool *again);
/* Returns false if the expert is not pinned. */
bool mp_cache_unpin(mp_cache *cache, uint32_t key);
uint32_t mp_cache_most_pinned(const mp_cache *cache);

/* ---- slots that come and go (bounds.c) ---- */

/* All slots that a device has; those that take experts: all, but for a fence. */
mp_span mp_shard_slots(const mp_shard *shard);
mp_span mp_shard_open_slots(const mp_shard *shard);
/* Slots of each scope if `slots` were all. */
uint32_t mp_shard_capacity_in(const mp_shard *shard, mp_span slots);
/* BUDGET if so many slots for each scope were too few; `asked` is for the sentence. */
moepage_status mp_shard_check_capacity(const mp_shard *shard, uint32_t capacity, uint32_t asked);
/* Tells sessions how many slots of each scope they may count on from now on. */
void mp_shard_set_aim(mp_shard *shard, uint32_t capacity);
/* BUSY while an open layer counts on more than its session's share of `capacity` will be. */
moepage_status mp_shard_check_promises(const mp_shard *shard, uint32_t capacity);
/* Lets no slot outside of the span take an expert. */
void mp_shard_fence(mp_shard *shard, mp_span open);
/* Evicts until no scope has more than its capacity; BUSY if one cannot. */
moepage_status mp_shard_shrink_scopes(mp_shard *shard);
/* These are all the slots from now on, and all are open. */
void mp_shard_set_slots(mp_shard *shard, mp_span slots);
/* Slots that are taken out of the map but still in use; of a hold's. No lock. */
bool mp_cache_any_draining(const mp_cache *cache);
bool mp_cache_is_draining(const mp_cache *cache, const mp_hold *hold);

/* ---- layers that stream (window.c) ---- */

/* Returns true if layers share slots that are too few for all their experts. No lock. */
bool mp_cache_may_stream(const mp_cache *cache);
/* A layer's turn has come: what was brought ahead of it and is not used now was a wrong guess. No
 * lock. */
void mp_cache_begin_turn(mp_cache *cache, uint32_t layer);
/* Experts of a layer, on all devices, that stay when it streams. No lock. */
uint32_t mp_cache_keeps(const mp_cache *cache);
/* Returns true if no slot is unused. */
bool mp_cache_is_full(const mp_cache *cache);

#endif
