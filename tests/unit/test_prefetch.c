/* Prefetching, step by step: reads stop at a gate until the test lets them go on, so that every
 * order of events here is the only one there can be. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "pool_inside.h"
#include "pool_rig.h"
#include "testing.h"

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 4
#define MAX_READS 256

/* Reads in the order in which they began; the one of `key` stops once. */
typedef struct gate {
    _Atomic uint32_t key; /* UINT32_MAX: open */
    sem_t arrived, go;
    uint32_t reads[MAX_READS]; /* keys */
    _Atomic uint32_t n_reads;
} gate;

static bank_model bank;
static pool_rig rig;
static gate door;

static uint32_t key_of(uint32_t layer, uint32_t expert)
{
    return layer * EXPERTS + expert;
}

static void at_the_gate(bank_model *of, uint32_t layer, uint32_t expert, uint32_t tensor)
{
    (void)of, (void)tensor;
    uint32_t key = key_of(layer, expert), n = atomic_fetch_add(&door.n_reads, 1);
    if (n < MAX_READS)
        door.reads[n] = key;
    if (!atomic_compare_exchange_strong(&door.key, &key, UINT32_MAX))
        return;
    sem_post(&door.arrived);
    sem_wait(&door.go);
}

static void close_gate_for(uint32_t layer, uint32_t expert)
{
    atomic_store(&door.key, key_of(layer, expert));
}

static void await_arrival(void)
{
    assert_int_equal(sem_wait(&door.arrived), 0);
}

static void open_gate(void)
{
    sem_post(&door.go);
}

/* `parts`: into how many chunks an expert is cut; 8 are of 192 bytes. */
static moepage_session *open_rig(uint64_t slots, uint32_t parts, uint32_t prefetch)
{
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 8,
                        .intermediate = 16,
                        .callback = true,
                        .seed = 8};
    bank_model_open(&bank, &shape);
    atomic_store(&door.key, UINT32_MAX);
    atomic_store(&door.n_reads, 0);
    assert_int_equal(sem_init(&door.arrived, 0, 0) | sem_init(&door.go, 0, 0), 0);
    bank.before = at_the_gate;
    uint32_t chunk = (uint32_t)(bank.expert_bytes / parts);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = slots, .chunk_bytes = chunk});
    return pool_rig_session(&rig, &(moepage_session_config){.prefetch = prefetch,
                                                            .regime = MOEPAGE_REGIME_CACHE});
}

static void close_rig(moepage_session *session)
{
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
    sem_destroy(&door.arrived);
    sem_destroy(&door.go);
}

static void hint(moepage_session *session, uint32_t layer, const int32_t *ids, uint32_t n)
{
    assert_int_equal(moepage_session_hint(session, layer, ids, n), MOEPAGE_OK);
}

/* Starts a step's first layer and leaves it open; its loads may be behind the gate. */
static void start_layer(moepage_session *session, uint32_t layer, const int32_t *ids, uint32_t n)
{
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, layer, ids, n, NULL), MOEPAGE_OK);
}

