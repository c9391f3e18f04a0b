/* sampler.h — from logits to the next token. */
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

/* RUN_OK, or RUN_FAILED without memory. */
int sampler_open(double temperature, double top_p, uint32_t vocabulary, sampler *out);
void sampler_close(sampler *s);

/* The stream of prompt `index`: a function of both, so that a prompt's continuation does not
 * depend on what runs beside it. */
sampler_state sampler_seed(uint64_t seed, uint32_t index);

/* The stream's next number: any of 2^64. */
uint64_t sampler_random(sampler_state *state);

/* Greedy takes the largest logit, the lowest id among equals. Otherwise the smallest set of the
 * most probable tokens whose probability reaches top_p is drawn from. */
uint32_t sampler_next(sampler *s, sampler_state *state, const float *logits);

#endif
