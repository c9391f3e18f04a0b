/* ranked.h — a guess at an expert that will be routed, in the form that the
 * prefetch queue takes. */
#ifndef MP_AHEAD_RANKED_H
#define MP_AHEAD_RANKED_H

#include <stdint.h>

typedef struct mp_ranked {
    uint32_t key;
    float p; /* how likely the expert is to be routed, 0..1 */
} mp_ranked;

#endif
