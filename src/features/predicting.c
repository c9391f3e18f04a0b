/* The session's side of prediction: its life, the queue of news, and the decision
 * whether prediction pays. */
#include "features/predicting_inside.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* ---- life ---- */

static void free_news(mp_news *news)
{
    if (!news)
        return;
    mp_free(news->seq);
    mp_free(news->fresh);
    mp_free(news->semantic);
    mp_free(news->first);
    mp_free(news->experts);
    mp_free(news->probabilities);
    mp_free(news->hidden);
    mp_free(news);
}

static mp_news *make_news(const mp_step_view *view, const struct moepage_predictor *predictor)
{
    const mp_predict_config *config = &predictor->config;
    uint64_t sequences = view->config.max_sequences;
    mp_news *news = mp_alloc(sizeof *news);
    if (!news)
        return NULL;
    news->seq = mp_alloc_array(sequences, sizeof *news->seq);
    news->fresh = mp_alloc_array(sequences, sizeof *news->fresh);
    news->first = mp_alloc_array(sequences + 1, sizeof *news->first);
    news->experts = mp_alloc_array(view->max_rows, sizeof *news->experts);
    bool ok = news->seq && news->fresh && news->first && news->experts;
    if (ok && predictor->kind->needs & MP_TAKES_PROBABILITIES) {
        news->probabilities = mp_alloc_array(sequences * config->experts, sizeof(float));
        ok = news->probabilities != NULL;
    }
    if (ok && config->semantic_dim) {
        news->semantic = mp_alloc_array(sequences * config->semantic_dim, sizeof(float));
        ok = news->semantic != NULL;
    }
    if (ok && config->hidden) {
        news->hidden = mp_alloc_array(sequences * config->hidden, sizeof(float));
        ok = news->hidden != NULL;
    }
    if (ok)
        return news;
    free_news(news);
    return NULL;
}

static bool alloc_task_side(mp_predicting *own, const mp_step_view *view)
{
    uint32_t sequences = view->config.max_sequences, experts = view->shape.experts;
    own->followers = mp_alloc_array(sequences, sizeof *own->followers);
    own->follower_of = mp_alloc_array(sequences, sizeof *own->follower_of);
    own->guesses = mp_alloc_array(experts, sizeof *own->guesses);
    own->chance = mp_alloc_array(experts, sizeof *own->chance);
    own->named = mp_alloc_array(experts, sizeof *own->named);
    own->fetched = mp_alloc_array(experts, sizeof *own->fetched);
    own->wants = mp_alloc_array(experts, sizeof *own->wants);
    own->foresights = mp_alloc_array(view->shape.layers, sizeof *own->foresights);
    bool ok = own->followers && own->follower_of && own->guesses && own->chance && own->named &&
              own->fetched && own->wants && own->foresights;
    for (uint32_t l = 0; l < view->shape.layers && ok; l++) {
        mp_foresight *foresight = &own->foresights[l];
        foresight->experts = mp_alloc_array(experts, sizeof *foresight->experts);
        foresight->absent = mp_alloc_array(experts, sizeof *foresight->absent);
        foresight->first = mp_alloc_array(experts, sizeof *foresight->first);
        ok = foresight->experts && foresight->absent && foresight->first;
    }
    for (uint32_t s = 0; s < sequences && ok; s++)
        ok = mp_predictor_context_open(own->predictor, &own->followers[s].context) == MOEPAGE_OK;
    return ok;
}

static bool alloc_session_side(mp_predicting *own, const mp_step_view *view)
{
    own->sequence_tokens = mp_alloc_array(view->config.max_sequences, sizeof *own->sequence_tokens);
    own->seen_stamp = mp_alloc_array(view->shape.experts, sizeof *own->seen_stamp);
    bool tallied = !mp_client_open_tally(view->client);
    own->draft = make_news(view, own->predictor);
    own->reading = make_news(view, own->predictor);
    bool ok = own->sequence_tokens && own->seen_stamp && tallied && own->draft && own->reading;
    for (uint32_t i = 0; i < MP_NEWS && ok; i++) {
        own->ring[i] = make_news(view, own->predictor);
        ok = own->ring[i] != NULL;
    }
    return ok;
}

