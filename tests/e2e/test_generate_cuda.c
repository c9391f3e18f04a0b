/* moepage-generate on "cuda:0", a simulated GPU that runs kernels in their CPU form, against itself
 * on the host: the same tokens, and logits that differ as two orders of the same sums do; and the
 * same bits at every setting. A stand-in for cuBLAS computes its products by their definition. What
 * no simulation shows, a GPU's own arithmetic, is not tested here. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "generation.h"
#include "testing.h"
#include "tool.h"
#include "twin_model.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define CUDA "--device", "cuda:0", "--cublas", "off"
#define CUBLAS "--device", "cuda:0"

/* Of the largest logit, as in test_generate.c. */
#define FP32_BAR 2e-5
/* Where a sum lies between two BF16 numbers its order decides: a fraction of what BF16 costs. */
#define BF16_BAR_FACTOR 1.0

#define HF "tests/data/hf/"
#define FP8 "tests/data/fp8/"
#define TINY "examples/models/tiny-qwen3moe"

static char sim[PATH_MAX];

static void load_reference(const char *dir, reference *out)
{
    if (strcmp(dir, TINY))
        reference_load_hf(dir, out);
    else
        reference_load_tiny(out);
}

/* The first two prompts, cut short: more than one sequence, and prefill of several rows. */
static generation_part a_part(const reference *ref)
{
    return (generation_part){.n = ref->n_prompts < 2 ? ref->n_prompts : 2,
                             .n_tokens = 21,
                             .max_tokens = 5};
}

static double largest_difference(const generation *a, const generation *b)
{
    double largest = 0;
    assert_int_equal(a->n_logits, b->n_logits);
    for (size_t i = 0; i < a->n_logits; i++) {
        double d = fabs((double)a->logits[i] - (double)b->logits[i]);
        if (!(d <= largest))
            largest = d;
    }
    return largest;
}

/* `products` is what a run with these flags says that it used. */
static void check_against_host(const char *dir, const char *const *flags, const char *products,
                               double bar_of_max, double bf16_factor)
{
    reference ref;
    generation host, cuda;
    load_reference(dir, &ref);
    const double bar = bar_of_max * ref.max_abs_logit + bf16_factor * ref.bf16_max_abs_diff;
    const generation_part part = a_part(&ref);
    generation_run(dir, &ref, &part, FLAGS(flags[0], flags[1]), &host);
    generation_run(dir, &ref, &part, flags, &cuda);
    const double d = largest_difference(&host, &cuda);
    print_message("# %s %s: max |d| %.3g, the bar is %.3g\n", dir, flags[1], d, bar);
    assert_true(d <= bar);
    assert_string_equal(json_string_value(json_object_get(cuda.stats, "products")), products);
    for (uint32_t i = 0; i < part.n; i++)
        for (uint32_t t = 0; t < part.max_tokens; t++)
            assert_int_equal(generation_token(&cuda, i, t), generation_token(&host, i, t));
    assert_int_equal(generation_stat(&host, "dense_device_bytes"), 0);
    assert_true(generation_stat(&cuda, "dense_device_bytes") > 0);
    assert_true(generation_stat(&cuda, "peak_bytes") <= generation_stat(&cuda, "budget_bytes"));
    generation_free(&host);
    generation_free(&cuda);
    reference_free(&ref);
}

static void test_generate_cuda_fp32_agrees_with_the_host(void **state)
{
    check_against_host(*state, FLAGS("--math", "fp32", CUDA), "plain", FP32_BAR, 0);
}

static void test_generate_cuda_bf16_agrees_with_the_host(void **state)
{
    check_against_host(*state, FLAGS("--math", "bf16", CUDA), "plain", FP32_BAR, BF16_BAR_FACTOR);
}

