/* residency.h — the budget-aware residency planner (FluxMoE §4.3, algorithm 2), tri-state.
 *
 * A layer's E experts are divided into x dense in device memory, y compressed in device memory,
 * and z on the host, x + y + z = E; alpha = (x + y) / E. Loading a layer takes the slowest
 * backend's time (eq. 9): the bus brings z experts, the decoder y (and z where coded images cross
 * the bus). With
 *
 *     rho = tau_comp(theory) / tau_load   tau_load = sum over layers of max over backends (10, 11)
 *
 * rho > 1 lowers alpha (reclaim memory), rho < theta raises it, and after every update
 * C_exp(alpha) <= C_gpu - C_kv (12): KV is served first, whatever rho says. Changes are staggered:
 * at most one expert of each layer per interval, unless KV needs the bytes now.
 *
 * The bus and the decoder each have a band of their own: as many experts as they load in 1 to
 * 1/theta of the computing time. An expert is compressed rather than dense as long as the decoder
 * keeps up, since that saves memory; it is dense if decoding itself is the bottleneck. If no whole
 * number of experts falls into a band, the planner settles on the plan just before it, rho > 1:
 * that costs one expert's memory per layer, while under the plan beyond, rho < theta, every step
 * would wait for loads. If KV leaves no room for a plan with rho >= theta, or none exists, it takes
 * the plan that loads soonest of those that fit.
 *
 * On a steady load it settles within E + 1 intervals from any start, and then stays: the accepted
 * plans depend on the load alone, and every step is one nearer to them. Under noise of up to about
 * half a band two rules prevent oscillation: a count that was left because it was too slow is not
 * retried before it is predicted past the middle of the band; and among plans that all fall short,
 * a change of alpha is not reverted for 2.5 % of load time or less.
 *
 * All this takes every expert to be used as much as any other. Where a step uses few, and the same ones again, what
 * stays in device memory is what is used most, and dense experts are worth more than that. Given how many experts of a
 * layer a step misses by x, the planner also knows the time of a step by what was measured. Of the misses, y / E find
 * an image, and the others cross the bus:
 *
 *     bus     = misses * (1 - y / E) * an expert's bus time
 *     decoder = misses * (y / E, or 1 where images cross the bus coded) * an expert's decoder time
 *     load    = max(bus, decoder), and behind the last or in front of the first load min(bus, decoder) / misses
 *     layer   = max(comp, load) + u * (min(comp, load) + that)
 *
 * of a cache with u = 1, since a miss is known when it is routed, and of a window that streams with the part u that is
 * unforeseen (regime.h).
 *
 * A layer takes the shorter of the two, since sessions choose. If the plan with the shortest steps of those that fit is
 * 5 % shorter than the plan that the bands lead to, the planner goes there instead, and stays with it until the bands
 * are as good; a plan within 1 % of it is kept. Then only images that have to be brought are staggered; slots that grow
 * and images that are dropped move no bytes, and up to a quarter of a layer's experts change at once.
 *
 * Pure: numbers in, a plan out. */
#ifndef MP_PLANNING_RESIDENCY_H
#define MP_PLANNING_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

/* Experts of one layer by state, the same in every layer (but see mp_residency_layer). */
typedef struct mp_residency_plan {
    uint32_t dense;      /* x */
    uint32_t compressed; /* y */
} mp_residency_plan;

typedef struct mp_residency_machine {
    uint32_t experts; /* E */
    uint32_t layers;
    uint64_t dense_bytes;        /* of one expert in device memory, dense */
    uint64_t compressed_bytes;   /* and compressed; 0 or not smaller: no compressed form */
    uint64_t window_bytes;       /* of the two-layer window, always resident */
    bool coded_bus;              /* images cross the bus compressed, and are decoded */
    uint64_t bus_bytes_per_s;    /* of images as they cross the bus; 0 = no bus */
    uint64_t decode_bytes_per_s; /* dense output; 0 = no decoder, no compressed form */
    double union_fraction;       /* fraction of a layer's experts that a step uses, 0..1 */
    /* Experts of a layer that a step misses where x of each layer are dense beside the window, [experts + 1]:
     * of a cache, and of a window that keeps those that are used most. NULL, both: not known. */
    const double *cached, *streamed;
    /* Fraction of what a streaming step loads that is known only when it is routed, 0..1. */
    double unforeseen;
} mp_residency_machine;

