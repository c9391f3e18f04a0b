/* Opening and closing steps and layers, hints, and the time they took. */
#include "base/config.h"
#include "base/session_stats.h"
#include "base/status.h"
#include "planning/watch.h"
#include "session/inside.h"

#include <string.h>

/* ---- begin ---- */

static moepage_status check_step(const struct moepage_session *session, const moepage_step *step)
{
    const moepage_session_config *config = &session->step.config;
    if (session->taken_by)
        return mp_fail(MOEPAGE_E_STATE, "a path has taken the session over: destroy it first");
    if (session->step.open)
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

/* Marks the tokens of prefill; called only if the pool protects itself against scans. */
static void mark_scan_tokens(struct moepage_session *session, const moepage_step *step)
{
    session->step.any_scan = session->step.all_scan = false;
    if (session->step.shape.scan_percent == 0)
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
    session->step.any_scan = scans > 0;
    session->step.all_scan = scans == step->n_tokens;
}

static void note_phase(mp_step_view *open, const moepage_step *step)
{
    open->decodes = 0;
    open->prefill = step->n_sequences > 0 || step->phase == MOEPAGE_PHASE_PREFILL;
    open->decode = step->n_sequences > 0 || step->phase == MOEPAGE_PHASE_DECODE;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        bool prefill = step->sequences[i].phase == MOEPAGE_PHASE_PREFILL;
        open->prefill &= prefill;
        open->decode &= !prefill || step->sequences[i].n_tokens == 0;
        open->decodes += !prefill && step->sequences[i].n_tokens > 0;
    }
}

moepage_status mp_session_begin(struct moepage_session *session, const moepage_step *step)
{
    const mp_feature_list *checks = &session->on[MP_ON_CHECK], *begins = &session->on[MP_ON_BEGIN];
    mp_step_view *open = &session->step;
    moepage_status status = check_step(session, step);
    if (!status)
        status = mp_exchange_ask(session);
    for (uint32_t i = 0; i < checks->n && !status; i++)
        status = checks->at[i].hooks->check(checks->at[i].state, step);
    if (!status && session->kv) /* last, because nothing behind it can fail */
        status = mp_kv_reader_begin(session->kv, step);
    if (status)
        return status;
    open->n_tokens = step->n_tokens;
    mark_scan_tokens(session, step);
    note_phase(open, step);
    mp_client_begin_step(open->client, open->decode ? open->decodes : 0);
    open->stats = (moepage_session_stats){.struct_size = sizeof open->stats,
                                          .steps = 1,
                                          .tokens = step->n_tokens};
    open->open = true;
    open->began_ns = mp_step_now_ns(open);
    for (uint32_t i = 0; i < begins->n; i++)
        begins->at[i].hooks->begin(begins->at[i].state, step);
    return MOEPAGE_OK;
}

/* ---- hints ---- */

moepage_status mp_session_hint(struct moepage_session *session, uint32_t layer,
                               const int32_t *experts, uint32_t n)
{
    const mp_pool_shape *shape = &session->step.shape;
    if (session->step.config.prefetch == MOEPAGE_PREFETCH_OFF)
        return mp_fail(MOEPAGE_E_STATE, "prefetch is off in this session: a hint would do nothing");
    if (layer >= shape->layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                       shape->layers);
    if (n > shape->experts || (n > 0 && !experts))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%u experts named, or NULL: a layer has %u", n,
                       shape->experts);
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] < 0 || (uint32_t)experts[i] >= shape->experts)
            return mp_fail(MOEPAGE_E_ARGUMENT, "hinted expert %d, it must be 0 to %u",
                           (int)experts[i], shape->experts - 1);
        session->order[i] = layer * shape->experts + (uint32_t)experts[i];
    }
    moepage_session_stats *stats = session->step.open ? &session->step.stats : &session->stats;
    stats->hint_experts += mp_pool_want(session->step.pool, session->step.client, session->order, n,
                                        session->step.open && session->step.all_scan);
    if (!session->step.open)
        mp_client_publish_stats(session->step.client, &session->stats);
    return MOEPAGE_OK;
}

