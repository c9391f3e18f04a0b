/* Passages: where an expert's bytes come from, by which pipe, and when they have landed. */
#include <assert.h>

#include "transfer/inside.h"

/* ---- sources ---- */

/* Runs on a device's thread. */
static moepage_status fill_from_piece(const mp_copy *copy, void *out)
{
    const mp_transfer *transfer = copy->fill_user;
    return mp_transfer_keep_failure(copy, mp_model_read_piece(transfer->model, copy->fill_key[0],
                                                              copy->fill_key[1], copy->fill_key[2],
                                                              copy->fill_offset, copy->bytes, out));
}

static void fail(mp_passage *passage, moepage_status status)
{
    atomic_store(&passage->result, status);
    passage->submitted = true;
}

/* Returns true if the expert's image is in device memory, to be decoded from there. */
static bool is_compressed(const mp_transfer *transfer, uint32_t key)
{
    const mp_compressed *compressed = &transfer->compressed;
    return compressed->place_of && compressed->place_of[key] < compressed->usable;
}

/* Returns true if guesses take half of the cold tier's lanes, the most they may: a demand then
 * finds another lane free. */
static bool guesses_fill_their_lanes(const mp_host_tier *tier)
{
    return tier->n_guesses > 0 && tier->n_guesses >= tier->n_lanes / 2;
}

mp_start mp_transfer_may_start(mp_transfer *transfer, uint32_t key, mp_pipe_kind pipe)
{
    mp_host_tier *tier = transfer->tier;
    if (is_compressed(transfer, key))
        return MP_START_NOW;
    if (tier && !mp_host_tier_has_room(tier, key))
        return MP_START_NEVER;
    if (pipe != MP_PIPE_PREFETCH)
        return MP_START_NOW;
    if (tier && tier->entry_of[key] == MP_NO_ENTRY)
        return guesses_fill_their_lanes(tier) ? MP_START_LATER : MP_START_NOW;
    if (tier && tier->entries[tier->entry_of[key]].state == MP_ENTRY_READING)
        return MP_START_NOW;
    return mp_pipe_may_prefetch(transfer) ? MP_START_NOW : MP_START_LATER;
}

void mp_passage_begin(mp_transfer *transfer, uint32_t index, uint32_t key, unsigned char *place,
                      mp_pipe_kind pipe)
{
    mp_passage *passage = &transfer->passages[index];
    mp_host_tier *tier = transfer->tier;
    *passage = (mp_passage){.key = key, .place = place};
    if (is_compressed(transfer, key)) {
        passage->source = MP_FROM_DEVICE;
    } else if (!tier) {
        passage->source = mp_model_keeps_images(transfer->model) ? MP_FROM_STORED : MP_FROM_PIECES;
    } else {
        passage->source = MP_FROM_HOST_TIER;
        passage->entry = mp_host_tier_find(tier, key);
        if (passage->entry == MP_NO_ENTRY)
            passage->entry = mp_host_tier_fetch(tier, key, pipe == MP_PIPE_PREFETCH);
        assert(passage->entry != MP_NO_ENTRY); /* mp_transfer_may_start has checked */
        mp_host_tier_use(tier, passage->entry);
    }
}

/* Returns true if the host tier's entry has its image, or the bus now waits for it. A demand
 * changes to the FETCH pipe, and stays there with all that follows; a prefetch waits for nothing and comes back
 * later. */
static bool entry_is_ready(mp_transfer *transfer, mp_passage *passage, mp_pipe_kind *pipe)
{
    mp_host_tier *tier = transfer->tier;
    if (passage->behind_cold) {
        *pipe = MP_PIPE_FETCH;
        return true;
    }
    mp_host_tier_settle(tier, passage->entry);
    const mp_host_entry *entry = &tier->entries[passage->entry];
    if (entry->state == MP_ENTRY_VALID)
        return true;
    if (entry->state == MP_ENTRY_FAILED) {
        fail(passage, atomic_load(&entry->result));
        return false;
    }
    if (*pipe == MP_PIPE_PREFETCH)
        return false;
    *pipe = MP_PIPE_FETCH;
    mp_host_tier_demand(tier, passage->entry);
    moepage_status status =
        mp_pipe_wait(transfer, MP_PIPE_FETCH, tier->lanes[entry->lane].stream, entry->tick);
    if (status)
        fail(passage, status);
    passage->behind_cold = !status;
    return !status;
}

/* ---- copies ---- */

/* Returns the parts that a load without staging is cut into: the model's pieces, an image's tensors
 * where places hold them apart, or else a whole image. */
static uint32_t count_parts(const mp_transfer *transfer, const mp_passage *passage, bool coded)
{
    if (passage->source == MP_FROM_PIECES)
        return transfer->model->n_pieces;
    return transfer->scatter && !coded ? transfer->model->info.expert_tensors : 1;
}

