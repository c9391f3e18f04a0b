/* hints.h — the pool's door for the optional parts of a session: prefetching, layers that stream,
 * and experts in two versions. Threads and locks are as in pool.h. */
#ifndef MP_POOL_HINTS_H
#define MP_POOL_HINTS_H

#include "ahead/ranked.h"
#include "pool/pool.h"

/* ---- prefetching ---- */

/* Queues those of `keys` that are absent for background loading; returns how many were queued.
 * `scan`: for prefill alone, which a pool with scan_percent refuses. */
uint32_t mp_pool_want(struct moepage_expert_pool *pool, const mp_client *client,
                      const uint32_t *keys, uint32_t n, bool scan);
/* Queues guesses, which are fetched most urgent first. */
uint32_t mp_pool_want_ranked(struct moepage_expert_pool *pool, const mp_client *client,
                             const mp_ranked *guesses, uint32_t n, bool scan);
/* Queues the set that a streaming layer will need, `keys` of that layer: the resident ones stay
 * until its turn, and the absent ones are queued as far as the window has room. */
uint32_t mp_pool_want_turn(struct moepage_expert_pool *pool, const mp_client *client,
                           const uint32_t *keys, uint32_t n);
/* Drops a client's queued wants for one layer, or for all (layer UINT32_MAX), and calls off its
 * unfinished prefetches for it. */
void mp_pool_unwant(struct moepage_expert_pool *pool, const mp_client *client, uint32_t layer);
/* Tells a policy that asks for it how likely each expert of a coming layer is to be routed:
 * p[experts] > 0. */
void mp_pool_expect(struct moepage_expert_pool *pool, uint32_t layer, const float *p);
bool mp_pool_any_absent(const struct moepage_expert_pool *pool, const uint32_t *keys, uint32_t n);
/* Fills in the bytes that were useful, late and wasted so far; the client's tally is open. */
void mp_pool_get_tally(const struct moepage_expert_pool *pool, const mp_client *client,
                       uint32_t layer, moepage_prefetch_info *info);

/* Returns the nanoseconds that one expert takes to the first device; 0 = not known yet. */
double mp_pool_load_ns(struct moepage_expert_pool *pool);
/* Prepares a task that calls the pool: it is put off if the thread that would run it holds
 * the pool's lock. */
void mp_pool_guard_task(struct moepage_expert_pool *pool, mp_task *task);

/* ---- layers that stream ---- */

/* Returns true if layers share slots that are too few for all their experts. Lock-free. */
bool mp_pool_may_stream(const struct moepage_expert_pool *pool);
/* Begins a layer's turn: experts loaded ahead of it that this turn does not use were
 * wrong guesses. Lock-free. */
void mp_pool_begin_turn(struct moepage_expert_pool *pool, uint32_t layer);
/* Returns how many experts of a layer, on all devices, stay when it streams. Lock-free. */
uint32_t mp_pool_keeps(const struct moepage_expert_pool *pool);
/* Returns the slots of the window, and a session's share of all slots. Lock-free. */
uint32_t mp_pool_window(const struct moepage_expert_pool *pool);
uint32_t mp_pool_share(const struct moepage_expert_pool *pool);
/* Counts the experts of a layer that would pass through the window if it streamed; see
 * mp_cache_foresee. */
void mp_pool_foresee(struct moepage_expert_pool *pool, uint32_t layer, const uint8_t *sets,
                     double *passing);
/* *load_ns: the cost of a miss on the slowest device; 0 = not known. Returns false while slots are
 * unused: misses are then first uses, and say nothing about what would be used again. */
bool mp_pool_weigh_miss(struct moepage_expert_pool *pool, double *load_ns);

/* ---- two versions of every expert ---- */

/* Bracket a step of MOEPAGE_SERVE_VERSIONS, which sees the versions published when it began.
 * Neither waits for anything but the pool's lock, which they take only while swaps are under way,
 * or when a decision is due. */
void mp_versions_begin_step(struct moepage_expert_pool *pool, mp_client *client);
void mp_versions_end_step(struct moepage_expert_pool *pool, mp_client *client);
/* Holds all n experts in the versions that the step sees; all are ready. Lock-free. */
void mp_versions_hold(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n);
/* Counts an expert's selections: `heat` tokens, or that much weight. Lock-free. */
void mp_pool_heat(struct moepage_expert_pool *pool, uint32_t key, uint32_t heat);
/* For pools with MOEPAGE_SERVE_CACHE: holds all n experts, absent ones in their low versions,
 * without waiting, and queues the absent ones for the next time. */
void mp_pool_hold_any(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n);

#endif
