/* quant_inside.h — how one group of weights becomes integers, shared by the two ways of rounding:
 * each weight by itself (quant.c), and with the errors of those before it (quant_feedback.c). */
#ifndef MP_CODEC_QUANT_INSIDE_H
#define MP_CODEC_QUANT_INSIDE_H

#include "codec/quant.h"

#define MP_QUANT_MAX_GROUP 128

/* A weight counts as (q + offset) * s for an integer q from least to most. */
typedef struct mp_quant_levels {
    int32_t least, most;
    float offset;
    int32_t reach; /* weights up to reach * s are off by no more than s / 2 */
} mp_quant_levels;

/* A group's levels, and its scale: as it is stored, and as a number, above 0 unless all are zero. */
typedef struct mp_quant_grid {
    mp_quant_levels levels;
    uint16_t stored;
    float scale;
} mp_quant_grid;

/* Loads weight i as a float. */
float mp_quant_load(uint32_t dtype, const void *weights, uint64_t i);

/* Chooses the grid of n weights, at this row and column of the matrix: see mp_quant_encode. */
moepage_status mp_quant_choose(const mp_quant_shape *shape, const float *weights, uint32_t n,
                               uint64_t row, uint64_t column, int search, mp_quant_grid *out);

/* Gives grid i of those that a search tries for n weights, which mp_quant_choose gave a scale; of scale 0
 * if no half is its scale. Returns 0 past the last. */
int mp_quant_candidate(const mp_quant_shape *shape, const float *weights, uint32_t n, uint32_t i,
                       mp_quant_grid *out);

/* Returns the integer of the level next to a weight; 0 where the scale is. */
int32_t mp_quant_round(const mp_quant_grid *grid, float weight);

/* Returns the integer's value. */
static inline float mp_quant_value(const mp_quant_grid *grid, int32_t q)
{
    return ((float)q + grid->levels.offset) * grid->scale;
}

/* Packs integer i of a row into its bytes, which were zero. */
void mp_quant_put(uint8_t *packed, uint64_t i, uint32_t bits, int32_t q);

/* Returns OK if shape and type can be quantised, and the layout. */
moepage_status mp_quant_begin(const mp_quant_shape *shape, uint32_t dtype, mp_quant_layout *layout);

#endif
