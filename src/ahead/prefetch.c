/* Prefetching: a task per device that loads wanted experts in small pieces while no demand waits
 * for the bus.
 *
 * The task submits at most `chunk_bytes` at a time and keeps two such batches on the bus: enough
 * that the bus does not idle between them, and a demand never queues behind more. A load takes a
 * slot only when it can start. A prefetch that is half way when its layer is routed without it
 * is given up. */
#include <string.h>

#include "ahead/inside.h"
#include "base/alloc.h"
#include "base/status.h"

/* ---- life ---- */

moepage_status mp_ahead_open(mp_cache *cache, const mp_cache_setup *setup, uint64_t slot_bytes,
                             uint32_t chunk_bytes, mp_ahead **out)
{
    mp_ahead *ahead = mp_alloc(sizeof *ahead);
    if (!ahead)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for prefetching");
    ahead->cache = cache;
    ahead->lock = setup->lock;
    ahead->layers = setup->layers;
    ahead->experts = setup->experts;
    ahead->keys = setup->layers * setup->experts;
    ahead->deal = setup->deal;
    ahead->scan_percent = setup->scan_percent;
    ahead->slot_bytes = slot_bytes;
    ahead->chunk_bytes = chunk_bytes;
    ahead->wanted = mp_alloc_array(ahead->keys, sizeof *ahead->wanted);
    ahead->prefetchers = mp_alloc_array(setup->deal->n, sizeof *ahead->prefetchers);
    if (!ahead->wanted || !ahead->prefetchers) {
        mp_ahead_close(ahead);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the wants of %u experts",
                       setup->layers * setup->experts);
    }
    *out = ahead;
    return MOEPAGE_OK;
}

static void pump(mp_task *task);

moepage_status mp_ahead_add_device(mp_ahead *ahead, struct moepage_device *home, uint32_t most)
{
    uint32_t device = ahead->n_devices++;
    mp_prefetcher *prefetcher = &ahead->prefetchers[device];
    prefetcher->task = (mp_task){.run = pump, .lock = ahead->lock};
    prefetcher->ahead = ahead;
    prefetcher->device = device;
    prefetcher->machine = home->device;
    prefetcher->shard = mp_cache_shard(ahead->cache, device);
    prefetcher->transfer = mp_shard_transfer(prefetcher->shard);
    prefetcher->capacity = most;
    prefetcher->wants = mp_alloc_array(most, sizeof *prefetcher->wants);
    prefetcher->active = mp_alloc_array(most, sizeof *prefetcher->active);
    prefetcher->stale = mp_alloc_array(most, sizeof *prefetcher->stale);
    if (!prefetcher->wants || !prefetcher->active || !prefetcher->stale)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a prefetch queue of %u experts", most);
    return MOEPAGE_OK;
}

void mp_ahead_stop(mp_ahead *ahead)
{
    if (!ahead)
        return;
    pthread_mutex_lock(ahead->lock);
    for (uint32_t d = 0; d < ahead->n_devices; d++) {
        ahead->prefetchers[d].stopping = true;
        mp_wants_drop(&ahead->prefetchers[d], UINT32_MAX, UINT32_MAX);
        mp_ahead_abandon(ahead, d);
    }
    pthread_mutex_unlock(ahead->lock);
}

void mp_ahead_close(mp_ahead *ahead)
{
    if (!ahead)
        return;
    for (uint32_t d = 0; d < ahead->n_devices; d++) {
        mp_free(ahead->prefetchers[d].wants);
        mp_free(ahead->prefetchers[d].active);
        mp_free(ahead->prefetchers[d].stale);
    }
    mp_free(ahead->prefetchers);
    mp_free(ahead->wanted);
    mp_free(ahead);
}

void mp_ahead_describe(const mp_ahead *ahead, moepage_expert_pool_info *info)
{
    info->prefetch_cancelled += ahead->cancelled;
    info->prefetch_refused += ahead->refused;
}

/* ---- loads under way ---- */

