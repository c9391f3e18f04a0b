/* What each layer was routed to last time, and the predictor that expects it again.
 *
 * The predictor names what a layer routed to in the sequence's last iteration, in the same order; a
 * layer that was left out in that one, what it routed to before. It knows no probability: what it
 * names has 1. Its context is the lines of previous.h. */
#include <assert.h>
#include <string.h>

#include "policy/predictors.h"
#include "policy/previous.h"

uint64_t mp_previous_bytes(uint32_t layers, uint32_t experts)
{
    return (uint64_t)layers * (1 + (uint64_t)experts) * sizeof(uint32_t);
}

void mp_previous_note(uint32_t *lines, uint32_t experts, uint32_t layer, const uint32_t *ids,
                      uint32_t n)
{
    uint32_t *line = lines + (uint64_t)layer * (1 + (uint64_t)experts);
    line[0] = n;
    memcpy(line + 1, ids, n * sizeof *ids);
}

const uint32_t *mp_previous_set(const uint32_t *lines, uint32_t experts, uint32_t layer,
                                uint32_t *n)
{
    const uint32_t *line = lines + (uint64_t)layer * (1 + (uint64_t)experts);
    *n = line[0];
    return line + 1;
}

/* ---- the predictor ---- */

typedef struct previous_state {
    uint32_t layers, experts;
} previous_state;

static uint64_t previous_state_bytes(const mp_predict_config *config)
{
    (void)config;
    return sizeof(previous_state);
}

static uint64_t previous_context_bytes(const mp_predict_config *config)
{
    return mp_previous_bytes(config->layers, config->experts);
}

static void previous_init(void *state, const mp_predict_config *config)
{
    *(previous_state *)state = (previous_state){config->layers, config->experts};
}

static void previous_request(const void *state, void *context)
{
    const previous_state *shape = state;
    memset(context, 0, mp_previous_bytes(shape->layers, shape->experts));
}

static void previous_begin(void *state, void *context, const float *semantic)
{
    (void)state;
    (void)context;
    (void)semantic;
}

static void previous_observe(void *state, void *context, const mp_seen *seen)
{
    const previous_state *shape = state;
    assert(seen->layer < shape->layers);
    mp_previous_note(context, shape->experts, seen->layer, seen->experts, seen->n_experts);
}

static uint32_t previous_predict(void *state, void *context, uint32_t layer, mp_guess *out,
                                 float *score)
{
    const previous_state *shape = state;
    assert(layer < shape->layers);
    uint32_t n;
    const uint32_t *set = mp_previous_set(context, shape->experts, layer, &n);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (mp_guess){set[i], 1};
    if (score)
        *score = 1;
    return n;
}

static void previous_end(void *state, void *context)
{
    (void)state;
    (void)context;
}

const mp_predictor mp_predictor_previous = {
    .name = "previous",
    .state_bytes = previous_state_bytes,
    .context_bytes = previous_context_bytes,
    .init = previous_init,
    .request = previous_request,
    .begin = previous_begin,
    .observe = previous_observe,
    .predict = previous_predict,
    .end = previous_end,
};
