/* Drawing plots. */
#include <math.h>
#include <string.h>

#include "common/plot.h"

#define CHAR_WIDTH 8.2 /* at 14 px; a generous estimate for common fonts */
#define LEFT 62
#define TOP 34 /* the title */
#define LEGEND_LINE 20
#define PLOT_HEIGHT 220
#define BOTTOM 46
#define MOST_LABEL 150 /* of a line's end */
#define LABEL_LINE 15
#define BAR_HEIGHT 16
#define BAR_STEP 42 /* with its name above */
#define MOST_LINES 32

const char plot_style[] =
    "svg{font:14px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
    "svg text{fill:var(--ink)}"
    "svg .title{font-weight:600;font-size:15px}"
    "svg .quiet{fill:var(--quiet)}"
    "svg .grid{stroke:var(--rule);stroke-width:1;fill:none}"
    "svg .axis{stroke:var(--quiet);stroke-width:1;fill:none}"
    "svg .mark{stroke:var(--quiet);stroke-width:1.5;stroke-dasharray:2 3;fill:none}"
    "svg .line{fill:none;stroke-width:2.2;stroke-linejoin:round}"
    "svg .leader{stroke-width:1;fill:none}"
    "svg .bound{stroke-width:1.6;stroke-dasharray:7 4}"
    "svg .second{stroke-dasharray:5 3}svg .third{stroke-dasharray:2 3}"
    "svg .fourth{stroke-dasharray:9 3 2 3}"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}"
    ".c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}"
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}"
    ".f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}";

static double text_width(const char *text)
{
    double n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n * CHAR_WIDTH;
}

/* Shortens a label that does not fit. */
static void write_label(FILE *out, const char *text, double room)
{
    char part[128];
    size_t most = (size_t)(room / CHAR_WIDTH), n = 0, used = 0;
    while (text[used] && used < sizeof part - 8) {
        size_t next = used + 1;
        while (((unsigned char)text[next] & 0xc0) == 0x80)
            next++;
        if (++n > most)
            break;
        used = next;
    }
    memcpy(part, text, used);
    snprintf(part + used, sizeof part - used, "%s", text[used] ? "…" : "");
    plot_escape(out, part);
}

static void open_svg(FILE *out, const char *title, double height)
{
    fprintf(out, "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"", PLOT_WIDTH, height);
    plot_escape(out, title);
    fprintf(out, "\"><text class=\"title\" x=\"4\" y=\"20\">");
    plot_escape(out, title);
    fputs("</text>\n", out);
}

static const char *dashes(uint32_t i)
{
    static const char *const classes[] = {"", " second", " third", " fourth"};
    return classes[i / PLOT_COLORS % 4];
}

/* ---- Legends --------------------------------------------------------------------------------- */

/* Returns the next entry's place; starts a new line when the current one is full. */
static void place_entry(double *x, double *y, double width)
{
    if (*x > 4 && *x + width > PLOT_WIDTH) {
        *x = 4;
        *y += LEGEND_LINE;
    }
}

static double entry_width(const char *name)
{
    return 24 + text_width(name) + 14;
}

static double legend_height(const char *const *names, uint32_t n)
{
    double x = 4, y = LEGEND_LINE;
    for (uint32_t i = 0; i < n; i++) {
        place_entry(&x, &y, entry_width(names[i]));
        x += entry_width(names[i]);
    }
    return y;
}

static void write_legend(FILE *out, const char *const *names, const char *const *classes,
                         bool areas, uint32_t n)
{
    double x = 4, y = TOP;
    for (uint32_t i = 0; i < n; i++) {
        place_entry(&x, &y, entry_width(names[i]));
        if (areas)
            fprintf(out, "<rect class=\"f%u\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"11\"/>",
                    i % PLOT_COLORS, x + 2, y + 3);
        else
            fprintf(out, "<path class=\"line c%u%s\" d=\"M%.1f %.1fh18\"/>", i % PLOT_COLORS,
                    classes[i], x, y + 9);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">", x + 22, y + 13);
        write_label(out, names[i], PLOT_WIDTH - x - 24);
        fputs("</text>\n", out);
        x += entry_width(names[i]);
    }
}

/* ---- Frames ---------------------------------------------------------------------------------- */

typedef struct frame {
    double left, right, top, bottom;
    plot_axis x, y;
} frame;

static void write_x_axis(FILE *out, const frame *f, const char *label, bool grid)
{
    char number[16];
    for (uint32_t i = 0; i < f->x.n_ticks; i++) {
        double value = plot_axis_tick(&f->x, i);
        double x = plot_axis_place(&f->x, value, f->left, f->right);
        if (grid)
            fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, f->top, f->bottom);
        fprintf(out,
                "<path class=\"axis\" d=\"M%.1f %.1fv4\"/><text class=\"quiet\" x=\"%.1f\" "
                "y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                x, f->bottom, x, f->bottom + 18, plot_number(value, number));
    }
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (f->left + f->right) / 2,
            f->bottom + 38);
    plot_escape(out, label);
    fputs("</text>\n", out);
}

