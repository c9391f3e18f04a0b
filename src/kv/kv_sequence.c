/* Sequences and their block tables: growth, sharing, copy on write. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "kv/kv_pool.h"

#define FIRST_SLOTS 16u
#define FIRST_IDS 8u

moepage_status mp_kv_sequence_find(struct moepage_kv_pool *pool, moepage_seq id,
                                   mp_kv_sequence **out)
{
    uint32_t index = (uint32_t)(id & MP_KV_INDEX_MASK) - 1; /* 0 wraps out of range */
    if (index < pool->n_slots) {
        mp_kv_sequence *sequence = &pool->sequences[index];
        if (sequence->live && sequence->id == id) {
            *out = sequence;
            return MOEPAGE_OK;
        }
    }
    return mp_fail(
        MOEPAGE_E_HANDLE,
        "sequence %#llx is not live in this KV pool: it was freed, or never created here",
        (unsigned long long)id);
}

static moepage_status find_on_device(struct moepage_kv_pool *pool, moepage_seq id, const char *verb,
                                     mp_kv_sequence **out)
{
    mp_kv_sequence *sequence;
    moepage_status status = mp_kv_sequence_find(pool, id, &sequence);
    if (status)
        return status;
    if (sequence->swapped)
        return mp_fail(MOEPAGE_E_STATE,
                       "sequence %#llx is swapped out: swap it in before you %s it",
                       (unsigned long long)id, verb);
    *out = sequence;
    return MOEPAGE_OK;
}

static moepage_status grow_slots(struct moepage_kv_pool *pool)
{
    uint64_t capacity = pool->slot_capacity ? pool->slot_capacity * 2ull : FIRST_SLOTS;
    if (capacity > pool->max_sequences)
        capacity = pool->max_sequences;
    mp_kv_sequence *grown = mp_realloc(pool->sequences, capacity * sizeof *grown);
    if (!grown)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu sequences",
                       (unsigned long long)capacity);
    pool->sequences = grown;
    pool->slot_capacity = (uint32_t)capacity;
    return MOEPAGE_OK;
}

/* Makes sure that take_slot succeeds. May move the slots, which invalidates
 * pointers to sequences. */
static moepage_status reserve_slot(struct moepage_kv_pool *pool)
{
    if (pool->free_slot || pool->n_slots < pool->slot_capacity)
        return MOEPAGE_OK;
    if (pool->n_slots == pool->max_sequences)
        return mp_fail(
            MOEPAGE_E_WOULD_NOT_FIT,
            "would not fit: all %u sequences of the KV pool are live; max_sequences sets the limit",
            pool->max_sequences);
    return grow_slots(pool);
}

static mp_kv_sequence *take_slot(struct moepage_kv_pool *pool, moepage_seq *id)
{
    uint32_t index;
    mp_kv_sequence *sequence;
    if (pool->free_slot) {
        index = pool->free_slot - 1;
        sequence = &pool->sequences[index];
        pool->free_slot = sequence->next_free;
    } else {
        index = pool->n_slots++;
        sequence = &pool->sequences[index];
    }
    *id = atomic_fetch_add(&pool->home->next_sequence, 1) << MP_KV_INDEX_BITS | (index + 1);
    *sequence = (mp_kv_sequence){.id = *id, .live = true};
    pool->live++;
    return sequence;
}

void mp_kv_sequence_drop_blocks(struct moepage_kv_pool *pool, mp_kv_sequence *sequence,
                                uint32_t first)
{
    for (uint32_t i = first; i < sequence->n_blocks; i++)
        mp_kv_blocks_drop(&pool->blocks, mp_kv_shape_block(&pool->shape, sequence->ids[i]));
}

void mp_kv_sequence_release(struct moepage_kv_pool *pool, mp_kv_sequence *sequence)
{
    mp_device *device = pool->home->device;
    if (sequence->swapped) {
        if (sequence->host)
            device->ops->free(device, MP_MEMORY_HOST, sequence->host, sequence->host_bytes);
        pool->counters.swap_bytes -= sequence->host_bytes;
        pool->swapped--;
    } else {
        mp_kv_sequence_drop_blocks(pool, sequence, 0);
    }
    mp_free(sequence->ids);
    *sequence = (mp_kv_sequence){.next_free = pool->free_slot};
    pool->free_slot = (uint32_t)(sequence - pool->sequences) + 1;
    pool->live--;
}

