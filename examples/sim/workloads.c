/* The table of workloads, and their preparation for serving. */
#include "sim/workloads.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/fail.h"
#include "sim/configure.h"

#define SHAPE "gpt-oss-20b"
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

/* Name, machine, bytes per weight, kind of KV miss, concurrency, budget. */
#define ON(n, m, bytes, miss, c, budget)                                            \
    .name = n, .machine = m, .f8 = bytes == 1, .recompute = miss, .concurrency = c, \
    .budget_percent = budget
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

/* Binds each session to routing of one kind: a dataset's category. */
static int bind(const sim_trace *trace, sim_jobs *jobs)
{
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

int sim_scene_open(const sim_workload *workload, const sim_trace *trace, const char *requests,
                   uint32_t phases, sim_scene *out)
{
    *out = (sim_scene){0};
    int code = sim_machine_find(workload->machine, &out->machine);
    if (!code)
        code = sim_shape_find(SHAPE, 1, workload->f8, &out->shape);
    if (!code)
        code = make_jobs(workload, requests, phases, &out->jobs);
    if (!code)
        code = bind(trace, &out->jobs);
    if (code) {
        sim_scene_close(out);
        return code;
    }
    const sim_shape *shape = &out->shape;
    double experts = (double)shape->expert_bytes * shape->experts * shape->moe_layers;
    out->config =
        (sim_serve_config){.stack = {.machine = &out->machine,
                                     .shape = shape,
                                     .arena_bytes =
                                         (uint64_t)(experts * workload->budget_percent / 100),
                                     .block_tokens = BLOCK_TOKENS},
                           .jobs = &out->jobs,
                           .source = &trace->source,
                           .concurrency = workload->concurrency,
                           .recompute = workload->recompute,
                           .quiet = true};
    sim_fix_granule(&out->config.stack);
    return RUN_OK;
}

void sim_scene_close(sim_scene *scene)
{
    sim_jobs_free(&scene->jobs);
}
