/* The choice of regime that sessions make by themselves, against the better of the two forced ones,
 * over models, budgets and batches. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_bench.h"

#define PROMPT_TOKENS 256u
#define OUTPUT_TOKENS 64u
#define LEAST_JOBS 32u
#define MOST_BATCHES 7

typedef struct load {
    const char *machine, *model;
    uint32_t percent;               /* of the experts, for experts and KV */
    uint32_t batches[MOST_BATCHES]; /* 0 ends them */
    uint32_t hard[2];               /* of these, the ones on which a wrong choice costs most */
} load;

/* gpt-oss-20b has experts in FP8, and the routes of its trace. */
static const load loads[] = {
    {"rtx4090", "olmoe-1b-7b", 50, {1, 2, 4, 8, 16, 32}, {8}},
    {"h100-pcie5", "qwen3-30b-a3b", 40, {1, 2, 4, 8, 16, 32, 64}, {16, 32}},
    {"rtx4090", "gpt-oss-20b", 50, {1, 2, 4, 8, 16, 32}, {4, 8}},
    {"a6000", "deepseek-v2-lite", 50, {1, 4, 16}, {0}},
    {"h100-pcie5", "mixtral-8x7b", 60, {1, 4}, {0}},
    {"rtx4090", "olmoe-1b-7b", 25, {2, 8}, {0}},
    {"rtx4090", "olmoe-1b-7b", 75, {2, 8}, {0}},
    {"h100-pcie5", "qwen3-30b-a3b", 25, {4, 16}, {0}},
    {"h100-pcie5", "qwen3-30b-a3b", 75, {4, 16}, {0}},
    {"rtx4090", "gpt-oss-20b", 25, {2, 8}, {0}},
    {"rtx4090", "gpt-oss-20b", 75, {2, 8}, {0}},
};

#define N_LOADS (sizeof loads / sizeof *loads)

typedef struct tally {
    double worst, worst_hard, sum;
    uint32_t n;
} tally;

static bool is_of_trace(const load *l)
{
    return l->model[0] == 'g';
}

static bool is_hard(const load *l, uint32_t batch)
{
    return l->hard[0] == batch || l->hard[1] == batch;
}

static int run_regime(const sim_serve_config *config, uint32_t regime, double *tokens_per_s)
{
    static const sim_split_option split = {.kind = SIM_SPLIT_FIXED, .fraction = 0.9};
    sim_serve_config own = *config;
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    own.stack.regime = regime;
    int code = sim_split_run(&own, &split, run);
    if (!code && !run->feasible)
        code = fail(RUN_FAILED, "the budget has no room for the split");
    if (!code)
        *tokens_per_s = (double)run->result.output_tokens / (double)run->result.wall_ns * 1e9;
    sim_arm_run_free(run);
    free(run);
    return code;
}

static int run_batch(const sim_bench *bench, const load *l, uint32_t batch, uint64_t seed,
                     sim_findings *out, tally *sums)
{
    double pace[3] = {0};
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, l->percent, seed);
    config.concurrency = batch;
    uint32_t n = 3 * batch > LEAST_JOBS ? 3 * batch : LEAST_JOBS;
    int code = sim_jobs_plain(n, PROMPT_TOKENS, OUTPUT_TOKENS, 0, &jobs);
    config.jobs = &jobs;
    if (!code)
        code = sim_jobs_bind(&jobs, bench->source->n_requests, NULL, 0);
    for (uint32_t regime = MOEPAGE_REGIME_AUTO; regime <= MOEPAGE_REGIME_STREAM && !code; regime++)
        code = run_regime(&config, regime, &pace[regime]);
    sim_jobs_free(&jobs);
    if (code)
        return code;
    static const char where[] = "%s, %u %%, batch %u, seed %u";
    const char *model = l->model;
    double ratio =
        pace[MOEPAGE_REGIME_AUTO] / fmax(pace[MOEPAGE_REGIME_CACHE], pace[MOEPAGE_REGIME_STREAM]);
    unsigned of = (unsigned)seed;
    sim_find(out, pace[MOEPAGE_REGIME_CACHE], NAN, "cache, tok/s", where, model, l->percent, batch,
             of);
    sim_find(out, pace[MOEPAGE_REGIME_STREAM], NAN, "stream, tok/s", where, model, l->percent,
             batch, of);
    sim_find(out, pace[MOEPAGE_REGIME_AUTO], NAN, "auto, tok/s", where, model, l->percent, batch,
             of);
    sim_find(out, ratio, NAN, "auto of the better one", where, model, l->percent, batch, of);
    sums->worst = fmin(sums->worst, ratio);
    if (is_hard(l, batch))
        sums->worst_hard = fmin(sums->worst_hard, ratio);
    sums->sum += ratio;
    sums->n++;
    return RUN_OK;
}

static int run_load(const load *l, bool brief, uint64_t seed, sim_findings *out, tally *sums)
{
    sim_bench bench;
    int code = sim_bench_open_recorded(l->machine, l->model, seed, out, &bench);
    for (uint32_t b = 0; b < MOST_BATCHES && l->batches[b] > 0 && !code; b++)
        if (!brief || is_hard(l, l->batches[b]))
            code = run_batch(&bench, l, l->batches[b], seed, out, sums);
    sim_bench_close(&bench);
    return code;
}

int sim_study_regimes(bool brief, uint64_t seed, sim_findings *out)
{
    tally sums = {.worst = INFINITY, .worst_hard = INFINITY};
    int code = RUN_OK;
    sim_set(out, "seeds %u%s; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed,
            brief ? "" : " and, of synthetic routing at the first budget, the next");
    sim_set(out,
            "prompts of %u tokens, answers of %u; three jobs for each place in the batch, at "
            "least %u, all there at first; 0.9 of the budget for experts",
            PROMPT_TOKENS, OUTPUT_TOKENS, LEAST_JOBS);
    for (size_t i = 0; i < N_LOADS && !code; i++) {
        code = run_load(&loads[i], brief, seed, out, &sums);
        if (!code && !brief && loads[i].hard[0] > 0 && !(is_of_trace(&loads[i]) && out->traces))
            code = run_load(&loads[i], brief, seed + 1, out, &sums);
    }
    sim_claim_that(out, sums.worst_hard >= 0.97,
                   "where the regimes differ most, the choice is at least 0.97 of the better one: "
                   "%.3f",
                   sums.worst_hard);
    sim_claim_that(out, sums.worst >= 0.95, "nowhere is it below 0.95: %.3f", sums.worst);
    sim_claim_that(out, sums.sum / sums.n >= 0.99, "in the mean it is 0.99 or more: %.3f",
                   sums.sum / sums.n);
    return code;
}
