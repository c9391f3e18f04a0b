/* Attention of a few queries at a time that share a KV head, over the blocks of their sequence. */
#include "common/attention.h"

#include <string.h>

/* Most queries of an item: adjacent rows, each with some of the heads of one KV head. */
#define QUERIES 32u
/* Scores of an item: long contexts have fewer queries, 8 at 128k positions. */
#define SCORES (9u << 17)

typedef struct attention_job {
    const attention *a;
    const moepage_kv_layer_view *view;
    const attention_row *rows;
    uint32_t n;
    uint32_t window;
    const float *sinks;
    const float *q;
    float *out;
    uint32_t group;      /* heads of a KV head */
    uint32_t item_heads; /* of these, those of an item */
    uint32_t item_rows;
    size_t stride; /* of a query's scores */
} attention_job;

/* Rows of one sequence at adjacent positions, with some heads of one KV head. */
typedef struct queries {
    const attention_row *rows;
    uint32_t n_rows;
    uint32_t heads;
    uint32_t kv_head;
    const float *q[QUERIES]; /* [n_rows][heads] */
    float *out[QUERIES];
    float *scores[QUERIES]; /* of positions from the first block's first on */
    const float *sinks;     /* [heads], or NULL */
} queries;

attention attention_of(const model_config *config, const compute *with, uint32_t block_tokens)
{
    return (attention){.compute = with,
                       .heads = config->heads,
                       .kv_heads = config->kv_heads,
                       .head_dim = config->head_dim,
                       .value_dim = config->value_dim,
                       .block_tokens = block_tokens,
                       .latent = config->latent.rank > 0,
                       .scale = config->score_scale};
}

uint32_t attention_bytes_per_token(const model_config *config)
{
    const uint32_t stored = config->latent.rank ? 0 : config->value_dim;
    return config->kv_heads * (config->head_dim + stored) * (uint32_t)sizeof(float);
}

/* Returns the room for a query's scores. */
static size_t stride_of(uint64_t positions, uint32_t block_tokens)
{
    return (positions / block_tokens + 2) * block_tokens;
}

static uint32_t queries_of(size_t stride)
{
    const size_t most = SCORES / stride;
    return most > QUERIES ? QUERIES : most ? (uint32_t)most : 1;
}

size_t attention_scratch_floats(uint64_t positions, uint32_t block_tokens)
{
    const size_t stride = stride_of(positions, block_tokens), all = QUERIES * stride;
    return all < SCORES ? all : stride < SCORES ? SCORES : stride;
}

/* ---- The cache --------------------------------------------------------------------------- */

/* Returns where the keys of a KV head are in a block; its values are value_offset floats further on. */
static float *keys_at(const attention *a, const moepage_kv_layer_view *view, uint32_t block,
                      uint32_t kv_head)
{
    unsigned char *start = view->base;
    start += (block / view->id_stride) * view->granule_bytes +
             (block % view->id_stride) * view->block_bytes;
    return (float *)(void *)start + (size_t)kv_head * a->block_tokens * a->head_dim;
}

/* Returns how far values are behind the keys, and from one to the next. */
static size_t value_offset(const attention *a)
{
    return a->latent ? 0 : (size_t)a->block_tokens * a->kv_heads * a->head_dim;
}

static void store_latent(const attention *a, float *key, const float *rest, const float *value)
{
    memcpy(key, value, a->value_dim * sizeof *key);
    memcpy(key + a->value_dim, rest, (a->head_dim - a->value_dim) * sizeof *key);
}

void attention_store(const attention *a, const moepage_kv_layer_view *view,
                     const attention_row *rows, uint32_t n, const float *k, const float *v)
{
    const uint32_t key_dim = a->latent ? a->head_dim - a->value_dim : a->head_dim;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < a->kv_heads; h++, k += key_dim, v += a->value_dim) {
            const uint64_t at = rows[r].position % a->block_tokens;
            float *keys = keys_at(a, view, rows[r].blocks[rows[r].position / a->block_tokens], h);
            if (a->latent) {
                store_latent(a, keys + at * a->head_dim, k, v);
                continue;
            }
            for (uint32_t i = 0; i < a->head_dim; i++)
                keys[(size_t)i * a->block_tokens + at] = k[i];
            memcpy(keys + value_offset(a) + at * a->head_dim, v, a->head_dim * sizeof *v);
        }
}

