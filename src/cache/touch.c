/* Touches: how hits reach the policy. Sessions record them without the lock; whoever holds it next
 * replays them, those of all sessions in the order in which they happened. */
#include "pool/expert_pool.h"

bool mp_pool_record_touches(struct moepage_expert_pool *pool, mp_client *client,
                            const mp_hold *holds, uint32_t n)
{
    mp_touch_ring *ring = &client->ring;
    if (!mp_touch_ring_fits(ring, n))
        return false;
    uint64_t stamp = atomic_fetch_add_explicit(&pool->touch_clock, 1, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    ring->words[head++ & ring->mask] = (uint32_t)stamp;
    ring->words[head++ & ring->mask] = (uint32_t)(stamp >> 32);
    ring->words[head++ & ring->mask] = n;
    for (uint32_t i = 0; i < n; i++)
        ring->words[head++ & ring->mask] = holds[i].key | (holds[i].scan ? MP_TOUCH_SCAN : 0);
    atomic_store_explicit(&ring->head, head, memory_order_release);
    return true;
}

/* A routed, resident expert becomes recent. A scan does not refresh what decode uses. */
void mp_pool_touch(struct moepage_expert_pool *pool, uint32_t key, bool scan, uint64_t stamp)
{
    mp_shard *shard = &pool->shards[mp_pool_shard_of(pool, key)];
    mp_scope *scope = mp_pool_scope_of(pool, shard, key);
    uint32_t index = atomic_load_explicit(&pool->entry[key], memory_order_relaxed);
    if (index == MP_NO_SLOT)
        return; /* evicted, or its load failed, since the touch was recorded */
    mp_slot *slot = &shard->slots[index];
    if (stamp < slot->came)
        return; /* evicted since, and here again */
    if (slot->prefetched && !slot->used) {
        mp_prefetch_tally *tally = mp_prefetcher_tally(shard, slot, key);
        pool->counters.prefetch_useful++;
        pool->counters.useful_bytes += slot->ahead_bytes;
        if (tally)
            tally->useful++;
    }
    slot->used = true;
    slot->touched = stamp;
    if (slot->place != MP_PLACE_KEPT) {
        mp_pool_rank(shard, index, key);
        return;
    }
    bool guarded = pool->scan_percent != 0;
    if (guarded && scan && !slot->scan)
        return;
    if (!scan && slot->scan) {
        slot->scan = false;
        scope->scans--;
    }
    if (slot->ranked)
        pool->policy->touch(scope->policy_state, key - scope->first_key);
    else /* another session is still collecting the set that it came with */
        mp_pool_rank(shard, index, key);
}

void mp_pool_collect_routed(struct moepage_expert_pool *pool, uint32_t *n, uint32_t key, bool scan)
{
    if (!scan || pool->scan_percent == 0)
        pool->routed[(*n)++] = key;
}

/* Every device's part of the cache learns of the whole set: what is on other devices says as much
 * about what comes next. */
void mp_pool_tell_routed(struct moepage_expert_pool *pool, uint32_t n)
{
    if (n == 0 || !pool->policy->route)
        return;
    uint32_t scope = pool->n_scopes == 1 ? 0 : pool->routed[0] / pool->experts;
    uint32_t first_key = pool->shards[0].scopes[scope].first_key;
    for (uint32_t i = 0; i < n; i++)
        pool->routed[i] -= first_key;
    for (uint32_t d = 0; d < pool->n_shards; d++)
        pool->policy->route(pool->shards[d].scopes[scope].policy_state, pool->routed, n);
}

void mp_pool_expect(struct moepage_expert_pool *pool, uint32_t layer, const float *p)
{
    if (!pool->policy->expect)
        return;
    uint32_t scope = pool->n_scopes == 1 ? 0 : layer, key = layer * pool->experts;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        const mp_scope *of = &pool->shards[d].scopes[scope];
        pool->policy->expect(of->policy_state, key - of->first_key, p, pool->experts);
    }
    pthread_mutex_unlock(&pool->lock);
}

static uint64_t oldest_stamp(const mp_touch_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    return mp_touch_ring_word(ring, tail) | (uint64_t)mp_touch_ring_word(ring, tail + 1) << 32;
}

static void replay_record(struct moepage_expert_pool *pool, mp_touch_ring *ring)
{
    uint64_t stamp = oldest_stamp(ring);
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t n = mp_touch_ring_word(ring, tail + 2), routed = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = mp_touch_ring_word(ring, tail + MP_TOUCH_HEADER + i);
        mp_pool_collect_routed(pool, &routed, word & ~MP_TOUCH_SCAN, (word & MP_TOUCH_SCAN) != 0);
    }
    mp_pool_tell_routed(pool, routed);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = mp_touch_ring_word(ring, tail + MP_TOUCH_HEADER + i);
        mp_pool_touch(pool, word & ~MP_TOUCH_SCAN, (word & MP_TOUCH_SCAN) != 0, stamp);
        if (pool->watch)
            pool->watch->keys[i] = word & ~MP_TOUCH_SCAN;
    }
    if (pool->watch)
        pool->watch->experts(pool->watch, pool->watch->keys, n);
    pool->counters.hits += n;
    atomic_store_explicit(&ring->tail, tail + MP_TOUCH_HEADER + n, memory_order_release);
}

void mp_pool_drain_touches(struct moepage_expert_pool *pool)
{
    uint64_t now = atomic_load(&pool->touch_clock); /* others go on recording: not after them */
    for (;;) {
        mp_touch_ring *oldest = NULL;
        uint64_t least = now;
        for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++) {
            if (!pool->clients[c])
                continue;
            mp_touch_ring *ring = &pool->clients[c]->ring;
            if (mp_touch_ring_used(ring) == 0)
                continue;
            uint64_t stamp = oldest_stamp(ring);
            if (stamp < least) {
                least = stamp;
                oldest = ring;
            }
        }
        if (!oldest)
            return;
        replay_record(pool, oldest);
    }
}

void mp_pool_relieve(struct moepage_expert_pool *pool, const mp_client *client)
{
    if (mp_touch_ring_used(&client->ring) <= client->ring.mask / 2)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    pthread_mutex_unlock(&pool->lock);
}
