/* PagedTensor's life cycle, and the paper's protocol: materialise, acquire, release. */
#include "paged_tensor/paged.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- life ---- */

static moepage_status attach(struct moepage_paged *paged)
{
    mp_arena *arena = &paged->home->arena;
    moepage_status status =
        mp_arena_attach(arena, MP_SIDE_EXPERTS, paged->home->device->view_bytes);
    if (status)
        return mp_fail_within(status, "a PagedTensor needs the experts' side of the arena");
    paged->attached = true;
    atomic_fetch_add(&paged->home->residents, 1);
    paged->base = mp_arena_side_base(arena, MP_SIDE_EXPERTS);
    return MOEPAGE_OK;
}

static moepage_status take_arena(struct moepage_paged *paged)
{
    moepage_status status = mp_paged_claim(paged, mp_images_rounds(paged->transfer));
    return status ? mp_fail_within(status, "%u layers' experts", paged->n_buffers)
                  : mp_transfer_fill(paged->transfer);
}

static uint64_t range_bytes(const struct moepage_paged *paged, uint32_t range)
{
    return paged->layout.ranges[range].layer_stride * paged->n_layers;
}

static moepage_status reserve_addresses(struct moepage_paged *paged)
{
    mp_device *device = paged->home->device;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t r = 0; r < paged->layout.n_ranges && !status; r++) {
        void *base = NULL;
        status = device->ops->view_reserve(device, range_bytes(paged, r), &base);
        paged->layout.ranges[r].base = base;
    }
    return status;
}

static moepage_status create_tables(struct moepage_paged *paged)
{
    paged->layers = mp_alloc_array(paged->n_layers, sizeof *paged->layers);
    paged->buffers = mp_alloc_array(paged->n_buffers, sizeof *paged->buffers);
    if (!paged->layers || !paged->buffers)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a PagedTensor of %u layers",
                       paged->n_layers);
    for (uint32_t i = 0; i < paged->n_layers; i++)
        paged->layers[i].buffer = paged->layers[i].shown = MP_PAGED_NONE;
    for (uint32_t b = 0; b < paged->n_buffers; b++)
        paged->buffers[b].owner = MP_PAGED_NONE;
    return MOEPAGE_OK;
}

/* Frees a half-built or complete object. Destroying the streams first ends all loads. */
static void free_parts(struct moepage_paged *paged)
{
    mp_device *device = paged->home->device;
    if (paged->compute)
        device->ops->stream_destroy(paged->compute);
    mp_transfer_close(paged->transfer);
    for (uint32_t i = 0; paged->layers && i < paged->n_layers; i++)
        if (paged->layers[i].shown != MP_PAGED_NONE)
            mp_paged_hide(paged, i);
    for (uint32_t r = 0; r < paged->layout.n_ranges; r++)
        if (paged->layout.ranges[r].base)
            device->ops->view_release(device, paged->layout.ranges[r].base, range_bytes(paged, r));
    if (paged->attached) {
        mp_arena_detach(&paged->home->arena, MP_SIDE_EXPERTS);
        atomic_fetch_sub(&paged->home->residents, 1);
    }
    mp_free(paged->layers);
    mp_free(paged->buffers);
    mp_free(paged->open);
    pthread_cond_destroy(&paged->worked);
    pthread_mutex_destroy(&paged->lock);
    pthread_mutex_destroy(&paged->loads);
    atomic_fetch_sub(&paged->model->users, 1);
}

static struct moepage_paged *describe(struct moepage_device *home, struct moepage_model *model)
{
    struct moepage_paged *paged = mp_alloc(sizeof *paged);
    if (!paged) {
        (void)mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a PagedTensor");
        return NULL;
    }
    paged->home = home;
    paged->model = model;
    paged->n_layers = model->info.moe_layers;
    paged->n_experts = model->info.experts;
    pthread_mutex_init(&paged->lock, NULL);
    pthread_mutex_init(&paged->loads, NULL);
    pthread_cond_init(&paged->worked, NULL);
    mp_paged_open_jobs(paged);
    atomic_fetch_add(&model->users, 1);
    return paged;
}

