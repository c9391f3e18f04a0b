/* The numbers of one byte and less that checkpoints hold, as floats.
 *
 * Numbers of a byte are built from bits, not by arithmetic on denormals: right also in threads that
 * flush those. MXFP4 multiplies by its scales, in double, where nothing of it is denormal. */
#include <string.h>

#include "base/floats.h"
#include "codec/quant.h"

/* The number with `digits` mantissa bits below its exponent bits, whose least normal value is
 * 2^least. A float's is 2^-126, with 23 digits. */
static float from_magnitude(uint32_t sign, uint32_t magnitude, uint32_t digits, int32_t least)
{
    if (magnitude >> digits == 0) { /* denormal: a whole number of 2^(least - digits) */
        float unit = mp_float_of((uint32_t)(127 + least - (int32_t)digits) << 23);
        return mp_float_of(sign | mp_bits_of((float)magnitude * unit));
    }
    const uint32_t bias = (uint32_t)(126 + least) << 23;
    return mp_float_of(sign | (bias + (magnitude << (23 - digits))));
}

float mp_f8_e4m3_value(uint8_t bits)
{
    const uint32_t sign = (bits & 0x80u) << 24;
    if ((bits & 0x7fu) == 0x7fu)
        return mp_float_of(sign | 0x7fc00000u);
    return from_magnitude(sign, bits & 0x7fu, 3, -6);
}

float mp_f8_e5m2_value(uint8_t bits)
{
    const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude > 0x7cu)
        return mp_float_of(sign | 0x7fc00000u);
    if (magnitude == 0x7cu)
        return mp_float_of(sign | 0x7f800000u);
    return from_magnitude(sign, magnitude, 2, -14);
}

float mp_f8_e8m0_value(uint8_t bits)
{
    if (bits == 0xff)
        return mp_float_of(0x7fc00000u);
    return mp_float_of(bits ? (uint32_t)bits << 23 : 0x00400000u);
}

#define MX_GROUP 32

/* 2^(bits - 127): normal as a double, whatever it is as a float. */
static double scale_of(uint8_t bits)
{
    const uint64_t exponent = bits == 0xff ? 0x7ff : 1023 - 127 + bits;
    const uint64_t pattern = exponent << 52 | (uint64_t)(bits == 0xff) << 51;
    double scale;
    memcpy(&scale, &pattern, sizeof scale);
    return scale;
}

/* The float that is exactly x, infinity past all of them. What is denormal as a float would be
 * flushed in its conversion, so it is made of its bits: a number of 2^-149. */
static float float_from(double x)
{
    const double magnitude = x < 0 ? -x : x;
    if (magnitude == 0 || !(magnitude < 0x1p-126))
        return (float)x;
    return mp_float_of((x < 0 ? 0x80000000u : 0) | (uint32_t)(magnitude * 0x1p149));
}

void mp_mxfp4_decode(const uint8_t *blocks, const uint8_t *scales, uint64_t n, float *out)
{
    static const double values[16] = {0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                      -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    for (uint64_t g = 0; g < n / MX_GROUP; g++) {
        const double scale = scale_of(scales[g]);
        for (uint32_t i = 0; i < MX_GROUP / 2; i++, blocks++, out += 2) {
            out[0] = float_from(values[*blocks & 15] * scale);
            out[1] = float_from(values[*blocks >> 4] * scale);
        }
    }
}
