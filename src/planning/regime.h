/* regime.h — cache and reuse, or stream and evict: chosen per layer from its measured behaviour.
 *
 * Few tokens touch few of a layer's experts, and the same ones come back: keep them (WiSP). Many
 * tokens touch nearly all, layer after layer: then a cache smaller than the model has, under any
 * recency order, just evicted the experts needed next; a window that streams the next layer in
 * while the current one computes does better (FluxMoE §3.1).
 *
 * Cost of a step's layer under either: caching pays for its misses on demand, serially with
 * computing; streaming pays for every expert not kept, overlapped with computing:
 *     cache  = misses * load + compute            stream = max(streamed * load, compute)
 * with streamed = E - kept, since the next layer's routing is unknown when its turn comes.
 * The choice changes when the other one has been better by a margin for some steps in a row
 * (hysteresis), so that neither noise nor one odd step flips it.
 *
 * Pure: a few numbers per layer. */
#ifndef MP_PLANNING_REGIME_H
#define MP_PLANNING_REGIME_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mp_regime { MP_REGIME_CACHE, MP_REGIME_STREAM } mp_regime;

typedef struct mp_regime_config {
    double enter_union; /* union / E below which a layer never starts streaming */
    double leave_union; /* and at which it stops; < enter_union */
    double margin;      /* fraction by which the other regime must be better */
    uint32_t patience;  /* consecutive steps */
    double smoothing;   /* weight of the newest step in the averages, 0..1 */
} mp_regime_config;

/* The observations of one step of one layer. */
typedef struct mp_regime_step {
    uint32_t routed;   /* distinct experts: the union */
    uint32_t experts;  /* E */
    uint32_t missed;   /* routed experts that had to be loaded, on demand or late */
    uint32_t kept;     /* experts of this layer that streaming would keep resident */
    double load_ns;    /* to load one expert */
    double compute_ns; /* of the whole layer, including the caller's own work */
} mp_regime_step;

typedef struct mp_regime_layer {
    mp_regime now;
    uint32_t streak;   /* consecutive steps in which the other regime was better */
    double union_part; /* smoothed union / E */
    double miss_part;  /* smoothed misses / union while caching; frozen while streaming */
    double load_ns;    /* smoothed, like compute_ns */
    double compute_ns;
    bool seen;
} mp_regime_layer;

void mp_regime_defaults(mp_regime_config *config);
/* Takes a step in and returns the layer's regime from its next step on. A zeroed layer has no
 * history and caches; a step without routed experts or finite costs changes nothing. */
mp_regime mp_regime_update(mp_regime_layer *layer, const mp_regime_config *config,
                           const mp_regime_step *step);

#endif
