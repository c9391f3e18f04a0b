/* serve_report.h — what was measured: a table, a JSON object, a page of plots. */
#ifndef SERVE_REPORT_H
#define SERVE_REPORT_H

#include <stdio.h>

#include "serve/arm_run.h"

typedef struct serve_findings {
    const arm_setting *setting;
    const server_result *results; /* [setting's arms]; those that did not run have ran false */
    const uint32_t *compared;     /* [arms] answers compared with those alone; NULL = not */
} serve_findings;

/* The measures that all three show, by name and unit. */
#define SERVE_MEASURES 24
typedef struct serve_measure {
    const char *name;
    const char *key; /* in JSON */
    double value;
    int digits; /* behind the point */
} serve_measure;
uint32_t serve_measure_all(const server_result *r, serve_measure out[SERVE_MEASURES]);

void serve_table(FILE *out, const serve_findings *f);

/* To the file of --json, or standard output where that is "-". One line and RUN_FAILED on failure. */
int serve_json(const serve_findings *f);

/* To the file of --report; nothing without one. */
int serve_page(const serve_findings *f);

#endif
