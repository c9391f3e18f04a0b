/* The expert pool's life: creation over devices, sessions that join, and what it tells about
 * itself. */
#include "pool/expert_pool.h"

#include <string.h>

#include "ahead/versions.h"
#include "base/alloc.h"
#include "base/status.h"
#include "pool/tiers.h"

#define DEFAULT_CHUNK_BYTES (2u << 20)
#define ARENA_PAGE 4096u
#define MAX_RING_WORDS (1u << 20) /* the longest record, of 65536 experts, fits many times */

/* ---- creation ---- */

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
    if (!mp_policy_find(config->policy))
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "there is no eviction policy \"%s\": use \"lru\", \"lfu\", "
                       "\"lfu-aged\", \"sieve\", \"s3fifo\", \"lirs\", \"finemoe\" or \"cycle\"",
                       config->policy);
    return MOEPAGE_OK;
}

static uint32_t shard_members(const struct moepage_expert_pool *pool, uint32_t shard_index)
{
    uint32_t per_layer = mp_pool_members(pool, shard_index);
    return pool->n_scopes == 1 ? per_layer * pool->layers : per_layer;
}

static moepage_status create_scopes(mp_shard *shard, uint32_t shard_index)
{
    struct moepage_expert_pool *pool = shard->pool;
    uint32_t policy_keys = pool->n_scopes == 1 ? pool->keys : pool->experts;
    shard->scopes = mp_alloc_array(pool->n_scopes, sizeof *shard->scopes);
    if (!shard->scopes)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u scopes", pool->n_scopes);
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        mp_scope *scope = &shard->scopes[i];
        scope->first_key = pool->n_scopes == 1 ? 0 : i * pool->experts;
        scope->members = shard_members(pool, shard_index);
        atomic_init(&scope->capacity, shard->n_slots / pool->n_scopes);
        atomic_init(&scope->aim, shard->n_slots / pool->n_scopes);
        scope->policy_state = mp_alloc(pool->policy->state_bytes(policy_keys, pool->experts));
        if (!scope->policy_state)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the state of policy %s",
                           pool->policy->name);
        pool->policy->init(scope->policy_state, policy_keys, pool->experts);
    }
    return MOEPAGE_OK;
}

static moepage_status create_tables(mp_shard *shard)
{
    shard->words = mp_alloc_array(shard->max_slots, sizeof *shard->words);
    shard->slots = mp_alloc_array(shard->max_slots, sizeof *shard->slots);
    shard->free_slots = mp_alloc_array(shard->max_slots, sizeof *shard->free_slots);
    if (!shard->words || !shard->slots || !shard->free_slots)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a table of %u slots", shard->max_slots);
    if (shard->staging.n) {
        shard->jobs =
            mp_alloc_array(shard->max_slots, MOEPAGE_MAX_EXPERT_TENSORS * sizeof *shard->jobs);
        if (!shard->jobs)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the decoder's jobs of %u slots",
                           shard->max_slots);
    }
    mp_pool_restack(shard);
    moepage_status status = mp_window_open(shard);
    if (!status)
        status = mp_readers_open(shard);
    return status ? status : mp_prefetcher_init(&shard->prefetcher, shard);
}

/* Most slots that a move can ever give the shard, in one place or another. */
static uint32_t most_slots(const mp_shard *shard, uint32_t shard_index)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint64_t members = (uint64_t)shard_members(pool, shard_index) * pool->n_scopes;
    uint64_t images =
        shard->compressed.unit ? mp_images_slots(shard, mp_pool_members(pool, shard_index)) : 0;
    uint64_t most = mp_arena_side_max(&shard->home->arena, MP_SIDE_EXPERTS);
    return (uint32_t)(most < members + images ? most : members + images);
}

/* How many slots the shard gets, above those of its compressed experts: an explicit share, or what
 * the arena has. */
