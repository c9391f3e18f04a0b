/* The systems that the papers compare with, as configurations of one stack. Each comment says what
 * is modelled and what is left out: all use this host's kernels, scheduler and predictors, so that
 * they differ only in the placement of weights and KV.
 *
 * Caches of experts get the whole budget except the admission floor. Predictors' accuracies are
 * assumptions, collected in one table. */
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "sim/arms.h"

#define OWN_PART 8 /* one layer in eight: the 12.5 % of vLLM-O and FluxMoE-H */
#define OWN_BUFFERS 2u
#define WINDOW_LAYERS 2u

/* A baseline's configuration under construction. */
typedef struct plan {
    sim_serve_config config;
    mp_split_bounds bounds;
    uint64_t layer_bytes; /* of one layer's experts */
    uint64_t layer_slots;
    bool feasible;
} plan;

/* Returns the slots that fit beside the floor. */
static uint64_t slots_that_fit(const plan *p)
{
    mp_split split;
    return mp_split_fixed(&p->bounds, 1.0, &split) ? split.experts : 0;
}

/* vLLM: all weights in memory, KV in the rest, swapped when it is full. Does not start if the
 * weights do not fit. */
static void plan_vllm(plan *p)
{
    p->config.stack.regime = MOEPAGE_REGIME_CACHE;
    p->config.stack.expert_slots = p->bounds.max_experts;
    p->config.warm_layers = p->config.stack.shape->moe_layers;
    p->feasible = slots_that_fit(p) == p->bounds.max_experts;
}

/* Makes the host load the last `n` layers whole through two buffers in the budget; the others
 * stay. */
static void keep_front(plan *p, uint32_t n, bool ahead)
{
    sim_stack_config *stack = &p->config.stack;
    uint64_t buffers = OWN_BUFFERS * p->layer_bytes;
    uint64_t kept = (stack->shape->moe_layers - n) * p->layer_slots;
    p->config.own_layers = n;
    p->config.own_ahead = ahead;
    stack->regime = MOEPAGE_REGIME_CACHE;
    if (stack->arena_bytes < buffers)
        return;
    stack->arena_bytes -= buffers;
    p->bounds.budget_bytes -= buffers;
    stack->expert_slots = kept > p->bounds.min_experts ? kept : p->bounds.min_experts;
    p->config.warm_layers = stack->shape->moe_layers - n;
    p->feasible = slots_that_fit(p) >= stack->expert_slots;
}

/* vLLM-O (FluxMoE §6.1): the first 87.5 % of the layers stay; each other layer crosses the bus
 * while the preceding one computes. */
static void plan_vllm_o(plan *p)
{
    keep_front(p, (p->config.stack.shape->moe_layers + OWN_PART - 1) / OWN_PART, true);
}

/* vLLM --cpu-offload-gb (WiSP's static offload): as many layers stay as fit, the others are loaded
 * whole on demand. Its pinned-memory reads from inside kernels are not modelled. */
static void plan_offload(plan *p)
{
    const plan before = *p;
    uint32_t layers = p->config.stack.shape->moe_layers;
    for (uint32_t own = 0; own <= layers && !p->feasible; own++) {
        *p = before;
        if (own)
            keep_front(p, own, false);
        else
            plan_vllm(p);
    }
}

/* DeepSpeed-Inference (FineMoE §6.1): no layer stays; a layer's experts are all loaded with it. */
static void plan_deepspeed(plan *p)
{
    keep_front(p, p->config.stack.shape->moe_layers, false);
}

/* Returns the compressed experts of each layer that fit beside a window of two dense layers and
 * KV's floor. */
static uint32_t compressed_that_fit(const plan *p, uint32_t layers)
{
    const sim_shape *shape = p->config.stack.shape;
    uint64_t window = WINDOW_LAYERS * p->layer_slots * p->bounds.expert_bytes;
    uint64_t taken = window + p->bounds.kv_floor * p->bounds.kv_bytes;
    uint64_t image = (uint64_t)((double)shape->expert_bytes * SIM_EXPH_RATIO) + 4096;
    if (taken >= p->bounds.budget_bytes)
        return 0;
    uint64_t fit = (p->bounds.budget_bytes - taken) / (image * layers);
    return fit < shape->experts ? (uint32_t)fit : shape->experts;
}

static void stream_compressed(plan *p)
{
    sim_stack_config *stack = &p->config.stack;
    stack->exph_ratio = SIM_EXPH_RATIO;
    stack->bus_form = MOEPAGE_FORM_DENSE;
    stack->regime = MOEPAGE_REGIME_STREAM;
    stack->expert_slots = WINDOW_LAYERS * p->layer_slots;
}

/* FluxMoE with x = 0: in every layer as many experts stay compressed as fit, the others stream from
 * the host, both through a window of two layers. Without its planner, for which see --split
 * planner. */
static void plan_fluxmoe(plan *p)
{
    stream_compressed(p);
    p->config.stack.compressed_experts = compressed_that_fit(p, p->config.stack.shape->moe_layers);
    p->feasible = slots_that_fit(p) >= p->config.stack.expert_slots;
}

/* FluxMoE-H: the first 87.5 % of the layers are compressed in device memory, the others are
 * entirely on the host. The pool keeps equally many of every layer, so it is lent the bytes of the
 * last layers' images, which it never reads. */
