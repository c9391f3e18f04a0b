/* outcome.h — a setting's cost and result, domain by domain. */
#ifndef EVAL_OUTCOME_H
#define EVAL_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "common/host.h"
#include "eval/settings.h"

/* The library's counters between two moments; every member is a uint64_t. */
typedef struct counters {
    uint64_t steps, tokens, layers;
    uint64_t routed, hits, demand_bytes, stall_ns, compute_ns, wall_ns;
    uint64_t low_experts, low_rows, host_experts;
    uint64_t remap_layers, remap_before, remap_after, remap_tokens, remap_rows, remap_ns;
    uint64_t prefetch_bytes, promotions, demotions, transition_bytes;
    uint64_t guessed, right; /* experts that a predictor named; those then routed */
} counters;

int counters_read(const host *h, counters *out);
void counters_subtract(counters *from, const counters *what);
void counters_add(counters *to, const counters *what);

typedef struct measure {
    double bits; /* total surprise at the scored tokens */
    uint64_t scored;
    counters counted; /* while its windows were read; zeros if mixed with other domains' */
} measure;

/* Consecutive steps. */
typedef struct stretch {
    uint32_t domain; /* of the first window in them */
    measure measure;
} stretch;

typedef struct outcome {
    const setting *setting;
    measure *domains; /* [n_domains] */
    measure all;
    stretch *course; /* [n_course] stretches of --course, in order */
    uint32_t n_course;
    uint64_t wall_ns;
    uint64_t expert_bytes; /* device memory of experts in all versions */
    uint32_t hi_experts;   /* per layer; 0 without versions */
} outcome;

static inline double measure_bits(const measure *m)
{
    return m->scored ? m->bits / (double)m->scored : 0;
}

/* Returns the distinct experts per layer that were computed, or that routers selected. */
double measure_experts(const measure *m);
double measure_experts_routed(const measure *m);

/* Returns the percentage of the routers' choices computed in a low version, given top-k. */
double measure_low_percent(const measure *m, uint32_t top_k);
double measure_hit_percent(const measure *m);
double measure_remap_percent(const measure *m); /* percentage of the steps' time */
uint64_t measure_moved(const measure *m);       /* bytes into the device */

#endif
