/* Miss curves: sums over a decayed histogram of distances, taken from the far end, so that rounding
 * cannot make them increase with capacity. */
#include "planning/curve.h"

#include <assert.h>
#include <float.h>
#include <string.h>

static uint64_t width_for(uint64_t most, uint32_t max_bins)
{
    assert(max_bins > 0);
    const uint64_t width = most / max_bins + (most % max_bins != 0);
    return width > 0 ? width : 1;
}

uint32_t mp_curve_bins(uint64_t most, uint32_t max_bins)
{
    const uint64_t width = width_for(most, max_bins);
    return (uint32_t)(most / width + (most % width != 0)) + 1;
}

void mp_curve_init(mp_curve *curve, double *bins, uint64_t most, uint32_t max_bins)
{
    const uint32_t n = mp_curve_bins(most, max_bins);
    *curve = (mp_curve){.bins = bins, .n_bins = n - 1, .width = width_for(most, max_bins)};
    for (uint32_t i = 0; i < n; i++)
        bins[i] = 0;
}

void mp_curve_keep_sums(mp_curve *curve, double *sums)
{
    curve->sums = sums;
    curve->summed = false;
}

void mp_curve_add(mp_curve *curve, uint64_t distance, double weight)
{
    assert(weight >= 0);
    const uint64_t bin = distance / curve->width;
    curve->bins[bin < curve->n_bins ? bin : curve->n_bins] += weight;
    curve->warm += weight;
    curve->summed = false;
    curve->accesses = curve->warm + curve->first;
}

void mp_curve_add_first(mp_curve *curve, double weight)
{
    assert(weight >= 0);
    curve->first += weight;
    curve->accesses = curve->warm + curve->first;
}

/* Returns the sum of bin `from` and all bins beyond. */
static double sum_from(const mp_curve *curve, uint32_t from)
{
    double sum = 0;
    if (curve->summed)
        return curve->sums[from];
    for (uint32_t i = curve->n_bins + 1; i > from; i--)
        sum += curve->bins[i - 1];
    return sum;
}

/* Decays a bin, but never to a subnormal number: those of an idle curve would slow
 * every sum down. */
static double decayed(double value, double factor)
{
    const double left = value * factor;
    return left >= DBL_MIN ? left : 0;
}

void mp_curve_decay(mp_curve *curve, double factor)
{
    assert(factor >= 0 && factor <= 1);
    curve->warm = 0;
    for (uint32_t i = curve->n_bins + 1; i-- > 0;) {
        curve->bins[i] = decayed(curve->bins[i], factor);
        curve->warm += curve->bins[i];
        if (curve->sums)
            curve->sums[i] = curve->warm;
    }
    curve->summed = curve->sums != NULL;
    curve->first = decayed(curve->first, factor);
    curve->accesses = curve->warm + curve->first;
}

double mp_curve_misses(const mp_curve *curve, double capacity)
{
    if (!(capacity > 0))
        return curve->warm;
    const double at = capacity / (double)curve->width;
    double misses = curve->bins[curve->n_bins];
    if (at < curve->n_bins) {
        const uint32_t bin = (uint32_t)at;
        misses = sum_from(curve, bin + 1) + curve->bins[bin] * (1 - (at - bin));
    }
    return misses < curve->warm ? misses : curve->warm;
}
