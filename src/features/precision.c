/* Sessions over pools with two versions of their experts. */
#include "features/precision.h"

#include "base/status.h"

static bool serves_versions(const mp_pool_shape *shape)
{
    return shape->precision && shape->precision->serve == MOEPAGE_SERVE_VERSIONS;
}

/* Returns true if the session takes low versions for experts that are in no slot. To others a pool with
 * MOEPAGE_SERVE_CACHE is a cache like any other. */
static bool computes_low(const mp_pool_shape *shape, const moepage_session_config *config)
{
    return serves_versions(shape) || config->miss == MOEPAGE_MISS_LOW;
}

static moepage_status check_miss(const mp_pool_shape *shape, const moepage_session_config *config)
{
    bool cache = shape->precision && shape->precision->serve == MOEPAGE_SERVE_CACHE;
    if (config->miss == MOEPAGE_MISS_LOW && !cache)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "miss is MOEPAGE_MISS_LOW, but the pool has no low versions beside its "
                       "slots: create it with a precision config and MOEPAGE_SERVE_CACHE");
    if (config->miss != MOEPAGE_MISS_WAIT && serves_versions(shape))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "miss is %u, but no expert is ever missing from a pool with "
                       "MOEPAGE_SERVE_VERSIONS: leave it 0",
                       config->miss);
    return MOEPAGE_OK;
}

moepage_status mp_precision_check(const mp_pool_shape *shape, moepage_session_config *config)
{
    moepage_status status = check_miss(shape, config);
    if (status || !computes_low(shape, config))
        return status;
    if (config->regime == MOEPAGE_REGIME_STREAM)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "regime is MOEPAGE_REGIME_STREAM: a session that computes absent experts in "
                       "their low versions streams none of them");
    config->regime = MOEPAGE_REGIME_CACHE;
    if (config->prefetch != MOEPAGE_PREFETCH_OFF && serves_versions(shape))
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "prefetch is %u: with MOEPAGE_SERVE_VERSIONS hotness decides what is loaded, "
            "leave it off",
            config->prefetch);
    return MOEPAGE_OK;
}

/* Counts a group's low versions in the stats. */
static void count_low(mp_step_view *step, const mp_flight *flight, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        if (flight->holds[i].kind != MP_HOLD_LOW)
            continue;
        step->stats.low_experts++;
        step->stats.low_rows += flight->first_row[i + 1] - flight->first_row[i];
    }
}

/* ---- MOEPAGE_SERVE_VERSIONS: steps see the versions published when they began ---- */

static void begin(void *state, const moepage_step *given)
{
    mp_step_view *step = state;
    (void)given;
    mp_versions_begin_step(step->pool, step->client);
}

static void ended(void *state, bool whole)
{
    mp_step_view *step = state;
    (void)whole;
    mp_versions_end_step(step->pool, step->client);
}

static bool hold_version(void *state, mp_flight *flight, uint32_t first, uint32_t n)
{
    mp_step_view *step = state;
    mp_versions_hold(step->pool, step->client, &flight->holds[first], n);
    count_low(step, flight, first, n);
    return true;
}

/* Weight is counted in integers. A counter has room for 4 million tokens of weight 1
 * in an interval. */
#define WEIGHT_UNITS 1024

/* Sums the weights of an entry's rows. Negative weights count as 0, and those larger than any gate
 * gives as 64. */
static uint32_t weigh(const mp_flight *flight, uint32_t entry)
{
    double sum = 0;
    for (uint32_t r = flight->first_row[entry]; r < flight->first_row[entry + 1]; r++) {
        double weight = (double)flight->weights[flight->rows[r]];
        sum += weight > 64 ? 64 : weight > 0 ? weight : 0;
    }
    double units = sum * WEIGHT_UNITS;
    return units < UINT32_MAX ? (uint32_t)units : UINT32_MAX;
}

/* Counts the layer's choices as heat. */
static void routed(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    mp_step_view *step = state;
    bool by_weight = step->shape.precision->hotness == MOEPAGE_HOTNESS_WEIGHTS;
    (void)routing;
    for (uint32_t i = 0; i < flight->n_entries; i++)
        mp_pool_heat(step->pool, flight->holds[i].key,
                     by_weight ? weigh(flight, i)
                               : flight->first_row[i + 1] - flight->first_row[i]);
}

static const mp_step_hooks versions_hooks = {.begin = begin,
                                             .hold = hold_version,
                                             .routed = routed,
                                             .ended = ended};

/* ---- MOEPAGE_MISS_LOW: absent experts are computed in their low versions ---- */

static bool hold_any(void *state, mp_flight *flight, uint32_t first, uint32_t n)
{
    mp_step_view *step = state;
    mp_pool_hold_any(step->pool, step->client, &flight->holds[first], n);
    count_low(step, flight, first, n);
    return true;
}

static const mp_step_hooks low_hooks = {.hold = hold_any};

void mp_precision_attach(struct moepage_session *session)
{
    mp_step_view *step = mp_session_view(session);
    if (serves_versions(&step->shape))
        mp_session_attach(session, &versions_hooks, step);
    else if (step->config.miss == MOEPAGE_MISS_LOW)
        mp_session_attach(session, &low_hooks, step);
}
