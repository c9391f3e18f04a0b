/* A session's predictor at work: the experts it names are fetched, most urgent first; a pass that
 * it cannot follow is lost for its own learning only; no output changes. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>

#include "features/predicting_inside.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 4
#define EXPERTS 12
#define HIDDEN 8
#define MAX_READS 64

static bank_model bank;
static pool_rig rig;
static moepage_predictor *predictor;

/* Reads in their order, while `closed` none goes on. */
static struct {
    sem_t go;
    _Atomic bool closed;
    uint32_t keys[MAX_READS];
    _Atomic uint32_t n;
} door;

static void at_the_door(bank_model *of, uint32_t layer, uint32_t expert, uint32_t tensor)
{
    (void)of;
    if (tensor > 0)
        return;
    uint32_t n = atomic_fetch_add(&door.n, 1);
    if (n < MAX_READS)
        door.keys[n] = layer * EXPERTS + expert;
    if (atomic_load(&door.closed))
        sem_wait(&door.go);
}

static void open_all(const char *kind, uint64_t slots)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = HIDDEN,
                        .intermediate = 4,
                        .callback = true,
                        .seed = 11};
    bank_model_open(&bank, &shape);
    atomic_store(&door.closed, false);
    atomic_store(&door.n, 0);
    assert_int_equal(sem_init(&door.go, 0, 0), 0);
    bank.before = at_the_door;
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = slots});
    moepage_predictor_config config = {.struct_size = sizeof config,
                                       .name = kind,
                                       .distance = 2,
                                       .semantic_dim = 4};
    assert_int_equal(moepage_predictor_create(bank.model, &config, &predictor), MOEPAGE_OK);
}

static void close_all(moepage_session *session)
{
    assert_int_equal(moepage_predictor_destroy(predictor), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_predictor_destroy(predictor), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
    sem_destroy(&door.go);
}

static moepage_session *open_session(void)
{
    moepage_session_config config = {.prefetch = MOEPAGE_PREFETCH_PREDICTOR,
                                     .predictor = predictor,
                                     .prefetch_depth = 1,
                                     .regime = MOEPAGE_REGIME_CACHE};
    return pool_rig_session(&rig, &config);
}

/* Acts on every guess, whatever it is worth. */
static void force_on(moepage_session *session)
{
    mp_predicting *own = mp_predicting_of(session);
    own->payoff.mode = MP_PAYOFF_ON;
    own->payoff_config.hold_steps = UINT32_MAX;
    atomic_store(&own->on, true);
}

/* Until the task has heard all there is to hear. */
static void let_it_hear(moepage_session *session)
{
    mp_predicting *own = mp_predicting_of(session);
    for (bool quiet = false; !quiet;) {
        pthread_mutex_lock(&own->lock);
        quiet = !own->posted;
        pthread_mutex_unlock(&own->lock);
    }
    pool_rig_wait(&rig);
}

/* One token through all layers; layer l routes to (first + l) and the expert behind it. */
static void run_step(moepage_session *session, uint32_t first, bool in_steps, float *y)
{
    float x[HIDDEN] = {1, -2, 3, 0.5f, 0, 1, 1, -1};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < LAYERS; l++) {
        int32_t ids[2] = {(int32_t)((first + l) % EXPERTS), (int32_t)((first + l + 1) % EXPERTS)};
        assert_int_equal(pool_rig_route(session, l, ids, 2, NULL), MOEPAGE_OK);
        moepage_ffn ffn = {.struct_size = sizeof ffn,
                           .dtype = MOEPAGE_DTYPE_F32,
                           .x = x,
                           .y = y + l * HIDDEN};
        assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        if (in_steps)
            let_it_hear(session);
    }
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    if (in_steps)
        let_it_hear(session);
}

static moepage_prefetch_info ask(moepage_session *session, uint32_t layer)
{
    moepage_prefetch_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_session_get_prefetch(session, layer, &info), MOEPAGE_OK);
    return info;
}

