/* Versions: where they are, filling low ones, and what a step sees. */
#include <string.h>

#include "ahead/versions_inside.h"
#include "arena/scratch.h"
#include "base/alloc.h"
#include "base/status.h"

/* ---- opening ---- */

static bool serves_versions(const mp_versions *versions)
{
    return versions->config.serve == MOEPAGE_SERVE_VERSIONS;
}

static bool alloc_tables(mp_versions *versions)
{
    uint32_t keys = versions->keys;
    versions->free_places = mp_alloc_array(versions->n_places, sizeof *versions->free_places);
    if (!versions->free_places || !serves_versions(versions))
        return versions->free_places != NULL;
    versions->published = mp_alloc_array(keys, sizeof *versions->published);
    versions->counts = mp_alloc_array(keys, sizeof *versions->counts);
    versions->hotness = mp_alloc_array(keys, sizeof *versions->hotness);
    versions->high = mp_alloc_array(keys, sizeof *versions->high);
    versions->pins = mp_alloc_array(keys, sizeof *versions->pins);
    versions->pinned = mp_alloc_array(versions->layers, sizeof *versions->pinned);
    versions->layer_counts = mp_alloc_array(versions->experts, sizeof *versions->layer_counts);
    versions->worth = mp_alloc_array(versions->experts, sizeof *versions->worth);
    versions->order = mp_alloc_array(versions->experts, sizeof *versions->order);
    versions->swaps =
        mp_alloc_array((uint64_t)versions->config.transitions + keys, sizeof *versions->swaps);
    versions->n_swaps = versions->config.transitions;
    versions->queue.swaps = mp_alloc_array(keys, sizeof *versions->queue.swaps);
    versions->queue.n = mp_alloc_array(versions->layers, sizeof *versions->queue.n);
    return versions->published && versions->counts && versions->hotness && versions->high &&
           versions->pins && versions->pinned && versions->layer_counts && versions->worth &&
           versions->order && versions->swaps && versions->queue.swaps && versions->queue.n;
}

/* Chooses the number of high versions per layer: as many as asked for, or as the arena
 * has room for. */
static moepage_status choose_high(mp_versions *versions, uint64_t room)
{
    const moepage_precision_config *config = &versions->config;
    uint64_t slot_bytes = versions->slot_bytes;
    uint32_t most =
        mp_precision_capacity(room * slot_bytes, versions->layers, versions->members, slot_bytes,
                              versions->unit, !config->lo_fetched, MP_SPARE_PER_LAYER);
    if (most == UINT32_MAX || most == 0 || config->hi_experts > most)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "precision: %u high versions per layer of %llu bytes beside low ones of "
                       "%llu do not fit: the arena has room for %llu slots",
                       config->hi_experts ? config->hi_experts : 1, (unsigned long long)slot_bytes,
                       (unsigned long long)versions->unit, (unsigned long long)room);
    versions->n_high = config->hi_experts ? config->hi_experts : most;
    return MOEPAGE_OK;
}

/* Divides the arena between low and high versions. */
static moepage_status divide(mp_versions *versions)
{
    const moepage_precision_config *config = &versions->config;
    struct moepage_device *home = versions->home;
    uint64_t room = mp_arena_room(&home->arena, MP_SIDE_EXPERTS);
    moepage_status status = MOEPAGE_OK;
    if (serves_versions(versions))
        status = choose_high(versions, room);
    if (status)
        return status;
    uint64_t places =
        mp_version_places(versions->model, config, versions->members, versions->n_high);
    uint64_t low_slots = mp_version_slots(versions->model, config, places);
    if (low_slots > room || places >= MP_VERSION_HIGH)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "precision: the low versions take %llu slots of %llu bytes, the arena has "
                       "room for %llu",
                       (unsigned long long)low_slots, (unsigned long long)versions->slot_bytes,
                       (unsigned long long)room);
    versions->n_places = (uint32_t)places;
    versions->first_slot = (uint32_t)low_slots;
    return MOEPAGE_OK;
}

