/* entries.h — all kernels, by name: X(name, arguments, shared memory, threads of a block). */
#ifndef EXAMPLE_CUDA_ENTRIES_H
#define EXAMPLE_CUDA_ENTRIES_H

#include "attend.h"
#include "linear.h"
#include "rows.h"

#define GPU_ENTRIES(X)                                                \
    X(embed, gpu_embed_args, gpu_nothing, GPU_ROW_THREADS)            \
    X(norm, gpu_norm_args, gpu_norm_shared, GPU_ROW_THREADS)          \
    X(each, gpu_each_args, gpu_nothing, GPU_ROW_THREADS)              \
    X(convert, gpu_convert_args, gpu_nothing, GPU_ROW_THREADS)        \
    X(turn, gpu_turn_args, gpu_nothing, GPU_ROW_THREADS)              \
    X(store, gpu_store_args, gpu_nothing, GPU_ROW_THREADS)            \
    X(linear, gpu_linear_args, gpu_linear_shared, GPU_LINEAR_THREADS) \
    X(attend, gpu_attend_args, gpu_attend_shared, GPU_ATTEND_THREADS)

#endif
