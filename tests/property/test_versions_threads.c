/* Sessions that step at once over a pool with two versions of every expert, each with its own hot set
 * that keeps moving: every plan shows whole versions, no layer ever has more high ones than it may,
 * and when all is quiet the books are even. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool_inside.h"
#include "split/split.h"
#include "testing.h"
#include "versions_rig.h"

#define THREADS 3
#define EXPERTS 12
#define LAYERS 2

typedef struct worker {
    versions_rig *rig;
    moepage_session *session;
    moepage_session_config config;
    uint64_t random;
    uint32_t steps;
} worker;

/* Others come and go, and their steps go on. */
static void join_anew(worker *w)
{
    assert_int_equal(moepage_session_destroy(w->session), MOEPAGE_OK);
    assert_int_equal(moepage_session_create(w->rig->pool, NULL, &w->config, &w->session),
                     MOEPAGE_OK);
}

/* Both layers may be open at once, and a step may be called off half-way. */
static void one_step(worker *w)
{
    uint32_t base = w->steps / 16 * 5;
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(w->session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        int32_t ids[3];
        ids[0] = (int32_t)((base + bank_below(&w->random, 3)) % EXPERTS);
        ids[1] = (int32_t)((ids[0] + 1 + bank_below(&w->random, 4)) % EXPERTS);
        ids[2] = (int32_t)((ids[1] + 5) % EXPERTS);
        ids[2] = ids[2] == ids[0] ? (ids[2] + 1) % EXPERTS : ids[2];
        versions_rig_layer(w->rig, w->session, l, ids, ids[2] == ids[1] ? 2 : 3, NULL);
    }
    if (bank_below(&w->random, 10) == 0)
        assert_int_equal(moepage_session_cancel(w->session), MOEPAGE_OK);
    else
        assert_int_equal(moepage_session_end(w->session, NULL), MOEPAGE_OK);
}

static void *work(void *user)
{
    worker *w = user;
    uint32_t steps = getenv("MP_TEST_LONG") ? 20000 : 1000;
    for (w->steps = 0; w->steps < steps; w->steps++) {
        if (w->steps % 50 == 49)
            join_anew(w);
        one_step(w);
        for (uint32_t l = 0; l < LAYERS && w->steps % 8 == 0; l++)
            assert_true(versions_rig_count_high(w->rig, l) <= w->rig->n_high);
    }
    return NULL;
}

static void start(worker *w, pthread_t *thread)
{
    assert_int_equal(moepage_session_create(w->rig->pool, NULL, &w->config, &w->session),
                     MOEPAGE_OK);
    assert_int_equal(pthread_create(thread, NULL, work, w), 0);
}

/* Nothing is open: every expert has one version, no place and no slot is used twice, and everything
 * that is not used is free. */
static void check_books(versions_rig *rig)
{
    struct moepage_expert_pool *pool = rig->pool;
    mp_versions *versions = pool->versions[0];
    mp_shard *shard = &pool->cache->shards[0];
    uint32_t low = 0, high = 0, slots = 0, held = 0;
    bool *taken = calloc(versions->n_places, sizeof *taken);
    assert_non_null(taken);
    pthread_mutex_lock(&pool->lock);
    for (uint32_t key = 0; key < pool->keys; key++) {
        uint32_t version = versions->published[key];
        if (version & MP_VERSION_HIGH) {
            uint32_t slot = version & ~MP_VERSION_HIGH;
            assert_true(atomic_load(&shard->words[slot]) == MP_WORD(key, MP_SLOT_RESIDENT));
            high++;
        } else {
            assert_true(version < versions->n_places && !taken[version]);
            taken[version] = true;
            low++;
        }
    }
    for (uint32_t i = 0; i < versions->config.transitions; i++) {
        const mp_swap *swap = &versions->swaps[i];
        bool fetches = versions->config.lo_fetched &&
                       (swap->state == MP_SWAP_FETCH || swap->state == MP_SWAP_UNPUBLISH ||
                        swap->state == MP_SWAP_RELEASE);
        held += fetches && swap->place != MP_NO_EXPERT_KEY;
    }
    for (uint32_t i = 0; i < versions->n_free; i++) {
        assert_false(taken[versions->free_places[i]]);
        taken[versions->free_places[i]] = true;
    }
    for (uint32_t s = shard->all.first; s < shard->all.end; s++) {
        assert_int_equal(MP_WORD_USERS(atomic_load(&shard->words[s])), 0);
        slots += MP_WORD_STATE(atomic_load(&shard->words[s])) != MP_SLOT_FREE;
    }
    if (versions->config.lo_fetched)
        assert_int_equal(low + versions->n_free + held, versions->n_places);
    assert_int_equal(low + high, pool->keys);
    assert_true(high <= slots && slots <= rig->n_high * LAYERS);
    pthread_mutex_unlock(&pool->lock);
    free(taken);
}

