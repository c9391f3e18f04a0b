/* The serving loop and its measurements. */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/fail.h"
#include "serve/dashboard.h"
#include "serve/interrupt.h"
#include "serve/room.h"
#include "serve/scrape.h"

/* A step's duration on the virtual clock, whatever it does: arrivals and work then interleave
 * identically in every run. It says nothing about speed. */
#define VIRTUAL_STEP_NS 1000000u
#define VIRTUAL_TOKEN_NS 250000u
#define LONGEST_SLEEP_NS 50000000u /* keeps the dashboard alive and signals noticed */
#define FIRST_SAMPLE_EVERY 8u      /* steps */

/* ---- Time -------------------------------------------------------------------------------- */

uint64_t server_now_ns(const server *s)
{
    return s->clock.is_virtual ? s->clock.virtual_ns : clock_now_ns() - s->clock.start_ns;
}

static uint32_t step_tokens(const server *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_shares; i++)
        n += s->shares[i].n_tokens;
    return n;
}

/* Sleeps until the next arrival. */
static void idle(server *s)
{
    uint64_t at = 0, now = server_now_ns(s);
    if (!schedule_next_arrival(&s->schedule, &at) || at <= now)
        return;
    if (s->clock.is_virtual) {
        s->clock.virtual_ns = at;
    } else {
        uint64_t ns = at - now < LONGEST_SLEEP_NS ? at - now : LONGEST_SLEEP_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    }
    s->result->idle_ns += server_now_ns(s) - now;
}

/* ---- A step ------------------------------------------------------------------------------ */

static int run_step(server *s)
{
    for (uint32_t i = 0; i < s->n_shares; i++) {
        const schedule_share *share = &s->shares[i];
        const server_request *r = &s->requests[share->request];
        uint32_t fed = s->schedule.requests[share->request].fed;
        s->inputs[i] =
            (decoder_input){.seq = r->seq,
                            .tokens = r->tokens + fed,
                            .n_tokens = share->n_tokens,
                            .phase = share->prefill ? MOEPAGE_PHASE_PREFILL : MOEPAGE_PHASE_DECODE,
                            .position = fed};
    }
    return decoder_step(&s->engine.decoder, s->inputs, s->n_shares);
}

static int note_token(server *s, uint32_t request, uint64_t now_ns)
{
    request_times *t = &s->times[request];
    if (!t->tokens)
        t->first_ns = now_ns;
    else if (!gaps_add(&s->gaps, now_ns - t->last_ns))
        return fail_memory();
    t->last_ns = now_ns;
    t->tokens++;
    s->result->output_tokens++;
    return RUN_OK;
}

/* Samples the request's next token from these logits. */
static int take_token(server *s, uint32_t request, const float *logits, uint64_t now_ns)
{
    server_request *r = &s->requests[request];
    const schedule_request *q = &s->schedule.requests[request];
    r->tokens[q->prompt_tokens + q->generated] =
        sampler_next(&s->engine.sampler, &r->random, logits);
    int code = note_token(s, request, now_ns);
    if (code || !schedule_generated(&s->schedule, request))
        return code;
    s->times[request].done = true;
    return room_free(s, request);
}

/* Lists the requests whose next token is due, and the row that it follows from, once the step's
 * tokens are in the cache. */
static uint32_t list_rows(server *s)
{
    uint32_t row = 0, n = 0;
    for (uint32_t i = 0; i < s->n_shares; i++) {
        const schedule_share *share = &s->shares[i];
        row += share->n_tokens;
        if (share->prefill)
            s->result->prompt_tokens += share->n_tokens;
        if (schedule_fed(&s->schedule, share))
            s->rows[n++] = (server_row){row - 1, share->request};
    }
    return n;
}

/* Computes the logits of adjacent rows together. */
static int take_tokens(server *s)
{
    const size_t width = s->config->engine.model->vocabulary;
    const uint32_t n_rows = list_rows(s);
    int code = RUN_OK;
    for (uint32_t i = 0, n; i < n_rows && !code; i += n) {
        n = 1;
        while (n < DECODER_LOGIT_ROWS && i + n < n_rows && s->rows[i + n].row == s->rows[i].row + n)
            n++;
        const float *logits = decoder_logits(&s->engine.decoder, s->rows[i].row, n);
        if (!logits)
            return RUN_FAILED;
        uint64_t now_ns = server_now_ns(s);
        for (uint32_t k = 0; k < n && !code; k++)
            code = take_token(s, s->rows[i + k].request, logits + k * width, now_ns);
    }
    return code;
}

static void count_step(server *s)
{
    bool prefill = false, decode = false;
    for (uint32_t i = 0; i < s->n_shares; i++) {
        prefill |= s->shares[i].prefill;
        decode |= !s->shares[i].prefill;
    }
    s->result->steps++;
    s->result->prefill_steps += prefill;
    s->result->mixed_steps += prefill && decode;
    s->clock.virtual_ns += VIRTUAL_STEP_NS + (uint64_t)VIRTUAL_TOKEN_NS * step_tokens(s);
}

/* ---- Between steps ----------------------------------------------------------------------- */

