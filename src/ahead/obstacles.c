/* Obstacles: ending loads that stand in the way of a claim. The lock is held throughout. */
#include "ahead/inside.h"

static mp_prefetcher *prefetcher_of(mp_ahead *ahead, const mp_shard *shard)
{
    return &ahead->prefetchers[mp_shard_device(shard)];
}

moepage_status mp_claim_make_room(mp_ahead *ahead, mp_shard *shard, uint32_t key, mp_claim why,
                                  bool *ended)
{
    mp_transfer *transfer = mp_shard_transfer(shard);
    *ended = false;
    mp_transfer_flush(transfer);
    uint32_t slot = mp_shard_load_in_the_way(shard, key, why == MP_CLAIM_NO_SOURCE);
    if (slot == MP_NO_SLOT)
        return MOEPAGE_OK;
    moepage_status status = mp_passage_wait(transfer, slot, MP_UNTIL_LANDED);
    if (status)
        return status;
    if (mp_passage_is_submitted(transfer, slot))
        mp_shard_settle(shard, slot);
    else /* an unfinished prefetch: it is given up rather than waited for */
        mp_prefetcher_give_up(prefetcher_of(ahead, shard), slot);
    *ended = mp_shard_view(shard, slot).state != MP_SLOT_LOADING;
    return MOEPAGE_OK;
}

/* Returns true if the load is known to have failed; parts of it may still be on their way. */
static bool has_failed(mp_transfer *transfer, uint32_t slot)
{
    return mp_passage_is_submitted(transfer, slot) ? mp_passage_result(transfer, slot)
                                                   : mp_passage_failure(transfer, slot);
}

void mp_claim_look_at(mp_ahead *ahead, mp_shard *shard, uint32_t slot)
{
    mp_transfer *transfer = mp_shard_transfer(shard);
    bool attended = mp_shard_is_attended(shard, slot);
    if (mp_shard_view(shard, slot).state != MP_SLOT_LOADING)
        return;
    if (has_failed(transfer, slot)) {
        mp_transfer_flush(transfer);
        /* A failed device is reported by the next wait. */
        (void)mp_passage_wait(transfer, slot, MP_UNTIL_LANDED);
    }
    mp_shard_settle(shard, slot);
    if (attended && mp_passage_failure(transfer, slot) &&
        !mp_passage_is_submitted(transfer, slot) && mp_passage_has_landed(transfer, slot))
        mp_prefetcher_give_up(prefetcher_of(ahead, shard), slot);
}
