/* Holding experts: what a session does with the pool on every layer. The first half, for experts
 * that are resident, takes no lock. */
#include "ahead/versions.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>

#include "base/status.h"
#include "pool/in_place.h"

void mp_pool_begin_routing(mp_client *client)
{
    atomic_store(&client->routing, true);
}

void mp_pool_end_routing(mp_client *client)
{
    atomic_store_explicit(&client->routing, false, memory_order_release);
}

static uint32_t excess_of(uint32_t all, uint32_t taken)
{
    return all > taken ? all - taken : 0;
}

uint32_t mp_pool_quota(const struct moepage_expert_pool *pool, const mp_client *client,
                       uint32_t layer, uint32_t shard_index, bool scan)
{
    const mp_shard *shard = &pool->shards[shard_index];
    const mp_scope *scope = &shard->scopes[pool->n_scopes == 1 ? 0 : layer];
    if (mp_pool_serves_versions(pool)) /* nothing is evicted for a session */
        return UINT32_MAX;
    uint32_t aim = atomic_load(&scope->aim); /* in order with `routing`: resize.c */
    if (aim >= scope->members)
        return UINT32_MAX;
    uint32_t pinned = atomic_load_explicit(&scope->pinned, memory_order_relaxed);
    uint32_t clients = mp_pool_sharers(pool);
    clients = clients ? clients : 1;
    uint32_t share = excess_of(aim, pinned) / clients; /* pins may come and go meanwhile */
    if (scan && pool->scan_percent) {
        uint32_t limit = aim * pool->scan_percent / 100;
        share = limit < 1 ? 1 : limit < share ? limit : share;
    }
    uint32_t reserved = 0;
    if (pool->n_scopes == 1)
        reserved = atomic_load_explicit(&client->reserved[shard_index], memory_order_relaxed);
    uint32_t capacity = atomic_load_explicit(&scope->capacity, memory_order_relaxed);
    if (share > reserved || aim >= capacity)
        return excess_of(share, reserved);
    /* The pool is about to shrink, and the session holds what it will have or more: whoever could
     * hold something before still can, but no more than one, so that it becomes less. */
    return excess_of(excess_of(capacity, pinned) / clients, reserved) > 0;
}

/* Takes a user off a slot's word; the last user of a failed load, or of a slot that drains, takes
 * the slot back. */
static void let_go(struct moepage_expert_pool *pool, mp_shard *shard, uint32_t index)
{
    uint64_t before = atomic_fetch_sub_explicit(&shard->words[index], 1, memory_order_acq_rel);
    uint32_t state = MP_WORD_STATE(before);
    if ((state != MP_SLOT_FAILED && state != MP_SLOT_DRAINING) || MP_WORD_USERS(before) != 1)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_pool_drop(shard, index, MP_WORD_KEY(before), state);
    pthread_mutex_unlock(&pool->lock);
}

/* The hold has a user in the slot's word from here on. */
static void got(const mp_shard *shard, mp_hold *hold, uint32_t index, uint8_t kind)
{
    hold->slot = index;
    hold->kind = kind;
    hold->form = shard->pool->slot_form;
    hold->address = mp_pool_slot_address(shard, index);
}

/* Adds a user to the slot that the map names for the key, if that is where it is and it is
 * RESIDENT. */
static bool try_hold(struct moepage_expert_pool *pool, mp_hold *hold)
{
    uint32_t index = atomic_load_explicit(&pool->entry[hold->key], memory_order_acquire);
    if (index == MP_NO_SLOT)
        return false;
    mp_shard *shard = &pool->shards[hold->shard];
    uint64_t before = atomic_fetch_add_explicit(&shard->words[index], 1, memory_order_acq_rel);
    if (MP_WORD_IDENTITY(before) != MP_WORD(hold->key, MP_SLOT_RESIDENT)) {
        let_go(pool, shard, index);
        return false;
    }
    got(shard, hold, index, MP_HOLD_HIT);
    hold->ready = true;
    return true;
}

