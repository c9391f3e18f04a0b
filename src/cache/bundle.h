/* bundle.h — slots of several sizes in one arena.
 *
 * Layers whose experts differ in size need slots of different sizes; each size is a class. The arena is
 * cut into bundles, all alike: a bundle has as many slots of a class as the class has layers, divided by
 * the greatest common divisor. So every layer has the same share of the slots however many bundles there
 * are, nothing is lost but the alignment of a slot, and bundles come and go like slots of one size, which
 * are the case of one slot to a bundle.
 *
 *   base                       + bytes                    + 2 * bytes
 *   | a | a |   b   |          | a | a |   b   |          ...     two layers of class a to one of b
 *   slot 0, 1, 2               3, 4, 5                    6 ... */
#ifndef MP_CACHE_BUNDLE_H
#define MP_CACHE_BUNDLE_H

#include "model/slot.h"

typedef struct mp_slot_class {
    uint64_t slot_bytes;
    uint32_t layers; /* whose experts need this size */
    uint32_t slots;  /* of a bundle */
} mp_slot_class;

typedef struct mp_bundle {
    uint32_t n_slots; /* of a bundle */
    uint32_t n_classes;
    uint64_t bytes;
    mp_slot_class classes[MP_MAX_LAYOUTS]; /* in the order of their slots in a bundle */
    uint8_t *class_of_layer;               /* [moe_layers] */
    uint8_t *class_of_slot;                /* [n_slots] */
    uint64_t *offset;                      /* [n_slots] of a slot in its bundle */
} mp_bundle;

/* The bundle of a model's slots, which hold experts in `form`: DENSE ones as large as the layer's layout
 * makes them, others alike. NO_MEMORY. */
moepage_status mp_bundle_open(const struct moepage_model *model, uint32_t form, mp_bundle *out);
/* Safe when half open. */
void mp_bundle_close(mp_bundle *bundle);

static inline uint32_t mp_bundle_class_of(const mp_bundle *bundle, uint32_t slot)
{
    return bundle->n_slots == 1 ? 0 : bundle->class_of_slot[slot % bundle->n_slots];
}

/* Where a slot begins, from slot 0 on. */
uint64_t mp_bundle_offset(const mp_bundle *bundle, uint32_t slot);
/* A slot as plans name it, and their stride: base + number * stride is where it begins. */
int32_t mp_bundle_number(const mp_bundle *bundle, uint32_t slot);
uint64_t mp_bundle_stride(const mp_bundle *bundle);

/* What so many slots take; a multiple of n_slots. */
static inline uint64_t mp_bundle_bytes(const mp_bundle *bundle, uint64_t slots)
{
    return slots / bundle->n_slots * bundle->bytes;
}

#endif
