/* Loads: an expert's bytes on their way into a slot, and what becomes of the slot when they have
 * landed. The pool's lock is held throughout. */
#include <assert.h>
#include <string.h>

#include "pool/expert_pool.h"

/* ---- where the bytes come from ---- */

static int32_t fill_from_callback(const mp_copy *copy, void *out)
{
    const struct moepage_model *model = copy->fill_user;
    int32_t code = model->read(model->read_user, copy->fill_key[0], copy->fill_key[1],
                               copy->fill_key[2], copy->fill_offset, copy->bytes, out);
    return code ? MOEPAGE_E_CALLBACK : MOEPAGE_OK;
}

/* The first transfer out of a mapped image looks at all of it before it uses any of it. */
static int32_t fill_from_mapped(const mp_copy *copy, void *out)
{
    const struct moepage_model *model = copy->fill_user;
    uint32_t layer = copy->fill_key[0], expert = copy->fill_key[1], form = copy->fill_key[2];
    moepage_status status = mp_model_check_mapped(model, layer, expert, form);
    if (status)
        return status;
    mp_image image;
    mp_model_find_image(model, layer, expert, form, &image);
    memcpy(out, image.mapped + copy->fill_offset, copy->bytes);
    return MOEPAGE_OK;
}

static void fail_load(mp_slot *slot, moepage_status status)
{
    atomic_store(&slot->result, status);
    slot->passage.complete = true;
}

/* Guesses take half of the cold tier's lanes at most: demands find another free. */
static bool guesses_take_their_lanes(const mp_host_tier *tier)
{
    return tier->n_guesses > 0 && tier->n_guesses >= tier->n_lanes / 2;
}

mp_start mp_pool_may_start(mp_shard *shard, uint32_t key, mp_pipe_kind pipe)
{
    mp_host_tier *tier = shard->tier;
    if (mp_images_have(shard, key))
        return MP_START_NOW;
    if (tier && !mp_host_tier_has_room(tier, key))
        return MP_START_NEVER;
    if (pipe != MP_PIPE_PREFETCH)
        return MP_START_NOW;
    if (tier && tier->entry_of[key] == MP_NO_ENTRY)
        return guesses_take_their_lanes(tier) ? MP_START_LATER : MP_START_NOW;
    if (tier && tier->entries[tier->entry_of[key]].state == MP_ENTRY_READING)
        return MP_START_NOW;
    return mp_pipe_may_prefetch(shard) ? MP_START_NOW : MP_START_LATER;
}

void mp_pool_begin_load(mp_shard *shard, uint32_t index, mp_pipe_kind pipe)
{
    mp_passage *passage = &shard->slots[index].passage;
    if (passage->source != MP_FROM_NOWHERE)
        return;
    uint32_t key = mp_pool_key_in(shard, index);
    if (mp_images_have(shard, key)) {
        passage->source = MP_FROM_DEVICE;
    } else if (!shard->tier) {
        passage->source =
            mp_model_keeps_images(shard->pool->model) ? MP_FROM_MAPPED : MP_FROM_PIECES;
    } else {
        uint32_t entry = mp_host_tier_find(shard->tier, key);
        if (entry == MP_NO_ENTRY)
            entry = mp_host_tier_fetch(shard->tier, key, pipe == MP_PIPE_PREFETCH);
        assert(entry != MP_NO_ENTRY); /* mp_pool_may_start has looked */
        mp_host_tier_use(shard->tier, entry);
        passage->entry = entry;
        passage->source = MP_FROM_HOST_TIER;
    }
}

/* Is the host tier's entry there, or can the pipe be made to wait for it? */
static bool entry_ready(mp_shard *shard, uint32_t index, mp_pipe_kind *pipe)
{
    mp_slot *slot = &shard->slots[index];
    mp_passage *passage = &slot->passage;
    mp_host_tier_settle(shard->tier, passage->entry);
    const mp_host_entry *entry = &shard->tier->entries[passage->entry];
    if (entry->state == MP_ENTRY_VALID)
        return true;
    if (entry->state == MP_ENTRY_FAILED) {
        fail_load(slot, atomic_load(&entry->result));
        return false;
    }
    if (*pipe == MP_PIPE_PREFETCH)
        return false;
    *pipe = MP_PIPE_FETCH;
    mp_host_tier_demand(shard->tier, passage->entry);
    if (!passage->behind_cold) {
        moepage_status status =
            mp_pipe_wait(shard, MP_PIPE_FETCH, shard->tier->lanes[entry->lane].stream, entry->tick);
        if (status)
            fail_load(slot, status);
        passage->behind_cold = !status;
    }
    return passage->behind_cold;
}