/* Runs the controller. A move that waits for used KV blocks preempts the lowest-ranked requests. */
static int tick(server *s)
{
    moepage_controller_report *report = &s->result->split;
    if (!s->engine.controller)
        return RUN_OK;
    report->struct_size = sizeof *report;
    uint64_t start = clock_now_ns();
    if (moepage_controller_tick(s->engine.controller, s->engine.decoder.dense->stream, report))
        return fail_library(RUN_FAILED, "the controller");
    s->result->tick_ns += clock_now_ns() - start;
    return server_draining(s) ? room_shrink(s, report->target_blocks) : RUN_OK;
}

int server_look(server *s)
{
    server_result *r = s->result;
    r->experts = (moepage_expert_pool_info){.struct_size = sizeof r->experts};
    r->kv = (moepage_kv_pool_info){.struct_size = sizeof r->kv};
    r->session = (moepage_session_stats){.struct_size = sizeof r->session};
    if (moepage_expert_pool_get_info(s->engine.host.experts, &r->experts) ||
        moepage_kv_pool_get_info(s->engine.host.kv, &r->kv) ||
        moepage_session_get_stats(s->engine.host.session, &r->session))
        return fail_library(RUN_FAILED, "statistics");
    return RUN_OK;
}

/* Takes a sample. When the samples are full, drops every other one and samples half as often from
 * then on. */
static int sample(server *s)
{
    server_result *r = s->result;
    if (r->steps % s->sample_every)
        return RUN_OK;
    if (r->n_samples == SERVER_SAMPLES) {
        for (uint32_t i = 0; i < SERVER_SAMPLES / 2; i++)
            r->samples[i] = r->samples[2 * i];
        r->n_samples = SERVER_SAMPLES / 2;
        s->sample_every *= 2;
    }
    int code = server_look(s);
    r->samples[r->n_samples++] = (server_sample){.ns = server_now_ns(s),
                                                 .slots = r->experts.slots,
                                                 .blocks = r->kv.blocks - r->kv.lent_blocks,
                                                 .used_blocks = r->kv.blocks - r->kv.free_blocks,
                                                 .tokens = r->output_tokens,
                                                 .running = s->schedule.n_running,
                                                 .waiting = schedule_waiting(&s->schedule),
                                                 .preempted = s->schedule.n_preempted};
    return code;
}

/* ---- The loop ---------------------------------------------------------------------------- */

static int step(server *s)
{
    s->unblocked = 0;
    s->n_shares = schedule_plan(&s->schedule, s->shares);
    int code = room_reserve(s);
    if (!code)
        code = run_step(s);
    if (!code) {
        count_step(s);
        code = take_tokens(s);
    }
    if (!code)
        code = tick(s);
    return code ? code : sample(s);
}

/* Resolves the case that no request runs and yet the next one does not fit: a move of the split is
 * about to take the blocks. Without sequences in its way it ends with the next tick. */
static int unblock(server *s)
{
    if (s->unblocked++)
        return fail(RUN_FAILED, "request %u does not fit even with the whole KV pool to itself",
                    schedule_candidate(&s->schedule));
    return tick(s);
}

/* Returns true if a KV-blind controller has taken blocks that the longest request needs: a
 * rehearsal cannot continue then. */
static bool is_starved(const server *s)
{
    return s->config->floor_blocks && s->result->split.struct_size &&
           s->result->split.kv_blocks < s->config->floor_blocks;
}

static int serve(server *s)
{
    int code = RUN_OK;
    while (!code && !schedule_finished(&s->schedule) && !interrupt_seen() && !is_starved(s)) {
        schedule_arrive(&s->schedule, server_now_ns(s));
        code = room_let_in(s);
        if (code)
            break;
        if (s->schedule.n_running)
            code = step(s);
        else if (schedule_candidate(&s->schedule) != SCHEDULE_NONE)
            code = unblock(s);
        else
            idle(s);
        if (!code)
            code = dashboard_show(s);
        if (!code)
            code = scrape(s, false);
    }
    return code;
}

/* ---- Set-up and results ------------------------------------------------------------------ */

static int open_requests(server *s)
{
    const arrivals *a = s->config->arrivals;
    const uint32_t n = s->config->n_requests;
    s->requests = calloc(n, sizeof *s->requests);
    s->times = calloc(n, sizeof *s->times);
    s->result->answers = calloc(n, sizeof *s->result->answers);
    if (!s->requests || !s->times || !s->result->answers)
        return fail_memory();
    s->result->requests = n;
    for (uint32_t i = 0; i < n; i++) {
        const schedule_request *q = &a->requests[i];
        server_request *r = &s->requests[i];
        s->times[i].arrival_ns = q->arrival_ns;
        r->random = sampler_seed(s->config->options->base.seed, i);
        r->tokens = calloc((size_t)q->prompt_tokens + q->output_tokens, sizeof *r->tokens);
        if (!r->tokens)
            return fail_memory();
        memcpy(r->tokens, a->tokens[i], q->prompt_tokens * sizeof *r->tokens);
    }
    return RUN_OK;
}