moepage_status mp_kv_sequence_create(struct moepage_kv_pool *pool, moepage_seq *out)
{
    moepage_status status = reserve_slot(pool);
    if (status)
        return status;
    take_slot(pool, out);
    return MOEPAGE_OK;
}

static moepage_status reserve_ids(mp_kv_sequence *sequence, uint32_t n_blocks)
{
    if (n_blocks <= sequence->capacity)
        return MOEPAGE_OK;
    uint64_t capacity = sequence->capacity ? sequence->capacity * 2ull : FIRST_IDS;
    if (capacity < n_blocks)
        capacity = n_blocks;
    if (capacity > UINT32_MAX)
        capacity = UINT32_MAX;
    uint32_t *grown = mp_realloc(sequence->ids, capacity * sizeof *grown);
    if (!grown)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a block table of %llu blocks",
                       (unsigned long long)capacity);
    sequence->ids = grown;
    sequence->capacity = (uint32_t)capacity;
    return MOEPAGE_OK;
}

/* Returns true if the next token would be written into a block that another table holds, too. */
static bool ends_in_shared_block(const struct moepage_kv_pool *pool, const mp_kv_sequence *sequence)
{
    if (sequence->n_tokens % pool->shape.block_tokens == 0)
        return false;
    uint32_t last = sequence->ids[sequence->n_blocks - 1];
    return pool->blocks.refs[mp_kv_shape_block(&pool->shape, last)] > 1;
}

/* Gives the sequence its own copy of its last block. The caller has checked that a
 * block is free. */
static moepage_status copy_last_block(struct moepage_kv_pool *pool, mp_kv_sequence *sequence,
                                      void *native)
{
    uint32_t *last = &sequence->ids[sequence->n_blocks - 1];
    uint32_t shared = mp_kv_shape_block(&pool->shape, *last);
    uint32_t own = mp_kv_blocks_take(&pool->blocks);
    mp_kv_copy copy;
    mp_kv_copy_begin(&copy, pool, pool->inner, native);
    moepage_status status =
        mp_kv_copy_add(&copy, (mp_kv_place){.block = own}, (mp_kv_place){.block = shared});
    status = mp_kv_copy_hand_over(&copy, status);
    if (status) {
        mp_kv_blocks_drop(&pool->blocks, own);
        return status;
    }
    mp_kv_blocks_drop(&pool->blocks, shared);
    *last = mp_kv_shape_id(&pool->shape, own);
    pool->counters.copies_on_write++;
    return MOEPAGE_OK;
}

moepage_status mp_kv_sequence_append(struct moepage_kv_pool *pool, moepage_seq id,
                                     uint64_t n_tokens, void *native)
{
    mp_kv_sequence *sequence;
    moepage_status status = find_on_device(pool, id, "append to", &sequence);
    if (status)
        return status;
    uint64_t total;
    if (__builtin_add_overflow(sequence->n_tokens, n_tokens, &total))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%llu more tokens overflow a sequence of %llu",
                       (unsigned long long)n_tokens, (unsigned long long)sequence->n_tokens);
    if (n_tokens == 0)
        return MOEPAGE_OK;
    /* Everything that can fail comes before the first change to the sequence. */
    uint64_t n_blocks = mp_kv_shape_blocks_for(&pool->shape, total);
    bool shared = ends_in_shared_block(pool, sequence);
    status = mp_kv_blocks_check_free(&pool->blocks, n_blocks - sequence->n_blocks + shared);
    if (status)
        return status;
    status = reserve_ids(sequence, (uint32_t)n_blocks);
    if (status)
        return status;
    if (shared) {
        status = copy_last_block(pool, sequence, native);
        if (status)
            return status;
    }

    while (sequence->n_blocks < n_blocks)
        sequence->ids[sequence->n_blocks++] =
            mp_kv_shape_id(&pool->shape, mp_kv_blocks_take(&pool->blocks));
    sequence->n_tokens = total;
    return MOEPAGE_OK;
}

