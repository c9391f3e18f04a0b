/* DynaExq's measurements (section 5.3): every expert low, the hottest ones high, and a cache of
 * high ones with prefetch, each with the same bytes; and how soon the high set follows a shift of
 * the hot set. */
#include <math.h>

#include "common/fail.h"
#include "sim/arms.h"
#include "sim/study_bench.h"

#define MACHINE "a6000"
#define STEP_TOKENS 2048u
#define PROMPT_TOKENS 512u
#define OUTPUT_TOKENS 128u
#define MOST_BATCH 32u
#define LEAST_JOBS 48u
#define LEAST_ROUNDS 4u
#define FULL_BATCH 4u /* prompts fill a step from this batch on */
#define INTERVAL_US 1000000u
#define TRANSITIONS 32u

/* FLOW is the paper's baseline; OURS, at the largest batch, is this library's best without a second
 * version. */
enum { LOW, DYNAMIC, FLOW, OURS, ARMS };
static const char *const arm_names[ARMS] = {"static low", "DynaExq", "expertflow", "cache, auto"};

static const uint32_t batches[] = {1, 2, 4, 8, 16, 32};

#define N_BATCHES (sizeof batches / sizeof *batches)

static const struct {
    const char *name, *pair;
    uint32_t hi_form, lo_form;
    uint32_t percent; /* of device memory available to the server */
} models[] = {
    {"qwen3-30b-a3b", "BF16 and int4", MOEPAGE_FORM_DENSE, MOEPAGE_FORM_INT4, 90},
    {"qwen3-next-80b", "int4 and int2", MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2, 70},
};

#define N_MODELS (sizeof models / sizeof *models)

/* ---- Budgets ------------------------------------------------------------------------------- */

/* One model and the memory for its experts. */
typedef struct rig {
    uint32_t model;
    sim_bench bench;
    sim_shape slots; /* the model with experts of the high version's size, for a cache of them */
    uint64_t arena_bytes;
    moepage_precision_config precision;
    uint64_t hi_bytes, lo_bytes; /* of an expert */
    uint64_t all_low_bytes;
} rig;

/* Narrows the experts. The pool caches experts in the model's form, so narrower experts stand for
 * integer ones: the same bytes, and less arithmetic, which favours the cache. */
static void narrow(sim_shape *shape, uint64_t bytes)
{
    shape->expert_intermediate = (uint32_t)(bytes / (6ull * shape->hidden));
    shape->expert_bytes = 6ull * shape->hidden * shape->expert_intermediate;
}

/* Computes the arena's bytes with n high versions per layer. */
static moepage_status arena_with(const rig *r, struct moepage_model *model, uint32_t n,
                                 uint64_t *bytes)
{
    moepage_precision_config precision = r->precision;
    moepage_expert_pool_config pool = {.struct_size = sizeof pool, .precision = &precision};
    uint64_t staging;
    precision.hi_experts = n;
    return moepage_expert_pool_sizes(model, &pool, 1, &staging, bytes);
}

static int weigh(rig *r)
{
    mp_phantom_shape phantom = sim_shape_phantom(&r->bench.shape, 0);
    struct moepage_model *model;
    uint64_t one = 0, two = 0;
    moepage_status status = mp_model_open_phantom(&phantom, &model);
    if (status)
        return fail_library(RUN_FAILED, r->bench.shape.name);
    r->lo_bytes = mp_model_most_bytes(model, r->precision.lo_form);
    status = arena_with(r, model, 1, &one);
    if (!status)
        status = arena_with(r, model, 2, &two);
    moepage_model_close(model);
    if (status)
        return fail_library(RUN_FAILED, r->bench.shape.name);
    r->hi_bytes = (two - one) / r->bench.shape.moe_layers;
    r->all_low_bytes = one - (two - one);
    return RUN_OK;
}

/* Computes how many experts of a layer can be high in `bytes` beside all low versions. */
static int count_high(const rig *r, uint64_t bytes, uint32_t *n_high)
{
    uint64_t layer = r->bench.shape.moe_layers * r->hi_bytes;
    if (bytes < r->all_low_bytes + layer)
        return fail(RUN_REFUSED, "%s: %.1f GB hold no low versions and a high one per layer",
                    r->bench.shape.name, (double)bytes / SIM_GB);
    uint64_t high = (bytes - r->all_low_bytes) / layer;
    *n_high = high < r->bench.shape.experts ? (uint32_t)high : r->bench.shape.experts;
    return RUN_OK;
}

