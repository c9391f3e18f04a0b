/* moepage-bench route: the cost of announcing a layer, with everything resident and with misses. */
#include <stdio.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "common/clock.h"
#include "common/fail.h"

enum { LAYERS = 48, EXPERTS = 128, MAX_BATCH = 64, MAX_TOP_K = 8, WARM_UP = 20, STEPS = 200 };

typedef struct route_case {
    moepage_engine *engine;
    moepage_session *session; /* the engine's */
    uint32_t batch, top_k;
    bool plan;    /* request the plan, as callers with their own kernels do */
    int32_t *ids; /* [LAYERS][batch][top_k] */
    float *weights;
    double *route_ns; /* [STEPS * LAYERS] */
    double *retire_ns;
    uint64_t samples;
} route_case;

/* Measures the cost of reading the clock twice, which every sample contains. */
static double clock_cost_ns(void)
{
    double samples[1001];
    for (size_t i = 0; i < 1001; i++) {
        uint64_t began = clock_now_ns();
        samples[i] = (double)(clock_now_ns() - began);
    }
    return bench_spread(samples, 1001).median;
}

static int one_step(route_case *c, bool measure)
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = c->batch};
    if (moepage_session_begin(c->session, &step))
        return fail_library(RUN_FAILED, "begin");
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        size_t at = (size_t)layer * c->batch * c->top_k;
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = c->top_k,
                                   .ids = c->ids + at,
                                   .weights = c->weights + at};
        moepage_plan plan = {.struct_size = sizeof plan};
        uint64_t t0 = clock_now_ns();
        moepage_status status =
            moepage_session_route(c->session, layer, &routing, c->plan ? &plan : NULL);
        uint64_t t1 = clock_now_ns();
        status = status ? status : moepage_session_retire(c->session, layer);
        uint64_t t2 = clock_now_ns();
        if (status)
            return fail_library(RUN_FAILED, "route");
        if (measure) {
            c->route_ns[c->samples] = (double)(t1 - t0);
            c->retire_ns[c->samples++] = (double)(t2 - t1);
        }
    }
    if (moepage_session_end(c->session, NULL))
        return fail_library(RUN_FAILED, "end");
    return RUN_OK;
}

static int run_steps(route_case *c)
{
    uint64_t state = 42;
    int code = RUN_OK;
    for (uint32_t s = 0; s < WARM_UP + STEPS && !code; s++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            size_t at = (size_t)layer * c->batch * c->top_k;
            bench_random_routing(&state, c->batch, c->top_k, EXPERTS, c->ids + at, c->weights + at);
        }
        code = one_step(c, s >= WARM_UP);
    }
    return code;
}

/* Loads every expert once. */
static int fill(route_case *c)
{
    for (uint32_t first = 0; first < EXPERTS; first += c->top_k) {
        for (size_t i = 0; i < (size_t)LAYERS * c->batch * c->top_k; i++) {
            c->ids[i] = (int32_t)((first + i % c->top_k) % EXPERTS);
            c->weights[i] = 1.0f;
        }
        int code = one_step(c, false);
        if (code)
            return code;
    }
    return RUN_OK;
}

static int run_case(const bench_model *m, uint32_t batch, uint32_t top_k, bool plan,
                    bool all_resident, double clock_ns)
{
    route_case c = {.batch = batch, .top_k = top_k, .plan = plan};
    char options[64];
    size_t routed = (size_t)LAYERS * batch * top_k;
    c.ids = malloc(routed * sizeof *c.ids);
    c.weights = malloc(routed * sizeof *c.weights);
    c.route_ns = malloc((size_t)STEPS * LAYERS * sizeof *c.route_ns);
    c.retire_ns = malloc((size_t)STEPS * LAYERS * sizeof *c.retire_ns);
    int code = c.ids && c.weights && c.route_ns && c.retire_ns ? RUN_OK : fail_memory();
    snprintf(options, sizeof options, "threads=1 max_tokens=%u regime=cache budget=%s", batch,
             all_resident ? "100%" : "50%");
    if (!code)
        code = bench_engine_open(m, options, &c.engine);
    if (!code)
        c.session = moepage_engine_session(c.engine);
    if (!code && all_resident)
        code = fill(&c);
    if (!code)
        code = run_steps(&c);
    if (!code) {
        spread route = bench_spread(c.route_ns, c.samples);
        spread retire = bench_spread(c.retire_ns, c.samples);
        printf("%-9s %5u %5u  %-4s  %9.0f %9.0f %9.0f   %9.0f\n", all_resident ? "100%" : "50%",
               batch, top_k, plan ? "yes" : "no", route.low - clock_ns, route.median - clock_ns,
               route.high - clock_ns, retire.median - clock_ns);
    }
    moepage_engine_close(c.engine);
    free(c.ids);
    free(c.weights);
    free(c.route_ns);
    free(c.retire_ns);
    return code;
}

int bench_route(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return fail(RUN_REFUSED, "route takes no arguments");
    /* Tiny experts: only the bookkeeping counts. */
    bench_shape shape = {LAYERS, EXPERTS, MAX_TOP_K, 16, 16, MOEPAGE_DTYPE_BF16};
    bench_model m = {0};
    int code = bench_model_open(&shape, 1, &m);
    double clock_ns = clock_cost_ns();
    printf("route: nanoseconds per layer, %d layers of %d experts, %d steps; clock cost %.0f ns "
           "taken off\n\n",
           LAYERS, EXPERTS, STEPS, clock_ns);
    printf("resident  batch top-k  plan   route p10       p50       p90  retire p50\n");
    static const uint32_t batches[] = {1, 4, 16, MAX_BATCH};
    static const uint32_t top_ks[] = {2, 4, MAX_TOP_K};
    for (size_t b = 0; b < sizeof batches / sizeof *batches && !code; b++)
        for (size_t k = 0; k < sizeof top_ks / sizeof *top_ks && !code; k++)
            code = run_case(&m, batches[b], top_ks[k], false, true, clock_ns);
    if (!code)
        code = run_case(&m, 1, MAX_TOP_K, true, true, clock_ns);
    if (!code) /* misses: the policy, the slots, and the copies, waited for */
        code = run_case(&m, 1, MAX_TOP_K, true, false, clock_ns);
    bench_model_close(&m);
    return code;
}