typedef struct mp_residency_config {
    double theta;       /* 0.9 */
    uint32_t min_alpha; /* fewest experts of a layer in device memory, as far as KV allows */
    bool no_dense;      /* the paper's prototype: x = 0 (ignored without a compressed form) */
    /* Study: the same changes, but made in one layer after the other instead of staggered (Exp#3,
     * "w/o I/O balance"): see mp_residency_layer. */
    bool by_layer;
} mp_residency_config;

/* Measured since the last interval. */
typedef struct mp_residency_input {
    /* tau_comp(theory): an iteration with all weights resident; 0 = unknown: only KV's
     * needs are met. */
    double comp_ns;
    uint64_t gpu_bytes; /* C_gpu: bytes shared by experts and KV */
    uint64_t kv_bytes;  /* C_kv in use, including the host's headroom */
} mp_residency_input;

typedef enum mp_residency_why {
    MP_RESIDENCY_HOLD,   /* theta <= rho <= 1, or one expert less would leave the band */
    MP_RESIDENCY_LOWER,  /* computing is the bottleneck, or a backend idles: memory is given up */
    MP_RESIDENCY_RAISE,  /* loading is the bottleneck */
    MP_RESIDENCY_BOUND,  /* unchanged: alpha is at a bound, or no plan loads sooner */
    MP_RESIDENCY_BUDGET, /* unchanged: loading is the bottleneck, but KV has the memory */
    MP_RESIDENCY_KV      /* KV needs memory: experts leave until it fits */
} mp_residency_why;

typedef struct mp_residency_answer {
    mp_residency_why why;
    mp_residency_plan next;
    double rho;     /* of the present plan */
    double load_ns; /* tau_load of the present plan */
    double alpha;   /* of `next` */
} mp_residency_answer;

typedef struct mp_residency_planner {
    mp_residency_config config;
    mp_residency_plan plan;
    /* State against oscillation. */
    int32_t last_step;        /* the planner's last change of alpha: +1, -1; 0 = none */
    uint32_t refused_host;    /* bus count that was too high when last tried; 0 = none */
    uint32_t refused_decoded; /* decoder count that was too high */
    bool by_use;              /* it goes by what was measured, not by the bands */
} mp_residency_planner;

/* Initialises a planner; theta is clamped to (0, 1], `start` may be any plan. */
void mp_residency_init(mp_residency_planner *planner, const mp_residency_config *config,
                       const mp_residency_plan *start);

/* Returns tau_load of one iteration in ns (eq. 9, 10); INFINITY if some experts
 * cannot be loaded. */
double mp_residency_load_ns(const mp_residency_machine *machine, const mp_residency_plan *plan);
/* Returns the time of a step under a plan in ns, by measured use, which is known. */
double mp_residency_step_ns(const mp_residency_machine *machine, const mp_residency_plan *plan,
                            double comp_ns);
/* Returns C_exp: a plan's device bytes. */
uint64_t mp_residency_bytes(const mp_residency_machine *machine, const mp_residency_plan *plan);

/* Computes the experts of one layer under `plan`. Staggered: the plan itself. By layer: as many
 * experts as all layers of the plan have together, but crowded, with dense ones in the first
 * layers, compressed ones next, and those on the host in the last. A change of the plan by one
 * expert then concerns one layer if layers <= E, or two adjacent ones. The planner assumes equal
 * layers either way. */
void mp_residency_layer(const mp_residency_machine *machine, const mp_residency_plan *plan,
                        bool by_layer, uint32_t layer, mp_residency_plan *out);

/* Plans one interval. Afterwards answer.next is the planner's plan; a caller that could not carry
 * it out calls mp_residency_reject. C_exp(next) <= C_gpu - C_kv always, unless not even the window
 * fits: then nothing else is left in device memory. Experts that leave to make room for KV are
 * dropped, which moves no bytes; dense ones go first, so that the fewest have to leave. */
void mp_residency_step(mp_residency_planner *planner, const mp_residency_machine *machine,
                       const mp_residency_input *input, mp_residency_answer *out);
void mp_residency_reject(mp_residency_planner *planner, const mp_residency_plan *actual);

#endif
