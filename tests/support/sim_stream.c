/* The simulated driver's streams, each a thread that starts with its first operation; events, which
 * are places in a stream; holding and stepping. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim_inside.h"

/* ---- Which stream ----------------------------------------------------------------------- */

mp_cu_stream sim_stream_any(mp_cu_stream handle)
{
    if (!handle || handle == (mp_cu_stream)1) /* CU_STREAM_LEGACY */
        return sim_current() ? sim_current()->legacy : NULL;
    mp_cu_stream stream = sim.streams;
    while (stream && stream != handle)
        stream = stream->next;
    if (!stream || stream->destroyed || stream->legacy) {
        sim_misuse("a stream that does not exist");
        return NULL;
    }
    return stream;
}

mp_cu_stream sim_stream_find(mp_cu_stream handle)
{
    mp_cu_stream stream = sim_stream_any(handle);
    if (stream && stream->context != sim_current()) {
        sim_misuse("a stream of a context that is not current");
        return NULL;
    }
    return stream;
}

static mp_cu_event event_find(mp_cu_event handle)
{
    mp_cu_event event = sim.events;
    while (event && event != handle)
        event = event->next;
    if (!event)
        sim_misuse("an event that does not exist");
    return event;
}

/* ---- Their threads ---------------------------------------------------------------------- */

static bool waits(const sim_work *work)
{
    return work->kind == SIM_WORK_WAIT && work->stream->done < work->seq;
}

/* Whether an operation of another stream is in front of the stream's in their hardware queue. */
static bool is_queued(mp_cu_stream stream)
{
    for (mp_cu_stream s = sim.streams; s && sim.config.connections; s = s->next) {
        if (s->context == stream->context && s->connection == stream->connection && s->first &&
            s->first->order < stream->first->order)
            return true;
    }
    return false;
}

static bool may_start(mp_cu_stream stream)
{
    if (!stream->first || waits(&stream->first->work) || is_queued(stream))
        return false;
    if (sim.closing || stream->context->sticky)
        return true;
    return stream->steps || !(sim.manual || stream->held);
}

void sim_wake_all(void)
{
    for (mp_cu_stream s = sim.streams; s; s = s->next)
        pthread_cond_broadcast(&s->wake);
    pthread_cond_broadcast(&sim_progress);
}

/* A thread that waits for a stream; on its own stack. With sim_lock. */
typedef struct waiter {
    struct waiter *next;
    mp_cu_stream stream;
    uint64_t seq;
    pthread_cond_t wake;
} waiter;

static waiter *waiters;

/* Wakes only the threads that wait for `stream`, since every thread that wakes needs the lock. */
static void announce(mp_cu_stream stream)
{
    for (mp_cu_stream s = sim.streams; s; s = s->next) {
        if (s->first && (s->first->work.stream == stream || sim.config.connections) &&
            !waits(&s->first->work))
            pthread_cond_signal(&s->wake);
    }
    for (waiter *w = waiters; w; w = w->next) {
        if (w->stream == stream && stream->done >= w->seq)
            pthread_cond_signal(&w->wake);
    }
    pthread_cond_broadcast(&sim_progress);
}

