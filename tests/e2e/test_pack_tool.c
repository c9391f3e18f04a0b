/* moepage-pack, and moepage-generate on what it makes: the pack is the model,
 * bit for bit, wherever its experts are kept; what cannot be done is refused in one line and leaves
 * no file. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "checkpoint_maker.h"
#include "generation.h"
#include "moepage.h"
#include "testing.h"
#include "tool_runs.h"

/* ---- Packing ----------------------------------------------------------------------------- */

static void test_pack_writes_one_file_and_says_its_sizes(void **state)
{
    (void)state;
    place p;
    place_open(&p);
    json_t *json = run_json("moepage-pack",
                            LIST(TINY, p.path, "--expert-versions", "bf16,exph,int8,int4,int2",
                                 "--cold-level", "1", "--group-size", "32", "--verify", "--json"));
    size_t n;
    free(maker_read(p.dir, "x.moepack", &n));
    assert_int_equal(count_files(p.dir), 1);
    assert_int_equal(integer(json, "file_bytes"), n);
    /* 8 layers of 64 experts of 3 matrices of 128 x 64 weights of 2 bytes */
    double routed = 8.0 * 64 * 3 * 128 * 64 * 2;
    assert_int_equal(integer(json, "routed_bytes"), (int64_t)routed);
    assert_true(json_is_true(json_object_get(json, "verified")));
    const json_t *forms = json_object_get(json, "form_bytes");
    assert_int_equal(json_object_size(forms), 5);
    assert_true((double)integer(forms, "dense") < 0.95 * routed); /* zstd */
    assert_true((double)integer(forms, "exph") < 0.72 * routed);
    /* b bits per weight and 16 per 32 of them, and at most 16 bytes of padding per matrix */
    assert_in_range(integer(forms, "int8"), (int64_t)(routed * 8.5 / 16), (int64_t)(routed * 0.54));
    assert_in_range(integer(forms, "int4"), (int64_t)(routed * 4.5 / 16), (int64_t)(routed * 0.29));
    assert_in_range(integer(forms, "int2"), (int64_t)(routed * 2.5 / 16), (int64_t)(routed * 0.17));
    assert_int_equal(integer(json, "cold_level"), 1);
    assert_int_equal(integer(json, "group_size"), 32);
    assert_int_equal(integer(json, "slot_bytes"), 3 * 128 * 64 * 2);
    json_decref(json);
    json = run_json("moepage-pack", LIST(TINY, p.path, "--json"));
    assert_null(json_object_get(json, "cold_level"));
    assert_null(json_object_get(json, "group_size"));
    json_decref(json);
    json = run_json("moepage-pack", LIST(TINY, p.path, "--expert-versions", "exph,int4", "--json"));
    assert_int_equal(integer(json, "group_size"), 64);
    json_decref(json);
    place_close(&p);
}

static void test_pack_is_the_same_file_on_any_number_of_threads(void **state)
{
    (void)state;
    static const char *const threads[] = {"1", "2", "5"};
    unsigned char *bytes[COUNT(threads)];
    size_t n[COUNT(threads)];
    for (size_t i = 0; i < COUNT(threads); i++) {
        place p;
        place_open(&p);
        pack(LIST("--synthetic", "toy", p.path, "--threads", threads[i]));
        bytes[i] = maker_read(p.dir, "x.moepack", &n[i]);
        place_close(&p);
    }
    for (size_t i = 1; i < COUNT(threads); i++) {
        assert_int_equal(n[i], n[0]);
        assert_memory_equal(bytes[i], bytes[0], n[0]);
        free(bytes[i]);
    }
    free(bytes[0]);
}

/* ---- Synthetic models -------------------------------------------------------------------- */

static void read_one(const char *path, unsigned char **out, uint64_t *n)
{
    moepage_model *model;
    moepage_model_info info = {.struct_size = sizeof info};
    if (moepage_model_open(path, NULL, &model) || moepage_model_get_info(model, &info))
        fail_msg("%s", moepage_last_error());
    *n = info.slot_bytes;
    *out = malloc(*n);
    assert_non_null(*out);
    if (moepage_model_read_expert(model, 1, 3, *out, *n))
        fail_msg("%s", moepage_last_error());
    moepage_model_close(model);
}

