/* rows.h — kernels over rows of activations: embeddings, norms, rotary embedding, activations, and
 * keys and values on their way to the paged KV cache. examples/common/dense.h says what each does.
 *
 * One block takes a row, or a stretch of GPU_STRETCH elements where rows do not matter. */
#ifndef EXAMPLE_CUDA_ROWS_H
#define EXAMPLE_CUDA_ROWS_H

#include "gpu.h"

#define GPU_ROW_THREADS 256
#define GPU_STRETCH 1024u

/* What a block function without shared memory is given. */
typedef struct gpu_nothing {
    float unused;
} gpu_nothing;

/* ---- Embeddings -------------------------------------------------------------------------- */

typedef struct gpu_embed_args {
    const void *table; /* [vocabulary][width] */
    const uint32_t *tokens;
    float *out; /* [rows][width] */
    uint32_t dtype;
    uint32_t width;
} gpu_embed_args;

GPU_BLOCK(embed, gpu_embed_args, gpu_nothing)
{
    (void)shared, (void)n_blocks;
    GPU_EACH(t)
        const uint64_t from = (uint64_t)args->tokens[block] * args->width;
        for (uint32_t i = t; i < args->width; i += GPU_ROW_THREADS)
            args->out[(uint64_t)block * args->width + i] =
                gpu_load(args->table, args->dtype, from + i);
    GPU_ALL
}

/* ---- Norms ------------------------------------------------------------------------------- */

typedef struct gpu_norm_args {
    const float *x; /* [rows][width] */
    const float *scale;
    const float *shift; /* NULL = none */
    float *out;         /* may be x */
    uint32_t width;
    uint32_t centre; /* 1: LayerNorm */
    float eps;
    uint32_t reserved;
} gpu_norm_args;

typedef struct gpu_norm_shared {
    float part[GPU_ROW_THREADS];
} gpu_norm_shared;

/* Adds shared->part up, in an order of its own, into part[0]. */
#ifdef __CUDACC__
#define GPU_ADD_UP(part) gpu_add_up(part)
GPU_FN void gpu_add_up(float *part)
#else
#define GPU_ADD_UP(part) gpu_add_up(part, threads)
GPU_FN void gpu_add_up(float *part, const gpu_threads *threads)
#endif
{
    for (uint32_t width = GPU_ROW_THREADS / 2; width; width /= 2) {
        GPU_EACH(t)
            if (t < width)
                part[t] += part[t + width];
        GPU_ALL
    }
}

GPU_BLOCK(norm, gpu_norm_args, gpu_norm_shared)
{
    const uint64_t row = (uint64_t)block * args->width;
    float mean = 0, inverse;
    (void)n_blocks;
    if (args->centre) {
        GPU_EACH(t)
            float sum = 0;
            for (uint32_t i = t; i < args->width; i += GPU_ROW_THREADS)
                sum += args->x[row + i];
            shared->part[t] = sum;
        GPU_ALL
        GPU_ADD_UP(shared->part);
        mean = shared->part[0] / (float)args->width;
        GPU_EACH(t) /* all have read it */
        GPU_ALL
    }
    GPU_EACH(t)
        float sum = 0;
        for (uint32_t i = t; i < args->width; i += GPU_ROW_THREADS) {
            const float x = args->x[row + i] - mean;
            sum += x * x;
        }
        shared->part[t] = sum;
    GPU_ALL
    GPU_ADD_UP(shared->part);
    inverse = 1.0f / sqrtf(shared->part[0] / (float)args->width + args->eps);
    GPU_EACH(t)
        for (uint32_t i = t; i < args->width; i += GPU_ROW_THREADS) {
            const float x = (args->x[row + i] - mean) * inverse * args->scale[i];
            args->out[row + i] = args->shift ? x + args->shift[i] : x;
        }
    GPU_ALL
}

/* ---- Elements ---------------------------------------------------------------------------- */

enum { GPU_ROUND, GPU_CLIP, GPU_SWIGLU, GPU_SCALE, GPU_ADD, GPU_BIAS };

typedef struct gpu_each_args {
    float *x;           /* [n] */
    const float *other; /* ADD, SWIGLU [n]; SCALE [n / width]; BIAS [width] */
    uint64_t n;
    uint32_t what;
    uint32_t width;
    float limit; /* CLIP */
    uint32_t reserved;
} gpu_each_args;

GPU_FN float gpu_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

GPU_FN float gpu_each_value(const gpu_each_args *args, uint64_t i)
{
    const float x = args->x[i];
    switch (args->what) {
    case GPU_ROUND: return gpu_of_bits((uint32_t)gpu_to_bf16(x) << 16);
    case GPU_CLIP: return x < -args->limit ? -args->limit : x > args->limit ? args->limit : x;
    case GPU_SWIGLU: return x / (1.0f + expf(-x)) * args->other[i];
    case GPU_SCALE: return x * gpu_sigmoid(args->other[i / args->width]);
    case GPU_BIAS: return x + args->other[i % args->width];
    default: return x + args->other[i];
    }
}

