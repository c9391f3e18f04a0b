/* Pools, sessions and KV over a simulated machine, on shapes without weights: how long a step takes,
 * worked out by hand, whatever its experts come through. */

#include <string.h>

#include "arena/home.h"
#include "bank_model.h"
#include "pool/share.h"
#include "stack_rig.h"
#include "testing.h"

/* ---- times by hand ---- */

/* A slot of 12288 bytes: on machine_profile() that is a transfer of LOAD ns. One row of one expert takes
 * ONE ns, three rows of three THREE, and summing up SUM. */
enum {
    SLOT = 3 * 64 * 32 * 2,
    LOAD = 100 + SLOT,
    ONE = 10 + 6 * 64 * 32 / 2,
    THREE = 10 + 3 * (ONE - 10),
    SUM = 10 + (3 * 64 * 4 + 64 * 2) / 4
};

static mp_phantom_shape small_shape(void)
{
    return (mp_phantom_shape){
        .name = "small",
        .layers = 1,
        .moe_layers = 1,
        .experts = 16,
        .top_k = 3,
        .hidden = 64,
        .expert_intermediate = 32,
        .dtype = MOEPAGE_DTYPE_BF16,
    };
}

static void open_small(stack *s, const mp_phantom_shape *shape,
                       const moepage_expert_pool_config *config)
{
    mp_sim_profile profile = machine_profile();
    stack_open_shape(s, shape);
    assert_int_equal(s->shape.slot_bytes, SLOT);
    stack_open_device(s, &profile, 1 << 20, 1 << 20);
    stack_open_pool(s, config, 1);
}

static void test_sim_stack_step_takes_its_loads_and_kernels(void **state)
{
    (void)state;
    const int32_t ids[3] = {4, 9, 2}, mixed[3] = {9, 11, 2};
    mp_phantom_shape shape = small_shape();
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 8};
    stack s;
    open_small(&s, &shape, &config);
    assert_int_equal(stack_now_ns(&s), 0);

    /* Each expert computes while the next one loads. */
    moepage_session_stats stats = stack_step(&s, ids);
    assert_int_equal(stats.misses, 3);
    assert_int_equal(stats.demand_bytes, 3 * SLOT);
    assert_int_equal(stats.wall_ns, 3 * LOAD + ONE + SUM);
    assert_int_equal(stats.compute_ns, 3 * ONE + SUM);
    assert_int_equal(stats.stall_ns, LOAD + 2 * (LOAD - ONE));
    assert_int_equal(stack_now_ns(&s), stats.wall_ns);

    stats = stack_step(&s, ids); /* one launch for all */
    assert_int_equal(stats.hits, 3);
    assert_int_equal(stats.wall_ns, THREE + SUM);
    assert_int_equal(stats.stall_ns, 0);

    stats = stack_step(&s, mixed); /* two hits run meanwhile, longer than the load takes */
    assert_int_equal(stats.hits, 2);
    assert_int_equal(stats.misses, 1);
    const uint64_t two = 10 + 2 * (ONE - 10);
    assert_true(two < LOAD);
    assert_int_equal(stats.wall_ns, LOAD + ONE + SUM);
    assert_int_equal(stats.stall_ns, LOAD - two);
    mp_sim_usage usage;
    mp_sim_get_usage(s.device, &usage);
    assert_int_equal(usage.bus_bytes, 4 * SLOT);
    assert_int_equal(usage.bus_ns, 4 * LOAD);
    stack_close(&s);
}

static void test_sim_stack_hint_loads_behind_the_callers_work(void **state)
{
    (void)state;
    const int32_t first[3] = {0, 1, 2}, next[3] = {3, 4, 5};
    mp_phantom_shape shape = small_shape();
    shape.layers = shape.moe_layers = 2;
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 16};
    stack s;
    open_small(&s, &shape, &config);
    for (int hinted = 0; hinted < 2; hinted++) {
        int32_t shifted[3] = {next[0] + 8 * hinted, next[1] + 8 * hinted, next[2] + 8 * hinted};
        stack_begin(&s, 1);
        stack_layer(&s, 0, first);
        if (hinted)
            MUST(moepage_session_hint(s.session, 1, shifted, 3));
        uint64_t began = stack_now_ns(&s);
        mp_sim_work(s.device, 2 * 100000, 0);
        assert_int_equal(stack_now_ns(&s) - began, 100000);
        stack_layer(&s, 1, shifted);
        moepage_session_stats stats = stack_end(&s);
        assert_int_equal(stats.misses, hinted ? 0 : 6);
        assert_int_equal(stats.hits, hinted ? 6 : 0);
        uint64_t cold = 2 * (3 * LOAD + ONE + SUM), warm = 2 * (THREE + SUM);
        assert_int_equal(stats.wall_ns, 100000 + (hinted ? warm : cold));
    }
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_expert_pool_get_info(s.pool, &info));
    assert_int_equal(info.prefetch_useful, 3);
    assert_int_equal(info.prefetch_bytes, 3 * SLOT);
    stack_close(&s);
}

