/* Slots: giving them up, ranking their experts, and settling loads that have ended. The
 * lock is held. */
#include "cache/inside.h"
#include "transfer/tiers.h"

/* ---- looking ---- */

uint32_t mp_cache_find(const mp_cache *cache, uint32_t key)
{
    return atomic_load_explicit(&cache->entry[key], memory_order_relaxed);
}

mp_slot_view mp_shard_view(const mp_shard *shard, uint32_t slot)
{
    uint64_t word = atomic_load(&shard->words[slot]);
    return (mp_slot_view){.key = MP_WORD_KEY(word),
                          .state = MP_WORD_STATE(word),
                          .users = MP_WORD_USERS(word)};
}

mp_scope *mp_shard_scope(const mp_shard *shard, uint32_t key)
{
    const mp_cache *cache = shard->cache;
    return &shard->scopes[cache->n_scopes == 1 ? 0 : cache->scope_of_layer[key / cache->experts]];
}

/* ---- giving up ---- */

/* Takes the expert out of the map, its scope and the policy; the slot's word stays. */
static void forget(mp_shard *shard, uint32_t index, uint32_t key)
{
    mp_scope *scope = mp_shard_scope(shard, key);
    atomic_store(&shard->cache->entry[key], MP_NO_SLOT);
    mp_slot_unrank(shard, scope, index, key);
    mp_window_leave(shard, scope, index, key);
    scope->used--;
}

static void count_wasted(mp_cache *cache, const mp_slot *slot, uint32_t key)
{
    mp_prefetch_tally *tally = mp_cache_tally(cache, slot, key);
    cache->counters.prefetch_wasted++;
    cache->counters.wasted_bytes += slot->ahead_bytes;
    if (tally)
        tally->wasted++;
}

static void free_slot(mp_shard *shard, uint32_t index)
{
    mp_free_slots *free = &shard->free[mp_bundle_class_of(shard->cache->setup.bundle, index)];
    free->slots[free->n++] = index;
}

bool mp_shard_drop(mp_shard *shard, uint32_t index, uint32_t key, uint32_t state)
{
    mp_cache *cache = shard->cache;
    const mp_slot *slot = &shard->slots[index];
    uint64_t expected = MP_WORD(key, state);
    if (!atomic_compare_exchange_strong(&shard->words[index], &expected, 0))
        return false;
    if (state == MP_SLOT_DRAINING) {
        mp_shard_scope(shard, key)->used--;
        cache->n_draining--;
    } else if (state != MP_SLOT_FAILED) {
        forget(shard, index, key);
        if (slot->prefetched && !slot->used)
            count_wasted(cache, slot, key);
    }
    if (index >= shard->open.first && index < shard->open.end) /* else the slot leaves the cache */
        free_slot(shard, index);
    return true;
}

void mp_shard_set_state(mp_shard *shard, uint32_t index, uint32_t state)
{
    uint64_t word = atomic_load(&shard->words[index]);
    uint64_t next;
    do
        next = MP_WORD(MP_WORD_KEY(word), state) | MP_WORD_USERS(word);
    while (!atomic_compare_exchange_weak(&shard->words[index], &word, next));
}

void mp_shard_drain(mp_shard *shard, uint32_t index, uint32_t key)
{
    mp_cache *cache = shard->cache;
    forget(shard, index, key);
    mp_shard_scope(shard, key)->used++; /* until the slot is free */
    cache->counters.evictions++;
    cache->n_draining++;
    mp_shard_set_state(shard, index, MP_SLOT_DRAINING);
    mp_shard_drop(shard, index, key, MP_SLOT_DRAINING); /* unless it has users */
}

void mp_shard_vacate(mp_shard *shard, uint32_t index)
{
    uint64_t word = atomic_load(&shard->words[index]);
    uint32_t key = MP_WORD_KEY(word);
    if (MP_WORD_STATE(word) != MP_SLOT_RESIDENT)
        return;
    if (mp_shard_drop(shard, index, key, MP_SLOT_RESIDENT))
        shard->cache->counters.evictions++;
    else if (shard->slots[index].pins == 0)
        mp_shard_drain(shard, index, key);
}

bool mp_shard_call_off(mp_shard *shard, uint32_t index)
{
    mp_slot *slot = &shard->slots[index];
    bool guess = slot->prefetched;
    slot->prefetched = false; /* so that mp_shard_drop does not count it as wasted */
    if (mp_shard_drop(shard, index, mp_shard_key_in(shard, index), MP_SLOT_LOADING))
        return true;
    slot->prefetched = guess;
    return false;
}

void mp_shard_restack(mp_shard *shard)
{
    for (uint32_t c = 0; c < shard->cache->setup.bundle->n_classes; c++)
        shard->free[c].n = 0;
    for (uint32_t s = shard->open.end; s-- > shard->open.first;)
        if (MP_WORD_STATE(atomic_load(&shard->words[s])) == MP_SLOT_FREE)
            free_slot(shard, s);
}

/* ---- ranking ---- */

void mp_shard_rank(mp_shard *shard, uint32_t index, uint32_t key)
{
    mp_cache *cache = shard->cache;
    mp_scope *scope = mp_shard_scope(shard, key);
    if (atomic_load(&cache->entry[key]) != index)
        return; /* its load has failed already */
    mp_slot *slot = &shard->slots[index];
    slot->touched = atomic_load(&cache->clock);
    bool transient = slot->place != MP_PLACE_KEPT;
    if (transient && (!slot->used || !mp_window_use(shard, scope, index, key)))
        return;
    if (slot->ranked) { /* another session has used it meanwhile */
        cache->policy->touch(scope->policy_state, key - scope->first_key);
        return;
    }
    cache->policy->insert(scope->policy_state, key - scope->first_key);
    slot->ranked = true;
}

