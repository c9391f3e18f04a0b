/* fast.h — the steps between cuBLAS's matrix products: see fast_args.h. A piece of work is some columns
 * of one row of a batch. */
#ifndef MP_KERNELS_FAST_H
#define MP_KERNELS_FAST_H

#include "experts_work.h"
#include "fast_args.h"

typedef struct mp_gpu_fast_shared {
    uint32_t none;
} mp_gpu_fast_shared;

typedef struct mp_gpu_fast_thread {
    uint32_t none;
} mp_gpu_fast_thread;

/* A row of a batch. */
typedef struct mp_fast_row {
    const mp_gpu_expert *expert;
    uint64_t at; /* in the batch */
    uint32_t chunk;
    uint32_t live; /* 0: a row of zeros that fills the chunk */
    uint32_t row;  /* of partial, if live */
} mp_fast_row;

MP_GPU mp_fast_row mp_fast_find(const mp_gpu_fast_args *args, uint64_t at)
{
    mp_fast_row row;
    row.at = at;
    row.chunk = (uint32_t)(at / MP_FAST_ROWS);
    const mp_fast_chunk chunk = args->chunks[row.chunk];
    const uint32_t i = chunk.first + (uint32_t)(at % MP_FAST_ROWS);
    row.expert = &args->experts[chunk.expert];
    row.live = i < row.expert->n_rows;
    row.row = row.live ? args->rows[row.expert->first_row + i] : 0;
    return row;
}

/* Element `column` of a line of n 16-bit elements, or of n floats. */
MP_GPU uint16_t *mp_fast_half(const void *base, uint64_t line, uint64_t n, uint32_t column)
{
    return (uint16_t *)base + line * n + column;
}

MP_GPU float *mp_fast_float(const float *base, uint64_t line, uint64_t n, uint32_t column)
{
    return (float *)base + line * n + column;
}

/* The pointers of a chunk's three products. */
MP_GPU void mp_fast_point(const mp_gpu_fast_args *args, const mp_fast_row *row)
{
    const uint32_t n = args->n_chunks, chunk = row->chunk;
    const uint64_t line = row->at, up_line = (uint64_t)n * MP_FAST_ROWS + line;
    const void *x = mp_fast_half(args->operands, line, args->hidden, 0);
    args->weights[chunk] = row->expert->gate;
    args->weights[n + chunk] = row->expert->up;
    args->weights[2 * n + chunk] = row->expert->down;
    args->activations[chunk] = x;
    args->activations[n + chunk] = x;
    args->activations[2 * n + chunk] = mp_fast_half(args->operands, line, args->intermediate, 0);
    args->sums[chunk] = mp_fast_float(args->results, line, args->intermediate, 0);
    args->sums[n + chunk] = mp_fast_float(args->results, up_line, args->intermediate, 0);
    args->sums[2 * n + chunk] = mp_fast_float(args->results, line, args->hidden, 0);
}

MP_GPU void mp_gpu_fast_gather_block(MP_BLOCK_PARAMETERS(mp_gpu_fast_args, mp_gpu_fast_shared,
                                                         mp_gpu_fast_thread))
{
    const uint32_t pieces = mp_experts_up(args->hidden, MP_FAST_GATHER_COLUMNS);
    const uint64_t n_items = (uint64_t)args->n_chunks * MP_FAST_ROWS * pieces;
    (void)shared;
    for (uint64_t item = block; item < n_items; item += n_blocks) {
        const mp_fast_row row = mp_fast_find(args, item / pieces);
        const uint32_t first = (uint32_t)(item % pieces) * MP_FAST_GATHER_COLUMNS;
        MP_PHASE
            const uint32_t h = first + thread * 8;
            mp_scalar_vector value = {0, 0, 0, 0};
            if (h == 0 && row.at % MP_FAST_ROWS == 0)
                mp_fast_point(args, &row);
            if (h < args->hidden) {
                if (row.live)
                    value =
                        *(const mp_scalar_vector *)(const void *)mp_fast_half(args->x,
                                                                              row.row / args->top_k,
                                                                              args->hidden, h);
                *(mp_scalar_vector *)(void *)mp_fast_half(args->operands, row.at, args->hidden, h) =
                    value;
            }
        MP_PHASE_END
    }
}

