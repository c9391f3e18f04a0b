/* workloads.h — the workloads of the studies: real routing, real requests, several machines, sizes
 * and budgets. */
#ifndef SIM_WORKLOADS_H
#define SIM_WORKLOADS_H

#include "sim/serve.h"
#include "sim/trace.h"

#define SIM_PHASES 4

/* Jobs of one kind. */
typedef struct sim_phase {
    const char *jobs; /* a file among the request traces, or NULL for clients */
    uint32_t skip, most, max_context;
    sim_closed_loop clients; /* used without a file; with 0 clients the phase is absent */
} sim_phase;

typedef struct sim_workload {
    const char *name;
    const char *machine;
    bool f8; /* experts of one byte per weight; otherwise two */
    bool recompute;
    uint32_t concurrency;
    double budget_percent;       /* of the experts' bytes */
    sim_phase phase[SIM_PHASES]; /* one after the other */
} sim_workload;

/* A workload's objects while it is served; the trace is borrowed. */
typedef struct sim_scene {
    sim_machine machine;
    sim_shape shape;
    sim_jobs jobs;
    sim_serve_config config;
} sim_scene;

extern const sim_workload sim_workloads[];
extern const uint32_t sim_n_workloads;

/* Workloads that change over time. */
extern const sim_workload sim_shifts[];
extern const uint32_t sim_n_shifts;

/* Opens a scene. `phases`: only the first ones; 0 = all. `requests`: the directory of request
 * traces. RUN_REFUSED after a line on stderr. */
int sim_scene_open(const sim_workload *workload, const sim_trace *trace, const char *requests,
                   uint32_t phases, sim_scene *out);
void sim_scene_close(sim_scene *scene);

#endif
