/* The window: how a cache serves layers that stream (FluxMoE 3.1).
 *
 * Layers that are used nearly whole, one after the other, gain nothing from recency: a cache
 * smaller than all of them has always just evicted what comes next. So a streaming layer keeps a
 * fixed number of its experts. The number is the same for every layer, so that each leaves as much
 * to be loaded while the one before it computes. Its other experts pass through the slots that are
 * left, the window:
 *
 *             wanted for a turn to come        routed
 *   absent ----------------------------> AHEAD -------> PAST -----> absent
 *                                                 \      ^
 *                                                  +-> kept
 *
 * What is kept is what is used most: a routed expert of the window is kept while its layer keeps
 * too few, and otherwise takes the place of the least used one that is kept, which goes on as PAST,
 * if it is used more. Uses are counted whether a layer streams or not, so that one that begins to
 * stream soon keeps the right experts, whatever it found in its slots.
 *
 * The policy ranks what is kept, as in layers that do not stream. It does not know what is in the
 * window: AHEAD and PAST slots form two rings, oldest first. A load for a streaming layer reuses
 * the oldest PAST slot: that of the layer routed longest ago, which will be needed again last.
 * Experts within a layer's number give way only to a demand that would otherwise find no slot.
 * Whatever the number of sessions, the experts that a layer does not keep fit a session's part of
 * the window, so that waves need no rule of their own.
 *
 * A layer may start and stop streaming at any time: when its last streaming session stops, its
 * experts in the window are the first to be evicted, and one that is used before is kept.
 *
 * Only layers that share their slots stream. One with slots of its own, too few for its experts, is
 * run in waves that take resident experts first: it finds as many experts as it has slots, every
 * time, and no other order can find more. */
#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"
#include "cache/inside.h"
#include "planning/regime.h"
#include "policy/ring.h"

/* Once a layer's experts have been used this often on average, all of its counts are halved: what is
 * kept follows a load that changes. Half or twice as much makes no difference of a percent. */
#define USES_EACH 16u

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

/* Returns the scope's capacity, or its aim if it is about to shrink. */
static uint32_t slots_of(const mp_scope *scope)
{
    uint32_t capacity = atomic_load_explicit(&scope->capacity, memory_order_relaxed);
    uint32_t aim = atomic_load_explicit(&scope->aim, memory_order_relaxed);
    return aim < capacity ? aim : capacity;
}

/* Returns true if layers share the scope and its slots are too few for all their experts. */
static bool may_stream(const mp_cache *cache, const mp_scope *scope)
{
    return !cache->setup.per_layer && scope->layers > 1 && slots_of(scope) < scope->members;
}

bool mp_cache_may_stream(const mp_cache *cache)
{
    for (uint32_t d = 0; d < cache->n_shards; d++)
        for (uint32_t i = 0; i < cache->n_scopes; i++)
            if (may_stream(cache, &cache->shards[d].scopes[i]))
                return true;
    return false;
}

bool mp_window_serves(const mp_cache *cache, const mp_scope *scope, uint32_t key)
{
    return cache->streams[key / cache->experts] > 0 && may_stream(cache, scope);
}

/* ---- the division ---- */

mp_window_plan mp_window_divide(const mp_shard *shard, const mp_scope *scope)
{
    const mp_cache *cache = shard->cache;
    uint32_t sessions = atomic_load_explicit(&cache->n_streamers, memory_order_relaxed);
    uint32_t capacity = slots_of(scope);
    uint32_t pinned = atomic_load_explicit(&scope->pinned, memory_order_relaxed);
    uint32_t slots = capacity > pinned ? capacity - pinned : 0;
    uint32_t keep = mp_regime_keep(slots, scope->layers, mp_cache_members(cache, shard->device),
                                   sessions ? sessions : 1);
    return (mp_window_plan){.keep = keep, .slots = slots - keep * scope->layers};
}

/* The fewest that a layer keeps on a device. */
static uint32_t fewest_kept(const mp_shard *shard)
{
    uint32_t fewest = UINT32_MAX;
    for (uint32_t i = 0; i < shard->cache->n_scopes; i++) {
        uint32_t keep = mp_window_divide(shard, &shard->scopes[i]).keep;
        fewest = keep < fewest ? keep : fewest;
    }
    return fewest;
}

uint32_t mp_cache_keeps(const mp_cache *cache)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < cache->n_shards; d++)
        sum += fewest_kept(&cache->shards[d]);
    return sum;
}

