/* Opening and closing the library's objects. */
#include "common/host.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/attention.h"
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

static moepage_session_config session_config(const options *opts, const budget *plan)
{
    return (moepage_session_config){.struct_size = sizeof(moepage_session_config),
                                    .max_tokens = plan->step_tokens,
                                    .math = opts->math,
                                    .prefetch = prefetch_of(opts),
                                    .prefetch_depth = opts->prefetch_depth,
                                    .max_group_experts = opts->max_group_experts,
                                    .regime = opts->regime,
                                    .miss = opts->miss};
}

static bool is_in_two_versions(const options *opts)
{
    return opts->precision.text && !precision_is_uniform(&opts->precision);
}

/* The high versions are the slots, unless those are a cache. */
static bool has_versions(const options *opts, const host *h)
{
    return is_in_two_versions(opts) && h->precision.serve == MOEPAGE_SERVE_VERSIONS;
}

static moepage_expert_pool_config pool_config(const options *opts, const budget *plan,
                                              const host *h)
{
    return (moepage_expert_pool_config){
        .struct_size = sizeof(moepage_expert_pool_config),
        .scope = opts->scope,
        .slots = has_versions(opts, h) ? 0 : plan->slots,
        .policy = opts->policy,
        .scan_percent = opts->scan_percent,
        .host_tier_bytes = opts->host_tier_bytes,
        .bus_form = opts->bus_form,
        .compressed_experts = plan->compressed_experts,
        .precision = is_in_two_versions(opts) ? &h->precision : NULL,
        .slot_form = precision_is_uniform(&opts->precision) ? opts->precision.lo_form : 0};
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
    return is_in_two_versions(opts)
               ? precision_settle(&opts->precision, h->model, &given, &h->precision)
               : RUN_OK;
}

int host_save_predictor(const options *opts, const host *h)
{
    if (opts->predictor_save && moepage_predictor_save(h->predictor, opts->predictor_save))
        return fail_library(RUN_FAILED, "--predictor-save");
    return RUN_OK;
}

/* One block per granule: the pool then takes exactly the blocks of the plan. */
static int plan_kv(const model_config *model, const budget *plan, moepage_kv_pool_config *out)
{
    uint32_t *bytes_per_token = malloc(model->layers * sizeof *bytes_per_token);
    if (!bytes_per_token)
        return fail_memory();
    for (uint32_t l = 0; l < model->layers; l++)
        bytes_per_token[l] = attention_bytes_per_token(model);
    *out = MOEPAGE_KV_POOL_CONFIG(.block_tokens = KV_BLOCK_TOKENS, .layers = model->layers,
                                  .blocks_per_granule = 1, .bytes_per_token = bytes_per_token,
                                  .blocks = plan->kv_blocks, .max_sequences = plan->kv_blocks);
    return RUN_OK;
}

/* What --budget leaves beside whole KV blocks stays arena. */
static uint64_t spare_bytes(const budget *plan, const moepage_kv_pool_config *kv)
{
    uint64_t taken = 0;
    return moepage_kv_pool_sizes(kv, &taken) || taken > plan->kv_bytes ? 0 : plan->kv_bytes - taken;
}

/* Names the flag, where it is one's fault. */
static int refuse_engine(const options *opts, moepage_status status)
{
    char tiers[64];
    snprintf(tiers, sizeof tiers, "--tiers %.40s", opts->tiers ? opts->tiers : "");
    if (status != MOEPAGE_E_BUDGET)
        return fail_library(RUN_REFUSED, "engine");
    return fail_library(RUN_REFUSED, opts->tiers ? tiers : "--budget");
}

/* Of dense products in MATH_INT8, which round their rows there. */
static uint64_t rounded_bytes(const options *opts, const model_config *model, uint32_t max_tokens)
{
    const bool rounds = opts->math == MOEPAGE_MATH_INT8;
    return rounds ? (uint64_t)max_tokens * config_widest(model) * sizeof(float) : 0;
}

