/* Judging regimes at work.
 *
 * Misses are counted where they happen. What a cache would have missed while layers stream is told
 * by the pool's policy at work on keys alone, with the session's share of the slots; what streaming
 * would have waited for while they cache follows from the set of the layer's last turn, and from
 * the pool's counts of uses, by which a window chooses what it keeps. */
#include "features/judging.h"

#include "base/alloc.h"
#include "base/status.h"
#include "policy/shadow.h"

/* Which of two sets an expert is in: bits. */
#define OF_LAST_TURN 1u
#define OF_THIS_TURN 2u

/* What the other regime would have made of a layer's latest turn. */
typedef struct turn {
    mp_regime under;       /* the regime that it began under */
    mp_regime_ahead ahead; /* streaming, if the layer is cached */
    double missed;         /* caching, if it is streamed */
    double passing;        /* experts that would have passed through a window */
} turn;

struct mp_judge {
    mp_step_view *step;
    mp_regime_config config;
    mp_regime_balance balances[2]; /* of steps of decode alone, of others */
    turn *turns;                   /* [layers] */
    double passing;                /* of all layers' latest turns */
    void *shadow_state;            /* of `shadow` */
    mp_shadow *shadow;             /* since a kind of step has begun to stream, or NULL */
    uint32_t *keys;                /* [experts] scratch */
    uint8_t *sets;                 /* [experts] scratch */
    double load_ns;                /* of one expert, as last seen; 0 = not known */
    uint64_t mark_ns;              /* when the last layer was retired, or the step began */
    uint64_t mark_stall_ns;        /* the open step's stalls until then */
    uint32_t mark_missed; /* loads of that layer, which an asynchronous device may wait for since */
};

/* ---- life ---- */

moepage_status mp_judge_open(mp_step_view *step, mp_judge **out)
{
    const uint32_t layers = step->shape.layers, experts = step->shape.experts;
    mp_judge *judge = mp_alloc(sizeof *judge);
    if (judge) {
        judge->step = step;
        mp_regime_defaults(&judge->config);
        judge->turns = mp_alloc_array(layers, sizeof *judge->turns);
        judge->shadow_state =
            mp_alloc(mp_shadow_bytes(step->shape.policy, step->shape.keys, experts));
        judge->keys = mp_alloc_array(experts, sizeof *judge->keys);
        judge->sets = mp_alloc_array(experts, sizeof *judge->sets);
    }
    if (!judge || !judge->turns || !judge->shadow_state || !judge->keys || !judge->sets) {
        mp_judge_close(judge);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to judge the regimes of %u layers", layers);
    }
    *out = judge;
    return MOEPAGE_OK;
}

void mp_judge_close(mp_judge *judge)
{
    if (!judge)
        return;
    mp_free(judge->turns);
    mp_free(judge->shadow_state);
    mp_free(judge->keys);
    mp_free(judge->sets);
    mp_free(judge);
}

void mp_judge_reset(mp_judge *judge)
{
    for (uint32_t l = 0; l < judge->step->shape.layers; l++)
        judge->turns[l] = (turn){0};
    judge->balances[0] = judge->balances[1] = (mp_regime_balance){0};
    judge->passing = 0;
    judge->shadow = NULL;
}

/* ---- a step ---- */

static mp_regime_balance *balance_of(mp_judge *judge)
{
    return &judge->balances[!judge->step->decode];
}

mp_regime mp_judge_regime(const mp_judge *judge)
{
    return judge->balances[!judge->step->decode].now;
}

void mp_judge_begin(mp_judge *judge)
{
    judge->mark_ns = judge->step->began_ns;
    judge->mark_stall_ns = 0;
    judge->mark_missed = 0;
}

/* ---- a turn: what the other regime would have made of it ---- */

/* Counts what a cache would have missed, or 0 if nothing has streamed of late. */
static double count_misses(mp_judge *judge, const mp_flight *flight)
{
    const uint32_t first = flight->layer * judge->step->shape.experts;
    if (!judge->shadow)
        return 0;
    for (uint32_t i = 0; i < flight->n_distinct; i++)
        judge->keys[i] = first + flight->distinct[i];
    return mp_shadow_serve(judge->shadow, judge->keys, flight->n_distinct,
                           mp_pool_share(judge->step->pool));
}

