/* Writes the page of --report. */
#include <math.h>
#include <stdlib.h>

#include "common/page.h"
#include "common/plot.h"
#include "common/units.h"
#include "serve/serve_report.h"

/* Arms that ran, in order. */
typedef struct shown {
    uint32_t n;
    const char *names[ARMS_MOST];
    const server_result *results[ARMS_MOST];
} shown;

static shown list_shown(const serve_findings *f)
{
    shown s = {.n = 0};
    for (uint32_t i = 0; i < f->setting->options->arms.n; i++)
        if (f->results[i].ran) {
            s.names[s.n] = f->setting->options->arms.arms[i].name;
            s.results[s.n++] = &f->results[i];
        }
    return s;
}

/* ---- Waiting times ----------------------------------------------------------------------- */

static void write_bars(page *p, const shown *s, const char *title,
                       const spread *(*of)(const times *t))
{
    static const char *const parts[] = {"median", "from there to p99"};
    double values[2 * ARMS_MOST];
    for (uint32_t i = 0; i < s->n; i++) {
        const spread *x = of(&s->results[i]->times);
        values[2 * i] = x->p50;
        values[2 * i + 1] = fmax(0, x->p99 - x->p50);
    }
    plot_bars(p->out, &(bar_plot){.title = title,
                                  .x_label = "ms",
                                  .n_bars = s->n,
                                  .n_parts = 2,
                                  .bars = s->names,
                                  .parts = parts,
                                  .values = values});
}

static const spread *ttft_of(const times *t)
{
    return &t->ttft;
}

static const spread *tpot_of(const times *t)
{
    return &t->tpot;
}

static const spread *turn_of(const times *t)
{
    return &t->turn;
}

static void write_times(page *p, const shown *s)
{
    page_section(
        p, "What requests wait for",
        "To the first token (TTFT), per further token (TPOT), and from arrival to the last "
        "token (turn wall).");
    page_figure(p);
    write_bars(p, s, "Time to first token", ttft_of);
    write_bars(p, s, "Time per output token", tpot_of);
    write_bars(p, s, "Turn wall", turn_of);
    page_figure_end(p);
}

static void write_measures(page *p, const shown *s)
{
    serve_measure columns[ARMS_MOST][SERVE_MEASURES] = {0};
    const char *heads[ARMS_MOST + 1] = {""};
    for (uint32_t i = 0; i < s->n; i++) {
        heads[i + 1] = s->names[i];
        serve_measure_all(s->results[i], columns[i]);
    }
    page_section(p, "All measures", "");
    page_figure(p);
    page_table(p, heads, s->n + 1);
    for (uint32_t m = 0; m < SERVE_MEASURES; m++) {
        page_row(p, columns[0][m].name);
        for (uint32_t i = 0; i < s->n; i++)
            page_cell(p, columns[i][m].value);
        page_row_end(p);
    }
    page_table_end(p);
    page_figure_end(p);
}

/* ---- Over time --------------------------------------------------------------------------- */

/* One line of a run: its name, and its value in a sample. */
typedef struct curve {
    const char *name;
    double (*value)(const server_result *r, const server_sample *s);
} curve;

static double experts_mib(const server_result *r, const server_sample *s)
{
    return mib(s->slots * r->experts.slot_bytes);
}

static double kv_mib(const server_result *r, const server_sample *s)
{
    return mib(s->blocks * r->block_bytes);
}

static double used_mib(const server_result *r, const server_sample *s)
{
    return mib(s->used_blocks * r->block_bytes);
}

static double running(const server_result *r, const server_sample *s)
{
    (void)r;
    return s->running;
}

static double waiting(const server_result *r, const server_sample *s)
{
    (void)r;
    return s->waiting;
}

static double preempted(const server_result *r, const server_sample *s)
{
    (void)r;
    return s->preempted;
}

static void write_curves(page *p, const char *title, const char *y_label, const server_result *r,
                         const curve curves[3])
{
    const char *heads[] = {"s", curves[0].name, curves[1].name, curves[2].name};
    const double *columns[4];
    plot_series lines[3];
    double *numbers = r->n_samples ? page_numbers(p, 4 * (size_t)r->n_samples) : NULL;
    if (!numbers)
        return;
    columns[0] = numbers;
    for (uint32_t i = 0; i < r->n_samples; i++)
        numbers[i] = (double)r->samples[i].ns / 1e9;
    for (uint32_t k = 0; k < 3; k++) {
        double *y = numbers + (k + 1) * (size_t)r->n_samples;
        columns[k + 1] = y;
        for (uint32_t i = 0; i < r->n_samples; i++)
            y[i] = curves[k].value(r, &r->samples[i]);
        lines[k] = (plot_series){.name = curves[k].name, .n = r->n_samples, .x = numbers, .y = y};
    }
    page_figure(p);
    plot_lines(p->out, &(line_plot){.title = title,
                                    .x_label = "s",
                                    .y_label = y_label,
                                    .n_series = 3,
                                    .series = lines,
                                    .stairs = true});
    page_columns(p, heads, columns, 4, r->n_samples, PAGE_TABLE_ROWS);
    page_figure_end(p);
    free(numbers);
}

static void write_course(page *p, const shown *s)
{
    static const curve split[] = {{"experts", experts_mib},
                                  {"KV pool", kv_mib},
                                  {"KV used", used_mib}};
    static const curve queue[] = {{"running", running},
                                  {"waiting", waiting},
                                  {"preempted", preempted}};
    for (uint32_t i = 0; i < s->n; i++) {
        page_section(p, s->names[i], "The split and the queue while it ran.");
        write_curves(p, "Split", "MiB", s->results[i], split);
        write_curves(p, "Requests", "requests", s->results[i], queue);
    }
}

static void write_missing(page *p, const serve_findings *f)
{
    const arm_list *arms = &f->setting->options->arms;
    for (uint32_t i = 0; i < arms->n; i++)
        if (!f->results[i].ran)
            page_section(p, arms->arms[i].name, "Not served: the run ended earlier.");
}

int serve_page(const serve_findings *f)
{
    const serve_options *o = f->setting->options;
    const page_command command = {"serve_loop", o->argc, o->argv};
    const shown s = list_shown(f);
    char about[256];
    page p;
    snprintf(about, sizeof about,
             "%u requests of %s on %s; %.1f MiB for experts and KV, at most %u requests at once. "
             "Times are %s.",
             f->setting->arrivals->n, o->arrivals ? o->arrivals : "random arrivals", o->base.model,
             mib(f->setting->estate.bytes), o->concurrency,
             o->clock == SERVE_CLOCK_VIRTUAL ? "virtual: they count steps and tokens" : "real");
    int code = page_open(o->report, &command, "Serving", about, &p);
    if (code || !p.out)
        return code;
    if (s.n) {
        write_times(&p, &s);
        write_measures(&p, &s);
        write_course(&p, &s);
    }
    write_missing(&p, f);
    return page_close(&p, code);
}
