/* Plots and reports: ticks are round, values are where they belong, and what is written is well-formed
 * whatever the data. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/plot.h"
#include "sim/report.h"
#include "testing.h"
#include "xml_check.h"

/* ---- Axes ---------------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten. */
static bool is_round(double step)
{
    double lead = step / pow(10, floor(log10(step) + 1e-9));
    return fabs(lead - 1) < 1e-6 || fabs(lead - 2) < 1e-6 || fabs(lead - 5) < 1e-6;
}

static void check_linear(double lo, double hi, uint32_t most)
{
    plot_axis axis = plot_axis_linear(lo, hi, most);
    if (!(axis.lo <= lo && axis.hi >= hi && axis.n_ticks >= 2 && axis.n_ticks <= most))
        fail_msg("%g to %g: an axis from %g to %g with %u ticks", lo, hi, axis.lo, axis.hi,
                 axis.n_ticks);
    assert_true(is_round(axis.step));
    for (uint32_t i = 0; i < axis.n_ticks; i++) {
        double ratio = plot_axis_tick(&axis, i) / axis.step;
        assert_true(fabs(ratio - round(ratio)) < 1e-6);
    }
    assert_true(fabs(plot_axis_tick(&axis, axis.n_ticks - 1) - axis.hi) < 1e-6 * axis.step);
}

static void test_plot_ticks_are_round_and_contain_the_values(void **state)
{
    (void)state;
    static const double ranges[][2] = {{0, 1},        {0, 100},      {48, 576},   {0, 0.00037},
                                       {-3, 7},       {0, 999999},   {0.9, 1.1},  {1e9, 1.5e9},
                                       {-1e-9, 1e-9}, {12.3, 12.31}, {0, 1e15},   {-80, -20},
                                       {3.9, 8.1},    {0.1, 9.95},   {199, 1201}, {0, 6}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (uint32_t most = 3; most < 12; most++)
            check_linear(ranges[i][0], ranges[i][1], most);
    plot_axis axis = plot_axis_linear(0, 87, 6);
    assert_int_equal(axis.n_ticks, 6);
    assert_true(axis.step == 20 && axis.hi == 100);
    axis = plot_axis_log2(1, 32, 7);
    assert_int_equal(axis.n_ticks, 6);
    for (uint32_t i = 0; i < 6; i++)
        assert_true(plot_axis_tick(&axis, i) == (double)(1u << i));
    axis = plot_axis_log2(3, 70000, 7);
    assert_true(axis.lo == 2 && axis.hi >= 70000 && axis.n_ticks <= 7);
}

static void test_plot_axes_of_nothing_are_axes_still(void **state)
{
    (void)state;
    static const double ranges[][2] = {{INFINITY, -INFINITY}, {NAN, NAN}, {5, 5}, {0, 0}, {3, 1}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        plot_axis linear = plot_axis_linear(ranges[i][0], ranges[i][1], 6);
        plot_axis log2_axis = plot_axis_log2(ranges[i][0], ranges[i][1], 6);
        assert_true(linear.hi > linear.lo && linear.n_ticks >= 2);
        assert_true(log2_axis.hi > log2_axis.lo && log2_axis.lo > 0);
    }
}

static void test_plot_values_are_placed_in_proportion(void **state)
{
    (void)state;
    plot_axis axis = {.lo = -10, .hi = 30};
    assert_true(fabs(plot_axis_place(&axis, -10, 400, 40) - 400) < 1e-9);
    assert_true(fabs(plot_axis_place(&axis, 30, 400, 40) - 40) < 1e-9);
    assert_true(fabs(plot_axis_place(&axis, 0, 400, 40) - 310) < 1e-9);
    plot_axis doubling = {.lo = 2, .hi = 32, .log2 = true};
    assert_true(fabs(plot_axis_place(&doubling, 8, 0, 100) - 50) < 1e-9);
}

static void test_plot_numbers_have_three_digits(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } wanted[] = {{0, "0"},          {1, "1"},
                  {0.25, "0.25"},    {96, "96"},
                  {999.4, "999"},    {999.6, "1k"},
                  {1500, "1.5k"},    {600000, "600k"},
                  {-2.5e6, "-2.5M"}, {36.9e9, "36.9G"},
                  {4e12, "4T"},      {NAN, "-"},
                  {-INFINITY, "-"},  {0.000012, "1.2e-05"},
                  {3e17, "3e+05T"}};
    char text[16];
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_string_equal(plot_number(wanted[i].value, text), wanted[i].text);
}

