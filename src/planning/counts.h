/* counts.h — the least, the most and the distance of two counts. */
#ifndef MP_PLANNING_COUNTS_H
#define MP_PLANNING_COUNTS_H

#include <stdint.h>

static inline uint64_t mp_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t mp_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t mp_apart(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

#endif