moepage_status mp_kv_sequence_truncate(struct moepage_kv_pool *pool, moepage_seq id,
                                       uint64_t n_tokens)
{
    mp_kv_sequence *sequence;
    moepage_status status = mp_kv_sequence_find(pool, id, &sequence);
    if (status)
        return status;
    if (n_tokens > sequence->n_tokens)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "sequence %#llx has %llu tokens, it cannot be truncated to %llu",
                       (unsigned long long)id, (unsigned long long)sequence->n_tokens,
                       (unsigned long long)n_tokens);
    uint32_t n_blocks = (uint32_t)mp_kv_shape_blocks_for(&pool->shape, n_tokens);
    if (!sequence->swapped)
        mp_kv_sequence_drop_blocks(pool, sequence, n_blocks);
    sequence->n_blocks = n_blocks;
    sequence->n_tokens = n_tokens;
    return MOEPAGE_OK;
}

moepage_status mp_kv_sequence_fork(struct moepage_kv_pool *pool, moepage_seq parent,
                                   moepage_seq *out)
{
    mp_kv_sequence *from;
    moepage_status status = find_on_device(pool, parent, "fork", &from);
    if (status)
        return status;
    uint32_t n_blocks = from->n_blocks;
    uint32_t *ids = mp_alloc_array(n_blocks, sizeof *ids);
    if (!ids)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a block table of %u blocks", n_blocks);
    if (n_blocks)
        memcpy(ids, from->ids, n_blocks * sizeof *ids);
    uint64_t n_tokens = from->n_tokens;
    status = reserve_slot(pool); /* may move the sequences: `from` is invalid from here on */
    if (status) {
        mp_free(ids);
        return status;
    }

    for (uint32_t i = 0; i < n_blocks; i++)
        mp_kv_blocks_share(&pool->blocks, mp_kv_shape_block(&pool->shape, ids[i]));
    mp_kv_sequence *child = take_slot(pool, out);
    child->ids = ids;
    child->capacity = n_blocks;
    child->n_blocks = n_blocks;
    child->n_tokens = n_tokens;
    return MOEPAGE_OK;
}

static void end_turn(struct moepage_kv_pool *pool, mp_kv_sequence *sequence)
{
    if (pool->watch && sequence->decoded)
        pool->watch->turned(pool->watch, sequence->prefilled, sequence->decoded);
    sequence->prefilled = sequence->decoded = 0;
}

void mp_kv_sequence_use(struct moepage_kv_pool *pool, mp_kv_sequence *sequence,
                        const moepage_step_sequence *part)
{
    const bool prefills = part->phase == MOEPAGE_PHASE_PREFILL && part->n_tokens;
    sequence->used = true;
    if (prefills && sequence->decoded)
        end_turn(pool, sequence);
    *(prefills ? &sequence->prefilled : &sequence->decoded) += part->n_tokens;
}

moepage_status mp_kv_sequence_free(struct moepage_kv_pool *pool, moepage_seq id)
{
    mp_kv_sequence *sequence;
    moepage_status status = mp_kv_sequence_find(pool, id, &sequence);
    if (status)
        return status;
    if (pool->watch)
        pool->watch->freed(pool->watch, id);
    end_turn(pool, sequence);
    mp_kv_sequence_release(pool, sequence);
    return MOEPAGE_OK;
}

moepage_status mp_kv_sequence_table(struct moepage_kv_pool *pool, moepage_seq id,
                                    moepage_kv_table *table)
{
    mp_kv_sequence *sequence;
    moepage_status status = mp_kv_sequence_find(pool, id, &sequence);
    if (status)
        return status;
    *table = (moepage_kv_table){
        .swapped = sequence->swapped,
        .blocks = sequence->swapped ? NULL : sequence->ids,
        .n_blocks = sequence->n_blocks,
        .n_tokens = sequence->n_tokens,
    };
    return MOEPAGE_OK;
}
