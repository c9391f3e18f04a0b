/* predictor.h — what a predictor is: it sees each layer's routed set and names the experts of a
 * layer to come, best first. Functions of numbers only: no memory, no devices, no clock. */
#ifndef MP_POLICY_PREDICTOR_H
#define MP_POLICY_PREDICTOR_H

#include <stdint.h>

typedef struct mp_predictor {
    const char *name;
    uint64_t (*state_bytes)(uint32_t layers, uint32_t experts); /* memory that init will use */
    void (*init)(void *state, uint32_t layers, uint32_t experts);
    /* `layer` was routed to these distinct experts. */
    void (*observe)(void *state, uint32_t layer, const uint32_t *experts, uint32_t n);
    /* Writes up to `experts` ids for `layer`'s next turn to `out`; returns how many. */
    uint32_t (*predict)(const void *state, uint32_t layer, uint32_t *out);
} mp_predictor;

/* The set that the layer used in the last step. */
extern const mp_predictor mp_predictor_previous;

#endif
