/* The controller where something is missing, shared, under way, or more than there is. */
#include <string.h>

#include "control_rig.h"
#include "kv_tokens.h"
#include "testing.h"

enum { LAYERS = 3, EXPERTS = 16, KEYS = LAYERS * EXPERTS, BLOCK_TOKENS = 4 };

static const int32_t any_ids[4] = {0, 1, 2, 3};

static control_rig_config config_of(uint64_t arena, uint64_t slots, uint64_t blocks)
{
    return (control_rig_config){
        .bank = {.layers = LAYERS,
                 .experts = EXPERTS,
                 .top_k = 4,
                 .hidden = 16,
                 .intermediate = 8,
                 .seed = 5},
        .pool = {.slots = slots, .arena_slots = arena},
        .blocks = blocks,
        .block_tokens = BLOCK_TOKENS,
        .blocks_per_slot = 1,
        .regime = MOEPAGE_REGIME_CACHE,
    };
}

static void open_rig(control_rig *rig, uint64_t arena, uint64_t slots, uint64_t blocks)
{
    control_rig_config config = config_of(arena, slots, blocks);
    control_rig_open(rig, &config);
}

/* Every expert again and again, four at a time. */
static void cycle_experts(control_rig *rig, uint32_t steps, const moepage_seq *seqs, uint32_t n)
{
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = i * 4 % KEYS;
        int32_t ids[4];
        for (uint32_t k = 0; k < 4; k++)
            ids[k] = (int32_t)((at + k) % EXPERTS);
        control_rig_step(rig, at / EXPERTS, 1, ids, 4, seqs, n);
    }
}

static void test_controller_edges_without_kv_nothing_moves(void **state)
{
    (void)state;
    static const uint32_t modes[] = {MOEPAGE_CONTROL_MV_WSA, MOEPAGE_CONTROL_DUAL_RESIZE,
                                     MOEPAGE_CONTROL_OBSERVE, MOEPAGE_CONTROL_FIXED,
                                     MOEPAGE_CONTROL_FLUX};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        control_rig rig;
        open_rig(&rig, 32, 20, 0);
        control_rig_attach(&rig, (moepage_controller_config){.mode = modes[i],
                                                             .burst_steps = 64,
                                                             .expert_percent = 50});
        for (int burst = 0; burst < 4; burst++) {
            cycle_experts(&rig, 64, NULL, 0);
            moepage_controller_report report = control_rig_tick(&rig);
            assert_int_equal(report.outcome, MOEPAGE_CONTROL_STAYS);
            assert_int_equal(report.target_blocks, 0);
        }
        if (modes[i] == MOEPAGE_CONTROL_OBSERVE) /* more is better, and 32 there could be */
            assert_int_equal(control_rig_tick(&rig).target_slots, 32);
        assert_true(control_rig_info(&rig).expert_accesses > 0);
        assert_int_equal(moepage_controller_kv_use(rig.controller, 1, 1), MOEPAGE_E_STATE);
        control_rig_expect(&rig, 20, 0);
        control_rig_close(&rig);
    }
}

static void test_controller_edges_observing_predicts_and_moves_nothing(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, 16, 80);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                         .burst_steps = 12,
                                                         .context_tokens = BLOCK_TOKENS});
    cycle_experts(&rig, 12, NULL, 0);
    moepage_controller_report report = control_rig_tick(&rig);
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_WAITS); /* nothing but first sights */
    for (int burst = 0; burst < 8; burst++) {
        cycle_experts(&rig, 12, NULL, 0);
        report = control_rig_tick(&rig);
    }
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_STAYS);
    assert_int_equal(report.target_slots, KEYS);
    assert_int_equal(report.target_blocks, KEYS);
    moepage_controller_info info = control_rig_info(&rig);
    assert_true(info.predicted_now_ns > info.predicted_best_ns);
    control_rig_expect(&rig, 16, 80);
    control_rig_close(&rig);
}

/* A KV pool is never of nothing. */
static void test_controller_edges_flux_leaves_kv_one_unit(void **state)
{
    (void)state;
    control_rig rig;
    control_rig_config config = config_of(32, 10, 12);
    config.blocks_per_granule = 3;
    control_rig_open(&rig, &config);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_FLUX,
                                                         .burst_steps = 64});
    for (int burst = 0; burst < 3; burst++) {
        cycle_experts(&rig, 64, NULL, 0);
        control_rig_tick(&rig);
    }
    control_rig_expect(&rig, 29, 3);
    control_rig_close(&rig);
}