static moepage_status build(struct moepage_paged *paged, const moepage_paged_config *config)
{
    mp_device *device = paged->home->device;
    paged->n_buffers = config->buffers;
    moepage_status status = mp_paged_lay_out(paged->model, device->view_bytes, &paged->layout);
    if (!status)
        status = create_tables(paged);
    if (!status)
        status = attach(paged);
    if (!status)
        status = reserve_addresses(paged);
    if (!status)
        status = device->ops->stream_create(device, MP_STREAM_COMPUTE, &paged->compute);
    if (!status)
        status = mp_paged_open_loads(paged, config);
    return status ? status : take_arena(paged);
}

moepage_status mp_paged_create(struct moepage_device *home, struct moepage_model *model,
                               const moepage_paged_config *config, struct moepage_paged **out)
{
    moepage_paged_config own = *config;
    uint32_t bus_form;
    moepage_status status = mp_paged_choose(home, model, &own, &bus_form);
    if (status)
        return status;
    struct moepage_paged *paged = describe(home, model);
    if (!paged)
        return MOEPAGE_E_NO_MEMORY;
    paged->bus_form = bus_form;
    status = build(paged, &own);
    if (status) {
        free_parts(paged);
        mp_free(paged);
        return status;
    }
    mp_handle_open(&paged->handle, MP_KIND_PAGED);
    *out = paged;
    return MOEPAGE_OK;
}

moepage_status mp_paged_destroy(struct moepage_paged *paged)
{
    mp_graveyard *graveyard = &paged->home->graveyard;
    uint32_t acquired = 0;
    pthread_mutex_lock(&paged->lock);
    while (acquired < paged->n_layers && !paged->layers[acquired].acquired)
        acquired++;
    atomic_store(&paged->stopped, acquired == paged->n_layers);
    while (paged->working)
        pthread_cond_wait(&paged->worked, &paged->lock);
    pthread_mutex_unlock(&paged->lock);
    if (acquired < paged->n_layers)
        return mp_fail(MOEPAGE_E_BUSY, "layer %u is acquired: release it first", acquired);
    free_parts(paged);
    mp_graveyard_bury(graveyard, paged);
    return MOEPAGE_OK;
}

/* ---- materialise ---- */

static bool has_memory(const mp_paged_layer *layer)
{
    return layer->state == MOEPAGE_PAGED_LOADING || layer->state == MOEPAGE_PAGED_RESIDENT;
}

/* Chooses a free buffer, or else that of the layer whose turn is over: the paper's target. */
static moepage_status choose_buffer(struct moepage_paged *paged, uint32_t *out)
{
    const mp_paged_layer *oldest = NULL;
    for (uint32_t b = 0; b < paged->n_buffers; b++) {
        uint32_t owner = paged->buffers[b].owner;
        if (owner == MP_PAGED_NONE) {
            *out = b;
            return MOEPAGE_OK;
        }
        if (!oldest || paged->layers[owner].order < oldest->order) {
            oldest = &paged->layers[owner];
            *out = b;
        }
    }
    assert(oldest); /* there are at least two buffers */
    if (!has_memory(oldest))
        return mp_fail(MOEPAGE_E_BUSY,
                       "layer %u, whose load has failed, is still giving its buffer back",
                       paged->buffers[*out].owner);
    if (oldest->acquired || oldest->wanted)
        return mp_fail(MOEPAGE_E_BUSY, "layer %u has the buffer and has not been %s yet",
                       paged->buffers[*out].owner, oldest->acquired ? "released" : "acquired");
    return MOEPAGE_OK;
}

/* Takes the buffer from its layer, which can no longer be acquired. The layer's readers may still be at
 * work: the next load waits for them. */
static void take_over(struct moepage_paged *paged, uint32_t index)
{
    mp_paged_buffer *buffer = &paged->buffers[index];
    if (buffer->owner == MP_PAGED_NONE)
        return;
    mp_paged_layer *layer = &paged->layers[buffer->owner];
    buffer->readers = layer->readers;
    layer->state = MOEPAGE_PAGED_EVICTING;
    layer->buffer = MP_PAGED_NONE;
    layer->leaving = true;
}