uint32_t mp_pool_hold_resident(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                               uint32_t n)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < n; i++) {
        holds[i].kind = MP_HOLD_NONE;
        holds[i].ready = false;
        holds[i].may_run_in_place = false; /* until it is marked for this holding */
        holds[i].demanded = 0;
        holds[i].cold = false;
        held += try_hold(pool, &holds[i]);
    }
    if (held == n && !mp_pool_record_touches(pool, client, holds, n)) {
        pthread_mutex_lock(&pool->lock);
        mp_pool_drain_touches(pool);
        pthread_mutex_unlock(&pool->lock);
        bool fits =
            mp_pool_record_touches(pool, client, holds, n); /* the ring is longer than a record */
        assert(fits);
        (void)fits;
    }
    return held;
}

static void flush_all(struct moepage_expert_pool *pool)
{
    for (uint32_t d = 0; d < pool->n_shards; d++)
        mp_pipes_flush(&pool->shards[d]);
}

/* Gives an absent expert a slot and starts its load; false if there is no slot, or nothing to load
 * it through. */
static bool hold_absent(mp_shard *shard, mp_hold *hold)
{
    bool scan = hold->scan && shard->pool->scan_percent;
    if (mp_pool_may_start(shard, hold->key, MP_PIPE_DEMAND) != MP_START_NOW)
        return false;
    uint32_t index = mp_pool_take_slot(shard, hold->key, scan ? MP_FOR_SCAN : MP_FOR_DECODE, 1);
    if (index == MP_NO_SLOT)
        return false;
    hold->demanded = mp_pool_stage_load(shard, index, MP_PIPE_DEMAND, UINT64_MAX);
    hold->cold = mp_pool_waits_for_cold(shard, index);
    got(shard, hold, index, MP_HOLD_MISS);
    return true;
}

/* The expert is in a slot, resident or on its way; a load under way is hurried up. */
static void hold_present(mp_shard *shard, mp_hold *hold, uint32_t index)
{
    mp_slot *slot = &shard->slots[index];
    atomic_fetch_add(&shard->words[index], 1);
    slot->stale = false;
    hold->demanded = mp_pool_stage_load(shard, index, MP_PIPE_DEMAND, UINT64_MAX);
    uint32_t state = MP_WORD_STATE(atomic_load(&shard->words[index]));
    hold->ready = state == MP_SLOT_RESIDENT;
    hold->cold = mp_pool_waits_for_cold(shard, index);
    got(shard, hold, index, hold->ready ? MP_HOLD_HIT : MP_HOLD_LATE);
}

static bool prefetch_failed_half_way(const mp_shard *shard, uint32_t index)
{
    const mp_slot *slot = &shard->slots[index];
    return slot->prefetching && atomic_load(&slot->result) && !mp_pool_fully_staged(shard, index) &&
           mp_pool_transfers_done(shard, index);
}

/* Is it known that the slot's load has failed? Parts of it may be on their way even so. */
static bool has_failed(mp_shard *shard, uint32_t index)
{
    if (MP_WORD_STATE(atomic_load(&shard->words[index])) != MP_SLOT_LOADING)
        return false;
    return mp_pool_fully_staged(shard, index) ? mp_pool_result_of(shard, index)
                                              : atomic_load(&shard->slots[index].result);
}

/* Publishes the slot's load if it has landed, and makes an end of it if it has failed: it is tried
 * again, not shared, once nothing of it is under way. */
static void look_at(mp_shard *shard, uint32_t index)
{
    if (has_failed(shard, index)) {
        mp_pipes_flush(shard);
        (void)mp_pipe_sync(shard, &shard->slots[index].passage); /* a lost device tells later */
    }
    mp_pool_settle(shard, index);
    if (prefetch_failed_half_way(shard, index))
        mp_prefetcher_give_up(shard, index);
}

