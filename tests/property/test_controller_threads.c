/* Everything that may be asked of a controller and its pools at once, on threads of their own: sessions
 * that step, sequences that come, grow, fork and go, pins, names of prefixes, infos, curves, and ticks
 * that move the split meanwhile, or lend KV's idle blocks. What plans show is right, no token is lost, and no bound is passed. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_tokens.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 3
#define SESSIONS 3
#define TOKENS 48 /* of a sequence */
#define BLOCK_TOKENS 4
#define KV_LAYERS 2

typedef struct world {
    uint64_t seed;
    bool lends; /* idle blocks to experts, which no user's needs bound then */
    bank_model bank;
    pool_rig rig;
    moepage_kv_pool *kv;
    kv_tokens tokens;
    moepage_controller *controller;
    moepage_predictor *predictor; /* of all sessions */
    uint32_t steps;
    _Atomic uint32_t running; /* sessions */
    _Atomic uint64_t seen[6]; /* outcomes of ticks */
    _Atomic uint64_t recalls;
} world;

typedef struct actor {
    world *world;
    moepage_session *session;
    uint64_t random;
    moepage_seq seq;
    uint64_t n;
    uint64_t tags[TOKENS];
} actor;

/* An assertion for any thread. */
#define must(condition)                                                                   \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s; seed %llu; last error: %s\n", __FILE__, __LINE__, \
                    #condition, (unsigned long long)w->seed, moepage_last_error());       \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

static bool is_full(moepage_status status)
{
    return status == MOEPAGE_E_WOULD_NOT_FIT;
}

/* ---- sessions ---- */

/* Another sequence takes over: the old one's child, or a new one. */
static void renew(actor *a)
{
    world *w = a->world;
    moepage_seq next;
    bool forks = a->n > 0 && bank_below(&a->random, 2);
    must(!(forks ? moepage_kv_fork(w->kv, a->seq, &next) : moepage_kv_create(w->kv, &next)));
    must(!moepage_kv_free(w->kv, a->seq));
    a->seq = next;
    a->n = forks ? a->n : 0;
}

/* Begins a step and writes what tokens there is room for. */
static void attend(actor *a)
{
    world *w = a->world;
    uint64_t n = 1 + bank_below(&a->random, 4), first = a->n;
    if (bank_below(&a->random, 12) == 0)
        renew(a);
    first = a->n;
    if (a->n + n > TOKENS) {
        must(!moepage_kv_truncate(w->kv, a->seq, 0));
        a->n = first = 0;
    }
    moepage_status status = moepage_kv_append(w->kv, a->seq, n, NULL);
    must(!status || is_full(status));
    n = status ? 0 : n;
    for (uint64_t t = 0; t < n; t++)
        a->tags[a->n++] = bank_random(&a->random);
    moepage_step_sequence named = {.seq = a->seq,
                                   .n_tokens = 1,
                                   .phase = bank_below(&a->random, 4) == 0};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = 1,
                         .n_sequences = 1,
                         .sequences = &named};
    must(!moepage_session_begin(a->session, &step));
    kv_tokens_write(&w->tokens, a->seq, first, n, &a->tags[first]);
}

static void run_layer(actor *a, uint32_t layer)
{
    world *w = a->world;
    int32_t ids[TOP_K];
    uint32_t first = bank_below(&a->random, EXPERTS), n = 1 + bank_below(&a->random, TOP_K);
    for (uint32_t k = 0; k < n; k++)
        ids[k] = (int32_t)((first + 3 * k) % EXPERTS);
    moepage_plan plan = {.struct_size = sizeof plan};
    must(!pool_rig_route(a->session, layer, ids, n, &plan));
    for (;;) {
        for (uint32_t e = 0; e < plan.n_experts; e++)
            must(bank_model_matches(&w->bank, layer, plan.experts[e].expert,
                                    plan.experts[e].tensors));
        if (plan.group + 1 >= plan.n_groups)
            break;
        must(!moepage_session_next_group(a->session, layer, &plan));
    }
    must(!moepage_session_retire(a->session, layer));
}

