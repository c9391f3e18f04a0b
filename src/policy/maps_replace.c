/* Learning in a store of expert maps, and the choice of the map to replace (FineMoE 4.4). */
#include "policy/maps_inside.h"
#include "policy/maps_sketch.h"

/* Compares with a slot written since the query began. The running products belong to the slot's
 * earlier map, so this computes them from the codes. */
static float compare_afresh(const mp_maps *maps, mp_maps_query *query, uint32_t slot)
{
    float dot = 0, power = 0;
    for (uint32_t layer = 0; layer < maps->shape.layers; layer++) {
        const float *row = query->map + (uint64_t)layer * maps->shape.experts;
        const float unit = mp_maps_weigh(maps, row, query->weights);
        const uint64_t at = mp_maps_at(maps, layer, slot);
        int32_t sum = 0;
        if (unit <= 0) /* absent layer */
            continue;
        for (uint32_t e = 0; e < maps->shape.experts; e++) {
            const uint32_t code = mp_maps_code(maps, slot, layer, e);
            sum += query->weights[e] * (int32_t)(code * code);
        }
        dot += mp_maps_product(sum, maps->peaks[at], unit);
        power += maps->powers[at];
    }
    return mp_maps_cosine(dot, power, query->power);
}

static float trajectory_score(const mp_maps *maps, mp_maps_query *query, uint32_t slot)
{
    if (maps->born[slot] > query->since)
        return compare_afresh(maps, query, slot);
    return mp_maps_cosine(query->dots[slot], query->powers[slot], query->power);
}

/* The slot that the query's map makes most redundant, d/L * semantic + (L - d)/L * trajectory
 * similarity (FineMoE 4.4), of all that are in use; ties: the lower slot. */
static uint32_t most_redundant(const mp_maps *maps, mp_maps_query *query)
{
    const float semantic_part = (float)maps->shape.distance / (float)maps->shape.layers;
    uint32_t best = MP_MAPS_NONE;
    float most = 0;
    for (uint32_t slot = 0; slot < maps->used; slot++) {
        const float semantic = query->embedded ? mp_sketch_score(maps, query, slot) : 0;
        const float redundancy =
            semantic_part * semantic + (1 - semantic_part) * trajectory_score(maps, query, slot);
        if (best == MP_MAPS_NONE || redundancy > most) {
            best = slot;
            most = redundancy;
        }
    }
    return best;
}

uint32_t mp_maps_learn(mp_maps *maps, mp_maps_query *query)
{
    const uint32_t slot =
        maps->used < maps->shape.capacity ? maps->used++ : most_redundant(maps, query);
    for (uint32_t layer = 0; layer < maps->shape.layers; layer++)
        mp_maps_pack(maps, slot, layer, query->map + (uint64_t)layer * maps->shape.experts);
    mp_sketch_put(maps, slot, query->embedded ? query->turned : NULL);
    maps->born[slot] = ++maps->changes;
    return slot;
}
