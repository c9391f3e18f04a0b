/* Reads an engine's config struct: the configs it points to, their defaults and contradictions. */
#include <stddef.h>

#include "base/alloc.h"
#include "base/config.h"
#include "base/first_forms.h"
#include "base/status.h"
#include "engine/engine.h"

static moepage_status read_parts(const moepage_engine_config *c, mp_engine_settings *out)
{
    moepage_status status = mp_config_read(&out->device, sizeof out->device,
                                           MP_DEVICE_CONFIG_MIN_BYTES, c->device, "config->device");
    if (!status)
        status = mp_config_read(&out->experts, sizeof out->experts, MP_EXPERT_POOL_CONFIG_MIN_BYTES,
                                c->experts, "config->experts");
    if (!status)
        status = mp_config_read(&out->kv, sizeof out->kv, sizeof out->kv, c->kv, "config->kv");
    if (!status)
        status = mp_config_read(&out->session, sizeof out->session, MP_SESSION_CONFIG_MIN_BYTES,
                                c->session, "config->session");
    if (!status)
        status = mp_config_read(&out->predictor, sizeof out->predictor, sizeof out->predictor,
                                c->predictor, "config->predictor");
    return status;
}

static moepage_status read_config(const moepage_engine_config *config, mp_engine_settings *out)
{
    moepage_engine_config own;
    moepage_status status = MP_CONFIG_READ(own, config);
    if (!status)
        status = read_parts(&own, out);
    if (status)
        return status;
    out->budget_bytes = own.budget_bytes;
    out->budget_percent = own.budget_percent;
    out->device_name = own.device_name ? own.device_name : "host";
    out->extra_workspace_bytes = own.extra_workspace_bytes;
    out->extra_arena_bytes = own.extra_arena_bytes;
    out->sessions = own.sessions ? own.sessions : 1;
    out->dtype = own.dtype ? own.dtype : MOEPAGE_DTYPE_F32;
    out->stream = own.stream;
    out->model = own.model;
    out->has_kv = own.kv != NULL;
    out->has_predictor = own.predictor != NULL;
    if (own.reserved)
        return mp_fail(MOEPAGE_E_ARGUMENT, "config: reserved is %u, it must be 0", own.reserved);
    return own.model ? mp_handle_check(own.model, MP_KIND_MODEL) : MOEPAGE_OK;
}

static moepage_status check_budget(const mp_engine_settings *s)
{
    if (s->device.budget_bytes || s->device.workspace_bytes)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "config->device: the engine divides the budget, so budget_bytes and "
                       "workspace_bytes must be 0: set budget_bytes of the engine's config");
    if (s->budget_bytes && s->budget_percent != 0)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "config: budget_bytes is %llu and budget_percent %g: give one of them",
                       (unsigned long long)s->budget_bytes, s->budget_percent);
    if (!(s->budget_percent >= 0 && s->budget_percent <= 100))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "budget: %g %% of the experts, it must be above 0 and at most 100",
                       s->budget_percent);
    if (s->budget_percent > 0 && s->experts.slots)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "the budget is %g %% of the experts, and slots is %llu: give one of them",
                       s->budget_percent, (unsigned long long)s->experts.slots);
    if (s->extra_arena_bytes && s->budget_bytes && !s->experts.slots)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "extra_arena_bytes is %llu, but the expert slots take what budget_bytes "
                       "leaves: give their number",
                       (unsigned long long)s->extra_arena_bytes);
    return MOEPAGE_OK;
}

static moepage_status check_kv(const mp_engine_settings *s)
{
    if (!s->has_kv && s->kv.blocks)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "kv_blocks is %llu, but config->kv is NULL: only the host knows how many bytes "
            "a token's keys and values take in each layer",
            (unsigned long long)s->kv.blocks);
    if (s->has_kv && !s->kv.blocks && !(s->budget_bytes && s->experts.slots))
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "config->kv: blocks is 0: give the number of KV blocks, or give the slots and "
            "budget_bytes, so that KV gets what they leave");
    return MOEPAGE_OK;
}

static moepage_status check_predictor(mp_engine_settings *s)
{
    if (!s->has_predictor)
        return MOEPAGE_OK;
    if (s->session.predictor)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "config: session->predictor and predictor are both set: give one of them");
    if (!s->session.prefetch)
        s->session.prefetch = MOEPAGE_PREFETCH_PREDICTOR;
    return MOEPAGE_OK;
}

static moepage_status check_rest(const mp_engine_settings *s)
{
    if (s->dtype != MOEPAGE_DTYPE_F32 && s->dtype != MOEPAGE_DTYPE_F16 &&
        s->dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "config: dtype of x and y is %u, it must be F32 (1), F16 (2) or BF16 (3)",
                       s->dtype);
    if (s->sessions > MP_ENGINE_MAX_SESSIONS)
        return mp_fail(MOEPAGE_E_ARGUMENT, "sessions is %u, a pool has at most %u", s->sessions,
                       MP_ENGINE_MAX_SESSIONS);
    return MOEPAGE_OK;
}

moepage_status mp_engine_settings_read(const moepage_engine_config *config, const char *options,
                                       mp_engine_settings *out)
{
    *out = (mp_engine_settings){0};
    moepage_status status = read_config(config, out);
    if (!status && options)
        status = mp_engine_options_read(options, out);
    if (!status)
        status = check_budget(out);
    if (!status)
        status = check_kv(out);
    if (!status)
        status = check_predictor(out);
    return status ? status : check_rest(out);
}

void mp_engine_settings_free(mp_engine_settings *settings)
{
    mp_free(settings->text);
    settings->text = NULL;
}
