/* configure.h — the split of a budget for given jobs: what is possible, and what MV-WSA takes to be best
 * before anything is served (WiSP §3.4). */
#ifndef SIM_CONFIGURE_H
#define SIM_CONFIGURE_H

#include "control/split_choice.h"
#include "sim/serve.h"

/* Sets what is the same in all splits of a study: the KV granule. */
void sim_fix_granule(sim_stack_config *stack);

/* One expert unit is a slot (a slot in every layer, where layers have their own), a KV unit a granule.
 * The floor is what the longest job needs. */
int sim_split_bounds(const sim_serve_config *config, mp_split_bounds *out);

/* KV units that hold so many tokens. */
uint64_t sim_kv_units(const sim_stack_config *stack, uint64_t tokens);

typedef struct sim_configured {
    bool feasible;
    mp_split_bounds bounds;
    mp_split split;
    uint32_t passes;       /* of profiling */
    double expert_miss_ns; /* of one expert */
    double kv_miss_ns;     /* of one KV unit */
    mp_curve experts, kv;  /* owned; see sim_configured_free */
} sim_configured;

/* One split, served. */
typedef struct sim_point {
    mp_split split;
    double latency_ns;
    uint64_t failures; /* of admission */
} sim_point;

/* Is `a` better than `b`? Without failures if that can be had, then by latency. */
bool sim_point_better(const sim_point *a, const sim_point *b);

/* Serves the jobs, observed, at a first guess; then at the split of least predicted cost; and again,
 * for costs and streams depend on where they are measured, until that stays or three times. So from
 * an even split and from all experts that fit; what was served best of all that is the answer. */
int sim_configure(const sim_serve_config *config, sim_configured *out);
void sim_configured_free(sim_configured *configured);

/* The start of a run with so many expert units; config's own otherwise. */
void sim_use_split(sim_serve_config *config, const mp_split *split);

#endif
