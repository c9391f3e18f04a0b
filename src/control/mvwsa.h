/* mvwsa.h — MV-WSA online: at the end of every burst, move the split towards the one at which both
 * sides buy the same latency per byte (WiSP §3.4, app. B, algorithm 2).
 *
 * Miss curves come from decayed histograms of warm reuse distances. The predicted cost is evaluated
 * on a grid of splits (a point-density marginal would read 0 in the gap between the two modes of
 * the distances), and the split moves only if the predicted gain clears a gate, by at most a rate
 * limit, and not at all towards a target within the dead zone.
 *
 * Pure: the state is numbers, the caller feeds the curves and acts on the answer. */
#ifndef MP_CONTROL_MVWSA_H
#define MP_CONTROL_MVWSA_H

#include "control/split_choice.h"

typedef struct mp_mvwsa_config {
    double decay;        /* lambda: what a burst's counts are worth one burst later, 0..1 */
    double gate;         /* least predicted gain, as a fraction of the cost now */
    double min_samples;  /* warm expert accesses in the curve before anything is moved */
    uint64_t rate_limit; /* most expert units moved at once, >= 1 */
    uint64_t dead_zone;  /* expert units: a target nearer than this is not worth a move. No wider
                            than rate_limit: otherwise no way would be gone to its end */
    uint32_t grid;       /* candidates */
    uint32_t patience;   /* bursts in a row that must ask for the same direction, >= 1 */
} mp_mvwsa_config;

typedef enum mp_mvwsa_why {
    MP_MVWSA_MOVE,
    MP_MVWSA_COLD,       /* too few samples */
    MP_MVWSA_INFEASIBLE, /* no split respects the bounds */
    MP_MVWSA_GATE,       /* the gain is too small */
    MP_MVWSA_DEAD_ZONE,
    MP_MVWSA_PATIENCE /* not asked for often enough */
} mp_mvwsa_why;

typedef struct mp_mvwsa {
    mp_mvwsa_config config;
    int32_t streak; /* bursts in a row that asked for more (> 0) or fewer (< 0) experts */
} mp_mvwsa;

typedef struct mp_mvwsa_answer {
    mp_mvwsa_why why;
    mp_split next;       /* what to have from now on; the split now unless `why` is MOVE */
    mp_split target;     /* the predicted optimum; the split now if COLD or INFEASIBLE */
    double cost_now_ns;  /* predicted, of the split now */
    double cost_best_ns; /* of the target */
} mp_mvwsa_answer;

/* Defaults for `max_experts` expert units. */
void mp_mvwsa_defaults(uint64_t max_experts, mp_mvwsa_config *config);
void mp_mvwsa_init(mp_mvwsa *mvwsa, const mp_mvwsa_config *config);

/* A burst has ended; the curves hold it and what decayed before it. A split that violates the
 * bounds (a floor that has risen) is left at once for the nearest that does not, without samples,
 * gate, patience and rate limit. The caller decays the curves by config.decay afterwards. */
void mp_mvwsa_burst(mp_mvwsa *mvwsa, const mp_split_bounds *bounds, const mp_split_costs *costs,
                    const mp_split *now, mp_mvwsa_answer *out);

#endif
