/* stream.h — in-order streams and the lanes that execute them: what may run next.
 *
 * Pure bookkeeping under the executor's lock; executor.c has the threads. A stream is a ring of
 * entries: operations, which have ticks, and waits, which have none. Only its oldest entry can be
 * ready, so a stream is in exactly one place at a time:
 *
 *   idle      no entry left
 *   ready     in its lane's queue: the oldest entry is an operation
 *   running   a thread executes that operation
 *   parked    in the list of the stream whose tick its oldest entry, a wait, waits for
 *
 * A wait can only name a tick that has been submitted already, so parked streams never form a
 * circle. A stream that others still have waits on stays allocated until those waits have passed,
 * destroyed or not. */
#ifndef MP_DEVICE_STREAM_H
#define MP_DEVICE_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "device/seam.h"
#include "device/team.h"
#include "device/worker.h"

/* Entries of a stream; submitting more waits for room. */
#define MP_STREAM_ENTRIES 1024u

typedef struct mp_executor mp_executor;

typedef enum mp_op_kind {
    MP_OP_COPY,
    MP_OP_KERNEL,
    MP_OP_CALL,
    MP_OP_MARK, /* nothing to do */
    MP_OP_WAIT
} mp_op_kind;

/* A job for the team that is not a kernel. */
typedef struct mp_call {
    mp_team_fn fn;
    void *context;
    uint32_t n_parts;
} mp_call;

typedef struct mp_op {
    mp_op_kind kind;
    mp_kernel kernel;  /* of MP_OP_KERNEL */
    mp_tick tick;      /* its own, or the one that MP_OP_WAIT waits for */
    uint64_t ready_ns; /* of MP_OP_COPY on a throttled bus: not before this */
    union {
        mp_copy copy;
        mp_kernel_args args;
        mp_call call;
        mp_stream *other; /* of MP_OP_WAIT; holds a reference */
    };
} mp_op;

typedef struct mp_stream_list {
    mp_stream *first, *last;
} mp_stream_list;

/* An engine: the bus or the compute units, which run one operation at a time, or the threads for
 * I/O, which run one each. A stream whose operation runs is in no queue, so that `width` threads
 * can never be in the same stream. */
typedef struct mp_lane {
    mp_stream_list ready[2]; /* urgent, and what runs when nothing is urgent */
    uint32_t width;          /* operations that may run at once */
    uint32_t running;        /* operations that run */
    uint32_t waiting;        /* the lane's own threads that wait on `work` */
    uint32_t woken;          /* threads in `waiting` that have been signalled and not yet run */
    pthread_cond_t work;
} mp_lane;

struct mp_stream {
    mp_executor *executor;
    mp_worker *worker; /* runs `tasks` when they are due */
    mp_lane *lane;
    uint32_t urgency; /* index into lane->ready; 0 while a thread waits for the stream */
    uint32_t own_urgency;
    uint32_t lenders;    /* threads that wait for it */
    uint32_t references; /* its owner, and waits of other streams */
    mp_tick submitted;
    _Atomic mp_tick completed;
    void (*on_progress)(void *user, mp_tick tick); /* or NULL */
    void *progress_user;
    uint32_t head, tail; /* free-running positions in `entries`: next in, oldest */
    bool idle;
    mp_stream *next;          /* in the list that it is in, if any */
    mp_stream *parked_behind; /* NULL unless parked */
    mp_stream_list parked;    /* behind this stream */
    mp_task_list tasks;       /* posted after ticks still to come, in order of their ticks */
    uint64_t tasks_due;       /* handed over to the worker, ever */
    mp_tick wake_tick;        /* the lowest tick that a sleeping thread waits for */
    uint32_t want_room;       /* threads that sleep on `room` */
    pthread_cond_t progress;  /* wake_tick was reached */
    pthread_cond_t room;      /* half of the ring is free */
    mp_op entries[MP_STREAM_ENTRIES];
};

/* A stream with one reference, or NULL for want of memory. Takes no lock. */
mp_stream *mp_stream_new(mp_executor *executor, mp_lane *lane, uint32_t urgency, mp_worker *worker);

/* Gives up one reference; frees the stream with the last. */
void mp_stream_release(mp_stream *stream);

/* The stream that would run next on a lane; NULL when none is ready, or the lane runs as many
 * operations as it may. */
mp_stream *mp_lane_next(const mp_lane *lane);

/* Begin and end a thread's wait for the stream: meanwhile the stream is as urgent as any, so that the
 * thread does not wait behind background work. */
void mp_stream_lend(mp_stream *stream);
void mp_stream_unlend(mp_stream *stream);

/* Takes the next stream off the lane's queue; it is running from then on. */
mp_stream *mp_lane_take(mp_lane *lane);

/* Wakes one of the lane's own threads if an operation is ready and a thread sleeps that has not been
 * woken for another. */
void mp_lane_wake(mp_lane *lane);

/* The oldest entry; there is one. */
mp_op *mp_stream_oldest(mp_stream *stream);

/* Submits a copy of `op`; waits for room for it, and gives `lock`, the executor's, up meanwhile. An operation
 * gets the next tick; a wait holds back what comes after it, until a tick that has been submitted. Returns
 * the stream's last tick. */
mp_tick mp_stream_push(mp_stream *stream, const mp_op *op, pthread_mutex_t *lock);

/* Ends the running operation: publishes its tick, and releases streams, tasks and threads that wait for
 * it. Wakes no thread for the stream's own next operation: the caller looks at the lane next. */
void mp_stream_finish(mp_stream *stream);

/* Drops waits that no operation follows; all operations have completed. */
void mp_stream_drop_waits(mp_stream *stream);

#endif
