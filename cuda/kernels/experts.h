/* experts.h — every entry of the expert kernels: three forms, each for every type of weights. */
#ifndef MP_KERNELS_EXPERTS_H
#define MP_KERNELS_EXPERTS_H

#include "experts_mma.h"
#include "experts_plain.h"

/* X(entry, form, weights' dtype, aligned, shared struct, thread struct, blocks): blocks of a
 * multiprocessor that the registers are shared among. */
#define MP_EXPERTS_KERNELS(X)                          \
    MP_EXPERTS_FORM(X, thin, MP_EXPERTS_THIN_BLOCKS)   \
    MP_EXPERTS_FORM(X, broad, MP_EXPERTS_BROAD_BLOCKS) \
    MP_EXPERTS_FORM(X, plain, MP_EXPERTS_PLAIN_BLOCKS) \
    MP_EXPERTS_ANY(X, thin, MP_EXPERTS_THIN_BLOCKS)    \
    MP_EXPERTS_ANY(X, plain, MP_EXPERTS_PLAIN_BLOCKS)
#define MP_EXPERTS_FORM(X, form, blocks)                        \
    MP_EXPERTS_KERNEL(X, form, f32, MP_SCALAR_F32, 1, blocks)   \
    MP_EXPERTS_KERNEL(X, form, f16, MP_SCALAR_F16, 1, blocks)   \
    MP_EXPERTS_KERNEL(X, form, bf16, MP_SCALAR_BF16, 1, blocks) \
    MP_EXPERTS_KERNEL(X, form, f8, MP_EXPERTS_F8, 1, blocks)    \
    MP_CODED_FORMATS(MP_EXPERTS_CODED, X, form, blocks)
#define MP_EXPERTS_CODED(suffix, name, value, X, form, blocks) \
    MP_EXPERTS_KERNEL(X, form, suffix, MP_CODED_##name, 1, blocks)
/* The mask says that these are not coded. */
#define MP_EXPERTS_ANY(X, form, blocks) MP_EXPERTS_KERNEL(X, form, any, args->dtype & 7u, 0, blocks)
#define MP_EXPERTS_KERNEL(X, form, suffix, dtype, aligned, blocks)                 \
    X(experts_##form##_##suffix, form, dtype, aligned, mp_experts_##form##_shared, \
      mp_experts_##form##_thread, blocks)

#define MP_EXPERTS_BLOCK(entry, form, dtype, aligned, shared_type, thread_type, blocks) \
    MP_GPU void mp_gpu_##entry##_block(                                                 \
        MP_BLOCK_PARAMETERS(mp_gpu_experts_args, shared_type, thread_type))             \
    {                                                                                   \
        mp_experts_##form(dtype, aligned, MP_BLOCK_PASS(block, n_blocks));              \
    }
MP_EXPERTS_KERNELS(MP_EXPERTS_BLOCK)
#undef MP_EXPERTS_BLOCK

#endif
