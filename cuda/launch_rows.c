/* The grid of the kernel that moves rows. */
#include "kernels/rows.h"
#include "launch.h"

/* The widest vector that all addresses, and the row's size, are multiples of. */
static uint32_t vector_width(const mp_gpu_rows_args *gpu, uint32_t row_bytes)
{
    const uint64_t all = (uint64_t)(uintptr_t)gpu->in | (uint64_t)(uintptr_t)gpu->out |
                         gpu->in_stride | gpu->out_stride | row_bytes;
    uint32_t width = 16;
    while (all % width)
        width /= 2;
    return width;
}

/* A warp for rows of up to MP_ROWS_UNROLL vectors a thread; more for longer ones. */
static uint32_t threads_per_row(uint32_t vectors)
{
    uint32_t team = 1;
    while (team < vectors && team < MP_ROWS_THREADS &&
           (team < 32 || (uint64_t)team * MP_ROWS_UNROLL < vectors))
        team *= 2;
    return team;
}

static moepage_status move(mp_cuda *cuda, mp_cu_stream stream, const moepage_cuda_rows *args,
                           uint32_t scatter)
{
    if (!args->n)
        return MOEPAGE_OK;
    mp_gpu_rows_args gpu = {
        .index = args->index,
        .in = args->in,
        .out = args->out,
        .in_stride = args->in_stride ? args->in_stride : args->row_bytes,
        .out_stride = args->out_stride ? args->out_stride : args->row_bytes,
        .n = args->n,
        .limit = args->limit,
        .scatter = scatter,
    };
    gpu.width = vector_width(&gpu, args->row_bytes);
    gpu.vectors = args->row_bytes / gpu.width;
    gpu.team = threads_per_row(gpu.vectors);
    const uint32_t rows = MP_ROWS_THREADS / gpu.team;
    const uint32_t blocks = gpu.n / rows + (gpu.n % rows != 0);
    return mp_cuda_launch(cuda, stream, "mp_gpu_rows", mp_cuda_grid(blocks), MP_ROWS_THREADS,
                          sizeof(mp_gpu_rows_shared), &gpu);
}

moepage_status mp_cuda_call_gather(mp_cuda *cuda, mp_cu_stream stream,
                                   const moepage_cuda_rows *args)
{
    return move(cuda, stream, args, 0);
}

moepage_status mp_cuda_call_scatter(mp_cuda *cuda, mp_cu_stream stream,
                                    const moepage_cuda_rows *args)
{
    return move(cuda, stream, args, 1);
}
