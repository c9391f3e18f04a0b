/* A stream's queue: passing entries to the driver as soon as they may go, and publishing
 * the driver's progress. */
#include "issue.h"

#include <assert.h>
#include <stdio.h>

#include "base/status.h"
#include "device/thread.h"
#include "launch.h"

/* Transfers that go to the driver in one call. */
#define GROUP 32u

#define SPIN_NS 20000u  /* before a thread that waits for a tick sleeps */
#define SLEEP_NS 50000u /* of one that has no event to sleep on */

/* ---- Failures --------------------------------------------------------------------------- */

void mp_cuda_fail_copy(mp_cuda *cuda, const mp_copy *copy, moepage_status status)
{
    char said[200];
    if (copy->result) {
        atomic_store(copy->result, status);
        return;
    }
    snprintf(said, sizeof said,
             "%s: a transfer of %llu bytes (layer %u, expert %u, tensor %u) failed with code %d",
             cuda->name, (unsigned long long)copy->bytes, copy->fill_key[0], copy->fill_key[1],
             copy->fill_key[2], status);
    mp_cuda_poison(cuda, MOEPAGE_E_DEVICE, said);
}

bool mp_cuda_is_poisoned(mp_cuda *cuda)
{
    if (atomic_load(&cuda->health.failing))
        return true;
    /* COLD transfers run in the executor, which only stores a status (pump_cold). The device is
     * poisoned here, where work that may depend on them is about to be issued. */
    int32_t failed = atomic_load(&cuda->issuer->cold_failed);
    if (!failed)
        return false;
    char said[100];
    snprintf(said, sizeof said, "%s: a read into host memory failed with code %d", cuda->name,
             failed);
    mp_cuda_poison(cuda, MOEPAGE_E_DEVICE, said);
    return true;
}

/* Reports a skipped transfer, where it has a `result`. */
static void skip_copy(const mp_copy *copy)
{
    if (copy->result)
        atomic_store(copy->result, MOEPAGE_E_DEVICE);
}

/* ---- The context ------------------------------------------------------------------------ */

bool mp_cuda_enter_for(mp_cuda_stream *stream)
{
    if (mp_cuda_is_cold(stream))
        return false;
    moepage_status status = mp_cuda_enter(stream->cuda);
    if (!status)
        return true;
    /* Without the context the owner cannot issue, but it must go on: entries are skipped and ticks
     * complete, or threads would wait for ever. */
    mp_cuda_poison_on(stream->cuda, status);
    atomic_store(&stream->broken, true);
    return false;
}

/* ---- Publishing ------------------------------------------------------------------------- */

/* Wakes threads that wait for a change of the stream. With the lock. */
static void wake(mp_cuda_stream *stream)
{
    if (stream->waiters)
        pthread_cond_broadcast(&stream->progress);
}

/* Events come from a ring: a stream that waits for a tick whose event has been reused waits for a later
 * one, which covers the tick too. The lock keeps an event from being recorded anew between the choice
 * and the wait. */
static mp_cu_result record_event(mp_cuda_stream *stream, mp_tick tick)
{
    pthread_mutex_lock(&stream->events_lock);
    uint32_t next = stream->n_events % MP_CUDA_EVENTS;
    mp_cu_result result = stream->cuda->driver->event_record(stream->events[next], stream->handle);
    if (!result) {
        stream->event_ticks[next] = tick;
        stream->n_events++;
    }
    pthread_mutex_unlock(&stream->events_lock);
    return result;
}

/* Makes the GPU write a tick behind the stream's work. If that fails, the stream is waited for
 * until it has run dry and is silent from then on: all that it has issued counts as completed. */
static void write_tick(mp_cuda_stream *stream, mp_tick tick)
{
    mp_cuda *cuda = stream->cuda;
    mp_cu_result result = cuda->driver->stream_write64(stream->handle, stream->word_gpu, tick, 0);
    if (!result)
        result = record_event(stream, tick);
    if (!result)
        return;
    mp_cuda_poison_on(cuda, mp_cuda_check(cuda, result, "marking a stream's progress"));
    mp_cuda_log_failure(cuda, cuda->driver->stream_sync(stream->handle), "waiting for a stream");
    atomic_store(&stream->broken, true);
}

