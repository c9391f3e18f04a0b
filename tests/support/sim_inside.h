/* sim_inside.h — what the files of the simulated driver share: one machine under one lock.
 *
 *   sim_cuda.c     open, close, what is left; counting and failing calls; which context is current
 *   sim_device.c   GPUs and their contexts
 *   sim_memory.c   device and host memory: permitted accesses
 *   sim_virtual.c  virtual memory: reservations, handles, mappings
 *   sim_stream.c   streams as threads, events, holding and stepping
 *   sim_work.c     what streams run: copies, writes, launches; and the calls that submit them
 *   sim_capture.c  graphs
 *   sim_launch.c   modules and kernels
 *
 * A driver call begins with SIM_BEGIN, which takes the lock; it goes when the call returns. */
#ifndef MP_TESTS_SIM_INSIDE_H
#define MP_TESTS_SIM_INSIDE_H

#include <pthread.h>

#include "kernels/phase.h"
#include "sim_cuda.h"

/* ---- Work: an operation of a stream, or a node of a graph ------------------------------- */

typedef enum sim_work_kind {
    SIM_WORK_COPY,
    SIM_WORK_SET,
    SIM_WORK_WRITE, /* `bytes` is 4 or 8 */
    SIM_WORK_LAUNCH,
    SIM_WORK_WAIT, /* for `stream` to have done `seq`; the rest only on streams */
    SIM_WORK_GRAPH
} sim_work_kind;

typedef struct sim_work {
    sim_work_kind kind;
    uint64_t dst, src, bytes, value;
    unsigned char *own; /* a staged source, or a kernel's argument; freed with the work */
    bool plain_src, plain_dst;
    const mp_cpu_kernel *kernel;
    uint32_t n_blocks, n_threads, shared_bytes;
    mp_cu_stream stream;
    uint64_t seq;
    sim_cuda_graph *graph;
} sim_work;

typedef struct sim_op {
    struct sim_op *next;
    uint64_t seq;
    uint64_t order; /* among those of all streams */
    sim_work work;
} sim_op;

/* ---- Objects ---------------------------------------------------------------------------- */

#define SIM_MAX_FRONT 64

/* The nodes that whatever comes next depends on. */
typedef struct sim_front {
    uint32_t nodes[SIM_MAX_FRONT];
    uint32_t n;
} sim_front;

typedef struct sim_node {
    sim_work work;
    sim_front needs;
} sim_node;

typedef struct sim_capture {
    struct sim_capture *next;
    uint64_t id;
    sim_capture_mode mode;
    pthread_t thread;
    mp_cu_stream origin;
    bool invalid;
    sim_node *nodes;
    uint32_t n_nodes;
} sim_capture;

struct sim_cuda_graph {
    struct CUctx_st *context;
    sim_node *nodes;
    uint32_t n_nodes;
    uint32_t pending; /* launches that have not finished */
};

struct CUctx_st {
    int gpu;
    uint32_t retained;
    mp_cu_result sticky;
    mp_cu_stream legacy;
    uint32_t peers; /* GPUs whose memory it reaches besides its own, one bit each */
};

struct CUstream_st {
    mp_cu_stream next; /* of all ever made, in the order of creation */
    mp_cu_context context;
    bool legacy, blocking, destroyed, held, started;
    uint32_t steps; /* that sim_cuda_step has allowed */
    pthread_cond_t wake;
    sim_op *first, **last;
    uint64_t submitted, done;
    uint64_t random;
    uint32_t connection; /* its hardware queue, if there are any */
    sim_capture *capture;
    sim_front front;
};

struct CUevent_st {
    mp_cu_event next;
    mp_cu_context context;
    mp_cu_stream stream; /* of the last record; NULL: never recorded */
    uint64_t seq;
    uint64_t capture; /* the last record is in this capture, at `front`; 0: in none */
    sim_front front;
};

struct CUfunc_st {
    mp_cu_module module;
    const mp_cpu_kernel *kernel;
    uint32_t shared_limit;
    int carveout; /* percent; -1: the driver's choice */
};

