/* Publishing and summing what sessions have done. */
#include "pool/published_stats.h"

#include <string.h>

#include "pool/expert_pool.h"

_Static_assert(MP_STATS_HEAD + MP_STATS_COUNTERS * sizeof(uint64_t) ==
                   sizeof(moepage_session_stats),
               "moepage_session_stats is its head and counters of 64 bits");

typedef struct counters {
    uint64_t of[MP_STATS_COUNTERS];
} counters;

static counters counters_of(const moepage_session_stats *stats)
{
    counters out;
    memcpy(out.of, (const unsigned char *)stats + MP_STATS_HEAD, sizeof out.of);
    return out;
}

static void add(moepage_session_stats *sum, const counters *more)
{
    counters all = counters_of(sum);
    for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
        all.of[i] += more->of[i];
    memcpy((unsigned char *)sum + MP_STATS_HEAD, all.of, sizeof all.of);
}

void mp_stats_add(moepage_session_stats *sum, const moepage_session_stats *one)
{
    counters more = counters_of(one);
    add(sum, &more);
}

/* Whoever reads one of these counters sees the turn before them too: it knows that its own turn, whose
 * place this is, is over. */
void mp_pool_publish_stats(mp_client *client, const moepage_session_stats *stats)
{
    mp_published_stats *out = &client->published_stats;
    counters all = counters_of(stats);
    uint32_t turn = atomic_load_explicit(&out->turn, memory_order_relaxed) + 1;
    for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
        atomic_store_explicit(&out->counters[turn % 2][i], all.of[i], memory_order_release);
    atomic_store_explicit(&out->turn, turn, memory_order_release);
}

/* False: the place may have been written to meanwhile, for a step ended. */
static bool try_read(const mp_published_stats *from, counters *out)
{
    uint32_t turn = atomic_load_explicit(&from->turn, memory_order_acquire);
    for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
        out->of[i] = atomic_load_explicit(&from->counters[turn % 2][i], memory_order_acquire);
    return atomic_load_explicit(&from->turn, memory_order_relaxed) == turn;
}

static void add_published(moepage_session_stats *sum, const mp_client *client)
{
    counters all;
    while (!try_read(&client->published_stats, &all))
        continue; /* another step has ended */
    add(sum, &all);
}

void mp_pool_keep_stats(struct moepage_expert_pool *pool, const mp_client *client)
{
    add_published(&pool->past_stats, client);
}

void mp_pool_get_stats(struct moepage_expert_pool *pool, moepage_session_stats *out)
{
    pthread_mutex_lock(&pool->lock);
    *out = pool->past_stats;
    for (uint32_t c = 0; c < MP_MAX_CLIENTS; c++)
        if (pool->clients[c])
            add_published(out, pool->clients[c]);
    pthread_mutex_unlock(&pool->lock);
    out->struct_size = sizeof *out;
}
