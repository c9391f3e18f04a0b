/* placement.h — how many experts of a layer go to which backend (FluxMoE §4.2, eq. 8).
 *
 * A layer's experts stream from all backends at once; they finish together, and the layer loads
 * fastest, when backend k has the share x_k = B_k / sum of B_l. A pure function of numbers. */
#ifndef MP_CONTROL_PLACEMENT_H
#define MP_CONTROL_PLACEMENT_H

#include <stdint.h>

typedef struct mp_backend {
    uint64_t bytes_per_s; /* of dense experts; 0 = not to be used */
    uint32_t capacity;    /* experts per layer that it can hold */
    uint32_t experts;     /* out: that it gets */
} mp_backend;

/* Deals `experts` to the backends in proportion to their bandwidth, whole experts by largest
 * remainder (ties to the first), none past its capacity: what a full backend cannot take is dealt
 * to the others in the same way. Returns how many found no place. n <= 8. */
uint32_t mp_place(mp_backend *backends, uint32_t n, uint32_t experts);

#endif
