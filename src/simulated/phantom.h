/* phantom.h — a model known only by its shape, for devices without bytes.
 *
 * It has DENSE images, EXPH ones if it is told how small they are, and integer ones if its weights
 * are BF16: either "mapped" at an address that nothing backs, and marked as checked; or cold. No
 * image is ever read: a device without bytes moves it for its size alone, a request for its bytes
 * is refused, and so is the model by a pool on a device with bytes. */
#ifndef MP_SIMULATED_PHANTOM_H
#define MP_SIMULATED_PHANTOM_H

#include "model/model.h"

typedef struct mp_phantom_shape {
    const char *name;
    uint32_t layers; /* transformer layers */
    uint32_t moe_layers;
    uint32_t experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t expert_intermediate;
    uint32_t dtype;    /* of the weights: BF16 or F8_E4M3 */
    double exph_ratio; /* EXPH image size / dense size; 0 = no such form */
    bool cold;         /* images are outside host memory: a host tier caches them */
} mp_phantom_shape;

/* Opens a model of that shape. Fails with ARGUMENT for an impossible one. */
moepage_status mp_model_open_phantom(const mp_phantom_shape *shape, struct moepage_model **out);

#endif
