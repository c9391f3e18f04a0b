/* moepage-generate refuses what it cannot do: exit status 2, exactly one line on standard error
 * that names what was wrong, nothing on standard output, and no file left behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "testing.h"
#include "tool.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ARGUMENTS(...)    \
    {                     \
        __VA_ARGS__, NULL \
    }

#define GLM "tests/data/hf/glm4_moe"
#define GPT_OSS "tests/data/hf/gpt_oss"
#define OLMOE "tests/data/hf/olmoe"
#define RUN "--model", OLMOE, "--tokens", "5,6,7", "--max-tokens", "2"

typedef struct bad_case {
    const char *name;
    const char *named; /* a part of the line that must be there */
    const char *arguments[16];
} bad_case;

static const bad_case bad_cases[] = {
    /* the command line */
    {"unknown_flag", "--bogus", ARGUMENTS(RUN, "--bogus", "1")},
    {"flag_without_value", "--budget", ARGUMENTS(RUN, "--budget")},
    {"value_for_a_switch", "--json", ARGUMENTS(RUN, "--json=1")},
    {"stray_word", "stray", ARGUMENTS(RUN, "stray")},
    {"no_model", "--model", ARGUMENTS("--tokens", "1")},
    {"no_prompt", "prompt", ARGUMENTS("--model", OLMOE)},
    /* budgets */
    {"zero_budget", "--budget", ARGUMENTS(RUN, "--budget", "0")},
    {"zero_percent", "--budget", ARGUMENTS(RUN, "--budget", "0%")},
    {"negative_budget", "--budget", ARGUMENTS(RUN, "--budget", "-1")},
    {"nan_budget", "--budget", ARGUMENTS(RUN, "--budget", "nan")},
    {"nan_percent", "--budget", ARGUMENTS(RUN, "--budget", "NaN%")},
    {"infinite_percent", "--budget", ARGUMENTS(RUN, "--budget", "inf%")},
    {"huge_percent", "--budget", ARGUMENTS(RUN, "--budget", "1e400%")},
    {"percent_above_100", "--budget", ARGUMENTS(RUN, "--budget", "101%")},
    {"overflowing_budget", "--budget", ARGUMENTS(RUN, "--budget", "99999999999999999999")},
    {"overflowing_suffix", "--budget", ARGUMENTS(RUN, "--budget", "18446744073709551615G")},
    {"budget_of_one_byte", "at least", ARGUMENTS(RUN, "--budget", "1")},
    {"percentage_below_one_expert", "at least", ARGUMENTS(RUN, "--budget", "0.001%")},
    {"layer_share_below_one_slot", "at least",
     ARGUMENTS(RUN, "--budget", "4%", "--scope", "layer")},
    /* prompts */
    {"empty_token_list", "--tokens", ARGUMENTS("--model", OLMOE, "--tokens", "")},
    {"hole_in_tokens", "--tokens", ARGUMENTS("--model", OLMOE, "--tokens", "1,,2")},
    {"trailing_comma", "--tokens", ARGUMENTS("--model", OLMOE, "--tokens", "1,2,")},
    {"negative_token", "--tokens", ARGUMENTS("--model", OLMOE, "--tokens", "1,-2")},
    {"token_outside_vocabulary", "128", ARGUMENTS("--model", OLMOE, "--tokens", "1,128")},
    {"text_for_a_model_without_bytes", "--prompt", ARGUMENTS("--model", OLMOE, "--prompt", "hi")},
    {"empty_prompt", "--prompt",
     ARGUMENTS("--model", "examples/models/tiny-qwen3moe", "--prompt", "")},
    {"more_positions_than_the_model_has", "256", ARGUMENTS(RUN, "--max-tokens", "255")},
    /* numbers and names */
    {"zero_max_tokens", "--max-tokens", ARGUMENTS(RUN, "--max-tokens", "0")},
    {"negative_max_tokens", "--max-tokens", ARGUMENTS(RUN, "--max-tokens", "-3")},
    {"nan_temperature", "--temperature", ARGUMENTS(RUN, "--temperature", "nan")},
    {"negative_temperature", "--temperature", ARGUMENTS(RUN, "--temperature", "-0.5")},
    {"infinite_temperature", "--temperature", ARGUMENTS(RUN, "--temperature", "inf")},
    {"zero_top_p", "--top-p", ARGUMENTS(RUN, "--top-p", "0")},
    {"top_p_above_one", "--top-p", ARGUMENTS(RUN, "--top-p", "1.01")},
    {"nan_top_p", "--top-p", ARGUMENTS(RUN, "--top-p", "nan")},
    {"word_for_seed", "--seed", ARGUMENTS(RUN, "--seed", "x")},
    {"negative_threads", "--threads", ARGUMENTS(RUN, "--threads", "-1")},
    {"too_many_threads", "--threads", ARGUMENTS(RUN, "--threads", "4294967297")},
    {"fraction_of_group", "--max-group-experts", ARGUMENTS(RUN, "--max-group-experts", "1.5")},
    {"word_for_bus", "--bus", ARGUMENTS(RUN, "--bus", "fast")},
    {"unknown_math", "--math", ARGUMENTS(RUN, "--math", "fp64")},
    {"unknown_policy", "fifo", ARGUMENTS(RUN, "--policy", "fifo")},
    {"depth_without_prefetch", "--prefetch on", ARGUMENTS(RUN, "--prefetch-depth", "0")},
    {"depth_with_prefetch_off", "--prefetch on",
     ARGUMENTS(RUN, "--prefetch", "off", "--prefetch-depth", "1")},
    {"io_threads_with_nothing_to_read", "--host-tier", ARGUMENTS(RUN, "--io-threads", "4")},
    {"unknown_prefetch", "--prefetch", ARGUMENTS(RUN, "--prefetch", "maybe")},
    {"simulated_device", "libmoepage has no simulated devices",
     ARGUMENTS(RUN, "--device", "sim:examples/machines/h200.json")},
    {"unknown_device", "tpu", ARGUMENTS(RUN, "--device", "tpu")},
    /* files */
    {"missing_model", "nowhere: there is neither a directory nor a .gguf or .moepack file",
     ARGUMENTS("--model", "tests/data/nowhere", "--tokens", "1")},
    {"directory_without_a_model", "config.json",
     ARGUMENTS("--model", "tests/data", "--tokens", "1")},
    {"gguf_file_of_experts_alone", "deepseek2.attention.head_count is missing",
     ARGUMENTS("--model", "tests/data/gguf/whole.gguf", "--tokens", "1")},
    {"remap_of_a_sigmoid_router", "--remap needs a softmax router",
     ARGUMENTS("--model", GLM, "--tokens", "1", "--remap", "1,2")},
    {"logits_where_no_directory_is", "nowhere", ARGUMENTS(RUN, "--logits-out", "nowhere/logits")},
    {"metrics_where_no_directory_is", "nowhere", ARGUMENTS(RUN, "--metrics", "nowhere/metrics")},
    {"metrics_between_json", "--metrics", ARGUMENTS(RUN, "--json", "--metrics", "-")},
    {"trace_where_no_directory_is", "nowhere", ARGUMENTS(RUN, "--trace-out", "nowhere/trace")},
};