/* ---- what is used most ---- */

static void test_sim_stack_uses_concentrate(void **state)
{
    (void)state;
    const int32_t often[3] = {4, 9, 2}, seldom[3] = {9, 11, 2};
    mp_phantom_shape shape = small_shape();
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 8};
    double part[17];
    stack s;
    open_small(&s, &shape, &config);
    mp_pool_concentrate(s.pool, part); /* none is used more than others */
    for (uint32_t x = 0; x <= 16; x++)
        assert_true(part[x] > x / 16.0 - 1e-9 && part[x] < x / 16.0 + 1e-9);
    for (int i = 0; i < 6; i++)
        stack_step(&s, i < 4 ? often : seldom);
    mp_pool_replay_hits(s.pool);
    mp_pool_concentrate(s.pool, part); /* 6 uses, 6, 4, 2 */
    const double expected[] = {0, 6 / 18.0, 12 / 18.0, 16 / 18.0, 1, 1};
    for (uint32_t x = 0; x <= 16; x++) {
        double one = expected[x < 5 ? x : 5];
        assert_true(part[x] > one - 1e-9 && part[x] < one + 1e-9);
    }
    stack_close(&s);
}

/* ---- tiers ---- */

static void test_sim_stack_exph_crosses_the_bus_coded(void **state)
{
    (void)state;
    const int32_t ids[3] = {4, 4, 4};
    mp_phantom_shape shape = small_shape();
    shape.exph_ratio = 0.75;
    moepage_expert_pool_config config = {.struct_size = sizeof config, .slots = 8};
    stack s;
    open_small(&s, &shape, &config);
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_expert_pool_get_info(s.pool, &info));
    assert_int_equal(info.bus_form, MOEPAGE_FORM_EXPH);

    mp_image image;
    mp_model_find_image(s.model, 0, 4, MOEPAGE_FORM_EXPH, &image);
    assert_in_range(image.bytes, SLOT * 3 / 4, SLOT * 3 / 4 + 32);
    /* Measured when the pool was made: dense bytes over the bus, and out of the decoder. */
    uint64_t bus_ns = 100 + image.bytes, decode_ns = 50 + SLOT / 2;
    assert_in_range(info.bus_bytes_per_s, SLOT * 999999999ull / bus_ns,
                    SLOT * 1000000001ull / bus_ns);
    assert_in_range(info.decode_bytes_per_s, SLOT * 999999999ull / decode_ns,
                    SLOT * 1000000001ull / decode_ns);

    mp_sim_usage before, after;
    mp_sim_get_usage(s.device, &before);
    moepage_session_stats stats = stack_step(&s, ids); /* three rows of one expert */
    mp_sim_get_usage(s.device, &after);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.demand_bytes, image.bytes);
    assert_int_equal(stats.wall_ns, bus_ns + decode_ns + THREE + SUM);
    assert_int_equal(after.bus_bytes - before.bus_bytes, image.bytes);
    assert_int_equal(after.decode_bytes - before.decode_bytes, SLOT);
    assert_int_equal(after.decode_ns - before.decode_ns, decode_ns);
    stack_close(&s);
}

static void test_sim_stack_compressed_experts_only_decode(void **state)
{
    (void)state;
    const int32_t ids[3] = {4, 4, 4};
    mp_phantom_shape shape = small_shape();
    shape.exph_ratio = 0.75;
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = 8,
                                         .compressed_experts = 16};
    for (int cold = 0; cold < 2; cold++) {
        stack s;
        shape.cold = cold;
        open_small(&s, &shape, &config);
        mp_sim_usage before, after;
        mp_sim_get_usage(s.device, &before);
        moepage_session_stats stats = stack_step(&s, ids);
        mp_sim_get_usage(s.device, &after);
        assert_int_equal(stats.misses, 1);
        assert_int_equal(stats.demand_bytes, 0);
        assert_int_equal(stats.wall_ns, 50 + SLOT / 2 + THREE + SUM);
        assert_int_equal(after.bus_bytes, before.bus_bytes);
        stack_close(&s);
    }
}

