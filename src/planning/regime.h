/* regime.h — cache and reuse, or stream and evict: which costs less, counted turn by turn.
 *
 * Few tokens touch few of a layer's experts, and the same ones come back: keep them (WiSP). Many
 * tokens touch nearly all, layer after layer: then a cache smaller than the model has, under any
 * recency order, just evicted the experts needed next; a window that brings the next layer's
 * experts while the current one computes does better (FluxMoE §3.1).
 *
 * Both compute the same. They differ in stalls: loads for which computing waits. Of one turn of one
 * layer,
 *     cache   its misses
 *     stream  routed experts that are not kept, but for those that were brought in time
 * Streaming wants ahead what the layer's last turn used, or all experts if nearly all are used. In
 * the time that a layer computes, T loads get done; so of `wanted` experts, `useful` of which the
 * turn then uses, useful * min(1, T / wanted) are there in time, and the others are loaded when
 * they are missed. Where the window has room for all that passes through it in a step, what the
 * last turn used is still there.
 *
 * The regime that runs is judged by the stalls that it has, the other by those that it would have
 * had. The regret is what the other one would have saved, summed over turns and never negative. A
 * change costs loads, too, before the cache holds what the new regime wants: it is made when the
 * regret exceeds that cost, as one who rents skis buys a pair when the rent has come to their
 * price. So a great advantage is taken at once, a small one late, and noise does not flip a choice
 * more often than it can pay for.
 *
 * Functions of numbers: all costs are in loads of one expert. */
#ifndef MP_PLANNING_REGIME_H
#define MP_PLANNING_REGIME_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mp_regime { MP_REGIME_CACHE, MP_REGIME_STREAM } mp_regime;

typedef struct mp_regime_config {
    double margin; /* fraction of a turn's time by which the other regime must be better */
    double change; /* a change's cost, as a fraction of the loads that fill the cache */
} mp_regime_config;

/* A turn as streaming would have found it: numbers of experts, without those that it keeps. */
typedef struct mp_regime_ahead {
    double routed; /* by the turn */
    double again;  /* of these, by the layer's last turn, too */
    double before; /* by the last turn */
    double rest;   /* by neither */
    bool all;      /* `rest` is brought, too */
    bool there;    /* the window has room for all that pass through it in a step */
} mp_regime_ahead;

/* One turn of one layer, in loads. */
typedef struct mp_regime_turn {
    double stalls;    /* of the regime that runs */
    double other;     /* that the other one would have had */
    double computing; /* the time without stalls, the caller's own work included */
    double slots;     /* loads that fill the cache */
} mp_regime_turn;

/* Zeroed: caches, without regret. */
typedef struct mp_regime_balance {
    mp_regime now;
    double regret;
} mp_regime_balance;

/* Returns true if a turn uses nearly all of a layer's experts. */
static inline bool mp_regime_is_dense(uint32_t routed, uint32_t experts)
{
    return (uint64_t)routed * 8 >= (uint64_t)experts * 7;
}

/* Returns how many of a layer's experts stay in slots that the layers share while they stream: each session has room for
 * the others of two layers, one of which computes while the next one loads. With three layers or fewer, the second
 * layer's room would be so large a part of the whole that keeping experts there saves more than the overlap could hide.
 * So it is the largest number for which keep * layers + (experts - keep) * at_once slots suffice. `sessions` >= 1. */
static inline uint32_t mp_regime_keep(uint64_t slots, uint64_t layers, uint32_t experts,
                                      uint64_t sessions)
{
    const uint64_t at_once = layers > 3 * sessions ? 2 * sessions : sessions;
    if (at_once >= layers || slots <= at_once * experts)
        return 0;
    const uint64_t keep = (slots - at_once * experts) / (layers - at_once);
    return keep < experts ? (uint32_t)keep : experts;
}

void mp_regime_defaults(mp_regime_config *config);
/* Returns the stalls of a streamed turn whose layer computes for the time of `computing` loads. */
double mp_regime_streamed_stalls(const mp_regime_ahead *ahead, double computing);
/* Takes a turn in and returns the regime from now on. One without finite costs changes nothing. */
mp_regime mp_regime_update(mp_regime_balance *balance, const mp_regime_config *config,
                           const mp_regime_turn *turn);

#endif
