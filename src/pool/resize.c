/* Moving the ends of the experts' side while it serves. Slots that a pool gives up are drained,
 * never seized, in three phases:
 *
 *   aim     Sessions are told how many slots they may count on from now on; layers opened later
 *           reserve no more. The next phase begins when open layers count on no more either, since
 *           each must find the slots that it was promised.
 *   fence   Slots that are to go take no more experts. Their experts are dropped or, if a plan uses
 *           them, taken out of the map, so that their next use loads them into another slot.
 *   take    When every such slot is free and its bytes have no readers, the arena takes them back,
 *           and the side that grows gets them.
 *
 * No session counts on slots for high versions: behind the fence they leave as in every change of versions
 * (ahead/versions_move.c). */
#include "base/status.h"
#include "pool/inside.h"

/* ---- possible extents ---- */

mp_extent mp_pool_extent(const struct moepage_expert_pool *pool, uint32_t compressed,
                         uint32_t slots)
{
    return (mp_extent){.compressed = compressed,
                       .first =
                           pool->low_slots[0] + mp_images_places(pool->transfers[0], compressed),
                       .slots = slots};
}

static mp_span span_of(const mp_extent *extent)
{
    return (mp_span){extent->first, extent->first + extent->slots};
}

static mp_extent extent_now(const struct moepage_expert_pool *pool)
{
    mp_span slots = mp_shard_slots(pool->shards[0]);
    return (mp_extent){.compressed = mp_images_rounds(pool->transfers[0]),
                       .first = slots.first,
                       .slots = slots.end - slots.first};
}

mp_extent mp_pool_get_extent(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mp_extent extent = extent_now(pool);
    pthread_mutex_unlock(&pool->lock);
    return extent;
}

/* Returns the slots that the pool has before the move and after it. */
static mp_span kept_by(const struct moepage_expert_pool *pool, const mp_extent *to)
{
    mp_span from = mp_shard_slots(pool->shards[0]), after = span_of(to);
    return (mp_span){from.first > after.first ? from.first : after.first,
                     from.end < after.end ? from.end : after.end};
}

static bool is_within(uint32_t slot, mp_span span)
{
    return slot >= span.first && slot < span.end;
}

static moepage_status check_images(const struct moepage_expert_pool *pool, const mp_extent *to)
{
    if (to->compressed == mp_images_rounds(pool->transfers[0]))
        return MOEPAGE_OK;
    return mp_images_check(pool->transfers[0], to->compressed, "the pool");
}

static uint32_t high_per_layer(const struct moepage_expert_pool *pool, uint32_t slots)
{
    return slots / pool->layers;
}

static moepage_status check_versions(const struct moepage_expert_pool *pool, uint32_t slots)
{
    uint32_t least = mp_versions_least(pool->versions[0]);
    if (high_per_layer(pool, slots) >= least)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_BUDGET,
        "%u slots are %u high versions per layer: pinned experts, and low versions that have no "
        "places, need %u",
        slots, high_per_layer(pool, slots), least);
}

static moepage_status check_extent(const struct moepage_expert_pool *pool, const mp_extent *to)
{
    const mp_shard *shard = pool->shards[0];
    uint64_t bundles = mp_arena_side_max(&pool->homes[0]->arena, MP_SIDE_EXPERTS);
    uint64_t room = bundles * pool->bundle.n_slots;
    uint64_t most = room > to->first ? room - to->first : 0;
    if (most > pool->keys)
        most = pool->keys;
    if (to->slots < 1 || to->slots > most || to->slots % pool->step_slots != 0)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "%u slots: the pool can have 1 to %llu, in multiples of %u", to->slots,
                       (unsigned long long)most, pool->step_slots);
    return pool->serves_versions ? check_versions(pool, to->slots)
                                 : mp_shard_check_capacity(shard, kept_by(pool, to), to->slots);
}

static moepage_status check_move(const struct moepage_expert_pool *pool, const mp_extent *to)
{
    if (pool->n_devices != 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "a pool over %u devices cannot be resized",
                       pool->n_devices);
    moepage_status status = check_images(pool, to);
    return status ? status : check_extent(pool, to);
}

