/* How many run at once: controllers that decide it, against the configured split, from any start and through a
 * burst of arrivals. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_bench.h"

#define PROMPT_TOKENS 256u
#define OUTPUT_TOKENS 64u
#define CONCURRENCY 8u
#define WARM_JOBS 40u  /* more than ten bursts of 64 steps */
#define BURST_JOBS 32u /* that come four times as fast */
#define JOBS 140u

typedef struct load {
    const char *machine, *model;
    double rate; /* requests a second */
    uint32_t regime;
} load;

/* gpt-oss-20b has experts in FP8, and the routes of its trace. */
static const load loads[] = {
    {"rtx4090", "olmoe-1b-7b", 0.8, MOEPAGE_REGIME_CACHE},
    {"rtx4090", "olmoe-1b-7b", 0.8, MOEPAGE_REGIME_AUTO},
    {"rtx4090", "gpt-oss-20b", 0.4, MOEPAGE_REGIME_CACHE},
    {"rtx4090", "gpt-oss-20b", 0.4, MOEPAGE_REGIME_AUTO},
};

#define N_LOADS (sizeof loads / sizeof *loads)

static const double starts[] = {0.5, 0.3, 0.9};

#define N_STARTS (sizeof starts / sizeof *starts)

typedef struct tally {
    double worst, worst_burst;
    uint32_t n;
} tally;

/* Jobs at a rate, or with a burst behind those that warm up. */
static int make_jobs(const load *l, const sim_bench *bench, bool burst, sim_jobs *out)
{
    int code = sim_jobs_plain(JOBS, PROMPT_TOKENS, OUTPUT_TOKENS, l->rate, out);
    if (!code)
        code = sim_jobs_bind(out, bench->source->n_requests, NULL, 0);
    uint64_t between = (uint64_t)(1e9 / l->rate), at = 0;
    for (uint32_t i = 0; i < out->n && !code && burst; i++) {
        bool hurried = i >= WARM_JOBS && i < WARM_JOBS + BURST_JOBS;
        out->jobs[i].arrival_ns = at;
        at += hurried ? between / 4 : between;
    }
    return code;
}

/* The mean time of the jobs behind those that warm up, in seconds. */
static double mean_s(const sim_arm_run *run)
{
    return run->result.job_ns.mean / 1e9;
}

static int run_configured(const sim_serve_config *config, double *seconds)
{
    static const sim_split_option split = {.kind = SIM_SPLIT_MV_WSA};
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_split_run(config, &split, run) : fail_memory();
    if (!code)
        *seconds = mean_s(run);
    if (run)
        sim_arm_run_free(run);
    free(run);
    return code;
}

static int run_online(const sim_serve_config *config, double start, double *seconds)
{
    mp_split_bounds bounds;
    mp_split from;
    sim_serve_config own = *config;
    own.admission = true;
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_split_bounds(config, &bounds) : fail_memory();
    if (!code && !mp_split_fixed(&bounds, start, &from))
        code = fail(RUN_FAILED, "the budget has no room for the split");
    if (!code)
        code = sim_online_run(&own, &from, MOEPAGE_CONTROL_MV_WSA, run);
    if (!code)
        *seconds = mean_s(run);
    if (run)
        sim_arm_run_free(run);
    free(run);
    return code;
}

static int run_case(const sim_bench *bench, const load *l, bool burst, bool brief, uint64_t seed,
                    sim_findings *out, tally *sums)
{
    static const char *const regimes[] = {"auto", "cache", "stream"};
    const char *regime = regimes[l->regime], *when = burst ? "burst" : "steady";
    double configured = 0, ours = 0;
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, 50, seed);
    config.stack.regime = l->regime;
    config.concurrency = CONCURRENCY;
    config.first_jobs = WARM_JOBS;
    int code = make_jobs(l, bench, burst, &jobs);
    config.jobs = &jobs;
    if (!code)
        code = run_configured(&config, &configured);
    sim_find(out, configured, NAN, "configured, mean s a job", "%s, %s, %s", l->model, regime,
             when);
    for (size_t i = 0; i < (brief ? 1 : N_STARTS) && !code; i++) {
        code = run_online(&config, starts[i], &ours);
        double ratio = ours / configured;
        sim_find(out, ours, NAN, "ours, mean s a job", "%s, %s, %s, from %.1f", l->model, regime,
                 when, starts[i]);
        sim_find(out, ratio, NAN, "of the configured split's", "%s, %s, %s, from %.1f", l->model,
                 regime, when, starts[i]);
        double *worst = burst ? &sums->worst_burst : &sums->worst;
        *worst = fmax(*worst, ratio);
        sums->n++;
    }
    sim_jobs_free(&jobs);
    return code;
}

static int run_load(const load *l, bool brief, uint64_t seed, sim_findings *out, tally *sums)
{
    sim_bench bench;
    int code = sim_bench_open_recorded(l->machine, l->model, seed, out, &bench);
    for (uint32_t burst = 0; burst < 2 && !code; burst++)
        code = run_case(&bench, l, burst, brief, seed, out, sums);
    sim_bench_close(&bench);
    return code;
}

int sim_study_admission(bool brief, uint64_t seed, sim_findings *out)
{
    tally sums = {0};
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    sim_set(
        out,
        "half of the experts' bytes; prompts of %u tokens, answers of %u; at most %u at once; %u "
        "jobs, of which the first %u do not count",
        PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY, JOBS, WARM_JOBS);
    sim_set(out, "burst: the %u jobs behind these come four times as fast", BURST_JOBS);
    for (size_t i = 0; i < N_LOADS && !code; i++)
        code = run_load(&loads[i], brief, seed, out, &sums);
    sim_claim_that(out, sums.n > 0 && sums.worst <= 1.1,
                   "from any start jobs take no more than 1.1 of the configured split's time: %.3f",
                   sums.worst);
    sim_claim_that(out, sums.n > 0 && sums.worst_burst <= 1.1, "through a burst, too: %.3f",
                   sums.worst_burst);
    return code;
}
