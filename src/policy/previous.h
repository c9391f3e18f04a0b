/* previous.h — the set of experts that each layer used last time: one line per layer, a count and
 * that many ids in the order in which they were routed. Zeros: no layer has used any. */
#ifndef MP_POLICY_PREVIOUS_H
#define MP_POLICY_PREVIOUS_H

#include <stdint.h>

/* Of lines [layers][1 + experts]. */
uint64_t mp_previous_bytes(uint32_t layers, uint32_t experts);

/* `layer` was routed to these distinct experts. */
void mp_previous_note(uint32_t *lines, uint32_t experts, uint32_t layer, const uint32_t *ids,
                      uint32_t n);

/* The *n experts of its last turn. */
const uint32_t *mp_previous_set(const uint32_t *lines, uint32_t experts, uint32_t layer,
                                uint32_t *n);

#endif
