/* The exph decoder: bytes of BF16 that come out in a second, in one launch over many tensors and
 * over few, on weights that look like trained ones.
 *
 * Small cases take turns over several sets of tensors, so that what they read is not in a cache. */
#include <stdlib.h>
#include <string.h>

#include "gpu_bench.h"

#define MB (1ull << 20)
#define DISTINCT 8u

typedef struct coded {
    uint64_t elements, most_bytes;
    uint64_t bytes[DISTINCT];
    void *device[DISTINCT]; /* streams */
    uint16_t *plain[DISTINCT];
} coded;

typedef struct batch {
    moepage_cuda_decode args[64]; /* one per set */
    void *streams, *outputs;
    uint32_t n_sets, next;
} batch;

static void encode(gpu_bench *b, uint64_t elements, uint32_t distinct, coded *c)
{
    uint64_t room = moepage_exph_bound(MOEPAGE_DTYPE_BF16, elements);
    unsigned char *stream = malloc(room);
    *c = (coded){.elements = elements};
    if (!stream)
        gpu_die("out of host memory");
    for (uint32_t i = 0; i < distinct; i++) {
        c->plain[i] = gpu_weights(elements, 100 + i);
        gpu_must(moepage_exph_encode(MOEPAGE_DTYPE_BF16, c->plain[i], elements, stream, room,
                                     &c->bytes[i]),
                 "encoding");
        c->device[i] = gpu_put(b, stream, c->bytes[i]);
        c->most_bytes = c->bytes[i] > c->most_bytes ? c->bytes[i] : c->most_bytes;
    }
    free(stream);
}

static void forget(gpu_bench *b, coded *c)
{
    for (uint32_t i = 0; i < DISTINCT; i++) {
        gpu_free_device(b, c->device[i]);
        free(c->plain[i]);
    }
}

/* Each job has a stream and an output of its own. Returns the coded bytes of a set. */
static uint64_t lay_out(gpu_bench *b, const coded *c, uint32_t distinct, uint32_t n_jobs,
                        uint32_t n_sets, batch *out)
{
    const uint64_t stride = (c->most_bytes + 255) / 256 * 256, out_bytes = c->elements * 2;
    uint64_t coded_bytes = 0;
    memset(out, 0, sizeof *out);
    out->n_sets = n_sets;
    out->streams = gpu_device_memory(b, stride * n_jobs * n_sets);
    out->outputs = gpu_device_memory(b, out_bytes * n_jobs * n_sets);
    moepage_cuda_decode_job *jobs = calloc(n_jobs, sizeof *jobs);
    if (!jobs)
        gpu_die("out of host memory");
    for (uint32_t s = 0; s < n_sets; s++) {
        for (uint32_t i = 0; i < n_jobs; i++) {
            uint32_t at = s * n_jobs + i;
            void *stream = (char *)out->streams + stride * at;
            const uint64_t bytes = c->bytes[at % distinct];
            gpu_copy(b, stream, c->device[at % distinct], bytes);
            coded_bytes += bytes;
            jobs[i] = (moepage_cuda_decode_job){.src = stream,
                                                .src_bytes = bytes,
                                                .dst = (char *)out->outputs + out_bytes * at,
                                                .elements = c->elements,
                                                .form = MOEPAGE_FORM_EXPH,
                                                .dtype = MOEPAGE_DTYPE_BF16};
        }
        out->args[s] = (moepage_cuda_decode){.struct_size = sizeof out->args[s],
                                             .n_jobs = n_jobs,
                                             .jobs = gpu_put(b, jobs, n_jobs * sizeof *jobs),
                                             .total_elements = c->elements * n_jobs};
    }
    free(jobs);
    return coded_bytes / n_sets;
}

static void decode(gpu_bench *b, void *user)
{
    batch *all = user;
    gpu_must(moepage_cuda_exph_decode(b->home, &all->args[all->next++ % all->n_sets], b->stream),
             "decoding");
}

static void expect_weights(gpu_bench *b, const coded *c, uint32_t distinct, uint32_t n_jobs,
                           const batch *all)
{
    uint16_t *got = malloc(c->elements * 2);
    if (!got)
        gpu_die("out of host memory");
    for (uint32_t at = 0; at < n_jobs * all->n_sets; at++) {
        gpu_copy(b, got, (char *)all->outputs + c->elements * 2 * at, c->elements * 2);
        if (memcmp(got, c->plain[at % distinct], c->elements * 2))
            gpu_die("tensor %u was decoded wrongly", at);
    }
    free(got);
}

/* `n_jobs` tensors of `bytes` in one launch. */
static void run_case(gpu_bench *b, const char *label, uint64_t bytes, uint32_t n_jobs,
                     uint32_t n_sets)
{
    coded c;
    batch all;
    const uint64_t elements = (b->tiny ? bytes / 64 : bytes) / 2;
    const uint32_t jobs = b->tiny && n_jobs > 4 ? 4 : n_jobs, sets = b->tiny ? 2 : n_sets;
    const uint32_t distinct = jobs * sets < DISTINCT ? jobs * sets : DISTINCT;
    encode(b, elements, distinct, &c);
    uint64_t coded_bytes = lay_out(b, &c, distinct, jobs, sets, &all);
    gpu_spread time = gpu_time(b, decode, &all, sets > 10 ? sets : 10);
    for (uint32_t i = 0; i < sets; i++) /* every set, whatever the warm-up was */
        decode(b, &all);
    gpu_wait(b);
    expect_weights(b, &c, distinct, jobs, &all);
    double out_bytes = (double)elements * 2 * jobs;
    gpu_row(b, label, gpu_rate(time, out_bytes / 1e9), "GB/s",
            "\"tensors\": %u, \"tensor_bytes\": %llu, \"ratio\": %.4f, \"seconds\": %.9g, "
            "\"verified\": true",
            jobs, (unsigned long long)elements * 2, (double)coded_bytes / out_bytes, time.median);
    for (uint32_t s = 0; s < sets; s++)
        gpu_free_device(b, (void *)(uintptr_t)all.args[s].jobs);
    gpu_free_device(b, all.streams);
    gpu_free_device(b, all.outputs);
    forget(b, &c);
}

int main(int argc, char **argv)
{
    gpu_bench b;
    gpu_bench_open(&b, "decoder", argc, argv, 32 * MB, 64 * MB);
    run_case(&b, "512 MB: 64 tensors of 8 MB", 8 * MB, 64, 1);
    run_case(&b, "512 MB: one tensor", 512 * MB, 1, 1);
    run_case(&b, "16 tensors of 3 MB", 3 * MB, 16, 8);
    run_case(&b, "8 experts of Qwen3-30B-A3B: 16 tensors of 4.5 MB", 9 * MB / 2, 16, 6);
    run_case(&b, "one expert: 3 tensors of 3 MB", 3 * MB, 3, 40);
    run_case(&b, "one tensor of 3 MB", 3 * MB, 1, 64);
    run_case(&b, "one tensor of 256 KB", MB / 4, 1, 64);
    return gpu_bench_close(&b);
}
