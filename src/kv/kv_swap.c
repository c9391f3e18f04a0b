/* Swapping: a sequence's blocks move to host memory and back. The memory on one side is freed only
 * after every byte has arrived on the other. */
#include "base/status.h"
#include "kv/kv_pool.h"

/* Copies all blocks of a swap, in table order, between the host copy and the blocks in `ids`. */
static moepage_status copy_blocks(struct moepage_kv_pool *pool, const mp_kv_sequence *sequence,
                                  unsigned char *host, bool to_host, void *native)
{
    mp_device *device = pool->home->device;
    mp_kv_copy copy;
    const uint64_t began_ns = device->ops->now_ns(device);
    mp_kv_copy_begin(&copy, pool, pool->bus, native);
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < sequence->n_blocks && !status; i++) {
        mp_kv_place there = {.host = host + i * pool->shape.block_bytes};
        mp_kv_place here = {.block = mp_kv_shape_block(&pool->shape, sequence->ids[i])};
        status = to_host ? mp_kv_copy_add(&copy, there, here) : mp_kv_copy_add(&copy, here, there);
    }
    status = mp_kv_copy_finish(&copy, status);
    if (!status && device->caps & MP_CAP_SYNC_CALLER)
        mp_rate_add(&pool->swap[to_host ? 0 : 1],
                    (double)sequence->n_blocks * (double)pool->shape.block_bytes,
                    (double)(device->ops->now_ns(device) - began_ns));
    return status;
}

static void free_host(struct moepage_kv_pool *pool, void *host, uint64_t bytes)
{
    if (host)
        pool->home->device->ops->free(pool->home->device, MP_MEMORY_HOST, host, bytes);
}

moepage_status mp_kv_sequence_swap_out(struct moepage_kv_pool *pool, moepage_seq id, void *native)
{
    mp_device *device = pool->home->device;
    mp_kv_sequence *sequence;
    moepage_status status = mp_kv_sequence_find(pool, id, &sequence);
    if (status)
        return status;
    if (sequence->swapped)
        return mp_fail(MOEPAGE_E_STATE, "sequence %#llx is swapped out already",
                       (unsigned long long)id);
    void *host = NULL;
    uint64_t bytes = sequence->n_blocks * pool->shape.block_bytes;
    if (bytes) {
        status = device->ops->alloc(device, MP_MEMORY_HOST, bytes, &host);
        if (status)
            return status;
        status = copy_blocks(pool, sequence, host, true, native);
        if (status) {
            free_host(pool, host, bytes);
            return status;
        }
    }

    mp_kv_sequence_drop_blocks(pool, sequence, 0);
    sequence->swapped = true;
    sequence->host = host;
    sequence->host_bytes = bytes;
    pool->swapped++;
    pool->counters.swap_bytes += bytes;
    pool->counters.swapped_out += sequence->n_blocks;
    return MOEPAGE_OK;
}

moepage_status mp_kv_sequence_swap_in(struct moepage_kv_pool *pool, moepage_seq id, void *native)
{
    mp_kv_sequence *sequence;
    moepage_status status = mp_kv_sequence_find(pool, id, &sequence);
    if (status)
        return status;
    if (!sequence->swapped)
        return mp_fail(MOEPAGE_E_STATE, "sequence %#llx is not swapped out",
                       (unsigned long long)id);
    status = mp_kv_blocks_check_free(&pool->blocks, sequence->n_blocks);
    if (status)
        return status;
    /* The table has kept its room, so nothing has to be allocated. */
    for (uint32_t i = 0; i < sequence->n_blocks; i++)
        sequence->ids[i] = mp_kv_shape_id(&pool->shape, mp_kv_blocks_take(&pool->blocks));
    if (sequence->n_blocks)
        status = copy_blocks(pool, sequence, sequence->host, false, native);
    if (status) {
        mp_kv_sequence_drop_blocks(pool, sequence, 0);
        return status;
    }

    free_host(pool, sequence->host, sequence->host_bytes);
    pool->swapped--;
    pool->counters.swap_bytes -= sequence->host_bytes;
    pool->counters.swapped_in += sequence->n_blocks;
    sequence->swapped = sequence->used = false;
    sequence->host = NULL;
    sequence->host_bytes = 0;
    return MOEPAGE_OK;
}
