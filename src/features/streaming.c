/* Layers that stream: which ones do, and what the session asks of the pool for the next of them.
 *
 * When a layer has been routed, the next streaming one is known, and with it what it will need: the
 * set of its last turn, and all of its experts where this layer, and so this batch, uses nearly all
 * of its own. What of that is absent loads behind this layer's computing, as far as the window has
 * room; what found none then is asked for again when this layer is retired and has left room. */
#include "base/alloc.h"
#include "base/status.h"
#include "session/session.h"

#define NO_LAYER UINT32_MAX

/* ---- life ---- */

void mp_streaming_suspend(struct moepage_session *session, bool suspended)
{
    uint32_t layers = session->pool->layers;
    bool on = !suspended && session->config.regime == MOEPAGE_REGIME_STREAM;
    for (uint32_t l = 0; l < layers; l++) {
        mp_pool_stream(session->pool, &session->client, l, on);
        if (session->regimes)
            session->regimes[l] = (mp_regime_layer){0};
    }
}

moepage_status mp_streaming_open(struct moepage_session *session)
{
    if (session->config.regime == MOEPAGE_REGIME_AUTO) {
        session->regimes = mp_alloc_array(session->pool->layers, sizeof *session->regimes);
        if (!session->regimes)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the regimes of %u layers",
                           session->pool->layers);
        mp_regime_defaults(&session->regime);
    }
    mp_streaming_suspend(session, false);
    return MOEPAGE_OK;
}

void mp_streaming_close(struct moepage_session *session)
{
    mp_free(session->regimes); /* the pool forgets the rest when the session leaves it */
}

void mp_streaming_begin(struct moepage_session *session)
{
    session->mark_ns = session->step_began_ns;
    session->mark_stall_ns = 0;
}

bool mp_streaming_serves(const struct moepage_session *session, uint32_t layer)
{
    return session->client.streams[layer] && !session->all_scan &&
           mp_pool_may_stream(session->pool);
}

/* ---- the next turn ---- */

static uint32_t next_layer(const struct moepage_session *session, uint32_t layer)
{
    uint32_t layers = session->pool->layers;
    for (uint32_t d = 1; d < layers; d++)
        if (mp_streaming_serves(session, (layer + d) % layers))
            return (layer + d) % layers;
    return NO_LAYER;
}

/* Puts all other experts of the layer behind the n whose keys are in session->order. */
static void add_the_others(struct moepage_session *session, uint32_t layer, uint32_t n)
{
    uint32_t experts = session->pool->experts, first = layer * experts;
    uint32_t *is_there = session->order_counts;
    for (uint32_t e = 0; e < experts; e++)
        is_there[e] = 0;
    for (uint32_t i = 0; i < n; i++)
        is_there[session->order[i] - first] = 1;
    for (uint32_t e = 0; e < experts; e++)
        if (!is_there[e])
            session->order[n++] = first + e;
}

static void want_next(struct moepage_session *session, const mp_flight *flight)
{
    struct moepage_expert_pool *pool = session->pool;
    uint32_t next = next_layer(session, flight->layer), experts = pool->experts;
    bool dense = (uint64_t)flight->n_distinct * 8 >= (uint64_t)experts * 7;
    if (next == NO_LAYER)
        return;
    uint32_t n = mp_session_previous_keys(session, next);
    if (n > 0 && !mp_pool_any_absent(pool, session->order, n))
        return; /* it misses nothing */
    if (dense) {
        add_the_others(session, next, n);
        n = experts;
    }
    session->step_stats.hint_experts +=
        mp_pool_want_turn(pool, &session->client, session->order, n);
}

void mp_streaming_routed(struct moepage_session *session, const mp_flight *flight)
{
    struct moepage_expert_pool *pool = session->pool;
    if (session->client.n_streams == 0 || !mp_pool_may_stream(pool))
        return;
    if (flight->streams) {
        session->step_stats.streamed_layers++;
        mp_pool_take_turn(pool, flight->layer);
        if (session->config.prefetch == MOEPAGE_PREFETCH_OFF) /* else it has been done */
            mp_pool_unwant(pool, &session->client, flight->layer);
        if (session->config.prefetch != MOEPAGE_PREFETCH_PREVIOUS)
            mp_previous_note(session->previous, pool->experts, flight->layer, session->distinct,
                             flight->n_distinct);
    }
    /* A layer that comes in waves needs all the window for itself. */
    if (flight->n_groups == 1)
        want_next(session, flight);
}

/* ---- the regime ---- */

/* What the layer took but for waiting for experts, what its caller did before it included. */
static double compute_ns(struct moepage_session *session, const mp_flight *flight)
{
    uint64_t now_ns = mp_session_now_ns(session), stall_ns = session->step_stats.stall_ns;
    double compute = (double)(now_ns - session->mark_ns);
    compute -= (double)(stall_ns - session->mark_stall_ns);
    if (session->async) /* the device waited, in the caller's time */
        compute -= (double)flight->missed * session->load_ns;
    session->mark_ns = now_ns;
    session->mark_stall_ns = stall_ns;
    return compute > 0 ? compute : 0;
}

static void choose_regime(struct moepage_session *session, const mp_flight *flight)
{
    struct moepage_expert_pool *pool = session->pool;
    mp_regime_layer *layer = &session->regimes[flight->layer];
    bool tells = flight->missed == 0 || mp_pool_weigh_miss(pool, &session->load_ns);
    mp_regime_step step = {
        .routed = flight->n_distinct,
        .experts = pool->experts,
        .missed = flight->missed < flight->n_distinct ? flight->missed : flight->n_distinct,
        .kept = mp_pool_keeps(pool),
        .load_ns = session->load_ns,
        .compute_ns = compute_ns(session, flight),
    };
    if (!tells || step.load_ns <= 0 || step.routed == 0)
        return;
    mp_regime before = layer->now, now = mp_regime_update(layer, &session->regime, &step);
    if (now == before)
        return;
    mp_pool_stream(pool, &session->client, flight->layer, now == MP_REGIME_STREAM);
    session->step_stats.regime_changes++;
}

void mp_streaming_retired(struct moepage_session *session, const mp_flight *flight)
{
    if (!mp_pool_may_stream(session->pool))
        return;
    if (session->regimes && !session->all_scan)
        choose_regime(session, flight);
    if (session->client.n_streams > 0)
        want_next(session, flight);
}
