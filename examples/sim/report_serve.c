/* Sections on serving. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/report_parts.h"

#define MOST_ARMS 24u /* drawn in one plot; tables contain all */
#define MOST_SPLITS 8u
#define CURVE_STEPS 64u
#define NAME_ROOM 96

/* ---- Names ----------------------------------------------------------------------------------- */

typedef struct serving {
    const sim_report_arm *arms;
    uint32_t n;
    bool budgets, concurrencies, lengths; /* several values occur */
    char (*names)[NAME_ROOM];             /* [n] distinguishing name of each arm */
} serving;

/* Names an arm and the settings that distinguish it, except the budget. */
static void name_line(const serving *s, const sim_report_arm *arm, char name[NAME_ROOM])
{
    int used = snprintf(name, NAME_ROOM, "%.31s", arm->name);
    if (s->concurrencies)
        used += snprintf(name + used, (size_t)(NAME_ROOM - used), ", %u at once", arm->concurrency);
    if (s->lengths)
        snprintf(name + used, (size_t)(NAME_ROOM - used), ", %u+%u", arm->prompt_tokens,
                 arm->output_tokens);
}

static bool same_lengths(const sim_report_arm *a, const sim_report_arm *b)
{
    return a->prompt_tokens == b->prompt_tokens && a->output_tokens == b->output_tokens;
}

static bool open_serving(sim_report *report, const sim_report_arm *arms, uint32_t n, serving *s)
{
    *s = (serving){.arms = arms, .n = n, .names = calloc(n, NAME_ROOM)};
    if (!s->names)
        report->failed = true;
    for (uint32_t i = 1; i < n; i++) {
        s->budgets |= arms[i].budget_bytes != arms[0].budget_bytes;
        s->concurrencies |= arms[i].concurrency != arms[0].concurrency;
        s->lengths |= !same_lengths(&arms[i], &arms[0]);
    }
    for (uint32_t i = 0; i < n && s->names; i++) {
        name_line(s, &arms[i], s->names[i]);
        size_t used = strlen(s->names[i]);
        if (s->budgets)
            snprintf(s->names[i] + used, NAME_ROOM - used, ", %.3g GiB",
                     (double)arms[i].budget_bytes / SIM_GIB);
    }
    return s->names != NULL;
}

static const sim_result *result_of(const sim_report_arm *arm)
{
    return &arm->run->result;
}

static bool has_run(const sim_report_arm *arm)
{
    return arm->run->feasible && result_of(arm)->starts;
}

static double tokens_per_s(const sim_report_arm *arm)
{
    const sim_result *r = result_of(arm);
    return has_run(arm) && r->wall_ns ? (double)r->output_tokens * 1e9 / (double)r->wall_ns : NAN;
}

/* ---- Division of time ----------------------------------------------------------------------- */

#define PARTS 5
static const char *const parts[PARTS] = {"compute", "waiting for experts", "KV swap",
                                         "KV computed again", "idle"};

/* Divides time per answer token, in ms. */
static void time_parts(const sim_report_arm *arm, double ms[PARTS])
{
    const sim_result *r = result_of(arm);
    const uint64_t ns[PARTS] = {r->compute_ns, r->stall_ns, r->swap_ns, r->again_ns, r->idle_ns};
    for (uint32_t i = 0; i < PARTS; i++)
        ms[i] =
            has_run(arm) && r->output_tokens ? (double)ns[i] / 1e6 / (double)r->output_tokens : NAN;
}

static void write_time_table(sim_report *report, const serving *s)
{
    const char *const columns[] = {"way of serving", "tokens/s", parts[0],     parts[1],
                                   parts[2],         parts[3],   parts[4],     "first token, p50 s",
                                   "expert hits, %", "experts",  "KV, blocks", "not at once"};
    page_table(report, columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < s->n; i++) {
        const sim_result *r = result_of(&s->arms[i]);
        double ms[PARTS];
        time_parts(&s->arms[i], ms);
        page_row(report, s->names[i]);
        if (has_run(&s->arms[i])) {
            page_cell(report, tokens_per_s(&s->arms[i]));
            for (uint32_t p = 0; p < PARTS; p++)
                page_cell(report, ms[p]);
            page_cell(report, r->ttft_ns.p50 / 1e9);
            page_cell(report,
                      r->routed ? 100 * (double)r->hits / (double)(r->hits + r->misses) : NAN);
            page_cell(report, (double)r->last_slots);
            page_cell(report, (double)r->last_blocks);
            page_cell(report, (double)sim_result_failures(r));
        } else {
            page_cell_text(report, "does not fit");
            for (uint32_t p = 2; p < sizeof columns / sizeof *columns; p++)
                page_cell(report, NAN);
        }
        page_row_end(report);
    }
    page_table_end(report);
}

