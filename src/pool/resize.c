/* Moving the ends of the experts' side while it serves.
 *
 * What a pool gives up is drained, never taken away. In order:
 *
 *   aim     sessions are told of what they may count on from now on: layers opened later reserve no
 *           more. Nothing else changes until those that are open count on no more either, for each
 *           must find the slots it was promised.
 *   fence   slots that go take no more experts. What they hold is dropped, or, where a plan uses it,
 *           found by nobody any more, so that who needs it next brings it to another slot.
 *   take    once every one of them is free and nobody reads its bytes any more: the arena gets them,
 *           and what grows grows.
 *
 * A session shows that it is about to open a layer before it asks what it may count on, and we
 * tell it before we look: so either it sees the new number, or we see it. */
#include "base/status.h"
#include "pool/expert_pool.h"

/* ---- what there can be ---- */

mp_extent mp_pool_extent(const struct moepage_expert_pool *pool, uint32_t compressed,
                         uint32_t slots)
{
    return (mp_extent){.compressed = compressed,
                       .first = mp_images_slots(&pool->shards[0], compressed),
                       .slots = slots};
}

static uint32_t end_of(const mp_extent *extent)
{
    return extent->first + extent->slots;
}

static mp_extent extent_of(const mp_shard *shard)
{
    return (mp_extent){.compressed = shard->compressed.n / shard->pool->layers,
                       .first = shard->first_slot,
                       .slots = shard->n_slots};
}

/* The slots that are there before and after. */
static mp_span kept_by(const mp_shard *shard, const mp_extent *to)
{
    mp_extent from = extent_of(shard);
    uint32_t end = end_of(&from) < end_of(to) ? end_of(&from) : end_of(to);
    return (mp_span){from.first > to->first ? from.first : to->first, end};
}

/* Of each scope, when these are all the slots. */
static uint32_t capacity_in(const mp_shard *shard, mp_span slots)
{
    return slots.end > slots.first ? (slots.end - slots.first) / shard->pool->n_scopes : 0;
}

static moepage_status check_images(const mp_shard *shard, const mp_extent *to)
{
    const struct moepage_expert_pool *pool = shard->pool;
    if (to->compressed == shard->compressed.n / pool->layers)
        return MOEPAGE_OK;
    if (!shard->compressed.unit)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "experts cannot be kept compressed: the model does not store them as EXPH, "
                       "or the pool has no staging because it was created without that form");
    if (to->compressed > pool->experts)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%u compressed experts per layer: a layer has %u",
                       to->compressed, pool->experts);
    return MOEPAGE_OK;
}

static moepage_status check_extent(const mp_shard *shard, const mp_extent *to)
{
    struct moepage_expert_pool *pool = shard->pool;
    uint64_t room = mp_arena_side_max(&shard->home->arena, MP_SIDE_EXPERTS);
    uint64_t most = room > to->first ? room - to->first : 0;
    if (most > pool->keys)
        most = pool->keys;
    if (to->slots < 1 || to->slots > most || to->slots % pool->n_scopes != 0)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "%u slots: the pool can have 1 to %llu, in multiples of %u", to->slots,
                       (unsigned long long)most, pool->n_scopes);
    uint32_t capacity = capacity_in(shard, kept_by(shard, to));
    uint32_t clients = mp_pool_sharers(pool);
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        uint32_t pinned = atomic_load(&shard->scopes[i].pinned);
        if (capacity < shard->scopes[i].members && capacity < clients + pinned)
            return mp_fail(MOEPAGE_E_BUDGET,
                           "%u slots are too few for %u sessions and %u pins (%u of them are there "
                           "before and after: a smaller step leaves more)",
                           to->slots, clients, pinned, capacity * pool->n_scopes);
    }
    return MOEPAGE_OK;
}

static moepage_status check_move(const struct moepage_expert_pool *pool, const mp_extent *to)
{
    if (pool->versions)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "a pool with two versions of its experts keeps its part of the arena");
    if (pool->n_shards != 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "a pool over %u devices cannot be resized",
                       pool->n_shards);
    moepage_status status = check_images(&pool->shards[0], to);
    return status ? status : check_extent(&pool->shards[0], to);
}

moepage_status mp_pool_check_move(struct moepage_expert_pool *pool, const mp_extent *to)
{
    pthread_mutex_lock(&pool->lock);
    moepage_status status = check_move(pool, to);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- aim ---- */

static void set_aim(mp_shard *shard, uint32_t slots)
{
    for (uint32_t i = 0; i < shard->pool->n_scopes; i++)
        atomic_store(&shard->scopes[i].aim, slots);
}

static void set_capacity(mp_shard *shard, uint32_t slots)
{
    for (uint32_t i = 0; i < shard->pool->n_scopes; i++)
        atomic_store(&shard->scopes[i].capacity, slots);
}

/* Most slots of one scope that a session's open layers count on: all together where there is only
 * one scope; else a session has no layer twice, and its widest may be any. False if that cannot be
 * known now. */
static bool find_widest(const struct moepage_expert_pool *pool, uint32_t *out)
{
    *out = 0;
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++) {
        mp_client *client = pool->clients[c];
        if (!client)
            continue;
        if (atomic_load(&client->routing))
            return false;
        uint32_t reserved =
            pool->n_scopes == 1 ? atomic_load(&client->reserved[0]) : atomic_load(&client->widest);
        *out = reserved > *out ? reserved : *out;
    }
    return true;
}

