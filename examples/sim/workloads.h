/* workloads.h — the workloads of the studies: real routing and synthetic, real requests, several
 * machines, sizes and budgets. */
#ifndef SIM_WORKLOADS_H
#define SIM_WORKLOADS_H

#include "sim/serve.h"
#include "sim/study.h"
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
    const char *model; /* with synthetic routes; NULL = gpt-oss-20b with its recorded ones */
    bool f8;           /* experts of one byte per weight; otherwise two */
    bool recompute;
    uint32_t concurrency;
    double budget_percent;       /* of the experts' bytes */
    sim_phase phase[SIM_PHASES]; /* one after the other */
} sim_workload;

/* What the workloads are made of: DIR/gpt-oss-20b and DIR/requests. */
typedef struct sim_recordings {
    sim_trace *routing;
    char requests[4096]; /* a directory */
} sim_recordings;

/* RUN_REFUSED after a line on stderr, also if the study was given no directory. */
int sim_recordings_open(const sim_findings *study, sim_recordings *out);
void sim_recordings_close(sim_recordings *recordings);

/* A workload's objects while it is served; a recorded routing is borrowed. */
typedef struct sim_scene {
    sim_machine machine;
    sim_shape shape;
    sim_jobs jobs;
    sim_source *generator; /* NULL: the routes are recorded */
    sim_serve_config config;
} sim_scene;

/* With recorded routes, and with synthetic ones of other models. */
extern const sim_workload sim_workloads[], sim_synthetic_workloads[];
extern const uint32_t sim_n_workloads, sim_n_synthetic_workloads;

/* Workloads that change over time. */
extern const sim_workload sim_shifts[], sim_synthetic_shifts[];
extern const uint32_t sim_n_shifts, sim_n_synthetic_shifts;
/* The same, recorded, where sessions return in a fixed order: hard for LRU, and so for curves of it. */
extern const sim_workload sim_rings[];
extern const uint32_t sim_n_rings;
/* For tests: too short to show anything but that every arm runs. */
extern const sim_workload sim_short_synthetic, sim_short_shift;

/* Opens a scene. `phases`: only the first ones; 0 = all. `seed`: of synthetic routes. RUN_REFUSED after a line on
 * stderr. */
int sim_scene_open(const sim_workload *workload, const sim_recordings *recordings, uint32_t phases,
                   uint64_t seed, sim_scene *out);
void sim_scene_close(sim_scene *scene);

#endif
