/* issue.h — inside of the CUDA device's streams: from a submission to the driver's queue.
 *
 *   submit.c       the vtable's functions: submitting and waiting
 *   stream_life.c  creates and destroys streams, feeders and the watcher
 *   feed.c         two threads for the host's part of transfers: fills, pageable memory
 *   watcher.c      a thread for what follows completed ticks: tasks, and streams that wait across
 *                  the boundary between GPU and host
 *   issue.c        a stream's queue: what may go to the driver now, and publishing ticks
 *   handover.c     ownership and references of streams
 *   tables.c       host tables of kernels
 *
 * A tick is submitted, then issued (the driver has it, and it waits for no work of the host), then
 * completed. On the GPU, work waits only for issued ticks, by events. The GPU never waits for a word
 * that the CPU writes, because that could block a hardware queue which other streams share. Work that
 * cannot be issued at once stays in a software queue:
 *
 *   - transfers for which the host has to work first: bytes from a `fill`, or to or from memory that
 *     the GPU does not reach;
 *   - waits of a GPU stream for a tick that is not issued, or for a COLD stream's tick that is not
 *     completed; and waits of a COLD stream for ticks that are not completed;
 *   - everything behind such an entry on the same stream.
 *
 * While the queue is empty a submission passes through it within the submitting call.
 *
 * Ownership: the thread that makes the queue non-empty owns the stream, and issues from it until it
 * is empty or comes to an entry that is not ready. Then exactly one list owns the stream: a feeder's
 * inbox, or the list of the stream that it waits for. Only the owner calls the driver for the
 * stream, and only the owner advances `issued`.
 *
 * Completion: behind its work a stream writes its tick to a word in pinned memory, so that
 * `completed` is one load. Then it records an event from a ring, for streams that wait on the GPU
 * and for threads that sleep.
 *
 * Locks, in the order in which they may be taken: a stream's `lock`; the executor's; the issuer's;
 * a stream's `events_lock`. No two streams' `lock` at once, none while a fill runs.
 *
 * Failure: a transfer's failure goes to its `result`. Any other failure after a submission has been
 * accepted poisons the device: from then on work is skipped, but ticks still complete. Once the GPU
 * is lost it writes no more words, and what is issued counts as completed. */
#ifndef MP_CUDA_ISSUE_H
#define MP_CUDA_ISSUE_H

#include <pthread.h>

#include "device/worker.h"
#include "tables.h"
#include "vmm.h"

#define MP_CUDA_QUEUE 1024u     /* entries of a stream; submitting more waits for room */
#define MP_CUDA_EVENTS 32u      /* of a stream; a new one replaces the oldest */
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
    MP_CUDA_OP_WRITE, /* this kind and those below have no tick of their own */
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

/* Guards: [l] lock, [o] the owner, [i] the issuer's lock, [e] events_lock; [w] the lock of the issuer whose
 * list the stream is in, of another device perhaps. */
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
    pthread_cond_t progress; /* ticks were issued, there is room, or the stream has no owner now */
    uint32_t waiters;        /* [l] threads that sleep on it */
    bool owned;              /* [l] */
    uint32_t head, tail;     /* [l] free-running positions: next in, oldest */
    uint32_t n_enters;       /* [l] ENTERs in the queue */
    uint32_t next_enter;     /* [l] */
    mp_tick submitted;       /* [l] */
    mp_tick passed;          /* [o] last one given to the driver; `issued` follows when published */
    mp_cu_event pause;       /* [o] with which a feeder waits for the GPU */
    mp_cu_event enters[MP_CUDA_ENTERS];

    pthread_mutex_t events_lock;
    uint64_t n_events; /* [e] ever recorded */
    mp_cu_event events[MP_CUDA_EVENTS];
    mp_tick event_ticks[MP_CUDA_EVENTS]; /* [e] */

    mp_cuda_stream *next;         /* [w] in the list that it is in */
    mp_tick wait_tick;            /* [w] while it is in another stream's list */
    mp_cuda_list until_issued;    /* [i] streams that wait for this one's ticks to be issued */
    mp_cuda_list until_completed; /* [i] or to be completed */
    bool stalled;                 /* [i] COLD: its executor's stream is as full as it may be */
    bool watched;                 /* [i] in the watcher's list */
    mp_cuda_stream *next_watched;
    mp_task_list tasks; /* [i] posted, in order of their ticks */
    mp_task_list due;   /* [i] to be run */
    bool running;       /* [i] `runner` is with the executor, or a thread is about to post it */
    mp_task runner;     /* runs what is due, on the executor's thread */

    uint32_t slot;                   /* of its word */
    _Atomic uint64_t done;           /* COLD: its word */
    mp_cuda_tables tables;           /* [l] of a stream that runs kernels */
    mp_cuda_op queue[MP_CUDA_QUEUE]; /* [l]; the oldest entry is the owner's */
};

