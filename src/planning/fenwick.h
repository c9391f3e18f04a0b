/* fenwick.h — prefix sums of a changing array in O(log n): a Fenwick tree of unsigned numbers.
 *
 * tree[i] holds the sum of the values that end at i and go back by the lowest bit of i + 1. Values
 * are taken modulo 2^64, so that adding the negative of a value removes it. */
#ifndef MP_PLANNING_FENWICK_H
#define MP_PLANNING_FENWICK_H

#include <stdint.h>

/* Turns n values into their tree, in place. */
static inline void mp_fenwick_build(uint64_t *tree, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t parent = i | (i + 1);
        if (parent < n)
            tree[parent] += tree[i];
    }
}

static inline void mp_fenwick_add(uint64_t *tree, uint32_t n, uint32_t i, uint64_t value)
{
    for (; i < n; i |= i + 1)
        tree[i] += value;
}

/* Returns the sum of the values before i. */
static inline uint64_t mp_fenwick_before(const uint64_t *tree, uint32_t i)
{
    uint64_t sum = 0;
    for (; i > 0; i &= i - 1)
        sum += tree[i - 1];
    return sum;
}

#endif
