/* Prefetching without a predictor: hints of the host, and what layers used last time. */
#include "features/prefetching.h"

#include "base/alloc.h"
#include "base/status.h"
#include "policy/previous.h"

/* Drops what is still wanted for a layer whose turn has come. */
static void settle(const mp_step_view *step, uint32_t layer)
{
    mp_client_reach_layer(step->client, layer);
    mp_pool_unwant(step->pool, step->client, layer);
}

static void routed_with_hints(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    (void)routing;
    settle(state, flight->layer);
}

static const mp_step_hooks hints_hooks = {.routed = routed_with_hints};

/* ---- what layers used last time ---- */

typedef struct previous {
    mp_step_view *step;
    uint32_t *lines; /* of policy/previous.h, for all sequences together */
    uint32_t *keys;  /* [experts] scratch */
} previous;

/* Wants what the next layers used last time. */
static void routed(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    previous *own = state;
    mp_step_view *step = own->step;
    const uint32_t experts = step->shape.experts;
    (void)routing;
    settle(step, flight->layer);
    mp_previous_note(own->lines, experts, flight->layer, flight->distinct, flight->n_distinct);
    for (uint32_t d = 1; d <= step->config.prefetch_depth; d++) {
        uint32_t ahead = (flight->layer + d) % step->shape.layers, n;
        const uint32_t *set = mp_previous_set(own->lines, experts, ahead, &n);
        for (uint32_t i = 0; i < n; i++)
            own->keys[i] = ahead * experts + set[i];
        step->stats.hint_experts +=
            mp_pool_want(step->pool, step->client, own->keys, n, step->all_scan);
    }
}

static void close_previous(void *state)
{
    previous *own = state;
    mp_free(own->lines);
    mp_free(own->keys);
    mp_free(own);
}

static const mp_step_hooks previous_hooks = {.routed = routed, .close = close_previous};

static moepage_status attach_previous(struct moepage_session *session, mp_step_view *step)
{
    previous *own = mp_alloc(sizeof *own);
    if (!own)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session's prefetching");
    own->step = step;
    own->lines = mp_alloc(mp_previous_bytes(step->shape.layers, step->shape.experts));
    own->keys = mp_alloc_array(step->shape.experts, sizeof *own->keys);
    if (!own->lines || !own->keys) {
        close_previous(own);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the sets of %u layers",
                       step->shape.layers);
    }
    mp_session_attach(session, &previous_hooks, own);
    return MOEPAGE_OK;
}

moepage_status mp_prefetching_attach(struct moepage_session *session)
{
    mp_step_view *step = mp_session_view(session);
    if (step->config.prefetch == MOEPAGE_PREFETCH_PREVIOUS)
        return attach_previous(session, step);
    if (step->config.prefetch == MOEPAGE_PREFETCH_HINT)
        mp_session_attach(session, &hints_hooks, step);
    return MOEPAGE_OK;
}
