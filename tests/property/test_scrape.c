/* Scraping while sessions serve: all values are read whole, whatever is written meanwhile. Under
 * TSan this also shows that no read races with a write of another thread. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "pool_inside.h"
#include "pool_rig.h"
#include "prom_text.h"
#include "session/inside.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 2
#define TOKENS 3
#define SESSIONS 2
#define SLOTS 10
#define STEPS 400

static bank_model bank;
static pool_rig rig;
static _Atomic uint32_t serving;
static uint32_t failures[SESSIONS + 1]; /* each its thread's own */

static bool routed(moepage_session *session, uint32_t layer, uint32_t *dice)
{
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    for (uint32_t i = 0; i < TOKENS * TOP_K; i++) {
        *dice = *dice * 1664525u + 1013904223u;
        ids[i] = (int32_t)(*dice >> 16) % (EXPERTS / TOP_K) * TOP_K + (int32_t)(i % TOP_K);
        weights[i] = 0.5f;
    }
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = TOP_K,
                               .ids = ids,
                               .weights = weights};
    moepage_plan plan = {.struct_size = sizeof plan};
    bool ok = moepage_session_route(session, layer, &routing, &plan) == MOEPAGE_OK;
    while (ok && plan.group + 1 < plan.n_groups)
        ok = moepage_session_next_group(session, layer, &plan) == MOEPAGE_OK;
    return ok && moepage_session_retire(session, layer) == MOEPAGE_OK;
}

/* Sessions come and go, so that what those have done which are no more is in it too. */
static void *serve(void *user)
{
    uint32_t index = (uint32_t)(uintptr_t)user, dice = 77 + index;
    moepage_session *session = NULL;
    for (uint32_t i = 0; i < STEPS; i++) {
        /* No plan has more than a share's slots: one that was opened by a session alone may still be open when
         * the other comes, which is then told that all slots are taken. */
        const moepage_session_config config = {.struct_size = sizeof config,
                                               .max_tokens = TOKENS,
                                               .max_group_experts = SLOTS / SESSIONS};
        const moepage_step step = {.struct_size = sizeof step, .n_tokens = TOKENS};
        if (!session)
            failures[index] +=
                moepage_session_create(rig.pool, NULL, &config, &session) != MOEPAGE_OK;
        if (!session)
            continue;
        bool ok = moepage_session_begin(session, &step) == MOEPAGE_OK;
        for (uint32_t layer = 0; layer < LAYERS && ok; layer++)
            ok = routed(session, layer, &dice);
        failures[index] += !ok || moepage_session_end(session, NULL) != MOEPAGE_OK;
        if (i % 50 == 49) {
            failures[index] += moepage_session_destroy(session) != MOEPAGE_OK;
            session = NULL;
        }
    }
    failures[index] += moepage_session_destroy(session) != MOEPAGE_OK;
    atomic_fetch_sub(&serving, 1);
    return NULL;
}

/* Each step whole or not at all; nothing that has been seen is lost again. */
static void check_sums(const moepage_session_stats *now, const moepage_session_stats *before)
{
    assert_int_equal(now->tokens, now->steps * TOKENS);
    assert_int_equal(now->layers, now->steps * LAYERS);
    assert_int_equal(now->routed, now->hits + now->misses + now->late);
    assert_int_equal(now->stall_ns, now->stall_slot_ns + now->stall_load_ns + now->stall_late_ns +
                                        now->stall_cold_ns);
    assert_true(now->steps >= before->steps && now->routed >= before->routed);
}

static void check_text(const prom_text *text)
{
    uint64_t steps = prom_count(text, "moepage_steps_total{pool=\"a\"}");
    assert_int_equal(prom_count(text, "moepage_tokens_total{pool=\"a\"}"), steps * TOKENS);
    assert_int_equal(prom_count(text, "moepage_layers_total{pool=\"a\"}"), steps * LAYERS);
    assert_int_equal(prom_count(text, "moepage_expert_slots{pool=\"a\"}"), 10);
}

