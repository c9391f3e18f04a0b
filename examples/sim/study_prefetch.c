/* Prefetching that measures itself: a predictor's guesses against none, in virtual time, in
 * settings where they can pay and where they cannot. */
#include <math.h>

#include "common/fail.h"
#include "sim/study_bench.h"
#include "sim/study_evictions.h"

#define PROMPT_TOKENS 16u
#define QWEN3 "qwen3-30b-a3b"
#define GPT_OSS "gpt-oss-20b"

typedef struct setting {
    const char *machine, *model;
    uint32_t batch;
    uint32_t percent;  /* of experts that fit */
    uint64_t layer_ns; /* of the host, per layer */
} setting;

/* From a host that leaves the bus mostly idle to one that never does. The gpt-oss model routes as
 * in its real trace, if that is available. */
static const setting settings[] = {
    {"h100-pcie5", QWEN3, 1, 12, 0},         {"h100-pcie5", QWEN3, 1, 25, 500000},
    {"h100-pcie5", QWEN3, 4, 75, 0},         {"h100-pcie5", QWEN3, 16, 50, 200000},
    {"rtx4090", QWEN3, 8, 25, 2000000},      {"h100-pcie5", GPT_OSS, 1, 25, 0},
    {"h100-pcie5", GPT_OSS, 1, 25, 1000000}, {"h100-pcie5", GPT_OSS, 1, 50, 2000000},
    {"h100-pcie5", GPT_OSS, 1, 75, 500000},  {"h100-pcie5", GPT_OSS, 4, 50, 2000000},
    {"l40-pcie4", GPT_OSS, 1, 50, 4000000},  {"h100-pcie5", GPT_OSS, 8, 75, 4000000},
};

#define N_SETTINGS (sizeof settings / sizeof *settings)

static const char *const kinds[] = {"previous", "hit-count", "coactivation"};

#define N_KINDS (sizeof kinds / sizeof *kinds)

static int run_arm(const sim_bench *bench, const setting *s, const sim_jobs *jobs,
                   const char *predictor, sim_pace *out)
{
    sim_serve_config config = sim_bench_config(bench);
    uint64_t all = (uint64_t)bench->shape.experts * bench->shape.moe_layers;
    config.stack.expert_slots = all * s->percent / 100;
    config.stack.arena_bytes = config.stack.expert_slots * bench->slot_bytes +
                               s->batch * 4096ull * sim_shape_kv_token_bytes(&bench->shape);
    config.stack.regime = MOEPAGE_REGIME_CACHE;
    config.stack.prefetch = predictor ? MOEPAGE_PREFETCH_PREDICTOR : MOEPAGE_PREFETCH_OFF;
    config.stack.predictor = predictor;
    config.stack.predict_ahead = predictor ? 3 : 0;
    config.layer_overhead_ns = s->layer_ns;
    config.concurrency = s->batch;
    config.jobs = jobs;
    return sim_bench_run(&config, out);
}

static int run_setting(const setting *s, bool brief, uint64_t seed, sim_findings *out,
                       double *worst, double *best)
{
    sim_bench bench;
    sim_jobs jobs = {0};
    sim_pace off, on;
    sim_trace *trace = NULL;
    int code = sim_bench_open(s->machine, s->model, 1, s->model, seed, &bench);
    if (!code && s->model[0] == 'g' && out->traces) {
        trace = sim_study_open_trace(out);
        code = trace ? RUN_OK : RUN_REFUSED;
    }
    sim_source *generated = bench.source;
    if (trace)
        bench.source = &trace->source;
    if (!code)
        code =
            sim_jobs_plain(s->batch * (brief ? 1 : 2), PROMPT_TOKENS, brief ? 256 : 768, 0, &jobs);
    if (!code)
        code = sim_jobs_bind(&jobs, bench.source->n_requests, NULL, 0);
    if (!code)
        code = run_arm(&bench, s, &jobs, NULL, &off);
    for (size_t k = 0; k < N_KINDS && !code; k++) {
        code = run_arm(&bench, s, &jobs, kinds[k], &on);
        if (code)
            break;
        double ratio = on.tokens_per_s / off.tokens_per_s;
        *worst = fmin(*worst, ratio);
        *best = fmax(*best, ratio);
        sim_find(out, ratio, NAN, "of no prefetch's tok/s",
                 "%s, batch %u, %u %%, %.1f ms/layer, %s", s->machine, s->batch, s->percent,
                 (double)s->layer_ns / 1e6, kinds[k]);
    }
    bench.source = generated;
    if (trace)
        trace->source.close(&trace->source);
    sim_jobs_free(&jobs);
    sim_bench_close(&bench);
    return code;
}

int sim_study_prefetch(bool brief, uint64_t seed, sim_findings *out)
{
    double worst = INFINITY, best = 0;
    int code = RUN_OK;
    sim_set(out, "models in BF16, synthetic routing, but gpt-oss-20b's own with --trace; guesses "
                 "up to 3 layers ahead");
    for (size_t i = 0; i < N_SETTINGS && !code; i += brief ? 5 : 1)
        code = run_setting(&settings[i], brief, seed, out, &worst, &best);
    sim_claim_that(out, worst >= 0.98, "it never falls below 0.98 of no prefetch: %.3f", worst);
    if (out->traces)
        sim_claim_that(out, best > 1.02, "where the bus has time it pays: %.3f at best", best);
    return code;
}
