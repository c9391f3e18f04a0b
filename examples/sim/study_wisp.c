/* WiSP's measurements at batch 1: table 2, and section 4 on prefetching. */
#include <math.h>

#include "common/fail.h"
#include "sim/study_wisp.h"

#define KV_TOKENS 8192u
#define PROMPT_TOKENS 32u

typedef struct budget {
    uint32_t offload_gib, cap;
    double naive, wisp; /* tokens per second; NAN: not in the table */
} budget;

static const budget table2[] = {
    {50, 16, 8.96, 13.79},   {44, 32, 10.27, 18.51}, {30, 64, 13.21, 25.75},
    {15, 128, 26.53, 26.79}, {0, 128, NAN, NAN},
};

#define N_BUDGETS (sizeof table2 / sizeof *table2)

/* ---- Arms -------------------------------------------------------------------------------- */

/* Sizes the arena for the slots, and KV that one sequence never fills. */
static void give_arena(const sim_bench *bench, sim_serve_config *config)
{
    config->stack.arena_bytes = config->stack.expert_slots * bench->slot_bytes +
                                KV_TOKENS * sim_shape_kv_token_bytes(&bench->shape);
}

/* Configures WiSP: `cap` slots in each layer, LRU. */
static sim_serve_config paging(const sim_bench *bench, uint32_t cap)
{
    sim_serve_config config = sim_bench_config(bench);
    config.stack.expert_slots = (uint64_t)cap * bench->shape.moe_layers;
    give_arena(bench, &config);
    config.stack.scope = MOEPAGE_SCOPE_LAYER;
    config.warm_layers = bench->shape.moe_layers;
    config.layer_overhead_ns = SIM_WISP_HOST_NS + SIM_WISP_HOOK_NS;
    return config;
}

void sim_wisp_offload(const sim_bench *bench, uint32_t own, bool in_place, sim_serve_config *config)
{
    const sim_shape *s = &bench->shape;
    uint32_t resident = s->moe_layers - own;
    config->stack.expert_slots = (uint64_t)resident * s->experts + (own ? s->top_k : 0);
    config->own_layers = own;
    config->own_in_place = in_place;
    config->warm_layers = resident;
    config->layer_overhead_ns = SIM_WISP_HOST_NS;
}

/* Configures --cpu-offload-gb: whole layers on the host, the others resident. */
static sim_serve_config offloading(const sim_bench *bench, uint32_t gib, bool in_place)
{
    const sim_shape *s = &bench->shape;
    uint64_t layer_bytes = s->expert_bytes * s->experts + sim_shape_layer_bytes(s, 0);
    uint64_t layers = (gib * SIM_GIB + layer_bytes / 2) / layer_bytes;
    sim_serve_config config = sim_bench_config(bench);
    sim_wisp_offload(bench, layers < s->moe_layers ? (uint32_t)layers : s->moe_layers, in_place,
                     &config);
    give_arena(bench, &config);
    return config;
}

/* ---- Table 2 ----------------------------------------------------------------------------- */

typedef struct rates {
    double paged[N_BUDGETS], whole[N_BUDGETS], in_place[N_BUDGETS];
} rates;

static int run_rate(sim_serve_config config, const sim_jobs *jobs, double *out)
{
    sim_pace pace;
    config.jobs = jobs;
    int code = sim_bench_run(&config, &pace);
    *out = pace.tokens_per_s;
    return code;
}

static int run_budget(const sim_bench *bench, const sim_jobs *jobs, size_t i, rates *out)
{
    const budget *b = &table2[i];
    int code = run_rate(paging(bench, b->cap), jobs, &out->paged[i]);
    if (!code)
        code = run_rate(offloading(bench, b->offload_gib, true), jobs, &out->in_place[i]);
    return code ? code : run_rate(offloading(bench, b->offload_gib, false), jobs, &out->whole[i]);
}

static double speed_up(const rates *r, size_t i)
{
    return r->paged[i] / r->in_place[i];
}

static void report_table2(const rates *r, sim_findings *out)
{
    for (size_t i = 0; i < N_BUDGETS; i++) {
        const budget *b = &table2[i];
        sim_find(out, r->paged[i], b->wisp, "tok/s", "cap %u", b->cap);
        sim_find(out, r->in_place[i], b->naive, "tok/s", "offload %u GiB, read in place",
                 b->offload_gib);
        sim_find(out, r->whole[i], b->naive, "tok/s", "offload %u GiB, layers copied whole",
                 b->offload_gib);
        sim_find(out, speed_up(r, i), b->wisp / b->naive, "speed-up",
                 "cap %u over offload %u GiB in place", b->cap, b->offload_gib);
    }
}

