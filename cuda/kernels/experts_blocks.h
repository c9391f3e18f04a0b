/* experts_blocks.h — eight consecutive weights of a row of blocks, or of integers: from memory, and as floats.
 *
 * docs/format-blocks.md has the layouts, src/codec/blocks.h what values are exactly; integers are those of
 * src/codec/quant.h. Whatever the format, its eight weights become bytes of their own, q, and a weight is
 * scale * (q - offset) or, with a minimum, scale * q - minimum.
 *
 * A fetch reads whole words around bytes that start anywhere, only words that hold one of these bytes, and
 * keeps them as they are, so that loads are in flight together; mp_coded_floats takes them apart. */
#ifndef MP_KERNELS_EXPERTS_BLOCKS_H
#define MP_KERNELS_EXPERTS_BLOCKS_H

#include "experts_args.h"
#include "scalar.h"

/* What a fetch keeps. */
typedef struct mp_coded_raw {
    uint32_t q[6]; /* low bits, and at q[3] high bits: two words, or three around bytes anywhere */
    uint32_t scale[4]; /* the block's and the group's, as the format has them */
    uint32_t shift;    /* bits of the words in front of the bytes */
    uint32_t at;       /* of the first weight, in its block */
} mp_coded_raw;

/* ---- Reading ---- */

#if MP_ON_GPU

/* Numbers from memory if `wanted`, else zeros, without a branch. Neighbouring lanes read the same lines. */
#define MP_CODED_READ(name, type)                                                     \
    MP_GPU uint32_t name(uint32_t wanted, const char *at)                             \
    {                                                                                 \
        uint32_t out;                                                                 \
        asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global." type \
            " %0, [%1]; }"                                                            \
            : "=&r"(out)                                                              \
            : "l"(at), "r"(wanted));                                                  \
        return out;                                                                   \
    }
MP_CODED_READ(mp_coded_byte, "u8")
MP_CODED_READ(mp_coded_half, "u16")
MP_CODED_READ(mp_coded_word, "u32")

/* Byte i of the result is byte c_i, the low three bits of c's half byte i, of the eight of a and b. */
MP_GPU uint32_t mp_coded_permute(uint32_t a, uint32_t b, uint32_t c)
{
    return __byte_perm(a, b, c);
}

/* The low word of both, a the lower, shifted right by less than 32. */
MP_GPU uint32_t mp_coded_funnel(uint32_t a, uint32_t b, uint32_t shift)
{
    return __funnelshift_r(a, b, shift);
}

#else

#define MP_CODED_READ(name, type)                                \
    static inline uint32_t name(uint32_t wanted, const char *at) \
    {                                                            \
        type out = 0;                                            \
        if (wanted)                                              \
            __builtin_memcpy(&out, at, sizeof out);              \
        return out;                                              \
    }
MP_CODED_READ(mp_coded_byte, uint8_t)
MP_CODED_READ(mp_coded_half, uint16_t)
MP_CODED_READ(mp_coded_word, uint32_t)