/* Settles where the bytes come from, and by which pipe. False: the load has failed, or it is a
 * prefetch that must wait for its cold read. */
static bool find_way(mp_shard *shard, uint32_t index, mp_pipe_kind *pipe)
{
    mp_passage *passage = &shard->slots[index].passage;
    mp_pool_begin_load(shard, index, *pipe);
    return passage->source != MP_FROM_HOST_TIER || entry_ready(shard, index, pipe);
}

static bool is_coded(const mp_shard *shard, const mp_passage *passage)
{
    return passage->source == MP_FROM_DEVICE ||
           (passage->source != MP_FROM_PIECES && shard->pool->bus_form == MOEPAGE_FORM_EXPH);
}

/* ---- transfers ---- */

static uint32_t pieces_of(const mp_shard *shard, const mp_passage *passage)
{
    switch (passage->source) {
    case MP_FROM_PIECES: return shard->pool->model->n_pieces;
    case MP_FROM_DEVICE: return 0;
    default: return 1;
    }
}

static mp_image image_of(const mp_shard *shard, uint32_t key, uint32_t form)
{
    const struct moepage_expert_pool *pool = shard->pool;
    mp_image image;
    mp_model_find_image(pool->model, key / pool->experts, key % pool->experts, form, &image);
    return image;
}

static uint64_t piece_bytes(const mp_shard *shard, uint32_t key, const mp_passage *passage)
{
    if (passage->source == MP_FROM_PIECES)
        return shard->pool->model->pieces[passage->piece].bytes;
    return image_of(shard, key, shard->pool->bus_form).bytes;
}

/* The next `bytes` of a tensor's piece, into the slot. */
static mp_copy copy_piece(mp_shard *shard, uint32_t index, uint64_t bytes)
{
    const struct moepage_model *model = shard->pool->model;
    const mp_passage *passage = &shard->slots[index].passage;
    const mp_piece *piece = &model->pieces[passage->piece];
    uint32_t key = mp_pool_key_in(shard, index);
    uint32_t layer = key / shard->pool->experts, expert = key % shard->pool->experts;
    mp_copy copy = {
        .dst = mp_pool_slot_address(shard, index) + piece->slot_offset + passage->offset,
        .bytes = bytes,
        .result = &shard->slots[index].result,
    };
    if (model->read) {
        copy.fill = fill_from_callback;
        copy.fill_user = model;
        copy.fill_key[0] = layer;
        copy.fill_key[1] = expert;
        copy.fill_key[2] = piece->tensor;
        copy.fill_offset = piece->tensor_offset + passage->offset;
    } else {
        const unsigned char *source =
            model->sources[mp_model_source_index(model, layer, expert) + passage->piece];
        copy.src = source + passage->offset;
    }
    return copy;
}

mp_copy mp_pool_copy_mapped(const struct moepage_expert_pool *pool, uint32_t key, uint32_t form,
                            uint64_t offset, uint64_t bytes)
{
    uint32_t layer = key / pool->experts, expert = key % pool->experts;
    mp_copy copy = {.bytes = bytes};
    mp_image image;
    mp_model_find_image(pool->model, layer, expert, form, &image);
    if (mp_model_mapped_is_checked(pool->model, layer, expert, form)) {
        copy.src = image.mapped + offset;
    } else {
        copy.fill = fill_from_mapped;
        copy.fill_user = pool->model;
        copy.fill_key[0] = layer;
        copy.fill_key[1] = expert;
        copy.fill_key[2] = form;
        copy.fill_offset = offset;
    }
    return copy;
}

