/* experts_operands.h — eight weights of a row at a time: from memory, as floats, as BF16 operands.
 *
 * Weights are fetched raw, so that many loads are in flight before the first result is needed, and
 * converted when they are used. Constants of a kernel (dtype, alignment) are parameters whose
 * values the compiler sees. */
#ifndef MP_KERNELS_EXPERTS_OPERANDS_H
#define MP_KERNELS_EXPERTS_OPERANDS_H

#include "experts_blocks.h"
#include "scalar.h"

/* Eight weights as stored: 2 words of F8 with its scale, 4 of BF16 and F16, 8 of F32; coded ones. Weights
 * that are not aligned are floats already. */
typedef struct mp_experts_raw {
    uint32_t w[8];
    float scale;
    mp_coded_raw coded;
} mp_experts_raw;

/* A row of a weight matrix, and the row of scales that applies to it: of FP8 and integers. */
typedef struct mp_experts_row {
    const char *weights;
    const char *scales; /* NULL: none */
} mp_experts_row;

#if MP_ON_GPU

/* Words from memory if `wanted`, else zeros; without a branch, so that a warp stays together.
 * STREAM: read once by the whole device, so they bypass the first-level cache; and not marked as constant,
 * so that the assembler leaves them in front of what comes behind a meeting of the lanes. */
#define MP_EXPERTS_STREAM "ld.global.L1::no_allocate.L2::128B"
#define MP_EXPERTS_LOAD "ld.global.nc"
#define MP_EXPERTS_WORDS4(load, wanted, at, w)                          \
    asm("{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"                       \
        "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n" \
        "@p " load ".v4.u32 {%0, %1, %2, %3}, [%4]; }"                  \
        : "=&r"((w)[0]), "=&r"((w)[1]), "=&r"((w)[2]), "=&r"((w)[3])    \
        : "l"(at), "r"(wanted))

MP_GPU void mp_experts_stream16(uint32_t wanted, const char *at, uint32_t *w)
{
    MP_EXPERTS_WORDS4(MP_EXPERTS_STREAM, wanted, at, w);
}

MP_GPU void mp_experts_stream8(uint32_t wanted, const char *at, uint32_t *w)
{
    asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0;\n"
        "@p " MP_EXPERTS_STREAM ".v2.u32 {%0, %1}, [%2]; }"
        : "=&r"(w[0]), "=&r"(w[1])
        : "l"(at), "r"(wanted));
}

/* Read by many warps. */
MP_GPU void mp_experts_load16(uint32_t wanted, const char *at, uint32_t *w)
{
    MP_EXPERTS_WORDS4(MP_EXPERTS_LOAD, wanted, at, w);
}

/* Two floats, rounded to nearest even, the first in the lower half. */
MP_GPU uint32_t mp_experts_pack(float first, float second)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

#else

static inline void mp_experts_words(uint32_t wanted, const char *at, uint32_t *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = 0;
    if (wanted)
        __builtin_memcpy(w, at, n * 4);
}

static inline void mp_experts_stream16(uint32_t wanted, const char *at, uint32_t *w)
{
    mp_experts_words(wanted, at, w, 4);
}

static inline void mp_experts_stream8(uint32_t wanted, const char *at, uint32_t *w)
{
    mp_experts_words(wanted, at, w, 2);
}

static inline void mp_experts_load16(uint32_t wanted, const char *at, uint32_t *w)
{
    mp_experts_words(wanted, at, w, 4);
}

static inline uint32_t mp_experts_pack(float first, float second)
{
    return mp_scalar_to_bf16(first) | (uint32_t)mp_scalar_to_bf16(second) << 16;
}

#endif

/* E4M3 "fn", exactly: no infinities, all ones but the sign is NaN. Read as a float's exponent and
 * mantissa its magnitude is 2^120 times too small. */
MP_GPU float mp_experts_from_f8(uint32_t bits)
{
    const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    const float value = mp_scalar_mul(mp_scalar_of_bits(magnitude << 20), 0x1p120f);
    return mp_scalar_of_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : mp_scalar_bits(value)));
}

/* The two in the low half of a word. */
MP_GPU void mp_experts_from_f8_pair(uint32_t bits, float *out)
{
#if MP_ON_GPU && __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)bits));
    out[0] = mp_scalar_from_f16((uint16_t)halves);
    out[1] = mp_scalar_from_f16((uint16_t)(halves >> 16));
#else
    out[0] = mp_experts_from_f8(bits & 0xffu);
    out[1] = mp_experts_from_f8(bits >> 8 & 0xffu);
#endif
}

MP_GPU uint32_t mp_experts_is_coded(const uint32_t dtype)
{
    return dtype >= MP_CODED_INT8;
}

/* Of a weight that is not coded. */
MP_GPU uint32_t mp_experts_bytes(const uint32_t dtype)
{
    return dtype == MP_SCALAR_F32 ? 4 : dtype == MP_EXPERTS_F8 ? 1 : 2;
}

