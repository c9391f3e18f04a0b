/* slot.h — laying an expert's tensors out in a slot. */
#ifndef MP_MODEL_SLOT_H
#define MP_MODEL_SLOT_H

#include <stdbool.h>

#include "model/model.h"

/* Every tensor starts at a multiple of this within a slot, and a slot's length is a multiple of it:
 * the widest alignment that device kernels need for a weight matrix. */
#define MP_SLOT_ALIGN 256u

/* Computes every offset and size up to info.routed_bytes, of every layout, from the tensors' dtypes and
 * shapes and the pieces' tensor offsets; a piece without bytes is a whole tensor. layout_of is set before,
 * if there is more than one layout. `refuse` is the status for sizes that overflow. */
moepage_status mp_slot_layout(struct moepage_model *model, moepage_status refuse);

/* Gives a layer the layout with these tensors, which is added if no layer before has it: for every layer in
 * ascending order, before anything else here, with info.moe_layers and info.expert_tensors set. Nothing
 * that a layout's source sets beside the tensors may differ. NO_MEMORY; UNSUPPORTED for too many. */
moepage_status mp_slot_choose_layout(struct moepage_model *model, uint32_t layer,
                                     const moepage_expert_tensor *tensors);

/* Makes each tensor one piece; call it before mp_slot_layout. */
void mp_slot_whole_pieces(struct moepage_model *model);

/* Allocates `sources`, or `spans` and what computing pieces needs, for every expert's pieces; call it
 * after mp_slot_layout. Spans are in the order of the pieces. */
moepage_status mp_slot_alloc_sources(struct moepage_model *model);
moepage_status mp_slot_alloc_spans(struct moepage_model *model);

/* Fills the layouts' ffn, and the activation and ffn_supported of info: 1 if every layout is.
 * `in_order`: a fused tensor has gate's rows and block scales first, then up's. Before the call
 * ffn.scale.rows and .columns hold the FP8 block size if the model's source states it, else 0: it is
 * then deduced from the shapes. */
void mp_slot_find_ffn(struct moepage_model *model, const mp_activation *activation, bool in_order);

/* Zeroes the gap behind each tensor of a slot, up to the next tensor. */
void mp_slot_clear_padding(const mp_layout *layout, uint32_t n_tensors, unsigned char *slot);

#endif