/* The next `bytes` of an image, into the slot, or into staging if it has to be decoded. */
static mp_copy copy_image(mp_shard *shard, uint32_t index, uint64_t bytes)
{
    const struct moepage_expert_pool *pool = shard->pool;
    const mp_passage *passage = &shard->slots[index].passage;
    unsigned char *dst = passage->staging ? shard->staging.buffers[passage->staging - 1].memory
                                          : mp_pool_slot_address(shard, index);
    mp_copy copy = {.bytes = bytes};
    if (passage->source == MP_FROM_HOST_TIER)
        copy.src = mp_host_tier_image(shard->tier, passage->entry) + passage->offset;
    else
        copy = mp_pool_copy_mapped(pool, mp_pool_key_in(shard, index), pool->bus_form,
                                   passage->offset, bytes);
    copy.dst = dst + passage->offset;
    copy.result = &shard->slots[index].result;
    return copy;
}

/* What the decoder will do for the slot: its image's parts, from where they will be. */
static void describe_jobs(mp_shard *shard, uint32_t index)
{
    const struct moepage_expert_pool *pool = shard->pool;
    const mp_passage *passage = &shard->slots[index].passage;
    uint32_t key = mp_pool_key_in(shard, index);
    const unsigned char *image = passage->source == MP_FROM_DEVICE
                                     ? mp_images_find(shard, key)
                                     : shard->staging.buffers[passage->staging - 1].memory;
    mp_decode_describe(pool->model, key / pool->experts, key % pool->experts, image,
                       mp_pool_slot_address(shard, index),
                       &shard->jobs[(uint64_t)index * MOEPAGE_MAX_EXPERT_TENSORS]);
}

/* Stages up to `limit` bytes of a load whose source and, if it needs one, staging are settled. */
static uint64_t stage_bytes(mp_shard *shard, uint32_t index, mp_pipe_kind pipe, uint64_t limit)
{
    mp_passage *passage = &shard->slots[index].passage;
    uint32_t key = mp_pool_key_in(shard, index), pieces = pieces_of(shard, passage);
    uint64_t total = 0;
    while (passage->piece < pieces && total < limit) {
        uint64_t left = piece_bytes(shard, key, passage) - passage->offset;
        uint64_t bytes = left < limit - total ? left : limit - total;
        mp_copy copy = passage->source == MP_FROM_PIECES ? copy_piece(shard, index, bytes)
                                                         : copy_image(shard, index, bytes);
        total += bytes;
        passage->offset += bytes;
        if (bytes == left) {
            passage->piece++;
            passage->offset = 0;
        }
        passage->complete = passage->piece == pieces;
        bool decode = passage->complete && is_coded(shard, passage);
        if (decode)
            describe_jobs(shard, index);
        mp_pipe_stage(shard, pipe, index, &copy, decode);
    }
    return total;
}

uint64_t mp_pool_stage_load(mp_shard *shard, uint32_t index, mp_pipe_kind pipe, uint64_t limit)
{
    mp_slot *slot = &shard->slots[index];
    mp_passage *passage = &slot->passage;
    if (passage->complete || !find_way(shard, index, &pipe))
        return 0;
    if (passage->source == MP_FROM_DEVICE) {
        describe_jobs(shard, index);
        passage->complete = true;
        shard->pool->counters.compressed_loads += mp_pipe_decode(shard, pipe, index);
        shard->compressed.read[pipe] = shard->pipes[pipe].last_decode;
        return 0;
    }
    if (is_coded(shard, passage) && !passage->staging) {
        moepage_status status = mp_pipe_take_staging(shard, pipe, index);
        if (status && pipe != MP_PIPE_PREFETCH)
            fail_load(slot, status);
        if (status)
            return 0;
    }
    moepage_status status =
        is_coded(shard, passage) ? MOEPAGE_OK : mp_readers_before_bus(shard, index, pipe);
    if (status) {
        fail_load(slot, status);
        return 0;
    }
    uint64_t total = stage_bytes(shard, index, pipe, limit);
    if (pipe == MP_PIPE_PREFETCH) {
        shard->pool->counters.prefetch_bytes += total;
        slot->ahead_bytes += total;
    } else {
        shard->pool->counters.demand_bytes += total;
    }
    return total;
}

/* ---- landing ---- */