static moepage_status choose_slots(mp_shard *shard, uint32_t shard_index, uint64_t asked)
{
    struct moepage_expert_pool *pool = shard->pool;
    mp_arena *arena = &shard->home->arena;
    uint32_t rounds = shard->compressed.n / pool->layers, first = mp_images_slots(shard, rounds);
    if (pool->versions) {
        moepage_status status = mp_versions_open(pool, asked, &first, &asked);
        if (status)
            return status;
    }
    uint64_t members = (uint64_t)shard_members(pool, shard_index) * pool->n_scopes;
    uint64_t room = mp_arena_room(arena, MP_SIDE_EXPERTS);
    if (first > room)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "device %u: %u compressed experts per layer take %u slots, the arena has "
                       "room for %llu",
                       shard_index, rounds, first, (unsigned long long)room);
    uint64_t slots = asked ? mp_pool_share(pool, shard_index, asked) : room - first;
    if (slots > members)
        slots = members;
    slots -= slots % pool->n_scopes;
    if (slots == 0)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "device %u: no expert would be resident: the arena has "
                       "room for %llu slots of %llu bytes and at least %u are needed",
                       shard_index, (unsigned long long)(room - first),
                       (unsigned long long)pool->slot_bytes, pool->n_scopes);
    shard->max_slots = pool->versions ? first + (uint32_t)slots : most_slots(shard, shard_index);
    moepage_status status = mp_arena_resize(arena, MP_SIDE_EXPERTS, first + slots);
    if (status)
        return status;
    shard->first_slot = first;
    shard->n_slots = (uint32_t)slots;
    shard->open = (mp_span){first, first + (uint32_t)slots};
    return MOEPAGE_OK;
}

static moepage_status open_shard(struct moepage_expert_pool *pool, uint32_t shard_index,
                                 struct moepage_device *home,
                                 const moepage_expert_pool_config *config)
{
    mp_shard *shard = &pool->shards[shard_index];
    shard->pool = pool;
    moepage_status status = mp_arena_attach(&home->arena, MP_SIDE_EXPERTS, pool->slot_bytes);
    if (status)
        return status;
    shard->home = home;
    atomic_fetch_add(&home->residents, 1);
    for (int i = 0; i < MP_PROBES; i++)
        mp_probe_init(&shard->probes[i], home->device, &pool->lock);
    status = mp_tiers_open(shard, shard_index, config);
    if (status)
        return status;
    if (shard->tier)
        shard->tier->probe = &shard->probes[MP_PROBE_COLD];
    shard->base = mp_arena_side_base(&home->arena, MP_SIDE_EXPERTS);
    status = choose_slots(shard, shard_index, config->slots);
    if (!status)
        status = create_scopes(shard, shard_index);
    if (!status)
        status = create_tables(shard);
    if (!status)
        status = mp_tiers_fill(shard);
    return status || !pool->versions ? status : mp_versions_fill(pool);
}

static void close_shard(mp_shard *shard)
{
    if (!shard->home)
        return;
    if (shard->prefetcher.shard)
        mp_prefetcher_stop(&shard->prefetcher);
    mp_tiers_close(shard);
    mp_prefetcher_free(&shard->prefetcher);
    for (uint32_t i = 0; shard->scopes && i < shard->pool->n_scopes; i++)
        mp_free(shard->scopes[i].policy_state);
    mp_free(shard->scopes);
    mp_free(shard->words);
    mp_free(shard->slots);
    mp_free(shard->free_slots);
    mp_free(shard->jobs);
    mp_free(shard->reads);
    mp_window_close(shard);
    mp_arena_detach(&shard->home->arena, MP_SIDE_EXPERTS);
    atomic_fetch_sub(&shard->home->residents, 1);
}

static void free_parts(struct moepage_expert_pool *pool)
{
    for (uint32_t d = 0; pool->shards && d < pool->n_shards; d++)
        close_shard(&pool->shards[d]);
    mp_versions_close(pool);
    mp_free(pool->shards);
    mp_free(pool->entry);
    mp_free(pool->wanted);
    mp_free(pool->routed);
    mp_free(pool->streams);
    mp_free(pool->turns);
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
    pool->n_shards = n_devices;
    pool->n_scopes = config->scope == MOEPAGE_SCOPE_LAYER ? info->moe_layers : 1;
    pool->scan_percent = config->scan_percent;
    pool->chunk_bytes = config->chunk_bytes ? config->chunk_bytes : DEFAULT_CHUNK_BYTES;
    pool->slot_bytes = info->slot_bytes;
    pool->slot_form = MOEPAGE_FORM_DENSE;
    pool->policy = mp_policy_find(config->policy);
    pthread_mutex_init(&pool->lock, NULL);
}