static void assert_refused(const char *const *arguments, const char *named)
{
    tool_result result;
    tool_run("moepage-generate", arguments, &result);
    const char *end = strchr(result.err, '\n');
    if (result.exit_status != 2 || !end || end == result.err || end[1] || *result.out)
        fail_msg("exit status %d, standard error \"%s\", standard output \"%s\"",
                 result.exit_status, result.err, result.out);
    if (!strstr(result.err, named))
        fail_msg("\"%s\" does not name %s", result.err, named);
    tool_result_free(&result);
}

static void test_bad_usage_is_refused_in_one_line(void **state)
{
    const bad_case *bad = *state;
    assert_refused(bad->arguments, bad->named);
}

/* ---- Damaged checkpoints ----------------------------------------------------------------- */

static void copy_file(const char *from, const char *to, const char *name, size_t cut)
{
    size_t n;
    unsigned char *bytes = maker_read(from, name, &n);
    assert_true(n > cut);
    maker_write(to, name, bytes, n - cut);
    free(bytes);
}

static void test_a_truncated_checkpoint_is_refused_in_one_line(void **state)
{
    (void)state;
    char dir[64], logits[96];
    maker_dir_create(dir);
    snprintf(logits, sizeof logits, "%s/logits", dir);
    copy_file(OLMOE, dir, "config.json", 0);
    copy_file(OLMOE, dir, "model.safetensors", 1);
    const char *const arguments[] = {"--model", dir, "--tokens", "1", "--logits-out", logits, NULL};
    assert_refused(arguments, "model.safetensors");
    assert_int_equal(access(logits, F_OK), -1);
    copy_file(OLMOE, dir, "model.safetensors", 0);
    maker_write_text(dir, "config.json", "{\"model_type\": \"olmoe\"");
    assert_refused(arguments, "config.json");
    maker_write_text(dir, "config.json", "{\"model_type\": \"unheard_of\"}");
    assert_refused(arguments, "unheard_of");
    maker_dir_remove(dir);
}

