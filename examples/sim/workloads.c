/* The table of workloads, and their preparation for serving. */
#include "sim/workloads.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/configure.h"
#include "sim/study_evictions.h"
#include "sim/synthetic.h"

#define RECORDED "gpt-oss-20b"
#define BLOCK_TOKENS 64u

#define CONV "AzureLLMInferenceTrace_conv.csv"
#define CODE "AzureLLMInferenceTrace_code.csv"
#define MOON "mooncake_conversation.jsonl"

/* Requests of a trace: file, first one, how many, longest context. */
#define FROM(file, first, count, context)                                  \
    {                                                                      \
        .jobs = file, .skip = first, .most = count, .max_context = context \
    }
/* Clients with several sessions each, in random order: clients, sessions, turns, first prompt,
 * tokens added by later ones, output. */
#define CLIENTS(c, s, t, first, later, answer)                            \
    {                                                                     \
        .clients = { c, s, t, first, later, answer, SIM_ORDER_RANDOM, 0 } \
    }

/* The same in rotation, so that a session returns when all others have had a turn. */
#define RING(c, s, t, first, later, answer)                              \
    {                                                                    \
        .clients = { c, s, t, first, later, answer, SIM_ORDER_TURNS, 0 } \
    }

/* Name, machine, bytes per weight, kind of KV miss, concurrency, budget. */
#define ON(n, m, bytes, miss, c, budget)                                            \
    .name = n, .machine = m, .f8 = bytes == 1, .recompute = miss, .concurrency = c, \
    .budget_percent = budget
/* The same with synthetic routes of a model in BF16. */
#define OF(n, model_, m, miss, c, budget) ON(n, m, 2, miss, c, budget), .model = model_
#define OLMOE "olmoe-1b-7b"
#define QWEN3 "qwen3-30b-a3b"
#define V2_LITE "deepseek-v2-lite"
#define AGAIN true
#define SWAP false

const sim_workload sim_workloads[] = {
    {ON("conv-1", "rtx4090", 2, AGAIN, 1, 30), .phase = {FROM(CONV, 0, 40, 4096)}},
    {ON("conv-1-roomy", "a6000", 2, AGAIN, 1, 60), .phase = {FROM(CONV, 2000, 40, 4096)}},
    {ON("conv-2", "l40-pcie4", 2, AGAIN, 2, 40), .phase = {FROM(CONV, 4000, 50, 4096)}},
    {ON("conv-4", "h100-pcie5", 2, AGAIN, 4, 60), .phase = {FROM(CONV, 6000, 60, 4096)}},
    {ON("conv-4-f8", "rtx4090", 1, SWAP, 4, 70), .phase = {FROM(CONV, 8000, 60, 4096)}},
    {ON("conv-8", "h200", 2, AGAIN, 8, 80), .phase = {FROM(CONV, 10000, 80, 4096)}},
    {ON("code-1", "rtx4090", 2, AGAIN, 1, 35), .phase = {FROM(CODE, 0, 60, 8192)}},
    {ON("code-2", "a6000", 2, AGAIN, 2, 50), .phase = {FROM(CODE, 2000, 60, 8192)}},
    {ON("code-4", "h100-pcie5", 1, SWAP, 4, 70), .phase = {FROM(CODE, 4000, 80, 8192)}},
    {ON("code-8", "h200", 2, AGAIN, 8, 85), .phase = {FROM(CODE, 6000, 100, 8192)}},
    {ON("moon-1", "rtx4090", 2, AGAIN, 1, 35), .phase = {FROM(MOON, 0, 40, 8192)}},
    {ON("moon-1-swap", "rtx4090", 2, SWAP, 1, 35), .phase = {FROM(MOON, 0, 40, 8192)}},
    {ON("moon-2", "l40-pcie4", 2, AGAIN, 2, 50), .phase = {FROM(MOON, 400, 40, 8192)}},
    {ON("moon-2-swap", "a6000", 1, SWAP, 2, 50), .phase = {FROM(MOON, 400, 40, 8192)}},
    {ON("moon-4", "h100-pcie5", 2, AGAIN, 4, 75), .phase = {FROM(MOON, 800, 60, 8192)}},
    {ON("moon-4-long", "h100-pcie5", 1, AGAIN, 4, 80), .phase = {FROM(MOON, 1200, 40, 16384)}},
    {ON("moon-8", "h200", 2, AGAIN, 8, 90), .phase = {FROM(MOON, 1600, 60, 8192)}},
    {ON("chat-1", "rtx4090", 2, AGAIN, 1, 30), .phase = {CLIENTS(1, 8, 5, 1000, 200, 100)}},
    {ON("chat-1-many", "rtx4090", 1, AGAIN, 1, 40), .phase = {CLIENTS(1, 24, 4, 1500, 150, 60)}},
    {ON("chat-2", "l40-pcie4", 1, AGAIN, 2, 50), .phase = {CLIENTS(2, 8, 4, 2000, 200, 80)}},
    {ON("chat-2-swap", "l40-pcie4", 1, SWAP, 2, 50), .phase = {CLIENTS(2, 8, 4, 2000, 200, 80)}},
    {ON("chat-4", "h100-pcie5", 2, AGAIN, 4, 70), .phase = {CLIENTS(4, 6, 4, 2000, 200, 80)}},
    {ON("chat-4-long", "h200", 1, AGAIN, 4, 80), .phase = {CLIENTS(4, 4, 3, 6000, 300, 100)}},
    {ON("tools-4", "h100-pcie5", 2, AGAIN, 4, 60), .phase = {CLIENTS(4, 1, 24, 600, 80, 40)}},
    {ON("tools-1", "rtx4090", 2, AGAIN, 1, 25), .phase = {CLIENTS(1, 2, 24, 400, 60, 30)}},
};

