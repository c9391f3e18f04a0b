/* Remapping of a session's decode batches: applies policy/remap.h to the session's routing and
 * the pool's residency. */
#include "features/remapping.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/floats.h"
#include "base/status.h"
#include "policy/remap.h"
#include "session/session.h"

/* Stands for the logarithm of a probability of 0: it is below the smallest float's, and its
 * exponential rounds to 0. */
#define LOG_OF_ZERO (-200.0f)

/* alpha and beta are floats, so their quotient may be off by rounding. */
#define MOST_BETA (3.0 * (1 + 1e-6))

typedef struct remapping {
    mp_step_view *step;
    mp_remap_law *laws; /* [layers]; alpha 0: the layer is left alone */
    void *scratch;
    float *logits;     /* [max_tokens][experts] of probabilities */
    int32_t *ids;      /* [max_rows] */
    float *weights;    /* [max_rows] */
    uint8_t *resident; /* [experts] */
    bool applied;      /* to the layer being routed, whose result is still to be counted */
    mp_remap_result result;
    uint64_t ns;
} remapping;

/* ---- laws and scratch ---- */

/* Returns true if a value is above 0 as the float that a law stores. */
static bool is_above_zero(double value)
{
    return value >= FLT_MIN && value <= FLT_MAX;
}

static moepage_status check_law(uint32_t layer, bool by_layer, double alpha, double beta)
{
    char where[32] = "";
    if (by_layer && alpha == 0)
        return MOEPAGE_OK;
    if (by_layer)
        snprintf(where, sizeof where, "layer %u: ", layer);
    if (!is_above_zero(alpha) || !is_above_zero(beta))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%salpha %g and beta %g must be above 0%s", where, alpha,
                       beta, by_layer ? ", or alpha 0 to leave the layer alone" : "");
    if (beta > MOST_BETA * alpha)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "%sbeta is %g and alpha %g: beta / alpha must be at most 3, experts further "
                       "below the first choice have next to no weight",
                       where, beta, alpha);
    return MOEPAGE_OK;
}

static moepage_status check_config(uint32_t layers, const moepage_remap_config *config)
{
    moepage_status status = MOEPAGE_OK;
    if (config->gate > MOEPAGE_GATE_SIGMOID)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "gate is %u, it must be MOEPAGE_GATE_SOFTMAX or _SIGMOID", config->gate);
    if (!(config->resident >= 0 && config->resident <= FLT_MAX))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "resident is %g, it must be a number of logits from 0 on", config->resident);
    if ((config->alphas != NULL) != (config->betas != NULL))
        return mp_fail(MOEPAGE_E_ARGUMENT, "alphas and betas must be given together");
    if (!config->alphas)
        return check_law(0, false, config->alpha, config->beta);
    for (uint32_t l = 0; l < layers && !status; l++)
        status = check_law(l, true, (double)config->alphas[l], (double)config->betas[l]);
    return status;
}

static void close_remapping(void *state)
{
    remapping *own = state;
    mp_free(own->laws);
    mp_free(own->scratch);
    mp_free(own->logits);
    mp_free(own->ids);
    mp_free(own->weights);
    mp_free(own->resident);
    mp_free(own);
}

static remapping *alloc_remapping(mp_step_view *step)
{
    const moepage_session_config *config = &step->config;
    uint32_t experts = step->shape.experts;
    remapping *r = mp_alloc(sizeof *r);
    if (!r)
        return NULL;
    r->step = step;
    r->laws = mp_alloc_array(step->shape.layers, sizeof *r->laws);
    r->scratch = mp_alloc(mp_remap_scratch_bytes(config->max_tokens, config->max_top_k, experts));
    r->logits = mp_alloc_array((size_t)config->max_tokens * experts, sizeof *r->logits);
    r->ids = mp_alloc_array(step->max_rows, sizeof *r->ids);
    r->weights = mp_alloc_array(step->max_rows, sizeof *r->weights);
    r->resident = mp_alloc(experts);
    if (r->laws && r->scratch && r->logits && r->ids && r->weights && r->resident)
        return r;
    close_remapping(r);
    return NULL;
}

static void set_laws(remapping *own, const moepage_remap_config *config, uint32_t layers)
{
    for (uint32_t l = 0; l < layers; l++)
        own->laws[l] = (mp_remap_law){
            .alpha = config->alphas ? config->alphas[l] : (float)config->alpha,
            .beta = config->alphas ? config->betas[l] : (float)config->beta,
            .gate = config->gate,
            .resident = (float)config->resident,
        };
}

/* ---- at work ---- */

static moepage_status refuse_value(const remapping *own, uint32_t layer, const char *what,
                                   const char *must, const float *values, uint64_t at)
{
    uint32_t experts = own->step->shape.experts;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "layer %u: %s of expert %u for token %u is %g, it must be %s", layer, what,
                   (uint32_t)(at % experts), (uint32_t)(at / experts), (double)values[at], must);
}

/* Finds the logits: as given, or as logarithms of a softmax gate's probabilities, which differ from
 * them by a constant per token. */
