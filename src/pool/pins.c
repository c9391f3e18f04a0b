/* Pins: experts that stay in their slots, whatever the policy thinks of them. */
#include "ahead/versions.h"
#include "base/status.h"

static moepage_status reserve_pin(struct moepage_expert_pool *pool, mp_scope *scope)
{
    uint32_t capacity = atomic_load(&scope->aim), pinned = atomic_load(&scope->pinned);
    uint32_t keep = pool->model->info.top_k;
    uint32_t clients = atomic_load(&pool->n_clients);
    if (keep < clients)
        keep = clients;
    if (capacity < scope->members && pinned + 1 + keep > capacity)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "%u experts are pinned; one more would leave fewer than %u "
                       "of %u slots to evict from",
                       pinned, keep, capacity);
    atomic_fetch_add(&scope->pinned, 1);
    return MOEPAGE_OK;
}

/* One user and one place in the scope stand for all pins of an expert. */
static bool pin_again(struct moepage_expert_pool *pool, mp_shard *shard, uint32_t key)
{
    uint32_t index = atomic_load(&pool->entry[key]);
    if (index == MP_NO_SLOT || shard->slots[index].pins == 0)
        return false;
    shard->slots[index].pins++;
    return true;
}

/* Pins the held expert. False if its slot is about to be given up: then it is nowhere. */
static bool pin_held(struct moepage_expert_pool *pool, const mp_hold *hold, bool *again)
{
    mp_shard *shard = &pool->shards[hold->shard];
    pthread_mutex_lock(&pool->lock);
    bool there = atomic_load(&pool->entry[hold->key]) == hold->slot;
    if (there && !mp_pool_is_open(shard, hold->slot) && shard->slots[hold->slot].pins == 0) {
        mp_pool_drain(shard, hold->slot, hold->key);
        there = false;
    }
    *again = there && shard->slots[hold->slot].pins++ > 0; /* another thread was faster */
    pthread_mutex_unlock(&pool->lock);
    return there;
}

static moepage_status pin(struct moepage_expert_pool *pool, uint32_t key)
{
    mp_hold hold = {.key = key, .shard = mp_pool_shard_of(pool, key), .pin = true};
    mp_shard *shard = &pool->shards[hold.shard];
    mp_scope *scope = mp_pool_scope_of(pool, shard, key);
    if (mp_pool_serves_versions(pool))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "expert %u of layer %u cannot be pinned: what is hot chooses the high "
                       "versions of this pool",
                       key % pool->experts, key / pool->experts);
    pthread_mutex_lock(&pool->lock);
    bool again = pin_again(pool, shard, key), pinned = false;
    moepage_status status = again ? MOEPAGE_OK : reserve_pin(pool, scope);
    pthread_mutex_unlock(&pool->lock);
    if (status || again)
        return status;
    while (!status && !pinned) {
        status = mp_pool_hold_rest(pool, &hold, 1);
        if (status)
            break;
        status = mp_pool_wait(pool, &hold, NULL);
        pinned = !status && pin_held(pool, &hold, &again);
        if (!pinned || again)
            mp_pool_release(pool, &hold, 1);
    }
    if (status || again)
        atomic_fetch_sub(&scope->pinned, 1);
    return status;
}

/* A load that fails is its source's doing, and counts there. */
static bool is_refusal(moepage_status status)
{
    return status == MOEPAGE_E_BUDGET || status == MOEPAGE_E_BUSY ||
           status == MOEPAGE_E_UNSUPPORTED;
}

moepage_status mp_pool_pin(struct moepage_expert_pool *pool, uint32_t key)
{
    moepage_status status = pin(pool, key);
    if (is_refusal(status)) {
        pthread_mutex_lock(&pool->lock);
        pool->counters.pins_refused++;
        pthread_mutex_unlock(&pool->lock);
    }
    return status;
}

moepage_status mp_pool_unpin(struct moepage_expert_pool *pool, uint32_t key)
{
    mp_shard *shard = &pool->shards[mp_pool_shard_of(pool, key)];
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->lock);
    uint32_t index = atomic_load(&pool->entry[key]);
    if (index == MP_NO_SLOT || shard->slots[index].pins == 0) {
        status = mp_fail(MOEPAGE_E_STATE, "expert %u of layer %u is not pinned",
                         key % pool->experts, key / pool->experts);
    } else if (--shard->slots[index].pins == 0) {
        atomic_fetch_sub(&mp_pool_scope_of(pool, shard, key)->pinned, 1);
        atomic_fetch_sub(&shard->words[index], 1);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}
