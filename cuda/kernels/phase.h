/* phase.h — how a kernel is written once and runs twice: on a GPU, and in a test on the CPU.
 *
 * A kernel's logic is a plain function over one block, in the common subset of C11 and CUDA C++,
 * without library headers. It is a sequence of phases; in a phase every thread of the block runs
 * the same statements, and between phases all threads of the block wait for each other:
 *
 *     MP_GPU void mp_gpu_scale_block(MP_BLOCK_PARAMETERS(mp_gpu_scale_args, mp_gpu_scale_shared,
 *                                                        mp_gpu_scale_thread))
 *     {
 *         MP_PHASE { self->x = args->in[block * MP_THREADS + thread]; }
 *         MP_PHASE_END
 *         for (uint32_t i = 0; i < args->n; i++) {      control flow between phases is the same
 *             MP_PHASE { shared->sum[thread] = self->x; }   for all threads of the block
 *             MP_PHASE_END
 *         }
 *     }
 *
 * On a GPU a phase is its statements followed by a barrier, `self` is a thread's own registers and
 * `thread` its index. On the CPU a phase is a loop over the threads in the order that `order` gives
 * (tests shuffle it: code that depends on the order of threads inside a phase is wrong and shows),
 * and `self` points into an array. What a thread keeps from one phase to the next lives in *self;
 * `shared` is the block's shared memory.
 *
 * Warp-wide operations (shuffles, matrix fragments) are MP_WARP_PHASEs: the statements run once per
 * warp on the CPU, with `warp` its index and MP_LANE(l) the *self of its lane l, and once per
 * thread on a GPU; each family that needs one defines both forms next to each other and tests them
 * against the same plain definition. */
#ifndef MP_KERNELS_PHASE_H
#define MP_KERNELS_PHASE_H

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
#define UINT64_MAX 0xffffffffffffffffull
#else
#include <stdint.h>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define MP_ON_GPU 1
#define MP_GPU static __device__ __forceinline__
#define MP_BLOCK_PARAMETERS(args_type, shared_type, thread_type)                         \
    const args_type *args, shared_type *shared, thread_type *self, const uint32_t block, \
        const uint32_t n_blocks, const uint32_t thread
#define MP_PHASE {
#define MP_PHASE_END \
    }                \
    __syncthreads();

/* The __global__ entry of a block function: one by-value argument struct, dynamic shared memory.
 * Use inside extern "C". `bounds`: __launch_bounds__'s arguments, in parentheses. */
#define MP_GPU_ENTRY(name, args_type, shared_type, thread_type, bounds) \
    MP_GPU_ENTRY_OF(name, const args_type, shared_type, thread_type, bounds)
/* Of arguments with tables inside (small_tables.h): their address may be taken. */
#define MP_GPU_TABLES_ENTRY(name, args_type, shared_type, thread_type, bounds) \
    MP_GPU_ENTRY_OF(name, const __grid_constant__ args_type, shared_type, thread_type, bounds)
#define MP_GPU_ENTRY_OF(name, args_type, shared_type, thread_type, bounds)               \
    __global__ void __launch_bounds__ bounds mp_gpu_##name(args_type by_value)           \
    {                                                                                    \
        extern __shared__ __align__(128) unsigned char mp_dynamic_shared[];              \
        thread_type own;                                                                 \
        mp_gpu_##name##_block(&by_value, (shared_type *)(void *)mp_dynamic_shared, &own, \
                              blockIdx.x, gridDim.x, threadIdx.x);                       \
    }

#else

#define MP_ON_GPU 0
#define MP_GPU static inline

/* A block being run by the CPU: blocks of `n_threads`, visited in `order` (a permutation). */
typedef struct mp_cpu_block {
    uint32_t n_threads;
    const uint32_t *order;
} mp_cpu_block;

#define MP_BLOCK_PARAMETERS(args_type, shared_type, thread_type)                            \
    const args_type *args, shared_type *shared, thread_type *threads, const uint32_t block, \
        const uint32_t n_blocks, const mp_cpu_block *cpu
#define MP_PHASE                                                \
    for (uint32_t mp_at = 0; mp_at < cpu->n_threads; mp_at++) { \
        const uint32_t thread = cpu->order[mp_at];              \
        __typeof__(threads) self = &threads[thread];            \
        (void)self;
#define MP_PHASE_END }

/* Runs the block in another way than its CPU form, if there is one: tests/ptx. Returns whether it has. */
int mp_cpu_elsewhere(const char *name, const void *args, uint32_t args_bytes, uint32_t shared_bytes,
                     uint32_t block, uint32_t n_blocks, const mp_cpu_block *cpu);

/* The function that the simulated driver calls for a kernel, defined with MP_CPU_ENTRY in
 * a test-support file. */
#define MP_CPU_ENTRY(name, args_type, shared_type, thread_type)                                   \
    static void mp_cpu_##name(const void *by_value, void *shared_bytes, void *thread_bytes,       \
                              uint32_t block, uint32_t n_blocks, const mp_cpu_block *cpu)         \
    {                                                                                             \
        if (mp_cpu_elsewhere("mp_gpu_" #name, by_value, sizeof(args_type), sizeof(shared_type),   \
                             block, n_blocks, cpu))                                               \
            return;                                                                               \
        mp_gpu_##name##_block(by_value, (shared_type *)shared_bytes, (thread_type *)thread_bytes, \
                              block, n_blocks, cpu);                                              \
    }
#define MP_CPU_ROW(name, args_type, shared_type, thread_type) \
    MP_CPU_BOUND_ROW(name, args_type, shared_type, thread_type, 0)
#define MP_CPU_BOUND_ROW(name, args_type, shared_type, thread_type, most_threads)     \
    {                                                                                 \
        "mp_gpu_" #name, sizeof(args_type), sizeof(shared_type), sizeof(thread_type), \
            mp_cpu_##name, most_threads                                               \
    }

/* A row of the table that the simulated driver is given. */
typedef struct mp_cpu_kernel {
    const char *name; /* of the __global__ entry */
    uint32_t args_bytes, shared_bytes, thread_bytes;
    void (*run)(const void *args, void *shared, void *threads, uint32_t block, uint32_t n_blocks,
                const mp_cpu_block *cpu);
    uint32_t most_threads; /* of a block: its launch bound; 0 = any number */
} mp_cpu_kernel;

#endif

#endif