static void run_layer(moepage_session *session, uint32_t layer)
{
    float x[8] = {1, 2, 3}, y[8];
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    assert_int_equal(moepage_session_ffn(session, layer, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

static uint32_t loads_of(uint32_t layer, uint32_t expert)
{
    return atomic_load(&bank.loads[key_of(layer, expert)]);
}

static void expect_counters(uint64_t useful, uint64_t late, uint64_t wasted, uint64_t cancelled,
                            uint64_t refused)
{
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.prefetch_useful, useful);
    assert_int_equal(info.prefetch_late, late);
    assert_int_equal(info.prefetch_wasted, wasted);
    assert_int_equal(info.prefetch_cancelled, cancelled);
    assert_int_equal(info.prefetch_refused, refused);
}

/* ---- the claims ---- */

static void test_prefetch_brings_what_is_hinted_in_order(void **state)
{
    (void)state;
    moepage_session *session = open_rig(LAYERS * EXPERTS, 1, MOEPAGE_PREFETCH_HINT);
    int32_t hinted[5] = {6, 2, 2, 7, 0};
    hint(session, 1, hinted, 5);
    pool_rig_check(&rig);
    static const uint32_t order[] = {6, 2, 7, 0};
    assert_int_equal(atomic_load(&door.n_reads), 4 * bank.n_tensors);
    for (uint32_t i = 0; i < 4 * bank.n_tensors; i++)
        assert_int_equal(door.reads[i], key_of(1, order[i / bank.n_tensors]));
    assert_int_equal(pool_rig_info(&rig).prefetch_bytes, 4 * bank.expert_bytes);
    assert_int_equal(pool_rig_info(&rig).demand_bytes, 0);
    pool_rig_visit(session, 1, (int32_t[]){0, 2, 7}, 3);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.hits, 3);
    assert_int_equal(stats.hint_experts, 4);
    expect_counters(3, 0, 0, 0, 0);
    close_rig(session);
}

static void test_prefetch_lets_demand_go_first(void **state)
{
    (void)state;
    moepage_session *session = open_rig(LAYERS * EXPERTS, 1, MOEPAGE_PREFETCH_HINT);
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0, 1, 2}, 3);
    await_arrival(); /* the first read of the first prefetch runs; the rest is queued */
    start_layer(session, 0, (int32_t[]){5, 6}, 2);
    open_gate();
    run_layer(session, 0);
    for (uint32_t i = 0; i < 2 * bank.n_tensors; i++)
        assert_int_equal(door.reads[1 + i], key_of(0, 5 + i / bank.n_tensors));
    pool_rig_check(&rig);
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_RESIDENT);
    close_rig(session);
}

static void test_prefetch_under_way_is_not_loaded_twice(void **state)
{
    (void)state;
    for (uint32_t parts = 1; parts <= 8; parts *= 2) {
        moepage_session *session = open_rig(LAYERS * EXPERTS, parts, MOEPAGE_PREFETCH_HINT);
        moepage_session *other = pool_rig_session(&rig, NULL);
        close_gate_for(1, 3);
        hint(session, 1, (int32_t[]){3}, 1);
        await_arrival();
        assert_int_equal(pool_rig_state(&rig, 1, 3), MOEPAGE_EXPERT_LOADING);
        start_layer(session, 1, (int32_t[]){3}, 1);
        start_layer(other, 1, (int32_t[]){3}, 1);
        open_gate();
        run_layer(session, 1);
        run_layer(other, 1);
        assert_int_equal(loads_of(1, 3), 1);
        moepage_expert_pool_info info = pool_rig_info(&rig);
        assert_int_equal(info.prefetch_bytes + info.demand_bytes, bank.expert_bytes);
        assert_int_equal(info.demand_bytes > 0, parts > 2); /* what was not under way is hurried */
        assert_int_equal(info.prefetch_late_bytes, info.prefetch_bytes);
        assert_int_equal(info.late, 2);
        assert_int_equal(info.hits + info.misses, 0);
        expect_counters(1, 1, 0, 0, 0);
        assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
        close_rig(session);
    }
}

static void test_prefetch_is_cancelled_when_its_layer_comes(void **state)
{
    (void)state;
    moepage_session *session = open_rig(LAYERS * EXPERTS, 1, MOEPAGE_PREFETCH_HINT);
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0, 1, 2, 3}, 4);
    hint(session, 2, (int32_t[]){0}, 1);
    await_arrival(); /* 0 and 1 are under way: two at a time */
    start_layer(session, 1, (int32_t[]){1, 7}, 2);
    expect_counters(1, 1, 0, 2, 0);
    open_gate();
    run_layer(session, 1);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 0),
                     MOEPAGE_EXPERT_RESIDENT); /* was fully on its way */
    assert_int_equal(pool_rig_state(&rig, 2, 0), MOEPAGE_EXPERT_RESIDENT); /* another layer's */
    assert_int_equal(loads_of(1, 2) + loads_of(1, 3), 0);
    expect_counters(1, 1, 0, 2, 0);
    close_rig(session);
}

