/* Copies whole KV blocks, layer by layer: inside the device, to the host and back. */
#include "kv/kv_pool.h"

#include "base/status.h"

static bool outlasts_calls(const struct moepage_kv_pool *pool)
{
    return !(pool->home->device->caps & MP_CAP_SYNC_CALLER);
}

void mp_kv_copy_begin(mp_kv_copy *copy, struct moepage_kv_pool *pool, mp_stream *stream,
                      void *native)
{
    *copy = (mp_kv_copy){.pool = pool, .stream = stream, .native = native};
    atomic_store(&pool->copy_result, MOEPAGE_OK);
    copy->entered = pool->home->device->ops->enter(stream, native);
}

/* Returns the address of a block's share in a layer. On the host, a block's layers lie one
 * after the other. */
static unsigned char *place_address(const struct moepage_kv_pool *pool, mp_kv_place place,
                                    uint32_t layer, uint64_t host_offset)
{
    if (place.host)
        return (unsigned char *)place.host + host_offset;
    return pool->base + mp_kv_shape_offset(&pool->shape, layer, place.block);
}

moepage_status mp_kv_copy_add(mp_kv_copy *copy, mp_kv_place to, mp_kv_place from)
{
    struct moepage_kv_pool *pool = copy->pool;
    uint64_t host_offset = 0;
    uint32_t n = 0;
    if (copy->entered)
        return copy->entered;
    for (uint32_t layer = 0; layer < pool->shape.layers; layer++) {
        uint64_t bytes = pool->shape.layer_bytes[layer];
        if (!bytes)
            continue;
        pool->copies[n++] = (mp_copy){
            .dst = place_address(pool, to, layer, host_offset),
            .src = place_address(pool, from, layer, host_offset),
            .bytes = bytes,
            .result = &pool->copy_result,
        };
        host_offset += bytes;
    }
    return pool->home->device->ops->copy(copy->stream, pool->copies, n, &copy->tick);
}

/* `status` is the first failure of the adds. Copies submitted before a refused add are waited for
 * all the same, since their blocks may be freed next. */
moepage_status mp_kv_copy_finish(mp_kv_copy *copy, moepage_status status)
{
    const mp_device_ops *ops = copy->pool->home->device->ops;
    if (!status)
        status = copy->entered;
    if (!status && outlasts_calls(copy->pool)) /* a tick behind the caller's kernels, too */
        status = ops->mark(copy->stream, &copy->tick);
    moepage_status synced = ops->sync(copy->stream, copy->tick);
    moepage_status result = atomic_load(&copy->pool->copy_result);
    if (status)
        return status;
    if (synced)
        return synced;
    if (result)
        return mp_fail(result, "the device failed to copy a KV block");
    return MOEPAGE_OK;
}

/* `follow` returns once the copies are settled, so a copy that the device refused is known here.
 * After any failure nothing is under way. */
moepage_status mp_kv_copy_hand_over(mp_kv_copy *copy, moepage_status status)
{
    struct moepage_kv_pool *pool = copy->pool;
    if (!status && outlasts_calls(pool)) {
        status = pool->home->device->ops->follow(copy->native, copy->stream, copy->tick);
        if (!status && !atomic_load(&pool->copy_result))
            return MOEPAGE_OK;
    }
    return mp_kv_copy_finish(copy, status);
}
