/* report.h — a run's results as one page of page.h.
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

/* Opens a page about `subject`, with the command line and `about`, a description of the subject. */
int sim_report_open(const sim_options *options, const char *subject, const char *about,
                    sim_report *report);
int sim_report_open_trace(const sim_options *options, const sim_trace *trace, sim_report *report);

/* Plots hit ratio and misses over capacity, one line per policy; rows [policies * capacities], by
 * policy. */
void sim_report_replay(sim_report *report, const sim_replay_row *rows, uint32_t policies,
                       uint32_t capacities);
/* Plots the miss curve, its estimate, and the value of one more expert. */
void sim_report_curve(sim_report *report, const sim_miss_curve *curve);
/* Plots the growth of a request's footprint, and the carry-over, layer by layer. */
void sim_report_stats(sim_report *report, const sim_trace_stats *stats);
/* Shows a generator's tables beside the published ones. */
void sim_report_activation(sim_report *report, const sim_synthetic *config,
                           const sim_activation *activation);

/* One arm that was served. */
typedef struct sim_report_arm {
    const char *name;
    uint64_t budget_bytes;
    uint32_t concurrency;
    uint32_t prompt_tokens, output_tokens; /* 0: various lengths */
    const sim_arm_run *run;
} sim_report_arm;

/* Plots the division of time, tokens/s over budgets, the split over time, and, for the last
 * configured arm, miss curves and marginal values, as far as they exist. */
void sim_report_arms(sim_report *report, const sim_report_arm *arms, uint32_t n);

#endif
