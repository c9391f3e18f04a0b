/* slot.h — laying an expert's tensors out in a slot. */
#ifndef MP_MODEL_SLOT_H
#define MP_MODEL_SLOT_H

#include <stdbool.h>

#include "model/model.h"

/* Every tensor starts at a multiple of this within a slot, and a slot's length is a multiple of it:
 * the widest alignment that device kernels need for a weight matrix. */
#define MP_SLOT_ALIGN 256u

/* Computes every offset and size up to info.routed_bytes from the tensors' dtypes and shapes and
 * the pieces' tensor offsets. `refuse` is the status for sizes that overflow. */
moepage_status mp_slot_layout(struct moepage_model *model, moepage_status refuse);

/* Allocates `sources` for every expert's pieces; call it after mp_slot_layout. */
moepage_status mp_slot_alloc_sources(struct moepage_model *model);

/* Fills model->ffn and info.ffn_supported. `swiglu`: the experts compute silu(gate) * up, and a
 * fused tensor has gate's rows and block scales first, then up's. Before the call ffn.scale.rows
 * and .columns hold the FP8 block size if the model's source states it, else 0: it is then deduced
 * from the shapes. */
void mp_slot_find_ffn(struct moepage_model *model, bool swiglu);

/* Zeroes the gap behind each tensor of a slot, up to the next tensor. */
void mp_slot_clear_padding(const struct moepage_model *model, unsigned char *slot);

#endif