static moepage_status check_bytes(struct moepage_device *const *devices, uint32_t n_devices,
                                  const struct moepage_model *model)
{
    for (uint32_t d = 0; d < n_devices && model->phantom; d++)
        if (mp_home_has_bytes(devices[d]))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "the model \"%s\" is a shape without weights, and device %u (%s) holds "
                           "bytes: open a simulated device for it",
                           model->info.architecture, d, devices[d]->device->name);
    return MOEPAGE_OK;
}

moepage_status mp_pool_create(struct moepage_device *const *devices, uint32_t n_devices,
                              struct moepage_model *model, const moepage_expert_pool_config *config,
                              struct moepage_expert_pool **out)
{
    moepage_status status = check_config(config, n_devices);
    if (!status)
        status = check_bytes(devices, n_devices, model);
    if (status)
        return status;
    if (n_devices > model->info.experts)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "n_devices is %u, but a layer has only %u experts to "
                       "deal out",
                       n_devices, model->info.experts);
    uint64_t keys = (uint64_t)model->info.experts * model->info.moe_layers;
    if (keys > MP_MAX_KEYS)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%u layers of %u experts are more than a pool can tell "
                       "apart (%u)",
                       model->info.moe_layers, model->info.experts, MP_MAX_KEYS);
    struct moepage_expert_pool *pool = mp_alloc(sizeof *pool);
    if (!pool)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for an expert pool");
    describe(pool, model, config, n_devices);
    atomic_fetch_add(&model->users, 1);

    pool->entry = mp_alloc_array(pool->keys, sizeof *pool->entry);
    pool->wanted = mp_alloc_array(pool->keys, sizeof *pool->wanted);
    pool->routed = mp_alloc_array(pool->experts, sizeof *pool->routed);
    pool->streams = mp_alloc_array(pool->layers, sizeof *pool->streams);
    pool->turns = mp_alloc_array(pool->layers, sizeof *pool->turns);
    pool->shards = mp_alloc_array(n_devices, sizeof *pool->shards);
    if (!pool->entry || !pool->wanted || !pool->routed || !pool->streams || !pool->turns ||
        !pool->shards) {
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the map of %u experts", pool->keys);
        goto fail;
    }
    for (uint32_t key = 0; key < pool->keys; key++)
        atomic_init(&pool->entry[key], MP_NO_SLOT);
    status = mp_tiers_choose(model, config, &pool->bus_form);
    if (!status && config->precision)
        status = mp_versions_prepare(pool, config);
    if (status)
        goto fail;
    for (uint32_t d = 0; d < n_devices; d++) {
        status = open_shard(pool, d, devices[d], config);
        if (status)
            goto fail;
    }
    mp_handle_open(&pool->handle, MP_KIND_EXPERTS);
    *out = pool;
    return MOEPAGE_OK;

fail:
    free_parts(pool);
    mp_free(pool);
    return status;
}

moepage_status mp_pool_sizes(const struct moepage_model *model,
                             const moepage_expert_pool_config *config, uint32_t n_devices,
                             uint64_t *workspace_bytes, uint64_t *arena_bytes)
{
    uint32_t bus_form;
    moepage_status status = check_config(config, n_devices);
    if (!status)
        status = mp_tiers_choose(model, config, &bus_form);
    if (status)
        return status;
    uint64_t slots = (config->slots + n_devices - 1) / n_devices, images;
    uint64_t slot_bytes = model->info.slot_bytes;
    if (config->precision) /* nothing is decoded beside it */
        bus_form = MOEPAGE_FORM_DENSE;
    mp_tiers_sizes(model, config, bus_form, n_devices, workspace_bytes, &images);
    if (config->precision)
        status = mp_versions_sizes(model, config, n_devices, &slot_bytes, &images, &slots);
    if (status)
        return status;
    if (__builtin_add_overflow(slots, images, &slots) ||
        __builtin_mul_overflow(slots, slot_bytes, arena_bytes) ||
        __builtin_add_overflow(*arena_bytes, ARENA_PAGE - 1, arena_bytes))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%llu slots of %llu bytes: the total overflows 64 bits",
                       (unsigned long long)slots, (unsigned long long)slot_bytes);
    *arena_bytes -= *arena_bytes % ARENA_PAGE;
    return MOEPAGE_OK;
}

void mp_pool_destroy(struct moepage_expert_pool *pool)
{
    mp_graveyard *graveyard = &pool->shards[0].home->graveyard;
    free_parts(pool);
    mp_graveyard_bury(graveyard, pool);
}

