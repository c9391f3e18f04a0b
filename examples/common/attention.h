/* attention.h — attention over the paged KV cache: grouped-query, or with latents.
 *
 * A block of one layer holds `block_tokens` keys, then as many values, each KV head's together; keys lie
 * across, so that the same element of all of them is one row:
 *   [K: kv_heads x head_dim x block_tokens floats][V: kv_heads x block_tokens x head_dim]
 * With latents there is one key for all heads, and its first elements are the value, stored once:
 *   [block_tokens x head_dim]
 * and a score is summed in the lanes of kernels.h's dot; otherwise in the order of the head's elements. A
 * value is summed in the order of positions. So a row's result depends neither on where its blocks lie nor
 * on how the prompt was cut into steps, nor on the rows and heads that are computed together. */
#ifndef EXAMPLE_ATTENTION_H
#define EXAMPLE_ATTENTION_H

#include "common/compute.h"
#include "moepage.h"

/* One row of the batch and its position. */
typedef struct attention_row {
    const uint32_t *blocks; /* block table of its sequence */
    uint64_t position;
} attention_row;

typedef struct attention {
    const compute *compute;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;  /* of queries and keys */
    uint32_t value_dim; /* of values and sums */
    uint32_t block_tokens;
    bool latent;
    float scale; /* of scores */
} attention;

/* Returns the attention of a model. */
attention attention_of(const model_config *config, const compute *with, uint32_t block_tokens);

/* Returns the bytes of one token in one layer. */
uint32_t attention_bytes_per_token(const model_config *config);

/* Returns the scratch, in floats, that a worker needs for contexts up to `positions`: 4.5 MiB at most up
 * to a million of them. */
size_t attention_scratch_floats(uint64_t positions, uint32_t block_tokens);

/* Writes the rows' keys and values [n][kv_heads][head_dim] to their blocks; of latents, k [n][head_dim -
 * value_dim] is the rest of a key, which its value v [n][value_dim] begins. */
void attention_store(const attention *a, const moepage_kv_layer_view *view,
                     const attention_row *rows, uint32_t n, const float *k, const float *v);

/* Computes out[n][heads][value_dim] of q[n][heads][head_dim]: each row attends to itself and the `window` - 1
 * positions before it, and where there are sinks [heads], to one more of that score and no value. */
void attention_run(const attention *a, const moepage_kv_layer_view *view, const attention_row *rows,
                   uint32_t n, uint32_t window, const float *sinks, const float *q, float *out);

#endif