uint32_t mp_cache_window(const mp_cache *cache)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < cache->n_shards; d++)
        for (uint32_t i = 0; i < cache->n_scopes; i++)
            sum += mp_window_divide(&cache->shards[d], &cache->shards[d].scopes[i]).slots;
    return sum;
}

void mp_cache_foresee(const mp_cache *cache, uint32_t layer, const uint8_t *sets, double *passing)
{
    const uint8_t *uses = &cache->uses[layer * cache->experts];
    uint32_t n_of[UINT8_MAX + 1] = {0}, keep = mp_cache_keeps(cache), least = UINT8_MAX, stay = 0;
    for (uint32_t e = 0; e < cache->experts; e++)
        n_of[uses[e]]++;
    while (least > 0 && stay + n_of[least] <= keep)
        stay += n_of[least--];
    /* What is used more than `least` stays, and so does a part of what is used as much. */
    double part = n_of[least] > keep - stay ? 1 - (double)(keep - stay) / n_of[least] : 0;
    for (uint32_t s = 0; s < 4; s++)
        passing[s] = 0;
    for (uint32_t e = 0; e < cache->experts; e++)
        passing[sets[e]] += uses[e] > least ? 0 : uses[e] == least ? part : 1;
}

void mp_cache_concentrate(const mp_cache *cache, double *part)
{
    double all = 0;
    for (uint32_t x = 0; x <= cache->experts; x++)
        part[x] = 0;
    for (uint32_t l = 0; l < cache->layers; l++) {
        const uint8_t *uses = &cache->uses[l * cache->experts];
        uint32_t n_of[UINT8_MAX + 1] = {0}, x = 0;
        for (uint32_t e = 0; e < cache->experts; e++)
            n_of[uses[e]]++;
        for (uint32_t n = UINT8_MAX + 1; n-- > 0;)
            for (uint32_t i = 0; i < n_of[n]; i++)
                part[++x] += n;
        all += cache->all_uses[l];
    }
    for (uint32_t x = 1; x <= cache->experts; x++)
        part[x] = part[x - 1] + (all > 0 ? part[x] / all : 1.0 / cache->experts);
}

