/* weights.h — the checkpoint's dense tensors, located once and read in place. */
#ifndef EXAMPLE_WEIGHTS_H
#define EXAMPLE_WEIGHTS_H

#include "common/config.h"
#include "common/matrix.h"

/* A gated MLP: down(silu(gate x) * up x). */
typedef struct mlp_weights {
    matrix gate, up, down;
} mlp_weights;

/* Scale and, for LayerNorm, shift; widened to floats. */
typedef struct norm_weights {
    const float *scale;
    const float *shift; /* NULL = none */
    float eps;
} norm_weights;

/* Matrices of one shape, one for each head. */
typedef struct head_matrices {
    matrix first;
    size_t apart;        /* bytes from one to the next */
    size_t scales_apart; /* the same of scales */
} head_matrices;

static inline matrix head_matrix(const head_matrices *all, uint32_t head)
{
    matrix m = all->first;
    m.data = (const unsigned char *)m.data + head * all->apart;
    if (m.scales)
        m.scales = (const unsigned char *)m.scales + head * all->scales_apart;
    return m;
}

/* What attention with latents has besides: of a token, h, and a head's rows. */
typedef struct latent_weights {
    matrix q_low, vector,
        turned;                /* h to the queries' low rank, the latent vector, the rotated key */
    norm_weights q_norm, norm; /* of the two vectors */
    head_matrices keys;        /* [rank, plain] a query to one of latents; transposed projections */
    head_matrices values;      /* [value, rank] a sum of latents to that of values */
} latent_weights;

typedef struct layer_weights {
    norm_weights input_norm, post_norm, q_norm, k_norm;
    matrix q, k, v, o; /* q of h or, where there is latent.q_low, of that */
    latent_weights latent;
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL = none */
    const float *sinks;                             /* [heads]; NULL = none */
    matrix router;                                  /* MoE layers */
    const float *router_bias;                       /* NULL = none */
    const float *choice_bias;                       /* of a sigmoid router; NULL = none */
    mlp_weights mlp;    /* the shared expert of an MoE layer, or a dense layer's MLP */
    matrix shared_gate; /* [1, hidden] */
} layer_weights;

typedef struct model_weights {
    layer_weights *layers;
    matrix embedding;           /* data NULL: its rows are read from the model */
    const moepage_model *model; /* borrowed */
    const char *embedding_name; /* in it */
    matrix head;
    const float *head_bias;
    norm_weights final_norm;
    void **owned; /* storage behind the float pointers above, and behind decoded matrices */
    size_t n_owned;
    uint64_t bytes;         /* of all of it in memory, as products read it */
    uint64_t decoded_bytes; /* of these, F32 of matrices that the file has in blocks or in FP8 */
} model_weights;

/* Finds every tensor that `config` requires, checks its shape, and refuses the model if it has dense
 * tensors besides. The matrices point into the model, which must stay open. For a GPU those in blocks or FP8
 * are decoded instead, and embeddings are in memory; elsewhere they are only if the head needs them.
 * *out is always safe to close. */
int weights_open(const moepage_model *model, const model_config *config, bool on_gpu,
                 model_weights *out);
void weights_close(model_weights *w);

/* Writes n values of a token's embedding, likewise; a failure to read them ends with a line. Not for a GPU's
 * weights. */
int weights_read_embedding(const model_weights *w, uint32_t token, uint32_t first, uint32_t n,
                           float *out);

#endif