const uint32_t sim_n_workloads = sizeof sim_workloads / sizeof *sim_workloads;

const sim_workload sim_synthetic_workloads[] = {
    {OF("olmoe-conv-4", OLMOE, "rtx4090", AGAIN, 4, 60), .phase = {FROM(CONV, 0, 40, 4096)}},
    {OF("olmoe-chat-2", OLMOE, "rtx4090", AGAIN, 2, 50), .phase = {CLIENTS(2, 6, 4, 800, 100, 60)}},
    {OF("qwen3-code-4", QWEN3, "h100-pcie5", AGAIN, 4, 40), .phase = {FROM(CODE, 0, 30, 4096)}},
    {OF("qwen3-tools-2", QWEN3, "h100-pcie5", AGAIN, 2, 30),
     .phase = {CLIENTS(2, 2, 12, 400, 60, 30)}},
    {OF("v2-lite-conv-4", V2_LITE, "a6000", AGAIN, 4, 50), .phase = {FROM(CONV, 2000, 30, 4096)}},
    {OF("v2-lite-chat-2", V2_LITE, "a6000", SWAP, 2, 40),
     .phase = {CLIENTS(2, 6, 4, 1500, 150, 60)}},
};

const sim_workload sim_short_synthetic = {OF("olmoe-short", OLMOE, "rtx4090", AGAIN, 2, 30),
                                          .phase = {CLIENTS(2, 2, 3, 200, 60, 30)}};

const uint32_t sim_n_synthetic_workloads =
    sizeof sim_synthetic_workloads / sizeof *sim_synthetic_workloads;

/* Tool calls revisit a few short contexts; conversations return, much later, to many long ones. */
#define TOOLS(c, s, t) CLIENTS(c, s, t, 400, 60, 30)
#define TALKS(c, s, t) CLIENTS(c, s, t, 6000, 60, 40)

