/* Slots: taking them, and who must go for it. The pool's lock is held throughout. */
#include "memory/expert_pool.h"

#include <assert.h>

#include "base/status.h"

typedef struct mp_victim_filter {
    const mp_shard *shard;
    const mp_scope *scope;
    bool scans_only;
    bool prefetch;
} mp_victim_filter;

/* Prefetch may not evict what another prefetch brought and no one has used, nor what any session's
 * last pass over the layers used: the layers come round again, and a guess is not worth a hit. */
static bool spared_from_prefetch(const struct moepage_expert_pool *pool, const mp_slot *slot)
{
    uint64_t clock = atomic_load_explicit(&pool->touch_clock, memory_order_relaxed);
    uint64_t pass = (uint64_t)pool->layers * atomic_load(&pool->n_clients);
    return (slot->prefetched && !slot->used) || clock - slot->touched <= pass;
}

static bool may_evict(void *ctx, uint32_t policy_key)
{
    const mp_victim_filter *filter = ctx;
    const struct moepage_expert_pool *pool = filter->shard->pool;
    uint32_t key = policy_key + filter->scope->first_key;
    uint32_t index = atomic_load_explicit(&pool->entry[key], memory_order_relaxed);
    uint64_t word = atomic_load_explicit(&filter->shard->words[index], memory_order_relaxed);
    const mp_slot *slot = &filter->shard->slots[index];
    if (word != MP_WORD(key, MP_SLOT_RESIDENT)) /* loading, or has users */
        return false;
    if (filter->scans_only && !slot->scan)
        return false;
    return !(filter->prefetch && spared_from_prefetch(pool, slot));
}

/* The expert leaves the map, its scope and the policy. */
void mp_pool_forget(mp_shard *shard, uint32_t index, uint32_t key)
{
    struct moepage_expert_pool *pool = shard->pool;
    mp_scope *scope = mp_pool_scope_of(pool, shard, key);
    mp_slot *slot = &shard->slots[index];
    atomic_store(&pool->entry[key], MP_NO_SLOT);
    if (slot->ranked)
        pool->policy->remove(scope->policy_state, key - scope->first_key);
    slot->ranked = false;
    scope->used--;
    scope->scans -= slot->scan;
    slot->scan = false;
}

bool mp_pool_drop(mp_shard *shard, uint32_t index, uint32_t key, uint32_t state)
{
    struct moepage_expert_pool *pool = shard->pool;
    uint64_t expected = MP_WORD(key, state);
    if (!atomic_compare_exchange_strong(&shard->words[index], &expected, 0))
        return false;
    if (state != MP_SLOT_FAILED) {
        mp_pool_forget(shard, index, key);
        if (shard->slots[index].prefetched && !shard->slots[index].used)
            pool->counters.prefetch_wasted++;
    }
    if (index < shard->n_slots) /* else the slot is being given back to the arena */
        shard->free_slots[shard->n_free++] = index;
    return true;
}

bool mp_pool_evict_one(mp_shard *shard, mp_scope *scope, mp_purpose purpose)
{
    struct moepage_expert_pool *pool = shard->pool;
    uint32_t scan_limit = atomic_load(&scope->capacity) * pool->scan_percent / 100;
    mp_victim_filter filter = {
        .shard = shard,
        .scope = scope,
        .scans_only = purpose == MP_FOR_SCAN && pool->scan_percent && scope->scans >= scan_limit &&
                      scope->scans > 0,
        .prefetch = purpose == MP_FOR_PREFETCH,
    };
    for (;;) {
        uint32_t victim = pool->policy->victim(scope->policy_state, may_evict, &filter);
        if (victim == MP_NO_KEY && filter.scans_only) { /* others hold them: progress first */
            filter.scans_only = false;
            continue;
        }
        if (victim == MP_NO_KEY)
            return false;
        uint32_t key = victim + scope->first_key;
        /* A session may take hold of the victim between the filter and the exchange: ask again. */
        if (mp_pool_drop(shard, atomic_load(&pool->entry[key]), key, MP_SLOT_RESIDENT)) {
            pool->counters.evictions++;
            return true;
        }
    }
}

static bool has_room(const mp_shard *shard, const mp_scope *scope)
{
    return scope->used < atomic_load(&scope->capacity) && shard->n_free > 0;
}

uint32_t mp_pool_take_slot(mp_shard *shard, uint32_t key, mp_purpose purpose, uint32_t users)
{
    struct moepage_expert_pool *pool = shard->pool;
    mp_scope *scope = mp_pool_scope_of(pool, shard, key);
    if (!has_room(shard, scope) && atomic_load(&shard->orphans))
        mp_pool_settle_landed(shard); /* the policy may want to evict them */
    if (!has_room(shard, scope) && !mp_pool_evict_one(shard, scope, purpose))
        return MP_NO_SLOT;

    uint32_t index = shard->free_slots[--shard->n_free];
    mp_slot *slot = &shard->slots[index];
    *slot = (mp_slot){.prefetched = purpose == MP_FOR_PREFETCH,
                      .used = purpose != MP_FOR_PREFETCH,
                      .scan = purpose == MP_FOR_SCAN,
                      .came = atomic_load(&pool->touch_clock)};
    scope->used++;
    scope->scans += slot->scan;
    /* Add, not store: a session that read a stale entry may be backing out of this word. */
    atomic_fetch_add(&shard->words[index], MP_WORD(key, MP_SLOT_LOADING) + users);
    atomic_store(&pool->entry[key], index);
    return index;
}

void mp_pool_rank(mp_shard *shard, uint32_t index, uint32_t key)
{
    struct moepage_expert_pool *pool = shard->pool;
    mp_scope *scope = mp_pool_scope_of(pool, shard, key);
    if (atomic_load(&pool->entry[key]) != index)
        return; /* its load has failed already */
    mp_slot *slot = &shard->slots[index];
    slot->touched = atomic_load(&pool->touch_clock);
    if (slot->ranked) { /* another session has used it meanwhile */
        pool->policy->touch(scope->policy_state, key - scope->first_key);
        return;
    }
    pool->policy->insert(scope->policy_state, key - scope->first_key);
    slot->ranked = true;
}

moepage_status mp_pool_free_up(mp_shard *shard)
{
    mp_pipes_flush(shard);
    mp_prefetcher_abandon(shard);
    moepage_status status = mp_pipes_sync(shard); /* prefetches that plans hold included */
    if (!status)
        mp_pool_settle_landed(shard);
    return status;
}
