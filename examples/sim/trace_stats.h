/* trace_stats.h — the statistics of a trace: the extent of its working sets, the carry-over, the
 * skew of experts' use, and their predictability. */
#ifndef SIM_TRACE_STATS_H
#define SIM_TRACE_STATS_H

#include "sim/options.h"
#include "sim/routes.h"

/* Footprints and entropies are given after 1, 2, 4 ... tokens of a request. */
#define SIM_STATS_POINTS 24

/* Statistics of one layer, or means over all. Fractions are 0..1. */
typedef struct sim_layer_stats {
    double carry_over;   /* fraction of a token's experts that the request's preceding token had */
    double touched;      /* experts per request */
    double gini;         /* of the experts' uses: 0 = all equal, towards 1 = concentrated */
    double top_tenth;    /* uses of the most used tenth of the experts, rounded up */
    double token_bits;   /* entropy of one token's experts, mean over tokens (iteration level) */
    double request_bits; /* of all tokens of a request together (request level) */
} sim_layer_stats;

/* State after this many tokens of a request, mean over the requests of at least that length. */
typedef struct sim_stats_point {
    uint64_t tokens;
    uint32_t requests;
    double footprint; /* experts used so far, fraction of all */
    double bits;      /* entropy of the uses so far, mean over layers */
} sim_stats_point;

typedef struct sim_trace_stats {
    sim_layer_stats mean;
    sim_layer_stats *layers; /* [layers] */
    uint32_t n_layers;
    bool weighed; /* entropies use the router's weights; otherwise chosen experts count equally */
    /* bursts: one request, or so many tokens of one */
    uint32_t burst; /* tokens; 0 = a request */
    uint64_t bursts;
    double burst_union; /* experts that a burst uses, fraction of all */
    double burst_union_max;
    double burst_overlap; /* fraction of a burst's experts that the preceding burst also used */
    double burst_jaccard; /* intersection / union of the two */
    /* footprint of a request as it grows */
    sim_stats_point points[SIM_STATS_POINTS];
    uint32_t n_points;
    double saturation_tokens; /* tokens until 90 % of a request's experts are used: mean */
    double all_footprint;     /* of the whole trace */
    /* bytes that must cross the bus if only the preceding token's experts are kept */
    double mandatory_experts; /* per step: (1 - carry_over) layers top_k */
    double mandatory_bytes;   /* 0 = an expert's bytes are unknown */
    double tokens_per_s;      /* limit of the bus then; 0 = unknown bandwidth */
} sim_trace_stats;

/* Measures a trace. `burst`: tokens, 0 = requests. `expert_bytes`, `bus_bytes_per_s`: 0 =
 * unknown. */
int sim_trace_stats_measure(const sim_trace *trace, uint32_t burst, uint64_t expert_bytes,
                            uint64_t bus_bytes_per_s, sim_trace_stats *out);
void sim_trace_stats_free(sim_trace_stats *stats);

/* Prints them as text or as {"stats": {...}}. */
int sim_trace_stats_main(const sim_trace *trace, const sim_options *options);

#endif
