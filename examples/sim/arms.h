/* arms.h — ways to serve the same jobs on the same machine with the same budget: splits, and the
 * systems that the papers compare with, each as a configuration of one stack. */
#ifndef SIM_ARMS_H
#define SIM_ARMS_H

#include <stdio.h>

#include "sim/configure.h"
#include "sim/options.h"

/* Size of an expert's compressed image: FluxMoE §4.2, 20 % less, lossless. */
#define SIM_EXPH_RATIO 0.8

/* Splits of an oracle's full grid. */
#define SIM_ORACLE_GRID 24u
#define SIM_ORACLE_POINTS 64u /* including refinements */

typedef struct sim_arm_run {
    bool feasible; /* an initial split exists */
    mp_split split;
    sim_configured configured; /* MV_WSA's */
    uint32_t n_points;         /* ORACLE's */
    sim_point points[SIM_ORACLE_POINTS];
    sim_result result;
} sim_arm_run;

/* Serves config's jobs under a split; config->stack has no split yet. */
int sim_split_run(const sim_serve_config *config, const sim_split_option *split, sim_arm_run *out);
/* The same under a given split. */
int sim_static_run(const sim_serve_config *config, const mp_split *split, sim_arm_run *out);
/* Gives experts the whole working set that the configurator has seen, regardless of KV's needs. */
int sim_flux_run(const sim_serve_config *config, const sim_configured *configured,
                 sim_arm_run *out);
/* Configures a baseline for the jobs, with KV for at least `sequences` of the longest job. */
int sim_baseline_plan(const sim_serve_config *config, const char *name, uint32_t sequences,
                      sim_serve_config *out, bool *feasible);
/* Serves the jobs with a baseline of a known name. */
int sim_baseline_run(const sim_serve_config *config, const char *name, sim_arm_run *out);
void sim_arm_run_free(sim_arm_run *run);

/* Returns true if a baseline has that name; lists the baselines, one per line. */
bool sim_baseline_exists(const char *name);
void sim_baseline_list(FILE *out);

/* From a split on, or one nearby that respects the admission floor, with a controller of `mode`
 * (MOEPAGE_CONTROL_*) that moves it; what config->stack.controller says otherwise, holds. */
int sim_online_run(const sim_serve_config *config, const mp_split *start, uint32_t mode,
                   sim_arm_run *out);
/* The same from an even split on, adjusted to the floor; with admission from KV for one of the longest sequences, with
 * which experts thrash least while nothing is known. */
int sim_controlled_run(const sim_serve_config *config, uint32_t mode, sim_arm_run *out);
/* Serves every split of a grid and returns the best in out->result: among those without admission
 * failures, if there are any. */
int sim_oracle_run(const sim_serve_config *config, sim_arm_run *out);

#endif
