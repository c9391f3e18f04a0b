/* The KV pool's door: each call takes the lock, does one thing, and counts a request that
 * did not fit. */
#include "base/status.h"
#include "kv/kv_pool.h"

static moepage_status leave(struct moepage_kv_pool *pool, moepage_status status)
{
    pool->counters.refused += status == MOEPAGE_E_WOULD_NOT_FIT;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static moepage_status say_lent(moepage_status status, moepage_status recalled)
{
    if (recalled == MOEPAGE_E_BUSY)
        return mp_fail(status, "would not fit: some of the blocks are lent to experts that are in "
                               "use; try again when the step has ended");
    return mp_fail(status, "would not fit: fewer blocks can come back than were lent, by the "
                           "budget and the pins there are now");
}

typedef moepage_status (*taking_call)(struct moepage_kv_pool *pool, moepage_seq seq,
                                      uint64_t n_tokens, void *native);

/* Makes a call that takes blocks, and again as long as lent ones come back for it. */
static moepage_status take(struct moepage_kv_pool *pool, taking_call call, moepage_seq seq,
                           uint64_t n_tokens, void *native)
{
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        const moepage_status status = call(pool, seq, n_tokens, native);
        const uint64_t wanted = pool->blocks.wanted;
        if (!mp_kv_is_short_of_lent(pool, status))
            return leave(pool, status);
        pthread_mutex_unlock(&pool->lock);
        const moepage_status recalled = mp_kv_recall(pool, wanted, native);
        if (recalled == MOEPAGE_E_DEVICE)
            return recalled;
        if (recalled) {
            pthread_mutex_lock(&pool->lock);
            return leave(pool, say_lent(status, recalled));
        }
    }
}

static moepage_status swap_in(struct moepage_kv_pool *pool, moepage_seq seq, uint64_t n_tokens,
                              void *native)
{
    (void)n_tokens;
    return mp_kv_sequence_swap_in(pool, seq, native);
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
    return take(pool, mp_kv_sequence_append, seq, n_tokens, native);
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
    return take(pool, swap_in, seq, 0, native);
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
                           .lent = mp_kv_lent(pool),
                           .share = pool->share,
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
