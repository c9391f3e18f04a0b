/* serve_inside.h — the state of a host that serves, for the parts of serve.h.
 *
 *   serve.c        the loop, results         serve_step.c   one forward pass
 *   serve_queue.c  which job is next         serve_kv.c     room in the KV pool, prefix cache
 *   serve_own.c    layers that the host brings by itself, and hints */
#ifndef SIM_SERVE_INSIDE_H
#define SIM_SERVE_INSIDE_H

#include "sim/serve.h"

typedef enum sim_kv_state {
    SIM_KV_NONE,
    SIM_KV_RUNNING,
    SIM_KV_IDLE,    /* on the device, in the LRU list */
    SIM_KV_SWAPPED, /* on the host, in the list of such */
    SIM_KV_TAKEN    /* the next turn goes on with it */
} sim_kv_state;

/* What a job has left in the KV pool. */
typedef struct sim_kv {
    moepage_seq seq;
    uint32_t tokens;
    uint32_t before, behind; /* in the list of its state, jobs */
    uint32_t taken_by;
    uint8_t state; /* sim_kv_state */
} sim_kv;

typedef struct sim_list {
    uint32_t first, last; /* least, most recently used; SIM_NO_JOB = empty */
} sim_list;

/* A job that is being served. */
typedef struct sim_running {
    uint32_t job;
    uint32_t generated; /* output tokens */
    uint32_t tokens;    /* in the KV pool */
    uint32_t known;     /* tokens up to here have been computed before */
    uint64_t since;     /* the step from which on it has run without a break */
    void *stream;       /* of its routing */
} sim_running;

/* A share of the step that is being put together. */
typedef struct sim_batch_entry {
    uint32_t running; /* index */
    uint32_t n_tokens;
    bool prefill;
} sim_batch_entry;

typedef struct sim_job_times {
    uint64_t ready_ns, first_ns, end_ns; /* 0 = not yet */
    bool refused;
} sim_job_times;

typedef struct sim_host {
    const sim_serve_config *config;
    const sim_shape *shape;
    const sim_jobs *jobs;
    const sim_source *source;
    sim_stack stack;
    sim_result *result;
    uint64_t clock_ns; /* up to here time is accounted for */
    uint64_t start_ns;
    uint32_t step_tokens;
    uint32_t block_tokens;

    /* jobs (serve_queue.c) */
    sim_job_times *times; /* [jobs] */
    uint32_t *heap;       /* jobs that will be ready, by time and number */
    uint32_t n_heap;
    uint32_t *follower; /* [jobs] the first that waits for this one's end */
    uint32_t *fellow;   /* [jobs] the next that waits for the same */
    uint32_t n_done;
    uint32_t blocked; /* the job that waits for room, as last counted */

    /* being served */
    sim_running *running; /* [concurrency] in order of admission: those that run, then those that
                             were preempted */
    uint32_t n_running, n_preempted;
    void *streams; /* [concurrency] */

    /* KV (serve_kv.c) */
    sim_kv *kv; /* [jobs] */
    sim_list idle, swapped;
    uint64_t swapped_tokens; /* of the prefix cache */
    bool was_swapped;        /* the prefix that was taken last */

    /* the step (serve_step.c) */
    sim_batch_entry *batch; /* [concurrency] */
    uint32_t n_batch, n_tokens;
    moepage_step_sequence *sequences; /* [concurrency] */
    int32_t *rows;                    /* [step_tokens][layers][top_k] */
    int32_t *ids;                     /* [step_tokens][top_k] of one layer */
    float *weights;                   /* the same, all alike */
    int32_t *hint;                    /* [experts] */
    uint32_t *marks;                  /* [experts] */
    uint32_t mark;
    uint64_t random;
    mp_stream *own_stream; /* of layers that the host brings by itself */
    mp_tick own_ticks[2];
    uint64_t own_stall_ns; /* of the step */
    uint64_t sample_every;
    /* steps with prompts, and those without */
    uint64_t prompt_steps, prompt_wall_ns, prompt_tokens, other_wall_ns;
} sim_host;

/* Charges the time since the last call to `counter`. */
void sim_host_charge(sim_host *host, uint64_t *counter);

/* ---- serve_queue.c ---- */
/* From now on, host->start_ns. */
int sim_queue_open(sim_host *host);
void sim_queue_close(sim_host *host);
/* The job that is next and ready, SIM_NO_JOB if none is; *at_ns, when the next one will be. */
uint32_t sim_queue_peek(const sim_host *host, uint64_t *at_ns);
void sim_queue_pop(sim_host *host);
/* A job has ended or was refused: who waited for it becomes ready. */
void sim_queue_done(sim_host *host, uint32_t job);

/* ---- serve_kv.c ---- */
int sim_kv_open(sim_host *host);
void sim_kv_close(sim_host *host);
/* Is there room for the job, with what the cache may give up? Takes its prefix over, or an empty
 * sequence; *tokens is then what is in it. *fits false: nothing has changed for the job. */
int sim_kv_admit(sim_host *host, uint32_t job, bool *fits, uint32_t *tokens);
/* Room for n more tokens of a running sequence, out of the cache if need be; *fits false: none. */
int sim_kv_grow(sim_host *host, sim_running *running, uint32_t n_tokens, bool *fits);
/* Takes the latest running sequence off the device. */
int sim_kv_preempt(sim_host *host);
/* Takes the one that has run longest off the device, behind all others that wait. */
int sim_kv_rotate(sim_host *host);
/* Brings the longest preempted one back if it fits; *fits says so. */
int sim_kv_resume(sim_host *host, bool *fits);
/* An ended job's KV goes to the cache, or is freed. */
int sim_kv_end(sim_host *host, const sim_running *running);
/* Gives prefixes up until at most `blocks` are in use, as far as that goes. */
int sim_kv_shrink_to(sim_host *host, uint64_t blocks);

/* ---- serve_step.c ---- */
/* Runs one step of what is being served. */
int sim_host_step(sim_host *host);

/* ---- serve_own.c ---- */
int sim_own_open(sim_host *host);
void sim_own_close(sim_host *host);
/* Before MoE layer `layer` begins: hints, and the transfer of a layer of the host's own. */
int sim_own_before(sim_host *host, uint32_t layer);
static inline bool sim_own_layer(const sim_host *host, uint32_t layer)
{
    return layer >= host->shape->moe_layers - host->config->own_layers;
}
/* Runs the experts of a layer of the host's own. */
int sim_own_ffn(sim_host *host, uint32_t layer);

#endif