moepage_status mp_pool_check_move(struct moepage_expert_pool *pool, const mp_extent *to)
{
    pthread_mutex_lock(&pool->lock);
    moepage_status status = check_move(pool, to);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- fence ---- */

/* Empties a slot behind the fence if it is not in use. Returns true if it is free now. */
static bool vacate(struct moepage_expert_pool *pool, mp_shard *shard, uint32_t slot)
{
    mp_slot_view view = mp_shard_view(shard, slot);
    if (pool->serves_versions)
        ; /* it leaves by itself */
    else if (view.state == MP_SLOT_LOADING)
        mp_ahead_call_off(pool->ahead, shard, slot, view.users > 0);
    else
        mp_shard_vacate(shard, slot);
    return mp_shard_view(shard, slot).state == MP_SLOT_FREE;
}

/* Empties every slot outside of `kept` that can be emptied now. Fails with BUSY if
 * any could not. */
static moepage_status vacate_outside(struct moepage_expert_pool *pool, mp_span kept)
{
    mp_shard *shard = pool->shards[0];
    mp_span all = mp_shard_slots(shard);
    uint32_t in_use = MP_NO_SLOT, read = MP_NO_SLOT;
    for (uint32_t s = all.first; s < all.end; s++) {
        if (is_within(s, kept))
            continue;
        if (!vacate(pool, shard, s))
            in_use = s;
        else if (!mp_readers_done(pool->transfers[0], s))
            read = s;
    }
    if (in_use != MP_NO_SLOT)
        return mp_fail(
            MOEPAGE_E_BUSY,
            "slot %u is pinned, in an open plan or seen by an open step, or its expert is "
            "on its way",
            in_use);
    if (read != MP_NO_SLOT)
        return mp_fail(MOEPAGE_E_BUSY, "slot %u is still read by work that a step has submitted",
                       read);
    return MOEPAGE_OK;
}

/* Waits for all loads that are submitted, and gives up unfinished prefetches that no plan holds. */
static moepage_status end_loads(struct moepage_expert_pool *pool)
{
    mp_transfer_flush(pool->transfers[0]);
    mp_ahead_abandon(pool->ahead, 0);
    moepage_status status = mp_transfer_sync(pool->transfers[0]);
    if (!status)
        mp_shard_settle_all(pool->shards[0]);
    return status;
}

/* For a move that is tried once: waits for everything that only the device delays. */
static moepage_status wait_outside(struct moepage_expert_pool *pool, const mp_extent *to,
                                   mp_span kept)
{
    mp_span all = mp_shard_slots(pool->shards[0]);
    moepage_status status = end_loads(pool);
    if (!status)
        status = mp_images_settle(pool->transfers[0], to->compressed);
    for (uint32_t s = all.first; s < all.end && !status; s++)
        if (!is_within(s, kept))
            status = mp_readers_sync(pool->transfers[0], s);
    return status;
}

/* A move that is tried once does nothing if any slot that is to go is in use. */
static moepage_status check_unused(const mp_shard *shard, mp_span kept)
{
    mp_span all = mp_shard_slots(shard);
    for (uint32_t s = all.first; s < all.end; s++)
        if (!is_within(s, kept) && mp_shard_view(shard, s).users > 0)
            return mp_fail(MOEPAGE_E_BUSY, "slot %u is pinned or in an open plan", s);
    return MOEPAGE_OK;
}

static bool is_fenced(const struct moepage_expert_pool *pool, const mp_extent *to, mp_span kept)
{
    mp_span open = mp_shard_open_slots(pool->shards[0]);
    return open.first == kept.first && open.end == kept.end &&
           mp_images_usable(pool->transfers[0]) <= to->compressed;
}

/* Aims, and fences if no open layer counts on more. Behind a fence promises need no more checks:
 * sessions have been told the lower number since the aim. */
static moepage_status fence(struct moepage_expert_pool *pool, const mp_extent *to, mp_span kept,
                            bool once)
{
    mp_shard *shard = pool->shards[0];
    pool->move = *to;
    mp_shard_set_aim(shard, kept);
    moepage_status status = once ? check_unused(shard, kept) : MOEPAGE_OK;
    if (status || is_fenced(pool, to, kept))
        return status;
    status = mp_shard_check_promises(shard, kept);
    if (status)
        return status;
    mp_images_limit(pool->transfers[0], to->compressed);
    mp_shard_fence(shard, kept);
    return MOEPAGE_OK;
}

/* Fences, and makes high versions leave. */
static moepage_status dismiss_versions(struct moepage_expert_pool *pool, const mp_extent *to,
                                       mp_span kept, bool once)
{
    uint32_t n_high = high_per_layer(pool, to->slots);
    pool->move = *to;
    mp_shard_fence(pool->shards[0], kept);
    return mp_versions_shrink(pool->versions[0], kept, n_high, once);
}

static moepage_status clear_out(struct moepage_expert_pool *pool, const mp_extent *to, bool once)
{
    mp_shard *shard = pool->shards[0];
    mp_span kept = kept_by(pool, to);
    moepage_status status = pool->serves_versions ? dismiss_versions(pool, to, kept, once)
                                                  : fence(pool, to, kept, once);
    if (!status && once)
        status = wait_outside(pool, to, kept);
    if (status)
        return status;
    /* So that loads that have landed can be evicted, on both sides of the fence. */
    mp_shard_settle_all(shard);
    moepage_status outside = vacate_outside(pool, kept), scopes = mp_shard_shrink_scopes(shard);
    if (outside || scopes)
        return outside ? outside : scopes;
    if (!mp_images_quiet(pool->transfers[0], to->compressed))
        return mp_fail(MOEPAGE_E_BUSY, "compressed experts that go are still decoded or copied");
    return MOEPAGE_OK;
}

/* ---- take ---- */

static void open_all(struct moepage_expert_pool *pool, mp_span slots)
{
    pool->move = (mp_extent){0};
    mp_images_limit(pool->transfers[0], mp_images_rounds(pool->transfers[0]));
    mp_shard_set_slots(pool->shards[0], slots);
    if (pool->serves_versions)
        mp_versions_set_high(pool->versions[0], high_per_layer(pool, slots.end - slots.first));
    mp_ahead_start(pool->ahead, 0); /* images may be left to copy */
}

static moepage_status take(struct moepage_expert_pool *pool, const mp_extent *to)
{
    mp_span slots = span_of(to);
    moepage_status status =
        mp_arena_resize(&pool->homes[0]->arena, MP_SIDE_EXPERTS, slots.end / pool->bundle.n_slots);
    if (status)
        return status;
    if (mp_images_possible(pool->transfers[0]))
        mp_images_set(pool->transfers[0], to->compressed);
    open_all(pool, slots);
    return MOEPAGE_OK;
}

static bool gives_up_anything(const struct moepage_expert_pool *pool, const mp_extent *to)
{
    mp_extent now = extent_now(pool);
    return to->first > now.first || span_of(to).end < span_of(&now).end ||
           to->compressed < now.compressed;
}

/* Ends a move under way: removes its fence. */
static void stay(struct moepage_expert_pool *pool)
{
    if (pool->move.slots)
        open_all(pool, mp_shard_slots(pool->shards[0]));
}

void mp_pool_stay(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    stay(pool);
    pthread_mutex_unlock(&pool->lock);
}

void mp_pool_count_resize(struct moepage_expert_pool *pool, bool as_wanted)
{
    pthread_mutex_lock(&pool->lock);
    pool->resizes += as_wanted;
    pool->resizes_refused += !as_wanted;
    pthread_mutex_unlock(&pool->lock);
}

static bool is_same(const mp_extent *a, const mp_extent *b)
{
    return a->compressed == b->compressed && a->slots == b->slots;
}

moepage_status mp_pool_move(struct moepage_expert_pool *pool, const mp_extent *to, bool once)
{
    pthread_mutex_lock(&pool->lock);
    mp_cache_drain_touches(pool->cache);
    moepage_status status = check_move(pool, to);
    if (!status && !is_same(&pool->move, to))
        stay(pool); /* a different move was begun, with its fence elsewhere */
    if (!status && gives_up_anything(pool, to))
        status = clear_out(pool, to, once);
    if (!status)
        status = take(pool, to);
    if (status && (once || status != MOEPAGE_E_BUSY) && pool->n_devices == 1)
        stay(pool);
    pthread_mutex_unlock(&pool->lock);
    return status;
}
