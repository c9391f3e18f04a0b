/* Blocks of one group of W4A16 weights, taken apart: W4G32, W4G64, W4G128.
 *
 *   d  z  0   16 bytes of each 32 weights     d * (q - z), rounded to the type of d
 *
 * d is a half or a BF16 number, z the low half of a byte. Of the 16 bytes the low halves are the first 16
 * weights, the high halves the others. A group counts as several of 32 weights with one scale. */
#include "codec/blocks_inside.h"

static void unpack(const uint8_t *at, float scale, uint32_t weights, mp_block_integers *out)
{
    out->zero = at[2] & 15;
    for (uint32_t g = 0; g < weights / 32; g++) {
        out->scale[g] = scale;
        out->minimum[g] = scale * (float)out->zero;
    }
    for (uint32_t i = 0; i < weights; i++) {
        const uint8_t byte = at[4 + i / 32 * 16 + i % 16];
        out->q[i] = (int8_t)(i % 32 < 16 ? byte & 15 : byte >> 4);
    }
}

static float bf16(const uint8_t *at)
{
    return mp_from_bf16((uint16_t)mp_block_u16(at));
}

void mp_unpack_w4g32_f16(const uint8_t *at, mp_block_integers *out)
{
    unpack(at, mp_block_half(at), 32, out);
}

void mp_unpack_w4g64_f16(const uint8_t *at, mp_block_integers *out)
{
    unpack(at, mp_block_half(at), 64, out);
}

void mp_unpack_w4g128_f16(const uint8_t *at, mp_block_integers *out)
{
    unpack(at, mp_block_half(at), 128, out);
}

void mp_unpack_w4g32_bf16(const uint8_t *at, mp_block_integers *out)
{
    unpack(at, bf16(at), 32, out);
}

void mp_unpack_w4g64_bf16(const uint8_t *at, mp_block_integers *out)
{
    unpack(at, bf16(at), 64, out);
}

void mp_unpack_w4g128_bf16(const uint8_t *at, mp_block_integers *out)
{
    unpack(at, bf16(at), 128, out);
}