static inline uint32_t mp_coded_permute(uint32_t a, uint32_t b, uint32_t c)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (uint32_t i = 0; i < 4; i++)
        out |= (uint32_t)(both >> (c >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
    return out;
}

static inline uint32_t mp_coded_funnel(uint32_t a, uint32_t b, uint32_t shift)
{
    return (uint32_t)(((uint64_t)b << 32 | a) >> shift);
}

#endif

/* Eight bytes from a multiple of 4. */
MP_GPU void mp_coded_read8(uint32_t wanted, const char *at, uint32_t *out)
{
    out[0] = mp_coded_word(wanted, at);
    out[1] = mp_coded_word(wanted, at + 4);
}

/* The words around eight bytes that start anywhere; returns how many bits of them come before. */
MP_GPU uint32_t mp_coded_around8(uint32_t wanted, const char *at, uint32_t *out)
{
    const uint32_t before = (uint32_t)(uint64_t)at & 3u;
    at -= before;
    mp_coded_read8(wanted, at, out);
    out[2] = mp_coded_word(wanted && before, at + 8);
    return before * 8;
}

/* ---- Where a row's weights are ---- */

/* Weights of a block and its bytes, constants but for formats of several lengths, whose blocks have
 * 2^args->group_shift weights. */
MP_GPU uint32_t mp_coded_weights(const uint32_t dtype, const mp_gpu_experts_args *args)
{
    switch (dtype) {
    case MP_CODED_Q4_0:
    case MP_CODED_Q4_1:
    case MP_CODED_Q5_0:
    case MP_CODED_Q5_1:
    case MP_CODED_Q8_0:
    case MP_CODED_IQ4_NL:
    case MP_CODED_MXFP4: return 32;
    case MP_CODED_NVFP4: return 64;
    case MP_CODED_W4_F16:
    case MP_CODED_W4_BF16:
    case MP_CODED_NVFP4G: return 1u << args->group_shift;
    default: return 256;
    }
}

MP_GPU uint32_t mp_coded_bytes(const uint32_t dtype, const mp_gpu_experts_args *args)
{
    const uint32_t weights = mp_coded_weights(dtype, args);
    switch (dtype) {
    case MP_CODED_Q4_0: return 18;
    case MP_CODED_Q4_1: return 20;
    case MP_CODED_Q5_0: return 22;
    case MP_CODED_Q5_1: return 24;
    case MP_CODED_Q8_0: return 34;
    case MP_CODED_Q2_K: return 84;
    case MP_CODED_Q3_K: return 110;
    case MP_CODED_Q4_K: return 144;
    case MP_CODED_Q5_K: return 176;
    case MP_CODED_Q6_K: return 210;
    case MP_CODED_IQ4_NL: return 18;
    case MP_CODED_IQ4_XS: return 136;
    case MP_CODED_MXFP4: return 17;
    case MP_CODED_NVFP4: return 36;
    case MP_CODED_NVFP4G: return 4 + weights / 16 + weights / 2;
    default: return 4 + weights / 2; /* W4 */
    }
}

/* Bits of an integer; 0 of other formats. */
MP_GPU uint32_t mp_coded_bits(const uint32_t dtype)
{
    return dtype == MP_CODED_INT8 ? 8 : dtype == MP_CODED_INT4 ? 4 : dtype == MP_CODED_INT2 ? 2 : 0;
}

MP_GPU uint64_t mp_coded_row_bytes(const uint32_t dtype, const mp_gpu_experts_args *args,
                                   uint32_t length)
{
    if (mp_coded_bits(dtype))
        return length / 8 * mp_coded_bits(dtype);
    return (uint64_t)(length / mp_coded_weights(dtype, args)) * mp_coded_bytes(dtype, args);
}

/* ---- Fetching ---- */

MP_GPU void mp_coded_fetch_k(const uint32_t dtype, uint32_t wanted, const char *block, uint32_t p,
                             mp_coded_raw *raw)
{
    if (dtype == MP_CODED_Q2_K) {
        mp_coded_read8(wanted, block + 16 + p / 128 * 32 + p % 32, raw->q);
        raw->scale[0] = mp_coded_word(wanted, block + 80);
        raw->scale[1] = mp_coded_byte(wanted, block + p / 16);
    } else if (dtype == MP_CODED_Q3_K) {
        mp_coded_around8(wanted, block + 32 + p / 128 * 32 + p % 32, raw->q);
        raw->shift = mp_coded_around8(wanted, block + p % 32, raw->q + 3);
        raw->scale[0] = mp_coded_half(wanted, block + 108);
        raw->scale[1] = mp_coded_byte(wanted, block + 96 + p / 16 % 8);
        raw->scale[2] = mp_coded_byte(wanted, block + 104 + p / 16 % 4);
    } else if (dtype == MP_CODED_Q6_K) {
        mp_coded_around8(wanted, block + p / 128 * 64 + p % 64, raw->q);
        raw->shift = mp_coded_around8(wanted, block + 128 + p / 128 * 32 + p % 32, raw->q + 3);
        raw->scale[0] = mp_coded_half(wanted, block + 208);
        raw->scale[1] = mp_coded_byte(wanted, block + 192 + p / 16);
    } else {
        const uint32_t q = dtype == MP_CODED_Q5_K ? 48 : 16;
        mp_coded_read8(wanted, block + q + p / 64 * 32 + p % 32, raw->q);
        if (dtype == MP_CODED_Q5_K)
            mp_coded_read8(wanted, block + 16 + p % 32, raw->q + 3);
        mp_coded_read8(wanted, block, raw->scale);
        mp_coded_read8(wanted, block + 8, raw->scale + 2);
    }
}

/* Of integers: a row of them, and its scales. */
MP_GPU void mp_coded_fetch_integers(const uint32_t dtype, const mp_gpu_experts_args *args,
                                    uint32_t wanted, const char *weights, const char *scales,
                                    uint32_t k, mp_coded_raw *raw)
{
    const char *at = weights + k / 8 * mp_coded_bits(dtype);
    if (dtype == MP_CODED_INT8)
        mp_coded_read8(wanted, at, raw->q);
    else
        raw->q[0] = dtype == MP_CODED_INT4 ? mp_coded_word(wanted, at) : mp_coded_half(wanted, at);
    raw->scale[0] = mp_coded_half(wanted, scales + (uint64_t)(k >> args->group_shift) * 2);
}

/* Weights [k, k + 8) of a row, if wanted; k is a multiple of 8. */
MP_GPU void mp_coded_fetch(const uint32_t dtype, const mp_gpu_experts_args *args, uint32_t wanted,
                           const char *weights, const char *scales, uint32_t k, mp_coded_raw *raw)
{
    if (mp_coded_bits(dtype)) {
        mp_coded_fetch_integers(dtype, args, wanted, weights, scales, k, raw);
        return;
    }
    const uint32_t length = mp_coded_weights(dtype, args), p = k % length, half = p % 16;
    const char *block = weights + (uint64_t)(k / length) * mp_coded_bytes(dtype, args);
    raw->at = p;
    switch (dtype) {
    case MP_CODED_Q4_0:
    case MP_CODED_IQ4_NL:
        raw->scale[0] = mp_coded_half(wanted, block);
        raw->shift = mp_coded_around8(wanted, block + 2 + half, raw->q);
        break;
    case MP_CODED_Q4_1:
        raw->scale[0] = mp_coded_word(wanted, block);
        mp_coded_read8(wanted, block + 4 + half, raw->q);
        break;
    case MP_CODED_Q5_0:
        raw->scale[0] = mp_coded_half(wanted, block);
        raw->q[3] = mp_coded_byte(wanted, block + 2 + p / 8);
        raw->shift = mp_coded_around8(wanted, block + 6 + half, raw->q);
        break;
    case MP_CODED_Q5_1:
        raw->scale[0] = mp_coded_word(wanted, block);
        raw->q[3] = mp_coded_byte(wanted, block + 4 + p / 8);
        mp_coded_read8(wanted, block + 8 + half, raw->q);
        break;
    case MP_CODED_Q8_0:
        raw->scale[0] = mp_coded_half(wanted, block);
        raw->shift = mp_coded_around8(wanted, block + 2 + p, raw->q);
        break;
    case MP_CODED_IQ4_XS:
        raw->scale[0] = mp_coded_word(wanted, block);
        raw->scale[1] = mp_coded_byte(wanted, block + 4 + p / 64);
        mp_coded_read8(wanted, block + 8 + p / 32 * 16 + half, raw->q);
        break;
    case MP_CODED_MXFP4:
        raw->scale[0] = mp_coded_byte(wanted, block);
        raw->shift = mp_coded_around8(wanted, block + 1 + half, raw->q);
        break;
    case MP_CODED_NVFP4:
        raw->scale[0] = mp_coded_byte(wanted, block + p / 16);
        mp_coded_read8(wanted, block + 4 + p / 16 * 8, raw->q);
        break;
    case MP_CODED_NVFP4G:
        raw->scale[0] = mp_coded_byte(wanted, block + 4 + p / 16);
        raw->scale[1] = mp_coded_word(wanted, block);
        mp_coded_read8(wanted, block + 4 + length / 16 + p / 16 * 8, raw->q);
        break;
    case MP_CODED_W4_F16:
    case MP_CODED_W4_BF16:
        raw->scale[0] = mp_coded_word(wanted, block);
        mp_coded_read8(wanted, block + 4 + p / 32 * 16 + half, raw->q);
        break;
    default: mp_coded_fetch_k(dtype, wanted, block, p, raw);
    }
}

/* Registers that eight weights under way take. */
MP_GPU uint32_t mp_coded_words(const uint32_t dtype)
{
    switch (dtype) {
    case MP_CODED_INT8:
    case MP_CODED_INT4:
    case MP_CODED_INT2:
    case MP_CODED_Q4_1:
    case MP_CODED_NVFP4:
    case MP_CODED_W4_F16:
    case MP_CODED_W4_BF16: return 3;
    case MP_CODED_Q4_0:
    case MP_CODED_Q5_1:
    case MP_CODED_Q8_0:
    case MP_CODED_Q2_K:
    case MP_CODED_IQ4_NL:
    case MP_CODED_IQ4_XS:
    case MP_CODED_MXFP4:
    case MP_CODED_NVFP4G: return 4;
    case MP_CODED_Q5_0: return 5;
    case MP_CODED_Q4_K: return 6;
    case MP_CODED_Q5_K:
    case MP_CODED_Q6_K: return 8;
    default: return 9; /* Q3_K */
    }
}

/* ---- Taking apart ---- */

/* Eight weights, each a byte of q less the offset, and their scale and minimum. */
typedef struct mp_coded_eight {
    uint32_t q[2];
    uint32_t offset;
    float scale;
    float minimum;
} mp_coded_eight;

/* A number below 2^23 as a float, exactly. */
MP_GPU float mp_coded_number(uint32_t n)
{
    return mp_scalar_add(mp_scalar_of_bits(0x4b000000u | n), -0x1p23f);
}

MP_GPU float mp_coded_f16(uint32_t bits)
{
    return mp_scalar_from_f16((uint16_t)bits);
}

/* Where bytes start anywhere, those of the words around them. */
MP_GPU void mp_coded_together(const mp_coded_raw *raw, const uint32_t first, uint32_t *out)
{
    out[0] = mp_coded_funnel(raw->q[first], raw->q[first + 1], raw->shift);
    out[1] = mp_coded_funnel(raw->q[first + 1], raw->q[first + 2], raw->shift);
}

/* Fields of each byte of two words. */
MP_GPU void mp_coded_fields(uint32_t *words, uint32_t shift, uint32_t mask)
{
    words[0] = words[0] >> shift & mask;
    words[1] = words[1] >> shift & mask;
}

/* Four low half bytes of a byte each look up bytes of 16. */
MP_GPU uint32_t mp_coded_look_up(uint32_t x, const uint32_t a, const uint32_t b, const uint32_t c,
                                 const uint32_t d)
{
    const uint32_t pairs = x | x >> 4, upper = (x >> 3 & 0x01010101u) * 255u;
    const uint32_t which = mp_coded_permute(pairs, 0, 0x4420) & 0x7777u;
    return (mp_coded_permute(a, b, which) & ~upper) | (mp_coded_permute(c, d, which) & upper);
}

/* IQ4's levels, each plus 128. */
MP_GPU void mp_coded_levels(mp_coded_eight *out)
{
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 2; i++)
        out->q[i] = mp_coded_look_up(out->q[i], 0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
    out->offset = 128;
}

/* Twice E2M1's numbers, each plus 12. */
MP_GPU void mp_coded_e2m1(mp_coded_eight *out)
{
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 2; i++)
        out->q[i] = mp_coded_look_up(out->q[i], 0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u);
    out->offset = 12;
}

