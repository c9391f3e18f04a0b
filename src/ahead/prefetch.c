/* Prefetching: a queue of wanted experts, and a task that loads them in small pieces while no
 * demand is waiting for the bus.
 *
 * The task submits at most `chunk_bytes` at a time and keeps two such batches on the bus, so that
 * it does not idle between them and a demand never queues behind more. A load takes a slot only
 * when it can start: it has an entry of the host tier and a turn at the cold tier, or a staging
 * buffer. A want whose layer has come is dropped; a prefetch that is half way when its layer has
 * come without it is given up. */
#include "pool/expert_pool.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

moepage_status mp_prefetcher_init(mp_prefetcher *prefetcher, mp_shard *shard)
{
    prefetcher->shard = shard;
    prefetcher->capacity = shard->max_slots;
    prefetcher->wants = mp_alloc_array(prefetcher->capacity, sizeof *prefetcher->wants);
    prefetcher->active = mp_alloc_array(shard->max_slots, sizeof *prefetcher->active);
    if (!prefetcher->wants || !prefetcher->active) /* mp_prefetcher_free frees the other */
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a prefetch queue of %u experts",
                       prefetcher->capacity);
    return MOEPAGE_OK;
}

void mp_prefetcher_free(mp_prefetcher *prefetcher)
{
    mp_free(prefetcher->wants);
    mp_free(prefetcher->active);
}

/* ---- the queue ---- */

static mp_want *want_at(mp_prefetcher *prefetcher, uint32_t i)
{
    return &prefetcher->wants[(prefetcher->head + i) % prefetcher->capacity];
}

static void forget_want(mp_prefetcher *prefetcher, const mp_want *want)
{
    struct moepage_expert_pool *pool = prefetcher->shard->pool;
    pool->wanted[want->key] = false;
    atomic_fetch_sub(&pool->pending, 1);
}

/* How many layers a session has to go to that one; all of them where it is there. */
static uint32_t layers_to(const struct moepage_expert_pool *pool, uint32_t client, uint32_t layer)
{
    if (!pool->clients[client])
        return pool->layers;
    uint32_t now = atomic_load_explicit(&pool->clients[client]->layer, memory_order_relaxed);
    return layer > now ? layer - now : layer + pool->layers - now;
}

/* p / (layers until its layer comes), for the nearest session that it may be for. */
static float urgency(const struct moepage_expert_pool *pool, const mp_want *want)
{
    if (want->p >= MP_HINTED)
        return want->p;
    uint32_t layer = want->key / pool->experts, nearest = pool->layers;
    if (want->client != MP_SHARED_WANT)
        return want->p / (float)layers_to(pool, want->client, layer);
    uint32_t left = atomic_load_explicit(&pool->n_clients, memory_order_relaxed);
    for (uint32_t c = 0; left > 0 && c < MP_MAX_CLIENTS; c++) {
        uint32_t ahead = layers_to(pool, c, layer);
        nearest = ahead < nearest ? ahead : nearest;
        left -= pool->clients[c] != NULL;
    }
    return want->p / (float)nearest;
}

/* Moves the most urgent want to the front; of equals the oldest stays first. */
static void bring_forward(mp_prefetcher *prefetcher)
{
    struct moepage_expert_pool *pool = prefetcher->shard->pool;
    uint32_t best = 0;
    float most = -1;
    for (uint32_t i = 0; i < prefetcher->count && most < MP_HINTED; i++) {
        float urgent = urgency(pool, want_at(prefetcher, i));
        if (urgent > most) {
            most = urgent;
            best = i;
        }
    }
    mp_want want = *want_at(prefetcher, best);
    for (uint32_t i = best; i > 0; i--)
        *want_at(prefetcher, i) = *want_at(prefetcher, i - 1);
    *want_at(prefetcher, 0) = want;
}

static mp_want pop_want(mp_prefetcher *prefetcher)
{
    mp_want want = *want_at(prefetcher, 0);
    prefetcher->head = (prefetcher->head + 1) % prefetcher->capacity;
    prefetcher->count--;
    forget_want(prefetcher, &want);
    return want;
}

