/* The streams of the vtable: submitting to them, waiting for them. Their lives
 * are in stream_life.c. */
#include "submit.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "issue.h"
#include "launch.h"

/* Results of cuStreamIsCapturing and related calls while a capture is in the way. */
enum { CAPTURE_FIRST = MP_CU_CAPTURE_UNSUPPORTED, CAPTURE_LAST = 908 };

/* ---- Submissions ------------------------------------------------------------------------ */

/* A submission in progress: the stream's lock is held, and for a GPU stream the context is
 * current, unless the GPU is lost. */
typedef struct submission {
    mp_cuda_stream *stream;
    mp_cuda_list freed;
    bool inside; /* the context is current */
    bool owner;  /* of the stream: what it pushes is its own to issue */
} submission;

/* Work can still be submitted when the context is gone: it is skipped, but its tick completes. */
static moepage_status begin(submission *s, mp_stream *handle)
{
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    mp_cuda *cuda = stream->cuda;
    *s = (submission){.stream = stream};
    if (!mp_cuda_is_cold(stream)) {
        moepage_status status = mp_cuda_enter(cuda);
        if (status && !atomic_load(&cuda->health.lost))
            return status;
        s->inside = !status;
    }
    pthread_mutex_lock(&stream->lock);
    return MOEPAGE_OK;
}

/* Issues what the submission has pushed. Streams that this frees are pumped without the lock. */
static void end(submission *s)
{
    mp_cuda *cuda = s->stream->cuda;
    if (s->owner)
        mp_cuda_pump(s->stream, &s->freed);
    pthread_mutex_unlock(&s->stream->lock);
    mp_cuda_pump_all(&s->freed);
    if (s->inside)
        mp_cuda_leave(cuda);
}

/* Makes or awaits one change of a full stream: issues from it if the submission owns it, pumps streams
 * that it has freed (the owner may wait for one of them), or sleeps. */
static void await_change(submission *s)
{
    mp_cuda_stream *stream = s->stream;
    if (s->owner) {
        mp_cuda_pump(stream, &s->freed);
        s->owner = false;
    } else if (s->freed.first) {
        pthread_mutex_unlock(&stream->lock);
        mp_cuda_pump_all(&s->freed);
        pthread_mutex_lock(&stream->lock);
    } else {
        stream->waiters++;
        pthread_cond_wait(&stream->progress, &stream->lock);
        stream->waiters--;
    }
}

/* A free entry, for push. */
static mp_cuda_op *free_entry(submission *s)
{
    while (mp_cuda_is_full(s->stream))
        await_change(s);
    return &s->stream->queue[s->stream->head % MP_CUDA_QUEUE];
}

/* Appends the entry. A stream without an owner becomes the submission's, which issues from it in `end`;
 * otherwise its owner comes to the entry in turn. */
static void push(submission *s)
{
    mp_cuda_stream *stream = s->stream;
    stream->head++;
    if (!stream->owned)
        stream->owned = s->owner = true;
}

static mp_tick push_work(submission *s, mp_cuda_op *op)
{
    op->tick = ++s->stream->submitted;
    push(s);
    return op->tick;
}

moepage_status mp_cuda_stream_copy(mp_stream *stream, const mp_copy *copies, uint32_t n,
                                   mp_tick *out)
{
    submission s;
    mp_tick tick = 0;
    moepage_status status = begin(&s, stream);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++) {
        mp_cuda_op *op = free_entry(&s);
        /* Classified by the submitter, so that the owner, which may be a feeder or the watcher, does not
         * have to ask the driver. Without the context the transfer is skipped, whatever its kind. */
        op->kind = s.inside ? mp_cuda_copy_kind(s.stream->cuda, &copies[i]) : MP_CUDA_OP_COPY;
        op->copy = copies[i];
        tick = push_work(&s, op);
    }
    if (!n)
        tick = s.stream->submitted;
    end(&s);
    *out = tick;
    return MOEPAGE_OK;
}

moepage_status mp_cuda_stream_mark(mp_stream *stream, mp_tick *out)
{
    submission s;
    moepage_status status = begin(&s, stream);
    if (status)
        return status;
    mp_cuda_op *op = free_entry(&s);
    op->kind = MP_CUDA_OP_MARK;
    mp_tick tick = push_work(&s, op);
    end(&s);
    *out = tick;
    return MOEPAGE_OK;
}

moepage_status mp_cuda_stream_write32(mp_stream *stream, uint64_t at, uint32_t value)
{
    submission s;
    if (mp_cuda_is_cold(mp_cuda_stream_of(stream)))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s: a cold stream writes no words of the GPU's",
                       mp_cuda_stream_of(stream)->cuda->name);
    moepage_status status = begin(&s, stream);
    if (status)
        return status;
    mp_cuda_op *op = free_entry(&s);
    op->kind = MP_CUDA_OP_WRITE;
    op->write.at = at;
    op->write.value = value;
    push(&s);
    end(&s);
    return MOEPAGE_OK;
}