/* Every session may then have its share, and none counts on more. */
static moepage_status check_promises(const mp_shard *shard, uint32_t capacity)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint32_t clients = mp_pool_sharers(pool), widest;
    bool known = find_widest(pool, &widest);
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        const mp_scope *scope = &shard->scopes[i];
        if (capacity >= scope->members || clients == 0)
            continue;
        if (!known)
            return mp_fail(MOEPAGE_E_BUSY, "a session is just opening a layer");
        uint32_t share = (capacity - atomic_load(&scope->pinned)) / clients;
        if (widest > share)
            return mp_fail(MOEPAGE_E_BUSY,
                           "a session counts on %u slots for layers in open plans, its share of %u "
                           "will be %u",
                           widest, capacity, share);
    }
    return MOEPAGE_OK;
}

/* ---- fence ---- */

static bool is_fenced(const mp_shard *shard, const mp_extent *to, mp_span kept)
{
    return shard->open.first == kept.first && shard->open.end == kept.end &&
           shard->compressed.usable <= to->compressed * shard->pool->layers;
}

static void raise_fence(mp_shard *shard, const mp_extent *to, mp_span kept)
{
    shard->open = kept;
    set_capacity(shard, capacity_in(shard, kept));
    mp_images_limit(shard, to->compressed);
    mp_pool_restack(shard);
}

/* Gets an expert out of a slot that takes no more, as far as nobody minds. Is the slot free? */
static bool vacate(mp_shard *shard, uint32_t index)
{
    mp_slot *slot = &shard->slots[index];
    uint64_t word = atomic_load(&shard->words[index]);
    uint32_t key = MP_WORD_KEY(word);
    switch (MP_WORD_STATE(word)) {
    case MP_SLOT_LOADING:
        if (!slot->prefetching || mp_pool_fully_staged(shard, index))
            break; /* it lands by itself */
        slot->stale = MP_WORD_USERS(word) == 0;
        if (slot->stale && mp_pool_transfers_done(shard, index))
            mp_prefetcher_give_up(shard, index);
        break;
    case MP_SLOT_RESIDENT:
        if (mp_pool_drop(shard, index, key, MP_SLOT_RESIDENT))
            shard->pool->counters.evictions++;
        else if (slot->pins == 0)
            mp_pool_drain(shard, index, key);
        break;
    default: break;
    }
    return MP_WORD_STATE(atomic_load(&shard->words[index])) == MP_SLOT_FREE;
}

/* Every slot is tried, whatever becomes of the others. */
static moepage_status vacate_outside(mp_shard *shard, mp_span kept)
{
    uint32_t in_use = MP_NO_SLOT, read = MP_NO_SLOT;
    for (uint32_t s = shard->first_slot; s < shard->first_slot + shard->n_slots; s++) {
        if (s >= kept.first && s < kept.end)
            continue;
        if (!vacate(shard, s))
            in_use = s;
        else if (!mp_readers_done(shard, s))
            read = s;
    }
    if (in_use != MP_NO_SLOT)
        return mp_fail(MOEPAGE_E_BUSY,
                       "slot %u is pinned, in an open plan, or its expert is on its way", in_use);
    if (read != MP_NO_SLOT)
        return mp_fail(MOEPAGE_E_BUSY, "slot %u is read by what a step has submitted", read);
    return MOEPAGE_OK;
}

/* Every scope gives up what it can. */
static moepage_status shrink_scopes(mp_shard *shard)
{
    uint32_t over = MP_NO_SLOT;
    for (uint32_t i = 0; i < shard->pool->n_scopes; i++) {
        mp_scope *scope = &shard->scopes[i];
        uint32_t capacity = atomic_load(&scope->capacity);
        while (scope->used > capacity && mp_pool_evict_one(shard, scope, MP_FOR_DECODE))
            ;
        over = scope->used > capacity ? i : over;
    }
    if (over == MP_NO_SLOT)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_BUSY, "layer %u has more than its share of experts on their way",
                   over);
}

/* Every load ends; of prefetches that no one holds, what is on the bus. */
static moepage_status end_loads(mp_shard *shard)
{
    mp_pipes_flush(shard);
    mp_prefetcher_abandon(shard);
    moepage_status status = mp_pipes_sync(shard);
    if (!status)
        mp_pool_settle_landed(shard);
    return status;
}

