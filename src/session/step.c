/* Opening and closing steps and layers, hints, and the time they took. */
#include "base/config.h"
#include "base/status.h"
#include "features/precision.h"
#include "features/predicting.h"
#include "session/session.h"

#include <string.h>

mp_flight *mp_session_flight(struct moepage_session *session, uint32_t layer)
{
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++)
        if (session->flights[i].open && session->flights[i].layer == layer)
            return &session->flights[i];
    mp_error_set("layer %u is not open: route it first", layer);
    return NULL;
}

/* ---- begin ---- */

static moepage_status check_step(const struct moepage_session *session, const moepage_step *step)
{
    const moepage_session_config *config = &session->config;
    if (session->path)
        return mp_fail(MOEPAGE_E_STATE, "a path has taken the session over: destroy it first");
    if (session->step_open)
        return mp_fail(MOEPAGE_E_STATE, "a step is open: end or cancel it first");
    if (step->n_tokens < 1 || step->n_tokens > config->max_tokens)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n_tokens is %u, it must be 1 to max_tokens (%u)",
                       step->n_tokens, config->max_tokens);
    if (step->n_sequences > config->max_sequences)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n_sequences is %u, at most max_sequences (%u)",
                       step->n_sequences, config->max_sequences);
    if (step->n_sequences > 0 && !step->sequences)
        return mp_fail(MOEPAGE_E_ARGUMENT, "sequences is NULL for %u sequences", step->n_sequences);
    uint64_t total = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        if (step->sequences[i].phase > MOEPAGE_PHASE_PREFILL)
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "phase of sequence %u is %u, it must be "
                           "MOEPAGE_PHASE_DECODE or _PREFILL",
                           i, step->sequences[i].phase);
        total += step->sequences[i].n_tokens;
    }
    if (step->n_sequences > 0 && total != step->n_tokens)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the sequences have %llu tokens, the step has %u",
                       (unsigned long long)total, step->n_tokens);
    if (step->n_sequences == 0 && step->phase > MOEPAGE_PHASE_PREFILL)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "phase is %u, it must be MOEPAGE_PHASE_DECODE or "
                       "_PREFILL",
                       step->phase);
    if (step->reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "reserved is %u, it must be 0", step->reserved);
    if ((step->semantic != NULL) != (step->semantic_dim > 0))
        return mp_fail(MOEPAGE_E_ARGUMENT, "semantic and semantic_dim (%u) must be given together",
                       step->semantic_dim);
    return MOEPAGE_OK;
}

/* Which tokens are prefill's; asked only where the pool protects itself against scans. */
static void mark_scan_tokens(struct moepage_session *session, const moepage_step *step)
{
    session->any_scan = session->all_scan = false;
    if (session->pool->scan_percent == 0)
        return;
    uint32_t scans = 0, at = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        bool scan = step->sequences[i].phase == MOEPAGE_PHASE_PREFILL;
        memset(session->scan_token + at, scan, step->sequences[i].n_tokens);
        at += step->sequences[i].n_tokens;
        scans += scan ? step->sequences[i].n_tokens : 0;
    }
    if (step->n_sequences == 0)
        scans = step->phase == MOEPAGE_PHASE_PREFILL ? step->n_tokens : 0;
    session->any_scan = scans > 0;
    session->all_scan = scans == step->n_tokens;
}

static void record_begin(struct moepage_session *session, const moepage_step *step)
{
    moepage_step_sequence all = {.n_tokens = step->n_tokens, .phase = step->phase};
    bool named = step->n_sequences > 0;
    mp_trace_step_begin(session->trace, step->n_tokens, named ? step->sequences : &all,
                        named ? step->n_sequences : 1, step->semantic, step->semantic_dim);
}

moepage_status mp_session_begin(struct moepage_session *session, const moepage_step *step)
{
    moepage_status status = check_step(session, step);
    if (!status)
        status = mp_predicting_check(session, step);
    if (!status && session->kv) /* the last thing that can fail */
        status = mp_kv_reader_begin(session->kv, step);
    if (status)
        return status;
    mp_precision_begin(session);
    session->n_tokens = step->n_tokens;
    mark_scan_tokens(session, step);
    mp_session_note_phase(session, step);
    session->step_stats = (moepage_session_stats){.struct_size = sizeof session->step_stats,
                                                  .steps = 1,
                                                  .tokens = step->n_tokens};
    if (session->trace)
        record_begin(session, step);
    session->step_open = true;
    session->step_began_ns = mp_session_now_ns(session);
    mp_streaming_begin(session);
    mp_predicting_begin(session, step);
    return MOEPAGE_OK;
}

