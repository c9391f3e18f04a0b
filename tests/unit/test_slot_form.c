/* Integers in slots: a pool of any form is split, controlled, pinned, prefetched, streamed and spread over
 * devices as a pool of dense experts is. property/test_same_bits has its outputs. */
#include <string.h>

#include "device_rig.h"
#include "pool_rig.h"
#include "testing.h"

enum {
    LAYERS = 3,
    EXPERTS = 8,
    KEYS = LAYERS * EXPERTS,
    TOP_K = 2,
    HIDDEN = 64,
    INTERMEDIATE = 32
};

static bank_model bank;
static pool_rig rig;

static int open_bank(void **state)
{
    (void)state;
    bank_model_open(&bank,
                    &(bank_shape){.layers = LAYERS,
                                  .experts = EXPERTS,
                                  .top_k = TOP_K,
                                  .hidden = HIDDEN,
                                  .intermediate = INTERMEDIATE,
                                  .dtype = MOEPAGE_DTYPE_BF16,
                                  .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_EXPH |
                                                1u << MOEPAGE_FORM_INT4,
                                  .seed = 3});
    return 0;
}

static int close_bank(void **state)
{
    (void)state;
    bank_model_close(&bank);
    return 0;
}

static void open_pool(pool_rig_config config)
{
    config.slot_form = MOEPAGE_FORM_INT4;
    pool_rig_open(&rig, &bank, &config);
}

