/* How many run at once: controllers that decide it, against the configured split, from any start and through a
 * burst of arrivals. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/study_arms.h"
#include "sim/study_bench.h"

#define PROMPT_TOKENS 256u
#define OUTPUT_TOKENS 64u
#define CONCURRENCY 8u
#define BURST_STEPS 64u
#define BURSTS 10u     /* in which a controller finds its way */
#define CALM_JOBS 40u  /* before a burst */
#define BURST_JOBS 32u /* that come four times as fast */
#define LATE_JOBS 40u  /* long after it */
#define JOBS 140u

/* Even one by one, with a step for the prompt, these have ended after so many bursts of steps. */
#define FIRST_JOBS (BURSTS * BURST_STEPS / (OUTPUT_TOKENS + 1))

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

static const double starts[] = {0.5, 0.3, 0.9}; /* of the budget, for experts */

#define N_STARTS (sizeof starts / sizeof *starts)

/* Which jobs count: those behind the first, without a burst of arrivals; from such a burst on; long after it. */
typedef enum phase { STEADY, BURST, AFTER, PHASES } phase;

static const char *const phase_names[PHASES] = {"steady", "burst", "after the burst"};
static const uint32_t first_jobs[PHASES] = {FIRST_JOBS, CALM_JOBS, JOBS - LATE_JOBS};

typedef struct tally {
    double worst[PHASES];
    uint32_t n;
} tally;

/* Jobs at a rate, or with a burst behind the calm ones. */
static int make_jobs(const load *l, const sim_bench *bench, bool burst, sim_jobs *out)
{
    int code = sim_jobs_plain(JOBS, PROMPT_TOKENS, OUTPUT_TOKENS, l->rate, out);
    if (!code)
        code = sim_jobs_bind(out, bench->source->n_requests, NULL, 0);
    uint64_t between = (uint64_t)(1e9 / l->rate), at = 0;
    for (uint32_t i = 0; i < out->n && !code && burst; i++) {
        bool hurried = i >= CALM_JOBS && i < CALM_JOBS + BURST_JOBS;
        out->jobs[i].arrival_ns = at;
        at += hurried ? between / 4 : between;
    }
    return code;
}

/* Of one, two, four and so on at once, up to `most`, each with the split that is configured for it, finds the best in
 * hindsight. */
static int run_configured(const sim_serve_config *config, uint32_t most, double *seconds,
                          uint32_t *running)
{
    static const sim_split_option split = {.kind = SIM_SPLIT_MV_WSA};
    sim_serve_config own = *config;
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? RUN_OK : fail_memory();
    *seconds = INFINITY;
    for (uint32_t n = 1; n <= most && !code; n *= 2) {
        own.concurrency = n;
        code = sim_split_run(&own, &split, run);
        const double s = code ? INFINITY : sim_study_arm_mean_s(&own, run);
        if (s < *seconds) {
            *seconds = s;
            *running = n;
        }
        sim_arm_run_free(run);
    }
    free(run);
    return code;
}

static int run_online(const sim_serve_config *config, double start, double *seconds)
{
    mp_split_bounds bounds;
    mp_split from;
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_split_bounds(config, &bounds) : fail_memory();
    if (!code && !mp_split_fixed(&bounds, start, &from))
        code = fail(RUN_FAILED, "the budget has no room for the split");
    if (!code)
        code = sim_study_arm_run(config, SIM_ARM_ADMISSION, &from, run);
    if (!code)
        *seconds = sim_study_arm_mean_s(config, run);
    if (run)
        sim_arm_run_free(run);
    free(run);
    return code;
}

static int run_case(const sim_bench *bench, const load *l, phase when, bool brief, uint64_t seed,
                    sim_findings *out, tally *sums)
{
    double configured, ours = 0;
    uint32_t running = 0;
    char where[48];
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, 50, seed);
    config.stack.regime = l->regime;
    config.concurrency = CONCURRENCY;
    config.first_jobs = first_jobs[when];
    int code = make_jobs(l, bench, when != STEADY, &jobs);
    config.jobs = &jobs;
    snprintf(where, sizeof where, "%s, %s, %s", l->model, sim_bench_regime(l->regime),
             phase_names[when]);
    if (!code)
        code = run_configured(&config, brief ? 1 : CONCURRENCY, &configured, &running);
    if (!code && !running)
        code = fail(RUN_FAILED, "no configured split serves all jobs");
    if (!code)
        sim_find(out, configured, NAN, "configured, mean s a job", "%s: %u run", where, running);
    for (size_t i = brief ? N_STARTS - 1 : 0; i < N_STARTS && !code; i++) {
        code = run_online(&config, starts[i], &ours);
        double ratio = ours / configured;
        sim_find(out, ours, NAN, "ours, mean s a job", "%s, from %.1f", where, starts[i]);
        sim_find(out, ratio, NAN, "of the configured split's", "%s, from %.1f", where, starts[i]);
        sums->worst[when] = isfinite(ratio) ? fmax(sums->worst[when], ratio) : INFINITY;
        sums->n++;
    }
    sim_jobs_free(&jobs);
    return code;
}

static int run_load(const load *l, bool brief, uint64_t seed, sim_findings *out, tally *sums)
{
    sim_bench bench;
    int code = sim_bench_open_recorded(l->machine, l->model, seed, out, &bench);
    for (phase when = STEADY; when < PHASES && !code; when++)
        code = run_case(&bench, l, when, brief, seed, out, sums);
    sim_bench_close(&bench);
    return code;
}

int sim_study_admission(bool brief, uint64_t seed, sim_findings *out)
{
    tally sums = {0};
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    sim_set(out,
            "half of the experts' bytes; prompts of %u tokens, answers of %u; at most %u at once; "
            "%u jobs",
            PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY, JOBS);
    sim_set(out,
            "steady: jobs count from the %uth on, when no more than %u bursts of %u steps have "
            "passed",
            FIRST_JOBS + 1, BURSTS, BURST_STEPS);
    sim_set(out,
            "burst: %u jobs come four times as fast, behind %u, which do not count; after it: the "
            "last %u",
            BURST_JOBS, CALM_JOBS, LATE_JOBS);
    sim_set(out, "configured: the best of 1%s at once, each with its configured split",
            brief ? "" : ", 2, 4 and 8");
    for (size_t i = 0; i < N_LOADS && !code; i += brief ? 3 : 1)
        code = run_load(&loads[i], brief, seed, out, &sums);
    if (code)
        return code;
    sim_claim_that(out, sums.n > 0 && sums.worst[STEADY] <= 1.1,
                   "from any start jobs take no more than 1.1 of the configured split's time after "
                   "%u bursts: %.3f",
                   BURSTS, sums.worst[STEADY]);
    sim_claim_that(out, sums.worst[BURST] <= 1.15, "1.15 from a burst on: %.3f", sums.worst[BURST]);
    sim_claim_that(out, sums.worst[AFTER] <= 1.1, "and 1.1 long after it: %.3f", sums.worst[AFTER]);
    return code;
}
