/* The KV pool as a whole: creation on the arena's high side, destruction, and queries. */
#include "kv/kv_pool.h"

#include "base/alloc.h"
#include "base/status.h"

static moepage_status create_streams(struct moepage_kv_pool *pool)
{
    mp_device *device = pool->home->device;
    moepage_status status = device->ops->stream_create(device, MP_STREAM_COMPUTE, &pool->inner);
    if (status)
        return status;
    return device->ops->stream_create(device, MP_STREAM_DEMAND, &pool->bus);
}

/* Creates everything that a pool owns besides its side of the arena. */
static moepage_status create_parts(struct moepage_kv_pool *pool, uint32_t total_blocks)
{
    pool->copies = mp_alloc_array(pool->shape.layers, sizeof *pool->copies);
    if (!pool->copies)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the copies of %u layers",
                       pool->shape.layers);
    moepage_status status = mp_kv_blocks_init(&pool->blocks, total_blocks);
    if (status)
        return status;
    return create_streams(pool);
}

/* Destroys the parts, of half-built pools too, but not the struct itself. */
static void destroy_parts(struct moepage_kv_pool *pool)
{
    mp_device *device = pool->home->device;
    if (pool->bus)
        device->ops->stream_destroy(pool->bus);
    if (pool->inner)
        device->ops->stream_destroy(pool->inner);
    mp_free(pool->sequences);
    mp_kv_blocks_fini(&pool->blocks);
    mp_free(pool->copies);
    mp_kv_shape_fini(&pool->shape);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->loan_lock);
}

moepage_status mp_kv_pool_create(struct moepage_device *home, const moepage_kv_pool_config *config,
                                 struct moepage_kv_pool **out)
{
    mp_arena *arena = &home->arena;
    uint64_t granules = 0;
    if (home->device->caps & MP_CAP_WRITE_ONLY)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "device %s has no memory for KV blocks that this library can copy: give "
                       "the KV cache a device of its own",
                       home->device->name);
    struct moepage_kv_pool *pool = mp_alloc(sizeof *pool);
    if (!pool)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the KV pool's handle");
    pool->home = home;
    pool->most_blocks = UINT64_MAX;
    pool->max_sequences = (uint32_t)config->max_sequences;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_init(&pool->loan_lock, NULL);
    moepage_status status = mp_kv_shape_init(&pool->shape, config, arena->bytes,
                                             mp_arena_room_bytes(arena, MP_SIDE_KV), &granules);
    if (status)
        goto fail_pool;
    status = mp_arena_attach(arena, MP_SIDE_KV, pool->shape.granule_bytes);
    if (status)
        goto fail_pool;
    pool->base = mp_arena_side_base(arena, MP_SIDE_KV);
    uint32_t max_granules = (uint32_t)mp_arena_side_max(arena, MP_SIDE_KV);
    status = create_parts(pool, max_granules * pool->shape.blocks_per_granule);
    if (status)
        goto fail_arena;
    status = mp_arena_resize(arena, MP_SIDE_KV, granules);
    if (status)
        goto fail_arena;

    mp_kv_blocks_set_first(&pool->blocks,
                           (max_granules - (uint32_t)granules) * pool->shape.blocks_per_granule);
    atomic_fetch_add(&home->residents, 1);
    mp_home_set_kv(home, pool);
    mp_handle_open(&pool->handle, MP_KIND_KV);
    *out = pool;
    return MOEPAGE_OK;

fail_arena:
    mp_arena_detach(arena, MP_SIDE_KV);
fail_pool:
    destroy_parts(pool);
    mp_free(pool);
    return status;
}

void mp_kv_pool_destroy(struct moepage_kv_pool *pool)
{
    struct moepage_device *home = pool->home;
    mp_handle_kill(&pool->handle);
    mp_home_set_kv(home, NULL);
    for (uint32_t i = 0; i < pool->n_slots; i++) {
        if (pool->sequences[i].live)
            mp_kv_sequence_release(pool, &pool->sequences[i]);
    }
    destroy_parts(pool);
    mp_arena_detach(&home->arena, MP_SIDE_KV);
    mp_graveyard_bury(&home->graveyard, pool);
    atomic_fetch_sub(&home->residents, 1);
}

void mp_kv_pool_info(struct moepage_kv_pool *pool, moepage_kv_pool_info *info)
{
    pthread_mutex_lock(&pool->lock);
    *info = (moepage_kv_pool_info){
        .block_tokens = pool->shape.block_tokens,
        .blocks = mp_kv_blocks_capacity(&pool->blocks) + mp_kv_lent(pool),
        .free_blocks = pool->blocks.free + mp_kv_lent(pool),
        .peak_blocks = pool->blocks.peak,
        .block_bytes = pool->shape.block_bytes,
        .granule_bytes = pool->shape.granule_bytes,
        .blocks_per_granule = pool->shape.blocks_per_granule,
        .sequences = pool->live,
        .swapped = pool->swapped,
        .swap_bytes = pool->counters.swap_bytes,
        .copies_on_write = pool->counters.copies_on_write,
        .relocated_blocks = pool->counters.relocated,
        .swapped_out_blocks = pool->counters.swapped_out,
        .swapped_in_blocks = pool->counters.swapped_in,
        .refused = pool->counters.refused,
        .resizes = pool->counters.resizes,
        .lent_blocks = mp_kv_lent(pool),
    };
    pthread_mutex_unlock(&pool->lock);
}

void mp_kv_pool_layer(const struct moepage_kv_pool *pool, uint32_t layer,
                      moepage_kv_layer_view *view)
{
    uint64_t bytes = pool->shape.layer_bytes[layer];
    *view = (moepage_kv_layer_view){
        .id_stride = pool->shape.id_stride,
        .base = bytes ? pool->base + pool->shape.layer_offset[layer] : NULL,
        .block_bytes = bytes,
        .granule_bytes = pool->shape.granule_bytes,
    };
}

moepage_status mp_kv_pool_admit(struct moepage_kv_pool *pool, const uint64_t *tokens,
                                uint32_t n_sequences, moepage_kv_admission *out)
{
    uint64_t needed = 0;
    for (uint32_t i = 0; i < n_sequences; i++) {
        uint64_t blocks = mp_kv_shape_blocks_for(&pool->shape, tokens[i]);
        if (__builtin_add_overflow(needed, blocks, &needed))
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "the blocks of the sequences overflow at tokens[%u] = %llu", i,
                           (unsigned long long)tokens[i]);
    }
    pthread_mutex_lock(&pool->lock);
    const bool moves = pool->most_blocks != UINT64_MAX;
    const uint64_t free = pool->blocks.free + mp_kv_lent(pool);
    const uint32_t target = pool->target, running = target || moves ? mp_kv_running(pool) : 0;
    *out = (moepage_kv_admission){
        .fits = needed <= free && n_sequences <= pool->max_sequences - pool->live &&
                (!running || mp_kv_blocks_used(&pool->blocks) + needed <= pool->most_blocks) &&
                (!target || n_sequences <= (running < target ? target - running : 0)),
        .needed_blocks = needed,
        .free_blocks = free,
        .target_running = target,
        .running = target ? running : 0,
    };
    pthread_mutex_unlock(&pool->lock);
    return MOEPAGE_OK;
}

void mp_kv_pool_set_target(struct moepage_kv_pool *pool, uint32_t target, uint64_t most_blocks)
{
    pthread_mutex_lock(&pool->lock);
    pool->target = target;
    pool->most_blocks = most_blocks;
    pthread_mutex_unlock(&pool->lock);
}
