/* Device, memory, clocks and the file of results. */
#include "gpu_bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exph_data.h"

#define SAMPLES 7
#define TINY_SAMPLES 2

/* ---- Failing ---------------------------------------------------------------------------- */

void gpu_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void gpu_must(moepage_status status, const char *doing)
{
    if (status)
        gpu_die("%s: %s: %s", doing, moepage_status_text(status), moepage_last_error());
}

void gpu_driver_must(mp_cu_result result, const char *doing)
{
    if (result)
        gpu_die("%s: driver error %d", doing, result);
}

/* ---- Opening ---------------------------------------------------------------------------- */

static void read_options(gpu_bench *b, int argc, char **argv)
{
    b->device_name = "cuda:0";
    b->traces = "tests/data/gpt-oss-20b-20requests.u8";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tiny"))
            b->tiny = true;
        else if (!strcmp(argv[i], "--out") && i + 1 < argc)
            b->out_folder = argv[++i];
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            b->device_name = argv[++i];
        else if (!strcmp(argv[i], "--traces") && i + 1 < argc)
            b->traces = argv[++i];
        else
            gpu_die("usage: %s [--device cuda:N] [--out DIR] [--tiny] [--traces FILE.u8]", argv[0]);
    }
}

static void open_device(gpu_bench *b, uint64_t arena_bytes, uint64_t workspace_bytes)
{
    moepage_device_config config = {.struct_size = sizeof config};
    config.workspace_bytes = workspace_bytes;
    config.budget_bytes = arena_bytes + workspace_bytes;
    gpu_must(moepage_device_open(b->device_name, &config, &b->home), b->device_name);
    if (strncmp(b->device_name, "cuda:", 5))
        gpu_die("%s is no CUDA device", b->device_name);
    b->cuda = mp_cuda_of(b->home->device);
    b->driver = b->cuda->driver;
}

static void open_file(gpu_bench *b)
{
    char path[512];
    moepage_cuda_info info = {.struct_size = sizeof info};
    gpu_must(moepage_cuda_get_info(b->home, &info), "the device's description");
    snprintf(path, sizeof path, "%s/%s.json", b->out_folder ? b->out_folder : "", b->name);
    b->json = b->out_folder ? fopen(path, "we") : NULL;
    if (b->out_folder && !b->json)
        gpu_die("%s cannot be written", path);
    printf("%s: %s, sm_%u%u, driver %u, %u multiprocessors%s\n", b->name, info.name,
           info.compute_major, info.compute_minor, info.driver_version, info.multiprocessors,
           b->simulated ? " (simulated: the numbers mean nothing)" : "");
    if (b->json)
        fprintf(b->json,
                "{\"bench\": \"%s\", \"simulated\": %s, \"tiny\": %s, \"library\": \"%s\",\n"
                " \"gpu\": \"%s\", \"sm\": %u, \"multiprocessors\": %u, \"driver\": %u, "
                "\"toolkit\": %u, \"cublas\": %u,\n \"rows\": [",
                b->name, b->simulated ? "true" : "false", b->tiny ? "true" : "false",
                moepage_version_text(), info.name, info.compute_major * 10 + info.compute_minor,
                info.multiprocessors, info.driver_version, info.toolkit_version,
                info.cublas_version);
}

void gpu_bench_open(gpu_bench *b, const char *name, int argc, char **argv, uint64_t arena_bytes,
                    uint64_t workspace_bytes)
{
    const char *why = NULL;
    mp_cu_context kept;
    *b = (gpu_bench){.name = name};
    read_options(b, argc, argv);
    open_device(b, b->tiny ? 64u << 20 : arena_bytes, b->tiny ? 64u << 20 : workspace_bytes);
    b->simulated = strstr(b->cuda->info.name, "Simulated") != NULL;
    b->more = cuda_more_load(&why);
    if (!b->more)
        gpu_die("the driver lacks %s", why);
    if (b->simulated && !b->tiny)
        gpu_die("on the simulated driver only --tiny runs end");
    gpu_driver_must(b->driver->context_retain(&kept, b->cuda->gpu), "the context");
    gpu_driver_must(b->driver->context_push(kept), "the context");
    gpu_driver_must(b->driver->stream_create(&b->stream, MP_CU_STREAM_NON_BLOCKING, 0), "a stream");
    gpu_driver_must(b->driver->event_create(&b->start, 0), "an event");
    gpu_driver_must(b->driver->event_create(&b->end, 0), "an event");
    open_file(b);
}

void gpu_bench_reopen(gpu_bench *b, uint64_t arena_bytes, uint64_t workspace_bytes)
{
    gpu_must(moepage_device_close(b->home), "closing the device");
    open_device(b, arena_bytes, workspace_bytes);
}

int gpu_bench_close(gpu_bench *b)
{
    if (b->json) {
        fprintf(b->json, "\n]}\n");
        if (ferror(b->json) | fclose(b->json))
            gpu_die("the results could not be written");
    }
    b->driver->event_destroy(b->start);
    b->driver->event_destroy(b->end);
    b->driver->stream_destroy(b->stream);
    gpu_must(moepage_device_close(b->home), "closing the device");
    return 0;
}

/* ---- Memory ----------------------------------------------------------------------------- */

void *gpu_device_memory(gpu_bench *b, uint64_t bytes)
{
    mp_cu_ptr memory = 0;
    mp_cu_result result = b->driver->mem_alloc(&memory, bytes);
    if (result)
        gpu_die("%.2f GB of device memory: driver error %d", (double)bytes / 1e9, result);
    return (void *)(uintptr_t)memory;
}

