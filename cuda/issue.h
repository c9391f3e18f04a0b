/* issue.h — inside of the CUDA device's streams: from a submission to the driver's queue.
 *
 *   submit.c   the vtable's functions; stream_life.c creates and destroys
 *   issue.c    a stream's queue: what may go to the driver now, and publishing ticks
 *   handover.c who owns a stream that waits, and its references
 *   feed.c     work of the host that stands before work of the GPU: fills, pageable memory
 *   watcher.c  who waits for completed ticks: tasks, and streams across the host's edge
 *   tables.c   tables of kernels
 *
 * A tick is first submitted, then issued (the driver has it: nothing of the host's stands before it
 * any more), then completed. On the GPU, work waits for issued ticks only, by events; the CPU never
 * waits there and the GPU never waits for memory that the CPU writes, which could block a hardware
 * queue that others share. What stands between submission and issue is a queue in software:
 *
 *   - transfers for which the host has to work first: bytes from a `fill`, or to or from memory that
 *     the GPU does not reach;
 *   - waits of a GPU stream for a tick that is not issued, or for a COLD stream's tick that is not
 *     completed; and waits of a COLD stream for ticks that are not completed;
 *   - whatever comes behind those on the same stream.
 *
 * As long as the queue is empty a submission passes through it within its caller's call.
 *
 * Ownership: whoever made the queue non-empty owns the stream and issues from it until it is empty
 * or comes to an entry that is not ready. The stream then is in exactly one place that owns it: the
 * list of a feeder, or that of the stream that it waits for. Only the owner calls the driver for
 * the stream's own queue, and only the owner advances `issued`.
 *
 * Completion: after its work a stream writes its tick to a word in pinned memory, so that
 * `completed` is a load, then records an event from a ring, for whoever waits on the GPU, or
 * sleeps.
 *
 * Locks, in the order in which they may be taken: a stream's `lock`; the executor's; the issuer's;
 * a stream's `events_lock`. No two streams' `lock` at once, none while a fill runs.
 *
 * Failure: a transfer's own goes to its `result`. Everything else that goes wrong after a
 * submission has been accepted poisons the device: from then on work is skipped, but ticks still
 * complete. When the GPU is lost no word is written any more, and what is issued counts as
 * completed. */
#ifndef MP_CUDA_ISSUE_H
#define MP_CUDA_ISSUE_H

#include <pthread.h>

#include "device/worker.h"
#include "tables.h"
#include "vmm.h"

#define MP_CUDA_QUEUE 1024u     /* entries of a stream; a submitter of more waits for room */
#define MP_CUDA_EVENTS 32u      /* of a stream: later ones take the place of the oldest */
#define MP_CUDA_ENTERS 16u      /* of a stream: events of callers' streams that are queued */
#define MP_CUDA_COLD_DEPTH 512u /* transfers handed to the executor's stream at a time */
#define MP_CUDA_STREAMS 1024u

typedef enum mp_cuda_op_kind {
    MP_CUDA_OP_COPY,     /* between places that the GPU reaches */
    MP_CUDA_OP_UPLOAD,   /* pageable memory or a fill, to device memory */
    MP_CUDA_OP_DOWNLOAD, /* device memory to pageable memory */
    MP_CUDA_OP_HOST,     /* to host memory from a fill or host memory */
    MP_CUDA_OP_LAUNCH,
    MP_CUDA_OP_MARK,
    MP_CUDA_OP_WRITE, /* from here on without a tick */
    MP_CUDA_OP_WAIT,
    MP_CUDA_OP_ENTER
} mp_cuda_op_kind;

typedef struct mp_cuda_op {
    mp_cuda_op_kind kind;
    mp_kernel kernel; /* of LAUNCH */
    mp_tick tick;     /* its own; of WAIT the one waited for */
    union {
        mp_copy copy;
        struct {
            mp_kernel_args args; /* with tables in the ring */
            mp_cuda_span tables;
        } launch;
        struct {
            uint64_t at;
            uint32_t value;
        } write;
        mp_cuda_stream *other; /* of WAIT; holds a reference */
        uint32_t enter;        /* index of an event */
    };
} mp_cuda_op;

typedef struct mp_cuda_list {
    mp_cuda_stream *first, *last;
} mp_cuda_list;

typedef struct mp_cuda_feeder mp_cuda_feeder; /* feed.c */

/* Streams that a feeder is to work on, and owns. */
typedef struct mp_cuda_inbox {
    mp_cuda_list ready; /* [i] */
    pthread_cond_t work;
} mp_cuda_inbox;