/* What fires together has been seen; then layer 1 and those behind it find all that they need. */
static void test_predicting_fetches_what_is_named(void **state)
{
    (void)state;
    float y[LAYERS * HIDDEN];
    open_all("coactivation", 16);
    moepage_session *session = open_session();
    for (uint32_t turn = 0; turn < 4 * EXPERTS; turn++)
        run_step(session, turn * 5 % EXPERTS, true, y);
    force_on(session);
    moepage_expert_pool_info before = pool_rig_info(&rig);
    for (uint32_t turn = 0; turn < EXPERTS; turn++) {
        force_on(session);
        run_step(session, turn * 5 % EXPERTS, true, y);
    }
    moepage_expert_pool_info after = pool_rig_info(&rig);
    assert_true(after.prefetch_useful - before.prefetch_useful >= EXPERTS);
    uint64_t useful = 0, wasted = 0, late = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        moepage_prefetch_info info = ask(session, l);
        useful += info.useful_bytes;
        wasted += info.wasted_bytes;
        late += info.late_bytes;
        assert_true(l == 0 || info.right * 10 >= info.guessed * 3);
        assert_true(info.right <= info.guessed);
    }
    assert_int_equal(useful, after.prefetch_useful * after.slot_bytes);
    assert_int_equal(wasted, after.prefetch_wasted * after.slot_bytes);
    assert_int_equal(late, after.prefetch_late * after.slot_bytes);
    close_all(session);
}

static void test_predicting_changes_no_bit(void **state)
{
    (void)state;
    const char *const kinds[] = {"previous", "hit-count", "coactivation", "maps"};
    static float want[EXPERTS][LAYERS * HIDDEN], got[LAYERS * HIDDEN];
    for (uint32_t k = 0; k < 4; k++) {
        open_all(kinds[k], 6);
        moepage_session *session = open_session();
        force_on(session);
        for (uint32_t turn = 0; turn < 5 * EXPERTS; turn++) {
            uint32_t first = turn * 7 % EXPERTS;
            run_step(session, first, turn % 3 == 0, got);
            if (k == 0 && turn < EXPERTS)
                memcpy(want[first], got, sizeof got);
            assert_memory_equal(got, want[first], sizeof got);
            force_on(session);
        }
        close_all(session);
    }
}

/* The task stands still: the session's thread does not, and the news beyond the queue are
 * counted. */
static void test_predicting_loses_the_oldest_news(void **state)
{
    (void)state;
    float y[LAYERS * HIDDEN];
    open_all("previous", 24);
    moepage_session *session = open_session();
    pthread_mutex_lock(&predictor->lock);
    for (uint32_t turn = 0; turn < 10; turn++)
        run_step(session, turn, false, y);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    uint32_t told = 10 * (LAYERS + 2);
    assert_in_range(stats.predict_refused, told - MP_NEWS - 2 * (LAYERS + 2), told - MP_NEWS);
    pthread_mutex_unlock(&predictor->lock);
    let_it_hear(session);
    run_step(session, 3, true, y);
    moepage_predictor_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_predictor_get_info(predictor, &info), MOEPAGE_OK);
    assert_in_range(info.iterations, 1, 10);
    close_all(session);
}

/* p over the layers still to go; what the host hints at goes first. */
static void test_predicting_fetches_the_most_urgent_first(void **state)
{
    (void)state;
    open_all("previous", 24);
    moepage_session *session = open_session();
    int32_t one = 0;
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, &one, 1, NULL), MOEPAGE_OK);
    pool_rig_wait(&rig);
    atomic_store(&door.n, 0);
    atomic_store(&door.closed, true);
    int32_t held[3] = {9, 10, 11}; /* keep the bus busy while the others queue up */
    assert_int_equal(moepage_session_hint(session, 1, held, 3), MOEPAGE_OK);
    while (atomic_load(&door.n) == 0)
        ;
    mp_ranked guesses[] = {
        {.key = 3 * EXPERTS + 1, .p = 0.9f},  /* 0.30 */
        {.key = 1 * EXPERTS + 2, .p = 0.25f}, /* 0.25 */
        {.key = 2 * EXPERTS + 3, .p = 0.7f},  /* 0.35 */
        {.key = 1 * EXPERTS + 4, .p = 0.4f},  /* 0.40 */
        {.key = 2 * EXPERTS + 5, .p = 0.5f},  /* 0.25: later than its equal */
    };
    assert_int_equal(mp_pool_want_ranked(rig.pool, mp_session_view(session)->client, guesses, 5,
                                         false),
                     5);
    guesses[1].p = 0.1f; /* weaker: the first guess stands */
    assert_int_equal(mp_pool_want_ranked(rig.pool, mp_session_view(session)->client, &guesses[1], 1,
                                         false),
                     0);
    int32_t hinted = 6;
    assert_int_equal(moepage_session_hint(session, 3, &hinted, 1), MOEPAGE_OK);
    atomic_store(&door.closed, false);
    for (uint32_t i = 0; i < MAX_READS; i++)
        sem_post(&door.go);
    pool_rig_wait(&rig);
    const uint32_t want[] = {3 * EXPERTS + 6, 1 * EXPERTS + 4, 2 * EXPERTS + 3,
                             3 * EXPERTS + 1, 1 * EXPERTS + 2, 2 * EXPERTS + 5};
    uint32_t n = atomic_load(&door.n), at = n - 6;
    assert_int_equal(n, 3 + 6);
    assert_memory_equal(&door.keys[at], want, sizeof want);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    close_all(session);
}

