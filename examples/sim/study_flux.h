/* study_flux.h — common parts of the FluxMoE studies: its testbed, and arms under a steady load. */
#ifndef SIM_STUDY_FLUX_H
#define SIM_STUDY_FLUX_H

#include "sim/study_bench.h"

#define SIM_FLUX_MACHINE "l40x4-pcie4"
#define SIM_FLUX_NEXT "qwen3-next-80b"

/* A guess: the paper does not say how its vLLM alternates with swapped sequences. */
#define SIM_FLUX_SLICE_STEPS 32u

typedef struct sim_flux_arm {
    const char *baseline; /* in --baseline's syntax */
    const char *name;
    bool whole_layers;     /* load all experts of a layer, whatever is routed */
    uint32_t on_host;      /* of each layer, not compressed on the device; 0 = as few as possible */
    uint64_t steps, brief; /* number of steps, also of a brief study */
} sim_flux_arm;

typedef struct sim_flux_load {
    uint32_t batch, context;
    uint64_t layer_ns; /* the host's overhead */
    uint64_t steps;
    double memory_used; /* of the device; 0 = 0.9 */
} sim_flux_load;

/* Returns the configuration for serving under this load, without a split; dense weights are outside
 * the budget. */
sim_serve_config sim_flux_config(const sim_bench *bench, const sim_flux_load *load,
                                 const sim_jobs *jobs);

#endif
