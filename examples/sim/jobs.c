/* Lists of jobs, generated jobs, and the routing that each job uses. */
#include "sim/jobs.h"

#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

/* Makes room for one more and returns it, zeroed except for the NONE fields; NULL when out of
 * memory. */
static sim_job *add_job(sim_jobs *jobs)
{
    if (!(jobs->n & (jobs->n - 1))) { /* room is a power of two */
        size_t room = jobs->n ? 2 * (size_t)jobs->n : 1;
        sim_job *grown = realloc(jobs->jobs, room * sizeof *grown);
        if (!grown)
            return NULL;
        jobs->jobs = grown;
    }
    sim_job *job = &jobs->jobs[jobs->n++];
    *job = (sim_job){.after = SIM_NO_JOB, .parent = SIM_NO_JOB};
    return job;
}

void sim_jobs_free(sim_jobs *jobs)
{
    free(jobs->jobs);
    *jobs = (sim_jobs){0};
}

/* ---- Files ------------------------------------------------------------------------------- */

/* Adds a request; a turn belongs to its parent's session and follows it. */
static int add_request(const request_row *r, bool kept, sim_jobs *jobs)
{
    sim_job *job = add_job(jobs);
    if (!job)
        return fail_memory();
    job->arrival_ns = r->arrival_ns;
    job->prompt_tokens = r->prompt_tokens;
    job->output_tokens = r->output_tokens;
    job->parent = r->parent;
    job->prefix_tokens = r->prefix_tokens;
    job->turn = r->turn;
    job->kept = kept;
    job->after = r->turn ? r->parent : SIM_NO_JOB;
    job->session = r->turn ? jobs->jobs[r->parent].session : jobs->sessions++;
    return RUN_OK;
}

int sim_jobs_read(const char *path, const sim_jobs_config *config, sim_jobs *out)
{
    request_list list = {0};
    sim_jobs jobs = {0};
    int code = request_file_read(path, config, &list);
    for (uint32_t i = 0; i < list.n && !code; i++)
        code = add_request(&list.requests[i], list.prefixes, &jobs);
    request_list_free(&list);
    if (code)
        sim_jobs_free(&jobs);
    else
        *out = jobs;
    return code;
}

/* ---- Generated -------------------------------------------------------------------------- */

int sim_jobs_plain(uint32_t n, uint32_t prompt_tokens, uint32_t output_tokens, double rate,
                   sim_jobs *out)
{
    sim_jobs jobs = {.sessions = n};
    for (uint32_t i = 0; i < n; i++) {
        sim_job *job = add_job(&jobs);
        if (!job) {
            sim_jobs_free(&jobs);
            return fail_memory();
        }
        job->arrival_ns = rate > 0 ? (uint64_t)(i / rate * 1e9) : 0;
        job->prompt_tokens = prompt_tokens;
        job->output_tokens = output_tokens;
        job->session = i;
    }
    *out = jobs;
    return RUN_OK;
}

/* A client's open sessions. */
typedef struct client {
    uint32_t last;     /* its last job */
    uint32_t *turns;   /* [sessions] turns taken */
    uint32_t *session; /* [sessions] the session's last job */
    uint64_t random;
} client;

/* Returns the n-th of the sessions that have turns left. */
static uint32_t nth_open(const sim_closed_loop *loop, const client *c, uint32_t n)
{
    uint32_t s = 0;
    while (c->turns[s] == loop->turns || n-- > 0)
        s++;
    return s;
}

static uint32_t choose_session(const sim_closed_loop *loop, client *c, uint32_t round)
{
    uint32_t open = 0;
    if (loop->order == SIM_ORDER_TURNS)
        return round % loop->sessions;
    if (loop->order == SIM_ORDER_DONE)
        return round / loop->turns;
    for (uint32_t s = 0; s < loop->sessions; s++)
        open += c->turns[s] < loop->turns;
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return nth_open(loop, c, (uint32_t)(((c->random >> 32) * open) >> 32));
}

static int add_turn(const sim_closed_loop *loop, client *c, uint32_t session, sim_jobs *jobs)
{
    sim_job *job = add_job(jobs);
    if (!job)
        return fail_memory();
    job->output_tokens = loop->output_tokens;
    job->prompt_tokens = loop->prompt_tokens;
    job->after = c->last;
    job->think_ns = c->last == SIM_NO_JOB ? 0 : loop->think_ns;
    job->kept = loop->turns > 1;
    if (c->turns[session]++) { /* the previous answer's last token was never fed back */
        const sim_job *before = &jobs->jobs[c->session[session]];
        job->parent = c->session[session];
        job->prefix_tokens = before->prompt_tokens + before->output_tokens - 1;
        job->prompt_tokens = job->prefix_tokens + 1 + loop->turn_tokens;
        job->turn = true;
    }
    c->last = c->session[session] = jobs->n - 1;
    return RUN_OK;
}

/* Interleaves all clients' k-th turns, so that the client that has waited longest is served
 * next. */
