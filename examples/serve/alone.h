/* alone.h — generates each request again by itself with every expert resident; serving must give
 * the same answer. */
#ifndef SERVE_ALONE_H
#define SERVE_ALONE_H

#include "serve/arm_run.h"

typedef struct alone {
    uint32_t **outputs; /* [n][output_tokens], or NULL: not generated */
    uint32_t n;
} alone;

/* Generates every request that any result has served, with moepage-generate's own loop, until a
 * signal arrives. One line and a code on failure. *out is always safe to close. */
int alone_run(const arm_setting *setting, const server_result *results, uint32_t n_results,
              alone *out);
void alone_close(alone *a);

/* Compares a result's answers; *compared is their number. One line and RUN_FAILED at the first
 * difference. */
int alone_check(const alone *a, const arrivals *requests, const char *arm,
                const server_result *result, uint32_t *compared);

#endif
