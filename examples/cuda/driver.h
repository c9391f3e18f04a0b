/* driver.h — what the plug-in calls of the CUDA driver and of cuBLAS, as tables of functions.
 *
 * The declarations are of their stable binary interfaces, so that neither is needed to build, and
 * both are looked for when the plug-in is opened. */
#ifndef EXAMPLE_CUDA_DRIVER_H
#define EXAMPLE_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long gpu_address; /* CUdeviceptr */
typedef struct CUctx_st *gpu_context;
typedef struct CUstream_st *gpu_stream;
typedef struct CUmod_st *gpu_module;
typedef struct CUfunc_st *gpu_function;

#define GPU_OUT_OF_MEMORY 2        /* CUDA_ERROR_OUT_OF_MEMORY */
#define GPU_STREAM_NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING */

/* X(field, symbol, parameters): each returns a CUresult. */
#define GPU_DRIVER_FUNCTIONS(X)                                                                    \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(error_string, "cuGetErrorString", (int error, const char **text))                            \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                       \
    X(context_retain, "cuDevicePrimaryCtxRetain", (gpu_context * context, int device))             \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
    X(context_push, "cuCtxPushCurrent_v2", (gpu_context context))                                  \
    X(context_pop, "cuCtxPopCurrent_v2", (gpu_context * context))                                  \
    X(mem_alloc, "cuMemAlloc_v2", (gpu_address * out, size_t bytes))                               \
    X(mem_free, "cuMemFree_v2", (gpu_address memory))                                              \
    X(host_alloc, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags))                    \
    X(host_free, "cuMemFreeHost", (void *memory))                                                  \
    X(stream_create, "cuStreamCreateWithPriority",                                                 \
      (gpu_stream * out, unsigned flags, int priority))                                            \
    X(stream_destroy, "cuStreamDestroy_v2", (gpu_stream stream))                                   \
    X(stream_sync, "cuStreamSynchronize", (gpu_stream stream))                                     \
    X(copy, "cuMemcpyAsync", (gpu_address to, gpu_address from, size_t bytes, gpu_stream stream))  \
    X(set_bytes, "cuMemsetD8Async",                                                                \
      (gpu_address to, unsigned char value, size_t bytes, gpu_stream stream))                      \
    X(module_load, "cuModuleLoadData", (gpu_module * out, const void *image))                      \
    X(module_unload, "cuModuleUnload", (gpu_module module))                                        \
    X(module_function, "cuModuleGetFunction",                                                      \
      (gpu_function * out, gpu_module module, const char *name))                                   \
    X(launch, "cuLaunchKernel",                                                                    \
      (gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, gpu_stream stream,               \
       void **params, void **extra))

typedef struct gpu_driver {
#define GPU_FIELD(field, symbol, parameters) int(*field) parameters;
    GPU_DRIVER_FUNCTIONS(GPU_FIELD)
#undef GPU_FIELD
    void *library;
} gpu_driver;

/* NULL when the driver was found; else why not, until the next call. */
const char *gpu_driver_load(gpu_driver *out);

/* ---- cuBLAS ------------------------------------------------------------------------------ */

typedef struct cublasContext *gpu_blas_handle;

enum {
    GPU_BLAS_N = 0, /* cublasOperation_t */
    GPU_BLAS_T = 1,
    GPU_BLAS_F32 = 0, /* cudaDataType_t */
    GPU_BLAS_BF16 = 14,
    GPU_BLAS_COMPUTE_F32 = 68, /* cublasComputeType_t */
    GPU_BLAS_DEFAULT = -1      /* cublasGemmAlgo_t */
};

/* Each returns a cublasStatus_t. */
#define GPU_BLAS_FUNCTIONS(X)                                                                    \
    X(create, "cublasCreate_v2", (gpu_blas_handle * out))                                        \
    X(destroy, "cublasDestroy_v2", (gpu_blas_handle handle))                                     \
    X(set_stream, "cublasSetStream_v2", (gpu_blas_handle handle, gpu_stream stream))             \
    X(set_workspace, "cublasSetWorkspace_v2",                                                    \
      (gpu_blas_handle handle, void *workspace, size_t bytes))                                   \
    X(gemm, "cublasGemmEx",                                                                      \
      (gpu_blas_handle handle, int op_a, int op_b, int m, int n, int k, const void *alpha,       \
       const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, \
       void *c, int c_type, int ldc, int compute, int algorithm))

typedef struct gpu_blas {
#define GPU_FIELD(field, symbol, parameters) int(*field) parameters;
    GPU_BLAS_FUNCTIONS(GPU_FIELD)
#undef GPU_FIELD
    void *library;
} gpu_blas;

/* libcublas.so.13, or .12. */
bool gpu_blas_load(gpu_blas *out);

#endif
