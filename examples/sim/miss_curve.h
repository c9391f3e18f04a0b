/* miss_curve.h — LRU's misses at every capacity from one pass over a trace. */
#ifndef SIM_MISS_CURVE_H
#define SIM_MISS_CURVE_H

#include "sim/options.h"
#include "sim/routes.h"

#define SIM_SAMPLE_KEYS 16384 /* as many as a controller tracks by default */

typedef struct sim_miss_curve {
    uint32_t n;    /* capacities 0, step, 2 step .. n step */
    uint32_t step; /* experts; with SIM_SCOPE_LAYER a multiple of the layers */
    uint64_t accesses;
    uint64_t first;       /* first accesses: misses at every capacity */
    uint64_t *misses;     /* [n + 1] exact, including first accesses */
    double *sampled;      /* [n + 1] the estimate */
    uint32_t sample_keys; /* most keys tracked in one scope */
    double sample_rate;   /* at the end, mean over scopes */
} sim_miss_curve;

/* Measures reuse distances in the scope and access of replay.h, exactly and sampled. `sample_keys`:
 * over all scopes; 0 = SIM_SAMPLE_KEYS; at least 16 in each. */
int sim_miss_curve_measure(const sim_trace *trace, sim_scope scope, sim_access access,
                           uint32_t sample_keys, uint64_t seed, sim_miss_curve *out);
void sim_miss_curve_free(sim_miss_curve *curve);

/* Returns the estimate's largest error as a fraction of all accesses. */
double sim_miss_curve_error(const sim_miss_curve *curve);

/* Prints it as a table or as {"curve": {...}}. */
int sim_miss_curve_main(const sim_trace *trace, const sim_options *options);

#endif
