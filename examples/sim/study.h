/* study.h — the papers' experiments, run on the simulated machine, beside the papers' figures.
 *
 * A study serves a workload with the unchanged library on a machine's profile, once for each arm;
 * the printed figures are counted there. Assumptions outside the stack (for example a host's own
 * overhead) are stated in the study's settings. */
#ifndef SIM_STUDY_H
#define SIM_STUDY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "sim/options.h"

#define SIM_FINDING_TEXT 160
#define SIM_MOST_FINDINGS 400
#define SIM_MOST_CLAIMS 24

/* One figure. */
typedef struct sim_finding {
    char where[64]; /* the case */
    char what[64];  /* the figure, with its unit */
    double ours;
    double paper; /* NAN: the paper has no figure */
} sim_finding;

/* A condition for having reproduced the paper's result, and whether it holds. */
typedef struct sim_claim {
    char text[SIM_FINDING_TEXT];
    bool holds;
} sim_claim;

typedef struct sim_findings {
    const char *traces;     /* in: directory of real traces, for studies that use them; or NULL */
    uint32_t train_percent; /* in: percentage of a trace's requests for training; 0 = 60 */
    uint32_t n, n_claims, n_settings;
    sim_finding findings[SIM_MOST_FINDINGS];
    sim_claim claims[SIM_MOST_CLAIMS];
    char settings[SIM_MOST_CLAIMS][SIM_FINDING_TEXT];
} sim_findings;

typedef struct sim_study {
    const char *name;
    const char *line;
    bool of_traces; /* --trace is a directory of traces; otherwise it has no effect */
    /* Runs the study. `brief`: few steps and points, for tests. */
    int (*run)(bool brief, uint64_t seed, sim_findings *out);
} sim_study;

const sim_study *sim_study_find(const char *name);
void sim_study_list(FILE *out);
/* Runs the study of --study and prints its findings. RUN_FAILED if a claim does not hold. */
int sim_study_main(const sim_options *options);

/* ---- for studies ---- */
void sim_set(sim_findings *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_find(sim_findings *out, double ours, double paper, const char *what, const char *format,
              ...) __attribute__((format(printf, 5, 6)));
void sim_claim_that(sim_findings *out, bool holds, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int sim_study_wisp_table2(bool brief, uint64_t seed, sim_findings *out);
int sim_study_wisp_prefetch(bool brief, uint64_t seed, sim_findings *out);
int sim_study_wisp_table4(bool brief, uint64_t seed, sim_findings *out);
int sim_study_wisp_table6(bool brief, uint64_t seed, sim_findings *out);
int sim_study_flux_figure6(bool brief, uint64_t seed, sim_findings *out);
int sim_study_flux_exp1(bool brief, uint64_t seed, sim_findings *out);
int sim_study_flux_exp2(bool brief, uint64_t seed, sim_findings *out);
int sim_study_flux_exp3(bool brief, uint64_t seed, sim_findings *out);
int sim_study_prefetch(bool brief, uint64_t seed, sim_findings *out);
int sim_study_maps(bool brief, uint64_t seed, sim_findings *out);
int sim_study_routing(bool brief, uint64_t seed, sim_findings *out);
int sim_study_evictions(bool brief, uint64_t seed, sim_findings *out);
int sim_study_regimes(bool brief, uint64_t seed, sim_findings *out);
int sim_study_admission(bool brief, uint64_t seed, sim_findings *out);
int sim_study_turns(bool brief, uint64_t seed, sim_findings *out);
int sim_study_turns_seeds(bool brief, uint64_t seed, sim_findings *out);
int sim_study_targets(bool brief, uint64_t seed, sim_findings *out);
int sim_study_planner(bool brief, uint64_t seed, sim_findings *out);
int sim_study_precision(bool brief, uint64_t seed, sim_findings *out);
int sim_study_caps(bool brief, uint64_t seed, sim_findings *out);
int sim_study_rightsize(bool brief, uint64_t seed, sim_findings *out);
int sim_study_splits(bool brief, uint64_t seed, sim_findings *out);
int sim_study_splits_synthetic(bool brief, uint64_t seed, sim_findings *out);
int sim_study_shifts(bool brief, uint64_t seed, sim_findings *out);
int sim_study_shifts_synthetic(bool brief, uint64_t seed, sim_findings *out);
int sim_study_rings(bool brief, uint64_t seed, sim_findings *out);

#endif
