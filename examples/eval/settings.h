/* settings.h — what an evaluation compares: ways of running the same texts, of which the first is
 * exact where there are several. */
#ifndef EVAL_SETTINGS_H
#define EVAL_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/lossy.h"

/* Which steps remapping is let act on. The library lets it act on decode steps: the others are
 * announced as such where their sensitivity is the question. */
enum { REMAP_DECODE, REMAP_PREFILL, REMAP_BOTH };

enum { SWEEP_NONE, SWEEP_REMAP, SWEEP_PRECISION, SWEEP_RANKS, SWEEP_PHASES, SWEEP_DEMOTION };

/* Whose high versions are there: what the pool decides as it serves, or the same experts for good. */
enum { HIGH_ADAPT, HIGH_HOTTEST, HIGH_RANDOM };

typedef struct setting {
    char name[64];
    precision_spec precision; /* text NULL: every expert as the model has it */
    uint32_t high_set;        /* HIGH_* */
    remap_spec remap;
    uint32_t remap_phase; /* REMAP_* */
    uint32_t miss;        /* MOEPAGE_MISS_* */
    uint32_t keep_ranks;  /* a token's first choices that are kept; 0 = all */
    uint32_t deny_rank;   /* the choice that is replaced by the next best, from 1; 0 = none */
} setting;

/* Does it change what comes out? */
bool setting_is_lossy(const setting *s);

/* What a sweep tries: grids of at most this many values. */
#define SETTINGS_GRID 8

typedef struct grid {
    double alphas[SETTINGS_GRID], betas[SETTINGS_GRID];
    uint32_t n_alphas, n_betas;
} grid;

typedef struct settings {
    setting *items;
    uint32_t n;
} settings;

/* The settings of `sweep` around `asked`; the exact one goes first if `exact` and any other is
 * lossy. `top_k` is the model's. Freed by settings_free. */
int settings_list(const setting *asked, uint32_t sweep, const grid *tried, bool exact,
                  uint32_t top_k, settings *out);
void settings_free(settings *list);

#endif