static moepage_status find_logits(remapping *own, uint32_t layer, const moepage_routing *routing,
                                  const float **out)
{
    uint64_t n = (uint64_t)own->step->n_tokens * own->step->shape.experts;
    const float *p = routing->probabilities;
    if (routing->logits) {
        uint64_t bad = mp_first_not_finite(routing->logits, n);
        *out = routing->logits;
        return bad == n ? MOEPAGE_OK
                        : refuse_value(own, layer, "the logit", "finite", routing->logits, bad);
    }
    if (!p || own->laws[layer].gate != MOEPAGE_GATE_SOFTMAX)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "layer %u: remapping is on and needs the router's logits%s", layer,
                       p ? ": a sigmoid gate's probabilities cannot replace them"
                         : ", or its probabilities");
    for (uint64_t i = 0; i < n; i++) {
        if (!(p[i] >= 0) || isinf(p[i]))
            return refuse_value(own, layer, "the probability", "0 or more, and finite", p, i);
        own->logits[i] = p[i] > 0 ? logf(p[i]) : LOG_OF_ZERO;
    }
    *out = own->logits;
    return MOEPAGE_OK;
}

/* Marks the layer's resident experts, without the lock: an expert that comes or goes meanwhile may
 * or may not be preferred. */
static const uint8_t *mark_resident(remapping *own, uint32_t layer)
{
    const mp_step_view *step = own->step;
    const uint32_t experts = step->shape.experts;
    if (own->laws[layer].resident == 0)
        return NULL;
    for (uint32_t e = 0; e < experts; e++)
        own->resident[e] = mp_pool_has(step->pool, layer * experts + e);
    return own->resident;
}

/* Returns true if the step is to be remapped in this layer: several tokens, decode alone, a law,
 * and more experts than top-k. */
static bool is_asked(const remapping *own, uint32_t layer, uint32_t top_k)
{
    return own->step->decode && own->step->n_tokens > 1 && own->laws[layer].alpha > 0 &&
           top_k < own->step->shape.experts;
}

static bool are_ids_known(const mp_step_view *step, const moepage_routing *routing)
{
    for (uint32_t r = 0; r < step->n_tokens * routing->top_k; r++)
        if ((uint32_t)routing->ids[r] >= step->shape.experts &&
            routing->ids[r] != MOEPAGE_NO_EXPERT)
            return false;
    return true;
}

/* Refuses a routing without logits, or with logits that are not finite. */
static moepage_status before_route(void *state, uint32_t layer, moepage_routing *routing)
{
    remapping *own = state;
    const mp_step_view *step = own->step;
    const float *logits;
    own->applied = false;
    if (!is_asked(own, layer, routing->top_k) || !are_ids_known(step, routing))
        return MOEPAGE_OK;
    uint64_t began_ns = mp_step_now_ns(step);
    moepage_status status = find_logits(own, layer, routing, &logits);
    if (status)
        return status;
    mp_remap_batch batch = {.n_tokens = step->n_tokens,
                            .top_k = routing->top_k,
                            .experts = step->shape.experts,
                            .logits = logits,
                            .ids = routing->ids,
                            .weights = routing->weights,
                            .resident = mark_resident(own, layer)};
    mp_remap(&own->laws[layer], &batch, own->scratch, own->ids, own->weights, &own->result);
    routing->ids = own->ids;
    routing->weights = own->weights;
    own->applied = true;
    own->ns = mp_step_now_ns(step) - began_ns;
    return MOEPAGE_OK;
}

/* Counts the remapping of the layer. */
static void routed(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    const remapping *own = state;
    moepage_session_stats *stats = &own->step->stats;
    (void)flight;
    (void)routing;
    if (!own->applied)
        return;
    stats->remap_layers++;
    stats->remap_before += own->result.experts_before;
    stats->remap_after += own->result.experts_after;
    stats->remap_tokens += own->result.tokens_changed;
    stats->remap_rows += own->result.rows_changed;
    stats->remap_ns += own->ns;
}

static const mp_step_hooks remapping_hooks = {.before_route = before_route,
                                              .routed = routed,
                                              .close = close_remapping};

/* ---- turning it on and off ---- */

moepage_status mp_remapping_set(struct moepage_session *session, const moepage_remap_config *config)
{
    mp_step_view *step = mp_session_view(session);
    if (step->open)
        return mp_fail(MOEPAGE_E_STATE, "a step is open: remapping changes between steps");
    if (mp_session_is_taken(session))
        return mp_fail(MOEPAGE_E_STATE, "a path has taken the session over: its routing is "
                                        "remapped by moepage_cuda_remap_run");
    if (!config) {
        mp_session_detach(session, &remapping_hooks);
        return MOEPAGE_OK;
    }
    moepage_status status = check_config(step->shape.layers, config);
    if (status)
        return status;
    remapping *own = mp_session_find(session, &remapping_hooks);
    if (!own) {
        own = alloc_remapping(step);
        if (!own)
            return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to remap batches of %u tokens",
                           step->config.max_tokens);
        mp_session_attach(session, &remapping_hooks, own);
    }
    set_laws(own, config, step->shape.layers);
    return MOEPAGE_OK;
}
