/* play.h — runs one setting over the texts and scores the model's predictions. */
#ifndef EVAL_PLAY_H
#define EVAL_PLAY_H

#include "common/config.h"
#include "common/corpus.h"
#include "common/host.h"
#include "common/weights.h"
#include "eval/eval_options.h"
#include "eval/outcome.h"

typedef struct play_config {
    const eval_options *opts;
    const host *model; /* opened by host_open_model only */
    const model_config *config;
    const model_weights *weights;
    const corpus *corpus;
} play_config;

/* Opens pools and session for the setting, reads every window, and closes them. The caller provides
 * out->domains, [n_domains]. */
int play_setting(const play_config *config, const setting *s, outcome *out);

#endif