void mp_cuda_publish(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    mp_tick tick = stream->passed;
    if (tick == atomic_load_explicit(&stream->issued, memory_order_relaxed)) /* nothing new */
        return;
    /* In this order: the word before `issued`, so that a wait for an issued tick finds its event;
     * `issued` before the list is searched, so that a stream that parks meanwhile sees it. */
    if (!mp_cuda_is_cold(stream) && !mp_cuda_is_silent(stream))
        write_tick(stream, tick);
    atomic_store_explicit(&stream->issued, tick, memory_order_release);
    wake(stream);
    pthread_mutex_lock(&issuer->lock);
    mp_cuda_list_split(&stream->until_issued, tick, freed);
    pthread_mutex_unlock(&issuer->lock);
}

/* ---- Transfers -------------------------------------------------------------------------- */

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Returns true if two copies must not be in one batch, because a batch's copies run
 * in any order. */
static bool conflict(const mp_copy *a, const mp_copy *b)
{
    return overlap(a->dst, a->bytes, b->dst, b->bytes) ||
           overlap(a->dst, a->bytes, b->src, b->bytes) ||
           overlap(a->src, a->bytes, b->dst, b->bytes);
}

/* The longest part of the copy from `done` on whose source and destination each lie in one
 * registration with the driver. */
static uint64_t part_bytes(const mp_cuda *cuda, const mp_copy *copy, uint64_t done)
{
    uint64_t dst = (uintptr_t)copy->dst + done, src = (uintptr_t)copy->src + done;
    uint64_t to_dst = mp_cuda_pin_end(cuda, dst) - dst, to_src = mp_cuda_pin_end(cuda, src) - src;
    uint64_t to_end = to_dst < to_src ? to_dst : to_src;
    return to_end < copy->bytes - done ? to_end : copy->bytes - done;
}

/* Collects the oldest copies that can go in one call; a copy that has to be cut goes alone. */
static uint32_t gather(mp_cuda_stream *stream, const mp_copy *group[GROUP])
{
    const uint32_t most = stream->cuda->driver->copy_batch ? GROUP : 1;
    uint32_t n = 0;
    for (; n < most && stream->tail + n != stream->head; n++) {
        const mp_cuda_op *op = &stream->queue[(stream->tail + n) % MP_CUDA_QUEUE];
        if (op->kind != MP_CUDA_OP_COPY)
            break;
        bool whole = part_bytes(stream->cuda, &op->copy, 0) == op->copy.bytes;
        if (!whole && n)
            break;
        for (uint32_t i = 0; i < n; i++) {
            if (conflict(group[i], &op->copy))
                return n;
        }
        group[n] = &op->copy;
        if (!whole)
            return 1;
    }
    return n;
}

static mp_cu_result copy_batch(mp_cuda_stream *stream, const mp_copy *const *group, uint32_t n)
{
    mp_cu_copy_attributes attributes = {.source_order = MP_CU_SOURCE_ORDER_STREAM};
    mp_cu_ptr to[GROUP], from[GROUP];
    size_t bytes[GROUP], first = 0, failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        to[i] = (mp_cu_ptr)(uintptr_t)group[i]->dst;
        from[i] = (mp_cu_ptr)(uintptr_t)group[i]->src;
        bytes[i] = group[i]->bytes;
    }
    return stream->cuda->driver->copy_batch(to, from, bytes, n, &attributes, &first, 1, &failed,
                                            stream->handle);
}

static mp_cu_result copy_one(mp_cuda_stream *stream, const mp_copy *copy)
{
    mp_cuda *cuda = stream->cuda;
    const mp_cu_ptr dst = (uintptr_t)copy->dst, src = (uintptr_t)copy->src;
    mp_cu_result result = MP_CU_SUCCESS;
    uint64_t bytes;
    for (uint64_t done = 0; done < copy->bytes && !result; done += bytes) {
        bytes = part_bytes(cuda, copy, done);
        result = cuda->driver->copy(dst + done, src + done, bytes, stream->handle);
    }
    return result;
}

