/* A libcublas.so.13 of one product, by its definition, for programs on the simulated driver: it
 * waits for the stream and computes on the CPU, so that everything happens in the stream's
 * order. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "blas.h"

#define EXPORT __attribute__((visibility("default")))
#define INVALID 7

struct cublasContext {
    mp_cu_stream stream;
};

static struct cublasContext only;

mp_blas_status cublasCreate_v2(mp_blas_handle *out) EXPORT;
mp_blas_status cublasDestroy_v2(mp_blas_handle handle) EXPORT;
mp_blas_status cublasSetStream_v2(mp_blas_handle handle, mp_cu_stream stream) EXPORT;
mp_blas_status cublasSetWorkspace_v2(mp_blas_handle handle, void *workspace, size_t bytes) EXPORT;
mp_blas_status cublasGemmEx(mp_blas_handle handle, int op_a, int op_b, int m, int n, int k,
                            const void *alpha, const void *a, int a_type, int lda, const void *b,
                            int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                            int compute, int algorithm) EXPORT;

mp_blas_status cublasCreate_v2(mp_blas_handle *out)
{
    *out = &only;
    return 0;
}

mp_blas_status cublasDestroy_v2(mp_blas_handle handle)
{
    return handle == &only ? 0 : INVALID;
}

mp_blas_status cublasSetStream_v2(mp_blas_handle handle, mp_cu_stream stream)
{
    handle->stream = stream;
    return 0;
}

mp_blas_status cublasSetWorkspace_v2(mp_blas_handle handle, void *workspace, size_t bytes)
{
    return handle == &only && workspace && bytes ? 0 : INVALID;
}

/* Element (row, column) of a matrix that is stored column by column, or of its transpose. */
static float element(const void *matrix, int type, int op, int ld, int row, int column)
{
    const size_t at = op == MP_BLAS_OP_T ? (size_t)row * (size_t)ld + (size_t)column
                                         : (size_t)column * (size_t)ld + (size_t)row;
    float value;
    if (type == MP_BLAS_R_32F)
        return ((const float *)matrix)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)matrix)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static mp_blas_status finish(mp_cu_stream stream)
{
    mp_cu_result (*sync)(mp_cu_stream) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *symbol = driver ? dlsym(driver, "cuStreamSynchronize") : NULL;
    memcpy((void *)&sync, &symbol, sizeof sync);
    mp_blas_status status = sync && !sync(stream) ? 0 : INVALID;
    if (driver)
        dlclose(driver);
    return status;
}

static bool is_type(int type)
{
    return type == MP_BLAS_R_32F || type == MP_BLAS_R_16BF;
}

mp_blas_status cublasGemmEx(mp_blas_handle handle, int op_a, int op_b, int m, int n, int k,
                            const void *alpha, const void *a, int a_type, int lda, const void *b,
                            int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                            int compute, int algorithm)
{
    float scale, keep, *out = c;
    memcpy(&scale, alpha, sizeof scale);
    memcpy(&keep, beta, sizeof keep);
    if (!is_type(a_type) || a_type != b_type || c_type != MP_BLAS_R_32F || algorithm != -1 ||
        compute != MP_BLAS_COMPUTE_32F || m < 1 || n < 1 || k < 1 || ldc < m ||
        lda < (op_a == MP_BLAS_OP_T ? k : m) || ldb < (op_b == MP_BLAS_OP_T ? n : k))
        return INVALID;
    mp_blas_status status = finish(handle->stream);
    for (int row = 0; row < m && !status; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0, *to = &out[(size_t)column * (size_t)ldc + (size_t)row];
            for (int i = 0; i < k; i++)
                sum += element(a, a_type, op_a, lda, row, i) *
                       element(b, b_type, op_b, ldb, i, column);
            *to = scale * sum + (keep != 0 ? keep * *to : 0);
        }
    return status;
}
