/* The expert pool's life: opens the rooms below over its devices, connects them, and closes them;
 * and what the pool reports. */
#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda_ext.h"
#include "pool/inside.h"
#include "transfer/setup.h"

#define DEFAULT_CHUNK_BYTES (2u << 20)
#define ARENA_PAGE 4096u

/* ---- checks ---- */

static moepage_status check_config(const moepage_expert_pool_config *config, uint32_t n_devices)
{
    if (n_devices < 1 || n_devices > MOEPAGE_MAX_DEVICES)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n_devices is %u, it must be 1 to %d", n_devices,
                       MOEPAGE_MAX_DEVICES);
    if (config->scope > MOEPAGE_SCOPE_LAYER)
        return mp_fail(MOEPAGE_E_ARGUMENT, "scope is %u, it must be MOEPAGE_SCOPE_GLOBAL or _LAYER",
                       config->scope);
    if (config->scan_percent > 99)
        return mp_fail(MOEPAGE_E_ARGUMENT, "scan_percent is %u, it must be 0 to 99",
                       config->scan_percent);
    if (config->tp_rank != 0 || config->tp_size > 1)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "tensor-parallel slices (tp_rank %u, tp_size %u) are "
                       "reserved: leave both 0",
                       config->tp_rank, config->tp_size);
    if (config->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "reserved is %u, it must be 0", config->reserved);
    if (!mp_policy_find(config->policy))
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "there is no eviction policy \"%s\": use \"lru\", \"lfu\", "
                       "\"lfu-aged\", \"sieve\", \"s3fifo\", \"lirs\", \"finemoe\" or \"cycle\"",
                       config->policy);
    return MOEPAGE_OK;
}

static moepage_status check_bytes(struct moepage_device *const *devices, uint32_t n_devices,
                                  const struct moepage_model *model)
{
    for (uint32_t d = 0; d < n_devices && model->phantom; d++)
        if (!(devices[d]->device->caps & MP_CAP_NO_BYTES))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "the model \"%s\" is a shape without weights, and device %u (%s) holds "
                           "bytes: open a simulated device for it",
                           model->info.architecture, d, devices[d]->device->name);
    return MOEPAGE_OK;
}

static moepage_status check_decoders(struct moepage_device *const *devices, uint32_t n_devices,
                                     uint32_t bus_form)
{
    for (uint32_t d = 0; d < n_devices && bus_form == MOEPAGE_FORM_EXPH; d++)
        if (devices[d]->device->caps & MP_CAP_WRITE_ONLY)
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "device %u (%s) decodes nothing: bus_form must be MOEPAGE_FORM_DENSE, "
                           "and the model have that form",
                           d, devices[d]->device->name);
    return MOEPAGE_OK;
}

static moepage_status check_model(const struct moepage_model *model, uint32_t n_devices)
{
    uint64_t keys = (uint64_t)model->info.experts * model->info.moe_layers;
    if (n_devices > model->info.experts)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "n_devices is %u, but a layer has only %u experts to "
                       "deal out",
                       n_devices, model->info.experts);
    if (keys > MP_MAX_KEYS)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%u layers of %u experts are more than a pool can tell "
                       "apart (%u)",
                       model->info.moe_layers, model->info.experts, MP_MAX_KEYS);
    return MOEPAGE_OK;
}

/* Of a pool without versions. */
static uint32_t form_of_slots(const moepage_expert_pool_config *config)
{
    return config->slot_form ? config->slot_form : MOEPAGE_FORM_DENSE;
}

/* ---- the deal ---- */

_Static_assert(MP_DEAL_MOST == MOEPAGE_MAX_DEVICES, "a pool's devices are dealt to");

/* Takes the experts' side of each arena. */
static moepage_status attach(struct moepage_expert_pool *pool,
                             struct moepage_device *const *devices)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0; d < pool->n_devices && !status; d++) {
        status = mp_arena_attach(&devices[d]->arena, MP_SIDE_EXPERTS, pool->bundle.bytes);
        if (status)
            break;
        pool->homes[d] = devices[d];
        atomic_fetch_add(&devices[d]->residents, 1);
    }
    return status;
}

