/* hotness.h — which experts are worth the high precision (DynaExq 3.5).
 *
 * Every interval T_u each layer's hotness is S <- a S + (1 - a) c, where c counts an expert's
 * selections in the interval; the n_hi hottest of a layer should be high. Hysteresis: an expert
 * outside the current set replaces one inside only if it is hotter by the margin; promotion and
 * demotion are decided together, so that the set never grows past n_hi. Pure: numbers in, a
 * decision out. */
#ifndef MP_PLANNING_HOTNESS_H
#define MP_PLANNING_HOTNESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mp_precision_law {
    double alpha;  /* in [0, 1) */
    double margin; /* m >= 0: promoted when S_in > (1 + m) * S_out + floor */
    double floor;  /* additive part of the margin, in counts per interval */
} mp_precision_law;

/* Updates S for one layer's experts after an interval, and sets the counts to 0. */
void mp_precision_age(const mp_precision_law *law, double *hotness, uint32_t *counts,
                      uint32_t experts);

typedef struct mp_precision_swap {
    uint32_t in;  /* to be promoted */
    uint32_t out; /* to be demoted in exchange; UINT32_MAX: none, the set is not full */
} mp_precision_swap;

/* Selects the changes of one layer's set, largest gain first; returns their number, at most
 * n_hi. `high[e]`: e is in the set, or on its way into it. Ties go to the lower id. `order`
 * is [experts] scratch. */
uint32_t mp_precision_select(const mp_precision_law *law, const double *hotness, const bool *high,
                             uint32_t experts, uint32_t n_hi, uint32_t *order,
                             mp_precision_swap *out);

/* Returns how many high versions per layer fit into `bytes`. lo_always: every expert also has a low
 * version. Otherwise only experts without a high version do, plus `spare` experts of each layer,
 * whose versions may be in transit: without a spare no change would be possible. UINT32_MAX if not
 * even the low versions fit. */
uint32_t mp_precision_capacity(uint64_t bytes, uint32_t layers, uint32_t experts, uint64_t hi_bytes,
                               uint64_t lo_bytes, bool lo_always, uint32_t spare);

#endif
