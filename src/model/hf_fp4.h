/* hf_fp4.h — checkpoints of NVFP4 weights, ModelOpt's and compressed-tensors', and ModelOpt's of FP8 with one
 * scale for a matrix: what their configuration says of them, and their matrices.
 *
 * Of a matrix NAME.weight of NVFP4 such a checkpoint stores parts: nibbles, scales of groups, and one factor of
 * all scales (model/repack.h). Its directory of tensors is completed with NAME.weight in blocks of NVFP4G; of FP8
 * with NAME.weight_scale_inv, one block as large as the matrix. Of experts that are stacked in a tensor NAME,
 * ModelOpt's, the parts are stacks too, but for a factor that all share, and NAME is computed, a stack of blocks.
 * Whatever looks for them finds them as in any other checkpoint. The rest, such as matrices that were left
 * unquantised, is there already. */
#ifndef MP_MODEL_HF_FP4_H
#define MP_MODEL_HF_FP4_H

#include <stdbool.h>

#include "base/json.h"
#include "model/checkpoint.h"

/* Whose names and factors the parts have. */
typedef enum mp_fp4_layout { MP_FP4_NONE, MP_FP4_MODELOPT, MP_FP4_PACKED } mp_fp4_layout;

/* Finds out whether quantization_config, of `quant_method`, is of one of these, and checks it if so. */
moepage_status mp_hf_fp4_read(const mp_json *quantization, const char *quant_method,
                              mp_fp4_layout *out);

/* Gives a config.json that says nothing of quantisation what hf_quant_config.json beside it says, if there is
 * one: ModelOpt's older versions write it there alone. */
moepage_status mp_hf_fp4_complete_config(const char *dir, mp_json *config);

/* Completes the directory. */
moepage_status mp_hf_fp4_complete(mp_fp4_layout layout, mp_checkpoint *checkpoint);

#endif
