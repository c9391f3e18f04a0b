/* serve_inside.h — the state of a serving host, for the parts of serve.h.
 *
 *   serve.c        the loop, results         serve_step.c   one forward pass
 *   serve_queue.c  order of jobs             serve_kv.c     room in the KV pool, prefix cache
 *   serve_own.c    layers that the host loads by itself, and hints */
#ifndef SIM_SERVE_INSIDE_H
#define SIM_SERVE_INSIDE_H

#include "sim/serve.h"

typedef enum sim_kv_state {
    SIM_KV_NONE,
    SIM_KV_RUNNING,
    SIM_KV_IDLE,    /* on the device, in the LRU list */
    SIM_KV_SWAPPED, /* on the host, in the list of swapped ones */
    SIM_KV_TAKEN    /* continued by the next turn */
} sim_kv_state;

/* A finished job's KV. */
typedef struct sim_kv {
    moepage_seq seq;
    uint32_t tokens;
    uint32_t before, behind; /* neighbours in the list of its state, as jobs */
    uint32_t taken_by;
    uint8_t state; /* sim_kv_state */
} sim_kv;

typedef struct sim_list {
    uint32_t first, last; /* least, most recently used; SIM_NO_JOB = empty */
} sim_list;

/* A job being served. */
typedef struct sim_running {
    uint32_t job;
    uint32_t generated; /* output tokens */
    uint32_t tokens;    /* in the KV pool */
    uint32_t known;     /* tokens up to here have been computed before */
    uint64_t since;     /* first step of its present uninterrupted run */
    void *stream;       /* its routing */
} sim_running;

/* A share of the step being assembled. */
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
    uint64_t clock_ns; /* time is accounted for up to here */
    uint64_t start_ns;
    uint32_t step_tokens;
    uint32_t block_tokens;

    /* jobs (serve_queue.c) */
    sim_job_times *times; /* [jobs] */
    uint32_t *heap;       /* jobs not yet ready, by time and number */
    uint32_t n_heap;
    uint32_t *follower; /* [jobs] the first job that waits for this one's end */
    uint32_t *fellow;   /* [jobs] the next job that waits for the same one */
    uint32_t n_done;
    uint32_t blocked; /* the job last counted as waiting for room */

    /* being served */
    sim_running *running; /* [concurrency] in order of admission: running, then preempted */
    uint32_t n_running, n_preempted;
    void *streams; /* [concurrency] */

    /* KV (serve_kv.c) */
    sim_kv *kv; /* [jobs] */
    sim_list idle, swapped;
    uint64_t swapped_tokens; /* of the prefix cache */
    bool was_swapped;        /* the prefix taken last was swapped */

    /* the step (serve_step.c) */
    sim_batch_entry *batch; /* [concurrency] */
    uint32_t n_batch, n_tokens;
    moepage_step_sequence *sequences; /* [concurrency] */
    int32_t *rows;                    /* [step_tokens][layers][top_k] */
    int32_t *ids;                     /* [step_tokens][top_k] of one layer */
    float *weights;                   /* [step_tokens][top_k] all equal */
    int32_t *hint;                    /* [experts] */
    uint32_t *marks;                  /* [experts] */
    uint32_t mark;
    uint64_t random;
    mp_stream *own_stream; /* for layers that the host loads by itself */
    mp_tick own_ticks[2];
    uint64_t own_stall_ns; /* of the step */
    uint64_t sample_every;
    /* steps with prompts, and those without */
    uint64_t prompt_steps, prompt_wall_ns, prompt_tokens, other_wall_ns;
} sim_host;

/* Charges the time since the last call to `counter`. */
void sim_host_charge(sim_host *host, uint64_t *counter);

/* ---- serve_queue.c ---- */
/* Opens the queue; times count from host->start_ns. */
int sim_queue_open(sim_host *host);
void sim_queue_close(sim_host *host);
/* Returns the next ready job, SIM_NO_JOB if none is; *at_ns is when the next one will be. */
uint32_t sim_queue_peek(const sim_host *host, uint64_t *at_ns);
void sim_queue_pop(sim_host *host);
/* Records that a job has ended or was refused: its followers become ready. */
void sim_queue_done(sim_host *host, uint32_t job);

/* ---- serve_kv.c ---- */
int sim_kv_open(sim_host *host);
void sim_kv_close(sim_host *host);
/* Checks whether the job fits, including room that the cache may give up. If so, takes its prefix
 * over, or creates an empty sequence; *tokens is its length then. *fits false: nothing has changed
 * for the job. */
int sim_kv_admit(sim_host *host, uint32_t job, bool *fits, uint32_t *tokens);
/* Makes room for n more tokens of a running sequence, from the cache if needed; *fits false: no
 * room. */
int sim_kv_grow(sim_host *host, sim_running *running, uint32_t n_tokens, bool *fits);
/* Preempts the running sequence admitted last. */
int sim_kv_preempt(sim_host *host);
/* Preempts the sequence that has run longest, behind all others that wait. */
int sim_kv_rotate(sim_host *host);
/* Resumes the sequence preempted longest ago if it fits; *fits is the outcome. */
int sim_kv_resume(sim_host *host, bool *fits);
/* Moves a finished job's KV to the cache, or frees it. */
int sim_kv_end(sim_host *host, const sim_running *running);
/* Gives prefixes up until at most `blocks` are in use, or none is left. */
int sim_kv_shrink_to(sim_host *host, uint64_t blocks);

/* ---- serve_step.c ---- */
/* Runs one step of the running sequences. */
int sim_host_step(sim_host *host);

/* ---- serve_own.c ---- */
int sim_own_open(sim_host *host);
void sim_own_close(sim_host *host);
/* Runs before MoE layer `layer`: hints, and the transfer of a layer that the host loads by
 * itself. */
int sim_own_before(sim_host *host, uint32_t layer);
static inline bool sim_own_layer(const sim_host *host, uint32_t layer)
{
    return layer >= host->shape->moe_layers - host->config->own_layers;
}
/* Runs the experts of a layer that the host loads by itself. */
int sim_own_ffn(sim_host *host, uint32_t layer);

#endif
