/* report.h — what a run found as one page of page.h.
 *
 * Without --report, the report is closed from the start and every call does nothing; page_close ends
 * it either way. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

#include "common/page.h"
#include "sim/arms.h"
#include "sim/miss_curve.h"
#include "sim/options.h"
#include "sim/replay.h"
#include "sim/synthetic.h"
#include "sim/trace_stats.h"

typedef page sim_report;

/* A page about `subject`, with the command line and `about`, what the subject is. */
int sim_report_open(const sim_options *options, const char *subject, const char *about,
                    sim_report *report);
int sim_report_open_trace(const sim_options *options, const sim_trace *trace, sim_report *report);

/* Hit ratio and misses over capacity, one line per policy; rows [policies * capacities], by policy. */
void sim_report_replay(sim_report *report, const sim_replay_row *rows, uint32_t policies,
                       uint32_t capacities);
/* The miss curve, its estimate, and what one more expert is worth. */
void sim_report_curve(sim_report *report, const sim_miss_curve *curve);
/* How a request's footprint grows, and how much comes back, layer by layer. */
void sim_report_stats(sim_report *report, const sim_trace_stats *stats);
/* A generator's tables beside the published ones. */
void sim_report_activation(sim_report *report, const sim_synthetic *config,
                           const sim_activation *activation);

/* One way of serving that was tried. */
typedef struct sim_report_arm {
    const char *name;
    uint64_t budget_bytes;
    uint32_t concurrency;
    uint32_t prompt_tokens, output_tokens; /* 0: of several lengths */
    const sim_arm_run *run;
} sim_report_arm;

/* Where time went, tokens/s over budgets, the split over time, and, of the last configured arm, miss
 * curves and marginal values: whatever there is. */
void sim_report_arms(sim_report *report, const sim_report_arm *arms, uint32_t n);

#endif
