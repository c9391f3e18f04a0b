/* host_math.h — the scalar arithmetic that all instruction sets reproduce to the bit.
 *
 * No product here or in the vector code feeds an addition except through an explicit fused
 * multiply-add, so that a compiler which contracts expressions has nothing to contract. */
#ifndef MP_DEVICE_HOST_MATH_H
#define MP_DEVICE_HOST_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/floats.h"

/* ---- SwiGLU and its clamped form ---- */

/* e^x for x in [-128, 0] as p * 2^a * 2^b: two factors because the sum of their exponents leaves
 * the range of normal floats. The polynomial is the Taylor series to degree 7 on +-ln2/2, where
 * the first term left out is 5e-9. */
#define MP_EXP_MIN -128.0f
#define MP_EXP_LOG2E 0x1.715476p+0f
#define MP_EXP_ROUND 0x1.8p+23f /* added and subtracted: rounds to an integer, seen in the bits */
#define MP_EXP_LN2_HIGH 0x1.62e430p-1f
#define MP_EXP_LN2_LOW -0x1.05c610p-29f
#define MP_EXP_C7 0x1.a01a02p-13f
#define MP_EXP_C6 0x1.6c16c2p-10f
#define MP_EXP_C5 0x1.111112p-7f
#define MP_EXP_C4 0x1.555556p-5f
#define MP_EXP_C3 0x1.555556p-3f
#define MP_EXP_C2 0x1.000000p-1f

/* factor * sigmoid(z) with sigmoid(z) = 1 / (1 + e^-z). Uses e^-|z| <= 1, which cannot overflow:
 * z < 0 gives factor * e / (1 + e). Below -128 it is as at -128. */
static inline float mp_times_sigmoid(float factor, float z)
{
    float x = -fabsf(z);
    x = x < MP_EXP_MIN ? MP_EXP_MIN : x;
    float t = fmaf(x, MP_EXP_LOG2E, MP_EXP_ROUND);
    float n = t - MP_EXP_ROUND;
    float r = fmaf(n, -MP_EXP_LN2_HIGH, x);
    r = fmaf(n, -MP_EXP_LN2_LOW, r);
    float p = fmaf(MP_EXP_C7, r, MP_EXP_C6);
    p = fmaf(p, r, MP_EXP_C5);
    p = fmaf(p, r, MP_EXP_C4);
    p = fmaf(p, r, MP_EXP_C3);
    p = fmaf(p, r, MP_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t exponent = (int32_t)(mp_bits_of(t) - mp_bits_of(MP_EXP_ROUND));
    int32_t half = exponent >> 1;
    float scale_a = mp_float_of((uint32_t)(half + 127) << 23);
    float scale_b = mp_float_of((uint32_t)(exponent - half + 127) << 23);
    float pa = p * scale_a;
    float numerator = z < 0.0f ? factor * pa * scale_b : factor;
    return numerator / fmaf(pa, scale_b, 1.0f);
}

/* silu(g) * u with silu(g) = g * sigmoid(g). Below -128 silu is zero in FP32; so is its limit. */
static inline float mp_swiglu(float gate, float up)
{
    float bounded = gate < MP_EXP_MIN ? MP_EXP_MIN : gate;
    return mp_times_sigmoid(bounded, gate) * up;
}

/* g * sigmoid(alpha * g) * (u + 1) with g = min(gate, limit) and u = up within +-limit. The product in
 * the sigmoid is rounded, which moves a result of alpha * g < 0 by |alpha * g| * 2^-24 of itself: of g by
 * less than 2^-25. Below -128 the first product is zero in FP32, for MP_LEAST_ALPHA too; so is its limit. */
static inline float mp_swiglu_clamped(float gate, float up, float alpha, float limit)
{
    float g = gate > limit ? limit : gate;
    float u = up > limit ? limit : up;
    u = u < -limit ? -limit : u;
    float z = alpha * g;
    return mp_times_sigmoid(z < MP_EXP_MIN ? -0.0f : g, z) * (u + 1.0f);
}

#endif