static void pop_n(mp_cuda_stream *stream, uint32_t n)
{
    uint32_t before = stream->head - stream->tail;
    stream->tail += n;
    /* Submitters that wait for room are woken once, when half of the queue is free. */
    if (before > MP_CUDA_QUEUE / 2 && before - n <= MP_CUDA_QUEUE / 2)
        wake(stream);
}

void mp_cuda_pop_op(mp_cuda_stream *stream)
{
    pop_n(stream, 1);
}

static mp_cu_result copy_group(mp_cuda_stream *stream, const mp_copy *const *group, uint32_t n)
{
    const mp_cuda_ranges *ranges = stream->cuda->ranges;
    const char *range = mp_cuda_transfer_range(stream);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n && ranges; i++)
        bytes += group[i]->bytes;
    mp_cuda_range_push(ranges, range, bytes);
    mp_cu_result result = n == 1 ? copy_one(stream, group[0]) : copy_batch(stream, group, n);
    mp_cuda_range_pop(ranges, range);
    return result;
}

static void issue_copies(mp_cuda_stream *stream)
{
    mp_cuda *cuda = stream->cuda;
    const mp_copy *group[GROUP] = {NULL};
    uint32_t n = gather(stream, group);
    assert(n > 0);
    if (mp_cuda_is_poisoned(cuda)) { /* ticks of skipped work still complete */
        for (uint32_t i = 0; i < n; i++)
            skip_copy(group[i]);
    } else {
        moepage_status status = mp_cuda_check(cuda, copy_group(stream, group, n), "a transfer");
        for (uint32_t i = 0; i < n && status; i++)
            mp_cuda_fail_copy(cuda, group[i], status);
    }
    stream->passed = stream->queue[(stream->tail + n - 1) % MP_CUDA_QUEUE].tick;
    pop_n(stream, n);
}

/* ---- Kernels ---------------------------------------------------------------------------- */

static moepage_status launch(mp_cuda_stream *stream, mp_kernel kernel, const mp_kernel_args *host,
                             const mp_kernel_args *gpu)
{
    mp_cuda *cuda = stream->cuda;
    switch (kernel) {
    case MP_KERNEL_CONVERT: return mp_cuda_launch_convert(cuda, stream->handle, &gpu->convert);
    case MP_KERNEL_EXPERTS:
        return mp_cuda_launch_experts(cuda, stream->handle, &host->experts, &gpu->experts);
    case MP_KERNEL_COMBINE:
        return mp_cuda_launch_combine(cuda, stream->handle, &host->combine, &gpu->combine, NULL);
    case MP_KERNEL_DECODE:
        return mp_cuda_launch_decode(cuda, stream->handle, &host->decode, &gpu->decode);
    case MP_KERNEL_LINEAR:
    case MP_KERNEL_COUNT: break;
    }
    return mp_fail(MOEPAGE_E_ARGUMENT, "%s: there is no kernel %d", cuda->name, (int)kernel);
}

/* The range that a profiler shows a kernel in, or NULL. */
static const char *range_of(mp_kernel kernel)
{
    return kernel == MP_KERNEL_DECODE    ? MP_CUDA_RANGE_DECODE
           : kernel == MP_KERNEL_EXPERTS ? MP_CUDA_RANGE_EXPERTS
                                         : NULL;
}

/* Drops the jobs to be skipped from the launch's own table, and returns how many are left. */
static uint32_t drop_skipped(const mp_kernel_decode_args *args)
{
    mp_decode_job *jobs = (mp_decode_job *)(uintptr_t)args->jobs;
    uint32_t n = 0;
    for (uint32_t i = 0; i < args->n_jobs; i++)
        if (!mp_decode_skips(args, i))
            jobs[n++] = jobs[i];
    return n;
}

/* A launch is issued only when the ticks that it waits for are, and by then a failed transfer before
 * it has set its result: those read here are final. */
