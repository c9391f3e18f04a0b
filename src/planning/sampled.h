/* sampled.h — sampled reuse distances in fixed memory (SHARDS, Waldspurger et al., FAST 2015).
 *
 * A key is sampled if a hash of it is below a threshold: all its uses or none. Among sampled keys
 * distances are measured exactly and divided by the sampling rate; the units used by all keys
 * since, which are known, correct for the luck of the draw (sampled.c gives the formulas). When
 * more than `max_keys` keys would be tracked the threshold falls, and keys above it are dropped.
 * While all keys fit, the rate is 1 and every distance exact.
 *
 * The accuracy depends on how dissimilar the keys are, not on the number of uses: with a rate R and
 * K keys in all, R K of them represent K. docs/working-sets.md has measurements. A key that makes
 * up much of the stream is either in the sample or not, so capacities of a few keys cannot be
 * sampled.
 *
 * Keys are any 64-bit numbers; each has a size in units (an expert: 1; a sequence of the KV cache:
 * its blocks), and distances are counted in units: the sizes of the other keys used since. A key's
 * size may change from use to use.
 *
 * Uses come in sets as in reuse.h. At most 100 ns per use on average when sampling, O(log max_keys)
 * for a sampled one. A pure function of numbers in the caller's memory. */
#ifndef MP_PLANNING_SAMPLED_H
#define MP_PLANNING_SAMPLED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mp_sampled mp_sampled;

/* A sample of one use, for a histogram. */
typedef struct mp_sample {
    uint64_t distance; /* in units, scaled up; UINT64_MAX = first access */
    /* In units: how many units' uses this sample represents: size / rate, corrected so that all
     * samples together weigh as much as all uses. */
    double weight;
} mp_sample;

typedef struct mp_sampled_use {
    uint64_t key;
    uint32_t size; /* units, >= 1 */
} mp_sampled_use;

/* Returns the bytes of state, a multiple of 8. `max_keys` >= 16. */
uint64_t mp_sampled_bytes(uint32_t max_keys);
/* Initialises the state. `rate` in (0, 1]: the initial sampling rate; `seed` varies the hash. */
mp_sampled *mp_sampled_init(void *state, uint32_t max_keys, double rate, uint64_t seed);

/* Uses a set of n distinct keys, in its order. Writes one sample for each sampled use; returns
 * their number. */
uint32_t mp_sampled_use_set(mp_sampled *sampled, const mp_sampled_use *uses, uint32_t n,
                            mp_sample *samples);

/* Removes a key that will not be used again. */
void mp_sampled_forget(mp_sampled *sampled, uint64_t key);

/* Returns the current sampling rate. */
double mp_sampled_rate(const mp_sampled *sampled);

#endif
