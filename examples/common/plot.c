/* Axes and text of plots. */
#include "common/plot.h"

#include <math.h>
#include <string.h>

/* ---- Axes ------------------------------------------------------------------------------------ */

/* Returns the smallest of 1, 2, 5, 10 ... times a power of ten that is at least `least` (> 0). */
static double round_step(double least)
{
    double power = pow(10, floor(log10(least)));
    static const double steps[] = {1, 2, 5, 10};
    uint32_t i = 0;
    while (i < 3 && steps[i] * power < least * (1 - 1e-9))
        i++;
    return steps[i] * power;
}

plot_axis plot_axis_linear(double lo, double hi, uint32_t most)
{
    if (!isfinite(lo) || !isfinite(hi) || lo > hi)
        lo = 0, hi = 1;
    if (hi - lo <= 1e-12 * fmax(fabs(lo), fabs(hi)))
        hi = lo + (lo != 0 ? fabs(lo) : 1);
    double step = round_step((hi - lo) / (most - 1));
    double first = floor(lo / step + 1e-9) * step;
    double last = ceil(hi / step - 1e-9) * step;
    if (lround((last - first) / step) + 1 > (long)most) { /* both ends were widened */
        step = round_step(step * 1.5);
        first = floor(lo / step + 1e-9) * step;
        last = ceil(hi / step - 1e-9) * step;
    }
    return (plot_axis){.lo = first,
                       .hi = last,
                       .first = first,
                       .step = step,
                       .n_ticks = (uint32_t)lround((last - first) / step) + 1};
}

plot_axis plot_axis_log2(double lo, double hi, uint32_t most)
{
    if (!isfinite(lo) || !isfinite(hi) || lo > hi || lo <= 0)
        lo = 1, hi = 2;
    double first = floor(log2(lo) + 1e-9), last = ceil(log2(hi) - 1e-9);
    last = fmax(last, first + 1);
    double step = ceil((last - first) / (most - 1));
    return (plot_axis){.lo = exp2(first),
                       .hi = exp2(last),
                       .first = exp2(first),
                       .step = step,
                       .n_ticks = (uint32_t)floor((last - first) / step) + 1,
                       .log2 = true};
}

double plot_axis_tick(const plot_axis *axis, uint32_t i)
{
    if (axis->log2)
        return axis->first * exp2(axis->step * i);
    double value = axis->first + axis->step * i;
    return fabs(value) < axis->step * 1e-6 ? 0 : value;
}

double plot_axis_place(const plot_axis *axis, double value, double from, double to)
{
    double share = axis->log2 ? log2(value / axis->lo) / log2(axis->hi / axis->lo)
                              : (value - axis->lo) / (axis->hi - axis->lo);
    return from + share * (to - from);
}

/* ---- Text ------------------------------------------------------------------------------------ */

const char *plot_number(double value, char text[static 16])
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
    double size = fabs(value);
    uint32_t i = 0;
    while (i < 4 && size < units[i].unit * 0.9995)
        i++;
    double scaled = value / units[i].unit;
    if (!isfinite(value))
        snprintf(text, 16, "-");
    else if (value == 0)
        snprintf(text, 16, "0");
    else
        snprintf(text, 16, "%.3g%s", scaled, units[i].name);
    return text;
}

/* Returns the length of the character at `at`; 0 for invalid UTF-8 or a character that XML
 * forbids. */
static size_t character(const unsigned char *at)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (*at < 0x80)
        return *at >= 0x20 && *at != 0x7f;
    size_t n = *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : *at >= 0xc2 ? 2 : 0;
    uint32_t code = n ? *at & (0x7fu >> n) : 0;
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return n && code >= least[n] && code <= 0x10ffff && !surrogate && (code & 0xfffe) != 0xfffe ? n
                                                                                                : 0;
}

void plot_escape(FILE *out, const char *text)
{
    while (*text) {
        size_t n = character((const unsigned char *)text);
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default:
            if (n)
                fwrite(text, 1, n, out);
            else
                fputc('?', out);
        }
        text += n ? n : 1;
    }
}
