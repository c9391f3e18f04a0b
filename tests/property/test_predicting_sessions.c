/* Sessions that come and go on two pools and share one predictor, each on its own thread, with steps of
 * every shape: outputs stay what they are without a predictor, bit for bit, while the predictor is
 * saved and loaded behind their backs. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "features/predicting_inside.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

enum { LAYERS = 4, EXPERTS = 12, HIDDEN = 8, TOKENS = 6, THREADS = 4, NONE = EXPERTS };

static bank_model bank;
static pool_rig rigs[2];
static moepage_predictor *predictor;
static uint64_t fetched; /* bytes ahead of need, in all */
static float expected[LAYERS][EXPERTS + 1][EXPERTS + 1][HIDDEN];
static float x[TOKENS * HIDDEN];

typedef struct worker {
    pool_rig *rig;
    uint64_t random;
    uint32_t habit;
    uint32_t sessions; /* to come and go */
    uint32_t wrong;
} worker;

static uint32_t pick(worker *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % n;
}

static int32_t id_of(uint32_t expert)
{
    return expert == NONE ? MOEPAGE_NO_EXPERT : (int32_t)expert;
}

/* ---- What comes out without a predictor ---- */

static void expect_pair(moepage_session *session, uint32_t layer, uint32_t a, uint32_t b)
{
    int32_t ids[2] = {id_of(a), id_of(b)};
    float weights[2] = {0.75f, 0.5f};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 2,
                               .ids = ids,
                               .weights = weights};
    moepage_ffn ffn = {.struct_size = sizeof ffn,
                       .dtype = MOEPAGE_DTYPE_F32,
                       .x = x,
                       .y = expected[layer][a][b]};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(moepage_session_route(session, layer, &routing, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, layer, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

static void expect_all(void)
{
    pool_rig rig;
    pool_rig_open(&rig, &bank, &(pool_rig_config){0});
    moepage_session *session = pool_rig_session(&rig, NULL);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t a = 0; a <= EXPERTS; a++)
            for (uint32_t b = 0; b <= EXPERTS; b++)
                if (a != b || a == NONE)
                    expect_pair(session, l, a, b);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

/* ---- Random steps ---- */

typedef struct layer_case {
    uint32_t n_tokens, top_k;
    uint32_t experts[TOKENS][2];
    int32_t ids[TOKENS * 2];
    float weights[TOKENS * 2];
    float probabilities[TOKENS * EXPERTS];
    float y[TOKENS * HIDDEN];
} layer_case;

static moepage_status route(worker *w, moepage_session *session, uint32_t layer, layer_case *c)
{
    c->top_k = 1 + pick(w, 2);
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        uint32_t a = pick(w, EXPERTS + 1), b = (a + 1 + pick(w, EXPERTS)) % (EXPERTS + 1);
        if (pick(w, 8)) { /* its ways, which can be predicted */
            a = (w->habit + 3 * layer + pick(w, 2)) % EXPERTS;
            b = (a + 1) % EXPERTS;
        }
        c->experts[t][0] = a;
        c->experts[t][1] = c->top_k == 2 ? b : NONE;
        for (uint32_t k = 0; k < c->top_k; k++) {
            c->ids[t * c->top_k + k] = id_of(c->experts[t][k]);
            c->weights[t * c->top_k + k] = k ? 0.5f : 0.75f;
        }
    }
    for (uint32_t i = 0; i < c->n_tokens * EXPERTS; i++)
        c->probabilities[i] = pick(w, 500) ? (float)pick(w, 64) / 64 : NAN;
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = c->top_k,
                               .ids = c->ids,
                               .weights = c->weights,
                               .probabilities = pick(w, 3) ? c->probabilities : NULL};
    return moepage_session_route(session, layer, &routing, NULL);
}

static void compute(worker *w, moepage_session *session, uint32_t layer, layer_case *c)
{
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = c->y};
    w->wrong += moepage_session_ffn(session, layer, &ffn) != MOEPAGE_OK;
    w->wrong += moepage_session_retire(session, layer) != MOEPAGE_OK;
    for (uint32_t t = 0; t < c->n_tokens; t++)
        w->wrong += memcmp(c->y + t * HIDDEN, expected[layer][c->experts[t][0]][c->experts[t][1]],
                           sizeof expected[0][0][0]) != 0;
}

static uint32_t begin(worker *w, moepage_session *session)
{
    moepage_step_sequence sequences[3];
    float semantic[3 * 4];
    moepage_step step = {.struct_size = sizeof step, .n_sequences = pick(w, 4)};
    for (uint32_t s = 0; s < step.n_sequences; s++) {
        sequences[s] = (moepage_step_sequence){.seq = pick(w, 3) ? 1 + s + pick(w, 3) : 0,
                                               .n_tokens = pick(w, 3),
                                               .phase = pick(w, 4) == 0};
        step.n_tokens += sequences[s].n_tokens;
    }
    if (step.n_tokens == 0)
        step.n_tokens = step.n_sequences ? ++sequences[0].n_tokens : 1 + pick(w, TOKENS);
    for (uint32_t i = 0; i < 12; i++)
        semantic[i] = (float)pick(w, 9) - 4;
    step.sequences = sequences;
    if (pick(w, 2)) {
        step.semantic = semantic;
        step.semantic_dim = 4;
    }
    w->wrong += moepage_session_begin(session, &step) != MOEPAGE_OK;
    return step.n_tokens;
}

