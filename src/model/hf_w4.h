/* hf_w4.h — checkpoints of W4A16 weights: what config.json says of them, and their matrices.
 *
 * Of a matrix NAME.weight such a checkpoint stores parts: words of four-bit integers, scales and
 * zero-points (model/repack_w4.h). Its directory of tensors is completed with NAME.weight, in blocks of W4,
 * which is computed from the parts; where columns are reordered, act-order, in floats. Whatever looks for it
 * finds it as in any other checkpoint. The rest, such as matrices that were left unquantised, is there
 * already. */
#ifndef MP_MODEL_HF_W4_H
#define MP_MODEL_HF_W4_H

#include <stdbool.h>

#include "base/json.h"
#include "model/checkpoint.h"
#include "model/repack_w4.h"

/* quantization_config. */
typedef struct mp_hf_w4 {
    bool given; /* it is of one of these */
    mp_w4_layout layout;
    uint32_t group;  /* columns that share a scale; 0 = all; of PACKED the tensors say it */
    bool reordered;  /* columns of a group need not follow each other: act-order; */
    bool in_order;   /* of PACKED: of some matrices they do all the same */
    bool symmetric;  /* of PACKED: matrices without stored zero-points are expected, */
    bool asymmetric; /* or such with them */
} mp_hf_w4;

/* Reads the object of `quant_method`. UNSUPPORTED for a method that is none of these. */
moepage_status mp_hf_w4_read(const mp_json *quantization, const char *quant_method, mp_hf_w4 *out);

/* Completes the directory. */
moepage_status mp_hf_w4_complete(const mp_hf_w4 *config, mp_checkpoint *checkpoint);

#endif
