/* What rooms above the pool may see of it, read and written where the structs are known. */
#include "ahead/versions.h"
#include "base/alloc.h"
#include "base/status.h"
#include "pool/expert_pool.h"
#include "pool/hints.h"
#include "pool/in_place.h"
#include "pool/share.h"
#include "pool/watch.h"

/* ---- the pool ---- */

mp_pool_shape mp_pool_get_shape(const struct moepage_expert_pool *pool)
{
    const mp_shard *first = &pool->shards[0];
    return (mp_pool_shape){
        .model = pool->model,
        .layers = pool->layers,
        .experts = pool->experts,
        .keys = pool->keys,
        .n_devices = pool->n_shards,
        .n_scopes = pool->n_scopes,
        .scan_percent = pool->scan_percent,
        .bus_form = pool->bus_form,
        .slot_form = pool->slot_form,
        .slot_bytes = pool->slot_bytes,
        .slots = pool->n_shards == 1 ? first->base : NULL,
        .image_bytes = first->compressed.unit,
        .decodes = first->staging.n > 0,
        .precision = pool->versions ? &pool->versions->config : NULL,
    };
}

struct moepage_device *mp_pool_home(const struct moepage_expert_pool *pool, uint32_t device)
{
    return pool->shards[device].home;
}

uint32_t mp_pool_sessions(const struct moepage_expert_pool *pool)
{
    return atomic_load(&pool->n_clients);
}

bool mp_pool_has(const struct moepage_expert_pool *pool, uint32_t key)
{
    return atomic_load_explicit(&pool->entry[key], memory_order_relaxed) != MP_NO_SLOT;
}

bool mp_pool_any_draining(const struct moepage_expert_pool *pool)
{
    return atomic_load(&pool->n_draining) > 0;
}

bool mp_pool_is_draining(const struct moepage_expert_pool *pool, const mp_hold *hold)
{
    uint64_t word = atomic_load(&pool->shards[hold->shard].words[hold->slot]);
    return MP_WORD_STATE(word) == MP_SLOT_DRAINING;
}

/* ---- clients ---- */

moepage_status mp_client_open(struct moepage_expert_pool *pool, mp_client **out)
{
    /* Room for two whole steps of hits before they must be replayed. */
    uint64_t two_steps = 2ull * pool->layers * (MP_TOUCH_HEADER + pool->experts);
    mp_client *client = mp_alloc(sizeof *client);
    if (!client)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a client of the expert pool");
    moepage_status status = mp_pool_join(pool, client, two_steps);
    if (status)
        mp_free(client);
    else
        *out = client;
    return status;
}

void mp_client_close(struct moepage_expert_pool *pool, mp_client *client)
{
    if (client)
        mp_pool_leave(pool, client);
    mp_free(client);
}

void mp_pool_reserve(mp_client *client, const uint32_t *reserved, uint32_t n_devices,
                     uint32_t widest)
{
    for (uint32_t d = 0; d < n_devices; d++)
        atomic_store_explicit(&client->reserved[d], reserved[d], memory_order_release);
    atomic_store_explicit(&client->widest, widest, memory_order_release);
}

void mp_pool_reach_layer(mp_client *client, uint32_t layer)
{
    atomic_store_explicit(&client->layer, layer, memory_order_relaxed);
}

bool mp_pool_streams(const mp_client *client, uint32_t layer)
{
    return client->streams[layer];
}

bool mp_pool_streams_any(const mp_client *client)
{
    return client->n_streams > 0;
}

void mp_pool_begin_turn(struct moepage_expert_pool *pool, uint32_t layer)
{
    mp_pool_take_turn(pool, layer);
}

void mp_pool_heat(struct moepage_expert_pool *pool, uint32_t key, uint32_t heat)
{
    mp_versions_count(pool, key, heat);
}

/* ---- prefetching ---- */

moepage_status mp_pool_tally_open(struct moepage_expert_pool *pool, mp_client *client)
{
    mp_prefetch_tally *tally = mp_alloc_array(pool->layers, sizeof *tally);
    pthread_mutex_lock(&pool->lock);
    client->tally = tally;
    pthread_mutex_unlock(&pool->lock);
    return tally ? MOEPAGE_OK : MOEPAGE_E_NO_MEMORY;
}

void mp_pool_tally_close(struct moepage_expert_pool *pool, mp_client *client)
{
    pthread_mutex_lock(&pool->lock); /* slots that it had fetched count there */
    mp_prefetch_tally *tally = client->tally;
    client->tally = NULL;
    pthread_mutex_unlock(&pool->lock);
    mp_free(tally);
}

void mp_pool_get_tally(struct moepage_expert_pool *pool, const mp_client *client, uint32_t layer,
                       moepage_prefetch_info *info)
{
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    mp_prefetch_tally tally = client->tally[layer];
    pthread_mutex_unlock(&pool->lock);
    info->useful_bytes = tally.useful * pool->slot_bytes;
    info->late_bytes = tally.late * pool->slot_bytes;
    info->wasted_bytes = tally.wasted * pool->slot_bytes;
}

double mp_pool_load_ns(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock); /* rates are measured on the device's thread */
    double load_ns = mp_shard_load_ns(&pool->shards[0]);
    pthread_mutex_unlock(&pool->lock);
    return load_ns;
}

void mp_pool_guard_task(struct moepage_expert_pool *pool, mp_task *task)
{
    task->lock = &pool->lock;
}

/* ---- the pool's share ---- */

void mp_pool_replay_hits(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    pthread_mutex_unlock(&pool->lock);
}

static mp_extent extent_of(const struct moepage_expert_pool *pool)
{
    const mp_shard *shard = &pool->shards[0];
    return (mp_extent){shard->compressed.n / pool->layers, shard->first_slot, shard->n_slots};
}

static uint32_t most_pinned(const struct moepage_expert_pool *pool)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        uint32_t here = atomic_load(&pool->shards[0].scopes[i].pinned);
        most = here > most ? here : most;
    }
    return most;
}

mp_pool_survey mp_pool_look(struct moepage_expert_pool *pool)
{
    const mp_shard *shard = &pool->shards[0];
    mp_rates live;
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    mp_shard_live_rates(shard, &live);
    mp_pool_survey survey = {
        .extent = extent_of(pool),
        .sessions = atomic_load(&pool->n_clients),
        .pinned = most_pinned(pool),
        .load_ns = mp_shard_load_ns(shard),
        .bus_ns = mp_shard_bus_ns(shard),
        .bus_bytes_per_s = live.bus ? live.bus : shard->rates.bus,
        .decode_bytes_per_s = live.decode ? live.decode : shard->rates.decode,
    };
    pthread_mutex_unlock(&pool->lock);
    return survey;
}

mp_extent mp_pool_get_extent(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mp_extent extent = extent_of(pool);
    pthread_mutex_unlock(&pool->lock);
    return extent;
}

/* ---- the watch ---- */

void mp_pool_set_watch(struct moepage_expert_pool *pool, struct mp_watch *watch)
{
    pthread_mutex_lock(&pool->lock);
    pool->watch = watch;
    pthread_mutex_unlock(&pool->lock);
}

bool mp_pool_is_watched(const struct moepage_expert_pool *pool)
{
    return pool->watch != NULL;
}

void mp_pool_tell_step(struct moepage_expert_pool *pool, const mp_watch_step *step)
{
    if (pool->watch)
        pool->watch->step(pool->watch, step);
}
