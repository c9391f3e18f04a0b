/* Idle KV blocks that serve experts: how many are lent, who sees it, and that they come back for whatever needs them. */
#include <string.h>

#include "control_rig.h"
#include "controllers/controller.h"
#include "kv/kv.h"
#include "testing.h"

enum { LAYERS = 3, EXPERTS = 16, KEYS = LAYERS * EXPERTS, BLOCK_TOKENS = 4, BURST = 4 };
enum { SLOTS = 16, BLOCKS = 24 };

static const int32_t any_ids[] = {0, 3, 6, 9};

/* A block is as large as a slot: what KV has less, experts have more. */
static control_rig_config rig_config(void)
{
    return (control_rig_config){
        .bank = {.layers = LAYERS,
                 .experts = EXPERTS,
                 .top_k = 4,
                 .hidden = 64,
                 .intermediate = 32,
                 .dtype = MOEPAGE_DTYPE_BF16,
                 .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                 .seed = 9},
        .pool = {.slots = SLOTS, .arena_slots = SLOTS + BLOCKS},
        .blocks = BLOCKS,
        .block_tokens = BLOCK_TOKENS,
        .blocks_per_slot = 1,
        .regime = MOEPAGE_REGIME_CACHE,
    };
}

static void open_rig(control_rig *rig, const control_rig_config *of,
                     moepage_controller_config config)
{
    control_rig_open(rig, of);
    config.burst_steps = BURST;
    control_rig_attach(rig, config);
}

static const moepage_controller_config lending = {.mode = MOEPAGE_CONTROL_MV_WSA, .admission = 1};

static void open_lending(control_rig *rig)
{
    const control_rig_config of = rig_config();
    open_rig(rig, &of, lending);
}

static void burst(control_rig *rig, const moepage_seq *seqs, uint32_t n)
{
    for (uint32_t i = 0; i < BURST; i++)
        control_rig_step(rig, 0, LAYERS, any_ids, 4, seqs, n);
    control_rig_tick(rig);
}

static moepage_kv_pool_info kv_info(control_rig *rig)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_kv_pool_get_info(rig->kv, &info), MOEPAGE_OK);
    return info;
}

static uint64_t free_blocks(control_rig *rig)
{
    const uint64_t none = 0;
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    assert_int_equal(moepage_kv_admit(rig->kv, &none, 1, &answer), MOEPAGE_OK);
    return answer.free_blocks;
}

/* So much is lent; KV's share, as whoever asks sees it, is as before. */
static void expect_lent(control_rig *rig, uint64_t lent, uint64_t used)
{
    control_rig_expect(rig, SLOTS + lent, BLOCKS);
    assert_int_equal(kv_info(rig).lent_blocks, lent);
    assert_int_equal(kv_info(rig).free_blocks, BLOCKS - used);
    assert_int_equal(free_blocks(rig), BLOCKS - used);
}

/* A sequence of one block runs, and nearly all others are lent. */
static moepage_seq lend_most(control_rig *rig)
{
    const moepage_seq seq = control_rig_sequence(rig, 1);
    burst(rig, &seq, 1);
    burst(rig, &seq, 1);
    return seq;
}

static moepage_status append(const control_rig *rig, moepage_seq seq, uint64_t blocks)
{
    return moepage_kv_append(rig->kv, seq, blocks * BLOCK_TOKENS, NULL);
}

/* KV keeps the most that was used in the burst, and a tenth. */
static void test_controller_lend_gives_experts_what_no_sequence_used(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    const moepage_seq a = control_rig_sequence(&rig, 10), b = control_rig_sequence(&rig, 2);
    burst(&rig, (moepage_seq[]){a, b}, 2);
    expect_lent(&rig, BLOCKS - 14, 12); /* 13.2 */
    assert_int_equal(moepage_kv_free(rig.kv, a), MOEPAGE_OK);
    burst(&rig, &b, 1); /* when it began 12 were in use */
    expect_lent(&rig, BLOCKS - 14, 2);
    burst(&rig, &b, 1);
    expect_lent(&rig, BLOCKS - 3, 2);
    assert_int_equal(moepage_kv_free(rig.kv, b), MOEPAGE_OK);
    burst(&rig, NULL, 0);
    burst(&rig, NULL, 0);
    expect_lent(&rig, BLOCKS - 1, 0);
    control_rig_close(&rig);
}

