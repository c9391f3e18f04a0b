/* Hits: holding resident experts without the lock, and telling the policy of it later. Clients
 * record their hits in rings; the next holder of the lock replays the rings of all clients in the
 * order in which the hits happened, so that recency is exact at every decision. */
#include "cache/inside.h"

#include <assert.h>

/* A key's top bit marks a touch by prefill alone. */
#define TOUCH_SCAN 0x80000000u

/* ---- the fast path ---- */

static uint32_t used_words(const mp_touch_ring *ring)
{
    return atomic_load_explicit(&ring->head, memory_order_acquire) -
           atomic_load_explicit(&ring->tail, memory_order_acquire);
}

/* Appends one routed set to the client's ring; false if it has no room. */
static bool record_touches(mp_client *client, const mp_hold *holds, uint32_t n)
{
    mp_touch_ring *ring = &client->ring;
    if (used_words(ring) + MP_TOUCH_HEADER + n > ring->mask + 1)
        return false;
    uint64_t stamp = atomic_fetch_add_explicit(&client->cache->clock, 1, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    ring->words[head++ & ring->mask] = (uint32_t)stamp;
    ring->words[head++ & ring->mask] = (uint32_t)(stamp >> 32);
    ring->words[head++ & ring->mask] = client->decodes;
    ring->words[head++ & ring->mask] = n;
    for (uint32_t i = 0; i < n; i++)
        ring->words[head++ & ring->mask] = holds[i].key | (holds[i].scan ? TOUCH_SCAN : 0);
    atomic_store_explicit(&ring->head, head, memory_order_release);
    return true;
}

/* Adds a user to the slot that the map names if the key is there and RESIDENT. The word is
 * compared whole: if the map entry was stale, the exchange fails rather than count a user
 * of another expert. */
static bool try_hold(const mp_cache *cache, mp_hold *hold)
{
    const mp_shard *shard = &cache->shards[hold->shard];
    uint32_t index = atomic_load_explicit(&cache->entry[hold->key], memory_order_acquire);
    if (index == MP_NO_SLOT)
        return false;
    _Atomic uint64_t *at = &shard->words[index];
    uint64_t word = atomic_load_explicit(at, memory_order_relaxed);
    do
        if (MP_WORD_IDENTITY(word) != MP_WORD(hold->key, MP_SLOT_RESIDENT))
            return false;
    while (!atomic_compare_exchange_weak_explicit(at, &word, word + 1, memory_order_acq_rel,
                                                  memory_order_relaxed));
    hold->slot = index;
    hold->kind = MP_HOLD_HIT;
    hold->form = cache->setup.slot_form;
    hold->address = shard->address[index];
    hold->ready = true;
    return true;
}

void mp_client_begin_step(mp_client *client, uint32_t decodes)
{
    client->decodes = decodes;
}

uint32_t mp_client_decodes(const mp_client *client)
{
    return client->decodes;
}

static void replay_now(mp_cache *cache)
{
    pthread_mutex_lock(cache->lock);
    mp_cache_drain_touches(cache);
    pthread_mutex_unlock(cache->lock);
}

void mp_client_tell(mp_client *client, const mp_hold *holds, uint32_t n)
{
    if (record_touches(client, holds, n))
        return;
    replay_now(client->cache);
    bool fits = record_touches(client, holds, n); /* a ring is longer than any record */
    assert(fits);
    (void)fits;
}

uint32_t mp_client_hold_resident(mp_client *client, mp_hold *holds, uint32_t n)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < n; i++) {
        holds[i].kind = MP_HOLD_NONE;
        holds[i].ready = false;
        holds[i].may_run_in_place = false; /* until the caller allows it for this holding */
        holds[i].demanded = 0;
        holds[i].cold = false;
        held += try_hold(client->cache, &holds[i]);
    }
    if (held == n)
        mp_client_tell(client, holds, n);
    return held;
}

/* The last user of a failed load, or of a slot that drains, frees the slot. */
void mp_cache_release(mp_cache *cache, mp_hold *hold)
{
    mp_shard *shard = &cache->shards[hold->shard];
    uint64_t before = atomic_fetch_sub_explicit(&shard->words[hold->slot], 1, memory_order_acq_rel);
    uint32_t state = MP_WORD_STATE(before);
    if (state == MP_SLOT_LOADING) /* perhaps no other plan waits for its bytes */
        atomic_store(&shard->orphans, true);
    if ((state == MP_SLOT_FAILED || state == MP_SLOT_DRAINING) && MP_WORD_USERS(before) == 1) {
        pthread_mutex_lock(cache->lock);
        mp_shard_drop(shard, hold->slot, MP_WORD_KEY(before), state);
        pthread_mutex_unlock(cache->lock);
    }
    hold->kind = MP_HOLD_NONE;
    hold->ready = false;
}

void mp_client_relieve(const mp_client *client)
{
    if (used_words(&client->ring) > client->ring.mask / 2) /* room for a whole step is left */
        replay_now(client->cache);
}

/* ---- the slow path; the lock is held ---- */