moepage_status mp_paged_materialise(struct moepage_paged *paged, uint32_t index)
{
    mp_paged_layer *layer = &paged->layers[index];
    uint32_t buffer;
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&paged->lock);
    if (has_memory(layer))
        goto done;
    if (layer->buffer != MP_PAGED_NONE) {
        status = mp_fail(MOEPAGE_E_BUSY,
                         "layer %u, whose load has failed, is still being taken "
                         "back: acquiring it waits for that",
                         index);
        goto done;
    }
    status = choose_buffer(paged, &buffer);
    if (status)
        goto done;
    take_over(paged, buffer);
    paged->buffers[buffer].owner = index;
    paged->buffers[buffer].load = (mp_paged_load){0};
    layer->buffer = buffer;
    layer->state = MOEPAGE_PAGED_LOADING;
    layer->submitted = false;
    layer->failure = MOEPAGE_OK;
    mp_paged_kick(paged);
done:
    if (!status) {
        layer->wanted = true;
        layer->order = ++paged->clock;
    }
    pthread_mutex_unlock(&paged->lock);
    return status;
}

/* ---- acquire ---- */

/* Returns true if the layer can be used without further work, or its failure is known. */
static bool is_settled(const mp_paged_layer *layer)
{
    return has_memory(layer) ? layer->submitted && layer->shown == layer->buffer
                             : layer->state == MOEPAGE_PAGED_UNMAPPED;
}

/* Runs the jobs that the background has not reached yet, and waits where these have to. Called with the
 * lock. */
static moepage_status make_ready(struct moepage_paged *paged, mp_paged_layer *layer)
{
    moepage_status status = MOEPAGE_OK;
    mp_event event;
    while (!status && !is_settled(layer)) {
        if (paged->working)
            pthread_cond_wait(&paged->worked, &paged->lock);
        else if (!mp_paged_work(paged) && mp_paged_waits(paged, layer, &event)) {
            pthread_mutex_unlock(&paged->lock);
            status = paged->home->device->ops->sync(event.stream, event.tick);
            pthread_mutex_lock(&paged->lock);
        }
    }
    return status;
}

/* Blocks until the load can no longer fail; *result is its outcome. Called without the lock: the
 * buffer belongs to the layer as long as the layer is wanted. */
static moepage_status settle(struct moepage_paged *paged, uint32_t layer, uint32_t index,
                             moepage_status *result, char why[MP_PAGED_WHY])
{
    const mp_event *ends = paged->buffers[index].load.ends;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < MP_ENDS && !status; i++)
        if (ends[i].stream)
            status = paged->home->device->ops->settle(ends[i].stream, ends[i].tick);
    if (!status)
        *result = mp_paged_result(paged, layer, index, why);
    return status;
}

/* Makes the caller's stream wait for everything that writes the layer (RAW). */
static moepage_status line_up(const struct moepage_paged *paged, uint32_t index, void *native)
{
    const mp_event *ends = paged->buffers[index].load.ends;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < MP_ENDS && !status; i++)
        if (ends[i].stream)
            status = paged->home->device->ops->follow(native, ends[i].stream, ends[i].tick);
    return status;
}

/* Makes a layer RESIDENT once its bytes have landed, or fails it. Called with the lock. */
static void look(struct moepage_paged *paged, uint32_t index)
{
    mp_paged_layer *layer = &paged->layers[index];
    char why[MP_PAGED_WHY];
    mp_event event;
    mp_paged_try_leave(paged, layer);
    if (layer->state != MOEPAGE_PAGED_LOADING || !is_settled(layer) ||
        mp_paged_unfinished(paged, &paged->buffers[layer->buffer], &event))
        return;
    moepage_status result = mp_paged_result(paged, index, layer->buffer, why);
    if (!result)
        layer->state = MOEPAGE_PAGED_RESIDENT;
    else if (!layer->acquired)
        mp_paged_fail(paged, index, result, why);
}

static moepage_status load_failed(const mp_paged_layer *layer, uint32_t index)
{
    return mp_fail(layer->failure, "layer %u could not be loaded: %s", index, layer->why);
}

