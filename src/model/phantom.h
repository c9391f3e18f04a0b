/* phantom.h — a model known only by its shape, for devices without bytes.
 *
 * It has DENSE images, EXPH ones if their ratio is given, and integer ones if its weights are BF16:
 * "mapped" at an address that nothing backs, and counted as checked; or cold. No image is ever
 * read: a device without bytes moves it for its size alone, a request for its bytes fails, and a
 * pool on a device with bytes refuses the model. */
#ifndef MP_MODEL_PHANTOM_H
#define MP_MODEL_PHANTOM_H

#include "model/model.h"

#define MP_PHANTOM_GROUP 64u /* weights per scale, of the integer forms */

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

typedef struct mp_phantom {
    bool cold;
    double exph_ratio;
    unsigned char *nothing; /* where mapped images point: addresses that fault */
    uint64_t nothing_bytes;
    char architecture[64];
} mp_phantom;

/* Creates the model; ARGUMENT for an invalid shape. */
moepage_status mp_model_open_phantom(const mp_phantom_shape *shape, struct moepage_model **out);

/* Frees a phantom; NULL is a no-op. */
void mp_phantom_free(mp_phantom *phantom);

/* Counterparts of the functions in model.h for a phantom, whose experts are all alike. */
bool mp_phantom_has_form(const struct moepage_model *model, uint32_t form);
uint64_t mp_phantom_image_bytes(const struct moepage_model *model, uint32_t form);
void mp_phantom_find_parts(const struct moepage_model *model, uint32_t form, mp_image_part *parts);

#endif
