/* uniform.h — a routing source without structure: every token takes top_k experts of each layer at
 * random with equal probability. */
#ifndef SIM_UNIFORM_H
#define SIM_UNIFORM_H

#include "sim/routes.h"

/* Opens a source with unlimited requests; NULL when out of memory. */
sim_source *sim_uniform_open(uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t seed);

#endif
