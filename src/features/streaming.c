/* Streaming at work.
 *
 * When a layer has been routed, the experts of the next streaming layer are wanted: the set of its
 * last turn or, if the batch uses nearly all experts of this layer, all of the next one's. Absent
 * ones are loaded while this layer computes, as far as the window has room; the rest are asked for
 * again when this layer is retired and has left room. */
#include "features/streaming.h"

#include "base/alloc.h"
#include "base/status.h"
#include "features/judging.h"
#include "policy/previous.h"

#define NO_LAYER UINT32_MAX

typedef struct streaming {
    mp_step_view *step;
    uint32_t *lines; /* of policy/previous.h, for all sequences together */
    uint32_t *keys;  /* [experts] scratch */
    bool *is_there;  /* [experts] scratch */
    mp_judge *judge; /* of MOEPAGE_REGIME_AUTO, or NULL */
} streaming;

static bool is_served(const mp_step_view *step, uint32_t layer)
{
    return mp_client_streams(step->client, layer) && !step->all_scan &&
           mp_pool_may_stream(step->pool);
}

/* ---- life ---- */

static void stream_all(streaming *own, bool on)
{
    for (uint32_t l = 0; l < own->step->shape.layers; l++)
        mp_client_stream(own->step->client, l, on);
}

/* Stops streaming when a path takes the session over, and returns to the config's regime when it
 * is given back. */
static void taken(void *state, bool taken)
{
    streaming *own = state;
    const mp_step_view *step = own->step;
    stream_all(own, !taken && step->config.regime == MOEPAGE_REGIME_STREAM);
    if (own->judge)
        mp_judge_reset(own->judge);
}

/* The pool itself ends the streaming of a session that leaves it. */
static void close_streaming(void *state)
{
    streaming *own = state;
    mp_free(own->lines);
    mp_free(own->keys);
    mp_free(own->is_there);
    mp_judge_close(own->judge);
    mp_free(own);
}

static void begin(void *state, const moepage_step *given)
{
    streaming *own = state;
    (void)given;
    if (!own->judge)
        return;
    mp_judge_begin(own->judge);
    stream_all(own, mp_judge_regime(own->judge) == MP_REGIME_STREAM);
}

/* ---- the next turn ---- */

static uint32_t next_layer(const mp_step_view *step, uint32_t layer)
{
    uint32_t layers = step->shape.layers;
    for (uint32_t d = 1; d < layers; d++)
        if (is_served(step, (layer + d) % layers))
            return (layer + d) % layers;
    return NO_LAYER;
}

/* Writes the keys of what a layer used last time; returns how many. */
static uint32_t previous_keys(streaming *own, uint32_t layer)
{
    uint32_t n, experts = own->step->shape.experts;
    const uint32_t *set = mp_previous_set(own->lines, experts, layer, &n);
    for (uint32_t i = 0; i < n; i++)
        own->keys[i] = layer * experts + set[i];
    return n;
}

/* Appends all other experts of the layer to the n keys. */
static void add_the_others(streaming *own, uint32_t layer, uint32_t n)
{
    uint32_t experts = own->step->shape.experts, first = layer * experts;
    for (uint32_t e = 0; e < experts; e++)
        own->is_there[e] = false;
    for (uint32_t i = 0; i < n; i++)
        own->is_there[own->keys[i] - first] = true;
    for (uint32_t e = 0; e < experts; e++)
        if (!own->is_there[e])
            own->keys[n++] = first + e;
}

static void want_next(streaming *own, const mp_flight *flight)
{
    mp_step_view *step = own->step;
    uint32_t next = next_layer(step, flight->layer), experts = step->shape.experts;
    bool dense = mp_regime_is_dense(flight->n_distinct, experts);
    if (next == NO_LAYER)
        return;
    uint32_t n = previous_keys(own, next);
    if (n > 0 && !mp_pool_any_absent(step->pool, own->keys, n))
        return; /* its last set is resident: nothing is expected to miss */
    if (dense) {
        add_the_others(own, next, n);
        n = experts;
    }
    step->stats.hint_experts += mp_pool_want_turn(step->pool, step->client, own->keys, n);
}

/* Called when the layer's first group is held: begins its turn, and wants the
 * next layer's experts. */
static void routed(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    streaming *own = state;
    mp_step_view *step = own->step;
    const uint32_t prefetch = step->config.prefetch;
    bool may = mp_client_streams_any(step->client) && mp_pool_may_stream(step->pool);
    bool streams = may && is_served(step, flight->layer);
    bool judges = own->judge && !step->all_scan && mp_pool_may_stream(step->pool);
    (void)routing;
    if (judges) {
        uint32_t n;
        const uint32_t *set = mp_previous_set(own->lines, step->shape.experts, flight->layer, &n);
        mp_judge_routed(own->judge, flight, set, n);
    }
    if (judges || streams || prefetch == MOEPAGE_PREFETCH_PREVIOUS)
        mp_previous_note(own->lines, step->shape.experts, flight->layer, flight->distinct,
                         flight->n_distinct);
    if (streams) {
        step->stats.streamed_layers++;
        mp_pool_begin_turn(step->pool, flight->layer);
        if (prefetch == MOEPAGE_PREFETCH_OFF) /* otherwise prefetching has done it */
            mp_pool_unwant(step->pool, step->client, flight->layer);
    }
    /* A layer that runs in waves needs the whole window for itself. */
    if (may && flight->n_groups == 1)
        want_next(own, flight);
}

/* Asks again for the next layer, and decides how layers are served from now on. */
static void retired(void *state, const mp_flight *flight)
{
    streaming *own = state;
    if (!mp_pool_may_stream(own->step->pool))
        return;
    if (own->judge && !own->step->all_scan && mp_judge_retired(own->judge, flight)) {
        stream_all(own, mp_judge_regime(own->judge) == MP_REGIME_STREAM);
        own->step->stats.regime_changes += own->step->shape.layers;
    }
    if (mp_client_streams_any(own->step->client))
        want_next(own, flight);
}

static const mp_step_hooks streaming_hooks = {
    .begin = begin, .routed = routed, .retired = retired, .taken = taken, .close = close_streaming};

moepage_status mp_streaming_attach(struct moepage_session *session)
{
    mp_step_view *step = mp_session_view(session);
    const uint32_t layers = step->shape.layers, experts = step->shape.experts;
    if (step->config.regime == MOEPAGE_REGIME_CACHE)
        return MOEPAGE_OK;
    streaming *own = mp_alloc(sizeof *own);
    if (!own)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session's streaming");
    own->step = step;
    own->lines = mp_alloc(mp_previous_bytes(layers, experts));
    own->keys = mp_alloc_array(experts, sizeof *own->keys);
    own->is_there = mp_alloc_array(experts, sizeof *own->is_there);
    moepage_status status = MOEPAGE_OK;
    if (!own->lines || !own->keys || !own->is_there)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the streaming of %u layers", layers);
    else if (step->config.regime == MOEPAGE_REGIME_AUTO)
        status = mp_judge_open(step, &own->judge);
    if (status) {
        close_streaming(own);
        return status;
    }
    mp_session_attach(session, &streaming_hooks, own);
    taken(own, false);
    return MOEPAGE_OK;
}
