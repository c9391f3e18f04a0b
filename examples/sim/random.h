/* random.h — random numbers for simulations: a mixed counter. The same on every machine, and any
 * counter is a good seed. */
#ifndef SIM_RANDOM_H
#define SIM_RANDOM_H

#include <stdint.h>

/* Returns the counter's next number (splitmix64). */
static inline uint64_t sim_random(uint64_t *counter)
{
    uint64_t z = *counter += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Returns the start of an independent sequence for each `which`. */
static inline uint64_t sim_random_fork(uint64_t seed, uint64_t which)
{
    uint64_t counter = seed;
    counter = sim_random(&counter) ^ which;
    return sim_random(&counter);
}

/* Returns 0 .. below - 1, from a number's upper half. */
static inline uint32_t sim_random_below(uint64_t number, uint32_t below)
{
    return (uint32_t)((number >> 32) * below >> 32);
}

#endif