static uint64_t bytes_of_part(const mp_transfer *transfer, const mp_passage *passage,
                              const mp_image *image, bool coded)
{
    const mp_layout *layout = mp_model_layout(transfer->model, passage->key / transfer->experts);
    if (passage->source == MP_FROM_PIECES)
        return layout->pieces[passage->piece].bytes;
    return transfer->scatter && !coded ? layout->tensors[passage->piece].bytes : image->bytes;
}

/* Describes the copy of the next `bytes` of a tensor's piece to the place. */
static mp_copy copy_piece(const mp_transfer *transfer, mp_passage *passage, uint64_t bytes)
{
    const struct moepage_model *model = transfer->model;
    uint32_t layer = passage->key / transfer->experts, expert = passage->key % transfer->experts;
    const mp_piece *piece = &mp_model_layout(model, layer)->pieces[passage->piece];
    mp_copy copy = {
        .dst = mp_transfer_tensor_at(transfer, passage->key, piece->tensor, passage->place) +
               piece->tensor_offset + passage->offset,
        .bytes = bytes,
        .result = &passage->result,
    };
    if (!model->sources) {
        copy.fill = fill_from_piece;
        copy.fill_user = transfer;
        copy.fill_key[0] = layer;
        copy.fill_key[1] = expert;
        copy.fill_key[2] = passage->piece;
        copy.fill_offset = passage->offset;
    } else {
        const unsigned char *source =
            model->sources[mp_model_source_index(model, layer, expert) + passage->piece];
        copy.src = source + passage->offset;
    }
    return copy;
}

/* Describes the copy of the next `bytes` of an image to the place, or to staging if it has
 * to be decoded. */
static mp_copy copy_image(mp_transfer *transfer, mp_passage *passage, const mp_image *image,
                          uint64_t bytes)
{
    const mp_host_tier *tier = transfer->tier;
    unsigned char *dst = passage->place;
    uint64_t offset = passage->offset; /* in the image */
    mp_copy copy = {.bytes = bytes};
    if (passage->staging) {
        dst = transfer->staging.buffers[passage->staging - 1].memory;
    } else if (transfer->scatter) {
        uint32_t layer = passage->key / transfer->experts;
        offset += mp_model_layout(transfer->model, layer)->tensors[passage->piece].offset;
        dst = mp_transfer_tensor_at(transfer, passage->key, passage->piece, passage->place);
    }
    if (passage->source == MP_FROM_HOST_TIER)
        copy.src = tier->memory.base + passage->entry * tier->unit + image->skew + offset;
    else
        copy = mp_transfer_copy_stored(transfer, passage->key, transfer->bus_form, offset, bytes);
    copy.dst = dst + passage->offset;
    copy.result = &passage->result;
    return copy;
}

/* Parts of a piece begin at its multiples of this many bytes, as external memory is promised. */
#define PART_ALIGN 64u

