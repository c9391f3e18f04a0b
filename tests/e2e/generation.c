/* References from files, and runs of moepage-generate. */
#include "generation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "testing.h"
#include "tool.h"

#define TINY "examples/models/tiny-qwen3moe/reference"
#define MAX_WORDS 128

/* ---- References -------------------------------------------------------------------------- */

static json_t *load_json(const char *dir, const char *name)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    json_t *json = json_load_file(path, 0, &error);
    if (!json)
        fail_msg("%s: %s", path, error.text);
    return json;
}

static uint32_t *load_tokens(const json_t *list, uint32_t *n)
{
    *n = (uint32_t)json_array_size(list);
    assert_true(*n > 0);
    uint32_t *tokens = calloc(*n, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t i = 0; i < *n; i++)
        tokens[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return tokens;
}

/* Prompts from a list of objects, with room for the margins. */
static void load_prompts(const json_t *list, const char *tokens_key, reference *out)
{
    out->n_prompts = (uint32_t)json_array_size(list);
    assert_true(out->n_prompts > 0);
    out->prompts = calloc(out->n_prompts, sizeof *out->prompts);
    assert_non_null(out->prompts);
    for (uint32_t i = 0; i < out->n_prompts; i++) {
        reference_prompt *p = &out->prompts[i];
        const json_t *object = json_array_get(list, i);
        p->tokens = load_tokens(json_object_get(object, tokens_key), &p->n_tokens);
        p->greedy = load_tokens(json_object_get(object, "greedy"), &p->n_greedy);
        p->margin = calloc(p->n_greedy, sizeof *p->margin);
        assert_non_null(p->margin);
    }
}

/* The whole of logits.f32, given out to the prompts by their `rows`. */
static void load_logits(const char *dir, reference *out)
{
    size_t bytes, rows = 0;
    out->logits = (float *)maker_read(dir, "logits.f32", &bytes);
    for (uint32_t i = 0; i < out->n_prompts; i++) {
        out->prompts[i].logits = out->logits + rows * out->vocabulary;
        rows += out->prompts[i].rows;
    }
    assert_int_equal(bytes, rows * out->vocabulary * sizeof(float));
    for (size_t i = 0; i < rows * out->vocabulary; i++) {
        assert_true(isfinite(out->logits[i]));
        out->max_abs_logit = fmax(out->max_abs_logit, fabs((double)out->logits[i]));
    }
}

static double top2_margin(const float *row, uint32_t n)
{
    double best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (row[i] > best) {
            second = best;
            best = row[i];
        } else if (row[i] > second) {
            second = row[i];
        }
    }
    return best - second;
}

void reference_load_hf(const char *dir, reference *out)
{
    *out = (reference){0};
    json_t *json = load_json(dir, "expected.json");
    out->vocabulary = (uint32_t)json_integer_value(json_object_get(json, "vocab_size"));
    out->bf16_max_abs_diff = json_real_value(json_object_get(json, "bf16_max_abs_diff"));
    out->bf16_mean_abs_diff = json_real_value(json_object_get(json, "bf16_mean_abs_diff"));
    load_prompts(json_object_get(json, "prompts"), "tokens", out);
    json_decref(json);
    for (uint32_t i = 0; i < out->n_prompts; i++)
        out->prompts[i].rows = out->prompts[i].n_tokens + out->prompts[i].n_greedy - 1;
    load_logits(dir, out);
    for (uint32_t i = 0; i < out->n_prompts; i++) {
        reference_prompt *p = &out->prompts[i];
        for (uint32_t k = 0; k < p->n_greedy; k++)
            p->margin[k] = top2_margin(p->logits + (size_t)(p->n_tokens - 1 + k) * out->vocabulary,
                                       out->vocabulary);
    }
}

void reference_load_tiny(reference *out)
{
    /* The BF16 numbers: transformers 5.23.0 and torch 2.15.0 on these prompts, model and
     * arithmetic in bfloat16, eager attention, against reference/logits.f32. */
    *out = (reference){.vocabulary = 260, .bf16_max_abs_diff = 0.770, .bf16_mean_abs_diff = 0.0335};
    json_t *json = load_json(TINY, "reference.json");
    load_prompts(json, "prompt_bytes", out);
    for (uint32_t i = 0; i < out->n_prompts; i++) {
        reference_prompt *p = &out->prompts[i];
        const json_t *object = json_array_get(json, i);
        const json_t *margins = json_object_get(object, "top2_margin");
        p->rows = (uint32_t)json_integer_value(json_object_get(object, "logits_rows"));
        assert_int_equal(json_array_size(margins), p->n_greedy);
        for (uint32_t k = 0; k < p->n_greedy; k++)
            p->margin[k] = json_number_value(json_array_get(margins, k));
    }
    json_decref(json);
    load_logits(TINY, out);
}

