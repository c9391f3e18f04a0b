/* Lent blocks: how many there are, and calling them back. */
#include "kv/kv_loan.h"

#include "kv/kv_pool.h"

void mp_kv_pool_set_loan(struct moepage_kv_pool *pool, mp_kv_loan *loan)
{
    pthread_mutex_lock(&pool->loan_lock);
    pthread_mutex_lock(&pool->lock);
    pool->loan = loan;
    pool->share = 0;
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->loan_lock);
}

void mp_kv_pool_set_share(struct moepage_kv_pool *pool, uint64_t blocks)
{
    pthread_mutex_lock(&pool->lock);
    if (pool->loan)
        pool->share = blocks;
    pthread_mutex_unlock(&pool->lock);
}

uint64_t mp_kv_lent(const struct moepage_kv_pool *pool)
{
    const uint64_t blocks = mp_kv_blocks_capacity(&pool->blocks);
    return pool->share > blocks ? pool->share - blocks : 0;
}

bool mp_kv_is_short_of_lent(const struct moepage_kv_pool *pool, moepage_status status)
{
    return status == MOEPAGE_E_WOULD_NOT_FIT && mp_kv_lent(pool) &&
           pool->blocks.wanted > mp_kv_blocks_capacity(&pool->blocks) &&
           pool->blocks.wanted <= pool->share;
}

moepage_status mp_kv_recall(struct moepage_kv_pool *pool, uint64_t wanted, void *native)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->loan_lock);
    if (pool->loan)
        status = pool->loan->recall(pool->loan, wanted, native);
    pthread_mutex_unlock(&pool->loan_lock);
    return status;
}