moepage_status mp_cuda_issue_launch(mp_cuda_stream *stream, mp_kernel kernel,
                                    const mp_kernel_args *args, const mp_cuda_span *tables)
{
    mp_cuda *cuda = stream->cuda;
    mp_kernel_args host = *args, gpu;
    if (mp_cuda_is_poisoned(cuda))
        return MOEPAGE_OK;
    if (kernel == MP_KERNEL_DECODE) {
        host.decode.n_jobs = drop_skipped(&args->decode);
        if (host.decode.n_jobs == 0)
            return MOEPAGE_OK;
    }
    moepage_status status =
        mp_cuda_tables_send(cuda, &stream->tables, tables, stream->handle, kernel, &host, &gpu);
    if (status)
        return status;
    const char *range = range_of(kernel);
    uint64_t amount = 0;
    if (range)
        amount = kernel == MP_KERNEL_DECODE ? host.decode.n_jobs : host.experts.n_experts;
    mp_cuda_range_push(cuda->ranges, range, amount);
    status = launch(stream, kernel, &host, &gpu);
    mp_cuda_range_pop(cuda->ranges, range);
    return status;
}

/* ---- Waits ------------------------------------------------------------------------------ */

/* The oldest event recorded at or after the tick, or NULL. With events_lock. */
static mp_cu_event event_covering(const mp_cuda_stream *stream, mp_tick tick)
{
    uint64_t first = stream->n_events < MP_CUDA_EVENTS ? 0 : stream->n_events - MP_CUDA_EVENTS;
    mp_cu_event event = NULL;
    for (uint64_t i = stream->n_events; i-- > first;) {
        if (stream->event_ticks[i % MP_CUDA_EVENTS] < tick)
            break;
        event = stream->events[i % MP_CUDA_EVENTS];
    }
    return event;
}

mp_cu_result mp_cuda_wait_on_gpu(mp_cuda_stream *other, mp_tick tick, mp_cu_stream handle)
{
    mp_cu_result result = MP_CU_SUCCESS;
    if (mp_cuda_completed(other) >= tick)
        return result;
    pthread_mutex_lock(&other->events_lock);
    mp_cu_event event = event_covering(other, tick);
    if (event) /* no event: the stream has been destroyed meanwhile, and its work was done before */
        result = other->cuda->driver->stream_wait(handle, event, 0);
    pthread_mutex_unlock(&other->events_lock);
    return result;
}

/* Asks the driver for what another GPU's stream was to be waited for. Returns true if that GPU is lost. */
static bool other_is_lost(mp_cuda_stream *other, mp_tick tick)
{
    mp_cuda *cuda = other->cuda;
    mp_cu_result result = MP_CU_SUCCESS;
    if (mp_cuda_enter(cuda) == MOEPAGE_OK) {
        pthread_mutex_lock(&other->events_lock);
        mp_cu_event event = event_covering(other, tick);
        if (event)
            result = cuda->driver->event_query(event);
        pthread_mutex_unlock(&other->events_lock);
        if (result != MP_CU_NOT_READY)
            mp_cuda_check(cuda, result, "asking for work that another GPU waits for");
        mp_cuda_leave(cuda);
    }
    return atomic_load(&cuda->health.lost);
}

/* Makes the stream wait on the GPU. A failure of which another GPU has died is that one's alone: this one goes
 * on without what it waited for, and whoever asks after the other is told. */
static void wait_on_gpu(mp_cuda_stream *stream, mp_cuda_stream *other, mp_tick tick)
{
    mp_cuda *cuda = stream->cuda;
    mp_cu_result result = mp_cuda_wait_on_gpu(other, tick, stream->handle);
    if (result && other->cuda != cuda && other_is_lost(other, tick))
        return;
    mp_cuda_poison_on(cuda, mp_cuda_check(cuda, result, "waiting for another stream"));
}

/* Passes a WAIT. Returns false if the stream has been parked, and is no longer the caller's. */
static bool pass_wait(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    mp_cuda_stream *other = mp_cuda_oldest(stream)->other;
    mp_tick tick = mp_cuda_oldest(stream)->tick;
    mp_cuda_publish(stream, freed); /* work before the wait must not be held back by it */
    if (mp_cuda_completed(other) < tick) {
        /* The GPU can wait for the GPU. If one side is the host's, the queue waits in
         * software until the tick has completed; if the tick is not issued yet, there is no
         * event to wait for. */
        bool across = mp_cuda_is_cold(stream) || mp_cuda_is_cold(other);
        if (across ? mp_cuda_park_until_completed(stream, other, tick)
                   : mp_cuda_park_until_issued(stream, other, tick))
            return false;
        if (!across && !mp_cuda_is_silent(stream))
            wait_on_gpu(stream, other, tick);
    }
    mp_cuda_pop_op(stream);
    mp_cuda_release(other);
    return true;
}

