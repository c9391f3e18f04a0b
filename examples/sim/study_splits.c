/* The value of MV-WSA's splits on real routing and real requests: before serving, against the best
 * of all splits; and under a changing workload, against the best split in hindsight. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/order.h"
#include "sim/arms.h"
#include "sim/study_evictions.h"
#include "sim/workloads.h"

#define BRIEF_WORKLOADS 1u /* the last one, which is short */

typedef struct traces {
    sim_trace *routing;
    char requests[4096];
} traces;

/* Opens DIR/gpt-oss-20b and DIR/requests. */
static int open_traces(const sim_findings *out, traces *t)
{
    if (!out->traces)
        return fail(RUN_REFUSED, "this study is of real traces: --trace says in which directory "
                                 "gpt-oss-20b and requests are");
    snprintf(t->requests, sizeof t->requests, "%.4000s/requests", out->traces);
    t->routing = sim_study_open_trace(out);
    return t->routing ? RUN_OK : RUN_REFUSED;
}

static double ratio(const sim_arm_run *run, const sim_arm_run *best)
{
    double latency = sim_result_latency_ns(&run->result);
    return run->feasible && run->result.jobs ? latency / sim_result_latency_ns(&best->result) : NAN;
}

/* ---- Before serving ---------------------------------------------------------------------- */

/* The results of one workload; latencies as multiples of the oracle's. */
typedef struct outcome {
    double mv_wsa, half, dual_resize;
    bool failed_needlessly; /* MV-WSA had admission failures and the oracle had none */
} outcome;

static int run_against(const sim_serve_config *config, sim_split_kind kind,
                       const sim_arm_run *oracle, double *out, uint64_t *failures)
{
    sim_split_option split = {.kind = kind};
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    int code = sim_split_run(config, &split, run);
    *out = ratio(run, oracle);
    *failures = sim_result_failures(&run->result);
    sim_arm_run_free(run);
    free(run);
    return code;
}

static int compare_splits(const sim_serve_config *config, const char *name, outcome *o,
                          sim_findings *out)
{
    uint64_t failures = 0, ignored;
    sim_arm_run *oracle = calloc(1, sizeof *oracle);
    if (!oracle)
        return fail_memory();
    int code = sim_oracle_run(config, oracle);
    if (!code)
        code = run_against(config, SIM_SPLIT_MV_WSA, oracle, &o->mv_wsa, &failures);
    if (!code)
        code = run_against(config, SIM_SPLIT_HALF, oracle, &o->half, &ignored);
    if (!code)
        code = run_against(config, SIM_SPLIT_DUAL_RESIZE, oracle, &o->dual_resize, &ignored);
    if (!code) {
        o->failed_needlessly = failures && !sim_result_failures(&oracle->result);
        sim_find(out, sim_result_latency_ns(&oracle->result) * 1e-9, NAN, "oracle, s a job", "%s",
                 name);
        sim_find(out, o->mv_wsa, NAN, "mv-wsa / oracle", "%s", name);
        sim_find(out, o->half, NAN, "50-50 / oracle", "%s", name);
        sim_find(out, o->dual_resize, NAN, "dual-resize / oracle", "%s", name);
    }
    free(oracle);
    return code;
}

static void judge_splits(const outcome *o, uint32_t n, sim_findings *out)
{
    double ratios[SIM_MOST_FINDINGS];
    uint32_t needless = 0;
    for (uint32_t i = 0; i < n; i++) {
        ratios[i] = o[i].mv_wsa;
        needless += o[i].failed_needlessly;
    }
    qsort(ratios, n, sizeof *ratios, order_doubles);
    double median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2;
    sim_claim_that(out, median <= 1.03,
                   "MV-WSA's median is %.4f of the oracle's latency, at most "
                   "1.03",
                   median);
    sim_claim_that(out, ratios[n - 1] <= 1.10, "its worst is %.4f, at most 1.10", ratios[n - 1]);
    sim_claim_that(out, needless == 0, "%u workloads had admission failures that a split avoids",
                   needless);
}