struct CUmod_st {
    mp_cu_module next;
    mp_cu_context context;
    struct CUfunc_st *functions;
    uint32_t n_functions;
};

typedef enum sim_range_kind {
    SIM_RANGE_DEVICE,   /* mem_alloc */
    SIM_RANGE_RESERVED, /* address_reserve */
    SIM_RANGE_HOST,     /* host_alloc */
    SIM_RANGE_REGISTERED,
    SIM_RANGE_FREED /* was one of the above until lately */
} sim_range_kind;

typedef struct sim_range {
    struct sim_range *next;
    sim_range_kind kind;
    uint64_t at, bytes;
    uint64_t outer, outer_bytes; /* with guard pages; 0 when not ours */
    int gpu;
    bool portable; /* host memory: for all contexts */
} sim_range;

typedef struct sim_handle {
    struct sim_handle *next;
    mp_cu_handle id;
    uint64_t offset, bytes; /* in the machine's file */
    uint32_t mappings;
    bool released;
    int gpu;
} sim_handle;

typedef struct sim_mapping {
    struct sim_mapping *next;
    uint64_t at, bytes;
    sim_handle *handle;
    uint32_t open_to; /* GPUs that may touch it, one bit each */
} sim_mapping;

/* ---- The machine ------------------------------------------------------------------------ */

typedef struct sim_fault {
    uint64_t countdown; /* 0 = none */
    mp_cu_result result;
    bool for_ever;
} sim_fault;

typedef struct sim_machine {
    bool open, initialized;
    uint64_t generation; /* counts machines: per-thread state of earlier ones is void */
    sim_cuda_config config;
    mp_cuda_driver table;

    struct CUctx_st contexts[SIM_MAX_GPUS];
    uint64_t used[SIM_MAX_GPUS]; /* bytes of GPUs' memory */
    uint64_t pushed, modes;      /* contexts; threads whose capture mode is not the usual one */
    mp_cu_stream streams, *last_stream;
    mp_cu_event events;
    mp_cu_module modules;
    sim_capture *captures;
    uint64_t n_captures;
    uint32_t n_graphs;
    uint32_t threads;   /* running */
    uint32_t n_streams; /* ever made */
    uint64_t n_ops;     /* ever submitted */

    sim_range *ranges;
    uint32_t n_freed;
    sim_handle *handles;
    sim_mapping *mappings;
    int file; /* behind virtual memory */
    uint64_t file_end;
    mp_cu_handle last_handle;

    bool manual, hold_new, closing;
    uint64_t jitter, random;
    uint64_t bus_bytes_per_s;        /* 0: copies take no time */
    sim_fault faults[SIM_CALLS + 1]; /* the last: any call that takes a context */
    sim_cuda_stats stats;
    uint32_t misuse;
} sim_machine;

extern sim_machine sim;
extern pthread_mutex_t sim_lock;
extern pthread_cond_t sim_progress; /* whatever anybody may wait for has happened */

#define SIM_DECLARE(field, symbol, parameters) mp_cu_result sim_do_##field parameters;
MP_CU_FUNCTIONS(SIM_DECLARE)
#undef SIM_DECLARE
#define SIM_DECLARE(field, symbol, version, parameters) mp_cu_result sim_do_##field parameters;
MP_CU_OPTIONAL(SIM_DECLARE)
#undef SIM_DECLARE

/* Holds the lock until the function returns in which this is declared. */
static inline pthread_mutex_t *sim_take_lock(void)
{
    pthread_mutex_lock(&sim_lock);
    return &sim_lock;
}
static inline void sim_give_lock(pthread_mutex_t *const *lock)
{
    pthread_mutex_unlock(*lock);
}
#define SIM_LOCKED()                                                                       \
    __attribute__((cleanup(sim_give_lock), unused)) pthread_mutex_t *const sim_lock_held = \
        sim_take_lock()

