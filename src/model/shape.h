/* shape.h — the limits on a model's numbers and on its experts' tensors, whatever their source.
 * `refuse` is the status for a violation; the caller adds the source's name. */
#ifndef MP_MODEL_SHAPE_H
#define MP_MODEL_SHAPE_H

#include <stdbool.h>

#include "moepage.h"

/* Checks that counts are within bounds, so that their products fit 64 bits. */
moepage_status mp_shape_check_counts(const moepage_model_info *info, moepage_status refuse);

/* Checks roles, dtypes and dimensions: each role at most once, and no operand both fused and in
 * halves. */
moepage_status mp_shape_check_tensors(const moepage_expert_tensor *tensors, uint32_t n,
                                      moepage_status refuse);

/* Checks that layers ascend and are below info->layers. */
moepage_status mp_shape_check_layers(const moepage_model_info *info, const int32_t *layer_of_moe,
                                     moepage_status refuse);

/* Checks the dtype of a tensor; `kind` and `i` name the tensor. */
moepage_status mp_shape_check_dtype(const char *kind, uint32_t i, uint32_t dtype,
                                    moepage_status refuse);

/* Checks that a tensor of a block format has whole blocks along its last dimension. */
moepage_status mp_shape_check_blocks(const char *kind, uint32_t i, uint32_t dtype, uint32_t rank,
                                     const uint64_t *shape, moepage_status refuse);

/* Computes the bytes of a tensor; a rank of 0 has one element. Returns false for an unknown dtype,
 * for a last dimension that is cut into no whole blocks, or on overflow. */
bool mp_shape_bytes(uint32_t dtype, uint32_t rank, const uint64_t *shape, uint64_t *out);

/* A shape as text: "[768, 2048]"; "..." stands for dimensions past MOEPAGE_MAX_RANK. */
typedef struct mp_shape_text {
    char text[96];
} mp_shape_text;

mp_shape_text mp_shape_show(const uint64_t *shape, uint32_t rank);

#endif
