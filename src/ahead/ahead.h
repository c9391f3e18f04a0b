/* ahead.h — the door of the room that brings experts into slots: on demand, and ahead of need for
 * hints, guesses and versions.
 *
 * Every load begins with a claim (mp_shard_claim), the one place that decides whether it may
 * start. obstacles.c ends loads that stand in the way of a demand's claim. Experts that are wanted
 * ahead of need queue here, and each device has a task that fetches them while no demand waits for
 * the bus (prefetch.c). versions.h is the room's second door. The owner's lock is held in calls
 * that say so. */
#ifndef MP_AHEAD_AHEAD_H
#define MP_AHEAD_AHEAD_H

#include "ahead/ranked.h"
#include "cache/slots.h"

typedef struct mp_ahead mp_ahead;

/* ---- life (prefetch.c); the lock is not held ---- */

/* `chunk_bytes`: most bytes of one submission of prefetches. */
moepage_status mp_ahead_open(mp_cache *cache, const mp_cache_setup *setup, uint64_t slot_bytes,
                             uint32_t chunk_bytes, mp_ahead **out);
/* The next device, with up to `most` slots. */
moepage_status mp_ahead_add_device(mp_ahead *ahead, struct moepage_device *home, uint32_t most);
/* Drops all wants and waits for prefetches under way; called before transfers are closed. NULL
 * is a no-op. */
void mp_ahead_stop(mp_ahead *ahead);
void mp_ahead_close(mp_ahead *ahead);
/* The cache's load_ended: takes a slot's load, attended to by this room, off the list of
 * those under way. */
void mp_ahead_load_ended(void *ahead, uint32_t device, uint32_t slot);

/* ---- claims that fail (obstacles.c); the lock is held ---- */

/* Ends one load in the way of a claim that failed, waiting for it if it must. *ended: there was
 * one, and the claim may be tried again. It waits for that load alone, because others may be queued
 * behind the caller's own unfinished work. Fails with DEVICE if the device has failed. */
moepage_status mp_claim_make_room(mp_ahead *ahead, mp_shard *shard, uint32_t key, mp_claim why,
                                  bool *ended);
/* Settles the slot's load if it has landed, and ends it if it has failed: once nothing of a failed
 * load is under way, the next demand tries again rather than sharing the failure. */
void mp_claim_look_at(mp_ahead *ahead, mp_shard *shard, uint32_t slot);

/* ---- prefetches under way (prefetch.c); the lock is held ---- */

/* Takes back a call-off: the slot's expert is wanted again. */
void mp_ahead_keep(mp_ahead *ahead, mp_shard *shard, uint32_t slot);
/* Calls off a prefetch that has not been submitted whole, as soon as nothing of it is in flight;
 * other loads go on. With `held` the prefetch has users, and goes on, too. */
void mp_ahead_call_off(mp_ahead *ahead, mp_shard *shard, uint32_t slot, bool held);
/* Ends the prefetches that no plan holds, waiting for their transfers, so that their slots
 * can be evicted. */
void mp_ahead_abandon(mp_ahead *ahead, uint32_t device);
/* Gives an absent expert a slot and loads it in the background, before all wants. Returns the slot,
 * or MP_NO_SLOT if the load cannot begin now. The policy is not told of it. */
uint32_t mp_ahead_bring(mp_ahead *ahead, uint32_t key);
/* Starts the device's task if there is something to do: wants, or compressed images to copy. */
void mp_ahead_start(mp_ahead *ahead, uint32_t device);
/* Adds the room's counters. */
void mp_ahead_describe(const mp_ahead *ahead, moepage_expert_pool_info *info);

/* ---- wants (wants.c) ---- */

/* Queues a routed expert that was computed without its slot. Unlike other wants, it is not dropped
 * when its layer's turn comes. The lock is held, and the caller starts the device. */
void mp_ahead_want_missed(mp_ahead *ahead, uint32_t key);

/* These take the lock; pool/hints.h documents them. */
uint32_t mp_ahead_want(mp_ahead *ahead, const mp_client *client, const uint32_t *keys, uint32_t n,
                       bool scan);
uint32_t mp_ahead_want_ranked(mp_ahead *ahead, const mp_client *client, const mp_ranked *guesses,
                              uint32_t n, bool scan);
uint32_t mp_ahead_want_turn(mp_ahead *ahead, const mp_client *client, const uint32_t *keys,
                            uint32_t n);
void mp_ahead_unwant(mp_ahead *ahead, const mp_client *client, uint32_t layer);
bool mp_ahead_any_absent(const mp_ahead *ahead, const uint32_t *keys, uint32_t n);

#endif
