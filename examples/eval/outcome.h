/* outcome.h — what a setting cost and what came out of it, domain by domain. */
#ifndef EVAL_OUTCOME_H
#define EVAL_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "common/host.h"
#include "eval/settings.h"

/* What the library counts, between two moments; every member a uint64_t. */
typedef struct counters {
    uint64_t steps, tokens, layers;
    uint64_t routed, hits, demand_bytes, stall_ns, compute_ns, wall_ns;
    uint64_t low_experts, low_rows, host_experts;
    uint64_t remap_layers, remap_before, remap_after, remap_tokens, remap_rows, remap_ns;
    uint64_t prefetch_bytes, promotions, demotions, transition_bytes;
    uint64_t guessed, right; /* by a predictor: experts named for a layer, and then routed */
} counters;

int counters_read(const host *h, counters *out);
void counters_subtract(counters *from, const counters *what);
void counters_add(counters *to, const counters *what);

typedef struct measure {
    double bits; /* of surprise at the tokens that were scored */
    uint64_t scored;
    counters counted; /* while its windows were read; zeros where they were mixed with others' */
} measure;

/* Some steps, one after the other. */
typedef struct stretch {
    uint32_t domain; /* of the first window in them */
    measure measure;
} stretch;

typedef struct outcome {
    const setting *setting;
    measure *domains; /* [n_domains] */
    measure all;
    stretch *course; /* [n_course], in their order; of --course */
    uint32_t n_course;
    uint64_t wall_ns;
    uint64_t expert_bytes; /* of device memory that experts have, in all versions */
    uint32_t hi_experts;   /* per layer; 0 without versions */
} outcome;

static inline double measure_bits(const measure *m)
{
    return m->scored ? m->bits / (double)m->scored : 0;
}

/* Distinct experts per layer that were computed, and that routers asked for. */
double measure_experts(const measure *m);
double measure_experts_routed(const measure *m);

/* Of the choices of routers, in percent, those computed in a low version, given top-k. */
double measure_low_percent(const measure *m, uint32_t top_k);
double measure_hit_percent(const measure *m);
double measure_remap_percent(const measure *m); /* of the time of steps */
uint64_t measure_moved(const measure *m);       /* bytes into the device */

#endif
