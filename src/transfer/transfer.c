/* The life of a device's transfers: the form on the bus, sizes, opening, filling and closing. */
#include "base/alloc.h"
#include "base/status.h"
#include "planning/placement.h"
#include "transfer/inside.h"

#define DEFAULT_STAGING 4u
#define MAX_STAGING 1024u

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
    if ((config->compressed_experts || by_bandwidth) && model->n_layouts > 1)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "experts cannot be kept compressed: they differ in type from layer to layer");
    return MOEPAGE_OK;
}

/* An integer form is the same in slots, on the bus and in host memory, and all that there is of it. */
static moepage_status check_integers(const struct moepage_model *model,
                                     const moepage_expert_pool_config *config)
{
    if (!mp_quant_bits_of(config->slot_form))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "slot_form is %u, it must be 0, MOEPAGE_FORM_DENSE, _INT8, _INT4 or _INT2",
                       config->slot_form);
    if (!mp_model_has_form(model, config->slot_form))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "slot_form is %u, but the model's experts are not stored so: pack it with "
                       "that form",
                       config->slot_form);
    if (config->bus_form && config->bus_form != config->slot_form)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "bus_form is %u: beside slot_form %u it must be 0 or the same",
                       config->bus_form, config->slot_form);
    if (config->precision || config->compressed_experts ||
        config->placement != MOEPAGE_PLACEMENT_EXPLICIT)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "slot_form is %u: experts in this form are neither compressed nor in two "
                       "versions",
                       config->slot_form);
    return MOEPAGE_OK;
}

