/* Searches a store of expert maps by trajectory: cosine similarity over the layers observed so far
 * (FineMoE eq. 5), updated layer by layer.
 *
 * A layer's probabilities become integers of 15 bits, the codes' squares are integers of 12: their
 * product is exact, and identical on every machine. Only the sums over layers are floats. */
#include <math.h>
#include <string.h>

#include "base/floats.h"
#include "policy/maps_inside.h"
#include "policy/maps_kernels.h"
#include "policy/maps_sketch.h"

/* The bound that keeps a product with codes in an int32: 500,000 plus the rounding of 65,536
 * weights, times 3969. */
#define MOST_WEIGHT 32767.0f
#define MOST_SUM 500000.0

float mp_maps_weigh(const mp_maps *maps, const float *probabilities, int16_t *weights)
{
    const uint32_t experts = maps->shape.experts;
    float most = 0;
    double sum = 0;
    for (uint32_t e = 0; e < experts; e++) {
        most = fmaxf(most, probabilities[e]);
        sum += (double)probabilities[e];
    }
    if (most <= 0) {
        memset(weights, 0, experts * sizeof *weights);
        return 0;
    }
    const float scale = fminf(MOST_WEIGHT / most, (float)(MOST_SUM / sum));
    for (uint32_t e = 0; e < experts; e++)
        weights[e] = (int16_t)fminf(probabilities[e] * scale + 0.5f, MOST_WEIGHT);
    return 1 / (scale * MP_MAPS_TOP_LEVEL);
}

float mp_maps_product(int32_t dot, uint16_t peak, float unit)
{
    return (float)dot * (mp_from_bf16(peak) * unit);
}

void mp_maps_observe(const mp_maps *maps, mp_maps_query *query, uint32_t layer,
                     const float *probabilities)
{
    float *row = query->map + (uint64_t)layer * maps->shape.experts;
    for (uint32_t e = 0; e < maps->shape.experts; e++) {
        row[e] = mp_maps_clean(probabilities[e]);
        query->power += (double)row[e] * row[e];
    }
    const float unit = mp_maps_weigh(maps, row, query->weights);
    query->observed++;
    query->last = layer;
    query->found_at = 0;
    const uint32_t tiles = (maps->used + MP_MAPS_TILE - 1) / MP_MAPS_TILE;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const uint32_t first = tile * MP_MAPS_TILE;
        const uint64_t at = mp_maps_at(maps, layer, first);
        int32_t dots[MP_MAPS_TILE];
        maps->kernels->tile(mp_maps_tile(maps, layer, tile), query->weights, maps->quads, dots);
        for (uint32_t m = 0; m < MP_MAPS_TILE; m++) {
            query->dots[first + m] += mp_maps_product(dots[m], maps->peaks[at + m], unit);
            query->powers[first + m] += maps->powers[at + m];
        }
    }
}

float mp_maps_cosine(double dot, double power, double query_power)
{
    if (!(dot > 0) || !(power > 0) || !(query_power > 0))
        return 0;
    const double cosine = dot / sqrt(power * query_power);
    return cosine < 1 ? (float)cosine : 1;
}

/* Finds the slot of the largest cosine. Cosines are ordered like dot^2 / power, since
 * none is negative. */
static uint32_t find_trajectory(const mp_maps *maps, const mp_maps_query *query, float *score)
{
    uint32_t best = MP_MAPS_NONE;
    float most = 0;
    for (uint32_t slot = 0; slot < maps->used; slot++) {
        const float dot = query->dots[slot], value = dot * dot;
        if (value > most * query->powers[slot] && maps->born[slot] <= query->since) {
            most = value / query->powers[slot];
            best = slot;
        }
    }
    if (best != MP_MAPS_NONE)
        *score = mp_maps_cosine(query->dots[best], query->powers[best], query->power);
    return best;
}

/* A result stays valid until a layer is observed or a slot is rewritten. */
uint32_t mp_maps_find(const mp_maps *maps, mp_maps_query *query, float *score)
{
    const uint64_t now = maps->changes + 1;
    if (query->found_at != now) {
        query->score = 0;
        if (query->observed)
            query->found = find_trajectory(maps, query, &query->score);
        else if (query->embedded)
            query->found = mp_sketch_find(maps, query, &query->score);
        else
            query->found = MP_MAPS_NONE;
        query->found_at = now;
    }
    *score = query->score;
    return query->found;
}
