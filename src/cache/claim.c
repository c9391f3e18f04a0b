/* Claims: choosing the expert that gives way to another, and giving an absent one a slot and a
 * source. The lock is held throughout. */
#include "cache/inside.h"

/* How far an eviction may reach among the experts that the policy ranks: those that streaming
 * layers have in excess of what they keep; these, and all of layers that do not stream; or all. */
typedef enum mp_reach { MP_REACH_EXCESS, MP_REACH_LOOSE, MP_REACH_ANY } mp_reach;

typedef struct mp_victim_filter {
    const mp_shard *shard;
    const mp_scope *scope;
    mp_reach reach;
    uint32_t keep; /* experts that a streaming layer keeps */
    bool streams;  /* any layer streams */
    bool scans_only;
    bool prefetch;
} mp_victim_filter;

/* A prefetch may not evict what another prefetch brought and nothing has used yet, nor what any
 * session used in its last pass over the layers: the layers come round again, and a guess is not
 * worth a hit. */
static bool spared_from_prefetch(const mp_cache *cache, const mp_slot *slot)
{
    uint64_t clock = atomic_load_explicit(&cache->clock, memory_order_relaxed);
    uint64_t pass = (uint64_t)cache->layers * atomic_load(&cache->n_clients);
    return (slot->prefetched && !slot->used) || clock - slot->touched <= pass;
}

static bool is_in_reach(const mp_victim_filter *filter, uint32_t key)
{
    if (!filter->streams)
        return filter->reach != MP_REACH_EXCESS;
    if (filter->reach == MP_REACH_ANY)
        return true;
    const mp_cache *cache = filter->shard->cache;
    bool streams = mp_window_serves(cache, filter->scope, key);
    bool excess = streams && filter->shard->kept[key / cache->experts] > filter->keep;
    return filter->reach == MP_REACH_EXCESS ? excess : excess || !streams;
}

static bool may_evict(void *ctx, uint32_t policy_key)
{
    const mp_victim_filter *filter = ctx;
    const mp_cache *cache = filter->shard->cache;
    uint32_t key = policy_key + filter->scope->first_key;
    uint32_t index = atomic_load_explicit(&cache->entry[key], memory_order_relaxed);
    uint64_t word = atomic_load_explicit(&filter->shard->words[index], memory_order_relaxed);
    const mp_slot *slot = &filter->shard->slots[index];
    if (word != MP_WORD(key, MP_SLOT_RESIDENT)) /* loading, or has users */
        return false;
    if (filter->scans_only ? !slot->scan : !is_in_reach(filter, key))
        return false;
    return !(filter->prefetch && spared_from_prefetch(cache, slot));
}

/* Evicts the policy's choice among the experts that the filter admits. */
static bool evict_ranked(mp_shard *shard, mp_scope *scope, mp_victim_filter *filter)
{
    mp_cache *cache = shard->cache;
    for (;;) {
        uint32_t victim = cache->policy->victim(scope->policy_state, may_evict, filter);
        if (victim == MP_NO_KEY)
            return false;
        uint32_t key = victim + scope->first_key;
        /* A session may take hold of the victim between the filter and the exchange;
         * then ask again. */
        if (mp_shard_drop(shard, atomic_load(&cache->entry[key]), key, MP_SLOT_RESIDENT)) {
            cache->counters.evictions++;
            return true;
        }
    }
}

static bool evict_from_window(mp_shard *shard, mp_scope *scope, bool to_come)
{
    for (;;) {
        uint32_t slot = scope->transients ? mp_window_victim(shard, scope, to_come) : MP_NO_SLOT;
        if (slot == MP_NO_SLOT)
            return false;
        if (mp_shard_drop(shard, slot, mp_shard_key_in(shard, slot), MP_SLOT_RESIDENT)) {
            shard->cache->counters.evictions++;
            return true;
        }
    }
}

static bool scans_are_many(const mp_shard *shard, const mp_scope *scope)
{
    uint32_t percent = shard->cache->scan_percent;
    return percent && scope->scans > 0 &&
           scope->scans >= atomic_load(&scope->capacity) * percent / 100;
}

/* Tries in this order: scans, if this is one and there are many; the window's past slots, if the
 * window has its part or more; the excess of streaming layers, for a load of the window; other
 * layers' experts, unless the load is for a window that has its part; past slots, for a load of the
 * window. A prefetch gives up here. A demand must make progress: it takes the rest of the window,
 * then anything. */