static void write_y_axis(FILE *out, const frame *f, const char *label)
{
    char number[16];
    for (uint32_t i = 0; i < f->y.n_ticks; i++) {
        double value = plot_axis_tick(&f->y, i);
        double y = plot_axis_place(&f->y, value, f->bottom, f->top);
        fprintf(out,
                "<path class=\"%s\" d=\"M%.1f %.1fH%.1f\"/><text class=\"quiet\" x=\"%.1f\" "
                "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                i ? "grid" : "axis", f->left, y, f->right, f->left - 6, y + 4.5,
                plot_number(value, number));
    }
    double middle = (f->top + f->bottom) / 2;
    fprintf(out, "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">",
            middle);
    plot_escape(out, label);
    fputs("</text>\n", out);
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static bool drawn(const line_plot *p, const plot_series *s, uint32_t i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]) && (!p->log_x || s->x[i] > 0);
}

static void find_axes(const line_plot *p, frame *f)
{
    double lo = INFINITY, hi = -INFINITY, bottom = 0, top = p->y_top;
    for (uint32_t k = 0; k < p->n_series; k++)
        for (uint32_t i = 0; i < p->series[k].n; i++)
            if (drawn(p, &p->series[k], i)) {
                lo = fmin(lo, p->series[k].x[i]);
                hi = fmax(hi, p->series[k].x[i]);
                bottom = fmin(bottom, p->series[k].y[i]);
                top = fmax(top, p->series[k].y[i]);
            }
    f->x = p->log_x ? plot_axis_log2(lo, hi, 7) : plot_axis_linear(lo, hi, 8);
    if (!p->log_x && lo < hi) { /* no margin on either side: ticks are inside */
        while (f->x.n_ticks > 2 && f->x.first < lo - 1e-9 * (hi - lo)) {
            f->x.first += f->x.step;
            f->x.n_ticks--;
        }
        while (f->x.n_ticks > 1 && plot_axis_tick(&f->x, f->x.n_ticks - 1) > hi + 1e-9 * (hi - lo))
            f->x.n_ticks--;
        f->x.lo = fmin(lo, f->x.first);
        f->x.hi = hi;
    }
    f->y = plot_axis_linear(bottom, top, 6);
}

static void write_line(FILE *out, const line_plot *p, const frame *f, const plot_series *s,
                       uint32_t color, const char *class)
{
    bool pen = false;
    fprintf(out, "<path class=\"line c%u%s\" d=\"", color, class);
    for (uint32_t i = 0; i < s->n; i++) {
        if (!drawn(p, s, i)) {
            pen = false;
            continue;
        }
        double x = plot_axis_place(&f->x, s->x[i], f->left, f->right);
        double y = plot_axis_place(&f->y, s->y[i], f->bottom, f->top);
        if (pen && p->stairs)
            fprintf(out, "H%.1fV%.1f", x, y);
        else
            fprintf(out, "%c%.1f %.1f", pen ? 'L' : 'M', x, y);
        pen = true;
    }
    fputs("\"/>", out);
    for (uint32_t i = 0; p->points && i < s->n; i++)
        if (drawn(p, s, i))
            fprintf(out, "<circle class=\"f%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", color,
                    plot_axis_place(&f->x, s->x[i], f->left, f->right),
                    plot_axis_place(&f->y, s->y[i], f->bottom, f->top));
    fputc('\n', out);
}

/* Moves labels apart, from the top down and, if they then leave the frame, back up. `at` [n] is in
 * the order of `order`. */
static void spread_labels(double *at, const uint32_t *order, uint32_t n, double bottom)
{
    for (uint32_t i = 1; i < n; i++)
        at[order[i]] = fmax(at[order[i]], at[order[i - 1]] + LABEL_LINE);
    for (uint32_t i = n; i-- > 0; bottom -= LABEL_LINE)
        at[order[i]] = fmin(at[order[i]], bottom);
}

/* Draws a leader from a line's end to its name. */
static void write_leader(FILE *out, const frame *f, uint32_t color, double from, double to)
{
    fprintf(out, "<path class=\"leader c%u\" d=\"M%.1f %.1fL%.1f %.1f\"/>", color, f->right + 4,
            from, f->right + 14, to);
}

/* Writes lines' names at their ends. */
static void write_ends(FILE *out, const line_plot *p, const frame *f)
{
    double at[MOST_LINES], end[MOST_LINES];
    uint32_t order[MOST_LINES], n = 0;
    for (uint32_t k = 0; k < p->n_series; k++) {
        const plot_series *s = &p->series[k];
        uint32_t last = s->n;
        while (last && !drawn(p, s, last - 1))
            last--;
        if (!last)
            continue;
        at[k] = end[k] = plot_axis_place(&f->y, s->y[last - 1], f->bottom, f->top);
        uint32_t i = n++;
        for (; i && at[order[i - 1]] > at[k]; i--)
            order[i] = order[i - 1];
        order[i] = k;
    }
    if (n * LABEL_LINE > f->bottom - f->top + LABEL_LINE)
        return; /* too many to fit: the legend has them */
    spread_labels(at, order, n, f->bottom);
    for (uint32_t i = 0; i < n; i++) {
        write_leader(out, f, order[i] % PLOT_COLORS, end[order[i]], at[order[i]]);
        fprintf(out, "<text class=\"f%u\" x=\"%.1f\" y=\"%.1f\">", order[i] % PLOT_COLORS,
                f->right + 17, at[order[i]] + 4.5);
        write_label(out, p->series[order[i]].name, PLOT_WIDTH - f->right - 18);
        fputs("</text>\n", out);
    }
}