static void test_controller_lend_takes_back_what_an_append_needs(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    moepage_seq a = control_rig_sequence(&rig, 2);
    burst(&rig, &a, 1);
    expect_lent(&rig, BLOCKS - 3, 2);
    assert_int_equal(append(&rig, a, 1), MOEPAGE_OK);
    expect_lent(&rig, BLOCKS - 3, 3);
    assert_int_equal(control_rig_info(&rig).recalls, 0);
    const moepage_seq b = control_rig_sequence(&rig, 9);
    expect_lent(&rig, BLOCKS - 14, 12);
    assert_int_equal(control_rig_info(&rig).recalls, 1);
    assert_int_equal(append(&rig, b, 12), MOEPAGE_OK);
    expect_lent(&rig, 0, BLOCKS);
    assert_int_equal(moepage_kv_append(rig.kv, b, 1, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(kv_info(&rig).refused, 1); /* those that blocks came back for fitted */
    assert_int_equal(control_rig_info(&rig).recalls, 2);
    burst(&rig, (moepage_seq[]){a, b}, 2); /* every expert that the plans show is right */
    control_rig_close(&rig);
}

static void test_controller_lend_takes_back_what_a_swap_in_needs(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    const moepage_seq a = control_rig_sequence(&rig, 8);
    assert_int_equal(moepage_kv_swap_out(rig.kv, a, NULL), MOEPAGE_OK);
    burst(&rig, NULL, 0);
    burst(&rig, NULL, 0);
    expect_lent(&rig, BLOCKS - 1, 0);
    assert_int_equal(moepage_kv_swap_in(rig.kv, a, NULL), MOEPAGE_OK);
    expect_lent(&rig, BLOCKS - 9, 8);
    control_rig_close(&rig);
}

/* All slots are in use at times. */
static void use_all_slots(control_rig *rig, moepage_seq seq)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < EXPERTS; e += 4)
            control_rig_step(rig, l, 1, (int32_t[]){e, e + 1, e + 2, e + 3}, 4, &seq, 1);
}

/* A step's plan of all experts of a layer, left open. */
static void open_plan(control_rig *rig, moepage_plan *plan)
{
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 4};
    int32_t ids[4 * 4];
    float weights[16] = {0};
    for (int32_t i = 0; i < 16; i++)
        ids[i] = i;
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = 4,
                                     .ids = ids,
                                     .weights = weights};
    *plan = (moepage_plan){.struct_size = sizeof *plan};
    assert_int_equal(moepage_session_begin(rig->session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(rig->session, 1, &routing, plan), MOEPAGE_OK);
}

static void close_plan(control_rig *rig, const moepage_plan *plan)
{
    for (uint32_t e = 0; e < plan->n_experts; e++)
        assert_true(pool_rig_holds(&rig->pools, 1, &plan->experts[e]));
    assert_int_equal(moepage_session_retire(rig->session, 1), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(rig->session, NULL), MOEPAGE_OK);
}

/* Slots that an open plan reads stay. What waits for them has its blocks once the plan is retired. */
static void test_controller_lend_waits_for_an_open_plan(void **state)
{
    (void)state;
    control_rig rig;
    moepage_plan plan;
    open_lending(&rig);
    moepage_seq a = lend_most(&rig);
    expect_lent(&rig, BLOCKS - 2, 1);
    use_all_slots(&rig, a);
    open_plan(&rig, &plan);
    assert_int_equal(append(&rig, a, BLOCKS - 1), MOEPAGE_E_WOULD_NOT_FIT);
    assert_non_null(strstr(moepage_last_error(), "lent"));
    close_plan(&rig, &plan);
    control_rig_tick(&rig); /* goes on with it */
    expect_lent(&rig, 0, 1);
    assert_int_equal(append(&rig, a, BLOCKS - 1), MOEPAGE_OK);
    expect_lent(&rig, 0, BLOCKS);
    control_rig_close(&rig);
}

/* Images in device memory are no part of a loan. */
static void test_controller_lend_keeps_compressed_experts(void **state)
{
    (void)state;
    control_rig rig;
    moepage_plan plan;
    control_rig_config of = rig_config();
    of.pool.compressed = 3;
    of.pool.arena_slots += 3 * LAYERS;
    open_rig(&rig, &of, lending);
    moepage_seq a = lend_most(&rig);
    assert_true(kv_info(&rig).lent_blocks > 0);
    use_all_slots(&rig, a);
    open_plan(&rig, &plan);
    assert_int_equal(append(&rig, a, BLOCKS - 1), MOEPAGE_E_WOULD_NOT_FIT);
    close_plan(&rig, &plan);
    for (uint32_t i = 0; i < 20; i++)
        control_rig_tick(&rig);
    assert_int_equal(pool_rig_info(&rig.pools).compressed_experts, 3);
    assert_int_equal(append(&rig, a, BLOCKS - 1), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig.pools).compressed_experts, 3);
    control_rig_close(&rig);
}

