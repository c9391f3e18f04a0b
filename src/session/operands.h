/* operands.h — where the SwiGLU operands of a held expert are: in an image of any form that a pool
 * serves, or, of a checkpoint, in the pieces that it consists of. Worked out once per session and layout
 * of the model's. */
#ifndef MP_SESSION_OPERANDS_H
#define MP_SESSION_OPERANDS_H

#include <stdbool.h>

#include "device/kernels.h"
#include "model/model.h"
#include "pool/pool.h"

#define MP_OPERANDS 9 /* pointers of an mp_ffn_expert */

/* Images of one form. */
typedef struct mp_image_layout {
    mp_ffn_layout ffn; /* offsets in the image; `supported` is 0 if there are none */
    uint32_t form;     /* of the matrices, as kernels read them: an integer form, or DENSE */
    uint32_t group;
} mp_image_layout;

/* Experts in pieces: the piece that each operand is in, and its offset there. */
typedef struct mp_piece_layout {
    bool supported;
    uint32_t piece[MP_OPERANDS]; /* UINT32_MAX: there is none */
    uint64_t at[MP_OPERANDS];
} mp_piece_layout;

/* Experts that one launch can take: in one form, computed in one place. */
typedef struct mp_lot {
    uint32_t form;
    bool on_host;
} mp_lot;

#define MP_MOST_LOTS 3

/* Of the experts of one of the model's layouts. */
typedef struct mp_layout_operands {
    mp_image_layout images[MP_FORMS];
    mp_piece_layout pieces;
} mp_layout_operands;

typedef struct mp_operands {
    mp_layout_operands *of;    /* [n_layouts] */
    mp_lot lots[MP_MOST_LOTS]; /* that the session's holds can be of */
    uint32_t n_lots;
} mp_operands;

/* Of a session over this pool; `on_host`: it computes experts where they lie too. NO_MEMORY. */
moepage_status mp_operands_open(const mp_pool_shape *shape, bool on_host, mp_operands *out);
void mp_operands_close(mp_operands *operands);

/* Fails with UNSUPPORTED unless the library's kernels can run all forms that the pool serves. */
moepage_status mp_operands_check(const mp_operands *operands, const struct moepage_model *model);

/* Those of a MoE layer's experts. */
const mp_layout_operands *mp_operands_of_layer(const mp_operands *operands,
                                               const struct moepage_model *model, uint32_t layer);

/* The operands of a held expert; its rows are left alone. */
void mp_operands_of(const mp_layout_operands *operands, const mp_pool_shape *shape,
                    const mp_hold *hold, mp_ffn_expert *out);

#endif
