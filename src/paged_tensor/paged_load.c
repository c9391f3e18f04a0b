/* Moves a layer's bytes into its buffer, one load stream per expert tensor.
 *
 *   pieces, stored   load stream: source --bus--> place
 *   coded            load stream: part --bus--> staging; decode stream: staging --kernel--> place
 *   read             COLD streams: file --> host memory; load stream: host memory --bus--> place
 *
 * A load is submitted completely at once; streams wait for each other's ticks. Load streams are of
 * class PREFETCH, with transfers of at most CHUNK_BYTES, so that the KV pool's demands on the bus
 * go first and never wait for long. They are never promoted to demand: a layer's loads are
 * submitted one layer ahead, in the order in which they are needed. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/dtype.h"
#include "paged_tensor/paged.h"

#define CHUNK_BYTES (2u << 20)
#define STAGING_BYTES (4u << 20) /* half of a type's staging, unless one image's part is larger */
#define STAGING_ALIGN 256u
#define DECODE_ALIGN 16u /* alignment that a decoder's output needs */

/* ---- choosing the source ---- */

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static bool is_stored(const struct moepage_model *model, uint32_t form)
{
    mp_image image;
    if (!mp_model_has_form(model, form))
        return false;
    mp_model_find_image(model, 0, 0, form, &image);
    return image.stored;
}

/* Experts are packed at their own size, so that not every place has the alignment
 * that decoders need. */
static bool can_decode(const struct moepage_model *model)
{
    for (uint32_t t = 0; t < model->info.expert_tensors; t++)
        if (model->layouts[0].tensors[t].bytes % DECODE_ALIGN)
            return false;
    return true;
}

moepage_status mp_paged_choose(const struct moepage_model *model, mp_paged_source *out)
{
    if (model->phantom)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the model \"%s\" is a shape without weights: there is nothing to page",
                       model->info.architecture);
    if (model->n_layouts > 1)
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "the experts of this %s model differ in type from layer to layer: one tensor "
            "cannot hold them",
            model->info.architecture);
    if (!model->pack)
        *out = MP_PAGED_PIECES;
    else if (is_stored(model, MOEPAGE_FORM_EXPH) && can_decode(model))
        *out = MP_PAGED_CODED;
    else if (is_stored(model, MOEPAGE_FORM_DENSE))
        *out = MP_PAGED_STORED;
    else if (mp_model_has_form(model, MOEPAGE_FORM_DENSE) ||
             mp_model_has_form(model, MOEPAGE_FORM_EXPH))
        *out = MP_PAGED_READ;
    else
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the pack has no lossless form of its experts: pack the model with DENSE or "
                       "EXPH");
    return MOEPAGE_OK;
}

/* Returns the largest coded part of a tensor over all experts. */
static uint64_t most_coded(const struct moepage_model *model, uint32_t type)
{
    uint64_t most = 0;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    for (uint32_t layer = 0; layer < model->info.moe_layers; layer++)
        for (uint32_t expert = 0; expert < model->info.experts; expert++) {
            mp_model_find_parts(model, layer, expert, MOEPAGE_FORM_EXPH, parts);
            if (parts[type].form == MOEPAGE_FORM_EXPH && parts[type].bytes > most)
                most = parts[type].bytes;
        }
    return round_up(most, STAGING_ALIGN);
}

/* Returns half of a type's staging: a layer's need, or enough to keep the decoder busy. */
static uint64_t half_bytes(const struct moepage_model *model, uint32_t type)
{
    uint64_t most = most_coded(model, type), layer = most * model->info.experts;
    uint64_t half = layer < STAGING_BYTES ? layer : STAGING_BYTES;
    return half > most ? half : most;
}

uint64_t mp_paged_workspace(const struct moepage_model *model, mp_paged_source source)
{
    uint64_t bytes = 0;
    for (uint32_t t = 0; source == MP_PAGED_CODED && t < model->info.expert_tensors; t++)
        bytes += 2 * half_bytes(model, t);
    return bytes;
}

/* ---- life cycle ---- */

