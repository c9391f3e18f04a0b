/* Pipes: their streams, the stage on which copies gather to go to the device together, and the
 * decoder behind a bus with its batches and its staging buffers. */
#include "base/alloc.h"
#include "base/status.h"
#include "model/dtype.h"
#include "transfer/inside.h"

/* ---- life ---- */

moepage_status mp_pipes_open(mp_transfer *transfer, bool decoders)
{
    mp_device *device = transfer->home->device;
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        mp_pipe *pipe = &transfer->pipes[kind];
        bool yields = kind == MP_PIPE_PREFETCH || transfer->in_turn;
        status = device->ops->stream_create(device, yields ? MP_STREAM_PREFETCH : MP_STREAM_DEMAND,
                                            &pipe->bus);
        if (!status && decoders)
            status = device->ops->stream_create(device,
                                                yields ? MP_STREAM_BACKGROUND : MP_STREAM_COMPUTE,
                                                &pipe->decode);
    }
    return status;
}

void mp_pipes_close(mp_transfer *transfer)
{
    const mp_device_ops *ops = transfer->ops;
    for (int kind = 0; kind < MP_PIPES; kind++)
        if (transfer->pipes[kind].bus)
            ops->stream_destroy(transfer->pipes[kind].bus);
    for (int kind = 0; kind < MP_PIPES; kind++)
        if (transfer->pipes[kind].decode)
            ops->stream_destroy(transfer->pipes[kind].decode);
    for (int kind = 0; kind < MP_PIPES; kind++) {
        mp_free(transfer->pipes[kind].batch.jobs);
        mp_free(transfer->pipes[kind].batch.skips);
        mp_free(transfer->pipes[kind].batch.passages);
    }
}

/* ---- waiting ---- */

moepage_status mp_passage_wait(mp_transfer *transfer, uint32_t index, mp_until until)
{
    const mp_device_ops *ops = transfer->ops;
    moepage_status (*wait)(mp_stream *, mp_tick) =
        until == MP_UNTIL_SETTLED ? ops->settle : ops->sync;
    const mp_passage *passage = &transfer->passages[index];
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        if (passage->bus[kind])
            status = wait(pipe->bus, passage->bus[kind]);
        if (!status && passage->decode[kind])
            status = wait(pipe->decode, passage->decode[kind]);
    }
    return status;
}

typedef struct writer {
    mp_transfer *transfer;
    mp_pipe_kind pipe;
} writer;

static moepage_status hold_bus(void *context, mp_stream *reader, mp_tick tick)
{
    const writer *w = context;
    return mp_pipe_wait(w->transfer, w->pipe, reader, tick);
}

static moepage_status hold_decoder(void *context, mp_stream *reader, mp_tick tick)
{
    const writer *w = context;
    return w->transfer->ops->wait(w->transfer->pipes[w->pipe].decode, reader, tick);
}

moepage_status mp_readers_before_bus(mp_transfer *transfer, uint32_t place, mp_pipe_kind pipe)
{
    writer w = {.transfer = transfer, .pipe = pipe};
    return mp_readers_each(transfer, place, hold_bus, &w);
}

moepage_status mp_readers_before_decode(mp_transfer *transfer, uint32_t place, mp_pipe_kind pipe)
{
    writer w = {.transfer = transfer, .pipe = pipe};
    return mp_readers_each(transfer, place, hold_decoder, &w);
}

/* ---- decoding ---- */

void mp_decode_describe(const mp_transfer *transfer, uint32_t key, const unsigned char *image,
                        unsigned char *place, mp_decode_job *jobs)
{
    const struct moepage_model *model = transfer->model;
    uint32_t layer = key / transfer->experts, expert = key % transfer->experts;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(model, layer, expert, MOEPAGE_FORM_EXPH, parts);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const moepage_expert_tensor *tensor = &mp_model_layout(model, layer)->tensors[t];
        jobs[t] = (mp_decode_job){
            .src = image + parts[t].offset,
            .src_bytes = parts[t].form == MOEPAGE_FORM_DENSE ? tensor->bytes : parts[t].bytes,
            .dst = mp_transfer_tensor_at(transfer, key, t, place),
            .elements = mp_dtype_weights(tensor->dtype, tensor->bytes),
            .form = parts[t].form,
            .dtype = tensor->dtype,
        };
    }
}

