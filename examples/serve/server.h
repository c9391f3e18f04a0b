/* server.h — one run of the serving loop: the same requests, one division of the budget. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include "serve/arrivals.h"
#include "serve/engine.h"
#include "serve/schedule.h"
#include "serve/times.h"

#define SERVER_SAMPLES 256

/* The split and the load at one moment. */
typedef struct server_sample {
    uint64_t ns; /* since the start */
    uint64_t slots, blocks, used_blocks;
    uint64_t tokens; /* generated so far */
    uint32_t running, waiting, preempted;
} server_sample;

/* The outcome of one request. */
typedef struct server_answer {
    schedule_state state;
    uint32_t preemptions;
    uint32_t *tokens; /* [output_tokens]; owned */
    request_times times;
} server_answer;

typedef struct server_result {
    bool ran;
    int interrupted; /* by this signal; 0 = ran to completion */
    uint32_t requests, done, refused, arrived;
    uint64_t steps, mixed_steps; /* all steps; those with both prompts and decoding */
    uint64_t prompt_tokens, output_tokens;
    uint64_t wall_ns, idle_ns; /* on the run's clock */
    uint64_t real_ns;          /* always on the machine's clock */
    uint64_t swap_ns, tick_ns; /* on the machine's clock: time in swaps, and in the controller */
    uint64_t preemptions;
    times times;
    moepage_session_stats session;
    moepage_expert_pool_info experts;
    moepage_kv_pool_info kv;
    moepage_device_info device;
    moepage_controller_info control; /* zero without a controller */
    moepage_controller_report split; /* of the last tick */
    uint64_t first_slots, first_blocks;
    uint64_t block_bytes;
    uint64_t prefill_steps;
    server_sample samples[SERVER_SAMPLES];
    uint32_t n_samples;
    server_answer *answers; /* [requests]; owned */
} server_result;

void server_result_free(server_result *result);

typedef struct server_config {
    const char *name; /* of the arm */
    const serve_options *options;
    const arrivals *arrivals;
    uint32_t n_requests; /* number of requests to serve, from the first */
    engine_config engine;
    bool quiet;            /* a rehearsal: prints nothing, */
    uint64_t floor_blocks; /* and ends if the KV pool gets smaller; 0 = no rehearsal */
} server_config;

/* One request's state. */
typedef struct server_request {
    moepage_seq seq;  /* 0 = none */
    uint32_t *tokens; /* [prompt + output] */
    sampler_state random;
} server_request;

/* A row of the step from which a token follows. */
typedef struct server_row {
    uint32_t row, request;
} server_row;

typedef struct server_clock {
    bool is_virtual;
    uint64_t start_ns;   /* on the machine's clock */
    uint64_t virtual_ns; /* since the start */
} server_clock;

/* The dashboard's previous values. */
typedef struct server_view {
    uint64_t shown_ns; /* on the machine's clock; 0 = not shown yet */
    uint64_t now_ns;   /* on the run's clock */
    uint64_t tokens, hits, routed;
} server_view;

typedef struct server {
    const server_config *config;
    engine engine;
    schedule schedule;
    server_clock clock;
    server_request *requests; /* [n] */
    request_times *times;     /* [n] */
    gap_list gaps;
    schedule_share *shares; /* [concurrency] of the step */
    uint32_t n_shares;
    decoder_input *inputs; /* [concurrency] */
    server_row *rows;      /* [concurrency] */
    server_result *result;
    uint64_t sample_every;
    server_view view;
    uint32_t unblocked;  /* consecutive turns without a step or an admission */
    uint64_t scraped_ns; /* on the machine's clock: last writing of the metrics */
} server;

/* Returns the KV blocks that a move of the split waits for. */
static inline uint64_t server_draining(const server *s)
{
    const moepage_controller_report *last = &s->result->split;
    bool drains = s->engine.controller && last->outcome == MOEPAGE_CONTROL_DRAINING &&
                  last->target_blocks < last->kv_blocks;
    return drains ? last->kv_blocks - last->target_blocks : 0;
}

/* Serves the requests. A line and RUN_REFUSED or RUN_FAILED; an interrupted run is RUN_OK. Free the
 * result in any case. */
int server_run(const server_config *config, server_result *result);

/* Reads pools and session into the result. One line and RUN_FAILED on failure. */
int server_look(server *s);

/* Returns the time since the start on the run's clock. */
uint64_t server_now_ns(const server *s);

#endif