/* For who tries once: what only waits for the device is waited for. */
static moepage_status wait_outside(mp_shard *shard, const mp_extent *to, mp_span kept)
{
    moepage_status status = end_loads(shard);
    if (!status)
        status = mp_images_settle(shard, to->compressed);
    for (uint32_t s = shard->first_slot; s < shard->first_slot + shard->n_slots && !status; s++)
        if (s < kept.first || s >= kept.end)
            status = mp_readers_sync(shard, s);
    return status;
}

/* Who tries once leaves what is there alone if any of it is in use. */
static moepage_status check_unused(const mp_shard *shard, mp_span kept)
{
    for (uint32_t s = shard->first_slot; s < shard->first_slot + shard->n_slots; s++)
        if ((s < kept.first || s >= kept.end) && MP_WORD_USERS(atomic_load(&shard->words[s])) > 0)
            return mp_fail(MOEPAGE_E_BUSY, "slot %u is pinned or in an open plan", s);
    return MOEPAGE_OK;
}

/* Up to the fence: from there on, promises are kept by themselves. */
static moepage_status fence(mp_shard *shard, const mp_extent *to, mp_span kept, bool once)
{
    uint32_t capacity = capacity_in(shard, kept);
    shard->move = *to;
    set_aim(shard, capacity);
    moepage_status status = once ? check_unused(shard, kept) : MOEPAGE_OK;
    if (status || is_fenced(shard, to, kept))
        return status;
    status = check_promises(shard, capacity);
    if (!status)
        raise_fence(shard, to, kept);
    return status;
}

static moepage_status clear_out(mp_shard *shard, const mp_extent *to, bool once)
{
    mp_span kept = kept_by(shard, to);
    moepage_status status = fence(shard, to, kept, once);
    if (!status && once)
        status = wait_outside(shard, to, kept);
    if (status)
        return status;
    mp_pool_settle_landed(shard); /* what has landed may go, on either side of the fence */
    moepage_status outside = vacate_outside(shard, kept), scopes = shrink_scopes(shard);
    if (outside || scopes)
        return outside ? outside : scopes;
    if (!mp_images_quiet(shard, to->compressed))
        return mp_fail(MOEPAGE_E_BUSY, "compressed experts that go are still decoded or copied");
    return MOEPAGE_OK;
}

/* ---- take ---- */

static void open_all(mp_shard *shard)
{
    uint32_t capacity = shard->n_slots / shard->pool->n_scopes;
    shard->open = (mp_span){shard->first_slot, shard->first_slot + shard->n_slots};
    shard->move = (mp_extent){0};
    set_capacity(shard, capacity);
    set_aim(shard, capacity);
    mp_images_limit(shard, shard->compressed.n / shard->pool->layers);
    mp_pool_restack(shard);
    mp_prefetcher_start(&shard->prefetcher); /* images may be left to bring */
}

static moepage_status take(mp_shard *shard, const mp_extent *to)
{
    moepage_status status = mp_arena_resize(&shard->home->arena, MP_SIDE_EXPERTS, end_of(to));
    if (status)
        return status;
    shard->first_slot = to->first;
    shard->n_slots = to->slots;
    if (shard->compressed.unit)
        mp_images_set(shard, to->compressed);
    open_all(shard);
    return MOEPAGE_OK;
}

static bool gives_up_anything(const mp_shard *shard, const mp_extent *to)
{
    mp_extent from = extent_of(shard);
    return to->first > from.first || end_of(to) < end_of(&from) || to->compressed < from.compressed;
}

static void stay(mp_shard *shard)
{
    if (shard->move.slots)
        open_all(shard);
}

void mp_pool_stay(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    stay(&pool->shards[0]);
    pthread_mutex_unlock(&pool->lock);
}

void mp_pool_count_resize(struct moepage_expert_pool *pool, bool as_wanted)
{
    pthread_mutex_lock(&pool->lock);
    pool->counters.resizes += as_wanted;
    pool->counters.resizes_refused += !as_wanted;
    pthread_mutex_unlock(&pool->lock);
}

static bool is_same(const mp_extent *a, const mp_extent *b)
{
    return a->compressed == b->compressed && a->slots == b->slots;
}

moepage_status mp_pool_move(struct moepage_expert_pool *pool, const mp_extent *to, bool once)
{
    mp_shard *shard = &pool->shards[0];
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    moepage_status status = check_move(pool, to);
    if (!status && !is_same(&shard->move, to))
        stay(shard); /* another move was begun: its fence stands elsewhere */
    if (!status && gives_up_anything(shard, to))
        status = clear_out(shard, to, once);
    if (!status)
        status = take(shard, to);
    if (status && (once || status != MOEPAGE_E_BUSY) && pool->n_shards == 1)
        stay(shard);
    pthread_mutex_unlock(&pool->lock);
    return status;
}