/* Turns `from` into `to`, of the same length, wherever it is. */
static void replace(unsigned char *bytes, size_t n, const char *from, const char *to)
{
    const size_t length = strlen(from);
    size_t found = 0;
    assert_int_equal(strlen(to), length);
    for (size_t i = 0; i + length <= n; i++)
        if (!memcmp(bytes + i, from, length)) {
            memcpy(bytes + i, to, length);
            found++;
        }
    assert_true(found > 0);
}

/* A tensor that no part of the model has, tensors that the config denies, and what no default may stand for. */
static void test_a_checkpoint_that_is_another_model_is_refused_in_one_line(void **state)
{
    static const char *const cases[][5] = {
        {GLM, "model.safetensors", "model.layers.3.eh_proj.weight", "model.layers.1.eh_proj.weight",
         "model.layers.1.eh_proj.weight"},
        {GLM, "config.json", "\"use_qk_norm\": true", "\"use_qk_norm\": null",
         "self_attn.k_norm.weight"},
        {GLM, "config.json", "\"attention_bias\": true", "\"attention_bias\": null",
         "self_attn.k_proj.bias"},
        {GLM, "config.json", "\"n_shared_experts\": 1", "\"n_shared_experts\": 0",
         "mlp.shared_experts.down_proj.weight"},
        {GLM, "config.json", "\"vocab_size\"", "\"vocab_sizf\"", "vocab_size is missing"},
        {GLM, "config.json", "\"n_group\"", "\"n_groop\"", "n_group is missing"},
        {GLM, "config.json", "\"topk_group\"", "\"topk_groop\"", "topk_group is missing"},
        {GLM, "config.json", "\"norm_topk_prob\"", "\"norm_topk_prop\"",
         "norm_topk_prob is missing"},
        {GLM, "config.json", "\"routed_scaling_factor\"", "\"routed_scaling_faktor\"",
         "routed_scaling_factor is missing"},
        {GPT_OSS, "config.json", "\"layer_types\"", "\"layer_typez\"",
         "layer_types must have an entry for each of 2 layers"},
        {GPT_OSS, "config.json", "\"sliding_window\"", "\"sliding_windoz\"", "sliding_window"},
        {GPT_OSS, "config.json", "\"full_attention\"", "\"a\",\"a\",\"a\",\"aa\"", "2 layers"},
    };
    char dir[64];
    (void)state;
    maker_dir_create(dir);
    const char *const arguments[] = {"--model", dir, "--tokens", "1", "--max-tokens", "1", NULL};
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t n;
        copy_file(cases[i][0], dir, "config.json", 0);
        copy_file(cases[i][0], dir, "model.safetensors", 0);
        unsigned char *bytes = maker_read(cases[i][0], cases[i][1], &n);
        replace(bytes, n, cases[i][2], cases[i][3]);
        maker_write(dir, cases[i][1], bytes, n);
        free(bytes);
        assert_refused(arguments, cases[i][4]);
    }
    maker_dir_remove(dir);
}

static void test_a_refused_run_leaves_no_logits(void **state)
{
    (void)state;
    char dir[64], logits[96];
    maker_dir_create(dir);
    snprintf(logits, sizeof logits, "%s/logits", dir);
    const char *const arguments[] = {RUN, "--policy", "fifo", "--logits-out", logits, NULL};
    assert_refused(arguments, "fifo");
    assert_int_equal(access(logits, F_OK), -1);
    maker_dir_remove(dir);
}

/* ---- The program ------------------------------------------------------------------------- */

int main(void)
{
    enum { OTHERS = 3 };
    static char names[COUNT(bad_cases)][128];
    static struct CMUnitTest tests[COUNT(bad_cases) + OTHERS] = {
        cmocka_unit_test(test_a_truncated_checkpoint_is_refused_in_one_line),
        cmocka_unit_test(test_a_checkpoint_that_is_another_model_is_refused_in_one_line),
        cmocka_unit_test(test_a_refused_run_leaves_no_logits),
    };
    for (size_t i = 0; i < COUNT(bad_cases); i++) {
        snprintf(names[i], sizeof names[i], "test_generate_%s_is_refused_in_one_line",
                 bad_cases[i].name);
        tests[OTHERS + i] = (struct CMUnitTest){.name = names[i],
                                                .test_func = test_bad_usage_is_refused_in_one_line,
                                                .initial_state = (void *)(uintptr_t)&bad_cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
