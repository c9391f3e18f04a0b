/* What the tools promise beside their work: help, one-line refusals, and synonyms in config.json.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "testing.h"
#include "tool_runs.h"

#define OLMOE "tests/data/hf/olmoe"

static void test_tools_print_their_usage_when_asked(void **state)
{
    (void)state;
    static const char *const tools[] = {"moepage-generate", "moepage-bench", "moepage-pack",
                                        "moepage-inspect"};
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        tool_result result;
        tool_run(tools[i], LIST("--help"), &result);
        assert_int_equal(result.exit_status, 0);
        assert_string_equal(result.err, "");
        assert_memory_equal(result.out, "usage: ", strlen("usage: "));
        assert_non_null(strstr(result.out, tools[i]));
        tool_result_free(&result);
    }
}

static void test_bench_refuses_an_unknown_command_in_one_line(void **state)
{
    (void)state;
    tool_result result;
    tool_run("moepage-bench", LIST("frobnicate"), &result);
    assert_int_equal(result.exit_status, 2);
    assert_string_equal(result.out, "");
    assert_non_null(strstr(result.err, "frobnicate"));
    assert_ptr_equal(strchr(result.err, '\n'), result.err + strlen(result.err) - 1);
    tool_result_free(&result);
}

static void test_bench_explains_every_command(void **state)
{
    (void)state;
    static const char *const commands[] = {"route", "ffn", "prefetch", "codec", "tiers"};
    for (size_t i = 0; i < COUNT(commands); i++) {
        tool_result result;
        run_well("moepage-bench", LIST(commands[i], "--help"), &result);
        assert_memory_equal(result.out, "usage: ", strlen("usage: "));
        tool_result_free(&result);
    }
}

/* Nothing on standard output: before anything was measured. */
static void test_bench_refuses_bad_values_before_it_measures(void **state)
{
    (void)state;
    place p;
    place_open(&p);
    pack(LIST("--synthetic", "toy", p.path));
    const struct {
        const char *named;
        const char *const *arguments;
    } cases[] = {
        {"--budget x", LIST("tiers", "--model", p.path, "--budget", "x")},
        {"--budget 1:", LIST("tiers", "--model", p.path, "--budget", "1")},
        {"--bus fast", LIST("tiers", "--model", p.path, "--bus", "fast")},
        {"--max-tokens 0", LIST("tiers", "--model", p.path, "--max-tokens", "0")},
        {"at least --mb 2", LIST("tiers", "--model", p.path, "--mb", "1")},
        {"--skip-generation", LIST("tiers", "--model", p.path, "--skip-generation", "--bus", "0")},
        {"exph", LIST("tiers", "--model", TINY)},
        {"neither", LIST("tiers", "--model", "tests/data/nowhere")},
        {"--budget x", LIST("prefetch", "--model", p.path, "--budget", "x")},
        {"--budget 1:", LIST("prefetch", "--model", p.path, "--budget", "1")},
        {"neither", LIST("prefetch", "--model", "tests/data/nowhere")},
        {"neither", LIST("codec", "--model", "tests/data/nowhere")},
        {"--mb 0", LIST("codec", "--mb", "0")},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused("moepage-bench", cases[i].arguments, cases[i].named);
    place_close(&p);
}

static void run_olmoe(const char *dir, tool_result *out)
{
    tool_run("moepage-generate", LIST("--model", dir, "--tokens", "5,6,7", "--max-tokens", "4"),
             out);
    if (out->exit_status)
        fail_msg("%s", out->err);
}

/* "swish" is an older name of SiLU. */
static void test_generate_runs_a_checkpoint_that_says_swish(void **state)
{
    (void)state;
    tool_result silu, swish;
    char dir[64];
    size_t n;
    maker_dir_create(dir);
    unsigned char *weights = maker_read(OLMOE, "model.safetensors", &n);
    maker_write(dir, "model.safetensors", weights, n);
    free(weights);
    char *config = (char *)maker_read(OLMOE, "config.json", &n);
    char *name = memmem(config, n, "\"silu\"", 6);
    assert_non_null(name);
    size_t before = (size_t)(name - config), after = n - before - 6;
    char *renamed = malloc(n + 1);
    assert_non_null(renamed);
    memcpy(renamed, config, before);
    memcpy(renamed + before, "\"swish\"", 7);
    memcpy(renamed + before + 7, name + 6, after);
    maker_write(dir, "config.json", renamed, n + 1);
    free(renamed);
    free(config);

    run_olmoe(OLMOE, &silu);
    run_olmoe(dir, &swish);
    /* The first line has the tokens, the others how long it took. */
    assert_in_range(strcspn(silu.out, "\n"), 4, 100);
    assert_memory_equal(swish.out, silu.out, strcspn(silu.out, "\n") + 1);
    tool_result_free(&silu);
    tool_result_free(&swish);
    maker_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tools_print_their_usage_when_asked),
        cmocka_unit_test(test_bench_refuses_an_unknown_command_in_one_line),
        cmocka_unit_test(test_bench_explains_every_command),
        cmocka_unit_test(test_bench_refuses_bad_values_before_it_measures),
        cmocka_unit_test(test_generate_runs_a_checkpoint_that_says_swish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