moepage_status mp_versions_open(const moepage_precision_config *config,
                                const struct moepage_model *model, struct moepage_device *home,
                                const mp_deal *deal, uint32_t part, uint32_t *first,
                                uint32_t *slots, mp_versions **out)
{
    mp_versions *versions = mp_alloc(sizeof *versions);
    if (!versions)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for versions of experts");
    versions->config = *config;
    versions->config.hi_experts = mp_deal_part(deal, part, config->hi_experts);
    versions->law = (mp_precision_law){.alpha = config->alpha, .margin = config->margin};
    versions->model = model;
    versions->home = home;
    versions->layers = model->info.moe_layers;
    versions->experts = model->info.experts;
    versions->keys = versions->layers * versions->experts;
    versions->deal = deal;
    versions->part = part;
    versions->members = deal->members[part];
    versions->slot_bytes = mp_model_slot_bytes(model, config->hi_form);
    versions->memory = home->arena.base;
    versions->unit = mp_model_slot_bytes(model, config->lo_form);
    moepage_status status = divide(versions);
    if (!status && !alloc_tables(versions))
        status =
            mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for versions of %u experts", versions->keys);
    if (status) {
        mp_versions_close(versions);
        return status;
    }
    *first = versions->first_slot;
    *slots = versions->n_high ? versions->n_high * versions->layers : *slots;
    *out = versions;
    return MOEPAGE_OK;
}

moepage_status mp_versions_connect(mp_versions *versions, mp_ahead *ahead, mp_shard *shard,
                                   pthread_mutex_t *lock)
{
    versions->ahead = ahead;
    versions->shard = shard;
    versions->transfer = mp_shard_transfer(shard);
    versions->lock = lock;
    versions->first_read = MP_NO_READERS;
    if (!versions->config.lo_fetched) /* places are written to once */
        return MOEPAGE_OK;
    return mp_readers_add(versions->transfer, versions->n_places, &versions->first_read);
}

void mp_versions_close(mp_versions *versions)
{
    if (!versions)
        return;
    mp_free(versions->free_places);
    mp_free(versions->published);
    mp_free(versions->counts);
    mp_free(versions->hotness);
    mp_free(versions->high);
    mp_free(versions->pins);
    mp_free(versions->pinned);
    mp_free(versions->layer_counts);
    mp_free(versions->worth);
    mp_free(versions->order);
    mp_free(versions->swaps);
    mp_free(versions->queue.swaps);
    mp_free(versions->queue.n);
    mp_free(versions);
}

const moepage_precision_config *mp_versions_config(const mp_versions *versions)
{
    return &versions->config;
}

/* ---- filling ---- */

#define FILL_BATCH 64u

/* Writes the sentence that explains why a low version cannot be read. */
static moepage_status explain(const mp_versions *versions, uint32_t key, moepage_status status)
{
    uint32_t layer = key / versions->experts, expert = key % versions->experts;
    moepage_status why = MOEPAGE_OK;
    if (mp_is_image_fault(status))
        why = mp_model_check_image(versions->model, layer, expert, versions->config.lo_form);
    if (!why)
        return mp_fail(status, "the low version of expert %u of layer %u cannot be brought", expert,
                       layer);
    return mp_fail_within(why, "the low version of expert %u of layer %u", expert, layer);
}

/* Copies the low versions of keys[0..n) to their places; n is at most FILL_BATCH. */
static moepage_status fill_batch(mp_versions *versions, const uint32_t *keys,
                                 const uint32_t *places, uint32_t n)
{
    mp_stream *bus = mp_transfer_last(versions->transfer, MP_PIPE_PREFETCH).stream;
    _Atomic int32_t results[FILL_BATCH];
    moepage_status status = MOEPAGE_OK;
    mp_tick tick = 0;
    uint32_t i = 0;
    while (i < n && !status) {
        status = mp_transfer_copy_image(versions->transfer, keys[i], versions->config.lo_form,
                                        mp_versions_address(versions, places[i]), MP_NO_READERS,
                                        &results[i], &tick);
        i++;
    }
    moepage_status synced = tick ? versions->home->device->ops->sync(bus, tick) : MOEPAGE_OK;
    status = status ? status : synced;
    for (uint32_t k = 0; k < i && !status; k++)
        if (atomic_load(&results[k]))
            return explain(versions, keys[k], atomic_load(&results[k]));
    return status;
}

