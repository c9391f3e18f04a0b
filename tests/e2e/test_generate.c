/* moepage-generate against transformers and against itself: the right logits and tokens, and the
 * same bits at every budget, policy, prefetch, thread count and grouping. tests/data/hf/README.md
 * describes the checkpoints. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generation.h"
#include "slow.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* FP32: two correct evaluations differ by rounding and the order of sums alone, which on these
 * models is about 1e-6 of the largest logit. */
#define FP32_BAR 2e-5
/* BF16: what rounding every activation costs transformers is the yardstick; a single value may be
 * off by twice its worst, and the mean by no more than its mean and a quarter. */
#define BF16_MAX_FACTOR 2.0
#define BF16_MEAN_FACTOR 1.25

#define HF "tests/data/hf/"
#define FP4 "tests/data/fp4/"
#define FP8 "tests/data/fp8/"
#define GPT_OSS "tests/data/gguf/gpt-oss"
#define TINY "examples/models/tiny-qwen3moe"

typedef struct model_case {
    const char *name;
    const char *dir;
    const char *reference; /* NULL: tiny-qwen3moe's own */
} model_case;

static const model_case models[] = {
    {"qwen3_moe", HF "qwen3_moe", HF "qwen3_moe"},
    {"qwen3_moe_in_indexed_shards", HF "qwen3_moe-sharded", HF "qwen3_moe"},
    {"qwen2_moe", HF "qwen2_moe", HF "qwen2_moe"},
    {"mixtral_in_files_without_index", HF "mixtral", HF "mixtral"},
    {"olmoe", HF "olmoe", HF "olmoe"},
    {"phimoe", HF "phimoe", HF "phimoe"},
    {"deepseek_v2", HF "deepseek_v2-lite", HF "deepseek_v2-lite"},
    {"deepseek_v3", HF "deepseek_v3-groups", HF "deepseek_v3-groups"},
    {"glm4_moe", HF "glm4_moe", HF "glm4_moe"},
    {"nvfp4_of_modelopt", FP4 "modelopt", FP4 "modelopt"},
    {"nvfp4_in_gguf_with_scales", FP4 "modelopt.gguf", FP4 "modelopt"},
    {"nvfp4_of_compressed_tensors", FP4 "packed", FP4 "packed"},
    {"nvfp4_in_stacks", FP4 "stacked", FP4 "stacked"},
    {"fp8_with_one_scale", FP4 "fp8", FP4 "fp8"},
    {"qwen3_moe_in_fp8", FP8 "qwen3_moe", FP8 "qwen3_moe"},
    {"deepseek_v3_in_fp8", FP8 "deepseek_v3", FP8 "deepseek_v3"},
    {"gpt_oss", GPT_OSS "/checkpoint", GPT_OSS},
    {"gpt_oss_in_gguf", GPT_OSS "/gpt-oss.gguf", GPT_OSS},
    {"tiny_qwen3moe", TINY, NULL},
};

static void load_reference(const model_case *model, reference *out)
{
    if (model->reference)
        reference_load_hf(model->reference, out);
    else
        reference_load_tiny(out);
}

/* All prompts, whole, and as many tokens as the reference has. */
static generation_part everything(const reference *ref)
{
    return (generation_part){.n = ref->n_prompts,
                             .n_tokens = UINT32_MAX,
                             .max_tokens = ref->prompts[0].n_greedy};
}

/* ---- Against the reference --------------------------------------------------------------- */

typedef struct difference {
    double max, sum;
    size_t values;
} difference;

