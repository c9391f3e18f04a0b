/* The life of a cache: its tables, its part on each device, and what it reports. */
#include "base/alloc.h"
#include "base/status.h"
#include "cache/inside.h"
#include "transfer/setup.h"

/* ---- opening ---- */

moepage_status mp_cache_open(const mp_cache_setup *setup, mp_cache **out)
{
    mp_cache *cache = mp_alloc(sizeof *cache);
    if (!cache)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for an expert cache");
    cache->setup = *setup;
    cache->lock = setup->lock;
    cache->policy = setup->policy;
    cache->layers = setup->layers;
    cache->experts = setup->experts;
    cache->keys = setup->layers * setup->experts;
    cache->n_scopes = setup->per_layer ? setup->layers : setup->bundle->n_classes;
    cache->scan_percent = setup->scan_percent;
    cache->n_shards = setup->deal->n;
    cache->entry = mp_alloc_array(cache->keys, sizeof *cache->entry);
    cache->routed = mp_alloc_array(cache->experts, sizeof *cache->routed);
    cache->streams = mp_alloc_array(cache->layers, sizeof *cache->streams);
    cache->uses = mp_alloc_array(cache->keys, sizeof *cache->uses);
    cache->all_uses = mp_alloc_array(cache->layers, sizeof *cache->all_uses);
    cache->turns = mp_alloc_array(cache->layers, sizeof *cache->turns);
    cache->scope_of_layer = mp_alloc_array(cache->layers, sizeof *cache->scope_of_layer);
    cache->shards = mp_alloc_array(cache->n_shards, sizeof *cache->shards);
    if (!cache->entry || !cache->uses || !cache->all_uses || !cache->routed || !cache->streams ||
        !cache->turns || !cache->scope_of_layer || !cache->shards) {
        uint32_t keys = cache->keys;
        mp_cache_close(cache);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the map of %u experts", keys);
    }
    for (uint32_t key = 0; key < cache->keys; key++)
        atomic_init(&cache->entry[key], MP_NO_SLOT);
    for (uint32_t layer = 0; layer < cache->layers; layer++)
        cache->scope_of_layer[layer] =
            setup->per_layer ? layer : setup->bundle->class_of_layer[layer];
    *out = cache;
    return MOEPAGE_OK;
}

void mp_cache_set_owner(mp_cache *cache, void *owner)
{
    cache->owner = owner;
}

static moepage_status open_scopes(mp_shard *shard)
{
    const mp_cache *cache = shard->cache;
    const mp_bundle *bundle = cache->setup.bundle;
    const bool per_layer = cache->setup.per_layer;
    uint32_t policy_keys = per_layer ? cache->experts : cache->keys;
    shard->scopes = mp_alloc_array(cache->n_scopes, sizeof *shard->scopes);
    if (!shard->scopes)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u scopes", cache->n_scopes);
    for (uint32_t i = 0; i < cache->n_scopes; i++) {
        mp_scope *scope = &shard->scopes[i];
        scope->first_key = per_layer ? i * cache->experts : 0;
        scope->class = per_layer ? bundle->class_of_layer[i] : i;
        scope->layers = per_layer ? 1 : bundle->classes[i].layers;
        scope->members = scope->layers * mp_cache_members(cache, shard->device);
        atomic_init(&scope->capacity, mp_scope_capacity_in(shard, scope, shard->all));
        atomic_init(&scope->aim, mp_scope_capacity_in(shard, scope, shard->all));
        scope->policy_state = mp_alloc(cache->policy->state_bytes(policy_keys, cache->experts));
        if (!scope->policy_state)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the state of policy %s",
                           cache->policy->name);
        cache->policy->init(scope->policy_state, policy_keys, cache->experts);
    }
    return MOEPAGE_OK;
}

static moepage_status open_slots(mp_shard *shard, unsigned char *base)
{
    const mp_bundle *bundle = shard->cache->setup.bundle;
    bool complete = true;
    for (uint32_t c = 0; c < bundle->n_classes; c++) {
        uint32_t most = shard->max_slots / bundle->n_slots * bundle->classes[c].slots;
        shard->free[c].slots = mp_alloc_array(most, sizeof *shard->free[c].slots);
        complete = complete && shard->free[c].slots;
    }
    shard->address = mp_alloc_array(shard->max_slots, sizeof *shard->address);
    shard->words = mp_alloc_array(shard->max_slots, sizeof *shard->words);
    shard->slots = mp_alloc_array(shard->max_slots, sizeof *shard->slots);
    if (!complete || !shard->address || !shard->words || !shard->slots)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a table of %u slots", shard->max_slots);
    for (uint32_t s = 0; s < shard->max_slots; s++)
        shard->address[s] = base + mp_bundle_offset(bundle, s);
    mp_shard_restack(shard);
    return mp_window_open(shard);
}

