/* An engine's life: everything is opened together, stepped through one session, and
 * closed in reverse. */
#include "engine/engine.h"

#include "base/alloc.h"
#include "base/status.h"

#define FOLLOW_STEPS 64u

/* ---- Opening ------------------------------------------------------------------------------- */

static moepage_status open_model(const char *path, const mp_engine_settings *s,
                                 moepage_engine *engine)
{
    moepage_model_config config =
        MOEPAGE_MODEL_CONFIG(.log = s->device.log, .log_user = s->device.log_user);
    engine->owns_model = !s->model;
    engine->model = s->model;
    return s->model ? MOEPAGE_OK : moepage_model_open(path, &config, &engine->model);
}

/* Opens the pools: first the one whose size is given, so that the other one takes the rest. */
static moepage_status open_pools(const mp_engine_settings *s, moepage_engine *engine)
{
    const bool kv_first = s->has_kv && s->kv.blocks, kv_last = s->has_kv && !kv_first;
    moepage_status status = MOEPAGE_OK;
    if (kv_first)
        status = moepage_kv_pool_create(engine->device, &s->kv, &engine->kv);
    if (!status)
        status = moepage_expert_pool_create(&engine->device, 1, engine->model, &s->experts,
                                            &engine->experts);
    if (!status && kv_last)
        status = moepage_kv_pool_create(engine->device, &s->kv, &engine->kv);
    return status;
}

static moepage_status open_session(mp_engine_settings *s, moepage_engine *engine)
{
    if (s->has_predictor) {
        moepage_status status =
            moepage_predictor_create(engine->model, &s->predictor, &engine->predictor);
        if (status)
            return status;
        s->session.predictor = engine->predictor;
    }
    return moepage_session_create(engine->experts, engine->kv, &s->session, &engine->session);
}

static moepage_status open_parts(const char *path, mp_engine_settings *s, moepage_engine *engine)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    moepage_status status = open_model(path, s, engine);
    if (!status)
        status = moepage_model_get_info(engine->model, &info);
    if (!status)
        status = mp_engine_divide(engine->model, s);
    if (!status)
        status = moepage_device_open(s->device_name, &s->device, &engine->device);
    if (!status)
        status = open_pools(s, engine);
    if (!status)
        status = open_session(s, engine);
    engine->layers = info.moe_layers;
    engine->dtype = s->dtype;
    engine->stream = s->stream;
    engine->follows = s->budget_bytes == MOEPAGE_BUDGET_AUTO;
    return status;
}

/* Closes what is open, the session first; closed parts are NULL. Stops at the first refusal. */
static moepage_status close_parts(moepage_engine *engine)
{
    moepage_status status = moepage_session_destroy(engine->session);
    if (status)
        return status;
    engine->session = NULL;
    if ((status = moepage_expert_pool_destroy(engine->experts)))
        return status;
    engine->experts = NULL;
    if ((status = moepage_kv_pool_destroy(engine->kv)))
        return status;
    engine->kv = NULL;
    if ((status = moepage_predictor_destroy(engine->predictor)))
        return status;
    engine->predictor = NULL;
    if ((status = moepage_device_close(engine->device)))
        return status;
    engine->device = NULL;
    return engine->owns_model ? moepage_model_close(engine->model) : MOEPAGE_OK;
}

static moepage_status open_engine(const char *path, mp_engine_settings *settings,
                                  moepage_engine **out)
{
    if (!path == !settings->model)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s: give one of them",
                       path ? "path and config->model are both set"
                            : "path is NULL, and so is config->model");
    moepage_engine *engine = mp_alloc(sizeof *engine);
    if (!engine)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for an engine");
    moepage_status status = open_parts(path, settings, engine);
    if (status) {
        close_parts(engine); /* cannot be refused: nothing else uses these objects */
        mp_free(engine);
        return status;
    }
    mp_handle_open(&engine->handle, MP_KIND_ENGINE);
    *out = engine;
    return MOEPAGE_OK;
}

