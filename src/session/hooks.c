/* The features attached to a session: one list of all, and one for each event. */
#include <assert.h>

#include "session/inside.h"

static void append(mp_feature_list *list, const mp_feature *feature)
{
    assert(list->n < MP_MAX_FEATURES);
    list->at[list->n++] = *feature;
}

static void list_by_event(struct moepage_session *session)
{
    for (uint32_t e = 0; e < MP_STEP_EVENTS; e++)
        session->on[e].n = 0;
    for (uint32_t i = 0; i < session->features.n; i++) {
        const mp_feature *feature = &session->features.at[i];
        const mp_step_hooks *hooks = feature->hooks;
        const bool listens[MP_STEP_EVENTS] = {
            [MP_ON_CHECK] = hooks->check,
            [MP_ON_BEGIN] = hooks->begin,
            [MP_ON_BEFORE_ROUTE] = hooks->before_route,
            [MP_ON_HOLD] = hooks->hold,
            [MP_ON_ROUTED] = hooks->routed,
            [MP_ON_RETIRED] = hooks->retired,
            [MP_ON_ENDED] = hooks->ended,
            [MP_ON_TAKEN] = hooks->taken,
        };
        for (uint32_t e = 0; e < MP_STEP_EVENTS; e++)
            if (listens[e])
                append(&session->on[e], feature);
    }
}

mp_step_view *mp_session_view(struct moepage_session *session)
{
    return &session->step;
}

void mp_session_attach(struct moepage_session *session, const mp_step_hooks *hooks, void *state)
{
    append(&session->features, &(mp_feature){hooks, state});
    list_by_event(session);
}

void mp_session_detach(struct moepage_session *session, const mp_step_hooks *hooks)
{
    mp_feature_list *all = &session->features;
    uint32_t i = 0;
    while (i < all->n && all->at[i].hooks != hooks)
        i++;
    if (i == all->n)
        return;
    if (hooks->close)
        hooks->close(all->at[i].state);
    for (all->n--; i < all->n; i++)
        all->at[i] = all->at[i + 1];
    list_by_event(session);
}

void *mp_session_find(const struct moepage_session *session, const mp_step_hooks *hooks)
{
    for (uint32_t i = 0; i < session->features.n; i++)
        if (session->features.at[i].hooks == hooks)
            return session->features.at[i].state;
    return NULL;
}
