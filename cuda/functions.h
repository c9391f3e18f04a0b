/* functions.h — the host's view of kernels: images of machine code, and functions by name. */
#ifndef MP_CUDA_FUNCTIONS_H
#define MP_CUDA_FUNCTIONS_H

#include <stdatomic.h>

#include "driver.h"
#include "kernels/experts_args.h"

/* A fat binary of one cuda/kernels/<family>.cu. */
typedef struct mp_cuda_image {
    const char *family;
    const void *bytes;
} mp_cuda_image;

#define MP_CUDA_MAX_IMAGES 16
#define MP_CUDA_MAX_FUNCTIONS 128

typedef struct mp_cuda_function {
    const char *name; /* "mp_gpu_decode" */
    mp_cu_function handle;
    uint32_t shared_limit;     /* dynamic shared memory that a block may have */
    _Atomic uint64_t resident; /* the last answer of mp_cuda_resident_blocks, packed */
} mp_cuda_function;

typedef struct mp_cuda_kernels {
    mp_cu_module modules[MP_CUDA_MAX_IMAGES];
    uint32_t n_modules;
    mp_cuda_function functions[MP_CUDA_MAX_FUNCTIONS]; /* found at open, in order of names */
    uint32_t n_functions;
} mp_cuda_kernels;

struct mp_cuda;

#define MP_CUDA_CODED(suffix, name, value, X, form, blocks) \
    X(experts_thin_##suffix)                                \
    X(experts_broad_##suffix)                               \
    X(experts_plain_##suffix)

/* Every __global__ of cuda/kernels. All are looked up when a device is opened, which fails if one is
 * missing. None has static shared memory. New entries go to the end. */
#define MP_CUDA_ENTRIES(X) \
    X(convert)             \
    X(combine)             \
    X(experts_thin_f32)    \
    X(experts_thin_f16)    \
    X(experts_thin_bf16)   \
    X(experts_thin_f8)     \
    X(experts_broad_f32)   \
    X(experts_broad_f16)   \
    X(experts_broad_bf16)  \
    X(experts_broad_f8)    \
    X(experts_plain_f32)   \
    X(experts_plain_f16)   \
    X(experts_plain_bf16)  \
    X(experts_plain_f8)    \
    X(experts_thin_any)    \
    X(experts_plain_any)   \
    X(decode)              \
    X(path_plan)           \
    X(dequant)             \
    X(gemv_1)              \
    X(gemv_4)              \
    X(gemv_8)              \
    X(gemv_16)             \
    X(rows)                \
    X(topk)                \
    X(remap)               \
    X(remap_bin)           \
    X(remap_score)         \
    X(remap_prune)         \
    X(remap_apply)         \
    X(fast_gather)         \
    X(fast_swiglu)         \
    X(fast_scatter)        \
    X(path_wait)           \
    MP_CODED_FORMATS(MP_CUDA_CODED, X, , )

/* Loads the images and finds every entry. UNSUPPORTED when they hold nothing for this GPU. */
moepage_status mp_cuda_kernels_open(struct mp_cuda *cuda, const mp_cuda_image *images, uint32_t n);
void mp_cuda_kernels_close(struct mp_cuda *cuda);

/* Puts a kernel on a stream: `args` is its by-value struct. Does nothing for 0
 * blocks. Context current. */
moepage_status mp_cuda_launch(struct mp_cuda *cuda, mp_cu_stream stream, const char *name,
                              uint32_t n_blocks, uint32_t n_threads, uint32_t shared_bytes,
                              const void *args);

/* The number of blocks of a kernel that fit on the device at once, at least 1: the size of a persistent
 * grid. Context current. */
uint32_t mp_cuda_resident_blocks(struct mp_cuda *cuda, const char *name, uint32_t n_threads,
                                 uint32_t shared_bytes);

#endif
