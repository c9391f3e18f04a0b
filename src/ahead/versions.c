/* Versions: what is allowed, where they lie, bringing them, and what a step sees of them. */
#include "ahead/versions.h"

#include <assert.h>
#include <string.h>

#include "arena/scratch.h"
#include "base/alloc.h"
#include "base/config.h"
#include "base/status.h"

#define PLACE_ALIGN 256u
#define SPARE_PER_LAYER \
    1u /* places of fetched low versions beyond those of experts without a high one */
#define DEFAULT_INTERVAL_US 1000000u
#define DEFAULT_TRANSITIONS 4u
#define MAX_TRANSITIONS 1024u

/* ---- config ---- */

static moepage_status check_values(const moepage_precision_config *config)
{
    if (config->serve > MOEPAGE_SERVE_CACHE)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: serve is %u, it must be MOEPAGE_SERVE_VERSIONS or _CACHE",
                       config->serve);
    if (config->hi_form != MOEPAGE_FORM_DENSE && config->hi_form != MOEPAGE_FORM_INT8 &&
        config->hi_form != MOEPAGE_FORM_INT4)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: hi_form is %u, it must be 0, MOEPAGE_FORM_DENSE, _INT8 or _INT4",
                       config->hi_form);
    if (config->lo_form < MOEPAGE_FORM_INT8 || config->lo_form > MOEPAGE_FORM_INT2 ||
        config->lo_form <= config->hi_form)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "precision: lo_form is %u, it must be MOEPAGE_FORM_INT8, _INT4 or _INT2, and "
            "smaller than hi_form (%u)",
            config->lo_form, config->hi_form);
    if (!(config->alpha >= 0 && config->alpha < 1) || !(config->margin <= 1e9))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: alpha is %g and margin %g: 0 <= alpha < 1, and the margin is a "
                       "number",
                       config->alpha, config->margin);
    if (config->lo_fetched > 1 || config->hotness > MOEPAGE_HOTNESS_WEIGHTS)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "precision: lo_fetched is %u and hotness %u: they must be 0 or 1, and "
                       "MOEPAGE_HOTNESS_CHOICES or _WEIGHTS",
                       config->lo_fetched, config->hotness);
    if (config->transitions > MAX_TRANSITIONS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "precision: transitions is %u, at most %u",
                       config->transitions, MAX_TRANSITIONS);
    return MOEPAGE_OK;
}

/* What only makes sense while sessions compute with published versions. */
static moepage_status check_serve(const moepage_precision_config *config, uint64_t slots,
                                  uint32_t experts)
{
    if (config->serve == MOEPAGE_SERVE_CACHE) {
        if (config->hi_form != MOEPAGE_FORM_DENSE || config->lo_fetched || config->hi_experts)
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "precision: with SERVE_CACHE hi_form must be DENSE, lo_fetched and "
                           "hi_experts 0 (they are %u, %u and %u)",
                           config->hi_form, config->lo_fetched, config->hi_experts);
        return MOEPAGE_OK;
    }
    if (slots)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "slots is %llu, with SERVE_VERSIONS it must be 0: precision.hi_experts says "
                       "how many",
                       (unsigned long long)slots);
    if (config->hi_experts > experts)
        return mp_fail(MOEPAGE_E_ARGUMENT, "precision: hi_experts is %u, a layer has %u",
                       config->hi_experts, experts);
    return MOEPAGE_OK;
}

static moepage_status check_rest(const moepage_expert_pool_config *config,
                                 const moepage_precision_config *precision, uint32_t n_devices)
{
    if (n_devices != 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "a pool over %u devices has no versions of its experts: precision needs one "
                       "device",
                       n_devices);
    if (config->bus_form && config->bus_form != precision->hi_form)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "bus_form is %u: beside precision it must be 0 or hi_form (%u)",
                       config->bus_form, precision->hi_form);
    if (config->compressed_experts || config->placement != MOEPAGE_PLACEMENT_EXPLICIT)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "compressed_experts is %u and placement %u: beside precision both must be 0",
                       config->compressed_experts, config->placement);
    return MOEPAGE_OK;
}

static moepage_status check_forms(const struct moepage_model *model,
                                  const moepage_precision_config *config)
{
    const uint32_t forms[2] = {config->hi_form, config->lo_form};
    static const char *const names[MP_FORMS] = {"", "DENSE", "EXPH", "INT8", "INT4", "INT2"};
    for (int i = 0; i < 2; i++)
        if (forms[i] != MOEPAGE_FORM_DENSE && !mp_model_has_form(model, forms[i]))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "precision: the model's experts are not stored as %s: pack it with that "
                           "form",
                           names[forms[i]]);
    return MOEPAGE_OK;
}