static void test_generate_cuda_asks_cublas_for_the_right_products(void **state)
{
    char path[2 * PATH_MAX + 16];
    (void)state;
    snprintf(path, sizeof path, "%s/blas:%s", sim, sim);
    setenv("LD_LIBRARY_PATH", path, 1);
    check_against_host(TINY, FLAGS("--math", "fp32", CUBLAS), "cublas", FP32_BAR, 0);
    check_against_host(HF "phimoe", FLAGS("--math", "fp32", CUBLAS), "cublas", FP32_BAR, 0);
    check_against_host(HF "qwen2_moe", FLAGS("--math", "bf16", CUBLAS), "cublas", FP32_BAR,
                       BF16_BAR_FACTOR);
    setenv("LD_LIBRARY_PATH", sim, 1);
}

static void test_generate_cuda_gives_the_same_bits_at_every_setting(void **state)
{
    const char *const *const settings[] = {
        FLAGS(CUDA, "--budget", "12%"),
        FLAGS(CUDA, "--budget", "40%", "--prefetch", "on", "--policy", "lfu"),
        FLAGS(CUDA, "--batch-prefill", "5", "--max-group-experts", "3"),
    };
    reference ref;
    generation whole, other;
    (void)state;
    load_reference(TINY, &ref);
    const generation_part part = a_part(&ref);
    generation_run(TINY, &ref, &part, FLAGS(CUDA), &whole);
    for (size_t i = 0; i < COUNT(settings); i++) {
        generation_run(TINY, &ref, &part, settings[i], &other);
        generation_assert_same(&whole, &other, settings[i][4]);
        generation_free(&other);
    }
    generation_free(&whole);
    reference_free(&ref);
}

/* ---- Experts in blocks ---- */

/* Even layers mix types and have smaller experts than odd ones. */
static const twin_types in_blocks = {{GGML_Q4_0, GGML_Q8_0},
                                     {GGML_Q8_0, GGML_Q8_0},
                                     GGML_BF16,
                                     GGML_BF16};

static void test_generate_cuda_runs_experts_in_blocks(void **state)
{
    static const char *const budgets[] = {"50%", "25%", "12.5%"};
    gguf_writer writer;
    char dir[64], file[96];
    reference ref;
    generation host, cuda, part_of_it;
    (void)state;
    gguf_init(&writer);
    maker_dir_create(dir);
    twin_make(&writer, &in_blocks);
    gguf_write(&writer, dir, "m.gguf");
    snprintf(file, sizeof file, "%s/m.gguf", dir);
    load_reference(TINY, &ref);
    const generation_part part = a_part(&ref);
    generation_run(file, &ref, &part, FLAGS("--math", "fp32"), &host);
    generation_run(file, &ref, &part, FLAGS("--math", "fp32", CUDA), &cuda);
    assert_true(largest_difference(&host, &cuda) <= FP32_BAR * ref.max_abs_logit);
    for (uint32_t i = 0; i < part.n; i++)
        for (uint32_t t = 0; t < part.max_tokens; t++)
            assert_int_equal(generation_token(&cuda, i, t), generation_token(&host, i, t));
    for (size_t i = 0; i < 2 * COUNT(budgets); i++) {
        const char *budget = budgets[i / 2], *miss = i % 2 ? "host" : "wait";
        generation_run(file, &ref, &part,
                       FLAGS("--math", "fp32", CUDA, "--budget", budget, "--miss", miss,
                             "--host-tier", "64M"),
                       &part_of_it);
        generation_assert_same(&cuda, &part_of_it, budget);
        assert_int_equal(generation_stat(&part_of_it, "host_experts") > 0, i % 2);
        generation_free(&part_of_it);
    }
    generation_free(&host);
    generation_free(&cuda);
    reference_free(&ref);
    maker_dir_remove(dir);
    gguf_free(&writer);
}

/* ---- Refusals ---------------------------------------------------------------------------- */

static void check_refused(const char *const *words, const char *named)
{
    tool_result result;
    tool_run("moepage-generate", words, &result);
    if (result.exit_status != 2 || *result.out || !strstr(result.err, named) ||
        strchr(result.err, '\n') != result.err + strlen(result.err) - 1)
        fail_msg("exit status %d, not 2 with \"%s\" in one line: %s%s", result.exit_status, named,
                 result.out, result.err);
    tool_result_free(&result);
}

