/* PagedTensor's life cycle, and the paper's protocol: materialise, acquire, release. */
#include "paged_tensor/paged.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/slot.h"

#define DEFAULT_BUFFERS 2u /* the paper's 2L blocks per type */

/* ---- layout ---- */

static moepage_status too_large(const struct moepage_model *model)
{
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "%u layers of %u experts of %llu bytes exceed the address space",
                   model->info.moe_layers, model->info.experts,
                   (unsigned long long)model->info.expert_bytes);
}

/* Offsets within a buffer and within a layer's addresses. */
typedef struct layout {
    mp_paged_type types[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_paged_range ranges[MOEPAGE_MAX_EXPERT_TENSORS];
    uint32_t n_ranges;
    uint64_t unit;
} layout;

/* Rounds *bytes up to a multiple of `to`; returns false on overflow. */
static bool round_up(uint64_t *bytes, uint64_t to)
{
    if (__builtin_add_overflow(*bytes, to - 1, bytes))
        return false;
    *bytes -= *bytes % to;
    return true;
}

/* Appends `bytes` of a layer to a range; *offset is their place. */
static bool append(mp_paged_range *range, uint64_t bytes, uint64_t *offset)
{
    *offset = range->layer_stride;
    return !__builtin_add_overflow(range->layer_stride, bytes, &range->layer_stride) &&
           round_up(&range->layer_stride, MP_SLOT_ALIGN);
}

/* Experts are packed at their own size, so the smallest mappable piece is a whole layer of a
 * tensor. Small tensors share a range: otherwise each bias would cost a whole unit of mapping,
 * which on a GPU may be 32 MiB. */
static bool place_types(const struct moepage_model *model, uint64_t view_bytes, layout *out)
{
    uint32_t shared = MP_PAGED_NONE;
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        uint64_t bytes;
        mp_paged_type *type = &out->types[t];
        type->expert_stride = model->layouts[0].tensors[t].bytes;
        if (__builtin_mul_overflow(type->expert_stride, (uint64_t)model->info.experts, &bytes))
            return false;
        if (bytes >= view_bytes)
            type->range = out->n_ranges++;
        else if (shared == MP_PAGED_NONE)
            type->range = shared = out->n_ranges++;
        else
            type->range = shared;
        if (!append(&out->ranges[type->range], bytes, &type->offset))
            return false;
    }
    return true;
}

static bool place_ranges(const struct moepage_model *model, uint64_t view_bytes, layout *out)
{
    for (uint32_t r = 0; r < out->n_ranges; r++) {
        mp_paged_range *range = &out->ranges[r];
        uint64_t addresses;
        range->offset = out->unit;
        if (!round_up(&range->layer_stride, view_bytes) ||
            __builtin_add_overflow(out->unit, range->layer_stride, &out->unit) ||
            __builtin_mul_overflow(range->layer_stride, (uint64_t)model->info.moe_layers,
                                   &addresses))
            return false;
    }
    return true;
}

static moepage_status lay_out(const struct moepage_model *model, uint64_t view_bytes, layout *out)
{
    *out = (layout){0};
    return place_types(model, view_bytes, out) && place_ranges(model, view_bytes, out)
               ? MOEPAGE_OK
               : too_large(model);
}

static moepage_status choose_buffers(const struct moepage_model *model, uint32_t asked,
                                     uint32_t *out)
{
    uint32_t layers = model->info.moe_layers;
    uint32_t least = layers < DEFAULT_BUFFERS ? layers : DEFAULT_BUFFERS;
    *out = asked ? asked : least;
    if (*out >= least && *out <= layers)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "buffers is %u, it must be 0 or %u to %u, the model's MoE layers", asked, least,
                   layers);
}

moepage_status mp_paged_sizes(const struct moepage_device *home, const struct moepage_model *model,
                              uint32_t buffers, uint64_t *arena_bytes, uint64_t *workspace_bytes)
{
    mp_paged_source source;
    layout own;
    if (!home->device->view_bytes)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device %s cannot map its memory at a second address: use an expert pool",
                       home->device->name);
    moepage_status status = choose_buffers(model, buffers, &buffers);
    if (!status)
        status = mp_paged_choose(model, &source);
    if (!status)
        status = lay_out(model, home->device->view_bytes, &own);
    if (!status && __builtin_mul_overflow(own.unit, (uint64_t)buffers, arena_bytes))
        status = too_large(model);
    if (!status)
        *workspace_bytes = mp_paged_workspace(model, source);
    return status;
}