static void pass_enter(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    mp_cuda *cuda = stream->cuda;
    /* Recorded on the caller's stream when `enter` was called, so that a later change of that stream does
     * not count. */
    mp_cu_event event = stream->enters[mp_cuda_oldest(stream)->enter];
    mp_cuda_publish(stream, freed);
    if (!mp_cuda_is_silent(stream))
        mp_cuda_poison_on(cuda,
                          mp_cuda_check(cuda, cuda->driver->stream_wait(stream->handle, event, 0),
                                        "waiting for a stream of the caller's"));
    stream->n_enters--;
    mp_cuda_pop_op(stream);
    wake(stream);
}

static void issue_write(mp_cuda_stream *stream)
{
    mp_cuda *cuda = stream->cuda;
    const mp_cuda_op *op = mp_cuda_oldest(stream);
    if (!mp_cuda_is_poisoned(cuda))
        mp_cuda_poison_on(cuda,
                          mp_cuda_check(cuda,
                                        cuda->driver->stream_write32(stream->handle, op->write.at,
                                                                     op->write.value, 0),
                                        "writing a word"));
    mp_cuda_pop_op(stream);
}

/* ---- The pump --------------------------------------------------------------------------- */

/* Issues the oldest entry. Returns false if the stream has been handed over. */
static bool pump_gpu(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    mp_cuda_op *op = mp_cuda_oldest(stream);
    switch (op->kind) {
    case MP_CUDA_OP_COPY: issue_copies(stream); return true;
    case MP_CUDA_OP_UPLOAD:
    case MP_CUDA_OP_DOWNLOAD:
    case MP_CUDA_OP_HOST:
        /* From mp_cuda_feed on the feeder owns the stream, though this thread still has its lock. */
        mp_cuda_publish(stream, freed);
        mp_cuda_feed(stream->inbox, stream);
        return false;
    case MP_CUDA_OP_LAUNCH:
        mp_cuda_poison_on(stream->cuda, mp_cuda_issue_launch(stream, op->kernel, &op->launch.args,
                                                             &op->launch.tables));
        break;
    case MP_CUDA_OP_MARK: break;
    case MP_CUDA_OP_WRITE: issue_write(stream); return true;
    case MP_CUDA_OP_WAIT: return pass_wait(stream, freed);
    case MP_CUDA_OP_ENTER: pass_enter(stream, freed); return true;
    }
    stream->passed = op->tick;
    mp_cuda_pop_op(stream);
    return true;
}

/* Like pump_gpu, for a COLD stream: an entry is issued when the executor's stream has it. */
static bool pump_cold(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    mp_cuda_op *op = mp_cuda_oldest(stream);
    mp_tick tick = 0;
    if (op->kind == MP_CUDA_OP_WAIT)
        return pass_wait(stream, freed);
    if (stream->passed - mp_cuda_completed(stream) >= MP_CUDA_COLD_DEPTH) {
        mp_cuda_publish(stream, freed);
        if (mp_cuda_park_until_room(stream))
            return false;
    }
    stream->passed = op->tick; /* before the executor may complete it, on another thread */
    if (op->kind == MP_CUDA_OP_MARK) {
        mp_stream_mark(stream->cold, &tick);
    } else {
        mp_copy copy = op->copy;
        /* A failure must reach this device, not the executor, which would be poisoned in its stead. */
        if (!copy.result)
            copy.result = &stream->cuda->issuer->cold_failed;
        mp_stream_copy(stream->cold, &copy, 1, &tick);
    }
    assert(tick == op->tick); /* both count the same submissions: no table from one to the other */
    mp_cuda_pop_op(stream);
    return true;
}

