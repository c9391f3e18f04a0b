/* gpu.h — kernels that are written once: for a GPU, and as plain C for a test on the CPU.
 *
 * A kernel's logic is a function over one block of threads. Between GPU_EACH(t) and GPU_ALL its
 * statements run for every thread t; at GPU_ALL all threads have done theirs. What outlives a
 * GPU_ALL lies in *shared; variables outside GPU_EACH have one value for the whole block, and
 * decide what the block does. A test may visit threads and blocks in any order, and does. */
#ifndef EXAMPLE_CUDA_GPU_H
#define EXAMPLE_CUDA_GPU_H

#include <stdint.h>

#ifdef __CUDACC__

#define GPU_FN static __device__ __forceinline__
#define GPU_BLOCK(name, args_type, shared_type)                                                   \
    static __device__ __forceinline__ void gpu_##name(const args_type *args, shared_type *shared, \
                                                      const uint32_t block,                       \
                                                      const uint32_t n_blocks)
#define GPU_EACH(t)                     \
    {                                   \
        const uint32_t t = threadIdx.x; \
        (void)t;
#define GPU_ALL \
    }           \
    __syncthreads();
#define GPU_UNROLL _Pragma("unroll")

/* The entry of a block function: shared memory is part of the kernel, none is given at launch. */
#define GPU_ENTRY(name, args_type, shared_type, threads)                                         \
    extern "C" __global__ void __launch_bounds__(threads) dense_##name(const args_type by_value) \
    {                                                                                            \
        __shared__ shared_type memory;                                                           \
        gpu_##name(&by_value, &memory, blockIdx.x, gridDim.x);                                   \
    }

#else

#include <math.h>
#include <string.h>

/* How the CPU visits a block's threads: `order` is a permutation of them. */
typedef struct gpu_threads {
    uint32_t n;
    const uint32_t *order;
} gpu_threads;

#define GPU_FN static inline
#define GPU_BLOCK(name, args_type, shared_type)                                  \
    static inline void gpu_##name(const args_type *args, shared_type *shared,    \
                                  const uint32_t block, const uint32_t n_blocks, \
                                  const gpu_threads *threads)
#define GPU_EACH(t)                                   \
    for (uint32_t at_ = 0; at_ < threads->n; at_++) { \
        const uint32_t t = threads->order[at_];       \
        (void)t;
#define GPU_ALL }
#define GPU_UNROLL

#endif

/* ---- Numbers ----------------------------------------------------------------------------- */

enum { GPU_F32 = 1, GPU_F16 = 2, GPU_BF16 = 3 }; /* as MOEPAGE_DTYPE_* */

GPU_FN float gpu_of_bits(uint32_t bits)
{
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

GPU_FN uint32_t gpu_bits_of(float x)
{
#ifdef __CUDACC__
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

/* To nearest even; a NaN stays one. The upper half of the float. */
GPU_FN uint16_t gpu_to_bf16(float x)
{
    const uint32_t bits = gpu_bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Rebiasing by a product is exact for subnormals too; infinities and NaN have no larger exponent to
 * be multiplied to. */
GPU_FN float gpu_of_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u)
        return gpu_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    return gpu_of_bits(sign | gpu_bits_of(gpu_of_bits(magnitude << 13) * 0x1p112f));
}

/* Element i of a stored array, exactly. */
GPU_FN float gpu_load(const void *array, uint32_t dtype, uint64_t i)
{
    if (dtype == GPU_F32)
        return ((const float *)array)[i];
    const uint16_t half = ((const uint16_t *)array)[i];
    return dtype == GPU_BF16 ? gpu_of_bits((uint32_t)half << 16) : gpu_of_f16(half);
}

#endif