static int fill_closed(const sim_closed_loop *loop, client *clients, sim_jobs *jobs)
{
    for (uint32_t round = 0; round < loop->sessions * loop->turns; round++)
        for (uint32_t i = 0; i < loop->clients; i++) {
            uint32_t session = choose_session(loop, &clients[i], round);
            int code = add_turn(loop, &clients[i], session, jobs);
            if (code)
                return code;
            jobs->jobs[jobs->n - 1].session = i * loop->sessions + session;
        }
    return RUN_OK;
}

int sim_jobs_closed(const sim_closed_loop *loop, sim_jobs *out)
{
    if (!loop->clients || !loop->sessions || !loop->turns || !loop->prompt_tokens ||
        !loop->output_tokens || (loop->turns > 1 && !loop->turn_tokens))
        return fail(RUN_REFUSED, "clients without sessions, turns or tokens");
    sim_jobs jobs = {.sessions = loop->clients * loop->sessions};
    client *clients = calloc(loop->clients, sizeof *clients);
    uint32_t *memory = calloc(2 * (size_t)jobs.sessions, sizeof *memory);
    for (uint32_t i = 0; clients && memory && i < loop->clients; i++)
        clients[i] = (client){.last = SIM_NO_JOB,
                              .turns = memory + 2 * (size_t)i * loop->sessions,
                              .session = memory + (2 * (size_t)i + 1) * loop->sessions,
                              .random = i + 1};
    int code = clients && memory ? fill_closed(loop, clients, &jobs) : fail_memory();
    free(clients);
    free(memory);
    if (code)
        sim_jobs_free(&jobs);
    else
        *out = jobs;
    return code;
}

/* ---- Lists ------------------------------------------------------------------------------- */

int sim_jobs_append(sim_jobs *jobs, const sim_jobs *more)
{
    uint32_t first = jobs->n;
    uint16_t phase = first ? (uint16_t)(jobs->jobs[first - 1].phase + 1) : 0;
    for (uint32_t i = 0; i < more->n; i++) {
        sim_job *job = add_job(jobs);
        if (!job)
            return fail_memory();
        *job = more->jobs[i];
        job->phase = phase;
        job->session += jobs->sessions;
        if (job->after != SIM_NO_JOB)
            job->after += first;
        else if (first)
            job->after = first - 1;
        if (job->parent != SIM_NO_JOB)
            job->parent += first;
    }
    jobs->sessions += more->sessions;
    return RUN_OK;
}

/* Requests by group: those of group g are order[start[g]] to order[start[g + 1]]. */
typedef struct members {
    uint32_t n_groups;
    uint32_t *start; /* [n_groups + 1] */
    uint32_t *order; /* [n_requests] */
    uint32_t *used;  /* [n_groups] */
} members;

static void sort_members(members *m, uint32_t n_requests, const uint32_t *group)
{
    for (uint32_t r = 0; r < n_requests; r++)
        m->start[(group ? group[r] : r) + 1]++;
    for (uint32_t g = 0; g < m->n_groups; g++)
        m->start[g + 1] += m->start[g];
    for (uint32_t r = 0; r < n_requests; r++) {
        uint32_t g = group ? group[r] : r;
        m->order[m->start[g] + m->used[g]++] = r;
    }
    memset(m->used, 0, m->n_groups * sizeof *m->used);
}

int sim_jobs_bind(sim_jobs *jobs, uint32_t n_requests, const uint32_t *group, uint32_t n_groups)
{
    if (n_requests == UINT32_MAX) { /* a generator: one request per session */
        for (uint32_t i = 0; i < jobs->n; i++)
            jobs->jobs[i].route = jobs->jobs[i].session;
        return RUN_OK;
    }
    members m = {.n_groups = group ? n_groups : n_requests};
    uint32_t *memory = calloc(2 * (size_t)m.n_groups + 1 + n_requests, sizeof *memory);
    if (!memory)
        return fail_memory();
    m.start = memory;
    m.order = m.start + m.n_groups + 1;
    m.used = m.order + n_requests;
    sort_members(&m, n_requests, group);
    for (uint32_t i = 0; i < jobs->n; i++) {
        uint32_t g = jobs->jobs[i].session % m.n_groups;
        uint32_t size = m.start[g + 1] - m.start[g];
        jobs->jobs[i].route = m.order[m.start[g] + (size ? m.used[g]++ % size : 0)];
    }
    free(memory);
    return RUN_OK;
}

uint32_t sim_jobs_longest(const sim_jobs *jobs)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < jobs->n; i++) {
        uint32_t tokens = jobs->jobs[i].prompt_tokens + jobs->jobs[i].output_tokens;
        longest = tokens > longest ? tokens : longest;
    }
    return longest;
}

uint64_t sim_jobs_output_tokens(const sim_jobs *jobs)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < jobs->n; i++)
        tokens += jobs->jobs[i].output_tokens;
    return tokens;
}
