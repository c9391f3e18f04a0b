/* Instructions on floats: IEEE 754 binary32, with subnormal numbers, rounded to nearest even. Every NaN that
 * arithmetic gives is 0x7fffffff, as the PTX ISA says of single precision; moves and negations keep a
 * NaN's bits. Products and sums are fused where the instruction is fma, and nowhere else. */
#include <math.h>

#include "base/floats.h"
#include "ptx_lanes.h"

#define U uint32_t

static inline U result(float value)
{
    return value != value ? 0x7fffffffu : mp_bits_of(value);
}

PTX_MAP2(add, U, float, float, result(a + b))
PTX_MAP2(sub, U, float, float, result(a - b))
PTX_MAP2(mul, U, float, float, result(a *b))
PTX_MAP2(div_rn, U, float, float, result(a / b))
PTX_MAP3(fma_rn, U, float, float, float, result(fmaf(a, b, c)))
PTX_MAP1(neg, U, U, a ^ 0x80000000u)
PTX_MAP1(abs_f, U, U, a & 0x7fffffffu)
/* The other operand where one is a NaN; -0 is less than +0. */
static inline float lesser(float a, float b)
{
    if (a != a || b != b)
        return a != a ? b : a;
    return a == b ? mp_float_of(mp_bits_of(a) | mp_bits_of(b)) : a < b ? a : b;
}
static inline float greater(float a, float b)
{
    if (a != a || b != b)
        return a != a ? b : a;
    return a == b ? mp_float_of(mp_bits_of(a) & mp_bits_of(b)) : a > b ? a : b;
}
PTX_MAP2(min_f, U, float, float, result(lesser(a, b)))
PTX_MAP2(max_f, U, float, float, result(greater(a, b)))

/* ---- Conversions ---- */

/* To zero, as far as the type goes; a NaN is 0. */
static U to_u32_rz(float a)
{
    return !(a > 0) ? 0 : a >= 4294967296.0f ? ~0u : (U)a;
}
static int32_t to_s32_rz(float a)
{
    return a != a               ? 0
           : a >= 2147483648.0f ? INT32_MAX
           : a < -2147483648.0f ? INT32_MIN
                                : (int32_t)a;
}
PTX_MAP1(u32_rz_f32, U, float, to_u32_rz(a))
PTX_MAP1(s32_rz_f32, int32_t, float, to_s32_rz(a))
PTX_MAP1(f32_u32, float, U, (float)a)
PTX_MAP1(f32_s32, float, int32_t, (float)a)

/* A binary16 with its sign, from 5 bits of exponent and 10 of fraction. */
static U f32_of_half(U h)
{
    const U exponent = h >> 10 & 31, fraction = h & 0x3ff;
    const float magnitude = exponent ? ldexpf((float)(fraction | 0x400), (int)exponent - 25)
                                     : ldexpf((float)fraction, -24);
    if (exponent == 31)
        return fraction ? 0x7fffffffu : (h & 0x8000) << 16 | 0x7f800000u;
    return mp_bits_of(magnitude) | (h & 0x8000) << 16;
}

/* To nearest even, from the definition: the multiple of the last place's value that is nearest. */
static U half_of_f32(float a)
{
    const U sign = mp_bits_of(a) >> 16 & 0x8000;
    const float magnitude = fabsf(a);
    if (a != a)
        return 0x7fff;
    if (magnitude >= 65520.0f)
        return sign | 0x7c00;
    int exponent = magnitude < 0x1p-14f ? -14 : ilogbf(magnitude);
    const U units = (U)nearbyintf(ldexpf(magnitude, 10 - exponent)); /* 1024 .. 2048, or less */
    return sign | (((U)(exponent + 14) << 10) + units);
}

static U bf16_of_f32(float a)
{
    const U bits = mp_bits_of(a), lower = bits & 0xffff;
    if (a != a)
        return 0x7fff;
    return (bits >> 16) + (lower > 0x8000 || (lower == 0x8000 && bits >> 16 & 1));
}

/* E4M3: 4 bits of exponent, bias 7, no infinity; 0x7f and 0xff are NaN. */
static U half_of_e4m3(U e)
{
    const U exponent = e >> 3 & 15, fraction = e & 7;
    const float magnitude =
        exponent ? ldexpf((float)(fraction | 8), (int)exponent - 10) : ldexpf((float)fraction, -9);
    if ((e & 0x7f) == 0x7f)
        return 0x7fff;
    return (e & 0x80) << 8 | half_of_f32(magnitude);
}

PTX_MAP1(f32_f16, U, U, f32_of_half(a))
PTX_MAP1(f16_f32, U, float, half_of_f32(a))
PTX_MAP1(bf16_f32, U, float, bf16_of_f32(a))
/* The first operand is the upper half. */
PTX_MAP2(f16x2_f32, U, float, float, half_of_f32(a) << 16 | half_of_f32(b))
PTX_MAP2(bf16x2_f32, U, float, float, bf16_of_f32(a) << 16 | bf16_of_f32(b))
PTX_MAP1(f16x2_e4m3x2, U, U, half_of_e4m3(a & 0xff) | half_of_e4m3(a >> 8 & 0xff) << 16)

const ptx_opcode ptx_ops_float[] = {
    {"add.f32", "w=ww", add, PTX_PLAIN},
    {"add.rn.f32", "w=ww", add, PTX_PLAIN},
    {"sub.f32", "w=ww", sub, PTX_PLAIN},
    {"sub.rn.f32", "w=ww", sub, PTX_PLAIN},
    {"mul.f32", "w=ww", mul, PTX_PLAIN},
    {"mul.rn.f32", "w=ww", mul, PTX_PLAIN},
    {"fma.rn.f32", "w=www", fma_rn, PTX_PLAIN},
    {"div.rn.f32", "w=ww", div_rn, PTX_PLAIN},
    {"neg.f32", "w=w", neg, PTX_PLAIN},
    {"abs.f32", "w=w", abs_f, PTX_PLAIN},
    {"min.f32", "w=ww", min_f, PTX_PLAIN},
    {"max.f32", "w=ww", max_f, PTX_PLAIN},
    {"cvt.rzi.u32.f32", "w=w", u32_rz_f32, PTX_PLAIN},
    {"cvt.rzi.s32.f32", "w=w", s32_rz_f32, PTX_PLAIN},
    {"cvt.rn.f32.u32", "w=w", f32_u32, PTX_PLAIN},
    {"cvt.rn.f32.s32", "w=w", f32_s32, PTX_PLAIN},
    {"cvt.f32.f16", "w=h", f32_f16, PTX_PLAIN},
    {"cvt.rn.f16.f32", "h=w", f16_f32, PTX_PLAIN},
    {"cvt.rn.bf16.f32", "h=w", bf16_f32, PTX_PLAIN},
    {"cvt.rn.f16x2.f32", "w=ww", f16x2_f32, PTX_PLAIN},
    {"cvt.rn.bf16x2.f32", "w=ww", bf16x2_f32, PTX_PLAIN},
    {"cvt.rn.f16x2.e4m3x2", "w=h", f16x2_e4m3x2, PTX_PLAIN},
    {0},
};
