/* fast.h — MATH_BF16_FAST: experts of many rows by cuBLAS, in batches of equal products.
 *
 * A device has one handle, created when the first session asks for it; calls take turns on it, each with
 * its own stream. cuBLAS's workspace lies in the launch's own scratch, so that two streams never share
 * it. The products' results are FP32 (cuBLAS's grouped products would round them to
 * BF16), operands and accumulators those of MATH_BF16; only the order of a sum is the library's own. */
#ifndef MP_CUDA_FAST_H
#define MP_CUDA_FAST_H

#include "context.h"

/* See mp_cuda_ext. NO_MEMORY, DEVICE. */
moepage_status mp_cuda_fast_open(mp_device *device, bool *is_there);
/* Context current. */
void mp_cuda_fast_close(mp_cuda *cuda);

/* Returns true if the launch has experts for mp_cuda_fast_launch: those with at least
 * MP_FAST_LEAST_ROWS rows. */
bool mp_cuda_fast_takes(mp_cuda *cuda, const mp_kernel_experts_args *host);

/* Runs the launch's experts of many rows. UNSUPPORTED: cuBLAS has refused, for good; some of the
 * experts may have been run. Context current. */
moepage_status mp_cuda_fast_launch(mp_cuda *cuda, mp_cu_stream stream,
                                   const mp_kernel_experts_args *host,
                                   const mp_kernel_experts_args *gpu);

#endif