void mp_shard_hold(mp_shard *shard, uint32_t index, mp_hold *hold, uint8_t kind)
{
    hold->slot = index;
    hold->kind = kind;
    hold->form = shard->cache->setup.slot_form;
    hold->address = shard->address[index];
}

void mp_shard_add_user(mp_shard *shard, uint32_t index)
{
    atomic_fetch_add(&shard->words[index], 1);
}

bool mp_cache_is_resident(mp_cache *cache, uint32_t key)
{
    mp_shard *shard = mp_cache_shard_of(cache, key);
    uint32_t index = atomic_load(&cache->entry[key]);
    if (index == MP_NO_SLOT)
        return false;
    mp_shard_settle(shard, index);
    return atomic_load(&cache->entry[key]) == index &&
           MP_WORD_STATE(atomic_load(&shard->words[index])) == MP_SLOT_RESIDENT;
}

/* ---- telling the policy, the tallies and the watch; the lock is held ---- */

/* Tells the policy of every device the whole set, cache->routed[n], without scans if the cache is
 * guarded against them: experts on other devices say as much about what comes next. The policy has
 * `route`, and n is not 0. */
static void tell_routed(mp_cache *cache, uint32_t n)
{
    uint32_t scope = cache->scope_of_layer[cache->routed[0] / cache->experts];
    uint32_t first_key = cache->shards[0].scopes[scope].first_key;
    for (uint32_t i = 0; i < n; i++)
        cache->routed[i] -= first_key;
    for (uint32_t d = 0; d < cache->n_shards; d++)
        cache->policy->route(cache->shards[d].scopes[scope].policy_state, cache->routed, n);
}

static void count_useful(mp_cache *cache, const mp_slot *slot, uint32_t key)
{
    mp_prefetch_tally *tally = mp_cache_tally(cache, slot, key);
    cache->counters.prefetch_useful++;
    cache->counters.useful_bytes += slot->ahead_bytes;
    if (tally)
        tally->useful++;
}

/* Counts a routed, resident expert's use and makes it recent. A scan does not refresh what decode uses. */
static void touch(mp_cache *cache, uint32_t key, bool scan, uint64_t stamp)
{
    mp_shard *shard = mp_cache_shard_of(cache, key);
    mp_scope *scope = mp_shard_scope(shard, key);
    uint32_t index = atomic_load_explicit(&cache->entry[key], memory_order_relaxed);
    mp_window_count(cache, key);
    if (index == MP_NO_SLOT)
        return; /* evicted, or its load failed, since the touch was recorded */
    mp_slot *slot = &shard->slots[index];
    if (stamp < slot->taken)
        return; /* evicted since, and loaded again */
    if (slot->prefetched && !slot->used)
        count_useful(cache, slot, key);
    slot->used = true;
    slot->touched = stamp;
    if (slot->place != MP_PLACE_KEPT) {
        mp_shard_rank(shard, index, key);
        return;
    }
    if (cache->scan_percent != 0 && scan && !slot->scan)
        return;
    if (!scan && slot->scan) {
        slot->scan = false;
        scope->scans--;
    }
    if (slot->ranked)
        cache->policy->touch(scope->policy_state, key - scope->first_key);
    else /* the session that loaded it has not ended its set yet */
        mp_shard_rank(shard, index, key);
}

static uint32_t word_at(const mp_touch_ring *ring, uint32_t at)
{
    return ring->words[at & ring->mask];
}

static uint64_t oldest_stamp(const mp_touch_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    return word_at(ring, tail) | (uint64_t)word_at(ring, tail + 1) << 32;
}

/* Makes the record's experts recent; their slots are the policy's. */
static void replay_hits(mp_cache *cache, const mp_touch_ring *ring, uint32_t tail, uint32_t n)
{
    uint64_t stamp = oldest_stamp(ring);
    uint32_t routed = 0;
    for (uint32_t i = 0; cache->policy->route && i < n; i++) {
        uint32_t word = word_at(ring, tail + MP_TOUCH_HEADER + i);
        if (!(word & TOUCH_SCAN) || cache->scan_percent == 0)
            cache->routed[routed++] = word & ~TOUCH_SCAN;
    }
    if (routed > 0)
        tell_routed(cache, routed);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = word_at(ring, tail + MP_TOUCH_HEADER + i);
        touch(cache, word & ~TOUCH_SCAN, (word & TOUCH_SCAN) != 0, stamp);
    }
    cache->counters.hits += n;
}

static void replay_record(mp_cache *cache, mp_touch_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t decodes = word_at(ring, tail + 2), n = word_at(ring, tail + 3);
    if (!cache->setup.fixed)
        replay_hits(cache, ring, tail, n);
    for (uint32_t i = 0; cache->watch && i < n; i++)
        cache->watch->keys[i] = word_at(ring, tail + MP_TOUCH_HEADER + i) & ~TOUCH_SCAN;
    if (cache->watch)
        cache->watch->experts(cache->watch, cache->watch->keys, n, decodes);
    atomic_store_explicit(&ring->tail, tail + MP_TOUCH_HEADER + n, memory_order_release);
}

