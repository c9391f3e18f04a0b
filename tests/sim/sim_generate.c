/* The kernels of examples/cuda for the simulated driver: their blocks have shared memory of their
 * own, full of garbage, and keep nothing in registers from one phase to the next. */
#include "sim_generate.h"

#include "cuda/entries.h"

#define RUN(name, args_type, shared_type, threads)                                          \
    static void run_##name(const void *args, void *shared, void *registers, uint32_t block, \
                           uint32_t n_blocks, const mp_cpu_block *cpu)                      \
    {                                                                                       \
        shared_type memory;                                                                 \
        const gpu_threads visited = {cpu->n_threads, cpu->order};                           \
        (void)shared, (void)registers;                                                      \
        memset(&memory, 0xff, sizeof memory);                                               \
        gpu_##name(args, &memory, block, n_blocks, &visited);                               \
    }
#define ROW(name, args_type, shared_type, threads) \
    {"dense_" #name, sizeof(args_type), 0, 0, run_##name, threads},

GPU_ENTRIES(RUN)

const mp_cpu_kernel sim_generate_kernels[] = {GPU_ENTRIES(ROW){0}};
