/* A GPU that is a function: see kernel_rig.h. */
#include "kernel_rig.h"

#include <stdlib.h>
#include <string.h>

#include "gpu_reach.h"
#include "kernels/quant.h"
#include "kernels/remap.h"
#include "kernels/rows.h"
#include "kernels/topk.h"
#include "numbers.h"

#define ENTRY(name, args, shared, thread, threads, blocks) MP_CPU_ENTRY(name, args, shared, thread)
#define ROW(name, args, shared, thread, threads, blocks) MP_CPU_ROW(name, args, shared, thread),

MP_QUANT_ENTRIES(ENTRY)
MP_ROWS_ENTRIES(ENTRY)
MP_TOPK_ENTRIES(ENTRY)
MP_REMAP_ENTRIES(ENTRY)
static const mp_cpu_kernel kernels[] = {MP_QUANT_ENTRIES(ROW) MP_ROWS_ENTRIES(ROW)
                                            MP_TOPK_ENTRIES(ROW) MP_REMAP_ENTRIES(ROW)};
#define N_KERNELS (sizeof kernels / sizeof kernels[0])

#define REMEMBERED 16u

static uint32_t launch_threads[REMEMBERED]; /* by launch */
static uint32_t n_launches, most_blocks;

static void *garbage(uint64_t bytes)
{
    uint64_t *words = malloc(bytes + 8); /* at least one word, zero bytes included */
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = 0x7ff4dead00000000u | num_random_bits(); /* a NaN, as floats or as one double */
    memset((char *)words + bytes / 8 * 8, 0x5a, bytes % 8 + 8);
    return realloc(words, bytes ? bytes : 1);
}

static uint32_t *shuffled(uint32_t n)
{
    uint32_t *order = malloc(n * sizeof *order);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = num_random_bits() % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

static void run_block(const mp_cpu_kernel *kernel, const void *args, uint32_t shared_bytes,
                      uint32_t block, uint32_t n_blocks, uint32_t n_threads)
{
    uint32_t *order = shuffled(n_threads);
    void *shared = garbage(shared_bytes);
    void *threads = garbage((uint64_t)kernel->thread_bytes * n_threads);
    const mp_cpu_block cpu = {n_threads, order};
    kernel->run(args, shared, threads, block, n_blocks, &cpu);
    free(threads);
    free(shared);
    free(order);
}

static mp_cu_result launch(mp_cu_function function, unsigned grid_x, unsigned grid_y,
                           unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared_bytes, mp_cu_stream stream, void **params, void **extra)
{
    const mp_cpu_kernel *kernel = (const void *)function;
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || block_x % 32 ||
        shared_bytes < kernel->shared_bytes || stream || extra)
        return MP_CU_INVALID_VALUE;
    launch_threads[n_launches++ % REMEMBERED] = block_x;
    void *args = malloc(kernel->args_bytes); /* by value, and no further */
    memcpy(args, params[0], kernel->args_bytes);
    const uint32_t n_blocks = grid_x < most_blocks ? grid_x : most_blocks;
    uint32_t *blocks = shuffled(n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++)
        run_block(kernel, args, shared_bytes, blocks[i], n_blocks, block_x);
    free(blocks);
    free(args);
    return MP_CU_SUCCESS;
}

/* ---- The same on a real GPU ---- */

static const mp_cuda_driver *real;

/* What the GPU is given is what the test's own function would be. */
static mp_cu_result launch_real(mp_cu_function function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, mp_cu_stream stream,
                                void **params, void **extra)
{
    launch_threads[n_launches++ % REMEMBERED] = block_x;
    mp_cu_result result =
        real->launch(function, grid_x < most_blocks ? grid_x : most_blocks, grid_y, grid_z, block_x,
                     block_y, block_z, shared_bytes, stream, params, extra);
    return result ? result : real->stream_sync(stream);
}

static mp_cuda *rig_on_gpu(uint32_t multiprocessors)
{
    static mp_cuda_driver driver;
    static mp_cuda cuda;
    mp_cuda *gpu = gpu_reach_cuda();
    real = gpu->driver;
    driver = *real;
    driver.launch = launch_real;
    memcpy((void *)&cuda, (const void *)gpu, sizeof cuda);
    cuda.driver = &driver;
    cuda.info.multiprocessors = multiprocessors;
    return &cuda;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mp_cuda_function *)a)->name, ((const mp_cuda_function *)b)->name);
}

mp_cuda *kernel_rig(uint32_t multiprocessors)
{
    static mp_cuda_driver driver;
    static mp_cuda cuda;
    n_launches = 0;
    most_blocks = UINT32_MAX;
    if (gpu_reach())
        return rig_on_gpu(multiprocessors);
    driver.launch = launch;
    cuda.driver = &driver;
    cuda.info.multiprocessors = multiprocessors;
    for (uint32_t i = 0; i < N_KERNELS; i++)
        cuda.kernels.functions[i] = (mp_cuda_function){
            .name = kernels[i].name,
            .handle = (mp_cu_function)(uintptr_t)&kernels[i],
            .shared_limit = 227u << 10,
        };
    cuda.kernels.n_functions = N_KERNELS;
    qsort(cuda.kernels.functions, N_KERNELS, sizeof cuda.kernels.functions[0], by_name);
    return &cuda;
}

void kernel_rig_cut(uint32_t n_blocks)
{
    most_blocks = n_blocks;
}

uint32_t kernel_rig_launches(void)
{
    return n_launches;
}

uint32_t kernel_rig_threads(uint32_t back)
{
    return launch_threads[(n_launches - 1 - back) % REMEMBERED];
}
