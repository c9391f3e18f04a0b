/* placement.h — how many experts of a layer go to each backend (FluxMoE §4.2, eq. 8).
 *
 * A layer's experts stream from all backends at once; the backends finish together, and the layer
 * loads fastest, if backend k has the share x_k = B_k / sum of B_l. A pure function of numbers. */
#ifndef MP_PLANNING_PLACEMENT_H
#define MP_PLANNING_PLACEMENT_H

#include <stdint.h>

typedef struct mp_backend {
    uint64_t bytes_per_s; /* of dense experts; 0 = not used */
    uint32_t capacity;    /* most experts per layer */
    uint32_t experts;     /* out: its number of experts */
} mp_backend;

/* Deals `experts` to the backends in proportion to their bandwidth, whole experts by largest
 * remainder (ties to the first), none past its capacity: the excess of a full backend is dealt to
 * the others in the same way. Returns the number of experts without a place. n <= 8. */
uint32_t mp_place(mp_backend *backends, uint32_t n, uint32_t experts);

/* The same for images that are kept in device memory, `capacity` at most, or cross the bus, where both are decoded:
 * the decoder has all experts in any case, so that as many stay off the device as the bus brings meanwhile. Returns how
 * many are kept. Bandwidths of dense experts; without a decoder none is. */
uint32_t mp_place_decoded(uint64_t decode_bytes_per_s, uint64_t bus_bytes_per_s, uint32_t capacity,
                          uint32_t experts);

#endif
