/* Entry points of sessions: check handles and structs, call down. */
#include "base/config.h"
#include "base/first_forms.h"
#include "base/handle.h"
#include "base/session_stats.h"
#include "base/status.h"
#include "features/precision.h"
#include "features/predicting.h"
#include "features/prefetching.h"
#include "features/recording.h"
#include "features/remapping.h"
#include "features/streaming.h"
#include "session/session.h"

/* The first published form of each struct ends before this member. */
#define ROUTING_MIN_BYTES offsetof(moepage_routing, logits)

moepage_status moepage_session_workspace(const moepage_model *model,
                                         const moepage_session_config *config, uint64_t *bytes)
{
    moepage_session_config given, own;
    moepage_status status = mp_handle_check(model, MP_KIND_MODEL);
    if (!status)
        status =
            mp_config_read(&given, sizeof given, MP_SESSION_CONFIG_MIN_BYTES, config, "config");
    if (!status && !bytes)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "bytes is NULL");
    if (!status)
        status = mp_session_fill_defaults(model, &given, &own);
    if (!status)
        *bytes = mp_session_workspace(model, &own);
    return status;
}

/* Attaches the optional parts of a step that the session's config asks for. */
static moepage_status attach_features(moepage_session *session)
{
    mp_precision_attach(session);
    moepage_status status = mp_prefetching_attach(session);
    if (!status)
        status = mp_predicting_attach(session);
    if (!status)
        status = mp_streaming_attach(session);
    return status;
}

static moepage_status create(moepage_expert_pool *experts, moepage_kv_pool *kv,
                             const moepage_session_config *given, moepage_session **out)
{
    const mp_pool_shape shape = mp_pool_get_shape(experts);
    moepage_session_config config;
    moepage_session *session;
    moepage_status status = mp_session_fill_defaults(shape.model, given, &config);
    if (!status)
        status = mp_precision_check(&shape, &config);
    if (!status)
        status = mp_session_create(experts, kv, &config, &session);
    if (status)
        return status;
    status = attach_features(session);
    if (status)
        (void)mp_session_destroy(session); /* cannot fail: no step is open */
    else
        *out = session;
    return status;
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
    return status ? status : create(experts, kv, &own, out);
}

moepage_status moepage_session_destroy(moepage_session *session)
{
    if (!session)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && mp_session_is_taken(session))
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

static moepage_status read_product(const moepage_session *session, const moepage_product *product,
                                   moepage_product *own)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && !product)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "product is NULL");
    return status ? status : MP_CONFIG_READ(*own, product);
}

moepage_status moepage_session_convert(moepage_session *session, uint32_t layer,
                                       const moepage_product *product, uint32_t share,
                                       uint32_t n_shares)
{
    moepage_product own;
    moepage_status status = read_product(session, product, &own);
    return status ? status : mp_session_convert(session, layer, &own, share, n_shares);
}

moepage_status moepage_session_multiply(moepage_session *session, uint32_t layer,
                                        const moepage_product *product, uint32_t share,
                                        uint32_t n_shares)
{
    moepage_product own;
    moepage_status status = read_product(session, product, &own);
    return status ? status : mp_session_multiply(session, layer, &own, share, n_shares);
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
                  : mp_config_write(stats, mp_session_stats(session), sizeof *stats,
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

moepage_status moepage_session_record(moepage_session *session, moepage_trace *trace)
{
    moepage_status status = mp_handle_check(session, MP_KIND_SESSION);
    if (!status && trace)
        status = mp_handle_check(trace, MP_KIND_TRACE);
    return status ? status : mp_recording_set(session, trace);
}