/* ---- hints ---- */

moepage_status mp_session_hint(struct moepage_session *session, uint32_t layer,
                               const int32_t *experts, uint32_t n)
{
    struct moepage_expert_pool *pool = session->pool;
    if (session->config.prefetch == MOEPAGE_PREFETCH_OFF)
        return mp_fail(MOEPAGE_E_STATE, "prefetch is off in this session: a hint would do nothing");
    if (layer >= pool->layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                       pool->layers);
    if (n > pool->experts || (n > 0 && !experts))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%u experts named, or NULL: a layer has %u", n,
                       pool->experts);
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] < 0 || (uint32_t)experts[i] >= pool->experts)
            return mp_fail(MOEPAGE_E_ARGUMENT, "hinted expert %d, it must be 0 to %u",
                           (int)experts[i], pool->experts - 1);
        session->order[i] = layer * pool->experts + (uint32_t)experts[i];
    }
    moepage_session_stats *stats = session->step_open ? &session->step_stats : &session->stats;
    stats->hint_experts += mp_pool_want(pool, &session->client, session->order, n,
                                        session->step_open && session->all_scan);
    if (!session->step_open)
        mp_pool_publish_stats(&session->client, &session->stats);
    return MOEPAGE_OK;
}

/* ---- retire, end ---- */

void mp_session_tell_reserved(struct moepage_session *session, const mp_flight *opening)
{
    mp_client *client = &session->client;
    uint32_t widest = 0;
    for (uint32_t d = 0; d < session->pool->n_shards; d++) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++) {
            const mp_flight *flight = &session->flights[i];
            uint32_t reserved = flight->open || flight == opening ? flight->reserved[d] : 0;
            widest = reserved > widest ? reserved : widest;
            sum += reserved;
        }
        atomic_store_explicit(&client->reserved[d], sum, memory_order_release);
    }
    atomic_store_explicit(&client->widest, widest, memory_order_release);
}

static void close_flight(struct moepage_session *session, mp_flight *flight)
{
    for (uint32_t g = 0; g < flight->n_groups; g++)
        mp_plan_release(session, flight, g);
    flight->open = false;
    mp_session_tell_reserved(session, NULL);
}

moepage_status mp_session_retire(struct moepage_session *session, uint32_t layer)
{
    mp_flight *flight = mp_session_flight(session, layer);
    if (!flight)
        return MOEPAGE_E_STATE;
    moepage_status status = mp_plan_mark(session, flight);
    if (!status)
        close_flight(session, flight);
    if (!status)
        mp_streaming_retired(session, flight);
    return status;
}

/* `whole`: every layer came to its end. */
static void close_step(struct moepage_session *session, bool whole)
{
    session->step_stats.wall_ns = mp_session_now_ns(session) - session->step_began_ns;
    mp_predicting_end(session, whole);
    mp_session_tell_step(session);
    mp_stats_add(&session->stats, &session->step_stats);
    mp_pool_publish_stats(&session->client, &session->stats);
    session->step_open = false;
    if (session->kv)
        mp_kv_reader_end(session->kv, session->benches[0].last);
    mp_precision_end(session);
    mp_pool_relieve(session->pool, &session->client);
}

moepage_status mp_session_end(struct moepage_session *session, moepage_session_stats *stats)
{
    if (!session->step_open)
        return mp_fail(MOEPAGE_E_STATE, "no step is open");
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++)
        if (session->flights[i].open)
            return mp_fail(MOEPAGE_E_STATE, "layer %u is not retired", session->flights[i].layer);
    moepage_status status =
        stats ? mp_config_check(stats, MP_STATS_MIN_BYTES, "stats") : MOEPAGE_OK;
    if (status)
        return status;
    close_step(session, true);
    if (session->trace)
        mp_trace_step_end(session->trace);
    return stats ? mp_config_write(stats, &session->step_stats, sizeof session->step_stats,
                                   MP_STATS_MIN_BYTES, "stats")
                 : MOEPAGE_OK;
}

moepage_status mp_session_cancel(struct moepage_session *session)
{
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++) {
        if (!session->flights[i].open)
            continue;
        moepage_status status = mp_plan_mark(session, &session->flights[i]);
        if (status == MOEPAGE_E_STATE) /* how long its slots are read cannot be noted */
            return status;
        close_flight(session, &session->flights[i]); /* on a failed device nothing runs any more */
    }
    mp_pool_unwant(session->pool, &session->client, UINT32_MAX);
    if (session->step_open)
        close_step(session, false);
    if (session->trace)
        mp_trace_step_cancel(session->trace);
    return MOEPAGE_OK;
}
