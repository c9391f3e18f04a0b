/* Writes the frame of a page around its sections. */
#include "common/page.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/plot.h"
#include "moepage.h"

static const char page_style[] =
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--quiet:#59636e;--rule:#dfe3e8;"
    "--c0:#1f66c1;--c1:#c4540a;--c2:#1b7f4b;--c3:#a52f86;--c4:#0b7b88;--c5:#7a5a1e;--c6:#bf2636;"
    "--c7:#566074}"
    "@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e7eaee;--quiet:#a0a9b4;"
    "--rule:#30363d;--c0:#6ea8ff;--c1:#ff9d57;--c2:#5fce93;--c3:#f08ad6;--c4:#4fd0de;--c5:#d2ad6a;"
    "--c6:#ff7d88;--c7:#a9b4c8}}"
    "*{box-sizing:border-box}"
    "body{margin:0 auto;max-width:44rem;padding:1rem;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
    "h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}"
    "p{margin:.5rem 0}.quiet{color:var(--quiet)}"
    "code{display:block;padding:.6rem .8rem;border:1px solid var(--rule);border-radius:6px;"
    "font:.85rem/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}"
    "figure{margin:1.5rem 0}"
    "svg{display:block;width:100%;max-width:38rem;height:auto}"
    ".table{overflow-x:auto;margin-top:.5rem}"
    "table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.25rem .6rem;border-bottom:1px solid var(--rule);text-align:right;"
    "white-space:nowrap}th:first-child{text-align:left;padding-left:0}"
    "thead th{color:var(--quiet);font-weight:600;vertical-align:bottom;white-space:normal}"
    "tbody th{font-weight:400}"
    "@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--quiet:#444;--rule:#bbb;"
    "--c0:#1f66c1;--c1:#c4540a;--c2:#1b7f4b;--c3:#a52f86;--c4:#0b7b88;--c5:#7a5a1e;--c6:#bf2636;"
    "--c7:#566074}body{max-width:none;padding:0;font-size:11pt}h2{break-after:avoid}"
    "svg,tr{break-inside:avoid}svg{max-width:14cm}.table{overflow:visible}"
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}";

/* ---- Parts ----------------------------------------------------------------------------------- */

void page_section(page *p, const char *title, const char *text)
{
    fputs("<h2>", p->out);
    plot_escape(p->out, title);
    fputs("</h2>\n", p->out);
    if (*text) {
        fputs("<p>", p->out);
        plot_escape(p->out, text);
        fputs("</p>\n", p->out);
    }
}

void page_figure(page *p)
{
    fputs("<figure>\n", p->out);
}

void page_figure_end(page *p)
{
    fputs("</figure>\n", p->out);
}

void page_table(page *p, const char *const *columns, uint32_t n)
{
    fputs("<div class=\"table\"><table>\n<thead><tr>", p->out);
    for (uint32_t i = 0; i < n; i++) {
        fputs("<th>", p->out);
        plot_escape(p->out, columns[i]);
        fputs("</th>", p->out);
    }
    fputs("</tr></thead>\n<tbody>\n", p->out);
}

void page_row(page *p, const char *heading)
{
    fputs("<tr><th>", p->out);
    plot_escape(p->out, heading);
    fputs("</th>", p->out);
}

void page_row_number(page *p, double heading)
{
    char number[32];
    snprintf(number, sizeof number, "%.6g", heading);
    page_row(p, number);
}

void page_cell(page *p, double value)
{
    if (!isfinite(value))
        fputs("<td>–</td>", p->out);
    else if (fabs(value) >= 1e4)
        fprintf(p->out, "<td>%.0f</td>", value);
    else
        fprintf(p->out, "<td>%.4g</td>", value);
}

void page_cell_text(page *p, const char *text)
{
    fputs("<td>", p->out);
    plot_escape(p->out, text);
    fputs("</td>", p->out);
}

void page_cells(page *p, const double *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        page_cell(p, values[i]);
    page_row_end(p);
}

void page_row_end(page *p)
{
    fputs("</tr>\n", p->out);
}

void page_table_end(page *p)
{
    fputs("</tbody></table></div>\n", p->out);
}

void page_columns(page *p, const char *const *heads, const double *const *columns, uint32_t n,
                  uint32_t length, uint32_t most)
{
    uint32_t rows = length < most ? length : most;
    page_table(p, heads, n);
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t at = page_spread(length - 1, i, rows);
        page_row_number(p, columns[0][at]);
        for (uint32_t k = 1; k < n; k++)
            page_cell(p, columns[k][at]);
        page_row_end(p);
    }
    page_table_end(p);
}

double *page_numbers(page *p, size_t n)
{
    double *numbers = calloc(n ? n : 1, sizeof *numbers);
    if (!numbers)
        p->failed = true;
    return numbers;
}

/* ---- The page -------------------------------------------------------------------------------- */

int page_open(const char *path, const page_command *command, const char *subject, const char *about,
              page *p)
{
    *p = (page){.path = path};
    if (!path)
        return RUN_OK;
    FILE *out = p->out = open_memstream(&p->text, &p->size);
    if (!out)
        return fail_memory();
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
          out);
    plot_escape(out, subject);
    fprintf(out, "</title>\n<style>%s%s</style></head>\n<body>\n<h1>", page_style, plot_style);
    plot_escape(out, subject);
    fputs("</h1>\n<p>", out);
    plot_escape(out, about);
    fprintf(out, "</p>\n<code>%s", command->program);
    for (int i = 1; i < command->argc; i++) {
        fputc(' ', out);
        plot_escape(out, command->argv[i]);
    }
    fputs("</code>\n<p class=\"quiet\">libmoepage ", out);
    plot_escape(out, moepage_version_text());
    fputs("</p>\n", out);
    return RUN_OK;
}

static int write_file(const page *p)
{
    FILE *file = fopen(p->path, "we");
    if (!file)
        return fail(RUN_FAILED, "--report %s: %s", p->path, strerror(errno));
    bool ok = fwrite(p->text, 1, p->size, file) == p->size;
    if (fclose(file) || !ok)
        return fail(RUN_FAILED, "--report %s: cannot be written whole", p->path);
    return RUN_OK;
}

int page_close(page *p, int code)
{
    if (!p->out)
        return code;
    fputs("</body></html>\n", p->out);
    bool failed = ferror(p->out) || p->failed;
    failed |= fclose(p->out) != 0;
    p->out = NULL;
    if (!code)
        code = failed ? fail_memory() : write_file(p);
    free(p->text);
    p->text = NULL;
    return code;
}
