/* FP8 numbers as floats, built from bits and not by arithmetic on denormals: right also in threads
 * that flush those. */
#include "base/floats.h"
#include "codec/quant.h"

#define LEAST (-6) /* the least normal number is 2^LEAST; a float's is 2^-126 */
#define DIGITS 3   /* of the mantissa; a float's are 23 */

float mp_f8_e4m3_value(uint8_t bits)
{
    const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude == 0x7fu)
        return mp_float_of(sign | 0x7fc00000u);
    if (magnitude >> DIGITS == 0) { /* denormal: a whole number of 2^(LEAST - DIGITS) */
        float unit = mp_float_of((uint32_t)(127 + LEAST - DIGITS) << 23);
        return mp_float_of(sign | mp_bits_of((float)magnitude * unit));
    }
    const uint32_t bias = (uint32_t)(126 + LEAST) << 23;
    return mp_float_of(sign | (bias + (magnitude << (23 - DIGITS))));
}
