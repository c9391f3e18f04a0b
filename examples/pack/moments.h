/* moments.h — second moments of the inputs of an expert's matrices, from a calibration, for
 * moepage_pack_config.
 *
 * A choice of the expert counts with the square of its weight, as it does in the layer's output. So that
 * moments are those of enough inputs, and of an expert that no token has chosen, too, `hidden` tokens spread
 * evenly over the layer's count as if they had chosen the expert as well, with the mean square of the layer's
 * weights. */
#ifndef EXAMPLE_MOMENTS_H
#define EXAMPLE_MOMENTS_H

#include <stdatomic.h>

#include "moepage.h"
#include "pack/calibration.h"

typedef struct moments {
    const moepage_model *model;
    const calibration *from;
    double *mean_squares;          /* [moe_layers] of weights */
    uint64_t n_few;                /* experts that fewer than `hidden` tokens have chosen */
    uint64_t least;                /* choices of the least chosen expert */
    _Atomic(const char *) failure; /* why a callback failed, or NULL */
} moments;

/* Refuses a model of whose experts nothing is rounded, or whose down projections have inputs other than
 * SwiGLU's: one line and RUN_REFUSED. */
int moments_check(const moepage_model *model);

/* Opens the moments; the model has the experts of the calibration's. *out is always safe to close. */
int moments_open(const moepage_model *model, const calibration *from, moments *out);
void moments_close(moments *m);

/* A moepage_moments_fn; `user` is a moments. */
int32_t moments_fill(void *user, uint32_t layer, uint32_t expert, uint32_t tensor, const void *slot,
                     uint64_t columns, float *out);

#endif
