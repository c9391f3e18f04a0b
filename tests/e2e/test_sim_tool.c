/* moepage-sim from outside: what it prints for a recorded trace, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "testing.h"
#include "tool_runs.h"

#define TOOL "moepage-sim"
#define EXCERPT "--trace", "tests/data/gpt-oss-20b-20requests.u8", "--shape", "24x32x4"
#define ASKED "--policy", "lru,lfu,belady,sieve", "--capacity", "96,192,384,576"

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    if (!text)
        fail_msg("no \"%s\"", key);
    return text;
}

/* One result for each policy at each capacity, by policy. */
static void check_results(const json_t *root, const char *access, int64_t accesses, int64_t first)
{
    static const char *const policies[] = {"lru", "lfu", "belady", "sieve"};
    static const int64_t capacities[] = {96, 192, 384, 576};
    const json_t *results = json_object_get(root, "results");
    assert_int_equal(json_array_size(results), 16);
    for (size_t i = 0; i < 16; i++) {
        const json_t *r = json_array_get(results, i), *bound = json_array_get(results, 8 + i % 4);
        assert_string_equal(text_of(r, "policy"), policies[i / 4]);
        assert_int_equal(integer(r, "capacity"), capacities[i % 4]);
        assert_string_equal(text_of(r, "scope"), "global");
        assert_string_equal(text_of(r, "access"), access);
        assert_int_equal(integer(r, "accesses"), accesses);
        assert_int_equal(integer(r, "hits"), accesses - integer(r, "misses"));
        assert_int_equal(integer(r, "first"), first);
        assert_true(fabs(real(r, "miss_ratio") * (double)accesses - (double)integer(r, "misses")) <
                    1e-3);
        assert_true(integer(r, "misses") >= integer(bound, "misses"));
    }
}

static int64_t misses_of(const json_t *root, size_t index)
{
    return integer(json_array_get(json_object_get(root, "results"), index), "misses");
}

/* Counted outside this project's code. */
static void test_sim_tool_counts_the_excerpt(void **state)
{
    (void)state;
    static const int64_t lru[2][3] = {{315254, 213282, 47506}, {369199, 213957, 47561}};
    static const int64_t lfu[2][3] = {{539115, 360425, 176127}, {546560, 359874, 175081}};
    json_t *layer = run_json(TOOL, LIST(EXCERPT, ASKED, "--scope", "global", "--json"));
    json_t *sequential = run_json(TOOL, LIST(EXCERPT, ASKED, "--access", "sequential", "--json"));
    check_results(layer, "layer", 578496, 764);
    check_results(sequential, "sequential", 578496, 764);
    for (size_t c = 0; c < 3; c++) {
        assert_int_equal(misses_of(layer, c), lru[0][c]);
        assert_int_equal(misses_of(layer, 4 + c), lfu[0][c]);
        assert_int_equal(misses_of(sequential, c), lru[1][c]);
        assert_int_equal(misses_of(sequential, 4 + c), lfu[1][c]);
    }
    json_decref(layer);
    json_decref(sequential);
}

static void test_sim_tool_counts_the_whole_trace(void **state)
{
    (void)state;
    const char *shared = getenv("MOEPAGE_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/traces/gpt-oss-20b", shared ? shared : "../shared");
    if (access(path, R_OK)) {
        print_message("test_sim_tool_counts_the_whole_trace: skipped, %s is not here "
                      "(set MOEPAGE_SHARED)\n",
                      path);
        skip();
    }
    json_t *root = run_json(TOOL, LIST("--trace", path, ASKED, "--access", "sequential", "--json"));
    check_results(root, "sequential", 6810912, 768);
    static const int published[2][3] = {{652, 388, 91}, {938, 616, 320}}; /* per mille */
    for (size_t i = 0; i < 6; i++)
        assert_int_equal((misses_of(root, i / 3 * 4 + i % 3) * 1000 + 3405456) / 6810912,
                         published[i / 3][i % 3]);
    json_decref(root);
}

