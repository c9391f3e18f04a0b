/* Experts that are in no slot, computed in host memory: in the form of slots, as the host's kernels read it.
 *
 * That is the caller's banks; of a pool with a host tier, what the tier holds, as the rest is on storage;
 * without a tier, and for a file that stores experts in that form, a private image that is read for the
 * hold and goes with it. A hold of this kind has no slot and is ready at once; the expert is fetched in
 * the background for the next time. */
#include "pool/inside.h"

void mp_pool_mark_in_place(const struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                           bool pieces, bool reads)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        hold->may_run_in_place =
            hold->may_run_in_place && hold->kind == MP_HOLD_NONE &&
            mp_transfer_may_lend(pool->transfers[hold->shard], hold->key / pool->experts,
                                 hold->key % pool->experts, pieces, reads, &hold->address,
                                 &hold->owns_image);
    }
}

void mp_in_place_drop(mp_hold *hold)
{
    if (hold->owns_image)
        mp_transfer_free_image(hold->address);
    hold->owns_image = false;
}

bool mp_in_place_hold(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_transfer *transfer = pool->transfers[hold->shard];
    if (mp_cache_is_resident(pool->cache, hold->key) ||
        !mp_transfer_lend(transfer, hold->key, &hold->slot, &hold->address)) {
        mp_in_place_drop(hold);
        return false;
    }
    hold->kind = MP_HOLD_HOST;
    hold->form = pool->slot_form;
    hold->ready = true;
    if (!(hold->scan && pool->scan_percent)) /* prefill alone must not evict what decode uses */
        mp_ahead_want_missed(pool->ahead, hold->key);
    mp_ahead_start(pool->ahead, hold->shard);
    return true;
}

void mp_in_place_release(struct moepage_expert_pool *pool, mp_hold *hold)
{
    hold->kind = MP_HOLD_NONE;
    hold->ready = false;
    mp_in_place_drop(hold);
    if (hold->slot == MP_NO_SLOT)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_transfer_take_back(pool->transfers[hold->shard], hold->slot);
    pthread_mutex_unlock(&pool->lock);
}
