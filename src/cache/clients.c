/* Clients: sessions that join the cache and leave it. */
#include "base/alloc.h"
#include "base/status.h"
#include "cache/inside.h"

#define MAX_RING_WORDS (1u << 20) /* the longest record, 65536 experts, fits many times */

static void free_client(mp_client *client)
{
    mp_free(client->ring.words);
    mp_free(client->streams);
    mp_free(client);
}

static mp_client *alloc_client(mp_cache *cache, uint32_t ring_words)
{
    mp_client *client = mp_alloc(sizeof *client);
    if (!client)
        return NULL;
    client->cache = cache;
    client->ring.words = mp_alloc_array(ring_words, sizeof *client->ring.words);
    client->ring.mask = ring_words - 1;
    client->streams = mp_alloc_array(cache->layers, sizeof *client->streams);
    if (client->ring.words && client->streams)
        return client;
    free_client(client);
    return NULL;
}

static moepage_status enter(mp_cache *cache, mp_client *client)
{
    uint32_t index = 0;
    moepage_status status = mp_cache_check_share(cache, mp_cache_sharers(cache) + 1);
    if (status)
        return status;
    while (index < MP_MAX_CLIENTS && cache->clients[index])
        index++;
    if (index == MP_MAX_CLIENTS)
        return mp_fail(MOEPAGE_E_BUSY, "the pool has its %d sessions already", MP_MAX_CLIENTS);
    client->index = index;
    cache->clients[index] = client;
    atomic_fetch_add(&cache->n_clients, 1);
    return MOEPAGE_OK;
}

moepage_status mp_client_join(mp_cache *cache, uint32_t need, mp_client **out)
{
    /* Room for two whole steps of hits before they must be replayed. */
    uint64_t ring_words = 2ull * cache->layers * (MP_TOUCH_HEADER + cache->experts);
    uint32_t words = 1024;
    while (words < ring_words && words < MAX_RING_WORDS)
        words *= 2;
    mp_client *client = alloc_client(cache, words);
    if (!client)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a touch ring of %u words", words);
    client->need = need;
    pthread_mutex_lock(cache->lock);
    moepage_status status = enter(cache, client);
    pthread_mutex_unlock(cache->lock);
    if (status)
        free_client(client);
    else
        *out = client;
    return status;
}

/* Experts fetched ahead for a client belong to no client once it has left: its index
 * will be reused. */
static void disown(mp_cache *cache, uint32_t client)
{
    for (uint32_t d = 0; d < cache->n_shards; d++)
        for (uint32_t s = 0; s < cache->shards[d].max_slots; s++)
            if (cache->shards[d].slots[s].client == client)
                cache->shards[d].slots[s].client = MP_SHARED_WANT;
}

void mp_client_leave(mp_client *client)
{
    mp_cache *cache = client->cache;
    for (uint32_t l = 0; l < cache->layers; l++)
        mp_client_stream(client, l, false);
    pthread_mutex_lock(cache->lock);
    mp_cache_drain_touches(cache);
    disown(cache, client->index);
    mp_cache_keep_stats(cache, client);
    cache->clients[client->index] = NULL;
    atomic_fetch_sub(&cache->n_clients, 1);
    pthread_mutex_unlock(cache->lock);
    free_client(client);
}

uint32_t mp_client_index(const mp_client *client)
{
    return client->index;
}

uint32_t mp_cache_clients(const mp_cache *cache)
{
    return atomic_load(&cache->n_clients);
}

/* ---- layers ---- */

void mp_client_reach_layer(mp_client *client, uint32_t layer)
{
    atomic_store_explicit(&client->layer, layer, memory_order_relaxed);
}

uint32_t mp_cache_layers_to(const mp_cache *cache, uint32_t client, uint32_t layer)
{
    if (!cache->clients[client])
        return cache->layers;
    uint32_t now = atomic_load_explicit(&cache->clients[client]->layer, memory_order_relaxed);
    return layer > now ? layer - now : layer + cache->layers - now;
}

uint32_t mp_cache_nearest(const mp_cache *cache, uint32_t layer)
{
    uint32_t nearest = cache->layers;
    uint32_t left = atomic_load_explicit(&cache->n_clients, memory_order_relaxed);
    for (uint32_t c = 0; left > 0 && c < MP_MAX_CLIENTS; c++) {
        uint32_t ahead = mp_cache_layers_to(cache, c, layer);
        nearest = ahead < nearest ? ahead : nearest;
        left -= cache->clients[c] != NULL;
    }
    return nearest;
}

/* ---- tallies ---- */

moepage_status mp_client_open_tally(mp_client *client)
{
    mp_cache *cache = client->cache;
    mp_prefetch_tally *tally = mp_alloc_array(cache->layers, sizeof *tally);
    pthread_mutex_lock(cache->lock);
    client->tally = tally;
    pthread_mutex_unlock(cache->lock);
    return tally ? MOEPAGE_OK : MOEPAGE_E_NO_MEMORY;
}

void mp_client_close_tally(mp_client *client)
{
    mp_cache *cache = client->cache;
    pthread_mutex_lock(cache->lock); /* holders of the lock count its prefetches there */
    mp_prefetch_tally *tally = client->tally;
    client->tally = NULL;
    pthread_mutex_unlock(cache->lock);
    mp_free(tally);
}

mp_prefetch_tally mp_client_get_tally(const mp_client *client, uint32_t layer)
{
    mp_cache *cache = client->cache;
    pthread_mutex_lock(cache->lock);
    mp_cache_drain_touches(cache);
    mp_prefetch_tally tally = client->tally[layer];
    pthread_mutex_unlock(cache->lock);
    return tally;
}
