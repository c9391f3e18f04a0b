/* The page around the sections. */
#include "sim/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "moepage.h"
#include "sim/report_parts.h"

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

void sim_report_section(sim_report *report, const char *title, const char *text)
{
    fputs("<h2>", report->out);
    sim_plot_escape(report->out, title);
    fputs("</h2>\n", report->out);
    if (*text) {
        fputs("<p>", report->out);
        sim_plot_escape(report->out, text);
        fputs("</p>\n", report->out);
    }
}

void sim_report_figure(sim_report *report)
{
    fputs("<figure>\n", report->out);
}

void sim_report_figure_end(sim_report *report)
{
    fputs("</figure>\n", report->out);
}

void sim_report_table(sim_report *report, const char *const *columns, uint32_t n)
{
    fputs("<div class=\"table\"><table>\n<thead><tr>", report->out);
    for (uint32_t i = 0; i < n; i++) {
        fputs("<th>", report->out);
        sim_plot_escape(report->out, columns[i]);
        fputs("</th>", report->out);
    }
    fputs("</tr></thead>\n<tbody>\n", report->out);
}

void sim_report_row(sim_report *report, const char *heading)
{
    fputs("<tr><th>", report->out);
    sim_plot_escape(report->out, heading);
    fputs("</th>", report->out);
}

void sim_report_row_number(sim_report *report, double heading)
{
    char number[32];
    snprintf(number, sizeof number, "%.6g", heading);
    sim_report_row(report, number);
}

void sim_report_cell(sim_report *report, double value)
{
    if (!isfinite(value))
        fputs("<td>–</td>", report->out);
    else if (fabs(value) >= 1e4)
        fprintf(report->out, "<td>%.0f</td>", value);
    else
        fprintf(report->out, "<td>%.4g</td>", value);
}

void sim_report_cell_text(sim_report *report, const char *text)
{
    fputs("<td>", report->out);
    sim_plot_escape(report->out, text);
    fputs("</td>", report->out);
}

void sim_report_row_end(sim_report *report)
{
    fputs("</tr>\n", report->out);
}

void sim_report_table_end(sim_report *report)
{
    fputs("</tbody></table></div>\n", report->out);
}

double *sim_report_numbers(sim_report *report, size_t n)
{
    double *numbers = calloc(n ? n : 1, sizeof *numbers);
    if (!numbers)
        report->failed = true;
    return numbers;
}

/* ---- The page -------------------------------------------------------------------------------- */

int sim_report_open(const sim_options *options, const char *subject, const char *about,
                    sim_report *report)
{
    *report = (sim_report){.path = options->report};
    if (!options->report)
        return RUN_OK;
    FILE *out = report->out = open_memstream(&report->text, &report->size);
    if (!out)
        return fail_memory();
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
          out);
    sim_plot_escape(out, subject);
    fprintf(out, "</title>\n<style>%s%s</style></head>\n<body>\n<h1>", page_style, sim_plot_style);
    sim_plot_escape(out, subject);
    fputs("</h1>\n<p>", out);
    sim_plot_escape(out, about);
    fputs("</p>\n<code>moepage-sim", out);
    for (int i = 1; i < options->argc; i++) {
        fputc(' ', out);
        sim_plot_escape(out, options->argv[i]);
    }
    fputs("</code>\n<p class=\"quiet\">libmoepage ", out);
    sim_plot_escape(out, moepage_version_text());
    fputs("</p>\n", out);
    return RUN_OK;
}

int sim_report_open_trace(const sim_options *options, const sim_trace *trace, sim_report *report)
{
    const sim_source *s = &trace->source;
    char about[192];
    snprintf(about, sizeof about,
             "%" PRIu32 " requests, %" PRIu64 " tokens, %" PRIu32 " layers of %" PRIu32
             " experts, %" PRIu32 " for each token.",
             s->n_requests, trace->rows, s->layers, s->experts, s->top_k);
    return sim_report_open(options, s->name, about, report);
}

static int write_file(const sim_report *report)
{
    FILE *file = fopen(report->path, "we");
    if (!file)
        return fail(RUN_FAILED, "--report %s: %s", report->path, strerror(errno));
    bool ok = fwrite(report->text, 1, report->size, file) == report->size;
    if (fclose(file) || !ok)
        return fail(RUN_FAILED, "--report %s: cannot be written whole", report->path);
    return RUN_OK;
}

int sim_report_close(sim_report *report, int code)
{
    if (!report->out)
        return code;
    fputs("</body></html>\n", report->out);
    bool failed = ferror(report->out) || report->failed;
    failed |= fclose(report->out) != 0;
    report->out = NULL;
    if (!code)
        code = failed ? fail_memory() : write_file(report);
    free(report->text);
    report->text = NULL;
    return code;
}
