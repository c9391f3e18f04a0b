/* Loads: an expert's bytes on their way into a slot, and what becomes of the slot when they have
 * landed. The pool's lock is held throughout. */
#include "memory/expert_pool.h"

static int32_t fill_from_callback(const mp_copy *copy, void *out)
{
    const struct moepage_model *model = copy->fill_user;
    return model->read(model->read_user, copy->fill_key[0], copy->fill_key[1], copy->fill_key[2],
                       copy->fill_offset, copy->bytes, out);
}

static mp_copy describe_copy(mp_shard *shard, uint32_t index, uint32_t piece_index, uint64_t offset,
                             uint64_t bytes)
{
    struct moepage_expert_pool *pool = shard->pool;
    const struct moepage_model *model = pool->model;
    const mp_piece *piece = &model->pieces[piece_index];
    uint32_t key = MP_WORD_KEY(atomic_load_explicit(&shard->words[index], memory_order_relaxed));
    uint32_t layer = key / pool->experts, expert = key % pool->experts;
    mp_copy copy = {
        .dst = mp_pool_slot_address(shard, index) + piece->slot_offset + offset,
        .bytes = bytes,
        .result = &shard->slots[index].result,
    };
    if (model->read) {
        copy.fill = fill_from_callback;
        copy.fill_user = model;
        copy.fill_key[0] = layer;
        copy.fill_key[1] = expert;
        copy.fill_key[2] = piece->tensor;
        copy.fill_offset = piece->tensor_offset + offset;
    } else {
        const unsigned char *source =
            model->sources[mp_model_source_index(model, layer, expert) + piece_index];
        copy.src = source + offset;
    }
    return copy;
}

bool mp_pool_fully_staged(const mp_shard *shard, uint32_t index)
{
    return shard->slots[index].next_piece == shard->pool->model->n_pieces;
}

bool mp_pool_transfers_done(const mp_shard *shard, uint32_t index)
{
    const mp_device_ops *ops = shard->home->device->ops;
    const mp_slot *slot = &shard->slots[index];
    return ops->completed(shard->demand) >= slot->demand_tick &&
           ops->completed(shard->prefetch) >= slot->prefetch_tick;
}

static mp_tick *tick_of(mp_shard *shard, uint32_t index, const mp_stream *stream)
{
    mp_slot *slot = &shard->slots[index];
    return stream == shard->demand ? &slot->demand_tick : &slot->prefetch_tick;
}

void mp_pool_flush(mp_shard *shard)
{
    mp_stage *stage = &shard->stage;
    if (stage->n == 0)
        return;
    const mp_device_ops *ops = shard->home->device->ops;
    mp_tick *last = stage->stream == shard->demand ? &shard->last_demand : &shard->last_prefetch;
    moepage_status status = ops->copy(stage->stream, stage->copies, stage->n, last);
    for (uint32_t i = 0; i < stage->n; i++) {
        if (status) /* refused: these loads fail as if their source had */
            atomic_store(stage->copies[i].result, status);
        *tick_of(shard, stage->slot[i], stage->stream) = status ? *last : *last - stage->n + 1 + i;
    }
    stage->n = 0;
}

static void stage_copy(mp_shard *shard, uint32_t index, mp_stream *stream, mp_copy copy)
{
    mp_stage *stage = &shard->stage;
    if (stage->n == MP_STAGE_COPIES || (stage->n > 0 && stage->stream != stream))
        mp_pool_flush(shard);
    stage->stream = stream;
    stage->slot[stage->n] = index;
    stage->copies[stage->n++] = copy;
    *tick_of(shard, index, stream) = MP_STAGED;
}

uint64_t mp_pool_stage_load(mp_shard *shard, uint32_t index, mp_stream *stream, uint64_t limit)
{
    const struct moepage_model *model = shard->pool->model;
    mp_slot *slot = &shard->slots[index];
    uint64_t total = 0;
    while (slot->next_piece < model->n_pieces && total < limit) {
        uint64_t left = model->pieces[slot->next_piece].bytes - slot->piece_offset;
        uint64_t bytes = left < limit - total ? left : limit - total;
        stage_copy(shard, index, stream,
                   describe_copy(shard, index, slot->next_piece, slot->piece_offset, bytes));
        total += bytes;
        slot->piece_offset += bytes;
        if (bytes == left) {
            slot->next_piece++;
            slot->piece_offset = 0;
        }
    }
    if (stream == shard->demand)
        shard->pool->counters.demand_bytes += total;
    else
        shard->pool->counters.prefetch_bytes += total;
    return total;
}

/* The word moves from LOADING to `state`, whatever its users do meanwhile. */
static void publish(mp_shard *shard, uint32_t index, uint32_t state)
{
    uint64_t word = atomic_load(&shard->words[index]);
    uint64_t next;
    do
        next = MP_WORD(MP_WORD_KEY(word), state) | MP_WORD_USERS(word);
    while (!atomic_compare_exchange_weak(&shard->words[index], &word, next));
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
    if (atomic_load(&shard->slots[index].result) == MOEPAGE_OK) {
        publish(shard, index, MP_SLOT_RESIDENT);
        return;
    }
    uint32_t key = MP_WORD_KEY(word);
    mp_pool_forget(shard, index, key);
    pool->counters.failed_loads++;
    publish(shard, index, MP_SLOT_FAILED);
    mp_pool_drop(shard, index, key, MP_SLOT_FAILED); /* stays FAILED while it has users */
}

void mp_pool_settle_landed(mp_shard *shard)
{
    atomic_store(&shard->orphans, false); /* before looking: one that comes meanwhile sets it */
    for (uint32_t s = 0; s < shard->n_slots; s++) {
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