/* Drops the wants of one client (any: UINT32_MAX) for one layer (any: UINT32_MAX). */
static void drop_wants(mp_prefetcher *prefetcher, uint32_t client, uint32_t layer)
{
    struct moepage_expert_pool *pool = prefetcher->shard->pool;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < prefetcher->count; i++) {
        mp_want want = *want_at(prefetcher, i);
        bool drop = (client == UINT32_MAX || want.client == client) &&
                    (layer == UINT32_MAX || want.key / pool->experts == layer);
        if (!drop) {
            *want_at(prefetcher, kept++) = want;
            continue;
        }
        forget_want(prefetcher, &want);
        pool->counters.prefetch_cancelled++;
    }
    prefetcher->count = kept;
}

/* ---- loads under way ---- */

static void activate(mp_prefetcher *prefetcher, uint32_t index)
{
    prefetcher->active[prefetcher->n_active++] = index;
    prefetcher->shard->slots[index].prefetching = true;
    atomic_fetch_add(&prefetcher->shard->pool->pending, 1);
}

void mp_prefetcher_settled(mp_shard *shard, uint32_t index)
{
    mp_prefetcher *prefetcher = &shard->prefetcher;
    uint32_t at = 0;
    while (prefetcher->active[at] != index)
        at++;
    prefetcher->n_active--;
    memmove(&prefetcher->active[at], &prefetcher->active[at + 1],
            (prefetcher->n_active - at) * sizeof *prefetcher->active);
    shard->slots[index].prefetching = false;
    atomic_fetch_sub(&shard->pool->pending, 1);
}

mp_prefetch_tally *mp_prefetcher_tally(mp_shard *shard, const mp_slot *slot, uint32_t key)
{
    struct moepage_expert_pool *pool = shard->pool;
    if (!slot->prefetched || slot->client >= MP_MAX_CLIENTS || !pool->clients[slot->client])
        return NULL;
    mp_prefetch_tally *tally = pool->clients[slot->client]->tally;
    return tally ? &tally[key / pool->experts] : NULL;
}

void mp_prefetcher_give_up(mp_shard *shard, uint32_t index)
{
    mp_slot *slot = &shard->slots[index];
    slot->prefetched = false; /* counted as cancelled, not as wasted */
    if (!mp_pool_drop(shard, index, mp_pool_key_in(shard, index), MP_SLOT_LOADING)) {
        slot->prefetched = true; /* a session is just backing out of the slot: next time */
        return;
    }
    mp_pool_end_passage(shard, index);
    mp_prefetcher_settled(shard, index);
    shard->pool->counters.prefetch_cancelled++;
}

/* Publishes what has landed and gives up what is stale. */
static void sweep_active(mp_prefetcher *prefetcher)
{
    mp_shard *shard = prefetcher->shard;
    for (uint32_t i = prefetcher->n_active; i-- > 0;) {
        uint32_t index = prefetcher->active[i];
        if (!mp_pool_transfers_done(shard, index))
            continue;
        if (mp_pool_fully_staged(shard, index))
            mp_pool_settle(shard, index);
        else if (shard->slots[index].stale || atomic_load(&shard->slots[index].result))
            mp_prefetcher_give_up(shard, index);
    }
}

void mp_prefetcher_abandon(mp_shard *shard)
{
    mp_prefetcher *prefetcher = &shard->prefetcher;
    for (uint32_t i = prefetcher->n_active; i-- > 0;) {
        uint32_t index = prefetcher->active[i];
        if (MP_WORD_USERS(atomic_load(&shard->words[index])) > 0)
            continue;
        /* On all pipes: a session may have hurried it up and let it go again. */
        if (mp_pipe_sync(shard, &shard->slots[index].passage))
            return; /* poisoned: whoever needs a slot will be told */
        if (mp_pool_fully_staged(shard, index))
            mp_pool_settle(shard, index);
        else
            mp_prefetcher_give_up(shard, index);
    }
}

/* ---- the task ---- */