static void test_controller_edges_moves_whole_granules(void **state)
{
    (void)state;
    control_rig rig;
    control_rig_config config = config_of(2 * KEYS, 20, 40);
    config.blocks_per_granule = 7;
    control_rig_open(&rig, &config);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE,
                                                         .burst_steps = 1,
                                                         .context_tokens = 50 * BLOCK_TOKENS,
                                                         .headroom_permille = 1});
    cycle_experts(&rig, 1, NULL, 0);
    assert_int_equal(control_rig_info(&rig).floor_blocks, 56);
    assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_MOVED);
    control_rig_expect(&rig, 40, 56); /* 96 slots: 8 granules of 7 blocks, the rest */
    control_rig_close(&rig);
}

/* ---- the floor ---- */

static void test_controller_edges_a_floor_beyond_all_numbers_is_infeasible(void **state)
{
    (void)state;
    static const uint32_t modes[] = {MOEPAGE_CONTROL_MV_WSA, MOEPAGE_CONTROL_DUAL_RESIZE,
                                     MOEPAGE_CONTROL_PLANNER, MOEPAGE_CONTROL_FIXED};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        control_rig rig;
        control_rig_config config = config_of(2 * KEYS, 16, 40);
        config.blocks_per_granule = 4;
        control_rig_open(&rig, &config);
        control_rig_attach(&rig, (moepage_controller_config){.mode = modes[i],
                                                             .burst_steps = 1,
                                                             .context_tokens = UINT64_MAX,
                                                             .concurrency = UINT32_MAX,
                                                             .expert_percent = 50});
        cycle_experts(&rig, 1, NULL, 0);
        assert_true(control_rig_info(&rig).floor_blocks == UINT64_MAX);
        bool planner = modes[i] == MOEPAGE_CONTROL_PLANNER; /* it does what it can */
        if (planner)
            assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_MOVED);
        cycle_experts(&rig, 1, NULL, 0);
        assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_INFEASIBLE);
        control_rig_expect(&rig, planner ? 4 : 16, planner ? 92 : 40);
        control_rig_close(&rig);
    }
}

/* The budget, of whole parts of memory, has room for the images and little else: that is no split, and none is asked for. */
static void test_controller_edges_images_that_leave_nothing_are_infeasible(void **state)
{
    (void)state;
    enum { PAGE = 4096, WORKSPACE = 1 << 20, IMAGE_PAGES = 7 };
    static const uint32_t token_bytes[1] = {64};
    const bank_shape shape = {.layers = LAYERS,
                              .experts = 10,
                              .top_k = 3,
                              .hidden = 16,
                              .intermediate = 8,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .pack_forms = 1u << MOEPAGE_FORM_EXPH,
                              .seed = 5};
    bank_model bank;
    moepage_device *device = NULL;
    moepage_kv_pool *kv = NULL;
    moepage_expert_pool *experts = NULL;
    moepage_session *session = NULL;
    moepage_controller *controller = NULL;
    moepage_controller_report report = MOEPAGE_CONTROLLER_REPORT();
    bank_model_open(&bank, &shape);
    const moepage_device_config room =
        MOEPAGE_DEVICE_CONFIG(.threads = 1, .workspace_bytes = WORKSPACE,
                              .budget_bytes = WORKSPACE + IMAGE_PAGES * PAGE,
                              .max_budget_bytes = WORKSPACE + 20 * PAGE);
    assert_int_equal(moepage_device_open("host", &room, &device), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_create(device,
                                            &MOEPAGE_KV_POOL_CONFIG(.block_tokens = 1, .layers = 1,
                                                                    .bytes_per_token = token_bytes,
                                                                    .blocks_per_granule = 1,
                                                                    .blocks = 2),
                                            &kv),
                     MOEPAGE_OK);
    assert_int_equal(
        moepage_expert_pool_create(&device, 1, bank.model,
                                   &MOEPAGE_EXPERT_POOL_CONFIG(.slots = 5, .compressed_experts = 9),
                                   &experts),
        MOEPAGE_OK);
    assert_int_equal(moepage_session_create(experts, kv, NULL, &session), MOEPAGE_OK);
    assert_int_equal(
        moepage_controller_create(experts, kv,
                                  &MOEPAGE_CONTROLLER_CONFIG(.mode = MOEPAGE_CONTROL_DUAL_RESIZE,
                                                             .burst_steps = 1),
                                  &controller),
        MOEPAGE_OK);
    assert_int_equal(moepage_session_begin(session, &MOEPAGE_STEP(1)), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_controller_tick(controller, NULL, &report), MOEPAGE_OK);
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_INFEASIBLE);
    assert_int_equal(moepage_controller_destroy(controller), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(experts), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    bank_model_close(&bank);
}