GPU_BLOCK(each, gpu_each_args, gpu_nothing)
{
    (void)shared, (void)n_blocks;
    GPU_EACH(t)
        for (uint32_t k = t; k < GPU_STRETCH; k += GPU_ROW_THREADS) {
            const uint64_t i = (uint64_t)block * GPU_STRETCH + k;
            if (i < args->n)
                args->x[i] = gpu_each_value(args, i);
        }
    GPU_ALL
}

/* Operands of a product in another dtype: weights widened, activations narrowed. */
typedef struct gpu_convert_args {
    const void *x;
    void *out; /* floats, or BF16 */
    uint64_t n;
    uint32_t dtype; /* of x */
    uint32_t to_bf16;
} gpu_convert_args;

GPU_BLOCK(convert, gpu_convert_args, gpu_nothing)
{
    (void)shared, (void)n_blocks;
    GPU_EACH(t)
        for (uint32_t k = t; k < GPU_STRETCH; k += GPU_ROW_THREADS) {
            const uint64_t i = (uint64_t)block * GPU_STRETCH + k;
            if (i >= args->n)
                continue;
            const float x = gpu_load(args->x, args->dtype, i);
            if (args->to_bf16)
                ((uint16_t *)args->out)[i] = gpu_to_bf16(x);
            else
                ((float *)args->out)[i] = x;
        }
    GPU_ALL
}

/* ---- Heads ------------------------------------------------------------------------------- */

typedef struct gpu_turn_args {
    float *x;                     /* [rows][heads][width] */
    const float *cosines, *sines; /* [rows][half] */
    uint32_t heads;
    uint32_t width;
    uint32_t half; /* of the elements rotated, the first of a head */
    uint32_t reserved;
} gpu_turn_args;

GPU_BLOCK(turn, gpu_turn_args, gpu_nothing)
{
    (void)shared, (void)n_blocks;
    GPU_EACH(t)
        for (uint32_t k = t; k < args->heads * args->half; k += GPU_ROW_THREADS) {
            const uint32_t i = k % args->half;
            const uint64_t head = (uint64_t)block * args->heads + k / args->half;
            const uint64_t angle = (uint64_t)block * args->half + i;
            float *x = args->x + head * args->width + i;
            const float a = x[0], b = x[args->half];
            x[0] = a * args->cosines[angle] - b * args->sines[angle];
            x[args->half] = b * args->cosines[angle] + a * args->sines[angle];
        }
    GPU_ALL
}

/* A layer's blocks of the KV cache: moepage_kv_layer_view, and what lies in a block (keys, then
 * values, [block_tokens][kv_heads][head_dim] floats each). */
typedef struct gpu_kv {
    void *base;
    uint64_t block_bytes, granule_bytes;
    uint32_t id_stride;
    uint32_t block_tokens;
    uint32_t kv_heads;
    uint32_t head_dim;
} gpu_kv;

/* Where each row of the step stands. */
typedef struct gpu_places {
    const uint64_t *positions; /* [rows] */
    const uint32_t *tables;    /* [rows] where the row's block table begins in `blocks` */
    const uint32_t *blocks;
} gpu_places;

/* The key of a position for KV head 0; the value lies gpu_value_offset floats further. */
GPU_FN float *gpu_key(const gpu_kv *kv, const uint32_t *table, uint64_t position)
{
    const uint32_t id = table[position / kv->block_tokens];
    char *start = (char *)kv->base + id / kv->id_stride * kv->granule_bytes +
                  id % kv->id_stride * kv->block_bytes;
    return (float *)(void *)start + position % kv->block_tokens * kv->kv_heads * kv->head_dim;
}

GPU_FN uint64_t gpu_value_offset(const gpu_kv *kv)
{
    return (uint64_t)kv->block_tokens * kv->kv_heads * kv->head_dim;
}

typedef struct gpu_store_args {
    gpu_kv kv;
    gpu_places at;
    const float *k, *v; /* [rows][kv_heads][head_dim] */
} gpu_store_args;

GPU_BLOCK(store, gpu_store_args, gpu_nothing)
{
    const uint32_t width = args->kv.kv_heads * args->kv.head_dim;
    (void)shared, (void)n_blocks;
    GPU_EACH(t)
        float *key =
            gpu_key(&args->kv, args->at.blocks + args->at.tables[block], args->at.positions[block]);
        for (uint32_t i = t; i < width; i += GPU_ROW_THREADS) {
            key[i] = args->k[(uint64_t)block * width + i];
            key[gpu_value_offset(&args->kv) + i] = args->v[(uint64_t)block * width + i];
        }
    GPU_ALL
}

#endif