static void test_scrape_sees_whole_steps_while_sessions_serve(void **state)
{
    (void)state;
    static char out[MOEPAGE_STATS_TEXT_BYTES];
    static prom_text text;
    const bank_shape shape = {.layers = LAYERS,
                              .experts = EXPERTS,
                              .top_k = TOP_K,
                              .hidden = 8,
                              .intermediate = 4,
                              .seed = 21};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = SLOTS, .host_experts = 12});
    const moepage_stats_source source = {.struct_size = sizeof source,
                                         .device = rig.devices[0],
                                         .experts = rig.pool,
                                         .labels = "pool=\"a\""};
    moepage_session_stats before = {.struct_size = sizeof before}, now = before;
    pthread_t threads[SESSIONS];
    atomic_store(&serving, SESSIONS);
    for (uintptr_t i = 0; i < SESSIONS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, serve, (void *)i), 0);
    bool more;
    do {
        more = atomic_load(&serving) > 0; /* once more when all is done */
        assert_int_equal(moepage_expert_pool_get_stats(rig.pool, &now), MOEPAGE_OK);
        check_sums(&now, &before);
        before = now;
        assert_int_equal(moepage_stats_text(&source, out, sizeof out, NULL), MOEPAGE_OK);
        prom_read(out, &text);
        check_text(&text);
    } while (more);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(failures[i], 0);
    }
    assert_int_equal(before.steps, SESSIONS * STEPS);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* ---- halves ---- */

static _Atomic bool publishing;

/* Steps that end as fast as they can, and count one of everything. */
static void *publish(void *user)
{
    moepage_session *session = user;
    moepage_session_stats all = {.struct_size = sizeof all};
    uint64_t *counters = &all.steps;
    while (atomic_load(&publishing)) {
        for (size_t i = 0; i < MP_STATS_COUNTERS; i++)
            counters[i]++;
        mp_client_publish_stats(session->step.client, &all);
    }
    return NULL;
}

static void test_scrape_never_sees_half_a_step(void **state)
{
    (void)state;
    const bank_shape shape = {
        .layers = 1, .experts = 4, .top_k = 2, .hidden = 8, .intermediate = 4, .seed = 22};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4});
    moepage_session *session = pool_rig_session(&rig, NULL);
    moepage_session_stats now = {.struct_size = sizeof now};
    const uint64_t *counters = &now.steps;
    uint64_t before = 0;
    pthread_t thread;
    atomic_store(&publishing, true);
    assert_int_equal(pthread_create(&thread, NULL, publish, session), 0);
    while (now.steps <
           500000) { /* long enough for a writer to be stopped half way on any machine */
        assert_int_equal(moepage_expert_pool_get_stats(rig.pool, &now), MOEPAGE_OK);
        for (size_t i = 1; i < MP_STATS_COUNTERS; i++)
            assert_int_equal(counters[i], now.steps);
        assert_true(now.steps >= before);
        before = now.steps;
    }
    atomic_store(&publishing, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* What a writer leaves that is stopped between two of its stores, for as long as the system likes. */
static void test_scrape_waits_for_no_stopped_writer(void **state)
{
    (void)state;
    const bank_shape shape = {
        .layers = 1, .experts = 4, .top_k = 2, .hidden = 8, .intermediate = 4, .seed = 23};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4});
    moepage_session *session = pool_rig_session(&rig, NULL);
    mp_published_stats *published = &session->step.client->published_stats;
    moepage_session_stats now = {.struct_size = sizeof now};
    for (uint64_t steps = 1; steps <= 3; steps++) {
        pool_rig_visit(session, 0, (int32_t[]){0, 1}, 2);
        uint32_t next = (atomic_load(&published->turn) + 1) % 2;
        for (size_t i = 0; i < MP_STATS_COUNTERS / 2; i++)
            atomic_store(&published->counters[next][i], 1000);
        assert_int_equal(moepage_expert_pool_get_stats(rig.pool, &now), MOEPAGE_OK);
        assert_int_equal(now.steps, steps);
        assert_int_equal(now.hits + now.misses, 2 * steps);
    }
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scrape_sees_whole_steps_while_sessions_serve),
        cmocka_unit_test(test_scrape_never_sees_half_a_step),
        cmocka_unit_test(test_scrape_waits_for_no_stopped_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
