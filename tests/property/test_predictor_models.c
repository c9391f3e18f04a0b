/* Hit count and co-activation against their definitions, on random routing and on recorded routing:
 * several sequences on one state, requests that begin anew, layers that are left out, passes that
 * never end, chunks. The models keep every pass as it was and count when asked, in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "policy/predictors.h"
#include "predict_rig.h"
#include "testing.h"

enum { LAYERS = 6, EXPERTS = 10, SEQUENCES = 3, PASSES = 400, SPAN = LAYERS };

/* What a layer used; n = 0: it was not seen. */
typedef struct used {
    uint32_t n;
    uint32_t experts[EXPERTS];
} used;

typedef struct past_pass {
    uint32_t request; /* which of all requests it belonged to */
    used layers[LAYERS];
} past_pass;

typedef struct sequence {
    uint32_t request;
    past_pass open; /* the pass that is going on */
    bool any;
    uint32_t last;
    void *context;
} sequence;

typedef struct world {
    mp_predict_config config;
    const mp_predictor *kind;
    void *state;
    sequence sequences[SEQUENCES];
    past_pass passes[PASSES]; /* all that ended, in their order */
    uint32_t n_passes, n_requests;
    uint64_t random;
} world;

static bool uses(const used *set, uint32_t expert)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->experts[i] == expert)
            return true;
    return false;
}

/* ---- The definitions --------------------------------------------------------------------- */

/* The part of the request's passes through `layer` that used the expert; of all requests' where the
 * request has none. -1: nobody knows. */
static double hit_count(const world *w, const sequence *s, uint32_t layer, uint32_t expert)
{
    for (int everybody = 0; everybody < 2; everybody++) {
        double seen = 0, hits = 0;
        for (uint32_t i = 0; i < w->n_passes; i++) {
            const past_pass *pass = &w->passes[i];
            if (!pass->layers[layer].n || (!everybody && pass->request != s->request))
                continue;
            seen++;
            hits += uses(&pass->layers[layer], expert);
        }
        if (!everybody && s->open.layers[layer].n) {
            seen++;
            hits += uses(&s->open.layers[layer], expert);
        }
        if (seen > 0)
            return hits / seen;
    }
    return -1;
}

static bool teaches(const world *w, const used *set)
{
    return set->n && set->n <= 4 * w->config.top_k;
}

/* The pass of the same request that ended before passes[i]; NULL for its first. */
static const past_pass *pass_before(const world *w, uint32_t i)
{
    uint32_t request = w->passes[i].request;
    while (i-- > 0)
        if (w->passes[i].request == request)
            return &w->passes[i];
    return NULL;
}

/* P(b, d layers after a at layer | a at layer); -1 where a never fired. */
static double conditional(const world *w, uint32_t layer, uint32_t a, uint32_t d, uint32_t b)
{
    double fired = 0, both = 0;
    for (uint32_t i = 0; i < w->n_passes; i++) {
        const past_pass *pass = &w->passes[i], *before = pass_before(w, i);
        if (teaches(w, &pass->layers[layer]) && uses(&pass->layers[layer], a))
            fired++;
        bool wraps = layer + d >= LAYERS;
        const past_pass *source = wraps ? before : pass;
        const used *target = &pass->layers[(layer + d) % LAYERS];
        if (source && teaches(w, &source->layers[layer]) && uses(&source->layers[layer], a) &&
            teaches(w, target) && uses(target, b))
            both++;
    }
    return fired > 0 ? both / fired : -1;
}

static const past_pass *last_pass(const world *w, const sequence *s)
{
    for (uint32_t i = w->n_passes; i-- > 0;)
        if (w->passes[i].request == s->request)
            return &w->passes[i];
    return NULL;
}