/* Sequences keep their contexts when they change places in the batch. */
static void test_predicting_follows_sequences(void **state)
{
    (void)state;
    open_all("previous", 24);
    moepage_session *session = open_session();
    for (uint32_t turn = 0; turn < 6; turn++) {
        bool swapped = turn % 2;
        moepage_step_sequence sequences[2] = {{.seq = swapped ? 22 : 11, .n_tokens = 1},
                                              {.seq = swapped ? 11 : 22, .n_tokens = 1}};
        moepage_step step = {.struct_size = sizeof step,
                             .n_tokens = 2,
                             .n_sequences = 2,
                             .sequences = sequences};
        int32_t ids[2] = {swapped ? 7 : 3, swapped ? 3 : 7};
        float weights[2] = {1, 1};
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = 1,
                                   .ids = ids,
                                   .weights = weights};
        assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        let_it_hear(session);
    }
    for (uint32_t l = 1; l < LAYERS; l++) {
        moepage_prefetch_info info = ask(session, l);
        assert_int_equal(info.guessed, info.right);
        assert_true(info.right >= 8);
    }
    mp_predicting *own = mp_predicting_of(session);
    assert_true(own->followers[0].seq != own->followers[1].seq);
    close_all(session);
}

/* Whoever joins in front takes the place of the one that left, not of one that goes on. */
static void test_predicting_keeps_those_who_go_on(void **state)
{
    (void)state;
    static const moepage_seq batches[][2] = {{11, 22}, {33, 11}, {11, 44}, {55, 44}};
    open_all("previous", 24);
    moepage_session_config config = {.prefetch = MOEPAGE_PREFETCH_PREDICTOR,
                                     .predictor = predictor,
                                     .prefetch_depth = 1,
                                     .max_sequences = 2};
    moepage_session *session = pool_rig_session(&rig, &config);
    for (uint32_t turn = 0; turn < 4; turn++) {
        moepage_step_sequence sequences[2] = {{.seq = batches[turn][0], .n_tokens = 1},
                                              {.seq = batches[turn][1], .n_tokens = 1}};
        moepage_step step = {.struct_size = sizeof step,
                             .n_tokens = 2,
                             .n_sequences = 2,
                             .sequences = sequences};
        int32_t ids[2] = {(int32_t)(batches[turn][0] / 11), (int32_t)(batches[turn][1] / 11)};
        float weights[2] = {1, 1};
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = 1,
                                   .ids = ids,
                                   .weights = weights};
        assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
            let_it_hear(session);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        let_it_hear(session);
    }
    moepage_prefetch_info info = ask(session, LAYERS - 1);
    assert_int_equal(info.guessed, 3); /* of 11 twice and of 44: all that were there before */
    assert_int_equal(info.right, 3);
    close_all(session);
}

/* Prefetches that a session left behind are not attributed to the next session in its place. */
static void test_predicting_inherits_nothing(void **state)
{
    (void)state;
    open_all("previous", 6);
    moepage_session *session = open_session();
    mp_ranked guesses[] = {{.key = 1, .p = 0.5f}, {.key = EXPERTS + 1, .p = 0.5f}};
    assert_int_equal(mp_pool_want_ranked(rig.pool, mp_session_view(session)->client, guesses, 2,
                                         false),
                     2);
    pool_rig_wait(&rig);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    session = open_session();
    pool_rig_visit(session, 0, (int32_t[]){1}, 1);
    for (int32_t e = 0; e < EXPERTS - 1; e++)
        pool_rig_visit(session, 2, (int32_t[]){e, e + 1}, 2);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.prefetch_useful, 1);
    assert_int_equal(info.prefetch_wasted, 1);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(ask(session, l).useful_bytes, 0);
        assert_int_equal(ask(session, l).wasted_bytes, 0);
    }
    close_all(session);
}