/* Deals the experts out, in proportion to the slots that each arena has room for now. */
static moepage_status deal_out(struct moepage_expert_pool *pool)
{
    mp_deal *deal = &pool->deal;
    deal->device_of = mp_alloc_array(pool->experts, sizeof *deal->device_of);
    deal->rank_of = mp_alloc_array(pool->experts, sizeof *deal->rank_of);
    deal->expert_at = mp_alloc_array(pool->experts, sizeof *deal->expert_at);
    if (!deal->device_of || !deal->rank_of || !deal->expert_at)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the devices of %u experts",
                       pool->experts);
    deal->n = pool->n_devices;
    for (uint32_t d = 0; d < deal->n; d++)
        deal->weights[d] =
            mp_arena_room(&pool->homes[d]->arena, MP_SIDE_EXPERTS) * pool->bundle.n_slots;
    mp_deal_out(deal, pool->experts);
    return MOEPAGE_OK;
}

/* Finds out whether the devices of a pool on several GPUs reach the first one's workspaces. */
static moepage_status find_way(struct moepage_expert_pool *pool)
{
    mp_device *first = pool->homes[0]->device;
    bool all = true;
    for (uint32_t d = 1; d < pool->n_devices; d++) {
        mp_device *device = pool->homes[d]->device;
        bool can = false;
        if (device->ops != first->ops || !first->ops->cuda)
            return MOEPAGE_OK; /* hosts; no session steps over others */
        moepage_status status = first->ops->cuda->reach(device, first, &can);
        if (status)
            return status;
        all = all && can;
    }
    pool->indirect = all ? 0 : pool->n_devices - 1;
    return MOEPAGE_OK;
}

/* ---- one device ---- */

/* Chooses how many slots a device gets above the `first` that its compressed experts or
 * low versions take (those of high versions, its share of the slots asked for, or all that the arena has
 * room for), and claims them. */
static moepage_status claim_slots(struct moepage_expert_pool *pool, uint32_t device, uint64_t asked,
                                  mp_shard_setup *setup)
{
    mp_arena *arena = &pool->homes[device]->arena;
    uint64_t members = (uint64_t)mp_cache_members(pool->cache, device) * pool->layers;
    uint64_t room = mp_arena_room(arena, MP_SIDE_EXPERTS) * pool->bundle.n_slots;
    if (setup->first > room)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "device %u: %u compressed experts per layer take %u slots, the arena has "
                       "room for %llu",
                       device, mp_images_rounds(pool->transfers[device]), setup->first,
                       (unsigned long long)room);
    uint64_t slots = setup->slots ? setup->slots
                     : asked      ? mp_deal_share(&pool->deal, device, asked)
                                  : room - setup->first;
    if (!pool->per_layer && slots % pool->step_slots && slots < room)
        slots += pool->step_slots - slots % pool->step_slots; /* room is whole bundles */
    if (slots > members)
        slots = members;
    slots -= slots % pool->step_slots;
    if (pool->bundle.n_slots > 1 &&
        mp_bundle_bytes(&pool->bundle, room) / MP_SLOT_ALIGN > INT32_MAX)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device %u: plans cannot number slots of several sizes in an arena of "
                       "%llu bytes",
                       device, (unsigned long long)mp_bundle_bytes(&pool->bundle, room));
    if (slots == 0)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "device %u: no expert would be resident: the arena has "
                       "room for %llu slots of %llu bytes and at least %u are needed",
                       device, (unsigned long long)(room - setup->first),
                       (unsigned long long)pool->slot_bytes, pool->step_slots);
    setup->slots = (uint32_t)slots;
    return mp_arena_resize(arena, MP_SIDE_EXPERTS, (setup->first + slots) / pool->bundle.n_slots);
}

/* Returns a bound on the slot numbers of a device, wherever moves may put its slots. */
static uint32_t most_slots(const struct moepage_expert_pool *pool, uint32_t device)
{
    const mp_transfer *transfer = pool->transfers[device];
    uint64_t members = (uint64_t)mp_cache_members(pool->cache, device) * pool->layers;
    uint64_t images = mp_images_possible(transfer)
                          ? mp_images_places(transfer, mp_cache_members(pool->cache, device))
                          : 0;
    uint64_t most =
        mp_arena_side_max(&pool->homes[device]->arena, MP_SIDE_EXPERTS) * pool->bundle.n_slots;
    uint64_t needed = members + images + pool->low_slots[device];
    return (uint32_t)(most < needed ? most : needed);
}

