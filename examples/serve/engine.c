/* Opens and closes everything that computes. */
#include "serve/engine.h"

#include "common/attention.h"
#include "common/fail.h"

uint64_t engine_block_bytes(const model_config *model)
{
    return (uint64_t)KV_BLOCK_TOKENS * model->layers * attention_bytes_per_token(model);
}

static int open_decoder(const engine_config *config, engine *e)
{
    decoder_config how = {.device = e->host.device,
                          .model = config->model,
                          .weights = &e->weights,
                          .session = e->host.session,
                          .kv = e->host.kv,
                          .math = config->options->math,
                          .hints = config->options->prefetch && !config->offload,
                          .tell_logits = config->options->remap.alpha > 0,
                          .tell_hidden = e->host.predictor != NULL,
                          .tell_semantic = e->host.predictor != NULL,
                          .threads = e->host.threads,
                          .max_tokens = config->plan.step_tokens,
                          .max_positions = config->plan.max_positions,
                          .max_blocks = config->arena_bytes / engine_block_bytes(config->model),
                          .reserved = config->reserved,
                          .before_layer = config->offload ? offload_before_layer : NULL,
                          .before_user = &e->offload,
                          .cublas = true};
    int code = RUN_OK;
    if (dense_is_cuda(config->options->device, &how.ordinal))
        code = dense_cuda_find(config->options->device, &how.cuda);
    return code ? code : decoder_open(&how, &e->decoder);
}

static int open_controller(const engine_config *config, engine *e)
{
    if (!config->control)
        return RUN_OK;
    return moepage_controller_create(e->host.experts, e->host.kv, config->control, &e->controller)
               ? fail_library(RUN_REFUSED, "controller")
               : RUN_OK;
}

int engine_open(const engine_config *config, engine *out)
{
    const options *o = config->options;
    uint32_t ordinal;
    const bool on_gpu = dense_is_cuda(o->device, &ordinal);
    int code;
    *out = (engine){0};
    if ((code = host_open_model(o, &out->host)) ||
        (code = weights_open(out->host.model, config->model, on_gpu, &out->weights)) ||
        (code = host_open(o, config->model, &config->plan, &out->host)) ||
        (code = sampler_open(o->temperature, o->top_p, config->model->vocabulary, &out->sampler)) ||
        (code = open_decoder(config, out)))
        return code;
    if (config->offload)
        code = offload_open(config->model, &out->host, &out->offload);
    return code ? code : open_controller(config, out);
}

int engine_close(engine *e)
{
    moepage_controller_destroy(e->controller);
    offload_close(&e->offload);
    decoder_close(&e->decoder);
    sampler_close(&e->sampler);
    weights_close(&e->weights);
    return host_close(&e->host);
}
