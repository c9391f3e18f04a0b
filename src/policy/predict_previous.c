/* Predicts that a layer routes to what it routed to in the sequence's last iteration, in the same
 * order; a layer that was left out in that one, to what it routed to before. It knows no
 * probability: what it names has 1.
 *
 * Context: per layer a count and that many expert ids. */
#include <assert.h>
#include <string.h>

#include "policy/predictors.h"

typedef struct previous_state {
    uint32_t layers, experts;
} previous_state;

static uint64_t previous_state_bytes(const mp_predict_config *config)
{
    (void)config;
    return sizeof(previous_state);
}

static uint64_t lines_bytes(uint32_t layers, uint32_t experts)
{
    return (uint64_t)layers * (1 + (uint64_t)experts) * sizeof(uint32_t);
}

static uint64_t previous_context_bytes(const mp_predict_config *config)
{
    return lines_bytes(config->layers, config->experts);
}

static void previous_init(void *state, const mp_predict_config *config)
{
    *(previous_state *)state = (previous_state){config->layers, config->experts};
}

static uint32_t *line_of(const previous_state *state, void *context, uint32_t layer)
{
    assert(layer < state->layers);
    return (uint32_t *)context + (uint64_t)layer * (1 + (uint64_t)state->experts);
}

static void previous_request(const void *state, void *context)
{
    const previous_state *shape = state;
    memset(context, 0, lines_bytes(shape->layers, shape->experts));
}

static void previous_begin(void *state, void *context, const float *semantic)
{
    (void)state;
    (void)context;
    (void)semantic;
}

static void previous_observe(void *state, void *context, const mp_seen *seen)
{
    uint32_t *line = line_of(state, context, seen->layer);
    line[0] = seen->n_experts;
    for (uint32_t i = 0; i < seen->n_experts; i++)
        line[1 + i] = seen->experts[i];
}

static uint32_t previous_predict(void *state, void *context, uint32_t layer, mp_guess *out,
                                 float *score)
{
    const uint32_t *line = line_of(state, context, layer);
    for (uint32_t i = 0; i < line[0]; i++)
        out[i] = (mp_guess){line[1 + i], 1};
    if (score)
        *score = 1;
    return line[0];
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
