/* The arms, and what becomes of each over several workloads. */
#include "sim/study_arms.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/order.h"

static const struct {
    const char *name;
    sim_split_kind kind; /* before serving */
    uint32_t mode;       /* online */
    bool admission;
} arms[SIM_ARMS] = {
    [SIM_ARM_MV_WSA] = {.name = "mv-wsa", .kind = SIM_SPLIT_MV_WSA},
    [SIM_ARM_HALF] = {.name = "50-50", .kind = SIM_SPLIT_HALF},
    [SIM_ARM_FLUX] = {.name = "flux", .kind = SIM_SPLIT_FLUX},
    [SIM_ARM_DUAL_RESIZE] = {.name = "dual-resize", .mode = MOEPAGE_CONTROL_DUAL_RESIZE},
    [SIM_ARM_FLUX_ONLINE] = {.name = "flux-online", .mode = MOEPAGE_CONTROL_FLUX},
    [SIM_ARM_ONLINE] = {.name = "mv-wsa-online", .mode = MOEPAGE_CONTROL_MV_WSA},
    [SIM_ARM_ADMISSION] = {.name = "mv-wsa-online, admission",
                           .mode = MOEPAGE_CONTROL_MV_WSA,
                           .admission = true},
};

const char *sim_study_arm_name(sim_study_arm arm)
{
    return arms[arm].name;
}

int sim_study_arm_run(const sim_serve_config *config, sim_study_arm arm, const mp_split *start,
                      sim_arm_run *out)
{
    sim_split_option split = {.kind = arms[arm].kind};
    sim_serve_config own = *config;
    own.admission = arms[arm].admission;
    if (arm < SIM_ARM_DUAL_RESIZE)
        return sim_split_run(config, &split, out);
    return start ? sim_online_run(&own, start, arms[arm].mode, out)
                 : sim_controlled_run(&own, arms[arm].mode, out);
}

bool sim_study_arm_serves(const sim_serve_config *config, const sim_arm_run *run)
{
    return run->feasible && run->result.jobs == config->jobs->n;
}

double sim_study_arm_mean_s(const sim_serve_config *config, const sim_arm_run *run)
{
    return sim_study_arm_serves(config, run) ? run->result.job_ns.mean / 1e9 : INFINITY;
}

double sim_study_arm_ratio(const sim_serve_config *config, const sim_arm_run *run,
                           const sim_result *other)
{
    return sim_study_arm_serves(config, run)
               ? sim_result_latency_ns(&run->result) / sim_result_latency_ns(other)
               : NAN;
}

void sim_study_arm_find(const sim_serve_config *config, sim_study_arm arm, const sim_arm_run *run,
                        double figure, const char *what, const char *where, sim_findings *out)
{
    char line[64];
    bool serves = sim_study_arm_serves(config, run);
    if (serves)
        snprintf(line, sizeof line, "%s%s", arms[arm].name, what);
    else if (!run->feasible || !run->result.starts)
        snprintf(line, sizeof line, "%s does not start", arms[arm].name);
    else
        snprintf(line, sizeof line, "%s serves %u of %u jobs", arms[arm].name, run->result.jobs,
                 config->jobs->n);
    sim_find(out, serves ? figure : NAN, NAN, line, "%s", where);
}

/* ---- Over several workloads -------------------------------------------------------------- */

#define MOST_RATIOS (sizeof((sim_study_tally *)0)->ratios / sizeof(double))

void sim_study_tally_add(sim_study_tally *tally, double ratio, bool needless)
{
    assert(tally->n < MOST_RATIOS);
    tally->ratios[tally->n++] = isnan(ratio) ? INFINITY : ratio;
    tally->needless += needless;
}

double sim_study_tally_median(const sim_study_tally *tally)
{
    double sorted[MOST_RATIOS];
    if (!tally->n)
        return NAN;
    memcpy(sorted, tally->ratios, tally->n * sizeof *sorted);
    qsort(sorted, tally->n, sizeof *sorted, order_doubles);
    return (sorted[(tally->n - 1) / 2] + sorted[tally->n / 2]) / 2;
}

double sim_study_tally_worst(const sim_study_tally *tally)
{
    double worst = tally->n ? 0 : NAN;
    for (uint32_t i = 0; i < tally->n; i++)
        worst = tally->ratios[i] > worst ? tally->ratios[i] : worst;
    return worst;
}

void sim_study_tally_find(const sim_study_tally *tally, sim_study_arm arm, sim_findings *out)
{
    const char *name = arms[arm].name;
    uint32_t not_served = 0;
    double worst = 0;
    for (uint32_t i = 0; i < tally->n; i++) {
        bool served = isfinite(tally->ratios[i]);
        not_served += !served;
        worst = served ? fmax(worst, tally->ratios[i]) : worst;
    }
    sim_find(out, sim_study_tally_median(tally), NAN, "median", "all: %s", name);
    sim_find(out, worst, NAN, "worst of those served", "all: %s", name);
    sim_find(out, not_served, NAN, "workloads not served", "all: %s", name);
    sim_find(out, tally->needless, NAN, "with needless failures", "all: %s", name);
}
