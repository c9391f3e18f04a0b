/* Derives a KV pool's geometry from its config and its arena. */
#include <assert.h>

#include "kv/kv_shape.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* A granule chosen here gives the largest layer a run of up to 256 KiB, enough for a transfer or a
 * kernel's reads to run at full speed. But a pool never has fewer than 32 granules if it can be
 * helped, because the boundary to the experts moves by whole granules. */
#define RUN_BYTES (256ull << 10)
#define POOL_GRANULES 32u

typedef struct kv_sizes {
    uint64_t block;   /* over all layers */
    uint64_t largest; /* layer's share of a block */
    uint64_t common;  /* size of all shares, 0 if they differ */
} kv_sizes;

static uint64_t layer_bytes(const moepage_kv_pool_config *config, uint32_t layer)
{
    uint64_t bytes = (uint64_t)config->block_tokens * config->bytes_per_token[layer];
    return (bytes + MP_KV_LAYER_ALIGN - 1) / MP_KV_LAYER_ALIGN * MP_KV_LAYER_ALIGN;
}

static moepage_status measure_layers(const moepage_kv_pool_config *config, kv_sizes *sizes)
{
    bool differ = false;
    *sizes = (kv_sizes){0};
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        uint64_t bytes = layer_bytes(config, layer);
        if (__builtin_add_overflow(sizes->block, bytes, &sizes->block))
            return mp_fail(MOEPAGE_E_ARGUMENT, "the bytes of one block overflow at layer %u",
                           layer);
        differ |= bytes && sizes->largest && bytes != sizes->largest;
        if (bytes > sizes->largest)
            sizes->largest = bytes;
    }
    if (!sizes->block)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "bytes_per_token is 0 for all %u layers: no layer keeps KV", config->layers);
    sizes->common = differ ? 0 : sizes->largest;
    return MOEPAGE_OK;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return value / unit * unit + (value % unit ? unit : 0);
}

/* Chooses blocks per granule: the largest power of two that respects both limits and does not round
 * `wanted` blocks up to more than `most`. */
static uint32_t choose_run(uint64_t largest, uint64_t wanted, uint64_t most)
{
    assert(largest > 0);
    uint64_t limit = wanted / POOL_GRANULES;
    if (limit > RUN_BYTES / largest)
        limit = RUN_BYTES / largest;
    uint32_t run = 1;
    while (run * 2ull <= limit && round_up(wanted, run * 2ull) <= most)
        run *= 2;
    return run;
}

static moepage_status size_granule(mp_kv_shape *shape, const kv_sizes *sizes, uint64_t arena_bytes)
{
    uint32_t run = shape->blocks_per_granule;
    if (__builtin_mul_overflow(shape->block_bytes, run, &shape->granule_bytes) ||
        shape->granule_bytes > arena_bytes)
        return mp_fail(
            MOEPAGE_E_BUDGET,
            "a granule of %u KV blocks of %llu bytes is larger than the arena of %llu bytes", run,
            (unsigned long long)shape->block_bytes, (unsigned long long)arena_bytes);
    uint64_t stride = sizes->common ? shape->granule_bytes / sizes->common : run;
    uint64_t ids = arena_bytes / shape->granule_bytes * stride;
    if (ids > UINT32_MAX)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "the arena would have %llu block ids, which do not fit 32 bits: use a "
                       "block_tokens larger than %u",
                       (unsigned long long)ids, shape->block_tokens);
    shape->id_stride = (uint32_t)stride;
    uint64_t offset = 0;
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        shape->layer_offset[layer] = offset;
        offset += shape->layer_bytes[layer] * run;
    }
    return MOEPAGE_OK;
}

/* Computes how many granules the pool is to own. The room is compared in bytes because the blocks
 * alone may fit where whole granules do not. */
static moepage_status size_claim(mp_kv_shape *shape, uint64_t blocks, uint64_t room_bytes,
                                 uint64_t *granules)
{
    uint64_t room = room_bytes / shape->granule_bytes;
    uint64_t claim = blocks ? mp_kv_shape_granules(shape, blocks) : room;
    if (claim == 0 || claim > room)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "the pool needs %llu granules of %u KV blocks (%llu bytes), the arena has "
                       "room for %llu",
                       (unsigned long long)(claim ? claim : 1), shape->blocks_per_granule,
                       (unsigned long long)shape->granule_bytes, (unsigned long long)room);
    *granules = claim;
    return MOEPAGE_OK;
}

static moepage_status shape_granules(mp_kv_shape *shape, const moepage_kv_pool_config *config,
                                     uint64_t arena_bytes, uint64_t room_bytes, uint64_t *granules)
{
    kv_sizes sizes;
    moepage_status status = measure_layers(config, &sizes);
    if (status)
        return status;
    shape->block_bytes = sizes.block;
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        shape->layer_bytes[layer] = layer_bytes(config, layer);
    uint64_t room = room_bytes / shape->block_bytes;
    uint64_t wanted = config->blocks ? config->blocks : room;
    if (wanted == 0 || wanted > room)
        return mp_fail(MOEPAGE_E_BUDGET,
                       "the pool needs %llu KV blocks of %llu bytes, the arena has room for %llu",
                       (unsigned long long)(wanted ? wanted : 1),
                       (unsigned long long)shape->block_bytes, (unsigned long long)room);
    shape->blocks_per_granule = config->blocks_per_granule;
    if (!shape->blocks_per_granule)
        shape->blocks_per_granule =
            choose_run(sizes.largest, wanted, config->blocks ? room : UINT64_MAX);
    status = size_granule(shape, &sizes, arena_bytes);
    if (status)
        return status;
    return size_claim(shape, config->blocks, room_bytes, granules);
}

moepage_status mp_kv_shape_init(mp_kv_shape *shape, const moepage_kv_pool_config *config,
                                uint64_t arena_bytes, uint64_t room_bytes, uint64_t *granules)
{
    *shape = (mp_kv_shape){.block_tokens = config->block_tokens, .layers = config->layers};
    moepage_status status;
    shape->layer_bytes = mp_alloc_array(shape->layers, sizeof(uint64_t));
    shape->layer_offset = mp_alloc_array(shape->layers, sizeof(uint64_t));
    if (!shape->layer_bytes || !shape->layer_offset)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the KV geometry of %u layers",
                         shape->layers);
    else
        status = shape_granules(shape, config, arena_bytes, room_bytes, granules);
    if (status)
        mp_kv_shape_fini(shape);
    return status;
}

moepage_status mp_kv_shape_claim(const moepage_kv_pool_config *config, uint64_t *bytes)
{
    kv_sizes sizes;
    moepage_status status = measure_layers(config, &sizes);
    if (status)
        return status;
    mp_kv_shape shape = {.blocks_per_granule = config->blocks_per_granule};
    if (!shape.blocks_per_granule)
        shape.blocks_per_granule = choose_run(sizes.largest, config->blocks, UINT64_MAX);
    const uint64_t granules = mp_kv_shape_granules(&shape, config->blocks);
    if (__builtin_mul_overflow(sizes.block, shape.blocks_per_granule, &shape.granule_bytes) ||
        __builtin_mul_overflow(shape.granule_bytes, granules, bytes))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%llu KV blocks: the total overflows 64 bits",
                       (unsigned long long)config->blocks);
    return MOEPAGE_OK;
}

void mp_kv_shape_fini(mp_kv_shape *shape)
{
    mp_free(shape->layer_bytes);
    mp_free(shape->layer_offset);
    memset(shape, 0, sizeof *shape);
}
