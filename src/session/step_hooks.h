/* step_hooks.h — optional parts of a session: functions that it calls at events of a step.
 *
 *   check -> begin -> { before_route -> [hold]* -> routed -> retired } per layer -> ended
 *
 * A feature is a table of functions and a state of its own. It is attached to a session, between steps,
 * and sees of it what mp_step_view has. At each event the session calls the attached functions in the
 * order of attaching. */
#ifndef MP_SESSION_STEP_HOOKS_H
#define MP_SESSION_STEP_HOOKS_H

#include "model/model.h"
#include "pool/hints.h"
#include "session/flight.h"

/* The open step, and what it runs on. Features add to `stats` alone. */
typedef struct mp_step_view {
    struct moepage_expert_pool *pool;
    mp_pool_shape shape;
    mp_client *client;             /* as which the pool knows the session */
    moepage_session_config config; /* defaults filled in */
    mp_device *device;             /* the pool's first */
    uint32_t max_rows;             /* max_tokens * max_top_k */
    bool async;                    /* the devices' work outlasts the calls that submit it */

    bool open;
    bool any_scan,
        all_scan;         /* tokens of prefill; false unless the pool guards itself against them */
    bool prefill, decode; /* all of its tokens are prefill's, or decode's */
    uint32_t n_tokens;
    uint64_t began_ns;
    moepage_session_stats stats;
} mp_step_view;

static inline uint64_t mp_step_now_ns(const mp_step_view *step)
{
    return step->device->ops->now_ns(step->device);
}

/* One feature's functions; NULL where it does nothing. */
typedef struct mp_step_hooks {
    /* May refuse a step that is about to begin. */
    moepage_status (*check)(void *state, const moepage_step *step);
    void (*begin)(void *state, const moepage_step *step);
    /* A checked routing; may point `routing`, a copy, to other ids and weights, or refuse it. Ids out of
     * range and weights are for the session to refuse. */
    moepage_status (*before_route)(void *state, uint32_t layer, moepage_routing *routing);
    /* Holds entries [first, first + n) of the flight without waiting; false leaves it to others. */
    bool (*hold)(void *state, mp_flight *flight, uint32_t first, uint32_t n);
    /* The layer is open, its first group held. `routing` is as the caller gave it. */
    void (*routed)(void *state, const mp_flight *flight, const moepage_routing *routing);
    void (*retired)(void *state, const mp_flight *flight);
    /* The step's time is measured, its stats are not yet summed. `whole`: it was not cancelled. */
    void (*ended)(void *state, bool whole);
    /* Another engine runs the session's layers from now on, or no longer. */
    void (*taken)(void *state, bool taken);
    /* Frees the state; no step is open. */
    void (*close)(void *state);
} mp_step_hooks;

struct moepage_session;

mp_step_view *mp_session_view(struct moepage_session *session);

/* Takes the state over: it is closed with the session at the latest. */
void mp_session_attach(struct moepage_session *session, const mp_step_hooks *hooks, void *state);
/* Closes the state; nothing if it is not attached. */
void mp_session_detach(struct moepage_session *session, const mp_step_hooks *hooks);
/* The state attached with these functions, or NULL. */
void *mp_session_find(const struct moepage_session *session, const mp_step_hooks *hooks);

#endif
