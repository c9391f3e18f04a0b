/* A cuBLAS whose products are kernels of the simulated driver. */
#include "sim_blas.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/scalar.h"
#include "sim_cuda.h"
#include "testing.h"

#define WORKSPACE_ALIGN 256u
#define OPERAND_ALIGN 16u
#define ENDS 4096u /* bytes of a workspace that a product writes over, at either end */

struct cublasContext {
    mp_cu_module module;
    mp_cu_function product;
    mp_cu_stream stream;
    void *workspace; /* of the stream */
    size_t workspace_bytes;
    bool in_use; /* by a call: a handle is one thread's at a time */
    bool aimed;  /* at a stream, for a product of this thread's */
    pthread_t thread;
};

static struct {
    pthread_mutex_t lock;
    const mp_cuda_driver *driver;
    uint64_t calls[SIM_BLAS_CALLS], fail_at[SIM_BLAS_CALLS], products;
    mp_blas_status fail_with[SIM_BLAS_CALLS];
    uint32_t handles;
    _Atomic uint32_t wrong;
} sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void wrong(const char *what)
{
    fprintf(stderr, "simulated cuBLAS: %s\n", what);
    atomic_fetch_add(&sim.wrong, 1);
}

/* Counts a call: the status that it is to fail with, or success. */
static mp_blas_status begin(sim_blas_call call)
{
    pthread_mutex_lock(&sim.lock);
    bool fails = ++sim.calls[call] == sim.fail_at[call];
    pthread_mutex_unlock(&sim.lock);
    return fails ? sim.fail_with[call] : MP_BLAS_SUCCESS;
}

/* A handle's turn; a second thread inside is a mistake. */
static bool take(mp_blas_handle handle)
{
    pthread_mutex_lock(&sim.lock);
    bool well = handle && !handle->in_use;
    if (well)
        handle->in_use = true;
    pthread_mutex_unlock(&sim.lock);
    if (!well)
        wrong("a handle that is none, or that two threads use at once");
    return well;
}

static mp_blas_status give(mp_blas_handle handle, mp_blas_status result)
{
    pthread_mutex_lock(&sim.lock);
    handle->in_use = false;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* ---- The product ------------------------------------------------------------------------ */

typedef struct product_args {
    const void *const *a; /* [n_batch] k x m columns of BF16 */
    const void *const *b; /* [n_batch] k x n */
    void *const *c;       /* [n_batch] m x n of FP32 */
    unsigned char *workspace;
    uint64_t workspace_bytes;
    int m, n, k, n_batch;
} product_args;

static bool reaches(const void *at, uint64_t bytes)
{
    return (uintptr_t)at % OPERAND_ALIGN == 0 && sim_cuda_accessible(at, bytes);
}

static float dot(const uint16_t *a, const uint16_t *b, int k)
{
    float sum = 0;
    for (int i = k; i-- > 0;)
        sum += mp_scalar_from_bf16(a[i]) * mp_scalar_from_bf16(b[i]);
    return sum;
}

static void run_product(const void *by_value, void *shared, void *threads, uint32_t block,
                        uint32_t n_blocks, const mp_cpu_block *cpu)
{
    const product_args *args = by_value;
    const size_t m = (size_t)args->m, n = (size_t)args->n, k = (size_t)args->k;
    (void)shared, (void)threads, (void)n_blocks, (void)cpu;
    memset(args->workspace, 0xff, ENDS);
    memset(args->workspace + args->workspace_bytes - ENDS, 0xff, ENDS);
    const uint16_t *a = args->a[block], *b = args->b[block];
    float *c = args->c[block];
    if (!reaches(a, 2 * m * k) || !reaches(b, 2 * n * k) || !reaches(c, 4 * m * n)) {
        wrong("a matrix that is not aligned, or not the GPU's");
        return;
    }
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m; i++)
            c[j * m + i] = dot(a + i * k, b + j * k, args->k);
    }
}

static const mp_cpu_kernel kernels[] = {
    {"sim_blas_product", sizeof(product_args), 0, 0, run_product, 1},
    {0},
};

/* ---- The table -------------------------------------------------------------------------- */

static mp_blas_status do_create(mp_blas_handle *out)
{
    mp_blas_status result = begin(SIM_BLAS_create);
    if (result)
        return result;
    mp_blas_handle handle = calloc(1, sizeof *handle);
    if (sim.driver->module_load(&handle->module, kernels) ||
        sim.driver->module_function(&handle->product, handle->module, kernels[0].name)) {
        free(handle);
        return MP_BLAS_NOT_INITIALIZED; /* no context is current */
    }
    pthread_mutex_lock(&sim.lock);
    sim.handles++;
    pthread_mutex_unlock(&sim.lock);
    *out = handle;
    return MP_BLAS_SUCCESS;
}