moepage_status mp_cuda_stream_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    submission s;
    mp_cuda_stream *waited = mp_cuda_stream_of(other);
    /* Work of one stream is in order anyway, and a completed tick stays completed. */
    if (stream == other || mp_cuda_completed(waited) >= tick)
        return MOEPAGE_OK;
    moepage_status status = begin(&s, stream);
    if (status)
        return status;
    mp_cuda_op *op = free_entry(&s);
    op->kind = MP_CUDA_OP_WAIT;
    op->tick = tick;
    op->other = waited;
    mp_cuda_retain(waited); /* the stream may be destroyed before the wait is over */
    push(&s);
    end(&s);
    return MOEPAGE_OK;
}

/* ---- Launches --------------------------------------------------------------------------- */

/* Blocks until the launch with the oldest tables has completed. Gives the lock up meanwhile. */
static void await_tables(submission *s)
{
    mp_cuda_stream *stream = s->stream;
    mp_tick oldest = mp_cuda_tables_oldest(&stream->tables);
    assert(!s->owner && !s->freed.first);
    pthread_mutex_unlock(&stream->lock);
    mp_cuda_await(stream, oldest);
    pthread_mutex_lock(&stream->lock);
}

/* Replaces the ring by a larger one, once the stream has run dry. Rare: the new ring holds several
 * launches of this size. */
static moepage_status grow_tables(submission *s, uint64_t bytes)
{
    mp_cuda_stream *stream = s->stream;
    mp_cuda_tables larger;
    uint64_t size = stream->tables.pinned.bytes;
    while (size < MP_CUDA_TABLES_AHEAD * bytes)
        size *= 2;
    for (mp_tick tick = stream->submitted; mp_cuda_completed(stream) < tick;
         tick = stream->submitted) {
        pthread_mutex_unlock(&stream->lock);
        mp_cuda_await(stream, tick);
        pthread_mutex_lock(&stream->lock);
    }
    if (stream->tables.pinned.bytes >= size) /* another thread's launch was as large */
        return MOEPAGE_OK;
    moepage_status status = mp_cuda_tables_open(stream->cuda, size, &larger);
    if (status)
        return status;
    mp_cuda_tables_close(stream->cuda, &stream->tables);
    stream->tables = larger;
    return MOEPAGE_OK;
}

static moepage_status take_tables(submission *s, uint64_t bytes, mp_cuda_span *out)
{
    mp_cuda_stream *stream = s->stream;
    bool grown = false;
    for (;;) {
        /* An entry first, tables second: waiting for an entry may take long, and
         * releases the lock. */
        free_entry(s);
        const uint64_t size = stream->tables.pinned.bytes;
        if (!grown && bytes > size / MP_CUDA_TABLES_AHEAD) {
            moepage_status status = grow_tables(s, bytes);
            if (status && bytes > size)
                return status;
            grown = true; /* tried once: without memory to grow, the launch waits for the ring */
        } else if (mp_cuda_tables_take(&stream->tables, bytes, stream->submitted + 1,
                                       mp_cuda_completed(stream), out)) {
            return MOEPAGE_OK;
        } else {
            await_tables(s);
        }
    }
}

/* Issues a launch on a stream whose queue is empty: a failure is still the caller's status. Its
 * tables and some of its kernels may be on the stream even so; as the caller gets no tick to wait
 * for, they are waited for here. The launch uses up a tick all the same, with which the tables'
 * room is given back. */
static moepage_status launch_now(submission *s, mp_kernel kernel, const mp_kernel_args *args,
                                 const mp_cuda_span *span)
{
    mp_cuda_stream *stream = s->stream;
    moepage_status status = mp_cuda_issue_launch(stream, kernel, args, span);
    bool refused = status && !mp_cuda_is_poisoned(stream->cuda);
    if (refused)
        mp_cuda_log_failure(stream->cuda, stream->cuda->driver->stream_sync(stream->handle),
                            "waiting for a launch that failed");
    stream->passed = ++stream->submitted;
    mp_cuda_publish(stream, &s->freed);
    return refused ? status : MOEPAGE_OK;
}