static moepage_status open_transfer(struct moepage_expert_pool *pool, uint32_t device,
                                    const moepage_expert_pool_config *config)
{
    mp_transfer_setup setup = {
        .home = pool->homes[device],
        .model = pool->model,
        .lock = &pool->lock,
        .place_bytes = pool->bundle.bytes,
        .slot_bytes = pool->bundle.classes[pool->bundle.class_of_layer[0]].slot_bytes,
        .deal = &pool->deal,
        .part = device,
        .bus_form = pool->bus_form,
        .slot_form = pool->slot_form,
    };
    return mp_transfer_open(&setup, config, &pool->transfers[device]);
}

static moepage_status open_device(struct moepage_expert_pool *pool, uint32_t device,
                                  const moepage_expert_pool_config *config,
                                  const moepage_precision_config *precision)
{
    struct moepage_device *home = pool->homes[device];
    moepage_status status = open_transfer(pool, device, config);
    if (status)
        return status;
    mp_transfer *transfer = pool->transfers[device];
    mp_shard_setup setup = {
        .transfer = transfer,
        .base = mp_arena_side_base(&home->arena, MP_SIDE_EXPERTS),
        .first = mp_images_places(transfer, mp_images_rounds(transfer)),
    };
    if (precision) {
        status = mp_versions_open(precision, pool->model, home, &pool->deal, device, &setup.first,
                                  &setup.slots, &pool->versions[device]);
        pool->low_slots[device] = setup.first;
    }
    if (!status)
        status = claim_slots(pool, device, config->slots, &setup);
    if (status)
        return status;
    setup.most = most_slots(pool, device);
    pool->slots[device] = setup.base;
    status = mp_cache_add_device(pool->cache, &setup);
    pool->shards[device] = mp_cache_shard(pool->cache, device);
    if (!status)
        status = mp_ahead_add_device(pool->ahead, home, setup.most);
    return status ? status : mp_transfer_fill(transfer);
}

/* ---- versions ---- */

/* Loads one high version into a slot that it keeps. The lock is held, but
 * released while waiting. */
static moepage_status fill_high(struct moepage_expert_pool *pool, uint32_t key)
{
    uint32_t device = mp_deal_device(&pool->deal, key);
    mp_shard *shard = pool->shards[device];
    mp_hold hold = {.key = key, .shard = device, .kind = MP_HOLD_MISS, .pin = true};
    mp_claim claim = mp_shard_claim(shard, key, MP_FOR_DECODE, MP_PIPE_DEMAND, 1, &hold.slot);
    if (claim != MP_CLAIMED) /* cannot be: there is a slot for each, and one load at a time */
        return mp_fail(MOEPAGE_E_BUSY, "no slot for the high version of expert %u", key);
    mp_passage_advance(pool->transfers[device], hold.slot, MP_PIPE_DEMAND, UINT64_MAX);
    mp_transfer_flush(pool->transfers[device]);
    pthread_mutex_unlock(&pool->lock);
    uint32_t slot = hold.slot;
    moepage_status status = mp_pool_wait(pool, &hold, NULL);
    mp_pool_release(pool, &hold, 1);
    pthread_mutex_lock(&pool->lock);
    if (!status)
        mp_versions_begin_high(pool->versions[device], key, slot);
    return status;
}

/* Resets the counters, so that they count only what is done while the pool serves. */
static void reset_counters(struct moepage_expert_pool *pool)
{
    mp_cache_reset_counters(pool->cache);
    for (uint32_t d = 0; d < pool->n_devices; d++)
        *mp_transfer_get_counters(pool->transfers[d]) = (mp_transfer_counters){0};
}

static moepage_status fill_device(struct moepage_expert_pool *pool, uint32_t device)
{
    mp_versions *versions = pool->versions[device];
    moepage_status status =
        mp_versions_connect(versions, pool->ahead, pool->shards[device], &pool->lock);
    if (status)
        return status;
    pthread_mutex_lock(&pool->lock);
    status = mp_versions_fill_low(versions);
    for (uint32_t key = 0; key < pool->keys && !status; key++)
        if (mp_versions_begins_high(versions, key))
            status = fill_high(pool, key);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static moepage_status fill_versions(struct moepage_expert_pool *pool)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t d = 0; d < pool->n_devices && !status; d++)
        status = fill_device(pool, d);
    pthread_mutex_lock(&pool->lock);
    reset_counters(pool);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_versions_start(pool->versions[d]);
    return status;
}

/* ---- creation ---- */

