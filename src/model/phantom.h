/* phantom.h — a model of which only the shape is known: for devices that have no bytes.
 *
 * It has DENSE images, EXPH ones where it is told how small they are, and integer ones where its
 * weights are BF16: "mapped" at an address that nothing backs, and checked; or cold. Nobody reads an
 * image: a device without bytes has it moved for its size alone, whatever asks for its bytes is told
 * that there are none, and a pool on a device with bytes refuses the model. */
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
    double exph_ratio; /* size of an EXPH image / dense; 0 = no such form */
    bool cold;         /* images are not in host memory: a host tier caches them */
} mp_phantom_shape;

typedef struct mp_phantom {
    bool cold;
    double exph_ratio;
    unsigned char *nothing; /* what mapped images point to: addresses that fault */
    uint64_t nothing_bytes;
    char architecture[64];
} mp_phantom;

/* ARGUMENT for a shape that cannot be. */
moepage_status mp_model_open_phantom(const mp_phantom_shape *shape, struct moepage_model **out);

/* As the functions in model.h, of a model that is a phantom; every expert is alike. */
bool mp_phantom_has_form(const struct moepage_model *model, uint32_t form);
uint64_t mp_phantom_image_bytes(const struct moepage_model *model, uint32_t form);
void mp_phantom_find_parts(const struct moepage_model *model, uint32_t form, mp_image_part *parts);

#endif
