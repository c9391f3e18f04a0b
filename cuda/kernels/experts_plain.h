/* experts_plain.h — FP32 math: form PLAIN of the expert kernels.
 *
 * A sum has the bits of the host's FP32 math (device/host_kernel_set.h): element i of a row is the next fused
 * multiply-add of partial sum i mod 16, zeros following the row to a whole turn over the 16. Then partial sums s
 * and s + 8 are added, those and the ones 4 further on, 2, and 1.
 *
 * A warp has one weight row of each of the two matrices and up to 8 activation rows. Of 256 elements, a step, each
 * lane loads and converts 8 that follow each other. They change hands in shared memory, for lane l keeps partial
 * sum l mod 16 of matrix l / 16. */
#ifndef MP_KERNELS_EXPERTS_PLAIN_H
#define MP_KERNELS_EXPERTS_PLAIN_H

#include "experts_work.h"
#include "lanes.h"

#define MP_EXPERTS_PLAIN_STRIP 8u /* weight rows of a matrix in a block: one per warp */
#define MP_EXPERTS_PLAIN_GROUP 8u /* activation rows at a time */
#define MP_EXPERTS_PLAIN_STEP 256u
#define MP_EXPERTS_PLAIN_SUMS 16u /* partial ones */
#define MP_EXPERTS_PLAIN_TURNS (MP_EXPERTS_PLAIN_STEP / MP_EXPERTS_PLAIN_SUMS)
#define MP_EXPERTS_PLAIN_BLOCKS 2 /* of a multiprocessor at once */

typedef struct mp_experts_plain_thread {
    mp_experts_row weights[2];
    uint32_t line[8];
    mp_experts_raw ahead[2];
    float sum[8]; /* partial ones of one matrix, by activation row */
} mp_experts_plain_thread;

/* A warp's own. What is added to lengths keeps the banks of two halves of a warp apart, or of 8 lanes. */
typedef struct mp_experts_plain_warp {
    float weights[2][2][MP_EXPERTS_PLAIN_STEP + 16]; /* of two steps, of each matrix */
    float sums[MP_EXPERTS_PLAIN_GROUP][2 * MP_EXPERTS_PLAIN_SUMS + 2];
} mp_experts_plain_warp;

typedef struct mp_experts_plain_shared {
    mp_experts_plain_warp warps[MP_EXPERTS_PLAIN_STRIP];
} mp_experts_plain_shared;

/* Starts to load a lane's weights of a step. */
MP_GPU void mp_experts_plain_send(mp_experts_plain_thread *own, uint32_t lane, const uint32_t dtype,
                                  const uint32_t aligned, const mp_gpu_experts_args *args,
                                  uint32_t length, uint32_t step)
{
    const uint32_t k = step + lane * 8;
    mp_experts_fetch(dtype, aligned, args, &own->weights[0], k, length, &own->ahead[0]);
    mp_experts_fetch(dtype, aligned, args, &own->weights[1], k, length, &own->ahead[1]);
}

/* Hands a lane's weights of a step over, as floats. */
MP_GPU void mp_experts_plain_leave(const mp_experts_plain_thread *own, uint32_t lane,
                                   const uint32_t dtype, const uint32_t aligned,
                                   float (*weights)[MP_EXPERTS_PLAIN_STEP + 16])
{
    MP_SCALAR_UNROLL
    for (uint32_t m = 0; m < 2; m++) {
        float eight[8];
        mp_experts_floats(dtype, aligned, &own->ahead[m], eight);
        mp_scalar_store4(&weights[m][lane * 8], eight);
        mp_scalar_store4(&weights[m][lane * 8 + 4], eight + 4);
    }
}