/* Eight sequences that share a prefix have its blocks once. */
static void test_controller_edges_shared_blocks_count_once(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, 16, 80);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE,
                                                         .burst_steps = 1,
                                                         .context_tokens = BLOCK_TOKENS});
    moepage_seq seqs[8] = {control_rig_sequence(&rig, 30)};
    for (int i = 1; i < 8; i++)
        assert_int_equal(moepage_kv_fork(rig.kv, seqs[0], &seqs[i]), MOEPAGE_OK);
    control_rig_step(&rig, 0, 1, any_ids, 4, seqs, 8);
    assert_int_equal(control_rig_info(&rig).floor_blocks, 30);
    assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_MOVED);
    control_rig_expect(&rig, KEYS, KEYS);
    control_rig_close(&rig);
}

/* Sequences that go on step after step are running in every burst, with what they have grown to. */
static void test_controller_edges_what_runs_is_never_below_the_floor(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, 16, 80);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE,
                                                         .burst_steps = 4,
                                                         .decay_permille = 1000,
                                                         .context_tokens = BLOCK_TOKENS});
    moepage_seq seqs[2] = {control_rig_sequence(&rig, 5), control_rig_sequence(&rig, 7)};
    for (uint32_t s = 0; s < 200; s++) {
        if (s % 10 == 9)
            assert_int_equal(moepage_kv_append(rig.kv, seqs[0], BLOCK_TOKENS, NULL), MOEPAGE_OK);
        control_rig_step(&rig, 0, 1, any_ids, 4, seqs, 2);
        assert_int_equal(control_rig_info(&rig).floor_blocks, 12 + (s + 1) / 10);
        control_rig_tick(&rig);
    }
    /* And a use once in 64 steps: with 18, 24 and 31 blocks. */
    moepage_controller_info info = control_rig_info(&rig);
    assert_int_equal(info.kv_accesses - info.kv_first, 18 + 24 + 31);
    control_rig_close(&rig);
}

/* ---- what is under way ---- */

static void begin_step(control_rig *rig, moepage_seq seq)
{
    moepage_step_sequence sequence = {.seq = seq, .n_tokens = 1};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = 1,
                         .n_sequences = 1,
                         .sequences = &sequence};
    assert_int_equal(moepage_session_begin(rig->session, &step), MOEPAGE_OK);
}

/* Tables that an open step reads do not change under it. */
static void test_controller_edges_a_tick_inside_a_step_moves_no_table(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, 16, 80);
    uint32_t bytes_per_token = (uint32_t)(pool_rig_info(&rig.pools).slot_bytes / BLOCK_TOKENS);
    kv_tokens tokens;
    kv_tokens_open(&tokens, rig.kv, 1, &bytes_per_token);
    moepage_seq low, high = control_rig_sequence(&rig, 70);
    uint64_t tags[2 * BLOCK_TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(moepage_kv_create(rig.kv, &low), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(rig.kv, low, 2 * BLOCK_TOKENS, NULL), MOEPAGE_OK);
    kv_tokens_write(&tokens, low, 0, 2 * BLOCK_TOKENS, tags);
    assert_int_equal(moepage_kv_free(rig.kv, high), MOEPAGE_OK); /* `low` is in the way of a move */
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                                         .burst_steps = 1,
                                                         .context_tokens = BLOCK_TOKENS,
                                                         .expert_percent = 50});
    control_rig_step(&rig, 0, 1, any_ids, 4, NULL, 0);
    begin_step(&rig, low);
    moepage_kv_table before = {.struct_size = sizeof before}, after = before;
    assert_int_equal(moepage_kv_get_table(rig.kv, low, &before), MOEPAGE_OK);
    uint32_t ids[2] = {before.blocks[0], before.blocks[1]};
    assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_DRAINING);
    assert_int_equal(moepage_kv_get_table(rig.kv, low, &after), MOEPAGE_OK);
    assert_memory_equal(after.blocks, ids, sizeof ids);
    assert_true(kv_tokens_match(&tokens, low, 2 * BLOCK_TOKENS, tags));
    assert_int_equal(moepage_session_end(rig.session, NULL), MOEPAGE_OK);
    assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_MOVED);
    assert_true(kv_tokens_match(&tokens, low, 2 * BLOCK_TOKENS, tags));
    control_rig_expect(&rig, 48, 48);
    control_rig_close(&rig);
}