/* ---- sessions ---- */

static moepage_status check_share(const struct moepage_expert_pool *pool, uint32_t n_clients)
{
    if (mp_pool_serves_versions(pool)) /* nobody needs a slot of his own */
        return MOEPAGE_OK;
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        for (uint32_t i = 0; i < pool->n_scopes; i++) {
            const mp_scope *scope = &pool->shards[d].scopes[i];
            uint32_t capacity = atomic_load(&scope->aim);
            uint32_t pinned = atomic_load(&scope->pinned);
            if (capacity < scope->members && capacity - pinned < n_clients)
                return mp_fail(MOEPAGE_E_BUDGET,
                               "%u sessions cannot share %u slots on device %u, %u "
                               "of them pinned: each needs one at least",
                               n_clients, capacity, d, pinned);
        }
    }
    return MOEPAGE_OK;
}

static void free_client(mp_client *client)
{
    mp_free(client->ring.words);
    mp_free(client->streams);
    mp_free(client->published);
    client->ring.words = NULL;
    client->streams = NULL;
    client->published = NULL;
}

moepage_status mp_pool_join(struct moepage_expert_pool *pool, mp_client *client,
                            uint64_t ring_words)
{
    uint32_t words = 1024;
    while (words < ring_words && words < MAX_RING_WORDS)
        words *= 2;
    client->ring.words = mp_alloc_array(words, sizeof *client->ring.words);
    client->streams = mp_alloc_array(pool->layers, sizeof *client->streams);
    bool versions = mp_pool_serves_versions(pool);
    if (versions)
        client->published = mp_alloc_array(pool->keys, sizeof *client->published);
    if (!client->ring.words || !client->streams || (versions && !client->published)) {
        free_client(client);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a touch ring of %u words", words);
    }
    client->ring.mask = words - 1;

    pthread_mutex_lock(&pool->lock);
    moepage_status status = check_share(pool, mp_pool_sharers(pool) + 1);
    uint32_t index = 0;
    while (index < MP_MAX_CLIENTS && pool->clients[index])
        index++;
    if (!status && index == MP_MAX_CLIENTS)
        status = mp_fail(MOEPAGE_E_BUSY, "the pool has its %d sessions already", MP_MAX_CLIENTS);
    if (!status) {
        client->index = index;
        pool->clients[index] = client;
        atomic_fetch_add(&pool->n_clients, 1);
    }
    pthread_mutex_unlock(&pool->lock);
    if (status)
        free_client(client);
    return status;
}

/* What a session fetched ahead is nobody's when it has left: its index will be another's. */
static void disown(struct moepage_expert_pool *pool, uint32_t client)
{
    for (uint32_t d = 0; d < pool->n_shards; d++)
        for (uint32_t s = 0; s < pool->shards[d].max_slots; s++)
            if (pool->shards[d].slots[s].client == client)
                pool->shards[d].slots[s].client = MP_SHARED_WANT;
}

void mp_pool_leave(struct moepage_expert_pool *pool, mp_client *client)
{
    if (!client->ring.words)
        return; /* never joined */
    mp_pool_unwant(pool, client, UINT32_MAX);
    for (uint32_t l = 0; l < pool->layers; l++)
        mp_pool_stream(pool, client, l, false);
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    disown(pool, client->index);
    mp_pool_keep_stats(pool, client);
    pool->clients[client->index] = NULL;
    atomic_fetch_sub(&pool->n_clients, 1);
    pthread_mutex_unlock(&pool->lock);
    free_client(client);
}

/* ---- what it tells ---- */

void mp_pool_lookup(struct moepage_expert_pool *pool, uint32_t key, moepage_residency *out)
{
    uint32_t shard_index = mp_pool_shard_of(pool, key);
    uint32_t index = atomic_load(&pool->entry[key]);
    *out = (moepage_residency){.state = MOEPAGE_EXPERT_ABSENT, .slot = -1, .device = shard_index};
    if (index == MP_NO_SLOT)
        return;
    uint64_t word = atomic_load(&pool->shards[shard_index].words[index]);
    uint32_t state = MP_WORD_STATE(word);
    if (MP_WORD_KEY(word) != key || (state != MP_SLOT_LOADING && state != MP_SLOT_RESIDENT))
        return;
    out->slot = (int32_t)index;
    out->state = state == MP_SLOT_RESIDENT ? MOEPAGE_EXPERT_RESIDENT : MOEPAGE_EXPERT_LOADING;
}