static double value_of(const unsigned char *bytes)
{
    uint32_t bits = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* n weights of standard deviation 0.02 and of the distribution's kurtosis; the bounds are several
 * standard errors wide. */
static void assert_moments(const unsigned char *bytes, size_t n, double low, double high)
{
    double sum = 0, square = 0, fourth = 0;
    for (size_t i = 0; i < n; i++) {
        double x = value_of(bytes + 2 * i);
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
    }
    double count = (double)n, variance = square / count;
    assert_true(fabs(sum / count) < 0.02 * 5 / sqrt(count));
    assert_true(fabs(sqrt(variance) / 0.02 - 1) < 0.1);
    double kurtosis = fourth / count / variance / variance;
    if (kurtosis < low || kurtosis > high)
        fail_msg("kurtosis %g", kurtosis);
}

static void test_synthetic_weights_follow_seed_and_distribution(void **state)
{
    (void)state;
    static const char *const seeds[] = {"7", "7", "8", "7"};
    static const char *const kinds[] = {"gaussian", "gaussian", "gaussian", "heavy"};
    unsigned char *expert[4];
    uint64_t n = 0;
    for (size_t i = 0; i < 4; i++) {
        place p;
        place_open(&p);
        pack(LIST("--synthetic", "toy", p.path, "--layers", "2", "--seed", seeds[i], "--weights",
                  kinds[i]));
        read_one(p.path, &expert[i], &n);
        place_close(&p);
    }
    assert_memory_equal(expert[0], expert[1], n);
    assert_memory_not_equal(expert[0], expert[2], n);
    assert_memory_not_equal(expert[0], expert[3], n);
    size_t weights = 3 * 128 * 64;
    assert_moments(expert[0], weights, 2.8, 3.2);
    assert_moments(expert[3], weights, 4, 100);
    for (size_t i = 0; i < 4; i++)
        free(expert[i]);
}

static void test_synthetic_model_generates_with_varied_routing(void **state)
{
    (void)state;
    place p;
    place_open(&p);
    pack(LIST("--synthetic", "toy", p.path));
    json_t *json =
        run_json("moepage-generate", LIST("--model", p.path, "--prompt", "The library ",
                                          "--max-tokens", "24", "--budget", "50%", "--json"));
    const json_t *stats = json_object_get(json, "stats");
    /* Were it always the same 4 experts, nothing would miss after the first token. */
    assert_true(integer(stats, "misses") > 4 * 4 * 2);
    assert_true(integer(stats, "hits") > 0);
    json_decref(json);
    place_close(&p);
}

/* ---- The pack is the model --------------------------------------------------------------- */

static void test_generation_from_a_pack_has_the_checkpoints_bits(void **state)
{
    (void)state;
    const struct {
        const char *what;
        const char *const *flags;
        bool decodes, cold;
    } runs[] = {
        {"mapped exph", LIST("--budget", "25%"), true, false},
        {"host tier", LIST("--budget", "20%", "--host-tier", "4M"), true, true},
        {"small host tier, dense bus",
         LIST("--budget", "20%", "--host-tier", "1M", "--bus-form", "dense", "--io-threads", "1"),
         false, true},
        {"three tiers", LIST("--tiers", "15:35:50", "--host-tier", "2M", "--prefetch", "on"), true,
         true},
    };
    reference ref;
    generation wanted, got;
    place p;
    place_open(&p);
    pack(LIST(TINY, p.path));
    reference_load_tiny(&ref);
    generation_part part = {.n = 2, .n_tokens = 24, .max_tokens = 12};
    generation_run(TINY, &ref, &part, LIST("--threads", "2"), &wanted);
    for (size_t i = 0; i < COUNT(runs); i++) {
        generation_run(p.path, &ref, &part, runs[i].flags, &got);
        generation_assert_same(&got, &wanted, runs[i].what);
        assert_true((generation_stat(&got, "decodes") > 0) == runs[i].decodes);
        assert_true((generation_stat(&got, "cold_reads") > 0) == runs[i].cold);
        generation_free(&got);
    }
    generation_free(&wanted);
    reference_free(&ref);
    place_close(&p);
}

static void test_tiers_are_what_was_asked_for(void **state)
{
    (void)state;
    place p;
    place_open(&p);
    pack(LIST(TINY, p.path));
    json_t *json = run_json("moepage-generate",
                            LIST("--model", p.path, "--prompt", "The ", "--max-tokens", "8",
                                 "--tiers", "25:26:49", "--host-tier", "2M", "--json"));
    const json_t *stats = json_object_get(json, "stats");
    assert_int_equal(integer(stats, "slots"), 8 * 64 / 4);
    assert_int_equal(integer(stats, "compressed_experts"), 17); /* 26 % of 64, rounded up */
    assert_true(integer(stats, "compressed_loads") > 0);
    assert_true(integer(stats, "compressed_loads") <= integer(stats, "decodes"));
    assert_true(integer(stats, "host_tier_bytes") <= 2 << 20);
    assert_true(integer(stats, "peak_bytes") <= integer(stats, "budget_bytes"));
    assert_true(real(stats, "cold_bytes_per_token") > 0);
    assert_string_equal(json_string_value(json_object_get(stats, "bus_form")), "exph");
    assert_string_equal(json_string_value(json_object_get(stats, "model")), p.path);
    assert_string_equal(json_string_value(json_object_get(stats, "policy")), "lru");
    assert_int_equal(integer(stats, "io_threads"), 4);
    json_decref(json);
    json = run_json("moepage-generate",
                    LIST("--model", p.path, "--prompt", "The ", "--max-tokens", "1", "--json"));
    assert_int_equal(integer(json_object_get(json, "stats"), "io_threads"), 0);
    json_decref(json);
    tool_result table;
    run_well("moepage-generate",
             LIST("--model", p.path, "--prompt", "The ", "--max-tokens", "1", "--tiers",
                  "10:20:70"),
             &table);
    assert_non_null(strstr(table.out, "51 slots of 512 experts, 104 kept compressed\n"));
    tool_result_free(&table);
    place_close(&p);
}

/* ---- Text ---------------------------------------------------------------------------------- */

static void test_inspect_and_pack_print_text(void **state)
{
    (void)state;
    place p;
    tool_result result;
    place_open(&p);
    run_well("moepage-pack", LIST("--synthetic", "toy", p.path), &result);
    assert_non_null(strstr(result.out, "exph"));
    assert_string_equal(result.err, "");
    tool_result_free(&result);
    run_well("moepage-inspect", LIST(p.path, "--sample", "10"), &result);
    assert_non_null(strstr(result.out, "qwen3_moe, a pack"));
    assert_non_null(strstr(result.out, "10 of 64 experts"));
    assert_non_null(strstr(result.out, "2^-7"));
    tool_result_free(&result);
    run_well("moepage-pack", LIST("--list-shapes"), &result);
    assert_non_null(strstr(result.out, "qwen3-30b-a3b"));
    tool_result_free(&result);
    place_close(&p);
}

/* ---- Refusals ---------------------------------------------------------------------------- */

typedef struct bad_case {
    const char *tool;
    const char *named; /* a part of the line that must be there */
    const char *const *arguments;
} bad_case;

static const bad_case bad_cases[] = {
    {"moepage-pack", "MODEL_DIR", LIST("--json")},
    {"moepage-pack", "OUT.moepack", LIST(TINY)},
    {"moepage-pack", "surplus", LIST(TINY, "build/no", "surplus")},
    {"moepage-pack", "MODEL_DIR", LIST("--synthetic", "toy", TINY, "build/no")},
    {"moepage-pack", "--bogus", LIST(TINY, "build/no", "--bogus")},
    {"moepage-pack", "int3", LIST(TINY, "build/no", "--expert-versions", "exph,int3")},
    {"moepage-pack", "lossless", LIST(TINY, "build/no", "--expert-versions", "int8")},
    {"moepage-pack", "--expert-versions", LIST(TINY, "build/no", "--expert-versions", "exph,")},
    {"moepage-pack", "--cold-level", LIST(TINY, "build/no", "--cold-level", "3")},
    {"moepage-pack", "20", LIST(TINY, "build/no", "--cold-level", "20")},
    {"moepage-pack", "48", LIST(TINY, "build/no", "--group-size", "48")},
    {"moepage-pack", "32, 64 or 128", LIST(TINY, "build/no", "--group-size", "0")},
    {"moepage-pack", "--expert-versions fp16",
     LIST(TINY, "build/no", "--expert-versions", "exph,fp16")},
    {"moepage-pack", "--expert-versions bf16",
     LIST("tests/data/hf/mixtral", "build/no", "--expert-versions", "bf16")},
    {"moepage-pack", "--group-size", LIST(TINY, "build/no", "--group-size", "64")},
    {"moepage-pack", "--scale-search", LIST(TINY, "build/no", "--scale-search")},
    {"moepage-pack", "gpt-9", LIST("--synthetic", "gpt-9", "build/no")},
    {"moepage-pack", "--layers 5", LIST("--synthetic", "toy", "build/no", "--layers", "5")},
    {"moepage-pack", "--layers", LIST(TINY, "build/no", "--layers", "1")},
    {"moepage-pack", "at least 4", LIST("--synthetic", "deepseek-v3", "build/no", "--layers", "3")},
    {"moepage-pack", "--seed", LIST(TINY, "build/no", "--seed", "0")},
    {"moepage-pack", "--weights", LIST(TINY, "build/no", "--weights", "gaussian")},
    {"moepage-pack", "alone", LIST("--list-shapes", "--json")},
    {"moepage-pack", "--weights", LIST("--synthetic", "toy", "build/no", "--weights", "light")},
    {"moepage-pack", "nowhere: there is neither a directory nor a .gguf or .moepack file",
     LIST("tests/data/nowhere", "build/no")},
    {"moepage-pack", "moepage-pack: tests/data is not a regular file", LIST(TINY, "tests/data")},
    {"moepage-inspect", "MODEL_DIR", LIST("--json")},
    {"moepage-inspect", "nowhere: there is neither a directory nor a .gguf or .moepack file",
     LIST("tests/data/nowhere")},
    {"moepage-inspect", "8 MoE layers", LIST(TINY, "--layer", "8")},
    {"moepage-inspect", "--sample", LIST(TINY, "--sample", "0")},
    {"moepage-inspect", "second", LIST(TINY, "second")},
    {"moepage-generate", "--tiers",
     LIST("--model", TINY, "--prompt", "a", "--tiers", "50:50:0", "--budget", "50%")},
    {"moepage-generate", "100", LIST("--model", TINY, "--prompt", "a", "--tiers", "50:20:20")},
    {"moepage-generate", "--tiers", LIST("--model", TINY, "--prompt", "a", "--tiers", "50:50")},
    {"moepage-generate", "0%", LIST("--model", TINY, "--prompt", "a", "--tiers", "0:50:50")},
    {"moepage-generate", "--tiers 1:0:99: ",
     LIST("--model", TINY, "--prompt", "a", "--tiers", "1:0:99", "--scope", "layer")},
    {"moepage-generate", "exph", LIST("--model", TINY, "--prompt", "a", "--tiers", "50:25:25")},
    {"moepage-generate", "exph", LIST("--model", TINY, "--prompt", "a", "--bus-form", "exph")},
    {"moepage-generate", "int8", LIST("--model", TINY, "--prompt", "a", "--bus-form", "int8")},
    {"moepage-generate", "--io-threads",
     LIST("--model", TINY, "--prompt", "a", "--io-threads", "65")},
    {"moepage-generate", "--io-threads",
     LIST("--model", TINY, "--prompt", "a", "--io-threads", "4")},
    {"moepage-generate", "--host-tier",
     LIST("--model", TINY, "--prompt", "a", "--host-tier", "some")},
};

static void test_bad_usage_is_refused_in_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad_cases); i++)
        assert_refused(bad_cases[i].tool, bad_cases[i].arguments, bad_cases[i].named);
}