struct mp_cuda_issuer {
    pthread_mutex_t lock;
    pthread_cond_t tasks_ran;    /* a stream's runner has nothing left */
    _Atomic int32_t cold_failed; /* status of a failed COLD transfer that has no `result` */
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

/* The range that a profiler shows the stream's transfers in, or NULL. */
static inline const char *mp_cuda_transfer_range(const mp_cuda_stream *stream)
{
    return stream->cls == MP_STREAM_DEMAND     ? MP_CUDA_RANGE_DEMAND
           : stream->cls == MP_STREAM_PREFETCH ? MP_CUDA_RANGE_PREFETCH
                                               : NULL;
}

/* Returns true if the GPU writes the stream's ticks no more: the device is lost, or the stream's
 * words cannot be written. */
static inline bool mp_cuda_is_silent(const mp_cuda_stream *stream)
{
    return !mp_cuda_is_cold(stream) &&
           (atomic_load(&stream->cuda->health.lost) || atomic_load(&stream->broken));
}

/* The last tick completed. A silent stream has run dry or will never run again, so that all that it has
 * issued counts as completed. */
static inline mp_tick mp_cuda_completed(const mp_cuda_stream *stream)
{
    mp_tick issued = atomic_load_explicit(&stream->issued, memory_order_acquire);
    mp_tick done = atomic_load_explicit(stream->word, memory_order_acquire);
    return done < issued && mp_cuda_is_silent(stream) ? issued : done;
}

/* ---- handover.c ---- */

void mp_cuda_retain(mp_cuda_stream *stream);
void mp_cuda_release(mp_cuda_stream *stream);

mp_cuda_stream *mp_cuda_list_take(mp_cuda_list *list);
/* Moves the streams that wait for a tick up to `tick` to `to`. */
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
/* Puts a stream before the watcher. With the issuer's lock. */
void mp_cuda_watch(mp_cuda_issuer *issuer, mp_cuda_stream *stream);

/* ---- issue.c ---- */

/* Returns true if work is to be skipped. */
bool mp_cuda_is_poisoned(mp_cuda *cuda);
/* Reports a failed transfer: in its `result`, or by poisoning the device. */
void mp_cuda_fail_copy(mp_cuda *cuda, const mp_copy *copy, moepage_status status);

/* Makes the context current for a GPU stream. Returns whether it has to be left: false for a COLD
 * stream, which needs no context, and after a failure, which poisons the device. */
bool mp_cuda_enter_for(mp_cuda_stream *stream);
/* Issues what is ready. By the owner, with the lock and the context current. Streams that waited for
 * ticks issued here are added to `freed`, for mp_cuda_pump_all. */
void mp_cuda_pump(mp_cuda_stream *stream, mp_cuda_list *freed);
/* Pumps the streams of a list, and those that they free in turn, of whichever device. Without any lock. */
void mp_cuda_pump_all(mp_cuda_list *freed);
/* Takes the oldest entry off the queue. By the owner, with the lock. */
void mp_cuda_pop_op(mp_cuda_stream *stream);
/* Publishes the ticks that have passed. By the owner, with the lock and the context current. */
void mp_cuda_publish(mp_cuda_stream *stream, mp_cuda_list *freed);

/* Puts a launch on a GPU stream. By the owner, with the context current. */
moepage_status mp_cuda_issue_launch(mp_cuda_stream *stream, mp_kernel kernel,
                                    const mp_kernel_args *args, const mp_cuda_span *tables);
/* Makes `handle` wait for an issued tick of a GPU stream. */
mp_cu_result mp_cuda_wait_on_gpu(mp_cuda_stream *other, mp_tick tick, mp_cu_stream handle);

/* Asks the driver after a GPU stream: if the GPU is lost that fails, and poisons the device. Without any lock. */
void mp_cuda_query(mp_cuda_stream *stream);

/* Block until the tick is issued, or until it has completed. Without any lock. */
void mp_cuda_await_issue(mp_cuda_stream *stream, mp_tick tick);
void mp_cuda_await(mp_cuda_stream *stream, mp_tick tick);

/* ---- feed.c ---- */

moepage_status mp_cuda_feeder_create(mp_cuda *cuda, mp_cuda_feeder *before, const char *name,
                                     mp_cuda_feeder **out);
void mp_cuda_feeder_destroy(mp_cuda_feeder *feeder);
mp_cuda_inbox *mp_cuda_feeder_inbox(mp_cuda_feeder *feeder);

/* Classifies a transfer by what has to be done for it. Context current. */
mp_cuda_op_kind mp_cuda_copy_kind(mp_cuda *cuda, const mp_copy *copy);

/* ---- watcher.c ---- */

moepage_status mp_cuda_watch_start(mp_cuda *cuda);
void mp_cuda_watch_stop(mp_cuda *cuda);
/* Called when the executor's stream is about to complete `tick`, with the executor's lock. */
void mp_cuda_cold_progress(void *stream, mp_tick tick);
void mp_cuda_watch_post(mp_cuda_stream *stream, mp_tick tick, mp_task *task);
/* Waits until the tasks that follow the stream's ticks have run; the ticks have completed. */
void mp_cuda_watch_drain(mp_cuda_stream *stream);
/* Ends the watching of a stream without tasks; adds the streams that wait for it to `freed`. */
void mp_cuda_watch_remove(mp_cuda_stream *stream, mp_cuda_list *freed);

#endif
