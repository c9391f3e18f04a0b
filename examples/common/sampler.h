/* sampler.h — chooses the next token from logits. */
#ifndef EXAMPLE_SAMPLER_H
#define EXAMPLE_SAMPLER_H

#include <stdint.h>

typedef struct sampler_candidate {
    double probability;
    uint32_t token;
} sampler_candidate;

typedef struct sampler {
    double temperature; /* 0 = greedy */
    double top_p;
    sampler_candidate *candidates; /* [vocabulary] scratch; NULL when greedy */
    uint32_t vocabulary;
} sampler;

/* One sequence's stream of random numbers. */
typedef struct sampler_state {
    uint64_t counter;
} sampler_state;

/* Opens a sampler; RUN_FAILED when out of memory. */
int sampler_open(double temperature, double top_p, uint32_t vocabulary, sampler *out);
void sampler_close(sampler *s);

/* Returns the stream of prompt `index`, a function of both arguments, so that a prompt's
 * continuation does not depend on the others in the batch. */
sampler_state sampler_seed(uint64_t seed, uint32_t index);

/* Returns the stream's next number: any of 2^64. */
uint64_t sampler_random(sampler_state *state);

/* Returns the next token. Greedy takes the largest logit, the lowest id among equals. Otherwise
 * draws from the smallest set of most probable tokens whose probability reaches top_p. */
uint32_t sampler_next(sampler *s, sampler_state *state, const float *logits);

#endif
