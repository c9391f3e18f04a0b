/* iterations.h — recorded decode iterations with the router's full output, from which expert maps
 * are built. Read from the library's trace files with probabilities. */
#ifndef SIM_ITERATIONS_H
#define SIM_ITERATIONS_H

#include <stdint.h>

typedef struct sim_iterations {
    uint32_t layers, experts, top_k, semantic_dim;
    uint64_t n;
    float *maps;      /* [n][layers][experts] */
    float *semantic;  /* [n][semantic_dim], or NULL */
    uint32_t *chosen; /* [n][layers][top_k], in the router's order */
    uint32_t n_requests;
    uint64_t *first; /* [n_requests + 1] a request's iterations are adjacent */
} sim_iterations;

/* Returns RUN_OK, or a code after a line on stderr, for example for a trace without
 * probabilities. */
int sim_iterations_open(const char *path, sim_iterations *out);
void sim_iterations_close(sim_iterations *iterations);

static inline const float *sim_iterations_map(const sim_iterations *all, uint64_t i, uint32_t layer)
{
    return all->maps + (i * all->layers + layer) * all->experts;
}

static inline const uint32_t *sim_iterations_chosen(const sim_iterations *all, uint64_t i,
                                                    uint32_t layer)
{
    return all->chosen + (i * all->layers + layer) * all->top_k;
}

#endif
