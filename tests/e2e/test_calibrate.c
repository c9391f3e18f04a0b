/* moepage-pack --calibrate: the same file in every way of running the model, integers that predict other
 * texts better, and the same bits whatever is resident; texts and models that do not fit are refused. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint_maker.h"
#include "generation.h"
#include "moepage.h"
#include "slow.h"
#include "testing.h"
#include "tool_runs.h"

#define TEXT(name) TINY "/eval/" name ".bin"
#define FEW "--calibrate-window", "48", "--calibrate-tokens", "240"

/* ---- The file ---- */

static void test_a_calibrated_pack_is_the_same_file_however_the_model_runs(void **state)
{
    (void)state;
    place toy;
    place_open(&toy);
    pack(LIST("--synthetic", "toy", toy.path, "--layers", "2"));
    const char *const *runs[] = {
        LIST("--threads", "1"),
        LIST("--threads", "3", "--budget", "20%", "--verify"),
    };
    unsigned char *bytes[COUNT(runs)];
    size_t n[COUNT(runs)];
    for (size_t i = 0; i < COUNT(runs); i++) {
        const char *arguments[24] = {NULL};
        size_t at = 0;
        place p;
        place_open(&p);
        const char *const *fixed = LIST(toy.path, p.path, "--expert-versions", "exph,int4,int2",
                                        "--calibrate", TEXT("en") "," TEXT("c"), FEW);
        for (; fixed[at]; at++)
            arguments[at] = fixed[at];
        for (const char *const *more = runs[i]; *more; more++)
            arguments[at++] = *more;
        pack(arguments);
        bytes[i] = maker_read(p.dir, "x.moepack", &n[i]);
        assert_int_equal(count_files(p.dir), 1);
        place_close(&p);
    }
    assert_int_equal(n[1], n[0]);
    assert_memory_equal(bytes[1], bytes[0], n[0]);
    for (size_t i = 0; i < COUNT(runs); i++)
        free(bytes[i]);
    place_close(&toy);
}

static void test_a_calibration_is_reported(void **state)
{
    (void)state;
    place toy, p;
    place_open(&toy);
    place_open(&p);
    pack(LIST("--synthetic", "toy", toy.path, "--layers", "2"));
    json_t *json = run_json("moepage-pack", LIST(toy.path, p.path, "--expert-versions", "exph,int2",
                                                 "--calibrate", TEXT("en"), FEW, "--json"));
    const json_t *of = json_object_get(json, "calibration");
    moepage_model *model;
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    assert_int_equal(moepage_model_open(toy.path, NULL, &model), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_info(model, &info), MOEPAGE_OK);
    moepage_model_close(model);
    assert_int_equal(integer(of, "tokens"), 240);
    assert_int_equal(integer(of, "few"), info.hidden);
    /* 240 tokens choose top_k experts each of a layer's: fewer than `hidden` of most */
    assert_in_range(integer(of, "experts_with_few"), 1, 2 * info.experts);
    assert_true(integer(of, "least") <= (int64_t)240 * info.top_k / info.experts);
    json_decref(json);
    tool_result text;
    run_well("moepage-pack",
             LIST(toy.path, p.path, "--expert-versions", "exph,int2", "--calibrate", TEXT("en"),
                  FEW),
             &text);
    assert_non_null(strstr(text.out, "240 tokens of 1 texts"));
    tool_result_free(&text);
    place_close(&p);
    place_close(&toy);
}

/* ---- The integers ---- */

static double bits_of(const char *model, const char *form)
{
    json_t *json = run_json("moepage-eval", LIST("--model", model, "--data", TEXT("en"), TEXT("c"),
                                                 TEXT("de"), "--windows", "2", "--exact", "off",
                                                 "--json", form ? "--precision" : NULL, form));
    const json_t *settings = json_object_get(json, "settings");
    double bits = real(json_object_get(json_array_get(settings, 0), "all"), "bits_per_byte");
    json_decref(json);
    return bits;
}

/* Calibrated on texts of other subjects than those scored. What rounding costs falls to three quarters or
 * less. */