static void write_times(sim_report *report, const serving *s)
{
    const char *names[MOST_ARMS];
    double values[MOST_ARMS * PARTS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n && n < MOST_ARMS; i++)
        if (has_run(&s->arms[i])) {
            time_parts(&s->arms[i], values + (size_t)n * PARTS);
            names[n++] = s->names[i];
        }
    page_section(report, "Where time goes",
                 "Virtual time per token of an answer, in ms. Experts and KV blocks are those "
                 "at the end; not at once are requests that were refused, had to wait for "
                 "room in the KV pool, or were preempted.");
    bar_plot bars = {.title = "Time per token of an answer",
                     .x_label = "ms",
                     .n_bars = n,
                     .n_parts = PARTS,
                     .bars = names,
                     .parts = parts,
                     .values = values};
    page_figure(report);
    if (n)
        plot_bars(report->out, &bars);
    write_time_table(report, s);
    page_figure_end(report);
}

/* ---- Tokens/s over budgets ------------------------------------------------------------------- */

static bool same_line(const sim_report_arm *a, const sim_report_arm *b)
{
    return !strcmp(a->name, b->name) && a->concurrency == b->concurrency && same_lengths(a, b);
}

/* Returns true if the arm is the first of its line. */
static bool begins_line(const serving *s, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (same_line(&s->arms[k], &s->arms[i]))
            return false;
    return true;
}

/* Inserts a point in order of budget. */
static void add_point(plot_series *line, double *x, double *y, const sim_report_arm *arm)
{
    double budget = (double)arm->budget_bytes / SIM_GIB;
    uint32_t at = line->n++;
    for (; at && x[at - 1] > budget; at--) {
        x[at] = x[at - 1];
        y[at] = y[at - 1];
    }
    x[at] = budget;
    y[at] = tokens_per_s(arm);
}

static uint32_t make_lines(const serving *s, double *numbers, char (*names)[NAME_ROOM],
                           plot_series *lines)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n && n < SIM_LIST_MOST; i++) {
        if (!begins_line(s, i))
            continue;
        double *x = numbers, *y = numbers + s->n;
        name_line(s, &s->arms[i], names[n]);
        lines[n] = (plot_series){.name = names[n], .x = x, .y = y};
        for (uint32_t k = i; k < s->n; k++)
            if (same_line(&s->arms[k], &s->arms[i]))
                add_point(&lines[n], x, y, &s->arms[k]);
        numbers += 2 * (size_t)s->n;
        n++;
    }
    return n;
}

static void write_budget_table(sim_report *report, const plot_series *lines, uint32_t n)
{
    const char *columns[SIM_LIST_MOST + 1] = {"budget, GiB"};
    for (uint32_t k = 0; k < n; k++)
        columns[k + 1] = lines[k].name;
    page_table(report, columns, n + 1);
    for (uint32_t i = 0; i < lines->n; i++) {
        page_row_number(report, lines->x[i]);
        for (uint32_t k = 0; k < n; k++) {
            double value = NAN;
            for (uint32_t j = 0; j < lines[k].n; j++)
                if (lines[k].x[j] == lines->x[i])
                    value = lines[k].y[j];
            page_cell(report, value);
        }
        page_row_end(report);
    }
    page_table_end(report);
}

static void write_budgets(sim_report *report, const serving *s)
{
    char names[SIM_LIST_MOST][NAME_ROOM];
    plot_series lines[SIM_LIST_MOST];
    double *numbers;
    if (!s->budgets || !(numbers = page_numbers(report, 2 * (size_t)s->n * SIM_LIST_MOST)))
        return;
    uint32_t n = make_lines(s, numbers, names, lines);
    line_plot plot = {.title = "Throughput",
                      .x_label = "budget for experts and KV, GiB",
                      .y_label = "tokens/s",
                      .n_series = n,
                      .series = lines,
                      .points = true};
    page_section(report, "Tokens/s against the budget", "");
    page_figure(report);
    plot_lines(report->out, &plot);
    write_budget_table(report, lines, n);
    page_figure_end(report);
    free(numbers);
}

