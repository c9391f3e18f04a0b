/* predictor.h — the interface of a predictor: it observes a sequence's routing layer by layer, and
 * names the experts that an upcoming layer will need, each with a probability.
 *
 * Everything learnt is in the `state`, shared by all sequences; the open iteration of each sequence
 * has a `context`. For each iteration (one step of one sequence) the caller calls
 *
 *   begin -> { observe(l) -> predict(l + d) }... -> end
 *
 * where predict may also be called right after begin, for the first layers, and after the last
 * layer was observed, for layers of the next iteration (a layer not above the last one observed
 * belongs to the next iteration). `request` comes before the first begin of a request. A layer may
 * be omitted, but not repeated.
 *
 * Functions of numbers only: no memory, no devices, no locks, no clock. One thread at a time works
 * on a state and the contexts that go with it. Both are zero-filled memory of the requested sizes,
 * aligned to 64 bytes, and freed without a call. */
#ifndef MP_POLICY_PREDICTOR_H
#define MP_POLICY_PREDICTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

/* Inputs that a predictor requires, and inputs that it uses if they are given. */
enum {
    MP_NEEDS_HIDDEN = 1u << 0,       /* the router's input, and the model's routers */
    MP_TAKES_PROBABILITIES = 1u << 1 /* the router's full output; others do not get it */
};

/* Study switches of the expert maps (FineMoE 6.6); off in service. */
enum {
    MP_MAPS_NO_SEMANTIC = 1u << 0, /* nothing for the first d layers: "Map (T)" */
    MP_MAPS_NO_DELTA = 1u << 1     /* the k most probable, whatever the score: "Map (T+S)" */
};

typedef struct mp_predict_config {
    uint32_t layers, experts, top_k;
    uint32_t distance;         /* d, 1..layers: how many layers ahead the caller will predict */
    uint32_t capacity;         /* of a store: number of iterations kept; 0 = 1024 */
    uint32_t semantic_dim;     /* of embeddings; 0 = no embeddings */
    uint32_t hidden;           /* size of a hidden state for `gates`; 0 = no gates */
    uint32_t flags;            /* MP_MAPS_* */
    const float *const *gates; /* [layers] each [experts][hidden]; outlive the state; NULL = none */
    const float *const *gate_biases; /* [layers] each [experts], added to the logits; NULL = none */
} mp_predict_config;

/* One sequence's routing at one layer, all its tokens together. */
typedef struct mp_seen {
    uint32_t layer;
    uint32_t n_experts;
    const uint32_t *experts;    /* distinct, most wanted first if that is known */
    const float *probabilities; /* [experts], the mean over the tokens, sums to 1; or NULL */
    const float *hidden;        /* [hidden] of the last token, as the router saw it; or NULL */
} mp_seen;

typedef struct mp_guess {
    uint32_t expert;
    float p; /* 0..1: the predictor's estimate of the chance */
} mp_guess;

typedef struct mp_predictor {
    const char *name;
    uint32_t needs;                                           /* MP_NEEDS_*, MP_TAKES_* */
    uint64_t (*state_bytes)(const mp_predict_config *config); /* bytes of memory that init needs */
    uint64_t (*context_bytes)(const mp_predict_config *config);
    void (*init)(void *state, const mp_predict_config *config); /* starts with nothing learnt */
    void (*request)(const void *state, void *context);
    void (*begin)(void *state, void *context, const float *semantic); /* [semantic_dim] or NULL */
    void (*observe)(void *state, void *context, const mp_seen *seen);
    /* Writes the experts of `layer` worth fetching, most probable first, to out[experts]; returns
     * their number: 0 for no prediction. *score, unless NULL: the similarity, -1..1, behind the
     * guess; 1 for predictors without such a measure. */
    uint32_t (*predict)(void *state, void *context, uint32_t layer, mp_guess *out, float *score);
    void (*end)(void *state, void *context); /* the iteration is complete: learn from it */
    /* Saving and loading what was learnt; NULL for predictors that learn nothing. `load` takes
     * the output of `save` under the same layers, experts and semantic_dim: FORMAT for anything
     * else, which leaves an initialised state unchanged. The bytes are little-endian and
     * checked in full. */
    uint64_t (*save_bytes)(const void *state);
    void (*save)(const void *state, unsigned char *out);
    moepage_status (*load)(void *state, const unsigned char *in, uint64_t bytes);
} mp_predictor;

/* Returns the predictor of that name, or NULL. */
const mp_predictor *mp_predictor_find(const char *name);

/* Returns the available names; NULL past the last. */
const char *mp_predictor_name(uint32_t index);

#endif