/* ---- Text ---------------------------------------------------------------------------------- */

static char *escaped(const char *text)
{
    char *out;
    size_t size;
    FILE *file = open_memstream(&out, &size);
    assert_non_null(file);
    plot_escape(file, text);
    assert_int_equal(fclose(file), 0);
    return out;
}

static void test_plot_text_is_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *text, *escaped;
    } wanted[] = {{"a<b & \"c\">'d'", "a&lt;b &amp; &quot;c&quot;&gt;&#39;d&#39;"},
                  {"</script><x>", "&lt;/script&gt;&lt;x&gt;"},
                  {"Zürich 速い 🙂", "Zürich 速い 🙂"},
                  {"a\nb\001\177", "a?b??"},
                  {"\xff\xc3", "??"},                /* no UTF-8 */
                  {"\xc0\x80\xe0\x80\xaf", "?????"}, /* longer than need be */
                  {"\xed\xa0\x80", "???"},           /* a surrogate */
                  {"\xef\xbf\xbf", "???"},           /* no character */
                  {"\xf4\x90\x80\x80", "????"}};     /* past the last one */
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char *text = escaped(wanted[i].text);
        assert_string_equal(text, wanted[i].escaped);
        free(text);
    }
}

/* ---- Drawings ------------------------------------------------------------------------------ */

static char *draw_lines(const line_plot *plot)
{
    char *out;
    size_t size;
    FILE *file = open_memstream(&out, &size);
    assert_non_null(file);
    plot_lines(file, plot);
    assert_int_equal(fclose(file), 0);
    return out;
}