/* Guards: [l] lock, [o] the owner, [i] the issuer's lock, [e] events_lock. */
struct mp_cuda_stream {
    mp_cuda *cuda;
    mp_stream_class cls;
    mp_cu_stream handle;    /* NULL for a COLD stream */
    mp_stream *cold;        /* the executor's stream that does the work of a COLD one */
    _Atomic uint64_t *word; /* the last tick completed; by the GPU, or the executor */
    mp_cu_ptr word_gpu;
    _Atomic mp_tick issued; /* [o] */
    _Atomic bool broken;    /* its words are not written any more */
    _Atomic uint32_t references;
    mp_cuda_inbox *inbox; /* of the feeder that does the host's part of its transfers */

    pthread_mutex_t lock;
    pthread_cond_t progress; /* ticks were issued, there is room, or the owner has gone */
    uint32_t waiters;        /* [l] threads that sleep on it */
    bool owned;              /* [l] */
    uint32_t head, tail;     /* [l] free-running positions: next in, oldest */
    uint32_t n_enters;       /* [l] ENTERs in the queue */
    uint32_t next_enter;     /* [l] */
    mp_tick submitted;       /* [l] */
    mp_tick passed;          /* [o] given to the driver, not yet published */
    mp_cu_event pause;       /* [o] for the feeder to wait for the GPU */
    mp_cu_event enters[MP_CUDA_ENTERS];

    pthread_mutex_t events_lock;
    uint64_t n_events; /* [e] ever recorded */
    mp_cu_event events[MP_CUDA_EVENTS];
    mp_tick event_ticks[MP_CUDA_EVENTS]; /* [e] */

    mp_cuda_stream *next;         /* [i] in whichever list it is */
    mp_tick wait_tick;            /* [i] while it is in another stream's list */
    mp_cuda_list until_issued;    /* [i] streams that wait for this one's ticks to be issued */
    mp_cuda_list until_completed; /* [i] or to be completed */
    bool stalled;                 /* [i] COLD: its executor's stream is as full as it may be */
    bool watched;                 /* [i] in the watcher's list */
    mp_cuda_stream *next_watched;
    mp_task_list tasks; /* [i] posted, in order of their ticks */
    mp_task_list due;   /* [i] to be run */
    bool running;   /* [i] `runner` is with the executor, or posting it is somebody's next act */
    mp_task runner; /* runs what is due, on the executor's thread */

    uint32_t slot;                   /* of its word */
    _Atomic uint64_t done;           /* COLD: its word */
    mp_cuda_tables tables;           /* [l] of a stream that runs kernels */
    mp_cuda_op queue[MP_CUDA_QUEUE]; /* [l]; the oldest entry is the owner's */
};

struct mp_cuda_issuer {
    pthread_mutex_t lock;
    pthread_cond_t tasks_ran;    /* a stream's runner has nothing left */
    _Atomic int32_t cold_failed; /* how a COLD transfer failed that nobody is to be told of */
    int least, greatest;         /* priorities of streams */
    mp_cuda_shared words;        /* one cache line per stream */
    uint64_t taken[MP_CUDA_STREAMS / 64]; /* [i] words in use */
    mp_cuda_feeder *feeders[2];           /* urgent, and the rest */

    pthread_t watcher;
    pthread_cond_t watch;         /* there is something new for the watcher */
    mp_cuda_stream *watched;      /* [i] */
    bool has_news, stop, started; /* [i] */
};

static inline mp_cuda_stream *mp_cuda_stream_of(const mp_stream *stream)
{
    return (mp_cuda_stream *)(uintptr_t)stream;
}

static inline bool mp_cuda_is_cold(const mp_cuda_stream *stream)
{
    return stream->cls == MP_STREAM_COLD;
}

static inline bool mp_cuda_runs_kernels(const mp_cuda_stream *stream)
{
    return stream->cls == MP_STREAM_COMPUTE || stream->cls == MP_STREAM_BACKGROUND;
}

static inline mp_cuda_op *mp_cuda_oldest(mp_cuda_stream *stream)
{
    return &stream->queue[stream->tail % MP_CUDA_QUEUE];
}

static inline bool mp_cuda_is_full(const mp_cuda_stream *stream)
{
    return stream->head - stream->tail == MP_CUDA_QUEUE;
}

/* What a profiler shows the stream's transfers as; NULL = nothing. */
static inline const char *mp_cuda_transfer_range(const mp_cuda_stream *stream)
{
    return stream->cls == MP_STREAM_DEMAND     ? MP_CUDA_RANGE_DEMAND
           : stream->cls == MP_STREAM_PREFETCH ? MP_CUDA_RANGE_PREFETCH
                                               : NULL;
}

/* The GPU will not say of the stream's ticks that they have completed. */
static inline bool mp_cuda_is_silent(const mp_cuda_stream *stream)
{
    return !mp_cuda_is_cold(stream) &&
           (atomic_load(&stream->cuda->lost) || atomic_load(&stream->broken));
}

