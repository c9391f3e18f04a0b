/* activation.h — what an expert computes between its gate and up projections and its down projection. */
#ifndef MP_BASE_ACTIVATION_H
#define MP_BASE_ACTIVATION_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* Zeroes are SwiGLU. */
typedef struct mp_activation {
    uint32_t kind; /* MOEPAGE_ACTIVATION_* */
    float alpha;   /* of SWIGLU_CLAMPED, else 0 */
    float limit;
} mp_activation;

/* gpt-oss's. */
#define MP_CLAMPED_ALPHA 1.702f
#define MP_CLAMPED_LIMIT 7.0f

/* Below, a gate whose sigmoid is too small for a float could still have a product with it that is not. */
#define MP_LEAST_ALPHA 0x1p-10f
#define MP_MOST_ALPHA 0x1p10f

/* Returns true if kernels can compute it, given its kind is one of theirs; false for NaNs, too. */
static inline bool mp_activation_is_sound(const mp_activation *of)
{
    if (of->kind != MOEPAGE_ACTIVATION_SWIGLU_CLAMPED)
        return of->kind <= MOEPAGE_ACTIVATION_OTHER && of->alpha == 0 && of->limit == 0;
    return of->alpha >= MP_LEAST_ALPHA && of->alpha <= MP_MOST_ALPHA && of->limit > 0 &&
           of->limit <= 3.4028235e38f;
}

#endif
