/* configure.h — the split of a budget for given jobs: the feasible range, and MV-WSA's predicted
 * optimum before serving (WiSP §3.4). */
#ifndef SIM_CONFIGURE_H
#define SIM_CONFIGURE_H

#include "planning/split_choice.h"
#include "sim/serve.h"

/* Sets the KV granule, which all splits of a study share. */
void sim_fix_granule(sim_stack_config *stack);

/* Computes the bounds. An expert unit is a slot (a slot in every layer if layers have their own), a
 * KV unit a granule. The floor is the longest job's need. */
int sim_split_bounds(const sim_serve_config *config, mp_split_bounds *out);

/* Returns the KV units for this many tokens. */
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

/* One split and its result. */
typedef struct sim_point {
    mp_split split;
    double latency_ns;
    uint64_t failures; /* failures of admission */
} sim_point;

/* Returns true if `a` is better than `b`: a point without failures first, then the lower
 * latency. */
bool sim_point_better(const sim_point *a, const sim_point *b);

/* Serves the jobs, observed, at a first guess, then at the split of least predicted cost, and
 * repeats this until it is stable or three times, since costs and streams depend on the split at
 * which they are measured. Does so from an even split and from all experts that fit; the answer is
 * the split that served best. */
int sim_configure(const sim_serve_config *config, sim_configured *out);
void sim_configured_free(sim_configured *configured);

/* Sets the initial split of a run: slots for the expert units, the rest KV. */
void sim_use_split(sim_serve_config *config, const mp_split *split);

#endif
