/* Speculative gate: applies the router of an upcoming layer to the hidden state that entered the
 * router of the last observed layer, since the state changes little from layer to layer.
 *
 *   p(e at l) = softmax over e of gate_l[e] . h + bias_l[e]
 *
 * Names the top_k best. Makes no prediction for the next iteration, whose hidden state is another
 * token's, nor before the first layer.
 *
 * Sums are kept in LANES accumulators, which compilers turn into vectors, and these are added in a
 * fixed order: identical bits on every machine.
 *
 * Context: the hidden state. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "policy/guesses.h"
#include "policy/predictors.h"

#define LANES 16u

typedef struct gate_context {
    uint32_t any; /* nonzero: `hidden` belongs to the open iteration */
    uint32_t last;
    float hidden[];
} gate_context;

static uint64_t gate_state_bytes(const mp_predict_config *config)
{
    (void)config;
    return sizeof(mp_predict_config);
}

static uint64_t gate_context_bytes(const mp_predict_config *config)
{
    return sizeof(gate_context) + config->hidden * (uint64_t)sizeof(float);
}

static void gate_init(void *state, const mp_predict_config *config)
{
    *(mp_predict_config *)state = *config;
}

static void gate_request(const void *state, void *context)
{
    (void)state;
    ((gate_context *)context)->any = 0;
}

static void gate_begin(void *state, void *context, const float *semantic)
{
    (void)semantic;
    gate_request(state, context);
}

static void gate_observe(void *state, void *context, const mp_seen *seen)
{
    const mp_predict_config *config = state;
    gate_context *own = context;
    own->last = seen->layer;
    own->any = seen->hidden != NULL;
    if (seen->hidden)
        memcpy(own->hidden, seen->hidden, config->hidden * sizeof(float));
}

static float dot(const float *a, const float *b, uint32_t n)
{
    float lanes[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (uint32_t j = 0; j < LANES; j++)
        sum += lanes[j];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Applies a softmax; returns false if a logit is infinite or NaN. */
static bool softmax(mp_guess *guesses, uint32_t n)
{
    float most = guesses[0].p, sum = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (!isfinite(guesses[e].p))
            return false;
        most = fmaxf(most, guesses[e].p);
    }
    for (uint32_t e = 0; e < n; e++)
        sum += guesses[e].p = expf(guesses[e].p - most);
    for (uint32_t e = 0; e < n; e++)
        guesses[e].p /= sum;
    return true;
}

static uint32_t gate_predict(void *state, void *context, uint32_t layer, mp_guess *out,
                             float *score)
{
    const mp_predict_config *config = state;
    const gate_context *own = context;
    assert(layer < config->layers);
    if (score)
        *score = 1;
    if (!own->any || layer <= own->last || !config->gates || !config->gates[layer])
        return 0;
    const float *gate = config->gates[layer];
    const float *bias = config->gate_biases ? config->gate_biases[layer] : NULL;
    for (uint32_t e = 0; e < config->experts; e++) {
        float logit = dot(gate + (uint64_t)e * config->hidden, own->hidden, config->hidden);
        out[e] = (mp_guess){e, bias ? logit + bias[e] : logit};
    }
    if (!softmax(out, config->experts))
        return 0;
    return mp_guesses_best(out, config->experts, config->top_k);
}

static void gate_end(void *state, void *context)
{
    gate_request(state, context);
}

const mp_predictor mp_predictor_gate = {
    .name = "gate",
    .needs = MP_NEEDS_HIDDEN,
    .state_bytes = gate_state_bytes,
    .context_bytes = gate_context_bytes,
    .init = gate_init,
    .request = gate_request,
    .begin = gate_begin,
    .observe = gate_observe,
    .predict = gate_predict,
    .end = gate_end,
};
