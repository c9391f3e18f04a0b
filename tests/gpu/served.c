/* Pool, session, path and graph. */
#include "served.h"

#include <stdlib.h>

#define NO_TIMEOUT_MS 20000u

static uint64_t routed_bytes(const served *s)
{
    return (uint64_t)s->m->shape.layers * s->m->shape.top_k * 4;
}

static void make_routes(served *s)
{
    const tall_shape *shape = &s->m->shape;
    const uint64_t per_step = (uint64_t)shape->layers * shape->top_k;
    s->ids = gpu_pinned_memory(s->b, s->config.n_steps * routed_bytes(s));
    s->weights = malloc(routed_bytes(s));
    if (!s->weights)
        gpu_die("out of host memory");
    for (uint64_t i = 0; i < per_step; i++)
        s->weights[i] = 1.0f / (float)shape->top_k;
    for (uint64_t step = 0; step < s->config.n_steps; step++)
        for (uint32_t l = 0; l < shape->layers; l++)
            s->config.route(s->config.route_user, step, l,
                            s->ids + step * per_step + l * shape->top_k);
}

static void path_layers(served *s)
{
    const tall_shape *shape = &s->m->shape;
    for (uint32_t l = 0; l < shape->layers; l++) {
        const moepage_cuda_layer layer = {.struct_size = sizeof layer,
                                          .layer = l,
                                          .n_tokens = 1,
                                          .top_k = shape->top_k,
                                          .dtype = MOEPAGE_DTYPE_BF16,
                                          .ids = s->device_ids + l * shape->top_k,
                                          .weights = s->device_weights + l * shape->top_k,
                                          .x = s->x,
                                          .y = s->y};
        gpu_must(moepage_cuda_path_layer(s->path, &layer, s->b->stream), "a layer of the path");
    }
}

static void open_path(served *s)
{
    gpu_bench *b = s->b;
    moepage_cuda_path_config config = {.struct_size = sizeof config, .timeout_ms = NO_TIMEOUT_MS};
    gpu_must(moepage_cuda_path_create(s->session, &config, &s->path), "the path");
    if (!s->config.graph)
        return;
    gpu_driver_must(b->more->capture_begin(b->stream, CUDA_CAPTURE_GLOBAL), "a capture");
    path_layers(s);
    gpu_driver_must(b->more->capture_end(b->stream, &s->graph), "the end of a capture");
    gpu_driver_must(b->more->graph_instantiate(&s->exec, s->graph, 0), "a graph");
}

void served_open(gpu_bench *b, const tall_model *m, const served_config *config, served *out)
{
    const moepage_expert_pool_config pool = {.struct_size = sizeof pool,
                                             .slots = config->slots,
                                             .bus_form = config->bus_form,
                                             .staging_experts = 16};
    const moepage_session_config session = {.struct_size = sizeof session,
                                            .max_tokens = 1,
                                            .math = config->math,
                                            .prefetch = config->prefetch,
                                            .regime = MOEPAGE_REGIME_CACHE};
    *out = (served){.b = b, .m = m, .config = *config};
    make_routes(out);
    gpu_must(moepage_expert_pool_create(&b->home, 1, m->model, &pool, &out->pool), "the pool");
    gpu_must(moepage_session_create(out->pool, NULL, &session, &out->session), "the session");
    uint16_t *x = gpu_weights(m->shape.hidden, 2);
    out->x = gpu_put(b, x, m->shape.hidden * 2);
    free(x);
    out->y = gpu_device_memory(b, m->shape.hidden * 2);
    out->device_ids = gpu_put(b, out->ids, routed_bytes(out));
    out->device_weights = gpu_put(b, out->weights, routed_bytes(out));
    if (config->path)
        open_path(out);
}

void served_close(served *s)
{
    gpu_bench *b = s->b;
    gpu_wait(b);
    if (s->exec) {
        gpu_driver_must(b->more->graph_exec_destroy(s->exec), "a graph");
        gpu_driver_must(b->more->graph_destroy(s->graph), "a graph");
    }
    if (s->path) {
        gpu_must(moepage_cuda_path_check(s->path, NULL), "the path");
        gpu_must(moepage_cuda_path_destroy(s->path), "the path");
    }
    gpu_must(moepage_session_destroy(s->session), "the session");
    gpu_must(moepage_expert_pool_destroy(s->pool), "the pool");
    gpu_free_device(b, s->x);
    gpu_free_device(b, s->y);
    gpu_free_device(b, s->device_ids);
    gpu_free_device(b, s->device_weights);
    gpu_free_pinned(b, s->ids);
    free(s->weights);
}

static void session_layers(served *s, const int32_t *ids)
{
    const tall_shape *shape = &s->m->shape;
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    gpu_must(moepage_session_begin(s->session, &step), "begin");
    for (uint32_t l = 0; l < shape->layers; l++) {
        const moepage_routing routing = {.struct_size = sizeof routing,
                                         .top_k = shape->top_k,
                                         .ids = ids + l * shape->top_k,
                                         .weights = s->weights + l * shape->top_k,
                                         .stream = s->b->stream};
        const moepage_ffn ffn = {.struct_size = sizeof ffn,
                                 .dtype = MOEPAGE_DTYPE_BF16,
                                 .x = s->x,
                                 .y = s->y,
                                 .stream = s->b->stream};
        gpu_must(moepage_session_route(s->session, l, &routing, NULL), "route");
        gpu_must(moepage_session_ffn(s->session, l, &ffn), "ffn");
        gpu_must(moepage_session_retire(s->session, l), "retire");
    }
    gpu_must(moepage_session_end(s->session, NULL), "end");
}

void served_step(gpu_bench *b, void *user)
{
    served *s = user;
    const int32_t *ids =
        s->ids + s->step++ % s->config.n_steps * (uint64_t)s->m->shape.layers * s->m->shape.top_k;
    if (!s->config.path) {
        session_layers(s, ids);
        return;
    }
    gpu_driver_must(b->driver->copy((mp_cu_ptr)(uintptr_t)s->device_ids, (mp_cu_ptr)(uintptr_t)ids,
                                    routed_bytes(s), b->stream),
                    "the routing");
    if (s->exec)
        gpu_driver_must(b->more->graph_launch(s->exec, b->stream), "a graph");
    else
        path_layers(s);
}

void served_counts(served *s, uint64_t *routed, uint64_t *misses)
{
    moepage_cuda_path_stats path = {.struct_size = sizeof path};
    moepage_session_stats session = {.struct_size = sizeof session};
    gpu_wait(s->b);
    if (s->path) {
        gpu_must(moepage_cuda_path_check(s->path, &path), "the path");
        *routed = path.routed;
        *misses = path.misses;
        return;
    }
    gpu_must(moepage_session_get_stats(s->session, &session), "the session");
    *routed = session.routed;
    *misses = session.misses + session.late;
}