/* An image from the bus joins a batch only if the first one waits for the others' bytes no longer than a
 * launch of its own would have cost. */
#define LAUNCH_NS 5000u
/* Images in device memory wait for nothing but each other: a launch has this much to decode, so that it
 * costs a twentieth of that, and the first image is not kept waiting for a whole layer. A prefetched one has a
 * launch of its own: prefetching goes on whenever one has been decoded. */
#define BATCH_NS 100000u

/* Dense bytes at a measured rate. */
static uint64_t bytes_in(uint64_t rate, uint32_t ns)
{
    return (uint64_t)((double)rate * ns / 1e9);
}

/* Returns true if nothing may join the pipe's batch any more. */
static bool is_full(const mp_transfer *transfer, mp_pipe_kind kind)
{
    const mp_decode_batch *batch = &transfer->pipes[kind].batch;
    const mp_passage *passage = &transfer->passages[batch->passages[batch->first]];
    uint64_t bytes = batch->n * transfer->slot_bytes;
    if (batch->first + batch->n == transfer->n_passages)
        return true;
    if (passage->source != MP_FROM_DEVICE)
        return bytes > bytes_in(transfer->rates.bus, LAUNCH_NS);
    return kind == MP_PIPE_PREFETCH || bytes >= bytes_in(transfer->rates.decode, BATCH_NS);
}

/* Gives the staging buffer back, to be filled again behind the decoding submitted last. */
static void release_staging(mp_transfer *transfer, mp_pipe_kind kind, mp_passage *passage)
{
    if (!passage->staging)
        return;
    mp_staging *staging = &transfer->staging.buffers[passage->staging - 1];
    staging->passage = MP_NO_PASSAGE;
    staging->pipe = kind;
    staging->tick = transfer->pipes[kind].last_decode;
    passage->staging = 0;
}

/* Ends a load whose decoding the device has refused. */
static void refused(mp_transfer *transfer, mp_pipe_kind kind, uint32_t index, moepage_status status)
{
    mp_passage *passage = &transfer->passages[index];
    passage->decode[kind] = 0;
    mp_failure_note(&transfer->failure, passage->key, status, moepage_last_error());
    /* The buffer goes to another load: wait for the copies that are still on their
     * way into it. */
    (void)mp_passage_wait(transfer, index, MP_UNTIL_LANDED);
    atomic_store(&passage->result, status);
    release_staging(transfer, kind, passage);
}

static void decoding(mp_transfer *transfer, mp_pipe_kind kind, uint32_t index)
{
    mp_passage *passage = &transfer->passages[index];
    passage->decode[kind] = transfer->pipes[kind].last_decode;
    transfer->counters.decodes++;
    if (passage->source == MP_FROM_DEVICE) {
        transfer->counters.compressed_loads++;
        transfer->compressed.read[kind] = passage->decode[kind];
    }
    release_staging(transfer, kind, passage);
}

/* Launches the decoding of the images gathered. */
static void launch_batch(mp_transfer *transfer, mp_pipe_kind kind)
{
    const mp_device_ops *ops = transfer->ops;
    mp_probe *probe = &transfer->probes[MP_PROBE_DECODE];
    mp_pipe *pipe = &transfer->pipes[kind];
    mp_decode_batch *batch = &pipe->batch;
    const uint32_t n = batch->n, tensors = transfer->model->info.expert_tensors;
    if (n == 0)
        return;
    const uint32_t *passages = &batch->passages[batch->first];
    mp_kernel_decode_args args = {
        .jobs = &batch->jobs[(uint64_t)batch->first * tensors],
        .skips = &batch->skips[(uint64_t)batch->first * tensors],
        .n_jobs = n * tensors,
    };
    batch->n = 0;
    bool timed =
        ops->completed(pipe->decode) == pipe->last_decode && mp_probe_begin(probe, pipe->decode, 0);
    moepage_status status = ops->launch(pipe->decode, MP_KERNEL_DECODE, &args, &pipe->last_decode);
    if (timed && !status)
        /* The decode begins when its last image has crossed the bus. */
        mp_probe_end(probe, pipe->bus, transfer->passages[passages[n - 1]].bus[kind], pipe->decode,
                     pipe->last_decode, (double)n * (double)transfer->slot_bytes);
    if (!status) /* rows of a launch that was refused are free again */
        batch->first = (batch->first + n) % transfer->n_passages;
    for (uint32_t i = 0; i < n; i++) {
        if (status)
            refused(transfer, kind, passages[i], status);
        else
            decoding(transfer, kind, passages[i]);
    }
}

