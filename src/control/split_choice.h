/* split_choice.h — how the arena's bytes are divided between experts and KV (WiSP §3.3-3.5, app. B, D).
 *
 * Everything is counted in units: an expert unit is what the expert side grows by (one slot; or one
 * slot in every layer), a KV unit is what the KV side grows by (a granule of blocks). With c expert
 * and n KV units
 *
 *     B >= c * expert_bytes + n * kv_bytes                                   (the budget)
 *     T(c, n) = expert_miss_ns * M_e(c) + kv_miss_ns * M_k(n)                 (eq. 4)
 *     n >= floor                                                             (eq. 6)
 *
 * with M_e and M_k the misses that the two miss curves predict. At an interior optimum one more
 * byte buys the same on either side (eq. 5).
 *
 * Pure functions: numbers in, a split out. */
#ifndef MP_CONTROL_SPLIT_CHOICE_H
#define MP_CONTROL_SPLIT_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "control/curve.h"

typedef struct mp_split {
    uint64_t experts; /* c, in expert units */
    uint64_t kv;      /* n, in KV units */
} mp_split;

/* What every way of splitting has to respect. Of units of no bytes, none fit. */
typedef struct mp_split_bounds {
    uint64_t budget_bytes;
    uint64_t expert_bytes; /* of one expert unit (s_e) */
    uint64_t kv_bytes;     /* of one KV unit (s_k) */
    uint64_t min_experts;  /* c_min: what one layer's top-k needs */
    uint64_t max_experts;  /* E: more are never of use */
    uint64_t kv_floor;     /* in KV units: mp_split_floor */
} mp_split_bounds;

/* What misses cost; times are finite, >= 0. */
typedef struct mp_split_costs {
    const mp_curve *experts; /* over expert units */
    const mp_curve *kv;      /* over KV units; NULL: nothing is known of KV reuse, its cost is 0 */
    double expert_miss_ns;   /* of one access that misses */
    double kv_miss_ns;       /* of one KV unit that has to be swapped in or computed again */
    double kv_headroom;      /* sequences grow: what comes back needs so much more than it did, as a
                           fraction. An LRU that is a little too small misses all of a cycle */
} mp_split_costs;

/* The admission floor (eq. 6) in KV units of `unit_blocks` blocks: `concurrency` sequences of
 * `context_tokens`, each in blocks of its own; never less than one sequence, nor than one unit.
 * UINT64_MAX if it is more than that. `block_tokens` and `unit_blocks` >= 1. */
uint64_t mp_split_floor(uint64_t concurrency, uint64_t context_tokens, uint32_t block_tokens,
                        uint32_t unit_blocks);

/* Is there any split within the bounds? */
bool mp_split_feasible(const mp_split_bounds *bounds);

/* Is this one? */
bool mp_split_within(const mp_split_bounds *bounds, const mp_split *split);

/* The split with c expert units and all the rest KV, c clamped so that the bounds hold. False if
 * none does. */
bool mp_split_with_experts(const mp_split_bounds *bounds, uint64_t experts, mp_split *out);

/* T (eq. 4) in ns. */
double mp_split_cost(const mp_split_costs *costs, const mp_split *split);

/* The configurator: the split of least cost within the bounds; among equals the one with more KV,
 * then the one with more experts. A grid of `grid` candidates first, then, unit by unit, each
 * stretch between two of them that may hold a better one. That is exact, whatever the curves look
 * like, as long as it takes no more than 65,536 candidates, and so for every shape of fewer expert
 * units. False if none is feasible. */
bool mp_split_configure(const mp_split_bounds *bounds, const mp_split_costs *costs, uint32_t grid,
                        mp_split *out);

/* ---- the closed form (app. D) ---- */

typedef struct mp_dual_resize {
    double headroom;    /* h, of the peak */
    uint64_t dead_zone; /* in expert units: smaller moves are not made */
} mp_dual_resize;

/* n* = max(floor, ceil((1 + h) peak)); c* = clamp(floor((B - n* s_k) / s_e), c_min, E);
 * n* = floor((B - c* s_e) / s_k). `peak`: most KV units used in the burst. False, and *out is
 * `now`, if that is refused (KV would fall below its floor) or within the dead zone. A split that
 * violates the bounds (a floor that has risen) is left whatever the dead zone. */
bool mp_split_dual_resize(const mp_dual_resize *law, const mp_split_bounds *bounds, uint64_t peak,
                          const mp_split *now, mp_split *out);

/* ---- baselines ---- */

/* A fixed fraction (0..1) of the budget's bytes for experts. False if infeasible. */
bool mp_split_fixed(const mp_split_bounds *bounds, double expert_fraction, mp_split *out);

/* Flux-prop: KV-blind. All that the experts' working set (`working_set` units) wants, KV gets the
 * rest, not even the floor. May give KV nothing. */
void mp_split_flux(const mp_split_bounds *bounds, uint64_t working_set, mp_split *out);

#endif
