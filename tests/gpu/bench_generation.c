/* The experts' part of decoding a model of Qwen3-30B-A3B's shape, one token a step, with a part
 * of the experts on the device: tokens in a second of sessions and paths, dense and exph over the
 * bus, beside static offloading of whole layers in the same number of bytes, and beside what the
 * bus alone would allow.
 *
 * Routing is that of a real model (tests/data), widened: two places of the trace side by side
 * make a token's eight choices, one out of experts 0..63, the other out of 64..127. A trace's
 * expert stands for two, of which a stretch of 150 tokens uses one. */
#include <stdlib.h>

#include "bare_layer.h"
#include "model/model.h"
#include "served.h"

#define MB (1ull << 20)
#define TRACE_LAYERS 24u
#define TRACE_TOP_K 4u
#define TRACE_EXPERTS 32u
#define STRETCH 150u

/* ---- Routing ---- */

typedef struct trace {
    const tall_shape *shape;
    unsigned char *rows; /* [n][24][4] */
    uint64_t n;
} trace;

static void trace_open(gpu_bench *b, const tall_shape *shape, trace *t)
{
    FILE *file = fopen(b->traces, "rbe");
    long bytes = -1;
    *t = (trace){.shape = shape};
    if (!file || fseek(file, 0, SEEK_END) || (bytes = ftell(file)) <= 0 || fseek(file, 0, SEEK_SET))
        gpu_die("%s cannot be read: --traces names the file of routes", b->traces);
    t->n = (uint64_t)bytes / (TRACE_LAYERS * TRACE_TOP_K);
    t->rows = malloc((size_t)bytes);
    if (!t->rows || fread(t->rows, 1, (size_t)bytes, file) != (size_t)bytes)
        gpu_die("%s cannot be read", b->traces);
    fclose(file);
}

static void route_by_trace(void *user, uint64_t step, uint32_t layer, int32_t *ids)
{
    const trace *t = user;
    const uint32_t sides = t->shape->top_k / TRACE_TOP_K, side_experts = t->shape->experts / sides;
    const uint32_t stand_for = side_experts / TRACE_EXPERTS;
    for (uint32_t side = 0; side < sides; side++) {
        uint64_t place = (step + side * (t->n / 2) + layer / TRACE_LAYERS * (t->n / 4)) % t->n;
        const unsigned char *row =
            t->rows + (place * TRACE_LAYERS + layer % TRACE_LAYERS) * TRACE_TOP_K;
        for (uint32_t k = 0; k < TRACE_TOP_K; k++) {
            uint32_t stretch = (uint32_t)(place / STRETCH);
            uint32_t which = (stretch * 2654435761u + row[k] * 40503u + layer) >> 7;
            ids[side * TRACE_TOP_K + k] =
                (int32_t)(side * side_experts + row[k] * stand_for + which % stand_for);
        }
    }
}

/* A tiny model has too few experts for that. */
static void route_by_turns(void *user, uint64_t step, uint32_t layer, int32_t *ids)
{
    const tall_shape *shape = ((const trace *)user)->shape;
    for (uint32_t k = 0; k < shape->top_k; k++)
        ids[k] = (int32_t)((step + layer + k * 2) % shape->experts);
}

/* ---- The bus ---- */

typedef struct raw_copy {
    void *device;
    const void *host;
    uint64_t bytes;
} raw_copy;

static void copy_raw(gpu_bench *b, void *user)
{
    const raw_copy *c = user;
    gpu_driver_must(b->driver->copy((mp_cu_ptr)(uintptr_t)c->device, (mp_cu_ptr)(uintptr_t)c->host,
                                    c->bytes, b->stream),
                    "a copy");
}

static double bus_rate(gpu_bench *b, const tall_model *m)
{
    raw_copy c = {.host = m->dense, .bytes = m->dense_stride * (m->distinct < 8 ? 1 : 8)};
    c.device = gpu_device_memory(b, c.bytes);
    gpu_spread rate = gpu_rate(gpu_time(b, copy_raw, &c, 4), (double)c.bytes);
    gpu_free_device(b, c.device);
    return rate.median;
}

/* ---- Ours ---- */

typedef struct study {
    const tall_model *m;
    trace routes;
    double bus;
    uint32_t warm, measured; /* steps */
} study;

