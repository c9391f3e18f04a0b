/* The split moves under a pool with two versions of every expert: the number of high versions per layer
 * follows the slots, the hottest have them, the low versions stay, and no expert is ever without one. */
#include <sched.h>
#include <string.h>

#include "kv/kv_pool.h"
#include "pack_maker.h"
#include "split/split.h"
#include "testing.h"
#include "versions_rig.h"

#define LAYERS 3
#define EXPERTS 8
#define MOST_STEPS 200000
#define SPARE (256u << 10)

static const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};

typedef struct world {
    versions_rig rig;
    moepage_kv_pool *kv;
    moepage_session *session;
} world;

static const uint32_t bytes_per_token[1] = {64};

static void open_world(world *w, const moepage_precision_config *precision)
{
    versions_rig_open_wide(&w->rig, NULL, precision, SPARE);
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = 4,
                                 .layers = 1,
                                 .bytes_per_token = bytes_per_token,
                                 .blocks_per_granule = 4,
                                 .blocks = 64};
    assert_int_equal(moepage_kv_pool_create(w->rig.device, &kv, &w->kv), MOEPAGE_OK);
    w->session = versions_rig_session(&w->rig, 16);
}

static void close_world(world *w)
{
    moepage_session_destroy(w->session);
    assert_int_equal(moepage_kv_pool_destroy(w->kv), MOEPAGE_OK);
    versions_rig_close(&w->rig);
}

static uint64_t expert_bytes(world *w)
{
    moepage_device_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_device_get_info(w->rig.device, &info), MOEPAGE_OK);
    assert_true(info.used_bytes <= info.budget_bytes);
    return info.arena_expert_bytes;
}

/* Every expert of every layer, byte for byte. */
static void look(world *w, uint8_t forms[LAYERS][EXPERTS])
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(w->session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        versions_rig_layer(&w->rig, w->session, l, all, EXPERTS, forms[l]);
    assert_int_equal(moepage_session_cancel(w->session), MOEPAGE_OK);
}

/* Token t chooses expert e if e <= t: expert 0 is the hottest, then 1, and so on down. */
static void step_by_rank(world *w)
{
    int32_t ids[EXPERTS * EXPERTS];
    float weights[EXPERTS * EXPERTS];
    for (uint32_t t = 0; t < EXPERTS; t++)
        for (uint32_t k = 0; k < EXPERTS; k++) {
            ids[t * EXPERTS + k] = k + t < EXPERTS ? (int32_t)k : MOEPAGE_NO_EXPERT;
            weights[t * EXPERTS + k] = 1;
        }
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = EXPERTS};
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = EXPERTS,
                                     .ids = ids,
                                     .weights = weights};
    assert_int_equal(moepage_session_begin(w->session, &step), MOEPAGE_OK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(moepage_session_route(w->session, l, &routing, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(w->session, l), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_end(w->session, NULL), MOEPAGE_OK);
    sched_yield();
}

/* Steps until the n hottest experts of each layer are high, and no others. */
static void settle(world *w, uint32_t n)
{
    uint8_t forms[LAYERS][EXPERTS];
    for (uint32_t s = 0; s < MOST_STEPS; s++) {
        uint32_t wrong = 0;
        step_by_rank(w);
        look(w, forms);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_true(versions_rig_count_high(&w->rig, l) <= n);
            for (uint32_t e = 0; e < EXPERTS; e++)
                wrong += (forms[l][e] == MOEPAGE_FORM_DENSE) != (e < n);
        }
        if (wrong == 0)
            return;
    }
    fail_msg("the %u hottest have not become high", n);
}

static void move_to(world *w, uint32_t n, uint64_t blocks)
{
    const moepage_expert_pool_info before = versions_rig_info(&w->rig);
    const uint64_t bytes = expert_bytes(w);
    if (moepage_split_set(w->rig.pool, w->kv, n * LAYERS, blocks, NULL))
        fail_msg("%u per layer: %s", n, moepage_last_error());
    const moepage_expert_pool_info after = versions_rig_info(&w->rig);
    assert_int_equal(after.slots, n * LAYERS);
    assert_int_equal(after.hi_experts, n);
    assert_int_equal(after.slot_step, LAYERS);
    assert_int_equal(after.lo_bytes, before.lo_bytes); /* low versions stay */
    assert_int_equal(after.resizes, before.resizes + 1);
    assert_true(after.hi_published <= n * LAYERS);
    assert_int_equal(expert_bytes(w) - bytes, (after.slots - before.slots) * after.slot_bytes);
    assert_int_equal(after.transitions_failed + after.failed_loads, 0);
}