static uint32_t count_of(const char *text, const char *part)
{
    uint32_t n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

static void assert_drawing(const char *text)
{
    xml_check(text);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
}

/* The first and the last value of a line that spans both axes are at corners. */
static void test_plot_lines_go_through_their_values(void **state)
{
    (void)state;
    static const double x[] = {0, 50, 100}, y[] = {0, 25, 100};
    plot_series line = {.name = "one", .n = 3, .x = x, .y = y};
    line_plot plot = {.title = "t", .x_label = "x", .y_label = "y", .n_series = 1, .series = &line};
    char *text = draw_lines(&plot);
    assert_drawing(text);
    double at[6];
    const char *path = strstr(text, "<path class=\"line c0\" d=\"M");
    assert_non_null(path);
    assert_int_equal(sscanf(path, "<path class=\"line c0\" d=\"M%lf %lfL%lf %lfL%lf %lf\"", &at[0],
                            &at[1], &at[2], &at[3], &at[4], &at[5]),
                     6);
    assert_true(fabs(at[2] - (at[0] + at[4]) / 2) < 0.11);
    assert_true(fabs((at[1] - at[3]) / (at[1] - at[5]) - 0.25) < 0.002);
    assert_true(at[4] <= PLOT_WIDTH && at[0] > 0 && at[5] > 0);
    free(text);
}

static void test_plot_draws_whatever_the_values(void **state)
{
    (void)state;
    static const double x[] = {1, 2, NAN, 8, 16}, y[] = {3, NAN, 4, INFINITY, 5};
    static const double zeros[] = {0, 0, 0, 0, 0}, same[] = {7, 7, 7, 7, 7};
    const plot_series series[] = {
        {.name = "<gaps> & \"more\"", .n = 5, .x = x, .y = y, .bound = true},
        {.name = "", .n = 0, .x = x, .y = y},
        {.name = "zero", .n = 5, .x = zeros, .y = zeros},
        {.name = "a name that is much too long for the room that there is at the end of a line",
         .n = 5,
         .x = same,
         .y = same},
        {.name = "\xff\xfe", .n = 1, .x = same, .y = same}};
    for (uint32_t n = 0; n <= 5; n++)
        for (uint32_t bits = 0; bits < 8; bits++) {
            line_plot plot = {.title = "<t> & t",
                              .x_label = "x\"",
                              .y_label = "'y",
                              .n_series = n,
                              .series = series,
                              .log_x = bits & 1,
                              .points = bits & 2,
                              .stairs = bits & 4,
                              .mark = bits & 1 ? "<mark>" : NULL,
                              .mark_x = bits & 2 ? 4 : NAN};
            char *text = draw_lines(&plot);
            assert_drawing(text);
            free(text);
        }
}

/* Lines that all end near `level` of 100. */
static void check_names(double level)
{
    enum { LINES = 12 };
    static const double x[] = {0, 1};
    double y[LINES][2], before[LINES];
    char names[LINES][8];
    plot_series series[LINES];
    int n = 0;
    for (int i = 0; i < LINES; i++) {
        y[i][0] = i % 2 * 100;
        y[i][1] = level + i % 3 * 0.01;
        snprintf(names[i], sizeof names[i], "line%d", i);
        series[i] = (plot_series){.name = names[i], .n = 2, .x = x, .y = y[i]};
    }
    line_plot plot = {
        .title = "t", .x_label = "x", .y_label = "y", .n_series = LINES, .series = series};
    char *text = draw_lines(&plot);
    assert_drawing(text);
    for (const char *at = text; (at = strstr(at, "<text class=\"f")); at++) {
        double end_x, end_y;
        unsigned color;
        assert_int_equal(sscanf(at, "<text class=\"f%u\" x=\"%lf\" y=\"%lf\"", &color, &end_x,
                                &end_y),
                         3);
        for (int k = 0; k < n; k++)
            if (fabs(before[k] - end_y) < 13)
                fail_msg("ends near %g: names at %.1f and %.1f", level, before[k], end_y);
        before[n++] = end_y;
    }
    assert_int_equal(n, LINES);
    free(text);
}

static void test_plot_names_keep_their_distance(void **state)
{
    (void)state;
    check_names(0);
    check_names(50);
    check_names(99);
}

static void test_plot_bars_are_as_long_as_their_values(void **state)
{
    (void)state;
    static const char *const bars[] = {"<first>", "second", "nothing"};
    static const char *const parts[] = {"a", "b & c"};
    static const double values[] = {30, 60, 15, 0, NAN, -1};
    bar_plot chart = {.title = "t",
                      .x_label = "ms",
                      .n_bars = 3,
                      .n_parts = 2,
                      .bars = bars,
                      .parts = parts,
                      .values = values};
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    plot_bars(file, &chart);
    assert_int_equal(fclose(file), 0);
    assert_drawing(text);
    double width[8];
    int n = 0;
    for (const char *at = strstr(text, "&lt;first"); (at = strstr(at, "<rect")); at++)
        assert_int_equal(sscanf(strstr(at, "width="), "width=\"%lf\"", &width[n++]), 1);
    assert_int_equal(n, 3);
    assert_true(fabs(width[1] / width[0] - 2) < 0.01);
    assert_true(fabs(width[2] / width[0] - 0.5) < 0.01);
    free(text);
}

/* ---- Reports of served arms ------------------------------------------------------------------ */

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = calloc(1, 1 << 20);
    assert_non_null(file);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    assert_true(n > 0 && n < (1 << 20) - 1);
    fclose(file);
    return text;
}

static void fill_arm(sim_arm_run *run, uint32_t budget, bool moving)
{
    *run = (sim_arm_run){.feasible = true, .split = {10, 20}};
    sim_result *r = &run->result;
    r->starts = true;
    r->jobs = 4;
    r->output_tokens = 1000;
    r->compute_ns = 2000000000;
    r->stall_ns = 8000000000 / budget;
    r->swap_ns = 1000000000;
    r->wall_ns = r->compute_ns + r->stall_ns + r->swap_ns;
    r->slot_bytes = r->block_bytes = 1 << 20;
    r->moves = moving;
    r->n_samples = 40;
    for (uint32_t i = 0; i < r->n_samples; i++)
        r->samples[i] = (sim_serve_sample){.ns = i * 1000000000ull,
                                           .expert_slots = moving ? i : 7,
                                           .kv_blocks = moving ? 40 - i : 33,
                                           .used_blocks = i / 2};
}