static void cross_bus(const sim_work *work, uint64_t bytes_per_s)
{
    if (bytes_per_s == 0 || work->kind != SIM_WORK_COPY)
        return;
    const double seconds = (double)work->bytes / (double)bytes_per_s;
    const uint64_t ns = (uint64_t)(seconds * 1e9);
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

static void run_first(mp_cu_stream stream)
{
    sim_op *op = stream->first;
    uint64_t delay = sim.jitter ? sim_random(&stream->random) % 24 : 0;
    const uint64_t bytes_per_s = sim.bus_bytes_per_s;
    pthread_mutex_unlock(&sim_lock);
    while (delay--)
        sched_yield();
    cross_bus(&op->work, bytes_per_s);
    sim_work_run(stream, &op->work);
    pthread_mutex_lock(&sim_lock);
    stream->first = op->next;
    if (!stream->first)
        stream->last = &stream->first;
    stream->done = op->seq;
    if (op->work.kind == SIM_WORK_GRAPH)
        op->work.graph->pending--;
    stream->steps -= stream->steps > 0;
    sim.stats.ops++;
    free(op->work.own);
    free(op);
    announce(stream);
}

static void *stream_main(void *of)
{
    mp_cu_stream stream = of;
    pthread_mutex_lock(&sim_lock);
    while (stream->first || !(stream->destroyed || sim.closing)) {
        if (may_start(stream))
            run_first(stream);
        else
            pthread_cond_wait(&stream->wake, &sim_lock);
    }
    sim.threads--;
    pthread_cond_broadcast(&sim_progress);
    pthread_mutex_unlock(&sim_lock);
    return NULL;
}

static void start_thread(mp_cu_stream stream)
{
    pthread_t thread;
    if (stream->started)
        return;
    if (pthread_create(&thread, NULL, stream_main, stream))
        abort();
    pthread_detach(thread);
    stream->started = true;
    sim.threads++;
}

void sim_cuda_connect(uint32_t connections)
{
    SIM_LOCKED();
    sim.config.connections = connections;
    sim_wake_all();
}

/* ---- Putting work on streams ------------------------------------------------------------ */

static void append(mp_cu_stream stream, const sim_work *work)
{
    start_thread(stream);
    while (sim.config.queue_ops && !sim.closing &&
           stream->submitted - stream->done >= sim.config.queue_ops)
        pthread_cond_wait(&sim_progress, &sim_lock);
    sim_op *op = sim_new(sizeof *op);
    op->work = *work;
    op->seq = ++stream->submitted;
    op->order = ++sim.n_ops;
    *stream->last = op;
    stream->last = &op->next;
    if (stream->first == op)
        pthread_cond_signal(&stream->wake);
}

static void wait_for(mp_cu_stream stream, mp_cu_stream other, uint64_t seq)
{
    if (other != stream && other->done < seq)
        append(stream, &(sim_work){.kind = SIM_WORK_WAIT, .stream = other, .seq = seq});
}

/* The NULL stream and blocking streams wait for each other. */
static void wait_for_legacy(mp_cu_stream stream)
{
    if (stream->blocking && !stream->legacy)
        wait_for(stream, stream->context->legacy, stream->context->legacy->submitted);
    for (mp_cu_stream s = sim.streams; s && stream->legacy; s = s->next) {
        if (s->blocking && s->context == stream->context)
            wait_for(stream, s, s->submitted);
    }
}

void sim_stream_submit(mp_cu_stream stream, const sim_work *work)
{
    wait_for_legacy(stream);
    append(stream, work);
}

static void wait_as(waiter *self)
{
    waiter **link = &waiters;
    waiters = self;
    while (self->stream->done < self->seq)
        pthread_cond_wait(&self->wake, &sim_lock);
    while (*link != self)
        link = &(*link)->next;
    *link = self->next;
}

/* Until `seq` is done, or the context has failed. */
static mp_cu_result wait_until(mp_cu_stream stream, uint64_t seq)
{
    if (stream->done < seq)
        wait_as(&(waiter){
            .next = waiters, .stream = stream, .seq = seq, .wake = PTHREAD_COND_INITIALIZER});
    return stream->context->sticky;
}

uint32_t sim_cuda_waiting(void)
{
    uint32_t n = 0;
    SIM_LOCKED();
    for (const waiter *w = waiters; w; w = w->next)
        n += w->stream->done < w->seq;
    return n;
}

void sim_stream_join(mp_cu_stream stream)
{
    wait_until(stream, stream->submitted);
}

/* ---- Streams ---------------------------------------------------------------------------- */

mp_cu_stream sim_stream_new(mp_cu_context context, bool legacy, bool blocking)
{
    mp_cu_stream stream = sim_new(sizeof *stream);
    stream->context = context;
    stream->legacy = legacy;
    stream->blocking = blocking;
    stream->held = sim.hold_new;
    stream->last = &stream->first;
    stream->connection = sim.config.connections ? sim.n_streams++ % sim.config.connections : 0;
    stream->random = sim_random(&sim.random) ^ sim.jitter;
    pthread_cond_init(&stream->wake, NULL);
    *sim.last_stream = stream;
    sim.last_stream = &stream->next;
    return stream;
}

mp_cu_result sim_do_stream_create(mp_cu_stream *out, unsigned flags, int priority)
{
    SIM_BEGIN(SIM_stream_create);
    (void)priority; /* out of range is clamped */
    if (flags & ~(unsigned)MP_CU_STREAM_NON_BLOCKING)
        return MP_CU_INVALID_VALUE;
    *out = sim_stream_new(sim_current(), false, !(flags & MP_CU_STREAM_NON_BLOCKING));
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_stream_destroy(mp_cu_stream handle)
{
    SIM_BEGIN(SIM_stream_destroy);
    mp_cu_stream stream = sim_stream_find(handle);
    if (!stream || stream->legacy)
        return MP_CU_INVALID_HANDLE;
    if (stream->capture)
        sim_capture_invalidate(stream->capture, MP_CU_SUCCESS);
    stream->destroyed = true;
    pthread_cond_broadcast(&stream->wake);
    return MP_CU_SUCCESS;
}

void sim_streams_drop(int gpu)
{
    for (mp_cu_stream s = sim.streams; s; s = s->next) {
        if (gpu >= 0 && s->context->gpu != gpu)
            continue;
        s->destroyed = true;
        pthread_cond_broadcast(&s->wake);
        sim_stream_join(s);
    }
    mp_cu_event *link = &sim.events;
    while (*link) {
        mp_cu_event event = *link;
        if (gpu >= 0 && event->context->gpu != gpu) {
            link = &event->next;
            continue;
        }
        *link = event->next;
        free(event);
    }
}

void sim_streams_free(void)
{
    while (sim.streams) {
        mp_cu_stream stream = sim.streams;
        sim.streams = stream->next;
        pthread_cond_destroy(&stream->wake);
        free(stream);
    }
    sim.last_stream = &sim.streams;
}

mp_cu_result sim_do_stream_query(mp_cu_stream handle)
{
    SIM_BEGIN(SIM_stream_query);
    mp_cu_stream stream = sim_stream_find(handle);
    if (!stream)
        return MP_CU_INVALID_HANDLE;
    if (stream->capture)
        return sim_capture_invalidate(stream->capture, MP_CU_CAPTURE_UNSUPPORTED);
    return stream->done < stream->submitted ? MP_CU_NOT_READY : MP_CU_SUCCESS;
}

mp_cu_result sim_do_stream_sync(mp_cu_stream handle)
{
    SIM_BEGIN(SIM_stream_sync);
    mp_cu_stream stream = sim_stream_find(handle);
    if (!stream)
        return MP_CU_INVALID_HANDLE;
    if (stream->capture)
        return sim_capture_invalidate(stream->capture, MP_CU_CAPTURE_UNSUPPORTED);
    wait_for_legacy(stream);
    return wait_until(stream, stream->submitted);
}

/* ---- Events ----------------------------------------------------------------------------- */

mp_cu_result sim_do_event_create(mp_cu_event *out, unsigned flags)
{
    SIM_BEGIN(SIM_event_create);
    if (flags & ~(unsigned)(MP_CU_EVENT_BLOCKING_SYNC | MP_CU_EVENT_DISABLE_TIMING))
        return MP_CU_INVALID_VALUE;
    mp_cu_event event = sim_new(sizeof *event);
    event->context = sim_current();
    event->next = sim.events;
    sim.events = event;
    *out = event;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_event_destroy(mp_cu_event handle)
{
    SIM_BEGIN(SIM_event_destroy);
    mp_cu_event event = event_find(handle);
    if (!event)
        return MP_CU_INVALID_HANDLE;
    mp_cu_event *link = &sim.events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    free(event);
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_event_record(mp_cu_event handle, mp_cu_stream on)
{
    SIM_BEGIN(SIM_event_record);
    mp_cu_event event = event_find(handle);
    mp_cu_stream stream = event ? sim_stream_find(on) : NULL;
    if (stream && stream->context != event->context)
        sim_misuse("an event is recorded on a stream of another context");
    if (!stream || stream->context != event->context)
        return MP_CU_INVALID_HANDLE;
    mp_cu_result result = sim_capture_check(stream);
    if (result)
        return result;
    if (!stream->capture)
        wait_for_legacy(stream);
    event->stream = stream;
    event->seq = stream->submitted;
    event->capture = stream->capture ? stream->capture->id : 0;
    event->front = stream->front;
    return MP_CU_SUCCESS;
}

/* Of an event's last record; what was recorded into a capture happens at no time. */
static mp_cu_result event_check(mp_cu_event event)
{
    if (!event)
        return MP_CU_INVALID_HANDLE;
    if (!event->capture)
        return MP_CU_SUCCESS;
    return sim_capture_invalidate(sim_capture_find(event->capture), SIM_CAPTURED_EVENT);
}

mp_cu_result sim_do_event_query(mp_cu_event handle)
{
    SIM_BEGIN(SIM_event_query);
    mp_cu_event event = event_find(handle);
    mp_cu_result result = event_check(event);
    if (!result && event->stream && event->stream->done < event->seq)
        result = MP_CU_NOT_READY;
    return result;
}

mp_cu_result sim_do_event_sync(mp_cu_event handle)
{
    SIM_BEGIN(SIM_event_sync);
    mp_cu_event event = event_find(handle);
    mp_cu_result result = event_check(event);
    if (!result && event->stream)
        result = wait_until(event->stream, event->seq);
    return result;
}

mp_cu_result sim_do_stream_wait(mp_cu_stream handle, mp_cu_event of, unsigned flags)
{
    SIM_BEGIN(SIM_stream_wait);
    mp_cu_event event = event_find(of);
    mp_cu_stream stream = event ? sim_stream_find(handle) : NULL;
    if (!stream || flags)
        return stream ? MP_CU_INVALID_VALUE : MP_CU_INVALID_HANDLE;
    mp_cu_result result = sim_capture_check(stream);
    if (!result && sim.config.waits_tell)
        result = event->context->sticky;
    if (!result && (stream->capture || event->capture))
        result = sim_capture_wait(stream, event);
    else if (!result && event->stream && event->stream->done < event->seq) {
        wait_for_legacy(stream);
        wait_for(stream, event->stream, event->seq);
    }
    return result;
}

/* ---- Holding and stepping --------------------------------------------------------------- */

static void set_held(mp_cu_stream handle, bool held)
{
    SIM_LOCKED();
    mp_cu_stream stream = sim_stream_any(handle);
    if (stream)
        stream->held = held;
    sim_wake_all();
}

void sim_cuda_hold(mp_cu_stream stream)
{
    set_held(stream, true);
}

void sim_cuda_release(mp_cu_stream stream)
{
    set_held(stream, false);
}

void sim_cuda_hold_all(bool hold)
{
    SIM_LOCKED();
    sim.hold_new = hold;
    for (mp_cu_stream s = sim.streams; s; s = s->next)
        s->held = hold;
    sim_wake_all();
}

void sim_cuda_manual(bool on)
{
    SIM_LOCKED();
    sim.manual = on;
    sim_wake_all();
}

static bool can_step(mp_cu_stream stream)
{
    return stream->first && !waits(&stream->first->work);
}

static bool step(mp_cu_stream stream)
{
    if (!stream || !can_step(stream))
        return false;
    uint64_t seq = stream->first->seq;
    stream->steps++;
    pthread_cond_broadcast(&stream->wake);
    wait_until(stream, seq);
    return true;
}

bool sim_cuda_step(mp_cu_stream handle)
{
    SIM_LOCKED();
    return step(sim_stream_any(handle));
}

bool sim_cuda_step_any(void)
{
    SIM_LOCKED();
    mp_cu_stream chosen = NULL;
    uint64_t n = 0;
    for (mp_cu_stream s = sim.streams; s; s = s->next) {
        if (can_step(s) && sim_random(&sim.random) % ++n == 0)
            chosen = s;
    }
    bool stepped = step(chosen);
    return stepped;
}

void sim_cuda_jitter(uint64_t seed)
{
    SIM_LOCKED();
    sim.jitter = seed;
    for (mp_cu_stream s = sim.streams; s; s = s->next)
        s->random ^= seed;
}

void sim_cuda_bus(uint64_t bytes_per_s)
{
    SIM_LOCKED();
    sim.bus_bytes_per_s = bytes_per_s;
}

static bool is_listed(mp_cu_stream stream)
{
    return !stream->destroyed && !stream->legacy;
}

uint32_t sim_cuda_streams(void)
{
    uint32_t n = 0;
    SIM_LOCKED();
    for (mp_cu_stream s = sim.streams; s; s = s->next)
        n += is_listed(s);
    return n;
}

mp_cu_stream sim_cuda_stream_at(uint32_t index)
{
    SIM_LOCKED();
    mp_cu_stream stream = sim.streams;
    while (stream && (!is_listed(stream) || index--))
        stream = stream->next;
    return stream;
}

uint64_t sim_cuda_pending(mp_cu_stream handle)
{
    SIM_LOCKED();
    mp_cu_stream stream = sim_stream_any(handle);
    uint64_t pending = stream ? stream->submitted - stream->done : 0;
    return pending;
}
