/* The residency planner against the best of the other modes, splits and regimes, where steps are of one sequence and
 * where they are of many. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_bench.h"

#define PROMPT_TOKENS 256u
#define OUTPUT_TOKENS 64u
#define LEAST_JOBS 32u
#define JOBS_EACH 8u /* for each place in the batch */
#define MOST_BATCHES 4

typedef struct load {
    const char *machine, *model;
    uint32_t percent;               /* of the experts, for experts and KV */
    uint32_t batches[MOST_BATCHES]; /* 0 ends them */
} load;

static const load loads[] = {
    {"l40-pcie4", "olmoe-1b-7b", 50, {1, 4, 16, 32}},
    {"rtx4090", "gpt-oss-20b", 50, {1, 8}},
    {"h100-pcie5", "qwen3-30b-a3b", 40, {1, 8}},
};

#define N_LOADS (sizeof loads / sizeof *loads)

static const sim_split_option others[] = {
    {.kind = SIM_SPLIT_MV_WSA},
    {.kind = SIM_SPLIT_MV_WSA_ONLINE},
    {.kind = SIM_SPLIT_DUAL_RESIZE},
    {.kind = SIM_SPLIT_FIXED, .fraction = 0.9},
};
static const char *const other_names[] = {"configured", "mv-wsa", "dual-resize", "0.9 for experts"};

#define N_OTHERS (sizeof others / sizeof *others)

/* Tokens per second: of the run's second half, when controllers have settled, and with the way there. 0 if it does not
 * start. */
typedef struct rates {
    double settled, whole;
} rates;

static int run_arm(const sim_serve_config *config, const sim_split_option *split, uint32_t regime,
                   rates *out)
{
    sim_serve_config own = *config;
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    own.stack.regime = regime;
    int code = sim_split_run(&own, split, run);
    const sim_result *result = &run->result;
    *out = (rates){0};
    if (!code && run->feasible && result->wall_ns)
        *out = (rates){.settled = sim_bench_rate(result),
                       .whole = (double)result->output_tokens / (double)result->wall_ns * 1e9};
    sim_arm_run_free(run);
    free(run);
    return code;
}

static int run_others(const sim_serve_config *config, bool brief, const char *where,
                      sim_findings *out, rates *best)
{
    int code = RUN_OK;
    for (uint32_t i = 0; i < N_OTHERS && !code; i++)
        for (uint32_t r = MOEPAGE_REGIME_AUTO; r <= MOEPAGE_REGIME_STREAM && !code; r++) {
            rates pace = {0};
            if (r != MOEPAGE_REGIME_AUTO && (brief || others[i].kind == SIM_SPLIT_MV_WSA))
                continue;
            code = run_arm(config, &others[i], r, &pace);
            sim_find(out, pace.settled, NAN, "tok/s", "%s: %s, %s", where, other_names[i],
                     sim_bench_regime(r));
            best->settled = fmax(best->settled, pace.settled);
            best->whole = fmax(best->whole, pace.whole);
        }
    return code;
}

static int run_batch(const sim_bench *bench, const load *l, uint32_t batch, bool brief,
                     uint64_t seed, sim_findings *out, double *least)
{
    static const sim_split_option planner = {.kind = SIM_SPLIT_PLANNER};
    char where[96];
    rates ours = {0}, best = {0};
    sim_jobs jobs = {0};
    sim_serve_config config = sim_bench_budget(bench, l->percent, seed);
    config.stack.exph_ratio = SIM_EXPH_RATIO; /* the same images for all */
    config.concurrency = batch;
    uint32_t n = JOBS_EACH * batch > LEAST_JOBS ? JOBS_EACH * batch : LEAST_JOBS;
    int code = sim_jobs_plain(n, PROMPT_TOKENS, OUTPUT_TOKENS, 0, &jobs);
    config.jobs = &jobs;
    snprintf(where, sizeof where, "%s, %u %%, batch %u", l->model, l->percent, batch);
    if (!code)
        code = sim_jobs_bind(&jobs, bench->source->n_requests, NULL, 0);
    if (!code)
        code = run_arm(&config, &planner, MOEPAGE_REGIME_AUTO, &ours);
    if (!code)
        code = run_others(&config, brief, where, out, &best);
    sim_jobs_free(&jobs);
    double part = ours.settled / best.settled;
    sim_find(out, ours.settled, NAN, "tok/s", "%s: planner", where);
    sim_find(out, part, NAN, "of the best other", "%s", where);
    sim_find(out, ours.whole / best.whole, NAN, "of it, whole run", "%s", where);
    *least = fmin(*least, part);
    return code;
}

int sim_study_planner(bool brief, uint64_t seed, sim_findings *out)
{
    double one = INFINITY, many = INFINITY;
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    sim_set(
        out,
        "prompts of %u tokens, answers of %u; %u jobs for each place in the batch, at least %u; "
        "experts as EXPH images in every arm; the second half of each run, when controllers have "
        "settled; the "
        "planner starts from an even split, as the other controllers do",
        PROMPT_TOKENS, OUTPUT_TOKENS, JOBS_EACH, LEAST_JOBS);
    for (size_t i = 0; i < (brief ? 1 : N_LOADS) && !code; i++) {
        sim_bench bench;
        code = sim_bench_open_recorded(loads[i].machine, loads[i].model, seed, out, &bench);
        for (uint32_t b = 0; b < MOST_BATCHES && loads[i].batches[b] > 0 && !code; b++)
            if (!brief || b == 0)
                code = run_batch(&bench, &loads[i], loads[i].batches[b], brief, seed, out,
                                 b == 0 ? &one : &many);
        sim_bench_close(&bench);
    }
    sim_claim_that(
        out, one >= 0.97,
        "at batch 1 the planner has at least 0.97 of the best other mode and regime: %.3f", one);
    if (!brief)
        sim_claim_that(out, many >= 0.97, "at larger batches, too: %.3f", many);
    return code;
}
