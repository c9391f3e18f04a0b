/* split_choice.h — how the arena's bytes are divided between experts and KV (WiSP §3.3-3.5, app. B,
 * D).
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
#ifndef MP_PLANNING_SPLIT_CHOICE_H
#define MP_PLANNING_SPLIT_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "planning/curve.h"

typedef struct mp_split {
    uint64_t experts; /* c, in expert units */
    uint64_t kv;      /* n, in KV units */
} mp_split;

/* The constraints on every split. Units of zero bytes never fit. */
typedef struct mp_split_bounds {
    uint64_t budget_bytes;
    uint64_t expert_bytes; /* of one expert unit (s_e) */
    uint64_t kv_bytes;     /* of one KV unit (s_k) */
    uint64_t min_experts;  /* c_min: the need of one layer's top-k */
    uint64_t max_experts;  /* E: more are useless */
    uint64_t kv_floor;     /* in KV units: mp_split_floor */
} mp_split_bounds;

/* The costs of misses; times are finite, >= 0. */
typedef struct mp_split_costs {
    const mp_curve *experts; /* over expert units */
    const mp_curve *kv;      /* over KV units; NULL: KV reuse is unknown and costs 0 */
    double expert_miss_ns;   /* per access that misses */
    double kv_miss_ns;       /* per KV unit that is swapped in or recomputed */
    /* Relative growth of a sequence until it returns: an LRU slightly too small for a cycle misses
     * all of it. */
    double kv_headroom;
} mp_split_costs;

/* Returns the admission floor (eq. 6) in KV units of `unit_blocks` blocks: `concurrency` sequences
 * of `context_tokens`, each in blocks of its own; at least one sequence and one unit. UINT64_MAX on
 * overflow. `block_tokens` and `unit_blocks` >= 1. */
uint64_t mp_split_floor(uint64_t concurrency, uint64_t context_tokens, uint32_t block_tokens,
                        uint32_t unit_blocks);

/* Returns true if any split satisfies the bounds. */
bool mp_split_feasible(const mp_split_bounds *bounds);

/* Returns true if this split satisfies the bounds. */
bool mp_split_within(const mp_split_bounds *bounds, const mp_split *split);

/* Computes the split with c expert units and the rest KV, c clamped so that the bounds hold.
 * Returns false if none does. */
bool mp_split_with_experts(const mp_split_bounds *bounds, uint64_t experts, mp_split *out);

/* Returns T (eq. 4) in ns. */
double mp_split_cost(const mp_split_costs *costs, const mp_split *split);
/* Returns its second term. */
double mp_split_kv_ns(const mp_split_costs *costs, uint64_t kv);

/* Finds the split of least cost within the bounds (the configurator); among equals the one with
 * more KV, then the one with more experts. Tries a grid of `grid` candidates first, then, unit by
 * unit, each stretch between two of them that may hold a better one. That is exact for curves of
 * any shape as long as it takes at most 65,536 candidates, and so always with fewer expert units
 * than that. Returns false if no split is feasible. */
bool mp_split_configure(const mp_split_bounds *bounds, const mp_split_costs *costs, uint32_t grid,
                        mp_split *out);

/* A cost of splits, and the search for its least. `of`: what both are functions of. */
typedef struct mp_split_objective {
    double (*cost)(const void *of, const mp_split *split);
    bool (*configure)(const void *of, const mp_split_bounds *bounds, uint32_t grid, mp_split *out);
    const void *of;
    double samples; /* warm expert accesses behind it */
} mp_split_objective;

/* Returns T as an objective; `costs` must outlive it. */
mp_split_objective mp_split_misses(const mp_split_costs *costs);

/* ---- the closed form (app. D) ---- */

typedef struct mp_dual_resize {
    double headroom;    /* h, of the peak */
    uint64_t dead_zone; /* in expert units: smaller moves are skipped */
} mp_dual_resize;

/* Computes n* = max(floor, ceil((1 + h) peak)); c* = clamp(floor((B - n* s_k) / s_e), c_min, E); n*
 * = floor((B - c* s_e) / s_k). `peak`: most KV units used in the burst. Returns false with *out =
 * `now` if the result is refused (KV would fall below its floor) or within the dead zone. A split
 * that violates the bounds (a floor that has risen) is left whatever the dead zone. */
bool mp_split_dual_resize(const mp_dual_resize *law, const mp_split_bounds *bounds, uint64_t peak,
                          const mp_split *now, mp_split *out);

/* ---- baselines ---- */

/* Gives a fixed fraction (0..1) of the budget's bytes to experts. Returns false if infeasible. */
bool mp_split_fixed(const mp_split_bounds *bounds, double expert_fraction, mp_split *out);

/* Splits as Flux-prop does, KV-blind: experts get their whole working set (`working_set` units), KV
 * the rest, which may be below the floor or zero. */
void mp_split_flux(const mp_split_bounds *bounds, uint64_t working_set, mp_split *out);

#endif
