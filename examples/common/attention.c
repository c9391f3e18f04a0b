/* Attention of one row and head at a time over the blocks of its sequence. */
#include "common/attention.h"

#include <math.h>
#include <string.h>

typedef struct attention_job {
    const attention *a;
    const moepage_kv_layer_view *view;
    const attention_row *rows;
    uint32_t window;
    const float *sinks;
    const float *q;
    float *out;
} attention_job;

uint32_t attention_bytes_per_token(uint32_t kv_heads, uint32_t head_dim)
{
    return 2u * kv_heads * head_dim * (uint32_t)sizeof(float);
}

size_t attention_scratch_floats(uint64_t positions)
{
    return positions + 1; /* and the sink */
}

/* Returns the key of `position` for KV head 0; its value is value_offset floats further on. */
static float *key_at(const attention *a, const moepage_kv_layer_view *view, const uint32_t *blocks,
                     uint64_t position)
{
    uint32_t block = blocks[position / a->block_tokens];
    unsigned char *start = view->base;
    start += (block / view->id_stride) * view->granule_bytes +
             (block % view->id_stride) * view->block_bytes;
    return (float *)(void *)start + (position % a->block_tokens) * a->kv_heads * a->head_dim;
}

static size_t value_offset(const attention *a)
{
    return (size_t)a->block_tokens * a->kv_heads * a->head_dim;
}

void attention_store(const attention *a, const moepage_kv_layer_view *view,
                     const attention_row *rows, uint32_t n, const float *k, const float *v)
{
    size_t width = (size_t)a->kv_heads * a->head_dim;
    for (uint32_t r = 0; r < n; r++) {
        float *key = key_at(a, view, rows[r].blocks, rows[r].position);
        memcpy(key, k + r * width, width * sizeof *key);
        memcpy(key + value_offset(a), v + r * width, width * sizeof *key);
    }
}

/* Turns scores into probabilities; scores[n], behind them, is the sink's while that takes its share. */
static void softmax(float *scores, uint32_t n, const float *sink)
{
    if (sink)
        scores[n] = *sink;
    compute_softmax(scores, n + (sink != NULL));
}

static void attend(void *arg, uint32_t item, float *scores)
{
    const attention_job *job = arg;
    const attention *a = job->a;
    const kernels *ops = a->compute->kernels;
    const attention_row *row = &job->rows[item / a->heads];
    uint32_t kv_head = item % a->heads / (a->heads / a->kv_heads);
    size_t in_token = (size_t)kv_head * a->head_dim;
    uint64_t end = row->position + 1;
    uint64_t start = end > job->window ? end - job->window : 0;
    const float *q = job->q + (size_t)item * a->head_dim;
    float *out = job->out + (size_t)item * a->head_dim;
    float scale = 1.0f / sqrtf((float)a->head_dim);

    for (uint64_t p = start; p < end; p++)
        scores[p - start] =
            ops->dot(q, key_at(a, job->view, row->blocks, p) + in_token, a->head_dim) * scale;
    softmax(scores, (uint32_t)(end - start), job->sinks ? job->sinks + item % a->heads : NULL);
    memset(out, 0, a->head_dim * sizeof *out);
    for (uint64_t p = start; p < end; p++) {
        const float *value = key_at(a, job->view, row->blocks, p) + value_offset(a) + in_token;
        ops->add_scaled(out, value, scores[p - start], a->head_dim);
    }
}

void attention_run(const attention *a, const moepage_kv_layer_view *view, const attention_row *rows,
                   uint32_t n, uint32_t window, const float *sinks, const float *q, float *out)
{
    attention_job job = {a, view, rows, window, sinks, q, out};
    uint64_t work = 0;
    for (uint32_t r = 0; r < n; r++)
        work += 2 * (rows[r].position + 1) * a->heads * a->head_dim;
    workers_run(a->compute->workers, n * a->heads, work, attend, &job);
}
