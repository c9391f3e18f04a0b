/* schedule.h — the order of service: continuous batching as a data structure without a device.
 *
 * Requests are known from the start, in order of arrival, and that order is their rank: the earlier
 * the arrival, the higher. The running set grows from the highest rank down and shrinks from the
 * lowest up: the next request admitted is the highest-ranked that does not run, a preempted one
 * before one that never ran; the next one preempted is the lowest-ranked that runs. So no request
 * starves: the highest-ranked unfinished request, once admitted, is never preempted while another
 * runs, and every step advances it.
 *
 * A step takes one token of every decoding request and fills up with chunks of prompts, by rank;
 * step_tokens must exceed concurrency, so that prompts are never crowded out. */
#ifndef SERVE_SCHEDULE_H
#define SERVE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULE_NONE UINT32_MAX

typedef enum schedule_state {
    SCHEDULE_COMING,  /* not yet arrived */
    SCHEDULE_WAITING, /* never admitted so far */
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
    schedule_request *requests; /* [n] in order of arrival */
    uint32_t n;
    uint32_t concurrency; /* most requests admitted and unfinished */
    uint32_t step_tokens;
    uint32_t n_arrived; /* requests[0 .. n_arrived) have arrived */
    uint32_t next_new;  /* the first one neither admitted nor refused */
    uint32_t *running;  /* [n_running] by rank */
    uint32_t n_running;
    uint32_t *preempted; /* [n_preempted] by rank */
    uint32_t n_preempted;
    uint32_t n_done, n_refused;
    uint64_t preemptions;
} schedule;

/* Copies `n` requests in order of arrival. Returns false when out of memory or if numbers violate
 * the conditions above. *out is always safe to close. */
bool schedule_open(const schedule_request *requests, uint32_t n, uint32_t concurrency,
                   uint32_t step_tokens, schedule *out);
void schedule_close(schedule *s);

static inline bool schedule_finished(const schedule *s)
{
    return s->n_done + s->n_refused == s->n;
}

/* Adds the requests that have arrived by now. */
void schedule_arrive(schedule *s, uint64_t now_ns);
/* Gives the next arrival time; returns false if all have arrived. */
bool schedule_next_arrival(const schedule *s, uint64_t *at_ns);

/* Returns the number of waiting requests, without preempted ones. */
static inline uint32_t schedule_waiting(const schedule *s)
{
    return s->n_arrived - s->next_new;
}

/* Returns the next request to admit; SCHEDULE_NONE if none waits or `concurrency` are admitted. */
uint32_t schedule_candidate(const schedule *s);
/* Records that the candidate was admitted, or refused for good. */
void schedule_let_in(schedule *s, uint32_t request);
void schedule_refuse(schedule *s, uint32_t request);

/* Returns the request to preempt when room is short: SCHEDULE_NONE while only one runs. */
uint32_t schedule_victim(const schedule *s);
void schedule_preempt(schedule *s, uint32_t request);

/* Returns the prompt tokens not in the KV cache yet; 0: the request decodes. */
uint32_t schedule_prompt_left(const schedule *s, uint32_t request);

/* Plans the next step's shares by rank, at most [concurrency]; returns their number. */
uint32_t schedule_plan(const schedule *s, schedule_share *shares);

/* Records that the share's tokens are in the KV cache; returns true if the request's next token
 * follows from them. */
bool schedule_fed(schedule *s, const schedule_share *share);
/* Adds a token to the request; returns true if it was the last. */
bool schedule_generated(schedule *s, uint32_t request);

#endif