static moepage_status check_acquirable(const mp_paged_layer *layer, uint32_t index)
{
    if (layer->acquired)
        return mp_fail(MOEPAGE_E_STATE, "layer %u is acquired already: release it first", index);
    if (!has_memory(layer) && !layer->failure)
        return mp_fail(MOEPAGE_E_STATE, "layer %u has no buffer: materialise it first", index);
    return MOEPAGE_OK;
}

moepage_status mp_paged_acquire(struct moepage_paged *paged, uint32_t index, void *native)
{
    mp_paged_layer *layer = &paged->layers[index];
    moepage_status result = MOEPAGE_OK;
    char why[MP_PAGED_WHY];
    pthread_mutex_lock(&paged->lock);
    moepage_status status = check_acquirable(layer, index);
    if (!status)
        status = make_ready(paged, layer);
    if (status)
        goto done;
    if (has_memory(layer)) {
        const uint32_t buffer = layer->buffer;
        pthread_mutex_unlock(&paged->lock);
        status = settle(paged, index, buffer, &result, why);
        if (!status && !result)
            status = line_up(paged, buffer, native);
        pthread_mutex_lock(&paged->lock);
        if (result) {
            if (has_memory(layer)) /* otherwise another thread has already failed it */
                mp_paged_fail(paged, index, result, why);
            status = make_ready(paged, layer); /* make_ready leaves the layer UNMAPPED */
        }
    }
    if (!status && layer->failure) {
        status = load_failed(layer, index);
    } else if (!status) {
        layer->acquired = true;
        layer->wanted = false;
        look(paged, index);
    }
done:
    pthread_mutex_unlock(&paged->lock);
    return status;
}

/* ---- release, and what can be asked ---- */

moepage_status mp_paged_release(struct moepage_paged *paged, uint32_t index, void *native)
{
    const mp_device_ops *ops = paged->home->device->ops;
    mp_paged_layer *layer = &paged->layers[index];
    mp_tick tick = 0;
    pthread_mutex_lock(&paged->lock);
    bool acquired = layer->acquired;
    pthread_mutex_unlock(&paged->lock);
    if (!acquired)
        return mp_fail(MOEPAGE_E_STATE, "layer %u is not acquired", index);
    moepage_status status = ops->enter(paged->compute, native);
    if (!status)
        status = ops->mark(paged->compute, &tick);
    if (status)
        return status; /* the layer stays acquired */
    pthread_mutex_lock(&paged->lock);
    layer->readers = tick;
    layer->acquired = false;
    pthread_mutex_unlock(&paged->lock);
    return MOEPAGE_OK;
}

uint32_t mp_paged_state(struct moepage_paged *paged, uint32_t index)
{
    pthread_mutex_lock(&paged->lock);
    look(paged, index);
    uint32_t state = paged->layers[index].state;
    pthread_mutex_unlock(&paged->lock);
    return state;
}

void mp_paged_get_info(struct moepage_paged *paged, moepage_paged_info *info)
{
    moepage_expert_pool_info tiers = {0};
    pthread_mutex_lock(&paged->lock);
    *info = (moepage_paged_info){.buffers = paged->n_buffers,
                                 .mappings = paged->mappings,
                                 .bus_form = paged->bus_form};
    pthread_mutex_lock(&paged->loads);
    mp_transfer_describe(paged->transfer, &tiers);
    info->compressed_target = mp_images_rounds(paged->transfer);
    pthread_mutex_unlock(&paged->loads);
    pthread_mutex_unlock(&paged->lock);
    info->compressed_experts = tiers.compressed_experts;
    info->arena_bytes = mp_arena_claimed(&paged->home->arena, MP_SIDE_EXPERTS);
    info->loaded_bytes = tiers.demand_bytes;
    info->decodes = tiers.decodes;
    info->compressed_loads = tiers.compressed_loads;
    info->host_tier_bytes = tiers.host_tier_bytes;
    info->host_tier_experts = tiers.host_tier_experts;
    info->host_tier_resident = tiers.host_tier_resident;
    info->host_hits = tiers.host_hits;
    info->cold_reads = tiers.cold_reads;
    info->cold_bytes = tiers.cold_bytes;
    info->staging_bytes = tiers.staging_bytes;
}