/* Judges table 2: the ratio rises, peaks between the ends, falls to about 1, and below 1 once
 * everything fits. */
static void judge_table2(const sim_bench *bench, const rates *r, sim_findings *out)
{
    double s[N_BUDGETS];
    for (size_t i = 0; i < N_BUDGETS; i++)
        s[i] = speed_up(r, i);
    double peak = fmax(s[1], s[2]);
    sim_claim_that(out, s[0] > 1 && s[1] > s[0],
                   "the speed-up is above 1 at the tightest budget and rises: %.2f, %.2f", s[0],
                   s[1]);
    sim_claim_that(out, peak > s[0] && peak > s[3],
                   "it peaks in the middle: %.2f against %.2f and %.2f at the ends", peak, s[0],
                   s[3]);
    sim_claim_that(out, s[3] < 1.25 && s[4] < 1,
                   "it nears 1 at 15 GiB (%.2f) and crosses before nothing is offloaded (%.2f)",
                   s[3], s[4]);
    sim_claim_that(out, r->paged[0] > r->whole[0] && r->whole[0] * 3 < table2[0].naive,
                   "50 GiB a token over %.1f GB/s is %.2f tok/s, not the paper's %.2f: its engine "
                   "reads in place",
                   (double)bench->machine.profile.bus_bytes_per_s / SIM_GB, r->whole[0],
                   table2[0].naive);
}

int sim_study_wisp_table2(bool brief, uint64_t seed, sim_findings *out)
{
    sim_bench bench;
    sim_jobs jobs = {0};
    rates r;
    int code = sim_bench_open("h100-pcie5", "qwen3-30b-a3b", 1, "qwen3-30b-a3b", seed, &bench);
    if (!code)
        code = sim_jobs_plain(brief ? 2 : 16, PROMPT_TOKENS, brief ? 128 : 512, 0, &jobs);
    for (size_t i = 0; i < N_BUDGETS && !code; i++)
        code = run_budget(&bench, &jobs, i, &r);
    if (!code) {
        sim_set(out, "machine h100-pcie5, %s in BF16, routing: synthetic %s", bench.shape.name,
                bench.shape.name);
        sim_set(out, "host: %.2f ms a layer, the pager's hook %.2f ms more", SIM_WISP_HOST_NS / 1e6,
                SIM_WISP_HOOK_NS / 1e6);
        report_table2(&r, out);
        judge_table2(&bench, &r, out);
    }
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}

/* ---- Section 4 --------------------------------------------------------------------------- */

#define TIGHT_CAP 16u

/* One topic throughout, or a new one every 32 tokens. */
static const struct {
    const char *name, *routing;
} sessions[] = {
    {"coherent", "qwen3-30b-a3b:topics=1"},
    {"diverse", "qwen3-30b-a3b:segment=32"},
};

/* With a host's overhead the bus idles during it; without, the bus is the bottleneck. */
static const struct {
    const char *name;
    uint64_t layer_ns;
} hosts[] = {
    {"eager host", SIM_WISP_HOST_NS + SIM_WISP_HOOK_NS},
    {"no overhead", 0},
};

enum { OFF, PREVIOUS, HALF_RIGHT, HALF_WAITED, ALL_RIGHT, PREDICTORS };
static const struct {
    const char *name;
    uint32_t mode;
    sim_hints hints;
} predictors[PREDICTORS] = {
    {"no prefetch", MOEPAGE_PREFETCH_OFF, {0}},
    {"previous set", MOEPAGE_PREFETCH_PREVIOUS, {0}},
    {"half right", MOEPAGE_PREFETCH_HINT, {.distance = 1, .accuracy_permille = 500}},
    {"half right, waited for",
     MOEPAGE_PREFETCH_OFF,
     {.distance = 1, .accuracy_permille = 500, .synchronous = true}},
    {"all right", MOEPAGE_PREFETCH_HINT, {.distance = 1, .accuracy_permille = 1000}},
};

typedef struct prefetch_rates {
    double rate[2][2][PREDICTORS]; /* [session][host] */
    double new_bytes;              /* per step: experts that are not among the last step's */
} prefetch_rates;

static int run_predictors(const sim_bench *bench, const sim_jobs *jobs, int host, double *out)
{
    int code = RUN_OK;
    for (int p = 0; p < PREDICTORS && !code; p++) {
        sim_serve_config config = paging(bench, TIGHT_CAP);
        config.layer_overhead_ns = hosts[host].layer_ns;
        config.stack.prefetch = predictors[p].mode;
        config.hints = predictors[p].hints;
        code = run_rate(config, jobs, &out[p]);
    }
    return code;
}