/* Moves the split until the others have ended. */
typedef struct mover {
    versions_rig *rig;
    _Atomic bool stop;
    uint64_t random;
    uint32_t least, most; /* high versions per layer */
    uint32_t moved;
} mover;

static void *move(void *user)
{
    mover *m = user;
    struct moepage_expert_pool *pool = m->rig->pool;
    while (!atomic_load(&m->stop)) {
        const uint64_t slots = (m->least + bank_below(&m->random, m->most - m->least + 1)) * LAYERS;
        moepage_status status = moepage_split_set(pool, NULL, slots, 0, NULL);
        for (uint32_t i = 0; i < 2000 && status == MOEPAGE_E_BUSY; i++) {
            status = mp_split_move(pool, NULL, slots, 0, NULL);
            sched_yield();
        }
        if (status == MOEPAGE_E_BUSY)
            mp_split_abandon(pool);
        assert_true(status == MOEPAGE_OK || status == MOEPAGE_E_BUSY);
        m->moved += status == MOEPAGE_OK;
    }
    return NULL;
}

static void run(uint32_t lo_fetched, uint32_t window_steps, bool moves)
{
    versions_rig rig;
    bank_shape shape = {.layers = LAYERS, .experts = EXPERTS};
    versions_rig_open_wide(&rig, &shape,
                           &(moepage_precision_config){.hi_experts = 4,
                                                       .lo_fetched = lo_fetched,
                                                       .window_steps = window_steps,
                                                       .interval_us = 200},
                           moves ? 1u << 20 : 0);
    worker workers[THREADS];
    pthread_t threads[THREADS], moving;
    mover m = {.rig = &rig, .random = 7, .least = lo_fetched ? 4 : 1, .most = 8};
    if (moves) {
        rig.n_high = m.most;
        assert_int_equal(pthread_create(&moving, NULL, move, &m), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.rig = &rig,
                              .config = {.struct_size = sizeof workers[i].config,
                                         .max_tokens = 1,
                                         .max_top_k = EXPERTS},
                              .random = 100 + i};
        start(&workers[i], &threads[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    atomic_store(&m.stop, true);
    if (moves) {
        assert_int_equal(pthread_join(moving, NULL), 0);
        assert_true(m.moved > 3);
    }
    check_books(&rig);
    moepage_expert_pool_info info = versions_rig_info(&rig);
    assert_true(info.promotions > 0 && info.demotions > 0);
    assert_int_equal(info.transitions_failed + info.failed_loads, 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        moepage_session_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(moepage_session_get_stats(workers[i].session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.stall_ns, 0);
        assert_int_equal(stats.misses + stats.late + stats.demand_bytes, 0);
        assert_int_equal(stats.hits + stats.low_experts, stats.routed);
        assert_int_equal(moepage_session_destroy(workers[i].session), MOEPAGE_OK);
    }
    versions_rig_close(&rig);
}

static void test_versions_threads_see_whole_versions(void **state)
{
    (void)state;
    run(0, 1, false);
}

static void test_versions_threads_see_whole_fetched_versions(void **state)
{
    (void)state;
    run(1, 3, false);
}

static void test_versions_threads_see_whole_versions_while_the_split_moves(void **state)
{
    (void)state;
    run(0, 1, true);
    run(1, 3, true);
}

/* A cache that two sessions take as it is, and one waits for. */
static void test_versions_threads_share_a_cache_with_substitutes(void **state)
{
    (void)state;
    versions_rig rig = {0};
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT2};
    bank_model_open(&rig.bank, &shape);
    versions_rig_open_over(&rig, rig.bank.model,
                           &(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE}, 16);
    rig.n_high = EXPERTS;
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.rig = &rig,
                              .config = {.struct_size = sizeof workers[i].config,
                                         .max_tokens = 1,
                                         .max_top_k = 3,
                                         .miss = i > 0 ? MOEPAGE_MISS_LOW : MOEPAGE_MISS_WAIT},
                              .random = 7 + i};
        start(&workers[i], &threads[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        moepage_session_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(moepage_session_get_stats(workers[i].session, &stats), MOEPAGE_OK);
        assert_int_equal(stats.hits + stats.low_experts + stats.misses + stats.late, stats.routed);
        assert_int_equal(i > 0 ? stats.misses + stats.late + stats.stall_ns : stats.low_experts, 0);
        assert_true(stats.hits > 0);
        assert_int_equal(moepage_session_destroy(workers[i].session), MOEPAGE_OK);
    }
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_threads_share_a_cache_with_substitutes),
        cmocka_unit_test(test_versions_threads_see_whole_versions),
        cmocka_unit_test(test_versions_threads_see_whole_fetched_versions),
        cmocka_unit_test(test_versions_threads_see_whole_versions_while_the_split_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