static void *act(void *arg)
{
    actor *a = arg;
    world *w = a->world;
    for (uint32_t s = 0; s < w->steps; s++) {
        attend(a);
        for (uint32_t l = 0; l < LAYERS; l++)
            run_layer(a, l);
        must(kv_tokens_match(&w->tokens, a->seq, a->n, a->tags));
        if (bank_below(&a->random, 16) == 0)
            must(!moepage_session_cancel(a->session));
        else
            must(!moepage_session_end(a->session, NULL));
    }
    atomic_fetch_sub(&w->running, 1);
    return NULL;
}

/* ---- the others ---- */

static void look(world *w)
{
    moepage_controller_info info = {.struct_size = sizeof info};
    moepage_device_info device = {.struct_size = sizeof device};
    must(!moepage_controller_get_info(w->controller, &info));
    must(info.expert_first <= info.expert_accesses);
    atomic_store(&w->recalls, info.recalls);
    moepage_kv_pool_info blocks = {.struct_size = sizeof blocks};
    must(!moepage_kv_pool_get_info(w->kv, &blocks));
    must(blocks.lent_blocks <= blocks.free_blocks && blocks.free_blocks <= blocks.blocks);
    uint64_t sizes[4] = {0, 6, 12, LAYERS * EXPERTS};
    double misses[4];
    for (uint32_t kv = 0; kv < 2; kv++) {
        must(!moepage_controller_get_curve(w->controller, kv, sizes, 4, misses));
        for (int i = 0; i < 4; i++)
            must(misses[i] >= 0 && misses[i] < 1e12);
    }
    (void)pool_rig_info(&w->rig);
    moepage_rightsize size = {.struct_size = sizeof size};
    must(w->lends || !moepage_controller_get_rightsize(w->controller, 0, &size));
    if (!w->lends && info.bursts % 8 == 7) /* else the sample grows */
        must(!moepage_controller_rightsize(w->controller, &w->predictor, 1, 500));
    must(!moepage_device_get_info(w->rig.devices[0], &device));
    must(device.peak_bytes <= device.budget_bytes);
}

static void *ask(void *arg)
{
    world *w = arg;
    while (atomic_load(&w->running) > 0) {
        look(w);
        sched_yield();
    }
    return NULL;
}

/* Pins come and go; sequences that no step names fill the pool and leave it. */
static void *meddle(void *arg)
{
    world *w = arg;
    uint64_t random = w->seed * 77;
    bool names = w->seed % 2;
    while (atomic_load(&w->running) > 0) {
        uint32_t layer = bank_below(&random, LAYERS), expert = bank_below(&random, EXPERTS);
        moepage_status status = moepage_expert_pool_pin(w->rig.pool, layer, expert);
        must(!status || status == MOEPAGE_E_BUDGET || status == MOEPAGE_E_BUSY);
        moepage_seq idle;
        must(!moepage_kv_create(w->kv, &idle));
        uint64_t n = bank_below(&random, 4 * TOKENS);
        moepage_status grown = n ? moepage_kv_append(w->kv, idle, n, NULL) : MOEPAGE_OK;
        must(!grown || is_full(grown));
        if (names)
            must(!moepage_controller_kv_use(w->controller, bank_below(&random, 40), n));
        sched_yield();
        must(!moepage_kv_free(w->kv, idle));
        if (!status)
            must(!moepage_expert_pool_unpin(w->rig.pool, layer, expert));
    }
    return NULL;
}

static void tick(world *w)
{
    moepage_controller_report report = {.struct_size = sizeof report};
    must(!moepage_controller_tick(w->controller, NULL, &report));
    must(report.outcome <= MOEPAGE_CONTROL_INFEASIBLE);
    atomic_fetch_add(&w->seen[report.outcome], 1);
}

/* ---- the whole ---- */