static void fill_curves(sim_configured *c, double *bins)
{
    for (uint32_t i = 0; i <= 50; i++)
        bins[i] = 50 - i;
    *c = (sim_configured){
        .feasible = true,
        .bounds = {.budget_bytes = 60 << 20,
                   .expert_bytes = 1 << 20,
                   .kv_bytes = 1 << 20,
                   .min_experts = 1,
                   .max_experts = 50,
                   .kv_floor = 10},
        .split = {30, 30},
        .expert_miss_ns = 1e6,
        .kv_miss_ns = 2e6,
        .experts = {.bins = bins, .n_bins = 50, .width = 1, .warm = 1275, .accesses = 1275},
        .kv = {.bins = bins, .n_bins = 50, .width = 1, .warm = 1275, .accesses = 1275}};
}

static void test_report_has_a_section_for_whatever_there_is(void **state)
{
    (void)state;
    enum { ARMS = 4 };
    static sim_arm_run runs[ARMS];
    static double bins[51];
    char path[] = "/tmp/moepage-report-XXXXXX";
    close(mkstemp(path));
    for (uint32_t i = 0; i < ARMS; i++)
        fill_arm(&runs[i], 1 + i / 2, i % 2);
    runs[2].feasible = false; /* that budget has no room for it */
    fill_curves(&runs[1].configured, bins);
    char *argv[] = {"moepage-sim", "--split", "<\"&>"};
    sim_options options = {.report = path, .argc = 3, .argv = argv};
    for (uint32_t several = 0; several < 2; several++) {
        sim_report report;
        sim_report_arm arms[ARMS];
        for (uint32_t i = 0; i < ARMS; i++)
            arms[i] = (sim_report_arm){.name = i % 2 ? "mv-wsa <&>" : "vllm",
                                       .budget_bytes = (several ? 1 + i / 2 : 1) * (1ull << 30),
                                       .concurrency = 4,
                                       .run = &runs[i]};
        assert_int_equal(sim_report_open(&options, "a & b", "<c>", &report), 0);
        sim_report_arms(&report, arms, several ? ARMS : 1);
        assert_int_equal(page_close(&report, 0), 0);
        char *text = read_all(path);
        assert_drawing(text);
        assert_non_null(strstr(text, "--split &lt;&quot;&amp;&gt;"));
        assert_non_null(strstr(text, "Where time goes"));
        assert_non_null(strstr(text, "The split over time"));
        assert_int_equal(strstr(text, "Tokens/s against the budget") != NULL, several);
        assert_int_equal(strstr(text, "Marginal values") != NULL, several);
        assert_int_equal(count_of(text, "does not fit"), several);
        /* the first arm: 1000 tokens in 11 s */
        assert_non_null(strstr(text, "<td>90.91</td><td>2</td><td>8</td><td>1</td>"));
        free(text);
    }
    unlink(path);
}

static void test_report_of_a_failed_run_is_not_written(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/moepage-no-report-%d", (int)getpid());
    sim_options options = {.report = path};
    sim_report report;
    assert_int_equal(sim_report_open(&options, "a", "b", &report), 0);
    assert_int_equal(page_close(&report, 1), 1);
    assert_int_equal(access(path, F_OK), -1);
    options.report = NULL; /* nobody asked for one */
    assert_int_equal(sim_report_open(&options, "a", "b", &report), 0);
    sim_report_arms(&report, NULL, 0);
    assert_int_equal(page_close(&report, 0), 0);
    options.report = "/no/such/directory/report.html";
    assert_int_equal(sim_report_open(&options, "a", "b", &report), 0);
    assert_int_equal(page_close(&report, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plot_ticks_are_round_and_contain_the_values),
        cmocka_unit_test(test_plot_axes_of_nothing_are_axes_still),
        cmocka_unit_test(test_plot_values_are_placed_in_proportion),
        cmocka_unit_test(test_plot_numbers_have_three_digits),
        cmocka_unit_test(test_plot_text_is_escaped),
        cmocka_unit_test(test_plot_lines_go_through_their_values),
        cmocka_unit_test(test_plot_draws_whatever_the_values),
        cmocka_unit_test(test_plot_names_keep_their_distance),
        cmocka_unit_test(test_plot_bars_are_as_long_as_their_values),
        cmocka_unit_test(test_report_has_a_section_for_whatever_there_is),
        cmocka_unit_test(test_report_of_a_failed_run_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