moepage_status mp_cuda_stream_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                     mp_tick *out)
{
    submission s;
    mp_cuda_span span;
    mp_kernel_args own = {0};
    mp_cuda *cuda = mp_cuda_stream_of(stream)->cuda;
    assert((uint32_t)kernel < MP_KERNEL_COUNT);
    if (!mp_cuda_runs_kernels(mp_cuda_stream_of(stream)))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%s: a kernel was launched on a stream for transfers; it needs a compute or "
                       "background stream",
                       cuda->name);
    mp_kernel_args_copy(&own, kernel, args);
    moepage_status status =
        kernel == MP_KERNEL_EXPERTS ? mp_cuda_check_experts(cuda, &own.experts) : MOEPAGE_OK;
    if (!status)
        status = begin(&s, stream);
    if (status)
        return status;
    status = take_tables(&s, mp_cuda_tables_need(kernel, &own), &span);
    if (status)
        goto done;
    mp_cuda_tables_fill(&s.stream->tables, &span, kernel, &own);
    /* The queue is empty: nothing has to be done before this launch, so it can be issued
     * within the call. */
    if (!s.stream->owned) {
        status = launch_now(&s, kernel, &own, &span);
    } else {
        mp_cuda_op *op = free_entry(&s);
        op->kind = MP_CUDA_OP_LAUNCH;
        op->kernel = kernel;
        op->launch.args = own;
        op->launch.tables = span;
        push_work(&s, op);
    }
    if (!status)
        *out = s.stream->submitted;
done:
    end(&s);
    return status;
}

/* ---- The caller's streams --------------------------------------------------------------- */

static moepage_status check_native(mp_cuda *cuda, mp_cu_stream native)
{
    int capture = MP_CU_CAPTURE_NONE;
    mp_cu_result result = cuda->driver->stream_capturing(native, &capture);
    if ((result >= CAPTURE_FIRST && result <= CAPTURE_LAST) || capture != MP_CU_CAPTURE_NONE)
        return mp_fail(
            MOEPAGE_E_STATE,
            "%s: the caller's stream is being captured into a graph, where steps have no "
            "place: end the capture first, or use a path (moepage_cuda_path_create)",
            cuda->name);
    return mp_cuda_check(cuda, result, "asking whether a stream is being captured");
}

moepage_status mp_cuda_stream_enter(mp_stream *handle, void *native)
{
    submission s;
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    mp_cuda *cuda = stream->cuda;
    if (mp_cuda_is_cold(stream))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s: a cold stream cannot wait for one of the caller's",
                       cuda->name);
    moepage_status status = begin(&s, handle);
    if (status)
        return status;
    /* Each ENTER in the queue has an event of its own: it must not be recorded again before it is used. */
    while (mp_cuda_is_full(stream) || stream->n_enters == MP_CUDA_ENTERS)
        await_change(&s);
    uint32_t which = stream->next_enter % MP_CUDA_ENTERS;
    if (s.inside) {
        status = check_native(cuda, native);
        if (!status)
            status = mp_cuda_check(cuda, cuda->driver->event_record(stream->enters[which], native),
                                   "marking a stream of the caller's");
        if (!status) {
            mp_cuda_op *op = free_entry(&s);
            op->kind = MP_CUDA_OP_ENTER;
            op->enter = which;
            stream->next_enter++;
            stream->n_enters++;
            push(&s);
        }
    }
    end(&s);
    return status;
}

moepage_status mp_cuda_stream_follow(void *native, mp_stream *handle, mp_tick tick)
{
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    mp_cuda *cuda = stream->cuda;
    if (mp_cuda_is_cold(stream))
        return mp_cuda_stream_sync(handle, tick);
    /* Only an issued tick has an event that the caller's stream can wait for. */
    moepage_status status = mp_cuda_stream_settle(handle, tick);
    if (!status)
        status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = check_native(cuda, native);
    if (!status)
        status = mp_cuda_check(cuda, mp_cuda_wait_on_gpu(stream, tick, native),
                               "making a stream of the caller's wait");
    mp_cuda_leave(cuda);
    return status;
}

/* ---- Waiting ---------------------------------------------------------------------------- */

static moepage_status health(mp_cuda *cuda)
{
    if (!mp_cuda_is_poisoned(cuda))
        return MOEPAGE_OK;
    moepage_status status = mp_cuda_check_health(cuda);
    if (status)
        return status; /* MOEPAGE_OK: another thread is just writing the reason */
    return mp_fail(MOEPAGE_E_DEVICE, "%s: the GPU has failed; the device has to be closed",
                   cuda->name);
}

mp_tick mp_cuda_stream_completed(const mp_stream *stream)
{
    return mp_cuda_completed(mp_cuda_stream_of(stream));
}

moepage_status mp_cuda_stream_settle(mp_stream *handle, mp_tick tick)
{
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    if (mp_cuda_is_cold(stream))
        mp_cuda_await(stream, tick);
    else
        mp_cuda_await_issue(stream, tick);
    return health(stream->cuda);
}

moepage_status mp_cuda_stream_sync(mp_stream *handle, mp_tick tick)
{
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    mp_cuda_await(stream, tick);
    return health(stream->cuda);
}

moepage_status mp_cuda_stream_ask(mp_stream *handle)
{
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    if (!mp_cuda_is_cold(stream))
        mp_cuda_query(stream);
    return health(stream->cuda);
}

void mp_cuda_post(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task)
{
    if (stream)
        mp_cuda_watch_post(mp_cuda_stream_of(stream), tick, task);
    else
        mp_executor_post(mp_cuda_of(device)->executor, NULL, 0, task);
}
