/* trace_stats.h — what a trace is like: how far its working sets reach, how much of them comes
 * back, how unevenly experts are used, how predictable they are. */
#ifndef SIM_TRACE_STATS_H
#define SIM_TRACE_STATS_H

#include "sim/options.h"
#include "sim/routes.h"

/* Footprints and entropies are given after 1, 2, 4 ... tokens of a request. */
#define SIM_STATS_POINTS 24

/* Of one layer, or the mean over all. Shares are 0..1. */
typedef struct sim_layer_stats {
    double carry_over;   /* of a token's experts, those that the token before in the request had */
    double touched;      /* experts per request */
    double gini;         /* of the experts' uses: 0 = all alike, towards 1 = few have all */
    double top_tenth;    /* uses of the most used tenth of the experts, rounded up */
    double token_bits;   /* entropy of one token's experts, mean over tokens (iteration level) */
    double request_bits; /* of all tokens of a request taken together (request level) */
} sim_layer_stats;

/* After so many tokens of a request, mean over the requests that are as long. */
typedef struct sim_stats_point {
    uint64_t tokens;
    uint32_t requests;
    double footprint; /* experts used so far, share of all */
    double bits;      /* entropy of what was used so far, mean over layers */
} sim_stats_point;

typedef struct sim_trace_stats {
    sim_layer_stats mean;
    sim_layer_stats *layers; /* [layers] */
    uint32_t n_layers;
    bool weighed; /* entropies of the router's weights; otherwise chosen experts count
                                alike */
    /* bursts: one request, or so many tokens of one */
    uint32_t burst; /* tokens; 0 = a request */
    uint64_t bursts;
    double burst_union; /* experts that a burst uses, share of all */
    double burst_union_max;
    double burst_overlap; /* of a burst's experts, those that the burst before it used too */
    double burst_jaccard; /* common ones / those of either */
    /* footprint of a request as it grows */
    sim_stats_point points[SIM_STATS_POINTS];
    uint32_t n_points;
    double saturation_tokens; /* until a request has used 90 % of the experts that it will use: mean
                                 over requests */
    double all_footprint;     /* of the whole trace */
    /* what has to cross the bus, if just the experts of the token before are kept */
    double mandatory_experts; /* per step: (1 - carry_over) layers top_k */
    double mandatory_bytes;   /* 0 = the bytes of an expert are not known */
    double tokens_per_s;      /* what the bus allows then; 0 = its bandwidth is not known */
} sim_trace_stats;

/* `burst`: tokens, 0 = requests. `expert_bytes`, `bus_bytes_per_s`: 0 = not known. */
int sim_trace_stats_measure(const sim_trace *trace, uint32_t burst, uint64_t expert_bytes,
                            uint64_t bus_bytes_per_s, sim_trace_stats *out);
void sim_trace_stats_free(sim_trace_stats *stats);

/* Prints them as text or as {"stats": {...}}. */
int sim_trace_stats_main(const sim_trace *trace, const sim_options *options);

#endif
