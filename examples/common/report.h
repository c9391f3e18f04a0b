/* report.h — what a run prints: tokens as they come, the table at the end, or one JSON object. */
#ifndef EXAMPLE_REPORT_H
#define EXAMPLE_REPORT_H

#include <stdio.h>

#include "common/generate.h"
#include "common/host.h"

/* Prints the sequences in order: the first unfinished one as its tokens come, the next one from
 * its start when that has ended. Several are numbered. */
typedef struct streamer {
    FILE *out;
    bool bytes; /* tokens are bytes; otherwise ids are printed */
    uint32_t current;
    uint32_t shown; /* generated tokens of `current` printed so far */
} streamer;

/* A generation's `progress`, with a streamer as user. */
void report_stream(void *self, const generation *g);

/* Prints the table, or the JSON object that docs/generate.md describes. */
int report_table(FILE *out, const host *h, const generation *g);
int report_json(FILE *out, const options *opts, const host *h, const generation *g, bool bytes);

/* Writes what the library's objects have counted, as docs/metrics.md describes it; with a controller and
 * labels of its own, or NULL. */
int report_metrics(FILE *out, const host *h, moepage_controller *controller, const char *labels);

/* Writes the kept logits, sequence by sequence. */
int report_logits(FILE *out, const generation *g);

#endif