/* Gives the next want that still makes sense a slot; MP_NO_SLOT when there is none, or none that
 * could start now. */
static uint32_t start_next(mp_prefetcher *prefetcher)
{
    mp_shard *shard = prefetcher->shard;
    struct moepage_expert_pool *pool = shard->pool;
    while (prefetcher->count > 0) {
        bring_forward(prefetcher);
        uint32_t key = want_at(prefetcher, 0)->key;
        bool absent = atomic_load(&pool->entry[key]) == MP_NO_SLOT;
        mp_start may = absent ? mp_pool_may_start(shard, key, MP_PIPE_PREFETCH) : MP_START_NEVER;
        if (may == MP_START_LATER)
            break;
        mp_want want = pop_want(prefetcher);
        uint32_t index = MP_NO_SLOT;
        if (may == MP_START_NOW)
            index = mp_pool_take_slot(shard, want.key,
                                      want.p < MP_MISSED ? MP_FOR_PREFETCH : MP_FOR_DECODE, 0);
        if (index == MP_NO_SLOT) {
            pool->counters.prefetch_cancelled += !absent;
            pool->counters.prefetch_refused += absent;
            continue;
        }
        mp_pool_rank(shard, index, want.key);
        shard->slots[index].client = want.client;
        activate(prefetcher, index);
        return index;
    }
    return MP_NO_SLOT;
}

/* Goes on with a load; returns how much of the batch's room that took. */
static uint64_t advance(mp_prefetcher *prefetcher, uint32_t index, uint64_t room)
{
    mp_shard *shard = prefetcher->shard;
    uint64_t bytes = mp_pool_stage_load(shard, index, MP_PIPE_PREFETCH, room);
    bool decode_only = bytes == 0 && mp_pool_fully_staged(shard, index);
    uint64_t work = decode_only ? shard->pool->slot_bytes : bytes;
    return work < room ? work : room;
}

static bool waits_for_cold(const mp_shard *shard, uint32_t index)
{
    const mp_passage *passage = &shard->slots[index].passage;
    return passage->source == MP_FROM_HOST_TIER && !passage->complete &&
           !mp_host_tier_landed(shard->tier, passage->entry);
}

/* Of each batch, while images of compressed experts are being brought. */
#define IMAGES_SHARE 4

/* Submits one batch: the rest of what is under way, then new wants. False if there was nothing. */
static bool submit_batch(mp_prefetcher *prefetcher)
{
    mp_shard *shard = prefetcher->shard;
    const mp_pipe *pipe = &shard->pipes[MP_PIPE_PREFETCH];
    mp_tick before = pipe->last_bus;
    uint64_t room = shard->pool->chunk_bytes;
    mp_pool_drain_touches(shard->pool); /* victims are chosen by what was used until now */
    room -= mp_images_advance(shard, (room + IMAGES_SHARE - 1) / IMAGES_SHARE);
    for (uint32_t i = 0; i < prefetcher->n_active && room > 0; i++) {
        const mp_slot *slot = &shard->slots[prefetcher->active[i]];
        if (!slot->stale && !slot->passage.complete && !atomic_load(&slot->result))
            room -= advance(prefetcher, prefetcher->active[i], room);
    }
    /* Taking a slot may settle what is under way: the list above is another after it. */
    while (room > 0) {
        uint32_t index = start_next(prefetcher);
        if (index == MP_NO_SLOT)
            break;
        room -= advance(prefetcher, index, room);
    }
    mp_pipe_flush(shard, MP_PIPE_PREFETCH);
    if (pipe->last_bus == before)
        return false;
    prefetcher->batch[0] = prefetcher->batch[1];
    prefetcher->batch[1] = pipe->last_bus;
    return true;
}

static void post(mp_prefetcher *prefetcher, mp_stream *stream, mp_tick tick)
{
    mp_device *device = prefetcher->shard->home->device;
    prefetcher->posted = true;
    device->ops->post(device, stream, tick, &prefetcher->task);
}

