/* Creating and destroying streams, and the threads that they need. */
#include "base/alloc.h"
#include "base/status.h"
#include "issue.h"
#include "submit.h"

#define WORD_BYTES 64u /* a cache line per stream */

/* ---- Creating --------------------------------------------------------------------------- */

static moepage_status take_word(mp_cuda_stream *stream)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    uint32_t slot = 0;
    pthread_mutex_lock(&issuer->lock);
    while (slot < MP_CUDA_STREAMS && (issuer->taken[slot / 64] >> slot % 64 & 1))
        slot++;
    if (slot < MP_CUDA_STREAMS)
        issuer->taken[slot / 64] |= 1ull << slot % 64;
    pthread_mutex_unlock(&issuer->lock);
    if (slot == MP_CUDA_STREAMS)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: %u streams are all that a device has",
                       stream->cuda->name, MP_CUDA_STREAMS);
    /* The word of a COLD stream is written by the executor, not by the GPU: it needs no pinned memory. */
    stream->slot = slot;
    stream->word = mp_cuda_is_cold(stream)
                       ? &stream->done
                       : (void *)((char *)issuer->words.host + slot * WORD_BYTES);
    stream->word_gpu = issuer->words.device + slot * WORD_BYTES;
    atomic_store(stream->word, 0);
    return MOEPAGE_OK;
}

/* Context current. */
static moepage_status create_handles(mp_cuda_stream *stream)
{
    mp_cuda *cuda = stream->cuda;
    /* Work that a step waits for goes before work ahead of need, on the GPU and in the feeders. */
    bool urgent = stream->cls == MP_STREAM_COMPUTE || stream->cls == MP_STREAM_DEMAND;
    int priority = urgent ? cuda->issuer->greatest : cuda->issuer->least;
    moepage_status status =
        mp_cuda_check(cuda,
                      cuda->driver->stream_create(&stream->handle, MP_CU_STREAM_NON_BLOCKING,
                                                  priority),
                      "creating a stream");
    for (uint32_t i = 0; i < MP_CUDA_EVENTS && !status; i++)
        status = mp_cuda_event_create(cuda, &stream->events[i]);
    for (uint32_t i = 0; i < MP_CUDA_ENTERS && !status; i++)
        status = mp_cuda_event_create(cuda, &stream->enters[i]);
    if (!status)
        status = mp_cuda_event_create(cuda, &stream->pause);
    if (!status && mp_cuda_runs_kernels(stream))
        status = mp_cuda_tables_open(cuda, MP_CUDA_TABLES_BYTES, &stream->tables);
    stream->inbox = mp_cuda_feeder_inbox(cuda->issuer->feeders[urgent ? 0 : 1]);
    return status;
}

static moepage_status create_on_gpu(mp_cuda_stream *stream)
{
    moepage_status status = mp_cuda_enter(stream->cuda);
    if (status)
        return status;
    status = create_handles(stream);
    mp_cuda_leave(stream->cuda);
    return status;
}

static moepage_status create_cold(mp_cuda_stream *stream)
{
    moepage_status status = mp_stream_create(stream->cuda->executor, MP_STREAM_COLD, &stream->cold);
    if (!status)
        mp_stream_on_progress(stream->cold, mp_cuda_cold_progress, stream);
    return status;
}

/* With the locks: other threads may be about to use a handle or an event (watcher's query,
 * mp_cuda_wait_on_gpu). Context current. */
