/* uniform.h — a routing source without any structure: every token takes top_k experts of each layer at
 * random, all alike. */
#ifndef SIM_UNIFORM_H
#define SIM_UNIFORM_H

#include "sim/routes.h"

/* As many requests as one likes; NULL when out of memory. */
sim_source *sim_uniform_open(uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t seed);

#endif