/* The table has what the object has. */
static void test_sim_tool_prints_a_table(void **state)
{
    (void)state;
    tool_result text;
    run_well(TOOL, LIST(EXCERPT, "--policy", "lru,lirs", "--capacity=96,384"), &text);
    assert_non_null(strstr(text.out, "6026 tokens, 24 layers of 32 experts, 4 for each token"));
    assert_non_null(strstr(text.out, "315254"));
    assert_non_null(strstr(text.out, "47506"));
    assert_non_null(strstr(text.out, "lirs"));
    tool_result_free(&text);
}

static void test_sim_tool_draws_the_curve_of_lru(void **state)
{
    (void)state;
    json_t *root = run_json(TOOL, LIST(EXCERPT, "--curve", "--json"));
    json_t *sampled = run_json(TOOL, LIST(EXCERPT, "--curve", "--sample-keys", "192", "--json"));
    const json_t *curve = json_object_get(root, "curve");
    const json_t *misses = json_object_get(curve, "misses");
    assert_int_equal(json_array_size(misses), 769);
    assert_int_equal(json_array_size(json_object_get(curve, "capacities")), 769);
    assert_int_equal(json_array_size(json_object_get(curve, "sampled")), 769);
    assert_int_equal(json_integer_value(json_array_get(misses, 0)), 578496);
    assert_int_equal(json_integer_value(json_array_get(misses, 96)), 315254);
    assert_int_equal(json_integer_value(json_array_get(misses, 384)), 47506);
    assert_int_equal(json_integer_value(json_array_get(misses, 768)), 764);
    assert_true(real(curve, "largest_error") < 1e-9);
    curve = json_object_get(sampled, "curve");
    assert_true(json_equal(json_object_get(curve, "misses"), misses));
    assert_true(real(curve, "sample_rate") < 0.5);
    assert_true(real(curve, "largest_error") > 1e-6 && real(curve, "largest_error") < 0.1);
    json_decref(root);
    json_decref(sampled);
}

static void test_sim_tool_describes_a_trace(void **state)
{
    (void)state;
    json_t *root = run_json(TOOL, LIST(EXCERPT, "--stats", "--burst", "64", "--expert-bytes", "1M",
                                       "--bus-bytes", "1G", "--json"));
    const json_t *stats = json_object_get(root, "stats");
    const json_t *mean = json_object_get(stats, "mean"), *bus = json_object_get(stats, "bus");
    assert_int_equal(integer(stats, "tokens"), 6026);
    assert_int_equal(json_array_size(json_object_get(stats, "by_layer")), 24);
    assert_int_equal(integer(json_object_get(stats, "burst"), "bursts"), 6026 / 64);
    assert_true(real(mean, "carry_over") > 0.40 && real(mean, "carry_over") < 0.50);
    assert_true(fabs(real(mean, "token_bits") - 2) < 1e-9); /* four alike */
    assert_true(real(mean, "request_bits") > 3);
    double experts = (1 - real(mean, "carry_over")) * 96;
    assert_true(fabs(real(bus, "mandatory_experts") - experts) < 1e-9);
    assert_true(fabs(real(bus, "tokens_per_s") - 1024 / experts) < 1e-9);
    json_decref(root);
    tool_result text;
    run_well(TOOL, LIST(EXCERPT, "--stats"), &text);
    assert_non_null(strstr(text.out, "carried"));
    tool_result_free(&text);
}

static void test_sim_tool_lists_names(void **state)
{
    (void)state;
    static const struct {
        const char *what, *has;
    } cases[] = {{"policies", "s3fifo\n"},
                 {"policies", "belady"},
                 {"models", "qwen3-30b-a3b"},
                 {"machines", "h100-pcie5\n"},
                 {"baselines", "vllm"}};
    tool_result text;
    for (size_t i = 0; i < COUNT(cases); i++) {
        run_well(TOOL, LIST("--list", cases[i].what), &text);
        assert_non_null(strstr(text.out, cases[i].has));
        tool_result_free(&text);
    }
    run_well(TOOL, LIST("--help"), &text);
    assert_non_null(strstr(text.out, "usage: moepage-sim"));
    tool_result_free(&text);
}

