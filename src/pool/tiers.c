/* Opening a shard's tiers, and filling its compressed experts. */
#include "pool/tiers.h"

#include "arena/scratch.h"
#include "base/alloc.h"
#include "base/status.h"
#include "control/placement.h"
#include "pool/measure.h"

#define DEFAULT_STAGING 4u
#define MAX_STAGING 1024u
#define IMAGE_ALIGN 256u

/* ---- choosing ---- */

static moepage_status check_form(const struct moepage_model *model, uint32_t form)
{
    if (form != 0 && form != MOEPAGE_FORM_DENSE && form != MOEPAGE_FORM_EXPH)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "bus_form is %u, it must be 0, MOEPAGE_FORM_DENSE or MOEPAGE_FORM_EXPH",
                       form);
    bool exph = mp_model_has_form(model, MOEPAGE_FORM_EXPH);
    if (form == MOEPAGE_FORM_EXPH && !exph)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "bus_form is EXPH, but the model's experts are not stored so: pack it with "
                       "that form");
    if (!exph && !mp_model_has_form(model, MOEPAGE_FORM_DENSE))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the pack has no lossless form of its experts: pack the model with DENSE "
                       "or EXPH");
    return MOEPAGE_OK;
}

static moepage_status check_compressed(const struct moepage_model *model,
                                       const moepage_expert_pool_config *config)
{
    bool by_bandwidth = config->placement == MOEPAGE_PLACEMENT_BANDWIDTH;
    if (config->placement > MOEPAGE_PLACEMENT_BANDWIDTH)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "placement is %u, it must be MOEPAGE_PLACEMENT_EXPLICIT or _BANDWIDTH",
                       config->placement);
    if (by_bandwidth && (config->compressed_experts || !config->slots))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "placement by bandwidth chooses compressed_experts (%u, it must be 0) "
                       "beside a given number of slots (%llu, it must not be 0)",
                       config->compressed_experts, (unsigned long long)config->slots);
    if (config->compressed_experts > model->info.experts)
        return mp_fail(MOEPAGE_E_ARGUMENT, "compressed_experts is %u, a layer has %u",
                       config->compressed_experts, model->info.experts);
    if ((config->compressed_experts || by_bandwidth) &&
        !mp_model_has_form(model, MOEPAGE_FORM_EXPH))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "experts cannot be kept compressed: the model does not store them as EXPH; "
                       "pack it with that form");
    return MOEPAGE_OK;
}

moepage_status mp_tiers_choose(const struct moepage_model *model,
                               const moepage_expert_pool_config *config, uint32_t *bus_form)
{
    moepage_status status = check_form(model, config->bus_form);
    if (!status)
        status = check_compressed(model, config);
    if (!status && (config->staging_experts == 1 || config->staging_experts > MAX_STAGING))
        status = mp_fail(MOEPAGE_E_ARGUMENT, "staging_experts is %u, it must be 0 or 2 to %u",
                         config->staging_experts, MAX_STAGING);
    if (status)
        return status;
    *bus_form = config->bus_form;
    if (!*bus_form)
        *bus_form =
            mp_model_has_form(model, MOEPAGE_FORM_EXPH) ? MOEPAGE_FORM_EXPH : MOEPAGE_FORM_DENSE;
    return MOEPAGE_OK;
}

/* ---- sizes ---- */

/* One place for any expert's EXPH image, in staging or for good. */
static uint64_t image_unit(const struct moepage_model *model)
{
    uint64_t bytes = mp_model_most_bytes(model, MOEPAGE_FORM_EXPH);
    return (bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
}

static bool keeps_compressed(const moepage_expert_pool_config *config)
{
    return config->compressed_experts || config->placement == MOEPAGE_PLACEMENT_BANDWIDTH;
}

static uint32_t staging_buffers(const moepage_expert_pool_config *config, uint32_t bus_form)
{
    if (bus_form != MOEPAGE_FORM_EXPH && !keeps_compressed(config))
        return 0;
    return config->staging_experts ? config->staging_experts : DEFAULT_STAGING;
}

void mp_tiers_sizes(const struct moepage_model *model, const moepage_expert_pool_config *config,
                    uint32_t bus_form, uint32_t n_devices, uint64_t *workspace_bytes,
                    uint64_t *image_slots)
{
    uint64_t per_layer = (config->compressed_experts + n_devices - 1) / n_devices;
    uint64_t bytes = per_layer * model->info.moe_layers * image_unit(model);
    *workspace_bytes = staging_buffers(config, bus_form) * image_unit(model);
    *image_slots = (bytes + model->info.slot_bytes - 1) / model->info.slot_bytes;
}

/* ---- opening ---- */

/* Images can be used where they are mapped, unless they have to be unpacked or decoded
 * first: then a few entries of host memory are needed for them to pass through. */
static uint64_t tier_bytes(const mp_shard *shard, uint32_t shard_index,
                           const moepage_expert_pool_config *config)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint64_t room = mp_model_image_room(pool->model, pool->bus_form);
    uint64_t most = (uint64_t)mp_pool_members(pool, shard_index) * pool->layers * room;
    uint64_t bytes = mp_pool_share(pool, shard_index, config->host_tier_bytes);
    mp_image image;
    mp_model_find_image(pool->model, 0, 0, pool->bus_form, &image);
    if (config->host_tier_bytes || !mp_model_keeps_images(pool->model) || image.mapped)
        return bytes < most ? bytes : most;
    uint64_t few = 2 * shard->home->device->io_threads * room;
    return few < most ? few : most;
}

