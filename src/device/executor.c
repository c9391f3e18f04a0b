/* The threads of the host device, and what they and their callers do with the lock held.
 *
 * One lock guards all bookkeeping. It is not held while bytes move, a kernel runs or a callback is
 * called, except for on_progress. The bus lane and the compute lane are one operation wide: a
 * thread that runs an operation is alone in its lane. */
#include "device/executor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/bus.h"
#include "device/host_decode.h"
#include "device/stream.h"
#include "device/thread.h"

/* The least work (see mp_host_kernel_work and mp_host_decode_work) that is worth a part of
 * its own: about 10 us of one AVX-512 core, which is what waking a sleeping thread costs in
 * a virtual machine. */
static const uint64_t
    work_per_part[MP_KERNEL_COUNT] =
        {
            [MP_KERNEL_CONVERT] = 100000, [MP_KERNEL_EXPERTS] = 2000000,
            [MP_KERNEL_COMBINE] = 100000, [MP_KERNEL_LINEAR] = 2000000,
            [MP_KERNEL_DECODE] = 65536, /* one chunk: nothing smaller can be handed out */
};

/* There are more parts than threads, so that other threads claim what a late or slow
 * one does not. */
#define PARTS_PER_THREAD 4u

typedef enum mp_lane_kind { MP_LANE_BUS, MP_LANE_COMPUTE, MP_LANE_COLD, MP_LANES } mp_lane_kind;

/* The lane that runs the streams of a class, and which of the lane's two queues they are in. */
static const struct {
    mp_lane_kind lane;
    uint32_t urgency;
} classes[] = {
    [MP_STREAM_COMPUTE] = {MP_LANE_COMPUTE, 0}, [MP_STREAM_BACKGROUND] = {MP_LANE_COMPUTE, 1},
    [MP_STREAM_DEMAND] = {MP_LANE_BUS, 0},      [MP_STREAM_PREFETCH] = {MP_LANE_BUS, 1},
    [MP_STREAM_COLD] = {MP_LANE_COLD, 0},
};

typedef struct mp_lane_thread {
    mp_executor *executor;
    mp_lane *lane;
    pthread_t thread;
} mp_lane_thread;

struct mp_executor {
    pthread_mutex_t lock;
    mp_lane lanes[MP_LANES];
    mp_worker worker;
    mp_team *team;
    uint32_t team_size;
    const mp_host_kernel_set *kernels;
    const mp_exph_decoder *decoder;
    const mp_far_memory *far;
    mp_bus bus; /* used by the thread that runs the bus lane's operation */
    uint32_t n_streams;
    bool stop;
    _Atomic bool poisoned; /* set once, after poison_text */
    char poison_text[160];
    mp_log log;
    uint32_t n_threads;       /* started: bus and compute, then those for I/O */
    mp_lane_thread threads[]; /* [2 + lanes[MP_LANE_COLD].width] */
};

/* ---- Running one operation (without the lock) ------------------------------------------- */

/* Poisons the device after a failed transfer without a `result`. The first failure is kept. */
static void poison(mp_executor *executor, const mp_copy *copy, moepage_status status)
{
    pthread_mutex_lock(&executor->lock);
    bool first = !atomic_load(&executor->poisoned);
    /* The text is written before the flag, since mp_stream_sync reads it without the lock. It
     * never changes again. */
    if (first) {
        snprintf(
            executor->poison_text, sizeof executor->poison_text,
            "a transfer of %llu bytes (layer %u, expert %u, tensor %u) failed with code %d; the "
            "device has to be closed",
            (unsigned long long)copy->bytes, copy->fill_key[0], copy->fill_key[1],
            copy->fill_key[2], status);
        atomic_store(&executor->poisoned, true);
    }
    pthread_mutex_unlock(&executor->lock);
    if (first)
        mp_log_write(&executor->log, MOEPAGE_LOG_ERROR, "host: %s", executor->poison_text);
}

static moepage_status move_bytes(const mp_executor *executor, const mp_copy *copy)
{
    const mp_far_memory *far = executor->far;
    if (far && (uintptr_t)copy->dst - (uintptr_t)far->base < far->bytes)
        return far->deliver(far->context, copy);
    if (copy->fill)
        return copy->fill(copy, copy->dst);
    memcpy(copy->dst, copy->src, copy->bytes);
    return MOEPAGE_OK;
}