void mp_cuda_pump(mp_cuda_stream *stream, mp_cuda_list *freed)
{
    assert(stream->owned);
    while (stream->tail != stream->head) {
        if (!(mp_cuda_is_cold(stream) ? pump_cold : pump_gpu)(stream, freed))
            return;
    }
    mp_cuda_publish(stream, freed);
    stream->owned = false; /* the next submission owns it, and issues within its call */
    wake(stream);
}

/* A loop, not a recursion: chains of streams that wait for each other may be long. No stream's lock
 * is held from one stream to the next, so that two are never held at once. */
void mp_cuda_pump_all(mp_cuda_list *freed)
{
    mp_cuda_stream *stream;
    while ((stream = mp_cuda_list_take(freed))) {
        mp_cuda *cuda = stream->cuda;
        /* While this thread owns the stream its device cannot be closed; from then on by this count. */
        atomic_fetch_add(&cuda->guests, 1);
        bool inside = mp_cuda_enter_for(stream);
        pthread_mutex_lock(&stream->lock);
        mp_cuda_pump(stream, freed);
        pthread_mutex_unlock(&stream->lock);
        if (inside)
            mp_cuda_leave(cuda);
        atomic_fetch_sub(&cuda->guests, 1);
    }
}

/* ---- Asking ----------------------------------------------------------------------------- */

void mp_cuda_query(mp_cuda_stream *stream)
{
    mp_cuda *cuda = stream->cuda;
    mp_cu_result result = MP_CU_SUCCESS;
    if (mp_cuda_enter(cuda))
        return;
    pthread_mutex_lock(&stream->lock);
    if (stream->handle) /* NULL once the stream is being destroyed */
        result = cuda->driver->stream_query(stream->handle);
    pthread_mutex_unlock(&stream->lock);
    if (result != MP_CU_NOT_READY)
        mp_cuda_check(cuda, result, "asking after a stream");
    mp_cuda_leave(cuda);
}

/* ---- Waiting on the CPU ----------------------------------------------------------------- */

void mp_cuda_await_issue(mp_cuda_stream *stream, mp_tick tick)
{
    if (atomic_load_explicit(&stream->issued, memory_order_acquire) >= tick)
        return;
    pthread_mutex_lock(&stream->lock);
    assert(tick <= stream->submitted);
    stream->waiters++;
    while (atomic_load_explicit(&stream->issued, memory_order_acquire) < tick)
        pthread_cond_wait(&stream->progress, &stream->lock);
    stream->waiters--;
    pthread_mutex_unlock(&stream->lock);
}

/* Sleeps on the event that covers the tick; for SLEEP_NS if there is none, or it cannot be waited for:
 * the caller looks again. */
static void sleep_for(mp_cuda_stream *stream, mp_tick tick)
{
    mp_cuda *cuda = stream->cuda;
    bool slept = false;
    if (mp_cuda_enter(cuda) == MOEPAGE_OK) {
        pthread_mutex_lock(&stream->events_lock);
        mp_cu_event event = event_covering(stream, tick);
        pthread_mutex_unlock(&stream->events_lock);
        slept = event && !mp_cuda_check(cuda, cuda->driver->event_sync(event), "waiting for work");
        mp_cuda_leave(cuda);
    }
    if (!slept)
        mp_clock_wait(mp_clock_ns() + SLEEP_NS);
}

void mp_cuda_await(mp_cuda_stream *stream, mp_tick tick)
{
    /* Only an issued tick has an event, and only the executor's stream can wait for a COLD one. */
    mp_cuda_await_issue(stream, tick);
    if (mp_cuda_is_cold(stream)) {
        mp_stream_sync(stream->cold, tick);
        return;
    }
    if (mp_cuda_completed(stream) >= tick)
        return;
    /* A spin first: most waits are for work that is nearly done, and an event costs a wake-up. */
    uint64_t until_ns = mp_clock_ns() + SPIN_NS;
    while (mp_cuda_completed(stream) < tick && mp_clock_ns() < until_ns)
        mp_thread_relax();
    while (mp_cuda_completed(stream) < tick)
        sleep_for(stream, tick);
}
