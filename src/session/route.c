/* Routing one layer: from the caller's top-k to held experts. This is the hot path: at full
 * residency it takes no lock, allocates nothing and makes no system call. */
#include "base/config.h"
#include "base/status.h"
#include "features/precision.h"
#include "features/predicting.h"
#include "features/remapping.h"
#include "session/session.h"

static moepage_status check_routing(struct moepage_session *session, uint32_t layer,
                                    const moepage_routing *routing)
{
    if (!session->step_open)
        return mp_fail(MOEPAGE_E_STATE, "no step is open: call moepage_session_begin first");
    if (layer >= session->pool->layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                       session->pool->layers);
    if (!routing->ids || !routing->weights)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer %u: routing ids or weights are NULL", layer);
    if (routing->top_k < 1 || routing->top_k > session->config.max_top_k)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer %u: top_k is %u, it must be 1 to max_top_k (%u)",
                       layer, routing->top_k, session->config.max_top_k);
    return MOEPAGE_OK;
}

static moepage_status find_free_flight(struct moepage_session *session, uint32_t layer,
                                       mp_flight **out)
{
    mp_flight *free_flight = NULL;
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++) {
        mp_flight *flight = &session->flights[i];
        if (!flight->open)
            free_flight = free_flight ? free_flight : flight;
        else if (flight->layer == layer)
            return mp_fail(MOEPAGE_E_STATE, "layer %u is open: retire it before it is routed again",
                           layer);
    }
    if (!free_flight)
        return mp_fail(MOEPAGE_E_STATE, "%d layers are open: retire one first", MP_MAX_FLIGHTS);
    *out = free_flight;
    return MOEPAGE_OK;
}

/* What this layer's turn means for the prefetcher: its wants are settled, and what it routed to
 * feeds the prediction of the layers ahead. */
static void prefetch_ahead(struct moepage_session *session, uint32_t layer, uint32_t n_distinct)
{
    struct moepage_expert_pool *pool = session->pool;
    mp_predicting_came(session, layer);
    mp_pool_unwant(pool, &session->client, layer);
    if (session->config.prefetch != MOEPAGE_PREFETCH_PREVIOUS)
        return;
    mp_previous_note(session->previous, pool->experts, layer, session->distinct, n_distinct);
    for (uint32_t d = 1; d <= session->config.prefetch_depth; d++) {
        uint32_t ahead = (layer + d) % pool->layers;
        uint32_t n = mp_session_previous_keys(session, ahead);
        session->step_stats.hint_experts +=
            mp_pool_want(pool, &session->client, session->order, n, session->all_scan);
    }
}

/* What the layer may hold, it reserves, and says so before anybody can ask in vain. */
static moepage_status form_groups(struct moepage_session *session, mp_flight *flight,
                                  uint32_t n_distinct, bool for_plan)
{
    mp_pool_begin_routing(&session->client);
    moepage_status status = mp_groups_form(session, flight, n_distinct, for_plan);
    if (!status)
        mp_session_tell_reserved(session, flight);
    mp_pool_end_routing(&session->client);
    return status;
}

/* The first group's plan; lets go of the group if there is none. */
static moepage_status hand_over(struct moepage_session *session, mp_flight *flight,
                                moepage_plan *plan)
{
    moepage_plan own;
    moepage_status status = mp_plan_hand_over(session, flight);
    if (!status) {
        mp_plan_fill(session, flight, &own);
        status = MP_CONFIG_WRITE(plan, own);
    }
    if (status)
        mp_plan_release(session, flight, 0);
    return status;
}

moepage_status mp_session_route(struct moepage_session *session, uint32_t layer,
                                const moepage_routing *routing, moepage_plan *plan)
{
    mp_flight *flight = NULL;
    uint32_t n_distinct = 0;
    moepage_status status = check_routing(session, layer, routing);
    if (!status)
        status = find_free_flight(session, layer, &flight);
    if (status)
        return status;
    flight->layer = layer;
    flight->streams = mp_streaming_serves(session, layer);
    flight->missed = 0;
    flight->n_tokens = session->n_tokens;
    flight->top_k = routing->top_k;
    flight->group = 0;
    flight->dropped = false;
    flight->planned = plan != NULL;
    flight->lies = !plan && session->config.miss == MOEPAGE_MISS_HOST;
    flight->native = routing->stream;
    moepage_routing effective = *routing;
    status = mp_remapping_apply(session, layer, &effective);
    if (!status)
        status = mp_groups_collect(session, flight, &effective, &n_distinct);
    flight->n_distinct = n_distinct;
    if (!status)
        status = form_groups(session, flight, n_distinct, plan != NULL);
    if (status)
        return status;
    status = mp_plan_hold(session, flight, 0);
    if (!status && plan)
        status = hand_over(session, flight, plan);
    if (status) {
        mp_session_tell_reserved(session, NULL);
        return status;
    }
    flight->open = true;
    session->step_stats.layers++;
    mp_remapping_routed(session);
    mp_precision_routed(session, flight);
    if (session->config.prefetch != MOEPAGE_PREFETCH_OFF)
        prefetch_ahead(session, layer, n_distinct);
    mp_predicting_routed(session, flight, routing);
    mp_streaming_routed(session, flight);
    if (session->trace)
        mp_trace_step_layer(session->trace, layer, routing->top_k, routing->ids, routing->weights,
                            routing->probabilities);
    return MOEPAGE_OK;
}