/* Reads the precision config of a pool, checks it against the rest and the model, and fills in what it
 * leaves to the library. */
static moepage_status read_config(const struct moepage_model *model,
                                  const moepage_expert_pool_config *config, uint32_t n_devices,
                                  moepage_precision_config *out)
{
    moepage_status status =
        mp_config_read(out, sizeof *out, sizeof *out, config->precision, "precision");
    if (status)
        return status;
    if (!out->hi_form)
        out->hi_form = MOEPAGE_FORM_DENSE;
    status = check_values(out);
    if (!status)
        status = check_serve(out, config->slots, model->info.experts);
    if (!status)
        status = check_rest(config, out, n_devices);
    if (!status)
        status = check_forms(model, out);
    if (status)
        return status;
    out->interval_us = out->interval_us ? out->interval_us : DEFAULT_INTERVAL_US;
    out->window_steps = out->window_steps ? out->window_steps : 1;
    out->alpha = out->alpha > 0 ? out->alpha : 0.5;
    out->margin = out->margin > 0 ? out->margin : out->margin < 0 ? 0 : 0.1;
    out->transitions = out->transitions ? out->transitions : DEFAULT_TRANSITIONS;
    return MOEPAGE_OK;
}

/* ---- sizes ---- */

static uint64_t unit_of(const struct moepage_model *model, uint32_t form)
{
    uint64_t bytes = mp_model_most_bytes(model, form);
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static uint64_t slot_bytes_of(const struct moepage_model *model,
                              const moepage_precision_config *precision)
{
    return precision->hi_form == MOEPAGE_FORM_DENSE ? model->info.slot_bytes
                                                    : unit_of(model, precision->hi_form);
}

/* Of low versions, when so many of each layer are high. */
static uint64_t count_places(const struct moepage_model *model,
                             const moepage_precision_config *precision, uint32_t n_high)
{
    uint64_t per_layer = model->info.experts;
    if (precision->lo_fetched)
        per_layer = per_layer + SPARE_PER_LAYER - n_high;
    return per_layer * model->info.moe_layers;
}

static uint64_t slots_of_places(const struct moepage_model *model,
                                const moepage_precision_config *precision, uint64_t places)
{
    uint64_t slot_bytes = slot_bytes_of(model, precision);
    return (places * unit_of(model, precision->lo_form) + slot_bytes - 1) / slot_bytes;
}

moepage_status mp_versions_sizes(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t n_devices,
                                 uint64_t *slot_bytes, uint64_t *low_slots, uint64_t *slots)
{
    moepage_precision_config precision;
    moepage_status status = read_config(model, config, n_devices, &precision);
    if (status)
        return status;
    uint64_t places = count_places(model, &precision, precision.hi_experts);
    *slot_bytes = slot_bytes_of(model, &precision);
    *low_slots = slots_of_places(model, &precision, places);
    if (precision.serve == MOEPAGE_SERVE_VERSIONS)
        *slots = (uint64_t)precision.hi_experts * model->info.moe_layers;
    return MOEPAGE_OK;
}

/* ---- opening ---- */

moepage_status mp_versions_prepare(struct moepage_expert_pool *pool,
                                   const moepage_expert_pool_config *config)
{
    moepage_precision_config precision;
    moepage_status status = read_config(pool->model, config, pool->n_shards, &precision);
    if (status)
        return status;
    pool->versions = mp_alloc(sizeof *pool->versions);
    if (!pool->versions)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for versions of experts");
    pool->versions->config = precision;
    pool->slot_form = pool->bus_form = precision.hi_form;
    pool->slot_bytes = slot_bytes_of(pool->model, &precision);
    return MOEPAGE_OK;
}

static bool alloc_tables(struct moepage_expert_pool *pool)
{
    mp_versions *versions = pool->versions;
    versions->free_places = mp_alloc_array(versions->n_places, sizeof *versions->free_places);
    if (!versions->free_places || versions->config.serve == MOEPAGE_SERVE_CACHE)
        return versions->free_places != NULL;
    versions->published = mp_alloc_array(pool->keys, sizeof *versions->published);
    versions->counts = mp_alloc_array(pool->keys, sizeof *versions->counts);
    versions->hotness = mp_alloc_array(pool->keys, sizeof *versions->hotness);
    versions->high = mp_alloc_array(pool->keys, sizeof *versions->high);
    versions->layer_counts = mp_alloc_array(pool->experts, sizeof *versions->layer_counts);
    versions->order = mp_alloc_array(pool->experts, sizeof *versions->order);
    versions->swaps = mp_alloc_array(versions->config.transitions, sizeof *versions->swaps);
    versions->queue.swaps = mp_alloc_array(pool->keys, sizeof *versions->queue.swaps);
    versions->queue.n = mp_alloc_array(pool->layers, sizeof *versions->queue.n);
    return versions->published && versions->counts && versions->hotness && versions->high &&
           versions->layer_counts && versions->order && versions->swaps && versions->queue.swaps &&
           versions->queue.n;
}

/* How many high versions per layer: those asked for, or all that the arena has room for. */
static moepage_status choose_high(struct moepage_expert_pool *pool, uint64_t room)
{
    mp_versions *versions = pool->versions;
    const moepage_precision_config *config = &versions->config;
    uint32_t most = mp_precision_capacity(room * pool->slot_bytes, pool->layers, pool->experts,
                                          pool->slot_bytes, versions->unit, !config->lo_fetched,
                                          SPARE_PER_LAYER);
    if (most == UINT32_MAX || most == 0 || config->hi_experts > most)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "precision: %u high versions per layer of %llu bytes beside low ones of "
                       "%llu do not fit: the arena has room for %llu slots",
                       config->hi_experts ? config->hi_experts : 1,
                       (unsigned long long)pool->slot_bytes, (unsigned long long)versions->unit,
                       (unsigned long long)room);
    versions->n_high = config->hi_experts ? config->hi_experts : most;
    return MOEPAGE_OK;
}

