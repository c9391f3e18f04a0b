/* synthetic.h — a generator of routing with the statistics of published models, from a few numbers.
 *
 * Every layer has a popularity of its experts: exp(skew * g), g normal, common to all requests. A
 * topic multiplies it by exp(topic * h), h normal, and drops the least likely; each request has one
 * of `topics` topics, so that its tokens resemble each other more than those of other requests. A
 * token's experts are drawn one after another in proportion to that, without replacement (as
 * Gumbel-top-k does), after each expert of the preceding token was kept with a probability that
 * makes `carry` of them return. Prompts are routed like answers.
 *
 * A shifting workload moves its hot set to other experts, layer by layer.
 *
 * Request r of a seed is always the same, whatever else is opened. */
#ifndef SIM_SYNTHETIC_H
#define SIM_SYNTHETIC_H

#include <stdio.h>

#include "sim/options.h"
#include "sim/routes.h"
#include "sim/trace.h"

/* Batches of 1, 2, 4, 8, 16 and 32 requests. */
#define SIM_TABLE_POINTS 6

typedef struct sim_synthetic {
    char name[64];
    uint32_t layers; /* MoE layers */
    uint32_t experts;
    uint32_t top_k;
    double skew;  /* of popularity: standard deviation of its logarithm */
    double topic; /* standard deviation of the logarithm of a topic's factor */
    uint32_t topics;
    double reach;     /* fraction of a layer's experts that a topic uses at all, 0..1: the
                       * likeliest; never fewer than top_k */
    double carry;     /* fraction of a token's experts that the preceding token had, 0..1; chance
                       * alone may give more */
    uint32_t segment; /* tokens of a request after which its topic is drawn anew; 0 = never */
    uint32_t shift;   /* requests after which the hot set moves; 0 = never */
    uint32_t shift_tokens;  /* tokens of a request after which it moves; 0 = never */
    uint32_t prompt_tokens; /* of the tables' prompts */
    uint32_t tokens;        /* of a request, if requests are recorded */
    uint64_t seed;
    const double *decode, *prefill; /* [SIM_TABLE_POINTS] published percentages, or NULL */
} sim_synthetic;

/* Reads PRESET[:key=value,...]. A preset is a model shape's name (pack/shapes.h), or LxExK; keys
 * are layers, experts, top-k, skew, topic, topics, reach, carry, segment, shift, shift-tokens,
 * prompt, tokens and seed. RUN_REFUSED after a line on stderr. */
int sim_synthetic_read(const char *spec, uint64_t seed, sim_synthetic *out);

/* Opens a source with unlimited requests. RUN_REFUSED or RUN_FAILED after a line on stderr. */
int sim_synthetic_open(const sim_synthetic *config, sim_source **out);

/* Records `requests` of config->tokens tokens each. */
int sim_synthetic_record(const sim_synthetic *config, uint32_t requests, sim_trace **out);

/* Fraction of a layer's experts used by a batch of 1, 2, 4 .. requests, mean over layers and
 * batches: in one step of decoding, and for whole prompts of config->prompt_tokens tokens (DynaExq,
 * tables 1 and 2). Measured on `groups` groups of 32 requests. */
typedef struct sim_activation {
    double decode[SIM_TABLE_POINTS];
    double prefill[SIM_TABLE_POINTS];
} sim_activation;
int sim_activation_measure(const sim_synthetic *config, uint32_t groups, sim_activation *out);

/* Measures and prints the tables beside the published ones, as text or as {"tables": {...}}. */
int sim_activation_main(const sim_synthetic *config, const sim_options *options);

#endif
