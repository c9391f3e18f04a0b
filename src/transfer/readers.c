/* Readers: work that goes on reading a place after its owner has given it to another expert.
 *
 * On a device whose work outlasts the call that submits it, a released place may be given away at
 * once, but its bytes must not change before every kernel submitted to read them has finished. So
 * before a reader releases a place, it states up to which tick of its stream the place is read, and
 * the next write to the place waits for these ticks, on the device. */
#include "base/alloc.h"
#include "base/status.h"
#include "transfer/inside.h"

moepage_status mp_readers_add(mp_transfer *transfer, uint32_t n, uint32_t *first)
{
    uint32_t all = transfer->n_read + n;
    if (first)
        *first = transfer->n_read;
    if (transfer->home->device->caps & MP_CAP_SYNC_CALLER)
        return MOEPAGE_OK; /* nothing outlasts its call */
    mp_free(transfer->reads);
    transfer->reads = mp_alloc_array(all, MP_MAX_READERS * sizeof *transfer->reads);
    if (!transfer->reads)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the readers of %u places", all);
    transfer->n_read = all;
    return MOEPAGE_OK;
}

static _Atomic mp_tick *reads_of(const mp_transfer *transfer, uint32_t place)
{
    return &transfer->reads[(uint64_t)place * MP_MAX_READERS];
}

void mp_readers_set(mp_transfer *transfer, uint32_t reader, mp_stream *stream)
{
    if (!transfer->reads)
        return;
    for (uint32_t p = 0; p < transfer->n_read; p++)
        atomic_store_explicit(&reads_of(transfer, p)[reader], 0, memory_order_relaxed);
    transfer->readers[reader] = stream;
}

void mp_readers_until(mp_transfer *transfer, uint32_t place, uint32_t reader, mp_tick tick)
{
    if (transfer->reads)
        /* Relaxed: the release of the place, which follows, publishes the tick to the next writer. */
        atomic_store_explicit(&reads_of(transfer, place)[reader], tick, memory_order_relaxed);
}

moepage_status mp_readers_each(const mp_transfer *transfer, uint32_t place,
                               moepage_status (*act)(void *context, mp_stream *reader,
                                                     mp_tick tick),
                               void *context)
{
    const mp_device_ops *ops = transfer->ops;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t c = 0; transfer->reads && c < MP_MAX_READERS && !status; c++) {
        mp_stream *reader = transfer->readers[c];
        mp_tick tick = reader ? atomic_load(&reads_of(transfer, place)[c]) : 0;
        if (tick && ops->completed(reader) < tick)
            status = act(context, reader, tick);
    }
    return status;
}

static moepage_status wait_here(void *context, mp_stream *reader, mp_tick tick)
{
    const mp_transfer *transfer = context;
    return transfer->ops->sync(reader, tick);
}

moepage_status mp_readers_sync(mp_transfer *transfer, uint32_t place)
{
    return mp_readers_each(transfer, place, wait_here, transfer);
}

static moepage_status refuse(void *context, mp_stream *reader, mp_tick tick)
{
    (void)context, (void)reader, (void)tick;
    return MOEPAGE_E_BUSY;
}

bool mp_readers_done(const mp_transfer *transfer, uint32_t place)
{
    return !mp_readers_each(transfer, place, refuse, NULL);
}