/* Describes the decoder's jobs: the image's parts, at the addresses where they will be. */
static void describe_row(mp_transfer *transfer, mp_decode_batch *batch, uint32_t row,
                         uint32_t index, const unsigned char *image)
{
    const uint32_t tensors = transfer->model->info.expert_tensors;
    mp_passage *passage = &transfer->passages[index];
    mp_decode_describe(transfer, passage->key, image, passage->place,
                       &batch->jobs[(uint64_t)row * tensors]);
    for (uint32_t t = 0; t < tensors; t++)
        batch->skips[(uint64_t)row * tensors + t] = &passage->result;
    batch->passages[row] = index;
}

void mp_pipe_gather(mp_transfer *transfer, mp_pipe_kind kind, uint32_t index,
                    const unsigned char *image)
{
    const mp_device_ops *ops = transfer->ops;
    mp_pipe *pipe = &transfer->pipes[kind];
    mp_passage *passage = &transfer->passages[index];
    moepage_status status = MOEPAGE_OK;
    /* For the bus of all pipes: a demand may finish what a prefetch began. */
    for (int k = 0; k < MP_PIPES && !status; k++)
        status = ops->wait(pipe->decode, transfer->pipes[k].bus, passage->bus[k]);
    if (!status)
        status = mp_readers_before_decode(transfer, index, kind);
    if (status) {
        refused(transfer, kind, index, status);
        return;
    }
    describe_row(transfer, &pipe->batch, pipe->batch.first + pipe->batch.n++, index, image);
    passage->decode[kind] = MP_STAGED;
    if (is_full(transfer, kind))
        launch_batch(transfer, kind);
}

moepage_status mp_pipes_set_passages(mp_transfer *transfer, uint32_t n)
{
    const uint32_t tensors = transfer->model->info.expert_tensors;
    for (int kind = 0; kind < MP_PIPES && transfer->pipes[kind].decode; kind++) {
        mp_decode_batch *batch = &transfer->pipes[kind].batch;
        batch->jobs = mp_alloc_array(n, tensors * sizeof *batch->jobs);
        batch->skips = mp_alloc_array(n, tensors * sizeof *batch->skips);
        batch->passages = mp_alloc_array(n, sizeof *batch->passages);
        if (!batch->jobs || !batch->skips || !batch->passages)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the decoder's jobs of %u slots", n);
    }
    return MOEPAGE_OK;
}

static bool free_now(const mp_transfer *transfer, const mp_staging *staging)
{
    const mp_device_ops *ops = transfer->ops;
    return staging->passage == MP_NO_PASSAGE &&
           ops->completed(transfer->pipes[staging->pipe].decode) >= staging->tick;
}

bool mp_pipe_may_prefetch(const mp_transfer *transfer)
{
    const mp_staging_ring *ring = &transfer->staging;
    return transfer->bus_form != MOEPAGE_FORM_EXPH ||
           free_now(transfer, &ring->buffers[ring->n - 1]);
}

moepage_status mp_pipe_take_staging(mp_transfer *transfer, mp_pipe_kind kind, uint32_t passage)
{
    mp_staging_ring *ring = &transfer->staging;
    uint32_t at = ring->n - 1;
    if (kind == MP_PIPE_PREFETCH) {
        if (!free_now(transfer, &ring->buffers[at]))
            return MOEPAGE_E_BUSY;
    } else {
        at = ring->next;
        ring->next = (ring->next + 1) % (ring->n - 1);
        mp_staging *staging = &ring->buffers[at];
        /* A buffer still being filled has its last copy on a stage: flushing submits its decoding. */
        if (staging->passage != MP_NO_PASSAGE)
            mp_transfer_flush(transfer);
        mp_stream *reader = transfer->pipes[staging->pipe].decode;
        moepage_status status = mp_pipe_wait(transfer, kind, reader, staging->tick);
        if (status)
            return status;
    }
    ring->buffers[at].passage = passage;
    transfer->passages[passage].staging = at + 1;
    return MOEPAGE_OK;
}

/* ---- copies on a stage ---- */

