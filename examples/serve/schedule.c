/* Ranks, queues and shares. */
#include "serve/schedule.h"

#include <stdlib.h>
#include <string.h>

static bool is_sound(const schedule_request *requests, uint32_t n, uint32_t concurrency,
                     uint32_t step_tokens)
{
    for (uint32_t i = 0; i < n; i++)
        if (!requests[i].prompt_tokens || !requests[i].output_tokens ||
            (i && requests[i].arrival_ns < requests[i - 1].arrival_ns))
            return false;
    return concurrency && step_tokens > concurrency;
}

bool schedule_open(const schedule_request *requests, uint32_t n, uint32_t concurrency,
                   uint32_t step_tokens, schedule *out)
{
    *out = (schedule){.n = n, .concurrency = concurrency, .step_tokens = step_tokens};
    if (!is_sound(requests, n, concurrency, step_tokens))
        return false;
    out->requests = calloc(n ? n : 1, sizeof *out->requests);
    out->running = calloc(concurrency, sizeof *out->running);
    out->preempted = calloc(concurrency, sizeof *out->preempted);
    if (!out->requests || !out->running || !out->preempted)
        return false;
    for (uint32_t i = 0; i < n; i++)
        out->requests[i] = (schedule_request){.arrival_ns = requests[i].arrival_ns,
                                              .prompt_tokens = requests[i].prompt_tokens,
                                              .output_tokens = requests[i].output_tokens};
    return true;
}

void schedule_close(schedule *s)
{
    free(s->requests);
    free(s->running);
    free(s->preempted);
    *s = (schedule){0};
}

/* ---- Lists by rank ----------------------------------------------------------------------- */

static void insert(uint32_t *list, uint32_t *n, uint32_t request)
{
    uint32_t at = (*n)++;
    for (; at && list[at - 1] > request; at--)
        list[at] = list[at - 1];
    list[at] = request;
}

static void take_out(uint32_t *list, uint32_t *n, uint32_t request)
{
    uint32_t at = 0;
    while (list[at] != request)
        at++;
    memmove(list + at, list + at + 1, (--*n - at) * sizeof *list);
}

/* ---- Arrivals ---------------------------------------------------------------------------- */

void schedule_arrive(schedule *s, uint64_t now_ns)
{
    while (s->n_arrived < s->n && s->requests[s->n_arrived].arrival_ns <= now_ns)
        s->requests[s->n_arrived++].state = SCHEDULE_WAITING;
}

bool schedule_next_arrival(const schedule *s, uint64_t *at_ns)
{
    if (s->n_arrived == s->n)
        return false;
    *at_ns = s->requests[s->n_arrived].arrival_ns;
    return true;
}

/* ---- Admission and preemption ----------------------------------------------------------- */

/* Returns the next candidate. New requests wait while any preempted one does: at most `concurrency`
 * requests are admitted, preempted or not, and they rank above all those never admitted. */
uint32_t schedule_candidate(const schedule *s)
{
    if (s->n_preempted)
        return s->preempted[0];
    return s->next_new < s->n_arrived && s->n_running < s->concurrency ? s->next_new
                                                                       : SCHEDULE_NONE;
}

void schedule_let_in(schedule *s, uint32_t request)
{
    schedule_request *r = &s->requests[request];
    if (r->state == SCHEDULE_PREEMPTED)
        take_out(s->preempted, &s->n_preempted, request);
    else
        s->next_new++;
    r->state = SCHEDULE_RUNNING;
    insert(s->running, &s->n_running, request);
}

void schedule_refuse(schedule *s, uint32_t request)
{
    s->requests[request].state = SCHEDULE_REFUSED;
    s->next_new++;
    s->n_refused++;
}

uint32_t schedule_victim(const schedule *s)
{
    return s->n_running > 1 ? s->running[s->n_running - 1] : SCHEDULE_NONE;
}

void schedule_preempt(schedule *s, uint32_t request)
{
    schedule_request *r = &s->requests[request];
    take_out(s->running, &s->n_running, request);
    insert(s->preempted, &s->n_preempted, request);
    r->state = SCHEDULE_PREEMPTED;
    r->preemptions++;
    s->preemptions++;
}

/* ---- Steps ------------------------------------------------------------------------------- */

uint32_t schedule_prompt_left(const schedule *s, uint32_t request)
{
    const schedule_request *r = &s->requests[request];
    return r->fed < r->prompt_tokens ? r->prompt_tokens - r->fed : 0;
}

uint32_t schedule_plan(const schedule *s, schedule_share *shares)
{
    uint32_t n = 0, room = s->step_tokens;
    for (uint32_t i = 0; i < s->n_running; i++)
        room -= !schedule_prompt_left(s, s->running[i]);
    for (uint32_t i = 0; i < s->n_running; i++) {
        uint32_t left = schedule_prompt_left(s, s->running[i]);
        uint32_t chunk = left < room ? left : room;
        if (left && !chunk)
            continue;
        shares[n++] = (schedule_share){s->running[i], left ? chunk : 1, left > 0};
        room -= left ? chunk : 0;
    }
    return n;
}

bool schedule_fed(schedule *s, const schedule_share *share)
{
    schedule_request *r = &s->requests[share->request];
    r->fed += share->n_tokens;
    return r->fed == r->prompt_tokens + r->generated;
}

bool schedule_generated(schedule *s, uint32_t request)
{
    schedule_request *r = &s->requests[request];
    if (++r->generated < r->output_tokens)
        return false;
    take_out(s->running, &s->n_running, request);
    r->state = SCHEDULE_DONE;
    s->n_done++;
    return true;
}