static void test_sim_tool_refuses_what_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *named;
        const char *arguments[12];
    } cases[] = {
        {"--trace is missing", {"--policy", "lru", "--capacity", "96"}},
        {"--trace is missing", {"--stats"}},
        {"--policy is missing", {EXCERPT}},
        {"--capacity is missing", {EXCERPT, "--policy", "lru"}},
        {"--policy fifo", {EXCERPT, "--policy", "lru,fifo", "--capacity", "96"}},
        {"--policy lru,", {EXCERPT, "--policy", "lru,", "--capacity", "96"}},
        {"--capacity 96,x", {EXCERPT, "--policy", "lru", "--capacity", "96,x"}},
        {"--capacity 0", {EXCERPT, "--policy", "lru", "--capacity", "0"}},
        {"--capacity 3", {EXCERPT, "--policy", "lru", "--capacity", "3"}},
        {"--capacity 95", {EXCERPT, "--policy", "lru", "--capacity", "95", "--scope", "layer"}},
        {"--scope all", {EXCERPT, "--policy", "lru", "--capacity", "96", "--scope", "all"}},
        {"--access both", {EXCERPT, "--access", "both"}},
        {"--burst has no effect", {EXCERPT, "--curve", "--burst", "4"}},
        {"--capacity has no effect", {EXCERPT, "--curve", "--capacity", "4"}},
        {"--sample-keys has no effect", {EXCERPT, "--stats", "--sample-keys", "64"}},
        {"--access has no effect", {EXCERPT, "--stats", "--access", "sequential"}},
        {"--policy has no effect", {EXCERPT, "--stats", "--policy", "lru"}},
        {"--scope has no effect", {EXCERPT, "--stats", "--scope", "layer"}},
        {"--shape has no effect", {"--shape", "1x2x1", "--stats"}},
        {"--target-tpot goes with --admission", {"--target-tpot", "5", "--model", "olmoe-1b-7b"}},
        {"--shape 24x32", {"--shape", "24x32"}},
        {"--shape 24x32x4x", {"--shape", "24x32x4x"}},
        {"--model is missing", {"--machine", "h100-pcie5"}},
        {"--machine is missing", {"--model", "qwen3-30b-a3b", "--budget", "50%"}},
        {"--budget 50%%", {"--budget", "50%%"}},
        {"--split fixed:1", {"--split", "fixed:1"}},
        {"--split sometimes", {"--split", "sometimes"}},
        {"--synthetic: routing comes from one", {EXCERPT, "--synthetic", "x", "--stats"}},
        {"no machine nowhere", {EXCERPT, "--stats", "--machine", "nowhere"}},
        {"no model shape nothing", {EXCERPT, "--stats", "--model", "nothing"}},
        {"unknown flag", {"--polcy", "lru"}},
        {"unexpected argument", {"lru"}},
        {"no/such/thing", {"--trace", "no/such/thing", "--stats"}},
        {"needs --shape", {"--trace", "tests/data/gpt-oss-20b-20requests.u8", "--stats"}},
        {"not a whole number of tokens",
         {"--trace", "tests/data/gpt-oss-20b-20requests.u8", "--shape", "25x32x4", "--stats"}},
        {"there are 31",
         {"--trace", "tests/data/gpt-oss-20b-20requests.u8", "--shape", "24x31x4", "--stats"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused(TOOL, cases[i].arguments, cases[i].named);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_tool_counts_the_excerpt),
        cmocka_unit_test(test_sim_tool_counts_the_whole_trace),
        cmocka_unit_test(test_sim_tool_prints_a_table),
        cmocka_unit_test(test_sim_tool_draws_the_curve_of_lru),
        cmocka_unit_test(test_sim_tool_describes_a_trace),
        cmocka_unit_test(test_sim_tool_lists_names),
        cmocka_unit_test(test_sim_tool_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
