/* predictor.h — what a predictor is: it is told how a sequence was routed, layer by layer, and names
 * the experts that a layer to come will need, each with a probability.
 *
 * What has been learnt is the `state`, shared by all sequences; what is known of a sequence's open
 * iteration is its `context`. For each iteration (one step of one sequence) the caller says
 *
 *   begin -> { observe(l) -> predict(l + d) }... -> end
 *
 * where predict may also be asked right after begin, for the first layers, and after the last
 * layer was observed, for layers of the next iteration (a layer not above the last one observed is
 * the next iteration's). `request` comes before the first begin of a request. A layer may be left
 * out, none comes twice.
 *
 * Functions of numbers only: no memory, no devices, no locks, no clock. One thread at a time works
 * on a state and the contexts that go with it. Both are zero-filled memory of the sizes asked for,
 * aligned to 64 bytes, and freed without a call. */
#ifndef MP_POLICY_PREDICTOR_H
#define MP_POLICY_PREDICTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* What a predictor cannot do without, and what it makes use of where it is given. */
enum {
    MP_NEEDS_HIDDEN = 1u << 0,       /* the router's input, and the model's routers */
    MP_TAKES_PROBABILITIES = 1u << 1 /* the router's full output: others need not be told it */
};

/* Study switches of the expert maps (FineMoE 6.6); off in service. */
enum {
    MP_MAPS_NO_SEMANTIC = 1u << 0, /* nothing for the first d layers: "Map (T)" */
    MP_MAPS_NO_DELTA = 1u << 1     /* the k most probable, whatever the score: "Map (T+S)" */
};

typedef struct mp_predict_config {
    uint32_t layers, experts, top_k;
    uint32_t distance;         /* d, 1..layers: how many layers ahead the caller will ask */
    uint32_t capacity;         /* of a store: iterations kept; 0 = 1024 */
    uint32_t semantic_dim;     /* of embeddings; 0 = none will be given */
    uint32_t hidden;           /* of `gates`; 0 = none */
    uint32_t flags;            /* MP_MAPS_* */
    const float *const *gates; /* [layers] each [experts][hidden], what a layer's router multiplies
                                  with; outlive the state; NULL = none */
    const float *const *gate_biases; /* [layers] each [experts], added to that; NULL = none */
} mp_predict_config;

/* How one sequence was routed at one layer, all its tokens together. */
typedef struct mp_seen {
    uint32_t layer;
    uint32_t n_experts;
    const uint32_t *experts;    /* distinct, most wanted first where that is known */
    const float *probabilities; /* [experts], the mean over the tokens, sums to 1; or NULL */
    const float *hidden;        /* [hidden] of the last token, as the router saw it; or NULL */
} mp_seen;

typedef struct mp_guess {
    uint32_t expert;
    float p; /* 0..1: how likely, as far as the predictor can tell */
} mp_guess;

typedef struct mp_predictor {
    const char *name;
    uint32_t needs;                                           /* MP_NEEDS_*, MP_TAKES_* */
    uint64_t (*state_bytes)(const mp_predict_config *config); /* memory that init will use */
    uint64_t (*context_bytes)(const mp_predict_config *config);
    void (*init)(void *state, const mp_predict_config *config); /* nothing is learnt */
    void (*request)(const void *state, void *context);
    void (*begin)(void *state, void *context, const float *semantic); /* [semantic_dim] or NULL */
    void (*observe)(void *state, void *context, const mp_seen *seen);
    /* Writes the experts of `layer` worth having, most probable first, to out[experts]; returns how
     * many: 0 where it cannot say. *score, unless NULL: the similarity, -1..1, of what the guess
     * rests on; 1 where the predictor knows no such thing. */
    uint32_t (*predict)(void *state, void *context, uint32_t layer, mp_guess *out, float *score);
    void (*end)(void *state, void *context); /* the iteration is complete: learn from it */
    /* What has been learnt, to be kept; NULL for those that learn nothing. `load` takes what `save`
     * wrote under the same layers, experts and semantic_dim: FORMAT for anything else, which leaves
     * an initialised state as it was. The bytes are little-endian and checked in full. */
    uint64_t (*save_bytes)(const void *state);
    void (*save)(const void *state, unsigned char *out);
    moepage_status (*load)(void *state, const unsigned char *in, uint64_t bytes);
} mp_predictor;

/* The predictor of that name, or NULL. */
const mp_predictor *mp_predictor_find(const char *name);

/* The names there are; NULL past the last. */
const char *mp_predictor_name(uint32_t index);

#endif