static int open_rig(uint32_t model, const char *routing, uint64_t seed, rig *out)
{
    *out = (rig){.model = model,
                 .precision = {.struct_size = sizeof out->precision,
                               .serve = MOEPAGE_SERVE_VERSIONS,
                               .hi_form = models[model].hi_form,
                               .lo_form = models[model].lo_form,
                               .interval_us = INTERVAL_US,
                               .transitions = TRANSITIONS}};
    int code = sim_bench_open(MACHINE, models[model].name, 1, routing, seed, &out->bench);
    if (code)
        return code;
    uint64_t memory = out->bench.machine.profile.memory_bytes / 100 * models[model].percent;
    out->arena_bytes = memory - sim_shape_dense_bytes(&out->bench.shape);
    out->slots = out->bench.shape;
    code = weigh(out);
    if (!code && models[model].hi_form != MOEPAGE_FORM_DENSE)
        narrow(&out->slots, out->hi_bytes);
    return code;
}

/* ---- Arms ---------------------------------------------------------------------------------- */

/* A run's figures at its end. */
typedef struct outcome {
    sim_result result;
    moepage_expert_pool_info pool;
    double tokens_per_s;
} outcome;

static void look(void *user, const sim_stack *stack, const sim_result *result)
{
    outcome *out = user;
    (void)result;
    out->pool = (moepage_expert_pool_info){.struct_size = sizeof out->pool};
    if (moepage_expert_pool_get_info(stack->experts, &out->pool))
        out->pool = (moepage_expert_pool_info){0};
}

/* Configures an arm. A cache of high experts gets all of the arena that KV does not need; the other
 * arms' experts get the same bytes. Before the first decision nothing is high, so static low is an
 * endless interval. */
static int arrange(const rig *r, uint32_t arm, sim_serve_config *config,
                   moepage_precision_config *precision)
{
    sim_serve_config cached = *config, planned;
    bool feasible;
    uint64_t slot;
    uint32_t n_high = 0;
    cached.stack.shape = &r->slots;
    int code =
        sim_baseline_plan(&cached, arm_names[FLOW], config->concurrency, &planned, &feasible);
    if (!code)
        code = sim_slot_bytes(&r->slots, &slot);
    if (code || !feasible)
        return code ? code : fail(RUN_REFUSED, "%s: no room for a cache", r->slots.name);
    if (arm == FLOW || arm == OURS) {
        *config = planned;
        config->stack.policy = arm == OURS ? "cycle" : config->stack.policy;
        config->stack.regime = arm == OURS ? MOEPAGE_REGIME_AUTO : config->stack.regime;
        return RUN_OK;
    }
    code = count_high(r, planned.stack.expert_slots * slot, &n_high);
    *precision = r->precision;
    precision->hi_experts = arm == LOW ? 1 : n_high;
    precision->interval_us = arm == LOW ? UINT32_MAX : precision->interval_us;
    config->stack.precision = precision;
    return code;
}

static sim_serve_config base_config(const rig *r, uint32_t batch, const sim_jobs *jobs)
{
    sim_serve_config config = sim_bench_config(&r->bench);
    config.stack.arena_bytes = r->arena_bytes;
    config.stack.step_tokens = STEP_TOKENS;
    config.stack.max_sequences = batch;
    config.concurrency = batch;
    config.jobs = jobs;
    return config;
}

static int run_arm(const rig *r, uint32_t arm, uint32_t batch, const sim_jobs *jobs,
                   uint32_t first_jobs, outcome *out)
{
    moepage_precision_config precision;
    sim_serve_config config = base_config(r, batch, jobs);
    config.first_jobs = first_jobs;
    int code = arrange(r, arm, &config, &precision);
    return code ? code : sim_serve(&config, look, out, &out->result);
}

/* Makes `batch` clients, each sending its next request as soon as it has an answer, and each with
 * its own routing. */