static void free_parts(struct moepage_expert_pool *pool)
{
    mp_ahead_stop(pool->ahead);
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_transfer_close(pool->transfers[d]);
    mp_ahead_close(pool->ahead);
    mp_cache_close(pool->cache);
    for (uint32_t d = 0; d < pool->n_devices && pool->homes[d]; d++) {
        mp_arena_detach(&pool->homes[d]->arena, MP_SIDE_EXPERTS);
        atomic_fetch_sub(&pool->homes[d]->residents, 1);
    }
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_versions_close(pool->versions[d]);
    mp_bundle_close(&pool->bundle);
    mp_free(pool->deal.device_of);
    mp_free(pool->deal.rank_of);
    mp_free(pool->deal.expert_at);
    pthread_mutex_destroy(&pool->lock);
    atomic_fetch_sub(&pool->model->users, 1);
}

static void describe(struct moepage_expert_pool *pool, struct moepage_model *model,
                     const moepage_expert_pool_config *config, uint32_t n_devices)
{
    const moepage_model_info *info = &model->info;
    pool->model = model;
    pool->experts = info->experts;
    pool->layers = info->moe_layers;
    pool->keys = info->experts * info->moe_layers;
    pool->n_devices = n_devices;
    pool->per_layer = config->scope == MOEPAGE_SCOPE_LAYER;
    pool->scan_percent = config->scan_percent;
    pool->fills = !config->slots && !config->precision;
    pool->slot_form = form_of_slots(config);
    pthread_mutex_init(&pool->lock, NULL);
    atomic_fetch_add(&model->users, 1);
}

static moepage_status open_bundle(struct moepage_expert_pool *pool)
{
    moepage_status status = mp_bundle_open(pool->model, pool->slot_form, &pool->bundle);
    pool->slot_bytes = mp_model_slot_bytes(pool->model, pool->slot_form);
    pool->step_slots = pool->per_layer ? pool->layers : pool->bundle.n_slots;
    return status;
}

static moepage_status open_cache(struct moepage_expert_pool *pool,
                                 const moepage_expert_pool_config *config)
{
    mp_cache_setup setup = {
        .lock = &pool->lock,
        .policy = mp_policy_find(config->policy),
        .layers = pool->layers,
        .experts = pool->experts,
        .deal = &pool->deal,
        .per_layer = pool->per_layer,
        .bundle = &pool->bundle,
        .scan_percent = pool->scan_percent,
        .slot_form = pool->slot_form,
        .fixed = pool->serves_versions,
        .load_ended = mp_ahead_load_ended,
    };
    uint32_t chunk_bytes = config->chunk_bytes ? config->chunk_bytes : DEFAULT_CHUNK_BYTES;
    moepage_status status = mp_cache_open(&setup, &pool->cache);
    if (!status)
        status = mp_ahead_open(pool->cache, &setup, pool->slot_bytes, chunk_bytes, &pool->ahead);
    if (!status)
        mp_cache_set_owner(pool->cache, pool->ahead);
    return status;
}

static moepage_status open_parts(struct moepage_expert_pool *pool,
                                 struct moepage_device *const *devices,
                                 const moepage_expert_pool_config *config)
{
    moepage_precision_config precision;
    moepage_status status = mp_transfer_check(pool->model, config, &pool->bus_form);
    if (!status)
        status = check_decoders(devices, pool->n_devices, pool->bus_form);
    if (!status && config->precision)
        status = mp_versions_read_config(pool->model, config, pool->n_devices, &precision);
    if (!status && config->precision) {
        pool->slot_form = pool->bus_form = precision.hi_form;
        pool->serves_versions = precision.serve == MOEPAGE_SERVE_VERSIONS;
        pool->per_layer |= pool->serves_versions; /* every layer has as many high versions */
    }
    if (!status)
        status = open_bundle(pool);
    if (!status)
        status = attach(pool, devices);
    if (!status)
        status = find_way(pool);
    if (!status)
        status = deal_out(pool);
    if (!status)
        status = open_cache(pool, config);
    for (uint32_t d = 0; d < pool->n_devices && !status; d++)
        status = open_device(pool, d, config, config->precision ? &precision : NULL);
    return status || !pool->versions[0] ? status : fill_versions(pool);
}

