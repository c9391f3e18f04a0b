/* experts_plain.h — FP32 math: form PLAIN of the expert kernels.
 *
 * A warp has one weight row of each of the two matrices and up to 8 activation rows. Lane l sums
 * elements 8 l .. 8 l + 7 of every 256 by fused multiply-adds, in order; then the lanes' sums are
 * added in order of the lane. */
#ifndef MP_KERNELS_EXPERTS_PLAIN_H
#define MP_KERNELS_EXPERTS_PLAIN_H

#include "experts_work.h"

#define MP_EXPERTS_PLAIN_STRIP 8u /* weight rows of a matrix in a block: one per warp */
#define MP_EXPERTS_PLAIN_GROUP 8u /* activation rows at a time */
#define MP_EXPERTS_PLAIN_STEP 256u
#define MP_EXPERTS_PLAIN_BLOCKS 2 /* of a multiprocessor at once */

typedef struct mp_experts_plain_thread {
    mp_experts_row weights[2];
    uint32_t line[8];
    mp_experts_raw ahead[2];
    float sum[2][8];
} mp_experts_plain_thread;

typedef struct mp_experts_plain_shared {
    /* 33: avoids bank conflicts. */
    float sums[MP_EXPERTS_PLAIN_STRIP][MP_EXPERTS_PLAIN_GROUP][2][33];
} mp_experts_plain_shared;

/* Eight floats of an activation row, from its element k at `at` on; zeros beyond its end. */
MP_GPU void mp_experts_plain_x(const uint32_t aligned, const char *at, uint32_t k, uint32_t length,
                               float *out)
{
    if (aligned) {
        uint32_t words[8];
        mp_experts_load16(k < length, at, words);
        mp_experts_load16(k < length, at + 16, words + 4);
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            out[i] = mp_scalar_of_bits(words[i]);
        return;
    }
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        out[i] = k + i < length ? ((const float *)(const void *)at)[i] : 0;
}

MP_GPU void mp_experts_plain_step(mp_experts_plain_thread *self, const uint32_t dtype,
                                  const uint32_t aligned, const mp_gpu_experts_args *args,
                                  uint32_t k, uint32_t length, uint32_t live)
{
    float weights[2][8];
    mp_experts_floats(dtype, aligned, &self->ahead[0], weights[0]);
    mp_experts_floats(dtype, aligned, &self->ahead[1], weights[1]);
    MP_SCALAR_UNROLL
    for (uint32_t j = 0; j < MP_EXPERTS_PLAIN_GROUP; j++) {
        float x[8];
        if (j >= live)
            continue;
        mp_experts_plain_x(aligned, mp_experts_activation(args, self->line[j], length, 4, k), k,
                           length, x);
        MP_SCALAR_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            self->sum[0][j] = mp_scalar_fma(weights[0][i], x[i], self->sum[0][j]);
            self->sum[1][j] = mp_scalar_fma(weights[1][i], x[i], self->sum[1][j]);
        }
    }
}

MP_GPU void mp_experts_plain_multiply(mp_experts_plain_thread *self, const uint32_t dtype,
                                      const uint32_t aligned, const mp_gpu_experts_args *args,
                                      uint32_t length, uint32_t live, uint32_t lane)
{
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 16; i++)
        self->sum[i / 8][i % 8] = 0;
    for (uint32_t k = lane * 8; k < length; k += MP_EXPERTS_PLAIN_STEP) {
        mp_experts_fetch(dtype, aligned, args, &self->weights[0], k, length, &self->ahead[0]);
        mp_experts_fetch(dtype, aligned, args, &self->weights[1], k, length, &self->ahead[1]);
        mp_experts_plain_step(self, dtype, aligned, args, k, length, live);
    }
}

MP_GPU void mp_experts_plain_thread_run(mp_experts_plain_thread *self, const uint32_t dtype,
                                        const uint32_t aligned, const mp_gpu_experts_args *args,
                                        const mp_experts_work *work, uint32_t piece,
                                        uint32_t thread, mp_experts_plain_shared *shared)
{
    const uint32_t warp = thread / 32, lane = thread % 32;
    const uint32_t left = work->n_rows - work->first;
    const uint32_t live = left < MP_EXPERTS_PLAIN_GROUP ? left : MP_EXPERTS_PLAIN_GROUP;
    self->weights[0] =
        mp_experts_weight_row(args, work, dtype, MP_EXPERTS_PLAIN_STRIP, piece, 0, warp);
    self->weights[1] =
        mp_experts_weight_row(args, work, dtype, MP_EXPERTS_PLAIN_STRIP, piece, 1, warp);
    MP_SCALAR_UNROLL
    for (uint32_t j = 0; j < MP_EXPERTS_PLAIN_GROUP; j++)
        self->line[j] = mp_experts_line(args, work, j);
    mp_experts_plain_multiply(self, dtype, aligned, args, work->length, live, lane);
    MP_SCALAR_UNROLL
    for (uint32_t i = 0; i < 16; i++)
        shared->sums[warp][i / 2][i % 2][lane] = self->sum[i % 2][i / 2];
}

MP_GPU void mp_experts_plain_finish(const mp_gpu_experts_args *args, const mp_experts_work *work,
                                    const uint32_t dtype, uint32_t piece, uint32_t thread,
                                    const mp_experts_plain_shared *shared)
{
    const uint32_t i = thread / MP_EXPERTS_PLAIN_GROUP, n = thread % MP_EXPERTS_PLAIN_GROUP;
    float sum0 = 0, sum1 = 0;
    if (i >= MP_EXPERTS_PLAIN_STRIP)
        return;
    for (uint32_t lane = 0; lane < 32; lane++) {
        sum0 = mp_scalar_add(sum0, shared->sums[i][n][0][lane]);
        sum1 = mp_scalar_add(sum1, shared->sums[i][n][1][lane]);
    }
    mp_experts_emit(args, work, dtype, 4, MP_EXPERTS_PLAIN_STRIP, piece, n, i, sum0, sum1);
}

MP_GPU void mp_experts_plain(const uint32_t dtype, const uint32_t aligned,
                             MP_BLOCK_PARAMETERS(mp_gpu_experts_args, mp_experts_plain_shared,
                                                 mp_experts_plain_thread))
{
    const uint32_t pieces = mp_experts_pieces(args, MP_EXPERTS_PLAIN_STRIP);
    const uint32_t n_items = mp_experts_count(args) * pieces;
    for (uint32_t item = block; item < n_items; item += n_blocks) {
        const uint32_t index = item / pieces, piece = item % pieces;
        const uint32_t n_rows = mp_experts_rows(args, args->experts[index].n_rows);
        mp_experts_work work;
        if (n_rows == 0)
            continue;
        mp_experts_begin(args, index, &work);
        for (; work.first < n_rows; work.first += MP_EXPERTS_PLAIN_GROUP) {
            MP_PHASE
                mp_experts_plain_thread_run(self, dtype, aligned, args, &work, piece, thread,
                                            shared);
            MP_PHASE_END
            MP_PHASE
                mp_experts_plain_finish(args, &work, dtype, piece, thread, shared);
            MP_PHASE_END
        }
    }
}

#endif
