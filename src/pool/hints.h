/* hints.h — what optional parts of a session ask of the expert pool: experts ahead of need, layers that
 * stream, and experts in two versions. The rules of pool.h
 * for threads and locks hold here too. */
#ifndef MP_POOL_HINTS_H
#define MP_POOL_HINTS_H

#include "ahead/ranked.h"
#include "pool/pool.h"

/* ---- prefetching ---- */

/* Queues the absent ones of `keys` for background loading; returns how many were queued. `scan`: for
 * prefill alone, which a pool that protects itself against scans refuses. */
uint32_t mp_pool_want(struct moepage_expert_pool *pool, const mp_client *client,
                      const uint32_t *keys, uint32_t n, bool scan);
/* Queues guesses, which are fetched most urgent first. */
uint32_t mp_pool_want_ranked(struct moepage_expert_pool *pool, const mp_client *client,
                             const mp_ranked *guesses, uint32_t n, bool scan);
/* Queues the set that a streaming layer will need: those of `keys`, all of one layer, that are there
 * stay until its turn; the absent ones are queued as far as the window has room. */
uint32_t mp_pool_want_turn(struct moepage_expert_pool *pool, const mp_client *client,
                           const uint32_t *keys, uint32_t n);
/* Drops a client's queued wants for one layer, or for all (layer UINT32_MAX): they are stale. */
void mp_pool_unwant(struct moepage_expert_pool *pool, const mp_client *client, uint32_t layer);
/* Tells the policy, if it asks, how likely each expert of a layer to come is: p[experts] > 0. */
void mp_pool_expect(struct moepage_expert_pool *pool, uint32_t layer, const float *p);
bool mp_pool_any_absent(const struct moepage_expert_pool *pool, const uint32_t *keys, uint32_t n);
/* Fills in the bytes that were useful, late and wasted so far; the client's tally is open. */
void mp_pool_get_tally(const struct moepage_expert_pool *pool, const mp_client *client,
                       uint32_t layer, moepage_prefetch_info *info);

/* Nanoseconds to bring one expert to the first device; 0 = nothing is known yet. */
double mp_pool_load_ns(struct moepage_expert_pool *pool);
/* For a task that calls the pool: it is put off where the thread that would run it is in the pool. */
void mp_pool_guard_task(struct moepage_expert_pool *pool, mp_task *task);

/* ---- layers that stream ---- */

/* Returns true if layers share slots that are too few for all their experts. Lock-free. */
bool mp_pool_may_stream(const struct moepage_expert_pool *pool);
/* The layer's turn has come: what was brought ahead of it and is not used now was a wrong guess.
 * Lock-free. */
void mp_pool_begin_turn(struct moepage_expert_pool *pool, uint32_t layer);
/* Experts of a layer, on all devices, that stay when it streams. Lock-free. */
uint32_t mp_pool_keeps(const struct moepage_expert_pool *pool);
/* What a miss costs, on the slowest device; 0 = not known. False while slots are unused: misses are
 * first sights then, and say nothing about what comes back. */
bool mp_pool_weigh_miss(struct moepage_expert_pool *pool, double *load_ns);

/* ---- two versions of every expert ---- */

/* Around a step of MOEPAGE_SERVE_VERSIONS, which sees what was published when it began. Neither waits
 * for anything but the pool's lock, and takes that only while something is on its way, or when a
 * decision is due. */
void mp_versions_begin_step(struct moepage_expert_pool *pool, mp_client *client);
void mp_versions_end_step(struct moepage_expert_pool *pool, mp_client *client);
/* Holds all of `holds` in the versions that the step sees; all are ready. Lock-free. */
void mp_versions_hold(struct moepage_expert_pool *pool, const mp_client *client, mp_hold *holds,
                      uint32_t n);
/* An expert was selected by so many tokens, or with so much weight. Lock-free. */
void mp_pool_heat(struct moepage_expert_pool *pool, uint32_t key, uint32_t heat);
/* Of pools with MOEPAGE_SERVE_CACHE: holds all of `holds`, absent ones in their low versions, waits for
 * nothing, and has the absent ones fetched for the next time. */
void mp_pool_hold_any(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n);

#endif
