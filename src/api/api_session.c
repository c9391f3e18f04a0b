/* Entry points of sessions: handles and structs are checked here. */
#include "base/config.h"
#include "base/first_forms.h"
#include "base/status.h"
#include "features/predicting.h"
#include "features/remapping.h"
#include "features/shared_predictor.h"
#include "session/session.h"

/* The first published form ends before this. */
#define ROUTING_MIN_BYTES offsetof(moepage_routing, logits)

moepage_status moepage_session_workspace(const moepage_model *model,
                                         const moepage_session_config *config, uint64_t *bytes)
{
    moepage_session_config own;
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status)
        status = mp_config_read(&own, sizeof own, MP_SESSION_CONFIG_MIN_BYTES, config, "config");
    if (!status && !bytes)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "bytes is NULL");
    return status ? status : mp_session_workspace(model, &own, bytes);
}

moepage_status moepage_session_create(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                      const moepage_session_config *config, moepage_session **out)
{
    moepage_session_config own;
    moepage_status status = mp_handle_check(experts, MP_KIND_EXPERTS);
    if (!status && kv)
        status = mp_handle_check(kv, MP_KIND_KV);
    if (!status && !out)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    if (!status)
        status = mp_config_read(&own, sizeof own, MP_SESSION_CONFIG_MIN_BYTES, config, "config");
    if (!status && own.predictor)
        status = mp_handle_check(own.predictor, MP_KIND_PREDICTOR);
    return status ? status : mp_session_create(experts, kv, &own, out);
}

moepage_status moepage_session_destroy(moepage_session *session)
{
    if (!session)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && session->path)
        status = mp_fail(MOEPAGE_E_BUSY, "a path has taken the session over: destroy it first");
    return status ? status : mp_session_destroy(session);
}

moepage_status moepage_session_begin(moepage_session *session, const moepage_step *step)
{
    moepage_step own;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && !step)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "step is NULL");
    if (!status)
        status = MP_CONFIG_READ(own, step);
    return status ? status : mp_session_begin(session, &own);
}

moepage_status moepage_session_hint(moepage_session *session, uint32_t layer,
                                    const int32_t *experts, uint32_t n_experts)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    return status ? status : mp_session_hint(session, layer, experts, n_experts);
}

moepage_status moepage_session_route(moepage_session *session, uint32_t layer,
                                     const moepage_routing *routing, moepage_plan *plan)
{
    moepage_routing own;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && !routing)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "routing is NULL");
    if (!status)
        status = mp_config_read(&own, sizeof own, ROUTING_MIN_BYTES, routing, "routing");
    if (!status && plan)
        status = MP_CONFIG_CHECK(plan);
    return status ? status : mp_session_route(session, layer, &own, plan);
}

moepage_status moepage_session_next_group(moepage_session *session, uint32_t layer,
                                          moepage_plan *plan)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status)
        status = MP_CONFIG_CHECK(plan);
    return status ? status : mp_session_next_group(session, layer, plan);
}

moepage_status moepage_session_ffn(moepage_session *session, uint32_t layer, const moepage_ffn *ffn)
{
    moepage_ffn own;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && !ffn)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "ffn is NULL");
    if (!status)
        status = MP_CONFIG_READ(own, ffn);
    return status ? status : mp_session_ffn(session, layer, &own);
}

moepage_status moepage_session_retire(moepage_session *session, uint32_t layer)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    return status ? status : mp_session_retire(session, layer);
}

moepage_status moepage_session_end(moepage_session *session, moepage_session_stats *stats)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    return status ? status : mp_session_end(session, stats);
}

moepage_status moepage_session_cancel(moepage_session *session)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    return status ? status : mp_session_cancel(session);
}

moepage_status moepage_session_get_stats(moepage_session *session, moepage_session_stats *stats)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    return status ? status
                  : mp_config_write(stats, &session->stats, sizeof session->stats,
                                    MP_STATS_MIN_BYTES, "stats");
}

moepage_status moepage_session_set_remap(moepage_session *session,
                                         const moepage_remap_config *config)
{
    moepage_remap_config own;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && config)
        status = MP_CONFIG_READ(own, config);
    return status ? status : mp_remapping_set(session, config ? &own : NULL);
}

moepage_status moepage_session_get_prefetch(moepage_session *session, uint32_t layer,
                                            moepage_prefetch_info *info)
{
    moepage_prefetch_info own;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status)
        status = mp_predicting_info(session, layer, &own);
    return status ? status : MP_CONFIG_WRITE(info, own);
}

/* Does the trace describe this session's model? */
static moepage_status check_trace(const moepage_session *session, const moepage_trace *trace)
{
    moepage_status status = mp_handle_check(trace, MP_KIND_TRACE);
    if (status)
        return status;
    const moepage_expert_pool *pool = session->pool;
    if (!trace->writer)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the trace is open for reading");
    if (trace->info.moe_layers != pool->layers || trace->info.experts != pool->experts ||
        trace->info.max_top_k < session->config.max_top_k)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "the trace is for %u layers of %u experts, top-k up to "
                       "%u; the session has %u, %u and %u",
                       trace->info.moe_layers, trace->info.experts, trace->info.max_top_k,
                       pool->layers, pool->experts, session->config.max_top_k);
    uint32_t users = atomic_load(&trace->users);
    if (users && session->trace != trace)
        return mp_fail(MOEPAGE_E_BUSY, "another session records to the trace");
    return MOEPAGE_OK;
}

moepage_status moepage_session_record(moepage_session *session, moepage_trace *trace)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && session->step_open)
        status = mp_fail(MOEPAGE_E_STATE, "a step is open: recording starts between steps");
    if (!status && trace)
        status = check_trace(session, trace);
    if (status)
        return status;
    if (session->trace)
        atomic_fetch_sub(&session->trace->users, 1);
    session->trace = trace;
    if (trace)
        atomic_fetch_add(&trace->users, 1);
    return MOEPAGE_OK;
}