static void free_all(mp_predicting *own)
{
    const mp_step_view *view = own->view;
    for (uint32_t l = 0; l < view->shape.layers && own->foresights; l++) {
        mp_free(own->foresights[l].experts);
        mp_free(own->foresights[l].absent);
        mp_free(own->foresights[l].first);
    }
    for (uint32_t s = 0; s < view->config.max_sequences && own->followers; s++)
        mp_predictor_context_close(&own->followers[s].context);
    for (uint32_t i = 0; i < MP_NEWS; i++)
        free_news(own->ring[i]);
    free_news(own->draft);
    free_news(own->reading);
    mp_free(own->followers);
    mp_free(own->follower_of);
    mp_free(own->guesses);
    mp_free(own->chance);
    mp_free(own->named);
    mp_free(own->fetched);
    mp_free(own->wants);
    mp_free(own->foresights);
    mp_free(own->sequence_tokens);
    mp_free(own->seen_stamp);
    mp_client_close_tally(view->client);
    mp_predictor_release(own->predictor);
    pthread_mutex_destroy(&own->lock);
    pthread_mutex_destroy(&own->facts);
    mp_free(own);
}

static moepage_status open_predicting(mp_step_view *view, mp_predicting **out)
{
    struct moepage_predictor *predictor = view->config.predictor;
    moepage_status status = mp_predictor_hold(predictor, &view->shape.model->info);
    if (status)
        return status;
    mp_predicting *own = mp_alloc(sizeof *own);
    if (!own) {
        mp_predictor_release(predictor);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a session's predictions");
    }
    own->view = view;
    own->predictor = predictor;
    own->device = view->device;
    own->task.run = mp_predicting_work;
    mp_pool_guard_task(view->pool, &own->task);
    pthread_mutex_init(&own->lock, NULL);
    pthread_mutex_init(&own->facts, NULL);
    mp_payoff_defaults(&own->payoff_config);
    mp_payoff_init(&own->payoff, &own->payoff_config);
    atomic_init(&own->distance, view->config.prefetch_depth ? view->config.prefetch_depth : 1);
    if (!alloc_session_side(own, view) || !alloc_task_side(own, view))
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for the predictions of %u sequences",
                         view->config.max_sequences);
    if (!status)
        status = own->device->ops->stream_create(own->device, MP_STREAM_BACKGROUND, &own->stream);
    if (status)
        free_all(own);
    else
        *out = own;
    return status;
}

/* Destroying the stream waits for the task, which then leaves the queue alone. */
static void close_predicting(void *state)
{
    mp_predicting *own = state;
    pthread_mutex_lock(&own->lock);
    own->stopping = true;
    pthread_mutex_unlock(&own->lock);
    own->device->ops->stream_destroy(own->stream);
    free_all(own);
}

/* ---- the queue ---- */

/* Drops the oldest layer from the queue, or, if it holds beginnings and ends alone, the oldest of
 * these. Without its beginning a whole iteration would be lost to the task, so layers go first. */
static void lose_oldest(mp_predicting *own)
{
    uint32_t at = 0;
    while (at < own->count && own->ring[(own->head + at) % MP_NEWS]->kind != MP_NEWS_LAYER)
        at++;
    at = at < own->count ? at : 0;
    mp_news *lost = own->ring[(own->head + at) % MP_NEWS];
    for (; at > 0; at--)
        own->ring[(own->head + at) % MP_NEWS] = own->ring[(own->head + at - 1) % MP_NEWS];
    own->ring[own->head] = lost;
    own->head = (own->head + 1) % MP_NEWS;
    own->count--;
    own->view->stats.predict_refused++;
}

/* Puts the draft into the queue in exchange for the spare news at its place there: nothing is
 * copied while the lock is held. */
static void publish(mp_predicting *own)
{
    pthread_mutex_lock(&own->lock);
    if (own->count == MP_NEWS)
        lose_oldest(own);
    uint32_t at = (own->head + own->count) % MP_NEWS;
    mp_news *spare = own->ring[at];
    own->ring[at] = own->draft;
    own->draft = spare;
    own->count++;
    bool post = !own->posted;
    own->posted = true;
    pthread_mutex_unlock(&own->lock);
    if (post)
        own->device->ops->post(own->device, own->stream, 0, &own->task);
}

/* ---- the step's events ---- */

/* Refuses embeddings of another length than the predictor's. */
static moepage_status check(void *state, const moepage_step *step)
{
    const mp_predicting *own = state;
    uint32_t dim = own->predictor->config.semantic_dim;
    if (dim && step->semantic && step->semantic_dim != dim)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "semantic_dim is %u, the predictor was made for embeddings of %u",
                       step->semantic_dim, dim);
    return MOEPAGE_OK;
}