static int open_server(server *s)
{
    const serve_options *o = s->config->options;
    s->shares = calloc(o->concurrency, sizeof *s->shares);
    s->inputs = calloc(o->concurrency, sizeof *s->inputs);
    s->rows = calloc(o->concurrency, sizeof *s->rows);
    if (!s->shares || !s->inputs || !s->rows ||
        !schedule_open(s->config->arrivals->requests, s->config->n_requests, o->concurrency,
                       o->step_tokens, &s->schedule))
        return fail_memory();
    int code = open_requests(s);
    if (!code)
        code = engine_open(&s->config->engine, &s->engine);
    if (!code)
        code = server_look(s);
    if (code)
        return code;
    s->result->first_slots = s->result->experts.slots;
    s->result->first_blocks = s->result->kv.blocks;
    s->result->block_bytes = s->result->kv.block_bytes;
    s->sample_every = FIRST_SAMPLE_EVERY;
    s->clock =
        (server_clock){.is_virtual = o->clock == SERVE_CLOCK_VIRTUAL, .start_ns = clock_now_ns()};
    return RUN_OK;
}

/* Checks that each request is in exactly one list, and that finished ones have their whole answer,
 * so that the report matches what was served. */
static int check_books(const server *s)
{
    const schedule *q = &s->schedule;
    uint64_t tokens = 0;
    uint32_t done = 0, refused = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        const schedule_request *r = &q->requests[i];
        done += r->state == SCHEDULE_DONE;
        refused += r->state == SCHEDULE_REFUSED;
        tokens += s->times[i].tokens;
        if (s->times[i].tokens != r->generated || s->times[i].done != (r->state == SCHEDULE_DONE) ||
            (r->state == SCHEDULE_DONE && r->generated != r->output_tokens))
            return fail(RUN_FAILED, "request %u: %u tokens were generated, %u are recorded", i,
                        s->times[i].tokens, r->generated);
    }
    if (done != q->n_done || refused != q->n_refused || tokens != s->result->output_tokens ||
        (!s->result->interrupted && !is_starved(s) && done + refused != q->n))
        return fail(RUN_FAILED, "of %u requests %u are done and %u refused: some were lost", q->n,
                    done, refused);
    return RUN_OK;
}

static int sum_up(server *s)
{
    server_result *r = s->result;
    int code = server_look(s);
    r->device = (moepage_device_info){.struct_size = sizeof r->device};
    r->control = (moepage_controller_info){.struct_size = sizeof r->control};
    if (!code &&
        (moepage_device_get_info(s->engine.host.device, &r->device) ||
         (s->engine.controller && moepage_controller_get_info(s->engine.controller, &r->control))))
        code = fail_library(RUN_FAILED, "statistics");
    r->wall_ns = server_now_ns(s);
    r->real_ns = clock_now_ns() - s->clock.start_ns;
    r->interrupted = schedule_finished(&s->schedule) ? 0 : interrupt_seen();
    r->done = s->schedule.n_done;
    r->refused = s->schedule.n_refused;
    r->arrived = s->schedule.n_arrived;
    r->preemptions = s->schedule.preemptions;
    if (!code && !times_sum(s->times, s->schedule.n, &s->gaps, &r->times))
        code = fail_memory();
    if (!code)
        code = check_books(s);
    if (!code)
        code = room_close(s);
    if (!code)
        code = server_look(s); /* final state of the pools */
    if (!code && !s->config->quiet)
        code = host_save_predictor(s->config->engine.options, &s->engine.host);
    return code ? code : scrape(s, true);
}

/* Moves answers to the result. */
static void hand_over(server *s)
{
    server_answer *answers = s->result->answers;
    for (uint32_t i = 0; s->requests && i < s->config->n_requests; i++) {
        const schedule_request *q = &s->config->arrivals->requests[i];
        uint32_t *tokens = s->requests[i].tokens;
        if (!answers || !s->times || !s->schedule.requests) {
            free(tokens);
            continue;
        }
        if (tokens)
            memmove(tokens, tokens + q->prompt_tokens, q->output_tokens * sizeof *tokens);
        answers[i] = (server_answer){.state = s->schedule.requests[i].state,
                                     .preemptions = s->schedule.requests[i].preemptions,
                                     .tokens = tokens,
                                     .times = s->times[i]};
    }
}

static void close_server(server *s)
{
    hand_over(s);
    schedule_close(&s->schedule);
    free(s->requests);
    free(s->times);
    free(s->gaps.ms);
    free(s->shares);
    free(s->inputs);
    free(s->rows);
}

int server_run(const server_config *config, server_result *result)
{
    server s = {.config = config, .result = result};
    *result = (server_result){0};
    int code = open_server(&s);
    if (!code)
        code = serve(&s);
    if (!code) /* otherwise the dashboard's removal would clear the failure's line */
        dashboard_clear(&s);
    if (!code)
        code = sum_up(&s);
    close_server(&s);
    int closed = engine_close(&s.engine);
    code = code ? code : closed;
    result->ran = !code;
    return code;
}

void server_result_free(server_result *result)
{
    for (uint32_t i = 0; result->answers && i < result->requests; i++)
        free(result->answers[i].tokens);
    free(result->answers);
    *result = (server_result){0};
}
