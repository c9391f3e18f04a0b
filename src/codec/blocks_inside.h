/* blocks_inside.h — the decoders of block formats, and what they share. */
#ifndef MP_CODEC_BLOCKS_INSIDE_H
#define MP_CODEC_BLOCKS_INSIDE_H

#include <stdint.h>

#include "base/floats.h"

/* Each decodes n consecutive blocks of the format in its name: see blocks.h. */
void mp_blocks_q4_0(const void *blocks, uint64_t n, float *out);
void mp_blocks_q4_1(const void *blocks, uint64_t n, float *out);
void mp_blocks_q5_0(const void *blocks, uint64_t n, float *out);
void mp_blocks_q5_1(const void *blocks, uint64_t n, float *out);
void mp_blocks_q8_0(const void *blocks, uint64_t n, float *out);
void mp_blocks_q2_k(const void *blocks, uint64_t n, float *out);
void mp_blocks_q3_k(const void *blocks, uint64_t n, float *out);
void mp_blocks_q4_k(const void *blocks, uint64_t n, float *out);
void mp_blocks_q5_k(const void *blocks, uint64_t n, float *out);
void mp_blocks_q6_k(const void *blocks, uint64_t n, float *out);
void mp_blocks_iq4_nl(const void *blocks, uint64_t n, float *out);
void mp_blocks_iq4_xs(const void *blocks, uint64_t n, float *out);
void mp_blocks_mxfp4(const void *blocks, uint64_t n, float *out);
void mp_blocks_nvfp4(const void *blocks, uint64_t n, float *out);

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
