/* Greedy and nucleus sampling with reproducible random numbers. */
#include "common/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "common/fail.h"

int sampler_open(double temperature, double top_p, uint32_t vocabulary, sampler *out)
{
    *out = (sampler){temperature, top_p, NULL, vocabulary};
    if (temperature > 0) {
        out->candidates = malloc(vocabulary * sizeof *out->candidates);
        if (!out->candidates)
            return fail_memory();
    }
    return RUN_OK;
}

void sampler_close(sampler *s)
{
    free(s->candidates);
}

/* Advances a SplitMix64 generator (Steele, Lea and Flood 2014). */
uint64_t sampler_random(sampler_state *state)
{
    uint64_t z = state->counter += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

sampler_state sampler_seed(uint64_t seed, uint32_t index)
{
    sampler_state by_seed = {seed}, by_index = {index};
    return (sampler_state){sampler_random(&by_seed) ^ sampler_random(&by_index)};
}

static uint32_t largest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Orders candidates: most probable first, equals by lower id. A total order makes the sort
 * reproducible. */
static int compare_candidates(const void *left, const void *right)
{
    const sampler_candidate *a = left, *b = right;
    if (a->probability != b->probability)
        return a->probability > b->probability ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

uint32_t sampler_next(sampler *s, sampler_state *state, const float *logits)
{
    uint32_t best = largest(logits, s->vocabulary);
    if (!s->candidates)
        return best;
    double total = 0;
    for (uint32_t i = 0; i < s->vocabulary; i++) {
        double p = exp(((double)logits[i] - (double)logits[best]) / s->temperature);
        s->candidates[i] = (sampler_candidate){p, i};
        total += p;
    }
    qsort(s->candidates, s->vocabulary, sizeof *s->candidates, compare_candidates);
    uint32_t n = 0;
    double nucleus = 0;
    while (n < s->vocabulary && (n == 0 || nucleus < s->top_p * total))
        nucleus += s->candidates[n++].probability;
    double draw = (double)(sampler_random(state) >> 11) * 0x1p-53 * nucleus;
    uint32_t i = 0;
    for (double seen = s->candidates[0].probability; i + 1 < n && draw >= seen; i++)
        seen += s->candidates[i + 1].probability;
    return s->candidates[i].token;
}