/* Adds a whole step to a lane's partial sums of the first `live` activation rows. `weights`: the lane's first. */
MP_GPU void mp_experts_plain_add(mp_experts_plain_thread *own, const mp_gpu_experts_args *args,
                                 uint32_t length, uint32_t live, uint32_t first,
                                 const float *weights)
{
    float weight[MP_EXPERTS_PLAIN_TURNS];
    MP_SCALAR_UNROLL
    for (uint32_t turn = 0; turn < MP_EXPERTS_PLAIN_TURNS; turn++)
        weight[turn] = weights[turn * MP_EXPERTS_PLAIN_SUMS];
    MP_SCALAR_UNROLL
    for (uint32_t j = 0; j < MP_EXPERTS_PLAIN_GROUP; j++) {
        if (j >= live)
            continue;
        const float *x = (const float *)(const void *)mp_experts_activation(args, own->line[j],
                                                                            length, 4, first);
        MP_SCALAR_UNROLL
        for (uint32_t turn = 0; turn < MP_EXPERTS_PLAIN_TURNS; turn++)
            own->sum[j] = mp_scalar_fma(x[turn * MP_EXPERTS_PLAIN_SUMS], weight[turn], own->sum[j]);
    }
}

/* The same of what is left of the rows, to the end of a turn: beyond them x is 0, and so are the weights. */
MP_GPU void mp_experts_plain_add_rest(mp_experts_plain_thread *own, const mp_gpu_experts_args *args,
                                      uint32_t length, uint32_t live, uint32_t first,
                                      const float *weights)
{
    const uint32_t lane = first % MP_EXPERTS_PLAIN_SUMS;
    MP_SCALAR_LOOP
    for (uint32_t k = first; k - lane < length; k += MP_EXPERTS_PLAIN_SUMS) {
        const float weight = weights[k - first];
        MP_SCALAR_UNROLL
        for (uint32_t j = 0; j < MP_EXPERTS_PLAIN_GROUP; j++) {
            float x = 0;
            if (j >= live)
                continue;
            if (k < length)
                x = *(const float *)(const void *)mp_experts_activation(args, own->line[j], length,
                                                                        4, k);
            own->sum[j] = mp_scalar_fma(x, weight, own->sum[j]);
        }
    }
}

/* A step: `whole`, or what is left of the rows. The next one's weights are on their way meanwhile. */
MP_GPU void mp_experts_plain_step(MP_LANES_PARAMETERS(mp_experts_plain_thread),
                                  const uint32_t dtype, const uint32_t aligned,
                                  const mp_gpu_experts_args *args, uint32_t length, uint32_t live,
                                  uint32_t step, const uint32_t whole,
                                  float (*weights)[MP_EXPERTS_PLAIN_STEP + 16])
{
    MP_EACH_LANE(mp_experts_plain_thread)
        mp_experts_plain_leave(own, lane, dtype, aligned, weights);
        if (whole)
            mp_experts_plain_send(own, lane, dtype, aligned, args, length,
                                  step + MP_EXPERTS_PLAIN_STEP);
    MP_EACH_LANE_END
    MP_LANES_MEET();
    MP_EACH_LANE(mp_experts_plain_thread)
        const uint32_t at = lane % MP_EXPERTS_PLAIN_SUMS;
        const float *first = weights[lane / MP_EXPERTS_PLAIN_SUMS] + at;
        if (whole)
            mp_experts_plain_add(own, args, length, live, step + at, first);
        else
            mp_experts_plain_add_rest(own, args, length, live, step + at, first);
    MP_EACH_LANE_END
}

MP_GPU void mp_experts_plain_multiply(MP_LANES_PARAMETERS(mp_experts_plain_thread),
                                      const uint32_t dtype, const uint32_t aligned,
                                      const mp_gpu_experts_args *args, const mp_experts_work *work,
                                      uint32_t piece, uint32_t warp, uint32_t live,
                                      mp_experts_plain_warp *shared)
{
    const uint32_t length = work->length;
    uint32_t step = 0, place = 0;
    MP_EACH_LANE(mp_experts_plain_thread)
        MP_SCALAR_UNROLL
        for (uint32_t m = 0; m < 2; m++)
            own->weights[m] =
                mp_experts_weight_row(args, work, dtype, MP_EXPERTS_PLAIN_STRIP, piece, m, warp);
        mp_experts_plain_send(own, lane, dtype, aligned, args, length, 0);
        MP_SCALAR_UNROLL
        for (uint32_t j = 0; j < MP_EXPERTS_PLAIN_GROUP; j++) {
            own->line[j] = mp_experts_line(args, work, j);
            own->sum[j] = 0;
        }
    MP_EACH_LANE_END
    MP_SCALAR_LOOP
    for (; length - step >= MP_EXPERTS_PLAIN_STEP; step += MP_EXPERTS_PLAIN_STEP, place ^= 1)
        mp_experts_plain_step(MP_LANES_PASS, dtype, aligned, args, length, live, step, 1,
                              shared->weights[place]);
    if (step < length)
        mp_experts_plain_step(MP_LANES_PASS, dtype, aligned, args, length, live, step, 0,
                              shared->weights[place]);
}

