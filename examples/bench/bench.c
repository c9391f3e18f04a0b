/* What the benchmarks share: random models, engines over them, order statistics. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "common/expert_pair.h"
#include "common/fail.h"
#include "common/order.h"

/* ---- numbers ---- */

spread bench_spread(double *values, size_t n)
{
    qsort(values, n, sizeof *values, order_doubles);
    return (spread){.low = values[n / 10], .median = values[n / 2], .high = values[n - 1 - n / 10]};
}

uint64_t bench_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

void bench_random_routing(uint64_t *state, uint32_t n_tokens, uint32_t top_k, uint32_t experts,
                          int32_t *ids, float *weights)
{
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t k = 0; k < top_k; k++) {
            int32_t *token = ids + (size_t)t * top_k;
            uint32_t seen = 1;
            while (seen) {
                token[k] = (int32_t)(bench_random(state) >> 32) & 0x7fffffff;
                token[k] %= (int32_t)experts;
                seen = 0;
                for (uint32_t j = 0; j < k; j++)
                    seen |= token[j] == token[k];
            }
            weights[(size_t)t * top_k + k] = 1.0f / (float)top_k;
        }
}

/* ---- models ---- */

static void fill_weights(void *memory, size_t n, uint32_t dtype)
{
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < n; i++) {
        float value = ((float)(bench_random(&state) >> 40) / 8388608.0f - 1.0f) * 0.05f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == MOEPAGE_DTYPE_F32)
            ((float *)memory)[i] = value;
        else
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16); /* BF16 */
    }
}

int bench_model_open(const bench_shape *shape, uint32_t distinct, bench_model *out)
{
    size_t element = shape->dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
    size_t matrix = (size_t)shape->hidden * shape->intermediate;
    size_t pointers = (size_t)shape->layers * shape->experts * 2;
    out->weights = malloc(distinct * 3 * matrix * element);
    out->data = malloc(pointers * sizeof *out->data);
    if (!out->weights || !out->data)
        return fail_memory();
    fill_weights(out->weights, distinct * 3 * matrix, shape->dtype);
    for (size_t e = 0; e < pointers / 2; e++) {
        unsigned char *expert = (unsigned char *)out->weights + e % distinct * 3 * matrix * element;
        out->data[2 * e] = expert;
        out->data[2 * e + 1] = expert + 2 * matrix * element;
    }
    moepage_expert_tensor tensors[EXPERT_PAIR];
    expert_pair(shape->dtype, shape->hidden, shape->intermediate, tensors);
    moepage_banks banks = {.struct_size = sizeof banks,
                           .moe_layers = shape->layers,
                           .experts = shape->experts,
                           .top_k = shape->top_k,
                           .hidden = shape->hidden,
                           .expert_intermediate = shape->intermediate,
                           .n_tensors = EXPERT_PAIR,
                           .tensors = tensors,
                           .data = out->data};
    if (moepage_model_open_banks(&banks, NULL, &out->model))
        return fail_library(RUN_FAILED, "random model");
    return RUN_OK;
}

void bench_model_close(bench_model *m)
{
    moepage_model_close(m->model);
    free(m->weights);
    free(m->data);
    *m = (bench_model){0};
}

/* ---- engines ---- */

int bench_engine_open(const bench_model *m, const char *options, moepage_engine **out)
{
    const moepage_engine_config config = MOEPAGE_ENGINE_CONFIG(.model = m->model);
    return moepage_engine_open(NULL, options, &config, out) ? fail_library(RUN_FAILED, "engine")
                                                            : RUN_OK;
}
