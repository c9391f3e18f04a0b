/* naive_int8.h — MATH_INT8's sums in the order of docs/host-kernels.md, over what codec/blocks.h says
 * blocks consist of. */
#ifndef NAIVE_INT8_H
#define NAIVE_INT8_H

#include <stdint.h>

/* Rounds 32 elements of x to q[32] and their scale. */
void naive_int8_round(const float *in, int *q, float *scale);

/* Returns the product of a row of k weights in blocks with k elements of x. */
float naive_int8_dot(uint32_t dtype, const uint8_t *weights, const float *x, uint32_t k);

#endif