static void test_a_truncated_pack_is_refused_in_one_line(void **state)
{
    (void)state;
    place p;
    size_t n;
    place_open(&p);
    pack(LIST("--synthetic", "toy", p.path, "--layers", "1"));
    unsigned char *bytes = maker_read(p.dir, "x.moepack", &n);
    maker_write(p.dir, "x.moepack", bytes, n - 1);
    free(bytes);
    assert_refused("moepage-inspect", LIST(p.path), "x.moepack");
    assert_refused("moepage-generate", LIST("--model", p.path, "--prompt", "a"), "x.moepack");
    place_close(&p);
}

/* The file that is damaged is named, once, and not the one that was to be written. */
static void test_a_damaged_source_is_named_first(void **state)
{
    (void)state;
    place p;
    size_t n;
    char copy[128], begin[160];
    tool_result result;
    place_open(&p);
    snprintf(copy, sizeof copy, "%s/copy.moepack", p.dir);
    snprintf(begin, sizeof begin, "moepage-pack: %s: section", p.path);
    pack(LIST("--synthetic", "toy", p.path));
    unsigned char *bytes = maker_read(p.dir, "x.moepack", &n);
    bytes[n - 20000] ^= 1;
    maker_write(p.dir, "x.moepack", bytes, n);
    free(bytes);
    tool_run("moepage-pack", LIST(p.path, copy, "--expert-versions", "dense"), &result);
    assert_int_equal(result.exit_status, 1);
    if (strncmp(result.err, begin, strlen(begin)) != 0 || strstr(result.err + 20, "copy"))
        fail_msg("%s", result.err);
    assert_int_equal(count_files(p.dir), 1);
    tool_result_free(&result);
    place_close(&p);
}

