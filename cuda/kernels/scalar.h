/* scalar.h — numbers in kernels: loads and stores of F32, F16 and BF16, and arithmetic that gives
 * the same bits on a GPU and on the CPU.
 *
 * A compiler for GPUs may fuse a product and a sum, and has its own expf. Sums and products that
 * could be fused are therefore written with the functions below, each of which rounds exactly once,
 * and e^x is a polynomial in them. */
#ifndef MP_KERNELS_SCALAR_H
#define MP_KERNELS_SCALAR_H

#include "phase.h"

/* Values of MOEPAGE_DTYPE_*. */
enum { MP_SCALAR_NONE = 0, MP_SCALAR_F32 = 1, MP_SCALAR_F16 = 2, MP_SCALAR_BF16 = 3 };

/* Registers have no addresses: loops over arrays of them are unrolled. */
#if MP_ON_GPU
#define MP_SCALAR_UNROLL _Pragma("unroll")
#define MP_SCALAR_LOOP _Pragma("unroll 1")
#else
#define MP_SCALAR_UNROLL
#define MP_SCALAR_LOOP
#endif

/* 16 bytes that are moved at once. */
#if MP_ON_GPU
typedef uint4 mp_scalar_vector;
#else
typedef struct mp_scalar_vector {
    uint32_t x, y, z, w;
} __attribute__((aligned(16))) mp_scalar_vector;
#endif

/* ---- Exact steps ---- */

MP_GPU uint32_t mp_scalar_bits(float value)
{
#if MP_ON_GPU
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

MP_GPU float mp_scalar_of_bits(uint32_t bits)
{
#if MP_ON_GPU
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

MP_GPU float mp_scalar_add(float a, float b)
{
#if MP_ON_GPU
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

MP_GPU float mp_scalar_mul(float a, float b)
{
#if MP_ON_GPU
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

MP_GPU float mp_scalar_div(float a, float b)
{
#if MP_ON_GPU
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

MP_GPU float mp_scalar_fma(float a, float b, float c)
{
#if MP_ON_GPU
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* ---- Narrow types ---- */

MP_GPU float mp_scalar_from_bf16(uint16_t bits)
{
    return mp_scalar_of_bits((uint32_t)bits << 16);
}

MP_GPU float mp_scalar_from_f16(uint16_t bits)
{
#if MP_ON_GPU
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity, NaN */
        return mp_scalar_of_bits(sign | 0x7f800000u | magnitude << 13);
    /* Read as a float's exponent and mantissa, a half is 2^112 times too small. */
    return mp_scalar_of_bits(sign | mp_scalar_bits(mp_scalar_of_bits(magnitude << 13) * 0x1p112f));
#endif
}

/* To nearest even. A NaN stays one, of whatever payload. */
MP_GPU uint16_t mp_scalar_to_bf16(float value)
{
#if MP_ON_GPU
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t bits = mp_scalar_bits(value);
    if (value != value)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

MP_GPU uint16_t mp_scalar_to_f16(float value)
{
#if MP_ON_GPU
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t bits = mp_scalar_bits(value), sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (value != value)
        return 0x7fff;
    if (magnitude >= 0x477ff000u) /* 65520 and above round past the largest half */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* 1/2's last place is that of the denormal halves */
        return (uint16_t)(sign |
                          (mp_scalar_bits(mp_scalar_of_bits(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
#endif
}

/* Element i of an array of F32, F16 or BF16. */
MP_GPU float mp_scalar_load(uint32_t dtype, const void *array, uint64_t i)
{
    if (dtype == MP_SCALAR_F32)
        return ((const float *)array)[i];
    const uint16_t bits = ((const uint16_t *)array)[i];
    return dtype == MP_SCALAR_F16 ? mp_scalar_from_f16(bits) : mp_scalar_from_bf16(bits);
}

MP_GPU void mp_scalar_store(uint32_t dtype, void *array, uint64_t i, float value)
{
    if (dtype == MP_SCALAR_F32)
        ((float *)array)[i] = value;
    else if (dtype == MP_SCALAR_F16)
        ((uint16_t *)array)[i] = mp_scalar_to_f16(value);
    else
        ((uint16_t *)array)[i] = mp_scalar_to_bf16(value);
}

/* Four floats at once, to a multiple of 16. */
MP_GPU void mp_scalar_store4(float *to, const float *four)
{
#if MP_ON_GPU
    *(float4 *)(void *)to = make_float4(four[0], four[1], four[2], four[3]);
#else
    __builtin_memcpy(to, four, 4 * sizeof *to);
#endif
}

/* ---- e^x ---- */

/* e^x = e^(x - n ln 2) 2^n for x <= 0, n being the integer nearest to x / ln 2: ln 2 in two parts, the series
 * to degree 7, and 2^n as two factors, for it need not be a normal float. Returns all but the second of them;
 * below -128 x is as at -128. */
MP_GPU float mp_scalar_exp_part(float x, float *factor)
{
    const float round = 0x1.8p+23f;
    const float bounded = x < -128.0f ? -128.0f : x;
    const float t = mp_scalar_fma(bounded, 0x1.715476p+0f, round);
    const float n = mp_scalar_add(t, -round);
    float r = mp_scalar_fma(n, -0x1.62e430p-1f, bounded);
    r = mp_scalar_fma(n, 0x1.05c610p-29f, r);
    float p = mp_scalar_fma(0x1.a01a02p-13f, r, 0x1.6c16c2p-10f);
    p = mp_scalar_fma(p, r, 0x1.111112p-7f);
    p = mp_scalar_fma(p, r, 0x1.555556p-5f);
    p = mp_scalar_fma(p, r, 0x1.555556p-3f);
    p = mp_scalar_fma(p, r, 0.5f);
    p = mp_scalar_fma(p, r, 1.0f);
    p = mp_scalar_fma(p, r, 1.0f);
    const int32_t exponent = (int32_t)(mp_scalar_bits(t) - mp_scalar_bits(round));
    const int32_t half = exponent >> 1;
    *factor = mp_scalar_of_bits((uint32_t)(exponent - half + 127) << 23);
    return mp_scalar_mul(p, mp_scalar_of_bits((uint32_t)(half + 127) << 23));
}

/* e^x for x <= 0, within 2 units in the last place while it is a normal number, then within 2 of
 * the smallest denormals; 0 below -104. NaN for NaN; nothing is promised for x > 0. */
MP_GPU float mp_scalar_exp(float x)
{
    float factor;
    const float part = mp_scalar_exp_part(x, &factor);
    return x != x ? x : mp_scalar_mul(part, factor);
}

/* y / (1 + e^-z), by e^-|z|, which cannot overflow. */
MP_GPU float mp_scalar_times_sigmoid(float y, float z)
{
    float factor;
    const float part = mp_scalar_exp_part(z < 0 ? z : -z, &factor);
    const float over = z < 0 ? mp_scalar_mul(mp_scalar_mul(y, part), factor) : y;
    return mp_scalar_div(over, mp_scalar_fma(part, factor, 1.0f));
}

/* 1 / (1 + e^-x). */
MP_GPU float mp_scalar_sigmoid(float x)
{
    const float e = mp_scalar_exp(x > 0 ? -x : x);
    return mp_scalar_div(x > 0 ? 1.0f : e, mp_scalar_add(1.0f, e));
}

#endif
