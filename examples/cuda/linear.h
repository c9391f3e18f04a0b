/* linear.h — y = w x + bias for a few rows of x, weights read as they are stored: what a decode
 * step needs, and every step where cuBLAS is not used.
 *
 * A block takes GPU_LINEAR_OUT rows of w and GPU_LINEAR_ROWS rows of x. 32 threads share a row of
 * w: each takes every 32nd group of four columns, so that neighbours read neighbouring bytes, and
 * each number of w, once read, meets all rows of x. The 32 sums are then added in one order: an
 * element of y depends on its row of x and of w alone. */
#ifndef EXAMPLE_CUDA_LINEAR_H
#define EXAMPLE_CUDA_LINEAR_H

#include "gpu.h"

#define GPU_LINEAR_LANES 32u
#define GPU_LINEAR_OUT 4u
#define GPU_LINEAR_ROWS 8u
#define GPU_LINEAR_THREADS 128

typedef struct gpu_linear_args {
    const float *x;    /* [n_rows][columns] */
    const void *w;     /* [n_out][columns] */
    const float *bias; /* [n_out], or NULL */
    float *y;          /* [n_rows][n_out] */
    uint32_t n_rows;
    uint32_t n_out;
    uint32_t columns;
    uint32_t dtype; /* of w */
} gpu_linear_args;

typedef struct gpu_linear_shared {
    float part[GPU_LINEAR_OUT][GPU_LINEAR_ROWS][GPU_LINEAR_LANES + 1]; /* + 1: banks */
} gpu_linear_shared;

/* Blocks of a launch. */
GPU_FN uint64_t gpu_linear_blocks(uint32_t n_rows, uint32_t n_out)
{
    return (uint64_t)((n_rows + GPU_LINEAR_ROWS - 1) / GPU_LINEAR_ROWS) *
           ((n_out + GPU_LINEAR_OUT - 1) / GPU_LINEAR_OUT);
}

/* Four numbers of w from index i on, which is a multiple of 4 in an array that is 16-byte
 * aligned. */
GPU_FN void gpu_load4(const void *w, uint32_t dtype, uint64_t i, float out[4])
{
#ifdef __CUDACC__
    if (dtype == GPU_F32) {
        const float4 x = *(const float4 *)((const float *)w + i);
        out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
        return;
    }
    const ushort4 x = *(const ushort4 *)((const uint16_t *)w + i);
    const uint16_t half[4] = {x.x, x.y, x.z, x.w};
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++)
        out[j] = dtype == GPU_BF16 ? gpu_of_bits((uint32_t)half[j] << 16) : gpu_of_f16(half[j]);
#else
    for (uint32_t j = 0; j < 4; j++)
        out[j] = gpu_load(w, dtype, i + j);
#endif
}

/* Adds the products of one stretch of columns to the sums of all rows. */
GPU_FN void gpu_linear_four(const gpu_linear_args *args, uint64_t w_row, uint32_t first_row,
                            uint32_t column, float sum[GPU_LINEAR_ROWS])
{
    float w[4], x[4];
    gpu_load4(args->w, args->dtype, w_row + column, w);
    GPU_UNROLL
    for (uint32_t r = 0; r < GPU_LINEAR_ROWS; r++) {
        if (first_row + r >= args->n_rows)
            continue;
        gpu_load4(args->x, GPU_F32, (uint64_t)(first_row + r) * args->columns + column, x);
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            sum[r] += w[j] * x[j];
    }
}

GPU_FN void gpu_linear_one(const gpu_linear_args *args, uint64_t w_row, uint32_t first_row,
                           uint32_t column, float sum[GPU_LINEAR_ROWS])
{
    const float w = gpu_load(args->w, args->dtype, w_row + column);
    GPU_UNROLL
    for (uint32_t r = 0; r < GPU_LINEAR_ROWS; r++)
        if (first_row + r < args->n_rows)
            sum[r] += w * args->x[(uint64_t)(first_row + r) * args->columns + column];
}

GPU_BLOCK(linear, gpu_linear_args, gpu_linear_shared)
{
    const uint32_t groups = (args->n_out + GPU_LINEAR_OUT - 1) / GPU_LINEAR_OUT;
    const uint32_t first_out = block % groups * GPU_LINEAR_OUT;
    const uint32_t first_row = block / groups * GPU_LINEAR_ROWS;
    (void)n_blocks;
    GPU_EACH(t)
        const uint32_t lane = t % GPU_LINEAR_LANES, o = t / GPU_LINEAR_LANES;
        float sum[GPU_LINEAR_ROWS] = {0};
        if (first_out + o < args->n_out) {
            const uint64_t w_row = (uint64_t)(first_out + o) * args->columns;
            if (args->columns % 4 == 0)
                for (uint32_t c = lane * 4; c < args->columns; c += GPU_LINEAR_LANES * 4)
                    gpu_linear_four(args, w_row, first_row, c, sum);
            else
                for (uint32_t c = lane; c < args->columns; c += GPU_LINEAR_LANES)
                    gpu_linear_one(args, w_row, first_row, c, sum);
        }
        GPU_UNROLL
        for (uint32_t r = 0; r < GPU_LINEAR_ROWS; r++)
            shared->part[o][r][lane] = sum[r];
    GPU_ALL
    GPU_EACH(t)
        const uint32_t r = t % GPU_LINEAR_ROWS, o = t / GPU_LINEAR_ROWS;
        if (o < GPU_LINEAR_OUT && first_out + o < args->n_out && first_row + r < args->n_rows) {
            float sum = 0;
            for (uint32_t lane = 0; lane < GPU_LINEAR_LANES; lane++)
                sum += shared->part[o][r][lane];
            if (args->bias)
                sum += args->bias[first_out + o];
            args->y[(uint64_t)(first_row + r) * args->n_out + first_out + o] = sum;
        }
    GPU_ALL
}

#endif
