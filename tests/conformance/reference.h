/* reference.h — the kernels in double precision, from their definition in device/kernels.h, with a
 * bound on how far single precision may be off. Slow on purpose: number formats are decoded and
 * rounded by arithmetic, not by bits. */
#ifndef MP_TESTS_REFERENCE_H
#define MP_TESTS_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "device/kernels.h"

uint32_t reference_size(uint32_t dtype);

/* Element i of an array of F32, F16, BF16 or F8_E4M3. */
double reference_load(const void *array, size_t i, uint32_t dtype);

/* Rounds to nearest even; not to F8_E4M3. */
void reference_store(void *array, size_t i, uint32_t dtype, double value);

/* The nearest value of a dtype. */
double reference_round(double value, uint32_t dtype);

/* One row of EXPERTS: out[H], and bound[H] on |device - out|. `x` is the row as the kernel gets it,
 * in the operand type of `math`. Pointers of `expert` are host memory. */
void reference_expert_row(const mp_ffn_expert *expert, const void *x, uint32_t hidden,
                          uint32_t intermediate, uint32_t dtype, uint32_t math, double *out,
                          double *bound);

#endif
