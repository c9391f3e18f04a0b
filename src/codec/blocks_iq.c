/* Decoders of blocks whose four bits are indices of a table of 16 integers: IQ4_NL, IQ4_XS.
 *
 *   IQ4_NL   d   16 bytes of indices, of 32 weights                       d * v[q]
 *   IQ4_XS   d   8 x 2 high bits of scales   8 x 4 low bits   128 bytes    d * (s - 32) * v[q]
 *
 * d is a half; IQ4_XS has 8 groups of 32 weights, each with a scale s. In every 16 bytes of indices
 * the low halves are 16 weights, the high halves the next 16. All products are exact. */
#include "codec/blocks_inside.h"

#define GROUP 32

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

static void decode_group(const uint8_t *indices, float scale, float *out)
{
    for (uint32_t i = 0; i < GROUP / 2; i++) {
        out[i] = scale * (float)levels[indices[i] & 15];
        out[i + GROUP / 2] = scale * (float)levels[indices[i] >> 4];
    }
}

void mp_blocks_iq4_nl(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 18, out += GROUP)
        decode_group(at + 2, mp_block_half(at), out);
}

void mp_blocks_iq4_xs(const void *blocks, uint64_t n, float *out)
{
    const uint8_t *at = blocks;
    for (; n > 0; n--, at += 136) {
        const float d = mp_block_half(at);
        const uint32_t highs = mp_block_u16(at + 2);
        for (uint32_t g = 0; g < 8; g++, out += GROUP) {
            const uint32_t low = at[4 + g / 2] >> g % 2 * 4 & 15u, high = highs >> 2 * g & 3u;
            decode_group(at + 8 + 16 * g, d * (float)((int32_t)(low | high << 4) - 32), out);
        }
    }
}