static void run_ours(gpu_bench *b, study *s, uint32_t percent, served_config config,
                     const char *what)
{
    served v;
    char label[96];
    uint64_t routed[2], misses[2];
    const tall_shape *shape = &s->m->shape;
    config.slots = (uint64_t)shape->layers * shape->experts * percent / 100;
    config.math = MOEPAGE_MATH_BF16;
    config.route = b->tiny ? route_by_turns : route_by_trace;
    config.route_user = &s->routes;
    config.n_steps = b->tiny ? 8 : 3000;
    served_open(b, s->m, &config, &v);
    for (uint32_t i = 0; i < s->warm; i++)
        served_step(b, &v);
    served_counts(&v, &routed[0], &misses[0]);
    gpu_spread time = gpu_wall(b, served_step, &v, s->measured);
    served_counts(&v, &routed[1], &misses[1]);
    const double tokens = (double)(v.step - s->warm);
    const double missed = (double)(misses[1] - misses[0]) / tokens;
    const double image = config.bus_form == MOEPAGE_FORM_EXPH ? (double)s->m->exph_bytes
                                                              : (double)s->m->expert_bytes;
    const double bound = missed > 0 ? s->bus / (missed * image) : 0;
    snprintf(label, sizeof label, "%u %%: %s", percent, what);
    gpu_row(b, label, gpu_rate(time, 1), "tokens/s",
            "\"budget_percent\": %u, \"mode\": \"%s\", \"hit_rate\": %.4f, "
            "\"missed_experts_per_token\": %.3f, \"bus_bytes_per_token\": %.6g, "
            "\"bus_bound_tokens_per_s\": %.5g, \"of_bus_bound\": %.4f",
            percent, what,
            1 - (double)(misses[1] - misses[0]) /
                    (double)(routed[1] - routed[0] + (routed[1] == routed[0])),
            missed, missed * image, bound, bound > 0 ? 1 / time.median / bound : 0);
    served_close(&v);
}

/* ---- Static offloading of layers ---- */

typedef struct offload {
    const tall_model *m;
    uint32_t resident;  /* layers */
    char *weights;      /* of these, */
    char *buffers[2];   /* and of two more */
    bare_layer *layers; /* one per layer of the model */
    mp_cu_stream copies;
    mp_cu_event landed[2], used[2];
} offload;

static void stream_layer(gpu_bench *b, offload *o, uint32_t buffer)
{
    const tall_model *m = o->m;
    gpu_driver_must(b->driver->stream_wait(o->copies, o->used[buffer], 0), "a wait");
    for (uint32_t e = 0; e < m->shape.experts; e++) {
        const unsigned char *from = m->dense + e % m->distinct * m->dense_stride;
        gpu_driver_must(b->driver->copy((mp_cu_ptr)(uintptr_t)(o->buffers[buffer] +
                                                               e * m->expert_bytes),
                                        (mp_cu_ptr)(uintptr_t)from, m->expert_bytes, o->copies),
                        "a copy");
    }
    gpu_driver_must(b->driver->event_record(o->landed[buffer], o->copies), "an event");
}

/* Layers that are not resident are on their way two ahead, over the end of a step as well. */
static void offload_step(gpu_bench *b, void *user)
{
    offload *o = user;
    const uint32_t n = o->m->shape.layers;
    for (uint32_t l = 0; l < n; l++) {
        const uint32_t buffer = (l - o->resident) % 2;
        if (l < o->resident) {
            bare_run(b, &o->layers[l]);
            continue;
        }
        gpu_driver_must(b->driver->stream_wait(b->stream, o->landed[buffer], 0), "a wait");
        bare_run(b, &o->layers[l]);
        gpu_driver_must(b->driver->event_record(o->used[buffer], b->stream), "an event");
        stream_layer(b, o, buffer);
    }
}

static void offload_open(gpu_bench *b, study *s, uint32_t percent, offload *o)
{
    const tall_shape *shape = &s->m->shape;
    const uint64_t layer_bytes = shape->experts * s->m->expert_bytes;
    const bare_shape bare = {shape->experts,   shape->top_k, shape->hidden, shape->intermediate, 1,
                             MOEPAGE_MATH_BF16};
    int32_t *ids = bare_random_ids(&bare, 1);
    *o = (offload){.m = s->m, .resident = shape->layers * percent / 100};
    /* An even number is streamed, so that the buffers' turns go on over the end of a step. */
    o->resident += (shape->layers - o->resident) % 2;
    o->weights = gpu_device_memory(b, layer_bytes * o->resident + 1);
    o->layers = calloc(shape->layers, sizeof *o->layers);
    gpu_driver_must(b->driver->stream_create(&o->copies, MP_CU_STREAM_NON_BLOCKING, 0), "a stream");
    for (uint32_t i = 0; i < 2; i++) {
        o->buffers[i] = gpu_device_memory(b, layer_bytes);
        gpu_driver_must(b->driver->event_create(&o->landed[i], MP_CU_EVENT_DISABLE_TIMING), "");
        gpu_driver_must(b->driver->event_create(&o->used[i], MP_CU_EVENT_DISABLE_TIMING), "");
    }
    for (uint64_t e = 0; e < (uint64_t)o->resident * shape->experts; e++)
        gpu_copy(b, o->weights + e * s->m->expert_bytes,
                 s->m->dense + e % s->m->distinct * s->m->dense_stride, s->m->expert_bytes);
    for (uint32_t l = 0; l < shape->layers; l++) {
        s->routes.shape = shape;
        (b->tiny ? route_by_turns : route_by_trace)(&s->routes, 0, l, ids);
        bare_open(b, &bare, ids,
                  l < o->resident ? o->weights + l * layer_bytes
                                  : o->buffers[(l - o->resident) % 2],
                  s->m->expert_bytes, &o->layers[l]);
    }
    for (uint32_t i = 0; i < 2 && o->resident < shape->layers; i++)
        stream_layer(b, o, i);
    free(ids);
}

