/* moepage-eval: its bits per byte against other programs' evaluations of the trained model, exact and
 * not, and the same in every way of cutting the work into steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "slow.h"
#include "testing.h"
#include "tool_runs.h"
#include "xml_check.h"

#define TOOL "moepage-eval"
#define TEXT(name) TINY "/eval/" name ".bin"
#define ALL_TEXTS                                                                        \
    TEXT("en"), TEXT("dict"), TEXT("de"), TEXT("fr"), TEXT("es"), TEXT("c"), TEXT("py"), \
        TEXT("math")
#define MOST_ARGUMENTS 40

/* ---- References -------------------------------------------------------------------------- */

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    if (!json)
        fail_msg("%s: %s", path, error.text);
    return json;
}

/* Every domain of the setting against bits per byte by name. */
static void check_domains(const json_t *setting, const json_t *expected, double within)
{
    const json_t *domains = json_object_get(setting, "domains");
    assert_true(json_array_size(domains) > 0);
    for (size_t i = 0; i < json_array_size(domains); i++) {
        const json_t *domain = json_array_get(domains, i);
        const char *name = json_string_value(json_object_get(domain, "name"));
        double wanted = real(expected, name), is = real(domain, "bits_per_byte");
        if (!(fabs(wanted - is) <= within))
            fail_msg("%s: %.6f bits per byte, expected %.6f", name, is, wanted);
    }
}

static const json_t *setting_of(const json_t *root, size_t i)
{
    const json_t *setting = json_array_get(json_object_get(root, "settings"), i);
    assert_non_null(setting);
    return setting;
}

/* The first two windows of every text, with what else is asked for. */
static json_t *run_excerpt(const char *const *more)
{
    static const char *const fixed[] = {"--model",   TINY, "--data", ALL_TEXTS,
                                        "--windows", "2",  "--json"};
    const char *arguments[MOST_ARGUMENTS];
    size_t n = 0;
    for (; n < COUNT(fixed); n++)
        arguments[n] = fixed[n];
    for (; *more && n + 1 < MOST_ARGUMENTS; more++)
        arguments[n++] = *more;
    arguments[n] = NULL;
    return run_json(TOOL, arguments);
}

static void check_excerpt(const char *name, const char *const *more, double within)
{
    json_t *reference = load("tests/data/eval/reference.json");
    json_t *root = run_excerpt(more);
    const json_t *all = json_object_get(reference, "bits_per_byte");
    size_t n = json_array_size(json_object_get(root, "settings"));
    const json_t *setting = setting_of(root, n - 1);
    assert_string_equal(json_string_value(json_object_get(setting, "name")), name);
    check_domains(setting, json_object_get(all, name), within);
    if (n > 1)
        check_domains(setting_of(root, 0), json_object_get(all, "exact"), 1e-4);
    json_decref(root);
    json_decref(reference);
}

/* ---- Bits per byte ----------------------------------------------------------------------- */

static void test_eval_agrees_with_transformers(void **state)
{
    (void)state;
    check_excerpt("exact", LIST("--batch", "16", "--mix"), 1e-4);
}

static void test_eval_of_integers_agrees_with_transformers(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    check_excerpt("int8", LIST("--precision", "int8", "--exact", "off"), 1e-4);
    check_excerpt("int4", LIST("--batch", "16", "--mix", "--precision", "int4"), 1e-4);
    check_excerpt("int2", LIST("--precision", "int2", "--exact", "off"), 1e-4);
}

static void test_eval_of_ranks_agrees_with_transformers(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    check_excerpt("ranks 1 to 4", LIST("--ranks", "4", "--exact", "off"), 1e-4);
    check_excerpt("without rank 1", LIST("--deny-rank", "1", "--exact", "off"), 1e-4);
}