/* Takes the lock, and returns from a call that fails or may not be made now. */
#define SIM_BEGIN(call)                       \
    SIM_LOCKED();                             \
    mp_cu_result may_begin = sim_check(call); \
    if (may_begin)                            \
    return may_begin

/* sim_cuda.c: what SIM_BEGIN asks. */
mp_cu_result sim_check(sim_cuda_call call);
mp_cu_context sim_current(void);        /* NULL: none */
sim_capture_mode sim_thread_mode(void); /* of the calling thread */
/* A failure that sticks to the context. */
void sim_poison(mp_cu_context context, mp_cu_result result);
void sim_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t sim_random(uint64_t *state);
void *sim_new(size_t bytes); /* zeroed */
bool sim_lies_within(uint64_t at, uint64_t bytes, uint64_t outer, uint64_t outer_bytes);

/* sim_memory.c; with the lock held. */
typedef enum sim_reach {
    SIM_REACH_OK,      /* device memory that is there, or pinned memory */
    SIM_REACH_FOREIGN, /* the same, but not for this GPU */
    SIM_REACH_BAD,     /* device or pinned memory that is not there, or is but in part */
    SIM_REACH_PLAIN    /* other host memory, as far as one knows */
} sim_reach;
#define SIM_ANY_GPU (-1)
sim_reach sim_reach_of(int gpu, uint64_t at, uint64_t bytes);
sim_range *sim_range_add(sim_range_kind kind, uint64_t at, uint64_t bytes, int gpu);
sim_range *sim_range_find(sim_range_kind kind, uint64_t at);
void sim_range_remove(sim_range *range);
/* A kernel argument's word that looks like an address in memory that the GPU does not reach: plain memory,
 * or, with `foreign`, another GPU's. */
bool sim_word_is_stray(int gpu, uint64_t word, bool *foreign);
/* Everything of a GPU, or with gpu < 0 of all. */
void sim_memory_drop(int gpu);
bool sim_page_is_there(uint64_t at);

/* sim_virtual.c */
void sim_virtual_drop(int gpu);
bool sim_mapped(int gpu, uint64_t at, uint64_t bytes); /* and accessible */

/* sim_stream.c; with the lock held. */
mp_cu_stream sim_stream_new(mp_cu_context context, bool legacy, bool blocking);
/* The stream behind a handle; NULL when there is none. A driver call's is of the current
 * context. */
mp_cu_stream sim_stream_any(mp_cu_stream handle);
mp_cu_stream sim_stream_find(mp_cu_stream handle);
/* Puts work on a stream that is not captured; takes work->own. May wait for room. */
void sim_stream_submit(mp_cu_stream stream, const sim_work *work);
void sim_stream_join(mp_cu_stream stream); /* waits until it is empty */
void sim_streams_drop(int gpu);            /* those of a GPU are destroyed */
void sim_streams_free(void);               /* all have ended */
void sim_wake_all(void);

/* sim_work.c */
void sim_work_run(mp_cu_stream stream, const sim_work *work); /* without the lock */
/* Submits, or captures. With the lock held. */
mp_cu_result sim_submit(mp_cu_stream handle, const sim_work *work);

/* sim_capture.c; with the lock held but for sim_graph_run. */
mp_cu_result sim_capture_refuse(void); /* an unsafe call by this thread */
mp_cu_result sim_capture_check(mp_cu_stream stream);
mp_cu_result sim_capture_add(mp_cu_stream stream, const sim_work *work);
mp_cu_result sim_capture_invalidate(sim_capture *capture, mp_cu_result result);
mp_cu_result sim_capture_wait(mp_cu_stream stream, mp_cu_event event);
sim_capture *sim_capture_find(uint64_t id);
void sim_graph_run(mp_cu_stream stream, sim_cuda_graph *graph);
void sim_captures_drop(void);

/* sim_launch.c */
extern _Thread_local int sim_running_gpu; /* whose kernel the thread runs; SIM_ANY_GPU: none's */
void sim_kernel_run(mp_cu_stream stream, const sim_work *work);
void sim_modules_drop(int gpu);

#endif
