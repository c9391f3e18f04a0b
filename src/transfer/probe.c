/* Timing one piece of work at a time. */
#include "transfer/probe.h"

static void on_tick(mp_task *task)
{
    mp_probe *probe = (mp_probe *)task;
    const mp_device_ops *ops = probe->device->ops;
    pthread_mutex_lock(probe->lock);
    if (probe->waiting) {
        probe->waiting = false;
        probe->began_ns = ops->now_ns(probe->device);
        probe->busy = ops->completed(probe->stream) < probe->tick;
        if (probe->busy) /* else the task ran too late to see the work begin */
            ops->post(probe->device, probe->stream, probe->tick, &probe->task);
    } else {
        mp_rate_add(&probe->rate, probe->bytes,
                    (double)(ops->now_ns(probe->device) - probe->began_ns));
        probe->busy = false;
    }
    pthread_mutex_unlock(probe->lock);
}

void mp_probe_init(mp_probe *probe, mp_device *device, pthread_mutex_t *lock)
{
    *probe = (mp_probe){.task = {.run = on_tick, .lock = lock}, .device = device, .lock = lock};
}

/* Once the window is full, timing one submission in CHANCES is enough to follow a shift. */
#define CHANCES 16u

bool mp_probe_begin(mp_probe *probe, const mp_stream *stream, mp_tick last)
{
    const mp_device_ops *ops = probe->device->ops;
    if (ops->completed(stream) < last || probe->busy ||
        (probe->rate.count >= MP_RATE_WINDOW && ++probe->passed % CHANCES != 0))
        return false;
    probe->began_ns = ops->now_ns(probe->device);
    return true;
}

void mp_probe_end(mp_probe *probe, mp_stream *first, mp_tick after, mp_stream *stream, mp_tick tick,
                  double bytes)
{
    const mp_device_ops *ops = probe->device->ops;
    if (bytes <= 0)
        return;
    probe->busy = true;
    probe->waiting = first && ops->completed(first) < after;
    probe->stream = stream;
    probe->tick = tick;
    probe->bytes = bytes;
    ops->post(probe->device, probe->waiting ? first : stream, probe->waiting ? after : tick,
              &probe->task);
}
