/* Remapping of a session's decode batches: policy/remap.h with what a session knows. */
#include "features/remapping.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/floats.h"
#include "base/status.h"
#include "policy/remap.h"
#include "session/session.h"

/* The logarithm of a probability of 0: below that of the smallest float, and its exponential is 0. */
#define LOG_OF_ZERO (-200.0f)

/* Bins are quotients of floats: beta / alpha may be off by their rounding. */
#define MOST_BETA (3.0 * (1 + 1e-6))

struct mp_remapping {
    mp_remap_law *laws; /* [layers]; alpha 0 = left alone */
    void *scratch;
    float *logits;     /* [max_tokens][experts] of probabilities */
    int32_t *ids;      /* [max_rows] */
    float *weights;    /* [max_rows] */
    uint8_t *resident; /* [experts] */
    bool applied;      /* to the layer being routed: what came of it follows */
    mp_remap_result result;
    uint64_t ns;
};

/* ---- turning it on and off ---- */

/* As a law has it, in floats. */
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

static moepage_status check_config(const struct moepage_session *session,
                                   const moepage_remap_config *config)
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
    for (uint32_t l = 0; l < session->pool->layers && !status; l++)
        status = check_law(l, true, (double)config->alphas[l], (double)config->betas[l]);
    return status;
}

static void free_remapping(struct mp_remapping *remapping)
{
    if (!remapping)
        return;
    mp_free(remapping->laws);
    mp_free(remapping->scratch);
    mp_free(remapping->logits);
    mp_free(remapping->ids);
    mp_free(remapping->weights);
    mp_free(remapping->resident);
    mp_free(remapping);
}

static struct mp_remapping *alloc_remapping(const struct moepage_session *session)
{
    const moepage_session_config *config = &session->config;
    uint32_t experts = session->pool->experts;
    struct mp_remapping *r = mp_alloc(sizeof *r);
    if (!r)
        return NULL;
    r->laws = mp_alloc_array(session->pool->layers, sizeof *r->laws);
    r->scratch = mp_alloc(mp_remap_scratch_bytes(config->max_tokens, config->max_top_k, experts));
    r->logits = mp_alloc_array((size_t)config->max_tokens * experts, sizeof *r->logits);
    r->ids = mp_alloc_array(session->max_rows, sizeof *r->ids);
    r->weights = mp_alloc_array(session->max_rows, sizeof *r->weights);
    r->resident = mp_alloc(experts);
    if (r->laws && r->scratch && r->logits && r->ids && r->weights && r->resident)
        return r;
    free_remapping(r);
    return NULL;
}

static void set_laws(struct mp_remapping *remapping, const moepage_remap_config *config,
                     uint32_t layers)
{
    for (uint32_t l = 0; l < layers; l++)
        remapping->laws[l] = (mp_remap_law){
            .alpha = config->alphas ? config->alphas[l] : (float)config->alpha,
            .beta = config->alphas ? config->betas[l] : (float)config->beta,
            .gate = config->gate,
            .resident = (float)config->resident,
        };
}

moepage_status mp_remapping_set(struct moepage_session *session, const moepage_remap_config *config)
{
    if (session->step_open)
        return mp_fail(MOEPAGE_E_STATE, "a step is open: remapping changes between steps");
    if (session->path)
        return mp_fail(MOEPAGE_E_STATE, "a path has taken the session over: what it routes is "
                                        "remapped by moepage_cuda_remap_run");
    if (!config) {
        mp_remapping_close(session);
        return MOEPAGE_OK;
    }
    moepage_status status = check_config(session, config);
    if (status)
        return status;
    struct mp_remapping *remapping = session->remapping;
    if (!remapping)
        remapping = alloc_remapping(session);
    if (!remapping)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to remap batches of %u tokens",
                       session->config.max_tokens);
    set_laws(remapping, config, session->pool->layers);
    session->remapping = remapping;
    return MOEPAGE_OK;
}

void mp_remapping_close(struct moepage_session *session)
{
    free_remapping(session->remapping);
    session->remapping = NULL;
}

/* ---- at work ---- */

static moepage_status refuse_value(const struct moepage_session *session, uint32_t layer,
                                   const char *what, const char *must, const float *values,
                                   uint64_t at)
{
    uint32_t experts = session->pool->experts;
    return mp_fail(MOEPAGE_E_ARGUMENT,
                   "layer %u: %s of expert %u for token %u is %g, it must be %s", layer, what,
                   (uint32_t)(at % experts), (uint32_t)(at / experts), (double)values[at], must);
}

