/* Calls of rooms above the pool that are passed on to the rooms below it. */
#include "base/status.h"
#include "cache/published_stats.h"
#include "planning/watch.h"
#include "pool/inside.h"

/* ---- the pool ---- */

mp_pool_shape mp_pool_get_shape(const struct moepage_expert_pool *pool)
{
    return (mp_pool_shape){
        .model = pool->model,
        .layers = pool->layers,
        .experts = pool->experts,
        .keys = pool->keys,
        .n_devices = pool->n_devices,
        .indirect = pool->indirect,
        .deal = &pool->deal,
        .n_scopes = pool->per_layer ? pool->layers : 1,
        .fills = pool->fills,
        .step_slots = pool->step_slots,
        .scan_percent = pool->scan_percent,
        .bus_form = pool->bus_form,
        .slot_form = pool->slot_form,
        .policy = mp_cache_policy(pool->cache),
        .bundle = &pool->bundle,
        .slot_bytes = pool->slot_bytes,
        .slots = pool->n_devices == 1 ? pool->slots[0] : NULL,
        .slot_stride = mp_bundle_stride(&pool->bundle),
        .low_slots = pool->low_slots[0],
        .image_bytes = mp_images_bytes(pool->transfers[0]),
        .decodes = mp_transfer_decodes(pool->transfers[0]),
        .precision = pool->versions[0] ? mp_versions_config(pool->versions[0]) : NULL,
    };
}

struct moepage_device *mp_pool_home(const struct moepage_expert_pool *pool, uint32_t device)
{
    return pool->homes[device];
}

uint32_t mp_pool_sessions(const struct moepage_expert_pool *pool)
{
    return mp_cache_clients(pool->cache);
}

void mp_pool_get_stats(struct moepage_expert_pool *pool, moepage_session_stats *out)
{
    mp_cache_get_stats(pool->cache, out);
}

bool mp_pool_has(const struct moepage_expert_pool *pool, uint32_t key)
{
    return mp_cache_find(pool->cache, key) != MP_NO_SLOT;
}

bool mp_pool_any_draining(const struct moepage_expert_pool *pool)
{
    return mp_cache_any_draining(pool->cache);
}

bool mp_pool_is_draining(const struct moepage_expert_pool *pool, const mp_hold *hold)
{
    return mp_cache_is_draining(pool->cache, hold);
}

/* ---- clients ---- */

static void leave_versions(struct moepage_expert_pool *pool, const mp_client *client)
{
    for (uint32_t d = 0; d < pool->n_devices && pool->serves_versions; d++)
        mp_versions_leave(pool->versions[d], mp_client_index(client));
}

moepage_status mp_client_open(struct moepage_expert_pool *pool, uint32_t need, mp_client **out)
{
    mp_client *client;
    moepage_status status = mp_client_join(pool->cache, need, &client);
    if (status)
        return status;
    for (uint32_t d = 0; d < pool->n_devices && pool->serves_versions && !status; d++)
        status = mp_versions_join(pool->versions[d], mp_client_index(client));
    if (!status) {
        *out = client;
        return MOEPAGE_OK;
    }
    leave_versions(pool, client);
    mp_client_leave(client);
    return status;
}

void mp_client_close(struct moepage_expert_pool *pool, mp_client *client)
{
    if (!client)
        return;
    mp_ahead_unwant(pool->ahead, client, UINT32_MAX);
    leave_versions(pool, client);
    mp_client_leave(client);
}

void mp_pool_set_reader(struct moepage_expert_pool *pool, const mp_client *client, uint32_t device,
                        mp_stream *stream)
{
    pthread_mutex_lock(&pool->lock);
    mp_readers_set(pool->transfers[device], mp_client_index(client), stream);
    pthread_mutex_unlock(&pool->lock);
}

void mp_pool_read_until(struct moepage_expert_pool *pool, const mp_client *client,
                        const mp_hold *hold, mp_tick tick)
{
    const uint32_t reader = mp_client_index(client);
    if (hold->kind == MP_HOLD_LOW)
        mp_versions_read_until(pool->versions[hold->shard], hold, reader, tick);
    else if (hold->kind != MP_HOLD_NONE && hold->kind != MP_HOLD_HOST) /* which is over by now */
        mp_readers_until(pool->transfers[hold->shard], hold->slot, reader, tick);
}