/* If low versions are fetched, there are not places for all of them: the first experts of each
 * layer begin high, since nothing is known yet of any. */
bool mp_versions_begins_high(const mp_versions *versions, uint32_t key)
{
    return versions->config.lo_fetched && mp_versions_has(versions, key) &&
           versions->deal->rank_of[key % versions->experts] < versions->n_high;
}

moepage_status mp_versions_fill_low(mp_versions *versions)
{
    uint32_t keys[FILL_BATCH], places[FILL_BATCH], n = 0, place = 0;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t key = 0; key < versions->keys && !status; key++) {
        if (!mp_versions_has(versions, key) || mp_versions_begins_high(versions, key))
            continue;
        keys[n] = key;
        places[n++] = place;
        if (versions->published)
            versions->published[key] = place;
        place++;
        if (n < FILL_BATCH)
            continue;
        status = fill_batch(versions, keys, places, n);
        n = 0;
    }
    if (n && !status)
        status = fill_batch(versions, keys, places, n);
    for (uint32_t p = versions->n_places; p-- > place;)
        versions->free_places[versions->n_free++] = p;
    return status;
}

void mp_versions_begin_high(mp_versions *versions, uint32_t key, uint32_t slot)
{
    versions->published[key] = MP_VERSION_HIGH | slot;
    versions->high[key] = true;
}

static uint64_t interval_ns(const mp_versions *versions)
{
    return (uint64_t)versions->config.interval_us * 1000;
}

void mp_versions_start(mp_versions *versions)
{
    mp_device *device = versions->home->device;
    atomic_init(&versions->window, 1);
    atomic_init(&versions->next_ns, device->ops->now_ns(device) + interval_ns(versions));
}

/* ---- steps ---- */

moepage_status mp_versions_join(mp_versions *versions, uint32_t index)
{
    /* `window` is 0 since the end of the last step; publishing reads it at any time. */
    mp_version_reader *reader = &versions->readers[index];
    reader->copied = 0;
    reader->published = mp_alloc_array(versions->keys, sizeof *reader->published);
    if (!reader->published)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the versions of %u experts",
                       versions->keys);
    return MOEPAGE_OK;
}

void mp_versions_leave(mp_versions *versions, uint32_t index)
{
    mp_free(versions->readers[index].published);
    versions->readers[index].published = NULL;
}

/* Enters the current window without the lock, if the reader's copy is of that window. The reader
 * first states its window, then checks that it is still the current one; a new window is stored
 * before the readers' windows are looked at. So either this check fails, or the swap sees this
 * reader and waits. */
static bool enter_quickly(const mp_versions *versions, mp_version_reader *reader)
{
    uint64_t window = atomic_load(&versions->window);
    if (reader->copied != window)
        return false;
    atomic_store(&reader->window, window);
    return atomic_load(&versions->window) == window;
}

void mp_versions_enter_step(mp_versions *versions, uint32_t index)
{
    mp_version_reader *reader = &versions->readers[index];
    uint64_t begun = atomic_fetch_add_explicit(&versions->begun, 1, memory_order_relaxed);
    bool boundary = begun % versions->config.window_steps == 0;
    if (!(boundary && atomic_load_explicit(&versions->busy, memory_order_relaxed)) &&
        enter_quickly(versions, reader))
        return;
    pthread_mutex_lock(versions->lock);
    atomic_store(&reader->window, 0); /* a quick entry that failed has left an old window there */
    if (boundary)
        mp_swaps_advance(versions, true);
    uint64_t window = atomic_load(&versions->window);
    if (reader->copied != window)
        memcpy(reader->published, versions->published, versions->keys * sizeof *reader->published);
    reader->copied = window;
    atomic_store(&reader->window, window);
    pthread_mutex_unlock(versions->lock);
}