static void run_copy(mp_executor *executor, const mp_op *op)
{
    const mp_copy *copy = &op->copy;
    uint64_t end_ns = 0;
    if (atomic_load(&executor->poisoned)) { /* skipped, but its tick completes, so that waits end */
        if (copy->result)
            atomic_store(copy->result, MOEPAGE_E_DEVICE);
        return;
    }
    /* Booked before the copy, whose time is a part of the virtual transfer's, and settled after it. */
    if (op->ready_ns)
        end_ns = mp_bus_book(&executor->bus, op->ready_ns, copy->bytes);
    moepage_status status = move_bytes(executor, copy);
    /* If the submitter will look for the failure, it is the transfer's alone. Any other failure
     * would go unnoticed, and work that depends on these bytes would run on garbage. */
    if (status && copy->result)
        atomic_store(copy->result, status);
    else if (status)
        poison(executor, copy, status);
    if (op->ready_ns)
        mp_bus_settle(&executor->bus, end_ns);
}

typedef struct kernel_phase {
    const mp_executor *executor;
    const mp_op *op;
    uint32_t phase;
} kernel_phase;

static void run_kernel_part(void *context, uint32_t part, uint32_t n_parts)
{
    const kernel_phase *job = context;
    const mp_op *op = job->op;
    if (op->kernel == MP_KERNEL_DECODE)
        mp_host_decode(job->executor->decoder, &op->args.decode, part, n_parts);
    else
        mp_host_kernel_run(job->executor->kernels, op->kernel, &op->args, job->phase, part,
                           n_parts);
}

void mp_executor_run_part(const mp_executor *executor, mp_kernel kernel, const mp_kernel_args *args,
                          uint32_t phase, uint32_t part, uint32_t n_parts)
{
    mp_host_kernel_run(executor->kernels, kernel, args, phase, part, n_parts);
}

static uint32_t parts_of(const mp_executor *executor, const mp_op *op)
{
    uint64_t work = op->kernel == MP_KERNEL_DECODE ? mp_host_decode_work(&op->args.decode)
                                                   : mp_host_kernel_work(op->kernel, &op->args);
    uint64_t parts = work / work_per_part[op->kernel];
    uint64_t most = (uint64_t)executor->team_size * PARTS_PER_THREAD;
    if (executor->team_size == 1 || parts < 2)
        return 1;
    parts = parts < most ? parts : most;
    return parts < MP_TEAM_MAX_PARTS ? (uint32_t)parts : MP_TEAM_MAX_PARTS;
}

static void run_kernel(mp_executor *executor, const mp_op *op)
{
    if (atomic_load(&executor->poisoned))
        return;
    /* mp_team_run returns when every part is done: that is the barrier between two phases. */
    uint32_t n_parts = parts_of(executor, op);
    kernel_phase job = {.executor = executor, .op = op};
    for (; job.phase < mp_host_kernel_phases(op->kernel); job.phase++)
        mp_team_run(executor->team, run_kernel_part, &job, n_parts);
}

/* ---- Lanes (with the lock) -------------------------------------------------------------- */

/* Runs the next operation of a lane, which has one. Releases the lock meanwhile: the
 * stream is then in no queue, and the operation stays in the ring, so that no other thread
 * runs or overwrites it. */
static void run_next(mp_executor *executor, mp_lane *lane)
{
    mp_stream *stream = mp_lane_take(lane);
    const mp_op *op = mp_stream_oldest(stream);
    lane->running++;
    pthread_mutex_unlock(&executor->lock);
    switch (op->kind) {
    case MP_OP_COPY: run_copy(executor, op); break;
    case MP_OP_KERNEL: run_kernel(executor, op); break;
    case MP_OP_CALL:
        mp_team_run(executor->team, op->call.fn, op->call.context, op->call.n_parts);
        break;
    case MP_OP_MARK: break;
    case MP_OP_WAIT: assert(!"waits are not run"); break;
    }
    pthread_mutex_lock(&executor->lock);
    mp_stream_finish(stream);
    lane->running--;
}

