/* elementwise.h — activations on their way in (convert) and out (combine): device/kernels.h
 * specifies them to the bit. */
#ifndef MP_KERNELS_ELEMENTWISE_H
#define MP_KERNELS_ELEMENTWISE_H

#include "elementwise_args.h"
#include "scalar.h"

typedef struct mp_gpu_elementwise_thread {
    float value[MP_ELEMENTWISE_EACH];
} mp_gpu_elementwise_thread;

MP_GPU uint32_t mp_elementwise_pieces(uint32_t hidden)
{
    return hidden / MP_ELEMENTWISE_COLUMNS + (hidden % MP_ELEMENTWISE_COLUMNS != 0);
}

/* All loads come before the stores, so that a row's elements are in flight together. */
MP_GPU void mp_gpu_convert_block(MP_BLOCK_PARAMETERS(mp_gpu_convert_args, mp_gpu_elementwise_shared,
                                                     mp_gpu_elementwise_thread))
{
    const uint32_t pieces = mp_elementwise_pieces(args->hidden);
    const uint64_t n_items = (uint64_t)args->n_tokens * pieces;
    (void)shared;
    for (uint64_t item = block; item < n_items; item += n_blocks) {
        const uint64_t token = item / pieces;
        const uint32_t first = (uint32_t)(item % pieces) * MP_ELEMENTWISE_COLUMNS;
        MP_PHASE
            MP_SCALAR_UNROLL
            for (uint32_t i = 0; i < MP_ELEMENTWISE_EACH; i++) {
                const uint32_t h = first + i * MP_ELEMENTWISE_THREADS + thread;
                if (h < args->hidden)
                    self->value[i] =
                        mp_scalar_load(args->x_dtype, args->x, token * args->x_stride + h);
            }
            MP_SCALAR_UNROLL
            for (uint32_t i = 0; i < MP_ELEMENTWISE_EACH; i++) {
                const uint32_t h = first + i * MP_ELEMENTWISE_THREADS + thread;
                if (h < args->hidden)
                    mp_scalar_store(args->to_bf16 ? MP_SCALAR_BF16 : MP_SCALAR_F32, args->out,
                                    token * args->hidden + h, self->value[i]);
            }
        MP_PHASE_END
    }
}

/* The weighted sum of a token's rows for a thread's columns, from `column` on. */
MP_GPU void mp_combine_sum(const mp_gpu_combine_args *args, uint64_t token, uint32_t column,
                           float *sum)
{
    const void *own[2] = {args->tables, args->tables + args->ids_at};
    const float *weights = args->weights ? args->weights : (const float *)own[0];
    const int32_t *ids = args->ids ? args->ids : (const int32_t *)own[1];
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < MP_ELEMENTWISE_EACH; i++)
        sum[i] = 0;
    for (uint32_t k = 0; k < args->top_k; k++) {
        const uint64_t row = token * args->top_k + k;
        const float weight = weights[row];
        if (ids[row] < 0)
            continue;
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < MP_ELEMENTWISE_EACH; i++) {
            const uint32_t h = column + i * MP_ELEMENTWISE_THREADS;
            if (h < args->hidden)
                sum[i] = mp_scalar_fma(weight, args->partial[row * args->hidden + h], sum[i]);
        }
    }
}

MP_GPU void mp_gpu_combine_block(MP_BLOCK_PARAMETERS(mp_gpu_combine_args, mp_gpu_elementwise_shared,
                                                     mp_gpu_elementwise_thread))
{
    const uint32_t pieces = mp_elementwise_pieces(args->hidden);
    const uint64_t n_items = (uint64_t)args->n_tokens * pieces;
    const uint32_t given_up = args->given_up ? *args->given_up : 0;
    (void)shared;
    for (uint64_t item = block; item < n_items; item += n_blocks) {
        const uint64_t token = item / pieces;
        const uint32_t first = (uint32_t)(item % pieces) * MP_ELEMENTWISE_COLUMNS;
        MP_PHASE
            if (!given_up)
                mp_combine_sum(args, token, first + thread, self->value);
            MP_SCALAR_UNROLL
            for (uint32_t i = 0; i < MP_ELEMENTWISE_EACH; i++) {
                const uint32_t h = first + i * MP_ELEMENTWISE_THREADS + thread;
                const uint64_t at = token * args->y_stride + h;
                if (h >= args->hidden)
                    continue;
                if (given_up)
                    self->value[i] = mp_scalar_of_bits(0x7fc00000u);
                else if (args->accumulate)
                    self->value[i] =
                        mp_scalar_add(mp_scalar_load(args->y_dtype, args->y, at), self->value[i]);
                mp_scalar_store(args->y_dtype, args->y, at, self->value[i]);
            }
        MP_PHASE_END
    }
}

/* X(entry, argument struct, shared struct, thread struct, threads, blocks): the last two are the
 * launch bounds. */
#define MP_ELEMENTWISE_ENTRIES(X)                                                         \
    X(convert, mp_gpu_convert_args, mp_gpu_elementwise_shared, mp_gpu_elementwise_thread, \
      MP_ELEMENTWISE_THREADS, 4)                                                          \
    X(combine, mp_gpu_combine_args, mp_gpu_elementwise_shared, mp_gpu_elementwise_thread, \
      MP_ELEMENTWISE_THREADS, 4)

#endif