moepage_status mp_cache_add_device(mp_cache *cache, const mp_shard_setup *setup)
{
    uint32_t device = 0;
    while (cache->shards[device].cache)
        device++;
    mp_shard *shard = &cache->shards[device];
    shard->cache = cache;
    shard->device = device;
    shard->transfer = setup->transfer;
    shard->all = shard->open = (mp_span){setup->first, setup->first + setup->slots};
    shard->max_slots = setup->most;
    moepage_status status = open_scopes(shard);
    if (!status)
        status = open_slots(shard, setup->base);
    return status ? status : mp_transfer_set_passages(shard->transfer, shard->max_slots);
}

static void close_shard(mp_shard *shard)
{
    if (!shard->cache)
        return;
    for (uint32_t i = 0; shard->scopes && i < shard->cache->n_scopes; i++)
        mp_free(shard->scopes[i].policy_state);
    mp_free(shard->scopes);
    mp_free(shard->address);
    mp_free(shard->words);
    mp_free(shard->slots);
    for (uint32_t c = 0; c < MP_MAX_LAYOUTS; c++)
        mp_free(shard->free[c].slots);
    mp_window_close(shard);
}

void mp_cache_close(mp_cache *cache)
{
    if (!cache)
        return;
    for (uint32_t d = 0; cache->shards && d < cache->n_shards; d++)
        close_shard(&cache->shards[d]);
    mp_free(cache->shards);
    mp_free(cache->entry);
    mp_free(cache->uses);
    mp_free(cache->all_uses);
    mp_free(cache->routed);
    mp_free(cache->streams);
    mp_free(cache->turns);
    mp_free(cache->scope_of_layer);
    mp_free(cache);
}

/* ---- what it reports ---- */

void mp_cache_lookup(const mp_cache *cache, uint32_t key, moepage_residency *out)
{
    uint32_t device = mp_deal_device(cache->setup.deal, key);
    uint32_t index = atomic_load(&cache->entry[key]);
    *out = (moepage_residency){.state = MOEPAGE_EXPERT_ABSENT, .slot = -1, .device = device};
    if (index == MP_NO_SLOT)
        return;
    mp_slot_view slot = mp_shard_view(&cache->shards[device], index);
    if (slot.key != key || (slot.state != MP_SLOT_LOADING && slot.state != MP_SLOT_RESIDENT))
        return;
    out->slot = mp_bundle_number(cache->setup.bundle, index);
    out->state = slot.state == MP_SLOT_RESIDENT ? MOEPAGE_EXPERT_RESIDENT : MOEPAGE_EXPERT_LOADING;
}

static void count_slots(mp_shard *shard, moepage_expert_pool_info *info)
{
    info->slots += shard->all.end - shard->all.first;
    mp_shard_settle_all(shard); /* loads that no plan waits for */
    for (uint32_t s = shard->all.first; s < shard->all.end; s++) {
        mp_slot_view slot = mp_shard_view(shard, s);
        info->resident += slot.state == MP_SLOT_RESIDENT;
        info->loading += slot.state == MP_SLOT_LOADING;
        info->pinned += shard->slots[s].pins > 0;
    }
}

void mp_cache_describe(mp_cache *cache, moepage_expert_pool_info *info)
{
    const mp_cache_counters *counters = &cache->counters;
    mp_cache_drain_touches(cache);
    info->hits += counters->hits;
    info->misses += counters->misses;
    info->late += counters->late;
    info->evictions += counters->evictions;
    info->failed_loads += counters->failed_loads; /* before count_slots settles more loads */
    info->prefetch_useful += counters->prefetch_useful;
    info->prefetch_late += counters->prefetch_late;
    info->prefetch_wasted += counters->prefetch_wasted;
    info->prefetch_useful_bytes += counters->useful_bytes - counters->late_bytes;
    info->prefetch_late_bytes += counters->late_bytes;
    info->prefetch_wasted_bytes += counters->wasted_bytes;
    for (uint32_t d = 0; d < cache->n_shards; d++)
        count_slots(&cache->shards[d], info);
}

void mp_cache_reset_counters(mp_cache *cache)
{
    cache->counters = (mp_cache_counters){0};
}

void mp_cache_set_watch(mp_cache *cache, struct mp_watch *watch)
{
    cache->watch = watch;
}

const mp_policy *mp_cache_policy(const mp_cache *cache)
{
    return cache->policy;
}

struct mp_watch *mp_cache_watch(const mp_cache *cache)
{
    return cache->watch;
}
