/* kernels.h — the loops around a decoder's matrix products, for each instruction set that helps.
 *
 * Each result is one sum in one fixed order, determined by its operands and their length alone.
 * Products and sums are separate operations (the project is built with -ffp-contract=off) or fused ones,
 * as each loop says, so the instruction sets differ in speed but in no bit. */
#ifndef EXAMPLE_KERNELS_H
#define EXAMPLE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Weighted sums of the same rows: out[q][i] = sum over k of weights[q][k] * rows[k * stride + i], by fused
 * multiply-adds in the order of k, from zero or from what out has. */
typedef struct weighted_sums {
    float *const *out;           /* [n_sums][n] */
    const float *const *weights; /* [n_sums][n_rows] */
    const float *rows;
    size_t stride;
    uint32_t n_sums, n_rows, n;
    bool resume; /* from what out has */
} weighted_sums;

typedef struct kernels {
    const char *name; /* "avx512", "avx2" or "generic" */
    /* sum of a[i] * b[i], FP32 */
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* y[i] += scale * x[i] */
    void (*add_scaled)(float *y, const float *x, float scale, uint32_t n);
    /* out[i] = source[i] exactly; dtype is F32, F16 or BF16; source may be unaligned */
    void (*widen)(float *out, const void *source, uint32_t dtype, uint32_t n);
    /* x[i] rounded to BF16, to nearest even; NaN stays NaN */
    void (*round_bf16)(float *x, uint32_t n);
    void (*sum_rows)(const weighted_sums *sums);
    /* x[i] = e^(scale * x[i] - most) / the sum of these, scale > 0, most the greatest scale * x[i]; e^
     * within 2 units in the last place, 0 below e^-87. Summed in 16 lanes, lane l taking elements l,
     * l + 16, ..., and these by halves. */
    void (*softmax)(float *x, uint32_t n, float scale);
} kernels;

/* Returns the fastest table for this machine. */
const kernels *kernels_choose(void);

/* Returns the table number i that this machine runs, the slowest first; NULL past the last. */
const kernels *kernels_at(uint32_t i);

#endif