/* There and back, at every size: those that had to leave are the coldest once all is quiet. */
static void moves_both_ways(const moepage_precision_config *precision, uint32_t least)
{
    static const uint32_t sizes[] = {5, 2, 1, 3, 8, 4, 7, 1, 6, 2};
    world w;
    open_world(&w, precision);
    settle(&w, precision->hi_experts);
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint32_t n = sizes[i] < least ? least : sizes[i];
        move_to(&w, n, 0);
        settle(&w, n);
    }
    close_world(&w);
}

static void test_version_moves_the_hottest_stay_high(void **state)
{
    (void)state;
    moves_both_ways(&(moepage_precision_config){.hi_experts = 3}, 1);
    moves_both_ways(&(moepage_precision_config){.hi_experts = 4, .transitions = 1}, 1);
    moves_both_ways(&(moepage_precision_config){.hi_experts = 3,
                                                .transitions = 64,
                                                .hi_form = MOEPAGE_FORM_DENSE,
                                                .lo_form = MOEPAGE_FORM_INT8},
                    1);
}

static void test_version_moves_keep_places_for_fetched_low_versions(void **state)
{
    (void)state;
    moves_both_ways(&(moepage_precision_config){.hi_experts = 2, .lo_fetched = 1}, 2);
    moves_both_ways(
        &(moepage_precision_config){.hi_experts = 3, .lo_fetched = 1, .transitions = 64}, 3);
}

static void test_version_moves_give_kv_what_high_versions_leave(void **state)
{
    (void)state;
    world w;
    open_world(&w, &(moepage_precision_config){.hi_experts = 6});
    settle(&w, 6);
    moepage_kv_pool_info kv = {.struct_size = sizeof kv};
    const moepage_expert_pool_info before = versions_rig_info(&w.rig);
    /* More blocks than the arena has beside six per layer, and enough beside two. */
    const uint64_t granule = 4 * 4 * 64;
    const uint64_t blocks = (SPARE + 2 * LAYERS * before.slot_bytes) / granule * 4;
    assert_int_equal(moepage_split_set(w.rig.pool, w.kv, 0, blocks, NULL), MOEPAGE_E_BUDGET);
    assert_int_equal(versions_rig_info(&w.rig).hi_experts, 6);
    move_to(&w, 2, blocks);
    assert_int_equal(moepage_kv_pool_get_info(w.kv, &kv), MOEPAGE_OK);
    assert_true(kv.blocks >= blocks);
    assert_int_equal(moepage_split_set(w.rig.pool, w.kv, 8 * LAYERS, 0, NULL), MOEPAGE_E_BUDGET);
    settle(&w, 2);
    move_to(&w, 6, 64);
    settle(&w, 6);
    close_world(&w);
}

static void test_version_moves_at_the_very_start(void **state)
{
    (void)state;
    world w;
    open_world(&w, &(moepage_precision_config){.hi_experts = 4});
    move_to(&w, 1, 0); /* nothing is high yet */
    settle(&w, 1);
    close_world(&w);
    open_world(&w, &(moepage_precision_config){.hi_experts = 2, .lo_fetched = 1});
    move_to(&w, 5, 0); /* the first two are, and stay so until others are hot */
    assert_int_equal(versions_rig_info(&w.rig).hi_published, 2 * LAYERS);
    move_to(&w, 2, 0);
    settle(&w, 2);
    close_world(&w);
}

/* Swaps are under way whenever the move comes. */
static void test_version_moves_come_in_the_middle_of_swaps(void **state)
{
    (void)state;
    for (uint32_t fetched = 0; fetched < 2; fetched++)
        for (uint32_t steps = 0; steps < 24; steps++) {
            world w;
            open_world(&w, &(moepage_precision_config){.hi_experts = fetched ? 2 : 5,
                                                       .lo_fetched = fetched,
                                                       .transitions = 1 + steps % 5,
                                                       .margin = -1});
            if (fetched)
                move_to(&w, 5, 0);
            for (uint32_t s = 0; s < steps; s++)
                step_by_rank(&w);
            move_to(&w, 2, 0);
            for (uint32_t l = 0; l < LAYERS; l++)
                assert_true(versions_rig_count_high(&w.rig, l) <= 2);
            settle(&w, 2);
            close_world(&w);
        }
}