static bool demand_waits(const mp_shard *shard)
{
    const mp_pipe *pipe = &shard->pipes[MP_PIPE_DEMAND];
    return shard->home->device->ops->completed(pipe->bus) < pipe->last_bus;
}

/* Posts the task after the next event of one load; false if none is to come. */
static bool post_after_load(mp_prefetcher *prefetcher, uint32_t index)
{
    mp_shard *shard = prefetcher->shard;
    const mp_device_ops *ops = shard->home->device->ops;
    const mp_passage *passage = &shard->slots[index].passage;
    if (waits_for_cold(shard, index)) {
        const mp_host_entry *entry = &shard->tier->entries[passage->entry];
        post(prefetcher, shard->tier->lanes[entry->lane].stream, entry->tick);
        return true;
    }
    for (int kind = 0; kind < MP_PIPES; kind++) {
        const mp_pipe *pipe = &shard->pipes[kind];
        bool on_bus = ops->completed(pipe->bus) < passage->bus[kind];
        bool in_decoder =
            passage->decode[kind] && ops->completed(pipe->decode) < passage->decode[kind];
        if (!on_bus && !in_decoder)
            continue;
        post(prefetcher, on_bus ? pipe->bus : pipe->decode,
             on_bus ? passage->bus[kind] : passage->decode[kind]);
        return true;
    }
    return false;
}

/* Posts the task after whatever the next load or the next want waits for. */
static void post_after_next(mp_prefetcher *prefetcher)
{
    mp_shard *shard = prefetcher->shard;
    const mp_device_ops *ops = shard->home->device->ops;
    for (uint32_t i = 0; i < prefetcher->n_active; i++)
        if (post_after_load(prefetcher, prefetcher->active[i]))
            return;
    for (uint32_t i = 0; shard->tier && i < shard->tier->n_lanes; i++) {
        const mp_cold_lane *lane = &shard->tier->lanes[i];
        mp_tick completed = ops->completed(lane->stream);
        if (completed < lane->last) { /* a dropped guess is still read */
            post(prefetcher, lane->stream, completed + 1);
            return;
        }
    }
    post(prefetcher, shard->pipes[MP_PIPE_PREFETCH].bus, 0); /* all have ended: look again */
}

/* Counts images of compressed experts that are to come among what is pending. */
static void count_images(mp_prefetcher *prefetcher)
{
    mp_shard *shard = prefetcher->shard;
    bool pending = mp_images_pending(shard);
    if (pending != shard->compressed.counted)
        atomic_fetch_add(&shard->pool->pending, pending ? 1 : -1u);
    shard->compressed.counted = pending;
}

static bool has_work(const mp_prefetcher *prefetcher)
{
    return prefetcher->count + prefetcher->n_active > 0 || mp_images_pending(prefetcher->shard);
}

static void pump(mp_task *task)
{
    mp_prefetcher *prefetcher = (mp_prefetcher *)task;
    mp_shard *shard = prefetcher->shard;
    const mp_device_ops *ops = shard->home->device->ops;
    mp_stream *bus = shard->pipes[MP_PIPE_PREFETCH].bus;
    pthread_mutex_lock(&shard->pool->lock);
    prefetcher->posted = false;
    if (!prefetcher->stopping) { /* else the streams may be gone already */
        sweep_active(prefetcher);
        mp_images_sweep(shard);
        bool wait = demand_waits(shard);
        for (int i = 0; i < 2 && !wait; i++)
            if (ops->completed(bus) < prefetcher->batch[0] || !submit_batch(prefetcher))
                break;
        count_images(prefetcher);
        if (wait && has_work(prefetcher))
            post(prefetcher, shard->pipes[MP_PIPE_DEMAND].bus,
                 shard->pipes[MP_PIPE_DEMAND].last_bus);
        else if (ops->completed(bus) < prefetcher->batch[1])
            post(prefetcher, bus, prefetcher->batch[ops->completed(bus) >= prefetcher->batch[0]]);
        else if (has_work(prefetcher))
            post_after_next(prefetcher);
    }
    pthread_mutex_unlock(&shard->pool->lock);
}

