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
        if (probe->busy) /* else this task came too late to see it begin */
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

/* Once the window is full, one chance in so many is enough to follow a shift. */
#define CHANCES 16u

static bool takes_this_one(mp_probe *probe)
{
    return !probe->busy && (probe->rate.count < MP_RATE_WINDOW || ++probe->passed % CHANCES == 0);
}

bool mp_probe_begin(mp_probe *probe, const mp_stream *stream, mp_tick last)
{
    if (probe->device->ops->completed(stream) < last || !takes_this_one(probe))
        return false;
    probe->began_ns = probe->device->ops->now_ns(probe->device);
    return true;
}

static void watch(mp_probe *probe, mp_stream *stream, mp_tick tick, double bytes)
{
    probe->busy = true;
    probe->stream = stream;
    probe->tick = tick;
    probe->bytes = bytes;
}

void mp_probe_end(mp_probe *probe, mp_stream *stream, mp_tick tick, double bytes)
{
    if (bytes <= 0)
        return;
    watch(probe, stream, tick, bytes);
    probe->device->ops->post(probe->device, stream, tick, &probe->task);
}

void mp_probe_behind(mp_probe *probe, mp_stream *first, mp_tick after, mp_stream *stream,
                     mp_tick tick, double bytes)
{
    if (bytes <= 0 || !takes_this_one(probe))
        return;
    watch(probe, stream, tick, bytes);
    probe->began_ns = probe->device->ops->now_ns(probe->device);
    probe->waiting = probe->device->ops->completed(first) < after;
    if (probe->waiting)
        probe->device->ops->post(probe->device, first, after, &probe->task);
    else
        probe->device->ops->post(probe->device, stream, tick, &probe->task);
}
