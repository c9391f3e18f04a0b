/* The KV pool's door: each call takes the lock, does one thing, and counts a request that
 * did not fit. */
#include "kv/kv_pool.h"

static moepage_status leave(struct moepage_kv_pool *pool, moepage_status status)
{
    pool->counters.refused += status == MOEPAGE_E_WOULD_NOT_FIT;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- sequences ---- */

moepage_status mp_kv_create(struct moepage_kv_pool *pool, moepage_seq *out)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_create(pool, out));
}

moepage_status mp_kv_append(struct moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens,
                            void *native)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_append(pool, seq, n_tokens, native));
}

moepage_status mp_kv_truncate(struct moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_truncate(pool, seq, n_tokens));
}

moepage_status mp_kv_fork(struct moepage_kv_pool *pool, moepage_seq parent, moepage_seq *out)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_fork(pool, parent, out));
}

moepage_status mp_kv_free(struct moepage_kv_pool *pool, moepage_seq seq)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_free(pool, seq));
}

moepage_status mp_kv_swap_out(struct moepage_kv_pool *pool, moepage_seq seq, void *native)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_swap_out(pool, seq, native));
}

moepage_status mp_kv_swap_in(struct moepage_kv_pool *pool, moepage_seq seq, void *native)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_swap_in(pool, seq, native));
}

moepage_status mp_kv_get_table(struct moepage_kv_pool *pool, moepage_seq seq,
                               moepage_kv_table *table)
{
    pthread_mutex_lock(&pool->lock);
    return leave(pool, mp_kv_sequence_table(pool, seq, table));
}

/* ---- looking ---- */

mp_kv_survey mp_kv_pool_look(struct moepage_kv_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mp_kv_survey survey = {.blocks = mp_kv_blocks_capacity(&pool->blocks),
                           .used = mp_kv_blocks_used(&pool->blocks),
                           .burst_peak = pool->blocks.burst_peak,
                           .out_ns = mp_rate_ns(&pool->swap[0], 0),
                           .in_ns = mp_rate_ns(&pool->swap[1], 0)};
    pthread_mutex_unlock(&pool->lock);
    return survey;
}

void mp_kv_pool_begin_burst(struct moepage_kv_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->blocks.burst_peak = mp_kv_blocks_used(&pool->blocks);
    pthread_mutex_unlock(&pool->lock);
}

void mp_kv_pool_set_watch(struct moepage_kv_pool *pool, mp_kv_watch *watch)
{
    pthread_mutex_lock(&pool->lock);
    pool->watch = watch;
    pool->target = 0;
    pool->most_blocks = UINT64_MAX;
    pthread_mutex_unlock(&pool->lock);
}

bool mp_kv_pool_is_watched(const struct moepage_kv_pool *pool)
{
    return pool->watch != NULL;
}

struct moepage_device *mp_kv_pool_home(const struct moepage_kv_pool *pool)
{
    return pool->home;
}

const mp_kv_shape *mp_kv_pool_shape(const struct moepage_kv_pool *pool)
{
    return &pool->shape;
}

uint32_t mp_kv_pool_max_sequences(const struct moepage_kv_pool *pool)
{
    return pool->max_sequences;
}
