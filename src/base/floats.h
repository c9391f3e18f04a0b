/* floats.h — BF16 and IEEE half to FP32 and back, with identical bits on every machine.
 *
 * Expects threads that keep denormals and round to nearest, which is how threads start. */
#ifndef MP_BASE_FLOATS_H
#define MP_BASE_FLOATS_H

#include <stdint.h>
#include <string.h>

static inline float mp_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t mp_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float mp_from_bf16(uint16_t value)
{
    return mp_float_of((uint32_t)value << 16);
}

/* Rounds to nearest even; keeps denormals; makes NaNs quiet and keeps their sign
 * and upper payload. */
static inline uint16_t mp_to_bf16(float value)
{
    uint32_t bits = mp_bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float mp_from_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t magnitude = value & 0x7fffu;
    if (magnitude > 0x7c00u)
        return mp_float_of(sign | 0x7fc00000u | magnitude << 13);
    if (magnitude == 0x7c00u)
        return mp_float_of(sign | 0x7f800000u);
    /* Read as a float, the half's exponent and mantissa give a value 2^112 times too small,
     * denormals included. */
    return mp_float_of(sign | mp_bits_of(mp_float_of(magnitude << 13) * 0x1p112f));
}

static inline uint16_t mp_to_f16(float value)
{
    uint32_t bits = mp_bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round past the largest half */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* adding 1/2 rounds at the denormal halves' last place */
        return (uint16_t)(sign | (mp_bits_of(mp_float_of(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

/* Returns the index of the first infinite or NaN value of n, or n if all are finite. Branch-free
 * over the common case: this runs over whole batches. */
static inline uint64_t mp_first_not_finite(const float *values, uint64_t n)
{
    uint32_t bad = 0;
    for (uint64_t i = 0; i < n; i++)
        bad |= (mp_bits_of(values[i]) & 0x7f800000u) == 0x7f800000u;
    if (!bad)
        return n;
    uint64_t i = 0;
    while ((mp_bits_of(values[i]) & 0x7f800000u) != 0x7f800000u)
        i++;
    return i;
}

#endif