/* The sum of 16 partial ones. */
MP_GPU float mp_experts_plain_sum(const float *partial)
{
    float sums[8];
    MP_SCALAR_UNROLL
    for (uint32_t s = 0; s < 8; s++)
        sums[s] = mp_scalar_add(partial[s], partial[s + 8]);
    MP_SCALAR_UNROLL
    for (uint32_t half = 4; half > 0; half /= 2) {
        MP_SCALAR_UNROLL
        for (uint32_t s = 0; s < half; s++)
            sums[s] = mp_scalar_add(sums[s], sums[s + half]);
    }
    return sums[0];
}

/* Lane l ends the sums of activation row l. It has read them before the next ones are written: behind barriers of
 * the next multiplication. */
MP_GPU void mp_experts_plain_finish(MP_LANES_PARAMETERS(mp_experts_plain_thread),
                                    const uint32_t dtype, const mp_gpu_experts_args *args,
                                    const mp_experts_work *work, uint32_t piece, uint32_t warp,
                                    uint32_t live, mp_experts_plain_warp *shared)
{
    MP_EACH_LANE(mp_experts_plain_thread)
        MP_SCALAR_UNROLL
        for (uint32_t j = 0; j < MP_EXPERTS_PLAIN_GROUP; j++)
            shared->sums[j][lane] = own->sum[j];
    MP_EACH_LANE_END
    MP_LANES_MEET();
    MP_EACH_LANE(mp_experts_plain_thread)
        if (lane < live) {
            const float *partial = shared->sums[lane];
            mp_experts_emit(args, work, dtype, 4, MP_EXPERTS_PLAIN_STRIP, piece, lane, warp,
                            mp_experts_plain_sum(partial),
                            mp_experts_plain_sum(partial + MP_EXPERTS_PLAIN_SUMS));
        }
    MP_EACH_LANE_END
}

MP_GPU void mp_experts_plain(const uint32_t dtype, const uint32_t aligned,
                             MP_BLOCK_PARAMETERS(mp_gpu_experts_args, mp_experts_plain_shared,
                                                 mp_experts_plain_thread))
{
    const uint32_t pieces = mp_experts_pieces(args, MP_EXPERTS_PLAIN_STRIP);
    const uint32_t n_items = mp_experts_count(args) * pieces;
    MP_WARPS(mp_experts_plain_thread)
        for (uint32_t item = block; item < n_items; item += n_blocks) {
            const uint32_t index = item / pieces, piece = item % pieces;
            const uint32_t n_rows = mp_experts_rows(args, args->experts[index].n_rows);
            mp_experts_work work;
            if (n_rows == 0)
                continue;
            mp_experts_begin(args, index, &work);
            for (; work.first < n_rows; work.first += MP_EXPERTS_PLAIN_GROUP) {
                const uint32_t left = n_rows - work.first;
                const uint32_t live = left < MP_EXPERTS_PLAIN_GROUP ? left : MP_EXPERTS_PLAIN_GROUP;
                mp_experts_plain_multiply(MP_LANES_PASS, dtype, aligned, args, &work, piece, warp,
                                          live, &shared->warps[warp]);
                mp_experts_plain_finish(MP_LANES_PASS, dtype, args, &work, piece, warp, live,
                                        &shared->warps[warp]);
            }
        }
        (void)n_warps;
    MP_WARPS_END
}

#endif