void mp_prefetcher_stop(mp_prefetcher *prefetcher)
{
    struct moepage_expert_pool *pool = prefetcher->shard->pool;
    pthread_mutex_lock(&pool->lock);
    prefetcher->stopping = true;
    drop_wants(prefetcher, UINT32_MAX, UINT32_MAX);
    mp_prefetcher_abandon(prefetcher->shard);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- what sessions call ---- */

/* It is wanted once more. By two sessions: neither may call it off for the other. */
static void want_again(mp_prefetcher *prefetcher, const mp_client *client, uint32_t key, float p)
{
    for (uint32_t i = 0; i < prefetcher->count; i++) {
        mp_want *want = want_at(prefetcher, i);
        if (want->key != key)
            continue;
        want->client = want->client == client->index ? want->client : MP_SHARED_WANT;
        want->p = p > want->p ? p : want->p;
        return;
    }
}

static bool enqueue(struct moepage_expert_pool *pool, const mp_client *client, uint32_t key,
                    float p)
{
    mp_shard *shard = &pool->shards[mp_pool_shard_of(pool, key)];
    mp_prefetcher *prefetcher = &shard->prefetcher;
    uint32_t index = atomic_load(&pool->entry[key]);
    if (index != MP_NO_SLOT) {
        mp_slot *slot = &shard->slots[index];
        slot->stale = false; /* wanted again before it was given up */
        if (slot->client != client->index)
            slot->client = MP_SHARED_WANT;
        mp_window_promise(shard, index);
        return false;
    }
    if (pool->wanted[key]) {
        want_again(prefetcher, client, key, p);
        return false;
    }
    if (prefetcher->count == prefetcher->capacity) {
        pool->counters.prefetch_refused++;
        return false;
    }
    *want_at(prefetcher, prefetcher->count++) =
        (mp_want){.key = key, .client = client->index, .p = p};
    pool->wanted[key] = true;
    atomic_fetch_add(&pool->pending, 1);
    return true;
}

void mp_pool_want_missed(struct moepage_expert_pool *pool, uint32_t key)
{
    static const mp_client nobody = {.index = MP_SHARED_WANT};
    enqueue(pool, &nobody, key, MP_MISSED);
}

/* At once, or when the demands before it are done, so that it is not woken only to wait. */
static void wake(mp_prefetcher *prefetcher)
{
    mp_shard *shard = prefetcher->shard;
    if (prefetcher->posted)
        return;
    prefetcher->task.run = pump;
    prefetcher->task.lock = &shard->pool->lock;
    if (demand_waits(shard))
        post(prefetcher, shard->pipes[MP_PIPE_DEMAND].bus, shard->pipes[MP_PIPE_DEMAND].last_bus);
    else
        post(prefetcher, shard->pipes[MP_PIPE_PREFETCH].bus, 0);
}

void mp_prefetcher_start(mp_prefetcher *prefetcher)
{
    count_images(prefetcher);
    if (prefetcher->count > 0 || prefetcher->shard->compressed.counted)
        wake(prefetcher);
}

uint32_t mp_prefetcher_bring(mp_shard *shard, uint32_t key)
{
    if (atomic_load(&shard->pool->entry[key]) != MP_NO_SLOT ||
        mp_pool_may_start(shard, key, MP_PIPE_PREFETCH) != MP_START_NOW)
        return MP_NO_SLOT;
    uint32_t index = mp_pool_take_slot(shard, key, MP_FOR_PREFETCH, 0);
    if (index == MP_NO_SLOT)
        return MP_NO_SLOT;
    shard->slots[index].client = MP_SHARED_WANT;
    shard->slots[index].prefetched = false; /* it is no guess */
    shard->slots[index].used = true;
    activate(&shard->prefetcher, index);
    /* Now, for another may be brought before this one is staged. */
    mp_pool_begin_load(shard, index, MP_PIPE_PREFETCH);
    wake(&shard->prefetcher);
    return index;
}

/* Prefill is refused where a pool protects itself: nothing tells how much of its share it has left. */
static bool refuse(struct moepage_expert_pool *pool, uint32_t n, bool scan)
{
    if (!scan || !pool->scan_percent)
        return false;
    pool->counters.prefetch_refused += n;
    return true;
}

static void start_all(struct moepage_expert_pool *pool)
{
    for (uint32_t d = 0; d < pool->n_shards; d++)
        mp_prefetcher_start(&pool->shards[d].prefetcher);
}

uint32_t mp_pool_want(struct moepage_expert_pool *pool, const mp_client *client,
                      const uint32_t *keys, uint32_t n, bool scan)
{
    uint32_t first = 0;
    bool idle = atomic_load_explicit(&pool->pending, memory_order_relaxed) == 0;
    while (idle && first < n &&
           atomic_load_explicit(&pool->entry[keys[first]], memory_order_relaxed) != MP_NO_SLOT)
        first++;
    if (first == n)
        return 0;
    uint32_t queued = 0;
    pthread_mutex_lock(&pool->lock);
    if (refuse(pool, n - first, scan))
        first = n;
    for (uint32_t i = first; i < n; i++)
        queued += enqueue(pool, client, keys[i], MP_HINTED);
    start_all(pool);
    pthread_mutex_unlock(&pool->lock);
    return queued;
}

uint32_t mp_pool_want_ranked(struct moepage_expert_pool *pool, const mp_client *client,
                             const mp_ranked *guesses, uint32_t n, bool scan)
{
    uint32_t queued = 0;
    if (n == 0)
        return 0;
    pthread_mutex_lock(&pool->lock);
    if (refuse(pool, n, scan))
        n = 0;
    for (uint32_t i = 0; i < n; i++)
        queued += enqueue(pool, client, guesses[i].key, guesses[i].p);
    start_all(pool);
    pthread_mutex_unlock(&pool->lock);
    return queued;
}

bool mp_pool_any_absent(const struct moepage_expert_pool *pool, const uint32_t *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load_explicit(&pool->entry[keys[i]], memory_order_relaxed) == MP_NO_SLOT)
            return true;
    return false;
}

