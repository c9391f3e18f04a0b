/* The configurator: profile, curves, costs, the best split. */
#include "sim/configure.h"

#include <stdlib.h>

#include "common/fail.h"

#define RUN_BYTES (256u << 10) /* size of a layer's blocks in a granule */
#define BLOCK_TOKENS 16u
#define MOST_PASSES 3u
#define GRID 256u

/* ---- Bounds ------------------------------------------------------------------------------ */

void sim_fix_granule(sim_stack_config *stack)
{
    if (!stack->block_tokens)
        stack->block_tokens = BLOCK_TOKENS;
    uint64_t layer = (uint64_t)stack->block_tokens * stack->shape->kv_token_bytes;
    uint32_t blocks = 1;
    while (layer && blocks * 2 * layer <= RUN_BYTES)
        blocks *= 2;
    stack->blocks_per_granule = blocks;
}

/* Returns the bytes of a block; a rank's share is rounded up to 64 bytes. */
static uint64_t block_bytes(const sim_stack_config *stack)
{
    uint64_t layer = (uint64_t)stack->block_tokens * stack->shape->kv_token_bytes;
    return (layer + 63) / 64 * 64 * (stack->shape->layers / stack->shape->attention_every);
}

uint64_t sim_kv_units(const sim_stack_config *stack, uint64_t tokens)
{
    return mp_split_floor(1, tokens, stack->block_tokens, stack->blocks_per_granule);
}

static uint32_t unit_slots(const sim_stack_config *stack)
{
    return stack->scope == MOEPAGE_SCOPE_LAYER ? stack->shape->moe_layers : 1;
}

int sim_split_bounds(const sim_serve_config *config, mp_split_bounds *out)
{
    const sim_stack_config *stack = &config->stack;
    uint64_t slot, slots = unit_slots(stack);
    int code = sim_slot_bytes(stack->shape, &slot);
    *out = (mp_split_bounds){
        .budget_bytes = stack->arena_bytes,
        .expert_bytes = slot * slots,
        .kv_bytes = block_bytes(stack) * stack->blocks_per_granule,
        .min_experts = stack->shape->top_k,
        .max_experts = (uint64_t)stack->shape->experts * stack->shape->moe_layers / slots,
        .kv_floor =
            sim_kv_units(stack, sim_jobs_longest(config->jobs) + 2ull * stack->block_tokens),
    };
    return code;
}

void sim_use_split(sim_serve_config *config, const mp_split *split)
{
    config->stack.expert_slots = split->experts * unit_slots(&config->stack);
}

/* ---- Profiling --------------------------------------------------------------------------- */

typedef struct profile {
    const sim_stack_config *stack;
    sim_configured *out;
    uint64_t peak_blocks; /* blocks of concurrent sequences */
    uint64_t failures;    /* failures of admission */
    sim_point seen, best;
    bool failed;
} profile;

/* Builds a curve of unit width from predicted misses at every size. */
static bool read_curve(const sim_stack *stack, uint32_t kv, uint64_t unit, uint64_t most,
                       mp_curve *curve)
{
    uint64_t *sizes = malloc((most + 1) * sizeof *sizes);
    double *misses = malloc((most + 2) * sizeof *misses);
    free(curve->bins);
    *curve = (mp_curve){.bins = misses};
    bool ok = sizes && misses;
    for (uint64_t i = 0; ok && i <= most; i++)
        sizes[i] = i * unit;
    ok = ok &&
         !moepage_controller_get_curve(stack->controller, kv, sizes, (uint32_t)most + 1, misses);
    free(sizes);
    if (!ok)
        return false;
    curve->n_bins = (uint32_t)most;
    curve->width = 1;
    curve->warm = curve->accesses = misses[0];
    for (uint64_t i = 0; i < most; i++)
        misses[i] -= misses[i + 1];
    for (uint64_t i = 0; kv && i <= most; i++) /* from blocks to units */
        misses[i] /= (double)unit;
    if (kv)
        curve->warm = curve->accesses = curve->warm / (double)unit;
    return true;
}

/* Estimates the cost of a KV unit's miss: for recomputation, the extra time per token of steps with
 * prompts; for swapping, both transfers. */
static double kv_unit_ns(const profile *p, const sim_serve_config *config, const sim_result *result)
{
    const sim_stack_config *stack = p->stack;
    uint64_t tokens = (uint64_t)stack->block_tokens * stack->blocks_per_granule;
    if (config->recompute)
        return result->prompt_token_ns * (double)tokens;
    double bytes = (double)p->out->bounds.kv_bytes;
    if (result->swapped_bytes)
        return 2 * bytes * (double)result->swap_ns / (double)result->swapped_bytes;
    const mp_sim_profile *machine = &stack->machine->profile;
    uint64_t copies = (uint64_t)stack->blocks_per_granule *
                      (stack->shape->layers / stack->shape->attention_every);
    return 2 * (bytes * 1e9 / (double)machine->bus_bytes_per_s +
                (double)(copies * machine->bus_latency_ns));
}