/* Steps of two tokens through all layers, and every byte in a slot is looked at. */
static void run_steps(moepage_session *session, uint32_t n)
{
    uint64_t random = 9;
    int32_t ids[2 * TOP_K];
    float weights[2 * TOP_K], x[2 * HIDDEN], y[2 * HIDDEN];
    for (uint32_t i = 0; i < 2 * HIDDEN; i++)
        x[i] = (float)i / HIDDEN;
    for (uint32_t s = 0; s < n; s++) {
        pool_rig_begin(session, 2, MOEPAGE_PHASE_DECODE);
        for (uint32_t l = 0; l < LAYERS; l++) {
            bank_model_route(&bank, &random, 2, TOP_K, false, ids, weights);
            moepage_routing routing = {.struct_size = sizeof routing,
                                       .top_k = TOP_K,
                                       .ids = ids,
                                       .weights = weights};
            moepage_ffn ffn = {.struct_size = sizeof ffn,
                               .dtype = MOEPAGE_DTYPE_F32,
                               .x = x,
                               .y = y};
            assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
            assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    }
}

static void test_slot_form_is_what_slots_hold_and_loads_move(void **state)
{
    (void)state;
    moepage_form_info form = {.struct_size = sizeof form};
    assert_int_equal(moepage_model_get_form(bank.model, MOEPAGE_FORM_INT4, &form), MOEPAGE_OK);
    open_pool((pool_rig_config){.slots = 6});
    moepage_session *session = pool_rig_session(&rig, NULL);
    run_steps(session, 20);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_int_equal(info.slot_form, MOEPAGE_FORM_INT4);
    assert_int_equal(info.bus_form, MOEPAGE_FORM_INT4);
    assert_true(info.slot_bytes >= form.most_bytes && info.slot_bytes < form.most_bytes + 256);
    assert_true(info.misses > 0);
    assert_int_equal(info.demand_bytes, info.misses * form.most_bytes);
    assert_true(form.most_bytes * 3 < bank.expert_bytes);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

static void test_slot_form_is_sized_as_it_is_created(void **state)
{
    (void)state;
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = 1024,
                                         .slot_form = MOEPAGE_FORM_INT4};
    uint64_t workspace, arena;
    assert_int_equal(moepage_expert_pool_sizes(bank.model, &config, 1, &workspace, &arena),
                     MOEPAGE_OK);
    assert_int_equal(workspace, 0); /* nothing is decoded */
    open_pool((pool_rig_config){.slots = 6});
    assert_int_equal(arena, 1024 * pool_rig_info(&rig).slot_bytes);
    pool_rig_close(&rig);
}

static void test_slot_form_is_split_and_controlled(void **state)
{
    (void)state;
    moepage_kv_pool *kv;
    moepage_controller *controller;
    const uint32_t bytes_per_token = 64;
    open_pool((pool_rig_config){.slots = 12});
    moepage_kv_pool_config blocks = {.struct_size = sizeof blocks,
                                     .block_tokens = 4,
                                     .layers = 1,
                                     .blocks_per_granule = 1,
                                     .bytes_per_token = &bytes_per_token,
                                     .blocks = 8};
    assert_int_equal(moepage_kv_pool_create(rig.devices[0], &blocks, &kv), MOEPAGE_OK);
    moepage_session *session = pool_rig_session(&rig, NULL);
    run_steps(session, 10);
    assert_int_equal(moepage_split_set(rig.pool, kv, 6, 16, NULL), MOEPAGE_OK);
    run_steps(session, 10);
    assert_int_equal(pool_rig_info(&rig).slots, 6);
    assert_int_equal(moepage_split_set(rig.pool, kv, 18, 8, NULL), MOEPAGE_OK);
    moepage_controller_config config = {.struct_size = sizeof config,
                                        .mode = MOEPAGE_CONTROL_MV_WSA};
    assert_int_equal(moepage_controller_create(rig.pool, kv, &config, &controller), MOEPAGE_OK);
    for (uint32_t i = 0; i < 10; i++) {
        run_steps(session, 10);
        assert_int_equal(moepage_controller_tick(controller, NULL, NULL), MOEPAGE_OK);
    }
    moepage_controller_info seen = {.struct_size = sizeof seen};
    assert_int_equal(moepage_controller_get_info(controller, &seen), MOEPAGE_OK);
    assert_true(seen.expert_accesses > 0);
    assert_int_equal(moepage_controller_destroy(controller), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(kv), MOEPAGE_OK);
    pool_rig_close(&rig);
}

static void test_slot_form_is_pinned(void **state)
{
    (void)state;
    open_pool((pool_rig_config){.slots = 6});
    moepage_session *session = pool_rig_session(&rig, NULL);
    assert_int_equal(moepage_expert_pool_pin(rig.pool, 1, 5), MOEPAGE_OK);
    run_steps(session, 20);
    assert_int_equal(pool_rig_state(&rig, 1, 5), MOEPAGE_EXPERT_RESIDENT);
    assert_int_equal(moepage_expert_pool_unpin(rig.pool, 1, 5), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

static void test_slot_form_is_prefetched(void **state)
{
    (void)state;
    static const int32_t next[] = {0, 1, 2, 3};
    for (uint32_t tier = 0; tier < 2; tier++) {
        open_pool((pool_rig_config){.slots = 20, .host_experts = tier ? 4 : 0, .chunk_bytes = 100});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.prefetch = MOEPAGE_PREFETCH_HINT});
        for (uint32_t i = 0; i < 30; i++) {
            assert_int_equal(moepage_session_hint(session, i % LAYERS, next, 4), MOEPAGE_OK);
            pool_rig_wait(&rig);
            run_steps(session, 1);
        }
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        assert_true(pool_rig_info(&rig).prefetch_bytes > 0);
        pool_rig_close(&rig);
    }
}

static void test_slot_form_is_streamed(void **state)
{
    (void)state;
    open_pool((pool_rig_config){.slots = 12});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.regime = MOEPAGE_REGIME_STREAM});
    run_steps(session, 30);
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
    assert_true(stats.streamed_layers > 0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

static void test_slot_form_is_spread_over_devices(void **state)
{
    (void)state;
    open_pool((pool_rig_config){.slots = 12, .n_devices = 2});
    moepage_session *session = pool_rig_session(&rig, NULL);
    run_steps(session, 20);
    assert_int_equal(pool_rig_info(&rig).devices, 2);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

/* What is absent is computed where it lies, in the same form. */
static void test_slot_form_is_computed_in_place(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier < 2; tier++) {
        open_pool((pool_rig_config){.slots = 6, .host_experts = tier ? KEYS : 0});
        moepage_session *session =
            pool_rig_session(&rig, &(moepage_session_config){.miss = MOEPAGE_MISS_HOST});
        run_steps(session, 20);
        moepage_session_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(moepage_session_get_stats(session, &stats), MOEPAGE_OK);
        assert_true(stats.host_experts > 0);
        assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
        pool_rig_close(&rig);
    }
}

static void expect_refusal(moepage_expert_pool_config config, moepage_status status,
                           const char *words)
{
    uint64_t workspace, arena;
    config.struct_size = sizeof config;
    assert_int_equal(moepage_expert_pool_sizes(bank.model, &config, 1, &workspace, &arena), status);
    assert_non_null(strstr(moepage_last_error(), words));
}

static void test_slot_form_refuses_what_cannot_be(void **state)
{
    (void)state;
    const uint32_t int4 = MOEPAGE_FORM_INT4;
    moepage_precision_config two = {.struct_size = sizeof two, .lo_form = MOEPAGE_FORM_INT4};
    expect_refusal((moepage_expert_pool_config){.slot_form = MOEPAGE_FORM_EXPH}, MOEPAGE_E_ARGUMENT,
                   "slot_form is 2");
    expect_refusal((moepage_expert_pool_config){.slot_form = 77}, MOEPAGE_E_ARGUMENT,
                   "slot_form is 77");
    expect_refusal((moepage_expert_pool_config){.slot_form = MOEPAGE_FORM_INT8},
                   MOEPAGE_E_UNSUPPORTED, "not stored so");
    expect_refusal((moepage_expert_pool_config){.slot_form = int4, .bus_form = MOEPAGE_FORM_DENSE},
                   MOEPAGE_E_ARGUMENT, "bus_form is 1");
    expect_refusal((moepage_expert_pool_config){.slot_form = int4, .compressed_experts = 1},
                   MOEPAGE_E_ARGUMENT, "neither compressed");
    expect_refusal((moepage_expert_pool_config){.slot_form = int4,
                                                .slots = 4,
                                                .placement = MOEPAGE_PLACEMENT_BANDWIDTH},
                   MOEPAGE_E_ARGUMENT, "neither compressed");
    expect_refusal((moepage_expert_pool_config){.slot_form = int4, .precision = &two},
                   MOEPAGE_E_ARGUMENT, "two versions");
    expect_refusal((moepage_expert_pool_config){.reserved = 1}, MOEPAGE_E_ARGUMENT, "reserved");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slot_form_is_what_slots_hold_and_loads_move),
        cmocka_unit_test(test_slot_form_is_sized_as_it_is_created),
        cmocka_unit_test(test_slot_form_is_split_and_controlled),
        cmocka_unit_test(test_slot_form_is_pinned),
        cmocka_unit_test(test_slot_form_is_prefetched),
        cmocka_unit_test(test_slot_form_is_streamed),
        cmocka_unit_test(test_slot_form_is_spread_over_devices),
        cmocka_unit_test(test_slot_form_is_computed_in_place),
        cmocka_unit_test(test_slot_form_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, open_bank, close_bank);
}
