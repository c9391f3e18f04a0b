/* The ring of a stream, the queues of a lane, and the one place a stream is in. */
#include "device/stream.h"

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

/* Linear in the length of the list. Called only when waits and streams end. */
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

/* Drops a reference. The count is not atomic, because the executor's lock is held. */
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
    /* A stream in the background queue moves to the urgent one; one that runs or is parked is
     * queued as urgent when it is placed next. */
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
        stream->urgency = stream->own_urgency; /* takes effect when it is queued next */
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

/* ---- The ring ---- */

mp_op *mp_stream_oldest(mp_stream *stream)
{
    return &stream->entries[stream->tail % MP_STREAM_ENTRIES];
}

/* Drops the oldest entry: an operation that has run, or a wait that is over. */
static void pop_entry(mp_stream *stream)
{
    const mp_op *op = mp_stream_oldest(stream);
    stream->tail++;
    /* Only at half of the ring, so that submitters are not woken for every single entry. */
    if (stream->want_room && stream->head - stream->tail <= MP_STREAM_ENTRIES / 2)
        pthread_cond_broadcast(&stream->room);
    if (op->kind == MP_OP_WAIT)
        mp_stream_release(op->other);
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
        if (atomic_load_explicit(&op->other->completed, memory_order_relaxed) < op->tick) {
            stream->parked_behind =
                op->other; /* mp_stream_finish of that stream comes back to it */
            list_append(&op->other->parked, stream);
            return false;
        }
        pop_entry(stream);
    }
    stream->idle = true;
    return false;
}

mp_tick mp_stream_push(mp_stream *stream, const mp_op *op, pthread_mutex_t *lock)
{
    /* The waiting thread runs no operations meanwhile: no callback may run inside a submission. */
    while (stream->head - stream->tail == MP_STREAM_ENTRIES) {
        stream->want_room++;
        pthread_cond_wait(&stream->room, lock);
        stream->want_room--;
    }
    mp_op *entry = &stream->entries[stream->head++ % MP_STREAM_ENTRIES];
    *entry = *op;
    if (op->kind == MP_OP_WAIT)
        op->other->references++; /* the other stream may be destroyed before this wait is over */
    else
        entry->tick = ++stream->submitted;
    /* Behind older entries nothing changes: the oldest decides where the stream is. */
    if (stream->idle && place(stream))
        mp_lane_wake(stream->lane);
    return stream->submitted;
}

/* ---- The end of an operation ---- */

/* Places the streams anew that wait for this one. Those that wait for a later tick park here again. */
static void release_parked(mp_stream *stream)
{
    mp_stream_list parked = stream->parked;
    stream->parked = (mp_stream_list){0};
    mp_stream *other;
    while ((other = list_take(&parked))) {
        if (!place(other))
            continue;
        mp_op *op = mp_stream_oldest(other);
        /* On the throttled bus a transfer is ready when its wait ends, not when it was submitted. */
        if (op->kind == MP_OP_COPY && op->ready_ns)
            op->ready_ns = mp_clock_ns();
        mp_lane_wake(other->lane);
    }
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
    while (stream->tasks.first && stream->tasks.first->due <= tick) {
        stream->tasks_due++;
        mp_worker_add(stream->worker, mp_task_take(&stream->tasks));
    }
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
        pop_entry(stream);
    stream->parked_behind = NULL;
    stream->idle = true;
}
