/* From host memory to the device: the driver's own copies, the library's, and loads of whole
 * experts, dense and as exph. */
#include <stdlib.h>

#include "tall_model.h"

#define KB 1024ull
#define MB (1ull << 20)
#define MOST_COPIES 512u

/* ---- Copies ---- */

typedef struct copies {
    unsigned char *host, *device;
    uint64_t bytes, stride;
    uint32_t n;
    mp_stream *stream;
    mp_copy list[MOST_COPIES];
} copies;

static void copy_raw(gpu_bench *b, void *user)
{
    const copies *c = user;
    for (uint32_t i = 0; i < c->n; i++)
        gpu_driver_must(b->driver->copy((mp_cu_ptr)(uintptr_t)(c->device + i * c->stride),
                                        (mp_cu_ptr)(uintptr_t)(c->host + i * c->stride), c->bytes,
                                        b->stream),
                        "a copy");
}

static void copy_ours(gpu_bench *b, void *user)
{
    copies *c = user;
    mp_tick tick = 0;
    const mp_device_ops *ops = b->home->device->ops;
    for (uint32_t i = 0; i < c->n; i++)
        c->list[i] = (mp_copy){.dst = c->device + i * c->stride,
                               .src = c->host + i * c->stride,
                               .bytes = c->bytes};
    gpu_must(ops->copy(c->stream, c->list, c->n, &tick), "a copy");
    gpu_must(ops->sync(c->stream, tick), "a copy");
}

/* The raw rate of the largest copies, for others to be compared with. */
static double run_copies(gpu_bench *b)
{
    static const uint64_t sizes[] = {64 * KB, 256 * KB, MB, 2 * MB, 4 * MB, 16 * MB, 64 * MB};
    const uint64_t total = gpu_size(b, 512 * MB, 8 * MB);
    const mp_device_ops *ops = b->home->device->ops;
    mp_host_memory host;
    copies c = {.device = gpu_device_memory(b, total)};
    double best = 0;
    char label[96];
    gpu_must(ops->host_map(b->home->device, total, &host), "a host tier");
    gpu_must(ops->stream_create(b->home->device, MP_STREAM_DEMAND, &c.stream), "a stream");
    c.host = host.base;
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= total; i++) {
        c.bytes = c.stride = sizes[i];
        c.n = (uint32_t)(total / sizes[i] < MOST_COPIES ? total / sizes[i] : MOST_COPIES);
        const double moved = (double)c.bytes * c.n / 1e9;
        gpu_spread raw = gpu_rate(gpu_time(b, copy_raw, &c, 2), moved);
        snprintf(label, sizeof label, "%llu KB, plain copies", (unsigned long long)(sizes[i] / KB));
        gpu_row(b, label, raw, "GB/s", "\"bytes\": %llu, \"kind\": \"raw\"",
                (unsigned long long)sizes[i]);
        gpu_spread ours = gpu_rate(gpu_wall(b, copy_ours, &c, 2), moved);
        snprintf(label, sizeof label, "%llu KB, the library's",
                 (unsigned long long)(sizes[i] / KB));
        gpu_row(b, label, ours, "GB/s", "\"bytes\": %llu, \"kind\": \"ours\", \"of_raw\": %.4f",
                (unsigned long long)sizes[i], ours.median / raw.median);
        best = raw.median > best ? raw.median : best;
    }
    ops->stream_destroy(c.stream);
    ops->host_unmap(b->home->device, &host);
    gpu_free_device(b, c.device);
    return best;
}

/* ---- Loads ---- */

typedef struct loads {
    moepage_session *session;
    const tall_model *m;
    void *x, *y;
    uint32_t next, top_k;
    int32_t *ids;
    float *weights;
} loads;

