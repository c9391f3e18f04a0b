/* Readers: work that goes on reading a slot after the plan that held it has been released.
 *
 * On a device whose work outlasts the call that submits it, a released slot may be given to another
 * expert at once, but its bytes may not change before every kernel that was submitted for it has
 * passed. So each session says up to which tick of its compute stream a slot is read, before it
 * lets go of it; and whatever writes to the slot next waits for these ticks, on the device. */
#include "base/alloc.h"
#include "base/status.h"
#include "pool/expert_pool.h"

moepage_status mp_readers_open(mp_shard *shard)
{
    if (shard->home->device->caps & MP_CAP_SYNC_CALLER)
        return MOEPAGE_OK; /* nothing outlasts its call */
    shard->reads = mp_alloc_array(shard->max_slots, MP_MAX_CLIENTS * sizeof *shard->reads);
    if (!shard->reads)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the readers of %u slots",
                       shard->max_slots);
    return MOEPAGE_OK;
}

static _Atomic mp_tick *reads_of(const mp_shard *shard, uint32_t slot)
{
    return &shard->reads[(uint64_t)slot * MP_MAX_CLIENTS];
}

void mp_pool_set_reader(struct moepage_expert_pool *pool, const mp_client *client,
                        uint32_t shard_index, mp_stream *stream)
{
    mp_shard *shard = &pool->shards[shard_index];
    if (!shard->reads)
        return;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t s = 0; s < shard->max_slots; s++)
        atomic_store_explicit(&reads_of(shard, s)[client->index], 0, memory_order_relaxed);
    shard->readers[client->index] = stream;
    pthread_mutex_unlock(&pool->lock);
}

void mp_pool_read_until(struct moepage_expert_pool *pool, const mp_client *client,
                        const mp_hold *hold, mp_tick tick)
{
    const mp_shard *shard = &pool->shards[hold->shard];
    if (shard->reads && hold->kind != MP_HOLD_NONE)
        atomic_store_explicit(&reads_of(shard, hold->slot)[client->index], tick,
                              memory_order_relaxed); /* letting go publishes it */
}

/* Calls `act` for every tick that the slot's next writer must see completed. */
static moepage_status for_each_reader(const mp_shard *shard, uint32_t slot,
                                      moepage_status (*act)(void *context, mp_stream *reader,
                                                            mp_tick tick),
                                      void *context)
{
    const mp_device_ops *ops = shard->home->device->ops;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t c = 0; shard->reads && c < MP_MAX_CLIENTS && !status; c++) {
        mp_stream *reader = shard->readers[c];
        mp_tick tick = reader ? atomic_load(&reads_of(shard, slot)[c]) : 0;
        if (tick && ops->completed(reader) < tick)
            status = act(context, reader, tick);
    }
    return status;
}

typedef struct writer {
    mp_shard *shard;
    mp_pipe_kind pipe;
} writer;

static moepage_status hold_bus(void *context, mp_stream *reader, mp_tick tick)
{
    const writer *w = context;
    return mp_pipe_wait(w->shard, w->pipe, reader, tick);
}

static moepage_status hold_decoder(void *context, mp_stream *reader, mp_tick tick)
{
    const writer *w = context;
    return w->shard->home->device->ops->wait(w->shard->pipes[w->pipe].decode, reader, tick);
}

static moepage_status wait_here(void *context, mp_stream *reader, mp_tick tick)
{
    const mp_shard *shard = context;
    return shard->home->device->ops->sync(reader, tick);
}

moepage_status mp_readers_before_bus(mp_shard *shard, uint32_t slot, mp_pipe_kind pipe)
{
    writer w = {.shard = shard, .pipe = pipe};
    return for_each_reader(shard, slot, hold_bus, &w);
}

moepage_status mp_readers_before_decode(mp_shard *shard, uint32_t slot, mp_pipe_kind pipe)
{
    writer w = {.shard = shard, .pipe = pipe};
    return for_each_reader(shard, slot, hold_decoder, &w);
}

moepage_status mp_readers_sync(mp_shard *shard, uint32_t slot)
{
    return for_each_reader(shard, slot, wait_here, shard);
}

static moepage_status refuse(void *context, mp_stream *reader, mp_tick tick)
{
    (void)context, (void)reader, (void)tick;
    return MOEPAGE_E_BUSY;
}

bool mp_readers_done(const mp_shard *shard, uint32_t slot)
{
    return !for_each_reader(shard, slot, refuse, NULL);
}