int sim_study_splits(bool brief, uint64_t seed, sim_findings *out)
{
    (void)seed; /* no random numbers */
    traces t = {0};
    outcome outcomes[SIM_MOST_FINDINGS];
    uint32_t n = brief ? BRIEF_WORKLOADS : sim_n_workloads;
    const sim_workload *first = brief ? sim_workloads + sim_n_workloads - n : sim_workloads;
    int code = open_traces(out, &t);
    sim_set(out, "latency: how long the machine is busy with the same jobs, per job");
    sim_set(out, "oracle: the best of a grid of splits, refined to one slot, without admission "
                 "failures");
    for (uint32_t i = 0; i < n && !code; i++) {
        sim_scene scene;
        code = sim_scene_open(&first[i], t.routing, t.requests, 0, &scene);
        if (code)
            break;
        code = compare_splits(&scene.config, first[i].name, &outcomes[i], out);
        sim_scene_close(&scene);
    }
    if (!code)
        judge_splits(outcomes, n, out);
    if (t.routing)
        t.routing->source.close(&t.routing->source);
    return code;
}

/* ---- Under a changing workload ---------------------------------------------------------- */

/* Runs the controller from the configurator's split for the first phase, the only one known
 * then. */
static int run_online(const sim_workload *workload, const traces *t, const sim_scene *scene,
                      sim_arm_run *online)
{
    sim_scene first;
    sim_configured configured;
    int code = sim_scene_open(workload, t->routing, t->requests, 1, &first);
    if (code)
        return code;
    code = sim_configure(&first.config, &configured);
    if (!code) {
        code = sim_online_run(&scene->config, &configured.split, MOEPAGE_CONTROL_MV_WSA, online);
        sim_configured_free(&configured);
    }
    sim_scene_close(&first);
    return code;
}

/* Compares how many jobs are completed in the same time. */
static int compare_shift(const sim_workload *workload, const traces *t, const sim_scene *scene,
                         double *gain, uint64_t *failures, sim_findings *out)
{
    sim_arm_run *runs = calloc(2, sizeof *runs);
    if (!runs)
        return fail_memory();
    int code = sim_oracle_run(&scene->config, &runs[0]);
    if (!code)
        code = run_online(workload, t, scene, &runs[1]);
    if (!code) {
        *gain = 1 / ratio(&runs[1], &runs[0]);
        *failures = sim_result_failures(&runs[0].result) ? 0 : sim_result_failures(&runs[1].result);
        const char *name = workload->name;
        sim_find(out, sim_result_latency_ns(&runs[0].result) * 1e-9, NAN, "best split, s a job",
                 "%s", name);
        sim_find(out, sim_result_latency_ns(&runs[1].result) * 1e-9, NAN, "online, s a job", "%s",
                 name);
        sim_find(out, *gain, NAN, "best split / online", "%s", name);
        sim_find(out, (double)runs[1].result.moves, NAN, "moves", "%s", name);
        sim_find(out, (double)*failures, NAN, "admission failures", "%s", name);
    }
    free(runs);
    return code;
}

int sim_study_shifts(bool brief, uint64_t seed, sim_findings *out)
{
    (void)seed;
    traces t = {0};
    double most = 0, least = INFINITY;
    uint64_t failures = 0, all_failures = 0;
    uint32_t n = brief ? 1 : sim_n_shifts;
    int code = open_traces(out, &t);
    sim_set(out, "best split: the best of all static ones for the whole run, in hindsight");
    sim_set(out, "online: from the configurator's split of the first phase on");
    for (uint32_t i = 0; i < n && !code; i++) {
        double gain = 0;
        sim_scene scene;
        code = sim_scene_open(&sim_shifts[i], t.routing, t.requests, 0, &scene);
        if (code)
            break;
        code = compare_shift(&sim_shifts[i], &t, &scene, &gain, &failures, out);
        sim_scene_close(&scene);
        most = gain > most ? gain : most;
        least = gain < least ? gain : least;
        all_failures += failures;
    }
    if (!code) {
        sim_claim_that(out, most >= 1.2,
                       "the controller is %.3f of the best split on one shift, "
                       "at least 1.2",
                       most);
        sim_claim_that(out, least >= 0.97, "and %.3f on the worst, at least 0.97", least);
        sim_claim_that(out, all_failures == 0, "%llu admission failures that a split avoids",
                       (unsigned long long)all_failures);
    }
    if (t.routing)
        t.routing->source.close(&t.routing->source);
    return code;
}
