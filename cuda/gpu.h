/* gpu.h — opening a GPU as a device.
 *
 *   entry.c     what libmoepage.so calls
 *   services.c  the last error, which is the library's
 *   driver.c    libcuda.so.1 as a table of functions     blas.c   cuBLAS as one
 *   context.c   the driver's context and its errors; context.h: the struct that all files share
 *   gpu.c       open, close, info; the vtable
 *   vmm.c       the arena over VMM handles, and its views
 *   memory.c    workspace, pinned and registered host memory
 *   submit.c    streams, ticks, waits; issue.h is the way from there to the driver
 *   tables.c    host tables of kernels on their way to the GPU
 *   functions.c the kernels' modules and functions; launching one
 *   launch_*.c  from a kernel's arguments to its grid
 *   peers.c     access to the memory of other GPUs
 *   fast.c      experts of many rows by cuBLAS
 *   poller.c    threads that look at shared memory
 *   ranges.c    names for profilers */
#ifndef MP_CUDA_GPU_H
#define MP_CUDA_GPU_H

#include "context.h"

/* Opens GPU `ordinal` through `driver`, which outlives it; `blas` may be NULL, with the reason.
 * `images` are the kernels. Tests pass a simulated driver. */
moepage_status mp_cuda_device_open(const mp_cuda_driver *driver, const mp_cuda_blas *blas,
                                   const char *blas_missing, const mp_cuda_image *images,
                                   uint32_t n_images, uint32_t ordinal,
                                   const moepage_device_config *config, mp_device **out);

#endif
