/* show.h — an evaluation's results: tables, one JSON object, or a page of plots. */
#ifndef EVAL_SHOW_H
#define EVAL_SHOW_H

#include <stdio.h>

#include "common/corpus.h"
#include "common/host.h"
#include "eval/eval_options.h"
#include "eval/outcome.h"

typedef struct findings {
    const eval_options *opts;
    const char *model; /* as given */
    const moepage_model_info *info;
    const corpus *corpus;
    const outcome *outcomes; /* the first is exact if any is */
    uint32_t n;
} findings;

/* Returns the bits that `o` loses on a domain against the exact setting, given `m` in the one and
 * `exact` in the other; NaN without an exact setting. */
double findings_loss(const findings *f, const measure *m, const measure *exact);

/* Returns the exact setting's outcome, or NULL. */
const outcome *findings_exact(const findings *f);

int show_table(FILE *out, const findings *f);
int show_json(FILE *out, const findings *f);

/* Writes the page of --report; does nothing without that flag. */
int show_page(const findings *f);

#endif
