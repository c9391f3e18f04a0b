/* shadow.h — what a cache would miss: a policy at work on keys alone.
 *
 * Serves routed sets as a pool does whose layers share its slots, whatever that pool itself does
 * meanwhile. Functions of numbers in the caller's memory. */
#ifndef MP_POLICY_SHADOW_H
#define MP_POLICY_SHADOW_H

#include "policy/policy.h"

typedef struct mp_shadow mp_shadow;

/* Returns the bytes of state, which is aligned to 8 bytes. */
uint64_t mp_shadow_bytes(const mp_policy *policy, uint32_t keys, uint32_t experts);
/* Starts with no resident key. */
mp_shadow *mp_shadow_init(void *state, const mp_policy *policy, uint32_t keys, uint32_t experts);
/* Serves a set of n distinct keys, of one layer, with `slots` slots; returns how many it misses. */
uint32_t mp_shadow_serve(mp_shadow *shadow, const uint32_t *keys, uint32_t n, uint32_t slots);

#endif
