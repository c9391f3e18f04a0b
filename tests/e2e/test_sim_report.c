/* moepage-sim --report and --tables: pages that need nothing else, with the numbers that --json has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "checkpoint_maker.h"
#include "testing.h"
#include "tool_runs.h"
#include "xml_check.h"

#define EXCERPT "tests/data/gpt-oss-20b-20requests.u8"

/* The page that the tool wrote, checked. */
static char *read_page(const place *p)
{
    static const char *const never[] = {"http:",   "https:",  "src=",  "href=",  "url(",
                                        "@import", "<script", "<link", "<iframe"};
    static const char *const always[] = {
        "<!DOCTYPE html>",           "name=\"viewport\"", "<svg ",  "<table>",
        "prefers-color-scheme:dark", "@media print",      "charset"};
    size_t size;
    char *bytes = (char *)maker_read(p->dir, "report.html", &size);
    char *text = strndup(bytes, size);
    free(bytes);
    assert_non_null(text);
    assert_int_equal(strlen(text), size);
    xml_check(text);
    for (size_t i = 0; i < COUNT(never); i++)
        if (strstr(text, never[i]))
            fail_msg("the page has %s", never[i]);
    for (size_t i = 0; i < COUNT(always); i++)
        if (!strstr(text, always[i]))
            fail_msg("the page has no %s", always[i]);
    /* Numbers alone: "nan" may be part of a name. */
    assert_null(strstr(text, "nan\""));
    assert_null(strstr(text, "nan "));
    assert_null(strstr(text, ">nan"));
    assert_null(strstr(text, "inf\""));
    return text;
}

static const char *page_path(place *p)
{
    place_open(p);
    snprintf(p->path, sizeof p->path, "%s/report.html", p->dir);
    return p->path;
}

static void test_sim_report_has_the_misses_of_the_replay(void **state)
{
    (void)state;
    place p;
    const char *path = page_path(&p);
    json_t *json = run_json("moepage-sim",
                            LIST("--trace", EXCERPT, "--shape", "24x32x4", "--policy", "lru,belady",
                                 "--capacity", "384,96,192", "--json", "--report", path));
    char *text = read_page(&p);
    const json_t *results = json_object_get(json, "results");
    assert_int_equal(json_array_size(results), 6);
    for (size_t i = 0; i < 6; i++) {
        char cell[32];
        snprintf(cell, sizeof cell, "<td>%lld</td>",
                 (long long)integer(json_array_get(results, i), "misses"));
        if (!strstr(text, cell))
            fail_msg("the page has no %s", cell);
    }
    assert_non_null(strstr(text, "Hit ratio"));
    assert_non_null(strstr(text, "--capacity 384,96,192"));
    /* The table goes by capacity, whatever the order asked for. */
    const char *first = strstr(text, "<tr><th>96</th>"), *last = strstr(text, "<tr><th>384</th>");
    assert_true(first && last && first < last);
    free(text);
    json_decref(json);
    place_close(&p);
}

static void test_sim_report_is_there_for_curves_stats_and_tables(void **state)
{
    (void)state;
    static const char *const modes[] = {"--curve", "--stats"};
    static const char *const titles[] = {"Marginal value", "What a request has used"};
    place p;
    const char *path = page_path(&p);
    tool_result result;
    for (size_t i = 0; i < COUNT(modes); i++) {
        run_well("moepage-sim",
                 LIST("--trace", EXCERPT, "--shape", "24x32x4", modes[i], "--report", path),
                 &result);
        tool_result_free(&result);
        char *text = read_page(&p);
        assert_non_null(strstr(text, titles[i]));
        free(text);
    }
    run_well("moepage-sim",
             LIST("--synthetic", "qwen3-30b-a3b:layers=2", "--tables", "--report", path), &result);
    tool_result_free(&result);
    char *text = read_page(&p);
    assert_non_null(strstr(text, "<td>46.9</td>")); /* as published */
    free(text);
    place_close(&p);
}

static void test_sim_tables_have_the_published_numbers_beside(void **state)
{
    (void)state;
    json_t *json =
        run_json("moepage-sim", LIST("--synthetic", "deepseek-v2-lite", "--tables", "--json"));
    const json_t *tables = json_object_get(json, "tables");
    static const char *const names[] = {"decode", "prefill"};
    static const double published[2][2] = {{9.0, 67.6}, {72.9, 96.3}};
    assert_int_equal(integer(tables, "prompt_tokens"), 104);
    for (size_t t = 0; t < 2; t++) {
        const json_t *table = json_object_get(tables, names[t]);
        const json_t *wanted = json_object_get(table, "published");
        const json_t *measured = json_object_get(table, "measured");
        assert_true(json_real_value(json_array_get(wanted, 0)) == published[t][0]);
        assert_true(json_real_value(json_array_get(wanted, 5)) == published[t][1]);
        for (size_t i = 0; i < 6; i++)
            assert_true(fabs(json_real_value(json_array_get(measured, i)) /
                                 json_real_value(json_array_get(wanted, i)) -
                             1) <= 0.15);
    }
    json_decref(json);
}

static void test_sim_refuses_what_no_generator_has(void **state)
{
    (void)state;
    assert_refused("moepage-sim", LIST("--tables"), "--synthetic");
    assert_refused("moepage-sim", LIST("--synthetic", "gpt-9", "--tables"), "gpt-9");
    assert_refused("moepage-sim", LIST("--synthetic", "toy:skew=-1", "--stats"), "skew=-1");
    assert_refused("moepage-sim", LIST("--list", "models", "--report", "x.html"), "--report");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_report_has_the_misses_of_the_replay),
        cmocka_unit_test(test_sim_report_is_there_for_curves_stats_and_tables),
        cmocka_unit_test(test_sim_tables_have_the_published_numbers_beside),
        cmocka_unit_test(test_sim_refuses_what_no_generator_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