const sim_workload sim_shifts[] = {
    {ON("tools-talks", "rtx4090", 1, AGAIN, 4, 55), .phase = {TOOLS(4, 1, 120), TALKS(1, 16, 12)}},
    {ON("talks-tools", "rtx4090", 1, AGAIN, 4, 55), .phase = {TALKS(1, 16, 12), TOOLS(4, 1, 120)}},
    {ON("tools-talks-tools", "h100-pcie5", 2, AGAIN, 4, 55),
     .phase = {TOOLS(4, 1, 100), TALKS(1, 24, 10), TOOLS(4, 1, 100)}},
    {ON("conv-talks", "l40-pcie4", 1, AGAIN, 4, 60),
     .phase = {FROM(CONV, 0, 80, 4096), TALKS(2, 8, 12)}},
    {ON("talks-code", "l40-pcie4", 1, AGAIN, 4, 60),
     .phase = {TALKS(2, 8, 12), FROM(CODE, 0, 200, 4096)}},
    {ON("code-moon", "h100-pcie5", 1, AGAIN, 2, 60),
     .phase = {FROM(CODE, 0, 120, 8192), FROM(MOON, 0, 40, 8192)}},
    {ON("moon-conv-swap", "h100-pcie5", 1, SWAP, 2, 60),
     .phase = {FROM(MOON, 0, 30, 8192), FROM(CONV, 0, 60, 4096)}},
};

const uint32_t sim_n_shifts = sizeof sim_shifts / sizeof *sim_shifts;

const sim_workload sim_short_shift = {ON("short", "rtx4090", 1, AGAIN, 2, 30),
                                      .phase = {TOOLS(2, 1, 16), RING(1, 6, 4, 900, 60, 20)}};

const sim_workload sim_synthetic_shifts[] = {
    {OF("olmoe-tools-talks", OLMOE, "rtx4090", AGAIN, 4, 60),
     .phase = {TOOLS(4, 1, 60), CLIENTS(1, 10, 8, 2500, 60, 40)}},
    {OF("v2-lite-tools-talks", V2_LITE, "a6000", AGAIN, 4, 40),
     .phase = {TOOLS(4, 1, 60), CLIENTS(1, 16, 8, 4000, 60, 40)}},
};

const uint32_t sim_n_synthetic_shifts = sizeof sim_synthetic_shifts / sizeof *sim_synthetic_shifts;

/* The first has short turns. Sessions of the next two grow, to 9 and 4 times their first prompt. The last one's
 * contexts need a little more than the whole budget. */
const sim_workload sim_rings[] = {
    {ON("tools-ring", "rtx4090", 1, AGAIN, 4, 40),
     .phase = {TOOLS(4, 1, 60), RING(1, 12, 8, 4000, 60, 40)}},
    {ON("tools-growing", "rtx4090", 1, AGAIN, 4, 40),
     .phase = {TOOLS(4, 1, 60), RING(1, 8, 10, 600, 500, 40)}},
    {ON("growing-tools", "rtx4090", 1, AGAIN, 4, 40),
     .phase = {RING(2, 5, 8, 1200, 500, 40), TOOLS(4, 1, 60)}},
    {ON("tools-ring-over", "rtx4090", 1, AGAIN, 4, 20),
     .phase = {TOOLS(4, 1, 60), RING(1, 18, 5, 4400, 60, 40)}},
};

const uint32_t sim_n_rings = sizeof sim_rings / sizeof *sim_rings;

static int make_phase(const sim_phase *phase, const char *requests, sim_jobs *out)
{
    if (!phase->jobs)
        return sim_jobs_closed(&phase->clients, out);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", requests, phase->jobs);
    sim_jobs_config config = {.skip = phase->skip,
                              .most = phase->most,
                              .max_context = phase->max_context};
    return sim_jobs_read(path, &config, out);
}

