/* executor.h — the asynchronous half of the host device: streams that run by themselves.
 *
 * Threads: one runs transfers, one runs kernels with the team behind it, one runs tasks, and from
 * the first COLD stream on `io_threads` run the transfers of such streams. A thread in
 * mp_stream_sync does the work of the first two while they are asleep, so that to submit and wait
 * costs no hand-over between threads; fill callbacks and tasks always run on the executor's own
 * threads.
 *
 * Transfers of DEMAND and PREFETCH streams cross the bus and are throttled; those of COMPUTE and
 * BACKGROUND streams stay inside the device and run in turn with its kernels; those of COLD streams
 * stay outside. */
#ifndef MP_DEVICE_EXECUTOR_H
#define MP_DEVICE_EXECUTOR_H

#include "codec/exph.h"
#include "device/host_kernels.h"
#include "device/seam.h"
#include "device/team.h"

typedef struct mp_executor mp_executor;

/* Memory that this process cannot write to itself. Its range is set before the first transfer to it. */
typedef struct mp_far_memory {
    unsigned char *base;
    uint64_t bytes;
    /* Performs a transfer to it; returns what a fill callback may. One call at a time, in the threads that run
     * transfers of the bus. */
    moepage_status (*deliver)(void *context, const mp_copy *copy);
    void *context;
} mp_far_memory;

typedef struct mp_executor_config {
    uint32_t threads;         /* >= 1 */
    uint32_t io_threads;      /* >= 1 */
    uint64_t bus_bytes_per_s; /* 0 = no throttle */
    const mp_host_kernel_set *kernels;
    const mp_exph_decoder *decoder;
    const mp_far_memory *far; /* NULL = none */
    mp_log log;               /* one line when the device is poisoned */
} mp_executor_config;

/* NO_MEMORY. */
moepage_status mp_executor_create(const mp_executor_config *config, mp_executor **out);

/* Waits for tasks. All streams have been destroyed. */
void mp_executor_destroy(mp_executor *executor);

/* Runs one share of one phase of a kernel, DECODE excepted, in the calling thread. */
void mp_executor_run_part(const mp_executor *executor, mp_kernel kernel, const mp_kernel_args *args,
                          uint32_t phase, uint32_t part, uint32_t n_parts);

/* As the functions of the same name in mp_device_ops. Creating a COLD stream may have to start
 * threads: NO_MEMORY also when the system refuses them. */
moepage_status mp_stream_create(mp_executor *executor, mp_stream_class cls, mp_stream **out);
void mp_stream_destroy(mp_stream *stream);
moepage_status mp_stream_copy(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out);
moepage_status mp_stream_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                mp_tick *out);
moepage_status mp_stream_wait(mp_stream *stream, mp_stream *other, mp_tick tick);
moepage_status mp_stream_mark(mp_stream *stream, mp_tick *out);
mp_tick mp_stream_completed(const mp_stream *stream);
moepage_status mp_stream_sync(mp_stream *stream, mp_tick tick);
void mp_executor_post(mp_executor *executor, mp_stream *stream, mp_tick tick, mp_task *task);

/* Sets a function that is called with every tick of the stream, right before it counts as
 * completed. The executor's lock is held during the call, so `progress` must not call the executor.
 * Set before the first submission. */
void mp_stream_on_progress(mp_stream *stream, void (*progress)(void *user, mp_tick tick),
                           void *user);

/* Runs a job on the team in turn with kernels; returns when it is done. */
moepage_status mp_executor_call(mp_executor *executor, mp_team_fn fn, void *context,
                                uint32_t n_parts);

#endif
