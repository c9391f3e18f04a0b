/* policy.h — what an eviction policy is: it ranks resident keys and nominates victims; the pool
 * acts.
 *
 * A key is an expert's index in the policy's scope, 0..keys-1: `experts` of each layer, one layer
 * behind the other. The pool calls, for each routed set, which is of one layer, and in this order:
 * route with all of it; victim/remove for every slot it needs (never naming a member of the set:
 * `may_evict` refuses them); then, in the set's own order, touch for the members that were resident
 * and insert for those that were not. So recency inside a set follows the set's order, whatever
 * hit. What is fetched ahead is inserted without having been routed. Functions of numbers only: no
 * memory, no devices, no locks, no clock.
 *
 * `state` is the pool's memory, aligned to 8 bytes; state_bytes is a multiple of 8, so that the
 * states of several scopes can lie one behind the other. It is freed without a call. */
#ifndef MP_POLICY_POLICY_H
#define MP_POLICY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define MP_NO_KEY UINT32_MAX

typedef bool (*mp_may_evict_fn)(void *ctx, uint32_t key);

typedef struct mp_policy {
    const char *name;
    uint64_t (*state_bytes)(uint32_t keys, uint32_t experts);   /* memory that init will use */
    void (*init)(void *state, uint32_t keys, uint32_t experts); /* nothing is resident */
    /* A layer routed to these n > 0 distinct keys, resident or not. NULL: it need not know. */
    void (*route)(void *state, const uint32_t *keys, uint32_t n);
    /* The layer of keys [first, first + n) is to come: key first + i will be routed with probability
     * p[i] > 0, as far as a predictor can tell. NULL: it need not know. */
    void (*expect)(void *state, uint32_t first, const float *p, uint32_t n);
    void (*insert)(void *state, uint32_t key); /* a key that is not resident becomes so */
    void (*touch)(void *state, uint32_t key);  /* a resident key was routed */
    void (*remove)(void *state, uint32_t key); /* a resident key leaves */
    /* The best key to evict among the resident ones that may be, or MP_NO_KEY. Removes nothing:
     * asked again with no call between, it answers the same. It may move keys that it passes over
     * between queues of its own, as SIEVE's hand does. */
    uint32_t (*victim)(void *state, mp_may_evict_fn may_evict, void *ctx);
} mp_policy;

/* The policy of that name (NULL: "lru"), or NULL. */
const mp_policy *mp_policy_find(const char *name);

/* The names there are, the default first; NULL past the last. */
const char *mp_policy_name(uint32_t index);

#endif
