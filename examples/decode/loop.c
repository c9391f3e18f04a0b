/* The loop that an engine would run, reduced to its experts: each layer adds its experts' output to
 * y, all from the same x. */
#include "decode/loop.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/fail.h"

#define ROOM (64ull << 20) /* for rounding up the arena, and for the context's other users */
#define TIMEOUT_MS 30000u

struct loop {
    machine *m;
    const loop_config *config;
    moepage_model_info model;
    moepage_engine *engine;
    moepage_expert_pool *pool; /* the engine's, as the session */
    moepage_session *session;
    moepage_cuda_path *path;
    machine_graph *graph;
    void *x, *y, *ids, *weights; /* device memory; ids and weights for a path */
    void *host_y;                /* pinned */
    uint64_t io_bytes;           /* of x, and of y */
};

static uint64_t routing_bytes(const loop_routes *r)
{
    return (uint64_t)r->layers * r->batch * r->top_k * 4;
}

/* ---- Opening ----------------------------------------------------------------------------- */

static int open_engine(loop *l, const moepage_session_config *session, uint64_t path_bytes)
{
    const loop_config *c = l->config;
    const uint64_t slots = (uint64_t)l->model.moe_layers * l->model.experts * c->percent / 100;
    const moepage_expert_pool_config pool = MOEPAGE_EXPERT_POOL_CONFIG(.slots = slots ? slots : 1);
    const moepage_device_config device = MOEPAGE_DEVICE_CONFIG(.log = fail_log);
    const moepage_engine_config config =
        MOEPAGE_ENGINE_CONFIG(.device_name = c->device, .device = &device, .experts = &pool,
                              .session = session, .model = c->model,
                              .extra_workspace_bytes = path_bytes + ROOM,
                              .extra_arena_bytes = ROOM);
    if (moepage_engine_open(NULL, NULL, &config, &l->engine))
        return fail_library(RUN_REFUSED, "engine");
    l->pool = moepage_engine_expert_pool(l->engine);
    l->session = moepage_engine_session(l->engine);
    return RUN_OK;
}

static int open_library(loop *l)
{
    const loop_config *c = l->config;
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = c->routes->batch, .math = c->math,
                               .prefetch =
                                   c->prefetch ? MOEPAGE_PREFETCH_PREVIOUS : MOEPAGE_PREFETCH_OFF);
    const moepage_cuda_path_config path = MOEPAGE_CUDA_PATH_CONFIG(.timeout_ms = TIMEOUT_MS);
    const bool by_path = c->mode != DECODE_SESSION;
    uint64_t path_bytes = 0;
    if (by_path && moepage_cuda_path_workspace(c->model, &session, NULL, &path_bytes))
        return fail_library(RUN_REFUSED, "path");
    int code = open_engine(l, &session, path_bytes);
    if (!code && by_path && moepage_cuda_path_create(l->session, &path, &l->path))
        code = fail_library(RUN_REFUSED, "path");
    return code;
}

/* Fills x with numbers around 1, identical in every run. */
static void fill_x(float *x, uint64_t n)
{
    uint32_t state = 12345;
    for (uint64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-23f - 1;
    }
}

static int open_memory(loop *l)
{
    const loop_routes *r = l->config->routes;
    const uint64_t bytes = routing_bytes(r);
    l->io_bytes = (uint64_t)r->batch * l->model.hidden * sizeof(float);
    int code = machine_alloc(l->m, l->io_bytes, &l->x);
    if (!code)
        code = machine_alloc(l->m, l->io_bytes, &l->y);
    if (!code)
        code = machine_alloc(l->m, bytes, &l->ids);
    if (!code)
        code = machine_alloc(l->m, bytes, &l->weights);
    if (!code)
        code = machine_alloc_pinned(l->m, l->io_bytes, &l->host_y);
    if (code)
        return code;
    fill_x(l->host_y, l->io_bytes / sizeof(float));
    code = machine_copy(l->m, l->x, l->host_y, l->io_bytes);
    if (!code)
        code = machine_copy(l->m, l->weights, r->weights, bytes);
    return code ? code : machine_wait(l->m);
}

static void close_all(loop *l)
{
    machine_wait(l->m);
    machine_graph_free(l->m, l->graph);
    moepage_cuda_path_destroy(l->path);
    moepage_engine_close(l->engine);
    machine_free(l->m, l->x);
    machine_free(l->m, l->y);
    machine_free(l->m, l->ids);
    machine_free(l->m, l->weights);
    machine_free_pinned(l->m, l->host_y);
}

/* ---- A step ------------------------------------------------------------------------------ */

static int step_by_session(loop *l, const int32_t *ids)
{
    const loop_routes *r = l->config->routes;
    const uint64_t per_layer = (uint64_t)r->batch * r->top_k;
    if (moepage_engine_begin(l->engine, r->batch))
        return fail_library(RUN_FAILED, "step");
    for (uint32_t i = 0; i < r->layers; i++) {
        const moepage_routing routing = {.struct_size = sizeof routing,
                                         .top_k = r->top_k,
                                         .ids = ids + i * per_layer,
                                         .weights = r->weights + i * per_layer,
                                         .stream = machine_stream(l->m)};
        const moepage_ffn ffn = {.struct_size = sizeof ffn,
                                 .dtype = MOEPAGE_DTYPE_F32,
                                 .x = l->x,
                                 .y = l->y,
                                 .accumulate = i > 0,
                                 .stream = machine_stream(l->m)};
        if (moepage_session_route(l->session, i, &routing, NULL) ||
            moepage_session_ffn(l->session, i, &ffn) || moepage_session_retire(l->session, i))
            return fail_library(RUN_FAILED, "layer");
    }
    return moepage_engine_end(l->engine, NULL) ? fail_library(RUN_FAILED, "step") : RUN_OK;
}