/* The whole texts, evaluated as they were when the model was trained. */
static void check_whole(const char *model)
{
    char path[4200], texts[8][4200];
    static const char *const names[] = {"en", "dict", "de", "fr", "es", "c", "py", "math"};
    const char *arguments[16] = {"--model", model, "--json", "--data"};
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(texts[i], sizeof texts[i], "%s/eval/%s.bin", model, names[i]);
        arguments[4 + i] = texts[i];
    }
    snprintf(path, sizeof path, "%s/eval/reference.json", model);
    json_t *reference = load(path);
    json_t *root = run_json(TOOL, arguments);
    check_domains(setting_of(root, 0), json_object_get(reference, "bits_per_byte"), 1e-4);
    assert_int_equal(integer(json_object_get(setting_of(root, 0), "all"), "scored"), 8 * 96 * 255);
    json_decref(root);
    json_decref(reference);
}

static void test_eval_reproduces_the_reference(void **state)
{
    (void)state;
    if (!getenv("MP_TEST_LONG")) {
        print_message("%s: skipped without MP_TEST_LONG: it takes a minute\n", __func__);
        skip();
    }
    const char *shared = getenv("MOEPAGE_SHARED");
    char path[4096], file[4200];
    snprintf(path, sizeof path, "%s/models/tiny-qwen3moe", shared ? shared : "../shared");
    snprintf(file, sizeof file, "%s/eval/reference.json", path);
    if (access(file, R_OK)) {
        print_message("test_eval_reproduces_the_reference: skipped, %s is not here "
                      "(set MOEPAGE_SHARED)\n",
                      path);
        skip();
    }
    check_whole(path);
}

/* Bits do not depend on how windows are cut into steps, nor on the budget. */
static void test_eval_is_the_same_in_any_shape(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    static const char *const shapes[][8] = {
        {"--batch", "1", "--exact", "off"},
        {"--batch", "3", "--mix"},
        {"--batch", "4", "--budget", "25%"},
        {"--batch", "4", "--budget", "25%", "--prefetch", "on"},
        {"--threads", "1"},
    };
    json_t *once = run_json(TOOL, LIST("--model", TINY, "--data", TEXT("c"), TEXT("de"),
                                       "--windows", "1", "--json"));
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const char *arguments[MOST_ARGUMENTS] = {"--model",  TINY,        "--data", TEXT("c"),
                                                 TEXT("de"), "--windows", "1",      "--json"};
        for (size_t k = 0; k < COUNT(shapes[i]) && shapes[i][k]; k++)
            arguments[8 + k] = shapes[i][k];
        json_t *root = run_json(TOOL, arguments);
        for (size_t d = 0; d < 2; d++) {
            const json_t *a = json_array_get(json_object_get(setting_of(once, 0), "domains"), d);
            const json_t *b = json_array_get(json_object_get(setting_of(root, 0), "domains"), d);
            assert_true(real(a, "bits_per_byte") == real(b, "bits_per_byte"));
            assert_int_equal(integer(b, "scored"), 255);
        }
        json_decref(root);
    }
    json_decref(once);
}

/* With --prompt what follows the prompt is scored, with --warm what follows the first windows. */
static void test_eval_scores_what_is_asked_for(void **state)
{
    (void)state;
    json_t *part =
        run_json(TOOL, LIST("--model", TINY, TEXT("c"), "--windows", "3", "--batch", "2",
                            "--prompt", "200", "--window", "240", "--warm", "1", "--json"));
    const json_t *all = json_object_get(setting_of(part, 0), "all");
    assert_int_equal(integer(all, "scored"), 2 * 40);
    /* two prompts of one step each, then steps of both */
    assert_int_equal(integer(all, "steps"), 2 + 39);
    json_decref(part);
}

/* ---- What is counted --------------------------------------------------------------------- */