/* ---- prefetching ---- */

uint32_t mp_pool_want(struct moepage_expert_pool *pool, const mp_client *client,
                      const uint32_t *keys, uint32_t n, bool scan)
{
    return mp_ahead_want(pool->ahead, client, keys, n, scan);
}

uint32_t mp_pool_want_ranked(struct moepage_expert_pool *pool, const mp_client *client,
                             const mp_ranked *guesses, uint32_t n, bool scan)
{
    return mp_ahead_want_ranked(pool->ahead, client, guesses, n, scan);
}

uint32_t mp_pool_want_turn(struct moepage_expert_pool *pool, const mp_client *client,
                           const uint32_t *keys, uint32_t n)
{
    return mp_ahead_want_turn(pool->ahead, client, keys, n);
}

void mp_pool_unwant(struct moepage_expert_pool *pool, const mp_client *client, uint32_t layer)
{
    mp_ahead_unwant(pool->ahead, client, layer);
}

void mp_pool_expect(struct moepage_expert_pool *pool, uint32_t layer, const float *p)
{
    mp_cache_expect(pool->cache, layer, p);
}

bool mp_pool_any_absent(const struct moepage_expert_pool *pool, const uint32_t *keys, uint32_t n)
{
    return mp_ahead_any_absent(pool->ahead, keys, n);
}

void mp_pool_get_tally(const struct moepage_expert_pool *pool, const mp_client *client,
                       uint32_t layer, moepage_prefetch_info *info)
{
    const mp_bundle *bundle = &pool->bundle;
    const uint64_t slot_bytes = bundle->classes[bundle->class_of_layer[layer]].slot_bytes;
    mp_prefetch_tally tally = mp_client_get_tally(client, layer);
    info->useful_bytes = tally.useful * slot_bytes;
    info->late_bytes = tally.late * slot_bytes;
    info->wasted_bytes = tally.wasted * slot_bytes;
}

double mp_pool_load_ns(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock); /* rates are measured on the device's thread */
    double load_ns = mp_transfer_load_ns(pool->transfers[0]);
    pthread_mutex_unlock(&pool->lock);
    return load_ns;
}

void mp_pool_guard_task(struct moepage_expert_pool *pool, mp_task *task)
{
    task->lock = &pool->lock;
}

/* ---- layers that stream ---- */

bool mp_pool_may_stream(const struct moepage_expert_pool *pool)
{
    return mp_cache_may_stream(pool->cache);
}

void mp_pool_begin_turn(struct moepage_expert_pool *pool, uint32_t layer)
{
    mp_cache_begin_turn(pool->cache, layer);
}

uint32_t mp_pool_keeps(const struct moepage_expert_pool *pool)
{
    return mp_cache_keeps(pool->cache);
}

uint32_t mp_pool_window(const struct moepage_expert_pool *pool)
{
    return mp_cache_window(pool->cache);
}

uint32_t mp_pool_share(const struct moepage_expert_pool *pool)
{
    return mp_cache_share(pool->cache);
}

void mp_pool_foresee(struct moepage_expert_pool *pool, uint32_t layer, const uint8_t *sets,
                     double *passing)
{
    pthread_mutex_lock(&pool->lock);
    mp_cache_drain_touches(pool->cache);
    mp_cache_foresee(pool->cache, layer, sets, passing);
    pthread_mutex_unlock(&pool->lock);
}

bool mp_pool_weigh_miss(struct moepage_expert_pool *pool, double *load_ns)
{
    *load_ns = 0;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t d = 0; d < pool->n_devices; d++) {
        double one = mp_transfer_load_ns(pool->transfers[d]);
        *load_ns = one > *load_ns ? one : *load_ns;
    }
    bool is_full = mp_cache_is_full(pool->cache);
    pthread_mutex_unlock(&pool->lock);
    return is_full;
}

/* ---- two versions of every expert ---- */

void mp_versions_begin_step(struct moepage_expert_pool *pool, mp_client *client)
{
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_versions_enter_step(pool->versions[d], mp_client_index(client));
}

