/* Opening and closing the library's objects. */
#include "common/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attention.h"
#include "common/device_room.h"
#include "common/fail.h"
#include "common/open_model.h"

int host_open_model(const options *opts, host *out)
{
    *out = (host){0};
    int code = open_model(opts->model, &out->model);
    if (code)
        return code;
    out->info.struct_size = sizeof out->info;
    out->exph.struct_size = sizeof out->exph;
    if (moepage_model_get_info(out->model, &out->info) ||
        moepage_model_get_form(out->model, MOEPAGE_FORM_EXPH, &out->exph))
        return fail_library(RUN_FAILED, "model");
    return RUN_OK;
}

static uint32_t prefetch_of(const options *opts)
{
    if (opts->predictor)
        return MOEPAGE_PREFETCH_PREDICTOR;
    return opts->prefetch ? MOEPAGE_PREFETCH_PREVIOUS : MOEPAGE_PREFETCH_OFF;
}

static moepage_session_config session_config(const options *opts, const budget *plan, const host *h)
{
    return (moepage_session_config){.struct_size = sizeof(moepage_session_config),
                                    .max_tokens = plan->step_tokens,
                                    .math = opts->math,
                                    .prefetch = prefetch_of(opts),
                                    .prefetch_depth = opts->prefetch_depth,
                                    .max_group_experts = opts->max_group_experts,
                                    .regime = opts->regime,
                                    .miss = opts->miss,
                                    .predictor = h->predictor};
}

/* Returns the pool's config. With two versions per expert the slots hold the high ones, unless
 * those are a cache. */
static moepage_expert_pool_config pool_config(const options *opts, const budget *plan,
                                              const host *h)
{
    const bool versions = opts->precision.text && h->precision.serve == MOEPAGE_SERVE_VERSIONS;
    return (moepage_expert_pool_config){.struct_size = sizeof(moepage_expert_pool_config),
                                        .scope = opts->scope,
                                        .slots = versions ? 0 : plan->slots,
                                        .policy = opts->policy,
                                        .scan_percent = opts->scan_percent,
                                        .host_tier_bytes = opts->host_tier_bytes,
                                        .bus_form = opts->bus_form,
                                        .compressed_experts = plan->compressed_experts,
                                        .precision = opts->precision.text ? &h->precision : NULL};
}

static int settle_precision(const options *opts, host *h)
{
    const moepage_precision_config given = {.struct_size = sizeof given,
                                            .serve = opts->miss == MOEPAGE_MISS_LOW
                                                         ? MOEPAGE_SERVE_CACHE
                                                         : MOEPAGE_SERVE_VERSIONS,
                                            .interval_us = opts->interval_us,
                                            .window_steps = opts->window_steps,
                                            .alpha = opts->hotness_alpha,
                                            .margin = opts->hotness_margin,
                                            .hotness = opts->hotness};
    return opts->precision.text
               ? precision_settle(&opts->precision, h->model, &given, &h->precision)
               : RUN_OK;
}

static int open_predictor(const options *opts, host *h)
{
    const moepage_predictor_config config = {.struct_size = sizeof config,
                                             .name = opts->predictor,
                                             .semantic_dim = h->info.hidden,
                                             .distance = opts->prefetch_depth};
    if (!opts->predictor)
        return RUN_OK;
    if (moepage_predictor_create(h->model, &config, &h->predictor))
        return fail_library(RUN_REFUSED, "predictor");
    if (opts->predictor_load && moepage_predictor_load(h->predictor, opts->predictor_load))
        return fail_library(RUN_REFUSED, "--predictor-load");
    return RUN_OK;
}

int host_save_predictor(const options *opts, const host *h)
{
    if (opts->predictor_save && moepage_predictor_save(h->predictor, opts->predictor_save))
        return fail_library(RUN_FAILED, "--predictor-save");
    return RUN_OK;
}

/* A GPU maps memory in granules; an arena's bytes beyond whole ones are lost. */
#define GPU_GRANULE (2u << 20)

static void round_arena(const options *opts, moepage_device_config *config)
{
    const uint64_t granule = strcmp(opts->device, "host") ? GPU_GRANULE : 1;
    const uint64_t arena = config->budget_bytes - config->workspace_bytes;
    config->budget_bytes += (granule - arena % granule) % granule;
}

/* Opens a device with the bytes that --budget and --tiers cover, plus the session's scratch and
 * room for images waiting to be decoded. */
