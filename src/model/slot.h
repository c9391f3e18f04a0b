/* slot.h — laying an expert's tensors out in a slot. */
#ifndef MP_MODEL_SLOT_H
#define MP_MODEL_SLOT_H

#include <stdbool.h>

#include "model/model.h"

/* Every tensor starts at a multiple of this within a slot, and slots are a multiple of it long:
 * the widest alignment that device kernels ask of a weight matrix. */
#define MP_SLOT_ALIGN 256u

/* From the tensors' dtypes and shapes and the pieces' tensor offsets: every offset and size, up to
 * info.routed_bytes. `refuse` is the status for sizes that overflow. */
moepage_status mp_slot_layout(struct moepage_model *model, moepage_status refuse);

/* Room for every expert's pieces; after mp_slot_layout. */
moepage_status mp_slot_alloc_sources(struct moepage_model *model);

/* Fills model->ffn and info.ffn_supported. `swiglu`: the experts compute silu(gate) * up, and the
 * rows and block scales of a fused tensor are gate's, then up's. Before the call ffn.scale.rows and
 * .columns hold the size of a block of FP8 weights where the model's source states it, else 0: it
 * is then deduced from the shapes. */
void mp_slot_find_ffn(struct moepage_model *model, bool swiglu);

/* Zeroes what lies behind each tensor of a slot, up to the next one. */
void mp_slot_clear_padding(const struct moepage_model *model, unsigned char *slot);

#endif
