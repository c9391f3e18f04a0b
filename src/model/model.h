/* model.h — what a checkpoint is to the rest of the library: a shape, an expert layout, and where
 * each expert's bytes are.
 *
 * An expert's slot holds its tensors at fixed offsets. Its bytes come in pieces: a fused tensor
 * in the slot may be two tensors in the file (gate_proj and up_proj), and every piece is one
 * contiguous range of memory or of the caller's read callback. Experts are never copied on the
 * host: pieces point into the mapped files. */
#ifndef MP_MODEL_MODEL_H
#define MP_MODEL_MODEL_H

#include <stdatomic.h>

#include "base/handle.h"
#include "base/log.h"
#include "moepage.h"

#define MP_MAX_PIECES 16

/* One contiguous range of an expert's slot; the same for all experts. */
typedef struct mp_piece {
    uint32_t tensor; /* index into moepage_model.tensors */
    uint32_t reserved;
    uint64_t tensor_offset; /* in the tensor, for the read callback */
    uint64_t slot_offset;
    uint64_t bytes;
} mp_piece;

/* Where the SwiGLU operands lie inside a slot. Biases are UINT64_MAX when absent. */
typedef struct mp_ffn_layout {
    uint32_t supported; /* 1: MP_KERNEL_EXPERTS can run these experts */
    uint32_t dtype;
    uint64_t gate, up, down;
    uint64_t gate_bias, up_bias, down_bias;
} mp_ffn_layout;

struct moepage_model {
    mp_handle handle;
    _Atomic uint32_t users;  /* expert pools */
    moepage_model_info info; /* struct_size set; architecture points to static text */
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_ffn_layout ffn;
    mp_piece pieces[MP_MAX_PIECES];
    uint32_t n_pieces;
    const void **sources; /* [moe_layers][experts][n_pieces]; NULL with a read callback */
    moepage_read_fn read; /* or NULL */
    void *read_user;
    int32_t *layer_of_moe; /* [moe_layers] */
    mp_log log;
    struct mp_checkpoint
        *checkpoint; /* mapped files, tensor directory, config text; NULL for banks */
};

/* Opens a checkpoint directory; what moepage_model_open does. */
moepage_status mp_model_open_checkpoint(const char *path, const mp_log *log,
                                        struct moepage_model **out);

/* A model of caller-held experts; `banks` is a full-sized struct of this version. */
moepage_status mp_model_open_banks(const moepage_banks *banks, const mp_log *log,
                                   struct moepage_model **out);

/* Frees a model, half-built or whole. NULL is a no-op. */
void mp_model_free(struct moepage_model *model);

/* The tensor of that name, aligned for its dtype. */
moepage_status mp_model_find_tensor(const struct moepage_model *model, const char *name,
                                    moepage_tensor_view *out);

/* config.json, or NULL for banks. */
const char *mp_model_config_text(const struct moepage_model *model);

/* Index of (layer, expert, piece 0) in `sources`. */
static inline uint64_t mp_model_source_index(const struct moepage_model *model, uint32_t layer,
                                             uint32_t expert)
{
    return ((uint64_t)layer * model->info.experts + expert) * model->n_pieces;
}

#endif
