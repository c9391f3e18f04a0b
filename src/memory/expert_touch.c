/* Touches: how hits reach the policy. Sessions record them without the lock; whoever holds it next
 * replays them, those of all sessions in the order in which they happened. */
#include "memory/expert_pool.h"

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
    if (slot->prefetched && !slot->used)
        pool->counters.prefetch_useful++;
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

static uint64_t oldest_stamp(const mp_touch_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    return mp_touch_ring_word(ring, tail) | (uint64_t)mp_touch_ring_word(ring, tail + 1) << 32;
}

static void replay_record(struct moepage_expert_pool *pool, mp_touch_ring *ring)
{
    uint64_t stamp = oldest_stamp(ring);
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t n = mp_touch_ring_word(ring, tail + 2);
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
