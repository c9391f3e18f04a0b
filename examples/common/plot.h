/* plot.h — line plots and stacked bars as SVG: axes with round ticks, legends, and each line's name
 * at its end. Colours are classes (c0 .. c7, with their fills) that the page's style defines;
 * beyond eight, lines are dashed as well. */
#ifndef EXAMPLE_PLOT_H
#define EXAMPLE_PLOT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PLOT_WIDTH 480 /* of the view box; about the width of a phone */
#define PLOT_COLORS 8

/* The style of every plot's classes, on light and dark backgrounds. */
extern const char plot_style[];

/* Values from lo to hi, ticks at first, first + step ... */
typedef struct plot_axis {
    double lo, hi;
    double first, step;
    uint32_t n_ticks;
    bool log2; /* lo, hi, first are > 0, and each tick is 2^step times the previous one */
} plot_axis;

/* Makes an axis with round ticks, at most `most` (>= 2), for all values between lo and hi, widened
 * to end at ticks; ticks are 1, 2 or 5 times a power of ten apart. A range that is not finite or
 * empty becomes 0 to 1. */
plot_axis plot_axis_linear(double lo, double hi, uint32_t most);
/* Ticks at powers of two; lo > 0. */
plot_axis plot_axis_log2(double lo, double hi, uint32_t most);
double plot_axis_tick(const plot_axis *axis, uint32_t i);
/* Returns the position of a value if lo is at `from` and hi at `to`. */
double plot_axis_place(const plot_axis *axis, double value, double from, double to);

/* Formats a number for readers: three digits, followed by k, M, G or T. */
const char *plot_number(double value, char text[static 16]);

/* Writes text for XML: escaped, control characters and invalid UTF-8 replaced. */
void plot_escape(FILE *out, const char *text);

typedef struct plot_series {
    const char *name;
    uint32_t n;
    const double *x, *y; /* values that are not finite are gaps */
    bool bound;          /* drawn as a reference for the other lines */
} plot_series;

typedef struct line_plot {
    const char *title, *x_label, *y_label;
    uint32_t n_series;
    const plot_series *series;
    bool log_x;
    bool points;   /* marks every value */
    bool stairs;   /* a value holds until the next */
    double y_top;  /* the axis covers at least 0 to this value */
    double mark_x; /* a vertical line, if mark is not NULL */
    const char *mark;
} line_plot;
void plot_lines(FILE *out, const line_plot *plot);

/* Horizontal bars, one below the other, each consisting of adjacent parts. */
typedef struct bar_plot {
    const char *title, *x_label;
    uint32_t n_bars, n_parts;
    const char *const *bars;  /* [n_bars] names */
    const char *const *parts; /* [n_parts] */
    const double *values;     /* [n_bars][n_parts], >= 0 */
} bar_plot;
void plot_bars(FILE *out, const bar_plot *bars);

#endif
