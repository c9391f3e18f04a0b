/* Quantile tables and a counter-based generator. */
#include "pack/random_weights.h"

#include <math.h>
#include <string.h>

#define QUANTILES 65536

/* ---- Distributions ----------------------------------------------------------------------- */

/* Returns the x below which a standard normal variable falls with probability p < 1/2, by Newton's
 * method from a guess; the cumulative distribution is convex there, so that it converges from
 * anywhere. */
static double normal_quantile(double p, double guess)
{
    double x = guess, step = 1;
    for (int i = 0; i < 64 && fabs(step) > 1e-10; i++) {
        double density = exp(-x * x / 2) / sqrt(2 * M_PI);
        step = (erfc(-x / M_SQRT2) / 2 - p) / density;
        x -= step;
    }
    return x;
}

/* Returns the quantile of Student's t with 4 degrees of freedom, scaled to a standard deviation of
 * 1. The distribution has a closed inverse (W. T. Shaw, J. Comput. Finance 9(4), 2006). */
static double t4_quantile(double p)
{
    double root = sqrt(4 * p * (1 - p));
    double q = cos(acos(root) / 3) / root;
    return -2 * sqrt(q - 1) / M_SQRT2;
}

static uint16_t bf16_of(double value)
{
    float narrowed = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrowed, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void random_weights_init(random_weights *out, weight_shape shape, double sigma)
{
    double x = -4.5;
    for (uint32_t i = 0; i < QUANTILES / 2; i++) {
        double p = (i + 0.5) / QUANTILES;
        x = shape == WEIGHTS_HEAVY ? t4_quantile(p) : normal_quantile(p, x);
        out->quantile[i] = bf16_of(x * sigma);
        out->quantile[QUANTILES - 1 - i] = bf16_of(-x * sigma);
    }
}

/* ---- The generator ----------------------------------------------------------------------- */

/* Mixes a counter with the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014):
 * neighbouring counters give unrelated numbers. */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#define ODD_STEP 0x9e3779b97f4a7c15u

uint64_t random_key(uint64_t seed, uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t key = scramble(seed + ODD_STEP);
    key = scramble(key ^ a) + ODD_STEP;
    key = scramble(key ^ b) + ODD_STEP;
    return scramble(key ^ c);
}

/* Makes four weights from one number, 16 bits for each. */
static void make_group(const random_weights *weights, uint64_t key, uint64_t group, void *out)
{
    uint64_t bits = scramble(key + group * ODD_STEP);
    const uint16_t made[4] = {
        weights->quantile[bits & 0xffff],
        weights->quantile[bits >> 16 & 0xffff],
        weights->quantile[bits >> 32 & 0xffff],
        weights->quantile[bits >> 48],
    };
    memcpy(out, made, sizeof made);
}

void random_weights_fill(const random_weights *weights, uint64_t key, uint64_t offset,
                         uint64_t bytes, void *out)
{
    enum { GROUP_BYTES = 8 };
    unsigned char *to = out;
    while (bytes) {
        uint64_t within = offset % GROUP_BYTES;
        if (within == 0 && bytes >= GROUP_BYTES) {
            uint64_t groups = bytes / GROUP_BYTES, first = offset / GROUP_BYTES;
            for (uint64_t g = 0; g < groups; g++)
                make_group(weights, key, first + g, to + g * GROUP_BYTES);
            to += groups * GROUP_BYTES;
            offset += groups * GROUP_BYTES;
            bytes -= groups * GROUP_BYTES;
        } else { /* a range that begins or ends inside a group */
            unsigned char whole[GROUP_BYTES];
            uint64_t n = GROUP_BYTES - within < bytes ? GROUP_BYTES - within : bytes;
            make_group(weights, key, offset / GROUP_BYTES, whole);
            memcpy(to, whole + within, n);
            to += n;
            offset += n;
            bytes -= n;
        }
    }
}
