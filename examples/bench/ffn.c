/* moepage-bench ffn: the library's own experts, at published models' shapes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "common/clock.h"
#include "common/fail.h"

enum { REPETITIONS = 15, MAX_BATCH = 64 };

typedef struct ffn_shape {
    const char *name;
    bench_shape shape;
} ffn_shape;

static int one_layer(moepage_session *session, uint32_t batch, uint32_t top_k, const int32_t *ids,
                     const float *weights, const float *x, float *y, double *ns)
{
    const moepage_routing routing = MOEPAGE_ROUTING(top_k, ids, weights);
    const moepage_ffn ffn = MOEPAGE_FFN(MOEPAGE_DTYPE_F32, x, y);
    if (moepage_session_begin(session, &MOEPAGE_STEP(batch)) ||
        moepage_session_route(session, 0, &routing, NULL))
        return fail_library(RUN_FAILED, "route");
    uint64_t began = clock_now_ns();
    if (moepage_session_ffn(session, 0, &ffn))
        return fail_library(RUN_FAILED, "ffn");
    *ns = (double)(clock_now_ns() - began);
    if (moepage_session_retire(session, 0) || moepage_session_end(session, NULL))
        return fail_library(RUN_FAILED, "retire");
    return RUN_OK;
}

static uint32_t count_distinct(const int32_t *ids, uint32_t n, uint32_t experts)
{
    unsigned char seen[1024] = {0};
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < n; i++) {
        distinct += !seen[(uint32_t)ids[i] % experts];
        seen[(uint32_t)ids[i] % experts] = 1;
    }
    return distinct;
}

static int run_case(const ffn_shape *which, const bench_model *m, uint32_t batch, uint32_t math,
                    uint32_t threads)
{
    const bench_shape *s = &which->shape;
    const char *const math_name = math == MOEPAGE_MATH_BF16 ? "bf16" : "fp32";
    moepage_engine *engine = NULL;
    char options[64];
    uint64_t state = 7;
    int32_t ids[MAX_BATCH * 8];
    float weights[MAX_BATCH * 8];
    float *x = calloc((size_t)batch * s->hidden, sizeof *x);
    float *y = malloc((size_t)batch * s->hidden * sizeof *y);
    snprintf(options, sizeof options, "budget=100%% threads=%u max_tokens=%u math=%s", threads,
             batch, math_name);
    int code = x && y ? bench_engine_open(m, options, &engine) : fail_memory();
    for (size_t i = 0; x && i < (size_t)batch * s->hidden; i++)
        x[i] = (float)(bench_random(&state) >> 40) / 8388608.0f - 1.0f;
    bench_random_routing(&state, batch, s->top_k, s->experts, ids, weights);
    double ns[REPETITIONS] = {0}, warm_up;
    for (int r = -2; r < REPETITIONS && !code; r++)
        code = one_layer(moepage_engine_session(engine), batch, s->top_k, ids, weights, x, y,
                         r < 0 ? &warm_up : &ns[r]);
    if (!code) {
        spread t = bench_spread(ns, REPETITIONS);
        double expert_bytes = 3.0 * s->hidden * s->intermediate * 2;
        double bytes = expert_bytes * count_distinct(ids, batch * s->top_k, s->experts);
        double flops = 6.0 * s->hidden * s->intermediate * batch * s->top_k;
        printf("%-15s %5u  %-4s %7u  %9.1f %9.1f %9.1f  %8.1f %8.1f\n", which->name, batch,
               math_name, threads, t.low / 1e3, t.median / 1e3, t.high / 1e3, bytes / t.median,
               flops / t.median);
    }
    moepage_engine_close(engine);
    free(x);
    free(y);
    return code;
}

int bench_ffn(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return fail(RUN_REFUSED, "ffn takes no arguments");
    static const ffn_shape shapes[] = {
        {"qwen3-30b-a3b", {1, 128, 8, 2048, 768, MOEPAGE_DTYPE_BF16}},
        {"olmoe-1b-7b", {1, 64, 8, 2048, 1024, MOEPAGE_DTYPE_BF16}},
    };
    static const uint32_t batches[] = {1, 4, 16, MAX_BATCH};
    printf(
        "ffn: one layer's experts, all resident, bf16 weights, random routing, %d repetitions\n\n"
        "shape           batch  math threads     p10 us    p50 us    p90 us      GB/s  GFLOP/s\n",
        REPETITIONS);
    int code = RUN_OK;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !code; i++) {
        bench_model m = {0};
        code = bench_model_open(&shapes[i].shape, 16, &m);
        for (size_t b = 0; b < sizeof batches / sizeof *batches && !code; b++)
            for (uint32_t variant = 0; variant < 4 && !code; variant++)
                code = run_case(&shapes[i], &m, batches[b],
                                variant & 1 ? MOEPAGE_MATH_BF16 : MOEPAGE_MATH_FP32,
                                variant & 2 ? 2 : 1);
        bench_model_close(&m);
    }
    return code;
}