/* Notes that a layer's turn has come, so that the task fetches nothing for it any more. Called
 * before the wants for it are dropped. */
void mp_predicting_came(mp_predicting *own, uint32_t layer)
{
    mp_client_reach_layer(own->view->client, layer);
    uint64_t turn = own->step * own->view->shape.layers + layer;
    if (turn > atomic_load_explicit(&own->turn, memory_order_relaxed))
        atomic_store(&own->turn, turn); /* before the wants are dropped: see look_ahead */
}

static void begin(void *state, const moepage_step *step)
{
    mp_predicting *own = state;
    uint32_t dim = own->predictor->config.semantic_dim;
    moepage_step_sequence all = {.n_tokens = step->n_tokens, .phase = step->phase};
    const moepage_step_sequence *sequences = step->n_sequences ? step->sequences : &all;
    mp_news *news = own->draft;
    bool begins = false;
    own->n_sequences = step->n_sequences ? step->n_sequences : 1;
    news->kind = MP_NEWS_BEGIN;
    news->step = own->step + 1;
    news->n_sequences = own->n_sequences;
    news->has_semantic = dim && step->semantic;
    news->scan = true;
    for (uint32_t s = 0; s < own->n_sequences; s++) {
        bool prefill = sequences[s].phase == MOEPAGE_PHASE_PREFILL;
        own->sequence_tokens[s] = sequences[s].n_tokens;
        news->seq[s] = sequences[s].seq;
        news->fresh[s] = prefill && sequences[s].seq == 0;
        news->scan = news->scan && prefill;
        begins = begins || prefill;
    }
    own->listening = begins || mp_payoff_listens(&own->payoff, &own->payoff_config, own->step);
    if (own->listening && news->has_semantic)
        memcpy(news->semantic, step->semantic, (size_t)own->n_sequences * dim * sizeof(float));
    /* Nothing is fetched for the step before any more. */
    mp_predicting_came(own, own->view->shape.layers - 1);
    own->step++;
    if (own->listening)
        publish(own);
}

/* Collects a sequence's distinct experts, in the order in which its tokens name them. */
static uint32_t collect(mp_predicting *own, const mp_flight *flight, uint32_t first_token,
                        uint32_t n_tokens, uint32_t *out)
{
    uint32_t n = 0;
    if (++own->stamp == 0) {
        memset(own->seen_stamp, 0, own->view->shape.experts * sizeof *own->seen_stamp);
        own->stamp = 1;
    }
    const int32_t *ids = flight->ids + (uint64_t)first_token * flight->top_k;
    for (uint64_t i = 0; i < (uint64_t)n_tokens * flight->top_k; i++) {
        if (ids[i] < 0 || own->seen_stamp[ids[i]] == own->stamp)
            continue;
        own->seen_stamp[ids[i]] = own->stamp;
        out[n++] = (uint32_t)ids[i];
    }
    return n;
}

static void mean_of_rows(const float *rows, uint32_t n, uint32_t columns, float *out)
{
    memcpy(out, rows, columns * sizeof *out);
    for (uint32_t r = 1; r < n; r++)
        for (uint32_t c = 0; c < columns; c++)
            out[c] += rows[(uint64_t)r * columns + c];
    for (uint32_t c = 0; c < columns && n > 1; c++)
        out[c] /= (float)n;
}

/* Sends a layer's routing to the task. */
static void tell_layer(mp_predicting *own, const mp_flight *flight, const moepage_routing *routing)
{
    const mp_predict_config *config = &own->predictor->config;
    mp_news *news = own->draft;
    news->kind = MP_NEWS_LAYER;
    news->step = own->step;
    news->layer = flight->layer;
    news->n_sequences = own->n_sequences;
    news->has_probabilities = news->probabilities && routing->probabilities;
    news->has_hidden = config->hidden && routing->hidden;
    news->scan = own->view->all_scan;
    news->first[0] = 0;
    for (uint32_t s = 0, token = 0; s < own->n_sequences; s++) {
        uint32_t n_tokens = own->sequence_tokens[s], begin = news->first[s];
        news->first[s + 1] = begin + collect(own, flight, token, n_tokens, news->experts + begin);
        if (n_tokens && news->has_probabilities)
            mean_of_rows(routing->probabilities + (uint64_t)token * config->experts, n_tokens,
                         config->experts, news->probabilities + (uint64_t)s * config->experts);
        token += n_tokens;
        if (n_tokens && news->has_hidden)
            memcpy(news->hidden + (uint64_t)s * config->hidden,
                   routing->hidden + (uint64_t)(token - 1) * config->hidden,
                   config->hidden * sizeof(float));
    }
    publish(own);
}

