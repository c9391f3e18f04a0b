/* naive_blocks.h — Q8_0 and Q4_0 in plain arithmetic: weights to blocks, and back.
 *
 * It follows docs/format-blocks.md and shares nothing with the library. Any blocks would do for a
 * test; these are near the weights, so that a trained model stays one. */
#ifndef NAIVE_BLOCKS_H
#define NAIVE_BLOCKS_H

#include <stdint.h>

/* Writes n weights, a multiple of 32, as GGML_Q8_0 or GGML_Q4_0. */
void naive_quantise(uint32_t ggml_type, const float *weights, uint64_t n, unsigned char *out);

/* The values of what it wrote. */
void naive_dequantise(uint32_t ggml_type, const unsigned char *blocks, uint64_t n, float *out);

#endif