static void offload_close(gpu_bench *b, offload *o)
{
    gpu_wait(b);
    gpu_driver_must(b->driver->stream_sync(o->copies), "the copies");
    for (uint32_t l = 0; l < o->m->shape.layers; l++)
        bare_close(b, &o->layers[l]);
    free(o->layers);
    for (uint32_t i = 0; i < 2; i++) {
        b->driver->event_destroy(o->landed[i]);
        b->driver->event_destroy(o->used[i]);
        gpu_free_device(b, o->buffers[i]);
    }
    b->driver->stream_destroy(o->copies);
    gpu_free_device(b, o->weights);
}

static void run_offload(gpu_bench *b, study *s, uint32_t percent)
{
    offload o;
    char label[96];
    offload_open(b, s, percent, &o);
    gpu_spread time = gpu_wall(b, offload_step, &o, 2);
    snprintf(label, sizeof label, "%u %%: static offloading of layers", percent);
    gpu_row(b, label, gpu_rate(time, 1), "tokens/s",
            "\"budget_percent\": %u, \"mode\": \"static\", \"resident_layers\": %u, "
            "\"bus_bytes_per_token\": %.6g",
            percent, o.resident,
            (double)(s->m->shape.layers - o.resident) * s->m->shape.experts *
                (double)s->m->expert_bytes);
    offload_close(b, &o);
}

/* ---- All of it ---- */

static void run_budget(gpu_bench *b, study *s, uint32_t percent)
{
    static const struct {
        const char *what;
        served_config config;
    } modes[] = {
        {"session, dense", {.bus_form = MOEPAGE_FORM_DENSE}},
        {"session, exph", {.bus_form = MOEPAGE_FORM_EXPH}},
        {"session, exph, prefetch",
         {.bus_form = MOEPAGE_FORM_EXPH, .prefetch = MOEPAGE_PREFETCH_PREVIOUS}},
        {"session, dense, prefetch",
         {.bus_form = MOEPAGE_FORM_DENSE, .prefetch = MOEPAGE_PREFETCH_PREVIOUS}},
        {"path in a graph, dense", {.bus_form = MOEPAGE_FORM_DENSE, .path = true, .graph = true}},
        {"path in a graph, exph", {.bus_form = MOEPAGE_FORM_EXPH, .path = true, .graph = true}},
    };
    const tall_shape *shape = &s->m->shape;
    const uint64_t slots = (uint64_t)shape->layers * shape->experts * percent / 100;
    gpu_bench_reopen(b, (slots + 1) * s->m->model->info.slot_bytes + 64 * MB,
                     gpu_size(b, 1024 * MB, 64 * MB));
    for (uint32_t i = 0; i < sizeof modes / sizeof *modes; i++)
        run_ours(b, s, percent, modes[i].config, modes[i].what);
    gpu_bench_reopen(b, 32 * MB, 64 * MB);
    run_offload(b, s, percent);
}

int main(int argc, char **argv)
{
    static const tall_shape qwen = {"qwen3-30b-a3b", 48, 128, 8, 2048, 768};
    static const tall_shape small = {"tiny", 4, 8, 2, 64, 48};
    gpu_bench b;
    tall_model m;
    gpu_bench_open(&b, "generation", argc, argv, 32 * MB, 64 * MB);
    tall_open(&b, b.tiny ? &small : &qwen, (uint32_t)gpu_size(&b, 64, 4), &m);
    study s = {.m = &m,
               .warm = (uint32_t)gpu_size(&b, 150, 2),
               .measured = (uint32_t)gpu_size(&b, 16, 1)};
    trace_open(&b, &m.shape, &s.routes);
    s.bus = bus_rate(&b, &m);
    gpu_row(&b, "bus: plain copies of experts",
            (gpu_spread){s.bus / 1e9, s.bus / 1e9, s.bus / 1e9, 1}, "GB/s",
            "\"expert_bytes\": %llu, \"exph_bytes\": %llu", (unsigned long long)m.expert_bytes,
            (unsigned long long)m.exph_bytes);
    static const uint32_t budgets[] = {25, 50, 75};
    for (uint32_t i = 0; i < 3; i++)
        run_budget(&b, &s, budgets[i]);
    free(s.routes.rows);
    tall_close(&b, &m);
    return gpu_bench_close(&b);
}
