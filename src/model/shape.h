/* shape.h — what the numbers of a model and the tensors of its experts may be, wherever they come
 * from. `refuse` is the status for what they may not be; who calls names the source. */
#ifndef MP_MODEL_SHAPE_H
#define MP_MODEL_SHAPE_H

#include <stdbool.h>

#include "moepage.h"

/* Counts within bounds whose products fit 64 bits. */
moepage_status mp_shape_check_counts(const moepage_model_info *info, moepage_status refuse);

/* Roles, dtypes and dimensions; each role at most once, and nothing both fused and in halves. */
moepage_status mp_shape_check_tensors(const moepage_expert_tensor *tensors, uint32_t n,
                                      moepage_status refuse);

/* Ascending and below info->layers. */
moepage_status mp_shape_check_layers(const moepage_model_info *info, const int32_t *layer_of_moe,
                                     moepage_status refuse);

/* Bytes of a tensor; a rank of 0 has one element. False for no dtype, or when they overflow. */
bool mp_shape_bytes(uint32_t dtype, uint32_t rank, const uint64_t *shape, uint64_t *out);

#endif
