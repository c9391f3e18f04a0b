/* Experts of many rows by cuBLAS: kernels/fast_args.h has the steps. */
#include "fast.h"

#include "base/status.h"
#include "kernels/fast_args.h"
#include "launch.h"

/* ---- The library ------------------------------------------------------------------------ */

static const char *name_of(mp_blas_status result)
{
    switch (result) {
    case MP_BLAS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case MP_BLAS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case MP_BLAS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case MP_BLAS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case MP_BLAS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case MP_BLAS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case MP_BLAS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case MP_BLAS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "an unknown error";
    }
}

static moepage_status check(const mp_cuda *cuda, mp_blas_status result, const char *what)
{
    moepage_status status = MOEPAGE_E_DEVICE;
    if (result == MP_BLAS_SUCCESS)
        return MOEPAGE_OK;
    if (result == MP_BLAS_ALLOC_FAILED)
        status = MOEPAGE_E_NO_MEMORY;
    else if (result == MP_BLAS_NOT_SUPPORTED || result == MP_BLAS_ARCH_MISMATCH)
        status = MOEPAGE_E_UNSUPPORTED;
    return mp_fail(status, "%s: %s failed: %s (cuBLAS status %d)", cuda->name, what,
                   name_of(result), result);
}

static moepage_status create_handle(mp_cuda *cuda)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&cuda->fast.lock);
    if (!cuda->fast.handle) {
        mp_blas_handle handle = NULL;
        mp_cuda_count_memory_call(cuda);
        status = check(cuda, cuda->blas->create(&handle), "starting cuBLAS");
        if (!status) {
            cuda->fast.handle = handle;
            atomic_store(&cuda->fast.is_ready, true);
        }
    }
    pthread_mutex_unlock(&cuda->fast.lock);
    return status;
}

moepage_status mp_cuda_fast_open(mp_device *device, bool *is_there)
{
    mp_cuda *cuda = mp_cuda_of(device);
    *is_there = false;
    if (!cuda->blas)
        return MOEPAGE_OK;
    moepage_status status = mp_cuda_check_health(cuda);
    if (!status)
        status = mp_cuda_enter(cuda);
    if (status)
        return status;
    status = create_handle(cuda);
    mp_cuda_leave(cuda);
    if (!status)
        *is_there = atomic_load(&cuda->fast.is_ready);
    return status;
}

void mp_cuda_fast_close(mp_cuda *cuda)
{
    if (!cuda->fast.handle)
        return;
    mp_blas_status result = cuda->blas->destroy(cuda->fast.handle);
    if (result)
        mp_log_write(&cuda->device.log, MOEPAGE_LOG_WARNING,
                     "%s: ending cuBLAS failed: %s (cuBLAS status %d)", cuda->name, name_of(result),
                     result);
    cuda->fast.handle = NULL;
}

/* ---- A batch ---------------------------------------------------------------------------- */

typedef struct batch {
    mp_cuda *cuda;
    mp_cu_stream stream;
    void *library; /* the library's own scratch */
    uint32_t capacity;
    mp_gpu_fast_args args;
} batch;

/* Runs `n` of the batch's products from `first` on: sums[m] = weights[m][k] times a chunk's
 * activations. cuBLAS reads matrices column by column: to it the weights are transposed, and so is
 * the result. */
static moepage_status multiply(const batch *b, uint32_t first, uint32_t n, uint32_t m, uint32_t k,
                               const char *what)
{
    const mp_cuda_blas *blas = b->cuda->blas;
    const mp_blas_handle handle = b->cuda->fast.handle;
    const float one = 1, zero = 0;
    pthread_mutex_lock(&b->cuda->fast.lock);
    mp_blas_status result = blas->set_stream(handle, b->stream);
    if (!result) /* setting a stream resets the workspace */
        result = blas->set_workspace(handle, b->library, MP_FAST_LIBRARY_BYTES);
    if (!result)
        result = blas->gemm_batched(handle, MP_BLAS_OP_T, MP_BLAS_OP_N, (int)m, (int)MP_FAST_ROWS,
                                    (int)k, &one, b->args.weights + first, MP_BLAS_R_16BF, (int)k,
                                    b->args.activations + first, MP_BLAS_R_16BF, (int)k, &zero,
                                    b->args.sums + first, MP_BLAS_R_32F, (int)m, (int)n,
                                    MP_BLAS_COMPUTE_32F, MP_BLAS_DEFAULT);
    pthread_mutex_unlock(&b->cuda->fast.lock);
    return check(b->cuda, result, what);
}

static moepage_status launch(const batch *b, const char *name, uint32_t columns, uint32_t each)
{
    const uint64_t n = (uint64_t)b->args.n_chunks * MP_FAST_ROWS * ((columns - 1) / each + 1);
    return mp_cuda_launch(b->cuda, b->stream, name, mp_cuda_grid(n), MP_FAST_THREADS,
                          MP_FAST_SHARED, &b->args);
}