static inline mp_tick mp_cuda_completed(const mp_cuda_stream *stream)
{
    mp_tick issued = atomic_load_explicit(&stream->issued, memory_order_acquire);
    mp_tick done = atomic_load_explicit(stream->word, memory_order_acquire);
    return done < issued && mp_cuda_is_silent(stream) ? issued : done;
}

/* ---- handover.c ---- */

void mp_cuda_retain(mp_cuda_stream *stream);
void mp_cuda_release(mp_cuda_stream *stream);

void mp_cuda_list_add(mp_cuda_list *list, mp_cuda_stream *stream);
mp_cuda_stream *mp_cuda_list_take(mp_cuda_list *list);
/* Moves to `to` those that wait for a tick up to `tick`. */
void mp_cuda_list_split(mp_cuda_list *from, mp_tick tick, mp_cuda_list *to);
bool mp_cuda_list_remove(mp_cuda_list *list, const mp_cuda_stream *stream);

/* Park a stream and give its ownership away, or return false if there is nothing to wait for: until
 * `other` has issued `tick`; until it has completed it; until the executor's stream of a COLD one
 * has room. */
bool mp_cuda_park_until_issued(mp_cuda_stream *stream, mp_cuda_stream *other, mp_tick tick);
bool mp_cuda_park_until_completed(mp_cuda_stream *stream, mp_cuda_stream *other, mp_tick tick);
bool mp_cuda_park_until_room(mp_cuda_stream *stream);
/* Gives a stream whose oldest entry is work for the host to a feeder, with the ownership. */
void mp_cuda_feed(mp_cuda_inbox *inbox, mp_cuda_stream *stream);
/* Has the watcher look at the stream. With the issuer's lock. */
void mp_cuda_watch(mp_cuda_issuer *issuer, mp_cuda_stream *stream);

/* ---- issue.c ---- */

/* Work is skipped. */
bool mp_cuda_is_poisoned(mp_cuda *cuda);
/* Tells whoever submitted a transfer that it failed: by its result, or by poisoning the device. */
void mp_cuda_fail_copy(mp_cuda *cuda, const mp_copy *copy, moepage_status status);

/* Makes the context current for a GPU stream. False, and the device is poisoned, when that
 * fails; for a COLD one, which does not need it, false too. */
bool mp_cuda_enter_for(mp_cuda_stream *stream);
/* Issues what it can. By the owner, with the lock and the context current. Streams that can go on
 * through it are added to `freed`. */
void mp_cuda_pump(mp_cuda_stream *stream, mp_cuda_list *freed);
/* Pumps those, and those that they free. Without any lock. */
void mp_cuda_pump_all(mp_cuda_list *freed);
/* Takes the oldest entry, which a feeder has done, off the queue. With the lock. */
void mp_cuda_pop_op(mp_cuda_stream *stream);
/* Publishes the ticks that have passed. By the owner, with the lock and the context current. */
void mp_cuda_publish(mp_cuda_stream *stream, mp_cuda_list *freed);

/* One entry that needs nobody but the driver, on a GPU stream. By the owner, with the context
 * current. */
moepage_status mp_cuda_issue_launch(mp_cuda_stream *stream, mp_kernel kernel,
                                    const mp_kernel_args *args, const mp_cuda_span *tables);
/* Makes `handle` wait for an issued tick of a GPU stream. */
mp_cu_result mp_cuda_wait_on_gpu(mp_cuda_stream *other, mp_tick tick, mp_cu_stream handle);

/* Blocks until the tick is issued; until it has completed. Without any lock. */
void mp_cuda_await_issue(mp_cuda_stream *stream, mp_tick tick);
void mp_cuda_await(mp_cuda_stream *stream, mp_tick tick);

/* ---- feed.c ---- */

moepage_status mp_cuda_feeder_create(mp_cuda *cuda, mp_cuda_feeder *before, const char *name,
                                     mp_cuda_feeder **out);
void mp_cuda_feeder_destroy(mp_cuda_feeder *feeder);
mp_cuda_inbox *mp_cuda_feeder_inbox(mp_cuda_feeder *feeder);

/* What has to be done for a transfer. Context current. */
mp_cuda_op_kind mp_cuda_copy_kind(mp_cuda *cuda, const mp_copy *copy);

/* ---- watcher.c ---- */

moepage_status mp_cuda_watch_start(mp_cuda *cuda);
void mp_cuda_watch_stop(mp_cuda *cuda);
/* The executor's stream is about to complete `tick`; with the executor's lock. */
void mp_cuda_cold_progress(void *stream, mp_tick tick);
void mp_cuda_watch_post(mp_cuda_stream *stream, mp_tick tick, mp_task *task);
/* Waits for the tasks that follow the stream's ticks, which have completed. */
void mp_cuda_watch_drain(mp_cuda_stream *stream);
/* Takes the stream, which has no tasks, from the watcher; frees those that wait for it. */
void mp_cuda_watch_remove(mp_cuda_stream *stream, mp_cuda_list *freed);

#endif