moepage_status mp_versions_open(struct moepage_expert_pool *pool, uint64_t asked, uint32_t *first,
                                uint64_t *slots)
{
    mp_versions *versions = pool->versions;
    const moepage_precision_config *config = &versions->config;
    struct moepage_device *home = pool->shards[0].home;
    uint64_t room = mp_arena_room(&home->arena, MP_SIDE_EXPERTS);
    moepage_status status = MOEPAGE_OK;
    if (!(home->device->caps & MP_CAP_SYNC_CALLER))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "precision: versions need a device whose memory is the caller's; %s is not "
                       "one",
                       home->device->name);
    versions->memory = home->arena.base;
    versions->unit = unit_of(pool->model, config->lo_form);
    versions->law = (mp_precision_law){.alpha = config->alpha, .margin = config->margin};
    if (config->serve == MOEPAGE_SERVE_VERSIONS)
        status = choose_high(pool, room);
    if (status)
        return status;
    uint64_t places = count_places(pool->model, config, versions->n_high);
    uint64_t low_slots = slots_of_places(pool->model, config, places);
    if (low_slots > room || places >= MP_VERSION_HIGH)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "precision: the low versions take %llu slots of %llu bytes, the arena has "
                       "room for %llu",
                       (unsigned long long)low_slots, (unsigned long long)pool->slot_bytes,
                       (unsigned long long)room);
    versions->n_places = (uint32_t)places;
    if (!alloc_tables(pool))
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for versions of %u experts", pool->keys);
    *first = (uint32_t)low_slots;
    *slots = versions->n_high ? (uint64_t)versions->n_high * pool->layers : asked;
    return MOEPAGE_OK;
}

void mp_versions_close(struct moepage_expert_pool *pool)
{
    mp_versions *versions = pool->versions;
    if (!versions)
        return;
    mp_free(versions->free_places);
    mp_free(versions->published);
    mp_free(versions->counts);
    mp_free(versions->hotness);
    mp_free(versions->high);
    mp_free(versions->layer_counts);
    mp_free(versions->order);
    mp_free(versions->swaps);
    mp_free(versions->queue.swaps);
    mp_free(versions->queue.n);
    mp_free(versions);
    pool->versions = NULL;
}

/* ---- filling ---- */

moepage_status mp_versions_copy_low(struct moepage_expert_pool *pool, uint32_t key, uint32_t place,
                                    _Atomic int32_t *result, mp_tick *tick)
{
    mp_shard *shard = &pool->shards[0];
    mp_pipe *pipe = &shard->pipes[MP_PIPE_PREFETCH];
    uint32_t form = pool->versions->config.lo_form;
    mp_image image;
    mp_model_find_image(pool->model, key / pool->experts, key % pool->experts, form, &image);
    mp_copy copy = mp_pool_copy_mapped(pool, key, form, 0, image.bytes);
    copy.dst = mp_versions_address(pool->versions, place);
    copy.result = result;
    if (!image.mapped) /* a shape without weights: nothing is read */
        copy.src = copy.dst;
    atomic_store(result, MOEPAGE_OK);
    moepage_status status = shard->home->device->ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
    *tick = pipe->last_bus;
    return status;
}

