/* The window: how a cache serves layers that stream (FluxMoE 3.1).
 *
 * A layer that is used nearly whole, in turn with others, gains nothing from recency: a cache smaller
 * than all of them has always just given away what comes next. So a streaming layer keeps a fixed
 * number of its experts, the same for every layer, so that each leaves as much to be loaded behind
 * the computing of the one before; and its other experts pass through the slots that are left:
 *
 *             wanted for a turn to come        routed
 *   absent ----------------------------> AHEAD -------> PAST -----> absent
 *                                                 \
 *                                                  +-> kept, while its layer keeps too few
 *
 * What is kept is the policy's, as in layers that do not stream. What is in the window is not: the
 * slots that are ahead, and those that are past, are two rings, oldest first. A load for a streaming
 * layer reuses the oldest past slot: that of the layer routed longest ago, which comes again last. What
 * a layer keeps within its number goes only to a demand that would otherwise find nothing. Whatever the number of sessions, what a layer does not keep fits a session's part of the
 * window, so that waves need not think of it.
 *
 * Whether a layer streams is a question of the moment: when its last streaming session stops, what
 * it has in the window goes first, or is kept when it is used.
 *
 * Only layers that share their slots stream. One with slots of its own, too few for its experts, is
 * run in waves that take first what is there: it finds as many experts as it has slots, every time,
 * which nothing can better. */
#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"
#include "cache/inside.h"
#include "policy/ring.h"

/* ---- life ---- */

/* The rings' sentinels, behind the slots' links. */
static uint32_t ahead_of(const mp_shard *shard)
{
    return shard->max_slots;
}

static uint32_t past_of(const mp_shard *shard)
{
    return shard->max_slots + 1;
}

moepage_status mp_window_open(mp_shard *shard)
{
    const mp_cache *cache = shard->cache;
    shard->kept = mp_alloc_array(cache->layers, sizeof *shard->kept);
    shard->window = mp_alloc_array((uint64_t)shard->max_slots + 2, sizeof *shard->window);
    if (!shard->kept || !shard->window)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a window of %u slots", shard->max_slots);
    mp_ring_reset(shard->window, ahead_of(shard));
    mp_ring_reset(shard->window, past_of(shard));
    return MOEPAGE_OK;
}

void mp_window_close(mp_shard *shard)
{
    mp_free(shard->kept);
    mp_free(shard->window);
}

/* ---- layers that stream ---- */

void mp_client_stream(mp_client *client, uint32_t layer, bool on)
{
    mp_cache *cache = client->cache;
    if (client->streams[layer] == on)
        return;
    pthread_mutex_lock(cache->lock);
    client->streams[layer] = on;
    cache->streams[layer] += on ? 1 : -1u;
    if (on && client->n_streams++ == 0)
        atomic_fetch_add(&cache->n_streamers, 1);
    if (!on && --client->n_streams == 0)
        atomic_fetch_sub(&cache->n_streamers, 1);
    pthread_mutex_unlock(cache->lock);
}

bool mp_client_streams(const mp_client *client, uint32_t layer)
{
    return client->streams[layer];
}

bool mp_client_streams_any(const mp_client *client)
{
    return client->n_streams > 0;
}

void mp_cache_begin_turn(mp_cache *cache, uint32_t layer)
{
    uint64_t clock = atomic_load_explicit(&cache->clock, memory_order_relaxed);
    atomic_store_explicit(&cache->turns[layer], clock, memory_order_relaxed);
}

/* What the scope has, or is about to have less. */
static uint32_t slots_of(const mp_scope *scope)
{
    uint32_t capacity = atomic_load_explicit(&scope->capacity, memory_order_relaxed);
    uint32_t aim = atomic_load_explicit(&scope->aim, memory_order_relaxed);
    return aim < capacity ? aim : capacity;
}

/* Returns true if layers share the scope, and too few slots. */
static bool may_stream(const mp_cache *cache, const mp_scope *scope)
{
    return cache->n_scopes == 1 && cache->layers > 1 && slots_of(scope) < scope->members;
}

bool mp_cache_may_stream(const mp_cache *cache)
{
    for (uint32_t d = 0; d < cache->n_shards; d++)
        if (may_stream(cache, &cache->shards[d].scopes[0]))
            return true;
    return false;
}

bool mp_window_serves(const mp_cache *cache, const mp_scope *scope, uint32_t key)
{
    return cache->streams[key / cache->experts] > 0 && may_stream(cache, scope);
}

/* ---- the division ---- */

/* Each streaming session has room for two layers' worth of what is not kept: one computes while the
 * next one loads. With no more than three layers a second one's worth would be so much of the whole
 * that keeping it saves more than it could hide. So keep * layers + (experts - keep) * at_once is
 * what there is, or nothing is kept. */
mp_window_plan mp_window_divide(const mp_shard *shard, const mp_scope *scope)
{
    const mp_cache *cache = shard->cache;
    uint64_t sessions = atomic_load_explicit(&cache->n_streamers, memory_order_relaxed);
    uint32_t capacity = slots_of(scope);
    uint32_t pinned = atomic_load_explicit(&scope->pinned, memory_order_relaxed);
    uint64_t experts = mp_cache_members(cache, shard->device);
    uint64_t layers = cache->layers, keep = 0;
    uint64_t slots = capacity > pinned ? capacity - pinned : 0;
    sessions = sessions ? sessions : 1;
    uint64_t at_once = layers > 3 * sessions ? 2 * sessions : sessions;
    if (at_once < layers && slots > at_once * experts)
        keep = (slots - at_once * experts) / (layers - at_once);
    keep = keep < experts ? keep : experts;
    return (mp_window_plan){.keep = (uint32_t)keep, .slots = (uint32_t)(slots - keep * layers)};
}

