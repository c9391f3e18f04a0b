/* Routing one layer: from the caller's top-k to held experts. This is the hot path: at full
 * residency it takes no lock, allocates nothing and makes no system call. */
#include "base/status.h"
#include "session/inside.h"

/* Checks the call, and finds a flight for the layer. */
static moepage_status find_flight(struct moepage_session *session, uint32_t layer,
                                  const moepage_routing *routing, bool planned, mp_flight **out)
{
    mp_flight *free_flight = NULL;
    if (!session->step.open)
        return mp_fail(MOEPAGE_E_STATE, "no step is open: call moepage_session_begin first");
    if (layer >= session->step.shape.layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                       session->step.shape.layers);
    if (!routing->ids || (!routing->weights && !planned))
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer %u: routing %s", layer,
                       routing->ids ? "weights are NULL, and no plan is asked for"
                                    : "ids are NULL");
    if (routing->top_k < 1 || routing->top_k > session->step.config.max_top_k)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer %u: top_k is %u, it must be 1 to max_top_k (%u)",
                       layer, routing->top_k, session->step.config.max_top_k);
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

moepage_status mp_session_route(struct moepage_session *session, uint32_t layer,
                                const moepage_routing *routing, moepage_plan *plan)
{
    mp_flight *flight = NULL;
    moepage_status status = find_flight(session, layer, routing, plan, &flight);
    if (status)
        return status;
    flight->layer = layer;
    flight->missed = 0;
    flight->n_tokens = session->step.n_tokens;
    flight->top_k = routing->top_k;
    flight->group = 0;
    flight->dropped = false;
    flight->planned = plan != NULL;
    flight->in_place = !plan && session->step.config.miss == MOEPAGE_MISS_HOST;
    flight->native = routing->stream;

    moepage_routing asked = *routing;
    if (!asked.weights)
        asked.weights = session->ones;
    moepage_routing effective = asked;
    const mp_feature_list *before = &session->on[MP_ON_BEFORE_ROUTE];
    for (uint32_t i = 0; i < before->n && !status; i++)
        status = before->at[i].hooks->before_route(before->at[i].state, layer, &effective);

    if (!status)
        status = mp_groups_collect(session, flight, &effective);
    if (!status)
        status = mp_groups_form(session, flight);
    if (status)
        return status;

    status = mp_plan_hold(session, flight, 0);
    if (!status && plan) {
        status = mp_plan_hand_over(session, flight, plan);
        if (status)
            mp_plan_release(session, flight, 0);
    }
    if (status) {
        mp_groups_reserve(session, NULL);
        return status;
    }
    flight->open = true;
    session->step.stats.layers++;

    const mp_feature_list *routed = &session->on[MP_ON_ROUTED];
    for (uint32_t i = 0; i < routed->n; i++)
        routed->at[i].hooks->routed(routed->at[i].state, flight, &asked);
    return MOEPAGE_OK;
}
