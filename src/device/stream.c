/* The ring of a stream, the queues of a lane, and the one place a stream is in. */
#include "device/stream.h"

#include <assert.h>

#include "base/alloc.h"
#include "device/thread.h"

static void list_append(mp_stream_list *list, mp_stream *stream)
{
    stream->next = NULL;
    if (list->last)
        list->last->next = stream;
    else
        list->first = stream;
    list->last = stream;
}

static mp_stream *list_take(mp_stream_list *list)
{
    mp_stream *stream = list->first;
    if (stream) {
        list->first = stream->next;
        if (!list->first)
            list->last = NULL;
    }
    return stream;
}

/* Linear in the list. Only ends of waits and of streams come here. */
static void list_remove(mp_stream_list *list, const mp_stream *stream)
{
    mp_stream_list rest = {0};
    mp_stream *i;
    while ((i = list_take(list))) {
        if (i != stream)
            list_append(&rest, i);
    }
    *list = rest;
}

mp_stream *mp_stream_new(mp_executor *executor, mp_lane *lane, uint32_t urgency, mp_worker *worker)
{
    mp_stream *stream = mp_alloc(sizeof *stream);
    if (!stream)
        return NULL;
    stream->executor = executor;
    stream->lane = lane;
    stream->worker = worker;
    stream->urgency = stream->own_urgency = urgency;
    stream->references = 1;
    stream->idle = true;
    stream->wake_tick = UINT64_MAX;
    atomic_init(&stream->completed, 0);
    pthread_cond_init(&stream->progress, NULL);
    pthread_cond_init(&stream->room, NULL);
    return stream;
}

/* A plain count: references are taken and given up under the executor's lock. */
void mp_stream_release(mp_stream *stream)
{
    if (--stream->references)
        return;
    pthread_cond_destroy(&stream->progress);
    pthread_cond_destroy(&stream->room);
    mp_free(stream);
}

mp_stream *mp_lane_next(const mp_lane *lane)
{
    if (lane->running == lane->width)
        return NULL;
    return lane->ready[0].first ? lane->ready[0].first : lane->ready[1].first;
}

static bool list_has(const mp_stream_list *list, const mp_stream *stream)
{
    const mp_stream *i = list->first;
    while (i && i != stream)
        i = i->next;
    return i != NULL;
}

void mp_stream_lend(mp_stream *stream)
{
    mp_lane *lane = stream->lane;
    if (stream->lenders++ > 0 || stream->urgency == 0)
        return;
    /* A stream in the background queue moves over; one that runs or is parked is queued as urgent when
     * it is placed next. */
    bool ready = list_has(&lane->ready[stream->urgency], stream);
    if (ready)
        list_remove(&lane->ready[stream->urgency], stream);
    stream->urgency = 0;
    if (ready)
        list_append(&lane->ready[0], stream);
}

void mp_stream_unlend(mp_stream *stream)
{
    if (--stream->lenders == 0)
        stream->urgency = stream->own_urgency; /* from when it is queued next */
}

mp_stream *mp_lane_take(mp_lane *lane)
{
    mp_stream *stream = list_take(&lane->ready[0]);
    return stream ? stream : list_take(&lane->ready[1]);
}

void mp_lane_wake(mp_lane *lane)
{
    /* Threads that are awake, or woken already, look at the queue before they sleep again. */
    if (lane->woken == lane->waiting || !mp_lane_next(lane))
        return;
    lane->woken++;
    pthread_cond_signal(&lane->work);
}

static void pop_entry(mp_stream *stream)
{
    stream->tail++;
    /* Half of the ring, so that submitters are not woken for every single entry. */
    if (stream->want_room && stream->head - stream->tail <= MP_STREAM_ENTRIES / 2)
        pthread_cond_broadcast(&stream->room);
}

static void pop_wait(mp_stream *stream)
{
    mp_stream *other = mp_stream_oldest(stream)->other;
    pop_entry(stream);
    mp_stream_release(other);
}

