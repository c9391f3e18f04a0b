/* Random routing with the temporal locality of a real router. */
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "decode/loop.h"

#define STAYS 0.44

static double next_real(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (double)(x * 0x2545f4914f6cdd1du >> 11) * 0x1p-53;
}

static bool is_among(const int32_t *ids, uint32_t n, int32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Draws an expert. The square makes low positions popular; each layer's positions begin at a
 * different expert. */
static int32_t any_expert(uint64_t *state, uint32_t layer, uint32_t experts)
{
    double place = next_real(state);
    return (int32_t)(((uint32_t)(place * place * experts) + layer * 37u) % experts);
}

static void choose(uint64_t *state, const int32_t *before, uint32_t layer, uint32_t top_k,
                   uint32_t experts, int32_t *out)
{
    for (uint32_t k = 0; k < top_k; k++) {
        int32_t id = -1;
        if (before && next_real(state) < STAYS && !is_among(out, k, before[k]))
            id = before[k];
        while (id < 0 || is_among(out, k, id))
            id = any_expert(state, layer, experts);
        out[k] = id;
    }
}

int loop_routes_make(machine *m, const moepage_model_info *model, uint32_t steps, uint32_t batch,
                     uint64_t seed, loop_routes *out)
{
    const uint32_t top_k = model->top_k, layers = model->moe_layers;
    const uint64_t per_step = (uint64_t)layers * batch * top_k;
    uint64_t state = seed * 2 + 0x9e3779b97f4a7c15u;
    void *ids = NULL, *weights = NULL;
    *out = (loop_routes){.steps = steps, .layers = layers, .batch = batch, .top_k = top_k};
    int code = machine_alloc_pinned(m, per_step * steps * sizeof *out->ids, &ids);
    out->ids = ids;
    if (!code)
        code = machine_alloc_pinned(m, per_step * sizeof *out->weights, &weights);
    out->weights = weights;
    if (code)
        return code;
    for (uint64_t i = 0; i < per_step; i++)
        out->weights[i] = 1.0f / (float)top_k;
    for (uint32_t s = 0; s < steps; s++)
        for (uint64_t row = 0; row < (uint64_t)layers * batch; row++) {
            int32_t *own = out->ids + s * per_step + row * top_k;
            choose(&state, s ? own - per_step : NULL, (uint32_t)(row / batch), top_k,
                   model->experts, own);
        }
    return RUN_OK;
}

void loop_routes_free(machine *m, loop_routes *routes)
{
    machine_free_pinned(m, routes->ids);
    machine_free_pinned(m, routes->weights);
}