bool mp_cache_is_full(const mp_cache *cache)
{
    for (uint32_t d = 0; d < cache->n_shards; d++)
        for (uint32_t i = 0; i < cache->n_scopes; i++)
            if (cache->shards[d].scopes[i].used < slots_of(&cache->shards[d].scopes[i]))
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

void mp_window_enter(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key)
{
    shard->kept[key / shard->cache->experts]--;
    scope->transients++;
    promise(shard, slot);
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

void mp_window_count(mp_cache *cache, uint32_t key)
{
    const uint32_t layer = key / cache->experts;
    uint8_t *uses = &cache->uses[layer * cache->experts];
    if (cache->uses[key] < UINT8_MAX)
        cache->uses[key]++;
    if (++cache->all_uses[layer] < USES_EACH * cache->experts)
        return;
    cache->all_uses[layer] = 0;
    for (uint32_t e = 0; e < cache->experts; e++)
        cache->all_uses[layer] += uses[e] /= 2;
}

/* Finds the least used expert that the key's layer keeps on this device, if it is used less than the
 * key; MP_NO_SLOT otherwise. Within a turn experts are counted one after the other, so that a
 * difference of one is none. */
static uint32_t find_less_used(const mp_shard *shard, uint32_t key)
{
    const mp_cache *cache = shard->cache;
    const uint32_t first = key / cache->experts * cache->experts;
    uint32_t least = MP_NO_SLOT, below = cache->uses[key] > 0 ? cache->uses[key] - 1u : 0;
    for (uint32_t k = first; k < first + cache->experts; k++) {
        uint32_t slot = atomic_load_explicit(&cache->entry[k], memory_order_relaxed);
        if (cache->uses[k] >= below || slot == MP_NO_SLOT || mp_cache_shard_of(cache, k) != shard)
            continue;
        const mp_slot *of = &shard->slots[slot];
        if (of->place != MP_PLACE_KEPT || !of->ranked || of->pins > 0)
            continue;
        least = slot;
        below = cache->uses[k];
    }
    return least;
}

/* Appends a slot that is in no ring to those that are PAST. */
static void let_pass(mp_shard *shard, uint32_t slot)
{
    shard->slots[slot].place = MP_PLACE_PAST;
    mp_ring_append(shard->window, past_of(shard), slot);
}

/* Moves a slot that its layer keeps to the window, as PAST. */
static void let_go(mp_shard *shard, mp_scope *scope, uint32_t slot)
{
    uint32_t key = mp_shard_key_in(shard, slot);
    mp_slot_unrank(shard, scope, slot, key);
    let_pass(shard, slot);
    shard->kept[key / shard->cache->experts]--;
    scope->transients++;
}

bool mp_window_use(mp_shard *shard, mp_scope *scope, uint32_t slot, uint32_t key)
{
    const mp_cache *cache = shard->cache;
    assert(shard->slots[slot].place != MP_PLACE_KEPT);
    bool keeps = !mp_window_serves(cache, scope, key) ||
                 shard->kept[key / cache->experts] < mp_window_divide(shard, scope).keep;
    uint32_t other = keeps ? MP_NO_SLOT : find_less_used(shard, key);
    if (other != MP_NO_SLOT)
        let_go(shard, scope, other);
    if (keeps || other != MP_NO_SLOT) {
        mp_window_keep(shard, scope, slot, key);
        return true;
    }
    mp_ring_unlink(shard->window, slot);
    let_pass(shard, slot);
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

static bool is_layer_of(const mp_shard *shard, uint32_t layer, const mp_scope *scope)
{
    return &shard->scopes[shard->cache->scope_of_layer[layer]] == scope;
}

/* Returns true if the slot's expert is of the scope, resident, and has no users. */
static bool may_go(const mp_shard *shard, const mp_scope *scope, uint32_t slot)
{
    uint64_t word = atomic_load_explicit(&shard->words[slot], memory_order_relaxed);
    return MP_WORD_STATE(word) == MP_SLOT_RESIDENT && MP_WORD_USERS(word) == 0 &&
           is_layer_of(shard, MP_WORD_KEY(word) / shard->cache->experts, scope);
}

/* Returns true if a turn of the expert's layer has begun since it was promised, and did not use it;
 * or if no session streams the layer any more. */
static bool was_wrong(const mp_shard *shard, uint32_t slot)
{
    const mp_cache *cache = shard->cache;
    uint32_t layer = mp_shard_key_in(shard, slot) / cache->experts;
    return cache->streams[layer] == 0 ||
           shard->slots[slot].promised <
               atomic_load_explicit(&cache->turns[layer], memory_order_relaxed);
}

bool mp_window_has_excess(const mp_shard *shard, const mp_scope *scope, uint32_t keep)
{
    const mp_cache *cache = shard->cache;
    for (uint32_t l = 0; l < cache->layers; l++)
        if (is_layer_of(shard, l, scope) && cache->streams[l] > 0 && shard->kept[l] > keep)
            return true;
    return false;
}

uint32_t mp_window_victim(const mp_shard *shard, const mp_scope *scope, bool to_come)
{
    const mp_link *links = shard->window;
    uint32_t past = past_of(shard), ahead = ahead_of(shard);
    for (uint32_t slot = links[ahead].next; slot != ahead; slot = links[slot].next) {
        if (!may_go(shard, scope, slot))
            continue;
        if (was_wrong(shard, slot))
            return slot;
        break; /* later ones were promised later */
    }
    for (uint32_t slot = links[past].next; slot != past; slot = links[slot].next)
        if (may_go(shard, scope, slot))
            return slot;
    for (uint32_t slot = links[ahead].prev; to_come && slot != ahead; slot = links[slot].prev)
        if (may_go(shard, scope, slot))
            return slot; /* what comes last */
    return MP_NO_SLOT;
}

uint32_t mp_window_room(const mp_shard *shard, const mp_scope *scope, uint32_t most)
{
    const mp_link *links = shard->window;
    uint32_t capacity = slots_of(scope), past = past_of(shard);
    uint32_t window = mp_window_divide(shard, scope).slots;
    uint32_t unused = capacity > scope->used ? capacity - scope->used : 0;
    uint64_t room = unused;
    /* the rest belongs to the window, but others have it */
    if (scope->transients + unused < window)
        room += window - scope->transients - unused;
    for (uint32_t slot = links[past].next; slot != past && room < most; slot = links[slot].next)
        room += may_go(shard, scope, slot);
    return room < most ? (uint32_t)room : most;
}
