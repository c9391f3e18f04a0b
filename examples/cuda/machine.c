/* Calls of the driver and of cuBLAS, and their failures. */
#include "cuda/machine.h"

#include "common/fail.h"

#define BLAS_WORKSPACE (32u << 20)

/* The kernels' fat binary: images.S places it. */
extern const unsigned char dense_fatbin[];

/* The first failure is the one to report: what follows it follows from it. */
static bool ok(machine *m, int result, const char *doing)
{
    const char *text = NULL;
    if (!result || m->code)
        return !m->code;
    if (m->driver.error_string(result, &text) || !text)
        text = "unknown error";
    m->code = m->fail(RUN_FAILED, "GPU: %s: %s (%d)", doing, text, result);
    return false;
}

/* ---- Set-up ------------------------------------------------------------------------------ */

static void find_kernels(machine *m)
{
#define NAME(name, args, shared, threads) "dense_" #name,
    static const char *const names[] = {GPU_ENTRIES(NAME)};
#undef NAME
    if (!ok(m, m->driver.module_load(&m->module, dense_fatbin), "loading the kernels"))
        return;
    for (uint32_t i = 0; i < MACHINE_KERNELS; i++)
        ok(m, m->driver.module_function(&m->kernels[i], m->module, names[i]), names[i]);
}

/* Products without cuBLAS are slower, not wrong: it is used where it can be. Its workspace is given
 * to it, so that it takes none of its own. */
static void open_blas(machine *m)
{
    if (!gpu_blas_load(&m->blas) || m->blas.create(&m->blas_handle)) {
        m->blas_handle = NULL;
        return;
    }
    void *workspace = machine_take(m, BLAS_WORKSPACE);
    if (!workspace || m->blas.set_stream(m->blas_handle, m->stream) ||
        m->blas.set_workspace(m->blas_handle, workspace, BLAS_WORKSPACE)) {
        m->blas.destroy(m->blas_handle);
        m->blas_handle = NULL;
    }
}

int machine_open(machine *m, uint32_t ordinal, bool cublas, dense_fail_fn *report)
{
    *m = (machine){.fail = report};
    const char *missing = gpu_driver_load(&m->driver);
    if (missing)
        return m->code =
                   report(RUN_REFUSED, "cuda:%u: no usable NVIDIA driver: %s", ordinal, missing);
    if (ok(m, m->driver.init(0), "starting the driver") &&
        ok(m, m->driver.device_get(&m->device, (int)ordinal), "finding the GPU") &&
        ok(m, m->driver.context_retain(&m->context, m->device), "opening the GPU") &&
        ok(m, m->driver.context_push(m->context), "opening the GPU"))
        m->current = true;
    if (m->current &&
        ok(m, m->driver.stream_create(&m->stream, GPU_STREAM_NON_BLOCKING, 0), "making a stream"))
        find_kernels(m);
    if (!m->code && cublas)
        open_blas(m);
    return m->code;
}

void machine_close(machine *m)
{
    gpu_context popped;
    if (m->stream)
        m->driver.stream_sync(m->stream);
    if (m->blas_handle)
        m->blas.destroy(m->blas_handle);
    for (uint32_t i = 0; i < m->n_taken; i++)
        m->driver.mem_free(m->taken[i]);
    for (uint32_t i = 0; i < m->n_pinned; i++)
        m->driver.host_free(m->pinned[i]);
    if (m->module)
        m->driver.module_unload(m->module);
    if (m->stream)
        m->driver.stream_destroy(m->stream);
    if (m->current)
        m->driver.context_pop(&popped);
    if (m->context)
        m->driver.context_release(m->device);
}

/* ---- Memory ------------------------------------------------------------------------------ */

void *machine_take(machine *m, size_t bytes)
{
    gpu_address taken = 0;
    if (m->code || m->n_taken == MACHINE_MAX_TAKEN)
        return NULL;
    int result = m->driver.mem_alloc(&taken, bytes ? bytes : 1);
    if (result == GPU_OUT_OF_MEMORY) {
        m->code =
            m->fail(RUN_FAILED,
                    "GPU: no room for %zu bytes beside the library's budget and %llu of dense "
                    "weights and activations: give less with --budget or --batch-prefill",
                    bytes, (unsigned long long)m->bytes);
        return NULL;
    }
    if (!ok(m, result, "taking memory"))
        return NULL;
    m->taken[m->n_taken++] = taken;
    m->bytes += bytes;
    return (void *)(uintptr_t)taken;
}

void *machine_take_pinned(machine *m, size_t bytes)
{
    void *taken = NULL;
    if (m->n_pinned == MACHINE_MAX_TAKEN ||
        !ok(m, m->driver.host_alloc(&taken, bytes ? bytes : 1, 0), "taking pinned memory"))
        return NULL;
    return m->pinned[m->n_pinned++] = taken;
}

/* ---- The stream -------------------------------------------------------------------------- */

void machine_copy(machine *m, void *to, const void *from, size_t bytes)
{
    if (bytes && !m->code)
        ok(m, m->driver.copy((uintptr_t)to, (uintptr_t)from, bytes, m->stream), "copying");
}

void machine_zero(machine *m, void *at, size_t bytes)
{
    if (bytes && !m->code)
        ok(m, m->driver.set_bytes((uintptr_t)at, 0, bytes, m->stream), "clearing memory");
}

void machine_launch(machine *m, machine_kernel kernel, uint64_t blocks, void *args)
{
#define THREADS(name, args, shared, threads) threads,
    static const unsigned n_threads[] = {GPU_ENTRIES(THREADS)};
#undef THREADS
    void *params[] = {args};
    if (!blocks || m->code)
        return;
    if (blocks > INT32_MAX) {
        m->code = m->fail(RUN_FAILED,
                          "GPU: a step needs %llu blocks of a kernel: give less with "
                          "--batch-prefill",
                          (unsigned long long)blocks);
        return;
    }
    ok(m,
       m->driver.launch(m->kernels[kernel], (unsigned)blocks, 1, 1, n_threads[kernel], 1, 1, 0,
                        m->stream, params, NULL),
       "launching a kernel");
}

void machine_gemm(machine *m, const void *w, const void *x, bool bf16, uint32_t rows,
                  uint32_t columns, uint32_t n, float *y, uint32_t y_stride)
{
    const float one = 1, zero = 0;
    const int type = bf16 ? GPU_BLAS_BF16 : GPU_BLAS_F32;
    if (m->code)
        return;
    /* cuBLAS counts columns first: there, w is [columns, rows] and y [rows, n]. */
    int status =
        m->blas.gemm(m->blas_handle, GPU_BLAS_T, GPU_BLAS_N, (int)rows, (int)n, (int)columns, &one,
                     w, type, (int)columns, x, type, (int)columns, &zero, y, GPU_BLAS_F32,
                     (int)y_stride, GPU_BLAS_COMPUTE_F32, GPU_BLAS_DEFAULT);
    if (status)
        m->code = m->fail(RUN_FAILED,
                          "GPU: cuBLAS failed with status %d; --cublas off does "
                          "without it",
                          status);
}

int machine_settle(machine *m)
{
    if (!m->code)
        ok(m, m->driver.stream_sync(m->stream), "running the model");
    return m->code;
}
