/* Blocks whose four bits are indices of a table of 16 integers, taken apart: IQ4_NL, IQ4_XS.
 *
 *   IQ4_NL   d   16 bytes of indices, of 32 weights                       d * v[q]
 *   IQ4_XS   d   8 x 2 high bits of scales   8 x 4 low bits   128 bytes    d * (s - 32) * v[q]
 *
 * d is a half; IQ4_XS has 8 groups of 32 weights, each with a scale s. In every 16 bytes of indices
 * the low halves are 16 weights, the high halves the next 16. d * (s - 32) is exact. */
#include "codec/blocks_inside.h"

#define GROUP 32

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

static void look_up(const uint8_t *indices, int8_t *out)
{
    for (uint32_t i = 0; i < GROUP / 2; i++) {
        out[i] = levels[indices[i] & 15];
        out[i + GROUP / 2] = levels[indices[i] >> 4];
    }
}

void mp_unpack_iq4_nl(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = mp_block_half(at);
    look_up(at + 2, out->q);
}

void mp_unpack_iq4_xs(const uint8_t *at, mp_block_integers *out)
{
    const float d = mp_block_half(at);
    const uint32_t highs = mp_block_u16(at + 2);
    for (uint32_t g = 0; g < 8; g++) {
        const uint32_t low = at[4 + g / 2] >> g % 2 * 4 & 15u, high = highs >> 2 * g & 3u;
        out->scale[g] = d * (float)((int32_t)(low | high << 4) - 32);
        look_up(at + 8 + 16 * g, out->q + GROUP * g);
    }
}
