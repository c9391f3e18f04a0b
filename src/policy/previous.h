/* previous.h — each layer's most recent set of experts: one line per layer, a count and that many
 * ids in routing order. Zeros: the layer has not been used. */
#ifndef MP_POLICY_PREVIOUS_H
#define MP_POLICY_PREVIOUS_H

#include <stdint.h>

/* Returns the bytes of lines [layers][1 + experts]. */
uint64_t mp_previous_bytes(uint32_t layers, uint32_t experts);

/* Records that `layer` was routed to these distinct experts. */
void mp_previous_note(uint32_t *lines, uint32_t experts, uint32_t layer, const uint32_t *ids,
                      uint32_t n);

/* Returns the *n experts of the layer's most recent set. */
const uint32_t *mp_previous_set(const uint32_t *lines, uint32_t experts, uint32_t layer,
                                uint32_t *n);

#endif
