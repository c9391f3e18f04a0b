/* Slots: taking them, and who must go for it. The pool's lock is held throughout. */
#include "pool/expert_pool.h"

#include <assert.h>

#include "base/status.h"

/* Among what the policy ranks: what streaming layers have beyond what they keep; that, and what
 * layers have that do not stream; or anything. */
typedef enum mp_reach { MP_REACH_EXCESS, MP_REACH_LOOSE, MP_REACH_ANY } mp_reach;

typedef struct mp_victim_filter {
    const mp_shard *shard;
    const mp_scope *scope;
    mp_reach reach;
    uint32_t keep; /* of a streaming layer */
    bool streams;  /* any layer does */
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

static bool is_in_reach(const mp_victim_filter *filter, uint32_t key)
{
    if (!filter->streams)
        return filter->reach != MP_REACH_EXCESS;
    if (filter->reach == MP_REACH_ANY)
        return true;
    const struct moepage_expert_pool *pool = filter->shard->pool;
    bool streams = mp_window_serves(pool, filter->scope, key);
    bool excess = streams && filter->shard->kept[key / pool->experts] > filter->keep;
    return filter->reach == MP_REACH_EXCESS ? excess : excess || !streams;
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
    if (filter->scans_only ? !slot->scan : !is_in_reach(filter, key))
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
    mp_window_leave(shard, scope, index, key);
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
    if (state == MP_SLOT_DRAINING) {
        mp_pool_scope_of(pool, shard, key)->used--;
        pool->n_draining--;
    }
    if (state != MP_SLOT_FAILED && state != MP_SLOT_DRAINING) {
        mp_pool_forget(shard, index, key);
        if (shard->slots[index].prefetched && !shard->slots[index].used) {
            mp_prefetch_tally *tally = mp_prefetcher_tally(shard, &shard->slots[index], key);
            pool->counters.prefetch_wasted++;
            pool->counters.wasted_bytes += shard->slots[index].ahead_bytes;
            if (tally)
                tally->wasted++;
        }
    }
    if (mp_pool_is_open(shard, index)) /* else the slot goes to the arena */
        shard->free_slots[shard->n_free++] = index;
    return true;
}

void mp_pool_drain(mp_shard *shard, uint32_t index, uint32_t key)
{
    struct moepage_expert_pool *pool = shard->pool;
    mp_pool_forget(shard, index, key);
    mp_pool_scope_of(pool, shard, key)->used++; /* as long as it has the slot */
    pool->counters.evictions++;
    pool->n_draining++;
    mp_pool_set_state(shard, index, MP_SLOT_DRAINING);
    mp_pool_drop(shard, index, key, MP_SLOT_DRAINING); /* unless it has users */
}

void mp_pool_restack(mp_shard *shard)
{
    shard->n_free = 0;
    for (uint32_t s = shard->open.end; s-- > shard->open.first;)
        if (MP_WORD_STATE(atomic_load(&shard->words[s])) == MP_SLOT_FREE)
            shard->free_slots[shard->n_free++] = s;
}

/* Evicts the policy's choice among what the filter lets go. */
static bool evict_ranked(mp_shard *shard, mp_scope *scope, mp_victim_filter *filter)
{
    struct moepage_expert_pool *pool = shard->pool;
    for (;;) {
        uint32_t victim = pool->policy->victim(scope->policy_state, may_evict, filter);
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

static bool evict_from_window(mp_shard *shard, mp_scope *scope, bool to_come)
{
    for (;;) {
        uint32_t slot = scope->transients ? mp_window_victim(shard, to_come) : MP_NO_SLOT;
        if (slot == MP_NO_SLOT)
            return false;
        if (mp_pool_drop(shard, slot, mp_pool_key_in(shard, slot), MP_SLOT_RESIDENT)) {
            shard->pool->counters.evictions++;
            return true;
        }
    }
}

static bool scans_are_many(const mp_shard *shard, const mp_scope *scope)
{
    uint32_t percent = shard->pool->scan_percent;
    return percent && scope->scans > 0 &&
           scope->scans >= atomic_load(&scope->capacity) * percent / 100;
}

/* In this order: of scans alone, for a scan when there are many; what is past in the window, for it
 * or when it has more than its slots; what streaming layers have too much; what others have, but
 * for a window that has its slots. A prefetch ends here. Else, progress first: the rest of the
 * window; anything. */
static bool evict(mp_shard *shard, mp_scope *scope, mp_purpose purpose, bool transient)
{
    bool streams = atomic_load(&shard->pool->n_streamers) > 0;
    bool prefetch = purpose == MP_FOR_PREFETCH;
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
    filter.scans_only = false; /* others hold them */
    if ((transient || full) && evict_from_window(shard, scope, false))
        return true;
    filter.reach = MP_REACH_EXCESS;
    if (transient && mp_window_has_excess(shard, plan.keep) && evict_ranked(shard, scope, &filter))
        return true;
    filter.reach = MP_REACH_LOOSE;
    filter.prefetch = prefetch;
    if (!(transient && full) && evict_ranked(shard, scope, &filter))
        return true;
    if (prefetch)
        return false;
    if (evict_from_window(shard, scope, false) || evict_from_window(shard, scope, true))
        return true;
    filter.reach = MP_REACH_ANY;
    return streams && evict_ranked(shard, scope, &filter);
}

bool mp_pool_evict_one(mp_shard *shard, mp_scope *scope, mp_purpose purpose)
{
    return evict(shard, scope, purpose, false);
}

static bool has_room(const mp_shard *shard, const mp_scope *scope)
{
    return scope->used < atomic_load(&scope->capacity) && shard->n_free > 0;
}

/* A scope that has more than it may have by now gives one up for another that has less. */
static bool evict_surplus(mp_shard *shard, const mp_scope *scope)
{
    const struct moepage_expert_pool *pool = shard->pool;
    if (scope->used >= atomic_load(&scope->capacity))
        return false;
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        mp_scope *other = &shard->scopes[i];
        if (other->used > atomic_load(&other->capacity) &&
            mp_pool_evict_one(shard, other, MP_FOR_DECODE))
            return true;
    }
    return false;
}

uint32_t mp_pool_take_slot(mp_shard *shard, uint32_t key, mp_purpose purpose, uint32_t users)
{
    struct moepage_expert_pool *pool = shard->pool;
    mp_scope *scope = mp_pool_scope_of(pool, shard, key);
    bool transient = purpose != MP_FOR_SCAN && mp_window_serves(pool, scope, key);
    if (!has_room(shard, scope) && atomic_load(&shard->orphans))
        mp_pool_settle_landed(shard); /* the policy may want to evict them */
    while (!has_room(shard, scope))   /* an evicted one's slot may be on its way to the arena */
        if (!evict_surplus(shard, scope) && !evict(shard, scope, purpose, transient))
            return MP_NO_SLOT;

    uint32_t index = shard->free_slots[--shard->n_free];
    mp_slot *slot = &shard->slots[index];
    *slot = (mp_slot){.prefetched = purpose == MP_FOR_PREFETCH,
                      .used = purpose != MP_FOR_PREFETCH,
                      .scan = purpose == MP_FOR_SCAN,
                      .came = atomic_load(&pool->touch_clock),
                      .begun = ++shard->n_loads};
    scope->used++;
    scope->scans += slot->scan;
    mp_window_enter(shard, scope, index, key, transient);
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
    bool transient = slot->place != MP_PLACE_KEPT;
    if (transient && (!slot->used || !mp_window_use(shard, scope, index, key)))
        return;
    if (slot->ranked) { /* another session has used it meanwhile */
        pool->policy->touch(scope->policy_state, key - scope->first_key);
        return;
    }
    pool->policy->insert(scope->policy_state, key - scope->first_key);
    slot->ranked = true;
}

/* ---- loads that stand in the way ---- */

/* Would the end of the slot's load help an expert of `scope`: to a slot, or to an entry of the host
 * tier? */
static bool is_in_the_way(mp_shard *shard, uint32_t index, const mp_scope *scope, bool lacks_entry)
{
    uint64_t word = atomic_load(&shard->words[index]);
    if (MP_WORD_STATE(word) != MP_SLOT_LOADING)
        return false;
    if (lacks_entry)
        return shard->slots[index].passage.source == MP_FROM_HOST_TIER;
    const mp_scope *its = mp_pool_scope_of(shard->pool, shard, MP_WORD_KEY(word));
    return MP_WORD_USERS(word) == 0 && (its == scope || its->used > atomic_load(&its->capacity));
}

/* What a load waits for: nothing, if what was submitted has landed; the bus; or those who still read
 * the slot, which may be the caller's to end. */
static int delay_of(const mp_shard *shard, uint32_t index)
{
    if (mp_pool_transfers_done(shard, index))
        return 0;
    return mp_readers_done(shard, index) ? 1 : 2;
}

static bool ends_sooner(const mp_shard *shard, uint32_t a, uint32_t b)
{
    int first = delay_of(shard, a), second = delay_of(shard, b);
    return first != second ? first < second : shard->slots[a].begun < shard->slots[b].begun;
}

moepage_status mp_pool_end_load(mp_shard *shard, uint32_t key, bool *ended)
{
    const mp_scope *scope = mp_pool_scope_of(shard->pool, shard, key);
    bool lacks_entry = mp_pool_may_start(shard, key, MP_PIPE_DEMAND) != MP_START_NOW;
    uint32_t best = MP_NO_SLOT;
    *ended = false;
    mp_pipes_flush(shard);
    for (uint32_t s = shard->first_slot; s < shard->first_slot + shard->n_slots; s++)
        if (is_in_the_way(shard, s, scope, lacks_entry) &&
            (best == MP_NO_SLOT || ends_sooner(shard, s, best)))
            best = s;
    if (best == MP_NO_SLOT)
        return MOEPAGE_OK;
    moepage_status status = mp_pipe_sync(shard, &shard->slots[best].passage);
    if (status)
        return status;
    if (mp_pool_fully_staged(shard, best))
        mp_pool_settle(shard, best);
    else /* a prefetch, which is not waited for any longer than that */
        mp_prefetcher_give_up(shard, best);
    *ended = MP_WORD_STATE(atomic_load(&shard->words[best])) != MP_SLOT_LOADING;
    return MOEPAGE_OK;
}
