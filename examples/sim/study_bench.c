/* Machines, models and arms of studies. */
#include "sim/study_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "sim/configure.h"
#include "sim/random.h"
#include "sim/study_evictions.h"
#include "sim/synthetic.h"

int sim_bench_open(const char *machine, const char *model, uint32_t tp, const char *routing,
                   uint64_t seed, sim_bench *out)
{
    sim_synthetic config;
    *out = (sim_bench){0};
    int code = sim_machine_find(machine, &out->machine);
    if (!code)
        code = sim_shape_find(model, tp, false, &out->shape);
    if (!code)
        code = sim_slot_bytes(&out->shape, &out->slot_bytes);
    if (!code)
        code = sim_synthetic_read(routing, seed, &config);
    return code ? code : sim_synthetic_open(&config, &out->source);
}

static int open_routes(const sim_findings *study, sim_bench *bench)
{
    sim_trace *trace = sim_study_open_trace(study);
    if (!trace)
        return RUN_REFUSED;
    bench->source->close(bench->source);
    bench->source = &trace->source;
    return RUN_OK;
}

int sim_bench_open_recorded(const char *machine, const char *model, uint64_t seed,
                            const sim_findings *study, sim_bench *out)
{
    int code = sim_bench_open(machine, model, 1, model, seed, out);
    if (code || strcmp(model, "gpt-oss-20b"))
        return code;
    code = sim_shape_find(model, 1, true, &out->shape);
    return code || !study->traces ? code : open_routes(study, out);
}

void sim_bench_close(sim_bench *bench)
{
    if (bench->source)
        bench->source->close(bench->source);
    *bench = (sim_bench){0};
}

sim_serve_config sim_bench_config(const sim_bench *bench)
{
    return (sim_serve_config){.stack = {.machine = &bench->machine,
                                        .shape = &bench->shape,
                                        .regime = MOEPAGE_REGIME_CACHE,
                                        .prefetch = MOEPAGE_PREFETCH_OFF,
                                        .block_tokens = 16,
                                        .blocks_per_granule = 1},
                              .source = bench->source,
                              .concurrency = 1};
}

sim_serve_config sim_bench_budget(const sim_bench *bench, uint32_t percent, uint64_t seed)
{
    const sim_shape *shape = &bench->shape;
    sim_serve_config config = sim_bench_config(bench);
    config.stack.arena_bytes =
        shape->expert_bytes * shape->experts * shape->moe_layers * percent / 100;
    config.seed = seed;
    config.quiet = true;
    sim_fix_granule(&config.stack);
    return config;
}

const char *sim_bench_regime(uint32_t regime)
{
    static const char *const names[] = {"auto", "cache", "stream"};
    return names[regime];
}

double sim_bench_rate(const sim_result *r)
{
    if (r->n_samples < 2)
        return 0;
    const sim_serve_sample *a = &r->samples[(r->n_samples - 1) / 2];
    const sim_serve_sample *b = &r->samples[r->n_samples - 1];
    return (double)(b->output_tokens - a->output_tokens) / (double)(b->ns - a->ns) * 1e9;
}

static void find_pace(sim_pace *out)
{
    const sim_result *r = &out->result;
    if (r->n_samples < 2)
        return;
    uint32_t from = (r->n_samples - 1) / 2;
    for (uint32_t i = from; i < r->n_samples; i++)
        out->batch += (double)r->samples[i].running / (r->n_samples - from);
    out->tokens_per_s = sim_bench_rate(r);
    out->step_ns = out->batch / out->tokens_per_s * 1e9;
}

int sim_bench_run(const sim_serve_config *config, sim_pace *out)
{
    *out = (sim_pace){0};
    int code = sim_serve(config, NULL, NULL, &out->result);
    if (code)
        return code;
    find_pace(out);
    return RUN_OK;
}

int sim_bench_batch(uint32_t n, uint32_t context, uint32_t rounds, sim_jobs *out)
{
    const uint32_t shortest = 128;
    *out = (sim_jobs){.jobs = calloc((size_t)n * rounds, sizeof *out->jobs), .n = n * rounds};
    if (!out->jobs)
        return fail_memory();
    for (uint32_t i = 0; i < out->n; i++) {
        uint32_t phase = i < n ? (uint32_t)((uint64_t)(context - shortest) * i / n) : 0;
        out->jobs[i] = (sim_job){.after = i < n ? SIM_NO_JOB : i - n,
                                 .prompt_tokens = shortest + phase,
                                 .output_tokens = context - shortest - phase,
                                 .parent = SIM_NO_JOB,
                                 .session = i,
                                 .route = i};
    }
    out->sessions = out->n;
    return RUN_OK;
}

/* Returns an exponential variate of mean 1. */
static double exponential(uint64_t *random)
{
    return -log1p(-ldexp((double)(sim_random(random) >> 11), -53));
}

int sim_bench_poisson(const sim_bench *bench, uint32_t n, uint32_t prompt, uint32_t answer,
                      double rate, uint64_t seed, sim_jobs *out)
{
    int code = sim_jobs_plain(n, prompt, answer, 0, out);
    double at_s = 0;
    for (uint32_t i = 0; i < n && !code; i++) {
        out->jobs[i].output_tokens = 1 + (uint32_t)(answer * exponential(&seed));
        out->jobs[i].arrival_ns = (uint64_t)(at_s * 1e9);
        at_s += rate > 0 ? exponential(&seed) / rate : 0;
    }
    return code ? code : sim_jobs_bind(out, bench->source->n_requests, NULL, 0);
}