static void activate(mp_prefetcher *prefetcher, uint32_t slot, uint32_t client)
{
    prefetcher->active[prefetcher->n_active++] = slot;
    prefetcher->stale[slot] = false;
    mp_shard_attend(prefetcher->shard, slot, client);
    atomic_fetch_add(&prefetcher->ahead->pending, 1);
}

static void deactivate(mp_prefetcher *prefetcher, uint32_t slot)
{
    uint32_t at = 0;
    while (prefetcher->active[at] != slot)
        at++;
    prefetcher->n_active--;
    memmove(&prefetcher->active[at], &prefetcher->active[at + 1],
            (prefetcher->n_active - at) * sizeof *prefetcher->active);
    mp_shard_stop_attending(prefetcher->shard, slot);
    atomic_fetch_sub(&prefetcher->ahead->pending, 1);
}

void mp_ahead_load_ended(void *ahead, uint32_t device, uint32_t slot)
{
    deactivate(&((mp_ahead *)ahead)->prefetchers[device], slot);
}

void mp_prefetcher_give_up(mp_prefetcher *prefetcher, uint32_t slot)
{
    if (!mp_shard_call_off(prefetcher->shard, slot))
        return; /* a plan holds it, and will see what becomes of it */
    mp_passage_end(prefetcher->transfer, slot);
    deactivate(prefetcher, slot);
    prefetcher->ahead->cancelled++;
}

/* Publishes loads that have landed and gives up stale ones. */
static void sweep_active(mp_prefetcher *prefetcher)
{
    for (uint32_t i = prefetcher->n_active; i-- > 0;) {
        uint32_t slot = prefetcher->active[i];
        if (!mp_passage_has_landed(prefetcher->transfer, slot))
            continue;
        if (mp_passage_is_submitted(prefetcher->transfer, slot))
            mp_shard_settle(prefetcher->shard, slot);
        else if (prefetcher->stale[slot] || mp_passage_failure(prefetcher->transfer, slot))
            mp_prefetcher_give_up(prefetcher, slot);
    }
}

void mp_ahead_abandon(mp_ahead *ahead, uint32_t device)
{
    mp_prefetcher *prefetcher = &ahead->prefetchers[device];
    for (uint32_t i = prefetcher->n_active; i-- > 0;) {
        uint32_t slot = prefetcher->active[i];
        if (mp_shard_view(prefetcher->shard, slot).users > 0)
            continue;
        /* On all pipes: a session may have advanced it on a demand's pipe and released it since. */
        if (mp_passage_wait(prefetcher->transfer, slot, MP_UNTIL_LANDED))
            return; /* a poisoned device: the next call that needs a slot reports it */
        if (mp_passage_is_submitted(prefetcher->transfer, slot))
            mp_shard_settle(prefetcher->shard, slot);
        else
            mp_prefetcher_give_up(prefetcher, slot);
    }
}

void mp_ahead_keep(mp_ahead *ahead, mp_shard *shard, uint32_t slot)
{
    ahead->prefetchers[mp_shard_device(shard)].stale[slot] = false;
}

void mp_ahead_call_off(mp_ahead *ahead, mp_shard *shard, uint32_t slot, bool held)
{
    mp_prefetcher *prefetcher = &ahead->prefetchers[mp_shard_device(shard)];
    if (!mp_shard_is_attended(shard, slot) || mp_passage_is_submitted(prefetcher->transfer, slot))
        return; /* it lands by itself */
    prefetcher->stale[slot] = !held;
    if (!held && mp_passage_has_landed(prefetcher->transfer, slot))
        mp_prefetcher_give_up(prefetcher, slot);
}

/* ---- the task ---- */

static void post(mp_prefetcher *prefetcher, mp_event event)
{
    prefetcher->posted = true;
    prefetcher->machine->ops->post(prefetcher->machine, event.stream, event.tick,
                                   &prefetcher->task);
}

/* Gives the next want that still makes sense a slot and returns it; MP_NO_SLOT if there is no want,
 * or none that could start now. */