static int open_engine(const options *opts, const model_config *model, const budget *plan,
                       const moepage_kv_pool_config *kv, host *h)
{
    const moepage_device_config device =
        MOEPAGE_DEVICE_CONFIG(.threads = opts->threads, .bus_bytes_per_s = opts->bus_bytes_per_s,
                              .log = fail_log, .io_threads = opts->io_threads);
    const moepage_expert_pool_config experts = pool_config(opts, plan, h);
    const moepage_session_config session = session_config(opts, plan);
    const moepage_predictor_config predictor =
        MOEPAGE_PREDICTOR_CONFIG(.name = opts->predictor, .semantic_dim = h->info.hidden,
                                 .distance = opts->prefetch_depth);
    const moepage_engine_config config =
        MOEPAGE_ENGINE_CONFIG(.budget_percent =
                                  plan->slots || has_versions(opts, h) ? 0 : opts->budget_percent,
                              .device_name = opts->device, .device = &device, .experts = &experts,
                              .kv = kv, .session = &session,
                              .predictor = opts->predictor ? &predictor : NULL, .model = h->model,
                              .extra_workspace_bytes =
                                  rounded_bytes(opts, model, session.max_tokens),
                              .extra_arena_bytes = spare_bytes(plan, kv));
    moepage_status status = moepage_engine_open(NULL, NULL, &config, &h->engine);
    return status ? refuse_engine(opts, status) : RUN_OK;
}

/* Only the pool knows whether anything is read from the file: a pack can need it without a host
 * tier. */
static int check_reading(const options *opts, const host *h)
{
    moepage_expert_pool_info info = MOEPAGE_EXPERT_POOL_INFO();
    if (moepage_expert_pool_get_info(h->experts, &info))
        return fail_library(RUN_REFUSED, "expert pool");
    if (opts->for_reading && !info.host_tier_bytes)
        return fail(RUN_REFUSED,
                    "%s: nothing is read, experts are taken from where the file is "
                    "mapped; --host-tier BYTES has them read",
                    opts->for_reading);
    return RUN_OK;
}

/* The engine's parts, and what it has no config for. */
static int use_engine(const options *opts, host *h)
{
    moepage_device_info info = MOEPAGE_DEVICE_INFO();
    h->device = moepage_engine_device(h->engine);
    h->experts = moepage_engine_expert_pool(h->engine);
    h->kv = moepage_engine_kv_pool(h->engine);
    h->session = moepage_engine_session(h->engine);
    h->predictor = moepage_engine_predictor(h->engine);
    if (moepage_device_get_info(h->device, &info))
        return fail_library(RUN_REFUSED, "device");
    h->threads = info.threads;
    if (opts->predictor_load && moepage_predictor_load(h->predictor, opts->predictor_load))
        return fail_library(RUN_REFUSED, "--predictor-load");
    int code = check_reading(opts, h);
    return code ? code : remap_set(&opts->remap, h->session);
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
    moepage_kv_pool_config kv;
    if (opts->remap.alpha > 0 && !config_weighs_by_softmax(config))
        return fail(RUN_REFUSED, "--remap needs a softmax router without groups or a scale");
    int code = settle_precision(opts, h);
    if (!code)
        code = plan_kv(config, plan, &kv);
    if (code)
        return code;
    code = open_engine(opts, config, plan, &kv, h);
    free((void *)kv.bytes_per_token);
    if (!code)
        code = use_engine(opts, h);
    return code ? code : start_trace(opts, h);
}

int host_close(host *h)
{
    int code = RUN_OK;
    if (h->trace)
        moepage_session_record(h->session, NULL);
    if (h->trace && moepage_trace_close(h->trace))
        code = fail_library(RUN_FAILED, "trace");
    moepage_engine_close(h->engine);
    moepage_model_close(h->model);
    return code;
}
