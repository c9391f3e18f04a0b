/* calibration.h — how often a predictor's guesses of about a given p came true.
 *
 * Router probabilities, counts and conditionals are not chances of being routed, but they rank. So
 * guesses are sorted into bins of p, half an octave each, and each bin keeps the fraction of its
 * guesses that came true, older ones fading. Pure. */
#ifndef MP_PLANNING_CALIBRATION_H
#define MP_PLANNING_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#define MP_CALIBRATION_BINS 16u

typedef struct mp_calibration {
    float made[MP_CALIBRATION_BINS];
    float came_true[MP_CALIBRATION_BINS];
} mp_calibration;

/* Returns the chance that a guess of p comes true. A bin with few samples is pulled towards its
 * neighbours, and at first towards p itself. */
float mp_calibration_chance(const mp_calibration *calibration, float p);

void mp_calibration_learn(mp_calibration *calibration, float p, bool came_true);

#endif
