/* probe.h — how fast an engine is while it serves: one transfer at a time is timed.
 *
 * A probe times work that finds its stream idle, from its submission (or, for a decoder behind a bus,
 * from the bus tick that it waits for) to its tick, as the device's task thread sees it. While it is
 * at it, other work goes untimed: so it costs a posted task now and then, and never a wait.
 *
 * Whoever owns a probe holds its lock in every call; the probe takes it by itself when a tick comes.
 * Streams are destroyed before their probe is freed: that waits for its task. */
#ifndef MP_TRANSFER_PROBE_H
#define MP_TRANSFER_PROBE_H

#include <pthread.h>
#include <stdbool.h>

#include "planning/rate.h"
#include "device/seam.h"

typedef struct mp_probe {
    mp_task task; /* first: the probe is found from its address */
    mp_device *device;
    pthread_mutex_t *lock;
    mp_stream *stream; /* being timed */
    mp_tick tick;
    double bytes;
    uint64_t began_ns;
    bool busy;
    bool waiting;    /* for the tick behind which it begins */
    uint32_t passed; /* chances left out since the window is full */
    mp_rate rate;    /* ns per byte */
} mp_probe;

void mp_probe_init(mp_probe *probe, mp_device *device, pthread_mutex_t *lock);

/* Before a submission to `stream`, whose last tick so far is `last`: may it be timed? Then its time
 * begins. */
bool mp_probe_begin(mp_probe *probe, const mp_stream *stream, mp_tick last);
/* After it: `bytes` were submitted up to `tick`. Of 0 bytes nothing is learned. */
void mp_probe_end(mp_probe *probe, mp_stream *stream, mp_tick tick, double bytes);

/* The same for work on `stream` up to `tick` that starts when `first` has completed `after`. */
void mp_probe_behind(mp_probe *probe, mp_stream *first, mp_tick after, mp_stream *stream,
                     mp_tick tick, double bytes);

#endif
