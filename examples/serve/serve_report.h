/* serve_report.h — the results: a table, a JSON object, a page of plots. */
#ifndef SERVE_REPORT_H
#define SERVE_REPORT_H

#include <stdio.h>

#include "serve/arm_run.h"

typedef struct serve_findings {
    const arm_setting *setting;
    const server_result *results; /* [setting's arms]; `ran` is false for those that did not run */
    const uint32_t *compared;     /* [arms] answers compared with those alone; NULL = none */
} serve_findings;

/* The measures that all three outputs show, by name and unit. */
#define SERVE_MEASURES 25
typedef struct serve_measure {
    const char *name;
    const char *key; /* in JSON */
    double value;
    int digits; /* after the decimal point */
} serve_measure;
uint32_t serve_measure_all(const server_result *r, serve_measure out[SERVE_MEASURES]);

void serve_table(FILE *out, const serve_findings *f);

/* Writes to the file of --json, or to standard output for "-". One line and RUN_FAILED on
 * failure. */
int serve_json(const serve_findings *f);

/* Writes the file of --report; does nothing without that flag. */
int serve_page(const serve_findings *f);

#endif