/* Pins keep slots, and what is said to be free does not count these. Without the pins all comes back. */
static void test_controller_lend_leaves_pinned_experts(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    moepage_seq a = lend_most(&rig);
    expect_lent(&rig, BLOCKS - 2, 1);
    use_all_slots(&rig, a);
    for (uint32_t e = 12; e < 16; e++) /* they came last */
        assert_int_equal(moepage_expert_pool_pin(rig.pools.pool, 2, e), MOEPAGE_OK);
    assert_int_equal(append(&rig, a, BLOCKS - 1), MOEPAGE_E_WOULD_NOT_FIT);
    const uint64_t free = kv_info(&rig).free_blocks;
    assert_true(free < BLOCKS - 1);
    assert_int_equal(free_blocks(&rig), free);
    control_rig_tick(&rig);
    assert_int_equal(kv_info(&rig).free_blocks, free);
    if (free)
        assert_int_equal(append(&rig, a, free), MOEPAGE_OK);
    for (uint32_t e = 12; e < 16; e++)
        assert_int_equal(moepage_expert_pool_unpin(rig.pools.pool, 2, e), MOEPAGE_OK);
    control_rig_tick(&rig);
    assert_int_equal(free_blocks(&rig), BLOCKS - 1 - free);
    assert_int_equal(append(&rig, a, BLOCKS - 1 - free), MOEPAGE_OK);
    expect_lent(&rig, 0, BLOCKS);
    control_rig_close(&rig);
}

/* A split that the host sets is what is lent from. */
static void test_controller_lend_heeds_a_split_of_the_host(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    moepage_seq a = control_rig_sequence(&rig, 2);
    burst(&rig, &a, 1);
    expect_lent(&rig, BLOCKS - 3, 2);
    assert_int_equal(moepage_split_set(rig.pools.pool, rig.kv, 8, 32, NULL), MOEPAGE_OK);
    assert_int_equal(free_blocks(&rig), 30);
    burst(&rig, &a, 1);
    burst(&rig, &a, 1);
    assert_true(kv_info(&rig).lent_blocks > 20);
    assert_int_equal(free_blocks(&rig), 30);
    assert_int_equal(append(&rig, a, 28), MOEPAGE_OK);
    assert_int_equal(moepage_kv_truncate(rig.kv, a, 2 * BLOCK_TOKENS), MOEPAGE_OK);
    assert_int_equal(moepage_split_set(rig.pools.pool, rig.kv, 30, 10, NULL), MOEPAGE_OK);
    assert_int_equal(kv_info(&rig).blocks, 10);
    assert_int_equal(kv_info(&rig).lent_blocks, 0);
    control_rig_close(&rig);
}

/* Where no split has room for the floor, KV has its own back. */
static void test_controller_lend_ends_where_no_split_is_feasible(void **state)
{
    (void)state;
    control_rig rig;
    moepage_device_info device = {.struct_size = sizeof device};
    const control_rig_config of = rig_config();
    open_rig(&rig, &of,
             (moepage_controller_config){.mode = MOEPAGE_CONTROL_MV_WSA,
                                         .admission = 1,
                                         .context_tokens = BLOCKS * BLOCK_TOKENS});
    moepage_seq a = control_rig_sequence(&rig, 2);
    burst(&rig, &a, 1);
    expect_lent(&rig, BLOCKS - 3, 2);
    assert_int_equal(moepage_device_get_info(rig.pools.devices[0], &device), MOEPAGE_OK);
    const uint64_t less = device.budget_bytes - 20 * pool_rig_info(&rig.pools).slot_bytes;
    assert_int_equal(moepage_device_set_budget(rig.pools.devices[0], less, NULL), MOEPAGE_OK);
    for (uint32_t i = 0; i < BURST; i++)
        control_rig_step(&rig, 0, LAYERS, any_ids, 4, &a, 1);
    control_rig_tick(&rig);
    const uint64_t free = free_blocks(&rig);
    assert_int_equal(kv_info(&rig).lent_blocks, 0);
    assert_true(free > 8 && free < BLOCKS - 2);
    assert_int_equal(append(&rig, a, free), MOEPAGE_OK);
    for (uint32_t i = 0; i < BURST; i++)
        control_rig_step(&rig, 0, LAYERS, any_ids, 4, &a, 1);
    assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_INFEASIBLE);
    control_rig_close(&rig);
}

/* Hosts admit right behind a tick. */
static void test_controller_lend_offers_what_a_move_has_left(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    uint64_t random = 4;
    moepage_seq a = control_rig_sequence(&rig, 20);
    for (uint32_t i = 0; i < 60; i++) {
        const uint64_t n = 1 + bank_below(&random, 20);
        assert_int_equal(moepage_kv_truncate(rig.kv, a, BLOCK_TOKENS), MOEPAGE_OK);
        assert_int_equal(append(&rig, a, n), MOEPAGE_OK);
        if (bank_below(&random, 3) == 0)
            use_all_slots(&rig, a);
        burst(&rig, &a, 1);
        const uint64_t free = free_blocks(&rig);
        assert_int_equal(append(&rig, a, free), MOEPAGE_OK);
        assert_int_equal(free_blocks(&rig), 0);
    }
    control_rig_close(&rig);
}