#define FILL_BATCH 64u

/* Why a low version cannot be had. */
static moepage_status explain(struct moepage_expert_pool *pool, uint32_t key, moepage_status status)
{
    uint32_t layer = key / pool->experts, expert = key % pool->experts;
    moepage_status why = MOEPAGE_OK;
    if (mp_is_image_fault(status))
        why = mp_model_check_mapped(pool->model, layer, expert, pool->versions->config.lo_form);
    if (!why)
        return mp_fail(status, "the low version of expert %u of layer %u cannot be brought", expert,
                       layer);
    return mp_fail_within(why, "the low version of expert %u of layer %u", expert, layer);
}

/* Brings the low versions of keys[0..n) to their places, n at most FILL_BATCH. */
static moepage_status fill_batch(struct moepage_expert_pool *pool, const uint32_t *keys,
                                 const uint32_t *places, uint32_t n)
{
    mp_shard *shard = &pool->shards[0];
    _Atomic int32_t results[FILL_BATCH];
    moepage_status status = MOEPAGE_OK;
    mp_tick tick = 0;
    uint32_t i = 0;
    while (i < n && !status) {
        status = mp_versions_copy_low(pool, keys[i], places[i], &results[i], &tick);
        i++;
    }
    moepage_status synced =
        tick ? shard->home->device->ops->sync(shard->pipes[MP_PIPE_PREFETCH].bus, tick) : 0;
    status = status ? status : synced;
    for (uint32_t k = 0; k < i && !status; k++)
        if (atomic_load(&results[k]))
            return explain(pool, keys[k], atomic_load(&results[k]));
    return status;
}

/* Is the expert's high version brought at the start? Where low ones are fetched there is no place for
 * all of them: the first of each layer begin high, nothing being known of any. */
static bool begins_high(const struct moepage_expert_pool *pool, uint32_t key)
{
    const mp_versions *versions = pool->versions;
    return versions->config.lo_fetched && key % pool->experts < versions->n_high;
}

static moepage_status fill_low(struct moepage_expert_pool *pool)
{
    mp_versions *versions = pool->versions;
    uint32_t keys[FILL_BATCH], places[FILL_BATCH], n = 0, place = 0;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t key = 0; key < pool->keys && !status; key++) {
        if (begins_high(pool, key))
            continue;
        keys[n] = key;
        places[n++] = place;
        if (versions->published)
            versions->published[key] = place;
        place++;
        if (n < FILL_BATCH)
            continue;
        status = fill_batch(pool, keys, places, n);
        n = 0;
    }
    if (n && !status)
        status = fill_batch(pool, keys, places, n);
    for (uint32_t p = versions->n_places; p-- > place;)
        versions->free_places[versions->n_free++] = p;
    return status;
}

/* Brings one high version and publishes it. */
static moepage_status fill_high(struct moepage_expert_pool *pool, uint32_t key)
{
    mp_versions *versions = pool->versions;
    mp_shard *shard = &pool->shards[0];
    uint32_t slot = mp_pool_take_slot(shard, key, MP_FOR_DECODE, 1);
    assert(slot != MP_NO_SLOT); /* there is one for each */
    mp_pool_stage_load(shard, slot, MP_PIPE_DEMAND, UINT64_MAX);
    mp_pipes_flush(shard);
    pthread_mutex_unlock(&pool->lock);
    mp_hold hold = {.key = key, .slot = slot, .kind = MP_HOLD_MISS, .pin = true};
    moepage_status status = mp_pool_wait(pool, &hold, NULL);
    mp_pool_release(pool, &hold, 1);
    pthread_mutex_lock(&pool->lock);
    if (status)
        return status;
    versions->published[key] = MP_VERSION_HIGH | slot;
    versions->high[key] = true;
    return MOEPAGE_OK;
}

moepage_status mp_versions_fill(struct moepage_expert_pool *pool)
{
    mp_versions *versions = pool->versions;
    mp_device *device = pool->shards[0].home->device;
    pthread_mutex_lock(&pool->lock);
    moepage_status status = fill_low(pool);
    for (uint32_t key = 0; key < pool->keys && !status; key++)
        if (begins_high(pool, key))
            status = fill_high(pool, key);
    pool->counters = (mp_pool_counters){0}; /* of what is done while it serves */
    pthread_mutex_unlock(&pool->lock);
    atomic_init(&versions->window, 1);
    atomic_init(&versions->next_ns,
                device->ops->now_ns(device) + (uint64_t)versions->config.interval_us * 1000);
    return status;
}

