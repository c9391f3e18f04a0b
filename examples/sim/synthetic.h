/* synthetic.h — a generator of routing like that of published models, from a few numbers.
 *
 * Every layer has a popularity of its experts: exp(skew * g), g normal, the same for all requests.
 * A topic multiplies it by exp(topic * h), h normal, and leaves the least likely out; each request
 * has one of `topics` topics: so tokens of one request are alike, and unlike others'. A token's experts are drawn one after the other
 * in proportion to that, without replacement (what Gumbel-top-k does), after each expert of the token
 * before was kept with a probability that makes `carry` of them come back. Prompts are routed like
 * answers.
 *
 * A workload that shifts has its hot set moved to other experts, layer by layer.
 *
 * Request r of a seed is the same every time, whatever else is opened. */
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
    double topic; /* the same of what a topic adds */
    uint32_t topics;
    double reach;     /* of a layer's experts, those that a topic uses at all, 0..1: the likeliest;
                              never fewer than top_k */
    double carry;     /* of a token's experts, those that the token before had, 0..1; chance alone
                              may give more */
    uint32_t segment; /* tokens of a request after which its topic is drawn anew; 0 = never */
    uint32_t shift;   /* requests after which the hot set moves; 0 = never */
    uint32_t shift_tokens;  /* tokens of a request after which it moves; 0 = never */
    uint32_t prompt_tokens; /* of the tables' prompts */
    uint32_t tokens;        /* of a request, where requests are recorded */
    uint64_t seed;
    const double *decode, *prefill; /* [SIM_TABLE_POINTS] published percentages, or NULL */
} sim_synthetic;

/* Reads PRESET[:key=value,...]. A preset is a model shape's name (pack/shapes.h), or LxExK; keys are
 * layers, experts, top-k, skew, topic, topics,
 * reach, carry, segment, shift, shift-tokens, prompt, tokens and
 * seed. RUN_REFUSED after a line on stderr. */
int sim_synthetic_read(const char *spec, uint64_t seed, sim_synthetic *out);

/* A source of as many requests as one likes. RUN_REFUSED or RUN_FAILED after a line on stderr. */
int sim_synthetic_open(const sim_synthetic *config, sim_source **out);

/* Records `requests` of config->tokens tokens each. */
int sim_synthetic_record(const sim_synthetic *config, uint32_t requests, sim_trace **out);

/* Share of a layer's experts that a batch of 1, 2, 4 .. requests uses, mean over layers and batches:
 * in one step of decoding, and for whole prompts of config->prompt_tokens tokens (DynaExq, tables 1
 * and 2). `groups` of 32 requests are looked at. */
typedef struct sim_activation {
    double decode[SIM_TABLE_POINTS];
    double prefill[SIM_TABLE_POINTS];
} sim_activation;
int sim_activation_measure(const sim_synthetic *config, uint32_t groups, sim_activation *out);

/* Measures and prints them beside the published ones, as text or as {"tables": {...}}. */
int sim_activation_main(const sim_synthetic *config, const sim_options *options);

#endif