static void routed(void *state, const mp_flight *flight, const moepage_routing *routing)
{
    mp_predicting *own = state;
    mp_predicting_came(own, flight->layer);
    mp_pool_unwant(own->view->pool, own->view->client, flight->layer);
    if (own->listening)
        tell_layer(own, flight, routing);
}

/* ---- deciding whether it pays ---- */

static void decide(mp_predicting *own)
{
    const moepage_session_stats *stats = &own->view->stats;
    mp_payoff_step step = {
        .routed = stats->routed,
        .listened = own->listening,
        .stall_ns = (double)stats->stall_ns,
        .wall_ns = (double)stats->wall_ns,
        .load_ns = mp_pool_load_ns(own->view->pool),
        .missed = stats->misses + stats->late,
        .avertable = atomic_exchange(&own->avertable, 0),
        .vain = atomic_exchange(&own->vain, 0),
    };
    atomic_store(&own->on, mp_payoff_update(&own->payoff, &own->payoff_config, &step));
    if (own->view->config.prefetch_depth || stats->layers == 0)
        return;
    double layers = (double)stats->layers;
    atomic_store(&own->distance, mp_payoff_distance(step.load_ns, step.wall_ns / layers,
                                                    (double)(step.missed + step.avertable) / layers,
                                                    own->predictor->config.distance));
}

static void ended(void *state, bool whole)
{
    mp_predicting *own = state;
    if (!whole)
        return; /* half an iteration teaches nothing */
    own->draft->kind = MP_NEWS_END;
    own->draft->step = own->step;
    own->draft->n_sequences = own->n_sequences;
    if (own->listening)
        publish(own);
    decide(own);
}

static const mp_step_hooks predicting_hooks = {
    .check = check, .begin = begin, .routed = routed, .ended = ended, .close = close_predicting};

/* ---- a session's predictor ---- */

moepage_status mp_predicting_attach(struct moepage_session *session)
{
    mp_step_view *view = mp_session_view(session);
    const struct moepage_predictor *predictor = view->config.predictor;
    mp_predicting *own;
    bool asked = view->config.prefetch == MOEPAGE_PREFETCH_PREDICTOR;
    if (asked != (predictor != NULL))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "a predictor and MOEPAGE_PREFETCH_PREDICTOR must be given together");
    if (!asked)
        return MOEPAGE_OK;
    if (view->config.prefetch_depth > predictor->config.distance)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "prefetch_depth is %u, the predictor looks %u layers ahead at most",
                       view->config.prefetch_depth, predictor->config.distance);
    moepage_status status = open_predicting(view, &own);
    if (!status)
        mp_session_attach(session, &predicting_hooks, own);
    return status;
}

mp_predicting *mp_predicting_of(const struct moepage_session *session)
{
    return mp_session_find(session, &predicting_hooks);
}

moepage_status mp_predicting_info(struct moepage_session *session, uint32_t layer,
                                  moepage_prefetch_info *info)
{
    mp_predicting *own = mp_predicting_of(session);
    const mp_step_view *view = mp_session_view(session);
    if (!own)
        return mp_fail(MOEPAGE_E_STATE, "the session has no predictor");
    if (layer >= view->shape.layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer,
                       view->shape.layers);
    *info = (moepage_prefetch_info){.struct_size = sizeof *info, .layer = layer};
    mp_pool_get_tally(view->pool, view->client, layer, info);
    pthread_mutex_lock(&own->facts);
    const mp_foresight *foresight = &own->foresights[layer];
    bool works = atomic_load(&own->on) && !foresight->payoff.off;
    info->distance = works ? atomic_load(&own->distance) : 0;
    info->backoffs = foresight->payoff.backoffs + (uint32_t)own->payoff.losses;
    info->guessed = foresight->guessed;
    info->right = foresight->right;
    pthread_mutex_unlock(&own->facts);
    return MOEPAGE_OK;
}