static void test_prefetch_half_way_is_given_up_when_its_layer_comes(void **state)
{
    (void)state;
    moepage_session *session = open_rig(LAYERS * EXPERTS, 8, MOEPAGE_PREFETCH_HINT);
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0, 1}, 2);
    await_arrival();
    start_layer(session, 1, (int32_t[]){7}, 1);
    open_gate();
    run_layer(session, 1);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 0), MOEPAGE_EXPERT_ABSENT);
    assert_int_equal(pool_rig_info(&rig).prefetch_bytes, bank.expert_bytes / 8 * 2);
    expect_counters(0, 0, 0, 2, 0);
    close_rig(session);
}

static void test_prefetch_wanted_again_is_not_given_up(void **state)
{
    (void)state;
    moepage_session *session = open_rig(LAYERS * EXPERTS, 8, MOEPAGE_PREFETCH_HINT);
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0}, 1);
    await_arrival();
    start_layer(session, 1, (int32_t[]){7}, 1);
    hint(session, 1, (int32_t[]){0}, 1); /* for the layer's next turn */
    open_gate();
    run_layer(session, 1);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 0), MOEPAGE_EXPERT_RESIDENT);
    expect_counters(0, 0, 0, 0, 0);
    close_rig(session);
}

static void test_prefetch_of_another_session_is_left_alone(void **state)
{
    (void)state;
    for (uint32_t parts = 1; parts <= 8; parts *= 8) {
        moepage_session *session = open_rig(LAYERS * EXPERTS, parts, MOEPAGE_PREFETCH_HINT);
        moepage_session *other =
            pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT});
        close_gate_for(1, 0);
        hint(session, 1, (int32_t[]){0, 1, 2, 3}, 4);
        await_arrival();
        start_layer(other, 1, (int32_t[]){7}, 1);
        assert_int_equal(moepage_session_cancel(other), MOEPAGE_OK);
        open_gate();
        pool_rig_check(&rig);
        for (uint32_t e = 0; e < 4; e++)
            assert_int_equal(pool_rig_state(&rig, 1, e), MOEPAGE_EXPERT_RESIDENT);
        expect_counters(0, 0, 0, 0, 0);
        assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
        close_rig(session);
    }
}

static void test_prefetch_that_two_want_is_not_called_off_by_one(void **state)
{
    (void)state;
    moepage_session *session = open_rig(LAYERS * EXPERTS, 1, MOEPAGE_PREFETCH_HINT);
    moepage_session *other =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT});
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0, 1, 2, 3}, 4); /* 0 and 1 are under way, 2 and 3 wait */
    await_arrival();
    hint(other, 1, (int32_t[]){2}, 1);
    start_layer(session, 1, (int32_t[]){7}, 1);
    open_gate();
    run_layer(session, 1);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 2), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_state(&rig, 1, 3), MOEPAGE_EXPERT_ABSENT);
    expect_counters(0, 0, 0, 1, 0);
    assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
    close_rig(session);
}

/* However far a predictor is told to look, it looks at every other layer once. */
static void test_prefetch_depth_ends_at_the_layers(void **state)
{
    (void)state;
    bank_shape shape = {
        .layers = 1, .experts = EXPERTS, .top_k = TOP_K, .hidden = 8, .intermediate = 4, .seed = 8};
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_PREVIOUS,
                                                         .prefetch_depth = UINT32_MAX});
    for (int32_t e = 0; e < EXPERTS; e++)
        pool_rig_visit(session, 0, &e, 1);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static void test_prefetch_never_evicts_what_is_held(void **state)
{
    (void)state;
    moepage_session *session = open_rig(3, 1, MOEPAGE_PREFETCH_HINT);
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, (int32_t[]){4, 5}, 2, &plan), MOEPAGE_OK);
    hint(session, 1, (int32_t[]){0, 1, 2},
         3); /* one slot is free; the queue is as long as the pool */
    pool_rig_wait(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 0), MOEPAGE_EXPERT_RESIDENT);
    for (uint32_t e = 0; e < 2; e++)
        assert_true(bank_model_matches(&bank, 0, plan.experts[e].expert, plan.experts[e].tensors));
    expect_counters(0, 0, 0, 0, 2);
    assert_int_equal(pool_rig_info(&rig).evictions, 0);
    assert_int_equal(moepage_session_retire(session, 0), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    close_rig(session);
}