/* Now and then the predictor keeps up. */
static void let_it_hear(worker *w, moepage_session *session)
{
    mp_predicting *own = mp_predicting_of(session);
    for (bool quiet = pick(w, 6) > 0; !quiet; sched_yield()) {
        pthread_mutex_lock(&own->lock);
        quiet = !own->posted;
        pthread_mutex_unlock(&own->lock);
    }
}

/* Some layers, mostly in their order, two of them open at a time now and then. */
static void run_step(worker *w, moepage_session *session)
{
    static _Thread_local layer_case cases[LAYERS];
    uint32_t n_tokens = begin(w, session), open = LAYERS;
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint32_t l = pick(w, 8) ? i : pick(w, LAYERS);
        if (l == open || pick(w, 12) == 0)
            continue;
        cases[l].n_tokens = n_tokens;
        moepage_status status = route(w, session, l, &cases[l]);
        if (open < LAYERS)
            compute(w, session, open, &cases[open]);
        /* Its own open layer had its share of the slots; or another session's has more than its share,
         * for it was opened before this session came. */
        for (uint32_t again = 0; status == MOEPAGE_E_BUSY && again < 100000; again++) {
            sched_yield();
            status = route(w, session, l, &cases[l]);
        }
        w->wrong += status != MOEPAGE_OK;
        let_it_hear(w, session);
        open = pick(w, 3) ? LAYERS : l;
        if (open == LAYERS)
            compute(w, session, l, &cases[l]);
    }
    if (pick(w, 9) == 0) {
        w->wrong += moepage_session_cancel(session) != MOEPAGE_OK;
        return;
    }
    if (open < LAYERS)
        compute(w, session, open, &cases[open]);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    w->wrong += moepage_session_end(session, &stats) != MOEPAGE_OK;
}

static void *work(void *argument)
{
    worker *w = argument;
    for (uint32_t i = 0; i < w->sessions; i++) {
        moepage_session_config config = {.struct_size = sizeof config,
                                         .max_tokens = TOKENS,
                                         .max_sequences = 3,
                                         .prefetch = MOEPAGE_PREFETCH_PREDICTOR,
                                         .prefetch_depth = pick(w, 4),
                                         .predictor = predictor};
        moepage_session *session = NULL;
        w->habit = pick(w, EXPERTS);
        if (moepage_session_create(w->rig->pool, NULL, &config, &session)) {
            w->wrong++;
            continue;
        }
        for (uint32_t step = 0; step < 25; step++) {
            mp_predicting *own = mp_predicting_of(session);
            own->payoff.mode = MP_PAYOFF_ON; /* whatever it is worth */
            atomic_store(&own->on, true);
            run_step(w, session);
            moepage_prefetch_info info = {.struct_size = sizeof info};
            w->wrong += moepage_session_get_prefetch(session, pick(w, LAYERS), &info) != MOEPAGE_OK;
            w->wrong += info.right > info.guessed || info.late_bytes > info.useful_bytes;
        }
        if (pick(w, 2))
            begin(w, session); /* left open */
        w->wrong += moepage_session_destroy(session) != MOEPAGE_OK;
    }
    return NULL;
}

static void run_kind(const char *kind, uint64_t seed, uint32_t sessions)
{
    char path[64];
    pthread_t threads[THREADS];
    worker workers[THREADS];
    snprintf(path, sizeof path, "/tmp/moepage-predicting-%d", (int)getpid());
    moepage_predictor_config config = {.struct_size = sizeof config,
                                       .name = kind,
                                       .distance = 3,
                                       .semantic_dim = 4};
    assert_int_equal(moepage_predictor_create(bank.model, &config, &predictor), MOEPAGE_OK);
    pool_rig_open(&rigs[0], &bank, &(pool_rig_config){.slots = 9});
    pool_rig_open(&rigs[1], &bank, &(pool_rig_config){.slots = 14, .scan_percent = 50});
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.rig = &rigs[i % 2], .random = seed + i, .sessions = sessions};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    bool keeps = predictor->kind->save != NULL;
    for (uint32_t i = 0; i < 20; i++) {
        moepage_predictor_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_predictor_get_info(predictor, &info), MOEPAGE_OK);
        moepage_status status = moepage_predictor_save(predictor, path);
        assert_int_equal(status, keeps ? MOEPAGE_OK : MOEPAGE_E_UNSUPPORTED);
        status = moepage_predictor_load(predictor, path);
        assert_int_equal(status, keeps ? MOEPAGE_OK : MOEPAGE_E_UNSUPPORTED);
    }
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        wrong += workers[i].wrong;
    }
    unlink(path);
    if (wrong)
        printf("%s, seed %llu: %u wrong\n", kind, (unsigned long long)seed, wrong);
    assert_int_equal(wrong, 0);
    fetched += pool_rig_info(&rigs[0]).prefetch_bytes + pool_rig_info(&rigs[1]).prefetch_bytes;
    for (uint32_t i = 0; i < 2; i++)
        pool_rig_close(&rigs[i]);
    assert_int_equal(moepage_predictor_destroy(predictor), MOEPAGE_OK);
}

static void test_predicting_sessions_compute_as_without(void **state)
{
    (void)state;
    const char *const kinds[] = {"previous", "hit-count", "coactivation", "maps"};
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = HIDDEN,
                        .intermediate = 4,
                        .seed = 5};
    uint32_t rounds = getenv("MP_TEST_LONG") ? 5 : 1;
    bank_model_open(&bank, &shape);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)(i % HIDDEN) / 4 - 0.5f; /* the same for all tokens */
    expect_all();
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t k = 0; k < 4; k++)
            run_kind(kinds[k], 1000 * round + 10 * k, 4);
    assert_true(fetched > 0);
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predicting_sessions_compute_as_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