static void test_sim_stack_cold_experts_pass_through_the_host_tier(void **state)
{
    (void)state;
    const int32_t ids[3] = {12, 12, 12};
    mp_phantom_shape shape = small_shape();
    shape.cold = true;
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = 1,
                                         .host_tier_bytes = 8 * SLOT};
    stack s;
    open_small(&s, &shape, &config);
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_expert_pool_get_info(s.pool, &info));
    assert_int_equal(info.host_tier_experts, 8);
    assert_int_equal(info.host_tier_resident, 4); /* by measuring: one per thread for I/O */
    assert_int_equal(info.cold_bytes, 4 * SLOT);
    /* Four at once: each takes the latency, and a quarter of the storage. */
    assert_in_range(info.cold_bytes_per_s, 4 * SLOT * 999999999ull / (1000 + 4 * SLOT),
                    4 * SLOT * 1000000001ull / (1000 + 4 * SLOT));

    moepage_session_stats stats = stack_step(&s, ids);
    assert_int_equal(stats.wall_ns, 1000 + SLOT + LOAD + THREE + SUM);
    const int32_t other[3] = {13, 13, 13};
    stats = stack_step(&s, other);
    assert_int_equal(stats.wall_ns, 1000 + SLOT + LOAD + THREE + SUM);
    stats = stack_step(&s, ids); /* out of the one slot, but still in the tier */
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.wall_ns, LOAD + THREE + SUM);
    MUST(moepage_expert_pool_get_info(s.pool, &info));
    assert_int_equal(info.host_hits, 1);
    assert_int_equal(info.cold_reads, 6);
    stack_close(&s);

    /* Coded, and with no tier asked for: a few entries to pass through. */
    shape.exph_ratio = 0.75;
    config.host_tier_bytes = 0;
    open_small(&s, &shape, &config);
    mp_image image;
    mp_model_find_image(s.model, 0, 4, MOEPAGE_FORM_EXPH, &image);
    stats = stack_step(&s, ids);
    assert_int_equal(stats.wall_ns,
                     1000 + image.bytes + 100 + image.bytes + 50 + SLOT / 2 + THREE + SUM);
    stack_close(&s);
}

/* ---- KV ---- */

static void test_sim_stack_kv_swaps_take_the_bus(void **state)
{
    (void)state;
    const uint32_t per_token[3] = {160, 0, 64};
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .block_tokens = 4,
                                     .layers = 3,
                                     .bytes_per_token = per_token,
                                     .blocks = 64};
    mp_sim_profile profile = machine_profile();
    stack s = {0};
    moepage_kv_pool *kv;
    moepage_seq seq;
    stack_open_device(&s, &profile, 1 << 20, 1 << 20);
    MUST(moepage_kv_pool_create(s.home, &config, &kv));
    MUST(moepage_kv_create(kv, &seq));
    MUST(moepage_kv_append(kv, seq, 10, NULL)); /* 3 blocks */
    assert_int_equal(stack_now_ns(&s), 0);
    MUST(moepage_kv_swap_out(kv, seq, NULL));
    const uint64_t swap_ns = 3 * (2 * 100 + 4 * (160 + 64));
    assert_int_equal(stack_now_ns(&s), swap_ns);
    MUST(moepage_kv_swap_in(kv, seq, NULL));
    assert_int_equal(stack_now_ns(&s), 2 * swap_ns);
    MUST(moepage_kv_free(kv, seq));
    MUST(moepage_kv_pool_destroy(kv));
    MUST(moepage_device_close(s.home));
}

/* A block of KV that is missing was swapped out and is swapped in. Until either has been measured it has its bytes'
 * share of an expert's load. */