/* ---- Queries ----------------------------------------------------------------------------- */

/* Returns the first position that a row sees. */
static uint64_t start_of(const attention_job *job, const attention_row *row)
{
    return row->position + 1 > job->window ? row->position + 1 - job->window : 0;
}

/* Scores of all queries with all positions of the block, seen or not: of keys that lie one after the
 * other. */
static void score_rows(const attention_job *job, const queries *s, uint64_t block, size_t column)
{
    const attention *a = job->a;
    const float *key = keys_at(a, job->view, s->rows->blocks[block], s->kv_head);
    for (uint32_t t = 0; t < a->block_tokens; t++, key += a->head_dim)
        for (uint32_t i = 0; i < s->n_rows * s->heads; i++)
            s->scores[i][column + t] = a->compute->kernels->dot(s->q[i], key, a->head_dim);
}

/* The same of keys that lie across. */
static void score_block(const attention_job *job, const queries *s, uint64_t block, size_t column)
{
    const attention *a = job->a;
    float *out[QUERIES];
    for (uint32_t i = 0; i < s->n_rows * s->heads; i++)
        out[i] = s->scores[i] + column;
    const weighted_sums sums = {.out = out,
                                .weights = s->q,
                                .rows = keys_at(a, job->view, s->rows->blocks[block], s->kv_head),
                                .stride = a->block_tokens,
                                .n_sums = s->n_rows * s->heads,
                                .n_rows = a->head_dim,
                                .n = a->block_tokens};
    a->compute->kernels->sum_rows(&sums);
}

/* Adds the values at positions [first, end) of a block to rows [row, row + n_rows). */
static void add_values(const attention_job *job, const queries *s, uint64_t block, size_t column,
                       uint32_t row, uint32_t n_rows, uint32_t first, uint32_t end)
{
    const attention *a = job->a;
    const float *weights[QUERIES];
    for (uint32_t i = 0; i < n_rows * s->heads; i++)
        weights[i] = s->scores[row * s->heads + i] + column + first;
    const float *keys = keys_at(a, job->view, s->rows->blocks[block], s->kv_head);
    const weighted_sums sums = {.out = s->out + row * s->heads,
                                .weights = weights,
                                .rows = keys + value_offset(a) + (size_t)first * a->head_dim,
                                .stride = a->head_dim,
                                .n_sums = n_rows * s->heads,
                                .n_rows = end - first,
                                .n = a->value_dim,
                                .resume = true};
    a->compute->kernels->sum_rows(&sums);
}

/* A block that all rows see whole is theirs together; of others each takes what it sees. */
static void value_block(const attention_job *job, const queries *s, uint64_t block, size_t column)
{
    const uint64_t tokens = job->a->block_tokens, base = block * tokens;
    const attention_row *last = &s->rows[s->n_rows - 1];
    if (start_of(job, last) <= base && base + tokens <= s->rows->position + 1) {
        add_values(job, s, block, column, 0, s->n_rows, 0, (uint32_t)tokens);
        return;
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        const uint64_t start = start_of(job, &s->rows[r]), end = s->rows[r].position + 1;
        const uint64_t first = start > base ? start - base : 0;
        const uint64_t behind = end < base ? 0 : end < base + tokens ? end - base : tokens;
        if (first < behind)
            add_values(job, s, block, column, r, 1, (uint32_t)first, (uint32_t)behind);
    }
}

