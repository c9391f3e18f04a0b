/* Background jobs on layers: submits loads, maps views, copies images. */
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"
#include "paged_tensor/paged.h"

/* ---- what is waited for ---- */

static bool has_come(const struct moepage_paged *paged, const mp_event *event)
{
    return !event->stream || paged->home->device->ops->completed(event->stream) >= event->tick;
}

bool mp_paged_unfinished(const struct moepage_paged *paged, const mp_paged_buffer *buffer,
                         mp_event *out)
{
    for (uint32_t i = 0; i < MP_ENDS; i++)
        if (!has_come(paged, &buffer->load.ends[i])) {
            *out = buffer->load.ends[i];
            return true;
        }
    return false;
}

/* Returns true while readers of a leaving layer are at work or, if its load has failed, transfers into
 * the buffer that it gives back. */
static bool is_held(const struct moepage_paged *paged, const mp_paged_layer *layer, mp_event *out)
{
    const mp_event readers = {paged->compute, layer->readers};
    if (!has_come(paged, &readers)) {
        *out = readers;
        return true;
    }
    return layer->state == MOEPAGE_PAGED_EVICTING && layer->buffer != MP_PAGED_NONE &&
           mp_paged_unfinished(paged, &paged->buffers[layer->buffer], out);
}

void mp_paged_try_leave(struct moepage_paged *paged, mp_paged_layer *layer)
{
    mp_event event;
    if (!layer->leaving || is_held(paged, layer, &event))
        return;
    layer->leaving = false;
    if (layer->state != MOEPAGE_PAGED_EVICTING)
        return; /* it has been requested again already */
    layer->state = MOEPAGE_PAGED_UNMAPPED;
    if (layer->buffer != MP_PAGED_NONE)
        paged->buffers[layer->buffer].owner = MP_PAGED_NONE;
    layer->buffer = MP_PAGED_NONE;
}

static bool shows_another(const mp_paged_layer *layer)
{
    return layer->shown != layer->buffer && layer->shown != MP_PAGED_NONE;
}

bool mp_paged_waits(const struct moepage_paged *paged, const mp_paged_layer *layer, mp_event *out)
{
    bool loading = layer->state == MOEPAGE_PAGED_LOADING;
    bool returns_buffer = layer->state == MOEPAGE_PAGED_EVICTING && layer->buffer != MP_PAGED_NONE;
    if (loading && !layer->submitted &&
        !has_come(paged, &paged->buffers[layer->buffer].load.obstacle)) {
        *out = paged->buffers[layer->buffer].load.obstacle;
        return true;
    }
    return layer->leaving && (returns_buffer || (loading && shows_another(layer))) &&
           is_held(paged, layer, out);
}

/* ---- choosing the next job ---- */

static bool is_before(const mp_paged_layer *a, const mp_paged_layer *b)
{
    return !b || a->order < b->order;
}

/* Chooses the next job: loads first, since they take longest; within a kind, in the order in which
 * layers were requested. Images are copied when there is nothing else to do. */
static mp_paged_job next_job(struct moepage_paged *paged, uint32_t *out)
{
    const mp_paged_layer *submit = NULL, *show = NULL;
    for (uint32_t i = 0; i < paged->n_layers; i++) {
        mp_paged_layer *layer = &paged->layers[i];
        mp_paged_try_leave(paged, layer);
        if (layer->state != MOEPAGE_PAGED_LOADING)
            continue;
        if (!layer->submitted && has_come(paged, &paged->buffers[layer->buffer].load.obstacle) &&
            is_before(layer, submit))
            submit = layer;
        if (layer->shown != layer->buffer && !(layer->leaving && shows_another(layer)) &&
            is_before(layer, show))
            show = layer;
    }
    const mp_paged_layer *found = submit ? submit : show;
    if (!found)
        return paged->copying && has_come(paged, &paged->copied) ? MP_PAGED_COPY : MP_PAGED_IDLE;
    *out = (uint32_t)(found - paged->layers);
    return submit ? MP_PAGED_SUBMIT : MP_PAGED_SHOW;
}

/* ---- views; called without the lock ---- */

static void hide(struct moepage_paged *paged, uint32_t layer, uint32_t n_ranges)
{
    const mp_device_ops *ops = paged->home->device->ops;
    for (uint32_t r = 0; r < n_ranges; r++) {
        const mp_paged_range *range = &paged->layout.ranges[r];
        ops->view_unmap(paged->home->device, range->base + layer * range->layer_stride,
                        range->layer_stride);
    }
}

void mp_paged_hide(struct moepage_paged *paged, uint32_t layer)
{
    hide(paged, layer, paged->layout.n_ranges);
}

/* Maps all ranges or none. */
static moepage_status show(struct moepage_paged *paged, uint32_t layer, uint32_t buffer)
{
    mp_device *device = paged->home->device;
    uint64_t first =
        (uint64_t)(paged->base - paged->home->arena.base) + buffer * paged->layout.unit;
    for (uint32_t r = 0; r < paged->layout.n_ranges; r++) {
        const mp_paged_range *range = &paged->layout.ranges[r];
        moepage_status status =
            device->ops->view_map(device, range->base + layer * range->layer_stride,
                                  first + range->offset, range->layer_stride);
        if (status) {
            hide(paged, layer, r);
            return status;
        }
    }
    return MOEPAGE_OK;
}

