/* gpu_reach.h — kernels on a real GPU, on the test's own memory.
 *
 * With MP_TEST_DEVICE=cuda:N, tests that launch kernels by themselves (kernel_rig.h, decode_rig.h
 * and their like) do it there. The GPU reads and writes what the test allocates, at the same
 * addresses: the process's heap and every guarded array are registered with the driver. So a test's
 * body is the same for the CPU form and for the GPU, down to the inaccessible page behind an array.
 * Static arrays and those on the stack are out of reach. */
#ifndef MP_TESTS_GPU_REACH_H
#define MP_TESTS_GPU_REACH_H

#include "gpu.h"

/* Is a GPU asked for? */
bool gpu_reach(void);

/* The device, opened at the first call; the context is current from then on. */
mp_cuda *gpu_reach_cuda(void);

/* Launches an entry of cuda/kernels by name, and waits for it. */
void gpu_reach_launch(const char *name, const void *args, uint32_t n_blocks, uint32_t n_threads,
                      uint32_t shared_bytes);

#endif
