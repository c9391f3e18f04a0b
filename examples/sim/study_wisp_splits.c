/* WiSP's measurements of splits: table 4, arms on a server, and table 6, a controller against the offline split. */
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/study_arms.h"
#include "sim/study_wisp.h"

#define MACHINE "h100-pcie5"
#define CONCURRENCY 4u
#define STEP_TOKENS 2048u /* the engine's default */

/* What is said of an arm; 0: nothing. */
typedef struct figures {
    double cap, kv_gib;          /* at the end */
    double ttft_s, tokens_per_s; /* medians */
    double turn_s;               /* median */
    double all_s;                /* until all jobs are done */
} figures;

/* A server with the paper's host and `cap` experts of every layer beside so much KV. What has left KV is computed
 * again, as by the paper's engine. */
static sim_serve_config server(const sim_bench *bench, double cap, double kv_gib,
                               const sim_jobs *jobs)
{
    sim_serve_config config = sim_bench_config(bench);
    config.stack.scope = MOEPAGE_SCOPE_LAYER;
    config.stack.step_tokens = STEP_TOKENS;
    config.stack.arena_bytes =
        (uint64_t)(cap * bench->shape.moe_layers * (double)bench->slot_bytes +
                   kv_gib * (double)SIM_GIB);
    config.layer_overhead_ns = SIM_WISP_HOST_NS + SIM_WISP_HOOK_NS;
    config.concurrency = CONCURRENCY;
    config.recompute = true;
    config.quiet = true;
    config.jobs = jobs;
    sim_fix_granule(&config.stack);
    return config;
}

/* A model, and the jobs of clients: both tables'. */
static int open_load(const char *model, const sim_closed_loop *load, uint64_t seed,
                     sim_bench *bench, sim_jobs *jobs, sim_findings *out)
{
    int code = sim_bench_open(MACHINE, model, 1, model, seed, bench);
    if (!code)
        code = sim_jobs_closed(load, jobs);
    if (!code)
        code = sim_jobs_bind(jobs, bench->source->n_requests, NULL, 0);
    if (!code)
        sim_set(out, "machine %s, %s in BF16, routing: synthetic, seed %u", MACHINE, model,
                (unsigned)seed);
    return code;
}

static figures look(const sim_bench *bench, const sim_result *r)
{
    return (figures){.cap = (double)r->last_slots / bench->shape.moe_layers,
                     .kv_gib = (double)(r->last_blocks * r->block_bytes) / (double)SIM_GIB,
                     .ttft_s = r->ttft_ns.p50 / 1e9,
                     .tokens_per_s = 1e9 / r->token_ns.p50,
                     .turn_s = r->job_ns.p50 / 1e9,
                     .all_s = (double)r->wall_ns / 1e9};
}

static double or_none(double figure)
{
    return figure > 0 ? figure : NAN;
}

static void report(const char *name, const figures *ours, const figures *paper, sim_findings *out)
{
    sim_find(out, ours->cap, or_none(paper->cap), "experts of a layer", "%s", name);
    sim_find(out, ours->kv_gib, or_none(paper->kv_gib), "GiB of KV", "%s", name);
    sim_find(out, ours->ttft_s, or_none(paper->ttft_s), "s to first token, median", "%s", name);
    sim_find(out, ours->tokens_per_s, or_none(paper->tokens_per_s), "tok/s of a turn, median", "%s",
             name);
    sim_find(out, ours->turn_s, or_none(paper->turn_s), "s a turn, median", "%s", name);
    sim_find(out, ours->all_s, or_none(paper->all_s), "s for all", "%s", name);
}

/* Reports an arm; of one that does not serve all jobs, why, and its times are infinite. */
static void report_run(const sim_bench *bench, const sim_serve_config *config, sim_study_arm arm,
                       const sim_arm_run *run, const figures *paper, figures *ours,
                       sim_findings *out)
{
    const char *name = sim_study_arm_name(arm);
    if (sim_study_arm_serves(config, run)) {
        *ours = look(bench, &run->result);
        report(name, ours, paper, out);
    } else {
        *ours = (figures){.ttft_s = INFINITY, .turn_s = INFINITY, .all_s = INFINITY};
        sim_study_arm_find(config, arm, run, NAN, "", name, out);
    }
}

static int run_arm(const sim_bench *bench, const sim_serve_config *config, sim_study_arm arm,
                   const mp_split *start, const figures *paper, figures *ours, sim_findings *out)
{
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    int code = sim_study_arm_run(config, arm, start, run);
    if (!code)
        report_run(bench, config, arm, run, paper, ours, out);
    sim_arm_run_free(run);
    free(run);
    return code;
}

/* ---- Table 4 ----------------------------------------------------------------------------- */

/* The paper's sessions are not published. Its arms' medians say that an answer has about 128 tokens ((turn - first
 * token) times tok/s is 120 to 138), and a model of 4096 tokens how long a session may become. */
#define SERVER_MODEL "olmoe-1b-7b"
#define SERVER_CAP 21.0
#define SERVER_KV_GIB 2.6
static const sim_closed_loop agents = {.clients = CONCURRENCY,
                                       .sessions = 4,
                                       .turns = 5,
                                       .prompt_tokens = 2700,
                                       .turn_tokens = 100,
                                       .output_tokens = 128};