/* ---- running a job; called with the lock, which is released meanwhile ---- */

void mp_paged_fail(struct moepage_paged *paged, uint32_t index, moepage_status status,
                   const char *why)
{
    mp_paged_layer *layer = &paged->layers[index];
    layer->failure = status;
    snprintf(layer->why, sizeof layer->why, "%s", why);
    layer->state = MOEPAGE_PAGED_EVICTING;
    layer->wanted = false;
    layer->leaving = true;
    mp_paged_kick(paged);
}

static moepage_status submit_layer(struct moepage_paged *paged, uint32_t index)
{
    mp_paged_layer *layer = &paged->layers[index];
    const uint32_t buffer = layer->buffer;
    const mp_tick readers = paged->buffers[buffer].readers;
    mp_paged_load load = paged->buffers[buffer].load;
    load.obstacle = (mp_event){0};
    pthread_mutex_unlock(&paged->lock);
    moepage_status status = mp_paged_submit(paged, index, buffer, readers, &load);
    pthread_mutex_lock(&paged->lock);
    paged->buffers[buffer].load = load;
    layer->submitted = load.begun == paged->n_experts;
    return status;
}

static moepage_status show_layer(struct moepage_paged *paged, uint32_t index)
{
    mp_paged_layer *layer = &paged->layers[index];
    const uint32_t buffer = layer->buffer, before = layer->shown;
    pthread_mutex_unlock(&paged->lock);
    if (before != MP_PAGED_NONE)
        mp_paged_hide(paged, index);
    moepage_status status = show(paged, index, buffer);
    pthread_mutex_lock(&paged->lock);
    layer->shown = status ? MP_PAGED_NONE : buffer;
    paged->mappings += !status;
    return status;
}

static void copy_images(struct moepage_paged *paged)
{
    mp_event next = {0};
    paged->copying = false; /* a resize may set it meanwhile */
    pthread_mutex_unlock(&paged->lock);
    bool left = mp_paged_copy_images(paged, &next);
    pthread_mutex_lock(&paged->lock);
    paged->copying |= left;
    paged->copied = next;
}

bool mp_paged_work(struct moepage_paged *paged)
{
    uint32_t index = 0;
    moepage_status status = MOEPAGE_OK;
    mp_paged_job job = next_job(paged, &index);
    if (job == MP_PAGED_IDLE)
        return false;
    if (paged->working) {
        pthread_cond_wait(&paged->worked, &paged->lock);
        return true;
    }
    paged->working = true;
    switch (job) {
    case MP_PAGED_SUBMIT: status = submit_layer(paged, index); break;
    case MP_PAGED_SHOW: status = show_layer(paged, index); break;
    case MP_PAGED_COPY: copy_images(paged); break;
    case MP_PAGED_IDLE: break;
    }
    paged->working = false;
    if (status)
        mp_paged_fail(paged, index, status, moepage_last_error());
    pthread_cond_broadcast(&paged->worked);
    return true;
}

/* ---- tasks ---- */

/* Schedules the task behind the first thing that a job waits for. A view or a buffer that nothing needs
 * before its layer returns is no reason to. */
static void kick_later(struct moepage_paged *paged)
{
    mp_event event = {0};
    bool waits = false;
    for (uint32_t i = 0; i < paged->n_layers && !waits; i++)
        waits = mp_paged_waits(paged, &paged->layers[i], &event);
    if (!waits && paged->copying) {
        event = paged->copied;
        waits = true;
    }
    if (!waits || paged->later_posted)
        return;
    paged->later_posted = true;
    paged->home->device->ops->post(paged->home->device, event.stream, event.tick, &paged->later);
}

static void work(struct moepage_paged *paged, bool *posted)
{
    if (atomic_load(&paged->stopped))
        return; /* the object may be destroyed from here on, apart from its struct */
    pthread_mutex_lock(&paged->lock);
    *posted = false;
    while (!atomic_load(&paged->stopped) && mp_paged_work(paged))
        ;
    if (!atomic_load(&paged->stopped))
        kick_later(paged);
    pthread_mutex_unlock(&paged->lock);
}

static void run_now(mp_task *task)
{
    struct moepage_paged *paged =
        (struct moepage_paged *)(void *)((char *)task - offsetof(struct moepage_paged, now));
    work(paged, &paged->now_posted);
}

static void run_later(mp_task *task)
{
    struct moepage_paged *paged =
        (struct moepage_paged *)(void *)((char *)task - offsetof(struct moepage_paged, later));
    work(paged, &paged->later_posted);
}

void mp_paged_open_jobs(struct moepage_paged *paged)
{
    paged->now.run = run_now;
    paged->later.run = run_later;
}

void mp_paged_kick(struct moepage_paged *paged)
{
    if (paged->now_posted)
        return;
    paged->now_posted = true;
    paged->home->device->ops->post(paged->home->device, paged->compute, 0, &paged->now);
}