static void *run_lane(void *arg)
{
    mp_lane_thread *self = arg;
    mp_executor *executor = self->executor;
    mp_lane *lane = self->lane;
    pthread_mutex_lock(&executor->lock);
    for (;;) {
        if (mp_lane_next(lane)) {
            run_next(executor, lane);
            continue;
        }
        if (executor->stop) /* only if nothing is ready: submitted work is run to the end */
            break;
        /* From `waiting` and `woken`, mp_lane_wake computes how many sleeping threads have not been
         * signalled yet, so that it signals no more often than needed. */
        lane->waiting++;
        pthread_cond_wait(&lane->work, &executor->lock);
        lane->waiting--;
        if (lane->woken > 0) /* 0 after a spurious wake-up */
            lane->woken--;
    }
    pthread_mutex_unlock(&executor->lock);
    return NULL;
}

/* Returns the lane that the stream's progress depends on, if a waiting thread can run that lane's
 * next operation itself: the lane must be free, and the operation must not call a fill callback,
 * which runs on the executor's own threads only. NULL otherwise. */
static mp_lane *lane_to_help(mp_stream *stream)
{
    while (stream->parked_behind)
        stream = stream->parked_behind;
    mp_lane *lane = stream->lane;
    mp_stream *next = mp_lane_next(lane);
    if (!next || lane == &stream->executor->lanes[MP_LANE_COLD])
        return NULL;
    const mp_op *op = mp_stream_oldest(next);
    return op->kind == MP_OP_COPY && op->copy.fill ? NULL : lane;
}

mp_tick mp_stream_completed(const mp_stream *stream)
{
    return atomic_load_explicit(&stream->completed, memory_order_acquire);
}

/* Waits for a tick of the stream. Called with the lock. If it can, the waiting thread itself runs
 * the operation that the stream's progress depends on: waking the lane's thread, and being woken by
 * it afterwards, would cost two switches between threads, as much as a small kernel. */
static void wait_for(mp_stream *stream, mp_tick tick)
{
    mp_executor *executor = stream->executor;
    mp_lane *helped = NULL;
    /* Without this, new kernels could forever delay background work that a thread waits for. On the
     * bus a thread waits only for demands, which come first in any case. */
    bool lends = stream->lane == &executor->lanes[MP_LANE_COMPUTE];
    assert(tick <= stream->submitted);
    if (lends)
        mp_stream_lend(stream);
    while (mp_stream_completed(stream) < tick) {
        mp_lane *lane = lane_to_help(stream);
        /* While this thread was helping, the lane's own thread was not woken for new operations. */
        if (helped && helped != lane)
            mp_lane_wake(helped);
        helped = lane;
        if (lane) {
            run_next(executor, lane);
        } else {
            /* Keep the lowest tick that any thread waits for: nothing is broadcast before it. */
            if (tick < stream->wake_tick)
                stream->wake_tick = tick;
            pthread_cond_wait(&stream->progress, &executor->lock);
        }
    }
    if (lends)
        mp_stream_unlend(stream);
    if (helped) /* the lane's own thread takes over what was submitted meanwhile */
        mp_lane_wake(helped);
}

/* ---- Streams ---------------------------------------------------------------------------- */

static moepage_status start_thread(mp_executor *executor, mp_lane_kind lane, const char *name)
{
    mp_lane_thread *self = &executor->threads[executor->n_threads];
    *self = (mp_lane_thread){.executor = executor, .lane = &executor->lanes[lane]};
    moepage_status status = mp_thread_start(&self->thread, name, run_lane, self);
    if (!status)
        executor->n_threads++;
    return status;
}

/* Starts the threads for I/O, with the first COLD stream. Called with the lock. After a failure the
 * threads that did start stay, and a later call starts the rest. */
static moepage_status start_io_threads(mp_executor *executor)
{
    const uint32_t others = MP_LANE_COLD;
    moepage_status status = MOEPAGE_OK;
    while (!status && executor->n_threads < others + executor->lanes[MP_LANE_COLD].width) {
        char name[16];
        snprintf(name, sizeof name, "mp-io-%u", (executor->n_threads - others) % 1000000);
        status = start_thread(executor, MP_LANE_COLD, name);
    }
    return status;
}

