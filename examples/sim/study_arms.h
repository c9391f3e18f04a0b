/* study_arms.h — every way to divide memory, as the arms of a study: before serving, and online. */
#ifndef SIM_STUDY_ARMS_H
#define SIM_STUDY_ARMS_H

#include "sim/arms.h"
#include "sim/study.h"

typedef enum sim_study_arm {
    SIM_ARM_MV_WSA,      /* the configurator's */
    SIM_ARM_HALF,        /* 50-50 */
    SIM_ARM_FLUX,        /* Flux-prop */
    SIM_ARM_DUAL_RESIZE, /* this one and those behind it are online */
    SIM_ARM_FLUX_ONLINE,
    SIM_ARM_ONLINE,    /* mv-wsa-online: our own, which claims are about, and so is the next one */
    SIM_ARM_ADMISSION, /* the same, which also decides how many run */
    SIM_ARMS
} sim_study_arm;

const char *sim_study_arm_name(sim_study_arm arm);

/* Serves config's jobs. Online arms begin at `start`, or one nearby that respects the admission floor; NULL: at
 * an even split. An arm that does not start is no failure. */
int sim_study_arm_run(const sim_serve_config *config, sim_study_arm arm, const mp_split *start,
                      sim_arm_run *out);

/* Returns true if all jobs were served. */
bool sim_study_arm_serves(const sim_serve_config *config, const sim_arm_run *run);

/* Returns the mean time of the jobs that count, in seconds; INFINITY if the arm does not serve all jobs. */
double sim_study_arm_mean_s(const sim_serve_config *config, const sim_arm_run *run);

/* Returns the time of a job, over the other's; NAN if the arm does not serve all jobs. */
double sim_study_arm_ratio(const sim_serve_config *config, const sim_arm_run *run,
                           const sim_result *other);

/* Adds a figure of the arm, "NAME WHAT"; of an arm that does not serve all jobs, why instead. */
void sim_study_arm_find(const sim_serve_config *config, sim_study_arm arm, const sim_arm_run *run,
                        double figure, const char *what, const char *where, sim_findings *out);

/* One arm over several workloads. */
typedef struct sim_study_tally {
    uint32_t n;        /* workloads */
    uint32_t needless; /* of these, with admission failures that the best split avoids */
    double ratios[64]; /* INFINITY: not served */
} sim_study_tally;

void sim_study_tally_add(sim_study_tally *tally, double ratio, bool needless);
double sim_study_tally_median(const sim_study_tally *tally);
double sim_study_tally_worst(const sim_study_tally *tally);
/* Adds the findings of all workloads. */
void sim_study_tally_find(const sim_study_tally *tally, sim_study_arm arm, sim_findings *out);

#endif