static void open_world(world *w, uint64_t seed, uint32_t mode, bool lends)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 16,
                        .intermediate = 8,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                        .seed = seed};
    const uint32_t bytes_per_token[KV_LAYERS] = {40, 24};
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = BLOCK_TOKENS,
                                 .layers = KV_LAYERS,
                                 .bytes_per_token = bytes_per_token,
                                 .blocks_per_granule = 2,
                                 .blocks = SESSIONS * TOKENS / BLOCK_TOKENS};
    moepage_controller_config control = {.struct_size = sizeof control,
                                         .mode = mode,
                                         .burst_steps = lends ? 2 : 6,
                                         .admission = lends,
                                         .expert_percent = 30,
                                         .concurrency = SESSIONS,
                                         .context_tokens = TOKENS,
                                         .max_samples = 16};
    *w = (world){.seed = seed, .lends = lends, .steps = getenv("MP_TEST_LONG") ? 2000 : 60};
    bank_model_open(&w->bank, &shape);
    pool_rig_open(&w->rig, &w->bank,
                  &(pool_rig_config){.slots = 12,
                                     .scope = seed % 2 ? MOEPAGE_SCOPE_GLOBAL : MOEPAGE_SCOPE_LAYER,
                                     .arena_slots = lends ? 27 : 50,
                                     .chunk_bytes = 300});
    assert_int_equal(moepage_kv_pool_create(w->rig.devices[0], &kv, &w->kv), MOEPAGE_OK);
    kv_tokens_open(&w->tokens, w->kv, KV_LAYERS, bytes_per_token);
    assert_int_equal(moepage_controller_create(w->rig.pool, w->kv, &control, &w->controller),
                     MOEPAGE_OK);
    moepage_predictor_config coactivation = {.struct_size = sizeof coactivation,
                                             .name = "coactivation"};
    assert_int_equal(moepage_predictor_create(w->bank.model, &coactivation, &w->predictor),
                     MOEPAGE_OK);
    assert_int_equal(moepage_controller_rightsize(w->controller, &w->predictor, !lends, 500),
                     MOEPAGE_OK);
    atomic_store(&w->running, SESSIONS);
}

static void close_world(world *w, actor *actors)
{
    for (uint32_t i = 0; i < SESSIONS; i++) {
        assert_true(kv_tokens_match(&w->tokens, actors[i].seq, actors[i].n, actors[i].tags));
        assert_int_equal(moepage_session_destroy(actors[i].session), MOEPAGE_OK);
    }
    assert_int_equal(moepage_controller_destroy(w->controller), MOEPAGE_OK);
    assert_int_equal(moepage_predictor_destroy(w->predictor), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(w->kv), MOEPAGE_OK);
    pool_rig_close(&w->rig);
    bank_model_close(&w->bank);
}

static void run(world *w, uint64_t seed, uint32_t mode, bool lends)
{
    static actor actors[SESSIONS];
    pthread_t threads[SESSIONS + 2];
    open_world(w, seed, mode, lends);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        moepage_session_config config = {.struct_size = sizeof config,
                                         .prefetch = MOEPAGE_PREFETCH_PREDICTOR,
                                         .predictor = w->predictor,
                                         .regime = (uint32_t)(seed + i) % 3};
        actors[i] = (actor){.world = w, .random = seed * 8 + i};
        assert_int_equal(moepage_session_create(w->rig.pool, w->kv, &config, &actors[i].session),
                         MOEPAGE_OK);
        assert_int_equal(moepage_kv_create(w->kv, &actors[i].seq), MOEPAGE_OK);
    }
    for (uint32_t i = 0; i < SESSIONS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    assert_int_equal(pthread_create(&threads[SESSIONS], NULL, ask, w), 0);
    assert_int_equal(pthread_create(&threads[SESSIONS + 1], NULL, meddle, w), 0);
    while (atomic_load(&w->running) > 0)
        tick(w);
    for (uint32_t i = 0; i < SESSIONS + 2; i++)
        pthread_join(threads[i], NULL);
    if (seed % 3 == 0) /* else a move may be under way to the end */
        for (int i = 0; i < 300; i++)
            tick(w);
    close_world(w, actors);
}

static void test_controller_threads_see_and_move_at_once(void **state)
{
    (void)state;
    static world w;
    uint64_t moved = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        run(&w, seed, (uint32_t)(seed % 6), false);
        moved += atomic_load(&w.seen[MOEPAGE_CONTROL_MOVED]);
    }
    assert_true(moved > 0);
}

static void test_controller_threads_lend_and_take_back(void **state)
{
    (void)state;
    static world w;
    uint64_t recalls = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        run(&w, seed, MOEPAGE_CONTROL_MV_WSA, true);
        recalls += atomic_load(&w.recalls);
    }
    assert_true(recalls > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_threads_see_and_move_at_once),
        cmocka_unit_test(test_controller_threads_lend_and_take_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
