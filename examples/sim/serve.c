/* The loop of a serving host, and its results. */
#include "sim/serve.h"

#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/order.h"
#include "sim/serve_inside.h"

#define FIRST_SAMPLE_EVERY 16u /* steps */

void sim_host_charge(sim_host *host, uint64_t *counter)
{
    uint64_t now = sim_stack_now(&host->stack);
    *counter += now - host->clock_ns;
    host->clock_ns = now;
}

/* ---- The split over time ----------------------------------------------------------------- */

/* Drops every other sample when they are full, and samples half as often from then on. */
static void thin_out(sim_host *host)
{
    sim_result *result = host->result;
    for (uint32_t i = 0; i < SIM_SAMPLES / 2; i++)
        result->samples[i] = result->samples[2 * i];
    result->n_samples = SIM_SAMPLES / 2;
    host->sample_every *= 2;
}

static int look_at_pools(sim_host *host, moepage_expert_pool_info *experts,
                         moepage_kv_pool_info *kv)
{
    *experts = (moepage_expert_pool_info){.struct_size = sizeof *experts};
    *kv = (moepage_kv_pool_info){.struct_size = sizeof *kv};
    if (moepage_expert_pool_get_info(host->stack.experts, experts) ||
        moepage_kv_pool_get_info(host->stack.kv, kv))
        return fail_library(RUN_FAILED, "looking at the pools");
    return RUN_OK;
}

static int sample(sim_host *host)
{
    sim_result *result = host->result;
    if (result->steps % host->sample_every)
        return RUN_OK;
    if (result->n_samples == SIM_SAMPLES)
        thin_out(host);
    moepage_expert_pool_info experts;
    moepage_kv_pool_info kv;
    int code = look_at_pools(host, &experts, &kv);
    result->samples[result->n_samples++] =
        (sim_serve_sample){.ns = sim_stack_now(&host->stack) - host->start_ns,
                           .expert_slots = experts.slots,
                           .kv_blocks = kv.blocks - kv.lent_blocks,
                           .used_blocks = kv.blocks - kv.free_blocks,
                           .output_tokens = result->output_tokens,
                           .rows = result->rows,
                           .low_rows = result->low_rows,
                           .running = host->n_running,
                           .compressed = experts.compressed_experts};
    return code;
}

/* Runs the controller. A move that waits for used KV blocks takes them from the prefix cache. */
static int tick(sim_host *host)
{
    moepage_controller_report report = {.struct_size = sizeof report};
    if (!host->stack.controller)
        return RUN_OK;
    uint64_t before = host->result->swap_ns;
    if (moepage_controller_tick(host->stack.controller, NULL, &report))
        return fail_library(RUN_FAILED, "the controller");
    int code = RUN_OK;
    if (report.outcome == MOEPAGE_CONTROL_DRAINING && report.target_blocks < report.kv_blocks)
        code = sim_kv_shrink_to(host, report.target_blocks);
    sim_host_charge(host, &host->result->swap_ns);
    host->result->move_ns += host->result->swap_ns - before;
    return code;
}

/* ---- Admission --------------------------------------------------------------------------- */

static int refuse(sim_host *host, uint32_t job)
{
    sim_queue_pop(host);
    host->times[job].refused = true;
    host->result->refused++;
    sim_queue_done(host, job);
    return RUN_OK;
}

static int start(sim_host *host, uint32_t job, uint32_t tokens)
{
    const sim_job *j = &host->jobs->jobs[job];
    sim_running *r = &host->running[host->n_running];
    void *stream = host->running[host->n_running + host->n_preempted].stream;
    memmove(r + 1, r, host->n_preempted * sizeof *r);
    host->n_running++;
    sim_queue_pop(host);
    *r = (sim_running){.job = job,
                       .tokens = tokens,
                       .known = j->prefix_tokens,
                       .since = host->result->steps,
                       .stream = stream};
    host->source->open(host->source, j->route, stream);
    bool fits;
    if (!host->config->prompts_known || tokens + 1 >= j->prompt_tokens)
        return RUN_OK;
    return sim_kv_grow(host, r, j->prompt_tokens - 1 - tokens, &fits); /* there is room */
}

