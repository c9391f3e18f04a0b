/* The page: quality against bytes, and against the experts computed. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/fail.h"
#include "common/page.h"
#include "common/plot.h"
#include "common/units.h"
#include "eval/show.h"

/* The line of a plot to which a setting's point belongs. */
enum { LINE_EXACT, LINE_STATIC, LINE_DYNAMIC, LINE_HOTTEST, LINE_RANDOM, LINE_OTHER, N_LINES };

_Static_assert(LINE_HOTTEST == LINE_DYNAMIC + HIGH_HOTTEST &&
                   LINE_RANDOM == LINE_DYNAMIC + HIGH_RANDOM,
               "a line for each set of high versions");

static uint32_t line_of(const outcome *o)
{
    const precision_spec *p = &o->setting->precision;
    if (!setting_is_lossy(o->setting))
        return LINE_EXACT;
    if (p->text && o->setting->remap.alpha <= 0)
        return !p->hi_form ? LINE_STATIC : LINE_DYNAMIC + o->setting->high_set;
    return LINE_OTHER;
}

static double bytes_of(const findings *f, const outcome *o)
{
    (void)f;
    return mib(o->expert_bytes);
}

static double experts_of(const findings *f, const outcome *o)
{
    (void)f;
    return measure_experts(&o->all);
}

typedef struct point {
    double x, y;
} point;

static int by_x(const void *a, const void *b)
{
    const point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

/* Lists the points of one line by x; returns their number. */
static uint32_t list_points(const findings *f, uint32_t line,
                            double (*x_of)(const findings *f, const outcome *o), point *points,
                            double *x, double *y)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++)
        if (line_of(&f->outcomes[i]) == line)
            points[n++] = (point){x_of(f, &f->outcomes[i]), measure_bits(&f->outcomes[i].all)};
    qsort(points, n, sizeof *points, by_x);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = points[i].x;
        y[i] = points[i].y;
    }
    return n;
}

static void draw(page *p, const findings *f, const char *title, const char *x_label,
                 double (*x_of)(const findings *f, const outcome *o))
{
    static const char *const names[N_LINES] = {
        "exact",  "one form", "high and low", "hottest high for good", "any high for good",
        "setting"};
    plot_series series[N_LINES];
    double *values = page_numbers(p, 2 * (size_t)N_LINES * f->n);
    point *points = calloc(f->n, sizeof *points);
    uint32_t n_series = 0;
    if (!points)
        p->failed = true;
    for (uint32_t line = 0; line < N_LINES && values && points; line++) {
        double *x = values + 2 * (size_t)line * f->n, *y = x + f->n;
        uint32_t n = list_points(f, line, x_of, points, x, y);
        if (n)
            series[n_series++] = (plot_series){names[line], n, x, y, line == LINE_EXACT};
    }
    const line_plot plot = {.title = title,
                            .x_label = x_label,
                            .y_label = f->corpus->bytes ? "bits per byte" : "bits per token",
                            .n_series = n_series,
                            .series = series,
                            .points = true};
    if (n_series)
        plot_lines(p->out, &plot);
    free(points);
    free(values);
}

static void write_all(page *p, const findings *f)
{
    static const char *const columns[] = {"setting", "MiB",    "bits",  "loss",     "loss %",
                                          "experts", "routed", "low %", "MiB moved"};
    const outcome *exact = findings_exact(f);
    const measure none = {0};
    page_table(p, columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < f->n; i++) {
        const outcome *o = &f->outcomes[i];
        const double loss = findings_loss(f, &o->all, exact ? &exact->all : &none);
        page_row(p, o->setting->name);
        page_cells(p,
                   (double[]){mib(o->expert_bytes), measure_bits(&o->all), loss,
                              exact ? 100 * loss / measure_bits(&exact->all) : NAN,
                              measure_experts(&o->all), measure_experts_routed(&o->all),
                              measure_low_percent(&o->all, f->info->top_k),
                              mib(measure_moved(&o->all))},
                   8);
    }
    page_table_end(p);
}

static void write_domains(page *p, const findings *f)
{
    const char **columns = calloc(f->corpus->n_domains + 1u, sizeof *columns);
    if (!columns) {
        p->failed = true;
        return;
    }
    columns[0] = "setting";
    for (uint32_t d = 0; d < f->corpus->n_domains; d++)
        columns[d + 1] = f->corpus->domains[d].name;
    page_table(p, columns, f->corpus->n_domains + 1);
    for (uint32_t i = 0; i < f->n; i++) {
        page_row(p, f->outcomes[i].setting->name);
        for (uint32_t d = 0; d < f->corpus->n_domains; d++)
            page_cell(p, measure_bits(&f->outcomes[i].domains[d]));
        page_row_end(p);
    }
    page_table_end(p);
    free(columns);
}

static void write_sections(page *p, const findings *f)
{
    page_section(p, "Quality against bytes",
                 "Device memory that experts have, in all their versions, and what the model makes "
                 "of the texts: lower is better in both.");
    page_figure(p);
    draw(p, f, "Bits against memory of experts", "MiB of device memory", bytes_of);
    page_figure_end(p);
    page_section(p, "Quality against active experts",
                 "Distinct experts that a layer computes in a step.");
    page_figure(p);
    draw(p, f, "Bits against active experts", "experts per layer and step", experts_of);
    write_all(p, f);
    page_figure_end(p);
    page_section(p, "Domains", "Bits per text and setting.");
    page_figure(p);
    write_domains(p, f);
    page_figure_end(p);
}

int show_page(const findings *f)
{
    const page_command command = {"moepage-eval", f->opts->argc, f->opts->argv};
    char about[160];
    page p;
    snprintf(about, sizeof about,
             "%s: %" PRIu32 " MoE layers of %" PRIu32 " experts, %" PRIu32 " for each token.",
             f->info->architecture, f->info->moe_layers, f->info->experts, f->info->top_k);
    int code = page_open(f->opts->report, &command, f->model, about, &p);
    if (!code && p.out)
        write_sections(&p, f);
    return page_close(&p, code);
}