/* ---- Interruption ------------------------------------------------------------------------ */

static void interrupt(const place *p, int signal, const char *said)
{
    tool_result result;
    tool_run_signalled("moepage-pack", LIST("--synthetic", "toy", p->path), signal, &result);
    assert_int_equal(result.exit_status, 1);
    assert_string_equal(result.out, "");
    assert_non_null(strstr(result.err, "interrupted"));
    assert_non_null(strstr(result.err, said));
    assert_ptr_equal(strchr(result.err, '\n'), result.err + strlen(result.err) - 1);
    tool_result_free(&result);
}

static void test_an_interrupted_pack_leaves_no_file(void **state)
{
    (void)state;
    place p;
    place_open(&p);
    interrupt(&p, SIGINT, "nothing was written");
    interrupt(&p, SIGHUP, "nothing was written");
    assert_int_equal(count_files(p.dir), 0);
    maker_write_text(p.dir, "x.moepack", "what was there before");
    interrupt(&p, SIGTERM, "as it was");
    size_t n;
    unsigned char *bytes = maker_read(p.dir, "x.moepack", &n);
    assert_int_equal(n, strlen("what was there before"));
    assert_memory_equal(bytes, "what was there before", n);
    assert_int_equal(count_files(p.dir), 1);
    free(bytes);
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_writes_one_file_and_says_its_sizes),
        cmocka_unit_test(test_pack_is_the_same_file_on_any_number_of_threads),
        cmocka_unit_test(test_synthetic_weights_follow_seed_and_distribution),
        cmocka_unit_test(test_synthetic_model_generates_with_varied_routing),
        cmocka_unit_test(test_generation_from_a_pack_has_the_checkpoints_bits),
        cmocka_unit_test(test_tiers_are_what_was_asked_for),
        cmocka_unit_test(test_inspect_and_pack_print_text),
        cmocka_unit_test(test_bad_usage_is_refused_in_one_line),
        cmocka_unit_test(test_a_truncated_pack_is_refused_in_one_line),
        cmocka_unit_test(test_a_damaged_source_is_named_first),
        cmocka_unit_test(test_an_interrupted_pack_leaves_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