/* ---- what is refused ---- */

static void test_version_moves_refuse_what_would_leave_an_expert_without_a_version(void **state)
{
    (void)state;
    world w;
    open_world(&w, &(moepage_precision_config){.hi_experts = 3, .lo_fetched = 1});
    settle(&w, 3);
    assert_int_equal(moepage_split_set(w.rig.pool, w.kv, 2 * LAYERS, 0, NULL), MOEPAGE_E_BUDGET);
    assert_non_null(strstr(moepage_last_error(), "low versions"));
    const uint64_t uneven[] = {1, LAYERS - 1, 3 * LAYERS + 1, (EXPERTS + 1) * LAYERS};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(moepage_split_set(w.rig.pool, w.kv, uneven[i], 0, NULL), MOEPAGE_E_BUDGET);
    const moepage_expert_pool_info info = versions_rig_info(&w.rig);
    assert_int_equal(info.hi_experts, 3);
    assert_int_equal(info.resizes, 0);
    assert_int_equal(info.resizes_refused, 5);
    settle(&w, 3);
    close_world(&w);
}

/* An open step computes with what it began with: one attempt is refused and changes nothing. */
static void test_version_moves_once_are_refused_while_a_step_is_open(void **state)
{
    (void)state;
    world w;
    uint8_t before[LAYERS][EXPERTS], now[EXPERTS];
    open_world(&w, &(moepage_precision_config){.hi_experts = 4});
    settle(&w, 4);
    look(&w, before);
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(w.session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_split_set(w.rig.pool, w.kv, 2 * LAYERS, 0, NULL), MOEPAGE_E_BUSY);
    assert_non_null(strstr(moepage_last_error(), "step is open"));
    assert_int_equal(versions_rig_info(&w.rig).hi_experts, 4);
    move_to(&w, 6, 0); /* growing needs nobody's consent */
    for (uint32_t l = 0; l < LAYERS; l++) {
        versions_rig_layer(&w.rig, w.session, l, all, EXPERTS, now);
        assert_memory_equal(now, before[l], EXPERTS);
    }
    assert_int_equal(moepage_session_end(w.session, NULL), MOEPAGE_OK);
    settle(&w, 6);
    move_to(&w, 2, 0);
    settle(&w, 2);
    close_world(&w);
}

/* ---- moves that wait ---- */

/* What an open step sees is not taken away; what a later step begins with has left already. */
static void moves_wait(uint32_t lo_fetched)
{
    world w;
    uint8_t before[LAYERS][EXPERTS], now[EXPERTS], after[LAYERS][EXPERTS];
    open_world(&w, &(moepage_precision_config){.hi_experts = 2, .lo_fetched = lo_fetched});
    move_to(&w, 6, 0);
    settle(&w, 6);
    moepage_session *slow = versions_rig_session(&w.rig, 4);
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    look(&w, before);
    assert_int_equal(moepage_session_begin(slow, &step), MOEPAGE_OK);
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(mp_split_move(w.rig.pool, w.kv, 2 * LAYERS, 0, NULL), MOEPAGE_E_BUSY);
        assert_int_equal(versions_rig_info(&w.rig).slots, 6 * LAYERS);
        step_by_rank(&w);
    }
    look(&w, after);
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t high = 0;
        versions_rig_layer(&w.rig, slow, l, all, EXPERTS, now);
        assert_memory_equal(now, before[l], EXPERTS);
        for (uint32_t e = 0; e < EXPERTS; e++)
            high += after[l][e] == MOEPAGE_FORM_DENSE;
        assert_true(high <= 2);
    }
    assert_int_equal(moepage_session_end(slow, NULL), MOEPAGE_OK);
    moepage_status status = MOEPAGE_E_BUSY;
    for (uint32_t i = 0; i < MOST_STEPS && status == MOEPAGE_E_BUSY; i++) {
        status = mp_split_move(w.rig.pool, w.kv, 2 * LAYERS, 0, NULL);
        sched_yield();
    }
    assert_int_equal(status, MOEPAGE_OK);
    assert_int_equal(versions_rig_info(&w.rig).hi_experts, 2);
    settle(&w, 2);
    moepage_session_destroy(slow);
    close_world(&w);
}

