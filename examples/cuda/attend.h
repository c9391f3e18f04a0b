/* attend.h — grouped-query attention of one row and head over the paged KV cache.
 *
 * A block takes one head of one row, prefill and decode alike, and its positions in tiles of as
 * many as it has threads: one thread per position for the scores, then one per element of the head
 * for the weighted sum of values. Between tiles only the largest score so far, the sum of the
 * weights and the weighted sum remain, rescaled when a larger score comes (online softmax,
 * arXiv:1805.02867). Tiles begin at the row's first visible position: a row's bits depend on that
 * row alone. */
#ifndef EXAMPLE_CUDA_ATTEND_H
#define EXAMPLE_CUDA_ATTEND_H

#include "rows.h"

#define GPU_ATTEND_THREADS 128
#define GPU_MAX_HEAD_DIM 256u

typedef struct gpu_attend_args {
    gpu_kv kv;
    gpu_places at;
    const float *q; /* [rows][heads][head_dim] */
    float *out;
    uint32_t heads;
    uint32_t window;
    float scale; /* of scores */
    uint32_t reserved;
} gpu_attend_args;

typedef struct gpu_attend_shared {
    float q[GPU_MAX_HEAD_DIM];
    float sum[GPU_MAX_HEAD_DIM]; /* of weighted values */
    float score[GPU_ATTEND_THREADS];
    float weight[GPU_ATTEND_THREADS];
    float most[2]; /* of the scores up to a tile: before it and with it, in turns */
    float total;   /* of the weights */
} gpu_attend_shared;

GPU_FN float gpu_score(const gpu_attend_args *args, const float *q, const float *key)
{
    float sum = 0;
    for (uint32_t i = 0; i < args->kv.head_dim; i++)
        sum += q[i] * key[i];
    return sum * args->scale;
}

GPU_FN float gpu_largest(const float *x, uint32_t n, float largest)
{
    for (uint32_t i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

GPU_BLOCK(attend, gpu_attend_args, gpu_attend_shared)
{
    const uint32_t row = block / args->heads, head = block % args->heads;
    const uint32_t in_token = head / (args->heads / args->kv.kv_heads) * args->kv.head_dim;
    const uint32_t *table = args->at.blocks + args->at.tables[row];
    const uint64_t end = args->at.positions[row] + 1;
    const uint64_t start = end > args->window ? end - args->window : 0;
    const uint64_t own = (uint64_t)block * args->kv.head_dim;
    uint32_t turn = 0;
    (void)n_blocks;
    GPU_EACH(t)
        for (uint32_t i = t; i < args->kv.head_dim; i += GPU_ATTEND_THREADS) {
            shared->q[i] = args->q[own + i];
            shared->sum[i] = 0;
        }
        if (t == 0) {
            shared->most[0] = -INFINITY;
            shared->total = 0;
        }
    GPU_ALL
    for (uint64_t tile = start; tile < end; tile += GPU_ATTEND_THREADS, turn ^= 1u) {
        const uint32_t n =
            end - tile < GPU_ATTEND_THREADS ? (uint32_t)(end - tile) : GPU_ATTEND_THREADS;
        GPU_EACH(t)
            if (t < n)
                shared->score[t] =
                    gpu_score(args, shared->q, gpu_key(&args->kv, table, tile + t) + in_token);
        GPU_ALL
        GPU_EACH(t)
            const float most = gpu_largest(shared->score, n, shared->most[turn]);
            if (t < n)
                shared->weight[t] = expf(shared->score[t] - most);
            if (t == 0)
                shared->most[turn ^ 1u] = most;
        GPU_ALL
        GPU_EACH(t)
            /* exp(-infinity) is 0: nothing comes before the first tile. */
            const float keep = expf(shared->most[turn] - shared->most[turn ^ 1u]);
            for (uint32_t i = t; i < args->kv.head_dim; i += GPU_ATTEND_THREADS) {
                float sum = shared->sum[i] * keep;
                for (uint32_t p = 0; p < n; p++)
                    sum += shared->weight[p] * (gpu_key(&args->kv, table, tile + p) + in_token +
                                                gpu_value_offset(&args->kv))[i];
                shared->sum[i] = sum;
            }
            if (t == 0) {
                float total = shared->total * keep;
                for (uint32_t p = 0; p < n; p++)
                    total += shared->weight[p];
                shared->total = total;
            }
        GPU_ALL
    }
    GPU_EACH(t)
        for (uint32_t i = t; i < args->kv.head_dim; i += GPU_ATTEND_THREADS)
            args->out[own + i] = shared->sum[i] / shared->total;
    GPU_ALL
}

#endif