void mp_cache_drain_touches(mp_cache *cache)
{
    uint64_t now = atomic_load(&cache->clock); /* others go on recording: not after them */
    for (;;) {
        mp_touch_ring *oldest = NULL;
        uint64_t least = now;
        for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++) {
            if (!cache->clients[c])
                continue;
            mp_touch_ring *ring = &cache->clients[c]->ring;
            if (used_words(ring) == 0)
                continue;
            uint64_t stamp = oldest_stamp(ring);
            if (stamp < least) {
                least = stamp;
                oldest = ring;
            }
        }
        if (!oldest)
            return;
        replay_record(cache, oldest);
    }
}

void mp_cache_expect(mp_cache *cache, uint32_t layer, const float *p)
{
    if (!cache->policy->expect)
        return;
    uint32_t scope = cache->scope_of_layer[layer], key = layer * cache->experts;
    pthread_mutex_lock(cache->lock);
    for (uint32_t d = 0; d < cache->n_shards; d++) {
        const mp_scope *of = &cache->shards[d].scopes[scope];
        cache->policy->expect(of->policy_state, key - of->first_key, p, cache->experts);
    }
    pthread_mutex_unlock(cache->lock);
}

/* ---- a set that is not all resident; the lock is held ---- */

void mp_cache_begin_set(mp_cache *cache, const mp_hold *holds, uint32_t n)
{
    uint32_t routed = 0;
    mp_cache_drain_touches(cache);
    atomic_fetch_add(&cache->clock, 1);
    for (uint32_t i = 0; cache->policy->route && i < n; i++)
        if (!holds[i].pin && (!holds[i].scan || cache->scan_percent == 0))
            cache->routed[routed++] = holds[i].key;
    if (routed > 0)
        tell_routed(cache, routed);
}

/* Counts a routed expert that was still loading. A load that failed while the rest of the set found
 * slots is no prefetch of use, late or not. */
static void count_late(mp_cache *cache, const mp_hold *hold)
{
    const mp_slot *slot = &cache->shards[hold->shard].slots[hold->slot];
    cache->counters.late++;
    if (atomic_load(&cache->entry[hold->key]) != hold->slot || !slot->prefetched || slot->used)
        return;
    mp_prefetch_tally *tally = mp_cache_tally(cache, slot, hold->key);
    cache->counters.prefetch_late++;
    cache->counters.late_bytes += slot->ahead_bytes;
    if (tally)
        tally->late++;
}

/* Moves a pinned expert out of the window, where slots are given away in turn. */
static void keep_pinned(mp_cache *cache, const mp_hold *hold)
{
    mp_shard *shard = &cache->shards[hold->shard];
    if (hold->kind == MP_HOLD_NONE || shard->slots[hold->slot].place == MP_PLACE_KEPT)
        return;
    mp_window_keep(shard, mp_shard_scope(shard, hold->key), hold->slot, hold->key);
    if (hold->kind != MP_HOLD_MISS)
        mp_shard_rank(shard, hold->slot, hold->key);
}

static void tell_watch(mp_cache *cache, const mp_hold *holds, uint32_t n, uint32_t decodes)
{
    for (uint32_t i = 0; i < n; i++)
        cache->watch->keys[i] = holds[i].key;
    cache->watch->experts(cache->watch, cache->watch->keys, n, decodes);
}

void mp_cache_end_set(mp_cache *cache, const mp_hold *holds, uint32_t n, uint32_t decodes,
                      bool routed)
{
    for (uint32_t i = 0; i < n; i++) {
        const mp_hold *hold = &holds[i];
        bool used = routed && !hold->pin; /* a pin is no routed use */

        /* Count how it was found. */
        cache->counters.hits += used && hold->kind == MP_HOLD_HIT;
        cache->counters.misses +=
            used && (hold->kind == MP_HOLD_MISS || hold->kind == MP_HOLD_HOST);
        if (used && hold->kind == MP_HOLD_LATE)
            count_late(cache, hold);

        /* Rank it if it was loaded; make it recent if it was routed. */
        if (hold->pin)
            keep_pinned(cache, hold);
        if (used && hold->kind == MP_HOLD_MISS)
            mp_window_count(cache, hold->key);
        if (hold->kind == MP_HOLD_MISS)
            mp_shard_rank(&cache->shards[hold->shard], hold->slot, hold->key);
        else if (used && hold->kind != MP_HOLD_NONE && hold->kind != MP_HOLD_HOST)
            touch(cache, hold->key, hold->scan, atomic_load(&cache->clock));
    }

    if (cache->watch && routed && !(n == 1 && holds[0].pin)) /* a single pin is no routed set */
        tell_watch(cache, holds, n, decodes);
}

void mp_cache_end_low_set(mp_cache *cache, const mp_hold *holds, uint32_t n, uint32_t decodes)
{
    uint64_t stamp = atomic_load(&cache->clock);
    for (uint32_t i = 0; i < n; i++) {
        bool hit = holds[i].kind == MP_HOLD_HIT;
        cache->counters.hits += hit;
        cache->counters.misses += !hit;
        if (hit)
            touch(cache, holds[i].key, holds[i].scan, stamp);
    }
    if (cache->watch)
        tell_watch(cache, holds, n, decodes);
}