static int open_device(const options *opts, const budget *plan, host *h)
{
    moepage_session_config session = session_config(opts, plan, h);
    moepage_expert_pool_config pool = pool_config(opts, plan, h);
    moepage_device_config config = {.struct_size = sizeof config,
                                    .threads = opts->threads,
                                    .bus_bytes_per_s = opts->bus_bytes_per_s,
                                    .log = fail_log,
                                    .io_threads = opts->io_threads};
    moepage_device_info info = {.struct_size = sizeof info};
    int code = device_room(h->model, &pool, &session, plan->kv_bytes, &config);
    if (code)
        return code;
    round_arena(opts, &config);
    if (moepage_device_open(opts->device, &config, &h->device) ||
        moepage_device_get_info(h->device, &info))
        return fail_library(RUN_REFUSED, "device");
    h->threads = info.threads;
    return RUN_OK;
}

/* Opens the pool, then checks whether it reads from the file, which only the pool can tell: a pack
 * may need that without a host tier. */
static int open_experts(const options *opts, const budget *plan, host *h)
{
    moepage_expert_pool_config config = pool_config(opts, plan, h);
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    if (moepage_expert_pool_create(&h->device, 1, h->model, &config, &h->experts) ||
        moepage_expert_pool_get_info(h->experts, &info))
        return fail_library(RUN_REFUSED, "expert pool");
    if (opts->for_reading && !info.host_tier_bytes)
        return fail(RUN_REFUSED,
                    "%s: nothing is read, experts are taken from where the file is "
                    "mapped; --host-tier BYTES has them read",
                    opts->for_reading);
    return RUN_OK;
}

static int open_kv(const model_config *model, const budget *plan, host *h)
{
    uint32_t *bytes_per_token = malloc(model->layers * sizeof *bytes_per_token);
    if (!bytes_per_token)
        return fail_memory();
    for (uint32_t l = 0; l < model->layers; l++)
        bytes_per_token[l] = attention_bytes_per_token(model->kv_heads, model->head_dim);
    /* One block per granule, so that the pool has exactly the plan's blocks. */
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .block_tokens = KV_BLOCK_TOKENS,
                                     .layers = model->layers,
                                     .blocks_per_granule = 1,
                                     .bytes_per_token = bytes_per_token,
                                     .blocks = plan->kv_blocks,
                                     .max_sequences = plan->kv_blocks};
    moepage_status status = moepage_kv_pool_create(h->device, &config, &h->kv);
    free(bytes_per_token);
    return status ? fail_library(RUN_REFUSED, "KV pool") : RUN_OK;
}

static int open_session(const options *opts, const budget *plan, host *h)
{
    moepage_session_config config = session_config(opts, plan, h);
    if (moepage_session_create(h->experts, h->kv, &config, &h->session))
        return fail_library(RUN_REFUSED, "session");
    return remap_set(&opts->remap, h->session);
}

static int start_trace(const options *opts, host *h)
{
    if (!opts->trace_out)
        return RUN_OK;
    moepage_trace_info info = {.struct_size = sizeof info,
                               .moe_layers = h->info.moe_layers,
                               .experts = h->info.experts,
                               .max_top_k = h->info.top_k,
                               .semantic_dim = h->info.hidden,
                               .has_probabilities = 1};
    snprintf(info.model, sizeof info.model, "%s", h->info.architecture);
    if (moepage_trace_create(opts->trace_out, &info, &h->trace) ||
        moepage_session_record(h->session, h->trace))
        return fail_library(RUN_REFUSED, "trace");
    return RUN_OK;
}

int host_open(const options *opts, const model_config *config, const budget *plan, host *h)
{
    int code;
    if ((code = settle_precision(opts, h)) || (code = open_predictor(opts, h)) ||
        (code = open_device(opts, plan, h)) || (code = open_experts(opts, plan, h)) ||
        (code = open_kv(config, plan, h)) || (code = open_session(opts, plan, h)))
        return code;
    return start_trace(opts, h);
}

int host_close(host *h)
{
    int code = RUN_OK;
    if (h->trace)
        moepage_session_record(h->session, NULL);
    moepage_session_destroy(h->session);
    if (h->trace && moepage_trace_close(h->trace))
        code = fail_library(RUN_FAILED, "trace");
    moepage_predictor_destroy(h->predictor);
    moepage_kv_pool_destroy(h->kv);
    moepage_expert_pool_destroy(h->experts);
    moepage_device_close(h->device);
    moepage_model_close(h->model);
    return code;
}
