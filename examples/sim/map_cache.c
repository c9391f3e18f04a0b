/* Makes every decision by scanning every key. */
#include "sim/map_cache.h"

#include <stdlib.h>

int sim_map_cache_open(uint32_t keys, uint32_t capacity, sim_map_cache *out)
{
    *out = (sim_map_cache){.keys = keys,
                           .capacity = capacity,
                           .resident = calloc(keys, sizeof *out->resident),
                           .named = calloc(keys, sizeof *out->named),
                           .last = calloc(keys, sizeof *out->last),
                           .visits = calloc(keys, sizeof *out->visits),
                           .p = calloc(keys, sizeof *out->p)};
    return out->resident && out->named && out->last && out->visits && out->p ? 0 : 1;
}

void sim_map_cache_close(sim_map_cache *cache)
{
    free(cache->resident);
    free(cache->named);
    free(cache->last);
    free(cache->visits);
    free(cache->p);
}

void sim_map_cache_expect(sim_map_cache *cache, uint32_t key, float p)
{
    cache->p[key] = p;
}

/* Returns true if `a` is evicted before `b`. */
static bool goes_first(const sim_map_cache *cache, uint32_t a, uint32_t b, sim_map_policy policy)
{
    double kept_a = 0, kept_b = 0; /* higher: kept longer */
    if (policy == SIM_MAP_LFU) {
        kept_a = (double)cache->visits[a];
        kept_b = (double)cache->visits[b];
    } else if (policy == SIM_MAP_LIKELY) {
        kept_a = (double)cache->p[a] * (double)(cache->visits[a] + 1);
        kept_b = (double)cache->p[b] * (double)(cache->visits[b] + 1);
    }
    return kept_a != kept_b ? kept_a < kept_b : cache->last[a] < cache->last[b];
}

static void bring(sim_map_cache *cache, uint32_t key, sim_map_policy policy)
{
    uint32_t victim = UINT32_MAX;
    if (cache->resident[key])
        return;
    for (uint32_t k = 0; k < cache->keys && cache->used == cache->capacity; k++)
        if (cache->resident[k] && (victim == UINT32_MAX || goes_first(cache, k, victim, policy)))
            victim = k;
    if (victim != UINT32_MAX) {
        cache->resident[victim] = false;
        cache->used--;
    }
    cache->resident[key] = true;
    cache->used++;
}

void sim_map_cache_fetch(sim_map_cache *cache, uint32_t key, sim_map_policy policy)
{
    if (cache->resident[key])
        return;
    bring(cache, key, policy);
    cache->last[key] = ++cache->clock;
}

void sim_map_cache_use(sim_map_cache *cache, uint32_t key, sim_map_policy policy)
{
    bring(cache, key, policy);
    cache->visits[key]++;
    cache->last[key] = ++cache->clock;
}