/* ---- retire, end ---- */

static void close_flight(struct moepage_session *session, mp_flight *flight)
{
    for (uint32_t g = 0; g < flight->n_groups; g++)
        mp_plan_release(session, flight, g);
    flight->open = false;
    mp_groups_reserve(session, NULL);
}

moepage_status mp_session_retire(struct moepage_session *session, uint32_t layer)
{
    mp_flight *flight = mp_session_flight(session, layer);
    if (!flight)
        return MOEPAGE_E_STATE;
    moepage_status status = mp_plan_mark(session, flight);
    if (status)
        return status;
    close_flight(session, flight);
    const mp_feature_list *retired = &session->on[MP_ON_RETIRED];
    for (uint32_t i = 0; i < retired->n; i++)
        retired->at[i].hooks->retired(retired->at[i].state, flight);
    return MOEPAGE_OK;
}

static void tell_watch(const mp_step_view *step)
{
    const moepage_session_stats *stats = &step->stats;
    const mp_watch_step ended = {
        .tokens = (uint32_t)stats->tokens,
        .layers = (uint32_t)stats->layers,
        .prefill = step->prefill,
        .decode = step->decode,
        .decodes = step->decodes,
        .routed = stats->routed,
        .ended_ns = step->began_ns + stats->wall_ns,
        .wall_ns = stats->wall_ns,
        .stall_ns = stats->stall_ns,
        .unseen = step->async,
        .compute_ns = stats->compute_ns,
        .misses = stats->misses + stats->late,
    };
    mp_pool_tell_step(step->pool, &ended);
}

/* Closes the step. `whole`: every layer was retired. */
static void close_step(struct moepage_session *session, bool whole)
{
    const mp_feature_list *ended = &session->on[MP_ON_ENDED];
    mp_step_view *step = &session->step;
    step->stats.wall_ns = mp_step_now_ns(step) - step->began_ns;
    for (uint32_t i = 0; i < ended->n; i++)
        ended->at[i].hooks->ended(ended->at[i].state, whole);
    tell_watch(step);
    mp_stats_add(&session->stats, &step->stats);
    mp_client_publish_stats(step->client, &session->stats);
    step->open = false;
    if (session->kv)
        mp_kv_reader_end(session->kv, session->scratch[session->kv_device].last);
    mp_client_relieve(step->client);
}

moepage_status mp_session_end(struct moepage_session *session, moepage_session_stats *stats)
{
    if (!session->step.open)
        return mp_fail(MOEPAGE_E_STATE, "no step is open");
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++)
        if (session->flights[i].open)
            return mp_fail(MOEPAGE_E_STATE, "layer %u is not retired", session->flights[i].layer);
    moepage_status status =
        stats ? mp_config_check(stats, MP_STATS_MIN_BYTES, "stats") : MOEPAGE_OK;
    if (!status)
        status = mp_exchange_ask(session);
    if (status)
        return status;
    close_step(session, true);
    return stats ? mp_config_write(stats, &session->step.stats, sizeof session->step.stats,
                                   MP_STATS_MIN_BYTES, "stats")
                 : MOEPAGE_OK;
}

moepage_status mp_session_cancel(struct moepage_session *session)
{
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++) {
        if (!session->flights[i].open)
            continue;
        moepage_status status = mp_plan_mark(session, &session->flights[i]);
        if (status == MOEPAGE_E_STATE) /* the end of its readers cannot be marked */
            return status;
        /* Whatever the status: on a failed device nothing runs any more. */
        close_flight(session, &session->flights[i]);
    }
    mp_pool_unwant(session->step.pool, session->step.client, UINT32_MAX);
    if (session->step.open)
        close_step(session, false);
    return MOEPAGE_OK;
}
