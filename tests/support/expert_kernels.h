/* expert_kernels.h — the expert kernels of a GPU, in their CPU form or from PTX, or on a real one. */
#ifndef EXPERT_KERNELS_H
#define EXPERT_KERNELS_H

#include "kernels/experts_args.h"

/* Runs every block of a launch, in a random order, its threads in a random order, on shared memory and
 * registers full of garbage: NaNs as floats, or large numbers. At most 4096 blocks. */
void expert_kernel_launch(const char *name, uint32_t form, const mp_gpu_experts_args *args,
                          uint32_t n_blocks);

/* Fills `order` with the numbers below n, in a random order. */
void random_order(uint32_t *order, uint32_t n);

#endif