/* Half of the E4M3 number, its sign ignored, as NVFP4 has it. */
MP_GPU float mp_coded_half_of_e4m3(uint32_t bits)
{
    const float value = mp_scalar_mul(mp_scalar_of_bits((bits & 0x7fu) << 20), 0x1p119f);
    return bits == 0x7fu ? 0 : value;
}

/* 2^(e - 128); for 0 and 1 a denormal. */
MP_GPU float mp_coded_half_of_e8m0(uint32_t e)
{
    return mp_scalar_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* Bits 0 to 3 become bit 4 of bytes 0 to 3. */
MP_GPU uint32_t mp_coded_fifths(uint32_t bits)
{
    return (bits & 15u) * 0x00204081u << 4 & 0x10101010u;
}

/* Scale and minimum of a group of Q4_K and Q5_K. */
MP_GPU void mp_coded_k4(const mp_coded_raw *raw, mp_coded_eight *out)
{
    const uint32_t group = raw->at / 32, shift = group % 4 * 8;
    const uint32_t a = raw->scale[1] >> shift, b = raw->scale[2] >> shift;
    const uint32_t c = raw->scale[3] >> shift;
    const uint32_t scale = group < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u);
    const uint32_t minimum = group < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
    out->scale = mp_scalar_mul(mp_coded_f16(raw->scale[0]), mp_coded_number(scale));
    out->minimum = mp_scalar_mul(mp_coded_f16(raw->scale[0] >> 16), mp_coded_number(minimum));
}

