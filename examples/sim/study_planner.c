/* FluxMoE's experiment 3: throughput while residency adapts to a growing KV cache. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_flux.h"

#define LAYER_NS 1510000u /* as in flux-exp1 */
#define BURST_STEPS 16u

/* ---- Over time --------------------------------------------------------------------------- */

/* All sequences begin at once and grow together, until KV is full and beyond. */
typedef struct growth {
    const char *model, *routing;
    uint32_t tp, batch, prompt, output;
    uint32_t headroom;    /* permille of KV */
    uint32_t most_rounds; /* most rounds whose loads still hide behind computing */
} growth;

/* For tests a shorter one with few experts. */
static const growth full_growth =
                        {SIM_FLUX_NEXT, SIM_FLUX_NEXT ":topics=8", 4, 256, 2960, 240, 10, 7},
                    brief_growth = {"olmoe-1b-7b", "olmoe-1b-7b", 8, 64, 39864, 160, 1, 4};

static int plan_fluxmoe(const sim_serve_config *config, sim_serve_config *out)
{
    bool feasible;
    int code = sim_baseline_plan(config, "fluxmoe", 1, out, &feasible);
    if (!code && !feasible)
        code = fail(RUN_REFUSED, "fluxmoe does not start");
    out->stack.prefetch = MOEPAGE_PREFETCH_HINT;
    out->hints = (sim_hints){.distance = 1, .whole_layer = true};
    return code;
}

static int run_growth(const sim_bench *bench, const growth *g, bool plans, sim_result *out)
{
    const moepage_controller_config planner = {.struct_size = sizeof planner,
                                               .mode = MOEPAGE_CONTROL_PLANNER,
                                               .burst_steps = BURST_STEPS,
                                               .concurrency = g->batch,
                                               .headroom_permille = g->headroom};
    const sim_flux_load load = {.batch = g->batch, .layer_ns = LAYER_NS, .steps = g->output};
    sim_serve_config own;
    sim_jobs jobs = {0};
    int code = sim_jobs_plain(g->batch, g->prompt, g->output, 0, &jobs);
    for (uint32_t i = 0; i < jobs.n; i++)
        jobs.jobs[i].route = i;
    if (!code) {
        sim_serve_config config = sim_flux_config(bench, &load, &jobs);
        code = plan_fluxmoe(&config, &own);
    }
    own.stack.controller = plans ? &planner : NULL;
    if (!code)
        code = sim_serve(&own, NULL, NULL, out);
    sim_jobs_free(&jobs);
    return code;
}

/* Returns the tokens per second of one interval. */
static double rate_at(const sim_result *r, uint32_t i)
{
    const sim_serve_sample *a = &r->samples[i - 1], *b = &r->samples[i];
    return (double)(b->output_tokens - a->output_tokens) / (double)(b->ns - a->ns) * 1e9;
}

/* Compares over time; `all` experts of a layer are compressed on the device at first. */
static void compare_over_time(const sim_result *fixed, const sim_result *plans, uint32_t all,
                              sim_findings *out)
{
    uint32_t n = fixed->n_samples < plans->n_samples ? fixed->n_samples : plans->n_samples;
    double least = INFINITY, most = 0;
    uint32_t given_up = 0;
    bool one_by_one = true;
    for (uint32_t i = 1; i + 1 < n; i++) {
        double ratio = rate_at(plans, i) / rate_at(fixed, i);
        least = fmin(least, ratio);
        most = fmax(most, ratio);
        given_up = all - plans->samples[i].compressed;
        one_by_one = one_by_one && given_up <= i + 1;
        sim_find(out, rate_at(fixed, i), NAN, "tok/s", "fixed, iteration %u", i * BURST_STEPS);
        sim_find(out, rate_at(plans, i), NAN, "tok/s", "planner, iteration %u: %u on host",
                 i * BURST_STEPS, given_up);
    }
    sim_find(out, least, 1.0, "ratio", "planner to fixed, least of all intervals");
    sim_find(out, most, NAN, "ratio", "planner to fixed, most");
    sim_claim_that(out, least > 0.97,
                   "in no interval is the planner more than 3 %% below fixed residency: %.3f",
                   least);
    sim_claim_that(out, one_by_one && given_up >= 4,
                   "it gives up at most one expert of each layer in an interval, %u in all",
                   given_up);
    sim_claim_that(out, most > 1.2 && plans->preemptions == 0 && fixed->preemptions > 0,
                   "and swaps nothing where fixed residency does: %.1f times its rate", most);
}

