/* jobs.h — requests to serve: how long, when, and which of them go on from which. */
#ifndef SIM_JOBS_H
#define SIM_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/request_file.h"

#define SIM_NO_JOB REQUEST_NONE

typedef struct sim_job {
    uint64_t arrival_ns;    /* not before that */
    uint64_t think_ns;      /* and so long after `after` has ended */
    uint32_t after;         /* a job before it in the list, or SIM_NO_JOB */
    uint32_t prompt_tokens; /* >= 1, what it shares with `parent` included */
    uint32_t output_tokens; /* >= 1 */
    uint32_t parent;        /* a job before it whose tokens its prompt begins with, or SIM_NO_JOB */
    uint32_t prefix_tokens; /* how many: < prompt_tokens */
    uint32_t session;       /* jobs that go on from one another have one */
    uint32_t route;         /* the request of the routing source whose experts it takes */
    uint16_t phase;         /* part of a workload that changes */
    bool turn;              /* goes on from all of its parent, which nobody else needs then */
    bool kept;              /* its KV may be of use to a later one */
} sim_job;

/* In the order in which they are admitted when all have arrived. */
typedef struct sim_jobs {
    sim_job *jobs;
    uint32_t n;
    uint32_t sessions;
} sim_jobs;

typedef request_file_config sim_jobs_config;

/* Reads a file of requests (common/request_file.h). One that has all whole blocks of another's prompt
 * is its next turn, and follows it. RUN_REFUSED after a line on stderr that names file and line. */
int sim_jobs_read(const char *path, const sim_jobs_config *config, sim_jobs *out);

/* In what order a client goes on with its sessions. */
enum {
    SIM_ORDER_DONE = 0,  /* when one has ended, the next */
    SIM_ORDER_TURNS = 1, /* a turn of each, round and round */
    SIM_ORDER_RANDOM = 2 /* any that has a turn left, each time */
};

/* Clients that ask again as soon as they are answered. */
typedef struct sim_closed_loop {
    uint32_t clients;
    uint32_t sessions;      /* of each client */
    uint32_t turns;         /* of a session: each has the whole session before it as its prefix */
    uint32_t prompt_tokens; /* of a session's first turn */
    uint32_t turn_tokens;   /* new ones of each further turn */
    uint32_t output_tokens;
    uint32_t order;    /* SIM_ORDER_* */
    uint64_t think_ns; /* between a client's turns */
} sim_closed_loop;
int sim_jobs_closed(const sim_closed_loop *loop, sim_jobs *out);

/* `n` jobs of fixed lengths, `rate` a second; 0 = all at once. */
int sim_jobs_plain(uint32_t n, uint32_t prompt_tokens, uint32_t output_tokens, double rate,
                   sim_jobs *out);

/* Appends all of `more`, as a phase of its own: those that wait for nobody wait for the last of
 * `jobs`. */
int sim_jobs_append(sim_jobs *jobs, const sim_jobs *more);

/* Gives every session requests of the routing source: those of one group, as far as groups are known
 * (`group` [n_requests], NULL = they are not), each turn the next one of it. */
int sim_jobs_bind(sim_jobs *jobs, uint32_t n_requests, const uint32_t *group, uint32_t n_groups);

/* Tokens of the longest job, and of all. */
uint32_t sim_jobs_longest(const sim_jobs *jobs);
uint64_t sim_jobs_output_tokens(const sim_jobs *jobs);

void sim_jobs_free(sim_jobs *jobs);

#endif