/* SwiGLU of four sums of gate and up each, two to a word. */
MP_GPU void mp_fast_inner(const mp_gpu_expert *expert, uint32_t i, const float *gate,
                          const float *up, uint32_t *out)
{
    float value[4];
    MP_SCALAR_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const float g = mp_experts_biased(MP_SCALAR_BF16, expert->gate_bias, i + j, gate[j]);
        const float u = mp_experts_biased(MP_SCALAR_BF16, expert->up_bias, i + j, up[j]);
        value[j] = mp_experts_swiglu(g, u);
    }
    out[0] = mp_experts_pack(value[0], value[1]);
    out[1] = mp_experts_pack(value[2], value[3]);
}

MP_GPU void mp_fast_load(const float *from, float *out)
{
    const mp_scalar_vector four = *(const mp_scalar_vector *)(const void *)from;
    out[0] = mp_scalar_of_bits(four.x);
    out[1] = mp_scalar_of_bits(four.y);
    out[2] = mp_scalar_of_bits(four.z);
    out[3] = mp_scalar_of_bits(four.w);
}

MP_GPU void mp_gpu_fast_swiglu_block(MP_BLOCK_PARAMETERS(mp_gpu_fast_args, mp_gpu_fast_shared,
                                                         mp_gpu_fast_thread))
{
    const uint32_t length = args->intermediate, pieces = mp_experts_up(length, MP_FAST_COLUMNS);
    const uint64_t n_lines = (uint64_t)args->n_chunks * MP_FAST_ROWS;
    (void)shared;
    for (uint64_t item = block; item < n_lines * pieces; item += n_blocks) {
        const mp_fast_row row = mp_fast_find(args, item / pieces);
        const uint32_t first = (uint32_t)(item % pieces) * MP_FAST_COLUMNS;
        MP_PHASE
            const uint32_t i = first + thread * 4;
            if (i < length) {
                uint32_t *out = (uint32_t *)(void *)mp_fast_half(args->operands, row.at, length, i);
                uint32_t words[2] = {0, 0};
                float gate[4], up[4];
                if (row.live) {
                    mp_fast_load(mp_fast_float(args->results, row.at, length, i), gate);
                    mp_fast_load(mp_fast_float(args->results, n_lines + row.at, length, i), up);
                    mp_fast_inner(row.expert, i, gate, up, words);
                }
                out[0] = words[0];
                out[1] = words[1];
            }
        MP_PHASE_END
    }
}

MP_GPU void mp_gpu_fast_scatter_block(MP_BLOCK_PARAMETERS(mp_gpu_fast_args, mp_gpu_fast_shared,
                                                          mp_gpu_fast_thread))
{
    const uint32_t pieces = mp_experts_up(args->hidden, MP_FAST_COLUMNS);
    const uint64_t n_items = (uint64_t)args->n_chunks * MP_FAST_ROWS * pieces;
    (void)shared;
    for (uint64_t item = block; item < n_items; item += n_blocks) {
        const mp_fast_row row = mp_fast_find(args, item / pieces);
        const uint32_t first = (uint32_t)(item % pieces) * MP_FAST_COLUMNS;
        MP_PHASE
            const uint32_t h = first + thread * 4;
            if (row.live && h < args->hidden) {
                float sum[4];
                mp_fast_load(mp_fast_float(args->results, row.at, args->hidden, h), sum);
                MP_SCALAR_UNROLL
                for (uint32_t j = 0; j < 4; j++)
                    sum[j] =
                        mp_experts_biased(MP_SCALAR_BF16, row.expert->down_bias, h + j, sum[j]);
                const mp_scalar_vector four = {mp_scalar_bits(sum[0]), mp_scalar_bits(sum[1]),
                                               mp_scalar_bits(sum[2]), mp_scalar_bits(sum[3])};
                *(mp_scalar_vector *)(void *)mp_fast_float(args->partial, row.row, args->hidden,
                                                           h) = four;
            }
        MP_PHASE_END
    }
}

/* X(entry, argument struct, shared struct, thread struct, threads, blocks): the last two are the
 * launch bounds. */
#define MP_FAST_ENTRIES(X)                                                                       \
    X(fast_gather, mp_gpu_fast_args, mp_gpu_fast_shared, mp_gpu_fast_thread, MP_FAST_THREADS, 4) \
    X(fast_swiglu, mp_gpu_fast_args, mp_gpu_fast_shared, mp_gpu_fast_thread, MP_FAST_THREADS, 4) \
    X(fast_scatter, mp_gpu_fast_args, mp_gpu_fast_shared, mp_gpu_fast_thread, MP_FAST_THREADS, 4)

#endif
