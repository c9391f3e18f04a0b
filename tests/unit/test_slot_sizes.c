/* Slots of two sizes: what sessions may hold at once, what a pool is created with, and experts computed in
 * place. tests/property has their bytes and bits. */
#include <string.h>

#include "device_rig.h"
#include "pool_rig.h"
#include "testing.h"

enum { LAYERS = 4, EXPERTS = 8, TOP_K = 2, HIDDEN = 64, INTERMEDIATE = 32 };

static bank_model bank;
static pool_rig rig;

/* Two layers of each size: a bundle is two slots. */
static int open_bank(void **state)
{
    (void)state;
    bank_model_open(&bank, &(bank_shape){.layers = LAYERS,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .hidden = HIDDEN,
                                         .intermediate = INTERMEDIATE,
                                         .dtype = MOEPAGE_DTYPE_BF16,
                                         .odd_dtype = MOEPAGE_DTYPE_F32,
                                         .seed = 4});
    return 0;
}

static int close_bank(void **state)
{
    (void)state;
    bank_model_close(&bank);
    return 0;
}

/* What an open layer of one size holds takes nothing from layers of the other. */
static void test_slot_sizes_do_not_share_a_sessions_part(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 1, 2, 3};
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 8});
    moepage_session *session = pool_rig_session(&rig, &(moepage_session_config){.max_top_k = 4});
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, 0, ids, 4, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_groups, 1);
    assert_int_equal(pool_rig_route(session, 2, ids, 4, &plan), MOEPAGE_E_BUSY);
    assert_int_equal(pool_rig_route(session, 1, ids, 4, &plan), MOEPAGE_OK);
    assert_int_equal(plan.n_groups, 1);
    for (uint32_t e = 0; e < plan.n_experts; e++) {
        const char *at =
            (const char *)plan.slot_base + plan.experts[e].slot * plan.slot_stride_bytes;
        assert_ptr_equal(at, plan.experts[e].tensors[0]);
        assert_true(pool_rig_holds(&rig, 1, &plan.experts[e]));
    }
    assert_int_equal(moepage_session_cancel(session), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

/* Slots are rounded up to bundles, in sizes and in pools; the arena is all used. */
static void test_slot_sizes_are_created_as_they_are_sized(void **state)
{
    (void)state;
    for (uint32_t slots = 1; slots <= LAYERS * EXPERTS; slots++) {
        moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = slots};
        uint64_t workspace, arena;
        moepage_device *device;
        moepage_expert_pool *pool;
        assert_int_equal(moepage_expert_pool_sizes(bank.model, &config, 1, &workspace, &arena),
                         MOEPAGE_OK);
        moepage_device_config room = {.struct_size = sizeof room,
                                      .threads = 1,
                                      .workspace_bytes = 4096,
                                      .budget_bytes = arena + 4096};
        assert_int_equal(moepage_device_open("host", &room, &device), MOEPAGE_OK);
        assert_int_equal(moepage_expert_pool_create(&device, 1, bank.model, &config, &pool),
                         MOEPAGE_OK);
        moepage_expert_pool_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_expert_pool_get_info(pool, &info), MOEPAGE_OK);
        assert_int_equal(info.slot_step, 2);
        assert_int_equal(info.slots, (slots + 1) / 2 * 2);
        assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
        assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    }
}

static void test_slot_sizes_are_computed_in_place(void **state)
{
    (void)state;
    static const int32_t ids[TOP_K] = {0, 1};
    static const float weights[TOP_K] = {0.5f, 0.5f};
    float x[HIDDEN] = {1}, y[HIDDEN];
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 2});
    moepage_session *session =
        pool_rig_session(&rig, &(moepage_session_config){.miss = MOEPAGE_MISS_HOST});
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < LAYERS; l++) {
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = TOP_K,
                                   .ids = ids,
                                   .weights = weights};
        moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
        assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
    }
    moepage_session_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moepage_session_end(session, &stats), MOEPAGE_OK);
    assert_int_equal(stats.host_experts, LAYERS * TOP_K);
    assert_int_equal(stats.misses, 0);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    pool_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slot_sizes_do_not_share_a_sessions_part),
        cmocka_unit_test(test_slot_sizes_are_created_as_they_are_sized),
        cmocka_unit_test(test_slot_sizes_are_computed_in_place),
    };
    return cmocka_run_group_tests(tests, open_bank, close_bank);
}