static void destroy_handles(mp_cuda_stream *stream)
{
    mp_cuda *cuda = stream->cuda;
    pthread_mutex_lock(&stream->lock);
    if (stream->handle && mp_cuda_is_silent(stream)) /* its ticks do not tell what has run */
        mp_cuda_log_failure(cuda, cuda->driver->stream_sync(stream->handle),
                            "waiting for a stream");
    if (stream->handle)
        mp_cuda_log_failure(cuda, cuda->driver->stream_destroy(stream->handle),
                            "giving back a stream");
    stream->handle = NULL;
    for (uint32_t i = 0; i < MP_CUDA_ENTERS; i++)
        mp_cuda_event_destroy(cuda, &stream->enters[i]);
    mp_cuda_event_destroy(cuda, &stream->pause);
    pthread_mutex_lock(&stream->events_lock);
    stream->n_events = 0;
    for (uint32_t i = 0; i < MP_CUDA_EVENTS; i++)
        mp_cuda_event_destroy(cuda, &stream->events[i]);
    pthread_mutex_unlock(&stream->events_lock);
    pthread_mutex_unlock(&stream->lock);
}

/* Frees all but the struct, which other streams' waits may refer to. */
static void destroy_parts(mp_cuda_stream *stream)
{
    if (stream->cold)
        mp_stream_destroy(stream->cold);
    if (mp_cuda_is_cold(stream))
        return;
    if (mp_cuda_enter(stream->cuda) == MOEPAGE_OK) {
        destroy_handles(stream);
        mp_cuda_leave(stream->cuda);
    }
    mp_cuda_tables_close(stream->cuda, &stream->tables);
}

moepage_status mp_cuda_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    mp_cuda *cuda = mp_cuda_of(device);
    mp_cuda_stream *stream = mp_alloc(sizeof *stream);
    if (!stream)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: no memory for a stream of %zu bytes", cuda->name,
                       sizeof *stream);
    stream->cuda = cuda;
    stream->cls = cls;
    moepage_status status = take_word(stream);
    if (status) {
        mp_free(stream);
        return status;
    }
    atomic_init(&stream->references, 1);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_mutex_init(&stream->events_lock, NULL);
    pthread_cond_init(&stream->progress, NULL);
    status = cls == MP_STREAM_COLD ? create_cold(stream) : create_on_gpu(stream);
    if (status) {
        destroy_parts(stream);
        mp_cuda_release(stream);
        return status;
    }
    *out = (mp_stream *)(void *)stream;
    return MOEPAGE_OK;
}

/* ---- Destroying ------------------------------------------------------------------------- */

/* Drops waits that no work follows: nothing depends on them, and their ticks may never come. Only
 * while the stream is parked; any other owner is about to pass them. Called with the lock. */
static void drop_waits(mp_cuda_stream *stream)
{
    for (uint32_t i = stream->tail; i != stream->head; i++) {
        mp_cuda_op_kind kind = stream->queue[i % MP_CUDA_QUEUE].kind;
        if (kind != MP_CUDA_OP_WAIT && kind != MP_CUDA_OP_ENTER)
            return;
    }
    if (!stream->owned || mp_cuda_oldest(stream)->kind != MP_CUDA_OP_WAIT)
        return;
    mp_cuda_stream *other = mp_cuda_oldest(stream)->other;
    mp_cuda_issuer *issuer = other->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    bool parked = mp_cuda_list_remove(&other->until_issued, stream) ||
                  mp_cuda_list_remove(&other->until_completed, stream);
    pthread_mutex_unlock(&issuer->lock);
    if (!parked)
        return;
    for (; stream->tail != stream->head; stream->tail++) {
        mp_cuda_op *op = mp_cuda_oldest(stream);
        if (op->kind == MP_CUDA_OP_WAIT)
            mp_cuda_release(op->other);
    }
    stream->n_enters = 0;
    stream->owned = false;
}

/* Waits until the stream has no work, no task and no owner. In a loop, because a task may submit and
 * post more. */
static void run_dry(mp_cuda_stream *stream)
{
    bool dry;
    do {
        pthread_mutex_lock(&stream->lock);
        mp_tick tick = stream->submitted;
        pthread_mutex_unlock(&stream->lock);
        mp_cuda_await(stream, tick);
        mp_cuda_watch_drain(stream);
        pthread_mutex_lock(&stream->lock);
        drop_waits(stream);
        stream->waiters++;
        while (stream->owned)
            pthread_cond_wait(&stream->progress, &stream->lock);
        stream->waiters--;
        dry = stream->submitted == tick;
        pthread_mutex_unlock(&stream->lock);
    } while (!dry);
}