static int ask(uint32_t batch, uint32_t rounds, uint32_t prompt, uint32_t output, sim_jobs *jobs)
{
    sim_closed_loop loop = {.clients = batch,
                            .sessions = rounds,
                            .turns = 1,
                            .prompt_tokens = prompt,
                            .output_tokens = output};
    int code = sim_jobs_closed(&loop, jobs);
    return code ? code : sim_jobs_bind(jobs, jobs->n, NULL, 0);
}

/* ---- Over batches -------------------------------------------------------------------------- */

typedef struct sweep {
    uint32_t n; /* batches */
    uint32_t batches[N_BATCHES];
    outcome arms[N_BATCHES][ARMS];
} sweep;

static int run_batch(const rig *r, bool brief, uint32_t batch, outcome *arms)
{
    sim_jobs jobs = {0};
    uint32_t least = brief ? 2 : LEAST_ROUNDS, rounds = LEAST_JOBS / batch;
    uint32_t n_arms = brief || batch < MOST_BATCH ? OURS : ARMS;
    rounds = brief || rounds < least ? least : rounds;
    int code = ask(batch, rounds, brief ? 128 : PROMPT_TOKENS, brief ? 24 : OUTPUT_TOKENS, &jobs);
    for (uint32_t arm = 0; arm < n_arms && !code; arm++) {
        code = run_arm(r, arm, batch, &jobs, jobs.n / 2, &arms[arm]);
        /* An answered client asks again, so `batch` are served at any time (Little). */
        if (!code)
            arms[arm].tokens_per_s =
                batch * jobs.jobs[0].output_tokens / arms[arm].result.job_ns.mean * 1e9;
    }
    sim_jobs_free(&jobs);
    return code;
}

static int run_sweep(const rig *r, bool brief, sweep *out)
{
    int code = RUN_OK;
    *out = (sweep){0};
    for (size_t b = brief ? N_BATCHES - 1 : 0; b < N_BATCHES && !code; b++) {
        out->batches[out->n] = batches[b];
        code = run_batch(r, brief, batches[b], out->arms[out->n++]);
    }
    return code;
}

static void report_arm(const char *model, uint32_t arm, uint32_t batch, const outcome *o,
                       sim_findings *out)
{
    const struct {
        const char *what;
        double value;
    } figures[] = {
        {"tok/s", o->tokens_per_s},
        {"TTFT, ms, mean", o->result.ttft_ns.mean / 1e6},
        {"TTFT, ms, P99", o->result.ttft_ns.p99 / 1e6},
        {"TPOT, ms, mean", o->result.token_ns.mean / 1e6},
        {"TPOT, ms, P99", o->result.token_ns.p99 / 1e6},
        {"request, s, mean", o->result.job_ns.mean / 1e9},
        {"request, s, P99", o->result.job_ns.p99 / 1e9},
    };
    uint32_t n = arm == OURS ? 1 : sizeof figures / sizeof *figures;
    for (uint32_t i = 0; i < n; i++)
        sim_find(out, figures[i].value, NAN, figures[i].what, "%s, batch %u, %s", model, batch,
                 arm_names[arm]);
}

/* Returns how much longer a DynaExq decode step is than a static low one plus the time to read the
 * additional bytes of high versions: 1 if transitions cost nothing. */
static double beyond_bytes(const rig *r, uint32_t batch, const outcome *arms)
{
    const sim_result *low = &arms[LOW].result, *own = &arms[DYNAMIC].result;
    double more = (double)(r->hi_bytes - r->lo_bytes) /
                  (double)r->bench.machine.profile.memory_bytes_per_s * 1e9;
    double low_ns = (double)low->decode[batch].ns / (double)low->decode[batch].steps;
    double own_ns = (double)own->decode[batch].ns / (double)own->decode[batch].steps;
    double high = (double)own->decode[batch].high / (double)own->decode[batch].steps;
    return own_ns / (low_ns + high * more);
}