static void foresee(mp_judge *judge, const mp_flight *flight, const uint32_t *before, uint32_t n)
{
    struct moepage_expert_pool *pool = judge->step->pool;
    const uint32_t experts = judge->step->shape.experts;
    turn *of = &judge->turns[flight->layer];
    double passing[4];
    for (uint32_t e = 0; e < experts; e++)
        judge->sets[e] = 0;
    for (uint32_t i = 0; i < n; i++)
        judge->sets[before[i]] |= OF_LAST_TURN;
    for (uint32_t i = 0; i < flight->n_distinct; i++)
        judge->sets[flight->distinct[i]] |= OF_THIS_TURN;
    mp_pool_foresee(pool, flight->layer, judge->sets, passing);
    of->ahead = (mp_regime_ahead){
        .again = passing[OF_LAST_TURN | OF_THIS_TURN],
        .routed = passing[OF_THIS_TURN] + passing[OF_LAST_TURN | OF_THIS_TURN],
        .before = passing[OF_LAST_TURN] + passing[OF_LAST_TURN | OF_THIS_TURN],
        .rest = passing[0],
        .all = mp_regime_is_dense(flight->n_distinct, experts),
    };
    judge->passing += of->ahead.routed - of->passing;
    of->passing = of->ahead.routed;
    of->ahead.there = judge->passing <= mp_pool_window(pool);
}

void mp_judge_routed(mp_judge *judge, const mp_flight *flight, const uint32_t *before, uint32_t n)
{
    const mp_regime_balance *balance = balance_of(judge);
    turn *of = &judge->turns[flight->layer];
    bool all_hit = flight->missed == 0 && flight->n_groups == 1;
    of->under = balance->now;
    of->missed = count_misses(judge, flight);
    if (balance->now == MP_REGIME_CACHE && all_hit && balance->regret == 0)
        of->ahead = (mp_regime_ahead){0}; /* nothing to regret: the lock is not worth taking */
    else if (balance->now == MP_REGIME_CACHE)
        foresee(judge, flight, before, n);
}

/* ---- what it cost ---- */

/* Returns the time that the layer took, with the caller's work before it, but without
 * waiting for experts. */
static double compute_ns(mp_judge *judge, const mp_flight *flight)
{
    uint64_t now_ns = mp_step_now_ns(judge->step), stall_ns = judge->step->stats.stall_ns;
    double compute = (double)(now_ns - judge->mark_ns);
    compute -= (double)(stall_ns - judge->mark_stall_ns);
    /* The device waits by itself, and the caller for the device: for its next layer's router, when this layer's
     * predecessor has got what it missed. */
    if (judge->step->async)
        compute -= (double)judge->mark_missed * judge->load_ns;
    judge->mark_missed = flight->missed;
    judge->mark_ns = now_ns;
    judge->mark_stall_ns = stall_ns;
    return compute > 0 ? compute : 0;
}

bool mp_judge_retired(mp_judge *judge, const mp_flight *flight)
{
    mp_regime_balance *balance = balance_of(judge);
    const turn *of = &judge->turns[flight->layer];
    bool tells = flight->missed == 0 || mp_pool_weigh_miss(judge->step->pool, &judge->load_ns);
    double took_ns = compute_ns(judge, flight);
    mp_regime before = balance->now;
    /* Where two layers are open, the one that is retired first may have changed the regime. */
    if (!tells || judge->load_ns <= 0 || flight->n_distinct == 0 || of->under != before)
        return false;
    double computing = took_ns / judge->load_ns;
    mp_regime_turn costs = {
        .stalls = flight->missed < flight->n_distinct ? flight->missed : flight->n_distinct,
        .other = before == MP_REGIME_STREAM ? of->missed
                                            : mp_regime_streamed_stalls(&of->ahead, computing),
        .computing = computing,
        .slots = mp_pool_share(judge->step->pool),
    };
    if (mp_regime_update(balance, &judge->config, &costs) == before)
        return false;
    const mp_pool_shape *shape = &judge->step->shape;
    if (before == MP_REGIME_CACHE && !judge->shadow)
        judge->shadow =
            mp_shadow_init(judge->shadow_state, shape->policy, shape->keys, shape->experts);
    else if (judge->balances[0].now == MP_REGIME_CACHE && judge->balances[1].now == MP_REGIME_CACHE)
        judge->shadow = NULL;
    return true;
}
