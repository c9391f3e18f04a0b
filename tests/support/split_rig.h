/* split_rig.h — streams of reuse distances of several shapes for the tests of splits: as lists,
 * whose misses are counted from the definition, and as miss curves. */
#ifndef SPLIT_RIG_H
#define SPLIT_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "planning/split_choice.h"

#define RIG_MOST 16384u /* distances of a stream */

/* The same sequence for the same seed. */
void rig_seed(uint64_t seed);
uint32_t rig_below(uint32_t n);
double rig_unit(void);
/* Any size: most often below `small`, sometimes as large as there are. */
uint64_t rig_draw_size(uint32_t small);

/* `few`, or many more if that is asked for. */
uint32_t rig_rounds(uint32_t few);

/* The bounds as defined, in wide arithmetic. */
bool rig_within(const mp_split_bounds *bounds, const mp_split *split);
/* Within, and not another KV unit fits. */
void rig_expect_iso_vram(const mp_split_bounds *bounds, const mp_split *split);
void rig_expect_split(const mp_split *split, uint64_t experts, uint64_t kv);

typedef struct rig_stream {
    uint32_t most;                /* distances are 0..most */
    double weights[RIG_MOST + 1]; /* accesses at each distance, whole numbers */
    double bins[RIG_MOST + 1];
    mp_curve curve;
} rig_stream;

typedef enum rig_shape {
    RIG_EVEN,    /* any distance */
    RIG_NEAR,    /* ever fewer with distance: misses are convex in capacity */
    RIG_BIMODAL, /* a tight mode, a gap, a far mode */
    RIG_LOOP,    /* one distance: a cliff */
    RIG_BEYOND,  /* nothing within reach */
    RIG_NOTHING,
    RIG_SHAPES
} rig_shape;

/* About `accesses` of a shape, for capacities 0..most <= RIG_MOST; the curve holds them. */
void rig_stream_make(rig_stream *stream, rig_shape shape, uint32_t most, uint32_t accesses,
                     uint32_t max_bins);

/* Puts the stream's weights, each times 1 +- noise, into its curve once more. */
void rig_stream_burst(rig_stream *stream, double noise);

/* Accesses at a distance of at least `capacity`. */
double rig_misses(const rig_stream *stream, uint64_t capacity);

#endif
