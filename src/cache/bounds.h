/* bounds.h — the cache room's door to numbers of slots: sessions' shares, pins, slots that
 * come and go with the boundary, streaming layers. The lock is held in every call unless its
 * comment says otherwise. */
#ifndef MP_CACHE_BOUNDS_H
#define MP_CACHE_BOUNDS_H

#include "cache/cache.h"

/* Slots [first, end). */
typedef struct mp_span {
    uint32_t first, end;
} mp_span;

/* ---- sessions' shares (bounds.c) ---- */

/* Fails with BUDGET if `n_clients` clients could not have a slot each. */
moepage_status mp_cache_check_share(const mp_cache *cache, uint32_t n_clients);
/* Returns the number of clients among which unpinned slots are divided. No lock. */
uint32_t mp_cache_sharers(const mp_cache *cache);
/* Returns the slots that so many clients need if each is to hold at once what any of them has to. */
uint32_t mp_cache_needed(const mp_cache *cache, uint32_t clients);
/* Returns a client's share of the slots, pinned ones included. No lock. */
uint32_t mp_cache_share(const mp_cache *cache);
/* Takes `asked` slots (0 = as many as the client may hold) away from those divided among clients.
 * Fails with BUDGET if that is more than the client's share, or leaves one layer fewer than
 * `least`. For pools on one device. */
moepage_status mp_cache_set_aside(mp_cache *cache, const mp_client *client, uint32_t asked,
                                  uint32_t least, uint32_t *slots, uint32_t *per_scope);
void mp_cache_put_back(mp_cache *cache, uint32_t per_scope);

/* ---- pins (bounds.c) ---- */

/* Pins an expert once more; returns false if it is not pinned yet. */
bool mp_cache_pin_again(mp_cache *cache, uint32_t key);
/* Reserves a slot for a pin, or fails with BUDGET if fewer than `keep` slots would be left to evict
 * from; the second gives the reservation back. */
moepage_status mp_cache_reserve_pin(mp_cache *cache, uint32_t key, uint32_t keep);
void mp_cache_unreserve_pin(mp_cache *cache, uint32_t key);
/* Pins the held expert; *again is true if another thread has pinned it first. Returns false if its
 * slot is about to leave the pool. */
bool mp_cache_pin_held(mp_cache *cache, const mp_hold *hold, bool *again);
/* Takes one pin away; returns false if the expert is not pinned. */
bool mp_cache_unpin(mp_cache *cache, uint32_t key);
/* Returns the most slots that are pinned in any one scope. One device. */
uint32_t mp_cache_most_pinned(const mp_cache *cache);
/* Returns how many slots there are up to the last pinned one, 0 = none is. One device. */
uint32_t mp_cache_pinned_end(const mp_cache *cache);

/* ---- slots that come and go (bounds.c) ---- */

/* Return all slots of a device, and those that take experts: all of them, except behind a fence. */
mp_span mp_shard_slots(const mp_shard *shard);
mp_span mp_shard_open_slots(const mp_shard *shard);
/* BUDGET if, of these slots, too few were left for each scope; `asked` is for the sentence. */
moepage_status mp_shard_check_capacity(const mp_shard *shard, mp_span slots, uint32_t asked);
/* Tells sessions that they may count on these slots from now on. */
void mp_shard_set_aim(mp_shard *shard, mp_span slots);
/* BUSY while an open layer counts on more than its session's share of these slots will be. */
moepage_status mp_shard_check_promises(const mp_shard *shard, mp_span slots);
/* Lets no slot outside of the span take an expert. */
void mp_shard_fence(mp_shard *shard, mp_span open);
/* Evicts until no scope has more than its capacity; fails with BUSY if that is not possible now. */
moepage_status mp_shard_shrink_scopes(mp_shard *shard);
/* Makes `slots` all of the device's slots, all of them open. */
void mp_shard_set_slots(mp_shard *shard, mp_span slots);
/* Return true if any slot is out of the map but still in use, and if a given hold's is. No lock. */
bool mp_cache_any_draining(const mp_cache *cache);
bool mp_cache_is_draining(const mp_cache *cache, const mp_hold *hold);

/* ---- layers that stream (window.c) ---- */

/* Returns true if layers share slots that are too few for all their experts. No lock. */
bool mp_cache_may_stream(const mp_cache *cache);
/* Begins a layer's turn: experts loaded ahead of it that this turn does not use were wrong guesses.
 * No lock. */
void mp_cache_begin_turn(mp_cache *cache, uint32_t layer);
/* Returns how many experts of a layer, on all devices, stay when it streams. No lock. */
uint32_t mp_cache_keeps(const mp_cache *cache);
/* Returns the slots of the window. No lock. */
uint32_t mp_cache_window(const mp_cache *cache);
/* Counts the experts of a layer that would pass through the window if the layer streamed: all but
 * the most used ones, as many as it would keep. sets[experts] is a number below 4 for each;
 * passing[4] are the counts for each number, in which equally used experts share what room there
 * is. The lock is held, and all hits have been replayed. */
void mp_cache_foresee(const mp_cache *cache, uint32_t layer, const uint8_t *sets, double *passing);
/* Returns true if no slot is unused. */
bool mp_cache_is_full(const mp_cache *cache);
/* Writes which part of the counted uses falls on the x most used experts of their layer, for x of 0 to `experts`. Without
 * uses all experts count alike. */
void mp_cache_concentrate(const mp_cache *cache, double *part);

#endif