/* A step's own figures have it too, but for what its end pushes out. */
static void test_predicting_tells_each_step_what_was_lost(void **state)
{
    (void)state;
    uint64_t told = 0;
    open_all("previous", 24);
    moepage_session *session = open_session();
    pthread_mutex_lock(&predictor->lock);
    for (uint32_t turn = 0; turn < 10; turn++) {
        moepage_session_stats one = {.struct_size = sizeof one};
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(pool_rig_route(session, l, (int32_t[]){3}, 1, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, &one), MOEPAGE_OK);
        told += one.predict_refused;
    }
    pthread_mutex_unlock(&predictor->lock);
    moepage_session_stats all = {.struct_size = sizeof all};
    assert_int_equal(moepage_session_get_stats(session, &all), MOEPAGE_OK);
    assert_true(all.predict_refused > 0);
    assert_int_equal(told, all.predict_refused);
    close_all(session);
}

/* Each iteration brings an embedding: what it is like decides its first layers, not what the last
 * iteration was like. */
static void test_predicting_asks_anew_with_an_embedding(void **state)
{
    (void)state;
    open_all("maps", 24);
    moepage_session *session = open_session();
    for (uint32_t turn = 0; turn < 24; turn++) {
        bool odd = turn % 2;
        float semantic[4] = {odd ? 1 : -1, 0.5f, odd ? -1 : 1, 0.25f};
        int32_t ids[2] = {odd ? 1 : 7, odd ? 2 : 8};
        moepage_step step = {.struct_size = sizeof step,
                             .n_tokens = 1,
                             .semantic = semantic,
                             .semantic_dim = 4};
        assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
        let_it_hear(session);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(pool_rig_route(session, l, ids, 2, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
            let_it_hear(session);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
        let_it_hear(session);
    }
    moepage_prefetch_info info = ask(session, 0);
    assert_true(info.guessed >= 40);
    assert_true(info.right * 10 >= info.guessed * 9);
    close_all(session);
}

static void test_predicting_refuses_what_does_not_fit(void **state)
{
    (void)state;
    open_all("previous", 24);
    moepage_session *session = open_session(), *none = NULL;
    moepage_session_config config = {.struct_size = sizeof config, .predictor = predictor};
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &none), MOEPAGE_E_ARGUMENT);
    config.prefetch = MOEPAGE_PREFETCH_PREDICTOR;
    config.prefetch_depth = 3;
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &none), MOEPAGE_E_ARGUMENT);
    config.predictor = NULL;
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &none), MOEPAGE_E_ARGUMENT);
    config.predictor = (moepage_predictor *)rig.pool;
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &none), MOEPAGE_E_HANDLE);
    float semantic[5] = {0};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = 1,
                         .semantic = semantic,
                         .semantic_dim = 5};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_E_ARGUMENT);
    moepage_prefetch_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_session_get_prefetch(session, LAYERS, &info), MOEPAGE_E_ARGUMENT);
    moepage_session *plain = pool_rig_session(&rig, NULL);
    assert_int_equal(moepage_session_get_prefetch(plain, 0, &info), MOEPAGE_E_STATE);
    assert_int_equal(moepage_session_destroy(plain), MOEPAGE_OK);
    close_all(session);
}

static moepage_status route(moepage_session *session, uint32_t layer, int32_t first)
{
    return pool_rig_route(session, layer, (int32_t[]){first, first + 1}, 2, NULL);
}

/* Layers in any order, twice, or not at all: every predictor lives with it, none is told of a layer
 * behind one that it knows. */
static void test_predicting_lives_with_any_order(void **state)
{
    (void)state;
    const char *const kinds[] = {"none", "previous", "hit-count", "coactivation", "maps"};
    static const uint32_t orders[][LAYERS] = {{3, 2, 1, 0},
                                              {0, 0, 2, 2},
                                              {1, 3, 1, 0},
                                              {2, 2, 2, 2}};
    for (uint32_t k = 0; k < 5; k++) {
        open_all(kinds[k], 10);
        moepage_session *session = open_session();
        for (uint32_t turn = 0; turn < 40; turn++) {
            force_on(session);
            pool_rig_begin(session, 1, turn % 5 ? MOEPAGE_PHASE_DECODE : MOEPAGE_PHASE_PREFILL);
            for (uint32_t i = 0; i < LAYERS; i++) {
                uint32_t l = orders[turn % 4][i];
                assert_int_equal(route(session, l, (int32_t)(turn * 5 + l) % 11), MOEPAGE_OK);
                assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
                if (turn % 3)
                    let_it_hear(session);
            }
            assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
            let_it_hear(session);
            mp_predicting *own = mp_predicting_of(session);
            uint64_t last = orders[turn % 4][0] > orders[turn % 4][1] ? 3 : 2;
            assert_int_equal(own->heard, (turn + 1) * LAYERS + (turn % 4 == 2 ? 3 : last));
        }
        close_all(session);
    }
}

