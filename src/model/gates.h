/* gates.h — a model's routers as plain FP32 matrices, for predictors that evaluate a layer's router
 * ahead of its turn. */
#ifndef MP_MODEL_GATES_H
#define MP_MODEL_GATES_H

#include "model/model.h"

typedef struct mp_gates {
    uint64_t bytes;
    float *values;         /* storage behind the pointers below */
    const float **weights; /* [moe_layers] each [experts][hidden] */
    const float **biases;  /* [moe_layers] each [experts], added to the logits; NULL: no bias */
} mp_gates;

/* Widens the routers' weights, and their biases if those are added to logits. UNSUPPORTED, naming
 * the missing tensor, for a model without routers or with a router that is not F32, F16 or BF16;
 * FORMAT for a wrong shape; NO_MEMORY. Closing a zero-filled struct is safe. */
moepage_status mp_gates_open(const struct moepage_model *model, mp_gates *out);
void mp_gates_close(mp_gates *gates);

#endif
