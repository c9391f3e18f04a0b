/* maps_kernels.h — the inner loops of searching a store of expert maps, per instruction set. All
 * give identical integers. */
#ifndef MP_POLICY_MAPS_KERNELS_H
#define MP_POLICY_MAPS_KERNELS_H

#include <stdint.h>

#include "policy/maps.h"

typedef struct mp_maps_kernels {
    const char *name;
    /* dots[m] = sum over experts of weights * code^2, for the 64 maps of a tile. Weights are not
     * negative, and their sum times MP_MAPS_TOP_LEVEL fits an int32. */
    void (*tile)(const uint8_t *codes, const int16_t *weights, uint32_t quads,
                 int32_t dots[MP_MAPS_TILE]);
    /* dots[i] = sum over `coords` coordinates, a multiple of 64, of query * code; for n
     * sketches `stride` bytes apart. Of each 32 bytes the low nibbles come first. |query| <=
     * 127, coords < 2^20. */
    void (*sketch)(const uint8_t *codes, uint64_t stride, uint32_t n, const int8_t *query,
                   uint32_t coords, int32_t *dots);
} mp_maps_kernels;

extern const mp_maps_kernels mp_maps_portable;
extern const mp_maps_kernels mp_maps_avx2; /* x86-64 only */

/* Returns the fastest set for this CPU. */
const mp_maps_kernels *mp_maps_kernels_best(void);

#endif
