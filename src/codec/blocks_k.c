/* Decoders of blocks of 256 weights in groups with scales of their own: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
 *
 *   Q2_K   16 scales and minima, 4 bits each   64 bytes of q   d   dmin      16 groups of 16
 *   Q3_K   32 bytes of high bits   64 bytes of low bits   12 of scales   d   16 groups of 16
 *   Q4_K   d   dmin   12 of scales and minima   128 bytes of q               8 groups of 32
 *   Q5_K   d   dmin   12 of scales and minima   32 of high bits   128 bytes  8 groups of 32
 *   Q6_K   128 bytes of low bits   64 of high bits   16 scales   d           16 groups of 16
 *
 * d and dmin are halves, a group's scale s and minimum m small integers:
 * d * s * q - dmin * m, or d * s * q without a minimum. The products are exact; the difference
 * rounds. */
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

void mp_blocks_q2_k(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 84, out += WEIGHTS) {
        const float d = mp_block_half(at + 80), dmin = mp_block_half(at + 82);
        for (uint32_t i = 0; i < WEIGHTS; i++) {
            const float scale = d * (float)(at[i / 16] & 15u);
            const float minimum = dmin * (float)(at[i / 16] >> 4);
            out[i] = scale * (float)two_bits(at + 16, i) - minimum;
        }
    }
}

/* Scale g of 16 is g's four low bits, of 8 bytes, and two high bits, of the 4 behind them. */
static int32_t q3_scale(const uint8_t *scales, uint32_t g)
{
    const uint32_t low = scales[g % 8] >> g / 8 * 4 & 15u;
    const uint32_t high = scales[8 + g % 4] >> g / 4 * 2 & 3u;
    return (int32_t)(low | high << 4) - 32;
}

/* A high bit that is not set subtracts four. */
void mp_blocks_q3_k(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 110, out += WEIGHTS) {
        const float d = mp_block_half(at + 108);
        for (uint32_t i = 0; i < WEIGHTS; i++) {
            const float scale = d * (float)q3_scale(at + 96, i / 16);
            const uint32_t q = two_bits(at + 32, i) | one_bit(at, i) << 2;
            out[i] = scale * (float)((int32_t)q - 4);
        }
    }
}

/* Twelve bytes with eight scales and eight minima of six bits. The first four of each are the low
 * bits of bytes 0 to 3 and 4 to 7, whose two high bits are the high bits of the last four; their
 * low bits are the halves of bytes 8 to 11. */
static void unpack_k4(const uint8_t *packed, uint32_t g, uint32_t *scale, uint32_t *minimum)
{
    if (g < 4) {
        *scale = packed[g] & 63u;
        *minimum = packed[4 + g] & 63u;
        return;
    }
    *scale = (packed[4 + g] & 15u) | (uint32_t)packed[g - 4] >> 6 << 4;
    *minimum = (uint32_t)packed[4 + g] >> 4 | (uint32_t)packed[g] >> 6 << 4;
}

void mp_blocks_q4_k(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 144, out += WEIGHTS) {
        const float d = mp_block_half(at), dmin = mp_block_half(at + 2);
        for (uint32_t i = 0; i < WEIGHTS; i++) {
            uint32_t s, m;
            unpack_k4(at + 4, i / 32, &s, &m);
            const float scale = d * (float)s, minimum = dmin * (float)m;
            out[i] = scale * (float)four_bits(at + 16, i, 32) - minimum;
        }
    }
}

void mp_blocks_q5_k(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 176, out += WEIGHTS) {
        const float d = mp_block_half(at), dmin = mp_block_half(at + 2);
        for (uint32_t i = 0; i < WEIGHTS; i++) {
            uint32_t s, m;
            unpack_k4(at + 4, i / 32, &s, &m);
            const float scale = d * (float)s, minimum = dmin * (float)m;
            const uint32_t q = four_bits(at + 48, i, 32) | one_bit(at + 16, i) << 4;
            out[i] = scale * (float)q - minimum;
        }
    }
}

void mp_blocks_q6_k(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 210, out += WEIGHTS) {
        const float d = mp_block_half(at + 208);
        for (uint32_t i = 0; i < WEIGHTS; i++) {
            const float scale = d * (float)(int8_t)at[192 + i / 16];
            const uint32_t q = four_bits(at, i, 64) | two_bits(at + 128, i) << 4;
            out[i] = scale * (float)((int32_t)q - 32);
        }
    }
}