static double coactivation(const world *w, const sequence *s, uint32_t layer, uint32_t expert)
{
    bool past = s->any && layer <= s->last;
    double sum = 0, mass = 0;
    for (uint32_t d = 1; d <= SPAN; d++) {
        int at = (int)layer - (int)d;
        const past_pass *pass = at >= 0 ? &s->open : past ? &s->open : last_pass(w, s);
        if (!pass || (past && at >= 0))
            continue;
        uint32_t from = (uint32_t)(at >= 0 ? at : at + LAYERS);
        const used *set = &pass->layers[from];
        for (uint32_t i = 0; i < set->n && i < 4 * w->config.top_k; i++) {
            double p = conditional(w, from, set->experts[i], d, expert);
            if (p < 0)
                continue;
            sum += pow(0.5, d - 1) * p;
            mass += pow(0.5, d - 1);
        }
    }
    return mass > 0 ? sum / mass : -1;
}

static double model(const world *w, const sequence *s, uint32_t layer, uint32_t expert)
{
    bool pairs = w->kind == &mp_predictor_coactivation;
    return pairs ? coactivation(w, s, layer, expert) : hit_count(w, s, layer, expert);
}

/* ---- The comparison ---------------------------------------------------------------------- */

static void compare(const world *w, const sequence *s, uint32_t layer)
{
    mp_guess guesses[EXPERTS];
    double p[EXPERTS];
    uint32_t likely = 0, width = w->config.top_k;
    uint32_t n = w->kind->predict(w->state, s->context, layer, guesses, NULL);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        p[e] = model(w, s, layer, e);
        likely += p[e] > 0;
    }
    if (s->any && layer > s->last && s->open.layers[s->last].n > width)
        width = s->open.layers[s->last].n;
    assert_int_equal(n, likely < width ? likely : width);
    for (uint32_t i = 0; i < n; i++) {
        assert_in_range(guesses[i].expert, 0, EXPERTS - 1);
        assert_float_equal(guesses[i].p, p[guesses[i].expert], 1e-5);
        assert_true(guesses[i].p <= 1);
        if (i)
            assert_true(
                guesses[i].p < guesses[i - 1].p ||
                (guesses[i].p == guesses[i - 1].p && guesses[i].expert > guesses[i - 1].expert));
        p[guesses[i].expert] = -2; /* none twice */
    }
    for (uint32_t e = 0; e < EXPERTS; e++) /* none better left out */
        assert_true(!n || p[e] <= (double)guesses[n - 1].p + 1e-5);
}

static void compare_all(const world *w, const sequence *s)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        compare(w, s, l);
}

static void begin_request(world *w, sequence *s)
{
    s->request = w->n_requests++;
    w->kind->request(w->state, s->context);
    s->any = false;
    memset(&s->open, 0, sizeof s->open);
}

/* Skewed, and with a trace of what the layer before used, so that there is something to learn. */
static void route(world *w, const sequence *s, uint32_t layer, used *out)
{
    bool chunk = bank_below(&w->random, 8) == 0;
    uint32_t n = chunk ? 1 + bank_below(&w->random, EXPERTS) : w->config.top_k;
    uint32_t shift =
        layer && s->open.layers[layer - 1].n ? s->open.layers[layer - 1].experts[0] : 0;
    out->n = 0;
    while (out->n < n) {
        uint32_t a = bank_below(&w->random, EXPERTS), b = bank_below(&w->random, EXPERTS);
        uint32_t expert = (shift + (chunk ? a : a * b / EXPERTS)) % EXPERTS;
        if (!uses(out, expert))
            out->experts[out->n++] = expert;
    }
}

static void run_pass(world *w, sequence *s, bool ask)
{
    memset(&s->open, 0, sizeof s->open);
    s->any = false;
    s->open.request = s->request;
    w->kind->begin(w->state, s->context, NULL);
    if (ask)
        compare_all(w, s);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (bank_below(&w->random, 10) == 0)
            continue;
        used *set = &s->open.layers[l];
        route(w, s, l, set);
        mp_seen seen = {.layer = l, .n_experts = set->n, .experts = set->experts};
        w->kind->observe(w->state, s->context, &seen);
        s->any = true;
        s->last = l;
        if (ask)
            compare_all(w, s);
    }
    if (bank_below(&w->random, 10) == 0)
        return;
    w->kind->end(w->state, s->context);
    w->passes[w->n_passes++] = s->open;
    memset(&s->open, 0, sizeof s->open);
    s->any = false;
    if (ask)
        compare_all(w, s);
}

