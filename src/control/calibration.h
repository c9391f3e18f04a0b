/* calibration.h — what a predictor's "p" is worth: how often guesses of about that p came true.
 *
 * Router probabilities, counts and conditionals are not chances of being routed; what they rank by
 * is. So guesses are sorted into bins of p, half an octave each, and each bin remembers how many of
 * its guesses came true, the older ones fading. Pure. */
#ifndef MP_CONTROL_CALIBRATION_H
#define MP_CONTROL_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#define MP_CALIBRATION_BINS 16u

typedef struct mp_calibration {
    float made[MP_CALIBRATION_BINS];
    float came_true[MP_CALIBRATION_BINS];
} mp_calibration;

/* The chance that a guess of p comes true. A bin that has seen little leans to the bins above and
 * below it, and at first to p itself. */
float mp_calibration_chance(const mp_calibration *calibration, float p);

void mp_calibration_learn(mp_calibration *calibration, float p, bool came_true);

#endif