static void report_batch(const rig *r, uint32_t batch, const outcome *arms, sim_findings *out)
{
    const char *model = models[r->model].name;
    const outcome *low = &arms[LOW], *own = &arms[DYNAMIC];
    for (uint32_t arm = 0; arm < ARMS && arms[arm].result.starts; arm++)
        report_arm(model, arm, batch, &arms[arm], out);
    sim_find(out, own->tokens_per_s / arms[FLOW].tokens_per_s, batch == MOST_BATCH ? 2.73 : NAN,
             "times expertflow's tok/s", "%s, batch %u, DynaExq", model, batch);
    sim_find(out, own->tokens_per_s / low->tokens_per_s, NAN, "of static low's tok/s",
             "%s, batch %u, DynaExq", model, batch);
    sim_find(out, own->result.ttft_ns.mean / low->result.ttft_ns.mean, NAN, "of static low's TTFT",
             "%s, batch %u, DynaExq", model, batch);
    sim_find(out, beyond_bytes(r, batch, arms), NAN, "of its bytes' decode step",
             "%s, batch %u, DynaExq", model, batch);
    sim_find(out, 100 * (1 - (double)own->result.low_rows / (double)own->result.rows), NAN,
             "% of choices served high", "%s, batch %u, DynaExq", model, batch);
}

/* Sums everything that a step could have waited for. */
static uint64_t waits(const outcome *o)
{
    return o->result.all_stall_ns + o->result.misses + o->result.late + o->pool.demand_bytes;
}

static void judge_sweep(const rig *r, const sweep *s, sim_findings *out)
{
    uint64_t waited = 0, promotions = 0, failed = 0;
    double worst = 0, first = 0;
    const outcome *last = s->arms[s->n - 1];
    for (uint32_t b = 0; b < s->n; b++) {
        const outcome *own = &s->arms[b][DYNAMIC];
        waited += waits(own);
        promotions += own->pool.promotions;
        failed += own->pool.transitions_failed;
        worst = fmax(worst, beyond_bytes(r, s->batches[b], s->arms[b]));
        if (s->batches[b] >= FULL_BATCH)
            first = fmax(first, own->result.ttft_ns.mean / s->arms[b][LOW].result.ttft_ns.mean);
    }
    double ratio = last[DYNAMIC].tokens_per_s / last[FLOW].tokens_per_s;
    sim_claim_that(out, ratio >= 2.7, "%s: %.2f times expertflow's rate at batch %u, at least 2.7",
                   models[r->model].name, ratio, s->batches[s->n - 1]);
    sim_claim_that(out, waited == 0 && failed == 0 && promotions > 0,
                   "%s: no step waited, with %llu promotions: ns of stalls, misses, late arrivals "
                   "and bytes on demand are %llu",
                   models[r->model].name, (unsigned long long)promotions,
                   (unsigned long long)waited);
    sim_claim_that(out, worst <= 1.1,
                   "%s: a decode step takes at most %.3f of static low's and reading what high "
                   "versions have more",
                   models[r->model].name, worst);
    sim_claim_that(out, first <= 1.1,
                   "%s: the first token takes at most %.3f of static low's from batch %u on",
                   models[r->model].name, first, FULL_BATCH);
}

/* ---- After a shift ------------------------------------------------------------------------- */

#define SHIFT_BATCH 16u
#define SHIFT_PROMPT 64u
#define SHIFT_SAMPLE 4u
#define INTERVALS 10u

typedef struct shift {
    double before;           /* fraction of choices served high in the last intervals before */
    double after[INTERVALS]; /* interval by interval */
    uint32_t back;           /* intervals until it was again 95 % of `before`; 0 = never */
} shift;

/* Returns the fraction of choices between two moments that were served high. */
static double served_high(const sim_result *result, uint64_t from_ns, uint64_t to_ns)
{
    const sim_serve_sample *s = result->samples;
    uint32_t a = 0, b = 0;
    while (a + 1 < result->n_samples && s[a].ns < from_ns)
        a++;
    while (b + 1 < result->n_samples && s[b].ns < to_ns)
        b++;
    if (a == b)
        return NAN;
    return 1 - (double)(s[b].low_rows - s[a].low_rows) / (double)(s[b].rows - s[a].rows);
}