void mp_pipe_flush(mp_transfer *transfer, mp_pipe_kind kind)
{
    const mp_device_ops *ops = transfer->ops;
    mp_probe *probe = &transfer->probes[MP_PROBE_BUS];
    mp_pipe *pipe = &transfer->pipes[kind];
    mp_stage *stage = &pipe->stage;
    uint32_t n = stage->n;
    if (n == 0)
        return;

    /* A submission is timed if it finds the whole bus idle and waits for no cold read: its duration
     * is then the bus's alone. */
    bool timed = kind != MP_PIPE_FETCH;
    for (int k = 0; k < MP_PIPES && timed; k++)
        timed = ops->completed(transfer->pipes[k].bus) >= transfer->pipes[k].last_bus;
    timed = timed && mp_probe_begin(probe, pipe->bus, 0);
    moepage_status status = ops->copy(pipe->bus, stage->copies, n, &pipe->last_bus);
    if (status)
        mp_failure_note(&transfer->failure, transfer->passages[stage->passage[0]].key, status,
                        moepage_last_error());
    if (timed && !status) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < n; i++)
            bytes += stage->copies[i].bytes;
        mp_probe_end(probe, NULL, 0, pipe->bus, pipe->last_bus, (double)bytes);
    }

    /* Each load gets its tick. Refused loads fail as if their source had; they keep the last tick,
     * because earlier copies of theirs may still be under way. */
    for (uint32_t i = 0; i < n; i++) {
        if (status)
            atomic_store(stage->copies[i].result, status);
        transfer->passages[stage->passage[i]].bus[kind] =
            status ? pipe->last_bus : pipe->last_bus - n + 1 + i;
    }

    /* The stage is free again; the images that are whole now are decoded, behind those that wait for no
     * bus. */
    stage->n = 0;
    uint32_t whole = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!stage->last[i])
            continue;
        if (whole++ == 0)
            launch_batch(transfer, kind);
        const mp_passage *passage = &transfer->passages[stage->passage[i]];
        mp_pipe_gather(transfer, kind, stage->passage[i],
                       transfer->staging.buffers[passage->staging - 1].memory);
    }
    if (whole)
        launch_batch(transfer, kind);
}

void mp_transfer_flush(mp_transfer *transfer)
{
    for (int kind = 0; kind < MP_PIPES; kind++) {
        mp_pipe_flush(transfer, (mp_pipe_kind)kind);
        launch_batch(transfer, (mp_pipe_kind)kind);
    }
}

moepage_status mp_pipe_wait(mp_transfer *transfer, mp_pipe_kind kind, mp_stream *other,
                            mp_tick tick)
{
    const mp_device_ops *ops = transfer->ops;
    if (ops->completed(other) >= tick)
        return MOEPAGE_OK;
    mp_pipe_flush(transfer, kind); /* copies staged before this need not wait */
    return ops->wait(transfer->pipes[kind].bus, other, tick);
}

/* ---- copies out of stored images ---- */

moepage_status mp_transfer_keep_failure(const mp_copy *copy, moepage_status status)
{
    mp_transfer *transfer = (mp_transfer *)(uintptr_t)copy->fill_user;
    uint32_t key = copy->fill_key[0] * transfer->experts + copy->fill_key[1];
    if (status)
        mp_failure_note(&transfer->failure, key, status, moepage_last_error());
    return status;
}

/* Runs on a device's thread. The first one of an image checks all of it before it uses any of it. */
static moepage_status fill_from_stored(const mp_copy *copy, void *out)
{
    const mp_transfer *transfer = copy->fill_user;
    return mp_transfer_keep_failure(copy,
                                    mp_model_read_stored(transfer->model, copy->fill_key[0],
                                                         copy->fill_key[1], copy->fill_key[2],
                                                         copy->fill_offset, copy->bytes, out));
}

mp_copy mp_transfer_copy_stored(const mp_transfer *transfer, uint32_t key, uint32_t form,
                                uint64_t offset, uint64_t bytes)
{
    mp_image image = mp_transfer_image(transfer, key, form);
    if (!image.stored)
        return (mp_copy){.src = image.address + offset, .bytes = bytes};
    return (mp_copy){
        .bytes = bytes,
        .fill = fill_from_stored,
        .fill_user = transfer,
        .fill_key = {key / transfer->experts, key % transfer->experts, form},
        .fill_offset = offset,
    };
}