void mp_cuda_stream_destroy(mp_stream *handle)
{
    mp_cuda_stream *stream = mp_cuda_stream_of(handle);
    mp_cuda_list freed = {0};
    mp_tick last = 0;
    if (!mp_cuda_is_cold(stream)) /* covers WRITEs, which have no ticks of their own */
        (void)mp_cuda_stream_mark(handle, &last);
    run_dry(stream);
    mp_cuda_watch_remove(stream, &freed);
    mp_cuda_pump_all(&freed);
    destroy_parts(stream);
    mp_cuda_release(stream);
}

/* ---- Feeders and watcher ---------------------------------------------------------------- */

static moepage_status check_gpu(mp_cuda *cuda)
{
    int writes = 0;
    moepage_status status =
        mp_cuda_check(cuda,
                      cuda->driver->device_attribute(&writes, MP_CU_ATTR_STREAM_MEM_OPS_64,
                                                     cuda->gpu),
                      "asking for an attribute of the GPU");
    if (!status && !writes)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: streams of %s cannot write 64-bit words to memory "
                       "(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS is 0), as under WDDM: "
                       "Linux, or the TCC driver, is needed",
                       cuda->name, cuda->info.name);
    return status;
}

static void init_locks(mp_cuda_issuer *issuer)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&issuer->lock, NULL);
    pthread_cond_init(&issuer->tasks_ran, NULL);
    pthread_cond_init(&issuer->watch, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static moepage_status start_threads(mp_cuda *cuda)
{
    mp_cuda_issuer *issuer = cuda->issuer;
    moepage_status status =
        mp_cuda_feeder_create(cuda, NULL, "mp-feed-urgent", &issuer->feeders[0]);
    if (!status)
        status = mp_cuda_feeder_create(cuda, issuer->feeders[0], "mp-feed", &issuer->feeders[1]);
    if (!status)
        status = mp_cuda_watch_start(cuda);
    return status;
}

moepage_status mp_cuda_issuer_create(mp_cuda *cuda)
{
    moepage_status status = check_gpu(cuda);
    if (status)
        return status;
    mp_cuda_issuer *issuer = mp_alloc(sizeof *issuer);
    if (!issuer)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: no memory for the device's streams", cuda->name);
    init_locks(issuer);
    cuda->issuer = issuer;
    status = mp_cuda_enter(cuda);
    if (!status) {
        status =
            mp_cuda_check(cuda, cuda->driver->priority_range(&issuer->least, &issuer->greatest),
                          "asking for priorities");
        mp_cuda_leave(cuda);
    }
    if (!status)
        status = mp_cuda_shared_alloc(&cuda->device, MP_CUDA_STREAMS * WORD_BYTES, &issuer->words);
    if (!status)
        status = start_threads(cuda);
    if (status)
        mp_cuda_issuer_destroy(cuda);
    return status;
}

void mp_cuda_issuer_destroy(mp_cuda *cuda)
{
    mp_cuda_issuer *issuer = cuda->issuer;
    if (!issuer)
        return;
    /* In this order: the watcher pumps streams into feeders, and the second feeder refers to the first. */
    mp_cuda_watch_stop(cuda);
    mp_cuda_feeder_destroy(issuer->feeders[1]);
    mp_cuda_feeder_destroy(issuer->feeders[0]);
    mp_cuda_shared_free(&cuda->device, &issuer->words);
    pthread_cond_destroy(&issuer->watch);
    pthread_cond_destroy(&issuer->tasks_ran);
    pthread_mutex_destroy(&issuer->lock);
    mp_free(issuer);
    cuda->issuer = NULL;
}
