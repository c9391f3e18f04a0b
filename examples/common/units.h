/* units.h — byte counts for readers. */
#ifndef EXAMPLE_UNITS_H
#define EXAMPLE_UNITS_H

#include <stdint.h>

static inline double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

#endif
