/* Predicts nothing: the baseline for the other predictors. */
#include "policy/predictors.h"

static uint64_t none_bytes(const mp_predict_config *config)
{
    (void)config;
    return 0;
}

static void none_init(void *state, const mp_predict_config *config)
{
    (void)state;
    (void)config;
}

static void none_request(const void *state, void *context)
{
    (void)state;
    (void)context;
}

static void none_begin(void *state, void *context, const float *semantic)
{
    (void)state;
    (void)context;
    (void)semantic;
}

static void none_observe(void *state, void *context, const mp_seen *seen)
{
    (void)state;
    (void)context;
    (void)seen;
}

static uint32_t none_predict(void *state, void *context, uint32_t layer, mp_guess *out,
                             float *score)
{
    (void)state;
    (void)context;
    (void)layer;
    (void)out;
    if (score)
        *score = 1;
    return 0;
}

static void none_end(void *state, void *context)
{
    (void)state;
    (void)context;
}

const mp_predictor mp_predictor_none = {
    .name = "none",
    .state_bytes = none_bytes,
    .context_bytes = none_bytes,
    .init = none_init,
    .request = none_request,
    .begin = none_begin,
    .observe = none_observe,
    .predict = none_predict,
    .end = none_end,
};