MP_GPU void mp_coded_open_k(const uint32_t dtype, const mp_coded_raw *raw, mp_coded_eight *out)
{
    const uint32_t p = raw->at, two = p % 128 / 32 * 2;
    uint32_t high[2];
    if (dtype == MP_CODED_Q2_K) {
        const uint32_t both = raw->scale[1];
        mp_coded_fields(out->q, two, 0x03030303u);
        out->scale = mp_scalar_mul(mp_coded_f16(raw->scale[0]), mp_coded_number(both & 15u));
        out->minimum = mp_scalar_mul(mp_coded_f16(raw->scale[0] >> 16), mp_coded_number(both >> 4));
        return;
    }
    if (dtype == MP_CODED_Q4_K || dtype == MP_CODED_Q5_K) {
        mp_coded_fields(out->q, p / 32 % 2 * 4, 0x0f0f0f0fu);
        mp_coded_k4(raw, out);
        if (dtype == MP_CODED_Q4_K)
            return;
        out->q[0] |= (raw->q[3] >> p / 32 & 0x01010101u) << 4;
        out->q[1] |= (raw->q[4] >> p / 32 & 0x01010101u) << 4;
        return;
    }
    mp_coded_together(raw, 3, high);
    if (dtype == MP_CODED_Q3_K) {
        const uint32_t low = raw->scale[1] >> p / 128 * 4 & 15u;
        const uint32_t scale = low | (raw->scale[2] >> p / 64 * 2 & 3u) << 4;
        mp_coded_fields(out->q, two, 0x03030303u);
        mp_coded_fields(high, p / 32, 0x01010101u);
        out->q[0] |= high[0] << 2;
        out->q[1] |= high[1] << 2;
        out->offset = 4;
        out->scale = mp_scalar_mul(mp_coded_f16(raw->scale[0]),
                                   mp_scalar_add(mp_coded_number(scale), -32.0f));
        return;
    }
    mp_coded_fields(out->q, p / 64 % 2 * 4, 0x0f0f0f0fu); /* Q6_K */
    mp_coded_fields(high, two, 0x03030303u);
    out->q[0] |= high[0] << 4;
    out->q[1] |= high[1] << 4;
    out->offset = 32;
    out->scale = mp_scalar_mul(mp_coded_f16(raw->scale[0]),
                               mp_scalar_add(mp_coded_number(raw->scale[1] ^ 128u), -128.0f));
}

