/* kv_shape.h — the geometry of a KV pool: how blocks lie in granules, and what their ids mean.
 *
 * A block holds block_tokens tokens of every layer. A granule is a run of blocks, layer-major:
 *
 *   | layer 0: block 0, 1 ... r-1 | layer 1: block 0, 1 ... r-1 | ...     r = blocks_per_granule
 *
 * so that one layer's consecutive blocks lie close together. A layer's share of a block is
 * padded to 64 bytes; a layer without KV takes no room. Blocks are numbered granule * r + place.
 * Their public ids are granule * id_stride + place: if all layers with KV have blocks of one
 * size, id_stride is a granule in units of that size, which makes base + id * block_bytes the
 * address in every layer; otherwise it is r, and ids equal the numbers. Everything here is
 * arithmetic without state. */
#ifndef MP_KV_KV_SHAPE_H
#define MP_KV_KV_SHAPE_H

#include <stdint.h>

#include "moepage.h"

#define MP_KV_LAYER_ALIGN 64u

typedef struct mp_kv_shape {
    uint32_t block_tokens;
    uint32_t layers;
    uint32_t blocks_per_granule;
    uint32_t id_stride;
    uint64_t block_bytes; /* over all layers */
    uint64_t granule_bytes;
    uint64_t *layer_bytes;  /* [layers] a block's share in the layer; 0 = the layer keeps no KV */
    uint64_t *layer_offset; /* [layers] where the layer's run starts in a granule */
} mp_kv_shape;

/* Derives the shape from a config with its defaults filled in, except for blocks and
 * blocks_per_granule: these are chosen here, for a pool in `room_bytes` of an arena of
 * `arena_bytes`. *granules: how many the pool is to own. May fail with ARGUMENT,
 * BUDGET or NO_MEMORY. */
moepage_status mp_kv_shape_init(mp_kv_shape *shape, const moepage_kv_pool_config *config,
                                uint64_t arena_bytes, uint64_t room_bytes, uint64_t *granules);
/* Returns the bytes that a pool of config->blocks >= 1 takes where the arena has them. May fail with ARGUMENT. */
moepage_status mp_kv_shape_claim(const moepage_kv_pool_config *config, uint64_t *bytes);
/* A zeroed struct is allowed. */
void mp_kv_shape_fini(mp_kv_shape *shape);

/* Returns the number of granules that hold `blocks` blocks. */
static inline uint64_t mp_kv_shape_granules(const mp_kv_shape *shape, uint64_t blocks)
{
    uint32_t run = shape->blocks_per_granule;
    return blocks / run + (blocks % run != 0);
}

static inline uint32_t mp_kv_shape_id(const mp_kv_shape *shape, uint32_t block)
{
    uint32_t run = shape->blocks_per_granule;
    return block / run * shape->id_stride + block % run;
}

static inline uint32_t mp_kv_shape_block(const mp_kv_shape *shape, uint32_t id)
{
    return id / shape->id_stride * shape->blocks_per_granule + id % shape->id_stride;
}

/* Returns the offset of the block's share in a layer from the base of granule 0. */
static inline uint64_t mp_kv_shape_offset(const mp_kv_shape *shape, uint32_t layer, uint32_t block)
{
    uint32_t run = shape->blocks_per_granule;
    return block / run * shape->granule_bytes + shape->layer_offset[layer] +
           block % run * shape->layer_bytes[layer];
}

/* Returns the number of blocks that `tokens` tokens take. */
static inline uint64_t mp_kv_shape_blocks_for(const mp_kv_shape *shape, uint64_t tokens)
{
    return tokens / shape->block_tokens + (tokens % shape->block_tokens != 0);
}

#endif
