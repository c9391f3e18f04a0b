/* host.h — the library's objects of one run. */
#ifndef EXAMPLE_HOST_H
#define EXAMPLE_HOST_H

#include "common/budget.h"
#include "common/config.h"
#include "common/options.h"
#include "moepage.h"

typedef struct host {
    moepage_model *model;
    moepage_model_info info;
    moepage_form_info exph; /* the model's EXPH form, present or not */
    moepage_engine *engine;
    moepage_device *device; /* the engine's, as what follows */
    moepage_expert_pool *experts;
    moepage_kv_pool *kv;
    moepage_session *session;
    moepage_predictor *predictor;       /* NULL without one */
    moepage_precision_config precision; /* of --precision */
    moepage_trace *trace;               /* NULL without --trace-out */
    uint32_t threads;                   /* used by the device; the decoder uses as many */
} host;

/* Opens the model alone, which suffices to size the other objects. */
int host_open_model(const options *opts, host *out);

/* Opens the engine, and starts the trace. */
int host_open(const options *opts, const model_config *config, const budget *plan, host *h);

/* Saves a predictor's learnt state if the options ask for it. */
int host_save_predictor(const options *opts, const host *h);

/* Closes everything, open or not, in reverse. RUN_FAILED if the trace could not be finished. */
int host_close(host *h);

#endif
