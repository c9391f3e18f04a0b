/* Generates answers one by one, and compares. */
#include "serve/alone.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/generate.h"
#include "serve/interrupt.h"

/* Opens an engine like that of any run of moepage-generate: all experts resident, no throttle, no
 * controller, exact misses. */
static int open_engine(const arm_setting *setting, options *base, engine *out)
{
    const estate *e = &setting->estate;
    *base = setting->options->base;
    base->bus_bytes_per_s = 0;
    base->host_tier_bytes = 0;
    base->for_reading = NULL;
    base->prefetch = false;
    base->predictor = base->predictor_load = base->predictor_save = NULL;
    base->miss = MOEPAGE_MISS_WAIT;
    base->regime = MOEPAGE_REGIME_AUTO;
    const engine_config config = {.options = base,
                                  .model = setting->model,
                                  .plan = {.slots = e->experts,
                                           .kv_blocks = e->floor_blocks,
                                           .kv_bytes = e->floor_blocks * e->block_bytes,
                                           .step_tokens = setting->options->step_tokens,
                                           .max_positions = setting->arrivals->longest}};
    return engine_open(&config, out);
}

static int generate_one(const arm_setting *setting, engine *e, uint32_t request, uint32_t **output)
{
    const schedule_request *q = &setting->arrivals->requests[request];
    sequence s = {.n_prompt = q->prompt_tokens,
                  .n_tokens = q->prompt_tokens,
                  .random = sampler_seed(setting->options->base.seed, request)};
    s.tokens = calloc((size_t)q->prompt_tokens + q->output_tokens, sizeof *s.tokens);
    if (!s.tokens)
        return fail_memory();
    memcpy(s.tokens, setting->arrivals->tokens[request], q->prompt_tokens * sizeof *s.tokens);
    generation g = {.decoder = &e->decoder,
                    .sampler = &e->sampler,
                    .sequences = &s,
                    .n_sequences = 1,
                    .max_tokens = q->output_tokens,
                    .step_tokens = setting->options->step_tokens};
    int code = generate_run(&g);
    if (s.seq && moepage_kv_free(e->host.kv, s.seq) && !code)
        code = fail_library(RUN_FAILED, "KV cache");
    memmove(s.tokens, s.tokens + q->prompt_tokens, q->output_tokens * sizeof *s.tokens);
    *output = s.tokens;
    return code;
}

static bool is_served(const server_result *results, uint32_t n_results, uint32_t request)
{
    for (uint32_t i = 0; i < n_results; i++)
        if (results[i].ran && results[i].answers[request].state == SCHEDULE_DONE)
            return true;
    return false;
}

int alone_run(const arm_setting *setting, const server_result *results, uint32_t n_results,
              alone *out)
{
    options base;
    engine e;
    /* Without end-of-sequence tokens, so that answers have the requested lengths, as in serving. */
    model_config endless = *setting->model;
    arm_setting own = *setting;
    endless.n_eos = 0;
    own.model = &endless;
    *out = (alone){.n = setting->arrivals->n};
    out->outputs = calloc(out->n, sizeof *out->outputs);
    if (!out->outputs)
        return fail_memory();
    int code = open_engine(&own, &base, &e);
    for (uint32_t i = 0; i < out->n && !code && !interrupt_seen(); i++)
        if (is_served(results, n_results, i))
            code = generate_one(&own, &e, i, &out->outputs[i]);
    int closed = engine_close(&e);
    return code ? code : closed;
}

void alone_close(alone *a)
{
    for (uint32_t i = 0; a->outputs && i < a->n; i++)
        free(a->outputs[i]);
    free(a->outputs);
    *a = (alone){0};
}

int alone_check(const alone *a, const arrivals *requests, const char *arm,
                const server_result *result, uint32_t *compared)
{
    *compared = 0;
    for (uint32_t i = 0; i < result->requests; i++) {
        if (result->answers[i].state != SCHEDULE_DONE || !a->outputs[i])
            continue;
        for (uint32_t t = 0; t < requests->requests[i].output_tokens; t++)
            if (a->outputs[i][t] != result->answers[i].tokens[t])
                return fail(RUN_FAILED,
                            "%s: request %" PRIu32 ": token %" PRIu32 " of the answer is %" PRIu32
                            ", alone it is %" PRIu32,
                            arm, i, t, result->answers[i].tokens[t], a->outputs[i][t]);
        (*compared)++;
    }
    return RUN_OK;
}