static moepage_status open_staging(struct moepage_paged *paged)
{
    uint64_t bytes = mp_paged_workspace(paged->model, paged->source), at = 0;
    uint64_t jobs = (uint64_t)paged->n_buffers * paged->n_types * paged->n_experts;
    paged->jobs = mp_alloc_array(jobs, sizeof *paged->jobs);
    if (!paged->jobs)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu jobs of the decoder",
                       (unsigned long long)jobs);
    for (uint32_t b = 0; b < paged->n_buffers; b++)
        paged->buffers[b].jobs = paged->jobs + (uint64_t)b * paged->n_types * paged->n_experts;
    if (!bytes)
        return MOEPAGE_OK; /* every part is raw */
    moepage_status status = mp_home_workspace_alloc(paged->home, bytes, &paged->staging);
    if (status)
        return mp_fail_within(status, "staging of EXPH images");
    paged->staging_bytes = bytes;
    for (uint32_t t = 0; t < paged->n_types; t++) {
        mp_paged_staging *staging = &paged->types[t].staging;
        staging->memory = (unsigned char *)paged->staging + at;
        staging->half_bytes = half_bytes(paged->model, t);
        at += 2 * staging->half_bytes;
    }
    return MOEPAGE_OK;
}

static uint32_t decoder_of(uint32_t type)
{
    return MOEPAGE_MAX_EXPERT_TENSORS + type;
}

static uint32_t stream_of_reader(uint32_t reader)
{
    return MP_PAGED_WRITERS + reader;
}

static moepage_status open_reader(struct moepage_paged *paged)
{
    mp_device *device = paged->home->device;
    mp_paged_reader *reader = &paged->readers[paged->n_readers];
    uint64_t room = mp_model_image_room(paged->model, MOEPAGE_FORM_DENSE);
    moepage_status status = mp_scratch_open(paged->home, room, &reader->scratch);
    if (!status)
        status = device->ops->stream_create(device, MP_STREAM_COLD,
                                            &paged->streams[stream_of_reader(paged->n_readers)]);
    paged->n_readers++;
    return status;
}

static uint32_t choose_readers(const struct moepage_paged *paged)
{
    uint32_t n = 2 * paged->home->device->io_threads; /* one is filled, another copied */
    n = n < MP_PAGED_READERS ? n : MP_PAGED_READERS;
    return n < paged->n_experts ? n : paged->n_experts;
}

moepage_status mp_paged_open_loads(struct moepage_paged *paged)
{
    mp_device *device = paged->home->device;
    moepage_status status = device->ops->stream_create(device, MP_STREAM_COMPUTE, &paged->compute);
    for (uint32_t t = 0; t < paged->n_types && !status; t++) {
        status = device->ops->stream_create(device, MP_STREAM_PREFETCH, &paged->streams[t]);
        if (!status && paged->source == MP_PAGED_CODED)
            status = device->ops->stream_create(device, MP_STREAM_BACKGROUND,
                                                &paged->streams[decoder_of(t)]);
    }
    if (!status && (paged->source == MP_PAGED_CODED || paged->source == MP_PAGED_STORED))
        status = mp_model_prepare_stored(paged->model);
    if (!status && paged->source == MP_PAGED_CODED)
        status = open_staging(paged);
    uint32_t readers = paged->source == MP_PAGED_READ ? choose_readers(paged) : 0;
    while (!status && paged->n_readers < readers)
        status = open_reader(paged);
    return status;
}

void mp_paged_close_loads(struct moepage_paged *paged)
{
    const mp_device_ops *ops = paged->home->device->ops;
    if (paged->compute)
        ops->stream_destroy(paged->compute);
    for (uint32_t s = 0; s < MP_PAGED_STREAMS; s++)
        if (paged->streams[s])
            ops->stream_destroy(paged->streams[s]);
    for (uint32_t r = 0; r < paged->n_readers; r++)
        mp_scratch_close(paged->home, &paged->readers[r].scratch);
    mp_home_workspace_free(paged->home, paged->staging, paged->staging_bytes);
    mp_free(paged->jobs);
}

/* ---- reading the sources; on device threads ---- */