static void test_version_moves_wait_for_open_steps(void **state)
{
    (void)state;
    moves_wait(0);
}

static void test_version_moves_wait_for_open_steps_with_fetched_low_versions(void **state)
{
    (void)state;
    moves_wait(1);
}

static void test_version_moves_that_are_given_up_leave_the_old_budget(void **state)
{
    (void)state;
    world w;
    open_world(&w, &(moepage_precision_config){.hi_experts = 6});
    settle(&w, 6);
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    assert_int_equal(moepage_session_begin(w.session, &step), MOEPAGE_OK);
    assert_int_equal(mp_split_move(w.rig.pool, w.kv, LAYERS, 0, NULL), MOEPAGE_E_BUSY);
    mp_split_abandon(w.rig.pool);
    assert_int_equal(moepage_session_end(w.session, NULL), MOEPAGE_OK);
    assert_int_equal(versions_rig_info(&w.rig).hi_experts, 6);
    settle(&w, 6);
    close_world(&w);
}

/* ---- a cache with substitutes ---- */

static void test_version_moves_of_a_cache_leave_its_low_versions(void **state)
{
    (void)state;
    versions_rig rig = {.spare_bytes = SPARE};
    bank_shape shape = {.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = 2,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .pack_forms = PACK_FORM(DENSE) | PACK_FORM(INT4)};
    const moepage_precision_config precision = {.serve = MOEPAGE_SERVE_CACHE,
                                                .lo_form = MOEPAGE_FORM_INT4};
    bank_model_open(&rig.bank, &shape);
    versions_rig_open_over(&rig, rig.bank.model, &precision, 10);
    const uint64_t lo_bytes = versions_rig_info(&rig).lo_bytes;
    moepage_session *low = NULL, *exact = versions_rig_session(&rig, 1);
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .max_top_k = EXPERTS,
                                           .miss = MOEPAGE_MISS_LOW};
    assert_int_equal(moepage_session_create(rig.pool, NULL, &config, &low), MOEPAGE_OK);
    static const uint32_t sizes[] = {4, 24, 5, 13, 4, 9};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (moepage_split_set(rig.pool, NULL, sizes[i], 0, NULL))
            fail_msg("%u slots: %s", sizes[i], moepage_last_error());
        const moepage_expert_pool_info info = versions_rig_info(&rig);
        assert_int_equal(info.slots, sizes[i]);
        assert_int_equal(info.lo_bytes, lo_bytes);
        assert_true(info.resident + info.loading <= sizes[i]);
        for (uint32_t s = 0; s < 40; s++) { /* looks at every byte */
            const int32_t ids[2] = {(int32_t)(s % EXPERTS), (int32_t)((s + 3) % EXPERTS)};
            versions_rig_step(&rig, low, ids, 2);
            uint8_t forms[2];
            const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
            assert_int_equal(moepage_session_begin(exact, &step), MOEPAGE_OK);
            versions_rig_layer(&rig, exact, s % LAYERS, ids, 2, forms);
            assert_int_equal(forms[0] | forms[1], MOEPAGE_FORM_DENSE);
            assert_int_equal(moepage_session_end(exact, NULL), MOEPAGE_OK);
        }
    }
    assert_int_equal(moepage_split_set(rig.pool, NULL, 1, 0, NULL), MOEPAGE_E_BUDGET);
    moepage_session_destroy(low);
    moepage_session_destroy(exact);
    versions_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_moves_the_hottest_stay_high),
        cmocka_unit_test(test_version_moves_keep_places_for_fetched_low_versions),
        cmocka_unit_test(test_version_moves_give_kv_what_high_versions_leave),
        cmocka_unit_test(test_version_moves_at_the_very_start),
        cmocka_unit_test(test_version_moves_come_in_the_middle_of_swaps),
        cmocka_unit_test(test_version_moves_refuse_what_would_leave_an_expert_without_a_version),
        cmocka_unit_test(test_version_moves_once_are_refused_while_a_step_is_open),
        cmocka_unit_test(test_version_moves_wait_for_open_steps),
        cmocka_unit_test(test_version_moves_wait_for_open_steps_with_fetched_low_versions),
        cmocka_unit_test(test_version_moves_that_are_given_up_leave_the_old_budget),
        cmocka_unit_test(test_version_moves_of_a_cache_leave_its_low_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
