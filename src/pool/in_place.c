/* Experts that are in no slot, computed in host memory: as dense bytes that the host's kernels can read.
 *
 * That is the mapping of a checkpoint or of a pack with plain dense images, or the caller's banks; of a
 * pool with a host tier, what the tier holds, as the rest is on storage. A hold of this kind has no slot
 * and is ready at once; the expert is fetched in the background for the next time. */
#include "pool/inside.h"

void mp_pool_mark_in_place(const struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                           bool pieces)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        hold->may_run_in_place =
            hold->kind == MP_HOLD_NONE &&
            mp_transfer_may_lend(pool->transfers[hold->shard], hold->key / pool->experts,
                                 hold->key % pool->experts, pieces, &hold->address);
    }
}

bool mp_in_place_hold(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_transfer *transfer = pool->transfers[hold->shard];
    if (mp_cache_is_resident(pool->cache, hold->key) ||
        !mp_transfer_lend(transfer, hold->key, &hold->slot, &hold->address))
        return false;
    hold->kind = MP_HOLD_HOST;
    hold->form = MOEPAGE_FORM_DENSE;
    hold->ready = true;
    if (!(hold->scan && pool->scan_percent)) /* prefill alone does not push out what decode uses */
        mp_ahead_want_missed(pool->ahead, hold->key);
    mp_ahead_start(pool->ahead, hold->shard);
    return true;
}

void mp_in_place_release(struct moepage_expert_pool *pool, mp_hold *hold)
{
    hold->kind = MP_HOLD_NONE;
    hold->ready = false;
    if (hold->slot == MP_NO_SLOT)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_transfer_take_back(pool->transfers[hold->shard], hold->slot);
    pthread_mutex_unlock(&pool->lock);
}
