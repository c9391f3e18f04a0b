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
    uint32_t threads;                   /* that the device uses; the decoder takes as many */
} host;

/* Opens the model alone: what is needed to size the rest. */
int host_open_model(const options *opts, host *out);

/* Opens the engine, and starts the trace. */
int host_open(const options *opts, const model_config *config, const budget *plan, host *h);

/* Keeps what a predictor has learnt, where that is asked for. */
int host_save_predictor(const options *opts, const host *h);

/* Closes everything, open or not, in reverse. RUN_FAILED if the trace could not be finished. */
int host_close(host *h);

#endif
