/* Predicts that a layer routes to what it routed to last time.
 *
 * State: per layer a count and that many expert ids, in the order in which they were routed. */
#include <string.h>

#include "policy/predictor.h"

typedef struct mp_previous {
    uint32_t experts; /* per layer: the length of a line */
    uint32_t lines[]; /* [layers][1 + experts]: count, ids */
} mp_previous;

static uint64_t previous_state_bytes(uint32_t layers, uint32_t experts)
{
    return sizeof(mp_previous) + (uint64_t)layers * (1 + (uint64_t)experts) * sizeof(uint32_t);
}

static void previous_init(void *state, uint32_t layers, uint32_t experts)
{
    memset(state, 0, previous_state_bytes(layers, experts));
    ((mp_previous *)state)->experts = experts;
}

static void previous_observe(void *state, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    mp_previous *previous = state;
    uint32_t *line = &previous->lines[(uint64_t)layer * (1 + previous->experts)];
    line[0] = n;
    memcpy(line + 1, experts, n * sizeof *experts);
}

static uint32_t previous_predict(const void *state, uint32_t layer, uint32_t *out)
{
    const mp_previous *previous = state;
    const uint32_t *line = &previous->lines[(uint64_t)layer * (1 + previous->experts)];
    memcpy(out, line + 1, line[0] * sizeof *out);
    return line[0];
}

const mp_predictor mp_predictor_previous = {
    .name = "previous",
    .state_bytes = previous_state_bytes,
    .init = previous_init,
    .observe = previous_observe,
    .predict = previous_predict,
};