/* Keeps the first failure's sentence. */
static moepage_status note_failure(const mp_copy *copy, moepage_status status)
{
    mp_paged_buffer *buffer = (mp_paged_buffer *)(uintptr_t)copy->fill_user;
    if (status && !atomic_exchange(&buffer->failed, true))
        snprintf(buffer->why, sizeof buffer->why, "%s", moepage_last_error());
    return status;
}

static const struct moepage_model *model_of(const mp_copy *copy)
{
    const mp_paged_buffer *buffer = copy->fill_user;
    return buffer->paged->model;
}

static moepage_status fill_from_piece(const mp_copy *copy, void *out)
{
    return note_failure(copy, mp_model_read_piece(model_of(copy), copy->fill_key[0],
                                                  copy->fill_key[1], copy->fill_key[2],
                                                  copy->fill_offset, copy->bytes, out));
}

static uint32_t stored_form(const struct moepage_paged *paged)
{
    return paged->source == MP_PAGED_CODED ? MOEPAGE_FORM_EXPH : MOEPAGE_FORM_DENSE;
}

/* The first one of an image checks all of it before any of it is used. */
static moepage_status fill_from_stored(const mp_copy *copy, void *out)
{
    const mp_paged_buffer *buffer = copy->fill_user;
    return note_failure(copy, mp_model_read_stored(model_of(copy), copy->fill_key[0],
                                                   copy->fill_key[1], stored_form(buffer->paged),
                                                   copy->fill_offset, copy->bytes, out));
}

static moepage_status fill_by_reading(const mp_copy *copy, void *out)
{
    uint64_t read_bytes;
    return note_failure(copy,
                        mp_model_read_image(model_of(copy), copy->fill_key[0], copy->fill_key[1],
                                            MOEPAGE_FORM_DENSE, out, copy->bytes, &read_bytes));
}

/* ---- submission ---- */

/* One load during its submission. */
typedef struct load {
    struct moepage_paged *paged;
    const mp_device_ops *ops;
    mp_paged_buffer *buffer;
    uint32_t layer;
} load;

static moepage_status flush(const load *l, uint32_t type)
{
    mp_paged_stage *stage = &l->paged->types[type].stage;
    uint32_t n = stage->n;
    stage->n = 0;
    return n ? l->ops->copy(l->paged->streams[type], stage->copies, n, &l->buffer->ticks[type])
             : MOEPAGE_OK;
}

/* Stages a transfer in chunks. */
static moepage_status stage(const load *l, uint32_t type, mp_copy copy)
{
    mp_paged_stage *to = &l->paged->types[type].stage;
    uint64_t left = copy.bytes;
    copy.result = &l->buffer->result;
    copy.fill_user = l->buffer;
    while (left) {
        copy.bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        to->copies[to->n++] = copy;
        moepage_status status = to->n == MP_PAGED_STAGE ? flush(l, type) : MOEPAGE_OK;
        if (status)
            return status;
        left -= copy.bytes;
        copy.dst = (unsigned char *)copy.dst + copy.bytes;
        copy.src = copy.src ? (const unsigned char *)copy.src + copy.bytes : NULL;
        copy.fill_offset += copy.bytes;
    }
    return MOEPAGE_OK;
}

/* Returns the place of one expert's tensor: the buffer's own address, mapped into the
 * view or not. */
static unsigned char *place_of(const load *l, uint32_t type, uint32_t expert)
{
    const struct moepage_paged *paged = l->paged;
    const mp_paged_type *of = &paged->types[type];
    uint64_t buffer = (uint64_t)(l->buffer - paged->buffers);
    return paged->base + buffer * paged->unit + paged->ranges[of->range].offset + of->offset +
           expert * of->expert_stride;
}

static moepage_status load_pieces(const load *l, uint32_t type, uint32_t expert)
{
    const struct moepage_model *model = l->paged->model;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < model->n_pieces && !status; i++) {
        const mp_piece *piece = &model->layouts[0].pieces[i];
        if (piece->tensor != type)
            continue;
        mp_copy copy = {.dst = place_of(l, type, expert) + piece->tensor_offset,
                        .bytes = piece->bytes,
                        .fill_key = {l->layer, expert, i}};
        if (!model->sources)
            copy.fill = fill_from_piece;
        else
            copy.src = model->sources[mp_model_source_index(model, l->layer, expert) + i];
        status = stage(l, type, copy);
    }
    return status;
}

