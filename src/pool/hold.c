/* Holding experts that mp_client_hold_resident has not found: loading them, waiting for them,
 * and releasing them. */
#include "base/status.h"
#include "pool/inside.h"

/* ---- what is absent; the lock is held ---- */

static moepage_status refuse(const struct moepage_expert_pool *pool, const mp_shard *shard,
                             const mp_hold *hold)
{
    mp_span slots = mp_shard_slots(shard);
    return mp_fail(MOEPAGE_E_BUSY,
                   "no slot for expert %u of layer %u: all %u are pinned, in open plans, or of "
                   "loads that failed there; retire a layer first",
                   hold->key % pool->experts, hold->key / pool->experts, slots.end - slots.first);
}

/* Holds the expert where it is, resident or on its way, or gives it a slot; then submits all of its
 * bytes that are not under way yet. */
static mp_claim hold_now(struct moepage_expert_pool *pool, mp_shard *shard, mp_hold *hold)
{
    /* Look for it, and settle its load if that has ended: one that has failed leaves the map. */
    uint32_t slot = mp_cache_find(pool->cache, hold->key);
    if (slot != MP_NO_SLOT) {
        mp_claim_look_at(pool->ahead, shard, slot);
        slot = mp_cache_find(pool->cache, hold->key);
    }
    if (slot != MP_NO_SLOT) {
        /* It has a slot. A load under way is a demand from now on, even if it was called off. */
        hold->ready = mp_shard_view(shard, slot).state == MP_SLOT_RESIDENT;
        mp_shard_add_user(shard, slot);
        mp_shard_hold(shard, slot, hold, hold->ready ? MP_HOLD_HIT : MP_HOLD_LATE);
        mp_ahead_keep(pool->ahead, shard, slot);
    } else {
        /* It is absent: its load begins here, with one user. */
        mp_purpose purpose = hold->scan && pool->scan_percent ? MP_FOR_SCAN : MP_FOR_DECODE;
        mp_claim claim = mp_shard_claim(shard, hold->key, purpose, MP_PIPE_DEMAND, 1, &slot);
        if (claim != MP_CLAIMED)
            return claim;
        mp_shard_hold(shard, slot, hold, MP_HOLD_MISS);
    }
    mp_transfer *transfer = pool->transfers[hold->shard];
    hold->demanded = mp_passage_advance(transfer, slot, MP_PIPE_DEMAND, UINT64_MAX);
    hold->cold = mp_passage_waits_for_cold(transfer, slot);
    return MP_CLAIMED;
}

/* Ends what is in the way of a claim, one thing at a time, until it succeeds or nothing is left to end:
 * loads; then reads of the cold tier, which hold entries of the host tier although no load waits for
 * them; then slots of failed loads, and of a move, that are free but for the book-keeping. */
static moepage_status hold_one(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_shard *shard = pool->shards[hold->shard];
    for (bool read = false;;) {
        bool ended = false;
        mp_claim claim = hold_now(pool, shard, hold);
        if (claim == MP_CLAIMED)
            return MOEPAGE_OK;
        moepage_status status = mp_claim_make_room(pool->ahead, shard, hold->key, claim, &ended);
        if (!status && !ended && claim == MP_CLAIM_NO_SOURCE && !read) {
            status = mp_transfer_sync_reads(pool->transfers[hold->shard]);
            read = true;
        } else if (!status && !ended && !mp_shard_reclaim(shard)) {
            return refuse(pool, shard, hold);
        }
        if (status)
            return status;
    }
}

/* Holds an expert of a pool with low versions beside its cache: in its slot if it is resident,
 * otherwise in its low version. */
static void hold_any(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_shard *shard = pool->shards[hold->shard];
    if (mp_cache_is_resident(pool->cache, hold->key)) {
        uint32_t slot = mp_cache_find(pool->cache, hold->key);
        mp_shard_add_user(shard, slot);
        mp_shard_hold(shard, slot, hold, MP_HOLD_HIT);
        hold->ready = true;
        return;
    }
    mp_versions_hold_low(pool->versions[hold->shard], hold);
    if (!(hold->scan && pool->scan_percent)) /* prefill alone must not evict what decode uses */
        mp_ahead_want_missed(pool->ahead, hold->key);
}

