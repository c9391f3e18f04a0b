/* The task's side of prediction: it passes the news on to the predictor, asks it about the
 * layers to come, compares its guesses with the layers that were routed, and queues the experts
 * that are worth fetching. */
#include "features/predicting_inside.h"

#include <string.h>

/* The cost of a useless transfer, as a fraction of what a useful one saves: it delays no demand,
 * but takes a slot from an expert that may be needed again. */
#define VAIN_COST 0.5

/* The chance of an expert that no guess names, as a fraction of a uniform router's. */
#define NEVER 0.5f

/* ---- sequences ---- */

#define NO_FOLLOWER UINT32_MAX

/* Finds a sequence's context, which is mostly at the same index as in the last step. Returns
 * NO_FOLLOWER if the sequence is new. */
static uint32_t find_follower(const mp_predicting *own, moepage_seq seq, uint32_t s, uint64_t step)
{
    const mp_follower *there = &own->followers[s];
    if (there->seq == seq && there->step && there->step != step)
        return s;
    for (uint32_t f = 0; f < own->view->config.max_sequences && seq; f++)
        if (own->followers[f].seq == seq && own->followers[f].step &&
            own->followers[f].step != step)
            return f;
    return NO_FOLLOWER;
}

/* Gives a new sequence the context that has been idle longest. */
static uint32_t replace_follower(mp_predicting *own, moepage_seq seq, uint64_t step)
{
    uint32_t oldest = NO_FOLLOWER;
    for (uint32_t f = 0; f < own->view->config.max_sequences; f++)
        if (own->followers[f].step != step &&
            (oldest == NO_FOLLOWER || own->followers[f].step < own->followers[oldest].step))
            oldest = f;
    own->followers[oldest].seq = seq;
    mp_predictor_request(own->predictor, &own->followers[oldest].context);
    return oldest;
}

/* Finds the contexts of all sequences: first of those that go on, so that a new sequence cannot
 * take one of theirs. */
static void find_all(mp_predicting *own, const mp_news *news)
{
    for (uint32_t s = 0; s < news->n_sequences; s++) {
        uint32_t f = own->follower_of[s] = find_follower(own, news->seq[s], s, news->step);
        if (f != NO_FOLLOWER)
            own->followers[f].step = news->step;
    }
    for (uint32_t s = 0; s < news->n_sequences; s++) {
        if (own->follower_of[s] != NO_FOLLOWER)
            continue;
        uint32_t f = own->follower_of[s] = replace_follower(own, news->seq[s], news->step);
        own->followers[f].step = news->step;
    }
}

static void follow(mp_predicting *own, const mp_news *news)
{
    uint32_t dim = own->predictor->config.semantic_dim;
    find_all(own, news);
    for (uint32_t s = 0; s < news->n_sequences; s++) {
        mp_follower *follower = &own->followers[own->follower_of[s]];
        if (news->fresh[s])
            mp_predictor_request(own->predictor, &follower->context);
        mp_predictor_begin(own->predictor, &follower->context,
                           news->has_semantic ? news->semantic + (uint64_t)s * dim : NULL);
    }
}

/* ---- guesses ---- */

/* Computes what the step will need of a layer: named[e], whether any sequence's guesses have
 * it, and chance[e], that at least one sequence routes to it. Keeps the first sequence's
 * guesses for calibration. */
static void ask_all(mp_predicting *own, const mp_news *news, uint32_t layer,
                    mp_foresight *foresight)
{
    uint32_t experts = own->predictor->config.experts;
    for (uint32_t e = 0; e < experts; e++) {
        own->named[e] = false;
        own->chance[e] = 1; /* until the last loop, the chance that no sequence does */
    }
    for (uint32_t s = 0; s < news->n_sequences; s++) {
        mp_predict_context *context = &own->followers[own->follower_of[s]].context;
        mp_guess *guesses = s == 0 ? foresight->first : own->guesses;
        uint32_t n = mp_predictor_predict(own->predictor, context, layer, guesses, NULL);
        for (uint32_t i = 0; i < n; i++) {
            own->named[guesses[i].expert] = true;
            own->chance[guesses[i].expert] *=
                1 - mp_calibration_chance(&own->calibration, guesses[i].p);
        }
        foresight->n_first = s == 0 ? n : foresight->n_first;
    }
    for (uint32_t e = 0; e < experts; e++) {
        float chance = 1 - own->chance[e];
        own->chance[e] = chance > NEVER / experts ? chance : NEVER / experts;
    }
}

