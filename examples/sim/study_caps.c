/* What a cap by right-sizing is worth (WiSP 5.4): controllers with and without one, on the same conversations. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_bench.h"

#define CONCURRENCY 4u
#define PERCENT 60u /* of the experts' bytes */

typedef struct load {
    const char *name, *model, *routing;
    uint32_t support; /* experts that the user's routing reaches; 0: not known */
} load;

/* Without `routing` the model's own; gpt-oss-20b's is its trace's with --trace. */
static const load loads[] = {
    {"20 of 64 experts", "olmoe-1b-7b", "olmoe-1b-7b:topics=1,reach=0.3", 16 * 20},
    {"OLMoE", "olmoe-1b-7b", NULL, 0},
    {"gpt-oss", "gpt-oss-20b", NULL, 0},
};

#define N_LOADS (sizeof loads / sizeof *loads)

static const struct {
    const char *name;
    uint32_t mode;
    bool admission;
} modes[] = {{"mv-wsa", MOEPAGE_CONTROL_MV_WSA, false},
             {"mv-wsa, admission", MOEPAGE_CONTROL_MV_WSA, true},
             {"dual-resize", MOEPAGE_CONTROL_DUAL_RESIZE, false},
             {"flux", MOEPAGE_CONTROL_FLUX, false}};

#define N_MODES (sizeof modes / sizeof *modes)

static const uint32_t coverages[] = {990, 950}; /* permille */

#define N_COVERAGES (sizeof coverages / sizeof *coverages)

typedef struct tally {
    double worst[N_COVERAGES]; /* of time with a cap over that without, over all loads */
    double best[N_COVERAGES];
    double beyond; /* most of a known support that a cap left */
    double least;  /* KV with the first cap over that without, dual resize, of known supports */
    uint32_t caps; /* that were found for known supports */
} tally;

static int open_bench(const load *l, uint64_t seed, sim_findings *out, sim_bench *bench)
{
    if (l->routing)
        return sim_bench_open("rtx4090", l->model, 1, l->routing, seed, bench);
    return sim_bench_open_recorded("rtx4090", l->model, seed, out, bench);
}

static int run_one(const sim_serve_config *config, size_t mode, uint32_t coverage,
                   sim_result *result)
{
    mp_split_bounds bounds;
    mp_split start;
    sim_serve_config own = *config;
    own.stack.coverage_permille = coverage;
    own.admission = modes[mode].admission;
    sim_arm_run *run = calloc(1, sizeof *run);
    int code = run ? sim_split_bounds(config, &bounds) : fail_memory();
    if (!code && !mp_split_fixed(&bounds, 0.5, &start))
        code = fail(RUN_FAILED, "the budget has no room for the split");
    if (!code)
        code = sim_online_run(&own, &start, modes[mode].mode, run);
    if (!code)
        *result = run->result;
    if (run)
        sim_arm_run_free(run);
    free(run);
    return code;
}

static void report(const load *l, const char *mode, const char *cap, const sim_result *r,
                   double without, sim_findings *out)
{
    const double latency = sim_result_latency_ns(r);
    sim_find(out, latency / 1e9, NAN, "busy s a job", "%s, %s, %s", l->name, mode, cap);
    sim_find(out, latency / without, NAN, "of that without", "%s, %s, %s", l->name, mode, cap);
    sim_find(out, (double)r->last_slots, NAN, "slots at the end", "%s, %s, %s", l->name, mode, cap);
    sim_find(out, (double)r->last_blocks, NAN, "KV blocks at the end", "%s, %s, %s", l->name, mode,
             cap);
    sim_find(out, (double)r->control.cap_slots, NAN, "cap at the end", "%s, %s, %s", l->name, mode,
             cap);
}

