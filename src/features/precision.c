/* Sessions over pools with two versions of their experts. */
#include "features/precision.h"

#include "ahead/versions.h"
#include "base/status.h"

static moepage_status check_miss(const struct moepage_expert_pool *pool,
                                 const moepage_session_config *config)
{
    bool cache = pool->versions && pool->versions->config.serve == MOEPAGE_SERVE_CACHE;
    if (config->miss == MOEPAGE_MISS_LOW && !cache)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "miss is MOEPAGE_MISS_LOW, but the pool has no low versions beside its "
                       "slots: create it with a precision config and MOEPAGE_SERVE_CACHE");
    if (config->miss != MOEPAGE_MISS_WAIT && mp_pool_serves_versions(pool))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "miss is %u, but no expert is ever missing from a pool with "
                       "MOEPAGE_SERVE_VERSIONS: leave it 0",
                       config->miss);
    return MOEPAGE_OK;
}

moepage_status mp_precision_check(const struct moepage_expert_pool *pool,
                                  moepage_session_config *config)
{
    moepage_status status = check_miss(pool, config);
    if (status || !pool->versions)
        return status;
    if (config->regime == MOEPAGE_REGIME_STREAM)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "regime is MOEPAGE_REGIME_STREAM: the pool has two versions of its experts "
                       "and streams none of them");
    config->regime = MOEPAGE_REGIME_CACHE;
    if (config->prefetch != MOEPAGE_PREFETCH_OFF && mp_pool_serves_versions(pool))
        return mp_fail(
            MOEPAGE_E_UNSUPPORTED,
            "prefetch is %u: with MOEPAGE_SERVE_VERSIONS what is hot decides what comes, "
            "leave it off",
            config->prefetch);
    return MOEPAGE_OK;
}

void mp_precision_begin(struct moepage_session *session)
{
    if (mp_pool_serves_versions(session->pool))
        mp_versions_begin_step(session->pool, &session->client);
}

void mp_precision_end(struct moepage_session *session)
{
    if (mp_pool_serves_versions(session->pool))
        mp_versions_end_step(session->pool, &session->client);
}

bool mp_precision_hold(struct moepage_session *session, mp_hold *holds, uint32_t n)
{
    if (mp_pool_serves_versions(session->pool))
        mp_versions_hold(session->pool, &session->client, holds, n);
    else if (session->config.miss == MOEPAGE_MISS_LOW)
        mp_pool_hold_any(session->pool, &session->client, holds, n);
    else
        return false;
    return true;
}

/* Weight is counted in integers. An interval has room for 4 million tokens of weight 1. */
#define WEIGHT_UNITS 1024

/* The weights of an entry's rows; what is negative or beyond any gate's counts as 0 or as 64. */
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

void mp_precision_routed(struct moepage_session *session, const mp_flight *flight)
{
    if (!mp_pool_serves_versions(session->pool))
        return;
    bool by_weight = session->pool->versions->config.hotness == MOEPAGE_HOTNESS_WEIGHTS;
    for (uint32_t i = 0; i < flight->n_entries; i++)
        mp_versions_count(session->pool, flight->holds[i].key,
                          by_weight ? weigh(flight, i)
                                    : flight->first_row[i + 1] - flight->first_row[i]);
}

void mp_precision_count_low(struct moepage_session *session, const mp_flight *flight,
                            uint32_t first, uint32_t n)
{
    moepage_session_stats *stats = &session->step_stats;
    for (uint32_t i = first; i < first + n; i++) {
        if (flight->holds[i].kind != MP_HOLD_LOW)
            continue;
        stats->low_experts++;
        stats->low_rows += flight->first_row[i + 1] - flight->first_row[i];
    }
}