/* Granules of three blocks. */
static void test_controller_lend_in_granules(void **state)
{
    (void)state;
    control_rig rig;
    control_rig_config of = rig_config();
    of.blocks_per_granule = 3;
    open_rig(&rig, &of, lending);
    moepage_seq a = control_rig_sequence(&rig, 2);
    burst(&rig, &a, 1);
    expect_lent(&rig, BLOCKS - 3, 2);
    for (uint64_t n = 3; n <= BLOCKS; n++) { /* one by one, and a tenth */
        assert_int_equal(append(&rig, a, 1), MOEPAGE_OK);
        assert_int_equal(free_blocks(&rig), BLOCKS - n);
        assert_int_equal(kv_info(&rig).lent_blocks % 3, 0);
    }
    expect_lent(&rig, 0, BLOCKS);
    control_rig_close(&rig);
}

/* Less comes back than was lent; nothing is lost, and what is said to be free is so. */
static void test_controller_lend_after_the_budget_has_become_smaller(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    moepage_device_info device = {.struct_size = sizeof device};
    moepage_seq a = lend_most(&rig);
    expect_lent(&rig, BLOCKS - 2, 1);
    assert_int_equal(moepage_device_get_info(rig.pools.devices[0], &device), MOEPAGE_OK);
    const uint64_t slot = pool_rig_info(&rig.pools).slot_bytes;
    const uint64_t less = device.budget_bytes - 24 * slot;
    assert_int_equal(moepage_device_set_budget(rig.pools.devices[0], less, NULL), MOEPAGE_OK);
    const uint64_t free = kv_info(&rig).free_blocks;
    assert_true(free > 0 && free < BLOCKS - 1);
    assert_int_equal(append(&rig, a, BLOCKS - 1), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(kv_info(&rig).free_blocks, free);
    assert_int_equal(append(&rig, a, free), MOEPAGE_OK);
    assert_int_equal(kv_info(&rig).free_blocks, 0);
    burst(&rig, &a, 1);
    assert_int_equal(moepage_device_get_info(rig.pools.devices[0], &device), MOEPAGE_OK);
    assert_true(device.used_bytes <= less && device.peak_bytes <= less);
    control_rig_close(&rig);
}

static void test_controller_lend_ends_with_its_controller(void **state)
{
    (void)state;
    control_rig rig;
    open_lending(&rig);
    moepage_seq a = control_rig_sequence(&rig, 2);
    burst(&rig, &a, 1);
    expect_lent(&rig, BLOCKS - 3, 2);
    assert_int_equal(moepage_controller_destroy(rig.controller), MOEPAGE_OK);
    rig.controller = NULL;
    expect_lent(&rig, 0, 2);
    control_rig_close(&rig);
}

/* Lending belongs to MV_WSA with admission: other laws are as their papers have them. */
static void test_controller_lend_is_of_one_mode(void **state)
{
    static const moepage_controller_config others[] = {
        {.mode = MOEPAGE_CONTROL_MV_WSA},
        {.mode = MOEPAGE_CONTROL_OBSERVE, .admission = 1},
        {.mode = MOEPAGE_CONTROL_FIXED, .expert_percent = 40, .admission = 1},
    };
    (void)state;
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
        control_rig rig;
        const control_rig_config of = rig_config();
        open_rig(&rig, &of, others[i]);
        moepage_seq a = control_rig_sequence(&rig, 2);
        burst(&rig, &a, 1);
        burst(&rig, &a, 1);
        expect_lent(&rig, 0, 2);
        control_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_lend_gives_experts_what_no_sequence_used),
        cmocka_unit_test(test_controller_lend_takes_back_what_an_append_needs),
        cmocka_unit_test(test_controller_lend_takes_back_what_a_swap_in_needs),
        cmocka_unit_test(test_controller_lend_waits_for_an_open_plan),
        cmocka_unit_test(test_controller_lend_keeps_compressed_experts),
        cmocka_unit_test(test_controller_lend_leaves_pinned_experts),
        cmocka_unit_test(test_controller_lend_heeds_a_split_of_the_host),
        cmocka_unit_test(test_controller_lend_ends_where_no_split_is_feasible),
        cmocka_unit_test(test_controller_lend_offers_what_a_move_has_left),
        cmocka_unit_test(test_controller_lend_in_granules),
        cmocka_unit_test(test_controller_lend_after_the_budget_has_become_smaller),
        cmocka_unit_test(test_controller_lend_ends_with_its_controller),
        cmocka_unit_test(test_controller_lend_is_of_one_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
