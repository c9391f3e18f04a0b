/* serve_options.h — the command line of serve_loop as a struct. */
#ifndef SERVE_OPTIONS_H
#define SERVE_OPTIONS_H

#include "common/options.h"
#include "serve/arms.h"

enum { SERVE_CLOCK_REAL = 0, SERVE_CLOCK_VIRTUAL = 1 };
enum { SERVE_DASHBOARD_AUTO = 0, SERVE_DASHBOARD_ON = 1, SERVE_DASHBOARD_OFF = 2 };

typedef struct serve_options {
    options base; /* options shared with moepage-generate */
    const char *arrivals;
    double poisson; /* requests a second; 0 = --arrivals */
    uint32_t skip, requests;
    double time_scale;
    double length_scale;    /* 0 = chosen so that the longest request fits */
    uint32_t max_context;   /* 0 = the model's positions */
    uint32_t prompt_tokens; /* of --poisson, on average */
    uint32_t output_tokens;
    const char *for_file;    /* a flag that requires --arrivals, or NULL */
    const char *for_poisson; /* a flag that requires --poisson, or NULL */
    const char *text;        /* a file that prompts are cut from, or NULL */
    arm_list arms;
    uint32_t concurrency;
    uint32_t step_tokens;
    uint32_t burst;   /* steps between a controller's decisions; 0 = the library's default */
    uint32_t observe; /* requests of a rehearsal */
    bool admission;   /* controllers also decide how many run at once, */
    uint64_t target_ttft_ns, target_tpot_ns; /* by these; 0 = none */
    const char *for_admission;               /* a flag that requires --admission, or NULL */
    uint32_t kv_floor; /* requests of average length for which KV always has room */
    uint32_t clock;    /* SERVE_CLOCK_* */
    uint32_t dashboard;
    const char *json, *report;
    bool check;
    bool help;
    int argc;
    char **argv;
} serve_options;

/* Reads the command line; on failure prints one line and returns RUN_REFUSED. *out is always safe
 * to free. */
int serve_options_parse(int argc, char **argv, serve_options *out);
void serve_options_free(serve_options *opts);

const char *serve_options_usage(void);

#endif