/* Integers of two's complement, plus what makes them positive. */
MP_GPU void mp_coded_open_integers(const uint32_t dtype, const mp_coded_raw *raw,
                                   mp_coded_eight *out)
{
    uint32_t even, odd, word = raw->q[0];
    out->offset = 1u << (mp_coded_bits(dtype) - 1);
    if (dtype == MP_CODED_INT8) {
        out->q[0] = raw->q[0] ^ 0x80808080u;
        out->q[1] = raw->q[1] ^ 0x80808080u;
        return;
    }
    if (dtype == MP_CODED_INT2) {
        word = (word | word << 8) & 0x00ff00ffu;
        word = (word | word << 4) & 0x0f0f0f0fu;
        even = (word & 0x03030303u) ^ 0x02020202u;
        odd = (word >> 2 & 0x03030303u) ^ 0x02020202u;
    } else {
        even = (word & 0x0f0f0f0fu) ^ 0x08080808u;
        odd = (word >> 4 & 0x0f0f0f0fu) ^ 0x08080808u;
    }
    out->q[0] = mp_coded_permute(even, odd, 0x5140);
    out->q[1] = mp_coded_permute(even, odd, 0x7362);
}

MP_GPU void mp_coded_open(const uint32_t dtype, const mp_coded_raw *raw, mp_coded_eight *out)
{
    const uint32_t p = raw->at, half = p / 16 % 2 * 4;
    out->offset = 0;
    out->scale = mp_coded_f16(raw->scale[0]); /* of most */
    out->minimum = 0;
    if (mp_coded_bits(dtype)) {
        mp_coded_open_integers(dtype, raw, out);
        return;
    }
    if (dtype == MP_CODED_Q4_0 || dtype == MP_CODED_IQ4_NL || dtype == MP_CODED_Q5_0 ||
        dtype == MP_CODED_Q8_0 || dtype == MP_CODED_MXFP4 || dtype == MP_CODED_Q3_K ||
        dtype == MP_CODED_Q6_K) {
        mp_coded_together(raw, 0, out->q);
    } else {
        out->q[0] = raw->q[0];
        out->q[1] = raw->q[1];
    }
    switch (dtype) {
    case MP_CODED_Q4_0:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        out->offset = 8;
        break;
    case MP_CODED_Q4_1:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        out->minimum = -mp_coded_f16(raw->scale[0] >> 16);
        break;
    case MP_CODED_Q5_0:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        out->q[0] |= mp_coded_fifths(raw->q[3]);
        out->q[1] |= mp_coded_fifths(raw->q[3] >> 4);
        out->offset = 16;
        break;
    case MP_CODED_Q5_1:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        out->q[0] |= mp_coded_fifths(raw->q[3]);
        out->q[1] |= mp_coded_fifths(raw->q[3] >> 4);
        out->minimum = -mp_coded_f16(raw->scale[0] >> 16);
        break;
    case MP_CODED_Q8_0:
        out->q[0] ^= 0x80808080u;
        out->q[1] ^= 0x80808080u;
        out->offset = 128;
        break;
    case MP_CODED_IQ4_NL:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        mp_coded_levels(out);
        break;
    case MP_CODED_IQ4_XS: {
        const uint32_t low = raw->scale[1] >> p / 32 % 2 * 4 & 15u;
        const uint32_t high = raw->scale[0] >> (16 + p / 32 * 2) & 3u;
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        mp_coded_levels(out);
        out->scale = mp_scalar_mul(mp_coded_f16(raw->scale[0]),
                                   mp_scalar_add(mp_coded_number(low | high << 4), -32.0f));
        break;
    }
    case MP_CODED_MXFP4:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        mp_coded_e2m1(out);
        out->scale = mp_coded_half_of_e8m0(raw->scale[0]);
        break;
    case MP_CODED_NVFP4:
    case MP_CODED_NVFP4G: {
        const float own = mp_coded_half_of_e4m3(raw->scale[0]);
        const float factor = mp_scalar_of_bits(raw->scale[1]);
        mp_coded_fields(out->q, p / 8 % 2 * 4, 0x0f0f0f0fu);
        mp_coded_e2m1(out);
        out->scale = dtype == MP_CODED_NVFP4 ? own
                     : raw->scale[1] >> 31   ? mp_scalar_div(own, -factor)
                                             : mp_scalar_mul(own, factor);
        break;
    }
    case MP_CODED_W4_F16:
    case MP_CODED_W4_BF16:
        mp_coded_fields(out->q, half, 0x0f0f0f0fu);
        out->offset = raw->scale[0] >> 16 & 15u;
        out->scale = dtype == MP_CODED_W4_F16 ? mp_coded_f16(raw->scale[0])
                                              : mp_scalar_from_bf16((uint16_t)raw->scale[0]);
        break;
    default: mp_coded_open_k(dtype, raw, out);
    }
}