static uint32_t start_next(mp_prefetcher *prefetcher)
{
    mp_ahead *ahead = prefetcher->ahead;
    while (prefetcher->count > 0) {
        mp_wants_bring_forward(prefetcher);
        const mp_want next = *mp_want_at(prefetcher, 0);
        bool absent = mp_cache_find(ahead->cache, next.key) == MP_NO_SLOT;
        mp_purpose purpose = next.p < MP_MISSED ? MP_FOR_PREFETCH : MP_FOR_DECODE;
        uint32_t slot = MP_NO_SLOT;
        mp_claim claim = MP_CLAIM_NO_SLOT;
        if (absent)
            claim =
                mp_shard_claim(prefetcher->shard, next.key, purpose, MP_PIPE_PREFETCH, 0, &slot);
        if (claim == MP_CLAIM_LATER)
            break;
        mp_wants_pop(prefetcher);
        if (claim == MP_CLAIMED) {
            mp_shard_rank(prefetcher->shard, slot, next.key);
            activate(prefetcher, slot, next.client);
            return slot;
        }
        ahead->cancelled += !absent;
        ahead->refused += absent;
    }
    return MP_NO_SLOT;
}

/* Goes on with a load and returns how much of the batch's room it took. A load that only
 * decodes crosses no bus, but is counted as a whole expert, so that a batch remains a bounded
 * amount of work. */
static uint64_t advance(mp_prefetcher *prefetcher, uint32_t slot, uint64_t room)
{
    uint64_t bytes = mp_passage_advance(prefetcher->transfer, slot, MP_PIPE_PREFETCH, room);
    bool decode_only = bytes == 0 && mp_passage_is_submitted(prefetcher->transfer, slot);
    uint64_t work = decode_only ? prefetcher->ahead->slot_bytes : bytes;
    mp_shard_add_ahead(prefetcher->shard, slot, bytes);
    return work < room ? work : room;
}

/* One part in IMAGES_SHARE of each batch is for images of compressed experts, while there are
 * any to copy. */
#define IMAGES_SHARE 4

/* Submits one batch: first the rest of loads under way, then new wants. Returns false if there was
 * nothing to submit. */
static bool submit_batch(mp_prefetcher *prefetcher)
{
    mp_transfer *transfer = prefetcher->transfer;
    mp_tick before = mp_transfer_last(transfer, MP_PIPE_PREFETCH).tick;
    uint64_t room = prefetcher->ahead->chunk_bytes;
    /* So that victims are chosen by all uses until now. */
    mp_cache_drain_touches(prefetcher->ahead->cache);
    room -= mp_images_advance(transfer, (room + IMAGES_SHARE - 1) / IMAGES_SHARE);
    for (uint32_t i = 0; i < prefetcher->n_active && room > 0; i++) {
        uint32_t slot = prefetcher->active[i];
        if (!prefetcher->stale[slot] && !mp_passage_is_submitted(transfer, slot) &&
            !mp_passage_failure(transfer, slot))
            room -= advance(prefetcher, slot, room);
    }
    /* Not in the loop above: taking a slot may settle loads under way, which changes that list. */
    while (room > 0) {
        uint32_t slot = start_next(prefetcher);
        if (slot == MP_NO_SLOT)
            break;
        room -= advance(prefetcher, slot, room);
    }
    mp_transfer_flush(transfer);
    mp_tick last = mp_transfer_last(transfer, MP_PIPE_PREFETCH).tick;
    if (last == before)
        return false;
    prefetcher->batch[0] = prefetcher->batch[1];
    prefetcher->batch[1] = last;
    return true;
}

static bool has_passed(const mp_prefetcher *prefetcher, mp_event event)
{
    return prefetcher->machine->ops->completed(event.stream) >= event.tick;
}

static bool demand_waits(const mp_prefetcher *prefetcher)
{
    return !has_passed(prefetcher, mp_transfer_last(prefetcher->transfer, MP_PIPE_DEMAND));
}