void reference_free(reference *ref)
{
    for (uint32_t i = 0; i < ref->n_prompts; i++) {
        free(ref->prompts[i].tokens);
        free(ref->prompts[i].greedy);
        free(ref->prompts[i].margin);
    }
    free(ref->prompts);
    free(ref->logits);
}

/* ---- Runs -------------------------------------------------------------------------------- */

static uint32_t prompt_length(const reference *ref, const generation_part *part, uint32_t i)
{
    uint32_t n = ref->prompts[part->first + i].n_tokens;
    return n < part->n_tokens ? n : part->n_tokens;
}

/* "1,2,3", to be freed. */
static char *token_list(const uint32_t *tokens, uint32_t n)
{
    char *text = malloc(12u * n + 1), *at = text;
    assert_non_null(text);
    for (uint32_t i = 0; i < n; i++)
        at += sprintf(at, i ? ",%u" : "%u", tokens[i]);
    return text;
}

static void parse(const char *text, generation *out)
{
    json_error_t error;
    out->json = json_loads(text, 0, &error);
    if (!out->json)
        fail_msg("--json printed no JSON object: %s: %s", error.text, text);
    out->outputs = json_object_get(out->json, "outputs");
    out->stats = json_object_get(out->json, "stats");
    assert_true(json_is_array(out->outputs));
    assert_true(json_is_object(out->stats));
}

static void check_shape(const reference *ref, const generation_part *part, const generation *g)
{
    size_t rows = 0;
    assert_int_equal(json_array_size(g->outputs), part->n);
    for (uint32_t i = 0; i < part->n; i++) {
        const json_t *tokens = json_object_get(json_array_get(g->outputs, i), "tokens");
        assert_int_equal(json_array_size(tokens), part->max_tokens);
        rows += prompt_length(ref, part, i) + part->max_tokens - 1;
    }
    assert_int_equal(g->n_logits, rows * ref->vocabulary);
}

void generation_run(const char *model, const reference *ref, const generation_part *part,
                    const char *const *flags, generation *out)
{
    char dir[64], logits[80], max_tokens[16];
    const char *words[MAX_WORDS] = {"--model", model, "--device", "host", "--json"};
    char *prompts[16];
    size_t n = 5, bytes;
    maker_dir_create(dir);
    snprintf(logits, sizeof logits, "%s/logits", dir);
    snprintf(max_tokens, sizeof max_tokens, "%u", part->max_tokens);
    const char *outputs[] = {"--logits-out", logits, "--max-tokens", max_tokens};
    for (size_t i = 0; i < 4; i++)
        words[n++] = outputs[i];
    assert_in_range(part->n, 1, 16);
    for (uint32_t i = 0; i < part->n; i++) {
        prompts[i] = token_list(ref->prompts[part->first + i].tokens, prompt_length(ref, part, i));
        words[n++] = "--tokens";
        words[n++] = prompts[i];
    }
    for (size_t i = 0; flags[i] && n < MAX_WORDS - 1; i++)
        words[n++] = flags[i];
    tool_result result;
    tool_run("moepage-generate", words, &result);
    if (result.exit_status || *result.err)
        fail_msg("exit status %d: %s", result.exit_status, result.err);
    parse(result.out, out);
    out->logits = (float *)maker_read(dir, "logits", &bytes);
    out->n_logits = bytes / sizeof(float);
    tool_result_free(&result);
    maker_dir_remove(dir);
    for (uint32_t i = 0; i < part->n; i++)
        free(prompts[i]);
    check_shape(ref, part, out);
}

void generation_free(generation *g)
{
    json_decref(g->json);
    free(g->logits);
}

void generation_assert_same(const generation *a, const generation *b, const char *what)
{
    if (!json_equal(a->outputs, b->outputs))
        fail_msg("%s: other tokens or text", what);
    assert_int_equal(a->n_logits, b->n_logits);
    for (size_t i = 0; i < a->n_logits; i++)
        if (memcmp(&a->logits[i], &b->logits[i], sizeof(float)))
            fail_msg("%s: logit %zu of %zu is %.9g, not %.9g", what, i, a->n_logits,
                     (double)b->logits[i], (double)a->logits[i]);
}

uint64_t generation_stat(const generation *g, const char *key)
{
    const json_t *value = json_object_get(g->stats, key);
    if (!json_is_integer(value))
        fail_msg("stats have no whole number \"%s\"", key);
    return (uint64_t)json_integer_value(value);
}

uint32_t generation_token(const generation *g, uint32_t prompt, uint32_t i)
{
    const json_t *tokens = json_object_get(json_array_get(g->outputs, prompt), "tokens");
    return (uint32_t)json_integer_value(json_array_get(tokens, i));
}
