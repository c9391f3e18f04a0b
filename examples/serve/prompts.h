/* prompts.h — the requests' prompts: windows of real text for byte-level models. */
#ifndef SERVE_PROMPTS_H
#define SERVE_PROMPTS_H

#include "common/config.h"
#include "serve/arrivals.h"

/* Fills a->tokens and describes their source in a->texts: --text, or the model's own eval/ files,
 * or, without either or for tokens other than bytes, random tokens. A prompt depends on the seed
 * and the request's number alone. One line and RUN_REFUSED for an unusable file. */
int prompts_fill(const serve_options *opts, const model_config *model, arrivals *a);

#endif
