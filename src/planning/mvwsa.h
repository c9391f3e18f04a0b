/* mvwsa.h — MV-WSA online: at the end of every burst, moves the split towards the one at which both
 * sides buy the same latency per byte (WiSP §3.4, app. B, algorithm 2).
 *
 * Miss curves come from decayed histograms of warm reuse distances. The predicted cost is evaluated
 * on a grid of splits (a point-density marginal would read 0 in the gap between the two modes of
 * the distances). The split moves only if the predicted gain clears a gate, by at most a rate
 * limit, and not towards a target within the dead zone.
 *
 * Pure: the state is numbers; the caller supplies the curves and acts on the answer. */
#ifndef MP_PLANNING_MVWSA_H
#define MP_PLANNING_MVWSA_H

#include "planning/split_choice.h"

typedef struct mp_mvwsa_config {
    double decay;        /* lambda: weight of a burst's counts one burst later, 0..1 */
    double gate;         /* least predicted gain, as a fraction of the cost now */
    double min_samples;  /* warm expert accesses that the curve needs before any move */
    uint64_t rate_limit; /* most expert units per move, >= 1 */
    /* Expert units: nearer targets are not worth a move; at most rate_limit, or no move would ever
     * reach its target. */
    uint64_t dead_zone;
    uint32_t grid;     /* candidates */
    uint32_t patience; /* consecutive bursts that must ask for the same direction, >= 1 */
    double hurry; /* gain, as a fraction of the cost now, that needs no patience; 0: none does */
} mp_mvwsa_config;

typedef enum mp_mvwsa_why {
    MP_MVWSA_MOVE,
    MP_MVWSA_COLD,       /* too few samples */
    MP_MVWSA_INFEASIBLE, /* no split satisfies the bounds */
    MP_MVWSA_GATE,       /* the gain is too small */
    MP_MVWSA_DEAD_ZONE,
    MP_MVWSA_PATIENCE /* not yet asked for by enough bursts */
} mp_mvwsa_why;

typedef struct mp_mvwsa {
    mp_mvwsa_config config;
    int32_t streak; /* consecutive bursts that asked for more (> 0) or fewer (< 0) experts */
} mp_mvwsa;

typedef struct mp_mvwsa_answer {
    mp_mvwsa_why why;
    mp_split next;    /* the split from now on; the present one unless `why` is MOVE */
    mp_split target;  /* the predicted optimum; the present split if COLD or INFEASIBLE */
    double cost_now;  /* predicted for the present split; in ns where misses are what costs */
    double cost_best; /* predicted for the target */
} mp_mvwsa_answer;

/* Fills in the defaults for `max_experts` expert units. */
void mp_mvwsa_defaults(uint64_t max_experts, mp_mvwsa_config *config);
void mp_mvwsa_init(mp_mvwsa *mvwsa, const mp_mvwsa_config *config);

/* Processes the end of a burst; the curves contain it and decayed earlier ones. A split that
 * violates the bounds (a floor that has risen) is left at once for the nearest valid one,
 * regardless of samples, gate, patience and rate limit. The caller decays the curves by
 * config.decay afterwards. */
void mp_mvwsa_burst(mp_mvwsa *mvwsa, const mp_split_bounds *bounds,
                    const mp_split_objective *objective, const mp_split *now, mp_mvwsa_answer *out);

#endif
