/* study_flux.h — what the studies of FluxMoE share: its testbed, and arms under a steady load. */
#ifndef SIM_STUDY_FLUX_H
#define SIM_STUDY_FLUX_H

#include "sim/study_bench.h"

#define SIM_FLUX_MACHINE "l40x4-pcie4"
#define SIM_FLUX_NEXT "qwen3-next-80b"

/* The paper does not say how its vLLM takes turns with what it swapped out. */
#define SIM_FLUX_SLICE_STEPS 32u

typedef struct sim_flux_arm {
    const char *baseline; /* as --baseline has it */
    const char *name;
    bool whole_layers; /* all experts of a layer come, whatever is routed */
    uint32_t on_host;  /* experts of each layer that are not compressed on the device; 0 = as many
                          as fit are */
    uint64_t steps, brief; /* how many, and in a brief study */
} sim_flux_arm;

typedef struct sim_flux_load {
    uint32_t batch, context;
    uint64_t layer_ns; /* the host's overhead */
    uint64_t steps;
    double memory_used; /* of the device; 0 = 0.9 */
} sim_flux_load;

/* Serving under this load, with no split yet; the dense weights are beside the budget. */
sim_serve_config sim_flux_config(const sim_bench *bench, const sim_flux_load *load,
                                 const sim_jobs *jobs);

#endif
