/* decoder.h — one forward pass: embeddings, attention over the paged KV cache, routers, experts
 * by the library, logits.
 *
 * This is the part that shows how a host drives libmoepage: decoder_step in decoder.c is the loop
 * that moepage.h sketches. */
#ifndef EXAMPLE_DECODER_H
#define EXAMPLE_DECODER_H

#include "common/attention.h"
#include "common/compute.h"
#include "common/config.h"
#include "common/weights.h"
#include "moepage.h"

/* One sequence's share of a step. */
typedef struct decoder_input {
    moepage_seq seq;
    const uint32_t *tokens; /* [n_tokens], each below the vocabulary */
    uint32_t n_tokens;
    uint32_t phase;    /* MOEPAGE_PHASE_* */
    uint64_t position; /* tokens that the sequence holds already */
} decoder_input;

/* Activations of the largest step, [max_tokens] rows each. */
typedef struct decoder_buffers {
    float *hidden; /* the residual stream */
    float *normed; /* [hidden] */
    float *q, *attended;
    float *k, *v;
    float *cosines, *sines;
    float *scores; /* [experts] router logits, then probabilities */
    int32_t *ids;
    float *weights;
    int32_t *hint;    /* [experts] distinct ids guessed for the next layer */
    bool *hinted;     /* [experts] */
    float *gate, *up; /* of dense and shared MLPs */
    float *added;     /* [hidden] what a sublayer adds to the residual stream */
    float *shared;    /* [hidden] the shared expert's output */
    float *shared_gate;
    attention_row *rows;
    moepage_step_sequence *sequences;
} decoder_buffers;

typedef struct decoder {
    const model_config *config;
    const model_weights *weights;
    moepage_session *session;
    moepage_kv_pool *kv;
    moepage_kv_layer_view *views; /* [layers] */
    compute compute;
    attention attention;
    bool hints;
    uint32_t max_tokens;
    decoder_buffers buffers;
    uint64_t dense_ns;   /* measured: everything computed here */
    uint64_t library_ns; /* measured: inside the library's session calls */
} decoder;

/* Prepares for steps of up to `max_tokens` tokens and contexts of up to `max_positions`.
 * With `hints`, every layer names the experts that the next one will probably want.
 * Everything is borrowed until decoder_close, which is safe after a failure. */
int decoder_open(const model_config *config, const model_weights *w, moepage_session *session,
                 moepage_kv_pool *kv, uint32_t math, bool hints, uint32_t threads,
                 uint32_t max_tokens, uint64_t max_positions, decoder *out);
void decoder_close(decoder *d);

/* Runs one step; its tokens' hidden states stay until the next. No failure leaves a step open. */
int decoder_step(decoder *d, const decoder_input *inputs, uint32_t n_inputs);

/* Logits [n][vocabulary] of rows first_row .. first_row + n of the last step. */
void decoder_logits(decoder *d, uint32_t first_row, uint32_t n, float *out);

#endif
