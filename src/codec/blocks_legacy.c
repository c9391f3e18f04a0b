/* Blocks of 32 weights with one scale, taken apart: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
 *
 *   Q4_0   d  16 bytes of low bits          d * (q - 8)
 *   Q4_1   d  m  16 bytes of low bits       d * q + m
 *   Q5_0   d  32 high bits  16 bytes        d * (q - 16)
 *   Q5_1   d  m  32 high bits  16 bytes     d * q + m
 *   Q8_0   d  32 signed bytes               d * q
 *
 * d and m are halves. The low halves of the bytes are weights 0 to 15, the high halves 16 to 31.
 * m is a minimum negated. */
#include "codec/blocks_inside.h"

#define WEIGHTS 32

/* The four low bits of weight i. */
static uint32_t nibble(const uint8_t *bytes, uint32_t i)
{
    return i < 16 ? bytes[i] & 15u : bytes[i - 16] >> 4;
}

/* The fifth bit of weight i, in its place. */
static uint32_t fifth(const uint8_t *bits, uint32_t i)
{
    return (bits[i / 8] >> i % 8 & 1u) << 4;
}

void mp_unpack_q4_0(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = mp_block_half(at);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)((int32_t)nibble(at + 2, i) - 8);
}

void mp_unpack_q4_1(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = mp_block_half(at);
    out->minimum[0] = -mp_block_half(at + 2);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)nibble(at + 4, i);
}

void mp_unpack_q5_0(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = mp_block_half(at);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)((int32_t)(nibble(at + 6, i) | fifth(at + 2, i)) - 16);
}

void mp_unpack_q5_1(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = mp_block_half(at);
    out->minimum[0] = -mp_block_half(at + 2);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)(nibble(at + 8, i) | fifth(at + 4, i));
}

void mp_unpack_q8_0(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = mp_block_half(at);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        out->q[i] = (int8_t)at[2 + i];
}