/* ---- The split over time --------------------------------------------------------------------- */

typedef struct over_time {
    uint32_t n;
    double *s, *experts, *kv, *used; /* seconds; GiB */
} over_time;

static over_time read_samples(const sim_result *r, double *numbers)
{
    over_time t = {r->n_samples, numbers, numbers + SIM_SAMPLES, numbers + 2 * SIM_SAMPLES,
                   numbers + 3 * SIM_SAMPLES};
    for (uint32_t i = 0; i < t.n; i++) {
        const sim_serve_sample *sample = &r->samples[i];
        t.s[i] = (double)sample->ns / 1e9;
        t.experts[i] = (double)sample->expert_slots * (double)r->slot_bytes / SIM_GIB;
        t.kv[i] = (double)sample->kv_blocks * (double)r->block_bytes / SIM_GIB;
        t.used[i] = (double)sample->used_blocks * (double)r->block_bytes / SIM_GIB;
    }
    return t;
}

static void write_split(sim_report *report, const char *name, const over_time *t)
{
    static const char *const heads[] = {"time, s", "experts, GiB", "KV pool, GiB", "KV used, GiB"};
    const double *const columns[] = {t->s, t->experts, t->kv, t->used};
    const plot_series lines[] = {{.name = "experts", .n = t->n, .x = t->s, .y = t->experts},
                                 {.name = "KV pool", .n = t->n, .x = t->s, .y = t->kv},
                                 {.name = "KV used", .n = t->n, .x = t->s, .y = t->used}};
    line_plot plot = {.title = name,
                      .x_label = "virtual time, s",
                      .y_label = "GiB",
                      .n_series = 3,
                      .series = lines,
                      .stairs = true};
    page_figure(report);
    plot_lines(report->out, &plot);
    page_columns(report, heads, columns, 4, t->n, PAGE_TABLE_ROWS);
    page_figure_end(report);
}

static bool is_shown(const sim_report_arm *arm, bool moving)
{
    const sim_result *r = result_of(arm);
    return has_run(arm) && r->n_samples > 1 && (r->moves > 0) == moving;
}

/* Plots moving splits first; fixed ones show little. */
static void write_splits(sim_report *report, const serving *s)
{
    double *numbers = page_numbers(report, 4 * (size_t)SIM_SAMPLES);
    uint32_t shown = 0;
    for (int moving = 1; moving >= 0 && numbers; moving--)
        for (uint32_t i = 0; i < s->n && shown < MOST_SPLITS; i++)
            if (is_shown(&s->arms[i], moving)) {
                if (!shown++)
                    page_section(report, "The split over time", "");
                over_time t = read_samples(result_of(&s->arms[i]), numbers);
                write_split(report, s->names[i], &t);
            }
    free(numbers);
}

/* ---- Miss curves and marginal values --------------------------------------------------------- */

typedef struct curves {
    uint32_t n;
    double *bytes;                   /* GiB for experts */
    double *experts, *kv;            /* warm misses, % */
    double *expert_value, *kv_value; /* ms saved by one more MiB */
} curves;

static double kv_units(const mp_split_bounds *b, double experts)
{
    double rest = (double)b->budget_bytes - experts * (double)b->expert_bytes;
    return rest > 0 ? rest / (double)b->kv_bytes : 0;
}

/* Returns the reduction of miss time, in ms per MiB, between `from` and `to` units. */
static double value(const mp_curve *curve, double from, double to, double miss_ns, uint64_t bytes)
{
    double saved = (mp_curve_misses(curve, from) - mp_curve_misses(curve, to)) * miss_ns / 1e6;
    return to > from ? saved / ((to - from) * (double)bytes / (1 << 20)) : NAN;
}

static double warm_percent(const mp_curve *curve, double units)
{
    return curve->warm > 0 ? 100 * mp_curve_misses(curve, units) / curve->warm : 0;
}