/* Stages a range of an expert's stored image. */
static moepage_status stage_stored(const load *l, uint32_t type, uint32_t expert, uint64_t offset,
                                   uint64_t bytes, void *dst)
{
    return stage(l, type,
                 (mp_copy){.dst = dst,
                           .bytes = bytes,
                           .fill = fill_from_stored,
                           .fill_key = {l->layer, expert, type},
                           .fill_offset = offset});
}

static moepage_status load_stored(const load *l, uint32_t type, uint32_t expert)
{
    const moepage_expert_tensor *tensor = &l->paged->model->layouts[0].tensors[type];
    return stage_stored(l, type, expert, tensor->offset, tensor->bytes, place_of(l, type, expert));
}

/* ---- coded images ---- */

static mp_decode_job *jobs_of(const load *l, uint32_t type)
{
    return l->buffer->jobs + (uint64_t)type * l->paged->n_experts;
}

/* Decodes the parts in the half being filled, and switches to the other half. */
static moepage_status decode_half(const load *l, uint32_t type)
{
    struct moepage_paged *paged = l->paged;
    mp_paged_staging *staging = &paged->types[type].staging;
    mp_stream *bus = paged->streams[type], *decoder = paged->streams[decoder_of(type)];
    mp_tick *tick = &l->buffer->ticks[decoder_of(type)];
    mp_kernel_decode_args args = {.jobs = jobs_of(l, type) + staging->first,
                                  .skip = &l->buffer->result,
                                  .n_jobs = staging->n};
    moepage_status status = flush(l, type);
    if (!status)
        status = l->ops->wait(decoder, bus, l->buffer->ticks[type]);
    if (!status)
        status = l->ops->launch(decoder, MP_KERNEL_DECODE, &args, tick);
    if (!status)
        staging->tick[staging->half] = *tick;
    staging->first += staging->n;
    staging->n = 0;
    staging->used = 0;
    staging->half ^= 1;
    return status;
}

/* Takes room for a part in the half being filled. The first part to enter a half waits until the
 * half's previous contents have been decoded. */
static moepage_status take_staging(const load *l, uint32_t type, uint64_t bytes,
                                   unsigned char **out)
{
    struct moepage_paged *paged = l->paged;
    mp_paged_staging *staging = &paged->types[type].staging;
    moepage_status status = MOEPAGE_OK;
    if (staging->used + bytes > staging->half_bytes)
        status = decode_half(l, type);
    if (!status && staging->used == 0 && staging->tick[staging->half])
        status = l->ops->wait(paged->streams[type], paged->streams[decoder_of(type)],
                              staging->tick[staging->half]);
    *out = staging->memory + staging->half * staging->half_bytes + staging->used;
    staging->used += round_up(bytes, STAGING_ALIGN);
    return status;
}

static moepage_status load_coded(const load *l, uint32_t type, uint32_t expert)
{
    const struct moepage_model *model = l->paged->model;
    const moepage_expert_tensor *tensor = &model->layouts[0].tensors[type];
    mp_paged_staging *staging = &l->paged->types[type].staging;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(model, l->layer, expert, MOEPAGE_FORM_EXPH, parts);
    const mp_image_part *part = &parts[type];
    unsigned char *place = place_of(l, type, expert), *staged;
    if (part->form == MOEPAGE_FORM_DENSE)
        return stage_stored(l, type, expert, part->offset, tensor->bytes, place);
    moepage_status status = take_staging(l, type, part->bytes, &staged);
    if (status)
        return status;
    jobs_of(l, type)[staging->first + staging->n++] =
        (mp_decode_job){.src = staged,
                        .src_bytes = part->bytes,
                        .dst = place,
                        .elements = mp_dtype_weights(tensor->dtype, tensor->bytes),
                        .form = part->form,
                        .dtype = tensor->dtype};
    return stage_stored(l, type, expert, part->offset, part->bytes, staged);
}

