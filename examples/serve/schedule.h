/* schedule.h — who is served next: continuous batching as a data structure that knows of no device.
 *
 * Requests are known from the start, in the order of their arrivals, and that order is their rank:
 * the earlier the arrival, the higher. What runs is grown from the highest rank down and shrunk from
 * the lowest up: whoever is let in is the highest-ranked that does not run, one that was preempted
 * before one that never ran; whoever is preempted is the lowest-ranked that runs. So nobody starves:
 * the highest-ranked unfinished request, once let in, is never preempted while another runs, and
 * every step takes it on.
 *
 * A step takes one token of every request that decodes and fills up with chunks of prompts, by
 * rank; step_tokens must be above concurrency, so that prompts are never crowded out. */
#ifndef SERVE_SCHEDULE_H
#define SERVE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULE_NONE UINT32_MAX

typedef enum schedule_state {
    SCHEDULE_COMING,  /* has not arrived */
    SCHEDULE_WAITING, /* was never let in */
    SCHEDULE_RUNNING,
    SCHEDULE_PREEMPTED,
    SCHEDULE_DONE,
    SCHEDULE_REFUSED
} schedule_state;

typedef struct schedule_request {
    uint64_t arrival_ns;
    uint32_t prompt_tokens; /* >= 1 */
    uint32_t output_tokens; /* >= 1 */
    uint32_t fed;           /* tokens in the KV cache */
    uint32_t generated;
    uint32_t preemptions;
    schedule_state state;
} schedule_request;

/* One request's part of a step. */
typedef struct schedule_share {
    uint32_t request;
    uint32_t n_tokens;
    bool prefill;
} schedule_share;

typedef struct schedule {
    schedule_request *requests; /* [n] by arrival */
    uint32_t n;
    uint32_t concurrency; /* most that are let in and not finished */
    uint32_t step_tokens;
    uint32_t n_arrived; /* requests[0 .. n_arrived) have come */
    uint32_t next_new;  /* the first that was never let in or refused */
    uint32_t *running;  /* [n_running] by rank */
    uint32_t n_running;
    uint32_t *preempted; /* [n_preempted] by rank */
    uint32_t n_preempted;
    uint32_t n_done, n_refused;
    uint64_t preemptions;
} schedule;

/* Of `n` requests with arrivals in order, copied. false: out of memory, or numbers that contradict
 * what is said above. *out is always safe to close. */
bool schedule_open(const schedule_request *requests, uint32_t n, uint32_t concurrency,
                   uint32_t step_tokens, schedule *out);
void schedule_close(schedule *s);

static inline bool schedule_finished(const schedule *s)
{
    return s->n_done + s->n_refused == s->n;
}

/* Takes in who has arrived by now. */
void schedule_arrive(schedule *s, uint64_t now_ns);
/* When the next one will; false if all have. */
bool schedule_next_arrival(const schedule *s, uint64_t *at_ns);

/* Those that wait, preempted ones not counted. */
static inline uint32_t schedule_waiting(const schedule *s)
{
    return s->n_arrived - s->next_new;
}

/* Who is to be let in before anybody else, SCHEDULE_NONE if nobody waits or `concurrency` are in. */
uint32_t schedule_candidate(const schedule *s);
/* The candidate runs from now on, or never will. */
void schedule_let_in(schedule *s, uint32_t request);
void schedule_refuse(schedule *s, uint32_t request);

/* Who goes when there is no room for all: SCHEDULE_NONE while only one runs. */
uint32_t schedule_victim(const schedule *s);
void schedule_preempt(schedule *s, uint32_t request);

/* Prompt tokens that are not in the KV cache yet; 0: the request decodes. */
uint32_t schedule_prompt_left(const schedule *s, uint32_t request);

/* The next step's shares by rank, [concurrency] of room; returns how many. */
uint32_t schedule_plan(const schedule *s, schedule_share *shares);

/* The share's tokens are in the KV cache; true: the request's next token follows from them. */
bool schedule_fed(schedule *s, const schedule_share *share);
/* The request has one token more; true: that was its last. */
bool schedule_generated(schedule *s, uint32_t request);

#endif