static int study_growth(const sim_bench *bench, const growth *g, sim_findings *out)
{
    sim_result *results = calloc(2, sizeof *results);
    if (!results)
        return fail_memory();
    int code = run_growth(bench, g, false, &results[0]);
    if (!code)
        code = run_growth(bench, g, true, &results[1]);
    if (!code)
        compare_over_time(&results[0], &results[1], bench->shape.experts, out);
    free(results);
    return code;
}

/* ---- Equal bytes, staggered or from one layer ------------------------------------------------ */

#define SHARE_BATCH 256u
#define SHARE_CONTEXT 1024u
#define SHARE_STEPS 32u

/* Serves with `rounds` experts per layer on the host: one of every layer in each round, or all from
 * the last layer. The pool keeps equally many of every layer; that layer's share is the host's own
 * transfer, and the rest of it is assumed resident. */
static int run_share(const sim_bench *bench, uint32_t rounds, bool one_layer, double *out)
{
    const sim_flux_load load = {.batch = SHARE_BATCH, .layer_ns = LAYER_NS, .steps = SHARE_STEPS};
    sim_jobs jobs = {0};
    sim_serve_config own;
    sim_pace pace = {0};
    int code = sim_bench_batch(SHARE_BATCH, SHARE_CONTEXT, 2, &jobs);
    if (!code) {
        sim_serve_config config = sim_flux_config(bench, &load, &jobs);
        code = plan_fluxmoe(&config, &own);
    }
    if (!code && one_layer) {
        own.own_layers = 1;
        own.own_ahead = true;
        own.own_experts = rounds * bench->shape.moe_layers;
    } else if (!code) {
        own.stack.compressed_experts = bench->shape.experts - rounds;
    }
    if (!code)
        code = sim_bench_run(&own, &pace);
    *out = pace.tokens_per_s;
    sim_jobs_free(&jobs);
    return code;
}

static int study_shares(const sim_bench *bench, uint32_t most, sim_findings *out)
{
    double fixed, staggered = 0, crowded = 0;
    int code = run_share(bench, 0, false, &fixed);
    for (uint32_t rounds = most % 2 ? 1 : 2; rounds <= most && !code; rounds += 2) {
        code = run_share(bench, rounds, false, &staggered);
        if (!code)
            code = run_share(bench, rounds, true, &crowded);
        sim_find(out, staggered / fixed, 1.0, "of fixed", "%u rounds, staggered", rounds);
        sim_find(out, crowded / fixed, NAN, "of fixed", "%u rounds, out of one layer", rounds);
    }
    if (code)
        return code;
    sim_claim_that(out, staggered > 0.97 * fixed, "%u staggered rounds cost nothing: %.3f", most,
                   staggered / fixed);
    sim_claim_that(out, crowded < 0.9 * fixed,
                   "the same experts out of one layer make the bus the bottleneck: %.3f",
                   crowded / fixed);
    return code;
}

int sim_study_flux_exp3(bool brief, uint64_t seed, sim_findings *out)
{
    const growth *g = brief ? &brief_growth : &full_growth;
    sim_bench bench;
    int code = sim_bench_open(SIM_FLUX_MACHINE, g->model, g->tp, g->routing, seed, &bench);
    if (!code) {
        sim_set(out, "machine %s, %s on %u ranks, batch %u, host as in flux-exp1", SIM_FLUX_MACHINE,
                bench.shape.name, g->tp, g->batch);
        sim_set(out, "the planner acts every %u iterations (300 in the paper)", BURST_STEPS);
        code = study_growth(&bench, g, out);
    }
    if (!code)
        code = study_shares(&bench, g->most_rounds, out);
    sim_bench_close(&bench);
    return code;
}
