/* serve.h — a host that serves jobs over the library, in virtual time: continuous batching as vLLM
 * does it.
 *
 * Every step takes one token of each sequence that decodes and fills up with chunks of prompts, in
 * the order of admission. Jobs are admitted in the order in which they are ready, at most
 * `concurrency` at once, when the KV pool has room for the whole prompt. What has ended and may be
 * gone on from stays in the KV pool as a prefix cache, least recently used first to go when room is
 * needed: swapped to host memory, or freed and computed again. Running sequences that no longer fit
 * make the latest admitted one go, in the same way; it comes back before anything new is admitted. */
#ifndef SIM_SERVE_H
#define SIM_SERVE_H

#include "sim/jobs.h"
#include "sim/routes.h"
#include "sim/stack.h"

#define SIM_SAMPLES 512
#define SIM_BATCHES 256

/* Experts asked for ahead of their layer, as a predictor of given accuracy would: of those that will
 * be routed each is named with that probability, or another one in its place. */
typedef struct sim_hints {
    uint32_t distance; /* layers ahead; 0 = none */
    uint32_t accuracy_permille;
    bool whole_layer; /* all experts of the layer instead */
    bool synchronous; /* the host waits until they are there */
} sim_hints;

typedef struct sim_serve_config {
    sim_stack_config stack;
    const sim_jobs *jobs;
    const sim_source *source; /* its layers, experts and top-k are the shape's */
    uint32_t concurrency;
    bool recompute;         /* KV that has to go is computed again; otherwise swapped */
    uint64_t host_kv_bytes; /* most that is swapped out of the prefix cache; 0 = no limit */
    uint64_t most_steps;    /* 0 = until all jobs are done */
    uint32_t first_jobs;    /* so many are served and are in no spread: the start is not measured */
    uint32_t sample_steps;  /* between samples, at first; 0 = 16 */
    sim_hints hints;
    uint32_t warm_layers; /* MoE layers, the first ones, whose experts are loaded before time
                               counts */
    uint32_t own_layers;  /* MoE layers, the last ones, whose experts the host itself brings
                               whole, one layer after the other, past the library */
    bool own_ahead;       /* each while the one before computes; otherwise when it is needed */
    uint32_t own_experts; /* so many of each of them cross the bus, the others stay; 0 = all */
    bool own_in_place;    /* of these layers the routed experts alone cross the bus, read by the
                               kernels where they lie, every time */
    bool prompts_known;   /* prompts have been computed elsewhere: their KV is there at once */
    uint32_t slice_steps; /* who has run for so many steps goes for one that waits for room: so
                               that all of the `concurrency` make progress; 0 = who is admitted
                               runs to its end */
    uint64_t layer_overhead_ns; /* of the host, per MoE layer and step */
    uint64_t seed;              /* of the hints' errors */
    bool quiet;                 /* no line when it does not start */
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
    uint64_t output_tokens;  /* so far */
    uint64_t rows, low_rows; /* so far, as of the result */
    uint32_t running;
    uint32_t compressed;
} sim_serve_sample;

typedef struct sim_result {
    bool starts; /* the budget has room for the split; all else is 0 if not */
    uint32_t jobs;
    uint32_t refused; /* jobs that the KV pool could never hold */
    uint64_t blocked; /* jobs that were ready, with a place among the `concurrency`, and had to wait
                         for room in the KV pool */
    uint64_t steps;
    /* tokens */
    uint64_t output_tokens;
    uint64_t prompt_tokens; /* computed, for the first time */
    uint64_t reused_tokens; /* found in the prefix cache */
    uint64_t again_tokens;  /* computed again */
    /* time: busy_ns = compute + stall + swap + again, wall_ns = busy + idle */
    uint64_t wall_ns, idle_ns;
    uint64_t compute_ns, stall_ns; /* of steps: waiting for experts is a stall */
    uint64_t swap_ns;
    uint64_t again_ns;            /* of steps, the share of tokens computed again */
    uint64_t move_ns;             /* of the controller's ticks; part of swap_ns */
    uint64_t all_stall_ns;        /* again_ns' part included */
    double prompt_token_ns;       /* by which steps with prompts were longer, per token of these */
    uint64_t peak_running_blocks; /* that what ran at once had */
    struct {
        uint64_t steps, ns;
        uint64_t high;         /* experts that did not compute in a low version */
    } decode[SIM_BATCHES + 1]; /* steps without prompts, by their sequences; the last: that many or
                                  more */
    sim_spread ttft_ns, token_ns, job_ns;
    /* experts and KV */
    uint64_t routed, hits, misses, late;
    uint64_t low_experts;    /* of `routed`, computed in their low version */
    uint64_t rows, low_rows; /* tokens' choices of experts, and those that went to low versions */
    uint64_t expert_bytes;   /* over the bus */
    uint64_t bus_bytes;      /* all */
    uint64_t prefetch_bytes;
    uint64_t swapped_bytes; /* out and in */
    uint64_t preemptions, evicted_prefixes;
    uint64_t kv_hits, kv_swapped, kv_gone; /* prefixes by what was found of them */
    uint64_t streamed_layers;
    /* the split */
    uint64_t slot_bytes, block_bytes;
    uint64_t first_slots, first_blocks, last_slots, last_blocks;
    uint64_t moves;
    moepage_controller_info control; /* at the end, where there is a controller */
    uint32_t n_samples;
    sim_serve_sample samples[SIM_SAMPLES];
} sim_result;

/* What is compared between splits: how long the machine is busy with the same jobs, per job. */
static inline double sim_result_latency_ns(const sim_result *result)
{
    return result->jobs ? (double)(result->wall_ns - result->idle_ns) / result->jobs : 0;
}

/* Did all that was admitted fit, as soon as it could be? The admission floor is there for that. */
static inline uint64_t sim_result_failures(const sim_result *result)
{
    return result->refused + result->blocked + result->preemptions;
}

/* Serves. A split that does not start is no failure: result->starts says so. With `inspect` the
 * stack is shown before it is closed. */
typedef void (*sim_inspect_fn)(void *user, const sim_stack *stack, const sim_result *result);
int sim_serve(const sim_serve_config *config, sim_inspect_fn inspect, void *user,
              sim_result *result);

#endif
