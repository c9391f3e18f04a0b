/* gpu_bench.h — what the programs that measure a GPU share: a device, a stream of the caller's,
 * memory, times, and one file of results each.
 *
 *   bench_x [--device cuda:N] [--out DIR] [--tiny]
 *
 * Nothing here is a test, but results are looked at where a wrong one would be fast. What fails
 * ends the program with a sentence. On the simulated driver the numbers mean nothing: all is tiny
 * there, and the file says "simulated": true. */
#ifndef MP_TESTS_GPU_BENCH_H
#define MP_TESTS_GPU_BENCH_H

#include <stdio.h>

#include "arena/home.h"
#include "cuda_more.h"
#include "gpu.h"

typedef struct gpu_bench {
    const char *name, *device_name, *out_folder, *traces;
    bool tiny, simulated;
    moepage_device *home;
    mp_cuda *cuda;
    const mp_cuda_driver *driver;
    const cuda_more *more;
    mp_cu_stream stream;
    mp_cu_event start, end;
    FILE *json;
    uint32_t n_rows;
} gpu_bench;

/* Reads the command line; opens the device, with its context current from then on, and the file. */
void gpu_bench_open(gpu_bench *b, const char *name, int argc, char **argv, uint64_t arena_bytes,
                    uint64_t workspace_bytes);
/* The device again, with another arena. */
void gpu_bench_reopen(gpu_bench *b, uint64_t arena_bytes, uint64_t workspace_bytes);
int gpu_bench_close(gpu_bench *b);

/* The first of two numbers on a GPU, the second in a tiny run. */
static inline uint64_t gpu_size(const gpu_bench *b, uint64_t usual, uint64_t tiny)
{
    return b->tiny ? tiny : usual;
}

void gpu_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Of the library's calls, and of the driver's. */
void gpu_must(moepage_status status, const char *doing);
void gpu_driver_must(mp_cu_result result, const char *doing);

/* ---- Memory ---- */

void *gpu_device_memory(gpu_bench *b, uint64_t bytes);
void *gpu_pinned_memory(gpu_bench *b, uint64_t bytes);
void gpu_free_device(gpu_bench *b, void *memory);
void gpu_free_pinned(gpu_bench *b, void *memory);
/* From or to plain memory; done on return. */
void gpu_copy(gpu_bench *b, void *to, const void *from, uint64_t bytes);
/* New device memory with these bytes. */
void *gpu_put(gpu_bench *b, const void *bytes, uint64_t n);
/* n BF16 numbers like trained weights, in plain memory to be freed. */
uint16_t *gpu_weights(uint64_t n, uint64_t seed);

/* ---- Time ---- */

typedef struct gpu_spread {
    double low, median, high; /* smallest and largest */
    uint32_t n;
} gpu_spread;

typedef void (*gpu_work)(gpu_bench *b, void *user);

/* Seconds of one `work`, which submits to b->stream: by events around `inner` of them, after a
 * warm-up. */
gpu_spread gpu_time(gpu_bench *b, gpu_work work, void *user, uint32_t inner);
/* The same by the clock of the host, around `inner` of them and a wait for the device. */
gpu_spread gpu_wall(gpu_bench *b, gpu_work work, void *user, uint32_t inner);
void gpu_wait(gpu_bench *b);

/* What was done in one `work`, divided by its seconds. */
gpu_spread gpu_rate(gpu_spread seconds, double amount);

/* ---- Results ---- */

/* A row: printed, and an object of the file. `more` is more of its JSON, "\"a\": 1, \"b\": 2". */
void gpu_row(gpu_bench *b, const char *label, gpu_spread value, const char *unit, const char *more,
             ...) __attribute__((format(printf, 5, 6)));

#endif