moepage_status mp_stream_create(mp_executor *executor, mp_stream_class cls, mp_stream **out)
{
    mp_stream *stream = mp_stream_new(executor, &executor->lanes[classes[cls].lane],
                                      classes[cls].urgency, &executor->worker);
    if (!stream)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a stream of %zu bytes", sizeof *stream);
    pthread_mutex_lock(&executor->lock);
    moepage_status status = cls == MP_STREAM_COLD ? start_io_threads(executor) : MOEPAGE_OK;
    if (!status)
        executor->n_streams++;
    pthread_mutex_unlock(&executor->lock);
    if (status) {
        mp_stream_release(stream);
        return status;
    }
    *out = stream;
    return MOEPAGE_OK;
}

void mp_stream_destroy(mp_stream *stream)
{
    mp_executor *executor = stream->executor;
    pthread_mutex_lock(&executor->lock);
    uint64_t tasks_due;
    do { /* repeated because a task may submit work and post tasks */
        wait_for(stream, stream->submitted);
        tasks_due = stream->tasks_due;
        mp_worker_settle(&executor->worker);
    } while (mp_stream_completed(stream) < stream->submitted || stream->tasks_due != tasks_due);
    /* Waits may be left that no operation follows. Their ticks may never come, and nothing
     * depends on them. */
    mp_stream_drop_waits(stream);
    assert(!stream->tasks.first);
    executor->n_streams--;
    mp_stream_release(stream);
    pthread_mutex_unlock(&executor->lock);
}

moepage_status mp_stream_copy(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out)
{
    mp_executor *executor = stream->executor;
    /* On the throttled bus the virtual transfer begins when it is submitted, however late
     * its thread is. */
    bool throttled = executor->bus.bytes_per_s && stream->lane == &executor->lanes[MP_LANE_BUS];
    uint64_t ready_ns = throttled ? mp_clock_ns() : 0;
    pthread_mutex_lock(&executor->lock);
    mp_tick tick = stream->submitted;
    for (uint32_t i = 0; i < n; i++) {
        mp_op op = {.kind = MP_OP_COPY, .ready_ns = ready_ns, .copy = copies[i]};
        tick = mp_stream_push(stream, &op, &executor->lock);
    }
    pthread_mutex_unlock(&executor->lock);
    *out = tick;
    return MOEPAGE_OK;
}

moepage_status mp_stream_launch(mp_stream *stream, mp_kernel kernel, const void *args, mp_tick *out)
{
    mp_executor *executor = stream->executor;
    assert((uint32_t)kernel < MP_KERNEL_COUNT);
    if (stream->lane != &executor->lanes[MP_LANE_COMPUTE])
        return mp_fail(MOEPAGE_E_ARGUMENT, "host: a kernel was launched on a stream for transfers; "
                                           "it needs a compute or background stream");
    mp_op op = {.kind = MP_OP_KERNEL, .kernel = kernel};
    mp_kernel_args_copy(&op.args, kernel, args);
    pthread_mutex_lock(&executor->lock);
    *out = mp_stream_push(stream, &op, &executor->lock);
    pthread_mutex_unlock(&executor->lock);
    return MOEPAGE_OK;
}

moepage_status mp_stream_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    /* Without the lock: a tick that has completed stays completed. */
    if (stream == other || mp_stream_completed(other) >= tick)
        return MOEPAGE_OK;
    pthread_mutex_lock(&stream->executor->lock);
    assert(tick <= other->submitted);
    mp_op op = {.kind = MP_OP_WAIT, .tick = tick, .other = other};
    mp_stream_push(stream, &op, &stream->executor->lock);
    pthread_mutex_unlock(&stream->executor->lock);
    return MOEPAGE_OK;
}

moepage_status mp_stream_mark(mp_stream *stream, mp_tick *out)
{
    mp_op op = {.kind = MP_OP_MARK};
    pthread_mutex_lock(&stream->executor->lock);
    *out = mp_stream_push(stream, &op, &stream->executor->lock);
    pthread_mutex_unlock(&stream->executor->lock);
    return MOEPAGE_OK;
}

void mp_stream_on_progress(mp_stream *stream, void (*progress)(void *user, mp_tick tick),
                           void *user)
{
    pthread_mutex_lock(&stream->executor->lock);
    stream->on_progress = progress;
    stream->progress_user = user;
    pthread_mutex_unlock(&stream->executor->lock);
}