static const figures table4[SIM_ARMS] = {
    [SIM_ARM_MV_WSA] = {21, 2.6, 2.9, 40.6, 6.3, 0},
    [SIM_ARM_HALF] = {18, 3.2, 2.9, 29.2, 7.0, 0},
};
static const figures table4_flux = {35, 0.5, 19.8, 56.2, 22.0, 0},
                     table4_offload = {0, 0, 21.3, 30.7, 25.5, 0};

/* Flux-prop as it starts: all bytes for experts, but KV for one of the longest sessions. */
static int run_flux_that_starts(const sim_bench *bench, const sim_serve_config *config,
                                figures *ours, sim_findings *out)
{
    static const sim_split_option all = {.kind = SIM_SPLIT_FIXED, .fraction = 1};
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    int code = sim_split_run(config, &all, run);
    if (!code && !sim_study_arm_serves(config, run))
        code = fail(RUN_FAILED, "experts and KV for one session do not serve all jobs");
    if (!code) {
        *ours = look(bench, &run->result);
        report("flux, KV for one session", ours, &table4_flux, out);
    }
    free(run);
    return code;
}

/* As few layers on the host as leave KV for one of the longest sessions: what such a server starts with. */
static int run_offload(const sim_bench *bench, const sim_serve_config *config, figures *ours,
                       sim_findings *out)
{
    sim_serve_config own = *config;
    uint64_t token = sim_shape_kv_token_bytes(&bench->shape);
    uint64_t kv = (sim_jobs_longest(config->jobs) + 2ull * config->stack.block_tokens) * token;
    own.stack.scope = MOEPAGE_SCOPE_GLOBAL;
    uint32_t layers = 0;
    do
        sim_wisp_offload(bench, layers, true, &own);
    while (own.stack.expert_slots * bench->slot_bytes + kv > own.stack.arena_bytes &&
           ++layers <= bench->shape.moe_layers);
    sim_result *result = calloc(1, sizeof *result);
    int code = result ? sim_serve(&own, NULL, NULL, result) : fail_memory();
    if (!code && result->jobs < config->jobs->n)
        code = fail(RUN_FAILED, "offloading serves %u of %u jobs", result->jobs, config->jobs->n);
    if (!code) {
        *ours = look(bench, result);
        report("offload", ours, &table4_offload, out);
    }
    free(result);
    return code;
}

static void judge_static(const figures *arms, const figures *flux, const figures *offload,
                         sim_findings *out)
{
    const figures *ours = &arms[SIM_ARM_MV_WSA], *half = &arms[SIM_ARM_HALF];
    double best = fmin(fmin(half->turn_s, flux->turn_s), offload->turn_s);
    sim_claim_that(out, ours->turn_s <= best,
                   "MV-WSA's turns are the shortest of the static arms': %.2f s, the next %.2f",
                   ours->turn_s, best);
    sim_claim_that(out, flux->tokens_per_s > ours->tokens_per_s && flux->ttft_s > 2 * ours->ttft_s,
                   "Flux-prop decodes fastest and waits longest: %.1f tok/s, first token after "
                   "%.1f s",
                   flux->tokens_per_s, flux->ttft_s);
    sim_claim_that(out, half->tokens_per_s < ours->tokens_per_s,
                   "50-50 decodes more slowly than MV-WSA: %.1f tok/s, %.1f", half->tokens_per_s,
                   ours->tokens_per_s);
    sim_claim_that(
        out, offload->turn_s > ours->turn_s && offload->tokens_per_s < ours->tokens_per_s,
        "offloading's turns are longer than MV-WSA's, and it decodes more slowly: %.2f s, "
        "%.1f tok/s",
        offload->turn_s, offload->tokens_per_s);
}

static void judge_online(const figures *arms, sim_findings *out)
{
    const figures *configured = &arms[SIM_ARM_MV_WSA];
    for (sim_study_arm arm = SIM_ARM_ONLINE; arm < SIM_ARMS; arm++)
        sim_claim_that(out, arms[arm].turn_s <= 1.1 * configured->turn_s,
                       "%s takes %.2f s a turn, at most 1.1 of MV-WSA's %.2f",
                       sim_study_arm_name(arm), arms[arm].turn_s, configured->turn_s);
}

static int run_table4(const sim_bench *bench, const sim_jobs *jobs, sim_findings *out)
{
    sim_serve_config config = server(bench, SERVER_CAP, SERVER_KV_GIB, jobs);
    figures arms[SIM_ARMS], flux, offload;
    int code = RUN_OK;
    for (sim_study_arm arm = 0; arm < SIM_ARMS && !code; arm++)
        code = run_arm(bench, &config, arm, NULL, &table4[arm], &arms[arm], out);
    if (!code)
        code = run_flux_that_starts(bench, &config, &flux, out);
    if (!code)
        code = run_offload(bench, &config, &offload, out);
    if (!code) {
        judge_static(arms, &flux, &offload, out);
        judge_online(arms, out);
    }
    return code;
}

