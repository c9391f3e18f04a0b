/* blas.h — the part of cuBLAS that the device uses, as a table of functions: see driver.h. */
#ifndef MP_CUDA_BLAS_H
#define MP_CUDA_BLAS_H

#include "driver.h"

typedef struct cublasContext *mp_blas_handle;
typedef int mp_blas_status; /* cublasStatus_t */

enum {
    MP_BLAS_OP_N = 0,
    MP_BLAS_OP_T = 1,
    MP_BLAS_R_32F = 0, /* cudaDataType_t */
    MP_BLAS_R_16F = 2,
    MP_BLAS_R_16BF = 14,
    MP_BLAS_COMPUTE_32F = 68, /* cublasComputeType_t */
    MP_BLAS_DEFAULT = -1,     /* cublasGemmAlgo_t */
    MP_BLAS_OLDEST = 120000   /* the oldest that is asked for by name */
};

enum { /* cublasStatus_t */
       MP_BLAS_SUCCESS = 0,
       MP_BLAS_NOT_INITIALIZED = 1,
       MP_BLAS_ALLOC_FAILED = 3,
       MP_BLAS_INVALID_VALUE = 7,
       MP_BLAS_ARCH_MISMATCH = 8,
       MP_BLAS_MAPPING_ERROR = 11,
       MP_BLAS_EXECUTION_FAILED = 13,
       MP_BLAS_INTERNAL_ERROR = 14,
       MP_BLAS_NOT_SUPPORTED = 15
};

/* X(field, exported symbol, parameters). All return mp_blas_status. */
#define MP_BLAS_FUNCTIONS(X)                                                                 \
    X(create, "cublasCreate_v2", (mp_blas_handle * out))                                     \
    X(destroy, "cublasDestroy_v2", (mp_blas_handle handle))                                  \
    X(version, "cublasGetVersion_v2", (mp_blas_handle handle, int *version))                 \
    X(set_stream, "cublasSetStream_v2", (mp_blas_handle handle, mp_cu_stream stream))        \
    X(set_workspace, "cublasSetWorkspace_v2",                                                \
      (mp_blas_handle handle, void *workspace, size_t bytes))                                \
    X(gemm_batched, "cublasGemmBatchedEx",                                                   \
      (mp_blas_handle handle, int op_a, int op_b, int m, int n, int k, const void *alpha,    \
       const void *const *a, int a_type, int lda, const void *const *b, int b_type, int ldb, \
       const void *beta, void *const *c, int c_type, int ldc, int n_batch, int compute,      \
       int algorithm))

typedef struct mp_cuda_blas {
#define MP_BLAS_FIELD(field, symbol, parameters) mp_blas_status(*field) parameters;
    MP_BLAS_FUNCTIONS(MP_BLAS_FIELD)
#undef MP_BLAS_FIELD
    uint32_t loaded_version; /* 130000 = 13.0 */
} mp_cuda_blas;

/* Looks for libcublas.so.13, then .12. NULL with a sentence in *why, kept for ever. */
const mp_cuda_blas *mp_cuda_blas_load(const char **why);

#endif
