/* moepage-generate --metrics: a whole text, of the run that has ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "prom_text.h"
#include "testing.h"
#include "tool.h"

#define TINY "examples/models/tiny-qwen3moe"

/* Five tokens of a prompt and four of the five that are generated pass through the layers. */
static void check(const char *written)
{
    static prom_text text;
    prom_read(written, &text);
    assert_int_equal(prom_count(&text, "moepage_tokens_total"), 5 + 4);
    assert_true(prom_count(&text, "moepage_steps_total") >= 5);
    assert_true(prom_count(&text, "moepage_experts_routed_total{outcome=\"miss\"}") > 0);
    assert_true(prom_count(&text, "moepage_kv_blocks") > 0);
    assert_true(prom_has(&text, "moepage_predictor_info{name=\"previous\"}"));
}

static void run(const char *metrics, tool_result *result)
{
    const char *const arguments[] = {"--model",   TINY,           "--tokens",
                                     "1,2,3,4,5", "--max-tokens", "5",
                                     "--budget",  "50%",          "--prefetch",
                                     "previous",  "--metrics",    metrics,
                                     NULL};
    tool_run("moepage-generate", arguments, result);
    if (result->exit_status)
        fail_msg("exit status %d: %s", result->exit_status, result->err);
}

static void test_generate_metrics_go_to_a_file(void **state)
{
    (void)state;
    char directory[64], path[80];
    tool_result result;
    size_t n;
    maker_dir_create(directory);
    snprintf(path, sizeof path, "%s/metrics", directory);
    run(path, &result);
    assert_null(strstr(result.out, "# HELP"));
    char *written = (char *)maker_read(directory, "metrics", &n);
    char *text = calloc(1, n + 1);
    assert_non_null(text);
    memcpy(text, written, n);
    check(text);
    free(text);
    free(written);
    tool_result_free(&result);
    maker_dir_remove(directory);
}

static void test_generate_metrics_go_to_standard_output(void **state)
{
    (void)state;
    tool_result result;
    run("-", &result);
    const char *begin = strstr(result.out, "# HELP moepage_build_info");
    assert_non_null(begin);
    check(begin);
    tool_result_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_metrics_go_to_a_file),
        cmocka_unit_test(test_generate_metrics_go_to_standard_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