static void run_world(const mp_predictor *kind, uint64_t seed, uint32_t n)
{
    static world w;
    w = (world){.kind = kind, .random = seed};
    w.config = (mp_predict_config){.layers = LAYERS,
                                   .experts = EXPERTS,
                                   .top_k = 1 + (uint32_t)(seed % 3),
                                   .distance = 2};
    w.state = predict_rig_alloc(kind->state_bytes(&w.config));
    kind->init(w.state, &w.config);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        w.sequences[i].context = predict_rig_alloc(kind->context_bytes(&w.config));
        begin_request(&w, &w.sequences[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        sequence *s = &w.sequences[bank_below(&w.random, SEQUENCES)];
        if (bank_below(&w.random, 12) == 0)
            begin_request(&w, s);
        run_pass(&w, s, i % 8 == 7);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++)
        free(w.sequences[i].context);
    free(w.state);
}

static void run_worlds(const mp_predictor *kind)
{
    uint32_t rounds = getenv("MP_TEST_LONG") ? 200 : 6;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        print_message("%s, seed %llu\n", kind->name, (unsigned long long)seed);
        run_world(kind, seed, 60);
    }
}

static void test_predictor_models_hit_count_is_its_definition(void **state)
{
    (void)state;
    run_worlds(&mp_predictor_hit_count);
}

static void test_predictor_models_coactivation_is_its_definition(void **state)
{
    (void)state;
    run_worlds(&mp_predictor_coactivation);
}

/* ---- Recorded routing -------------------------------------------------------------------- */

enum { TRACE_LAYERS = 24, TRACE_K = 4, TRACE_EXPERTS = 32, TRACE_TOKENS = 1500, TRAIN = 1000 };

static uint8_t trace[TRACE_TOKENS][TRACE_LAYERS][TRACE_K];

/* How many of the top_k named one layer ahead were routed to, of the tokens past TRAIN. */
static uint32_t right_of(const mp_predictor *kind)
{
    const mp_predict_config config = {.layers = TRACE_LAYERS,
                                      .experts = TRACE_EXPERTS,
                                      .top_k = TRACE_K,
                                      .distance = 1};
    predict_rig rig;
    mp_guess guesses[TRACE_EXPERTS];
    uint32_t right = 0;
    predict_rig_open(&rig, kind, &config);
    for (uint32_t t = 0; t < TRACE_TOKENS; t++) {
        predict_rig_begin(&rig);
        for (uint32_t l = 0; l < TRACE_LAYERS; l++) {
            uint32_t n = t < TRAIN ? 0 : predict_rig_ask(&rig, l, guesses), ids[TRACE_K];
            for (uint32_t k = 0; k < TRACE_K; k++) {
                ids[k] = trace[t][l][k];
                for (uint32_t i = 0; i < n; i++)
                    right += guesses[i].expert == ids[k];
            }
            predict_rig_see(&rig, l, ids, TRACE_K);
        }
        predict_rig_end(&rig);
    }
    predict_rig_close(&rig);
    return right;
}

/* On recorded routing pairs know more than the last token, and that more than counts. */
static void test_predictor_models_rank_as_they_should(void **state)
{
    (void)state;
    FILE *file = fopen("tests/data/gpt-oss-20b-20requests.u8", "rb");
    assert_non_null(file);
    assert_int_equal(fread(trace, 1, sizeof trace, file), sizeof trace);
    fclose(file);
    const uint32_t all = (TRACE_TOKENS - TRAIN) * TRACE_LAYERS * TRACE_K;
    uint32_t pairs = right_of(&mp_predictor_coactivation), last = right_of(&mp_predictor_previous),
             counts = right_of(&mp_predictor_hit_count);
    print_message("of %u choices one layer ahead: coactivation %u, previous %u, hit-count %u\n",
                  all, pairs, last, counts);
    assert_true(pairs > last && last > counts && counts > all / 8);
    assert_int_equal(right_of(&mp_predictor_none), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictor_models_hit_count_is_its_definition),
        cmocka_unit_test(test_predictor_models_coactivation_is_its_definition),
        cmocka_unit_test(test_predictor_models_rank_as_they_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
