/* What paging costs when nothing is paged: sessions and paths with every expert resident, beside
 * the bare kernels on the same work. */
#include <stdlib.h>

#include "bare_layer.h"
#include "served.h"

#define MB (1ull << 20)

typedef struct work {
    bare_layer *layers;
    uint32_t n;
    cuda_graph_exec exec;
} work;

static void run_bare(gpu_bench *b, void *user)
{
    work *w = user;
    for (uint32_t l = 0; l < w->n; l++)
        bare_run(b, &w->layers[l]);
}

static void run_graph(gpu_bench *b, void *user)
{
    gpu_driver_must(b->more->graph_launch(((work *)user)->exec, b->stream), "a graph");
}

/* The same experts every step, so that one warm-up makes all of them resident. */
static void route(void *user, uint64_t step, uint32_t layer, int32_t *ids)
{
    const tall_shape *shape = user;
    (void)step;
    const bare_shape one = {.experts = shape->experts, .top_k = shape->top_k, .n_tokens = 1};
    int32_t *own = bare_random_ids(&one, 60 + layer);
    for (uint32_t k = 0; k < shape->top_k; k++)
        ids[k] = own[k];
    free(own);
}

static void open_bare(gpu_bench *b, const tall_model *m, uint32_t math, const char *weights,
                      work *w)
{
    const tall_shape *s = &m->shape;
    const bare_shape shape = {s->experts, s->top_k, s->hidden, s->intermediate, 1, math};
    w->n = s->layers;
    w->layers = calloc(w->n, sizeof *w->layers);
    for (uint32_t l = 0; l < w->n; l++) {
        int32_t *ids = bare_random_ids(&shape, 60 + l);
        bare_open(b, &shape, ids, weights + (uint64_t)l * s->experts * m->expert_bytes,
                  m->expert_bytes, &w->layers[l]);
        free(ids);
    }
}

static gpu_spread bare_times(gpu_bench *b, work *w, gpu_spread *graphed)
{
    cuda_graph graph;
    gpu_spread time = gpu_wall(b, run_bare, w, 30);
    gpu_driver_must(b->more->capture_begin(b->stream, CUDA_CAPTURE_GLOBAL), "a capture");
    run_bare(b, w);
    gpu_driver_must(b->more->capture_end(b->stream, &graph), "the end of a capture");
    gpu_driver_must(b->more->graph_instantiate(&w->exec, graph, 0), "a graph");
    *graphed = gpu_wall(b, run_graph, w, 30);
    gpu_wait(b);
    gpu_driver_must(b->more->graph_exec_destroy(w->exec), "a graph");
    gpu_driver_must(b->more->graph_destroy(graph), "a graph");
    return time;
}

static void row(gpu_bench *b, const char *what, const char *math, gpu_spread time, gpu_spread bare,
                uint32_t layers)
{
    char label[96];
    const double to_us = 1e6 / layers;
    snprintf(label, sizeof label, "%s, %s", what, math);
    gpu_row(b, label,
            (gpu_spread){time.low * to_us, time.median * to_us, time.high * to_us, time.n},
            "us/layer", "\"overhead\": %.5f, \"added_us_per_layer\": %.4f",
            time.median / bare.median - 1, (time.median - bare.median) * to_us);
}

static gpu_spread serve(gpu_bench *b, const tall_model *m, served_config config)
{
    served s;
    uint64_t routed, before, after;
    config.slots = (uint64_t)m->shape.layers * m->shape.experts;
    config.route = route;
    config.route_user = (void *)(uintptr_t)&m->shape;
    config.n_steps = 1;
    served_open(b, m, &config, &s);
    served_step(b, &s);
    served_counts(&s, &routed, &before);
    gpu_spread time = gpu_wall(b, served_step, &s, 30);
    served_counts(&s, &routed, &after);
    if (after != before)
        gpu_die("experts were missed at full residency");
    served_close(&s);
    return time;
}

static void run_math(gpu_bench *b, const tall_model *m, uint32_t math, const char *name,
                     const char *weights)
{
    work w = {0};
    gpu_spread graphed;
    const uint32_t n = m->shape.layers;
    open_bare(b, m, math, weights, &w);
    gpu_spread bare = bare_times(b, &w, &graphed);
    row(b, "bare kernels", name, bare, bare, n);
    row(b, "bare kernels in a graph", name, graphed, graphed, n);
    served_config config = {.math = math};
    row(b, "session: route, ffn, retire", name, serve(b, m, config), bare, n);
    config.path = true;
    row(b, "path", name, serve(b, m, config), bare, n);
    config.graph = true;
    row(b, "path in a graph", name, serve(b, m, config), graphed, n);
    for (uint32_t l = 0; l < w.n; l++)
        bare_close(b, &w.layers[l]);
    free(w.layers);
}

int main(int argc, char **argv)
{
    static const tall_shape qwen = {"qwen3-30b-a3b", 12, 128, 8, 2048, 768};
    static const tall_shape small = {"tiny", 3, 8, 2, 64, 48};
    gpu_bench b;
    tall_model m;
    const uint64_t all = 12ull * 128 * 3 * 2048 * 768 * 2;
    gpu_bench_open(&b, "residency", argc, argv, all + 64 * MB, 256 * MB);
    tall_open(&b, b.tiny ? &small : &qwen, (uint32_t)gpu_size(&b, 32, 4), &m);
    const uint64_t n = (uint64_t)m.shape.layers * m.shape.experts;
    char *weights = gpu_device_memory(&b, n * m.expert_bytes);
    for (uint64_t e = 0; e < n; e++)
        gpu_copy(&b, weights + e * m.expert_bytes, m.dense + e % m.distinct * m.dense_stride,
                 m.expert_bytes);
    run_math(&b, &m, MOEPAGE_MATH_BF16, "bf16", weights);
    gpu_free_device(&b, weights);
    tall_close(&b, &m);
    return gpu_bench_close(&b);
}
