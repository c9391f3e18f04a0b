/* Blocks of E2M1 numbers with scales of one byte, taken apart: MXFP4, NVFP4, NVFP4G64 and longer.
 *
 *   MXFP4      e   16 bytes of 32 weights                       2^(e - 127) * v
 *   NVFP4      4 scales   4 x 8 bytes of 16 weights each        s * v
 *   NVFP4G64   d   4 scales   4 x 8 bytes of 16 weights each    (s * d) * v, or with a negative d (s / -d) * v
 *
 * v is 0, 0.5, 1, 1.5, 2, 3, 4, 6 or one of these negated; s an E4M3 number of which the sign is
 * ignored. The low halves of a group's bytes are its first weights, the high halves its last. The
 * tables hold 2 v, and scales count half: as 2^(e - 128) is a float, 2^(e - 127) may be none. */
#include <string.h>

#include "codec/blocks_inside.h"

static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void look_up(const uint8_t *bytes, uint32_t weights, int8_t *out)
{
    for (uint32_t i = 0; i < weights / 2; i++) {
        out[i] = doubled[bytes[i] & 15];
        out[i + weights / 2] = doubled[bytes[i] >> 4];
    }
}

/* 2^(e - 128); for 0 and 1 a denormal. */
static float half_of_e8m0(uint8_t e)
{
    return mp_float_of(e < 2 ? 0x00200000u << e : (e - 1u) << 23);
}

void mp_unpack_mxfp4(const uint8_t *at, mp_block_integers *out)
{
    out->scale[0] = half_of_e8m0(at[0]);
    look_up(at + 1, 32, out->q);
}

/* Half of the E4M3 number. 0x7f is 0; with the ignored sign set it is the 480 that its bits say. */
static float half_of_e4m3(uint8_t bits)
{
    const uint32_t exponent = bits >> 3 & 15u, mantissa = bits & 7u;
    if (bits == 0x7f)
        return 0;
    if (exponent == 0)
        return (float)mantissa * 0x1p-10f;
    return mp_float_of((exponent + 119) << 23 | mantissa << 20);
}

void mp_unpack_nvfp4(const uint8_t *at, mp_block_integers *out)
{
    for (uint32_t g = 0; g < 4; g++) {
        out->scale[g] = half_of_e4m3(at[g]);
        look_up(at + 4 + 8 * g, 16, out->q + 16 * g);
    }
}

/* Of `weights` after the factor, which is rounded with each scale. */
static void unpack_with_factor(const uint8_t *at, uint32_t weights, mp_block_integers *out)
{
    const uint32_t n_groups = weights / 16;
    float factor;
    memcpy(&factor, at, sizeof factor);
    for (uint32_t g = 0; g < n_groups; g++) {
        const float half = half_of_e4m3(at[4 + g]);
        out->scale[g] = mp_bits_of(factor) >> 31 ? half / -factor : half * factor;
        look_up(at + 4 + n_groups + 8 * g, 16, out->q + 16 * g);
    }
}

void mp_unpack_nvfp4g64_f32(const uint8_t *at, mp_block_integers *out)
{
    unpack_with_factor(at, 64, out);
}

void mp_unpack_nvfp4g128_f32(const uint8_t *at, mp_block_integers *out)
{
    unpack_with_factor(at, 128, out);
}

void mp_unpack_nvfp4g256_f32(const uint8_t *at, mp_block_integers *out)
{
    unpack_with_factor(at, 256, out);
}