static mp_blas_status do_destroy(mp_blas_handle handle)
{
    mp_blas_status result = begin(SIM_BLAS_destroy);
    if (!take(handle))
        return MP_BLAS_NOT_INITIALIZED;
    if (sim.driver->module_unload(handle->module))
        wrong("a handle is destroyed without its context");
    free(handle);
    pthread_mutex_lock(&sim.lock);
    sim.handles--;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static mp_blas_status do_version(mp_blas_handle handle, int *version)
{
    mp_blas_status result = begin(SIM_BLAS_version);
    (void)handle;
    if (!result)
        *version = 130000;
    return result;
}

static mp_blas_status do_set_stream(mp_blas_handle handle, mp_cu_stream stream)
{
    mp_blas_status result = begin(SIM_BLAS_set_stream);
    if (result || !take(handle))
        return result ? result : MP_BLAS_NOT_INITIALIZED;
    if (handle->aimed && !pthread_equal(handle->thread, pthread_self()))
        wrong("two threads aim a handle at their streams at once");
    handle->aimed = true;
    handle->thread = pthread_self();
    handle->stream = stream;
    handle->workspace = NULL;
    give(handle, MP_BLAS_SUCCESS);
    sched_yield(); /* whoever does not lock is seen */
    return MP_BLAS_SUCCESS;
}

static mp_blas_status do_set_workspace(mp_blas_handle handle, void *workspace, size_t bytes)
{
    mp_blas_status result = begin(SIM_BLAS_set_workspace);
    if (result || !take(handle))
        return result ? result : MP_BLAS_NOT_INITIALIZED;
    if (!workspace || (uintptr_t)workspace % WORKSPACE_ALIGN || bytes < 2 * ENDS ||
        !sim_cuda_accessible(workspace, bytes))
        return wrong("a workspace that is no use"), give(handle, MP_BLAS_INVALID_VALUE);
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return give(handle, MP_BLAS_SUCCESS);
}

/* Is it one of the products that this library is for: FP32 = BF16 transposed times BF16, with
 * columns that follow each other? */
static bool is_known(int op_a, int op_b, int m, int n, int k, const float *alpha, int a_type,
                     int lda, int b_type, int ldb, const float *beta, int c_type, int ldc,
                     int n_batch, int compute)
{
    return op_a == MP_BLAS_OP_T && op_b == MP_BLAS_OP_N && m > 0 && n > 0 && k > 0 && k % 8 == 0 &&
           m % 8 == 0 && *alpha == 1 && *beta == 0 && a_type == MP_BLAS_R_16BF &&
           b_type == MP_BLAS_R_16BF && c_type == MP_BLAS_R_32F && lda == k && ldb == k &&
           ldc == m && n_batch > 0 && compute == MP_BLAS_COMPUTE_32F;
}

static mp_blas_status submit(mp_blas_handle handle, const product_args *args)
{
    void *parameters[] = {(void *)(uintptr_t)args};
    mp_cu_result result = sim.driver->launch(handle->product, (unsigned)args->n_batch, 1, 1, 1, 1,
                                             1, 0, handle->stream, parameters, NULL);
    return result ? MP_BLAS_EXECUTION_FAILED : MP_BLAS_SUCCESS;
}

static mp_blas_status do_gemm_batched(mp_blas_handle handle, int op_a, int op_b, int m, int n,
                                      int k, const void *alpha, const void *const *a, int a_type,
                                      int lda, const void *const *b, int b_type, int ldb,
                                      const void *beta, void *const *c, int c_type, int ldc,
                                      int n_batch, int compute, int algorithm)
{
    mp_blas_status result = begin(SIM_BLAS_gemm_batched);
    if (result || !take(handle))
        return result ? result : MP_BLAS_NOT_INITIALIZED;
    const uint64_t bytes = (uint64_t)n_batch * sizeof(void *);
    handle->aimed = false;
    if (!is_known(op_a, op_b, m, n, k, alpha, a_type, lda, b_type, ldb, beta, c_type, ldc, n_batch,
                  compute) ||
        algorithm != MP_BLAS_DEFAULT)
        return wrong("another product than is expected"), give(handle, MP_BLAS_INVALID_VALUE);
    if (!sim_cuda_accessible((const void *)a, bytes) ||
        !sim_cuda_accessible((const void *)b, bytes) ||
        !sim_cuda_accessible((const void *)c, bytes))
        return wrong("pointers that no GPU reaches"), give(handle, MP_BLAS_INVALID_VALUE);
    if (!handle->workspace)
        return wrong("no workspace for this stream"), give(handle, MP_BLAS_INVALID_VALUE);
    pthread_mutex_lock(&sim.lock);
    sim.products += (uint64_t)n_batch;
    pthread_mutex_unlock(&sim.lock);
    product_args args = {a, b, c, handle->workspace, handle->workspace_bytes, m, n, k, n_batch};
    return give(handle, submit(handle, &args));
}

/* ---- For tests -------------------------------------------------------------------------- */

const mp_cuda_blas *sim_blas_open(const mp_cuda_driver *driver)
{
    static const mp_cuda_blas table = {
#define FIELD(field, symbol, parameters) .field = do_##field,
        MP_BLAS_FUNCTIONS(FIELD)
#undef FIELD
            .loaded_version = 130000};
    sim.driver = driver;
    sim.products = 0;
    memset(sim.calls, 0, sizeof sim.calls);
    memset(sim.fail_at, 0, sizeof sim.fail_at);
    return &table;
}

void sim_blas_close(void)
{
    if (sim.handles || atomic_load(&sim.wrong))
        fail_msg("cuBLAS: %u handles are left, %u things were wrong", sim.handles,
                 atomic_load(&sim.wrong));
}

void sim_blas_fail(sim_blas_call call, uint64_t nth, mp_blas_status result)
{
    pthread_mutex_lock(&sim.lock);
    sim.fail_at[call] = sim.calls[call] + nth;
    sim.fail_with[call] = result;
    pthread_mutex_unlock(&sim.lock);
}

uint64_t sim_blas_calls(sim_blas_call call)
{
    pthread_mutex_lock(&sim.lock);
    uint64_t n = sim.calls[call];
    pthread_mutex_unlock(&sim.lock);
    return n;
}

uint64_t sim_blas_products(void)
{
    pthread_mutex_lock(&sim.lock);
    uint64_t n = sim.products;
    pthread_mutex_unlock(&sim.lock);
    return n;
}