typedef struct look {
    profile *profile;
    const sim_serve_config *config;
} look;

static void inspect(void *user, const sim_stack *stack, const sim_result *result)
{
    look *l = user;
    profile *p = l->profile;
    sim_configured *out = p->out;
    uint64_t most_kv = out->bounds.budget_bytes / out->bounds.kv_bytes;
    p->failed =
        !read_curve(stack, 0, unit_slots(p->stack), out->bounds.max_experts, &out->experts) ||
        !read_curve(stack, 1, p->stack->blocks_per_granule, most_kv, &out->kv);
    out->expert_miss_ns =
        result->misses ? (double)result->all_stall_ns / (double)result->misses : 0;
    out->kv_miss_ns = kv_unit_ns(p, l->config, result);
    p->peak_blocks = result->peak_running_blocks;
    p->failures = sim_result_failures(result);
    p->seen.latency_ns = sim_result_latency_ns(result);
    p->seen.failures = p->failures;
}

static int run_profile(const sim_serve_config *config, const mp_split *at, profile *p)
{
    moepage_controller_config observer = {.struct_size = sizeof observer,
                                          .mode = MOEPAGE_CONTROL_OBSERVE,
                                          .burst_steps = UINT32_MAX,
                                          .decay_permille = 1000,
                                          .kv_miss = config->recompute ? MOEPAGE_KV_MISS_RECOMPUTE
                                                                       : MOEPAGE_KV_MISS_SWAP};
    sim_serve_config own = *config;
    own.stack.controller = &observer;
    sim_use_split(&own, at);
    look l = {.profile = p, .config = config};
    sim_result *result = malloc(sizeof *result);
    if (!result)
        return fail_memory();
    int code = sim_serve(&own, inspect, &l, result);
    free(result);
    return code ? code : p->failed ? fail_memory() : RUN_OK;
}

bool sim_point_better(const sim_point *a, const sim_point *b)
{
    if (!a->failures != !b->failures)
        return !a->failures;
    return a->latency_ns < b->latency_ns;
}

/* ---- Choosing ---------------------------------------------------------------------------- */

/* Returns the floor (eq. 6) with contexts as observed: those that ran at once, or more if they
 * failed. */
static uint64_t floor_seen(const sim_serve_config *config, const profile *p, const mp_split *at)
{
    uint64_t per_unit = config->stack.blocks_per_granule;
    uint64_t running = (p->peak_blocks + config->concurrency + per_unit - 1) / per_unit;
    if (p->failures && running <= at->kv)
        running = at->kv + at->kv / 16 + 1;
    return running > p->out->bounds.kv_floor ? running : p->out->bounds.kv_floor;
}

static bool choose(const sim_serve_config *config, profile *p, const mp_split *at, mp_split *next)
{
    sim_configured *out = p->out;
    mp_split_costs costs = {.experts = &out->experts,
                            .kv = &out->kv,
                            .expert_miss_ns = out->expert_miss_ns,
                            .kv_miss_ns = out->kv_miss_ns};
    mp_split_bounds bounds = out->bounds;
    bounds.kv_floor = floor_seen(config, p, at);
    if (!mp_split_configure(&bounds, &costs, GRID, next))
        return mp_split_configure(&out->bounds, &costs, GRID, next);
    out->bounds = bounds;
    return true;
}

/* Profiles and chooses repeatedly, from `at` on, until the choice is stable. */
static int converge(const sim_serve_config *config, mp_split at, profile *p)
{
    sim_configured *out = p->out;
    for (uint32_t pass = 0; pass < MOST_PASSES; pass++) {
        mp_split next;
        int code = run_profile(config, &at, p);
        if (code)
            return code;
        out->passes++;
        if (!out->feasible || sim_point_better(&p->seen, &p->best)) {
            p->best = p->seen;
            out->split = at;
            out->feasible = true;
        }
        if (!choose(config, p, &at, &next) || next.experts == at.experts)
            return RUN_OK;
        at = next;
    }
    return RUN_OK;
}

int sim_configure(const sim_serve_config *config, sim_configured *out)
{
    static const double starts[] = {0.5, 1.0};
    *out = (sim_configured){0};
    int code = sim_split_bounds(config, &out->bounds);
    profile p = {.stack = &config->stack, .out = out};
    for (size_t i = 0; i < sizeof starts / sizeof *starts && !code; i++) {
        mp_split start;
        if (mp_split_fixed(&out->bounds, starts[i], &start))
            code = converge(config, start, &p);
    }
    if (code)
        sim_configured_free(out);
    return code;
}

void sim_configured_free(sim_configured *configured)
{
    free(configured->experts.bins);
    free(configured->kv.bins);
    configured->experts.bins = configured->kv.bins = NULL;
}