#define SMALL "--model", TINY, "--tokens", "1", "--max-tokens", "1"

static void test_generate_cuda_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    check_refused(FLAGS(SMALL, "--device", "cuda:7"), "cuda:7");
    check_refused(FLAGS(SMALL, "--device", "cuda:0,cuda:1"), "cuda:0,cuda:1");
    check_refused(FLAGS(SMALL, "--device", "cuda:0", "--bus", "1G"), "throttle");
    check_refused(FLAGS("--model", HF "deepseek_v2-lite", "--tokens", "1", "--device", "cuda:0"),
                  "attention with latents is computed on the host only");
    check_refused(FLAGS(SMALL, "--cublas", "off"), "--cublas goes with --device cuda:N");
}

/* A tool by itself, in a directory of its own, with nothing beside it. */
static void test_generate_cuda_explains_a_missing_plugin(void **state)
{
    char dir[64], path[PATH_MAX + 16], tool[96];
    size_t bytes;
    (void)state;
    snprintf(path, sizeof path, "%s/../../bin", sim);
    unsigned char *program = maker_read(path, "moepage-generate", &bytes);
    maker_dir_create(dir);
    maker_write(dir, "moepage-generate", program, bytes);
    snprintf(tool, sizeof tool, "%s/moepage-generate", dir);
    assert_int_equal(chmod(tool, 0755), 0);
    setenv("MOEPAGE_BIN_DIR", dir, 1);
    unsetenv("LD_LIBRARY_PATH");
    check_refused(FLAGS(SMALL, "--device", "cuda:0"), "libmoepage-generate-cuda.so");
    setenv("LD_LIBRARY_PATH", sim, 1);
    unsetenv("MOEPAGE_BIN_DIR");
    maker_dir_remove(dir);
    free(program);
}

/* The simulated driver is in BUILD/CONFIG/sim, this program in BUILD/CONFIG/suites. Sanitized
 * builds have none. */
static bool find_sim(void)
{
    char driver[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", sim, sizeof sim - 8);
    if (n <= 0)
        return false;
    sim[n] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(sim, '/') = '\0';
    strcat(sim, "/sim");
    snprintf(driver, sizeof driver, "%s/libcuda.so.1", sim);
    return access(driver, R_OK) == 0;
}

#define AGREES(math, dir)                                                                \
    {                                                                                    \
        "test_generate_cuda_" #math "_agrees_with_the_host: " dir,                       \
            test_generate_cuda_##math##_agrees_with_the_host, NULL, NULL, (void *)(dir), \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        AGREES(fp32, TINY),
        AGREES(fp32, HF "qwen3_moe"),
        AGREES(fp32, HF "qwen2_moe"),
        AGREES(fp32, HF "mixtral"),
        AGREES(fp32, HF "olmoe"),
        AGREES(fp32, HF "phimoe"),
        AGREES(bf16, HF "qwen3_moe"),
        AGREES(bf16, HF "qwen2_moe"),
        AGREES(bf16, HF "phimoe"),
        AGREES(fp32, HF "glm4_moe"),
        AGREES(fp32, FP8 "qwen3_moe"),
        AGREES(bf16, FP8 "qwen3_moe"),
        cmocka_unit_test(test_generate_cuda_asks_cublas_for_the_right_products),
        cmocka_unit_test(test_generate_cuda_gives_the_same_bits_at_every_setting),
        cmocka_unit_test(test_generate_cuda_runs_experts_in_blocks),
        cmocka_unit_test(test_generate_cuda_refuses_what_it_cannot_do),
        cmocka_unit_test(test_generate_cuda_explains_a_missing_plugin),
    };
    if (!find_sim())
        return 77;
    setenv("LD_LIBRARY_PATH", sim, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