static curves read_curves(const sim_configured *c, double *numbers)
{
    const mp_split_bounds *b = &c->bounds;
    curves out = {CURVE_STEPS + 1,
                  numbers,
                  numbers + (CURVE_STEPS + 1),
                  numbers + 2 * (CURVE_STEPS + 1),
                  numbers + 3 * (CURVE_STEPS + 1),
                  numbers + 4 * (CURVE_STEPS + 1)};
    double lo = (double)b->min_experts;
    double room = (double)b->budget_bytes - (double)b->kv_floor * (double)b->kv_bytes;
    double hi = fmin((double)b->max_experts, room / (double)b->expert_bytes);
    double step = fmax(hi - lo, 0) / CURVE_STEPS;
    for (uint32_t i = 0; i <= CURVE_STEPS; i++) {
        double at = lo + step * i, before = fmax(at - step, 0), after = at + step;
        out.bytes[i] = at * (double)b->expert_bytes / SIM_GIB;
        out.experts[i] = warm_percent(&c->experts, at);
        out.kv[i] = warm_percent(&c->kv, kv_units(b, at));
        out.expert_value[i] = value(&c->experts, before, after, c->expert_miss_ns, b->expert_bytes);
        out.kv_value[i] =
            value(&c->kv, kv_units(b, after), kv_units(b, before), c->kv_miss_ns, b->kv_bytes);
    }
    return out;
}

static void write_curves(sim_report *report, const serving *s, uint32_t arm)
{
    const sim_configured *c = &s->arms[arm].run->configured;
    double *numbers = page_numbers(report, 5 * (size_t)(CURVE_STEPS + 1));
    if (!numbers)
        return;
    curves l = read_curves(c, numbers);
    static const char *const heads[] = {"experts, GiB", "expert misses, %", "KV misses, %",
                                        "experts, ms/MiB", "KV, ms/MiB"};
    const double *const columns[] = {l.bytes, l.experts, l.kv, l.expert_value, l.kv_value};
    const plot_series misses[] = {{.name = "experts", .n = l.n, .x = l.bytes, .y = l.experts},
                                  {.name = "KV", .n = l.n, .x = l.bytes, .y = l.kv}};
    const plot_series values[] = {{.name = "experts", .n = l.n, .x = l.bytes, .y = l.expert_value},
                                  {.name = "KV", .n = l.n, .x = l.bytes, .y = l.kv_value}};
    line_plot plot = {.title = "Predicted misses",
                      .x_label = "of the budget for experts, GiB; the rest is KV's",
                      .y_label = "warm misses, %",
                      .n_series = 2,
                      .series = misses,
                      .y_top = 1,
                      .mark = "chosen",
                      .mark_x =
                          (double)c->split.experts * (double)c->bounds.expert_bytes / SIM_GIB};
    char text[384];
    snprintf(text, sizeof text,
             "As MV-WSA's configurator measured them for %s: an expert that is missing costs %.3g "
             "ms, a unit of KV %.3g ms. At the best split, where it is not at a bound, one more "
             "MiB saves as much time on either side.",
             s->names[arm], c->expert_miss_ns / 1e6, c->kv_miss_ns / 1e6);
    page_section(report, "Miss curves and marginal values", text);
    page_figure(report);
    plot_lines(report->out, &plot);
    plot.title = "Marginal values";
    plot.y_label = "ms saved by one more MiB";
    plot.series = values;
    plot.y_top = 0;
    plot_lines(report->out, &plot);
    page_columns(report, heads, columns, 5, l.n, PAGE_TABLE_ROWS);
    page_figure_end(report);
    free(numbers);
}

static bool has_curves(const sim_report_arm *arm)
{
    const sim_configured *c = &arm->run->configured;
    return arm->run->feasible && c->experts.bins && c->kv.bins;
}

/* ---- All of it ------------------------------------------------------------------------------- */

void sim_report_arms(sim_report *report, const sim_report_arm *arms, uint32_t n)
{
    serving s;
    if (!report->out || !n)
        return;
    if (open_serving(report, arms, n, &s)) {
        write_times(report, &s);
        write_budgets(report, &s);
        write_splits(report, &s);
        uint32_t i = n;
        while (i && !has_curves(&arms[i - 1]))
            i--;
        if (i)
            write_curves(report, &s, i - 1);
    }
    free(s.names);
}
