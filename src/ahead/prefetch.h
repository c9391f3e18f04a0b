/* prefetch.h — experts that were asked for ahead of need: the queue of wants, the task that
 * fetches them, and what has become of them. */
#ifndef MP_AHEAD_PREFETCH_H
#define MP_AHEAD_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "ahead/ranked.h"
#include "transfer/pipe.h"

struct moepage_expert_pool;
struct mp_client;
struct mp_slot;

#define MP_SHARED_WANT (UINT32_MAX - 1)

typedef struct mp_want {
    uint32_t key;
    uint32_t client; /* whose, or MP_SHARED_WANT */
    float p;         /* how likely it is to be routed; MP_HINTED: the host says so */
} mp_want;

/* Hints go before guesses, in the order in which they were given. */
#define MP_HINTED 2.0f
/* Routed already, but computed in its low version: takes a slot as a demand does. */
#define MP_MISSED 3.0f

/* Experts that were asked for ahead of need, oldest first, and the task that fetches them: hints in
 * their order, then guesses by p / (layers still to go) (FineMoE 4.5). */
typedef struct mp_prefetcher {
    mp_task task; /* first: the task is found from its address */
    struct mp_shard *shard;
    mp_want *wants; /* ring */
    uint32_t capacity, head, count;
    uint32_t *active; /* slots whose prefetch is under way, oldest first */
    uint32_t n_active;
    mp_tick batch[2]; /* the last two submissions: at most two are in flight */
    bool posted;
    bool stopping;
} mp_prefetcher;

/* What has become of the experts of one layer that a session had fetched ahead. */
typedef struct mp_prefetch_tally {
    uint64_t useful; /* routed, those that were late among them */
    uint64_t late;   /* routed while still loading */
    uint64_t wasted; /* left unused */
} mp_prefetch_tally;

/* ---- prefetch (prefetch.c) ---- */

/* Queues the absent ones of `keys` for background loading; returns how many were queued. `scan`:
 * for prefill alone, which a pool that protects itself against scans refuses. */
uint32_t mp_pool_want(struct moepage_expert_pool *pool, const struct mp_client *client,
                      const uint32_t *keys, uint32_t n, bool scan);

/* The same for guesses, which are fetched most urgent first. */
uint32_t mp_pool_want_ranked(struct moepage_expert_pool *pool, const struct mp_client *client,
                             const mp_ranked *guesses, uint32_t n, bool scan);

/* The same for one that was routed in vain; it stays wanted when its layer has come. The lock is held,
 * and the caller starts the prefetchers. */
void mp_pool_want_missed(struct moepage_expert_pool *pool, uint32_t key);

/* Tells the policy, if it asks, how likely each expert of a layer to come is: p[experts] > 0. */
void mp_pool_expect(struct moepage_expert_pool *pool, uint32_t layer, const float *p);

/* Drops a client's queued wants for one layer, or for all (layer UINT32_MAX): they are stale. */
void mp_pool_unwant(struct moepage_expert_pool *pool, const struct mp_client *client,
                    uint32_t layer);

/* The same for the set that a streaming layer will need: those of `keys`, all of one layer, that are
 * there stay until its turn; the absent ones are queued as far as the window has room. */
uint32_t mp_pool_want_turn(struct moepage_expert_pool *pool, const struct mp_client *client,
                           const uint32_t *keys, uint32_t n);
bool mp_pool_any_absent(const struct moepage_expert_pool *pool, const uint32_t *keys, uint32_t n);

moepage_status mp_prefetcher_init(mp_prefetcher *prefetcher, struct mp_shard *shard);
/* Gets the task going if there is something to do. The lock is held. */
void mp_prefetcher_start(mp_prefetcher *prefetcher);
/* Gives an absent expert a slot and brings it in the background, before all that is wanted; the slot,
 * or MP_NO_SLOT when it cannot begin now. The policy does not know it. The lock is held. */
uint32_t mp_prefetcher_bring(struct mp_shard *shard, uint32_t key);
/* Drops all wants, waits for what is under way. The lock is not held. */
void mp_prefetcher_stop(mp_prefetcher *prefetcher);
void mp_prefetcher_free(mp_prefetcher *prefetcher);
/* The tally that a slot's prefetch counts in, or NULL. The lock is held. */
mp_prefetch_tally *mp_prefetcher_tally(struct mp_shard *shard, const struct mp_slot *slot,
                                       uint32_t key);
/* Takes a prefetch that no one holds and that will not be finished off its slot; nothing of it is
 * in flight. The lock is held. */
void mp_prefetcher_give_up(struct mp_shard *shard, uint32_t slot);
/* A slot with `prefetching` set is no longer under way. The lock is held. */
void mp_prefetcher_settled(struct mp_shard *shard, uint32_t slot);
/* Gives up prefetches under way that no one holds, and waits for their transfers, so that their
 * slots can be evicted. The lock is held. */
void mp_prefetcher_abandon(struct mp_shard *shard);

#endif