moepage_status mp_transfer_check(const struct moepage_model *model,
                                 const moepage_expert_pool_config *config, uint32_t *bus_form)
{
    bool integers = config->slot_form && config->slot_form != MOEPAGE_FORM_DENSE;
    *bus_form = integers ? config->slot_form : MOEPAGE_FORM_NONE;
    if (integers)
        return check_integers(model, config);
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

/* Returns the bytes of a place that any expert's EXPH image fits in, in staging or in the arena. */
static uint64_t image_unit(const struct moepage_model *model)
{
    return mp_model_slot_bytes(model, MOEPAGE_FORM_EXPH);
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

void mp_transfer_sizes(const struct moepage_model *model, const moepage_expert_pool_config *config,
                       uint32_t bus_form, uint32_t n_devices, uint64_t *workspace_bytes,
                       uint64_t *image_bytes)
{
    uint64_t per_layer = (config->compressed_experts + n_devices - 1) / n_devices;
    *workspace_bytes = staging_buffers(config, bus_form) * image_unit(model);
    *image_bytes = per_layer * model->info.moe_layers * image_unit(model);
}

/* ---- opening ---- */

/* Returns the device's part of an amount divided among all devices. */
static uint64_t share_of(const mp_transfer *transfer, uint64_t total)
{
    return mp_deal_share(transfer->deal, transfer->part, total);
}

/* Returns the bytes of the host tier. Images are read from the pack to their places, unless they have to
 * be unpacked or decoded first; these need a few entries of host memory to pass through. */
static uint64_t tier_bytes(const mp_transfer *transfer, const moepage_expert_pool_config *config)
{
    uint64_t room = mp_model_image_room(transfer->model, transfer->bus_form);
    uint64_t most = (uint64_t)transfer->members * transfer->layers * room;
    uint64_t bytes = share_of(transfer, config->host_tier_bytes);
    mp_image image;
    mp_model_find_image(transfer->model, 0, 0, transfer->bus_form, &image);
    if (config->host_tier_bytes || !mp_model_keeps_images(transfer->model) || image.stored ||
        image.address)
        return bytes < most ? bytes : most;
    uint64_t few = 2 * transfer->home->device->io_threads * room;
    return few < most ? few : most;
}

static moepage_status open_staging(mp_transfer *transfer, uint32_t n)
{
    mp_staging_ring *ring = &transfer->staging;
    uint64_t unit = image_unit(transfer->model);
    ring->buffers = mp_alloc_array(n, sizeof *ring->buffers);
    if (!ring->buffers)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %u staging buffers", n);
    moepage_status status = mp_home_workspace_alloc(transfer->home, n * unit, &ring->memory);
    if (status)
        return mp_fail_within(status, "staging of %u EXPH images", n);
    ring->bytes = n * unit;
    ring->n = n;
    for (uint32_t i = 0; i < n; i++)
        ring->buffers[i] = (mp_staging){.memory = (unsigned char *)ring->memory + i * unit,
                                        .passage = MP_NO_PASSAGE};
    return MOEPAGE_OK;
}

/* Chooses how many of the device's experts per layer stay compressed. */
static uint32_t choose_compressed(const mp_transfer *transfer,
                                  const moepage_expert_pool_config *config)
{
    uint32_t members = transfer->members;
    if (config->placement == MOEPAGE_PLACEMENT_EXPLICIT)
        return mp_deal_part(transfer->deal, transfer->part, config->compressed_experts);
    uint64_t slots = share_of(transfer, config->slots);
    uint64_t room = mp_arena_room(&transfer->home->arena, MP_SIDE_EXPERTS);
    uint64_t layer_bytes = transfer->compressed.unit * transfer->layers;
    uint64_t fit = room > slots ? (room - slots) * transfer->place_bytes / layer_bytes : 0;
    uint32_t most = fit < members ? (uint32_t)fit : members;
    if (transfer->bus_form == MOEPAGE_FORM_EXPH)
        return mp_place_decoded(transfer->rates.decode, transfer->rates.bus, most, members);
    mp_backend backends[2] = {
        {.bytes_per_s = transfer->rates.decode, .capacity = most},
        {.bytes_per_s = transfer->rates.bus, .capacity = members},
    };
    mp_place(backends, 2, members);
    return backends[0].experts;
}

static moepage_status open_tiers(mp_transfer *transfer, const moepage_expert_pool_config *config,
                                 uint64_t images_at)
{
    uint32_t staging = staging_buffers(config, transfer->bus_form);
    uint64_t bytes = tier_bytes(transfer, config);
    moepage_status status = mp_pipes_open(transfer, staging > 0);
    if (!status && !bytes)
        status = mp_model_prepare_stored(transfer->model);
    if (!status && bytes)
        status = mp_host_tier_create(transfer->home, transfer->model, transfer->bus_form, bytes,
                                     &transfer->tier);
    if (!status && staging)
        status = open_staging(transfer, staging);
    if (!status && (staging || transfer->tier))
        status = mp_transfer_measure(transfer, share_of(transfer, config->slots));
    if (status || !staging || !mp_model_has_form(transfer->model, MOEPAGE_FORM_EXPH) ||
        transfer->model->n_layouts > 1)
        return status;
    status = mp_images_open(transfer, images_at, image_unit(transfer->model));
    if (!status && keeps_compressed(config))
        mp_images_set(transfer, choose_compressed(transfer, config));
    return status;
}

moepage_status mp_transfer_open(const mp_transfer_setup *setup,
                                const moepage_expert_pool_config *config, mp_transfer **out)
{
    const moepage_model_info *info = &setup->model->info;
    mp_transfer *transfer = mp_alloc(sizeof *transfer);
    if (!transfer)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the transfers of a device");
    transfer->home = setup->home;
    transfer->ops = setup->home->device->ops;
    transfer->model = setup->model;
    transfer->lock = setup->lock;
    transfer->place_bytes = setup->place_bytes;
    transfer->slot_bytes = setup->slot_bytes;
    transfer->scatter = setup->scatter;
    transfer->in_turn = setup->in_turn;
    transfer->deal = setup->deal;
    transfer->part = setup->part;
    transfer->bus_form = setup->bus_form;
    transfer->slot_form = setup->slot_form;
    transfer->layers = info->moe_layers;
    transfer->experts = info->experts;
    transfer->keys = info->experts * info->moe_layers;
    transfer->members = setup->deal->members[setup->part];
    mp_failure_open(&transfer->failure);
    for (int i = 0; i < MP_PROBES; i++)
        mp_probe_init(&transfer->probes[i], setup->home->device, setup->lock);
    moepage_status status = open_tiers(transfer, config, setup->images_at);
    if (status) {
        mp_transfer_close(transfer);
        return status;
    }
    if (transfer->tier) { /* reads before this were measured separately */
        transfer->tier->probe = &transfer->probes[MP_PROBE_COLD];
        transfer->tier->in_turn = setup->in_turn;
    }
    *out = transfer;
    return MOEPAGE_OK;
}

moepage_status mp_transfer_set_passages(mp_transfer *transfer, uint32_t n)
{
    transfer->n_passages = n;
    transfer->passages = mp_alloc_array(n, sizeof *transfer->passages);
    if (!transfer->passages)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for loads into %u slots", n);
    moepage_status status = mp_pipes_set_passages(transfer, n);
    return status ? status : mp_readers_add(transfer, n, NULL);
}

/* Logs that an expert is not kept compressed because its image cannot be read; its next
 * load reports why. */
static void warn_of_missing(mp_transfer *transfer)
{
    uint32_t missing = transfer->compressed.n - transfer->compressed.landed;
    for (uint32_t place = 0; place < transfer->compressed.n && missing > 0; place++) {
        uint32_t key = mp_images_key(transfer, place);
        if (transfer->compressed.place_of[key] == place)
            continue;
        missing--;
        if (mp_model_check_image(transfer->model, key / transfer->experts, key % transfer->experts,
                                 MOEPAGE_FORM_EXPH))
            mp_log_write(&transfer->home->device->log, MOEPAGE_LOG_WARNING,
                         "an expert is not kept compressed in device memory: %s",
                         moepage_last_error());
    }
}

moepage_status mp_transfer_fill(mp_transfer *transfer)
{
    const mp_device_ops *ops = transfer->ops;
    mp_pipe *pipe = &transfer->pipes[MP_PIPE_PREFETCH];
    moepage_status status = MOEPAGE_OK;
    while (mp_images_pending(transfer) && !status) {
        mp_images_advance(transfer, UINT64_MAX);
        status = ops->sync(pipe->bus, pipe->last_bus);
        mp_images_sweep(transfer);
        if (!status && transfer->compressed.failure)
            status = mp_fail(transfer->compressed.failure,
                             "copying compressed experts to device memory failed");
    }
    if (!status)
        warn_of_missing(transfer);
    return status;
}

void mp_transfer_close(mp_transfer *transfer)
{
    if (!transfer)
        return;
    mp_pipes_close(transfer);
    mp_host_tier_destroy(transfer->tier);
    mp_home_workspace_free(transfer->home, transfer->staging.memory, transfer->staging.bytes);
    mp_free(transfer->staging.buffers);
    mp_images_close(transfer);
    mp_free(transfer->passages);
    mp_free(transfer->reads);
    mp_failure_close(&transfer->failure);
    mp_free(transfer);
}