/* Returns true if the longest-running sequence has used up its time slice. */
static bool may_rotate(const sim_host *host)
{
    uint32_t slice = host->config->slice_steps;
    return slice && host->n_running && host->result->steps - host->running[0].since >= slice;
}

/* Resumes preempted sequences: each that waits now once, in place of those whose time slice is
 * over. */
static int resume(sim_host *host)
{
    int code = RUN_OK;
    for (uint32_t waiting = host->n_preempted;
         waiting && !code && host->n_running < host->config->concurrency;) {
        bool fits;
        code = sim_kv_resume(host, &fits);
        waiting -= !code && fits;
        if (code || fits)
            continue;
        if (!may_rotate(host))
            break;
        code = sim_kv_rotate(host);
    }
    return code;
}

/* Admits the job that has been ready longest; no other may overtake it. */
static int admit_next(sim_host *host, bool *goes_on)
{
    uint64_t at;
    uint32_t job = sim_queue_peek(host, &at), tokens;
    bool fits;
    *goes_on = false;
    if (job == SIM_NO_JOB)
        return RUN_OK;
    int code = sim_kv_admit(host, job, &fits, &tokens);
    if (code)
        return code;
    if (!fits && may_rotate(host)) {
        *goes_on = true;
        return sim_kv_rotate(host);
    }
    if (fits)
        code = start(host, job, tokens);
    else if (!host->n_running)
        code = refuse(host, job);
    else if (host->blocked != job)
        host->result->blocked++;
    host->blocked = job;
    *goes_on = fits;
    return code;
}

/* Asks the KV pool whether one more should run. Where none runs one may: the pool does not know that those of the last
 * step have ended, if their KV is kept for another turn. */
static int may_run(const sim_host *host, bool *out)
{
    uint64_t none = 0;
    moepage_kv_admission answer = {.struct_size = sizeof answer};
    *out = host->n_running + host->n_preempted < host->config->concurrency;
    if (!host->config->admission || !host->n_running || !*out)
        return RUN_OK;
    if (moepage_kv_admit(host->stack.kv, &none, 1, &answer))
        return fail_library(RUN_FAILED, "asking to run one more");
    *out = answer.fits;
    return RUN_OK;
}

static int admit_jobs(sim_host *host)
{
    bool goes_on = true;
    int code = RUN_OK;
    while (!code && goes_on) {
        code = may_run(host, &goes_on);
        if (!code && goes_on)
            code = admit_next(host, &goes_on);
    }
    return code;
}

/* Admits preempted sequences first, and no other job while they wait; with time slices, every job
 * is admitted once before any has a second slice. */
static int admit(sim_host *host)
{
    bool turns = host->config->slice_steps > 0;
    int code = turns ? admit_jobs(host) : RUN_OK;
    if (!code)
        code = resume(host);
    return code || turns || host->n_preempted ? code : admit_jobs(host);
}

static int wait_for_jobs(sim_host *host)
{
    uint64_t at;
    sim_queue_peek(host, &at);
    mp_sim_idle_until(host->stack.clock, at);
    sim_host_charge(host, &host->result->idle_ns);
    return RUN_OK;
}

static int serve(sim_host *host)
{
    uint64_t most = host->config->most_steps ? host->config->most_steps : UINT64_MAX;
    int code = RUN_OK;
    while (!code && host->n_done < host->jobs->n && host->result->steps < most) {
        code = admit(host);
        if (code || host->n_done == host->jobs->n)
            break;
        if (!host->n_running) {
            code = host->n_preempted ? fail(RUN_FAILED, "preempted jobs cannot come back")
                                     : wait_for_jobs(host);
            continue;
        }
        code = sim_host_step(host);
        if (!code)
            code = tick(host);
        if (!code)
            code = sample(host);
    }
    return code;
}

/* ---- Results ----------------------------------------------------------------------------- */

