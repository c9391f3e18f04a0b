/* blocks_inside.h — what takes blocks of each format apart, and what that shares. */
#ifndef MP_CODEC_BLOCKS_INSIDE_H
#define MP_CODEC_BLOCKS_INSIDE_H

#include <stdint.h>

#include "base/floats.h"
#include "codec/blocks.h"

/* Each takes apart a block of the format in its name: see blocks.h. */
void mp_unpack_q4_0(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q4_1(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q5_0(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q5_1(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q8_0(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q2_k(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q3_k(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q4_k(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q5_k(const uint8_t *at, mp_block_integers *out);
void mp_unpack_q6_k(const uint8_t *at, mp_block_integers *out);
void mp_unpack_iq4_nl(const uint8_t *at, mp_block_integers *out);
void mp_unpack_iq4_xs(const uint8_t *at, mp_block_integers *out);
void mp_unpack_mxfp4(const uint8_t *at, mp_block_integers *out);
void mp_unpack_nvfp4(const uint8_t *at, mp_block_integers *out);
void mp_unpack_w4g32_f16(const uint8_t *at, mp_block_integers *out);
void mp_unpack_w4g64_f16(const uint8_t *at, mp_block_integers *out);
void mp_unpack_w4g128_f16(const uint8_t *at, mp_block_integers *out);
void mp_unpack_w4g32_bf16(const uint8_t *at, mp_block_integers *out);
void mp_unpack_w4g64_bf16(const uint8_t *at, mp_block_integers *out);
void mp_unpack_w4g128_bf16(const uint8_t *at, mp_block_integers *out);
void mp_unpack_nvfp4g64_f32(const uint8_t *at, mp_block_integers *out);
void mp_unpack_nvfp4g128_f32(const uint8_t *at, mp_block_integers *out);
void mp_unpack_nvfp4g256_f32(const uint8_t *at, mp_block_integers *out);

/* Reads a number of a block, which may be at an odd address. */
static inline uint32_t mp_block_u16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

static inline float mp_block_half(const uint8_t *at)
{
    return mp_from_f16((uint16_t)mp_block_u16(at));
}

#endif