/* A host that never makes room is told so, and then that it stays as it is; again and again. */
static void test_controller_edges_kv_full_of_idle_sequences_stays(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, 16, 80);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_MV_WSA,
                                                         .burst_steps = 64,
                                                         .context_tokens = BLOCK_TOKENS});
    control_rig_sequence(&rig, 80);
    uint32_t seen[6] = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        cycle_experts(&rig, 12, NULL, 0);
        seen[control_rig_tick(&rig).outcome]++;
        control_rig_expect(&rig, 16, 80);
    }
    assert_true(seen[MOEPAGE_CONTROL_DRAINING] > 300 && seen[MOEPAGE_CONTROL_REFUSED] >= 2);
    assert_int_equal(seen[MOEPAGE_CONTROL_MOVED], 0);
    assert_int_equal(control_rig_info(&rig).refused, seen[MOEPAGE_CONTROL_REFUSED]);
    control_rig_close(&rig);
}

/* The fence that a move has put up goes with the controller. */
static void test_controller_edges_is_destroyed_in_the_middle_of_a_move(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, KEYS, 40);
    moepage_session *other = pool_rig_session(&rig.pools, NULL);
    cycle_experts(&rig, 8, NULL, 0);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_FIXED,
                                                         .burst_steps = 1,
                                                         .context_tokens = BLOCK_TOKENS,
                                                         .expert_percent = 25});
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(other, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(other, 2, any_ids, 4, &plan), MOEPAGE_OK);
    control_rig_step(&rig, 0, 1, any_ids, 4, NULL, 0);
    assert_int_equal(control_rig_tick(&rig).outcome, MOEPAGE_CONTROL_DRAINING);
    assert_int_equal(moepage_session_retire(other, 2), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(other, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(rig.pools.pool), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_session_destroy(other), MOEPAGE_OK);
    assert_int_equal(moepage_controller_destroy(rig.controller), MOEPAGE_OK);
    rig.controller = NULL;
    cycle_experts(&rig, 24, NULL, 0);
    assert_int_equal(pool_rig_info(&rig.pools).resident, KEYS); /* all slots are open again */
    control_rig_expect(&rig, KEYS, 40);
    control_rig_close(&rig);
}

/* Pools outlive what watches them, whichever is asked first. */
static void test_controller_edges_pools_wait_for_their_controller(void **state)
{
    (void)state;
    control_rig rig;
    open_rig(&rig, 2 * KEYS, 16, 40);
    control_rig_attach(&rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE});
    assert_int_equal(moepage_session_destroy(rig.session), MOEPAGE_OK);
    rig.session = NULL;
    assert_int_equal(moepage_kv_pool_destroy(rig.kv), MOEPAGE_E_BUSY);
    assert_int_equal(moepage_expert_pool_destroy(rig.pools.pool), MOEPAGE_E_BUSY);
    control_rig_tick(&rig);
    control_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_edges_without_kv_nothing_moves),
        cmocka_unit_test(test_controller_edges_observing_predicts_and_moves_nothing),
        cmocka_unit_test(test_controller_edges_flux_leaves_kv_one_unit),
        cmocka_unit_test(test_controller_edges_moves_whole_granules),
        cmocka_unit_test(test_controller_edges_a_floor_beyond_all_numbers_is_infeasible),
        cmocka_unit_test(test_controller_edges_images_that_leave_nothing_are_infeasible),
        cmocka_unit_test(test_controller_edges_shared_blocks_count_once),
        cmocka_unit_test(test_controller_edges_what_runs_is_never_below_the_floor),
        cmocka_unit_test(test_controller_edges_a_tick_inside_a_step_moves_no_table),
        cmocka_unit_test(test_controller_edges_kv_full_of_idle_sequences_stays),
        cmocka_unit_test(test_controller_edges_is_destroyed_in_the_middle_of_a_move),
        cmocka_unit_test(test_controller_edges_pools_wait_for_their_controller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