static void test_prefetch_evicts_by_what_was_used_last(void **state)
{
    (void)state;
    moepage_session *session = open_rig(3, 1, MOEPAGE_PREFETCH_HINT);
    for (int32_t e = 0; e < 3; e++)
        pool_rig_visit(session, 0, &e, 1);
    for (int32_t i = 0; i < 2 * LAYERS; i++) /* hits, which take no lock */
        pool_rig_visit(session, 0, (int32_t[]){i % 2 * 2}, 1);
    hint(session, 1, (int32_t[]){6}, 1);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 6), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_state(&rig, 0, 0), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_state(&rig, 0, 1), MOEPAGE_EXPERT_ABSENT);
    /* What the last pass over the layers used is not given away for a guess. */
    pool_rig_visit(session, 1, (int32_t[]){6}, 1);
    hint(session, 1, (int32_t[]){7}, 1);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 1, 7), MOEPAGE_EXPERT_ABSENT);
    expect_counters(1, 0, 0, 0, 1);
    close_rig(session);
}

static void resize(uint64_t slots)
{
    assert_int_equal(moepage_split_set(rig.pool, NULL, slots, 0, NULL), MOEPAGE_OK);
}

static void test_prefetch_counts_waste(void **state)
{
    (void)state;
    moepage_session *session = open_rig(4, 1, MOEPAGE_PREFETCH_HINT);
    hint(session, 1, (int32_t[]){0, 1, 2}, 3);
    pool_rig_check(&rig);
    pool_rig_visit(session, 1, (int32_t[]){1}, 1);
    expect_counters(1, 0, 0, 0, 0);
    for (int32_t e = 0; e < 4; e++)
        pool_rig_visit(session, 2, &e, 1); /* all four slots */
    expect_counters(1, 0, 2, 0, 0);
    resize(1);
    resize(4);
    hint(session, 1, (int32_t[]){0}, 1);
    pool_rig_check(&rig);
    expect_counters(1, 0, 2, 0, 0);
    resize(1); /* drops it */
    expect_counters(1, 0, 3, 0, 0);
    close_rig(session);
}

static void test_prefetch_gives_its_slot_to_demand(void **state)
{
    (void)state;
    moepage_session *session = open_rig(2, 1, MOEPAGE_PREFETCH_HINT);
    hint(session, 1, (int32_t[]){0, 1}, 2);
    /* Whatever of it is done by now: both slots are needed. */
    pool_rig_visit(session, 0, (int32_t[]){5, 6}, 2);
    pool_rig_check(&rig);
    assert_int_equal(pool_rig_state(&rig, 0, 5), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(pool_rig_state(&rig, 0, 6), MOEPAGE_EXPERT_RESIDENT);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.misses, 2);
    assert_int_equal(info.prefetch_useful, 0);
    close_rig(session);
}