static void measure_shift(const sim_result *result, uint32_t sample, shift *out)
{
    const uint64_t interval = INTERVAL_US * 1000ull, at = result->samples[sample].ns;
    *out = (shift){.before = served_high(result, at - 3 * interval, at)};
    for (uint32_t i = 0; i < INTERVALS; i++) {
        out->after[i] = served_high(result, at + i * interval, at + (i + 1) * interval);
        if (!out->back && out->after[i] >= 0.95 * out->before)
            out->back = i + 1;
    }
}

/* Prompts take one step; after `steps` decoded tokens the hot set moves for all sequences at
 * once. */
static int run_shift(uint32_t model, uint32_t steps, uint64_t seed, shift *out, uint64_t *waited)
{
    char routing[128];
    rig r;
    sim_jobs jobs = {0};
    static outcome o;
    uint32_t moves = SHIFT_PROMPT + steps - 1;
    snprintf(routing, sizeof routing, "%s:shift-tokens=%u", models[model].name, moves);
    int code = open_rig(model, routing, seed, &r);
    if (!code)
        code = ask(SHIFT_BATCH, 1, SHIFT_PROMPT, 2 * steps - 2, &jobs);
    if (!code) {
        moepage_precision_config precision;
        sim_serve_config config = base_config(&r, SHIFT_BATCH, &jobs);
        config.sample_steps = SHIFT_SAMPLE;
        code = arrange(&r, DYNAMIC, &config, &precision);
        if (!code)
            code = sim_serve(&config, look, &o, &o.result);
    }
    if (!code) {
        measure_shift(&o.result, steps / SHIFT_SAMPLE - 1, out);
        *waited = waits(&o);
    }
    sim_jobs_free(&jobs);
    sim_bench_close(&r.bench);
    return code;
}

static int study_shift(uint32_t model, bool brief, uint64_t seed, sim_findings *out)
{
    shift s;
    uint64_t waited;
    const char *name = models[model].name;
    int code = run_shift(model, brief ? 320 : 640, seed, &s, &waited);
    if (code)
        return code;
    sim_find(out, 100 * s.before, NAN, "% of choices served high", "%s, before a shift", name);
    for (uint32_t i = 0; i < INTERVALS; i++)
        sim_find(out, 100 * s.after[i], NAN, "% of choices served high", "%s, interval %u after it",
                 name, i + 1);
    sim_claim_that(
        out, s.after[0] < 0.95 * s.before && s.back && waited == 0,
        "%s: a shift takes the choices served high from %.1f to %.1f %%; 95 %% of the former "
        "are back in interval %u after it",
        name, 100 * s.before, 100 * s.after[0], s.back);
    return RUN_OK;
}

/* ---- The study ----------------------------------------------------------------------------- */

static int study_model(uint32_t model, bool brief, uint64_t seed, sim_findings *out)
{
    static sweep s;
    rig r;
    int code = open_rig(model, models[model].name, seed, &r);
    if (!code) {
        sim_set(out, "%s: %s, %.1f GB for experts and KV, low versions %.1f GB of it",
                models[model].name, models[model].pair, (double)r.arena_bytes / SIM_GB,
                (double)r.all_low_bytes / SIM_GB);
        code = run_sweep(&r, brief, &s);
    }
    for (uint32_t b = 0; b < s.n && !code; b++)
        report_batch(&r, s.batches[b], s.arms[b], out);
    if (!code) {
        judge_sweep(&r, &s, out);
        code = study_shift(model, brief, seed, out);
    }
    sim_bench_close(&r.bench);
    return code;
}

int sim_study_precision(bool brief, uint64_t seed, sim_findings *out)
{
    int code = RUN_OK;
    sim_set(out, "machine " MACHINE ", clients that ask again when answered: %u tokens, %u back",
            PROMPT_TOKENS, OUTPUT_TOKENS);
    sim_set(out, "the first half of the requests is not measured; T_u %u ms, %u swaps at once",
            INTERVAL_US / 1000, TRANSITIONS);
    sim_set(out, "expertflow: LRU of high versions, hints two layers ahead, 90 %% right");
    sim_set(out, "cache, auto: the same bytes and hints, policy cycle, regime auto");
    sim_set(out, "the paper: 1.42 to 2.73 times expertflow's rate over batches and models");
    for (uint32_t m = 0; m < (brief ? 1 : N_MODELS) && !code; m++)
        code = study_model(m, brief, seed, out);
    return code;
}