uint32_t mp_pool_want_turn(struct moepage_expert_pool *pool, const mp_client *client,
                           const uint32_t *keys, uint32_t n)
{
    uint32_t room[MOEPAGE_MAX_DEVICES], queued = 0;
    if (!mp_pool_any_absent(pool, keys, n))
        return 0;
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    for (uint32_t i = 0; i < n; i++) /* first what may stay, so that it does not make room */
        if (atomic_load(&pool->entry[keys[i]]) != MP_NO_SLOT)
            enqueue(pool, client, keys[i], MP_HINTED);
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        mp_shard *shard = &pool->shards[d];
        room[d] = mp_window_room(shard, mp_pool_scope_of(pool, shard, keys[0]), n);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = mp_pool_shard_of(pool, keys[i]);
        if (atomic_load(&pool->entry[keys[i]]) != MP_NO_SLOT || room[d] == 0)
            continue;
        room[d]--;
        queued += enqueue(pool, client, keys[i], MP_HINTED);
    }
    start_all(pool);
    pthread_mutex_unlock(&pool->lock);
    return queued;
}

void mp_pool_unwant(struct moepage_expert_pool *pool, const mp_client *client, uint32_t layer)
{
    if (atomic_load(&pool->pending) == 0) /* in order with the turn that has come: predicting.c */
        return;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        mp_shard *shard = &pool->shards[d];
        drop_wants(&shard->prefetcher, client->index, layer);
        for (uint32_t i = 0; i < shard->prefetcher.n_active; i++) {
            uint32_t index = shard->prefetcher.active[i];
            bool of_layer =
                layer == UINT32_MAX || mp_pool_key_in(shard, index) / pool->experts == layer;
            bool held = MP_WORD_USERS(atomic_load(&shard->words[index])) > 0;
            bool own = shard->slots[index].client == client->index;
            if (own && of_layer && !held && !mp_pool_fully_staged(shard, index))
                shard->slots[index].stale = true;
        }
    }
    pthread_mutex_unlock(&pool->lock);
}