MP_GPU uint64_t mp_experts_row_bytes(const uint32_t dtype, const mp_gpu_experts_args *args,
                                     uint32_t length)
{
    return mp_experts_is_coded(dtype) ? mp_coded_row_bytes(dtype, args, length)
                                      : (uint64_t)length * mp_experts_bytes(dtype);
}

MP_GPU float mp_experts_scale(const mp_gpu_experts_args *args, const mp_experts_row *row,
                              uint32_t k)
{
    return row->scales ? mp_scalar_load(args->scale_dtype, row->scales, k / args->scale_columns)
                       : 1.0f;
}

/* One weight of any alignment. */
MP_GPU float mp_experts_weight(const uint32_t dtype, const mp_gpu_experts_args *args,
                               const mp_experts_row *row, uint32_t k)
{
    if (dtype != MP_EXPERTS_F8)
        return mp_scalar_load(dtype, row->weights, k);
    /* For each dtype that a scale may have, compilers make a copy of the loop around this: two. */
    const uint32_t scale_dtype =
        args->scale_dtype == MP_SCALAR_F32 ? MP_SCALAR_F32 : MP_SCALAR_BF16;
    const float scale =
        row->scales ? mp_scalar_load(scale_dtype, row->scales, k / args->scale_columns) : 1.0f;
    return mp_scalar_mul(mp_experts_from_f8(((const uint8_t *)row->weights)[k]), scale);
}

/* Weights [k, k + 8) of a row; zeros from `limit` on. Aligned: row and k allow 16 bytes at a time,
 * limit is a multiple of 8, and so are the columns of a scale's block. */
MP_GPU void mp_experts_fetch(const uint32_t dtype, const uint32_t aligned,
                             const mp_gpu_experts_args *args, const mp_experts_row *row, uint32_t k,
                             uint32_t limit, mp_experts_raw *raw)
{
    const uint32_t wanted = k < limit;
    if (mp_experts_is_coded(dtype)) {
        mp_coded_fetch(dtype, args, wanted, row->weights, row->scales, k, &raw->coded);
        return;
    }
    const char *at = row->weights + (uint64_t)k * mp_experts_bytes(dtype);
    raw->scale = 1.0f;
    if (!aligned) {
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            raw->w[i] =
                k + i < limit ? mp_scalar_bits(mp_experts_weight(dtype, args, row, k + i)) : 0;
    } else if (dtype == MP_EXPERTS_F8) {
        mp_experts_stream8(wanted, at, raw->w);
        if (wanted)
            raw->scale = mp_experts_scale(args, row, k);
    } else {
        mp_experts_stream16(wanted, at, raw->w);
        if (dtype == MP_SCALAR_F32)
            mp_experts_stream16(wanted, at + 16, raw->w + 4);
    }
}

/* The eight as floats; FP8 times its scale, rounded once. */
MP_GPU void mp_experts_floats(const uint32_t dtype, const uint32_t aligned,
                              const mp_experts_raw *raw, float *out)
{
    if (mp_experts_is_coded(dtype)) {
        mp_coded_floats(dtype, &raw->coded, out);
        return;
    }
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        if (!aligned || dtype == MP_SCALAR_F32) {
            out[i] = mp_scalar_of_bits(raw->w[i]);
        } else if (dtype == MP_EXPERTS_F8) {
            if (i % 2 == 0)
                mp_experts_from_f8_pair(raw->w[i / 4] >> i % 4 * 8, out + i);
        } else {
            const uint16_t bits = (uint16_t)(raw->w[i / 2] >> i % 2 * 16);
            out[i] = dtype == MP_SCALAR_F16 ? mp_scalar_from_f16(bits) : mp_scalar_from_bf16(bits);
        }
    }
    if (aligned && dtype == MP_EXPERTS_F8) {
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            out[i] = mp_scalar_mul(out[i], raw->scale);
    }
}

/* The eight as BF16, two to a word. */
MP_GPU void mp_experts_operand(const uint32_t dtype, const uint32_t aligned,
                               const mp_experts_raw *raw, uint32_t *out)
{
    float wide[8];
    if (!aligned || dtype != MP_SCALAR_BF16)
        mp_experts_floats(dtype, aligned, raw, wide);
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = aligned && dtype == MP_SCALAR_BF16 ? raw->w[i]
                                                    : mp_experts_pack(wide[2 * i], wide[2 * i + 1]);
    }
}

/* Activations [k, k + 8), BF16, of a row whose element k is at `at`; zeros from `limit` on. */
MP_GPU void mp_experts_activations(const uint32_t aligned, const char *at, uint32_t k,
                                   uint32_t limit, uint32_t *out)
{
    if (aligned) {
        mp_experts_load16(k < limit, at, out);
        return;
    }
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t value =
            k + i < limit ? ((const uint16_t *)(const void *)at)[i] : (uint16_t)0;
        out[i / 2] = i % 2 ? out[i / 2] | value << 16 : value;
    }
}

#endif
