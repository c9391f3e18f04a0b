/* Bins of guesses by p. */
#include "planning/calibration.h"

#include <math.h>

/* Number of guesses that a bin remembers, and that p itself weighs as much as. */
#define MEMORY 1024.0f
#define PRIOR 8.0f

static uint32_t bin_of(float p)
{
    if (!(p > 0))
        return MP_CALIBRATION_BINS - 1;
    float octaves = -2 * log2f(p < 1 ? p : 1);
    return octaves < MP_CALIBRATION_BINS - 1 ? (uint32_t)octaves : MP_CALIBRATION_BINS - 1;
}

float mp_calibration_chance(const mp_calibration *calibration, float p)
{
    uint32_t bin = bin_of(p);
    float made = PRIOR, came_true = PRIOR * fminf(fmaxf(p, 0), 1);
    for (uint32_t b = bin > 0 ? bin - 1 : 0; b <= bin + 1 && b < MP_CALIBRATION_BINS; b++) {
        float weight = b == bin ? 1.0f : 0.125f;
        made += weight * calibration->made[b];
        came_true += weight * calibration->came_true[b];
    }
    return came_true / made;
}

void mp_calibration_learn(mp_calibration *calibration, float p, bool came_true)
{
    uint32_t bin = bin_of(p);
    calibration->made[bin] += 1;
    calibration->came_true[bin] += came_true;
    if (calibration->made[bin] > MEMORY) {
        calibration->made[bin] /= 2;
        calibration->came_true[bin] /= 2;
    }
}
