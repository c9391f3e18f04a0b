/* serve.h — a host that serves jobs over the library, in virtual time: continuous batching as in
 * vLLM.
 *
 * Every step takes one token of each decoding sequence and fills up with chunks of prompts, in
 * order of admission. Jobs are admitted in the order in which they become ready, at most
 * `concurrency` at once, when the KV pool has room for the whole prompt. A finished sequence that a
 * later job may continue stays in the KV pool as a prefix cache, evicted least recently used first
 * when room is needed: swapped to host memory, or freed and recomputed. When running sequences no
 * longer fit, the one admitted last is preempted in the same way, and resumes before any new job is
 * admitted. */
#ifndef SIM_SERVE_H
#define SIM_SERVE_H

#include "sim/jobs.h"
#include "sim/routes.h"
#include "sim/stack.h"

#define SIM_SAMPLES 512
#define SIM_BATCHES 256

/* Experts hinted ahead of their layer, with a predictor's given accuracy: each expert that will be
 * routed is named with that probability, otherwise another one in its place. */
typedef struct sim_hints {
    uint32_t distance; /* layers ahead; 0 = none */
    uint32_t accuracy_permille;
    bool whole_layer; /* all experts of the layer are hinted instead */
    bool synchronous; /* the host waits until they are resident */
} sim_hints;

typedef struct sim_serve_config {
    sim_stack_config stack;
    const sim_jobs *jobs;
    const sim_source *source; /* its layers, experts and top-k are the shape's */
    uint32_t concurrency;
    bool admission;                          /* controllers decide how many of these run, */
    uint64_t target_ttft_ns, target_tpot_ns; /* by these; 0: none */
    bool recompute;                          /* preempted KV is recomputed; otherwise swapped */
    uint64_t host_kv_bytes; /* limit on the prefix cache's swapped bytes; 0 = no limit */
    uint64_t most_steps;    /* 0 = until all jobs are done */
    uint32_t first_jobs;    /* served first and left out of the spreads: the warm-up */
    uint32_t sample_steps;  /* steps between samples at first; 0 = 16 */
    sim_hints hints;
    uint32_t warm_layers; /* the first MoE layers, whose experts are loaded before time counts */
    uint32_t own_layers;  /* the last MoE layers, whose experts the host itself loads whole, layer
                           * after layer, outside the library */
    bool own_ahead;       /* each while the preceding one computes; otherwise on demand */
    uint32_t own_experts; /* experts of each of them that cross the bus, the others stay; 0 = all */
    bool own_in_place;    /* only routed experts of these layers cross the bus, read by the kernels
                           * in place, every time */
    bool prompts_known;   /* prompts have been computed elsewhere: their KV exists at once */
    uint32_t slice_steps; /* a sequence that has run this many steps gives way to one that waits for
                           * room, so that all of the `concurrency` progress; 0 = an admitted
                           * sequence runs to its end */
    uint64_t layer_overhead_ns; /* of the host, per MoE layer and step */
    uint64_t seed;              /* for the hints' errors */
    bool quiet;                 /* print no line if the run does not start */
} sim_serve_config;

typedef struct sim_spread {
    double mean, p50, p90, p99;
} sim_spread;

/* The split and the load at one moment. */
typedef struct sim_serve_sample {
    uint64_t ns;
    uint64_t expert_slots;
    uint64_t kv_blocks;
    uint64_t used_blocks;
    uint64_t output_tokens;  /* total so far */
    uint64_t rows, low_rows; /* totals so far, as in the result */
    uint32_t running;
    uint32_t compressed;
} sim_serve_sample;

typedef struct sim_result {
    bool starts; /* the budget has room for the split; otherwise all else is 0 */
    uint32_t jobs;
    uint32_t refused; /* jobs that could never fit the KV pool */
    uint64_t blocked; /* ready jobs with a place among the `concurrency` that had to wait for room
                       * in the KV pool */
    uint64_t steps;
    /* tokens */
    uint64_t output_tokens;
    uint64_t prompt_tokens; /* computed for the first time */
    uint64_t reused_tokens; /* found in the prefix cache */
    uint64_t again_tokens;  /* recomputed */
    /* time: busy_ns = compute + stall + swap + again, wall_ns = busy + idle */
    uint64_t wall_ns, idle_ns;
    uint64_t compute_ns, stall_ns; /* of steps; waiting for experts counts as stall */
    uint64_t swap_ns;
    uint64_t again_ns;            /* share of steps for recomputed tokens */
    uint64_t move_ns;             /* of the controller's ticks; part of swap_ns */
    uint64_t all_stall_ns;        /* including again_ns' share */
    double prompt_token_ns;       /* extra duration of steps with prompts, per prompt token */
    uint64_t peak_running_blocks; /* of concurrent sequences */
    struct {
        uint64_t steps, ns;
        uint64_t high;         /* experts computed, but not in a low version */
    } decode[SIM_BATCHES + 1]; /* steps without prompts, by number of sequences; the last: that many
                                * or more */
    sim_spread ttft_ns, token_ns, job_ns;
    /* experts and KV */
    uint64_t routed, hits, misses, late;
    uint64_t low_experts;    /* of `routed`, computed in their low version */
    uint64_t rows, low_rows; /* tokens' choices of experts, and those served by low versions */
    uint64_t expert_bytes;   /* over the bus */
    uint64_t bus_bytes;      /* all bytes */
    uint64_t prefetch_bytes;
    uint64_t swapped_bytes; /* out and in */
    uint64_t preemptions, evicted_prefixes;
    uint64_t kv_hits, kv_swapped, kv_gone; /* prefixes by outcome: found, swapped, gone */
    uint64_t streamed_layers;
    /* the split */
    uint64_t slot_bytes, block_bytes;
    uint64_t first_slots, first_blocks, last_slots, last_blocks;
    uint64_t moves;
    moepage_controller_info control; /* at the end, if there is a controller */
    uint32_t n_samples;
    sim_serve_sample samples[SIM_SAMPLES];
} sim_result;

/* Returns the figure of merit for splits: the machine's busy time per job, for the same jobs. */
static inline double sim_result_latency_ns(const sim_result *result)
{
    return result->jobs ? (double)(result->wall_ns - result->idle_ns) / result->jobs : 0;
}

/* Returns the admissions that failed or had to wait; the admission floor should prevent them. */
static inline uint64_t sim_result_failures(const sim_result *result)
{
    return result->refused + result->blocked + result->preemptions;
}

/* Serves the jobs. A split that does not start is not a failure: see result->starts. `inspect` is
 * called with the stack before it is closed. */
typedef void (*sim_inspect_fn)(void *user, const sim_stack *stack, const sim_result *result);
int sim_serve(const sim_serve_config *config, sim_inspect_fn inspect, void *user,
              sim_result *result);

#endif
