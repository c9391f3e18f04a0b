/* arrivals.h — the requests of a run: arrival times, lengths, and prompts. */
#ifndef SERVE_ARRIVALS_H
#define SERVE_ARRIVALS_H

#include "common/config.h"
#include "serve/schedule.h"
#include "serve/serve_options.h"

typedef struct arrivals {
    schedule_request *requests; /* [n] in order of arrival */
    uint32_t n;
    uint32_t **tokens; /* [n][prompt_tokens + output_tokens] the prompt, then room for the output */
    uint32_t longest;  /* prompt and output together */
    uint64_t prompts;  /* tokens of all */
    uint64_t outputs;
    double length_scale; /* factor applied to the file's lengths */
    const char *texts;   /* description of the prompts' source */
} arrivals;

/* Opens requests from --arrivals or --poisson, with lengths that fit into the model's positions.
 * One line and RUN_REFUSED. *out is always safe to close. */
int arrivals_open(const serve_options *opts, const model_config *model, arrivals *out);
void arrivals_close(arrivals *a);

/* Scales lengths by `scale`, each to at least one token; both together are at most `most` (>= 2),
 * and the answer is shortened first. */
void arrivals_fit(uint32_t *prompt_tokens, uint32_t *output_tokens, double scale, uint32_t most);

/* Returns the next gap of a Poisson process of `rate` per second from 64 random bits. */
uint64_t arrivals_gap_ns(uint64_t random, double rate);

#endif
