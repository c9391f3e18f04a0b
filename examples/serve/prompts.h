/* prompts.h — what requests ask: windows of real text, for models whose tokens are bytes. */
#ifndef SERVE_PROMPTS_H
#define SERVE_PROMPTS_H

#include "common/config.h"
#include "serve/arrivals.h"

/* Fills a->tokens and says in a->texts where they are from: --text, or the model's own eval/ files,
 * or, without either and where tokens are no bytes, random tokens. A prompt is a function of the
 * seed and the request's number. One line and RUN_REFUSED for a file that cannot be used. */
int prompts_fill(const serve_options *opts, const model_config *model, arrivals *a);

#endif
