/* sim_stream.h — streams of the simulated device, and the units that serve them: what may run next.
 *
 * A stream is a ring of entries: work and marks, which have ticks, and waits, which have none. Only
 * its oldest entry can be ready, so a stream is idle, in one unit's queue, running, or parked
 * behind the stream whose tick its oldest entry waits for. Its oldest entry says which unit serves
 * a stream: one stream may compute and decode in turn.
 *
 * A unit serves urgent work first, and otherwise in the order of submission. Nothing here knows the
 * time; sim_run.c does. */
#ifndef MP_SIMULATED_SIM_STREAM_H
#define MP_SIMULATED_SIM_STREAM_H

#include "device/seam.h"
#include "device/worker.h"

typedef enum mp_sim_unit_kind {
    MP_SIM_BUS,
    MP_SIM_COMPUTE,
    MP_SIM_DECODER,
    MP_SIM_COLD,
    MP_SIM_UNITS
} mp_sim_unit_kind;

/* What the units have in common, and what becomes due. */
typedef struct mp_sim_queues mp_sim_queues;

typedef enum mp_sim_entry_kind { MP_SIM_WORK, MP_SIM_MARK, MP_SIM_WAIT } mp_sim_entry_kind;

typedef struct mp_sim_entry {
    mp_sim_entry_kind kind;
    mp_sim_unit_kind unit; /* of WORK */
    uint64_t number;       /* of WORK: counts submissions to the device */
    uint64_t
        ns; /* of WORK: how long the unit is busy with it; of COLD the latency alone; of DECODER
                    known when it begins */
    uint64_t bytes; /* of WORK: moved */
    union {
        mp_stream *other;             /* of WAIT; holds a reference */
        mp_kernel_decode_args decode; /* of DECODER */
    };
    mp_tick tick; /* of WAIT: the one waited for */
} mp_sim_entry;

struct mp_stream {
    mp_sim_queues *queues;
    mp_stream_class cls;
    uint32_t urgency;    /* index into a unit's `ready` */
    uint32_t references; /* its owner, and waits of other streams */
    bool idle;
    mp_tick submitted, completed;
    /* Free-running positions in `entries`, whose length, `room`, is a power of 2. */
    uint32_t head, tail, room;
    mp_sim_entry *entries;
    mp_copy *copies; /* of COLD streams, parallel to `entries`: the transfers */
    mp_stream *next; /* in the list that it is in */
    mp_stream *parked_behind;
    mp_stream *parked;  /* behind this one, in no order */
    mp_task_list tasks; /* posted after ticks still to come, in order of these */
    uint64_t last_due;  /* which of all due tasks was this stream's last */
};

typedef struct mp_sim_unit {
    mp_stream *ready[2]; /* by number of submission: urgent, and what runs when nothing is urgent */
} mp_sim_unit;

struct mp_sim_queues {
    mp_sim_unit units[MP_SIM_UNITS];
    uint64_t n_work; /* submitted so far */
    mp_task_list due;
    uint64_t n_due; /* tasks ever */
};

/* A stream with one reference, or NULL for want of memory. */
mp_stream *mp_sim_stream_new(mp_sim_queues *queues, mp_stream_class cls);
/* Gives up one reference; frees the stream with the last. */
void mp_sim_stream_release(mp_stream *stream);

/* Makes room for `n` more entries; may fail with NO_MEMORY. */
moepage_status mp_sim_stream_reserve(mp_stream *stream, uint32_t n);

/* Submits work to a stream that has room, and returns its tick. `copy`: for COLD streams. */
mp_tick mp_sim_stream_work(mp_stream *stream, const mp_sim_entry *entry, const mp_copy *copy);
mp_tick mp_sim_stream_mark(mp_stream *stream);
void mp_sim_stream_wait(mp_stream *stream, mp_stream *other, mp_tick tick);

/* Posts a task behind a tick. */
void mp_sim_stream_post(mp_stream *stream, mp_tick tick, mp_task *task);
void mp_sim_task_due(mp_sim_queues *queues, mp_task *task);

/* Takes the stream that a unit serves next, or NULL. It runs until mp_sim_stream_finish. */
mp_stream *mp_sim_unit_take(mp_sim_unit *unit);

/* The running stream's oldest entry, and its end. */
static inline const mp_sim_entry *mp_sim_stream_oldest(const mp_stream *stream)
{
    return &stream->entries[stream->tail & (stream->room - 1)];
}
void mp_sim_stream_finish(mp_stream *stream);

/* Drops waits that no work follows; all of it has completed. */
void mp_sim_stream_drop_waits(mp_stream *stream);

#endif