static void plan_fluxmoe_h(plan *p)
{
    const sim_shape *shape = p->config.stack.shape;
    sim_stack_config *stack = &p->config.stack;
    uint32_t own = (shape->moe_layers + OWN_PART - 1) / OWN_PART;
    stream_compressed(p);
    stack->compressed_experts = compressed_that_fit(p, shape->moe_layers - own);
    uint64_t image = (uint64_t)((double)shape->expert_bytes * SIM_EXPH_RATIO) + 4096;
    stack->arena_bytes += own * stack->compressed_experts * image;
    p->config.own_layers = own;
    p->config.own_ahead = true; /* into the window's buffers */
    p->feasible = stack->compressed_experts == shape->experts;
}

/* Configures a cache of experts in the whole budget except KV's floor, and hints. */
static void cache(plan *p, const char *policy, sim_hints hints)
{
    sim_stack_config *stack = &p->config.stack;
    stack->regime = MOEPAGE_REGIME_CACHE;
    stack->policy = policy;
    stack->expert_slots = slots_that_fit(p);
    stack->prefetch =
        hints.distance && !hints.synchronous ? MOEPAGE_PREFETCH_HINT : MOEPAGE_PREFETCH_OFF;
    p->config.hints = hints;
    p->feasible = stack->expert_slots > 0;
}

/* Mixtral-Offloading: LRU, the next layer's gate on this layer's hidden state; a layer waits for
 * its speculated experts (FineMoE §6.2). Its mixed quantisation is left out. */
static void plan_mixtral(plan *p)
{
    cache(p, "lru", (sim_hints){.distance = 1, .accuracy_permille = 850, .synchronous = true});
}

/* ProMoE: a learned predictor at a stride, asynchronous, early enough for loads to finish. */
static void plan_promoe(plan *p)
{
    cache(p, "lru", (sim_hints){.distance = 3, .accuracy_permille = 750});
}

/* MoE-Infinity: request-level activation counts, LFU; a layer waits for its prefetched experts. */
static void plan_infinity(plan *p)
{
    cache(p, "lfu-aged", (sim_hints){.distance = 1, .accuracy_permille = 600, .synchronous = true});
}

/* ExpertFlow: an adaptive horizon, asynchronous, and an accurate predictor; its batching of tokens
 * by route is left out. */
static void plan_expertflow(plan *p)
{
    cache(p, "lru", (sim_hints){.distance = 2, .accuracy_permille = 900});
}

static const struct {
    const char *name, *line;
    void (*plan)(plan *p);
} baselines[] = {
    {"vllm", "weights resident, KV swapped", plan_vllm},
    {"vllm-o", "the last 12.5 % of the layers streamed, one ahead", plan_vllm_o},
    {"offload", "as many layers as fit resident, the others on demand", plan_offload},
    {"deepspeed", "every layer on demand", plan_deepspeed},
    {"fluxmoe", "all experts compressed in memory as far as they fit, window of two layers",
     plan_fluxmoe},
    {"fluxmoe-h", "whole layers compressed or on the host", plan_fluxmoe_h},
    {"expertflow", "LRU, hints two layers ahead, 90 % right", plan_expertflow},
    {"mixtral-offloading", "LRU, one layer ahead, 85 % right, synchronous", plan_mixtral},
    {"promoe", "LRU, hints three layers ahead, 75 % right", plan_promoe},
    {"moe-infinity", "aged LFU, one layer ahead, 60 % right, synchronous", plan_infinity},
};

#define N_BASELINES (sizeof baselines / sizeof *baselines)

static size_t find(const char *name)
{
    size_t i = 0;
    while (i < N_BASELINES && strcmp(baselines[i].name, name) != 0)
        i++;
    return i;
}

bool sim_baseline_exists(const char *name)
{
    return find(name) < N_BASELINES;
}

void sim_baseline_list(FILE *out)
{
    for (size_t i = 0; i < N_BASELINES; i++)
        fprintf(out, "%-20s %s\n", baselines[i].name, baselines[i].line);
}

int sim_baseline_plan(const sim_serve_config *config, const char *name, uint32_t sequences,
                      sim_serve_config *out, bool *feasible)
{
    plan p = {.config = *config};
    size_t i = find(name);
    if (i == N_BASELINES)
        return fail(RUN_REFUSED, "no baseline %s: see --list baselines", name);
    int code = sim_split_bounds(config, &p.bounds);
    if (code)
        return code;
    p.bounds.kv_floor *= sequences;
    p.layer_slots = config->stack.shape->experts;
    p.layer_bytes = p.bounds.expert_bytes * p.layer_slots;
    p.config.quiet = true;
    p.config.recompute = false;
    baselines[i].plan(&p);
    *out = p.config;
    *feasible = p.feasible;
    return RUN_OK;
}

int sim_baseline_run(const sim_serve_config *config, const char *name, sim_arm_run *out)
{
    sim_serve_config own;
    *out = (sim_arm_run){0};
    int code = sim_baseline_plan(config, name, config->concurrency, &own, &out->feasible);
    if (code)
        return code;
    out->split.experts = own.stack.expert_slots;
    return out->feasible ? sim_serve(&own, NULL, NULL, &out->result) : RUN_OK;
}