/* A layer whose experts are all absent: the pool has room for two such layers. */
static void load_layer(gpu_bench *b, void *user)
{
    loads *l = user;
    const uint32_t layer = l->next++ % l->m->shape.layers;
    const moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    for (uint32_t k = 0; k < l->top_k; k++)
        l->ids[k] = (int32_t)k;
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = l->top_k,
                                     .ids = l->ids,
                                     .weights = l->weights,
                                     .stream = b->stream};
    const moepage_ffn ffn = {.struct_size = sizeof ffn,
                             .dtype = MOEPAGE_DTYPE_BF16,
                             .x = l->x,
                             .y = l->y,
                             .stream = b->stream};
    gpu_must(moepage_session_begin(l->session, &step), "begin");
    gpu_must(moepage_session_route(l->session, layer, &routing, NULL), "route");
    gpu_must(moepage_session_ffn(l->session, layer, &ffn), "ffn");
    gpu_must(moepage_session_retire(l->session, layer), "retire");
    gpu_must(moepage_session_end(l->session, NULL), "end");
}

static double run_loads(gpu_bench *b, tall_model *m, uint32_t form, uint64_t chunk, double raw)
{
    const uint32_t n = m->shape.experts;
    moepage_expert_pool *pool = NULL;
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    moepage_session_config session = {.struct_size = sizeof session, .max_top_k = n};
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = 2ull * n,
                                         .chunk_bytes = (uint32_t)chunk,
                                         .staging_experts = 8,
                                         .bus_form = form};
    char label[96];
    session.max_tokens = 1;
    session.math = MOEPAGE_MATH_BF16;
    session.regime = MOEPAGE_REGIME_CACHE;
    gpu_must(moepage_expert_pool_create(&b->home, 1, m->model, &config, &pool), "the pool");
    loads l = {.m = m, .top_k = n};
    gpu_must(moepage_session_create(pool, NULL, &session, &l.session), "the session");
    l.x = gpu_device_memory(b, m->shape.hidden * 2);
    l.y = gpu_device_memory(b, m->shape.hidden * 2);
    l.ids = calloc(n, sizeof *l.ids);
    l.weights = calloc(n, sizeof *l.weights);
    gpu_spread rate = gpu_rate(gpu_wall(b, load_layer, &l, 8), (double)m->expert_bytes * n / 1e9);
    gpu_must(moepage_expert_pool_get_info(pool, &info), "the pool");
    snprintf(label, sizeof label, "experts of %.1f MB, %s over the bus",
             (double)m->expert_bytes / 1e6, form == MOEPAGE_FORM_EXPH ? "exph" : "dense");
    gpu_row(b, label, rate, "GB/s",
            "\"form\": \"%s\", \"expert_bytes\": %llu, \"image_bytes\": %llu, \"of_raw\": %.4f, "
            "\"hits\": %llu, \"misses\": %llu, \"measured_bus\": %llu, \"measured_decode\": %llu",
            form == MOEPAGE_FORM_EXPH ? "exph" : "dense", (unsigned long long)m->expert_bytes,
            (unsigned long long)(form == MOEPAGE_FORM_EXPH ? m->exph_bytes : m->expert_bytes),
            raw > 0 ? rate.median / raw : 0, (unsigned long long)info.hits,
            (unsigned long long)info.misses, (unsigned long long)info.bus_bytes_per_s,
            (unsigned long long)info.decode_bytes_per_s);
    gpu_must(moepage_session_destroy(l.session), "the session");
    gpu_must(moepage_expert_pool_destroy(pool), "the pool");
    gpu_free_device(b, l.x);
    gpu_free_device(b, l.y);
    free(l.ids);
    free(l.weights);
    return rate.median;
}

int main(int argc, char **argv)
{
    static const tall_shape qwen = {"qwen3-30b-a3b", 8, 32, 8, 2048, 768};
    static const tall_shape small = {"tiny", 4, 4, 2, 64, 48};
    gpu_bench b;
    tall_model m;
    gpu_bench_open(&b, "transfer", argc, argv, 1024 * MB, 512 * MB);
    double raw = run_copies(&b);
    tall_open(&b, b.tiny ? &small : &qwen, (uint32_t)gpu_size(&b, 32, 4), &m);
    double dense = run_loads(&b, &m, MOEPAGE_FORM_DENSE, 0, raw);
    double exph = run_loads(&b, &m, MOEPAGE_FORM_EXPH, 0, raw);
    gpu_row(&b, "exph path beside dense path",
            (gpu_spread){exph / dense, exph / dense, exph / dense, 1}, "times", "\"of_raw\": %.4f",
            raw > 0 ? exph / raw : 0);
    tall_close(&b, &m);
    return gpu_bench_close(&b);
}
