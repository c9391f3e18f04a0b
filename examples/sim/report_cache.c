/* Sections on caches of experts and on traces. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/belady.h"
#include "sim/report_parts.h"

#define MOST_LINES SIM_LIST_MOST
#define CURVE_STEPS 128u

/* ---- Replays --------------------------------------------------------------------------------- */

/* Orders the columns of rows by capacity. */
static void order_columns(const sim_replay_row *rows, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at && rows[order[at - 1]].config.capacity > rows[i].config.capacity; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

typedef struct replay_lines {
    uint32_t policies, capacities;
    double *numbers; /* [capacities], then [policies][capacities] */
    plot_series series[MOST_LINES];
} replay_lines;

static void write_replay(sim_report *report, const replay_lines *lines, bool hits)
{
    line_plot plot = {.title = hits ? "Hit ratio" : "Misses",
                      .x_label = "capacity, experts",
                      .y_label = hits ? "hits, %" : "misses",
                      .n_series = lines->policies,
                      .series = lines->series,
                      .points = true};
    const char *heads[MOST_LINES + 1] = {"capacity"};
    const double *columns[MOST_LINES + 1] = {lines->numbers};
    for (uint32_t p = 0; p < lines->policies; p++) {
        heads[p + 1] = lines->series[p].name;
        columns[p + 1] = lines->series[p].y;
    }
    page_figure(report);
    plot_lines(report->out, &plot);
    page_columns(report, heads, columns, lines->policies + 1, lines->capacities, UINT32_MAX);
    page_figure_end(report);
}

void sim_report_replay(sim_report *report, const sim_replay_row *rows, uint32_t policies,
                       uint32_t capacities)
{
    uint32_t order[SIM_LIST_MOST];
    replay_lines lines = {.policies = policies, .capacities = capacities};
    if (!report->out ||
        !(lines.numbers = page_numbers(report, (policies + 1) * (size_t)capacities)))
        return;
    order_columns(rows, capacities, order);
    for (uint32_t i = 0; i < capacities; i++)
        lines.numbers[i] = (double)rows[order[i]].config.capacity;
    char text[256];
    snprintf(text, sizeof text,
             "%.0f accesses, %.0f of them to an expert for the first time; scope %s, access %s. "
             "Belady's MIN, where it is shown, knows the future: no policy that has to bring in "
             "what is used can be expected to do better.",
             (double)rows->result.accesses, (double)rows->result.first,
             sim_scope_name(rows->config.scope), sim_access_name(rows->config.access));
    page_section(report, "A cache of experts", text);
    for (int hits = 1; hits >= 0; hits--) {
        for (uint32_t p = 0; p < policies; p++) {
            double *y = lines.numbers + (p + 1) * (size_t)capacities;
            for (uint32_t i = 0; i < capacities; i++) {
                const sim_replay_result *r = &rows[p * capacities + order[i]].result;
                y[i] =
                    hits ? 100 * (1 - (double)r->misses / (double)r->accesses) : (double)r->misses;
            }
            const char *name = rows[p * capacities].config.policy;
            lines.series[p] = (plot_series){.name = name,
                                            .n = capacities,
                                            .x = lines.numbers,
                                            .y = y,
                                            .bound = !strcmp(name, sim_belady.name)};
        }
        write_replay(report, &lines, hits);
    }
    free(lines.numbers);
}

/* ---- Miss curves ----------------------------------------------------------------------------- */

typedef struct curve_lines {
    uint32_t n;
    double *capacity, *exact, *sampled, *value;
} curve_lines;

static void write_curve(sim_report *report, const curve_lines *l)
{
    static const char *const heads[] = {"capacity", "misses, %", "estimate, %",
                                        "worth of one more, per 1000"};
    const double *const columns[] = {l->capacity, l->exact, l->sampled, l->value};
    plot_series misses[] = {
        {.name = "exact", .n = l->n, .x = l->capacity, .y = l->exact},
        {.name = "sampled", .n = l->n, .x = l->capacity, .y = l->sampled, .bound = true}};
    plot_series value = {.name = "one more", .n = l->n, .x = l->capacity, .y = l->value};
    line_plot plot = {.title = "LRU's misses",
                      .x_label = "capacity, experts",
                      .y_label = "misses, %",
                      .n_series = 2,
                      .series = misses};
    page_figure(report);
    plot_lines(report->out, &plot);
    plot = (line_plot){.title = "Marginal value",
                       .x_label = "capacity, experts",
                       .y_label = "misses per 1000 accesses",
                       .n_series = 1,
                       .series = &value};
    plot_lines(report->out, &plot);
    page_columns(report, heads, columns, 4, l->n, PAGE_TABLE_ROWS);
    page_figure_end(report);
}

void sim_report_curve(sim_report *report, const sim_miss_curve *curve)
{
    uint32_t n = (curve->n < CURVE_STEPS ? curve->n : CURVE_STEPS) + 1;
    double *numbers;
    if (!report->out || !(numbers = page_numbers(report, 4 * (size_t)n)))
        return;
    curve_lines l = {n, numbers, numbers + n, numbers + 2 * n, numbers + 3 * n};
    double percent = 100 / (double)curve->accesses;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t c = page_spread(curve->n, i, n), next = page_spread(curve->n, i + 1, n);
        l.capacity[i] = (double)c * curve->step;
        l.exact[i] = percent * (double)curve->misses[c];
        l.sampled[i] = percent * curve->sampled[c];
        l.value[i] = i + 1 < n ? 10 * percent * (double)(curve->misses[c] - curve->misses[next]) /
                                     (double)(next - c) / curve->step
                               : NAN;
    }
    char text[256];
    snprintf(text, sizeof text,
             "%.0f accesses, %.0f of them first ones, which miss at every capacity. The estimate "
             "tracks at most %u keys of a scope and is at most %.2f points off.",
             (double)curve->accesses, (double)curve->first, curve->sample_keys,
             100 * sim_miss_curve_error(curve));
    page_section(report, "Misses at every capacity", text);
    write_curve(report, &l);
    free(numbers);
}