static uint64_t part_bytes(uint64_t left, uint64_t room)
{
    if (left <= room)
        return left;
    uint64_t bytes = (room + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return left < bytes ? left : bytes;
}

/* Stages `limit` bytes, or a few more, of a load that has its source and, if it is coded,
 * its staging buffer. */
static uint64_t stage_bytes(mp_transfer *transfer, uint32_t index, mp_pipe_kind pipe,
                            uint64_t limit, bool coded)
{
    mp_passage *passage = &transfer->passages[index];
    mp_stage *stage = &transfer->pipes[pipe].stage;
    bool in_pieces = passage->source == MP_FROM_PIECES;
    uint32_t parts = count_parts(transfer, passage, coded);
    mp_image image = {0};
    uint64_t total = 0;
    if (!in_pieces)
        image = mp_transfer_image(transfer, passage->key, transfer->bus_form);
    while (passage->piece < parts && total < limit) {
        /* Take as much of the part as the limit asks for. */
        uint64_t size = bytes_of_part(transfer, passage, &image, coded);
        uint64_t left = size - passage->offset, bytes = part_bytes(left, limit - total);
        mp_copy copy = in_pieces ? copy_piece(transfer, passage, bytes)
                                 : copy_image(transfer, passage, &image, bytes);
        total += bytes;
        passage->offset += bytes;
        if (bytes == left) {
            passage->piece++;
            passage->offset = 0;
        }

        /* The last copy of a coded image is followed by its decoding. Until the stage is flushed,
         * MP_STAGED keeps the passage from appearing to have landed. */
        passage->submitted = passage->piece == parts;
        if (stage->n == MP_STAGE_COPIES)
            mp_pipe_flush(transfer, pipe);
        stage->passage[stage->n] = index;
        stage->last[stage->n] = passage->submitted && coded;
        stage->copies[stage->n++] = copy;
        passage->bus[pipe] = MP_STAGED;
    }
    return total;
}

uint64_t mp_passage_advance(mp_transfer *transfer, uint32_t index, mp_pipe_kind pipe,
                            uint64_t limit)
{
    mp_passage *passage = &transfer->passages[index];
    if (passage->submitted ||
        (passage->source == MP_FROM_HOST_TIER && !entry_is_ready(transfer, passage, &pipe)))
        return 0;

    /* An image in device memory is decoded from where it is. */
    if (passage->source == MP_FROM_DEVICE) {
        passage->submitted = true;
        mp_pipe_gather(transfer, pipe, index, mp_images_find(transfer, passage->key));
        return 0;
    }

    /* A coded image crosses the bus to a staging buffer; its decoder will wait for the readers of
     * the place. Any other image crosses to the place itself, so the bus has to wait for them. */
    bool coded = passage->source != MP_FROM_PIECES && transfer->bus_form == MOEPAGE_FORM_EXPH;
    moepage_status status = MOEPAGE_OK;
    if (coded && !passage->staging)
        status = mp_pipe_take_staging(transfer, pipe, index);
    else if (!coded && transfer->reads)
        status = mp_readers_before_bus(transfer, index, pipe);
    /* A prefetch without staging tries again later. */
    if (status && !(coded && pipe == MP_PIPE_PREFETCH))
        fail(passage, status);
    if (status)
        return 0;

    uint64_t total = stage_bytes(transfer, index, pipe, limit, coded);
    if (pipe == MP_PIPE_PREFETCH)
        transfer->counters.prefetch_bytes += total;
    else
        transfer->counters.demand_bytes += total;
    return total;
}

moepage_status mp_transfer_copy_image(mp_transfer *transfer, uint32_t key, uint32_t form,
                                      unsigned char *to, uint32_t place, _Atomic int32_t *result,
                                      mp_tick *tick)
{
    mp_pipe *pipe = &transfer->pipes[MP_PIPE_PREFETCH];
    mp_image image = mp_transfer_image(transfer, key, form);
    mp_copy copy = mp_transfer_copy_stored(transfer, key, form, 0, image.bytes);
    copy.dst = to;
    copy.result = result;
    if (!image.stored && !image.address) /* a model of shapes alone: there is nothing to read */
        copy.src = copy.dst;
    atomic_store(result, MOEPAGE_OK);
    moepage_status status = MOEPAGE_OK;
    if (place != MP_NO_READERS)
        status = mp_readers_before_bus(transfer, place, MP_PIPE_PREFETCH);
    if (!status)
        status = transfer->ops->copy(pipe->bus, &copy, 1, &pipe->last_bus);
    *tick = pipe->last_bus;
    return status;
}

/* ---- landing ---- */

bool mp_passage_is_submitted(const mp_transfer *transfer, uint32_t index)
{
    return transfer->passages[index].submitted;
}

bool mp_passage_has_landed(const mp_transfer *transfer, uint32_t index)
{
    const mp_device_ops *ops = transfer->ops;
    const mp_passage *passage = &transfer->passages[index];
    for (int kind = 0; kind < MP_PIPES; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        if (passage->bus[kind] && ops->completed(pipe->bus) < passage->bus[kind])
            return false;
        if (passage->decode[kind] && ops->completed(pipe->decode) < passage->decode[kind])
            return false;
    }
    return true;
}

moepage_status mp_passage_failure(const mp_transfer *transfer, uint32_t index)
{
    return atomic_load(&transfer->passages[index].result);
}

/* A load that copied out of an entry whose read failed has copied nonsense, so it takes over
 * the read's failure. */
moepage_status mp_passage_result(mp_transfer *transfer, uint32_t index)
{
    mp_passage *passage = &transfer->passages[index];
    if (passage->source == MP_FROM_HOST_TIER && !atomic_load(&passage->result)) {
        mp_host_tier_settle(transfer->tier, passage->entry);
        const mp_host_entry *entry = &transfer->tier->entries[passage->entry];
        if (entry->state != MP_ENTRY_VALID)
            atomic_store(&passage->result, atomic_load(&entry->result));
    }
    return atomic_load(&passage->result);
}

bool mp_passage_waits_for_cold(const mp_transfer *transfer, uint32_t index)
{
    const mp_passage *passage = &transfer->passages[index];
    return passage->source == MP_FROM_HOST_TIER &&
           transfer->tier->entries[passage->entry].state == MP_ENTRY_READING;
}

bool mp_passage_uses_host_tier(const mp_transfer *transfer, uint32_t index)
{
    return transfer->passages[index].source == MP_FROM_HOST_TIER;
}

void mp_passage_end(mp_transfer *transfer, uint32_t index)
{
    mp_passage *passage = &transfer->passages[index];
    if (passage->source == MP_FROM_HOST_TIER)
        mp_host_tier_let_go(transfer->tier, passage->entry);
    if (passage->staging)
        transfer->staging.buffers[passage->staging - 1].passage = MP_NO_PASSAGE;
    passage->staging = 0;
    passage->source = MP_FROM_NOWHERE;
    passage->submitted = true;
}

/* ---- events ---- */

mp_event mp_transfer_last(const mp_transfer *transfer, mp_pipe_kind kind)
{
    return (mp_event){transfer->pipes[kind].bus, transfer->pipes[kind].last_bus};
}

static mp_event end_of_read(const mp_transfer *transfer, const mp_host_entry *entry)
{
    return (mp_event){transfer->tier->lanes[entry->lane].stream, entry->tick};
}

bool mp_passage_next_event(const mp_transfer *transfer, uint32_t index, mp_event *out)
{
    const mp_device_ops *ops = transfer->ops;
    const mp_passage *passage = &transfer->passages[index];
    if (passage->source == MP_FROM_HOST_TIER && !passage->submitted &&
        !mp_host_tier_landed(transfer->tier, passage->entry)) {
        *out = end_of_read(transfer, &transfer->tier->entries[passage->entry]);
        return true;
    }
    for (int kind = 0; kind < MP_PIPES; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        if (ops->completed(pipe->bus) < passage->bus[kind])
            *out = (mp_event){pipe->bus, passage->bus[kind]};
        else if (passage->decode[kind] && ops->completed(pipe->decode) < passage->decode[kind])
            *out = (mp_event){pipe->decode, passage->decode[kind]};
        else
            continue;
        return true;
    }
    return false;
}

bool mp_transfer_next_read(const mp_transfer *transfer, mp_event *out)
{
    const mp_host_tier *tier = transfer->tier;
    for (uint32_t i = 0; tier && i < tier->n_lanes; i++) {
        const mp_cold_lane *lane = &tier->lanes[i];
        mp_tick completed = transfer->ops->completed(lane->stream);
        if (completed < lane->last) {
            *out = (mp_event){lane->stream, completed + 1};
            return true;
        }
    }
    return false;
}

/* ---- waiting ---- */

moepage_status mp_passage_lead(mp_transfer *transfer, uint32_t index, mp_stream *reader)
{
    const mp_device_ops *ops = transfer->ops;
    const mp_passage *passage = &transfer->passages[index];
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        if (passage->bus[kind])
            status = ops->wait(reader, pipe->bus, passage->bus[kind]);
        if (!status && passage->decode[kind])
            status = ops->wait(reader, pipe->decode, passage->decode[kind]);
    }
    return status;
}

