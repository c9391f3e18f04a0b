/* Pipes: submission of loads to the device's streams. */
#include "transfer/pipe.h"

#include "model/dtype.h"
#include "pool/expert_pool.h"

/* ---- life ---- */

moepage_status mp_pipes_open(mp_shard *shard, bool decoders)
{
    static const mp_stream_class bus_class[MP_PIPES] = {
        [MP_PIPE_DEMAND] = MP_STREAM_DEMAND,
        [MP_PIPE_FETCH] = MP_STREAM_DEMAND,
        [MP_PIPE_PREFETCH] = MP_STREAM_PREFETCH,
    };
    mp_device *device = shard->home->device;
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        mp_pipe *pipe = &shard->pipes[kind];
        status = device->ops->stream_create(device, bus_class[kind], &pipe->bus);
        if (!status && decoders)
            status = device->ops->stream_create(device,
                                                kind == MP_PIPE_PREFETCH ? MP_STREAM_BACKGROUND
                                                                         : MP_STREAM_COMPUTE,
                                                &pipe->decode);
    }
    return status;
}

void mp_pipes_close(mp_shard *shard)
{
    const mp_device_ops *ops = shard->home->device->ops;
    for (int kind = 0; kind < MP_PIPES; kind++)
        if (shard->pipes[kind].bus)
            ops->stream_destroy(shard->pipes[kind].bus);
    for (int kind = 0; kind < MP_PIPES; kind++)
        if (shard->pipes[kind].decode)
            ops->stream_destroy(shard->pipes[kind].decode);
}

/* ---- staging of copies ---- */

/* The time of what finds the whole bus idle, and does not wait for a cold read, says how fast it is. */
static bool begin_timing(mp_shard *shard, mp_pipe_kind kind)
{
    const mp_device_ops *ops = shard->home->device->ops;
    if (kind == MP_PIPE_FETCH)
        return false;
    for (int k = 0; k < MP_PIPES; k++)
        if (ops->completed(shard->pipes[k].bus) < shard->pipes[k].last_bus)
            return false;
    return mp_probe_begin(&shard->probes[MP_PROBE_BUS], shard->pipes[kind].bus, 0);
}

static double staged_bytes(const mp_stage *stage)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < stage->n; i++)
        bytes += stage->copies[i].bytes;
    return (double)bytes;
}

void mp_pipe_flush(mp_shard *shard, mp_pipe_kind kind)
{
    mp_pipe *pipe = &shard->pipes[kind];
    mp_stage *stage = &pipe->stage;
    uint32_t n = stage->n;
    if (n == 0)
        return;
    const mp_device_ops *ops = shard->home->device->ops;
    bool timed = begin_timing(shard, kind);
    moepage_status status = ops->copy(pipe->bus, stage->copies, n, &pipe->last_bus);
    if (timed && !status)
        mp_probe_end(&shard->probes[MP_PROBE_BUS], pipe->bus, pipe->last_bus, staged_bytes(stage));
    for (uint32_t i = 0; i < n; i++) {
        if (status) /* refused: these loads fail as if their source had */
            atomic_store(stage->copies[i].result, status);
        shard->slots[stage->slot[i]].passage.bus[kind] =
            status ? pipe->last_bus : pipe->last_bus - n + 1 + i;
    }
    stage->n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (stage->last[i])
            mp_pipe_decode(shard, kind, stage->slot[i]);
}

void mp_pipes_flush(mp_shard *shard)
{
    for (int kind = 0; kind < MP_PIPES; kind++)
        mp_pipe_flush(shard, (mp_pipe_kind)kind);
}

void mp_pipe_stage(mp_shard *shard, mp_pipe_kind kind, uint32_t slot, const mp_copy *copy,
                   bool last)
{
    mp_stage *stage = &shard->pipes[kind].stage;
    if (stage->n == MP_STAGE_COPIES)
        mp_pipe_flush(shard, kind);
    stage->slot[stage->n] = slot;
    stage->last[stage->n] = last;
    stage->copies[stage->n++] = *copy;
    shard->slots[slot].passage.bus[kind] = MP_STAGED;
}

moepage_status mp_pipe_wait(mp_shard *shard, mp_pipe_kind kind, mp_stream *other, mp_tick tick)
{
    const mp_device_ops *ops = shard->home->device->ops;
    if (ops->completed(other) >= tick)
        return MOEPAGE_OK;
    mp_pipe_flush(shard, kind); /* what was staged before need not wait */
    return ops->wait(shard->pipes[kind].bus, other, tick);
}

/* ---- decoding ---- */

void mp_decode_describe(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                        const unsigned char *image, unsigned char *slot, mp_decode_job *jobs)
{
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(model, layer, expert, MOEPAGE_FORM_EXPH, parts);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const moepage_expert_tensor *tensor = &model->tensors[t];
        jobs[t] = (mp_decode_job){
            .src = image + parts[t].offset,
            .src_bytes = parts[t].form == MOEPAGE_FORM_DENSE ? tensor->bytes : parts[t].bytes,
            .dst = slot + tensor->offset,
            .elements = tensor->bytes / mp_dtype_bytes(tensor->dtype),
            .form = parts[t].form,
            .dtype = tensor->dtype,
        };
    }
}