static bool wait_is_over(const mp_op *wait)
{
    return atomic_load_explicit(&wait->other->completed, memory_order_relaxed) >= wait->tick;
}

/* Puts a stream that is in no list where its oldest entry belongs. Returns true if it is ready. */
static bool place(mp_stream *stream)
{
    stream->idle = false;
    stream->parked_behind = NULL;
    while (stream->tail != stream->head) {
        mp_op *op = mp_stream_oldest(stream);
        if (op->kind != MP_OP_WAIT) {
            list_append(&stream->lane->ready[stream->urgency], stream);
            return true;
        }
        if (!wait_is_over(op)) { /* mp_stream_finish of the other stream comes back to it */
            stream->parked_behind = op->other;
            list_append(&op->other->parked, stream);
            return false;
        }
        pop_wait(stream);
    }
    stream->idle = true;
    return false;
}

/* Places a parked stream anew; its oldest wait is over. */
static void unpark(mp_stream *stream)
{
    if (!place(stream))
        return;
    mp_op *op = mp_stream_oldest(stream);
    /* On the throttled bus a transfer is ready when its wait ends, not when it was submitted. */
    if (op->kind == MP_OP_COPY && op->ready_ns)
        op->ready_ns = mp_clock_ns();
    mp_lane_wake(stream->lane);
}

mp_tick mp_stream_push(mp_stream *stream)
{
    assert(!mp_stream_full(stream));
    mp_tick tick = ++stream->submitted;
    mp_stream_slot(stream)->tick = tick;
    stream->head++;
    /* Behind older entries nothing changes: they say where the stream is. */
    if (stream->idle && place(stream))
        mp_lane_wake(stream->lane);
    return tick;
}

void mp_stream_push_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    assert(!mp_stream_full(stream) && tick <= other->submitted);
    *mp_stream_slot(stream) = (mp_op){.kind = MP_OP_WAIT, .tick = tick, .other = other};
    other->references++; /* the other stream may be destroyed before this wait is over */
    stream->head++;
    if (stream->idle)
        place(stream);
}

static void release_parked(mp_stream *stream)
{
    /* A released stream may park behind this one again, for a later tick. */
    mp_stream_list parked = stream->parked;
    stream->parked = (mp_stream_list){0};
    mp_stream *other;
    while ((other = list_take(&parked))) {
        if (wait_is_over(mp_stream_oldest(other)))
            unpark(other);
        else
            list_append(&stream->parked, other);
    }
}

static void hand_over(mp_stream *stream, mp_task *task)
{
    stream->tasks_due++;
    mp_worker_add(stream->worker, task);
}

void mp_stream_post(mp_stream *stream, mp_tick tick, mp_task *task)
{
    assert(tick <= stream->submitted);
    task->due = tick;
    if (atomic_load_explicit(&stream->completed, memory_order_relaxed) >= tick)
        hand_over(stream, task);
    else
        mp_task_insert(&stream->tasks, task);
}

void mp_stream_finish(mp_stream *stream)
{
    mp_tick tick = mp_stream_oldest(stream)->tick;
    if (stream->on_progress)
        stream->on_progress(stream->progress_user, tick);
    /* `completed` is read without the lock: the release makes the operation's writes visible. */
    atomic_store_explicit(&stream->completed, tick, memory_order_release);
    pop_entry(stream);
    release_parked(stream);
    while (stream->tasks.first && stream->tasks.first->due <= tick)
        hand_over(stream, mp_task_take(&stream->tasks));
    if (tick >= stream->wake_tick) { /* threads that wait for a later tick set it again */
        stream->wake_tick = UINT64_MAX;
        pthread_cond_broadcast(&stream->progress);
    }
    place(stream);
}

void mp_stream_drop_waits(mp_stream *stream)
{
    if (stream->parked_behind)
        list_remove(&stream->parked_behind->parked, stream);
    while (stream->tail != stream->head)
        pop_wait(stream);
    stream->parked_behind = NULL;
    stream->idle = true;
}