uint32_t mp_cache_keeps(const mp_cache *cache)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < cache->n_shards; d++)
        sum += mp_window_divide(&cache->shards[d], &cache->shards[d].scopes[0]).keep;
    return sum;
}

bool mp_cache_is_full(const mp_cache *cache)
{
    for (uint32_t d = 0; d < cache->n_shards; d++)
        if (cache->shards[d].scopes[0].used < slots_of(&cache->shards[d].scopes[0]))
            return false;
    return true;
}

/* ---- in and out ---- */

static void promise(mp_shard *shard, uint32_t slot)
{
    shard->slots[slot].promised = atomic_load(&shard->cache->clock);
    shard->slots[slot].place = MP_PLACE_AHEAD;
    mp_ring_append(shard->window, ahead_of(shard), slot);
}

void mp_window_enter(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key, bool transient)
{
    if (transient) {
        scope->transients++;
        promise(shard, slot);
        return;
    }
    shard->slots[slot].place = MP_PLACE_KEPT;
    shard->kept[key / shard->cache->experts]++;
}

void mp_window_leave(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key)
{
    if (shard->slots[slot].place == MP_PLACE_KEPT) {
        shard->kept[key / shard->cache->experts]--;
        return;
    }
    mp_ring_unlink(shard->window, slot);
    shard->slots[slot].place = MP_PLACE_KEPT;
    scope->transients--;
}

void mp_window_keep(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key)
{
    mp_window_leave(shard, scope, slot, key);
    shard->kept[key / shard->cache->experts]++;
}

bool mp_window_use(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key)
{
    const mp_cache *cache = shard->cache;
    assert(shard->slots[slot].place != MP_PLACE_KEPT);
    bool serves = mp_window_serves(cache, scope, key);
    if (!serves || shard->kept[key / cache->experts] < mp_window_divide(shard, scope).keep) {
        mp_window_keep(shard, scope, slot, key);
        return true;
    }
    mp_ring_unlink(shard->window, slot);
    shard->slots[slot].place = MP_PLACE_PAST;
    mp_ring_append(shard->window, past_of(shard), slot);
    return false;
}

void mp_window_promise(mp_shard *shard, uint32_t slot)
{
    if (shard->slots[slot].place == MP_PLACE_KEPT)
        return;
    mp_ring_unlink(shard->window, slot);
    promise(shard, slot);
}

/* ---- victims ---- */

/* Returns true if the slot's expert is resident and has no users. */
static bool may_go(const mp_shard *shard, uint32_t slot)
{
    uint64_t word = atomic_load_explicit(&shard->words[slot], memory_order_relaxed);
    return MP_WORD_STATE(word) == MP_SLOT_RESIDENT && MP_WORD_USERS(word) == 0;
}

/* Returns true if the expert's turn has come since it was promised, and passed without it; or if no turn
 * is to come. */
static bool was_wrong(const mp_shard *shard, uint32_t slot)
{
    const mp_cache *cache = shard->cache;
    uint32_t layer = mp_shard_key_in(shard, slot) / cache->experts;
    return cache->streams[layer] == 0 ||
           shard->slots[slot].promised <
               atomic_load_explicit(&cache->turns[layer], memory_order_relaxed);
}

bool mp_window_has_excess(const mp_shard *shard, uint32_t keep)
{
    const mp_cache *cache = shard->cache;
    for (uint32_t l = 0; l < cache->layers; l++)
        if (cache->streams[l] > 0 && shard->kept[l] > keep)
            return true;
    return false;
}

uint32_t mp_window_victim(const mp_shard *shard, bool to_come)
{
    const mp_link *links = shard->window;
    uint32_t past = past_of(shard), ahead = ahead_of(shard);
    for (uint32_t slot = links[ahead].next; slot != ahead; slot = links[slot].next) {
        if (!may_go(shard, slot))
            continue;
        if (was_wrong(shard, slot))
            return slot;
        break; /* later ones were promised later */
    }
    for (uint32_t slot = links[past].next; slot != past; slot = links[slot].next)
        if (may_go(shard, slot))
            return slot;
    for (uint32_t slot = links[ahead].prev; to_come && slot != ahead; slot = links[slot].prev)
        if (may_go(shard, slot))
            return slot; /* what comes last */
    return MP_NO_SLOT;
}

uint32_t mp_shard_window_room(const mp_shard *shard, uint32_t key, uint32_t most)
{
    const mp_scope *scope = mp_shard_scope(shard, key);
    const mp_link *links = shard->window;
    uint32_t capacity = slots_of(scope), past = past_of(shard);
    uint32_t window = mp_window_divide(shard, scope).slots;
    uint32_t unused = capacity > scope->used ? capacity - scope->used : 0;
    uint64_t room = unused;
    if (scope->transients + unused < window) /* others have more than their part */
        room += window - scope->transients - unused;
    for (uint32_t slot = links[past].next; slot != past && room < most; slot = links[slot].next)
        room += may_go(shard, slot);
    return room < most ? (uint32_t)room : most;
}