/* By nearest rank. */
static sim_spread spread(double *values, uint32_t n)
{
    sim_spread s = {0};
    if (!n)
        return s;
    qsort(values, n, sizeof *values, order_doubles);
    for (uint32_t i = 0; i < n; i++)
        s.mean += values[i] / n;
    s.p50 = values[(n - 1) / 2];
    s.p90 = values[(uint32_t)((n - 1) * 0.9)];
    s.p99 = values[(uint32_t)((n - 1) * 0.99)];
    return s;
}

static int summarise_times(sim_host *host)
{
    uint32_t n = 0, n_tokens = 0;
    double *first = malloc(3 * (size_t)host->jobs->n * sizeof *first);
    if (!first)
        return fail_memory();
    double *whole = first + host->jobs->n, *token = whole + host->jobs->n;
    uint32_t done = 0;
    for (uint32_t i = 0; i < host->jobs->n; i++) {
        const sim_job_times *t = &host->times[i];
        uint32_t tokens = host->jobs->jobs[i].output_tokens;
        if (!t->end_ns)
            continue;
        done++;
        if (i < host->config->first_jobs)
            continue;
        first[n] = (double)(t->first_ns - t->ready_ns);
        whole[n++] = (double)(t->end_ns - t->ready_ns);
        if (tokens > 1)
            token[n_tokens++] = (double)(t->end_ns - t->first_ns) / (tokens - 1);
    }
    host->result->jobs = done;
    host->result->ttft_ns = spread(first, n);
    host->result->job_ns = spread(whole, n);
    host->result->token_ns = spread(token, n_tokens);
    free(first);
    return RUN_OK;
}

static double prompt_token_ns(const sim_host *host)
{
    uint64_t others = host->result->steps - host->prompt_steps;
    double step_ns = others ? (double)host->other_wall_ns / (double)others : 0;
    double extra_ns = (double)host->prompt_wall_ns - step_ns * (double)host->prompt_steps;
    return host->prompt_tokens && extra_ns > 0 ? extra_ns / (double)host->prompt_tokens : 0;
}

static int summarise(sim_host *host)
{
    sim_result *result = host->result;
    moepage_expert_pool_info experts;
    moepage_kv_pool_info kv;
    mp_sim_usage usage;
    int code = look_at_pools(host, &experts, &kv);
    if (code)
        return code;
    mp_sim_get_usage(host->stack.clock, &usage);
    result->wall_ns = sim_stack_now(&host->stack) - host->start_ns;
    result->prompt_token_ns = prompt_token_ns(host);
    result->expert_bytes = experts.demand_bytes + experts.prefetch_bytes;
    result->prefetch_bytes = experts.prefetch_bytes;
    result->bus_bytes = usage.bus_bytes;
    result->swapped_bytes = (kv.swapped_out_blocks + kv.swapped_in_blocks) * kv.block_bytes;
    result->last_slots = experts.slots;
    result->last_blocks = kv.blocks;
    if (host->stack.controller) {
        result->control.struct_size = sizeof result->control;
        if (moepage_controller_get_info(host->stack.controller, &result->control))
            return fail_library(RUN_FAILED, "the controller");
        result->moves = result->control.moves;
    }
    return summarise_times(host);
}

/* ---- Life cycle -------------------------------------------------------------------------- */

static int check(const sim_serve_config *config)
{
    const sim_shape *s = config->stack.shape;
    const sim_source *source = config->source;
    if (source->layers != s->moe_layers || source->experts != s->experts ||
        source->top_k != s->top_k)
        return fail(
            RUN_REFUSED,
            "%s routes %u of %u experts in %u layers, %s has %u of %u in %u: they must agree",
            source->name, source->top_k, source->experts, source->layers, s->name, s->top_k,
            s->experts, s->moe_layers);
    if (!config->concurrency || !config->jobs->n)
        return fail(RUN_REFUSED, "nothing to serve: no jobs, or a concurrency of 0");
    for (uint32_t i = 0; i < config->jobs->n; i++)
        if (config->jobs->jobs[i].route >= source->n_requests)
            return fail(RUN_REFUSED, "job %u takes the routing of request %u, %s has %u", i,
                        config->jobs->jobs[i].route, source->name, source->n_requests);
    return RUN_OK;
}