/* ---- life ---- */

static moepage_status take_arena(struct moepage_paged *paged)
{
    mp_arena *arena = &paged->home->arena;
    moepage_status status = mp_arena_attach(arena, MP_SIDE_EXPERTS, paged->unit);
    if (status)
        return mp_fail_within(status, "a PagedTensor needs the experts' side of the arena");
    paged->attached = true;
    atomic_fetch_add(&paged->home->residents, 1);
    paged->base = mp_arena_side_base(arena, MP_SIDE_EXPERTS);
    status = mp_arena_resize(arena, MP_SIDE_EXPERTS, paged->n_buffers);
    return status ? mp_fail_within(status, "%u layers' experts", paged->n_buffers) : MOEPAGE_OK;
}

static uint64_t range_bytes(const struct moepage_paged *paged, uint32_t range)
{
    return paged->ranges[range].layer_stride * paged->n_layers;
}

static moepage_status reserve_addresses(struct moepage_paged *paged)
{
    mp_device *device = paged->home->device;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t r = 0; r < paged->n_ranges && !status; r++) {
        void *base = NULL;
        status = device->ops->view_reserve(device, range_bytes(paged, r), &base);
        paged->ranges[r].base = base;
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
        paged->layers[i].buffer = MP_PAGED_NONE;
    for (uint32_t b = 0; b < paged->n_buffers; b++) {
        paged->buffers[b].paged = paged;
        paged->buffers[b].owner = MP_PAGED_NONE;
    }
    return MOEPAGE_OK;
}

/* Frees a half-built or complete object. Destroying the streams first ends all loads. */
static void free_parts(struct moepage_paged *paged)
{
    mp_device *device = paged->home->device;
    mp_paged_close_loads(paged);
    for (uint32_t i = 0; paged->layers && i < paged->n_layers; i++)
        if (paged->layers[i].shown)
            mp_paged_hide(paged, i);
    for (uint32_t r = 0; r < paged->n_ranges; r++)
        if (paged->ranges[r].base)
            device->ops->view_release(device, paged->ranges[r].base, range_bytes(paged, r));
    if (paged->attached) {
        mp_arena_detach(&paged->home->arena, MP_SIDE_EXPERTS);
        atomic_fetch_sub(&paged->home->residents, 1);
    }
    mp_free(paged->layers);
    mp_free(paged->buffers);
    pthread_cond_destroy(&paged->worked);
    pthread_mutex_destroy(&paged->lock);
    atomic_fetch_sub(&paged->model->users, 1);
}

static struct moepage_paged *describe(struct moepage_device *home, struct moepage_model *model,
                                      const layout *own)
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
    paged->n_types = model->info.expert_tensors;
    paged->n_ranges = own->n_ranges;
    paged->unit = own->unit;
    memcpy(paged->types, own->types, sizeof paged->types);
    memcpy(paged->ranges, own->ranges, sizeof paged->ranges);
    pthread_mutex_init(&paged->lock, NULL);
    pthread_cond_init(&paged->worked, NULL);
    mp_paged_open_jobs(paged);
    atomic_fetch_add(&model->users, 1);
    return paged;
}

moepage_status mp_paged_create(struct moepage_device *home, struct moepage_model *model,
                               uint32_t buffers, struct moepage_paged **out)
{
    uint64_t arena_bytes, workspace_bytes;
    layout own;
    moepage_status status = mp_paged_sizes(home, model, buffers, &arena_bytes, &workspace_bytes);
    if (!status)
        status = lay_out(model, home->device->view_bytes, &own);
    if (status)
        return status;
    struct moepage_paged *paged = describe(home, model, &own);
    if (!paged)
        return MOEPAGE_E_NO_MEMORY;
    status = choose_buffers(model, buffers, &paged->n_buffers);
    if (!status)
        status = mp_paged_choose(model, &paged->source);
    if (!status)
        status = create_tables(paged);
    if (!status)
        status = take_arena(paged);
    if (!status)
        status = reserve_addresses(paged);
    if (!status)
        status = mp_paged_open_loads(paged);
    if (status)
        goto fail;
    mp_handle_open(&paged->handle, MP_KIND_PAGED);
    *out = paged;
    return MOEPAGE_OK;

fail:
    free_parts(paged);
    mp_free(paged);
    return status;
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

/* Takes the buffer from its layer, which can no longer be acquired. The layer's view stays until
 * its readers are done, and the next load waits for them too. */
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
    return has_memory(layer) ? layer->submitted && layer->shown && !layer->leaving
                             : layer->state == MOEPAGE_PAGED_UNMAPPED;
}