void mp_passage_ends(const mp_transfer *transfer, uint32_t index, mp_event ends[MP_ENDS])
{
    const mp_passage *passage = &transfer->passages[index];
    for (uint32_t kind = 0; kind < MP_PIPES; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        mp_event *bus = &ends[2 * kind], *decode = &ends[2 * kind + 1];
        if (passage->bus[kind] > bus->tick)
            *bus = (mp_event){pipe->bus, passage->bus[kind]};
        if (passage->decode[kind] > decode->tick)
            *decode = (mp_event){pipe->decode, passage->decode[kind]};
    }
}

moepage_status mp_transfer_follow(mp_transfer *transfer, mp_stream *reader, mp_tick tick)
{
    const mp_device_ops *ops = transfer->ops;
    moepage_status status = MOEPAGE_OK;
    if (ops->completed(reader) >= tick)
        return status;
    for (int kind = 0; kind < MP_PIPE_PREFETCH && !status; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        if (transfer->bus_form != MOEPAGE_FORM_EXPH)
            status = mp_pipe_wait(transfer, (mp_pipe_kind)kind, reader, tick);
        if (!status && pipe->decode)
            status = ops->wait(pipe->decode, reader, tick);
    }
    return status;
}

moepage_status mp_transfer_sync(mp_transfer *transfer)
{
    const mp_device_ops *ops = transfer->ops;
    moepage_status status = MOEPAGE_OK;
    for (int kind = 0; kind < MP_PIPES && !status; kind++) {
        const mp_pipe *pipe = &transfer->pipes[kind];
        status = pipe->last_bus ? ops->sync(pipe->bus, pipe->last_bus) : MOEPAGE_OK;
        if (!status && pipe->last_decode)
            status = ops->sync(pipe->decode, pipe->last_decode);
    }
    return status;
}

moepage_status mp_transfer_sync_reads(mp_transfer *transfer)
{
    return transfer->tier ? mp_host_tier_sync(transfer->tier) : MOEPAGE_OK;
}