void mp_versions_leave_step(mp_versions *versions, uint32_t index)
{
    mp_device *device = versions->home->device;
    atomic_store(&versions->readers[index].window, 0);
    uint64_t now = device->ops->now_ns(device);
    bool due = now >= atomic_load_explicit(&versions->next_ns, memory_order_relaxed);
    /* A stale `busy` costs nothing: a later step will see it and advance the swaps. */
    if (!due && !atomic_load_explicit(&versions->busy, memory_order_relaxed))
        return;
    pthread_mutex_lock(versions->lock);
    if (now >= atomic_load(&versions->next_ns)) { /* unless another session has decided meanwhile */
        atomic_store(&versions->next_ns, now + interval_ns(versions));
        mp_swaps_decide(versions);
    }
    mp_swaps_advance(versions, false);
    pthread_mutex_unlock(versions->lock);
}

/* ---- holds ---- */

static void hold_place(const mp_versions *versions, mp_hold *hold, uint32_t place)
{
    hold->slot = MP_NO_SLOT;
    hold->kind = MP_HOLD_LOW;
    hold->form = versions->config.lo_form;
    hold->address = mp_versions_address(versions, place);
    hold->demanded = 0;
    hold->ready = true;
}

void mp_versions_hold_low(const mp_versions *versions, mp_hold *hold)
{
    hold_place(versions, hold, mp_versions_own_place(versions, hold->key));
}

void mp_versions_hold_all(const mp_versions *versions, uint32_t reader, mp_hold *holds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        if (hold->shard != versions->part)
            continue;
        uint32_t version = versions->readers[reader].published[hold->key];
        if (!(version & MP_VERSION_HIGH)) {
            hold_place(versions, hold, version);
            continue;
        }
        uint32_t slot = version & ~MP_VERSION_HIGH;
        /* A published version is RESIDENT while a step sees it. */
        mp_shard_add_user(versions->shard, slot);
        mp_shard_hold(versions->shard, slot, hold, MP_HOLD_HIT);
        hold->demanded = 0;
        hold->ready = true;
    }
}

void mp_versions_read_until(const mp_versions *versions, const mp_hold *hold, uint32_t reader,
                            mp_tick tick)
{
    if (versions->first_read == MP_NO_READERS)
        return;
    uint64_t place = (uint64_t)(hold->address - versions->memory) / versions->unit;
    mp_readers_until(versions->transfer, versions->first_read + (uint32_t)place, reader, tick);
}

void mp_versions_heat(mp_versions *versions, uint32_t key, uint32_t heat)
{
    atomic_fetch_add_explicit(&versions->counts[key], heat, memory_order_relaxed);
}

/* ---- pins ---- */

moepage_status mp_versions_pin(mp_versions *versions, uint32_t key)
{
    uint32_t layer = key / versions->experts;
    if (versions->pins[key] == 0 && versions->pinned[layer] >= versions->n_high)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "%u experts of layer %u are pinned, and no more than %u can be high",
                       versions->pinned[layer], layer, versions->n_high);
    if (versions->pins[key]++ > 0)
        return MOEPAGE_OK;
    versions->pinned[layer]++;
    mp_swaps_choose(versions);
    mp_swaps_advance(versions, false);
    return MOEPAGE_OK;
}

bool mp_versions_unpin(mp_versions *versions, uint32_t key)
{
    if (versions->pins[key] == 0)
        return false;
    versions->pinned[key / versions->experts] -= --versions->pins[key] == 0;
    return true;
}

/* ---- info ---- */

void mp_versions_describe(const mp_versions *versions, moepage_expert_pool_info *info)
{
    const mp_version_counters *counters = &versions->counters;
    info->hi_form = versions->config.hi_form;
    info->lo_form = versions->config.lo_form;
    info->hi_experts += versions->n_high;
    info->lo_bytes += versions->first_slot * versions->slot_bytes;
    info->promotions += counters->promotions;
    info->demotions += counters->demotions;
    info->transitions_refused += counters->refused;
    info->transitions_failed += counters->failed;
    info->transition_bytes += counters->bytes;
    if (serves_versions(versions)) /* all prefetches are transitions, and counted as such */
        info->prefetch_bytes = 0;
    info->decisions += counters->decisions;
    info->windows += counters->windows;
    for (uint32_t l = 0; versions->pinned && l < versions->layers; l++)
        info->pinned += versions->pinned[l];
    for (uint32_t key = 0; versions->published && key < versions->keys; key++)
        info->hi_published += (versions->published[key] & MP_VERSION_HIGH) != 0;
}
