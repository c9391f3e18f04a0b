/* Cache and reuse against stream and evict: smoothed costs, a margin, and patience. */
#include "planning/regime.h"

#include <assert.h>
#include <math.h>

void mp_regime_defaults(mp_regime_config *config)
{
    *config = (mp_regime_config){
        .enter_union = 0.6,
        .leave_union = 0.5,
        .margin = 0.1,
        .patience = 8,
        .smoothing = 0.25,
    };
}

static double blend(double old, double newest, double weight)
{
    return old + weight * (newest - old);
}

/* Updates the averages. Misses are known only while the layer caches; for a streaming layer the
 * misses of a cache are assumed to be what they were before. */
static void take_in(mp_regime_layer *layer, const mp_regime_config *config,
                    const mp_regime_step *step)
{
    double weight = layer->seen ? config->smoothing : 1;
    uint32_t missed = step->missed < step->routed ? step->missed : step->routed;
    layer->union_part = blend(layer->union_part, (double)step->routed / step->experts, weight);
    layer->load_ns = blend(layer->load_ns, step->load_ns, weight);
    layer->compute_ns = blend(layer->compute_ns, step->compute_ns, weight);
    if (layer->now == MP_REGIME_CACHE)
        layer->miss_part = blend(layer->miss_part, (double)missed / step->routed, weight);
    layer->seen = true;
}

static bool other_is_better(const mp_regime_layer *layer, const mp_regime_config *config,
                            const mp_regime_step *step)
{
    uint32_t kept = step->kept < step->experts ? step->kept : step->experts;
    double misses = layer->miss_part * layer->union_part * step->experts;
    double streaming = (step->experts - kept) * layer->load_ns;
    double cache = misses * layer->load_ns + layer->compute_ns;
    double stream = streaming > layer->compute_ns ? streaming : layer->compute_ns;
    if (layer->now == MP_REGIME_CACHE)
        return layer->union_part >= config->enter_union && stream < cache * (1 - config->margin);
    return layer->union_part <= config->leave_union || cache < stream * (1 - config->margin);
}

mp_regime mp_regime_update(mp_regime_layer *layer, const mp_regime_config *config,
                           const mp_regime_step *step)
{
    assert(step->routed <= step->experts);
    if (step->routed == 0 || !isfinite(step->load_ns) || !isfinite(step->compute_ns))
        return layer->now;
    take_in(layer, config, step);
    layer->streak = other_is_better(layer, config, step) ? layer->streak + 1 : 0;
    if (layer->streak > 0 && layer->streak >= config->patience) {
        layer->now = layer->now == MP_REGIME_CACHE ? MP_REGIME_STREAM : MP_REGIME_CACHE;
        layer->streak = 0;
    }
    return layer->now;
}