static int make_jobs(const sim_workload *workload, const char *requests, uint32_t phases,
                     sim_jobs *out)
{
    int code = RUN_OK;
    for (uint32_t i = 0; i < SIM_PHASES && (!phases || i < phases) && !code; i++) {
        const sim_phase *phase = &workload->phase[i];
        sim_jobs jobs = {0};
        if (!phase->jobs && !phase->clients.clients)
            break;
        code = make_phase(phase, requests, &jobs);
        if (!code)
            code = sim_jobs_append(out, &jobs);
        sim_jobs_free(&jobs);
    }
    return code;
}

/* Binds each session to routing of one kind: a dataset's category, or a generated request. */
static int bind(const sim_scene *scene, const sim_trace *trace, sim_jobs *jobs)
{
    if (scene->generator)
        return sim_jobs_bind(jobs, scene->generator->n_requests, NULL, 0);
    uint32_t n = trace->source.n_requests;
    uint32_t *group = malloc(n * sizeof *group);
    if (!group)
        return fail_memory();
    for (uint32_t i = 0; i < n; i++)
        group[i] = trace->requests[i].group;
    int code = sim_jobs_bind(jobs, n, group, trace->n_groups);
    free(group);
    return code;
}

static int open_generator(const sim_workload *workload, uint64_t seed, sim_scene *out)
{
    sim_synthetic config;
    if (!workload->model)
        return RUN_OK;
    int code = sim_synthetic_read(workload->model, seed, &config);
    return code ? code : sim_synthetic_open(&config, &out->generator);
}

static sim_serve_config configure(const sim_workload *workload, const sim_trace *trace,
                                  const sim_scene *scene)
{
    const sim_shape *shape = &scene->shape;
    double experts = (double)shape->expert_bytes * shape->experts * shape->moe_layers;
    sim_serve_config config = {.stack = {.machine = &scene->machine,
                                         .shape = shape,
                                         .arena_bytes =
                                             (uint64_t)(experts * workload->budget_percent / 100),
                                         .block_tokens = BLOCK_TOKENS},
                               .jobs = &scene->jobs,
                               .source = scene->generator ? scene->generator : &trace->source,
                               .concurrency = workload->concurrency,
                               .recompute = workload->recompute,
                               .quiet = true};
    sim_fix_granule(&config.stack);
    return config;
}

int sim_scene_open(const sim_workload *workload, const sim_recordings *recordings, uint32_t phases,
                   uint64_t seed, sim_scene *out)
{
    const char *model = workload->model ? workload->model : RECORDED;
    *out = (sim_scene){0};
    int code = sim_machine_find(workload->machine, &out->machine);
    if (!code)
        code = sim_shape_find(model, 1, workload->f8, &out->shape);
    if (!code)
        code = open_generator(workload, seed, out);
    if (!code)
        code = make_jobs(workload, recordings->requests, phases, &out->jobs);
    if (!code)
        code = bind(out, recordings->routing, &out->jobs);
    if (code)
        sim_scene_close(out);
    else
        out->config = configure(workload, recordings->routing, out);
    return code;
}

void sim_scene_close(sim_scene *scene)
{
    sim_jobs_free(&scene->jobs);
    if (scene->generator)
        scene->generator->close(scene->generator);
    scene->generator = NULL;
}

/* ---- Recordings -------------------------------------------------------------------------- */

int sim_recordings_open(const sim_findings *study, sim_recordings *out)
{
    *out = (sim_recordings){0};
    if (!study->traces)
        return fail(RUN_REFUSED, "this study is of real traces: --trace says in which directory "
                                 "gpt-oss-20b and requests are");
    snprintf(out->requests, sizeof out->requests, "%.4000s/requests", study->traces);
    out->routing = sim_study_open_trace(study);
    return out->routing ? RUN_OK : RUN_REFUSED;
}

void sim_recordings_close(sim_recordings *recordings)
{
    if (recordings->routing)
        recordings->routing->source.close(&recordings->routing->source);
    recordings->routing = NULL;
}
