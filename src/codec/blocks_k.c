/* Blocks of 256 weights in groups with scales of their own, taken apart: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
 *
 *   Q2_K   16 scales and minima, 4 bits each   64 bytes of q   d   dmin      16 groups of 16
 *   Q3_K   32 bytes of high bits   64 bytes of low bits   12 of scales   d   16 groups of 16
 *   Q4_K   d   dmin   12 of scales and minima   128 bytes of q               8 groups of 32
 *   Q5_K   d   dmin   12 of scales and minima   32 of high bits   128 bytes  8 groups of 32
 *   Q6_K   128 bytes of low bits   64 of high bits   16 scales   d           16 groups of 16
 *
 * d and dmin are halves, a group's scale s and minimum m small integers:
 * d * s * q - dmin * m, or d * s * q without a minimum. d * s and dmin * m are exact. */
#include "codec/blocks_inside.h"

#define WEIGHTS 256

/* Of a plane of two bits per weight, a half of 128 weights takes 32 bytes: weight i of it has bits
 * 2 * (i / 32) of byte i % 32. */
static uint32_t two_bits(const uint8_t *plane, uint32_t i)
{
    return plane[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3u;
}

/* Of a plane of one bit per weight, weight i has bit i / 32 of byte i % 32. */
static uint32_t one_bit(const uint8_t *plane, uint32_t i)
{
    return plane[i % 32] >> i / 32 & 1u;
}

/* Of a plane of four bits per weight, `run` weights have the low halves of as many bytes, and the
 * next `run` the high halves. */
static uint32_t four_bits(const uint8_t *plane, uint32_t i, uint32_t run)
{
    return plane[i / (2 * run) * run + i % run] >> i / run % 2 * 4 & 15u;
}

void mp_unpack_q2_k(const uint8_t *at, mp_block_integers *out)
{
    const float d = mp_block_half(at + 80), dmin = mp_block_half(at + 82);
    for (uint32_t g = 0; g < 16; g++) {
        out->scale[g] = d * (float)(at[g] & 15u);
        out->minimum[g] = dmin * (float)(at[g] >> 4);
    }
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)two_bits(at + 16, i);
}

/* Scale g of 16 is g's four low bits, of 8 bytes, and two high bits, of the 4 behind them. */
static int32_t q3_scale(const uint8_t *scales, uint32_t g)
{
    const uint32_t low = scales[g % 8] >> g / 8 * 4 & 15u;
    const uint32_t high = scales[8 + g % 4] >> g / 4 * 2 & 3u;
    return (int32_t)(low | high << 4) - 32;
}

/* A high bit that is not set subtracts four. */
void mp_unpack_q3_k(const uint8_t *at, mp_block_integers *out)
{
    const float d = mp_block_half(at + 108);
    for (uint32_t g = 0; g < 16; g++)
        out->scale[g] = d * (float)q3_scale(at + 96, g);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)((int32_t)(two_bits(at + 32, i) | one_bit(at, i) << 2) - 4);
}

/* Twelve bytes with eight scales and eight minima of six bits. The first four of each are the low
 * bits of bytes 0 to 3 and 4 to 7, whose two high bits are the high bits of the last four; their
 * low bits are the halves of bytes 8 to 11. */
static void k4_scale(const uint8_t *packed, uint32_t g, uint32_t *scale, uint32_t *minimum)
{
    if (g < 4) {
        *scale = packed[g] & 63u;
        *minimum = packed[4 + g] & 63u;
        return;
    }
    *scale = (packed[4 + g] & 15u) | (uint32_t)packed[g - 4] >> 6 << 4;
    *minimum = (uint32_t)packed[4 + g] >> 4 | (uint32_t)packed[g] >> 6 << 4;
}

/* The scales and minima of Q4_K and Q5_K. */
static void unpack_k4(const uint8_t *at, mp_block_integers *out)
{
    const float d = mp_block_half(at), dmin = mp_block_half(at + 2);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t s, m;
        k4_scale(at + 4, g, &s, &m);
        out->scale[g] = d * (float)s;
        out->minimum[g] = dmin * (float)m;
    }
}

void mp_unpack_q4_k(const uint8_t *at, mp_block_integers *out)
{
    unpack_k4(at, out);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)four_bits(at + 16, i, 32);
}

void mp_unpack_q5_k(const uint8_t *at, mp_block_integers *out)
{
    unpack_k4(at, out);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)(four_bits(at + 48, i, 32) | one_bit(at + 16, i) << 4);
}

void mp_unpack_q6_k(const uint8_t *at, mp_block_integers *out)
{
    const float d = mp_block_half(at + 208);
    for (uint32_t g = 0; g < 16; g++)
        out->scale[g] = d * (float)(int8_t)at[192 + g];
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)((int32_t)(four_bits(at, i, 64) | two_bits(at + 128, i) << 4) - 32);
}