/* Returns the event behind which the next load or want can go on, or one that has passed. */
static mp_event next_event(const mp_prefetcher *prefetcher)
{
    mp_event event;
    for (uint32_t i = 0; i < prefetcher->n_active; i++)
        if (mp_passage_next_event(prefetcher->transfer, prefetcher->active[i], &event))
            return event;
    /* Even of a guess that was dropped: its lane is taken until then. */
    if (mp_transfer_next_read(prefetcher->transfer, &event))
        return event;
    event = mp_transfer_last(prefetcher->transfer, MP_PIPE_PREFETCH);
    event.tick = 0;
    return event;
}

/* Lets `pending` count, as one, the compressed images that are still to come. */
static void count_images(mp_prefetcher *prefetcher)
{
    bool pending = mp_images_pending(prefetcher->transfer);
    if (pending != prefetcher->images_counted)
        atomic_fetch_add(&prefetcher->ahead->pending, pending ? 1 : -1u);
    prefetcher->images_counted = pending;
}

static bool has_work(const mp_prefetcher *prefetcher)
{
    return prefetcher->count + prefetcher->n_active > 0 || mp_images_pending(prefetcher->transfer);
}

/* Submits what may be on the bus now, and posts the task for the moment when more may follow. A
 * third batch waits for the older of the two on the bus. */
static void go_on(mp_prefetcher *prefetcher)
{
    mp_event batch[2];
    bool wait = demand_waits(prefetcher);
    batch[0] = batch[1] = mp_transfer_last(prefetcher->transfer, MP_PIPE_PREFETCH);
    for (int i = 0; i < 2 && !wait; i++) {
        batch[0].tick = prefetcher->batch[0];
        if (!has_passed(prefetcher, batch[0]) || !submit_batch(prefetcher))
            break;
    }
    count_images(prefetcher);
    batch[0].tick = prefetcher->batch[0];
    batch[1].tick = prefetcher->batch[1];
    if (wait && has_work(prefetcher))
        post(prefetcher, mp_transfer_last(prefetcher->transfer, MP_PIPE_DEMAND));
    else if (!has_passed(prefetcher, batch[1]))
        post(prefetcher, batch[has_passed(prefetcher, batch[0])]);
    else if (has_work(prefetcher))
        post(prefetcher, next_event(prefetcher));
}

static void pump(mp_task *task)
{
    mp_prefetcher *prefetcher = (mp_prefetcher *)task;
    pthread_mutex_lock(prefetcher->ahead->lock);
    prefetcher->posted = false;
    if (!prefetcher->stopping) { /* else the streams may be destroyed already */
        sweep_active(prefetcher);
        mp_images_sweep(prefetcher->transfer);
        go_on(prefetcher);
    }
    pthread_mutex_unlock(prefetcher->ahead->lock);
}

/* ---- starting it ---- */

/* Posts the task, behind demands on the bus if there are any, so that it does not wake only to
 * wait for them. */
static void wake(mp_prefetcher *prefetcher)
{
    if (prefetcher->posted)
        return;
    mp_event event = mp_transfer_last(prefetcher->transfer, MP_PIPE_DEMAND);
    if (has_passed(prefetcher, event)) {
        event = mp_transfer_last(prefetcher->transfer, MP_PIPE_PREFETCH);
        event.tick = 0;
    }
    post(prefetcher, event);
}

void mp_ahead_start(mp_ahead *ahead, uint32_t device)
{
    mp_prefetcher *prefetcher = &ahead->prefetchers[device];
    count_images(prefetcher);
    if (prefetcher->count > 0 || prefetcher->images_counted)
        wake(prefetcher);
}

uint32_t mp_ahead_bring(mp_ahead *ahead, uint32_t key)
{
    mp_prefetcher *prefetcher = &ahead->prefetchers[mp_deal_device(ahead->deal, key)];
    uint32_t slot;
    if (mp_cache_find(ahead->cache, key) != MP_NO_SLOT ||
        mp_shard_claim(prefetcher->shard, key, MP_FOR_VERSION, MP_PIPE_PREFETCH, 0, &slot) !=
            MP_CLAIMED)
        return MP_NO_SLOT;
    activate(prefetcher, slot, MP_SHARED_WANT);
    wake(prefetcher);
    return slot;
}
