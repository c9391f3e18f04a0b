/* divisor.h — the greatest common divisor. */
#ifndef MP_BASE_DIVISOR_H
#define MP_BASE_DIVISOR_H

#include <stdint.h>

/* Returns the greatest number that divides both; of 0 and another, the other. */
static inline uint32_t mp_common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