static moepage_status submit_decode(mp_shard *shard, mp_pipe *pipe, uint32_t index)
{
    const mp_device_ops *ops = shard->home->device->ops;
    mp_slot *slot = &shard->slots[index];
    moepage_status status = MOEPAGE_OK;
    for (int k = 0; k < MP_PIPES && !status; k++) /* a demand may finish what a prefetch began */
        status = ops->wait(pipe->decode, shard->pipes[k].bus, slot->passage.bus[k]);
    if (!status)
        status = mp_readers_before_decode(shard, index, (mp_pipe_kind)(pipe - shard->pipes));
    mp_kernel_decode_args args = {
        .jobs = &shard->jobs[(uint64_t)index * MOEPAGE_MAX_EXPERT_TENSORS],
        .n_jobs = shard->pool->model->info.expert_tensors,
        .skip = &slot->result,
    };
    return status ? status : ops->launch(pipe->decode, MP_KERNEL_DECODE, &args, &pipe->last_decode);
}

bool mp_pipe_decode(mp_shard *shard, mp_pipe_kind kind, uint32_t index)
{
    mp_slot *slot = &shard->slots[index];
    mp_passage *passage = &slot->passage;
    mp_pipe *pipe = &shard->pipes[kind];
    bool idle = shard->home->device->ops->completed(pipe->decode) == pipe->last_decode;
    moepage_status status = submit_decode(shard, pipe, index);
    if (!status && idle) /* it begins when its image is there */
        mp_probe_behind(&shard->probes[MP_PROBE_DECODE], pipe->bus, passage->bus[kind],
                        pipe->decode, pipe->last_decode, (double)shard->pool->slot_bytes);
    if (status) {
        /* Its copies may still be on their way into the buffer that the next load gets. */
        (void)mp_pipe_sync(shard, passage);
        atomic_store(&slot->result, status);
    } else {
        passage->decode[kind] = pipe->last_decode;
        shard->pool->counters.decodes++;
    }
    if (passage->staging) {
        mp_staging *staging = &shard->staging.buffers[passage->staging - 1];
        staging->slot = MP_NO_SLOT;
        staging->pipe = kind;
        staging->tick = pipe->last_decode;
        passage->staging = 0;
    }
    return !status;
}

static bool free_now(const mp_shard *shard, const mp_staging *staging)
{
    const mp_device_ops *ops = shard->home->device->ops;
    return staging->slot == MP_NO_SLOT &&
           ops->completed(shard->pipes[staging->pipe].decode) >= staging->tick;
}

bool mp_pipe_may_prefetch(const mp_shard *shard)
{
    const mp_staging_ring *ring = &shard->staging;
    return shard->pool->bus_form != MOEPAGE_FORM_EXPH ||
           free_now(shard, &ring->buffers[ring->n - 1]);
}

moepage_status mp_pipe_take_staging(mp_shard *shard, mp_pipe_kind kind, uint32_t slot)
{
    mp_staging_ring *ring = &shard->staging;
    uint32_t at = ring->n - 1;
    if (kind == MP_PIPE_PREFETCH) {
        if (!free_now(shard, &ring->buffers[at]))
            return MOEPAGE_E_BUSY;
    } else {
        at = ring->next;
        ring->next = (ring->next + 1) % (ring->n - 1);
        mp_staging *staging = &ring->buffers[at];
        if (staging->slot != MP_NO_SLOT) /* its last copy is on a stage: submit its decoding */
            mp_pipes_flush(shard);
        mp_stream *reader = shard->pipes[staging->pipe].decode;
        moepage_status status = mp_pipe_wait(shard, kind, reader, staging->tick);
        if (status)
            return status;
    }
    ring->buffers[at].slot = slot;
    shard->slots[slot].passage.staging = at + 1;
    return MOEPAGE_OK;
}

/* ---- waiting ---- */

static moepage_status sync_pipe(mp_shard *shard, const mp_pipe *pipe, mp_tick bus, mp_tick decode)
{
    const mp_device_ops *ops = shard->home->device->ops;
    moepage_status status = bus ? ops->sync(pipe->bus, bus) : MOEPAGE_OK;
    if (!status && decode)
        status = ops->sync(pipe->decode, decode);
    return status;
}

moepage_status mp_pipe_sync(mp_shard *shard, const mp_passage *passage)
{
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++)
        status = sync_pipe(shard, &shard->pipes[kind], passage->bus[kind], passage->decode[kind]);
    return status;
}

moepage_status mp_pipe_settle(mp_shard *shard, const mp_passage *passage)
{
    const mp_device_ops *ops = shard->home->device->ops;
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        const mp_pipe *pipe = &shard->pipes[kind];
        if (passage->bus[kind])
            status = ops->settle(pipe->bus, passage->bus[kind]);
        if (!status && passage->decode[kind])
            status = ops->settle(pipe->decode, passage->decode[kind]);
    }
    return status;
}

moepage_status mp_pipe_lead(mp_shard *shard, const mp_passage *passage, mp_stream *reader)
{
    const mp_device_ops *ops = shard->home->device->ops;
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        const mp_pipe *pipe = &shard->pipes[kind];
        if (passage->bus[kind])
            status = ops->wait(reader, pipe->bus, passage->bus[kind]);
        if (!status && passage->decode[kind])
            status = ops->wait(reader, pipe->decode, passage->decode[kind]);
    }
    return status;
}

moepage_status mp_pipes_sync(mp_shard *shard)
{
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        const mp_pipe *pipe = &shard->pipes[kind];
        status = sync_pipe(shard, pipe, pipe->last_bus, pipe->last_decode);
    }
    return status;
}