/* Holds the expert where it is, or where it can be brought; false if there is no slot. */
static bool hold_now(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_shard *shard = &pool->shards[hold->shard];
    uint32_t index = atomic_load(&pool->entry[hold->key]);
    if (index != MP_NO_SLOT) {
        look_at(shard, index);
        index = atomic_load(&pool->entry[hold->key]);
    }
    if (index == MP_NO_SLOT)
        return hold_absent(shard, hold);
    hold_present(shard, hold, index);
    return true;
}

/* A slot can look used because a session that read an old map is about to see its mistake; it needs
 * no lock for that, only time. Others may change the pool meanwhile. */
#define BACK_OUT_TURNS 64
static void let_others_back_out(struct moepage_expert_pool *pool)
{
    flush_all(pool);
    pthread_mutex_unlock(&pool->lock);
    sched_yield();
    pthread_mutex_lock(&pool->lock);
}

static moepage_status hold_one(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_shard *shard = &pool->shards[hold->shard];
    for (int turn = 0; turn < BACK_OUT_TURNS; turn++) {
        moepage_status status = MOEPAGE_OK;
        for (bool again = true; again && !status;) { /* until no load is in its way */
            if (hold_now(pool, hold))
                return MOEPAGE_OK;
            status = mp_pool_end_load(shard, hold->key, &again);
        }
        if (!status && mp_pool_may_start(shard, hold->key, MP_PIPE_DEMAND) != MP_START_NOW)
            status = mp_host_tier_sync(shard->tier); /* reads that nobody waits for hold entries */
        if (status)
            return status;
        if (hold_now(pool, hold))
            return MOEPAGE_OK;
        let_others_back_out(pool);
    }
    return mp_fail(MOEPAGE_E_BUSY,
                   "no slot for expert %u of layer %u: all %u are pinned, in open plans, or of "
                   "loads that failed there; retire a layer first",
                   hold->key % pool->experts, hold->key / pool->experts, shard->n_slots);
}

static void count(struct moepage_expert_pool *pool, const mp_hold *hold)
{
    pool->counters.hits += hold->kind == MP_HOLD_HIT && !hold->pin;
    pool->counters.late += hold->kind == MP_HOLD_LATE && !hold->pin;
    pool->counters.misses +=
        (hold->kind == MP_HOLD_MISS || hold->kind == MP_HOLD_HOST) && !hold->pin;
    if (hold->kind == MP_HOLD_HOST)
        return;
    const mp_slot *slot = &pool->shards[hold->shard].slots[hold->slot];
    /* A load that has failed while the rest of the set found slots was of no use, late or not. */
    bool there = atomic_load(&pool->entry[hold->key]) == hold->slot;
    if (hold->kind == MP_HOLD_LATE && !hold->pin && there && slot->prefetched && !slot->used) {
        mp_prefetch_tally *tally = mp_prefetcher_tally(&pool->shards[hold->shard], slot, hold->key);
        pool->counters.prefetch_late++;
        pool->counters.late_bytes += slot->ahead_bytes;
        if (tally)
            tally->late++;
    }
}

/* What is pinned does not pass through. */
static void keep_pinned(struct moepage_expert_pool *pool, const mp_hold *hold)
{
    mp_shard *shard = &pool->shards[hold->shard];
    if (hold->kind == MP_HOLD_NONE || shard->slots[hold->slot].place == MP_PLACE_KEPT)
        return;
    mp_window_keep(shard, mp_pool_scope_of(pool, shard, hold->key), hold->slot, hold->key);
    if (hold->kind != MP_HOLD_MISS)
        mp_pool_rank(shard, hold->slot, hold->key);
}

