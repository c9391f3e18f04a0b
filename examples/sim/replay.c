/* A cache that calls its policy as a pool does, and nothing more. */
#include "sim/replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "policy/policy.h"
#include "sim/belady.h"

typedef struct cache {
    const mp_policy *policy;
    uint32_t scopes, scope_keys; /* keys compete within runs of scope_keys */
    uint64_t capacity;           /* of a scope */
    uint64_t *used;              /* [scopes] */
    unsigned char *states;       /* [scopes][state_bytes] */
    uint64_t state_bytes;
    uint64_t now;        /* number of the current set, from 1 */
    uint64_t *served;    /* [scopes * scope_keys] the last set that contained each key, 0 = none */
    unsigned char *here; /* [scopes * scope_keys] resident */
    uint32_t *set;       /* [top_k] the current set, as keys of its scope */
} cache;

typedef struct asking {
    const cache *cache;
    uint32_t first_key;
} asking;

static bool may_evict(void *ctx, uint32_t key)
{
    const asking *a = ctx;
    return a->cache->served[a->first_key + key] != a->cache->now;
}

static void cache_close(cache *c)
{
    free(c->used);
    free(c->states);
    free(c->served);
    free(c->here);
    free(c->set);
}

static int cache_open(cache *c, const sim_trace *trace, const sim_replay_config *config)
{
    const sim_source *source = &trace->source;
    bool by_layer = config->scope == SIM_SCOPE_LAYER;
    uint64_t keys = (uint64_t)source->layers * source->experts;
    *c =
        (cache){.policy = !strcmp(config->policy, sim_belady.name) ? &sim_belady
                                                                   : mp_policy_find(config->policy),
                .scopes = by_layer ? source->layers : 1,
                .scope_keys = (uint32_t)(by_layer ? source->experts : keys)};
    c->capacity = config->capacity / c->scopes;
    uint64_t least = config->access == SIM_ACCESS_LAYER ? source->top_k : 1;
    if (!c->policy)
        return fail(RUN_REFUSED, "--policy %s: see --list policies", config->policy);
    if (c->capacity < least)
        return fail(RUN_REFUSED,
                    "--capacity %" PRIu64 ": %s needs %" PRIu64 " experts, %" PRIu64
                    " at least in all",
                    config->capacity, by_layer ? "each layer" : "the cache", least,
                    least * c->scopes);
    c->state_bytes = c->policy->state_bytes(c->scope_keys, source->experts);
    c->used = calloc(c->scopes, sizeof *c->used);
    c->states = malloc(c->scopes * c->state_bytes);
    c->served = calloc(keys, sizeof *c->served);
    c->here = calloc(keys, 1);
    c->set = malloc(source->top_k * sizeof *c->set);
    if (!c->used || !c->states || !c->served || !c->here || !c->set)
        return fail_memory();
    for (uint32_t i = 0; i < c->scopes; i++)
        c->policy->init(c->states + i * c->state_bytes, c->scope_keys, source->experts);
    return RUN_OK;
}

static void evict_for(cache *c, uint32_t scope, uint32_t missing)
{
    asking ask = {c, scope * c->scope_keys};
    void *state = c->states + scope * c->state_bytes;
    for (; c->used[scope] + missing > c->capacity; c->used[scope]--) {
        uint32_t victim = c->policy->victim(state, may_evict, &ask);
        c->policy->remove(state, victim);
        c->here[ask.first_key + victim] = 0;
    }
}

/* Serves a set of one layer. `next`: the members' next uses, for belady. */
static void serve(cache *c, uint32_t first_of_layer, const uint16_t *ids, uint32_t n,
                  const uint32_t *next, sim_replay_result *out)
{
    uint32_t scope = first_of_layer / c->scope_keys, missing = 0;
    uint32_t base = first_of_layer - scope * c->scope_keys; /* of the layer within its scope */
    void *state = c->states + scope * c->state_bytes;
    c->now++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = first_of_layer + ids[i];
        missing += !c->here[key];
        out->first += c->served[key] == 0;
        c->served[key] = c->now;
        c->set[i] = base + ids[i];
    }
    out->accesses += n;
    out->misses += missing;
    if (c->policy->route)
        c->policy->route(state, c->set, n);
    evict_for(c, scope, missing);
    c->used[scope] += missing;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = base + ids[i];
        if (next)
            sim_belady_expect(state, key, next[i]);
        if (c->here[first_of_layer + ids[i]])
            c->policy->touch(state, key);
        else
            c->policy->insert(state, key);
        c->here[first_of_layer + ids[i]] = 1;
    }
}

static int replay(const sim_trace *trace, const sim_replay_config *config, const uint32_t *next,
                  sim_replay_result *out)
{
    const sim_source *source = &trace->source;
    uint32_t n = config->access == SIM_ACCESS_LAYER ? source->top_k : 1;
    uint64_t sets = trace->rows * source->layers * source->top_k / n;
    cache c;
    *out = (sim_replay_result){0};
    int code = cache_open(&c, trace, config);
    uint64_t first = config->first_counted * source->layers * source->top_k / n;
    for (uint64_t i = 0; i < sets && !code; i++) {
        uint64_t at = i * n;
        if (i == first)
            *out = (sim_replay_result){0};
        uint32_t layer = (uint32_t)(at / source->top_k % source->layers);
        serve(&c, layer * source->experts, trace->ids + at, n, next ? next + at : NULL, out);
    }
    cache_close(&c);
    return code;
}

int sim_replay(const sim_trace *trace, const sim_replay_config *config, sim_replay_result *out)
{
    uint32_t *next = NULL;
    if (!strcmp(config->policy, sim_belady.name)) {
        next = sim_next_uses(trace);
        if (!next)
            return RUN_REFUSED;
    }
    int code = replay(trace, config, next, out);
    free(next);
    return code;
}

int sim_replay_all(const sim_trace *trace, const sim_options *options, sim_replay_row *rows)
{
    int code = RUN_OK;
    for (uint32_t p = 0; p < options->policies.n && !code; p++)
        for (uint32_t i = 0; i < options->capacities.n && !code; i++, rows++) {
            rows->config = (sim_replay_config){.policy = options->policies.words[p],
                                               .capacity = options->capacities.values[i],
                                               .scope = options->scope,
                                               .access = options->access};
            code = sim_replay(trace, &rows->config, &rows->result);
        }
    return code;
}
