/* jobs.h — requests to serve: lengths, arrival times, and dependencies between them. */
#ifndef SIM_JOBS_H
#define SIM_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/request_file.h"

#define SIM_NO_JOB REQUEST_NONE

typedef struct sim_job {
    uint64_t arrival_ns;    /* earliest start */
    uint64_t think_ns;      /* delay after the end of `after` */
    uint32_t after;         /* an earlier job in the list, or SIM_NO_JOB */
    uint32_t prompt_tokens; /* >= 1, including the prefix shared with `parent` */
    uint32_t output_tokens; /* >= 1 */
    uint32_t parent;        /* an earlier job whose tokens begin this prompt, or SIM_NO_JOB */
    uint32_t prefix_tokens; /* number of those tokens: < prompt_tokens */
    uint32_t session;       /* shared by jobs that continue one another */
    uint32_t route;         /* the routing source's request whose routing it uses */
    uint16_t phase;         /* phase of a changing workload */
    bool turn;              /* continues all of its parent, which no other job needs then */
    bool kept;              /* a later job may use its KV */
} sim_job;

/* Jobs in order of admission if all have arrived. */
typedef struct sim_jobs {
    sim_job *jobs;
    uint32_t n;
    uint32_t sessions;
} sim_jobs;

typedef request_file_config sim_jobs_config;

/* Reads a file of requests (common/request_file.h). A request that contains all whole blocks of
 * another's prompt is its next turn, and follows it. RUN_REFUSED after a line on stderr that names
 * file and line. */
int sim_jobs_read(const char *path, const sim_jobs_config *config, sim_jobs *out);

/* The order in which a client continues its sessions. */
enum {
    SIM_ORDER_DONE = 0,  /* one session after another */
    SIM_ORDER_TURNS = 1, /* one turn of each in rotation */
    SIM_ORDER_RANDOM = 2 /* each time any session with turns left */
};

/* Clients that send the next request as soon as they have an answer. */
typedef struct sim_closed_loop {
    uint32_t clients;
    uint32_t sessions;      /* of each client */
    uint32_t turns;         /* per session: the prefix of each is the whole session before it */
    uint32_t prompt_tokens; /* of a session's first turn */
    uint32_t turn_tokens;   /* new tokens of each further turn */
    uint32_t output_tokens;
    uint32_t order;    /* SIM_ORDER_* */
    uint64_t think_ns; /* between a client's turns */
} sim_closed_loop;
int sim_jobs_closed(const sim_closed_loop *loop, sim_jobs *out);

/* Makes `n` jobs of fixed lengths, `rate` per second; 0 = all at once. */
int sim_jobs_plain(uint32_t n, uint32_t prompt_tokens, uint32_t output_tokens, double rate,
                   sim_jobs *out);

/* Appends all of `more` as a new phase: those without a predecessor wait for the last of `jobs`. */
int sim_jobs_append(sim_jobs *jobs, const sim_jobs *more);

/* Assigns requests of the routing source to every session: of one group, if groups are known
 * (`group` [n_requests], NULL = unknown), the next one for each turn. */
int sim_jobs_bind(sim_jobs *jobs, uint32_t n_requests, const uint32_t *group, uint32_t n_groups);

/* Returns the tokens of the longest job, and of all jobs. */
uint32_t sim_jobs_longest(const sim_jobs *jobs);
uint64_t sim_jobs_output_tokens(const sim_jobs *jobs);

void sim_jobs_free(sim_jobs *jobs);

#endif
