/* kernels.h — the four loops that dominate dense compute, for each instruction set that helps.
 *
 * Each result is one sum in one fixed order, determined by its operands and their length alone.
 * Products and sums are separate operations (the project is built with -ffp-contract=off), so the
 * instruction sets differ in speed but in no bit. */
#ifndef EXAMPLE_KERNELS_H
#define EXAMPLE_KERNELS_H

#include <stdint.h>

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
} kernels;

/* Returns the fastest table for this machine. */
const kernels *kernels_choose(void);

#endif