bool mp_pool_waits_for_cold(const mp_shard *shard, uint32_t index)
{
    const mp_passage *passage = &shard->slots[index].passage;
    return passage->source == MP_FROM_HOST_TIER &&
           shard->tier->entries[passage->entry].state == MP_ENTRY_READING;
}

bool mp_pool_transfers_done(const mp_shard *shard, uint32_t index)
{
    const mp_device_ops *ops = shard->home->device->ops;
    const mp_passage *passage = &shard->slots[index].passage;
    for (int kind = 0; kind < MP_PIPES; kind++) {
        const mp_pipe *pipe = &shard->pipes[kind];
        if (passage->bus[kind] && ops->completed(pipe->bus) < passage->bus[kind])
            return false;
        if (passage->decode[kind] && ops->completed(pipe->decode) < passage->decode[kind])
            return false;
    }
    return true;
}

void mp_pool_end_passage(mp_shard *shard, uint32_t index)
{
    mp_passage *passage = &shard->slots[index].passage;
    if (passage->source == MP_FROM_HOST_TIER)
        mp_host_tier_let_go(shard->tier, passage->entry);
    if (passage->staging)
        shard->staging.buffers[passage->staging - 1].slot = MP_NO_SLOT;
    passage->staging = 0;
    passage->source = MP_FROM_NOWHERE;
    passage->complete = true;
}

void mp_pool_set_state(mp_shard *shard, uint32_t index, uint32_t state)
{
    uint64_t word = atomic_load(&shard->words[index]);
    uint64_t next;
    do
        next = MP_WORD(MP_WORD_KEY(word), state) | MP_WORD_USERS(word);
    while (!atomic_compare_exchange_weak(&shard->words[index], &word, next));
}

/* The load's failure, or that of the read which it was to copy: then it has copied nonsense. */
moepage_status mp_pool_result_of(mp_shard *shard, uint32_t index)
{
    mp_slot *slot = &shard->slots[index];
    if (slot->passage.source == MP_FROM_HOST_TIER && !atomic_load(&slot->result)) {
        mp_host_tier_settle(shard->tier, slot->passage.entry);
        const mp_host_entry *entry = &shard->tier->entries[slot->passage.entry];
        if (entry->state != MP_ENTRY_VALID)
            atomic_store(&slot->result, atomic_load(&entry->result));
    }
    return atomic_load(&slot->result);
}

void mp_pool_settle(mp_shard *shard, uint32_t index)
{
    struct moepage_expert_pool *pool = shard->pool;
    uint64_t word = atomic_load(&shard->words[index]);
    if (MP_WORD_STATE(word) != MP_SLOT_LOADING || !mp_pool_fully_staged(shard, index) ||
        !mp_pool_transfers_done(shard, index))
        return; /* not there yet: what is published must be whole */
    if (shard->slots[index].prefetching)
        mp_prefetcher_settled(shard, index);
    moepage_status result = mp_pool_result_of(shard, index);
    mp_pool_end_passage(shard, index);
    if (result == MOEPAGE_OK) {
        mp_pool_set_state(shard, index, MP_SLOT_RESIDENT);
        return;
    }
    uint32_t key = MP_WORD_KEY(word);
    mp_pool_forget(shard, index, key);
    pool->counters.failed_loads++;
    mp_pool_set_state(shard, index, MP_SLOT_FAILED);
    mp_pool_drop(shard, index, key, MP_SLOT_FAILED); /* stays FAILED while it has users */
}

void mp_pool_settle_landed(mp_shard *shard)
{
    atomic_store(&shard->orphans, false); /* before looking: one that comes meanwhile sets it */
    for (uint32_t s = shard->first_slot; s < shard->first_slot + shard->n_slots; s++) {
        uint64_t word = atomic_load(&shard->words[s]);
        if (MP_WORD_STATE(word) != MP_SLOT_LOADING)
            continue;
        mp_pool_settle(shard, s);
        word = atomic_load(&shard->words[s]);
        if (MP_WORD_STATE(word) == MP_SLOT_LOADING && MP_WORD_USERS(word) == 0 &&
            !shard->slots[s].prefetching)
            atomic_store(&shard->orphans, true);
    }
}