static void count_slots(struct moepage_expert_pool *pool, moepage_expert_pool_info *info)
{
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        mp_shard *shard = &pool->shards[d];
        info->slots += shard->n_slots;
        mp_pool_settle_landed(shard); /* loads that no one waits for */
        for (uint32_t s = shard->first_slot; s < shard->first_slot + shard->n_slots; s++) {
            uint32_t state = MP_WORD_STATE(atomic_load(&shard->words[s]));
            info->resident += state == MP_SLOT_RESIDENT;
            info->loading += state == MP_SLOT_LOADING;
            info->pinned += shard->slots[s].pins > 0;
        }
    }
}

/* Of two that are known; 0 is not. */
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

/* Sums over devices; of rates, page sizes and nodes the worst. */
static void describe_tiers(const mp_shard *shard, moepage_expert_pool_info *info)
{
    const struct moepage_expert_pool *pool = shard->pool;
    info->compressed_experts += shard->compressed.landed / pool->layers;
    info->compressed_bytes += pool->versions ? 0 : shard->first_slot * pool->slot_bytes;
    info->staging_bytes += shard->staging.bytes;
    info->bus_bytes_per_s = smaller(info->bus_bytes_per_s, shard->rates.bus);
    info->decode_bytes_per_s = smaller(info->decode_bytes_per_s, shard->rates.decode);
    info->cold_bytes_per_s = smaller(info->cold_bytes_per_s, shard->rates.cold);
    mp_rates live;
    mp_shard_live_rates(shard, &live);
    info->live_bus_bytes_per_s = smaller(info->live_bus_bytes_per_s, live.bus);
    info->live_decode_bytes_per_s = smaller(info->live_decode_bytes_per_s, live.decode);
    info->live_cold_bytes_per_s = smaller(info->live_cold_bytes_per_s, live.cold);
    const mp_host_tier *tier = shard->tier;
    if (!tier)
        return;
    bool first = info->host_tier_bytes == 0;
    info->host_tier_bytes += tier->memory.bytes;
    info->host_tier_experts += tier->n_entries;
    info->host_tier_resident += tier->n_valid;
    info->host_page_bytes = (uint32_t)smaller(info->host_page_bytes, tier->memory.page_bytes);
    info->host_node = first || tier->memory.node < 0 ? tier->memory.node : info->host_node;
    info->host_hits += tier->hits;
    info->cold_reads += tier->reads;
    info->cold_bytes += tier->cold_bytes;
    info->cold_buffered_reads += tier->buffered;
}

void mp_pool_get_info(struct moepage_expert_pool *pool, moepage_expert_pool_info *info)
{
    pthread_mutex_lock(&pool->lock);
    mp_pool_drain_touches(pool);
    const mp_pool_counters *counters = &pool->counters;
    *info = (moepage_expert_pool_info){
        .devices = pool->n_shards,
        .slot_bytes = pool->slot_bytes,
        .hits = counters->hits,
        .misses = counters->misses,
        .late = counters->late,
        .evictions = counters->evictions,
        .demand_bytes = counters->demand_bytes,
        .prefetch_bytes = counters->prefetch_bytes,
        .prefetch_useful = counters->prefetch_useful,
        .prefetch_late = counters->prefetch_late,
        .prefetch_wasted = counters->prefetch_wasted,
        .prefetch_cancelled = counters->prefetch_cancelled,
        .prefetch_refused = counters->prefetch_refused,
        .failed_loads = counters->failed_loads,
        .bus_form = pool->bus_form,
        .host_node = -1,
        .decodes = counters->decodes,
        .compressed_loads = counters->compressed_loads,
        .prefetch_useful_bytes = counters->useful_bytes - counters->late_bytes,
        .prefetch_late_bytes = counters->late_bytes,
        .prefetch_wasted_bytes = counters->wasted_bytes,
        .resizes = counters->resizes,
        .resizes_refused = counters->resizes_refused,
        .pins_refused = counters->pins_refused,
    };
    count_slots(pool, info);
    for (uint32_t d = 0; d < pool->n_shards; d++)
        describe_tiers(&pool->shards[d], info);
    if (pool->versions)
        mp_versions_get_info(pool, info);
    pthread_mutex_unlock(&pool->lock);
}
