/* The order of jobs: a heap by ready time, then by position in the list. */
#include <stdlib.h>

#include "common/fail.h"
#include "sim/serve_inside.h"

static bool sooner(const sim_host *host, uint32_t a, uint32_t b)
{
    uint64_t at = host->times[a].ready_ns, bt = host->times[b].ready_ns;
    return at != bt ? at < bt : a < b;
}

static void push(sim_host *host, uint32_t job, uint64_t ready_ns)
{
    host->times[job].ready_ns = ready_ns;
    uint32_t at = host->n_heap++;
    for (; at && sooner(host, job, host->heap[(at - 1) / 2]); at = (at - 1) / 2)
        host->heap[at] = host->heap[(at - 1) / 2];
    host->heap[at] = job;
}

void sim_queue_pop(sim_host *host)
{
    uint32_t last = host->heap[--host->n_heap], at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= host->n_heap)
            break;
        if (child + 1 < host->n_heap && sooner(host, host->heap[child + 1], host->heap[child]))
            child++;
        if (!sooner(host, host->heap[child], last))
            break;
        host->heap[at] = host->heap[child];
        at = child;
    }
    host->heap[at] = last;
}

uint32_t sim_queue_peek(const sim_host *host, uint64_t *at_ns)
{
    if (!host->n_heap) {
        *at_ns = UINT64_MAX;
        return SIM_NO_JOB;
    }
    uint32_t job = host->heap[0];
    *at_ns = host->times[job].ready_ns;
    return *at_ns <= sim_stack_now(&host->stack) ? job : SIM_NO_JOB;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

int sim_queue_open(sim_host *host)
{
    const sim_jobs *jobs = host->jobs;
    host->times = calloc(jobs->n, sizeof *host->times);
    host->heap = calloc(jobs->n, sizeof *host->heap);
    host->follower = malloc(jobs->n * sizeof *host->follower);
    host->fellow = malloc(jobs->n * sizeof *host->fellow);
    if (!host->times || !host->heap || !host->follower || !host->fellow)
        return fail_memory();
    for (uint32_t i = 0; i < jobs->n; i++)
        host->follower[i] = SIM_NO_JOB;
    for (uint32_t i = jobs->n; i-- > 0;) {
        uint32_t after = jobs->jobs[i].after;
        if (after == SIM_NO_JOB)
            continue;
        host->fellow[i] = host->follower[after];
        host->follower[after] = i;
    }
    for (uint32_t i = 0; i < jobs->n; i++)
        if (jobs->jobs[i].after == SIM_NO_JOB)
            push(host, i, host->start_ns + jobs->jobs[i].arrival_ns);
    return RUN_OK;
}

void sim_queue_done(sim_host *host, uint32_t job)
{
    uint64_t now = sim_stack_now(&host->stack);
    host->n_done++;
    for (uint32_t i = host->follower[job]; i != SIM_NO_JOB; i = host->fellow[i]) {
        const sim_job *next = &host->jobs->jobs[i];
        push(host, i, later(now + next->think_ns, host->start_ns + next->arrival_ns));
    }
}

void sim_queue_close(sim_host *host)
{
    free(host->times);
    free(host->heap);
    free(host->follower);
    free(host->fellow);
}
