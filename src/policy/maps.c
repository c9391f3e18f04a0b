/* The memory layout of a store of expert maps and of its queries. */
#include "policy/maps.h"

#include <string.h>

#include "policy/maps_kernels.h"
#include "policy/maps_sketch.h"

#define ALIGNMENT 64

/* Hands out parts of a block; without a block it only counts bytes. */
typedef struct block {
    unsigned char *base;
    uint64_t used;
} block;

static void *take(block *from, uint64_t bytes)
{
    void *at = from->base ? from->base + from->used : NULL;
    from->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static mp_maps empty_store(const mp_maps_shape *shape)
{
    return (mp_maps){
        .shape = *shape,
        .quads = (shape->experts + 3) / 4,
        .tiles = (uint32_t)(((uint64_t)shape->capacity + MP_MAPS_TILE - 1) / MP_MAPS_TILE),
        .coords = mp_sketch_coords(shape->semantic_dim),
    };
}

static uint64_t place_store(mp_maps *maps, unsigned char *base)
{
    block from = {base, 0};
    const uint64_t capacity = maps->shape.capacity, coords = maps->coords;
    const uint64_t rows = (uint64_t)maps->shape.layers * maps->tiles * MP_MAPS_TILE;
    take(&from, sizeof *maps);
    maps->codes = take(&from, rows * maps->quads * 3);
    maps->peaks = take(&from, rows * sizeof *maps->peaks);
    maps->powers = take(&from, rows * sizeof *maps->powers);
    maps->born = take(&from, capacity * sizeof *maps->born);
    maps->heads = take(&from, coords ? capacity * MP_SKETCH_HEAD / 2 : 0);
    maps->tails = take(&from, coords ? capacity * mp_sketch_tail_bytes(maps) : 0);
    maps->gains = take(&from, coords ? capacity * sizeof *maps->gains : 0);
    return from.used;
}

static uint64_t place_query(const mp_maps *maps, mp_maps_query *query, unsigned char *base)
{
    block from = {base, 0};
    const uint64_t slots = (uint64_t)maps->tiles * MP_MAPS_TILE;
    take(&from, sizeof *query);
    query->dots = take(&from, slots * sizeof *query->dots);
    query->powers = take(&from, slots * sizeof *query->powers);
    query->map =
        take(&from, (uint64_t)maps->shape.layers * maps->shape.experts * sizeof *query->map);
    query->weights = take(&from, (uint64_t)maps->quads * 4 * sizeof *query->weights);
    query->codes = take(&from, maps->shape.experts);
    query->turned = take(&from, maps->coords * sizeof *query->turned);
    query->sketch = take(&from, maps->coords * sizeof *query->sketch);
    query->buckets = take(&from, maps->coords ? maps->shape.capacity * sizeof *query->buckets : 0);
    return from.used;
}

uint64_t mp_maps_bytes(const mp_maps_shape *shape)
{
    mp_maps maps = empty_store(shape);
    return place_store(&maps, NULL);
}

void mp_maps_init(mp_maps *maps, const mp_maps_shape *shape)
{
    *maps = empty_store(shape);
    maps->kernels = mp_maps_kernels_best();
    place_store(maps, (unsigned char *)maps);
}

uint64_t mp_maps_query_bytes(const mp_maps_shape *shape)
{
    const mp_maps maps = empty_store(shape);
    mp_maps_query query;
    return place_query(&maps, &query, NULL);
}

void mp_maps_begin(const mp_maps *maps, mp_maps_query *query, const float *semantic)
{
    const uint64_t slots = (uint64_t)maps->tiles * MP_MAPS_TILE;
    *query = (mp_maps_query){.since = maps->changes, .open = true};
    place_query(maps, query, (unsigned char *)query);
    memset(query->dots, 0, slots * sizeof *query->dots);
    memset(query->powers, 0, slots * sizeof *query->powers);
    memset(query->map, 0, (uint64_t)maps->shape.layers * maps->shape.experts * sizeof *query->map);
    memset(query->weights, 0, (uint64_t)maps->quads * 4 * sizeof *query->weights);
    query->embedded = semantic && maps->coords &&
                      mp_sketch_turn(semantic, maps->shape.semantic_dim, query->turned);
    if (query->embedded)
        mp_sketch_query(maps, query);
}