void mp_versions_end_step(struct moepage_expert_pool *pool, mp_client *client)
{
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_versions_leave_step(pool->versions[d], mp_client_index(client));
}

void mp_versions_hold(struct moepage_expert_pool *pool, mp_client *client, mp_hold *holds,
                      uint32_t n)
{
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_versions_hold_all(pool->versions[d], mp_client_index(client), holds, n);
    if (mp_cache_watch(pool->cache))
        mp_client_tell(client, holds, n);
}

void mp_pool_heat(struct moepage_expert_pool *pool, uint32_t key, uint32_t heat)
{
    mp_versions_heat(pool->versions[mp_deal_device(&pool->deal, key)], key, heat);
}

/* ---- the pool's share ---- */

void mp_pool_replay_hits(struct moepage_expert_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mp_cache_drain_touches(pool->cache);
    pthread_mutex_unlock(&pool->lock);
}

/* There must be what every session needs, and slots for one layer's top-k, beside the pinned ones, or for all
 * experts. No session needs any where low versions are computed with. */
static uint32_t least_slots(const struct moepage_expert_pool *pool)
{
    uint32_t needed = mp_cache_needed(pool->cache, mp_cache_clients(pool->cache));
    uint32_t top_k = pool->model->info.top_k, all = pool->keys / pool->step_slots;
    if (pool->serves_versions)
        return mp_versions_least(pool->versions[0]);
    needed = (needed > top_k ? needed : top_k) + mp_cache_most_pinned(pool->cache);
    return needed < all ? needed : all;
}

mp_pool_survey mp_pool_look(struct moepage_expert_pool *pool)
{
    const mp_transfer *transfer = pool->transfers[0];
    mp_extent extent = mp_pool_get_extent(pool);
    pthread_mutex_lock(&pool->lock);
    mp_cache_drain_touches(pool->cache);
    mp_rates live = mp_transfer_live_rates(transfer);
    mp_rates measured = mp_transfer_measured_rates(transfer);
    mp_pool_survey survey = {
        .extent = extent,
        .least = least_slots(pool),
        .pinned_end = mp_cache_pinned_end(pool->cache),
        .load_ns = mp_transfer_load_ns(transfer),
        .bus_ns = mp_transfer_bus_ns(transfer),
        .bus_bytes_per_s = live.bus ? live.bus : measured.bus,
        .decode_bytes_per_s = live.decode ? live.decode : measured.decode,
    };
    pthread_mutex_unlock(&pool->lock);
    return survey;
}

moepage_status mp_pool_set_aside(struct moepage_expert_pool *pool, const mp_client *client,
                                 uint32_t asked, uint32_t least, mp_set_aside *out)
{
    pthread_mutex_lock(&pool->lock);
    moepage_status status =
        mp_cache_set_aside(pool->cache, client, asked, least, &out->slots, &out->per_scope);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void mp_pool_put_back(struct moepage_expert_pool *pool, const mp_set_aside *aside)
{
    pthread_mutex_lock(&pool->lock);
    mp_cache_put_back(pool->cache, aside->per_scope);
    pthread_mutex_unlock(&pool->lock);
}

void mp_pool_concentrate(struct moepage_expert_pool *pool, double *part)
{
    pthread_mutex_lock(&pool->lock);
    mp_cache_concentrate(pool->cache, part);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- the watch ---- */

void mp_pool_set_watch(struct moepage_expert_pool *pool, struct mp_watch *watch)
{
    pthread_mutex_lock(&pool->lock);
    mp_cache_set_watch(pool->cache, watch);
    pthread_mutex_unlock(&pool->lock);
}

bool mp_pool_is_watched(const struct moepage_expert_pool *pool)
{
    return mp_cache_watch(pool->cache) != NULL;
}

void mp_pool_tell_step(struct moepage_expert_pool *pool, const mp_watch_step *step)
{
    mp_watch *watch = mp_cache_watch(pool->cache);
    if (!watch)
        return;
    mp_watch_step whole = *step;
    if (whole.unseen)
        whole.stall_ns += (uint64_t)(mp_pool_load_ns(pool) * (double)whole.misses);
    watch->step(watch, &whole);
}