bool mp_shard_evict(mp_shard *shard, mp_scope *scope, mp_purpose purpose, bool transient)
{
    bool streams = atomic_load(&shard->cache->n_streamers) > 0;
    bool prefetch = purpose == MP_FOR_PREFETCH || purpose == MP_FOR_VERSION;
    mp_window_plan plan = {0};
    if (streams)
        plan = mp_window_divide(shard, scope);
    bool full = scope->transients >= plan.slots;
    mp_victim_filter filter = {.shard = shard,
                               .scope = scope,
                               .keep = plan.keep,
                               .streams = streams};
    filter.scans_only = purpose == MP_FOR_SCAN && scans_are_many(shard, scope);
    if (filter.scans_only && evict_ranked(shard, scope, &filter))
        return true;
    filter.scans_only = false; /* none left to evict: sessions hold them */
    if (full && evict_from_window(shard, scope, false))
        return true;
    filter.reach = MP_REACH_EXCESS;
    if (transient && mp_window_has_excess(shard, scope, plan.keep) &&
        evict_ranked(shard, scope, &filter))
        return true;
    filter.reach = MP_REACH_LOOSE;
    filter.prefetch = prefetch;
    if (!(transient && full) && evict_ranked(shard, scope, &filter))
        return true;
    if (transient && evict_from_window(shard, scope, false))
        return true;
    if (prefetch)
        return false;
    if (evict_from_window(shard, scope, false) || evict_from_window(shard, scope, true))
        return true;
    filter.reach = MP_REACH_ANY;
    return streams && evict_ranked(shard, scope, &filter);
}

/* ---- claiming ---- */

/* A scope that has more than it may have by now gives one up for another of its class that has less. */
static bool evict_surplus(mp_shard *shard, const mp_scope *scope)
{
    if (scope->used >= atomic_load(&scope->capacity))
        return false;
    for (uint32_t i = 0; i < shard->cache->n_scopes; i++) {
        mp_scope *other = &shard->scopes[i];
        if (other->class == scope->class && other->used > atomic_load(&other->capacity) &&
            mp_shard_evict(shard, other, MP_FOR_DECODE, false))
            return true;
    }
    return false;
}

/* Evicts until the scope may have one more slot and one of its class is free. One eviction may not do:
 * the slot that it frees may be behind the fence. Returns the free slots; NULL if nothing may go. */
static mp_free_slots *make_room(mp_shard *shard, mp_scope *scope, mp_purpose purpose,
                                bool transient)
{
    mp_free_slots *free = &shard->free[scope->class];
    for (bool first = true; scope->used >= atomic_load(&scope->capacity) || free->n == 0;
         first = false) {
        if (first && atomic_load(&shard->orphans))
            mp_shard_settle_all(shard); /* once landed, they may be evicted */
        else if (!evict_surplus(shard, scope) && !mp_shard_evict(shard, scope, purpose, transient))
            return NULL;
    }
    return free;
}

mp_claim mp_shard_claim(mp_shard *shard, uint32_t key, mp_purpose purpose, mp_pipe_kind pipe,
                        uint32_t users, uint32_t *out)
{
    /* A source first: nothing is evicted for a load that has none. */
    switch (mp_transfer_may_start(shard->transfer, key, pipe)) {
    case MP_START_LATER: return MP_CLAIM_LATER;
    case MP_START_NEVER: return MP_CLAIM_NO_SOURCE;
    case MP_START_NOW: break;
    }

    /* Then a slot, and its place in its scope. */
    mp_cache *cache = shard->cache;
    mp_scope *scope = mp_shard_scope(shard, key);
    bool streams = atomic_load(&cache->n_streamers) > 0; /* else there is no window */
    bool transient = streams && purpose != MP_FOR_SCAN && mp_window_serves(cache, scope, key);
    mp_free_slots *free = make_room(shard, scope, purpose, transient);
    if (!free)
        return MP_CLAIM_NO_SLOT;
    uint32_t index = free->slots[--free->n];
    mp_slot *slot = &shard->slots[index];
    *slot = (mp_slot){.prefetched = purpose == MP_FOR_PREFETCH,
                      .used = purpose != MP_FOR_PREFETCH,
                      .scan = purpose == MP_FOR_SCAN,
                      .client = MP_SHARED_WANT,
                      .taken = atomic_load(&cache->clock),
                      .load = ++shard->n_loads};
    scope->used++;
    scope->scans += slot->scan;
    shard->kept[key / cache->experts]++;
    if (transient)
        mp_window_enter(shard, scope, index, key);

    /* The word is stored before the map entry that leads lock-free readers to it; then
     * the load begins. */
    atomic_store(&shard->words[index], MP_WORD(key, MP_SLOT_LOADING) + users);
    atomic_store(&cache->entry[key], index);
    mp_passage_begin(shard->transfer, index, key, shard->address[index], pipe);
    *out = index;
    return MP_CLAIMED;
}