int sim_study_wisp_table4(bool brief, uint64_t seed, sim_findings *out)
{
    sim_bench bench;
    sim_jobs jobs = {0};
    sim_closed_loop load = agents;
    load.sessions = brief ? 2 : load.sessions;
    int code = open_load(SERVER_MODEL, &load, seed, &bench, &jobs, out);
    if (!code) {
        sim_set(out,
                "%u clients, %u sessions each, of %u turns: a document of %u tokens, then %u a "
                "turn, answers of %u",
                load.clients, load.sessions, load.turns, load.prompt_tokens, load.turn_tokens,
                load.output_tokens);
        sim_set(out,
                "the bytes of the paper's MV-WSA: %.0f experts of a layer, %.1f GiB of KV; "
                "host as in wisp-table2",
                SERVER_CAP, SERVER_KV_GIB);
        sim_set(out, "online arms begin at an even split");
        code = run_table4(&bench, &jobs, out);
    }
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}

/* ---- Table 6 ----------------------------------------------------------------------------- */

/* Nor are these sessions published. 8 rounds of 200 tokens fit both arms' totals within 2 %; KV's peak in a round
 * follows from what the live arm leaves it, 1.84 GiB with a tenth of headroom: 4570 tokens of each of four. */
#define LIVE_MODEL "qwen3-30b-a3b"
#define FIXED_CAP 36.0
#define FIXED_KV_GIB 3.65
static const sim_closed_loop rounds = {
    .clients = CONCURRENCY, .sessions = 8, .turns = 1, .prompt_tokens = 4370, .output_tokens = 200};

static const figures table6_fixed = {FIXED_CAP, FIXED_KV_GIB, 40.35, 13.37, 0, 448.1},
                     table6_live = {40, 1.84, 31.51, 14.35, 0, 371.8}, none = {0};

static int run_fixed(const sim_bench *bench, const sim_serve_config *config, const mp_split *start,
                     figures *ours, sim_findings *out)
{
    sim_arm_run *run = calloc(1, sizeof *run);
    if (!run)
        return fail_memory();
    int code = sim_static_run(config, start, run);
    if (!code && !sim_study_arm_serves(config, run))
        code = fail(RUN_FAILED, "the paper's offline split does not serve all jobs");
    if (!code) {
        *ours = look(bench, &run->result);
        report("fixed, offline", ours, &table6_fixed, out);
    }
    free(run);
    return code;
}

static void judge_live(const figures *fixed, const figures *arms, sim_findings *out)
{
    const figures *live = &arms[SIM_ARM_DUAL_RESIZE];
    sim_find(out, live->all_s / fixed->all_s, table6_live.all_s / table6_fixed.all_s, "of its time",
             "dual-resize, to the fixed split");
    sim_claim_that(out, live->cap > fixed->cap && live->all_s < fixed->all_s,
                   "dual resize gives idle KV to experts and is faster: %.3f of the fixed "
                   "split's time",
                   live->all_s / fixed->all_s);
    for (sim_study_arm arm = SIM_ARM_ONLINE; arm < SIM_ARMS; arm++)
        sim_claim_that(out, arms[arm].all_s <= 1.02 * live->all_s,
                       "%s takes at most 1.02 of dual resize's time: %.3f", sim_study_arm_name(arm),
                       arms[arm].all_s / live->all_s);
}

static int run_table6(const sim_bench *bench, const sim_jobs *jobs, sim_findings *out)
{
    sim_serve_config config = server(bench, FIXED_CAP, FIXED_KV_GIB, jobs);
    figures fixed, arms[SIM_ARMS];
    mp_split_bounds bounds;
    mp_split start;
    int code = sim_split_bounds(&config, &bounds);
    if (!code && !mp_split_with_experts(&bounds, (uint64_t)FIXED_CAP, &start))
        code = fail(RUN_FAILED, "the budget has no room for the paper's offline split");
    if (!code)
        code = run_fixed(bench, &config, &start, &fixed, out);
    for (sim_study_arm arm = 0; arm < SIM_ARMS && !code; arm++)
        code = run_arm(bench, &config, arm, &start,
                       arm == SIM_ARM_DUAL_RESIZE ? &table6_live : &none, &arms[arm], out);
    if (!code)
        judge_live(&fixed, arms, out);
    return code;
}

int sim_study_wisp_table6(bool brief, uint64_t seed, sim_findings *out)
{
    sim_bench bench;
    sim_jobs jobs = {0};
    sim_closed_loop load = rounds;
    load.sessions = brief ? 2 : load.sessions;
    int code = open_load(LIVE_MODEL, &load, seed, &bench, &jobs, out);
    if (!code) {
        sim_set(out,
                "%u rounds of %u requests: prompts of %u tokens, answers of %u; host as in "
                "wisp-table2",
                load.sessions, load.clients, load.prompt_tokens, load.output_tokens);
        sim_set(out,
                "online arms begin at the paper's offline split: %.0f experts of a layer, "
                "%.2f GiB of KV",
                FIXED_CAP, FIXED_KV_GIB);
        code = run_table6(&bench, &jobs, out);
    }
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}
