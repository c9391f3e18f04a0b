/* weights.h — the checkpoint's dense tensors, located once and read in place. */
#ifndef EXAMPLE_WEIGHTS_H
#define EXAMPLE_WEIGHTS_H

#include "common/config.h"

/* A row-major matrix inside the mapped checkpoint, or decoded. data NULL = absent from this model. */
typedef struct matrix {
    const void *data;
    uint32_t dtype; /* F32, F16, BF16, or the blocks of a GGUF file */
    uint32_t rows;
    uint32_t columns;
    size_t blocks; /* bytes of a row in blocks; 0 = in floats */
} matrix;

static inline size_t matrix_row_bytes(const matrix *m)
{
    return m->blocks ? m->blocks : (size_t)m->columns * (m->dtype == MOEPAGE_DTYPE_F32 ? 4 : 2);
}

/* A gated MLP: down(silu(gate x) * up x). */
typedef struct mlp_weights {
    matrix gate, up, down;
} mlp_weights;

/* Scale and, for LayerNorm, shift; widened to floats. */
typedef struct norm_weights {
    const float *scale;
    const float *shift; /* NULL = none */
} norm_weights;

typedef struct layer_weights {
    norm_weights input_norm, post_norm, q_norm, k_norm;
    matrix q, k, v, o;
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL = none */
    const float *sinks;                             /* [heads]; NULL = none */
    matrix router;                                  /* MoE layers */
    const float *router_bias;                       /* NULL = none */
    mlp_weights mlp;    /* the shared expert of an MoE layer, or a dense layer's MLP */
    matrix shared_gate; /* [1, hidden] */
} layer_weights;

typedef struct model_weights {
    layer_weights *layers;
    matrix embedding;
    matrix head;
    const float *head_bias;
    norm_weights final_norm;
    float **owned; /* storage behind the float pointers above, and behind decoded matrices */
    size_t n_owned;
    uint64_t bytes;         /* of all of it, as products read it */
    uint64_t decoded_bytes; /* of these, matrices that the file has in blocks; F32 */
} model_weights;

/* Finds every tensor that `config` requires and checks its shape. The matrices point into the
 * model, which must stay open; with `decode`, those in blocks are decoded instead. *out is always
 * safe to close. */
int weights_open(const moepage_model *model, const model_config *config, bool decode,
                 model_weights *out);
void weights_close(model_weights *w);

/* Writes n values of a row, from column `first` on; both are of whole blocks. */
void weights_read_row(const matrix *m, uint32_t row, uint32_t first, uint32_t n, float *out);

#endif
