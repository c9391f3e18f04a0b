/* curve.h — a miss curve: how many misses a cache of each size would have had.
 *
 * A histogram of reuse distances, decayed burst by burst, with first accesses counted separately
 * (WiSP app. B: they are the same at every split, and would swamp the rest). Misses at capacity c
 * are the accesses whose distance is at least c. Bins are `width` units wide; with width 1 the
 * curve is exact, otherwise it is linear inside a bin.
 *
 * Pure functions of numbers in the caller's memory. */
#ifndef MP_PLANNING_CURVE_H
#define MP_PLANNING_CURVE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mp_curve {
    double *bins; /* [n_bins + 1] accesses by distance / width; the last: all larger distances */
    double *sums; /* [n_bins + 1] a bin and all beyond it, while `summed`; NULL: not kept */
    bool summed;
    uint32_t n_bins;
    uint64_t width;
    double warm;     /* sum of bins */
    double first;    /* first accesses */
    double accesses; /* warm + first */
} mp_curve;

/* Chooses `n_bins`, at most `max_bins`, for capacities 0..most. `bins` is the caller's memory of
 * mp_curve_bins(most, max_bins) doubles. */
uint32_t mp_curve_bins(uint64_t most, uint32_t max_bins);
void mp_curve_init(mp_curve *curve, double *bins, uint64_t most, uint32_t max_bins);
/* Keeps sums in memory of the caller's, as large as that of bins: from a decay until something is added misses take
 * constant time, and are the same to the bit. */
void mp_curve_keep_sums(mp_curve *curve, double *sums);

void mp_curve_add(mp_curve *curve, uint64_t distance, double weight);
void mp_curve_add_first(mp_curve *curve, double weight);
/* Scales all counts by `factor`. 0 <= factor <= 1. */
void mp_curve_decay(mp_curve *curve, double factor);

/* Returns the warm misses of a cache of `capacity` units: non-increasing, `warm` at 0. First
 * accesses miss in addition. */
double mp_curve_misses(const mp_curve *curve, double capacity);

#endif