/* Notes the guesses, so that they can be judged, and collects those worth fetching. An expert
 * that was named for this turn before and has arrived since still counts as absent: it came
 * because of the guess. */
static uint32_t note(mp_predicting *own, mp_foresight *foresight, uint32_t layer, uint64_t turn)
{
    const uint32_t experts = own->view->shape.experts;
    uint32_t n_wants = 0;
    memset(own->fetched, 0, experts * sizeof *own->fetched);
    for (uint32_t i = 0; i < foresight->n && foresight->turn == turn; i++)
        own->fetched[foresight->experts[i]] = foresight->absent[i];
    foresight->turn = turn;
    foresight->n = 0;
    for (uint32_t e = 0; e < experts; e++) {
        if (!own->named[e])
            continue;
        uint32_t i = foresight->n++, key = layer * experts + e;
        bool worth = own->chance[e] >= (float)(VAIN_COST / (1 + VAIN_COST));
        bool absent = !mp_pool_has(own->view->pool, key);
        foresight->experts[i] = e;
        foresight->absent[i] = worth && (absent || own->fetched[e]);
        if (worth && absent)
            own->wants[n_wants++] = (mp_ranked){.key = key, .p = own->chance[e]};
    }
    return n_wants;
}

/* Asks about the layer of one turn, and queues the experts that are worth fetching. */
static void look_ahead(mp_predicting *own, const mp_news *news, uint64_t turn)
{
    const mp_step_view *view = own->view;
    uint32_t layer = (uint32_t)(turn % view->shape.layers);
    mp_foresight *foresight = &own->foresights[layer];
    bool knows_more = news->kind == MP_NEWS_BEGIN && news->has_semantic;
    if (foresight->turn == turn && foresight->n > 0 && !knows_more)
        return; /* asked in the last iteration already */
    ask_all(own, news, layer, foresight);
    pthread_mutex_lock(&own->facts);
    uint32_t n = note(own, foresight, layer, turn);
    bool fetch = atomic_load(&own->on) && !foresight->payoff.off;
    pthread_mutex_unlock(&own->facts);
    mp_pool_expect(view->pool, layer, own->chance);
    if (!fetch || !n || atomic_load(&own->turn) >= turn)
        return;
    mp_pool_want_ranked(view->pool, view->client, own->wants, n, news->scan);
    /* If the turn has come meanwhile, the session's thread may have dropped its wants before these
     * were queued. It stores the turn before it drops, and this loads the turn after queueing: one
     * of the two drops them. */
    if (atomic_load(&own->turn) >= turn)
        mp_pool_unwant(view->pool, view->client, layer);
}

/* Asks, once, about every layer up to `distance` behind that of `turn`. */
static void look_ahead_from(mp_predicting *own, const mp_news *news, uint64_t turn)
{
    uint64_t until = turn + atomic_load(&own->distance);
    own->asked_until = own->asked_until > turn ? own->asked_until : turn;
    while (own->asked_until < until)
        look_ahead(own, news, ++own->asked_until);
}

/* ---- judging ---- */

/* Teaches the calibration whether the first sequence's guesses came true. */
static void calibrate(mp_predicting *own, const mp_news *news, const mp_foresight *foresight)
{
    for (uint32_t i = 0; i < foresight->n_first; i++) {
        bool came_true = false;
        for (uint32_t j = 0; j < news->first[1] && !came_true; j++)
            came_true = news->experts[j] == foresight->first[i].expert;
        mp_calibration_learn(&own->calibration, foresight->first[i].p, came_true);
    }
}

