/* Model shapes: parameters as published, KV and tensor parallelism by hand, and what caps free. */
#include <math.h>

#include "sim/configure.h"
#include "testing.h"

/* Exit codes of common/fail.h, whose fail() is a macro of cmocka. */
enum { DONE = 0, REFUSED = 2 };

static sim_shape find(const char *name, uint32_t tp)
{
    sim_shape shape;
    assert_int_equal(sim_shape_find(name, tp, false, &shape), DONE);
    return shape;
}

/* From the models' own pages, in billions. */
static void test_shapes_have_the_parameters_that_were_published(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double billions;
    } published[] = {
        {"Qwen3-30B-A3B", 30.5},      {"qwen3-235b-a22b", 235}, {"Mixtral-8x7B-v0.1", 46.7},
        {"mixtral-8x22b", 141},       {"olmoe-1b-7b", 6.92},    {"phi-3.5-moe", 41.9},
        {"DeepSeek-V2-Lite", 15.7},   {"deepseek-v2", 236},     {"DEEPSEEK-V3", 671},
        {"minimax-m2", 229},          {"gpt-oss-20b", 20.9},    {"gpt-oss-120b", 116.8},
        {"Moonlight-16B-A3B", 15.96}, {"qwen3-next-80b", 80},   {"qwen2-57b-a14b", 57.4},
        {"qwen1.5-moe-a2.7b", 14.3},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        sim_shape s = find(published[i].name, 1);
        double billions = s.parameters / 1e9;
        if (fabs(billions / published[i].billions - 1) > 0.01)
            fail_msg("%s: %.2f billions, published are %.2f", s.name, billions,
                     published[i].billions);
    }
}

static void test_shapes_know_which_layers_keep_what(void **state)
{
    (void)state;
    sim_shape next = find("Qwen3-Next-80B-A3B-Instruct", 1), v3 = find("deepseek-v3", 1);
    uint32_t keep = 0;
    for (uint32_t layer = 0; layer < next.layers; layer++)
        keep += sim_shape_keeps_kv(&next, layer);
    assert_int_equal(keep, 12);
    assert_true(sim_shape_keeps_kv(&next, 3) && !sim_shape_keeps_kv(&next, 4));
    assert_int_equal(sim_shape_kv_token_bytes(&next), 12 * 2 * 2 * 256 * 2);
    assert_int_equal(v3.kv_token_bytes, (512 + 64) * 2);
    assert_int_equal(v3.moe_layers, 58);
    assert_int_equal(sim_shape_kv_token_bytes(&v3), 61 * 576 * 2);
    assert_int_equal(v3.expert_bytes, 3ull * 7168 * 2048 * 2);
    assert_true(sim_shape_layer_bytes(&v3, 0) > sim_shape_layer_bytes(&v3, 3));
}

static void test_shapes_are_divided_among_ranks(void **state)
{
    (void)state;
    sim_shape one = find("qwen3-next-80b", 1), two = find("qwen3-next-80b", 2);
    sim_shape four = find("qwen3-next-80b", 4), shape;
    assert_int_equal(four.expert_bytes * 4, one.expert_bytes);
    assert_int_equal(two.kv_token_bytes * 2, one.kv_token_bytes);
    assert_int_equal(four.kv_token_bytes, two.kv_token_bytes); /* two heads: copies */
    assert_true(four.parameters >= one.parameters && four.parameters < one.parameters * 1.01);
    assert_int_equal(find("deepseek-v3", 8).kv_token_bytes, 576 * 2); /* nothing to divide */
    assert_true(sim_shape_dense_bytes(&four) * 4 < sim_shape_dense_bytes(&one) * 5);
    assert_int_equal(sim_shape_find("qwen3-next-80b", 3, false, &shape), REFUSED);
    assert_int_equal(sim_shape_find("qwen9", 1, false, &shape), REFUSED);
}

/* WiSP table 3. */
static void test_shapes_free_36864_tokens_per_8_caps(void **state)
{
    (void)state;
    sim_shape shape = find("Qwen3-30B-A3B", 1);
    sim_machine machine;
    sim_job job = {.prompt_tokens = 100, .output_tokens = 10};
    sim_jobs jobs = {.jobs = &job, .n = 1};
    assert_int_equal(sim_machine_find("h100-pcie5", &machine), DONE);
    sim_serve_config config = {.stack = {.machine = &machine,
                                         .shape = &shape,
                                         .arena_bytes = 1ull << 36},
                               .jobs = &jobs,
                               .concurrency = 1};
    mp_split_bounds bounds;
    mp_split eight, sixteen;
    sim_fix_granule(&config.stack);
    assert_int_equal(sim_split_bounds(&config, &bounds), DONE);
    assert_true(mp_split_with_experts(&bounds, 8 * 48, &eight));
    assert_true(mp_split_with_experts(&bounds, 16 * 48, &sixteen));
    uint64_t unit_tokens = config.stack.block_tokens * config.stack.blocks_per_granule;
    assert_int_equal((eight.kv - sixteen.kv) * unit_tokens, 36864);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_have_the_parameters_that_were_published),
        cmocka_unit_test(test_shapes_know_which_layers_keep_what),
        cmocka_unit_test(test_shapes_are_divided_among_ranks),
        cmocka_unit_test(test_shapes_free_36864_tokens_per_8_caps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