static int open_step(sim_host *host)
{
    const sim_source *source = host->source;
    uint32_t most = host->config->concurrency, top_k = source->top_k;
    size_t tokens = host->step_tokens;
    uint64_t stream_bytes = (source->stream_bytes + 7) / 8 * 8;
    host->running = calloc(most + 1u, sizeof *host->running);
    host->streams = calloc(most, stream_bytes ? stream_bytes : 8);
    host->batch = calloc(most, sizeof *host->batch);
    host->sequences = calloc(most, sizeof *host->sequences);
    host->rows = malloc(tokens * source->layers * top_k * sizeof *host->rows);
    host->ids = malloc(tokens * top_k * sizeof *host->ids);
    host->weights = malloc(tokens * top_k * sizeof *host->weights);
    host->hint = calloc(source->experts, sizeof *host->hint);
    host->marks = calloc(source->experts, sizeof *host->marks);
    if (!host->running || !host->streams || !host->batch || !host->sequences || !host->rows ||
        !host->ids || !host->weights || !host->hint || !host->marks)
        return fail_memory();
    for (uint32_t i = 0; i < most; i++)
        host->running[i].stream = (char *)host->streams + i * stream_bytes;
    for (size_t i = 0; i < tokens * top_k; i++)
        host->weights[i] = 1.0f / (float)top_k;
    return RUN_OK;
}

static void close_step(sim_host *host)
{
    free(host->running);
    free(host->streams);
    free(host->batch);
    free(host->sequences);
    free(host->rows);
    free(host->ids);
    free(host->weights);
    free(host->hint);
    free(host->marks);
}

static int warm_up(sim_host *host)
{
    moepage_expert_pool *pool = host->stack.experts;
    for (uint32_t layer = 0; layer < host->config->warm_layers; layer++)
        for (uint32_t expert = 0; expert < host->shape->experts; expert++)
            if (moepage_expert_pool_pin(pool, layer, expert) ||
                moepage_expert_pool_unpin(pool, layer, expert))
                return fail_library(RUN_FAILED, "warming up");
    return RUN_OK;
}

static int open_host(sim_host *host)
{
    moepage_expert_pool_info experts;
    moepage_kv_pool_info kv;
    int code = open_step(host);
    if (!code)
        code = warm_up(host);
    if (!code)
        code = look_at_pools(host, &experts, &kv);
    if (code)
        return code;
    host->start_ns = host->clock_ns = sim_stack_now(&host->stack);
    host->result->slot_bytes = experts.slot_bytes;
    host->result->block_bytes = kv.block_bytes;
    host->result->first_slots = experts.slots;
    host->result->first_blocks = kv.blocks;
    code = sim_own_open(host);
    if (!code)
        code = sim_kv_open(host);
    return code ? code : sim_queue_open(host);
}

int sim_serve(const sim_serve_config *config, sim_inspect_fn inspect, void *user,
              sim_result *result)
{
    sim_host host = {.config = config,
                     .shape = config->stack.shape,
                     .jobs = config->jobs,
                     .source = config->source,
                     .result = result,
                     .step_tokens = sim_stack_step_tokens(&config->stack),
                     .blocked = SIM_NO_JOB,
                     .sample_every =
                         config->sample_steps ? config->sample_steps : FIRST_SAMPLE_EVERY};
    *result = (sim_result){0};
    int code = check(config);
    if (code)
        return code;
    code = sim_stack_open(&config->stack, config->quiet, &host.stack);
    if (code)
        return code == RUN_REFUSED && config->quiet ? RUN_OK : code;
    result->starts = true;
    code = open_host(&host);
    if (!code)
        code = serve(&host);
    if (!code)
        code = summarise(&host);
    if (!code && inspect)
        inspect(user, &host.stack, result);
    sim_queue_close(&host);
    sim_kv_close(&host);
    sim_own_close(&host);
    close_step(&host);
    sim_stack_close(&host.stack);
    return code;
}
