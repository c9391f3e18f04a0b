/* step_hooks.h — optional parts of a session: functions that it calls at events of a step.
 *
 *   check -> begin -> { before_route -> [hold]* -> routed -> retired } per layer -> ended
 *
 * A feature is a table of functions with a state of its own. It is attached to a session between
 * steps, and sees of the session only mp_step_view. At each event, the session calls the functions
 * in the order in which they were attached. */
#ifndef MP_SESSION_STEP_HOOKS_H
#define MP_SESSION_STEP_HOOKS_H

#include "model/model.h"
#include "pool/hints.h"
#include "session/flight.h"

/* The open step, and what it runs on. Features write to nothing in it but `stats`. */
typedef struct mp_step_view {
    struct moepage_expert_pool *pool;
    mp_pool_shape shape;
    mp_client *client;             /* the session, as the pool knows it */
    moepage_session_config config; /* defaults filled in */
    mp_device *device;             /* the pool's first */
    const mp_layout **layouts;     /* [layers] of the experts */
    uint32_t max_rows;             /* max_tokens * max_top_k */
    bool async;                    /* the devices' work outlasts the calls that submit it */

    bool open;
    /* Some, or all, of its tokens are prefill's; false unless the pool guards itself against scans. */
    bool any_scan, all_scan;
    bool prefill, decode; /* all of its tokens are prefill's, or decode's */
    uint32_t decodes;     /* named sequences that decode */
    uint32_t n_tokens;
    uint64_t began_ns;
    moepage_session_stats stats;
} mp_step_view;

/* The clock of stalls and steps. */
static inline uint64_t mp_step_now_ns(const mp_step_view *step)
{
    return step->device->ops->now_ns(step->device);
}

/* One feature's functions, each of which may be NULL. */
typedef struct mp_step_hooks {
    /* May refuse a step that is about to begin. */
    moepage_status (*check)(void *state, const moepage_step *step);
    void (*begin)(void *state, const moepage_step *step);
    /* May point `routing`, a copy, to other ids and weights, or refuse it. Ids out of range and
     * weights that are not finite are left to the session to refuse. */
    moepage_status (*before_route)(void *state, uint32_t layer, moepage_routing *routing);
    /* Holds entries [first, first + n) of the flight without waiting; false leaves it to others. */
    bool (*hold)(void *state, mp_flight *flight, uint32_t first, uint32_t n);
    /* The layer is open and its first group held. `routing` is the caller's. */
    void (*routed)(void *state, const mp_flight *flight, const moepage_routing *routing);
    void (*retired)(void *state, const mp_flight *flight);
    /* The step's time has been measured, and its stats are not summed yet. `whole`: it
     * was not cancelled. */
    void (*ended)(void *state, bool whole);
    /* Another engine begins to run the session's layers, or ends. */
    void (*taken)(void *state, bool taken);
    /* Frees the state; no step is open. */
    void (*close)(void *state);
} mp_step_hooks;

struct moepage_session;

mp_step_view *mp_session_view(struct moepage_session *session);

/* Attaches a feature and takes over its state, which is closed with the session at the latest. */
void mp_session_attach(struct moepage_session *session, const mp_step_hooks *hooks, void *state);
/* Detaches a feature and closes its state; does nothing if it is not attached. */
void mp_session_detach(struct moepage_session *session, const mp_step_hooks *hooks);
/* Returns the state attached with these functions, or NULL. */
void *mp_session_find(const struct moepage_session *session, const mp_step_hooks *hooks);

#endif
