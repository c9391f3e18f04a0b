/* coactivation.h — the co-activation table (WiSP appendix C): which experts fire together with which,
 * a few layers apart, in one forward pass.
 *
 *   fired(l, a)        forward passes in which expert a of layer l fired
 *   pairs(l, d, a, b)  of those, how many in which b fired d layers later
 *   uses(l, a)         how often a was used at all; of right-sizing, never of predictions
 *
 *   P(b at l + d | a at l) = pairs(l, d, a, b) / fired(l, a)
 *
 * d is 1..span, and the layer after the last is the first of the same sequence's next pass. Counts of
 * pairs and of firing are 16 bits: when an expert has fired 65535 times, it and all its pairs count
 * half, so that the table forgets with a half-life of some 2^15 of its own uses. A pair is never above
 * its expert. Uses have 32 bits and stay at their most.
 *
 * Memory: layers * experts * (6 + 2 * span * experts) bytes; 12.6 MB for 48 layers of 128 experts.
 * Rows that nothing was counted in are never written, so that systems which give pages when they are
 * written give fewer. */
#ifndef MP_POLICY_COACTIVATION_H
#define MP_POLICY_COACTIVATION_H

#include <stdbool.h>

#include "moepage.h"

#define MP_COACTIVATION_SPAN 8u

typedef struct mp_coactivation mp_coactivation;

/* How many layers apart the table of such a model counts: MP_COACTIVATION_SPAN, all layers where
 * there are fewer, and no more, but one, than fit into 256 MiB. */
uint32_t mp_coactivation_span(uint32_t layers, uint32_t experts);

uint64_t mp_coactivation_bytes(uint32_t layers, uint32_t experts);
void mp_coactivation_init(mp_coactivation *table, uint32_t layers, uint32_t experts);

/* Distinct experts of `layer` were used, and (`fired`) can be told apart as one pass's. */
void mp_coactivation_use(mp_coactivation *table, uint32_t layer, const uint16_t *experts,
                         uint32_t n, bool fired);

/* Of a pass: `from` fired at `layer` and `to` `distance` layers later. Both were used before. */
void mp_coactivation_pair(mp_coactivation *table, uint32_t layer, uint32_t distance,
                          const uint16_t *from, uint32_t n_from, const uint16_t *to, uint32_t n_to);

/* Adds weight * P(b at layer + distance | a) to sums[b] for every a of `from` that ever fired; returns
 * how many those were. */
uint32_t mp_coactivation_add(const mp_coactivation *table, uint32_t layer, uint32_t distance,
                             const uint16_t *from, uint32_t n_from, float weight, float *sums);

/* [layers * experts]. */
const uint32_t *mp_coactivation_uses(const mp_coactivation *table);

/* As mp_predictor's: all of `fired`, all of `uses`, then the pairs of every expert that fired. */
uint64_t mp_coactivation_save_bytes(const mp_coactivation *table);
void mp_coactivation_save(const mp_coactivation *table, unsigned char *out);
moepage_status mp_coactivation_load(mp_coactivation *table, const unsigned char *in,
                                    uint64_t bytes);

#endif