moepage_status mp_stream_sync(mp_stream *stream, mp_tick tick)
{
    mp_executor *executor = stream->executor;
    if (mp_stream_completed(stream) < tick) {
        pthread_mutex_lock(&executor->lock);
        wait_for(stream, tick);
        pthread_mutex_unlock(&executor->lock);
    }
    if (atomic_load(&executor->poisoned))
        return mp_fail(MOEPAGE_E_DEVICE, "host: %s", executor->poison_text);
    return MOEPAGE_OK;
}

void mp_executor_post(mp_executor *executor, mp_stream *stream, mp_tick tick, mp_task *task)
{
    pthread_mutex_lock(&executor->lock);
    assert(!stream || tick <= stream->submitted);
    if (stream && mp_stream_completed(stream) < tick) {
        task->due = tick; /* mp_stream_finish hands it over */
        mp_task_insert(&stream->tasks, task);
    } else {
        if (stream)
            stream->tasks_due++;
        mp_worker_add(&executor->worker, task);
    }
    pthread_mutex_unlock(&executor->lock);
}

moepage_status mp_executor_call(mp_executor *executor, mp_team_fn fn, void *context,
                                uint32_t n_parts)
{
    /* The job has a stream of its own, so that it takes its turn with kernels. Destroying the
     * stream waits for the job. */
    mp_stream *stream;
    moepage_status status = mp_stream_create(executor, MP_STREAM_COMPUTE, &stream);
    if (status)
        return status;
    mp_op op = {.kind = MP_OP_CALL, .call = {.fn = fn, .context = context, .n_parts = n_parts}};
    pthread_mutex_lock(&executor->lock);
    mp_stream_push(stream, &op, &executor->lock);
    pthread_mutex_unlock(&executor->lock);
    mp_stream_destroy(stream);
    return MOEPAGE_OK;
}

/* ---- Life ------------------------------------------------------------------------------- */

static void stop_lanes(mp_executor *executor)
{
    pthread_mutex_lock(&executor->lock);
    executor->stop = true;
    for (uint32_t i = 0; i < MP_LANES; i++)
        pthread_cond_broadcast(&executor->lanes[i].work);
    pthread_mutex_unlock(&executor->lock);
    for (uint32_t i = 0; i < executor->n_threads; i++)
        pthread_join(executor->threads[i].thread, NULL);
}

static void free_parts(mp_executor *executor)
{
    mp_team_destroy(executor->team);
    for (uint32_t i = 0; i < MP_LANES; i++)
        pthread_cond_destroy(&executor->lanes[i].work);
    pthread_mutex_destroy(&executor->lock);
    mp_free(executor);
}

moepage_status mp_executor_create(const mp_executor_config *config, mp_executor **out)
{
    const uint32_t n_threads = MP_LANE_COLD + config->io_threads;
    assert(config->threads > 0 && config->io_threads > 0);
    mp_executor *executor = mp_alloc(sizeof *executor + n_threads * sizeof executor->threads[0]);
    if (!executor)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the host device");
    executor->team_size = config->threads;
    executor->kernels = config->kernels;
    executor->decoder = config->decoder;
    executor->far = config->far;
    executor->bus.bytes_per_s = config->bus_bytes_per_s;
    executor->log = config->log;
    pthread_mutex_init(&executor->lock, NULL);
    for (uint32_t i = 0; i < MP_LANES; i++) {
        pthread_cond_init(&executor->lanes[i].work, NULL);
        executor->lanes[i].width = i == MP_LANE_COLD ? config->io_threads : 1;
    }

    moepage_status status = mp_team_create(config->threads, &executor->team);
    if (!status)
        status = start_thread(executor, MP_LANE_BUS, "mp-bus");
    if (!status)
        status = start_thread(executor, MP_LANE_COMPUTE, "mp-compute");
    if (!status)
        status = mp_worker_start(&executor->worker, &executor->lock);
    if (status)
        goto fail;
    *out = executor;
    return MOEPAGE_OK;

fail:
    stop_lanes(executor);
    free_parts(executor);
    return status;
}

void mp_executor_destroy(mp_executor *executor)
{
    assert(executor->n_streams == 0);
    /* First, because a last task may still submit to the lanes. */
    mp_worker_stop(&executor->worker);
    stop_lanes(executor);
    free_parts(executor);
}
