/* The inner loops in plain C, and the choice of the fastest. */
#include <stdbool.h>
#include <string.h>

#include "policy/maps_kernels.h"

static void tile(const uint8_t *codes, const int16_t *weights, uint32_t quads,
                 int32_t dots[MP_MAPS_TILE])
{
    int32_t sums[MP_MAPS_TILE] = {0};
    for (uint32_t quad = 0; quad < quads; quad++, weights += 4, codes += 3 * MP_MAPS_TILE) {
        const int32_t w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
        if (!(w0 | w1 | w2 | w3))
            continue;
        for (uint32_t m = 0; m < MP_MAPS_TILE; m++) {
            const int32_t a = codes[m], b = codes[MP_MAPS_TILE + m],
                          c = codes[2 * MP_MAPS_TILE + m];
            const int32_t c0 = a & 63, c1 = b & 63, c2 = c & 63;
            const int32_t c3 = a >> 6 | (b >> 6) << 2 | (c >> 6) << 4;
            sums[m] += w0 * (c0 * c0) + w1 * (c1 * c1) + w2 * (c2 * c2) + w3 * (c3 * c3);
        }
    }
    memcpy(dots, sums, sizeof sums);
}

static int32_t one_sketch(const uint8_t *codes, const int8_t *query, uint32_t coords)
{
    int32_t sum = 0;
    for (uint32_t c = 0; c < coords; c += 64, codes += 32, query += 64) {
        for (uint32_t i = 0; i < 32; i++)
            sum += (codes[i] & 15) * query[i] + (codes[i] >> 4) * query[32 + i];
    }
    return sum;
}

static void sketch(const uint8_t *codes, uint64_t stride, uint32_t n, const int8_t *query,
                   uint32_t coords, int32_t *dots)
{
    for (uint32_t i = 0; i < n; i++, codes += stride)
        dots[i] = one_sketch(codes, query, coords);
}

const mp_maps_kernels mp_maps_portable = {.name = "portable", .tile = tile, .sketch = sketch};

const mp_maps_kernels *mp_maps_kernels_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return &mp_maps_avx2;
#endif
    return &mp_maps_portable;
}