/* ---- Properties of a trace ------------------------------------------------------------------ */

static void write_growth(sim_report *report, const sim_trace_stats *s)
{
    static const char *const heads[] = {"tokens", "requests", "footprint, %", "entropy, bits"};
    double x[SIM_STATS_POINTS], y[SIM_STATS_POINTS], requests[SIM_STATS_POINTS],
        bits[SIM_STATS_POINTS];
    for (uint32_t i = 0; i < s->n_points; i++) {
        x[i] = (double)s->points[i].tokens;
        y[i] = 100 * s->points[i].footprint;
        requests[i] = s->points[i].requests;
        bits[i] = s->points[i].bits;
    }
    plot_series line = {.name = "footprint", .n = s->n_points, .x = x, .y = y};
    line_plot plot = {.title = "What a request has used",
                      .x_label = "tokens so far",
                      .y_label = "experts, %",
                      .n_series = 1,
                      .series = &line,
                      .log_x = true,
                      .points = true,
                      .y_top = 100};
    page_figure(report);
    plot_lines(report->out, &plot);
    page_columns(report, heads, (const double *const[]){x, requests, y, bits}, 4, s->n_points,
                 SIM_STATS_POINTS);
    page_figure_end(report);
}

static void write_layers(sim_report *report, const sim_trace_stats *s, double *numbers)
{
    static const char *const columns[] = {"layer", "carried over, %", "touched", "Gini",
                                          "entropy, bits"};
    double *x = numbers, *y = numbers + s->n_layers;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        x[i] = i;
        y[i] = 100 * s->layers[i].carry_over;
    }
    plot_series line = {.name = "carried over", .n = s->n_layers, .x = x, .y = y};
    line_plot plot = {.title = "Experts that the token before had",
                      .x_label = "MoE layer",
                      .y_label = "carried over, %",
                      .n_series = 1,
                      .series = &line,
                      .points = s->n_layers <= 64,
                      .y_top = 100};
    page_figure(report);
    plot_lines(report->out, &plot);
    page_table(report, columns, 5);
    for (uint32_t i = 0; i <= s->n_layers; i++) {
        const sim_layer_stats *l = i < s->n_layers ? &s->layers[i] : &s->mean;
        if (i < s->n_layers)
            page_row_number(report, i);
        else
            page_row(report, "mean");
        page_cells(report, (double[]){100 * l->carry_over, l->touched, l->gini, l->request_bits},
                   4);
    }
    page_table_end(report);
    page_figure_end(report);
}

void sim_report_stats(sim_report *report, const sim_trace_stats *stats)
{
    double *numbers;
    if (!report->out || !(numbers = page_numbers(report, 2 * (size_t)stats->n_layers)))
        return;
    char text[384];
    snprintf(text, sizeof text,
             "A burst uses %.1f %% of all experts, and %.1f %% of them were in the burst before "
             "too. A request has used 90 %% of what it will use after %.0f tokens. Keeping just "
             "the last token's experts, a step brings %.1f.",
             100 * stats->burst_union, 100 * stats->burst_overlap, stats->saturation_tokens,
             stats->mandatory_experts);
    page_section(report, "The trace", text);
    write_growth(report, stats);
    write_layers(report, stats, numbers);
    free(numbers);
}

/* ---- A generator ----------------------------------------------------------------------------- */

static void write_activation(sim_report *report, const char *title, const double *measured,
                             const double *published)
{
    static const char *const heads[] = {"batch", "generated, %", "published, %"};
    double x[SIM_TABLE_POINTS], y[SIM_TABLE_POINTS];
    for (uint32_t i = 0; i < SIM_TABLE_POINTS; i++) {
        x[i] = 1u << i;
        y[i] = 100 * measured[i];
    }
    plot_series lines[] = {
        {.name = "generated", .n = SIM_TABLE_POINTS, .x = x, .y = y},
        {.name = "published", .n = SIM_TABLE_POINTS, .x = x, .y = published, .bound = true}};
    line_plot plot = {.title = title,
                      .x_label = "batch, requests",
                      .y_label = "experts of a layer, %",
                      .n_series = published ? 2 : 1,
                      .series = lines,
                      .log_x = true,
                      .points = true,
                      .y_top = 100};
    page_figure(report);
    plot_lines(report->out, &plot);
    page_columns(report, heads, (const double *const[]){x, y, published}, published ? 3 : 2,
                 SIM_TABLE_POINTS, SIM_TABLE_POINTS);
    page_figure_end(report);
}

void sim_report_activation(sim_report *report, const sim_synthetic *config,
                           const sim_activation *activation)
{
    if (!report->out)
        return;
    char text[128];
    snprintf(text, sizeof text, "Prompts are of %u tokens. Published: DynaExq, tables 1 and 2.",
             config->prompt_tokens);
    page_section(report, "Experts that batches use", config->decode ? text : "");
    write_activation(report, "Decoding", activation->decode, config->decode);
    write_activation(report, "Prompts", activation->prefill, config->prefill);
}