/* ---- steps ---- */

/* Says which window the client's copy is of, if that is the one that begins now. The window is
 * looked at once more after it has been said: who publishes the next one looks at it after that. */
static bool enter_quickly(mp_versions *versions, mp_client *client)
{
    uint64_t window = atomic_load(&versions->window);
    if (client->copied != window)
        return false;
    atomic_store(&client->window, window);
    return atomic_load(&versions->window) == window;
}

void mp_versions_begin_step(struct moepage_expert_pool *pool, mp_client *client)
{
    mp_versions *versions = pool->versions;
    uint64_t begun = atomic_fetch_add_explicit(&versions->begun, 1, memory_order_relaxed);
    bool boundary = begun % versions->config.window_steps == 0;
    if (!(boundary && atomic_load_explicit(&versions->busy, memory_order_relaxed)) &&
        enter_quickly(versions, client))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&client->window, 0);
    if (boundary)
        mp_swaps_advance(pool, true);
    uint64_t window = atomic_load(&versions->window);
    if (client->copied != window)
        memcpy(client->published, versions->published, pool->keys * sizeof *client->published);
    client->copied = window;
    atomic_store(&client->window, window);
    pthread_mutex_unlock(&pool->lock);
}

void mp_versions_end_step(struct moepage_expert_pool *pool, mp_client *client)
{
    mp_versions *versions = pool->versions;
    mp_device *device = pool->shards[0].home->device;
    atomic_store(&client->window, 0);
    uint64_t now = device->ops->now_ns(device);
    bool due = now >= atomic_load_explicit(&versions->next_ns, memory_order_relaxed);
    if (!due && !atomic_load_explicit(&versions->busy, memory_order_relaxed))
        return;
    pthread_mutex_lock(&pool->lock);
    if (now >= atomic_load(&versions->next_ns)) { /* no other session has seen to it */
        atomic_store(&versions->next_ns, now + (uint64_t)versions->config.interval_us * 1000);
        mp_swaps_decide(pool);
    }
    mp_swaps_advance(pool, false);
    pthread_mutex_unlock(&pool->lock);
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

void mp_versions_hold_low(const struct moepage_expert_pool *pool, mp_hold *hold)
{
    hold_place(pool->versions, hold, hold->key);
}

void mp_versions_hold(struct moepage_expert_pool *pool, const mp_client *client, mp_hold *holds,
                      uint32_t n)
{
    const mp_shard *shard = &pool->shards[0];
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        uint32_t version = client->published[hold->key];
        if (!(version & MP_VERSION_HIGH)) {
            hold_place(pool->versions, hold, version);
            continue;
        }
        uint32_t slot = version & ~MP_VERSION_HIGH;
        uint64_t before = atomic_fetch_add_explicit(&shard->words[slot], 1, memory_order_acq_rel);
        assert(MP_WORD_IDENTITY(before) == MP_WORD(hold->key, MP_SLOT_RESIDENT));
        (void)before;
        hold->slot = slot;
        hold->kind = MP_HOLD_HIT;
        hold->form = pool->slot_form;
        hold->address = mp_pool_slot_address(shard, slot);
        hold->demanded = 0;
        hold->ready = true;
    }
}

/* ---- info ---- */

void mp_versions_get_info(const struct moepage_expert_pool *pool, moepage_expert_pool_info *info)
{
    const mp_versions *versions = pool->versions;
    const mp_version_counters *counters = &versions->counters;
    info->hi_form = versions->config.hi_form;
    info->lo_form = versions->config.lo_form;
    info->hi_experts = versions->n_high;
    info->lo_bytes = pool->shards[0].first_slot * pool->slot_bytes;
    info->promotions = counters->promotions;
    info->demotions = counters->demotions;
    info->transitions_refused = counters->refused;
    info->transitions_failed = counters->failed;
    info->transition_bytes = counters->bytes;
    if (mp_pool_serves_versions(pool)) /* nothing else comes, and what did has been counted there */
        info->prefetch_bytes = 0;
    info->decisions = counters->decisions;
    info->windows = counters->windows;
    for (uint32_t key = 0; versions->published && key < pool->keys; key++)
        info->hi_published += (versions->published[key] & MP_VERSION_HIGH) != 0;
}