static void test_calibrated_integers_predict_other_texts_better(void **state)
{
    (void)state;
    slow_skip_sanitized(__func__);
    place plain, p;
    reference ref;
    generation whole, part;
    place_open(&plain);
    place_open(&p);
    pack(LIST(TINY, plain.path, "--expert-versions", "dense,int2"));
    pack(LIST(TINY, p.path, "--expert-versions", "dense,int2", "--calibrate",
              TEXT("fr") "," TEXT("es") "," TEXT("py") "," TEXT("dict"), "--calibrate-tokens",
              "2048"));
    const double exact = bits_of(p.path, NULL), rounded = bits_of(plain.path, "int2");
    const double calibrated = bits_of(p.path, "int2");
    print_message("exact %.4f, int2 %.4f, calibrated %.4f\n", exact, rounded, calibrated);
    assert_true(calibrated - exact < 0.75 * (rounded - exact));
    place_close(&plain);
    reference_load_tiny(&ref);
    const generation_part of = {.n = 1, .n_tokens = 24, .max_tokens = 12};
    generation_run(p.path, &ref, &of, LIST("--precision", "int2"), &whole);
    static const char *const budgets[] = {"50%", "25%", "12.5%"};
    for (size_t i = 0; i < COUNT(budgets); i++) {
        generation_run(p.path, &ref, &of, LIST("--precision", "int2", "--budget", budgets[i]),
                       &part);
        generation_assert_same(&part, &whole, budgets[i]);
        generation_free(&part);
    }
    generation_free(&whole);
    reference_free(&ref);
    place_close(&p);
}

/* ---- Refusals ---- */

static void test_texts_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    place p;
    char empty[128], ids[128], two[300];
    place_open(&p);
    snprintf(empty, sizeof empty, "%s/empty.bin", p.dir);
    snprintf(ids, sizeof ids, "%s/ids.bin", p.dir);
    snprintf(two, sizeof two, "%s,%s", TEXT("en"), empty);
    maker_write(p.dir, "empty.bin", "", 0);
    unsigned char tokens[512 * 4] = {0};
    tokens[300 * 4 + 1] = 2; /* token 512 of 260 */
    maker_write(p.dir, "ids.bin", tokens, sizeof tokens);
    const struct {
        const char *named;
        const char *const *arguments;
    } cases[] = {
        {"nowhere.bin",
         LIST(TINY, p.path, "--expert-versions", "exph,int2", "--calibrate", "nowhere.bin")},
        {"0 tokens are less than one window of 256",
         LIST(TINY, p.path, "--expert-versions", "exph,int2", "--calibrate", two)},
        {"token 512 at 300 is outside the vocabulary of 260",
         LIST(TINY, p.path, "--expert-versions", "exph,int2", "--calibrate", ids, "--token-ids")},
        {"up to 64 files",
         LIST(TINY, p.path, "--expert-versions", "exph,int2", "--calibrate", TEXT("en") ",")},
        {"--calibrate-tokens 255", LIST(TINY, p.path, "--expert-versions", "exph,int2",
                                        "--calibrate", TEXT("en"), "--calibrate-tokens", "255")},
        {"--calibrate-window 1025", LIST(TINY, p.path, "--expert-versions", "exph,int2",
                                         "--calibrate", TEXT("en"), "--calibrate-window", "1025")},
        {"--calibrate is about integer forms", LIST(TINY, p.path, "--calibrate", TEXT("en"))},
        {"--budget goes with --calibrate", LIST(TINY, p.path, "--budget", "50%")},
        {"--token-ids goes with --calibrate", LIST(TINY, p.path, "--token-ids")},
        {"random weights", LIST("--synthetic", "toy", p.path, "--expert-versions", "exph,int2",
                                "--calibrate", TEXT("en"))},
        {"SwiGLU", LIST("tests/data/gguf/gpt-oss/gpt-oss.gguf", p.path, "--expert-versions",
                        "dense,int2", "--calibrate", TEXT("en"))},
        {"F32, F16 or BF16 alone", LIST("tests/data/gguf/whole.gguf", p.path, "--expert-versions",
                                        "dense,int2", "--calibrate", TEXT("en"))},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused("moepage-pack", cases[i].arguments, cases[i].named);
    assert_int_equal(count_files(p.dir), 2);
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_calibrated_pack_is_the_same_file_however_the_model_runs),
        cmocka_unit_test(test_a_calibration_is_reported),
        cmocka_unit_test(test_calibrated_integers_predict_other_texts_better),
        cmocka_unit_test(test_texts_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