static void test_eval_counts_low_versions(void **state)
{
    (void)state;
    json_t *root = run_json(TOOL, LIST("--model", TINY, TEXT("c"), "--windows", "1", "--batch", "1",
                                       "--precision", "int4", "--json"));
    const json_t *exact = setting_of(root, 0), *low = setting_of(root, 1);
    assert_true(json_is_false(json_object_get(exact, "lossy")));
    assert_true(json_is_true(json_object_get(low, "lossy")));
    assert_true(real(json_object_get(exact, "all"), "low_percent") == 0);
    assert_true(real(json_object_get(low, "all"), "low_percent") == 100);
    assert_int_equal(integer(json_object_get(low, "all"), "low_rows"), 255 * 8 * 8);
    assert_true(integer(low, "expert_bytes") * 3 < integer(exact, "expert_bytes"));
    /* a quarter of the slots misses, and says the same */
    json_t *few =
        run_json(TOOL, LIST("--model", TINY, TEXT("c"), "--windows", "1", "--batch", "1",
                            "--precision", "int4", "--exact", "off", "--budget", "25%", "--json"));
    const json_t *part = setting_of(few, 0);
    assert_true(real(json_object_get(part, "all"), "bits_per_byte") ==
                real(json_object_get(low, "all"), "bits_per_byte"));
    assert_true(real(json_object_get(part, "all"), "low_percent") == 100);
    assert_true(real(json_object_get(part, "all"), "hit_percent") < 90);
    assert_true(integer(part, "expert_bytes") * 4 == integer(low, "expert_bytes"));
    json_decref(few);
    json_decref(root);
}

static void test_eval_counts_remapping(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    json_t *root = run_excerpt(LIST("--batch", "16", "--mix", "--remap", "1,2"));
    const json_t *exact = json_object_get(setting_of(root, 0), "all");
    const json_t *all = json_object_get(setting_of(root, 1), "all");
    assert_int_equal(integer(all, "remap_layers"), 255 * 8);
    assert_int_equal(integer(exact, "remap_layers"), 0);
    assert_int_equal(integer(all, "remap_after"), integer(all, "routed"));
    assert_true(real(all, "experts_per_layer") < 0.8 * real(all, "experts_per_layer_routed"));
    assert_true(fabs(real(all, "loss")) < 0.05);
    json_decref(root);
    /* a batch of one is left alone, bit for bit */
    root = run_json(TOOL, LIST("--model", TINY, TEXT("c"), "--windows", "1", "--batch", "1",
                               "--remap", "1,2", "--json"));
    assert_true(real(json_object_get(setting_of(root, 1), "all"), "loss") == 0);
    json_decref(root);
}

static void test_eval_gives_memory_its_high_versions(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    json_t *root =
        run_json(TOOL, LIST("--model", TINY, TEXT("c"), "--windows", "2", "--batch", "2",
                            "--precision", "dense/int2@int4-bytes", "--exact", "off", "--json"));
    json_t *low = run_json(TOOL, LIST("--model", TINY, TEXT("c"), "--windows", "1", "--precision",
                                      "int4", "--exact", "off", "--json"));
    /* int4 is 12 KiB and its scales, int2 6 and its: what is left has room for 8 dense of 48 KiB */
    assert_int_equal(integer(setting_of(root, 0), "hi_experts"), 8);
    assert_true(integer(setting_of(root, 0), "expert_bytes") <=
                integer(setting_of(low, 0), "expert_bytes"));
    json_decref(root);
    json_decref(low);
}

/* ---- High versions ----------------------------------------------------------------------- */

/* Four windows of the texts, after four others; decisions come by steps and not by the clock. */
#define SERVED                                                                                    \
    "--model", TINY, "--windows", "8", "--warm", "4", "--json", "--exact", "off", "--batch", "4", \
        "--precision", "dense/int2:30%"

/* The same windows, exact and in int2: what there is to lose. */
static json_t *run_bounds(const char *first, const char *second)
{
    return run_json(TOOL, LIST("--model", TINY, "--data", first, second, "--windows", "8", "--warm",
                               "4", "--precision", "int2", "--json"));
}

/* Of what int2 loses on a domain, what the run's setting closes. */
static double closed(const json_t *root, const json_t *bounds, size_t domain)
{
    const json_t *const settings[] = {setting_of(bounds, 0), setting_of(bounds, 1),
                                      setting_of(root, 0)};
    double bits[3];
    for (size_t i = 0; i < COUNT(settings); i++)
        bits[i] =
            real(json_array_get(json_object_get(settings[i], "domains"), domain), "bits_per_byte");
    assert_true(bits[1] > 1.02 * bits[0]);
    return (bits[1] - bits[2]) / (bits[1] - bits[0]);
}

