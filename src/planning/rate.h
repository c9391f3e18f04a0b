/* rate.h — costs measured while serving: robust estimates of a time per unit.
 *
 * A window of the last samples; the estimate is the median of their ns per unit, so that a stall, a
 * page fault or a descheduled thread does not move it. `spread` is the median absolute deviation
 * around it. Old samples leave as new ones come; after a real shift the estimate has followed when
 * half of the window is new.
 *
 * Pure: numbers in, numbers out. */
#ifndef MP_PLANNING_RATE_H
#define MP_PLANNING_RATE_H

#include <stdint.h>

#define MP_RATE_WINDOW 31u

typedef struct mp_rate {
    double samples[MP_RATE_WINDOW]; /* ns per unit */
    uint64_t count;                 /* total number of samples */
} mp_rate;

/* Adds a sample: `units` > 0 (bytes, tokens, layers) took `ns`. Empty samples are ignored: those
 * without units, and those shorter than the clock's resolution. */
void mp_rate_add(mp_rate *rate, double units, double ns);
/* Returns ns per unit; `fallback` before the first sample. */
double mp_rate_ns(const mp_rate *rate, double fallback);
/* Median absolute deviation, ns per unit; 0 before the first sample. */
double mp_rate_spread(const mp_rate *rate);
/* Units per second, rounded; 0 before the first sample. */
uint64_t mp_rate_per_s(const mp_rate *rate);

#endif
