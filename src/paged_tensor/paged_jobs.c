/* Background jobs on layers: submits loads, maps and unmaps views. */
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"
#include "paged_tensor/paged.h"

/* ---- choosing the next job ---- */

bool mp_paged_unfinished(const struct moepage_paged *paged, const mp_paged_buffer *buffer,
                         mp_stream **stream, mp_tick *tick)
{
    const mp_device_ops *ops = paged->home->device->ops;
    for (uint32_t s = 0; s < MP_PAGED_STREAMS; s++)
        if (buffer->ticks[s] && ops->completed(paged->streams[s]) < buffer->ticks[s]) {
            *stream = paged->streams[s];
            *tick = buffer->ticks[s];
            return true;
        }
    return false;
}

/* Returns true while a leaving layer must wait: for its readers and, if its load has failed, for
 * transfers still in flight into the buffer that it gives back. */
static bool is_held(const struct moepage_paged *paged, const mp_paged_layer *layer,
                    mp_stream **stream, mp_tick *tick)
{
    *stream = paged->compute;
    *tick = layer->readers;
    if (paged->home->device->ops->completed(paged->compute) < layer->readers)
        return true;
    return layer->state == MOEPAGE_PAGED_EVICTING && layer->buffer != MP_PAGED_NONE &&
           mp_paged_unfinished(paged, &paged->buffers[layer->buffer], stream, tick);
}

static bool is_before(const mp_paged_layer *a, const mp_paged_layer *b)
{
    return !b || a->order < b->order;
}

/* Chooses the next job: loads first, since they take longest; within a kind, in the order in which
 * layers were requested. */
static mp_paged_job next_job(struct moepage_paged *paged, uint32_t *out)
{
    const mp_paged_layer *submit = NULL, *show = NULL, *leave = NULL;
    mp_stream *stream;
    mp_tick tick;
    for (uint32_t i = 0; i < paged->n_layers; i++) {
        const mp_paged_layer *layer = &paged->layers[i];
        bool loading = layer->state == MOEPAGE_PAGED_LOADING;
        if (loading && !layer->submitted && is_before(layer, submit))
            submit = layer;
        if (loading && !layer->shown && is_before(layer, show)) /* after its old view has gone */
            show = layer;
        if (layer->leaving && !is_held(paged, layer, &stream, &tick) && is_before(layer, leave))
            leave = layer;
    }
    const mp_paged_layer *found = submit ? submit : show ? show : leave;
    if (!found)
        return MP_PAGED_IDLE;
    *out = (uint32_t)(found - paged->layers);
    return submit ? MP_PAGED_SUBMIT : show ? MP_PAGED_SHOW : MP_PAGED_LEAVE;
}

/* ---- running a job; called without the lock ---- */

static void hide(struct moepage_paged *paged, uint32_t layer, uint32_t n_ranges)
{
    const mp_device_ops *ops = paged->home->device->ops;
    for (uint32_t r = 0; r < n_ranges; r++) {
        const mp_paged_range *range = &paged->ranges[r];
        ops->view_unmap(paged->home->device, range->base + layer * range->layer_stride,
                        range->layer_stride);
    }
}

void mp_paged_hide(struct moepage_paged *paged, uint32_t layer)
{
    hide(paged, layer, paged->n_ranges);
}

/* Maps all ranges or none. */
static moepage_status show(struct moepage_paged *paged, uint32_t layer, uint32_t buffer)
{
    mp_device *device = paged->home->device;
    uint64_t first = (uint64_t)(paged->base - paged->home->arena.base) + buffer * paged->unit;
    for (uint32_t r = 0; r < paged->n_ranges; r++) {
        const mp_paged_range *range = &paged->ranges[r];
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

static moepage_status perform(struct moepage_paged *paged, mp_paged_job job, uint32_t layer,
                              uint32_t buffer, bool shown)
{
    moepage_status status = MOEPAGE_OK;
    switch (job) {
    case MP_PAGED_SUBMIT: status = mp_paged_submit(paged, layer, &paged->buffers[buffer]); break;
    case MP_PAGED_SHOW: status = show(paged, layer, buffer); break;
    case MP_PAGED_LEAVE:
        if (shown)
            mp_paged_hide(paged, layer);
        break;
    case MP_PAGED_IDLE: break;
    }
    return status;
}

/* ---- recording the outcome; called with the lock ---- */

static void leave(struct moepage_paged *paged, mp_paged_layer *layer)
{
    layer->leaving = layer->shown = false;
    if (layer->state != MOEPAGE_PAGED_EVICTING)
        return; /* it has been requested again already */
    layer->state = MOEPAGE_PAGED_UNMAPPED;
    if (layer->buffer != MP_PAGED_NONE)
        paged->buffers[layer->buffer].owner = MP_PAGED_NONE;
    layer->buffer = MP_PAGED_NONE;
}

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

bool mp_paged_work(struct moepage_paged *paged)
{
    uint32_t index = 0;
    mp_paged_job job = next_job(paged, &index);
    if (job == MP_PAGED_IDLE)
        return false;
    if (paged->working) {
        pthread_cond_wait(&paged->worked, &paged->lock);
        return true;
    }
    mp_paged_layer *layer = &paged->layers[index];
    uint32_t buffer = layer->buffer;
    bool shown = layer->shown;
    paged->working = true;
    pthread_mutex_unlock(&paged->lock);
    moepage_status status = perform(paged, job, index, buffer, shown);
    pthread_mutex_lock(&paged->lock);
    paged->working = false;
    if (job == MP_PAGED_LEAVE)
        leave(paged, layer);
    layer->submitted |= job == MP_PAGED_SUBMIT;
    layer->shown |= job == MP_PAGED_SHOW && !status;
    if (status)
        mp_paged_fail(paged, index, status, moepage_last_error());
    pthread_cond_broadcast(&paged->worked);
    return true;
}

/* ---- tasks ---- */

/* Schedules the task for when the first leaving layer has nothing left to wait for. */
static void kick_later(struct moepage_paged *paged)
{
    mp_stream *stream;
    mp_tick tick;
    for (uint32_t i = 0; i < paged->n_layers && !paged->later_posted; i++)
        if (paged->layers[i].leaving && is_held(paged, &paged->layers[i], &stream, &tick)) {
            paged->later_posted = true;
            paged->home->device->ops->post(paged->home->device, stream, tick, &paged->later);
        }
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
