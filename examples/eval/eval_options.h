/* eval_options.h — the command line of moepage-eval as a struct. */
#ifndef EVAL_OPTIONS_H
#define EVAL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/options.h"
#include "eval/settings.h"

typedef struct eval_options {
    options base; /* options shared with moepage-generate */
    const char **files;
    uint32_t n_files;
    uint32_t window;  /* tokens */
    uint32_t batch;   /* windows read side by side; 0 = each is read in one step */
    uint32_t prompt;  /* tokens of a window read in one step, the rest one by one; 0 = none */
    uint32_t windows; /* of each file; 0 = all */
    uint32_t warm;    /* windows of these read first and not scored */
    uint32_t course;  /* steps per stretch for which the JSON has figures; 0 = no stretches */
    bool mix;         /* windows of all files interleaved */
    bool token_ids;   /* files hold 32-bit ids */
    setting asked;
    uint32_t inexact; /* 1: --exact off */
    uint32_t sweep;   /* SWEEP_* */
    grid grid;
    uint32_t group_size; /* for integer forms made here; 0 = the library's default */
    uint32_t scale_search;
    const char *report;
    bool json;
    bool help;
    int argc;
    char **argv;
} eval_options;

/* Reads the command line; on failure prints one line and returns RUN_REFUSED. *out is always safe
 * to free. */
int eval_options_parse(int argc, char **argv, eval_options *out);
void eval_options_free(eval_options *opts);

const char *eval_options_usage(void);

#endif
