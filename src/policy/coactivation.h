/* coactivation.h — the co-activation table (WiSP appendix C): how often pairs of experts, a few
 * layers apart, fire in the same forward pass.
 *
 *   fired(l, a)        forward passes in which expert a of layer l fired
 *   pairs(l, d, a, b)  of those, passes in which b fired d layers later
 *   uses(l, a)         all uses of a; for right-sizing, never for predictions
 *
 *   P(b at l + d | a at l) = pairs(l, d, a, b) / fired(l, a)
 *
 * d is 1..span, and the layer after the last is the first of the same sequence's next pass. Counts
 * of pairs and of firing are 16 bits: when an expert has fired 65535 times, its count and those of
 * all its pairs are halved, so that the table forgets with a half-life of some 2^15 uses of that
 * expert. A pair's count never exceeds its expert's. Uses have 32 bits and saturate.
 *
 * Memory: layers * experts * (6 + 2 * span * experts) bytes; 12.6 MB for 48 layers of 128
 * experts. Rows without counts are never written, so that systems that allocate pages on first
 * write use fewer. */
#ifndef MP_POLICY_COACTIVATION_H
#define MP_POLICY_COACTIVATION_H

#include <stdbool.h>

#include "moepage.h"

#define MP_COACTIVATION_SPAN 8u

typedef struct mp_coactivation mp_coactivation;

/* Returns the span of the table for such a model: MP_COACTIVATION_SPAN, or all layers if there are
 * fewer, limited to what fits into 256 MiB but at least 1. */
uint32_t mp_coactivation_span(uint32_t layers, uint32_t experts);

uint64_t mp_coactivation_bytes(uint32_t layers, uint32_t experts);
void mp_coactivation_init(mp_coactivation *table, uint32_t layers, uint32_t experts);

/* Counts a use of each of the distinct experts of `layer`; with `fired`, also a firing
 * in one pass. */
void mp_coactivation_use(mp_coactivation *table, uint32_t layer, const uint16_t *experts,
                         uint32_t n, bool fired);

/* Counts pairs within a pass: `from` fired at `layer`, and `to` fired `distance` layers later. Both
 * have been counted as used already. */
void mp_coactivation_pair(mp_coactivation *table, uint32_t layer, uint32_t distance,
                          const uint16_t *from, uint32_t n_from, const uint16_t *to, uint32_t n_to);

/* Adds weight * P(b at layer + distance | a) to sums[b] for every a of `from` that ever fired;
 * returns the number of those. */
uint32_t mp_coactivation_add(const mp_coactivation *table, uint32_t layer, uint32_t distance,
                             const uint16_t *from, uint32_t n_from, float weight, float *sums);

/* Returns the uses, [layers * experts]. */
const uint32_t *mp_coactivation_uses(const mp_coactivation *table);

/* Save and load the table, as in mp_predictor: all of `fired`, all of `uses`, then the pairs of
 * every expert that fired. */
uint64_t mp_coactivation_save_bytes(const mp_coactivation *table);
void mp_coactivation_save(const mp_coactivation *table, unsigned char *out);
moepage_status mp_coactivation_load(mp_coactivation *table, const unsigned char *in,
                                    uint64_t bytes);

#endif