static uint32_t argmax(const float *row, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

/* By how much the reference prefers its best token to `token`. */
static double preference(const float *row, uint32_t n, uint32_t token)
{
    return (double)row[argmax(row, n)] - (double)row[token];
}

static void compare_rows(const reference *ref, const reference_prompt *p, const float *found,
                         uint32_t rows, double bar, difference *out)
{
    uint32_t n = ref->vocabulary;
    for (uint32_t r = 0; r < rows; r++) {
        const float *right = p->logits + (size_t)r * n, *row = found + (size_t)r * n;
        for (uint32_t i = 0; i < n; i++) {
            double d = fabs((double)row[i] - (double)right[i]);
            if (!(d <= bar))
                fail_msg("row %u, logit %u: %.9g instead of %.9g, the bar is %g", r, i,
                         (double)row[i], (double)right[i], bar);
            out->max = fmax(out->max, d);
            out->sum += d;
        }
        out->values += n;
        double lost = preference(right, n, argmax(row, n));
        if (lost > 2 * bar)
            fail_msg("row %u: token %u is best, which the reference has %g below its own", r,
                     argmax(row, n), lost);
    }
}

/* How many generated tokens are the reference's. The first that is not must be a close call there;
 * what follows it continues another text and is not compared. */
static uint32_t common_tokens(const reference_prompt *p, const generation *g, uint32_t prompt,
                              double bar)
{
    uint32_t same = 0;
    while (same < p->n_greedy && generation_token(g, prompt, same) == p->greedy[same])
        same++;
    if (same < p->n_greedy && p->margin[same] >= 2 * bar)
        fail_msg("prompt %u, generated token %u: %u instead of %u, with a margin of %g", prompt,
                 same, generation_token(g, prompt, same), p->greedy[same], p->margin[same]);
    return same;
}

static difference compare(const reference *ref, const generation *g, double bar)
{
    difference found = {0};
    const float *logits = g->logits;
    for (uint32_t i = 0; i < ref->n_prompts; i++) {
        const reference_prompt *p = &ref->prompts[i];
        uint32_t same = common_tokens(p, g, i, bar);
        /* The row after generated token k is right only if that token is. */
        uint32_t rows = p->n_tokens + same < p->rows ? p->n_tokens + same : p->rows;
        assert_true(rows >= p->n_tokens);
        compare_rows(ref, p, logits, rows, bar, &found);
        logits += (size_t)(p->n_tokens + p->n_greedy - 1) * ref->vocabulary;
    }
    return found;
}

static void test_fp32_gives_the_references_logits_and_tokens(void **state)
{
    const model_case *model = *state;
    reference ref;
    generation g;
    load_reference(model, &ref);
    generation_part part = everything(&ref);
    generation_run(model->dir, &ref, &part, FLAGS("--math", "fp32"), &g);
    difference d = compare(&ref, &g, FP32_BAR * ref.max_abs_logit);
    print_message("# %s: max |d| %.3g, %.2g of the largest logit %.4g, %zu values\n", model->name,
                  d.max, d.max / ref.max_abs_logit, ref.max_abs_logit, d.values);
    generation_free(&g);
    reference_free(&ref);
}

static void test_bf16_stays_as_near_as_transformers_does(void **state)
{
    const model_case *model = *state;
    reference ref;
    generation g;
    load_reference(model, &ref);
    generation_part part = everything(&ref);
    generation_run(model->dir, &ref, &part, FLAGS("--math", "bf16"), &g);
    difference d = compare(&ref, &g, BF16_MAX_FACTOR * ref.bf16_max_abs_diff);
    double mean = d.sum / (double)d.values;
    print_message("# %s: max |d| %.3g (transformers %.3g), mean %.3g (%.3g)\n", model->name, d.max,
                  ref.bf16_max_abs_diff, mean, ref.bf16_mean_abs_diff);
    assert_true(mean <= BF16_MEAN_FACTOR * ref.bf16_mean_abs_diff);
    /* Rounding must have happened at all. */
    assert_true(d.max > FP32_BAR * ref.max_abs_logit);
    generation_free(&g);
    reference_free(&ref);
}

/* ---- Against itself ---------------------------------------------------------------------- */

/* A run of the model whose bits all others must have. */
typedef struct baseline {
    const model_case *model;
    reference ref;
    generation_part part;
    generation run;
} baseline;

/* tiny-qwen3moe has enough experts that a piece of it is long enough. */
static void open_baseline(const model_case *model, const char *math, baseline *out)
{
    out->model = model;
    load_reference(model, &out->ref);
    out->part = everything(&out->ref);
    if (!model->reference)
        out->part = (generation_part){.n = 3, .n_tokens = 24, .max_tokens = 12};
    generation_run(model->dir, &out->ref, &out->part,
                   FLAGS("--math", math, "--budget", "100%", "--threads", "1"), &out->run);
}

static void close_baseline(baseline *b)
{
    generation_free(&b->run);
    reference_free(&b->ref);
}

typedef struct setting {
    const char *budget, *policy, *prefetch, *threads, *group;
} setting;

/* Runs the baseline's part with a setting, which must change no bit; returns the run. */
static generation run_same(const baseline *b, const char *math, const setting *s)
{
    generation g;
    char what[160];
    generation_run(b->model->dir, &b->ref, &b->part,
                   FLAGS("--math", math, "--budget", s->budget, "--policy", s->policy, "--prefetch",
                         s->prefetch, "--threads", s->threads, "--max-group-experts", s->group),
                   &g);
    snprintf(what, sizeof what, "budget %s, %s, prefetch %s, %s thread(s), groups of %s", s->budget,
             s->policy, s->prefetch, s->threads, s->group);
    generation_assert_same(&b->run, &g, what);
    assert_true(generation_stat(&g, "peak_bytes") <= generation_stat(&g, "budget_bytes"));
    return g;
}

/* The settings must do what they say, or identical bits prove nothing. */
static void check_effect(const generation *g, const setting *s)
{
    uint64_t slots = generation_stat(g, "slots"), experts = generation_stat(g, "experts");
    uint64_t hints = generation_stat(g, "hint_experts");
    bool scarce = slots * 4 <= experts, ahead = !strcmp(s->prefetch, "on");
    assert_true((double)slots <= atof(s->budget) * (double)experts / 100);
    if (scarce)
        assert_true(generation_stat(g, "evictions") > 0);
    if (slots == experts)
        assert_int_equal(generation_stat(g, "evictions"), 0);
    if (!strcmp(s->group, "1"))
        assert_int_equal(generation_stat(g, "groups"), generation_stat(g, "routed"));
    if (ahead && scarce)
        assert_true(hints > 0);
    if (!ahead && generation_stat(g, "regime_changes") == 0) /* layers that stream ask ahead */
        assert_int_equal(hints, 0);
    assert_int_equal(generation_stat(g, "threads"), strtoul(s->threads, NULL, 10));
}

static const char *const budgets[] = {"100%", "50%", "25%", "12.5%"};
static const char *const policies[] = {"lru", "lfu"};
static const char *const prefetches[] = {"off", "on"};
static const char *const threads[] = {"1", "2"};
static const char *const groups[] = {"0", "1", "4"};

/* Every combination; `stride` > 1 takes each stride-th of the list alone. */
static void run_settings(const model_case *model, const char *math, size_t stride)
{
    baseline b;
    open_baseline(model, math, &b);
    size_t n =
        COUNT(budgets) * COUNT(policies) * COUNT(prefetches) * COUNT(threads) * COUNT(groups);
    for (size_t i = 0; i < n; i += stride) {
        size_t rest = i;
        setting s;
        s.budget = budgets[rest % COUNT(budgets)], rest /= COUNT(budgets);
        s.group = groups[rest % COUNT(groups)], rest /= COUNT(groups);
        s.policy = policies[rest % COUNT(policies)], rest /= COUNT(policies);
        s.prefetch = prefetches[rest % COUNT(prefetches)], rest /= COUNT(prefetches);
        s.threads = threads[rest];
        generation g = run_same(&b, math, &s);
        check_effect(&g, &s);
        generation_free(&g);
    }
    close_baseline(&b);
}

static void test_fp32_bits_do_not_depend_on_settings(void **state)
{
    const model_case *model = *state;
    run_settings(model, "fp32", slow_here() ? 29 : model->reference ? 1 : 7);
}

static void test_bf16_bits_do_not_depend_on_settings(void **state)
{
    run_settings(*state, "bf16", slow_here() ? 29 : 7);
}

/* How a prompt is cut into steps and what else is in the batch. */
static void test_bits_do_not_depend_on_the_batch(void **state)
{
    baseline b;
    open_baseline(*state, "fp32", &b);
    generation g;
    const char *const *const ways[] = {
        FLAGS("--batch-prefill", "5", "--budget", "25%"),
        FLAGS("--batch-prefill", "1", "--scope", "layer"),
        FLAGS("--bus", "30M", "--prefetch", "on", "--prefetch-depth", "2", "--budget", "25%"),
    };
    for (size_t i = 0; i < COUNT(ways); i++) {
        generation_run(b.model->dir, &b.ref, &b.part, ways[i], &g);
        generation_assert_same(&b.run, &g, ways[i][0]);
        generation_free(&g);
    }
    /* The second prompt alone: its rows follow the first prompt's. */
    generation_part second = b.part;
    second.first = second.n = 1;
    generation_run(b.model->dir, &b.ref, &second, FLAGS("--budget", "50%"), &g);
    uint32_t first = b.ref.prompts[0].n_tokens;
    size_t rows = (first < b.part.n_tokens ? first : b.part.n_tokens) + b.part.max_tokens - 1;
    assert_memory_equal(g.logits, b.run.logits + rows * b.ref.vocabulary,
                        g.n_logits * sizeof(float));
    assert_true(json_equal(json_array_get(g.outputs, 0), json_array_get(b.run.outputs, 1)));
    generation_free(&g);
    close_baseline(&b);
}

/* ---- The program ------------------------------------------------------------------------- */

int main(void)
{
    static const struct {
        const char *claim;
        void (*run)(void **state);
    } claims[] = {
        {"fp32_gives_the_references_logits_and_tokens",
         test_fp32_gives_the_references_logits_and_tokens},
        {"bf16_stays_as_near_as_transformers_does", test_bf16_stays_as_near_as_transformers_does},
        {"fp32_bits_do_not_depend_on_settings", test_fp32_bits_do_not_depend_on_settings},
        {"bf16_bits_do_not_depend_on_settings", test_bf16_bits_do_not_depend_on_settings},
        {"bits_do_not_depend_on_the_batch", test_bits_do_not_depend_on_the_batch},
    };
    static char names[COUNT(claims) * COUNT(models)][128];
    static struct CMUnitTest tests[COUNT(claims) * COUNT(models)];
    for (size_t i = 0; i < COUNT(tests); i++) {
        const model_case *model = &models[i % COUNT(models)];
        size_t claim = i / COUNT(models);
        snprintf(names[i], sizeof names[i], "test_generate_%s_%s", model->name,
                 claims[claim].claim);
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = claims[claim].run,
                                       .initial_state = (void *)(uintptr_t)model};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