static moepage_status run(const batch *b)
{
    const uint32_t n = b->args.n_chunks, h = b->args.hidden, i = b->args.intermediate;
    moepage_status status = launch(b, "mp_gpu_fast_gather", h, MP_FAST_GATHER_COLUMNS);
    if (!status)
        status = multiply(b, 0, 2 * n, i, h, "the products of gate and up");
    if (!status)
        status = launch(b, "mp_gpu_fast_swiglu", i, MP_FAST_COLUMNS);
    if (!status)
        status = multiply(b, 2 * n, n, h, i, "the products of down");
    if (!status)
        status = launch(b, "mp_gpu_fast_scatter", h, MP_FAST_COLUMNS);
    return status;
}

/* ---- A launch --------------------------------------------------------------------------- */

/* Divides the scratch: cuBLAS's workspace; pointers, operands and results of `capacity` chunks. */
static void cut(batch *b, void *scratch)
{
    const uint64_t h = b->args.hidden, i = b->args.intermediate, n = b->capacity;
    const uintptr_t aligned =
        ((uintptr_t)scratch + MP_FAST_ALIGN - 1) / MP_FAST_ALIGN * MP_FAST_ALIGN;
    unsigned char *at = (unsigned char *)scratch + (aligned - (uintptr_t)scratch);
    _Static_assert(9 * sizeof(void *) <= MP_FAST_ALIGN, "three pointers to each of three products");
    b->library = at;
    at += MP_FAST_LIBRARY_BYTES;
    b->args.weights = (const void **)(void *)at;
    b->args.activations = b->args.weights + 3 * n;
    b->args.sums = (void **)(void *)(at + 6 * n * sizeof(void *));
    at += n * MP_FAST_ALIGN;
    b->args.operands = at;
    at += n * MP_FAST_ROWS * 2 * (h > i ? h : i);
    b->args.results = (float *)(void *)at;
}

static bool is_many(const mp_ffn_expert *expert)
{
    return expert->n_rows >= MP_FAST_LEAST_ROWS;
}

static moepage_status run_all(batch *b, const mp_kernel_experts_args *host)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t e = 0; e < host->n_experts; e++) {
        const uint32_t n_rows = is_many(&host->experts[e]) ? host->experts[e].n_rows : 0;
        for (uint32_t first = 0; first < n_rows; first += MP_FAST_ROWS) {
            b->args.chunks[b->args.n_chunks++] = (mp_fast_chunk){e, first};
            if (b->args.n_chunks == b->capacity) {
                status = run(b);
                b->args.n_chunks = 0;
            }
            if (status)
                return status;
        }
    }
    return b->args.n_chunks ? run(b) : MOEPAGE_OK;
}

static bool is_plain_bf16(const mp_kernel_experts_args *host)
{
    return mp_experts_dtype(host) == MOEPAGE_DTYPE_BF16 && !mp_quant_bits_of(host->form) &&
           (!host->bias_dtype || host->bias_dtype == MOEPAGE_DTYPE_BF16) &&
           host->activation.kind == MOEPAGE_ACTIVATION_SWIGLU;
}

bool mp_cuda_fast_takes(mp_cuda *cuda, const mp_kernel_experts_args *host)
{
    uintptr_t bits = (uintptr_t)host->x | (uintptr_t)host->partial;
    bool any = false;
    if (host->math != MOEPAGE_MATH_BF16_FAST || !is_plain_bf16(host) || !host->scratch ||
        !mp_fast_serves(host->hidden, host->intermediate) ||
        !mp_fast_capacity(host->scratch_bytes, host->hidden, host->intermediate) ||
        !atomic_load(&cuda->fast.is_ready))
        return false;
    for (uint32_t e = 0; e < host->n_experts; e++) {
        const mp_ffn_expert *expert = &host->experts[e];
        if (!is_many(expert))
            continue;
        any = true;
        bits |= (uintptr_t)expert->gate | (uintptr_t)expert->up | (uintptr_t)expert->down;
    }
    return any && bits % 16 == 0;
}

moepage_status mp_cuda_fast_launch(mp_cuda *cuda, mp_cu_stream stream,
                                   const mp_kernel_experts_args *host,
                                   const mp_kernel_experts_args *gpu)
{
    batch b = {
        .cuda = cuda,
        .stream = stream,
        .capacity = mp_fast_capacity(host->scratch_bytes, host->hidden, host->intermediate),
        .args = {.x = gpu->x,
                 .experts = (const mp_gpu_expert *)(const void *)gpu->experts,
                 .rows = gpu->rows,
                 .partial = gpu->partial,
                 .top_k = host->top_k,
                 .hidden = host->hidden,
                 .intermediate = host->intermediate},
    };
    cut(&b, gpu->scratch);
    moepage_status status = run_all(&b, host);
    if (status == MOEPAGE_E_UNSUPPORTED && atomic_exchange(&cuda->fast.is_ready, false))
        mp_log_write(&cuda->device.log, MOEPAGE_LOG_WARNING,
                     "%s; MATH_BF16_FAST runs as MATH_BF16 from now on", moepage_last_error());
    return status;
}
