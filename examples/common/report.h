/* report.h — a run's output: tokens as they are generated, the table at the end, or one JSON
 * object. */
#ifndef EXAMPLE_REPORT_H
#define EXAMPLE_REPORT_H

#include <stdio.h>

#include "common/generate.h"
#include "common/host.h"
#include "common/tokenizer.h"

/* Prints the sequences in order: the first unfinished one as its tokens come, then the next one
 * from its start. Several sequences are numbered. */
typedef struct streamer {
    FILE *out;
    const tokenizer *tokens; /* those without text are printed as ids */
    uint32_t current;
    uint32_t shown; /* generated tokens of `current` printed so far */
} streamer;

/* A generation's `progress`, with a streamer as user. */
void report_stream(void *self, const generation *g);

/* Prints the table, or the JSON object that docs/generate.md describes. */
int report_table(FILE *out, const host *h, const generation *g);
int report_json(FILE *out, const options *opts, const host *h, const generation *g,
                const tokenizer *tokens);

/* Writes the counters of the library's objects as docs/metrics.md describes; with a controller and
 * extra labels, or NULL. */
int report_metrics(FILE *out, const host *h, moepage_controller *controller, const char *labels);

/* Writes the kept logits, sequence by sequence. */
int report_logits(FILE *out, const generation *g);

#endif