moepage_status mp_pool_create(struct moepage_device *const *devices, uint32_t n_devices,
                              struct moepage_model *model, const moepage_expert_pool_config *config,
                              struct moepage_expert_pool **out)
{
    moepage_status status = check_config(config, n_devices);
    if (!status)
        status = check_bytes(devices, n_devices, model);
    if (!status)
        status = check_model(model, n_devices);
    if (status)
        return status;
    struct moepage_expert_pool *pool = mp_alloc(sizeof *pool);
    if (!pool)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for an expert pool");
    describe(pool, model, config, n_devices);
    status = open_parts(pool, devices, config);
    if (status) {
        free_parts(pool);
        mp_free(pool);
        return status;
    }
    for (uint32_t d = 0; d < n_devices; d++)
        mp_home_set_experts(devices[d], pool);
    mp_handle_open(&pool->handle, MP_KIND_EXPERTS);
    *out = pool;
    return MOEPAGE_OK;
}

void mp_pool_destroy(struct moepage_expert_pool *pool)
{
    mp_graveyard *graveyard = &pool->homes[0]->graveyard;
    for (uint32_t d = 0; d < pool->n_devices; d++)
        mp_home_set_experts(pool->homes[d], NULL);
    free_parts(pool);
    mp_graveyard_bury(graveyard, pool);
}

/* ---- sizes ---- */

moepage_status mp_pool_sizes(const struct moepage_model *model,
                             const moepage_expert_pool_config *config, uint32_t n_devices,
                             uint64_t *workspace_bytes, uint64_t *arena_bytes)
{
    uint32_t bus_form;
    moepage_status status = check_config(config, n_devices);
    if (!status)
        status = mp_transfer_check(model, config, &bus_form);
    if (status)
        return status;
    mp_bundle bundle;
    uint32_t form = form_of_slots(config);
    uint64_t slots = (config->slots + n_devices - 1) / n_devices, images;
    if (config->precision) /* nothing is decoded beside it */
        bus_form = MOEPAGE_FORM_DENSE;
    mp_transfer_sizes(model, config, bus_form, n_devices, workspace_bytes, &images);
    images = (images + model->info.slot_bytes - 1) / model->info.slot_bytes;
    if (config->precision)
        status = mp_versions_sizes(model, config, n_devices, &form, &images, &slots);
    if (status)
        return status;
    status = mp_bundle_open(model, form, &bundle);
    uint64_t unit_slots = bundle.n_slots, unit_bytes = bundle.bytes;
    mp_bundle_close(&bundle);
    if (status)
        return status;
    if (__builtin_add_overflow(slots, images + unit_slots - 1, &slots) ||
        __builtin_mul_overflow(slots / unit_slots, unit_bytes, arena_bytes) ||
        __builtin_add_overflow(*arena_bytes, ARENA_PAGE - 1, arena_bytes))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%llu slots, %llu to every %llu bytes: the total overflows 64 bits",
                       (unsigned long long)slots, (unsigned long long)unit_slots,
                       (unsigned long long)unit_bytes);
    *arena_bytes -= *arena_bytes % ARENA_PAGE;
    return MOEPAGE_OK;
}

/* ---- what it reports ---- */

void mp_pool_lookup(struct moepage_expert_pool *pool, uint32_t key, moepage_residency *out)
{
    mp_cache_lookup(pool->cache, key, out);
}

void mp_pool_get_info(struct moepage_expert_pool *pool, moepage_expert_pool_info *info)
{
    pthread_mutex_lock(&pool->lock);
    *info = (moepage_expert_pool_info){
        .devices = pool->n_devices,
        .slot_bytes = pool->slot_bytes,
        .bus_form = pool->bus_form,
        .slot_form = pool->slot_form,
        .slot_step = pool->step_slots,
        .indirect_devices = pool->indirect,
        .host_node = -1,
        .resizes = pool->resizes,
        .resizes_refused = pool->resizes_refused,
        .pins_refused = pool->pins_refused,
    };
    mp_ahead_describe(pool->ahead, info);
    mp_cache_describe(pool->cache, info); /* settles loads, whose reads the transfers then count */
    for (uint32_t d = 0; d < pool->n_devices; d++) {
        uint64_t below = mp_shard_slots(pool->shards[d]).first;
        info->compressed_bytes += pool->versions[d] ? 0 : mp_bundle_bytes(&pool->bundle, below);
        mp_transfer_describe(pool->transfers[d], info);
    }
    for (uint32_t d = 0; d < pool->n_devices && pool->versions[d]; d++)
        mp_versions_describe(pool->versions[d], info);
    pthread_mutex_unlock(&pool->lock);
}
