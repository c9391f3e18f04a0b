/* planes.h — the byte planes of an expert's tensors, as a zstd frame holds them: for each tensor
 * the first bytes of all its elements, then the second bytes, and so on. Bytes of one kind (signs
 * and exponents, low mantissas) compress better side by side. The slot's padding is left out. */
#ifndef MP_MODEL_PLANES_H
#define MP_MODEL_PLANES_H

#include "model/model.h"

/* Splits a slot (the layout's slot_bytes) into planes (its expert_bytes). */
void mp_planes_split(const mp_layout *layout, uint32_t n_tensors, const unsigned char *slot,
                     unsigned char *planes);

/* Merges planes into a slot; writes the tensors and leaves the padding as it is. */
void mp_planes_merge(const mp_layout *layout, uint32_t n_tensors, const unsigned char *planes,
                     unsigned char *slot);

#endif
