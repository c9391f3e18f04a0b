/* The experts' kernels at the shapes of published models: bytes of weights read in a second, and
 * operations, exact and fast (which is another thing for experts of many rows alone). Weights are
 * read from memory: several layers take turns. */
#include <stdlib.h>

#include "bare_layer.h"

#define MB (1ull << 20)
#define LAYERS 6u

typedef struct turns {
    bare_layer layers[LAYERS];
    uint32_t n, next;
} turns;

static void run_next(gpu_bench *b, void *user)
{
    turns *t = user;
    bare_experts(b, &t->layers[t->next++ % t->n]);
}

static const char *name_of(uint32_t math)
{
    return math == MOEPAGE_MATH_FP32 ? "fp32" : math == MOEPAGE_MATH_BF16 ? "bf16" : "bf16 fast";
}

static void run_case(gpu_bench *b, const char *model, const bare_shape *shape, const void *base,
                     uint32_t n_layers)
{
    char label[96];
    turns t = {.n = n_layers};
    const uint64_t expert = 6ull * shape->intermediate * shape->hidden;
    uint64_t read = 0;
    for (uint32_t i = 0; i < t.n; i++) {
        int32_t *ids = bare_random_ids(shape, 40 + i);
        bare_open(b, shape, ids, (const char *)base + expert * shape->experts * i, expert,
                  &t.layers[i]);
        read += t.layers[i].n_experts * expert;
        free(ids);
    }
    gpu_spread time = gpu_time(b, run_next, &t, 4 * t.n);
    const double bytes = (double)read / t.n, rows = (double)shape->n_tokens * shape->top_k;
    snprintf(label, sizeof label, "%s, batch %u, %s", model, shape->n_tokens, name_of(shape->math));
    gpu_row(b, label, gpu_rate(time, bytes / 1e9), "GB/s",
            "\"seconds\": %.9g, \"experts\": %.1f, \"rows\": %.0f, \"tflops\": %.4g", time.median,
            bytes / (double)expert, rows,
            6 * rows * shape->hidden * shape->intermediate / time.median / 1e12);
    for (uint32_t i = 0; i < t.n; i++)
        bare_close(b, &t.layers[i]);
}

static void run_model(gpu_bench *b, const char *name, bare_shape shape, uint32_t n_layers)
{
    static const uint32_t batches[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024};
    static const uint32_t maths[] = {MOEPAGE_MATH_BF16, MOEPAGE_MATH_BF16_FAST, MOEPAGE_MATH_FP32};
    const uint64_t expert = 6ull * shape.intermediate * shape.hidden;
    uint16_t *weights = gpu_weights(expert / 2, 9);
    char *base = gpu_device_memory(b, expert * shape.experts * n_layers);
    for (uint32_t e = 0; e < shape.experts * n_layers; e++)
        gpu_copy(b, base + expert * e, weights, expert);
    free(weights);
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            shape.math = maths[m];
            shape.n_tokens = batches[i];
            if ((b->tiny && batches[i] != 1 && batches[i] != 64) ||
                (maths[m] == MOEPAGE_MATH_FP32 && batches[i] > 64) ||
                (maths[m] == MOEPAGE_MATH_BF16_FAST && (!b->cuda->blas || batches[i] < 64)))
                continue;
            run_case(b, name, &shape, base, n_layers);
        }
    gpu_free_device(b, base);
}

int main(int argc, char **argv)
{
    gpu_bench b;
    gpu_bench_open(&b, "experts", argc, argv, 32 * MB, 64 * MB);
    if (!b.cuda->blas)
        printf("  no cuBLAS (%s): bf16 fast is left out\n", b.cuda->blas_missing);
    if (b.tiny) {
        run_model(&b, "tiny", (bare_shape){8, 2, 64, 48, 0, 0}, 2);
    } else {
        run_model(&b, "qwen3-30b-a3b", (bare_shape){128, 8, 2048, 768, 0, 0}, LAYERS);
        run_model(&b, "mixtral-8x7b", (bare_shape){8, 2, 4096, 14336, 0, 0}, 2);
    }
    return gpu_bench_close(&b);
}