/* Waits for the work that keeps a layer from leaving: readers of its last stay, or its
 * own failed load. */
static moepage_status wait_for_holder(struct moepage_paged *paged, const mp_paged_layer *layer)
{
    mp_stream *stream = paged->compute;
    mp_tick tick = layer->readers;
    if (layer->state == MOEPAGE_PAGED_EVICTING && layer->buffer != MP_PAGED_NONE)
        (void)mp_paged_unfinished(paged, &paged->buffers[layer->buffer], &stream, &tick);
    pthread_mutex_unlock(&paged->lock);
    moepage_status status = paged->home->device->ops->sync(stream, tick);
    pthread_mutex_lock(&paged->lock);
    return status;
}

/* Runs the jobs that the background has not reached yet. Called with the lock. */
static moepage_status make_ready(struct moepage_paged *paged, const mp_paged_layer *layer)
{
    moepage_status status = MOEPAGE_OK;
    while (!status && !is_settled(layer)) {
        if (paged->working)
            pthread_cond_wait(&paged->worked, &paged->lock);
        else if (!mp_paged_work(paged))
            status = wait_for_holder(paged, layer);
    }
    return status;
}

/* Blocks until the load can no longer fail; *result is its outcome. Called without the lock: the
 * buffer belongs to the layer as long as the layer is wanted. */
static moepage_status settle(const struct moepage_paged *paged, mp_paged_buffer *buffer,
                             moepage_status *result)
{
    const mp_device_ops *ops = paged->home->device->ops;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t s = MP_PAGED_STREAMS; s-- > 0 && !status;) /* readers first */
        if (buffer->ticks[s])
            status = ops->settle(paged->streams[s], buffer->ticks[s]);
    *result = atomic_load(&buffer->result);
    return status;
}

/* Makes the caller's stream wait for everything that writes the layer (RAW). */
static moepage_status line_up(const struct moepage_paged *paged, const mp_paged_buffer *buffer,
                              void *native)
{
    const mp_device_ops *ops = paged->home->device->ops;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t s = 0; s < MP_PAGED_WRITERS && !status; s++)
        if (buffer->ticks[s])
            status = ops->follow(native, paged->streams[s], buffer->ticks[s]);
    return status;
}

static const char *why_failed(const mp_paged_buffer *buffer, moepage_status result)
{
    return buffer->why[0] ? buffer->why : moepage_status_text(result);
}

/* Makes a layer RESIDENT once its bytes have landed, or fails it. Called with the lock. */
static void look(struct moepage_paged *paged, uint32_t index)
{
    mp_paged_layer *layer = &paged->layers[index];
    mp_stream *stream;
    mp_tick tick;
    if (layer->state != MOEPAGE_PAGED_LOADING || !is_settled(layer))
        return;
    mp_paged_buffer *buffer = &paged->buffers[layer->buffer];
    if (mp_paged_unfinished(paged, buffer, &stream, &tick))
        return;
    moepage_status result = atomic_load(&buffer->result);
    if (!result)
        layer->state = MOEPAGE_PAGED_RESIDENT;
    else if (!layer->acquired)
        mp_paged_fail(paged, index, result, why_failed(buffer, result));
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
    pthread_mutex_lock(&paged->lock);
    moepage_status status = check_acquirable(layer, index);
    if (!status)
        status = make_ready(paged, layer);
    if (status)
        goto done;
    if (has_memory(layer)) {
        mp_paged_buffer *buffer = &paged->buffers[layer->buffer];
        pthread_mutex_unlock(&paged->lock);
        status = settle(paged, buffer, &result);
        if (!status && !result)
            status = line_up(paged, buffer, native);
        pthread_mutex_lock(&paged->lock);
        if (result) {
            if (has_memory(layer)) /* otherwise another thread has already failed it */
                mp_paged_fail(paged, index, result, why_failed(buffer, result));
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
