/* previous.h — the set of experts that each layer used last time, whichever sequences did. */
#ifndef MP_SESSION_PREVIOUS_H
#define MP_SESSION_PREVIOUS_H

#include <stdint.h>

typedef struct mp_previous mp_previous;

uint64_t mp_previous_bytes(uint32_t layers, uint32_t experts);
/* No layer has used any. */
void mp_previous_init(mp_previous *previous, uint32_t layers, uint32_t experts);
/* `layer` was routed to these distinct experts. */
void mp_previous_note(mp_previous *previous, uint32_t layer, const uint32_t *experts, uint32_t n);
/* Writes those of its last turn, in the order in which they were routed; returns how many. */
uint32_t mp_previous_set(const mp_previous *previous, uint32_t layer, uint32_t *out);

#endif
