/* Moving the KV pool's boundary: growing, and shrinking with live blocks in the way. */
#include "base/status.h"
#include "kv/kv_pool.h"

/* The pool's part after a resize: granules owned, and the lowest block of the lowest one. */
typedef struct resize_target {
    uint64_t granules;
    uint32_t first;
} resize_target;

static moepage_status find_target(const struct moepage_kv_pool *pool, uint64_t blocks,
                                  resize_target *target)
{
    uint32_t run = pool->shape.blocks_per_granule;
    if (!blocks)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "a KV pool of 0 blocks was asked for, at least 1 is needed");
    if (blocks > pool->blocks.total)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "a KV pool of %llu blocks was asked for, the whole arena holds %u",
                       (unsigned long long)blocks, pool->blocks.total);
    target->granules = mp_kv_shape_granules(&pool->shape, blocks);
    target->first = pool->blocks.total - (uint32_t)target->granules * run;
    uint32_t used = mp_kv_blocks_used(&pool->blocks);
    if (used > target->granules * run)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "a KV pool of %llu blocks cannot hold the %u that sequences use: free or "
                       "swap out sequences first",
                       (unsigned long long)(target->granules * run), used);
    return MOEPAGE_OK;
}

moepage_status mp_kv_pool_check_resize(struct moepage_kv_pool *pool, uint64_t blocks,
                                       uint64_t *bytes)
{
    resize_target target;
    pthread_mutex_lock(&pool->lock);
    moepage_status status = find_target(pool, blocks, &target);
    if (!status)
        *bytes = target.granules * pool->shape.granule_bytes;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* Copies every live block below `first` to a free block above it. Until the boundary is raised, the
 * old blocks stay intact, so that a failure can be undone; each refs entry below `first` forwards
 * to the new block. */
static moepage_status move_blocks(struct moepage_kv_pool *pool, uint32_t first, uint32_t *moved,
                                  void *native)
{
    mp_kv_blocks *blocks = &pool->blocks;
    mp_kv_copy copy;
    mp_kv_copy_begin(&copy, pool, pool->inner, native);
    moepage_status status = MOEPAGE_OK;
    uint32_t reached = blocks->first;
    *moved = 0;
    for (; reached < first && !status; reached++) {
        if (!blocks->refs[reached])
            continue;
        uint32_t to = mp_kv_blocks_move(blocks, reached);
        status = mp_kv_copy_add(&copy, (mp_kv_place){.block = to}, (mp_kv_place){.block = reached});
        ++*moved;
    }
    status = mp_kv_copy_finish(&copy, status);
    if (status) {
        for (uint32_t block = blocks->first; block < reached; block++) {
            if (blocks->refs[block])
                mp_kv_blocks_move_back(blocks, block);
        }
    }
    return status;
}

static void forward_tables(struct moepage_kv_pool *pool, uint32_t first)
{
    for (uint32_t i = 0; i < pool->n_slots; i++) {
        mp_kv_sequence *sequence = &pool->sequences[i];
        if (sequence->swapped)
            continue;
        for (uint32_t j = 0; j < sequence->n_blocks; j++) {
            uint32_t block = mp_kv_shape_block(&pool->shape, sequence->ids[j]);
            if (block < first)
                sequence->ids[j] = mp_kv_shape_id(&pool->shape, pool->blocks.refs[block]);
        }
    }
}

static uint32_t count_live(const mp_kv_blocks *blocks, uint32_t first)
{
    uint32_t n = 0;
    for (uint32_t block = blocks->first; block < first; block++)
        n += blocks->refs[block] > 0;
    return n;
}

/* Fails with BUSY if blocks must move while a step is open, since the step's tables must not
 * change. Waits for work of ended steps that still reads blocks, since the granules are about
 * to change hands. */
static moepage_status settle_readers(const struct moepage_kv_pool *pool, uint32_t first)
{
    const mp_device_ops *ops = pool->home->device->ops;
    uint32_t live = count_live(&pool->blocks, first);
    moepage_status status = MOEPAGE_OK;
    for (const mp_kv_reader *reader = pool->readers; reader && !status; reader = reader->next) {
        if (reader->step_open && live)
            return mp_fail(MOEPAGE_E_BUSY,
                           "%u live KV blocks would have to be copied, and a step that may read "
                           "them is open: try again between steps",
                           live);
        if (reader->stream && reader->tick)
            status = ops->sync(reader->stream, reader->tick);
    }
    return status;
}

static moepage_status shrink(struct moepage_kv_pool *pool, const resize_target *target,
                             void *native)
{
    uint32_t moved;
    moepage_status status = settle_readers(pool, target->first);
    if (!status)
        status = move_blocks(pool, target->first, &moved, native);
    if (status)
        return status;
    if (moved)
        forward_tables(pool, target->first);
    mp_kv_blocks_set_first(&pool->blocks, target->first);
    pool->counters.relocated += moved;
    return mp_arena_resize(&pool->home->arena, MP_SIDE_KV, target->granules);
}

static moepage_status grow(struct moepage_kv_pool *pool, const resize_target *target)
{
    moepage_status status = mp_arena_resize(&pool->home->arena, MP_SIDE_KV, target->granules);
    if (!status)
        mp_kv_blocks_set_first(&pool->blocks, target->first);
    return status;
}

moepage_status mp_kv_pool_resize(struct moepage_kv_pool *pool, uint64_t blocks, void *native)
{
    resize_target target;
    pthread_mutex_lock(&pool->lock);
    uint32_t first = pool->blocks.first;
    moepage_status status = find_target(pool, blocks, &target);
    if (!status)
        status = target.first < first ? grow(pool, &target) : shrink(pool, &target, native);
    pool->counters.resizes += pool->blocks.first != first;
    pthread_mutex_unlock(&pool->lock);
    return status;
}