static void write_mark(FILE *out, const line_plot *p, const frame *f)
{
    double x = plot_axis_place(&f->x, p->mark_x, f->left, f->right);
    if (!p->mark || !(x >= f->left - 0.5 && x <= f->right + 0.5))
        return;
    bool after = x > (f->left + f->right) / 2;
    fprintf(out,
            "<path class=\"mark\" d=\"M%.1f %.1fV%.1f\"/><text class=\"quiet\" x=\"%.1f\" "
            "y=\"%.1f\" text-anchor=\"%s\">",
            x, f->top, f->bottom, after ? x - 5 : x + 5, f->top + 12, after ? "end" : "start");
    plot_escape(out, p->mark);
    fputs("</text>\n", out);
}

void plot_lines(FILE *out, const line_plot *plot)
{
    const char *names[MOST_LINES] = {NULL}, *classes[MOST_LINES];
    char class[MOST_LINES][24];
    double label = 0;
    line_plot p = *plot;
    p.n_series = p.n_series < MOST_LINES ? p.n_series : MOST_LINES;
    for (uint32_t k = 0; k < p.n_series; k++) {
        names[k] = p.series[k].name;
        snprintf(class[k], sizeof class[k], "%s%s", dashes(k), p.series[k].bound ? " bound" : "");
        classes[k] = class[k];
        label = fmax(label, text_width(names[k]));
    }
    bool named = p.n_series > 1; /* a single line is described by the title */
    frame f = {.left = LEFT,
               .right = PLOT_WIDTH - 20 - (named ? fmin(label, MOST_LABEL) : 0),
               .top = TOP + 10};
    if (named)
        f.top += legend_height(names, p.n_series);
    f.bottom = f.top + PLOT_HEIGHT;
    find_axes(&p, &f);
    open_svg(out, p.title, f.bottom + BOTTOM);
    if (named)
        write_legend(out, names, classes, false, p.n_series);
    write_y_axis(out, &f, p.y_label);
    write_x_axis(out, &f, p.x_label, false);
    write_mark(out, &p, &f);
    for (uint32_t k = 0; k < p.n_series; k++)
        write_line(out, &p, &f, &p.series[k], k % PLOT_COLORS, classes[k]);
    if (named)
        write_ends(out, &p, &f);
    fputs("</svg>\n", out);
}

/* ---- Bars ------------------------------------------------------------------------------------ */

static double part_of(const bar_plot *b, uint32_t bar, uint32_t part)
{
    double value = b->values[(size_t)bar * b->n_parts + part];
    return isfinite(value) && value > 0 ? value : 0;
}

static void write_bar(FILE *out, const bar_plot *b, const frame *f, uint32_t bar, double y)
{
    double sum = 0, x = f->left;
    char number[16];
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">", f->left, y - 5);
    write_label(out, b->bars[bar], PLOT_WIDTH - f->left);
    fputs("</text>\n", out);
    for (uint32_t part = 0; part < b->n_parts; part++) {
        sum += part_of(b, bar, part);
        double end = plot_axis_place(&f->x, sum, f->left, f->right);
        if (end - x >= 0.05)
            fprintf(out, "<rect class=\"f%u\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>",
                    part % PLOT_COLORS, x, y, end - x, BAR_HEIGHT);
        x = end;
    }
    fprintf(out, "<text class=\"quiet\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 5, y + 13,
            plot_number(sum, number));
}

void plot_bars(FILE *out, const bar_plot *b)
{
    double most = 0;
    for (uint32_t bar = 0; bar < b->n_bars; bar++) {
        double sum = 0;
        for (uint32_t part = 0; part < b->n_parts; part++)
            sum += part_of(b, bar, part);
        most = fmax(most, sum);
    }
    frame f = {.left = 10, .right = PLOT_WIDTH - 60};
    f.top = TOP + legend_height(b->parts, b->n_parts) + 10;
    f.bottom = f.top + b->n_bars * BAR_STEP;
    f.x = plot_axis_linear(0, most, 6);
    open_svg(out, b->title, f.bottom + BOTTOM);
    write_legend(out, b->parts, NULL, true, b->n_parts);
    write_x_axis(out, &f, b->x_label, true);
    for (uint32_t bar = 0; bar < b->n_bars; bar++)
        write_bar(out, b, &f, bar, f.top + (bar + 1) * BAR_STEP - BAR_HEIGHT - 4);
    fputs("</svg>\n", out);
}
