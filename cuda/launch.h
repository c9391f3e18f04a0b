/* launch.h — kernels of device/kernels.h and of moepage_cuda.h: from their arguments
 * to grids (launch_*.c).
 *
 * Called with the context current, when it is the stream's turn: they only put launches on
 * `stream`. `host` has its tables in host memory, to be read for sizes; `gpu` is the same struct
 * with its tables' device addresses, or NULL where they go into the kernel's arguments: those in `host` then follow
 * each other as they do there. */
#ifndef MP_CUDA_LAUNCH_H
#define MP_CUDA_LAUNCH_H

#include "context.h"

/* The grid for `n` pieces of work of one block each. Kernels take several turns in grids of this size:
 * more blocks would only cost their start. */
static inline uint32_t mp_cuda_grid(uint64_t n)
{
    const uint32_t most = 1u << 20;
    return n < most ? (uint32_t)n : most;
}

moepage_status mp_cuda_launch_convert(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_convert_args *gpu);
/* Fails with UNSUPPORTED unless there are kernels for the launch's experts. Any thread,
 * at any time. */
/* UNSUPPORTED, with a sentence, if there are no kernels for these experts. */
moepage_status mp_cuda_check_experts(const mp_cuda *cuda, const mp_kernel_experts_args *args);
/* Fails with UNSUPPORTED: matrices of coded weights do not start where their kernels need it. */
moepage_status mp_cuda_misaligned(const mp_cuda *cuda);
/* What one of the two launches is told of the experts' kind; everything else of it is zero. */
mp_gpu_experts_args mp_cuda_experts_half(const mp_kernel_experts_args *of, uint32_t down);
/* Returns true if a launch may use the kernels for aligned rows. `weights`: bits that the address of any of
 * its matrices has. */
bool mp_cuda_experts_aligned(const mp_gpu_experts_args *half, uint64_t weights,
                             const void *operands);
moepage_status mp_cuda_launch_experts(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_experts_args *host,
                                      const mp_kernel_experts_args *gpu);
/* `given_up`: a word of device memory, or NULL: y is filled with NaN if it is not 0. `host`: NULL if the tables are
 * in device memory. */
moepage_status mp_cuda_launch_combine(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_combine_args *host,
                                      const mp_kernel_combine_args *gpu, const uint32_t *given_up);
/* On the caller's stream; no tables. */
moepage_status mp_cuda_launch_path_layer(mp_cuda *cuda, mp_cu_stream stream,
                                         const mp_cuda_path_layer *layer);
moepage_status mp_cuda_launch_decode(mp_cuda *cuda, mp_cu_stream stream,
                                     const mp_kernel_decode_args *host,
                                     const mp_kernel_decode_args *gpu);
moepage_status mp_cuda_call_decode(mp_cuda *cuda, mp_cu_stream stream,
                                   const moepage_cuda_decode *args);
moepage_status mp_cuda_call_dequant(mp_cuda *cuda, mp_cu_stream stream,
                                    const moepage_cuda_dequant *args);
moepage_status mp_cuda_call_gemv(mp_cuda *cuda, mp_cu_stream stream, const moepage_cuda_gemv *args);
moepage_status mp_cuda_call_gather(mp_cuda *cuda, mp_cu_stream stream,
                                   const moepage_cuda_rows *args);
moepage_status mp_cuda_call_scatter(mp_cuda *cuda, mp_cu_stream stream,
                                    const moepage_cuda_rows *args);
moepage_status mp_cuda_call_topk(mp_cuda *cuda, mp_cu_stream stream, const moepage_cuda_topk *args);
moepage_status mp_cuda_call_remap(mp_cuda *cuda, mp_cu_stream stream,
                                  const moepage_cuda_remap *args);

#endif