static void test_prefetch_that_fails_does_not_fail_demand(void **state)
{
    (void)state;
    moepage_session *session = open_rig(4, 1, MOEPAGE_PREFETCH_HINT);
    atomic_store(&bank.fail_call, 1);
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0}, 1);
    await_arrival();
    open_gate();
    /* It has landed, as a failure that nobody has looked at. */
    mp_shard *shard = &rig.pool->cache->shards[0];
    while (atomic_load(&rig.pool->ahead->pending) > 0 &&
           !atomic_load(&shard->transfer->passages[0].result))
        sched_yield();
    mp_stream *bus = shard->transfer->pipes[MP_PIPE_PREFETCH].bus;
    assert_int_equal(shard->transfer->home->device->ops->sync(bus, bank.n_tensors), MOEPAGE_OK);
    pool_rig_visit(session, 1, (int32_t[]){0}, 1);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.failed_loads, 1);
    assert_int_equal(info.misses, 1);
    expect_counters(0, 0, 0, 0, 0);
    close_rig(session);
}

static void *pin_expert(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)moepage_expert_pool_pin(rig.pool, 1, 0);
}

static void test_prefetch_that_a_pin_waits_for_is_not_late(void **state)
{
    (void)state;
    moepage_session *session = open_rig(8, 1, MOEPAGE_PREFETCH_HINT);
    close_gate_for(1, 0);
    hint(session, 1, (int32_t[]){0}, 1);
    await_arrival();
    pthread_t thread;
    void *status;
    assert_int_equal(pthread_create(&thread, NULL, pin_expert, NULL), 0);
    while (MP_WORD_USERS(atomic_load(&rig.pool->cache->shards[0].words[0])) == 0)
        sched_yield();
    open_gate();
    assert_int_equal(pthread_join(thread, &status), 0);
    assert_null(status);
    expect_counters(0, 0, 0, 0, 0);
    pool_rig_visit(session, 1, (int32_t[]){0}, 1);
    expect_counters(1, 0, 0, 0, 0);
    assert_int_equal(loads_of(1, 0), 1);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 0), MOEPAGE_OK);
    close_rig(session);
}

/* The previous set of the layer ahead is fetched as soon as this layer is routed. */
static void test_prefetch_previous_repeats_the_last_step(void **state)
{
    (void)state;
    static const int32_t sets[LAYERS][2] = {{0, 1}, {2, 3}, {4, 5}};
    moepage_session *session = open_rig(8, 1, MOEPAGE_PREFETCH_PREVIOUS);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            pool_rig_visit(session, l, sets[l], 2);
            pool_rig_check(&rig); /* time enough for every prefetch */
        }
        moepage_expert_pool_info info = pool_rig_info(&rig);
        /* The first pass knows nothing. The second one finds the one expert left in slot 0, and
         * of the layers behind the first everything. */
        assert_int_equal(info.misses, pass == 0 ? 6 : 7);
        assert_int_equal(info.hits, pass == 0 ? 0 : 5);
        expect_counters(pass == 0 ? 0 : 4, 0, 0, 0, 0);
        resize(1);
        resize(8);
    }
    close_rig(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefetch_brings_what_is_hinted_in_order),
        cmocka_unit_test(test_prefetch_lets_demand_go_first),
        cmocka_unit_test(test_prefetch_under_way_is_not_loaded_twice),
        cmocka_unit_test(test_prefetch_is_cancelled_when_its_layer_comes),
        cmocka_unit_test(test_prefetch_half_way_is_given_up_when_its_layer_comes),
        cmocka_unit_test(test_prefetch_wanted_again_is_not_given_up),
        cmocka_unit_test(test_prefetch_of_another_session_is_left_alone),
        cmocka_unit_test(test_prefetch_that_two_want_is_not_called_off_by_one),
        cmocka_unit_test(test_prefetch_depth_ends_at_the_layers),
        cmocka_unit_test(test_prefetch_never_evicts_what_is_held),
        cmocka_unit_test(test_prefetch_evicts_by_what_was_used_last),
        cmocka_unit_test(test_prefetch_counts_waste),
        cmocka_unit_test(test_prefetch_gives_its_slot_to_demand),
        cmocka_unit_test(test_prefetch_that_fails_does_not_fail_demand),
        cmocka_unit_test(test_prefetch_that_a_pin_waits_for_is_not_late),
        cmocka_unit_test(test_prefetch_previous_repeats_the_last_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
