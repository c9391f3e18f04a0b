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
    moepage_device *device;
    moepage_expert_pool *pool;
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

static int open_device(loop *l, const moepage_expert_pool_config *pool,
                       const moepage_session_config *session)
{
    moepage_device_config device = {.struct_size = sizeof device, .log = fail_log};
    uint64_t staging = 0, arena = 0, scratch = 0, path = 0;
    if (moepage_expert_pool_sizes(l->config->model, pool, 1, &staging, &arena))
        return fail_library(RUN_REFUSED, "expert pool");
    if (moepage_session_workspace(l->config->model, session, &scratch))
        return fail_library(RUN_REFUSED, "session");
    if (l->config->mode != DECODE_SESSION &&
        moepage_cuda_path_workspace(l->config->model, session, NULL, &path))
        return fail_library(RUN_REFUSED, "path");
    device.workspace_bytes = staging + scratch + path + ROOM;
    device.budget_bytes = arena + device.workspace_bytes + ROOM;
    if (moepage_device_open(l->config->device, &device, &l->device))
        return fail_library(RUN_REFUSED, "device");
    return RUN_OK;
}

static int open_library(loop *l)
{
    const loop_config *c = l->config;
    const uint64_t all = (uint64_t)l->model.moe_layers * l->model.experts;
    moepage_expert_pool_config pool = {.struct_size = sizeof pool, .slots = all * c->percent / 100};
    const moepage_session_config session = {
        .struct_size = sizeof session,
        .max_tokens = c->routes->batch,
        .math = c->math,
        .prefetch = c->prefetch ? MOEPAGE_PREFETCH_PREVIOUS : MOEPAGE_PREFETCH_OFF,
    };
    if (!pool.slots)
        pool.slots = 1;
    int code = open_device(l, &pool, &session);
    if (code)
        return code;
    if (moepage_expert_pool_create(&l->device, 1, c->model, &pool, &l->pool))
        return fail_library(RUN_REFUSED, "expert pool");
    if (moepage_session_create(l->pool, NULL, &session, &l->session))
        return fail_library(RUN_REFUSED, "session");
    const moepage_cuda_path_config path = {.struct_size = sizeof path, .timeout_ms = TIMEOUT_MS};
    if (c->mode != DECODE_SESSION && moepage_cuda_path_create(l->session, &path, &l->path))
        return fail_library(RUN_REFUSED, "path");
    return RUN_OK;
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
    moepage_session_destroy(l->session);
    moepage_expert_pool_destroy(l->pool);
    moepage_device_close(l->device);
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
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = r->batch};
    if (moepage_session_begin(l->session, &step))
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
    return moepage_session_end(l->session, NULL) ? fail_library(RUN_FAILED, "step") : RUN_OK;
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