/* ---- landing ---- */

uint32_t mp_shard_settle(mp_shard *shard, uint32_t index)
{
    mp_cache *cache = shard->cache;
    uint64_t word = atomic_load(&shard->words[index]);
    if (MP_WORD_STATE(word) != MP_SLOT_LOADING ||
        !mp_passage_is_submitted(shard->transfer, index) ||
        !mp_passage_has_landed(shard->transfer, index))
        return MP_WORD_STATE(word); /* what is published must be whole */
    if (shard->slots[index].attended)
        cache->setup.load_ended(cache->owner, shard->device, index);
    moepage_status result = mp_passage_result(shard->transfer, index);
    mp_passage_end(shard->transfer, index);
    if (result == MOEPAGE_OK) {
        mp_shard_set_state(shard, index, MP_SLOT_RESIDENT);
        return MP_SLOT_RESIDENT;
    }
    uint32_t key = MP_WORD_KEY(word);
    forget(shard, index, key);
    cache->counters.failed_loads++;
    mp_shard_set_state(shard, index, MP_SLOT_FAILED);
    bool freed = mp_shard_drop(shard, index, key, MP_SLOT_FAILED); /* unless it has users */
    return freed ? MP_SLOT_FREE : MP_SLOT_FAILED;
}

void mp_shard_settle_all(mp_shard *shard)
{
    atomic_store(&shard->orphans, false); /* before looking: a release meanwhile sets it again */
    for (uint32_t s = shard->all.first; s < shard->all.end; s++) {
        uint64_t word = atomic_load(&shard->words[s]);
        if (MP_WORD_STATE(word) != MP_SLOT_LOADING)
            continue;
        mp_shard_settle(shard, s);
        word = atomic_load(&shard->words[s]);
        if (MP_WORD_STATE(word) == MP_SLOT_LOADING && MP_WORD_USERS(word) == 0 &&
            !shard->slots[s].attended)
            atomic_store(&shard->orphans, true);
    }
}

/* The last user of such a slot frees it when it has the lock, and finds another word after this. */
bool mp_shard_reclaim(mp_shard *shard)
{
    bool any = false;
    for (uint32_t s = shard->all.first; s < shard->all.end; s++) {
        uint64_t word = atomic_load(&shard->words[s]);
        uint32_t state = MP_WORD_STATE(word);
        if (state == MP_SLOT_FAILED || state == MP_SLOT_DRAINING)
            any = mp_shard_drop(shard, s, MP_WORD_KEY(word), state) || any;
    }
    return any;
}

/* Returns true if the end of the slot's load would help an expert of `scope`: to a slot, or, for want of
 * a source, to an entry of the host tier. */
static bool is_in_the_way(const mp_shard *shard, uint32_t index, const mp_scope *scope,
                          bool lacks_source)
{
    uint64_t word = atomic_load(&shard->words[index]);
    if (MP_WORD_STATE(word) != MP_SLOT_LOADING)
        return false;
    if (lacks_source)
        return mp_passage_uses_host_tier(shard->transfer, index);
    const mp_scope *its = mp_shard_scope(shard, MP_WORD_KEY(word));
    return MP_WORD_USERS(word) == 0 && its->class == scope->class &&
           (its == scope || its->used > atomic_load(&its->capacity));
}

/* Orders loads by what they wait for: 0 nothing; 1 the bus; 2 the slot's last readers, which may
 * end only after the caller has gone on. */
static int delay_of(const mp_shard *shard, uint32_t index)
{
    if (mp_passage_has_landed(shard->transfer, index))
        return 0;
    return mp_readers_done(shard->transfer, index) ? 1 : 2;
}

static bool ends_sooner(const mp_shard *shard, uint32_t a, uint32_t b)
{
    int first = delay_of(shard, a), second = delay_of(shard, b);
    return first != second ? first < second : shard->slots[a].load < shard->slots[b].load;
}

uint32_t mp_shard_load_in_the_way(mp_shard *shard, uint32_t key, bool lacks_source)
{
    const mp_scope *scope = mp_shard_scope(shard, key);
    uint32_t best = MP_NO_SLOT;
    for (uint32_t s = shard->all.first; s < shard->all.end; s++)
        if (is_in_the_way(shard, s, scope, lacks_source) &&
            (best == MP_NO_SLOT || ends_sooner(shard, s, best)))
            best = s;
    return best;
}

/* ---- what came ahead of need ---- */

void mp_shard_attend(mp_shard *shard, uint32_t slot, uint32_t client)
{
    shard->slots[slot].client = client;
    shard->slots[slot].attended = true;
}

void mp_shard_stop_attending(mp_shard *shard, uint32_t slot)
{
    shard->slots[slot].attended = false;
}

bool mp_shard_is_attended(const mp_shard *shard, uint32_t slot)
{
    return shard->slots[slot].attended;
}

uint32_t mp_shard_client(const mp_shard *shard, uint32_t slot)
{
    return shard->slots[slot].client;
}

void mp_shard_want_again(mp_shard *shard, uint32_t slot, uint32_t client)
{
    if (shard->slots[slot].client != client)
        shard->slots[slot].client = MP_SHARED_WANT;
    mp_window_promise(shard, slot);
}

uint32_t mp_shard_window_room(const mp_shard *shard, uint32_t key, uint32_t most)
{
    return mp_window_room(shard, mp_shard_scope(shard, key), most);
}

void mp_shard_add_ahead(mp_shard *shard, uint32_t slot, uint64_t bytes)
{
    shard->slots[slot].ahead_bytes += bytes;
}
