/* rightsize.h — how many experts a workload's routing converges to, from how often each was used so
 * far (WiSP sections 4 and 5.4, appendix G.1).
 *
 * The claim: the smallest cap that keeps a workload near-lossless is the support of its converged
 * working set. It holds as far as the workload's choices are a sample of what is to come. Uses of a
 * session or two are a small sample, so what they have not shown yet counts too. Good and Turing:
 *
 *   unseen = experts used once / choices       the chance that the next choice is a new expert;
 *                                              0 where every expert has been used
 *   covered by the m most used = (1 - unseen) * their uses / choices
 *
 * Where all that were seen cover too little, the unseen chance is taken to be spread evenly over the
 * experts that were not. The answer is the least m that covers what is asked.
 *
 * For one cap over all layers, give all layers' uses at once; for a cap per layer, one layer's. Pure:
 * functions of counts. */
#ifndef MP_CONTROL_RIGHTSIZE_H
#define MP_CONTROL_RIGHTSIZE_H

#include <stdint.h>

typedef struct mp_working_set {
    uint64_t choices;    /* of experts, that were seen */
    uint64_t seen;       /* experts used at all */
    uint64_t singletons; /* used once */
    double unseen;       /* 0..1 */
    uint64_t
        experts; /* the smallest set that covers what is asked: 0 without a choice, at most n */
} mp_working_set;

/* `uses` [n]; `coverage` 0..1 of choices. O(n). */
void mp_rightsize(const uint32_t *uses, uint64_t n, double coverage, mp_working_set *out);

/* The smallest cap per layer at which every layer's working set fits: the largest layer's. */
uint64_t mp_rightsize_per_layer(const uint32_t *uses, uint32_t layers, uint32_t experts,
                                double coverage);

/* The part of all `choices` of another sample that fall on the `cap` most used of this one, equals by
 * lower index: what a cap so chosen, and so filled, would have held. 0 where there are none. */
double mp_rightsize_covered(const uint32_t *uses, const uint32_t *choices, uint64_t n,
                            uint64_t cap);

/* Next-expert precision: which part of what was predicted was then routed. Zero-filled to begin. */
typedef struct mp_next_expert {
    uint64_t predicted, routed; /* experts; `routed` counts those predicted that were */
} mp_next_expert;

/* One layer of one token: of the first top_k of `predicted` (distinct, best first). */
void mp_next_expert_count(mp_next_expert *count, const uint32_t *predicted, uint32_t n_predicted,
                          uint32_t top_k, const uint32_t *routed, uint32_t n_routed);

/* 0 where nothing was predicted. */
double mp_next_expert_precision(const mp_next_expert *count);

#endif
