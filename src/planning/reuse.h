/* reuse.h — exact reuse distances of a stream of keys (Olken's method over a Fenwick tree).
 *
 * The reuse distance of an access is the number of distinct keys used since its key's last use: 0
 * for the key used last. An LRU cache of capacity c misses exactly the first accesses and those
 * whose distance is at least c. So one pass gives the misses at every capacity.
 *
 * Accesses come in sets, a layer's routed experts, served at once: all distances of a set are
 * measured before any of its members moves; the members then move in the set's order, so that the
 * last one is the most recent. A stream without sets consists of sets of one.
 *
 * Keys are 0..keys-1. O(log keys) per access. A pure function of numbers in the caller's memory. */
#ifndef MP_PLANNING_REUSE_H
#define MP_PLANNING_REUSE_H

#include <stdint.h>

#define MP_REUSE_FIRST UINT32_MAX /* a key's first use */

typedef struct mp_reuse mp_reuse;

/* Returns the bytes of state for `keys` keys, a multiple of 8; `state` is aligned to 8 bytes. */
uint64_t mp_reuse_bytes(uint32_t keys);
mp_reuse *mp_reuse_init(void *state, uint32_t keys);

/* Measures distances[i] for each of the n distinct keys of a set, then makes the set
 * the most recent. */
void mp_reuse_use(mp_reuse *reuse, const uint32_t *keys, uint32_t n, uint32_t *distances);

/* The key leaves the stack, as if it had never been used. */
void mp_reuse_forget(mp_reuse *reuse, uint32_t key);

#endif