/* Logits, as given or as the logarithms of what a softmax made of them. */
static moepage_status find_logits(const struct moepage_session *session, uint32_t layer,
                                  const moepage_routing *routing, const float **out)
{
    struct mp_remapping *remapping = session->remapping;
    uint64_t n = (uint64_t)session->n_tokens * session->pool->experts;
    const float *p = routing->probabilities;
    if (routing->logits) {
        uint64_t bad = mp_first_not_finite(routing->logits, n);
        *out = routing->logits;
        return bad == n ? MOEPAGE_OK
                        : refuse_value(session, layer, "the logit", "finite", routing->logits, bad);
    }
    if (!p || remapping->laws[layer].gate != MOEPAGE_GATE_SOFTMAX)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "layer %u: remapping is on and needs the router's logits%s", layer,
                       p ? ": a sigmoid gate's probabilities are none" : ", or its probabilities");
    for (uint64_t i = 0; i < n; i++) {
        if (!(p[i] >= 0) || isinf(p[i]))
            return refuse_value(session, layer, "the probability", "0 or more, and finite", p, i);
        remapping->logits[i] = p[i] > 0 ? logf(p[i]) : LOG_OF_ZERO;
    }
    *out = remapping->logits;
    return MOEPAGE_OK;
}

/* Without the lock: what comes or goes meanwhile is preferred, or not, by chance. */
static const uint8_t *mark_resident(const struct moepage_session *session, uint32_t layer)
{
    const struct moepage_expert_pool *pool = session->pool;
    uint8_t *resident = session->remapping->resident;
    if (session->remapping->laws[layer].resident == 0)
        return NULL;
    for (uint32_t e = 0; e < pool->experts; e++)
        resident[e] = atomic_load_explicit(&pool->entry[layer * pool->experts + e],
                                           memory_order_relaxed) != MP_NO_SLOT;
    return resident;
}

/* Decode batches of a layer that has a law and a choice. */
static bool is_asked(const struct moepage_session *session, uint32_t layer, uint32_t top_k)
{
    return session->remapping && session->decode && session->n_tokens > 1 &&
           session->remapping->laws[layer].alpha > 0 && top_k < session->pool->experts;
}

static bool are_ids_known(const struct moepage_session *session, const moepage_routing *routing)
{
    for (uint32_t r = 0; r < session->n_tokens * routing->top_k; r++)
        if ((uint32_t)routing->ids[r] >= session->pool->experts &&
            routing->ids[r] != MOEPAGE_NO_EXPERT)
            return false;
    return true;
}

moepage_status mp_remapping_apply(struct moepage_session *session, uint32_t layer,
                                  moepage_routing *effective)
{
    struct mp_remapping *remapping = session->remapping;
    const float *logits;
    if (remapping)
        remapping->applied = false;
    if (!is_asked(session, layer, effective->top_k) || !are_ids_known(session, effective))
        return MOEPAGE_OK;
    uint64_t began_ns = mp_session_now_ns(session);
    moepage_status status = find_logits(session, layer, effective, &logits);
    if (status)
        return status;
    mp_remap_batch batch = {.n_tokens = session->n_tokens,
                            .top_k = effective->top_k,
                            .experts = session->pool->experts,
                            .logits = logits,
                            .ids = effective->ids,
                            .weights = effective->weights,
                            .resident = mark_resident(session, layer)};
    mp_remap(&remapping->laws[layer], &batch, remapping->scratch, remapping->ids,
             remapping->weights, &remapping->result);
    effective->ids = remapping->ids;
    effective->weights = remapping->weights;
    remapping->applied = true;
    remapping->ns = mp_session_now_ns(session) - began_ns;
    return MOEPAGE_OK;
}

void mp_remapping_routed(struct moepage_session *session)
{
    const struct mp_remapping *remapping = session->remapping;
    moepage_session_stats *stats = &session->step_stats;
    if (!remapping || !remapping->applied)
        return;
    stats->remap_layers++;
    stats->remap_before += remapping->result.experts_before;
    stats->remap_after += remapping->result.experts_after;
    stats->remap_tokens += remapping->result.tokens_changed;
    stats->remap_rows += remapping->result.rows_changed;
    stats->remap_ns += remapping->ns;
}
