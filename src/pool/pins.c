/* Pins: experts that stay in their slots, whatever the policy or their hotness decides. */
#include "base/status.h"
#include "pool/inside.h"

static moepage_status reserve(struct moepage_expert_pool *pool, uint32_t key, bool *again)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->lock);
    *again = mp_cache_pin_again(pool->cache, key);
    if (!*again)
        status = mp_cache_reserve_pin(pool->cache, key, pool->model->info.top_k);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* Holds the expert and pins it in its slot. *pinned is false if that slot is about to leave the
 * pool: the expert then has no slot any more, and the caller tries again. */
static moepage_status hold_and_pin(struct moepage_expert_pool *pool, uint32_t key, bool *pinned,
                                   bool *again)
{
    mp_hold hold = {.key = key, .shard = mp_deal_device(&pool->deal, key), .pin = true};
    moepage_status status = mp_pool_hold_rest(pool, &hold, 1, 0);
    if (status)
        return status;
    status = mp_pool_wait(pool, &hold, NULL);
    pthread_mutex_lock(&pool->lock);
    *pinned = !status && mp_cache_pin_held(pool->cache, &hold, again);
    pthread_mutex_unlock(&pool->lock);
    if (!*pinned || *again) /* one user stands for all pins of an expert */
        mp_pool_release(pool, &hold, 1);
    return status;
}

/* No step waits for a version, and neither does a pin. */
static moepage_status pin_high(struct moepage_expert_pool *pool, uint32_t key)
{
    pthread_mutex_lock(&pool->lock);
    moepage_status status = mp_versions_pin(pool->versions[mp_deal_device(&pool->deal, key)], key);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static moepage_status pin(struct moepage_expert_pool *pool, uint32_t key)
{
    bool again, pinned = false;
    if (pool->serves_versions)
        return pin_high(pool, key);
    moepage_status status = reserve(pool, key, &again);
    if (status || again)
        return status;
    while (!status && !pinned)
        status = hold_and_pin(pool, key, &pinned, &again);
    if (status || again)
        mp_cache_unreserve_pin(pool->cache, key);
    return status;
}

/* Returns true if a failure counts as a refused pin. A load that fails is its source's failure, and
 * is counted there. */
static bool is_refusal(moepage_status status)
{
    return status == MOEPAGE_E_BUDGET || status == MOEPAGE_E_BUSY;
}

moepage_status mp_pool_pin(struct moepage_expert_pool *pool, uint32_t key)
{
    moepage_status status = pin(pool, key);
    if (is_refusal(status)) {
        pthread_mutex_lock(&pool->lock);
        pool->pins_refused++;
        pthread_mutex_unlock(&pool->lock);
    }
    return status;
}

moepage_status mp_pool_unpin(struct moepage_expert_pool *pool, uint32_t key)
{
    pthread_mutex_lock(&pool->lock);
    bool unpinned = pool->serves_versions
                        ? mp_versions_unpin(pool->versions[mp_deal_device(&pool->deal, key)], key)
                        : mp_cache_unpin(pool->cache, key);
    pthread_mutex_unlock(&pool->lock);
    return unpinned ? MOEPAGE_OK
                    : mp_fail(MOEPAGE_E_STATE, "expert %u of layer %u is not pinned",
                              key % pool->experts, key / pool->experts);
}