/* With a user's support known. */
static void judge(const load *l, size_t mode, size_t coverage, const sim_result *r,
                  uint64_t blocks_without, tally *sums)
{
    if (!l->support || !r->control.cap_slots)
        return;
    sums->caps++;
    sums->beyond = fmax(sums->beyond, (double)r->control.cap_slots / l->support);
    if (modes[mode].mode == MOEPAGE_CONTROL_DUAL_RESIZE && coverage == 0)
        sums->least = fmin(sums->least, (double)r->last_blocks / (double)blocks_without);
}

static int run_mode(const load *l, size_t mode, const sim_serve_config *config, sim_findings *out,
                    tally *sums)
{
    sim_result *result = calloc(1, sizeof *result);
    int code = result ? run_one(config, mode, 0, result) : fail_memory();
    const double without = code ? 1 : sim_result_latency_ns(result);
    const uint64_t blocks = code ? 0 : result->last_blocks;
    if (!code)
        report(l, modes[mode].name, "none", result, without, out);
    for (size_t c = 0; c < N_COVERAGES && !code; c++) {
        char cap[16];
        snprintf(cap, sizeof cap, "%.2f", coverages[c] / 1000.0);
        code = run_one(config, mode, coverages[c], result);
        if (code)
            break;
        report(l, modes[mode].name, cap, result, without, out);
        const double ratio = sim_result_latency_ns(result) / without;
        sums->worst[c] = fmax(sums->worst[c], ratio);
        sums->best[c] = fmin(sums->best[c], ratio);
        judge(l, mode, c, result, blocks, sums);
    }
    free(result);
    return code;
}

/* Conversations, in any order: KV that is kept is worth something, and so are experts. */
static int run_load(const load *l, bool brief, uint64_t seed, sim_findings *out, tally *sums)
{
    const sim_closed_loop loop = {.clients = CONCURRENCY,
                                  .sessions = 6,
                                  .turns = brief ? 2 : 5,
                                  .prompt_tokens = 384,
                                  .turn_tokens = 96,
                                  .output_tokens = 96,
                                  .order = SIM_ORDER_RANDOM};
    sim_bench bench;
    sim_jobs jobs = {0};
    int code = open_bench(l, seed, out, &bench);
    if (!code)
        code = sim_jobs_closed(&loop, &jobs);
    if (!code)
        code = sim_jobs_bind(&jobs, bench.source->n_requests, NULL, 0);
    sim_serve_config config = sim_bench_budget(&bench, PERCENT, seed);
    config.stack.prefetch = MOEPAGE_PREFETCH_PREDICTOR;
    config.stack.predictor = "coactivation";
    config.jobs = &jobs;
    config.concurrency = CONCURRENCY;
    for (size_t mode = 0; mode < N_MODES && !code; mode++)
        code = run_mode(l, mode, &config, out, sums);
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}

int sim_study_caps(bool brief, uint64_t seed, sim_findings *out)
{
    tally sums = {.best = {INFINITY, INFINITY}, .least = INFINITY};
    int code = RUN_OK;
    sim_set(out, "seed %u; synthetic routing, but for gpt-oss-20b's own with --trace",
            (unsigned)seed);
    sim_set(out, "%u %% of the experts' bytes; %u clients with conversations, in any order",
            PERCENT, CONCURRENCY);
    sim_set(out, "one predictor for all; the same one, and its prefetching, without a cap");
    for (size_t i = 0; i < (brief ? 1 : N_LOADS) && !code; i++)
        code = run_load(&loads[i], brief, seed, out, &sums);
    sim_claim_that(out, sums.caps > 0 && sums.beyond <= 1,
                   "a cap is no more than the experts that routing reaches: %.2f of them",
                   sums.beyond);
    sim_claim_that(out, sums.caps > 0 && sums.worst[0] <= 1.05,
                   "a cap for 0.99 costs no more than 5 %%: %.3f to %.3f of the time without; one "
                   "for 0.95 %.3f to %.3f",
                   sums.best[0], sums.worst[0], sums.best[1], sums.worst[1]);
    sim_claim_that(out, sums.caps > 0 && sums.least >= 2,
                   "with it KV has at least twice the blocks that dual resize leaves it: %.1f",
                   sums.least);
    return code;
}
