/* decoder.h — one forward pass: embeddings, attention over the paged KV cache, routers, experts
 * through the library, logits.
 *
 * This part shows how a host drives libmoepage: decoder_step in decoder.c is the loop that
 * moepage.h sketches. */
#ifndef EXAMPLE_DECODER_H
#define EXAMPLE_DECODER_H

#include "common/config.h"
#include "common/dense.h"
#include "common/router.h"
#include "common/weights.h"
#include "common/workers.h"
#include "moepage.h"

/* Most rows whose logits are computed together. */
#define DECODER_LOGIT_ROWS 16u

/* One sequence's share of a step. */
typedef struct decoder_input {
    moepage_seq seq;
    const uint32_t *tokens; /* [n_tokens], each below the vocabulary */
    uint32_t n_tokens;
    uint32_t phase;    /* MOEPAGE_PHASE_* */
    uint64_t position; /* tokens that the sequence already has in the cache */
} decoder_input;

/* Buffers for the largest step, [max_tokens] rows each: activations where the model runs ... */
typedef struct decoder_buffers {
    float *hidden;    /* the residual stream */
    float *normed;    /* [hidden] */
    float *q, *k, *v; /* of latents, k is the rotated key and v the vector */
    float *attended;  /* [heads][value_dim] */
    float *q_low;     /* latent attention: [q_rank], */
    float *absorbed;  /* queries of latents [heads][head_dim], */
    float *expanded;  /* sums of values [heads][value] */
    float *scores;    /* [experts] router logits */
    float *gate, *up; /* of dense and shared MLPs */
    float *added;     /* [hidden] a sublayer's output, to be added to the residual stream */
    float *shared;    /* [hidden] the shared expert's output */
    float *shared_gate;
    float *logits; /* [DECODER_LOGIT_ROWS][vocabulary] */
} decoder_buffers;

/* ... and copies that the CPU reads. */
typedef struct decoder_rows {
    float *cosines, *sines;
    int32_t *ids;
    float *weights;
    float *logits;   /* [max_tokens][experts] router logits, or NULL: not passed to the library */
    float *hidden;   /* [max_tokens][hidden] router input, or NULL: not passed */
    float *semantic; /* [max_tokens][hidden] of the sequences, or NULL: not passed */
    int32_t *hint;   /* [experts] distinct ids guessed for the next layer */
    bool *hinted;    /* [experts] */
    dense_sequence *inputs;
    moepage_step_sequence *sequences;
} decoder_rows;

typedef struct decoder_config {
    moepage_device *device; /* that the session steps on */
    const model_config *model;
    const model_weights *weights; /* decoded, if `cuda` is set */
    moepage_session *session;
    moepage_kv_pool *kv;
    uint32_t math;      /* MOEPAGE_MATH_* */
    bool hints;         /* every layer names the experts that the next one will probably need */
    bool tell_logits;   /* pass the router's logits to the library: needed by remapping, */
    bool tell_hidden;   /* the router's input: by the "gate" predictor, */
    bool tell_semantic; /* the mean embedding of each sequence's tokens: by traces and maps */
    router_fn *choose;  /* NULL: the model's own, router_choose */
    const void *choose_user;
    uint32_t threads;       /* for the CPU's part */
    uint32_t max_tokens;    /* in one step */
    uint64_t max_positions; /* longest context */
    uint64_t max_blocks;    /* KV blocks of all sequences of a step; 0 = all of the pool's */
    bool reserved;          /* the caller appends each step's tokens to the KV cache itself */
    int (*before_layer)(void *user, uint32_t layer); /* called before each; NULL = no call */
    void *before_user;
    const dense_plugin *cuda; /* NULL: dense parts run on the host */
    uint32_t ordinal;         /* number of the GPU that `cuda` uses */
    bool cublas;              /* cuda: use cuBLAS for products if it is found */
} decoder_config;

typedef struct decoder {
    const model_config *config;
    const model_weights *stored; /* in memory that the CPU reads */
    router_fn *choose;
    const void *choose_user;
    moepage_session *session;
    moepage_kv_pool *kv;
    moepage_kv_layer_view *views; /* [layers] */
    dense *dense;
    workers *workers;
    bool hints;
    bool reserved;
    int (*before_layer)(void *user, uint32_t layer);
    void *before_user;
    decoder_buffers buffers;
    decoder_rows rows;
    dense_step step;
    uint64_t dense_ns;   /* measured: all computing outside the library */
    uint64_t library_ns; /* measured: inside the library's session calls */
} decoder;

/* Opens a decoder. Everything that `config` refers to is borrowed until decoder_close, which is
 * safe after a failure. */
int decoder_open(const decoder_config *config, decoder *out);
void decoder_close(decoder *d);

/* Runs one step; its tokens' hidden states remain until the next step. A failure leaves no step
 * open. */
int decoder_step(decoder *d, const decoder_input *inputs, uint32_t n_inputs);

/* Returns the logits [n][vocabulary] of rows first_row .. first_row + n of the last step, n at most
 * DECODER_LOGIT_ROWS; valid until the next call. NULL with a line on failure. */
const float *decoder_logits(decoder *d, uint32_t first_row, uint32_t n);

#endif