/* ---- images that are read first ---- */

static moepage_status read_image(const load *l, uint32_t expert)
{
    struct moepage_paged *paged = l->paged;
    uint32_t index = expert % paged->n_readers, number = stream_of_reader(index);
    mp_paged_reader *reader = &paged->readers[index];
    mp_copy copy = {.dst = reader->scratch.aligned,
                    .bytes = reader->scratch.room,
                    .fill = fill_by_reading,
                    .fill_user = l->buffer,
                    .fill_key = {l->layer, expert},
                    .result = &l->buffer->result};
    moepage_status status = MOEPAGE_OK;
    for (uint32_t t = 0; t < paged->n_types && !status; t++)
        if (reader->tick[t])
            status = l->ops->wait(paged->streams[number], paged->streams[t], reader->tick[t]);
    return status ? status
                  : l->ops->copy(paged->streams[number], &copy, 1, &l->buffer->ticks[number]);
}

static moepage_status load_read(const load *l, uint32_t type, uint32_t expert)
{
    struct moepage_paged *paged = l->paged;
    const moepage_expert_tensor *tensor = &paged->model->layouts[0].tensors[type];
    uint32_t index = expert % paged->n_readers, number = stream_of_reader(index);
    mp_paged_reader *reader = &paged->readers[index];
    moepage_status status =
        l->ops->wait(paged->streams[type], paged->streams[number], l->buffer->ticks[number]);
    if (!status)
        status = stage(l, type,
                       (mp_copy){.dst = place_of(l, type, expert),
                                 .src = reader->scratch.aligned + tensor->offset,
                                 .bytes = tensor->bytes});
    if (!status)
        status = flush(l, type);
    if (l->buffer->ticks[type]) /* also for a refused load's transfers in flight */
        reader->tick[type] = l->buffer->ticks[type];
    return status;
}

/* ---- a whole load ---- */

static moepage_status load_expert(const load *l, uint32_t type, uint32_t expert)
{
    switch (l->paged->source) {
    case MP_PAGED_PIECES: return load_pieces(l, type, expert);
    case MP_PAGED_STORED: return load_stored(l, type, expert);
    case MP_PAGED_CODED: return load_coded(l, type, expert);
    case MP_PAGED_READ: return load_read(l, type, expert);
    }
    return MOEPAGE_OK;
}

/* Makes the load streams wait for the last reader of the buffer's previous contents (WAR). The
 * decoders write behind the load streams' transfers. */
static moepage_status begin(const load *l)
{
    struct moepage_paged *paged = l->paged;
    moepage_status status = MOEPAGE_OK;
    memset(l->buffer->ticks, 0, sizeof l->buffer->ticks);
    atomic_store(&l->buffer->result, MOEPAGE_OK);
    atomic_store(&l->buffer->failed, false);
    l->buffer->why[0] = '\0';
    for (uint32_t t = 0; t < paged->n_types && !status; t++) {
        paged->types[t].stage.n = 0;
        paged->types[t].staging.first = paged->types[t].staging.n = 0;
        paged->types[t].staging.used = 0;
        if (l->buffer->readers) /* zero: the buffer was never read (the cold start's bypass) */
            status = l->ops->wait(paged->streams[t], paged->compute, l->buffer->readers);
    }
    return status;
}

moepage_status mp_paged_submit(struct moepage_paged *paged, uint32_t layer, mp_paged_buffer *buffer)
{
    const load l = {.paged = paged,
                    .ops = paged->home->device->ops,
                    .buffer = buffer,
                    .layer = layer};
    moepage_status status = begin(&l);
    /* Expert by expert, so that no stream's queue fills while the others are idle. */
    for (uint32_t j = 0; j < paged->n_experts && !status; j++) {
        if (paged->source == MP_PAGED_READ)
            status = read_image(&l, j);
        for (uint32_t t = 0; t < paged->n_types && !status; t++)
            status = load_expert(&l, t, j);
    }
    for (uint32_t t = 0; t < paged->n_types && !status; t++)
        status = paged->types[t].staging.n ? decode_half(&l, t) : flush(&l, t);
    return status;
}
