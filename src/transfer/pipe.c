/* Pipes: their streams, and the decoder behind a bus with its staging buffers. */
#include "model/dtype.h"
#include "transfer/inside.h"

/* ---- life ---- */

moepage_status mp_pipes_open(mp_transfer *transfer, bool decoders)
{
    static const mp_stream_class bus_class[MP_PIPES] = {
        [MP_PIPE_DEMAND] = MP_STREAM_DEMAND,
        [MP_PIPE_FETCH] = MP_STREAM_DEMAND,
        [MP_PIPE_PREFETCH] = MP_STREAM_PREFETCH,
    };
    mp_device *device = transfer->home->device;
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        mp_pipe *pipe = &transfer->pipes[kind];
        status = device->ops->stream_create(device, bus_class[kind], &pipe->bus);
        if (!status && decoders)
            status = device->ops->stream_create(device,
                                                kind == MP_PIPE_PREFETCH ? MP_STREAM_BACKGROUND
                                                                         : MP_STREAM_COMPUTE,
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
}

/* ---- decoding ---- */

void mp_decode_describe(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                        const unsigned char *image, unsigned char *place, mp_decode_job *jobs)
{
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(model, layer, expert, MOEPAGE_FORM_EXPH, parts);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const moepage_expert_tensor *tensor = &model->tensors[t];
        jobs[t] = (mp_decode_job){
            .src = image + parts[t].offset,
            .src_bytes = parts[t].form == MOEPAGE_FORM_DENSE ? tensor->bytes : parts[t].bytes,
            .dst = place + tensor->offset,
            .elements = tensor->bytes / mp_dtype_bytes(tensor->dtype),
            .form = parts[t].form,
            .dtype = tensor->dtype,
        };
    }
}

static moepage_status submit_decode(mp_transfer *transfer, mp_pipe *pipe, uint32_t index)
{
    const mp_device_ops *ops = transfer->ops;
    mp_passage *passage = &transfer->passages[index];
    moepage_status status = MOEPAGE_OK;
    for (int k = 0; k < MP_PIPES && !status; k++) /* a demand may finish what a prefetch began */
        status = ops->wait(pipe->decode, transfer->pipes[k].bus, passage->bus[k]);
    if (!status)
        status = mp_readers_before_decode(transfer, index, (mp_pipe_kind)(pipe - transfer->pipes));
    mp_kernel_decode_args args = {
        .jobs = &transfer->jobs[(uint64_t)index * MOEPAGE_MAX_EXPERT_TENSORS],
        .n_jobs = transfer->model->info.expert_tensors,
        .skip = &passage->result,
    };
    return status ? status : ops->launch(pipe->decode, MP_KERNEL_DECODE, &args, &pipe->last_decode);
}

bool mp_pipe_decode(mp_transfer *transfer, mp_pipe_kind kind, uint32_t index)
{
    mp_passage *passage = &transfer->passages[index];
    mp_pipe *pipe = &transfer->pipes[kind];
    bool idle = transfer->ops->completed(pipe->decode) == pipe->last_decode;
    moepage_status status = submit_decode(transfer, pipe, index);
    if (!status && idle) /* it begins when its image is there */
        mp_probe_behind(&transfer->probes[MP_PROBE_DECODE], pipe->bus, passage->bus[kind],
                        pipe->decode, pipe->last_decode, (double)transfer->place_bytes);
    if (status) {
        /* Its copies may still be on their way into the buffer that the next load gets. */
        (void)mp_passage_sync(transfer, index);
        atomic_store(&passage->result, status);
    } else {
        passage->decode[kind] = pipe->last_decode;
        transfer->counters.decodes++;
    }
    if (passage->staging) {
        mp_staging *staging = &transfer->staging.buffers[passage->staging - 1];
        staging->passage = MP_NO_PASSAGE;
        staging->pipe = kind;
        staging->tick = pipe->last_decode;
        passage->staging = 0;
    }
    return !status;
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
        if (staging->passage !=
            MP_NO_PASSAGE) /* its last copy is on a stage: submit its decoding */
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