/* Judges the guesses for a layer that has been routed. */
static void judge(mp_predicting *own, const mp_news *news)
{
    mp_foresight *foresight = &own->foresights[news->layer];
    uint64_t turn = news->step * own->view->shape.layers + news->layer;
    uint32_t right = 0, vain = 0;
    if (foresight->turn != turn)
        return;
    calibrate(own, news, foresight);
    bool *routed = own->named;
    memset(routed, 0, own->view->shape.experts * sizeof *routed);
    for (uint32_t i = 0; i < news->first[news->n_sequences]; i++)
        routed[news->experts[i]] = true;
    pthread_mutex_lock(&own->facts);
    for (uint32_t i = 0; i < foresight->n; i++) {
        bool came_true = routed[foresight->experts[i]];
        foresight->guessed++;
        foresight->right += came_true;
        right += came_true && foresight->absent[i];
        vain += !came_true && foresight->absent[i];
    }
    mp_payoff_turn(&foresight->payoff, right, vain, VAIN_COST);
    foresight->turn = 0;
    pthread_mutex_unlock(&own->facts);
    atomic_fetch_add(&own->avertable, right);
    atomic_fetch_add(&own->vain, vain);
}

/* ---- news ---- */

static void hear_begin(mp_predicting *own, const mp_news *news)
{
    uint64_t turn = news->step * own->view->shape.layers;
    own->lost = false;
    follow(own, news);
    /* Also what was asked at the end of the last step, if there is more to go by now. */
    own->asked_until = turn - 1;
    look_ahead_from(own, news, turn - 1);
}

static void hear_layer(mp_predicting *own, const mp_news *news)
{
    const mp_predict_config *config = &own->predictor->config;
    uint64_t turn = news->step * own->view->shape.layers + news->layer;
    judge(own, news);
    if (turn <= own->heard)
        return; /* predictors observe an iteration's layers in order, each once */
    own->heard = turn;
    for (uint32_t s = 0; s < news->n_sequences; s++) {
        mp_seen seen = {
            .layer = news->layer,
            .n_experts = news->first[s + 1] - news->first[s],
            .experts = news->experts + news->first[s],
        };
        if (seen.n_experts == 0)
            continue;
        if (news->has_probabilities)
            seen.probabilities = news->probabilities + (uint64_t)s * config->experts;
        if (news->has_hidden)
            seen.hidden = news->hidden + (uint64_t)s * config->hidden;
        mp_predictor_observe(own->predictor, &own->followers[own->follower_of[s]].context, &seen);
    }
    look_ahead_from(own, news, turn);
}

static void hear(mp_predicting *own, const mp_news *news)
{
    if (news->kind == MP_NEWS_BEGIN)
        hear_begin(own, news);
    else if (own->lost || own->followers[own->follower_of[0]].step != news->step)
        own->lost = true; /* the beginning of this iteration was dropped from the queue */
    else if (news->kind == MP_NEWS_LAYER)
        hear_layer(own, news);
    else
        for (uint32_t s = 0; s < news->n_sequences; s++)
            mp_predictor_end(own->predictor, &own->followers[own->follower_of[s]].context);
}

void mp_predicting_work(mp_task *task)
{
    mp_predicting *own = (mp_predicting *)task;
    pthread_mutex_lock(&own->lock);
    bool any = own->count > 0 && !own->stopping;
    if (any) {
        mp_news *news = own->ring[own->head];
        own->ring[own->head] = own->reading;
        own->reading = news;
        own->head = (own->head + 1) % MP_NEWS;
        own->count--;
    }
    pthread_mutex_unlock(&own->lock);
    if (any)
        hear(own, own->reading);
    pthread_mutex_lock(&own->lock);
    bool more = own->count > 0 && !own->stopping;
    own->posted = more;
    pthread_mutex_unlock(&own->lock);
    if (more) /* one news per run, so that other tasks have their turn */
        own->device->ops->post(own->device, own->stream, 0, &own->task);
}