/* What came is ranked; what was routed becomes recent. */
static void refresh(struct moepage_expert_pool *pool, const mp_hold *hold, bool routed)
{
    if (hold->pin)
        keep_pinned(pool, hold);
    if (hold->kind == MP_HOLD_MISS)
        mp_pool_rank(&pool->shards[hold->shard], hold->slot, hold->key);
    else if (hold->kind != MP_HOLD_NONE && hold->kind != MP_HOLD_HOST && routed && !hold->pin)
        mp_pool_touch(pool, hold->key, hold->scan, atomic_load(&pool->touch_clock));
}

/* A pin is no routed use. */
static void tell_watch(struct moepage_expert_pool *pool, const mp_hold *holds, uint32_t n)
{
    if (!pool->watch || (n == 1 && holds[0].pin))
        return;
    for (uint32_t i = 0; i < n; i++)
        pool->watch->keys[i] = holds[i].key;
    pool->watch->experts(pool->watch, pool->watch->keys, n);
}

static void tell_policy(struct moepage_expert_pool *pool, const mp_hold *holds, uint32_t n)
{
    uint32_t routed = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!holds[i].pin)
            mp_pool_collect_routed(pool, &routed, holds[i].key, holds[i].scan);
    mp_pool_tell_routed(pool, routed);
}

/* Holds the expert if it is resident, or else its low version. The lock is held. */
static void hold_any(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_shard *shard = &pool->shards[hold->shard];
    uint32_t index = atomic_load(&pool->entry[hold->key]);
    if (index != MP_NO_SLOT) {
        mp_pool_settle(shard, index);
        index = atomic_load(&pool->entry[hold->key]);
    }
    if (index != MP_NO_SLOT &&
        MP_WORD_STATE(atomic_load(&shard->words[index])) == MP_SLOT_RESIDENT) {
        atomic_fetch_add(&shard->words[index], 1);
        got(shard, hold, index, MP_HOLD_HIT);
        hold->ready = true;
        pool->counters.hits++;
        return;
    }
    pool->counters.misses++;
    mp_versions_hold_low(pool, hold);
    if (!(hold->scan && pool->scan_percent)) /* prefill alone does not push out what decode uses */
        mp_pool_want_missed(pool, hold->key);
}

void mp_pool_hold_any(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n)
{
    if (mp_pool_hold_resident(pool, client, holds, n) == n)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    uint64_t stamp = atomic_fetch_add(&pool->touch_clock, 1) + 1;
    tell_policy(pool, holds, n);
    for (uint32_t i = 0; i < n; i++) {
        if (holds[i].kind == MP_HOLD_NONE)
            hold_any(pool, &holds[i]);
        else
            pool->counters.hits++;
        if (holds[i].kind == MP_HOLD_HIT)
            mp_pool_touch(pool, holds[i].key, holds[i].scan, stamp);
    }
    for (uint32_t d = 0; d < pool->n_shards; d++)
        mp_prefetcher_start(&pool->shards[d].prefetcher);
    pthread_mutex_unlock(&pool->lock);
}

moepage_status mp_pool_hold_rest(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    atomic_fetch_add(&pool->touch_clock, 1);
    tell_policy(pool, holds, n);
    /* Victims first: what hits is held already, what misses is held as soon as it has a slot, so
     * no member of the set is ever a victim. Then recency, in the set's own order. */
    for (uint32_t i = 0; i < n && !status; i++)
        if (holds[i].kind == MP_HOLD_NONE && !mp_in_place_hold(pool, &holds[i]))
            status = hold_one(pool, &holds[i]);
    for (uint32_t i = 0; i < n; i++) {
        if (!status) /* a set that is refused was not routed */
            count(pool, &holds[i]);
        refresh(pool, &holds[i], !status);
    }
    if (!status)
        tell_watch(pool, holds, n);
    flush_all(pool);
    pthread_mutex_unlock(&pool->lock);
    if (status)
        mp_pool_release(pool, holds, n);
    return status;
}

