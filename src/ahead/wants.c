/* Wants: sessions ask for experts ahead of need, and call them off. */
#include "ahead/inside.h"

/* ---- filling the queue; the lock is held ---- */

/* Merges a want with the queued one. If two sessions want the expert, neither may call it off
 * for the other. */
static void join_want(mp_prefetcher *prefetcher, uint32_t client, uint32_t key, float p)
{
    for (uint32_t i = 0; i < prefetcher->count; i++) {
        mp_want *want = mp_want_at(prefetcher, i);
        if (want->key != key)
            continue;
        want->client = want->client == client ? client : MP_SHARED_WANT;
        want->p = p > want->p ? p : want->p;
        return;
    }
}

/* Returns true if the expert was queued; false if it is resident, on its way or queued already, or
 * if the queue is full. */
static bool enqueue(mp_ahead *ahead, uint32_t client, uint32_t key, float p)
{
    mp_prefetcher *prefetcher = &ahead->prefetchers[mp_deal_device(ahead->deal, key)];
    uint32_t slot = mp_cache_find(ahead->cache, key);
    if (slot != MP_NO_SLOT) {
        /* Wanted again, if it was called off and not given up yet. */
        prefetcher->stale[slot] = false;
        mp_shard_want_again(prefetcher->shard, slot, client);
        return false;
    }
    if (ahead->wanted[key]) {
        join_want(prefetcher, client, key, p);
        return false;
    }
    if (prefetcher->count == prefetcher->capacity) {
        ahead->refused++;
        return false;
    }
    *mp_want_at(prefetcher, prefetcher->count++) = (mp_want){.key = key, .client = client, .p = p};
    ahead->wanted[key] = true;
    atomic_fetch_add(&ahead->pending, 1);
    return true;
}

void mp_ahead_want_missed(mp_ahead *ahead, uint32_t key)
{
    enqueue(ahead, MP_SHARED_WANT, key, MP_MISSED);
}

/* ---- what sessions call ---- */

/* Returns true if the wants are refused: a cache guarded against scans takes no prefetches for
 * prefill, since nothing tells how much of its share prefill has left. */
static bool refuse(mp_ahead *ahead, uint32_t n, bool scan)
{
    if (!scan || !ahead->scan_percent)
        return false;
    ahead->refused += n;
    return true;
}

static void start_all(mp_ahead *ahead)
{
    for (uint32_t d = 0; d < ahead->n_devices; d++)
        mp_ahead_start(ahead, d);
}

uint32_t mp_ahead_want(mp_ahead *ahead, const mp_client *client, const uint32_t *keys, uint32_t n,
                       bool scan)
{
    uint32_t first = 0, queued = 0;
    bool idle = atomic_load_explicit(&ahead->pending, memory_order_relaxed) == 0;
    while (idle && first < n && mp_cache_find(ahead->cache, keys[first]) != MP_NO_SLOT)
        first++;
    if (first == n)
        return 0;
    pthread_mutex_lock(ahead->lock);
    if (refuse(ahead, n - first, scan))
        first = n;
    for (uint32_t i = first; i < n; i++)
        queued += enqueue(ahead, mp_client_index(client), keys[i], MP_HINTED);
    start_all(ahead);
    pthread_mutex_unlock(ahead->lock);
    return queued;
}

uint32_t mp_ahead_want_ranked(mp_ahead *ahead, const mp_client *client, const mp_ranked *guesses,
                              uint32_t n, bool scan)
{
    uint32_t queued = 0;
    if (n == 0)
        return 0;
    pthread_mutex_lock(ahead->lock);
    if (refuse(ahead, n, scan))
        n = 0;
    for (uint32_t i = 0; i < n; i++)
        queued += enqueue(ahead, mp_client_index(client), guesses[i].key, guesses[i].p);
    start_all(ahead);
    pthread_mutex_unlock(ahead->lock);
    return queued;
}

bool mp_ahead_any_absent(const mp_ahead *ahead, const uint32_t *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (mp_cache_find(ahead->cache, keys[i]) == MP_NO_SLOT)
            return true;
    return false;
}

/* First marks the experts that are there as wanted, so that they are not evicted for the others;
 * then queues absent ones as far as there is room. */
static uint32_t enqueue_turn(mp_ahead *ahead, uint32_t client, const uint32_t *keys, uint32_t n)
{
    uint32_t room[MOEPAGE_MAX_DEVICES], queued = 0;
    for (uint32_t i = 0; i < n; i++)
        if (mp_cache_find(ahead->cache, keys[i]) != MP_NO_SLOT)
            enqueue(ahead, client, keys[i], MP_HINTED);
    for (uint32_t d = 0; d < ahead->n_devices; d++)
        room[d] = mp_shard_window_room(ahead->prefetchers[d].shard, keys[0], n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = mp_deal_device(ahead->deal, keys[i]);
        if (mp_cache_find(ahead->cache, keys[i]) != MP_NO_SLOT || room[d] == 0)
            continue;
        room[d]--;
        queued += enqueue(ahead, client, keys[i], MP_HINTED);
    }
    return queued;
}

uint32_t mp_ahead_want_turn(mp_ahead *ahead, const mp_client *client, const uint32_t *keys,
                            uint32_t n)
{
    if (!mp_ahead_any_absent(ahead, keys, n))
        return 0;
    pthread_mutex_lock(ahead->lock);
    mp_cache_drain_touches(ahead->cache);
    uint32_t queued = enqueue_turn(ahead, mp_client_index(client), keys, n);
    start_all(ahead);
    pthread_mutex_unlock(ahead->lock);
    return queued;
}

/* Marks the client's prefetches for the layer as stale, except those that are held or submitted. */
static void call_off(mp_prefetcher *prefetcher, uint32_t client, uint32_t layer)
{
    for (uint32_t i = 0; i < prefetcher->n_active; i++) {
        uint32_t slot = prefetcher->active[i];
        mp_slot_view view = mp_shard_view(prefetcher->shard, slot);
        bool of_layer = layer == UINT32_MAX || view.key / prefetcher->ahead->experts == layer;
        bool own = mp_shard_client(prefetcher->shard, slot) == client;
        if (own && of_layer && view.users == 0 &&
            !mp_passage_is_submitted(prefetcher->transfer, slot))
            prefetcher->stale[slot] = true;
    }
}

void mp_ahead_unwant(mp_ahead *ahead, const mp_client *client, uint32_t layer)
{
    /* In sequentially consistent order with the turn that has come: see features/predicting.c. */
    if (atomic_load(&ahead->pending) == 0)
        return;
    pthread_mutex_lock(ahead->lock);
    for (uint32_t d = 0; d < ahead->n_devices; d++) {
        mp_wants_drop(&ahead->prefetchers[d], mp_client_index(client), layer);
        call_off(&ahead->prefetchers[d], mp_client_index(client), layer);
    }
    pthread_mutex_unlock(ahead->lock);
}
