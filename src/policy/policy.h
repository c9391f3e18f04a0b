/* policy.h — the interface of an eviction policy: it ranks resident keys and nominates victims; the
 * pool acts.
 *
 * A key is an expert's index in the policy's scope, 0..keys-1: `experts` of each layer, layer after
 * layer. For each routed set, which belongs to one layer, the pool calls in this order: route with
 * the whole set; victim/remove for every slot it needs (never naming a member of the set:
 * `may_evict` refuses those); then, in the set's own order, touch for members that were resident
 * and insert for those that were not. So recency inside a set follows the set's order, whichever
 * members hit. A prefetched expert is inserted without having been routed. Functions of numbers
 * only: no memory, no devices, no locks, no clock.
 *
 * `state` is the pool's memory, aligned to 8 bytes; state_bytes is a multiple of 8, so that the
 * states of several scopes can be adjacent. It is freed without a call. */
#ifndef MP_POLICY_POLICY_H
#define MP_POLICY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define MP_NO_KEY UINT32_MAX

typedef bool (*mp_may_evict_fn)(void *ctx, uint32_t key);

typedef struct mp_policy {
    const char *name;
    uint64_t (*state_bytes)(uint32_t keys, uint32_t experts);   /* memory that init needs */
    void (*init)(void *state, uint32_t keys, uint32_t experts); /* starts with no resident key */
    /* A layer routed to these n > 0 distinct keys, resident or not. NULL: the policy ignores it. */
    void (*route)(void *state, const uint32_t *keys, uint32_t n);
    /* The layer of keys [first, first + n) is coming up: a predictor gives key first + i the
     * probability p[i] > 0 of being routed. NULL: the policy ignores it. */
    void (*expect)(void *state, uint32_t first, const float *p, uint32_t n);
    void (*insert)(void *state, uint32_t key); /* a key becomes resident */
    void (*touch)(void *state, uint32_t key);  /* a resident key was routed */
    void (*remove)(void *state, uint32_t key); /* a resident key leaves */
    /* Returns the best key to evict among the resident ones that `may_evict` allows, or MP_NO_KEY.
     * Removes nothing: repeated without a call between, it gives the same answer. It may move
     * refused keys between queues of its own, as SIEVE's hand does. */
    uint32_t (*victim)(void *state, mp_may_evict_fn may_evict, void *ctx);
} mp_policy;

/* Returns the policy of that name (NULL: "lru"), or NULL. */
const mp_policy *mp_policy_find(const char *name);

/* Returns the available names, the default first; NULL past the last. */
const char *mp_policy_name(uint32_t index);

#endif