MP_GPU uint32_t mp_coded_has_minimum(const uint32_t dtype)
{
    return dtype == MP_CODED_Q4_1 || dtype == MP_CODED_Q5_1 || dtype == MP_CODED_Q2_K ||
           dtype == MP_CODED_Q4_K || dtype == MP_CODED_Q5_K;
}

/* The eight as floats. */
MP_GPU void mp_coded_floats(const uint32_t dtype, const mp_coded_raw *raw, float *out)
{
    mp_coded_eight eight;
    mp_coded_open(dtype, raw, &eight);
    const float offset = -mp_scalar_of_bits(0x4b000000u | eight.offset);
    const float four = dtype == MP_CODED_INT2 && eight.scale < 0 ? 0.5f : 0.0f;
    if (dtype == MP_CODED_INT2)
        eight.scale = mp_scalar_of_bits(mp_scalar_bits(eight.scale) & 0x7fffffffu);
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        /* A byte in the mantissa of 2^23. */
        const uint32_t bits = mp_coded_permute(eight.q[i / 4], 0x4b000000u, 0x7440u | i % 4);
        float q = mp_scalar_add(mp_scalar_of_bits(bits), offset);
        if (dtype == MP_CODED_INT2)
            q = mp_scalar_add(q, four);
        out[i] = mp_coded_has_minimum(dtype) ? mp_scalar_fma(q, eight.scale, -eight.minimum)
                                             : mp_scalar_mul(q, eight.scale);
        if (dtype == MP_CODED_W4_F16)
            out[i] = mp_scalar_from_f16(mp_scalar_to_f16(out[i]));
        if (dtype == MP_CODED_W4_BF16)
            out[i] = mp_scalar_from_bf16(mp_scalar_to_bf16(out[i]));
    }
}

#endif
