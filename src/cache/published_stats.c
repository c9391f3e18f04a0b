/* Publishing and summing the sessions' counters. */
#include "cache/inside.h"

/* The counters are stored with release order, as the turn is: a slow reader of this place that
 * meets one of them is then bound to see that the turn it started from is over, and discards what
 * it read. */
void mp_client_publish_stats(mp_client *client, const moepage_session_stats *stats)
{
    mp_published_stats *out = &client->published_stats;
    mp_stats_counters all = mp_stats_counters_of(stats);
    uint32_t turn = atomic_load_explicit(&out->turn, memory_order_relaxed) + 1;
    for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
        atomic_store_explicit(&out->counters[turn % 2][i], all.of[i], memory_order_release);
    atomic_store_explicit(&out->turn, turn, memory_order_release);
}

/* Returns false if a step has ended meanwhile: the place read from may then be half overwritten. */
static bool try_read(const mp_published_stats *from, mp_stats_counters *out)
{
    uint32_t turn = atomic_load_explicit(&from->turn, memory_order_acquire);
    for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
        out->of[i] = atomic_load_explicit(&from->counters[turn % 2][i], memory_order_acquire);
    return atomic_load_explicit(&from->turn, memory_order_relaxed) == turn;
}

static void add_published(moepage_session_stats *sum, const mp_client *client)
{
    mp_stats_counters all;
    while (!try_read(&client->published_stats, &all))
        continue; /* another step has ended */
    mp_stats_add_counters(sum, &all);
}

void mp_cache_keep_stats(mp_cache *cache, const mp_client *client)
{
    add_published(&cache->past_stats, client);
}

void mp_cache_get_stats(mp_cache *cache, moepage_session_stats *out)
{
    pthread_mutex_lock(cache->lock);
    *out = cache->past_stats;
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++)
        if (cache->clients[c])
            add_published(out, cache->clients[c]);
    pthread_mutex_unlock(cache->lock);
    out->struct_size = sizeof *out;
}
