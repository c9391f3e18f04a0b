/* blocks.h — block formats: weights in blocks that carry their scales, as GGUF files hold them, and
 * those in which W4A16 and NVFP4 weights of other files are served.
 *
 * A block is a fixed number of consecutive weights of a row in a fixed number of bytes.
 * docs/format-blocks.md has every layout and every value's formula. What a decoder writes:
 *
 * - A product of scales and integers, d * q or d * scale * q, is exact in float: 24 bits hold it.
 *   So the order of its factors is free, as long as each is a float: a product of integers has
 *   lost the sign of a zero.
 * - A format with a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) rounds once, in its only sum: the
 *   product plus or minus the minimum. A fused multiply-add therefore gives the same bits.
 * - A format with a zero-point (W4) rounds its product to the type of its scale, as the decoders of
 *   those files do.
 * - NVFP4 with a factor (NVFP4G) rounds twice: its scales times or by the factor, and the product with the
 *   weight, as the decoders of those files do.
 * - Zeros have the sign that IEEE arithmetic gives them: -d * 0 is -0, x - x is +0.
 * - Half scales may be infinite or NaN. They count as such; the bits of a NaN are unspecified.
 * - MXFP4 has values among the denormal floats, and infinities past the largest (its formula's
 *   overflow); a scale byte of 255 is 2^128, no NaN. NVFP4's scale byte 127 is 0.
 *
 * Expects threads that keep denormals and round to nearest, which is how threads start. A kernel
 * that decodes blocks in another way must give these values. Pure functions. */
#ifndef MP_CODEC_BLOCKS_H
#define MP_CODEC_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* A block taken apart: weight i is scale[g] * q[i] - minimum[g] with g = i / group. Where there is a
 * zero-point, minimum[g] is scale[g] * zero, and a value is scale[g] * (q[i] - zero), rounded. */
#define MP_BLOCK_MOST 256
typedef struct mp_block_integers {
    int8_t q[MP_BLOCK_MOST];
    float scale[16];
    float minimum[16]; /* of formats that have minimums */
    int32_t zero;      /* of formats with a zero-point */
} mp_block_integers;

#define MP_NO_GGML_TYPE UINT32_MAX
typedef struct mp_block_format {
    const char *name;   /* as GGUF names it: "Q4_K" */
    uint32_t dtype;     /* MOEPAGE_DTYPE_* */
    uint32_t weights;   /* of a block */
    uint32_t bytes;     /* of a block */
    uint32_t ggml_type; /* its number in GGUF files, or MP_NO_GGML_TYPE */
    uint32_t group;     /* weights per scale: 16 or 32; groups of W4 are several of these */
    bool has_minimum;
    uint32_t scale_dtype; /* of a format with a zero-point, and of its values; else NONE */
    void (*unpack)(const uint8_t *block, mp_block_integers *out); /* one block, at any address */
} mp_block_format;

/* Decodes n_blocks consecutive blocks, at any address, to n_blocks * weights floats. */
void mp_block_decode(const mp_block_format *format, const void *blocks, uint64_t n_blocks,
                     float *out);

/* Returns the format of a MOEPAGE_DTYPE_*; NULL if that is none of blocks. */
const mp_block_format *mp_block_format_of(uint32_t dtype);

/* Returns the format of that number in GGUF files; NULL if it is none of these. */
const mp_block_format *mp_block_format_of_ggml(uint32_t ggml_type);

#endif