/* ---- what sessions call ---- */

void mp_pool_hold_any(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n)
{
    if (mp_client_hold_resident(client, holds, n) == n)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_cache_begin_set(pool->cache, holds, n);
    for (uint32_t i = 0; i < n; i++)
        if (holds[i].kind == MP_HOLD_NONE)
            hold_any(pool, &holds[i]);
    mp_cache_end_low_set(pool->cache, holds, n, mp_client_decodes(client));
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_ahead_start(pool->ahead, d);
    pthread_mutex_unlock(&pool->lock);
}

moepage_status mp_pool_hold_rest(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                                 uint32_t decodes)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->lock);
    mp_cache_begin_set(pool->cache, holds, n);
    /* No member of the set must become a victim of another: hits are held already, and a miss is
     * held as soon as it has a slot. Recency changes only afterwards, in the set's own order. */
    for (uint32_t i = 0; i < n && !status; i++) {
        if (holds[i].kind != MP_HOLD_NONE ||
            (holds[i].may_run_in_place && mp_in_place_hold(pool, &holds[i])))
            continue;
        status = hold_one(pool, &holds[i]);
    }
    mp_cache_end_set(pool->cache, holds, n, decodes, !status);
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_transfer_flush(pool->transfers[d]);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < n; i++)
        if (holds[i].kind == MP_HOLD_NONE && holds[i].may_run_in_place)
            mp_in_place_drop(&holds[i]);
    if (status)
        mp_pool_release(pool, holds, n);
    return status;
}

bool mp_pool_landed(struct moepage_expert_pool *pool, const mp_hold *hold)
{
    const mp_shard *shard = pool->shards[hold->shard];
    return mp_shard_view(shard, hold->slot).state != MP_SLOT_LOADING ||
           mp_passage_has_landed(pool->transfers[hold->shard], hold->slot);
}

static moepage_status load_failed(struct moepage_expert_pool *pool, const mp_hold *hold,
                                  moepage_status status)
{
    char text[512];
    const char *why =
        mp_transfer_explain(pool->transfers[hold->shard], hold->key, status, text, sizeof text);
    return mp_fail(status, "loading expert %u of layer %u failed: %s", hold->key % pool->experts,
                   hold->key / pool->experts, why);
}

moepage_status mp_pool_wait(struct moepage_expert_pool *pool, mp_hold *hold, mp_stream *reader)
{
    mp_transfer *transfer = pool->transfers[hold->shard];
    mp_shard *shard = pool->shards[hold->shard];
    if (hold->ready)
        return MOEPAGE_OK;

    /* Wait for the transfers without the lock: for their end, or until the device alone
     * can fail them. */
    moepage_status status =
        mp_passage_wait(transfer, hold->slot, reader ? MP_UNTIL_SETTLED : MP_UNTIL_LANDED);
    if (status)
        return status;

    /* Publish the load if it has landed; if not, the reader's stream waits for it. */
    pthread_mutex_lock(&pool->lock);
    uint32_t state = mp_shard_settle(shard, hold->slot);
    bool leads = state == MP_SLOT_LOADING && reader;
    if (leads)
        status = mp_passage_result(transfer, hold->slot);
    if (leads && !status)
        status = mp_passage_lead(transfer, hold->slot, reader);
    pthread_mutex_unlock(&pool->lock);
    hold->ready = state == MP_SLOT_RESIDENT || state == MP_SLOT_DRAINING || (leads && !status);
    if (!hold->ready && !status)
        status = mp_passage_failure(transfer, hold->slot);
    return status ? load_failed(pool, hold, status) : MOEPAGE_OK;
}

void mp_pool_release(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        if (hold->kind == MP_HOLD_HOST) {
            mp_in_place_release(pool, hold);
        } else if (hold->kind == MP_HOLD_NONE || hold->kind == MP_HOLD_LOW) {
            hold->kind = MP_HOLD_NONE;
            hold->ready = false;
        } else {
            mp_cache_release(pool->cache, hold);
        }
    }
}
