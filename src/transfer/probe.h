/* probe.h — measures how fast an engine is while it serves, by timing one piece of work at a time.
 *
 * A probe times work that finds its stream idle, from its submission (or, for a decoder behind
 * a bus, from the bus tick that it waits for) to its tick, as the device's task thread sees
 * it. Meanwhile, other work goes untimed. So a probe costs a posted task now and then, and
 * never a wait.
 *
 * The probe's owner holds the lock in every call; the probe takes the lock itself when a
 * tick completes. A probe's streams are destroyed before the probe is freed, which waits
 * for its task. */
#ifndef MP_TRANSFER_PROBE_H
#define MP_TRANSFER_PROBE_H

#include <pthread.h>
#include <stdbool.h>

#include "device/seam.h"
#include "planning/rate.h"

typedef struct mp_probe {
    mp_task task; /* first: the probe is found from its address */
    mp_device *device;
    pthread_mutex_t *lock;
    mp_stream *stream; /* being timed */
    mp_tick tick;
    double bytes;
    uint64_t began_ns;
    bool busy;
    bool waiting;    /* for the tick behind which the timed work begins */
    uint32_t passed; /* opportunities passed over since the window is full */
    mp_rate rate;    /* ns per byte */
} mp_probe;

void mp_probe_init(mp_probe *probe, mp_device *device, pthread_mutex_t *lock);

/* Called before a submission to `stream`, whose last tick so far is `last`. Returns true if the
 * submission is to be timed; its time then begins. */
bool mp_probe_begin(mp_probe *probe, const mp_stream *stream, mp_tick last);
/* Called after the submission: `bytes` were submitted up to `tick`, and start when `first` (NULL: no
 * other stream) has completed `after`. Nothing can be learned from 0 bytes. */
void mp_probe_end(mp_probe *probe, mp_stream *first, mp_tick after, mp_stream *stream, mp_tick tick,
                  double bytes);

#endif
