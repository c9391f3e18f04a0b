/* options.h — the command line of moepage-generate as a struct. */
#ifndef EXAMPLE_OPTIONS_H
#define EXAMPLE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/lossy.h"

/* One --prompt or --tokens. Exactly one of `text` and `tokens` is set. */
typedef struct prompt {
    const char *text; /* borrowed from argv */
    uint32_t *tokens;
    uint32_t n_tokens;
} prompt;

typedef struct options {
    const char *model;
    const char *device;
    const char *policy;
    const char *trace_out;
    const char *logits_out;
    const char *metrics; /* a file, "-" = standard output; or NULL */
    prompt *prompts;
    uint32_t n_prompts;
    uint64_t budget_bytes; /* 0: budget_percent applies */
    double budget_percent;
    const char *tiers; /* as given, or NULL; budget_percent is then its first number */
    double slots_percent, compressed_percent; /* of --tiers */
    uint64_t host_tier_bytes;
    uint32_t bus_form; /* MOEPAGE_FORM_*, NONE = chosen by the library */
    uint32_t io_threads;
    const char *for_reading; /* a flag that requires reading from the file, or NULL */
    uint32_t max_tokens;
    uint32_t math;              /* MOEPAGE_MATH_* */
    uint32_t threads;           /* 0 = one per online CPU */
    uint32_t plain_products;    /* 1: no cuBLAS */
    const char *for_cuda;       /* a flag that needs a CUDA device, or NULL */
    bool prefetch;              /* the decoder's own hints and the previous step's set */
    const char *predictor;      /* a predictor's name to use instead, or NULL */
    const char *predictor_load; /* a file, or NULL */
    const char *predictor_save;
    const char *for_predictor; /* a flag that requires a predictor, or NULL */
    precision_spec precision;  /* text NULL: every expert in the model's own form */
    uint32_t interval_us;      /* of --precision; 0 = the library's default */
    uint32_t window_steps;
    uint32_t hotness;     /* MOEPAGE_HOTNESS_* */
    double hotness_alpha; /* 0 = the library's default, as for the margin */
    double hotness_margin;
    remap_spec remap;
    uint32_t miss; /* MOEPAGE_MISS_* */
    bool json;
    bool help;
    double temperature;
    double top_p;
    uint64_t seed;
    uint64_t bus_bytes_per_s;
    /* study switches */
    uint32_t scope;  /* MOEPAGE_SCOPE_* */
    uint32_t regime; /* MOEPAGE_REGIME_* */
    uint32_t scan_percent;
    uint32_t max_group_experts;
    uint32_t prefetch_depth;
    uint32_t prefill_tokens;  /* most prompt tokens in one step */
    const char *for_prefetch; /* a flag that needs --prefetch on, or NULL */
} options;

/* Flags that other programs have too: those that run a model, and those that generate text. */
extern const flag options_flags[], options_answer_flags[];

/* Reads --budget into an options struct. */
int options_read_budget(const flag *self, const char *text, void *options);

/* What goes with what, of flags that several programs have. One line and RUN_REFUSED. */
int options_check_prefetch(const options *opts);
int options_check_lossy(const options *opts);

/* Reads the command line; on failure prints one line and returns RUN_REFUSED. *out is always safe
 * to free. */
int options_parse(int argc, char **argv, options *out);
void options_free(options *opts);

/* Returns the help text. */
const char *options_usage(void);

#endif