moepage_status moepage_engine_open(const char *path, const char *options,
                                   const moepage_engine_config *config, moepage_engine **out)
{
    mp_engine_settings settings;
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    moepage_status status = mp_engine_settings_read(config, options, &settings);
    if (!status)
        status = open_engine(path, &settings, out);
    mp_engine_settings_free(&settings);
    return status;
}

moepage_status moepage_engine_close(moepage_engine *engine)
{
    if (!engine)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(engine, MP_KIND_ENGINE);
    if (!status)
        status = close_parts(engine);
    if (status)
        return status;
    mp_handle_kill(&engine->handle);
    mp_free(engine);
    return MOEPAGE_OK;
}

/* ---- Steps --------------------------------------------------------------------------------- */

static moepage_status check_stepping(const moepage_engine *engine)
{
    moepage_status status = mp_handle_check(engine, MP_KIND_ENGINE);
    if (!status && !engine->session)
        status = mp_fail(MOEPAGE_E_STATE, "the engine is being closed: its session is gone");
    return status;
}

moepage_status moepage_engine_begin(moepage_engine *engine, uint32_t n_tokens)
{
    const moepage_step step = MOEPAGE_STEP(n_tokens);
    moepage_status status = check_stepping(engine);
    return status ? status : moepage_session_begin(engine->session, &step);
}

/* Closes a layer whose experts could not be run; keeps the failure's sentence. */
static moepage_status give_up_layer(moepage_engine *engine, uint32_t layer, moepage_status status)
{
    const mp_kept_error kept = mp_error_keep();
    moepage_session_retire(engine->session, layer);
    return mp_fail_kept(status, &kept);
}

moepage_status moepage_engine_experts(moepage_engine *engine, uint32_t layer, uint32_t top_k,
                                      const int32_t *ids, const float *weights, const void *x,
                                      void *y)
{
    moepage_status status = check_stepping(engine);
    if (status)
        return status;
    moepage_routing routing = MOEPAGE_ROUTING(top_k, ids, weights);
    moepage_ffn ffn = MOEPAGE_FFN(engine->dtype, x, y);
    routing.stream = ffn.stream = engine->stream;
    status = moepage_session_route(engine->session, layer, &routing, NULL);
    if (status)
        return status;
    status = moepage_session_ffn(engine->session, layer, &ffn);
    return status ? give_up_layer(engine, layer, status)
                  : moepage_session_retire(engine->session, layer);
}

/* Between steps. What cannot move now moves later. */
static void follow_memory(moepage_engine *engine)
{
    if (!engine->follows || (++engine->steps < FOLLOW_STEPS && !engine->follows_soon))
        return;
    engine->steps = 0;
    engine->follows_soon =
        moepage_device_follow_memory(engine->device, engine->stream) == MOEPAGE_E_BUSY;
}

moepage_status moepage_engine_end(moepage_engine *engine, moepage_session_stats *stats)
{
    moepage_status status = check_stepping(engine);
    if (!status)
        status = moepage_session_end(engine->session, stats);
    if (!status)
        follow_memory(engine);
    return status;
}

/* ---- What lies beneath --------------------------------------------------------------------- */

static bool is_engine(const moepage_engine *engine)
{
    return !mp_handle_check(engine, MP_KIND_ENGINE);
}

uint32_t moepage_engine_layers(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->layers : 0;
}

moepage_device *moepage_engine_device(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->device : NULL;
}

moepage_model *moepage_engine_model(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->model : NULL;
}

moepage_expert_pool *moepage_engine_expert_pool(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->experts : NULL;
}

moepage_kv_pool *moepage_engine_kv_pool(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->kv : NULL;
}

moepage_predictor *moepage_engine_predictor(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->predictor : NULL;
}

moepage_session *moepage_engine_session(const moepage_engine *engine)
{
    return is_engine(engine) ? engine->session : NULL;
}