static void test_eval_of_the_hottest_high_closes_much_of_the_gap(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    json_t *bounds = run_bounds(TEXT("c"), TEXT("de"));
    json_t *root = run_json(TOOL, LIST(SERVED, "--interval-us", "1", "--hotness-alpha", "0.99",
                                       "--hotness", "weights", TEXT("c"), TEXT("de")));
    const json_t *all = json_object_get(setting_of(root, 0), "all");
    for (size_t d = 0; d < 2; d++)
        assert_true(closed(root, bounds, d) > 0.45 && closed(root, bounds, d) < 0.95);
    assert_int_equal(integer(setting_of(root, 0), "hi_experts"), 19);
    assert_true(integer(all, "promotions") > 0);
    assert_int_equal(integer(all, "stall_ns"), 0); /* no step has waited for a version */
    assert_int_equal(integer(all, "demand_bytes"), 0);
    json_decref(root);
    json_decref(bounds);
}

/* Whom to keep is what counts: the same memory, other experts. */
static void test_eval_of_the_coldest_low_beats_any_low(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    json_t *bounds = run_bounds(TEXT("c"), TEXT("c"));
    json_t *hottest = run_json(TOOL, LIST(SERVED, "--high-set", "hottest", TEXT("c")));
    const json_t *kept = json_object_get(setting_of(hottest, 0), "all");
    static const char *const seeds[] = {"7", "8", "9"};
    double by_any = 0;
    for (size_t i = 0; i < COUNT(seeds); i++) {
        json_t *any =
            run_json(TOOL, LIST(SERVED, "--high-set", "random", "--seed", seeds[i], TEXT("c")));
        const json_t *some = json_object_get(setting_of(any, 0), "all");
        assert_true(real(kept, "low_percent") < real(some, "low_percent"));
        assert_true(closed(any, bounds, 0) > 0.15);
        by_any += closed(any, bounds, 0) / COUNT(seeds);
        json_decref(any);
    }
    assert_true(closed(hottest, bounds, 0) > 0.42);
    assert_true(closed(hottest, bounds, 0) > by_any + 0.03);
    assert_int_equal(integer(kept, "promotions") + integer(kept, "demotions"), 0);
    json_decref(bounds);
    json_decref(hottest);
}

static void test_eval_tells_the_course(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    json_t *root =
        run_json(TOOL, LIST("--model", TINY, "--data", TEXT("c"), TEXT("de"), "--windows", "2",
                            "--batch", "2", "--course", "100", "--json"));
    const json_t *course = json_object_get(setting_of(root, 0), "course");
    const json_t *all = json_object_get(setting_of(root, 0), "all");
    static const uint64_t steps[] = {100, 100, 55, 100, 100, 55};
    double bits = 0;
    assert_int_equal(json_array_size(course), COUNT(steps));
    for (size_t i = 0; i < COUNT(steps); i++) {
        const json_t *part = json_array_get(course, i);
        assert_string_equal(json_string_value(json_object_get(part, "name")), i < 3 ? "c" : "de");
        assert_int_equal(integer(part, "steps"), steps[i]);
        assert_int_equal(integer(part, "scored"), 2 * steps[i]);
        bits += real(part, "bits_per_byte") * (double)integer(part, "scored");
    }
    assert_true(fabs(bits / (double)integer(all, "scored") - real(all, "bits_per_byte")) < 1e-9);
    json_decref(root);
}

/* ---- Pages and refusals ------------------------------------------------------------------ */

static void test_eval_draws_a_page(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    place p;
    size_t size;
    tool_result text;
    place_open(&p);
    snprintf(p.path, sizeof p.path, "%s/report.html", p.dir);
    run_well(TOOL,
             LIST("--model", TINY, TEXT("c"), "--windows", "1", "--batch", "1", "--precision",
                  "int4", "--report", p.path),
             &text);
    assert_non_null(strstr(text.out, "bits/byte"));
    assert_non_null(strstr(text.out, "int4: "));
    tool_result_free(&text);
    char *page = (char *)maker_read(p.dir, "report.html", &size);
    char *whole = strndup(page, size);
    xml_check(whole);
    assert_non_null(strstr(whole, "Quality against bytes"));
    assert_non_null(strstr(whole, "Quality against active experts"));
    assert_non_null(strstr(whole, "<tr><th>int4</th>"));
    assert_null(strstr(whole, "<script"));
    free(page);
    free(whole);
    place_close(&p);
}

