/* gpu.h — the CUDA device inside: one struct that the files of this directory share.
 *
 *   entry.c     what libmoepage.so calls; services
 *   driver.c    libcuda.so.1 as a table of functions     blas.c   cuBLAS as one
 *   gpu.c       open, close, info, poison; the vtable
 *   vmm.c       the arena over VMM handles, and its views
 *   memory.c    workspace, pinned and registered host memory
 *   submit.c    streams, ticks, waits; issue.h is the way from there to the driver
 *   tables.c    host tables of kernels on their way to the GPU
 *   functions.c the kernels' modules and functions; launching
 *   launch_*.c  from a kernel's arguments to its grid
 *   fast.c      experts of many rows by cuBLAS
 *   poller.c    threads that look at shared memory
 *   ranges.c    names for profilers
 *
 * Every driver call is made with the device's primary context current: between mp_cuda_enter and
 * mp_cuda_leave, which put the caller's own context back. */
#ifndef MP_CUDA_GPU_H
#define MP_CUDA_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "blas.h"
#include "device/cuda_ext.h"
#include "device/executor.h"
#include "device/seam.h"
#include "driver.h"
#include "functions.h"
#include "ranges.h"

typedef struct mp_cuda_arena mp_cuda_arena;   /* vmm.c */
typedef struct mp_cuda_issuer mp_cuda_issuer; /* issue.c: threads that feed streams */
typedef struct mp_cuda_stream mp_cuda_stream; /* issue.h; what an mp_stream * points to */

typedef struct mp_cuda {
    mp_device device; /* first */
    const mp_cuda_driver *driver;
    const mp_cuda_blas *blas; /* NULL: not there; blas_missing says why */
    const char *blas_missing;
    mp_cu_device gpu;
    mp_cu_context context;
    char name[16];          /* "cuda:0" */
    char architecture[16];  /* "sm_90" */
    moepage_cuda_info info; /* what does not change; the arena's part from its allocation on */
    bool has_vmm;
    uint64_t pin_bytes;            /* see mp_cuda_pin_end */
    _Atomic uint64_t memory_calls; /* driver calls that took or gave memory */
    _Atomic int32_t poisoned;      /* the first sticky mp_cu_result, or the negative
                                      status of a transfer; 0 = well; set after the text */
    _Atomic bool failing;          /* poisoned, or about to be: set before all else */
    _Atomic bool lost; /* a sticky result was seen: the GPU does nothing more for the context */
    atomic_flag poison_taken;
    char poison_text[256];
    mp_executor *executor; /* host threads: COLD streams and tasks */
    mp_cuda_arena *arena;
    mp_cuda_kernels kernels;
    mp_cuda_issuer *issuer;
    const mp_cuda_ranges *ranges; /* NULL: nobody is told */
    pthread_mutex_t fast_lock;    /* fast.c; taken last of all */
    mp_blas_handle fast_handle;   /* [fast_lock] NULL until it is asked for */
    _Atomic bool fast_is_ready;   /* it is there, and has refused nothing */
} mp_cuda;

/* Opens GPU `ordinal` through `driver`, which outlives it; `blas` may be NULL, with the reason.
 * `images` are the kernels. Tests pass a simulated driver. */
moepage_status mp_cuda_device_open(const mp_cuda_driver *driver, const mp_cuda_blas *blas,
                                   const char *blas_missing, const mp_cuda_image *images,
                                   uint32_t n_images, uint32_t ordinal,
                                   const moepage_device_config *config, mp_device **out);

static inline mp_cuda *mp_cuda_of(mp_device *device)
{
    return (mp_cuda *)(void *)device;
}

/* Makes the context current, and puts the caller's back. Cheap; they nest. In between, the thread
 * may call what is unsafe during a capture: a capture of the caller's, which concerns none of our
 * streams, neither forbids it nor is invalidated by it. */
moepage_status mp_cuda_enter(mp_cuda *cuda);
void mp_cuda_leave(mp_cuda *cuda);

/* A driver call's result as a status. Success is MOEPAGE_OK. Errors that stick to the context
 * poison the device (logged once): DEVICE from then on, for every call. Out of memory is NO_MEMORY;
 * the rest DEVICE. The sentence: "cuda:0: <what> failed: CUDA_ERROR_X (text)". */
moepage_status mp_cuda_check(mp_cuda *cuda, mp_cu_result result, const char *what);
/* The same in cleanup: no sentence, for an earlier failure may have left one; logged instead. */
void mp_cuda_note(mp_cuda *cuda, mp_cu_result result, const char *what);
/* Poisons the device for another reason: `said`, a sentence that begins with the device's name. */
void mp_cuda_poison(mp_cuda *cuda, mp_cu_result result, const char *said);
/* DEVICE with the sentence of what poisoned it, or MOEPAGE_OK. */
moepage_status mp_cuda_healthy(mp_cuda *cuda);

/* Host tiers are registered with the driver in pieces that end at multiples of this address, and no
 * transfer may reach from one registration into the next: where the piece around `at` ends. Memory
 * of the device, and what is pinned in one piece, may be cut there as well. */
#define MP_CUDA_PIN_BYTES (64ull << 30)
static inline uint64_t mp_cuda_pin_end(const mp_cuda *cuda, uint64_t at)
{
    return (at / cuda->pin_bytes + 1) * cuda->pin_bytes;
}

/* Before each driver call that takes or gives memory. */
static inline void mp_cuda_count(mp_cuda *cuda)
{
    atomic_fetch_add_explicit(&cuda->memory_calls, 1, memory_order_relaxed);
}

/* ---- kernels of device/kernels.h and of moepage_cuda.h (launch_*.c) ----
 *
 * Called with the context current and the stream's turn come: they put launches on `stream`, no
 * more. `host` has its tables in host memory, to be read for sizes; `gpu` is the same struct with
 * its tables' device addresses. */
moepage_status mp_cuda_launch_convert(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_convert_args *gpu);
/* UNSUPPORTED unless there are kernels for what the launch's experts are; any thread, at any time. */
moepage_status mp_cuda_check_experts(const mp_cuda *cuda, const mp_kernel_experts_args *args);
moepage_status mp_cuda_launch_experts(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_experts_args *host,
                                      const mp_kernel_experts_args *gpu);
moepage_status mp_cuda_launch_combine(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_combine_args *gpu);
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
