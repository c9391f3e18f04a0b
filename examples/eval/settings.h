/* settings.h — the settings that an evaluation compares on the same texts; if there are several,
 * the first is exact. */
#ifndef EVAL_SETTINGS_H
#define EVAL_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/lossy.h"

/* The steps that remapping acts on. The library remaps decode steps; other steps are announced as
 * such when their sensitivity is measured. */
enum { REMAP_DECODE, REMAP_PREFILL, REMAP_BOTH };

enum { SWEEP_NONE, SWEEP_REMAP, SWEEP_PRECISION, SWEEP_RANKS, SWEEP_PHASES, SWEEP_DEMOTION };

/* The choice of high versions: by the pool while serving, or fixed. */
enum { HIGH_ADAPT, HIGH_HOTTEST, HIGH_RANDOM };

typedef struct setting {
    char name[64];
    precision_spec precision; /* text NULL: every expert in the model's own form */
    uint32_t high_set;        /* HIGH_* */
    remap_spec remap;
    uint32_t remap_phase; /* REMAP_* */
    uint32_t miss;        /* MOEPAGE_MISS_* */
    uint32_t keep_ranks;  /* first choices of a token to keep; 0 = all */
    uint32_t deny_rank;   /* choice replaced by the next best, from 1; 0 = none */
} setting;

/* Returns true if the setting changes the output. */
bool setting_is_lossy(const setting *s);

/* Most values in each grid of a sweep. */
#define SETTINGS_GRID 8

typedef struct grid {
    double alphas[SETTINGS_GRID], betas[SETTINGS_GRID];
    uint32_t n_alphas, n_betas;
} grid;

typedef struct settings {
    setting *items;
    uint32_t n;
} settings;

/* Lists the settings of `sweep` around `asked`; the exact one goes first if `exact` and any other
 * is lossy. `top_k` is the model's. Free the list with settings_free. */
int settings_list(const setting *asked, uint32_t sweep, const grid *tried, bool exact,
                  uint32_t top_k, settings *out);
void settings_free(settings *list);

#endif