bool mp_pool_landed(struct moepage_expert_pool *pool, const mp_hold *hold)
{
    const mp_shard *shard = &pool->shards[hold->shard];
    uint64_t word = atomic_load_explicit(&shard->words[hold->slot], memory_order_acquire);
    return MP_WORD_STATE(word) != MP_SLOT_LOADING || mp_pool_transfers_done(shard, hold->slot);
}

/* What is wrong with an expert's image, if that is what is wrong: an I/O thread's sentence, or that
 * of looking at a mapped image once more. Else the status has to do. */
static const char *why_failed(struct moepage_expert_pool *pool, const mp_hold *hold,
                              moepage_status status, char *out, size_t capacity)
{
    mp_host_tier *tier = pool->shards[hold->shard].tier;
    uint32_t layer = hold->key / pool->experts, expert = hold->key % pool->experts;
    if (status == MOEPAGE_E_BUSY || status == MOEPAGE_E_DEVICE)
        return moepage_status_text(status); /* not the image's fault */
    if (tier)
        mp_host_tier_failure(tier, hold->key, out, capacity);
    else if (pool->model->pack && mp_model_check_mapped(pool->model, layer, expert, pool->bus_form))
        snprintf(out, capacity, "%s", moepage_last_error());
    return *out ? out : moepage_status_text(status);
}

static moepage_status load_failed(struct moepage_expert_pool *pool, const mp_hold *hold,
                                  moepage_status status)
{
    char text[512] = "";
    const char *why = why_failed(pool, hold, status, text, sizeof text);
    return mp_fail(status, "loading expert %u of layer %u failed: %s", hold->key % pool->experts,
                   hold->key / pool->experts, why);
}

/* The load is on its way and cannot fail any more but by the device: readers may be lined up
 * behind it. */
static moepage_status line_up(mp_shard *shard, uint32_t index, mp_stream *reader)
{
    moepage_status status = mp_pool_result_of(shard, index);
    return status ? status : mp_pipe_lead(shard, &shard->slots[index].passage, reader);
}

moepage_status mp_pool_wait(struct moepage_expert_pool *pool, mp_hold *hold, mp_stream *reader)
{
    if (hold->ready)
        return MOEPAGE_OK;
    mp_shard *shard = &pool->shards[hold->shard];
    mp_slot *slot = &shard->slots[hold->slot];
    moepage_status status =
        reader ? mp_pipe_settle(shard, &slot->passage) : mp_pipe_sync(shard, &slot->passage);
    if (status)
        return status;
    pthread_mutex_lock(&pool->lock);
    mp_pool_settle(shard, hold->slot);
    uint32_t state = MP_WORD_STATE(atomic_load(&shard->words[hold->slot]));
    if (state == MP_SLOT_LOADING && reader)
        status = line_up(shard, hold->slot, reader);
    pthread_mutex_unlock(&pool->lock);
    hold->ready = state == MP_SLOT_RESIDENT || state == MP_SLOT_DRAINING ||
                  (state == MP_SLOT_LOADING && reader && !status);
    if (hold->ready)
        return MOEPAGE_OK;
    return load_failed(pool, hold, status ? status : atomic_load(&slot->result));
}

void mp_pool_release(struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        if (hold->kind == MP_HOLD_NONE || hold->kind == MP_HOLD_LOW) {
            hold->kind = MP_HOLD_NONE;
            hold->ready = false;
            continue;
        }
        if (hold->kind == MP_HOLD_HOST) {
            mp_in_place_release(pool, hold);
            continue;
        }
        mp_shard *shard = &pool->shards[hold->shard];
        bool loading = MP_WORD_STATE(atomic_load(&shard->words[hold->slot])) == MP_SLOT_LOADING;
        let_go(pool, shard, hold->slot);
        if (loading) /* nobody may be waiting for its bytes now */
            atomic_store(&shard->orphans, true);
        hold->kind = MP_HOLD_NONE;
        hold->ready = false;
    }
}