static int path_layers(loop *l)
{
    const loop_routes *r = l->config->routes;
    const uint64_t per_layer = (uint64_t)r->batch * r->top_k;
    for (uint32_t i = 0; i < r->layers; i++) {
        const moepage_cuda_layer layer = {.struct_size = sizeof layer,
                                          .layer = i,
                                          .n_tokens = r->batch,
                                          .top_k = r->top_k,
                                          .dtype = MOEPAGE_DTYPE_F32,
                                          .accumulate = i > 0,
                                          .ids = (const int32_t *)l->ids + i * per_layer,
                                          .weights = (const float *)l->weights + i * per_layer,
                                          .x = l->x,
                                          .y = l->y};
        if (moepage_cuda_path_layer(l->path, &layer, machine_stream(l->m)))
            return fail_library(RUN_FAILED, "layer");
    }
    return RUN_OK;
}

/* Runs a step by a graph; the first step's layers are captured instead of run. */
static int step_by_graph(loop *l)
{
    if (!l->graph) {
        int code = machine_capture_begin(l->m);
        if (!code)
            code = path_layers(l);
        if (!code)
            code = machine_capture_end(l->m, &l->graph);
        if (code)
            return code;
    }
    return machine_replay(l->m, l->graph);
}

static int run_step(loop *l, uint32_t step)
{
    const loop_routes *r = l->config->routes;
    const uint64_t bytes = routing_bytes(r);
    const int32_t *ids = r->ids + step % r->steps * (bytes / 4);
    if (l->config->mode == DECODE_SESSION)
        return step_by_session(l, ids);
    int code = machine_copy(l->m, l->ids, ids, bytes);
    if (code)
        return code;
    return l->config->mode == DECODE_GRAPH ? step_by_graph(l) : path_layers(l);
}

/* Adds the step's results to an FNV-1a digest. */
static int digest_step(loop *l, uint64_t *digest)
{
    int code = machine_copy(l->m, l->host_y, l->y, l->io_bytes);
    if (!code)
        code = machine_wait(l->m);
    const unsigned char *bytes = l->host_y;
    for (uint64_t i = 0; i < l->io_bytes && !code; i++)
        *digest = (*digest ^ bytes[i]) * 0x100000001b3u;
    return code;
}

/* ---- A whole run ------------------------------------------------------------------------ */

static int count(loop *l, loop_result *out)
{
    moepage_session_stats session = {.struct_size = sizeof session};
    moepage_cuda_path_stats path = {.struct_size = sizeof path};
    if (l->path) {
        if (moepage_cuda_path_check(l->path, &path))
            return fail_library(RUN_FAILED, "path");
        out->routed = path.routed - out->routed;
        out->misses = path.misses - out->misses;
        return RUN_OK;
    }
    if (moepage_session_get_stats(l->session, &session))
        return fail_library(RUN_FAILED, "session");
    out->routed = session.routed - out->routed;
    out->misses = session.misses + session.late - out->misses;
    return RUN_OK;
}

static int run_steps(loop *l, uint32_t first, uint32_t n, bool keep, loop_result *out)
{
    int code = RUN_OK;
    for (uint32_t i = 0; i < n && !code; i++) {
        code = run_step(l, first + i);
        if (!code && keep)
            code = digest_step(l, &out->digest);
    }
    return code ? code : machine_wait(l->m);
}

static int measure(loop *l, uint32_t warm_up, bool keep, loop_result *out)
{
    const uint32_t n = l->config->routes->steps;
    moepage_expert_pool_info pool = {.struct_size = sizeof pool};
    int code = run_steps(l, 0, warm_up, false, out);
    if (!code)
        code = count(l, out);
    uint64_t began = clock_now_ns();
    if (!code)
        code = run_steps(l, warm_up, n, keep, out);
    out->seconds = (double)(clock_now_ns() - began) * 1e-9;
    if (!code)
        code = count(l, out);
    if (!code && moepage_expert_pool_get_info(l->pool, &pool))
        code = fail_library(RUN_FAILED, "expert pool");
    out->slots = pool.slots;
    return code;
}

int loop_run(machine *m, const loop_config *config, uint32_t warm_up, bool keep, loop_result *out)
{
    loop l = {.m = m, .config = config, .model = {.struct_size = sizeof l.model}};
    *out = (loop_result){.digest = 0xcbf29ce484222325u};
    if (moepage_model_get_info(config->model, &l.model))
        return fail_library(RUN_FAILED, "model");
    int code = open_library(&l);
    if (!code)
        code = open_memory(&l);
    if (!code)
        code = measure(&l, warm_up, keep, out);
    close_all(&l);
    return code;
}
