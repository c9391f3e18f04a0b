/* Median and median absolute deviation of a short window. */
#include "planning/rate.h"

#include <math.h>

static uint32_t held(const mp_rate *rate)
{
    return rate->count < MP_RATE_WINDOW ? (uint32_t)rate->count : MP_RATE_WINDOW;
}

/* Returns the median of n > 0 values, which it reorders; the mean of the middle two if
 * n is even. */
static double median(double *values, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        double value = values[i];
        uint32_t at = i;
        for (; at > 0 && values[at - 1] > value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
    return n % 2 ? values[n / 2] : values[n / 2 - 1] / 2 + values[n / 2] / 2;
}

void mp_rate_add(mp_rate *rate, double units, double ns)
{
    double sample = ns / units;
    if (!(units > 0) || !(sample > 0) || !isfinite(sample))
        return;
    rate->samples[rate->count++ % MP_RATE_WINDOW] = sample;
}

double mp_rate_ns(const mp_rate *rate, double fallback)
{
    double values[MP_RATE_WINDOW];
    uint32_t n = held(rate);
    if (n == 0)
        return fallback;
    for (uint32_t i = 0; i < n; i++)
        values[i] = rate->samples[i];
    return median(values, n);
}

double mp_rate_spread(const mp_rate *rate)
{
    double values[MP_RATE_WINDOW];
    uint32_t n = held(rate);
    if (n == 0)
        return 0;
    double middle = mp_rate_ns(rate, 0);
    for (uint32_t i = 0; i < n; i++)
        values[i] = fabs(rate->samples[i] - middle);
    return median(values, n);
}

uint64_t mp_rate_per_s(const mp_rate *rate)
{
    if (rate->count == 0)
        return 0;
    double per_s = 1e9 / mp_rate_ns(rate, 0);
    return per_s < 0x1p63 ? (uint64_t)llround(per_s) : UINT64_MAX;
}
