/* The output of --configure. */
#include <inttypes.h>
#include <stdio.h>

#include "common/json_out.h"
#include "sim/serve_rows.h"

#define TABLE_STEPS 8u /* experts per layer between two rows of the iso-VRAM table, of 128 */

/* Experts of each layer that so many expert units are. */
static double cap_of(const sim_serve_config *config, uint64_t expert_units)
{
    bool layered = config->stack.scope == MOEPAGE_SCOPE_LAYER;
    return (double)expert_units / (layered ? 1 : config->stack.shape->moe_layers);
}

static uint64_t kv_tokens(const sim_serve_config *config, uint64_t kv_units)
{
    return kv_units * config->stack.blocks_per_granule * config->stack.block_tokens;
}

/* Returns the bytes of one expert in every layer (s_e). */
static uint64_t cap_bytes(const sim_serve_config *config, const sim_configured *configured)
{
    bool layered = config->stack.scope == MOEPAGE_SCOPE_LAYER;
    return configured->bounds.expert_bytes * (layered ? 1 : config->stack.shape->moe_layers);
}

/* Returns the KV tokens beside a cap; 0 if the cap alone is too large. */
static uint64_t tokens_beside(const sim_serve_config *config, const sim_configured *configured,
                              uint64_t cap)
{
    uint64_t bytes = cap * cap_bytes(config, configured), budget = config->stack.arena_bytes;
    return bytes < budget ? (budget - bytes) / sim_shape_kv_token_bytes(config->stack.shape) : 0;
}

static uint64_t table_step(const sim_serve_config *config)
{
    uint64_t step = config->stack.shape->experts * TABLE_STEPS / 128;
    return step ? step : 1;
}

void sim_configured_table(const sim_serve_config *config, const sim_configured *c)
{
    const sim_shape *shape = config->stack.shape;
    uint64_t step = table_step(config), token = sim_shape_kv_token_bytes(shape);
    uint32_t longest = sim_jobs_longest(config->jobs);
    printf("%s on %s: %.3f GB for experts and KV\n\n", shape->name,
           config->stack.machine->profile.name, (double)config->stack.arena_bytes / 1e9);
    if (!c->feasible) {
        printf("No split has room for one layer's experts and for a sequence of %" PRIu32
               " tokens.\n\n",
               longest);
    } else {
        uint64_t tokens = kv_tokens(config, c->split.kv);
        printf("experts   %" PRIu64 " slots, %.2f of %" PRIu32 " in each of %" PRIu32
               " layers: %.3f GB\n",
               config->stack.scope == MOEPAGE_SCOPE_LAYER ? c->split.experts * shape->moe_layers
                                                          : c->split.experts,
               cap_of(config, c->split.experts), shape->experts, shape->moe_layers,
               (double)(c->split.experts * c->bounds.expert_bytes) / 1e9);
        printf("KV        %" PRIu64 " tokens: %" PRIu64 " bytes\n", tokens,
               c->split.kv * c->bounds.kv_bytes);
        printf("floor     %" PRIu64 " tokens, for what ran at once\n",
               kv_tokens(config, c->bounds.kv_floor));
        printf("costs     %.3f ms an expert's miss, %.3f ms a KV block's, after %" PRIu32
               " passes\n\n",
               c->expert_miss_ns * 1e-6, c->kv_miss_ns * 1e-6 / config->stack.blocks_per_granule,
               c->passes);
    }
    printf("At the same budget %" PRIu64 " experts of each layer fewer free %" PRIu64
           " KV tokens:\n\n%8s %12s %22s\n",
           step, step * cap_bytes(config, c) / token, "experts", "KV tokens", "sequences at once");
    for (uint64_t cap = step; cap <= shape->experts; cap *= 2)
        printf("%8" PRIu64 " %12" PRIu64 " %22.2f\n", cap, tokens_beside(config, c, cap),
               (double)tokens_beside(config, c, cap) / longest);
}

static json_t *table_json(const sim_serve_config *config, const sim_configured *c)
{
    json_t *table = json_array();
    uint64_t step = table_step(config);
    int failed = !table;
    for (uint64_t cap = step; cap <= config->stack.shape->experts && !failed; cap += step)
        failed = json_array_append_new(table,
                                       json_pack("{s:I, s:I}", "cap", (json_int_t)cap, "kv_tokens",
                                                 (json_int_t)tokens_beside(config, c, cap)));
    return put_or_null(failed, table);
}

json_t *sim_configured_json(const sim_serve_config *config, const sim_configured *c)
{
    uint64_t step = table_step(config), token = sim_shape_kv_token_bytes(config->stack.shape);
    json_t *table = table_json(config, c);
    return json_pack("{s:b, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f, s:I, s:{s:I, s:I}, s:o}",
                     "feasible", c->feasible, "budget_bytes", (json_int_t)config->stack.arena_bytes,
                     "expert_units", (json_int_t)c->split.experts, "cap",
                     cap_of(config, c->split.experts), "kv_bytes",
                     (json_int_t)(c->split.kv * c->bounds.kv_bytes), "kv_tokens",
                     (json_int_t)kv_tokens(config, c->split.kv), "floor_tokens",
                     (json_int_t)kv_tokens(config, c->bounds.kv_floor), "expert_miss_ns",
                     c->expert_miss_ns, "kv_block_miss_ns",
                     c->kv_miss_ns / config->stack.blocks_per_granule, "passes",
                     (json_int_t)c->passes, "frees", "caps", (json_int_t)step, "kv_tokens",
                     (json_int_t)(step * cap_bytes(config, c) / token), "iso_vram", table);
}