/* A layer comes while the task is about to queue guesses for it: these are dropped after all. */
static void test_predicting_wants_nothing_for_layers_that_came(void **state)
{
    (void)state;
    uint32_t tried = 0, met = 0;
    open_all("previous", 6);
    moepage_session *session = open_session();
    mp_predicting *own = mp_predicting_of(session);
    for (uint32_t turn = 0; turn < 20; turn++) {
        force_on(session);
        pool_rig_visit(session, 1, (int32_t[]){0}, 1);
        pool_rig_visit(session, 0, (int32_t[]){5}, 1);
        let_it_hear(session);
        for (int32_t e = 0; e < EXPERTS; e++) /* push them out */
            pool_rig_visit(session, 2, &e, 1);
        let_it_hear(session);
        force_on(session);
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE); /* and the one of layer 0 in again */
        let_it_hear(session);
        tried += atomic_load(&rig.pool->cache->entry[EXPERTS]) == MP_NO_SLOT;
        uint64_t before = pool_rig_info(&rig).prefetch_bytes;
        pthread_mutex_lock(&rig.pool->lock);
        assert_int_equal(pool_rig_route(session, 0, (int32_t[]){5}, 1, NULL), MOEPAGE_OK);
        /* Not if the prefetcher's own task has come to the pool's lock first. */
        bool asked = false;
        for (uint32_t i = 0; i < 20000 && !asked; i++) {
            sched_yield();
            pthread_mutex_lock(&own->facts);
            asked = own->foresights[1].turn == own->step * LAYERS + 1;
            pthread_mutex_unlock(&own->facts);
        }
        met += asked;
        for (uint32_t i = 0; i < 1000; i++)
            sched_yield(); /* the task comes to the pool's lock, mostly */
        mp_predicting_came(own, 1);
        mp_pool_unwant(rig.pool, mp_session_view(session)->client,
                       1); /* as its routing does: nothing to drop */
        pthread_mutex_unlock(&rig.pool->lock);
        let_it_hear(session);
        if (asked)
            assert_int_equal(pool_rig_info(&rig).prefetch_bytes, before);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    }
    assert_int_equal(tried, 20);
    assert_true(met > 0);
    close_all(session);
}

/* A step given up half way teaches nothing and breaks nothing. */
static void test_predicting_survives_cancelled_steps(void **state)
{
    (void)state;
    float y[LAYERS * HIDDEN];
    open_all("coactivation", 12);
    moepage_session *session = open_session();
    for (uint32_t turn = 0; turn < 30; turn++) {
        int32_t ids[2] = {(int32_t)(turn % EXPERTS), (int32_t)((turn + 3) % EXPERTS)};
        force_on(session);
        pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
        assert_int_equal(pool_rig_route(session, turn % LAYERS, ids, 2, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
        if (turn % 4 == 3)
            run_step(session, turn, false, y);
    }
    let_it_hear(session);
    moepage_predictor_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_predictor_get_info(predictor, &info), MOEPAGE_OK);
    assert_in_range(info.iterations, 1, 7);
    close_all(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predicting_fetches_what_is_named),
        cmocka_unit_test(test_predicting_changes_no_bit),
        cmocka_unit_test(test_predicting_loses_the_oldest_news),
        cmocka_unit_test(test_predicting_fetches_the_most_urgent_first),
        cmocka_unit_test(test_predicting_follows_sequences),
        cmocka_unit_test(test_predicting_keeps_those_who_go_on),
        cmocka_unit_test(test_predicting_inherits_nothing),
        cmocka_unit_test(test_predicting_tells_each_step_what_was_lost),
        cmocka_unit_test(test_predicting_asks_anew_with_an_embedding),
        cmocka_unit_test(test_predicting_refuses_what_does_not_fit),
        cmocka_unit_test(test_predicting_lives_with_any_order),
        cmocka_unit_test(test_predicting_wants_nothing_for_layers_that_came),
        cmocka_unit_test(test_predicting_survives_cancelled_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