void *gpu_pinned_memory(gpu_bench *b, uint64_t bytes)
{
    void *memory = NULL;
    mp_cu_result result = b->driver->host_alloc(&memory, bytes, MP_CU_HOST_PORTABLE);
    if (result)
        gpu_die("%.2f GB of pinned memory: driver error %d", (double)bytes / 1e9, result);
    return memory;
}

void gpu_free_device(gpu_bench *b, void *memory)
{
    if (memory)
        gpu_driver_must(b->driver->mem_free((mp_cu_ptr)(uintptr_t)memory), "freeing");
}

void gpu_free_pinned(gpu_bench *b, void *memory)
{
    if (memory)
        gpu_driver_must(b->driver->host_free(memory), "freeing");
}

void gpu_copy(gpu_bench *b, void *to, const void *from, uint64_t bytes)
{
    gpu_driver_must(b->driver->copy((mp_cu_ptr)(uintptr_t)to, (mp_cu_ptr)(uintptr_t)from, bytes,
                                    b->stream),
                    "a copy");
    gpu_wait(b);
}

void *gpu_put(gpu_bench *b, const void *bytes, uint64_t n)
{
    void *memory = gpu_device_memory(b, n);
    gpu_copy(b, memory, bytes, n);
    return memory;
}

/* Windows into one pool: as random as any, and quick to make. */
uint16_t *gpu_weights(uint64_t n, uint64_t seed)
{
    enum { POOL = 1 << 20, WINDOW = 1 << 18 };
    static uint16_t pool[POOL];
    static bool made;
    exph_random random = exph_random_of(17);
    if (!made)
        exph_fill(&random, MOEPAGE_DTYPE_BF16, EXPH_GAUSSIAN, pool, POOL);
    made = true;
    uint16_t *out = malloc(n * sizeof *out);
    if (!out)
        gpu_die("out of host memory");
    random = exph_random_of(seed);
    for (uint64_t i = 0; i < n; i += WINDOW) {
        uint64_t m = n - i < WINDOW ? n - i : WINDOW;
        memcpy(out + i, pool + exph_below(&random, POOL - WINDOW), m * sizeof *out);
    }
    return out;
}

/* ---- Time ------------------------------------------------------------------------------- */

void gpu_wait(gpu_bench *b)
{
    gpu_driver_must(b->driver->stream_sync(b->stream), "waiting for the device");
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static gpu_spread spread_of(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return (gpu_spread){values[0], values[n / 2], values[n - 1], n};
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double by_events(gpu_bench *b, gpu_work work, void *user, uint32_t inner)
{
    float ms = 0;
    gpu_driver_must(b->driver->event_record(b->start, b->stream), "an event");
    for (uint32_t i = 0; i < inner; i++)
        work(b, user);
    gpu_driver_must(b->driver->event_record(b->end, b->stream), "an event");
    gpu_driver_must(b->driver->event_sync(b->end), "waiting for the device");
    gpu_driver_must(b->more->event_elapsed(&ms, b->start, b->end), "a time");
    return ms * 1e-3 / inner;
}

static double by_clock(gpu_bench *b, gpu_work work, void *user, uint32_t inner)
{
    gpu_wait(b);
    double began = seconds_now();
    for (uint32_t i = 0; i < inner; i++)
        work(b, user);
    gpu_wait(b);
    return (seconds_now() - began) / inner;
}

static gpu_spread measure(gpu_bench *b, gpu_work work, void *user, uint32_t inner,
                          double (*once)(gpu_bench *, gpu_work, void *, uint32_t))
{
    double values[SAMPLES];
    const uint32_t n = b->tiny ? TINY_SAMPLES : SAMPLES, times = b->tiny ? 1 : inner;
    once(b, work, user, times);
    for (uint32_t i = 0; i < n; i++)
        values[i] = once(b, work, user, times);
    return spread_of(values, n);
}

gpu_spread gpu_time(gpu_bench *b, gpu_work work, void *user, uint32_t inner)
{
    return measure(b, work, user, inner, by_events);
}

gpu_spread gpu_wall(gpu_bench *b, gpu_work work, void *user, uint32_t inner)
{
    return measure(b, work, user, inner, by_clock);
}

gpu_spread gpu_rate(gpu_spread seconds, double amount)
{
    return (gpu_spread){amount / seconds.high, amount / seconds.median, amount / seconds.low,
                        seconds.n};
}

/* ---- Results ---------------------------------------------------------------------------- */

void gpu_row(gpu_bench *b, const char *label, gpu_spread value, const char *unit, const char *more,
             ...)
{
    char text[1024];
    va_list args;
    va_start(args, more);
    vsnprintf(text, sizeof text, more, args);
    va_end(args);
    printf("  %-58s %12.5g %-9s [%.5g .. %.5g]\n", label, value.median, unit, value.low,
           value.high);
    fflush(stdout);
    if (!b->json)
        return;
    fprintf(b->json,
            "%s\n  {\"case\": \"%s\", \"unit\": \"%s\", \"median\": %.9g, \"low\": %.9g, "
            "\"high\": %.9g, \"samples\": %u%s%s}",
            b->n_rows++ ? "," : "", label, unit, value.median, value.low, value.high, value.n,
            *text ? ", " : "", text);
    fflush(b->json);
}