static void test_sim_stack_kv_miss_costs_both_directions(void **state)
{
    (void)state;
    const int32_t ids[3] = {4, 9, 2};
    const uint32_t per_token[1] = {224};
    const double block_bytes = 4 * 224, swap_ns = 100 + block_bytes;
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .block_tokens = 4,
                                     .layers = 1,
                                     .bytes_per_token = per_token,
                                     .blocks = 64};
    moepage_controller_config observe = {.struct_size = sizeof observe,
                                         .mode = MOEPAGE_CONTROL_OBSERVE};
    mp_phantom_shape shape = small_shape();
    moepage_expert_pool_config experts = {.struct_size = sizeof experts, .slots = 8};
    moepage_controller_info info = {.struct_size = sizeof info};
    moepage_controller *controller;
    moepage_kv_pool *kv;
    moepage_seq seq;
    stack s;
    open_small(&s, &shape, &experts);
    MUST(moepage_kv_pool_create(s.home, &config, &kv));
    MUST(moepage_controller_create(s.pool, kv, &observe, &controller));
    stack_step(&s, ids);
    MUST(moepage_controller_get_info(controller, &info));
    double bus_ns = block_bytes * LOAD / SLOT;
    assert_true(info.kv_miss_ns > 1.99 * bus_ns && info.kv_miss_ns < 2.01 * bus_ns);
    MUST(moepage_kv_create(kv, &seq));
    MUST(moepage_kv_append(kv, seq, 10, NULL));
    MUST(moepage_kv_swap_out(kv, seq, NULL));
    MUST(moepage_controller_get_info(controller, &info));
    double half_known = bus_ns + swap_ns;
    assert_true(info.kv_miss_ns > 0.99 * half_known && info.kv_miss_ns < 1.01 * half_known);
    MUST(moepage_kv_swap_in(kv, seq, NULL));
    MUST(moepage_controller_get_info(controller, &info));
    assert_true(info.kv_miss_ns > 2 * swap_ns - 1e-6 && info.kv_miss_ns < 2 * swap_ns + 1e-6);
    MUST(moepage_kv_free(kv, seq));
    MUST(moepage_controller_destroy(controller));
    MUST(moepage_kv_pool_destroy(kv));
    stack_close(&s);
}

/* ---- weights where nothing can hold them ---- */

static void test_sim_stack_serves_models_with_weights_unread(void **state)
{
    (void)state;
    static const uint64_t tiers[] = {0, 1 << 20};
    for (uint32_t i = 0; i < 2; i++) {
        bank_shape shape = {.layers = 1,
                            .experts = 16,
                            .top_k = 3,
                            .hidden = 64,
                            .intermediate = 32,
                            .dtype = MOEPAGE_DTYPE_BF16,
                            .callback = true,
                            .seed = 1};
        const int32_t ids[3] = {12, 13, 14};
        bank_model bank;
        mp_sim_profile profile = machine_profile();
        moepage_expert_pool_config config = {.struct_size = sizeof config,
                                             .slots = 4,
                                             .host_tier_bytes = tiers[i]};
        stack s;
        bank_model_open(&bank, &shape);
        stack_set_model(&s, bank.model);
        stack_open_device(&s, &profile, 1 << 20, 1 << 20);
        stack_open_pool(&s, &config, 1);
        moepage_session_stats stats = stack_step(&s, ids);
        assert_int_equal(stats.misses, 3);
        assert_int_equal(bank.calls, 0);
        /* Its pieces cross one by one; a tier's images whole, behind three reads at once. */
        if (!tiers[i])
            assert_int_equal(stats.wall_ns, 3 * (LOAD + 100) + ONE + SUM);
        else
            assert_int_equal(stats.wall_ns, 1000 + 3 * SLOT + 3 * LOAD + ONE + SUM);
        stack_close_device(&s);
        bank_model_close(&bank);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_stack_step_takes_its_loads_and_kernels),
        cmocka_unit_test(test_sim_stack_hint_loads_behind_the_callers_work),
        cmocka_unit_test(test_sim_stack_uses_concentrate),
        cmocka_unit_test(test_sim_stack_exph_crosses_the_bus_coded),
        cmocka_unit_test(test_sim_stack_compressed_experts_only_decode),
        cmocka_unit_test(test_sim_stack_cold_experts_pass_through_the_host_tier),
        cmocka_unit_test(test_sim_stack_kv_swaps_take_the_bus),
        cmocka_unit_test(test_sim_stack_kv_miss_costs_both_directions),
        cmocka_unit_test(test_sim_stack_serves_models_with_weights_unread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
