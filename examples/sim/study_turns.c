/* A controller that decides the split, the regime and how many run, against an oracle: every number that may run,
 * split and regime of a grid, each served in full. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_arms.h"
#include "sim/study_bench.h"

#define OUTPUT_TOKENS 64u
#define MOST_RUNNING 8u
#define WARM_JOBS 40u
#define JOBS 120u
#define CAPACITY_JOBS 32u

typedef struct model {
    const char *machine, *name;
} model;

/* gpt-oss-20b has experts in FP8, and the routes of its trace. */
static const model models[] = {{"rtx4090", "olmoe-1b-7b"},
                               {"rtx4090", "gpt-oss-20b"},
                               {"rtx4090", "deepseek-v2-lite"},
                               {"h100-pcie5", "qwen3-30b-a3b"}};
static const uint32_t prompts[] = {256, 2048};
static const double loads[] = {0.3, 0.6, 0.9}; /* of the best capacity */

static const uint32_t running[] = {1, 2, 4, MOST_RUNNING};
static const double fractions[] = {0.5, 0.7, 0.9, 0.95, 0.98}; /* of the budget, for experts */
static const uint32_t regimes[] = {MOEPAGE_REGIME_CACHE, MOEPAGE_REGIME_STREAM,
                                   MOEPAGE_REGIME_AUTO};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- One run ----------------------------------------------------------------------------- */

static int run_static(const sim_serve_config *config, uint32_t most, double fraction,
                      uint32_t regime, sim_arm_run *out)
{
    const sim_split_option split = {.kind = SIM_SPLIT_FIXED, .fraction = fraction};
    sim_serve_config own = *config;
    own.concurrency = most;
    own.stack.regime = regime;
    return sim_split_run(&own, &split, out);
}

static int run_ours(const sim_serve_config *config, sim_arm_run *out)
{
    const sim_split_option split = {.kind = SIM_SPLIT_MV_WSA_ONLINE};
    sim_serve_config own = *config;
    own.concurrency = MOST_RUNNING;
    own.stack.regime = MOEPAGE_REGIME_AUTO;
    own.admission = true;
    return sim_split_run(&own, &split, out);
}

/* The mean time of the jobs that count, in seconds; infinite if some could not be served. */
static double turn_s(const sim_arm_run *run)
{
    bool served = run->feasible && run->result.starts && !run->result.refused;
    return served ? run->result.job_ns.mean / 1e9 : INFINITY;
}

static double jobs_per_s(const sim_arm_run *run)
{
    bool served = run->feasible && run->result.starts && !run->result.refused;
    return served ? run->result.jobs / ((double)run->result.wall_ns / 1e9) : 0;
}

/* ---- The grid ---------------------------------------------------------------------------- */

typedef struct best {
    double value;
    uint32_t running, regime;
    double fraction;
} best;

/* Serves every point; `most`: the largest value wins, else the smallest. */
static int search(const sim_serve_config *config, double (*value)(const sim_arm_run *), bool most,
                  best *out)
{
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? RUN_OK : fail_memory();
    *out = (best){.value = most ? 0 : INFINITY};
    for (size_t r = 0; r < COUNT(running); r++)
        for (size_t f = 0; f < COUNT(fractions); f++)
            for (size_t g = 0; g < COUNT(regimes) && !code; g++) {
                *run = (sim_arm_run){0};
                code = run_static(config, running[r], fractions[f], regimes[g], run);
                double v = code ? NAN : value(run);
                if (!code && (most ? v > out->value : v < out->value))
                    *out = (best){v, running[r], regimes[g], fractions[f]};
                sim_arm_run_free(run);
            }
    free(run);
    return code;
}

/* ---- Workloads --------------------------------------------------------------------------- */

static int run_load(sim_serve_config *config, const sim_bench *bench, const char *name,
                    uint32_t prompt, double load, double capacity, sim_findings *out,
                    sim_study_tally *sums)
{
    static const char *const names[] = {"auto", "cache", "stream"};
    best oracle = {0};
    sim_jobs jobs = {0};
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_bench_poisson(bench, JOBS, prompt, OUTPUT_TOKENS, load * capacity,
                                       config->seed, &jobs)
                   : fail_memory();
    config->jobs = &jobs;
    config->first_jobs = WARM_JOBS;
    if (!code)
        code = search(config, turn_s, false, &oracle);
    if (!code)
        code = run_ours(config, run);
    double ours = code ? NAN : turn_s(run), ratio = ours / oracle.value;
    if (!code) {
        sim_find(out, oracle.value, NAN, "oracle, mean s a job",
                 "%s, %u, load %.2f: %u run, %.2f, %s", name, prompt, load, oracle.running,
                 oracle.fraction, names[oracle.regime]);
        sim_find(out, ours, NAN, "ours, mean s a job", "%s, %u, load %.2f", name, prompt, load);
        sim_find(out, ratio, NAN, "of the oracle's", "%s, %u, load %.2f", name, prompt, load);
        sim_study_tally_add(sums, ratio, false);
    }
    if (run)
        sim_arm_run_free(run);
    free(run);
    sim_jobs_free(&jobs);
    return code;
}

static int run_context(const sim_bench *bench, const char *name, uint32_t prompt, bool brief,
                       uint64_t seed, sim_findings *out, sim_study_tally *sums)
{
    best capacity = {0};
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, 50, seed);
    int code = sim_bench_poisson(bench, CAPACITY_JOBS, prompt, OUTPUT_TOKENS, 0, seed, &jobs);
    config.jobs = &jobs;
    if (!code)
        code = search(&config, jobs_per_s, true, &capacity);
    sim_jobs_free(&jobs);
    sim_find(out, capacity.value, NAN, "capacity, jobs/s", "%s, %u", name, prompt);
    for (size_t i = brief ? COUNT(loads) - 1 : 0; i < COUNT(loads) && !code; i++)
        code = run_load(&config, bench, name, prompt, loads[i], capacity.value, out, sums);
    return code;
}

static int run_model(const model *m, bool brief, uint64_t seed, sim_findings *out,
                     sim_study_tally *sums)
{
    sim_bench bench;
    int code = sim_bench_open_recorded(m->machine, m->name, seed, out, &bench);
    for (size_t p = 0; p < (brief ? 1 : COUNT(prompts)) && !code; p++)
        code = run_context(&bench, m->name, prompts[p], brief, seed, out, sums);
    sim_bench_close(&bench);
    return code;
}

int sim_study_turns(bool brief, uint64_t seed, sim_findings *out)
{
    sim_study_tally sums = {.n = 0};
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    sim_set(out,
            "half of the experts' bytes; answers of %u tokens in the mean, exponential; Poisson "
            "arrivals; %u jobs, of which the first %u do not count",
            OUTPUT_TOKENS, JOBS, WARM_JOBS);
    sim_set(out,
            "oracle: 1 to %u running, 0.5 to 0.98 of the budget for experts, each regime; load: of "
            "its best throughput",
            MOST_RUNNING);
    for (size_t i = 0; i < (brief ? 1 : COUNT(models)) && !code; i++)
        code = run_model(&models[i], brief, seed, out, &sums);
    if (code || !sums.n)
        return code;
    double median = sim_study_tally_median(&sums), worst = sim_study_tally_worst(&sums);
    sim_claim_that(out, median <= 1.05,
                   "the mean turn is within 1.05 of the oracle's in the median: %.3f", median);
    sim_claim_that(out, worst <= 1.15, "and within 1.15 at worst: %.3f", worst);
    return code;
}
