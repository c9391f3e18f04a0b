/* compute.h — the small functions of a decoder around its matrix products, which are the library's:
 * norms, activations, softmax.
 *
 * A row's result depends on that row and the weights alone: identical bits in any batch and on any
 * number of threads.
 *
 * Math FP32: FP32 throughout. Math BF16: operands of products are BF16, sums FP32; callers round
 * activations with compute_round before a product. */
#ifndef EXAMPLE_COMPUTE_H
#define EXAMPLE_COMPUTE_H

#include "common/kernels.h"
#include "common/weights.h"
#include "common/workers.h"

typedef struct compute {
    workers *workers;
    const kernels *kernels;
    uint32_t math; /* MOEPAGE_MATH_* */
} compute;

/* Compute out[r] = norm(x[r]) for `n` rows of `width`; in place when out == x. */
void compute_rms_norm(const compute *c, const float *x, uint32_t n, uint32_t width,
                      const float *scale, float eps, float *out);
void compute_layer_norm(const compute *c, const float *x, uint32_t n, uint32_t width,
                        const norm_weights *norm, float eps, float *out);

/* Computes gate[i] = silu(gate[i]) * up[i]. */
void compute_swiglu(float *gate, const float *up, size_t n);

/* Rounds to BF16 in BF16 math; does nothing otherwise. */
void compute_round(const compute *c, float *x, size_t n);

/* Turns scores into probabilities in place. */
void compute_softmax(float *x, uint32_t n);

#endif