/* Turns n scores into probabilities. A sink takes its share of them, as scores[n] meanwhile. */
static void softmax(const kernels *ops, float *scores, uint32_t n, float scale, const float *sink)
{
    if (!sink) {
        ops->softmax(scores, n, scale);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        scores[i] *= scale;
    scores[n] = *sink;
    ops->softmax(scores, n + 1, 1);
}

static void attend(const attention_job *job, const queries *s)
{
    const attention *a = job->a;
    const uint64_t first = start_of(job, s->rows) / a->block_tokens;
    const uint64_t end = s->rows[s->n_rows - 1].position / a->block_tokens + 1;
    for (uint64_t b = first; b < end; b++)
        (a->latent ? score_rows : score_block)(job, s, b, (b - first) * a->block_tokens);
    for (uint32_t i = 0; i < s->n_rows * s->heads; i++) {
        const attention_row *row = &s->rows[i / s->heads];
        const uint64_t start = start_of(job, row);
        softmax(a->compute->kernels, s->scores[i] + (start - first * a->block_tokens),
                (uint32_t)(row->position + 1 - start), a->scale,
                s->sinks ? s->sinks + i % s->heads : NULL);
        memset(s->out[i], 0, a->value_dim * sizeof *s->out[i]);
    }
    for (uint64_t b = first; b < end; b++)
        value_block(job, s, b, (b - first) * a->block_tokens);
}

/* ---- Items ------------------------------------------------------------------------------- */

/* Returns how many of the rows [r, end) follow each other in one sequence. */
static uint32_t adjacent(const attention_job *job, uint32_t r, uint32_t end)
{
    uint32_t n = 1;
    while (r + n < end && job->rows[r + n].blocks == job->rows[r].blocks &&
           job->rows[r + n].position == job->rows[r].position + n)
        n++;
    return n;
}

static void run_item(void *arg, uint32_t item, float *scratch)
{
    const attention_job *job = arg;
    const attention *a = job->a;
    const uint32_t parts = a->heads / job->item_heads;
    const uint32_t head = item % parts * job->item_heads, begin = item / parts * job->item_rows;
    const uint32_t end = begin + job->item_rows < job->n ? begin + job->item_rows : job->n;
    for (uint32_t r = begin, n; r < end; r += n) {
        n = adjacent(job, r, end);
        queries s = {.rows = &job->rows[r],
                     .n_rows = n,
                     .heads = job->item_heads,
                     .kv_head = head / job->group,
                     .sinks = job->sinks ? job->sinks + head : NULL};
        for (uint32_t i = 0; i < n * s.heads; i++) {
            const size_t at = (size_t)(r + i / s.heads) * a->heads + head + i % s.heads;
            s.q[i] = job->q + at * a->head_dim;
            s.out[i] = job->out + at * a->value_dim;
            s.scores[i] = scratch + i * job->stride;
        }
        attend(job, &s);
    }
}

/* Returns how many heads of a KV head an item takes: few if there would be too few items. */
static uint32_t heads_per_item(const attention_job *job)
{
    const uint32_t wanted = 2 * workers_count(job->a->compute->workers);
    const uint32_t most = queries_of(job->stride);
    uint32_t heads = job->group;
    while (heads > most || (heads > 1 && job->n * (job->a->heads / heads) < wanted)) {
        uint32_t part = 2;
        while (heads % part)
            part++;
        heads /= part;
    }
    return heads;
}

void attention_run(const attention *a, const moepage_kv_layer_view *view, const attention_row *rows,
                   uint32_t n, uint32_t window, const float *sinks, const float *q, float *out)
{
    attention_job job = {.a = a,
                         .view = view,
                         .rows = rows,
                         .n = n,
                         .window = window,
                         .sinks = sinks,
                         .q = q,
                         .out = out,
                         .group = a->heads / a->kv_heads};
    uint64_t work = 0, most = 0;
    for (uint32_t r = 0; r < n; r++) {
        work += 2 * (rows[r].position + 1) * a->heads * a->head_dim;
        most = rows[r].position > most ? rows[r].position : most;
    }
    job.stride = stride_of(most, a->block_tokens);
    job.item_heads = heads_per_item(&job);
    job.item_rows = queries_of(job.stride) / job.item_heads;
    const uint32_t tiles = (n + job.item_rows - 1) / job.item_rows;
    workers_run(a->compute->workers, tiles * (a->heads / job.item_heads), work, run_item, &job);
}