static void test_eval_refuses_what_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *named;
        const char *arguments[12];
    } cases[] = {
        {"--model PATH is missing", {TEXT("c")}},
        {"--data FILE", {"--model", TINY}},
        {"no/such/file", {"--model", TINY, "--data", "no/such/file"}},
        {"less than one window", {"--model", TINY, "--data", TEXT("c"), "--window", "65536"}},
        {"--window 2048", {"--model", TINY, "--data", TEXT("c"), "--window", "2048"}},
        {"--window 1", {"--model", TINY, "--data", TEXT("c"), "--window", "1"}},
        {"--precision int3", {"--model", TINY, "--data", TEXT("c"), "--precision", "int3"}},
        {"--precision int2/int4:10%",
         {"--model", TINY, "--data", TEXT("c"), "--precision", "int2/int4:10%"}},
        {"--precision dense/int2:0%",
         {"--model", TINY, "--data", TEXT("c"), "--precision", "dense/int2:0%"}},
        {"--precision dense/int2",
         {"--model", TINY, "--data", TEXT("c"), "--precision", "dense/int2"}},
        {"--budget must not",
         {"--model", TINY, TEXT("c"), "--precision", "dense/int4:9%", "--budget", "9%"}},
        {"--remap 1", {"--model", TINY, "--data", TEXT("c"), "--remap", "1"}},
        {"beta", {"--model", TINY, TEXT("c"), "--batch", "2", "--remap", "1,4", "--exact", "off"}},
        {"--remap acts on decode steps", {"--model", TINY, "--data", TEXT("c"), "--remap", "1,2"}},
        {"--remap-resident goes", {"--model", TINY, TEXT("c"), "--remap-resident", "1"}},
        {"--miss low goes", {"--model", TINY, TEXT("c"), "--miss", "low"}},
        {"--hotness and",
         {"--model", TINY, TEXT("c"), "--precision", "int2", "--hotness", "weights"}},
        {"--hotness-alpha 1", {"--model", TINY, TEXT("c"), "--hotness-alpha", "1"}},
        {"--high-set goes", {"--model", TINY, TEXT("c"), "--high-set", "random"}},
        {"--warm's windows",
         {"--model", TINY, TEXT("c"), "--high-set", "hottest", "--precision", "dense/int2:9%"}},
        {"--course counts", {"--model", TINY, TEXT("c"), "--course", "9"}},
        {"--prompt goes", {"--model", TINY, "--data", TEXT("c"), "--prompt", "8"}},
        {"--warm 96", {"--model", TINY, "--data", TEXT("c"), "--warm", "96"}},
        {"8 choices", {"--model", TINY, "--data", TEXT("c"), "--ranks", "9"}},
        {"32-bit token ids", {"--model", "tests/data/hf/olmoe", "--data", TEXT("c")}},
        {"outside the vocabulary",
         {"--model", "tests/data/hf/olmoe", "--token-ids", TEXT("c"), "--window", "16"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused(TOOL, cases[i].arguments, cases[i].named);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval_agrees_with_transformers),
        cmocka_unit_test(test_eval_of_integers_agrees_with_transformers),
        cmocka_unit_test(test_eval_of_ranks_agrees_with_transformers),
        cmocka_unit_test(test_eval_reproduces_the_reference),
        cmocka_unit_test(test_eval_is_the_same_in_any_shape),
        cmocka_unit_test(test_eval_scores_what_is_asked_for),
        cmocka_unit_test(test_eval_counts_low_versions),
        cmocka_unit_test(test_eval_counts_remapping),
        cmocka_unit_test(test_eval_gives_memory_its_high_versions),
        cmocka_unit_test(test_eval_of_the_hottest_high_closes_much_of_the_gap),
        cmocka_unit_test(test_eval_of_the_coldest_low_beats_any_low),
        cmocka_unit_test(test_eval_tells_the_course),
        cmocka_unit_test(test_eval_draws_a_page),
        cmocka_unit_test(test_eval_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
