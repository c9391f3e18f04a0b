/* rightsize.h — how many experts a workload's routing converges to, estimated from their use counts
 * so far (WiSP sections 4 and 5.4, appendix G.1).
 *
 * The claim: the smallest cap that keeps a workload near-lossless is the support of its converged
 * working set. It holds as far as the workload's choices so far are a sample of future ones. One or
 * two sessions are a small sample, so the estimate includes experts not seen yet. Good and Turing:
 *
 *   unseen = experts used once / choices       the chance that the next choice is a new expert;
 *                                              0 where every expert has been used
 *   covered by the m most used = (1 - unseen) * their uses / choices
 *
 * If all the seen experts together cover too little, the unseen chance is assumed to be spread
 * evenly over the others. The answer is the least m that reaches the requested coverage.
 *
 * For one cap over all layers, give all layers' uses at once; for a cap per layer, one layer's.
 * Pure: functions of counts. */
#ifndef MP_PLANNING_RIGHTSIZE_H
#define MP_PLANNING_RIGHTSIZE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mp_working_set {
    uint64_t choices;    /* total uses of experts */
    uint64_t seen;       /* experts used at all */
    uint64_t singletons; /* experts used once */
    double unseen;       /* 0..1 */
    uint64_t experts; /* the smallest set that covers the request: 0 without a choice, at most n */
} mp_working_set;

/* Computes the working set. `uses` [n]; `coverage` 0..1 of choices. O(n). */
void mp_rightsize(const uint32_t *uses, uint64_t n, double coverage, mp_working_set *out);

/* The same with a bound instead of an estimate, for a cap that is to be acted on. With a probability of 95 % a choice
 * of an expert not seen yet has at most the chance
 *
 *   unseen + (1 + sqrt 2) sqrt(ln 40 / choices)
 *
 * if choices are independent: Good and Turing's estimate of it changes by at most 2 / choices with one choice
 * (McDiarmid), and what is unseen exceeds its mean by e with at most exp(-choices e^2) (McAllester and Ortiz).
 * out->unseen is that bound, at most 1. Returns false, without experts, if all seen ones together may cover too little:
 * the sample is too small. */
bool mp_rightsize_surely(const uint32_t *uses, uint64_t n, double coverage, mp_working_set *out);

/* Returns the least number of experts with that part of all uses so far. */
uint64_t mp_rightsize_seen(const uint32_t *uses, uint64_t n, double coverage);

/* Sets marks[i] of the `most` most used, equals by lower index; of experts that were used at all. */
void mp_rightsize_mark(const uint32_t *uses, uint64_t n, uint64_t most, uint8_t *marks);

/* Returns the smallest cap per layer that fits every layer's working set: the largest layer's. */
uint64_t mp_rightsize_per_layer(const uint32_t *uses, uint32_t layers, uint32_t experts,
                                double coverage);

/* Returns the fraction of the `choices` of another sample that fall on this sample's
 * `cap` most used experts, equals by lower index: the hits of a cap so chosen and filled.
 * 0 without choices. */
double mp_rightsize_covered(const uint32_t *uses, const uint32_t *choices, uint64_t n,
                            uint64_t cap);

/* Next-expert precision: the fraction of predicted experts that were then routed.
 * Zero-filled to begin. */
typedef struct mp_next_expert {
    uint64_t predicted, routed; /* experts; `routed` counts the predicted ones that were routed */
} mp_next_expert;

/* Counts one layer of one token: the first top_k of `predicted` (distinct, best first). */
void mp_next_expert_count(mp_next_expert *count, const uint32_t *predicted, uint32_t n_predicted,
                          uint32_t top_k, const uint32_t *routed, uint32_t n_routed);

/* Returns the precision; 0 without predictions. */
double mp_next_expert_precision(const mp_next_expert *count);

#endif