/* Measures a cache of exactly the last step's experts. */
static int measure_turnover(const sim_bench *bench, const sim_jobs *jobs, double *out)
{
    const sim_shape *s = &bench->shape;
    sim_pace pace;
    sim_serve_config config = paging(bench, s->top_k);
    config.jobs = jobs;
    config.warm_layers = 0; /* no slot is spare */
    int code = sim_bench_run(&config, &pace);
    *out = (double)pace.result.misses / (double)pace.result.routed *
           (double)(s->top_k * s->moe_layers * s->expert_bytes);
    return code;
}

static int run_session(int which, bool brief, uint64_t seed, prefetch_rates *out)
{
    sim_bench bench;
    sim_jobs jobs = {0};
    int code =
        sim_bench_open("h100-pcie5", "qwen3-30b-a3b", 1, sessions[which].routing, seed, &bench);
    if (!code)
        code = sim_jobs_plain(brief ? 1 : 4, PROMPT_TOKENS, brief ? 256 : 1024, 0, &jobs);
    for (int host = 0; host < 2 && !code; host++)
        code = run_predictors(&bench, &jobs, host, out->rate[which][host]);
    if (!code)
        code = measure_turnover(&bench, &jobs, &out->new_bytes);
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}

static int report_bus(const prefetch_rates *r, sim_findings *out)
{
    static const char *const buses[] = {"l40-pcie4", "h100-pcie5"};
    sim_machine machine;
    sim_find(out, r->new_bytes / (double)SIM_GIB, NAN, "GiB a step",
             "not among the last step's experts");
    for (size_t i = 0; i < 2; i++) {
        int code = sim_machine_find(buses[i], &machine);
        if (code)
            return code;
        sim_find(out, (double)machine.profile.bus_bytes_per_s / r->new_bytes, NAN, "tok/s at most",
                 "that over the bus of %s", buses[i]);
    }
    return RUN_OK;
}

static void report_prefetch(const prefetch_rates *r, sim_findings *out)
{
    for (int which = 0; which < 2; which++)
        for (int host = 0; host < 2; host++) {
            const double *rate = r->rate[which][host];
            for (int p = 0; p < PREDICTORS; p++)
                sim_find(out, rate[p], NAN, "tok/s", "%s, %s, %s", sessions[which].name,
                         hosts[host].name, predictors[p].name);
            sim_find(out, rate[HALF_WAITED] / rate[OFF], 0.5, "of no prefetch",
                     "%s, %s, half right, waited for", sessions[which].name, hosts[host].name);
        }
}

/* Returns a predictor's best speed on a host relative to no prediction, over both sessions. */
static double gain(const prefetch_rates *r, int host, int predictor)
{
    return fmax(r->rate[0][host][predictor] / r->rate[0][host][OFF],
                r->rate[1][host][predictor] / r->rate[1][host][OFF]);
}

static void judge_prefetch(const prefetch_rates *r, sim_findings *out)
{
    double coherent = r->rate[0][0][OFF] / r->rate[1][0][OFF];
    double previous = fmax(gain(r, 0, PREVIOUS), gain(r, 1, PREVIOUS));
    double waited = fmax(gain(r, 0, HALF_WAITED), gain(r, 1, HALF_WAITED));
    sim_claim_that(out, previous < 1.05,
                   "prefetching the previous set does not help: %.2f of the rate", previous);
    sim_claim_that(out, waited < 0.9,
                   "waiting for speculation that is half right costs much: %.2f of the rate",
                   waited);
    sim_claim_that(out, gain(r, 1, HALF_RIGHT) < 1,
                   "where the bus is the bottleneck, speculation behind demands costs too: %.2f",
                   gain(r, 1, HALF_RIGHT));
    sim_claim_that(out, coherent < 1.25,
                   "a coherent session is not much faster: %.2f of a diverse one's rate", coherent);
}

int sim_study_wisp_prefetch(bool brief, uint64_t seed, sim_findings *out)
{
    prefetch_rates r;
    int code = RUN_OK;
    for (int which = 0; which < 2 && !code; which++)
        code = run_session(which, brief, seed, &r);
    if (code)
        return code;
    sim_set(out, "machine h100-pcie5, qwen3-30b-a3b in BF16, %u of 128 experts a layer", TIGHT_CAP);
    sim_set(out, "eager host: %.2f ms a layer, as in wisp-table2", hosts[0].layer_ns / 1e6);
    for (int which = 0; which < 2; which++)
        sim_set(out, "%s: synthetic %s", sessions[which].name, sessions[which].routing);
    report_prefetch(&r, out);
    judge_prefetch(&r, out);
    return report_bus(&r, out);
}