static moepage_status open_staging(mp_shard *shard, uint32_t n)
{
    mp_staging_ring *ring = &shard->staging;
    uint64_t unit = image_unit(shard->pool->model);
    ring->buffers = mp_alloc_array(n, sizeof *ring->buffers);
    if (!ring->buffers)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u staging buffers", n);
    moepage_status status = mp_home_workspace_alloc(shard->home, n * unit, &ring->memory);
    if (status)
        return mp_fail_within(status, "staging of %u EXPH images", n);
    ring->bytes = n * unit;
    ring->n = n;
    for (uint32_t i = 0; i < n; i++)
        ring->buffers[i] =
            (mp_staging){.memory = (unsigned char *)ring->memory + i * unit, .slot = MP_NO_SLOT};
    return MOEPAGE_OK;
}

/* How many of the shard's experts per layer stay compressed. */
static uint32_t choose_compressed(const mp_shard *shard, uint32_t shard_index,
                                  const moepage_expert_pool_config *config)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint32_t members = mp_pool_members(pool, shard_index);
    if (config->placement == MOEPAGE_PLACEMENT_EXPLICIT)
        return (uint32_t)mp_pool_share(pool, shard_index, config->compressed_experts);
    uint64_t slots = mp_pool_share(pool, shard_index, config->slots);
    uint64_t room = mp_arena_room(&shard->home->arena, MP_SIDE_EXPERTS);
    uint64_t layer_bytes = shard->compressed.unit * pool->layers;
    uint64_t fit = room > slots ? (room - slots) * pool->slot_bytes / layer_bytes : 0;
    mp_backend backends[2] = {
        {.bytes_per_s = shard->rates.decode, .capacity = fit < members ? (uint32_t)fit : members},
        {.bytes_per_s = shard->rates.bus, .capacity = members},
    };
    mp_place(backends, 2, members);
    return backends[0].experts;
}

moepage_status mp_tiers_open(mp_shard *shard, uint32_t shard_index,
                             const moepage_expert_pool_config *config)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint32_t staging = staging_buffers(config, pool->bus_form);
    uint64_t bytes = tier_bytes(shard, shard_index, config);
    moepage_status status = mp_pipes_open(shard, staging > 0);
    if (!status && bytes)
        status = mp_host_tier_create(shard->home, pool->model, pool->bus_form, bytes, &shard->tier);
    if (!status && staging)
        status = open_staging(shard, staging);
    if (!status && (staging || shard->tier))
        status = mp_measure_tiers(shard, mp_pool_share(pool, shard_index, config->slots));
    if (status || !staging || !mp_model_has_form(pool->model, MOEPAGE_FORM_EXPH))
        return status;
    status = mp_images_open(shard, image_unit(pool->model));
    if (!status && keeps_compressed(config))
        mp_images_set(shard, choose_compressed(shard, shard_index, config));
    return status;
}

/* An expert whose image cannot be had is not kept compressed: whoever needs it will be told why. */
static void warn_of_missing(mp_shard *shard)
{
    const struct moepage_expert_pool *pool = shard->pool;
    uint32_t missing = shard->compressed.n - shard->compressed.landed;
    for (uint32_t place = 0; place < shard->compressed.n && missing > 0; place++) {
        uint32_t key = mp_images_key(shard, place);
        if (shard->compressed.place_of[key] == place)
            continue;
        missing--;
        if (mp_model_check_mapped(pool->model, key / pool->experts, key % pool->experts,
                                  MOEPAGE_FORM_EXPH))
            mp_log_write(&shard->home->device->log, MOEPAGE_LOG_WARNING,
                         "an expert is not kept compressed in device memory: %s",
                         moepage_last_error());
    }
}

moepage_status mp_tiers_fill(mp_shard *shard)
{
    const mp_device_ops *ops = shard->home->device->ops;
    mp_pipe *pipe = &shard->pipes[MP_PIPE_PREFETCH];
    moepage_status status = MOEPAGE_OK;
    while (mp_images_pending(shard) && !status) {
        mp_images_advance(shard, UINT64_MAX);
        status = ops->sync(pipe->bus, pipe->last_bus);
        mp_images_sweep(shard);
        if (!status && shard->compressed.failure)
            status = mp_fail(shard->compressed.failure,
                             "copying compressed experts to device memory failed");
    }
    if (!status)
        warn_of_missing(shard);
    return status;
}

void mp_tiers_close(mp_shard *shard)
{
    mp_pipes_close(shard);
    mp_host_tier_destroy(shard->tier);
    mp_home_workspace_free(shard->home, shard->staging.memory, shard->staging.bytes);
    mp_free(shard->staging.buffers);
    mp_images_close(shard);
}
