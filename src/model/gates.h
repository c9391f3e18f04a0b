/* gates.h — a model's routers as plain FP32 matrices, for those who want to ask a layer's router
 * before it is that layer's turn. */
#ifndef MP_MODEL_GATES_H
#define MP_MODEL_GATES_H

#include "model/model.h"

typedef struct mp_gates {
    uint64_t bytes;
    float *values;         /* what the others point into */
    const float **weights; /* [moe_layers] each [experts][hidden] */
    const float **biases;  /* [moe_layers] each [experts], added to the logits; NULL: has none */
} mp_gates;

/* Widens the routers' weights, and their biases where they are added to logits. UNSUPPORTED, with
 * what is missing, for a model without routers or with one that is not F32, F16 or BF16; FORMAT for
 * one of another shape; NO_MEMORY. Closing is safe on a zero-filled struct. */
moepage_status mp_gates_open(const struct moepage_model *model, mp_gates *out);
void mp_gates_close(mp_gates *gates);

#endif
