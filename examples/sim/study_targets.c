/* Times that a host has promised: a controller with admission that has targets, beside one that has none. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/study_arms.h"
#include "sim/study_bench.h"

#define OUTPUT_TOKENS 64u
#define MOST_RUNNING 8u
#define WARM_JOBS 40u
#define JOBS 160u
#define CAPACITY_JOBS 32u
#define NEARLY 1.05
#define UNREACHABLE_NS 1

typedef struct scenario {
    const char *machine, *model;
    uint32_t prompt;
} scenario;

static const scenario scenarios[] = {{"rtx4090", "deepseek-v2-lite", 2048},
                                     {"rtx4090", "olmoe-1b-7b", 256},
                                     {"h100-pcie5", "qwen3-30b-a3b", 256},
                                     {"h100-pcie5", "qwen3-30b-a3b", 2048}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* What jobs have had, in the mean. */
typedef struct served {
    double ttft_ns, token_ns, job_ns, jobs_per_s;
} served;

/* Targets in ns; 0: none. */
static int serve(const sim_serve_config *config, uint64_t ttft_ns, uint64_t tpot_ns, served *out)
{
    const sim_split_option split = {.kind = SIM_SPLIT_MV_WSA_ONLINE};
    sim_serve_config own = *config;
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    own.target_ttft_ns = ttft_ns;
    own.target_tpot_ns = tpot_ns;
    int code = sim_split_run(&own, &split, run);
    const sim_result *r = &run->result;
    *out = (served){NAN, NAN, NAN, NAN};
    if (!code && sim_study_arm_serves(&own, run))
        *out = (served){.ttft_ns = r->ttft_ns.mean,
                        .token_ns = r->token_ns.mean,
                        .job_ns = r->job_ns.mean,
                        .jobs_per_s = r->jobs / ((double)r->wall_ns / 1e9)};
    sim_arm_run_free(run);
    free(run);
    return code;
}

static int serve_at(const sim_bench *bench, sim_serve_config *config, uint32_t prompt, double rate,
                    uint64_t ttft_ns, uint64_t tpot_ns, served *out)
{
    sim_jobs jobs = {0};
    int code = sim_bench_poisson(bench, rate > 0 ? JOBS : CAPACITY_JOBS, prompt, OUTPUT_TOKENS,
                                 rate, config->seed, &jobs);
    config->jobs = &jobs;
    config->first_jobs = rate > 0 ? WARM_JOBS : 0;
    if (!code)
        code = serve(config, ttft_ns, tpot_ns, out);
    sim_jobs_free(&jobs);
    return code;
}

/* The same with one target. */
static int aim(const sim_bench *bench, sim_serve_config *config, uint32_t prompt, double rate,
               bool first_tokens, uint64_t ns, served *out)
{
    return serve_at(bench, config, prompt, rate, first_tokens ? ns : 0, first_tokens ? 0 : ns, out);
}

static double had(const served *by, bool first_tokens)
{
    return first_tokens ? by->ttft_ns : by->token_ns;
}

/* Targets that were to be met. */
typedef struct tally {
    uint32_t n;
    double worst; /* what was had, over the target */
} tally;

/* Serves with a target halfway between what is had without one, and the least that can be, which an unreachable target
 * shows. Where both are nearly the same there is nothing to aim at. */
static int keep(const sim_bench *bench, sim_serve_config *config, const scenario *s, double rate,
                bool first_tokens, tally *sums, sim_findings *out)
{
    const char *what = first_tokens ? "ms to the first token" : "ms a token";
    served none, least, kept;
    int code = serve_at(bench, config, s->prompt, rate, 0, 0, &none);
    if (!code)
        code = aim(bench, config, s->prompt, rate, first_tokens, UNREACHABLE_NS, &least);
    if (code)
        return code;
    const double none_ns = had(&none, first_tokens), least_ns = had(&least, first_tokens);
    const double target_ns = (least_ns + none_ns) / 2;
    sim_find(out, none_ns / 1e6, NAN, what, "%s, %u, no target", s->model, s->prompt);
    sim_find(out, least_ns / 1e6, NAN, what, "%s, %u, the least", s->model, s->prompt);
    if (none_ns < NEARLY * least_ns)
        return RUN_OK;
    sums->n++;
    if (isnan(target_ns)) { /* not all jobs were served */
        sums->worst = INFINITY;
        return RUN_OK;
    }
    code = aim(bench, config, s->prompt, rate, first_tokens, (uint64_t)target_ns, &kept);
    if (code)
        return code;
    const double kept_ns = had(&kept, first_tokens);
    sim_find(out, kept_ns / 1e6, NAN, what, "%s, %u, target %.1f", s->model, s->prompt,
             target_ns / 1e6);
    sim_find(out, kept.job_ns / none.job_ns, NAN, "of a job's time without", "%s, %u, target %.1f",
             s->model, s->prompt, target_ns / 1e6);
    sums->worst = fmax(sums->worst, isnan(kept_ns) ? INFINITY : kept_ns / target_ns);
    return code;
}

int sim_study_targets(bool brief, uint64_t seed, sim_findings *out)
{
    tally first = {.n = 0}, between = {.n = 0};
    int code = RUN_OK;
    sim_set(out,
            "seed %u; synthetic routing; half of the experts' bytes; answers of %u tokens in the "
            "mean, exponential",
            (unsigned)seed, OUTPUT_TOKENS);
    sim_set(out,
            "Poisson arrivals, %u jobs, of which the first %u do not count; load: 0.7 for first "
            "tokens and 0.9 between tokens, of what is served with all there at once",
            JOBS, WARM_JOBS);
    for (size_t i = 0; i < (brief ? 1 : COUNT(scenarios)) && !code; i++) {
        const scenario *s = &scenarios[i];
        sim_bench bench;
        served all;
        code = sim_bench_open_recorded(s->machine, s->model, seed, out, &bench);
        sim_serve_config config = sim_bench_budget(&bench, 50, seed);
        config.concurrency = MOST_RUNNING;
        config.stack.regime = MOEPAGE_REGIME_AUTO;
        config.admission = true;
        if (!code)
            code = serve_at(&bench, &config, s->prompt, 0, 0, 0, &all);
        if (!code)
            code = keep(&bench, &config, s, 0.7 * all.jobs_per_s, true, &first, out);
        if (!code)
            code = keep(&bench, &config, s, 0.9 * all.jobs_per_s, false, &between, out);
        sim_bench_close(&bench);
    }
    if (code)
        return code;
    sim_claim_that(out, first.n && first.worst <= 1,
                   "%u targets of first tokens are met: %.3f of them at most", first.n,
                   first.worst);
    sim_claim_that(out, between.n && between.worst <= 1,
                   "%u targets between tokens are met: %.3f of them at most", between.n,
                   between.worst);
    return code;
}
