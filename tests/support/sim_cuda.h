/* sim_cuda.h — a simulated CUDA driver: what cuda/driver.h declares, for machines without a GPU.
 *
 * Device memory is host memory, so a device address may be read by a test as it is. Each stream is
 * a thread that runs its operations in order; kernels run in their CPU form (cuda/kernels/phase.h),
 * blocks and threads in random orders, on shared memory and registers full of garbage. The rules of
 * the driver that programs break by mistake are enforced: contexts, lifetimes, the states of
 * virtual memory, which memory a copy or a kernel may touch, what may be captured into a graph. A GPU
 * touches its own memory, pinned memory (of another's context if it is portable), and another's memory
 * with access to it: a copy too, though a driver would carry it out by way of the host.
 *
 * One simulated machine per process at a time. All functions may be called from any thread. */
#ifndef MP_TESTS_SIM_CUDA_H
#define MP_TESTS_SIM_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "functions.h"

/* ---- The machine ------------------------------------------------------------------------ */

#define SIM_MAX_GPUS 8
#define SIM_GRANULARITY (2ull << 20) /* of virtual memory, minimum and recommended */

typedef struct sim_cuda_gpu {
    const char *name;    /* NULL: "Simulated GPU" */
    uint64_t bytes;      /* of memory; 0: 1 GiB */
    int multiprocessors; /* 0: 4 */
    int major, minor;    /* compute capability; 0: 9.0 */
    int shared_optin;    /* shared memory of a block, opted in; 0: 227 KiB */
    int numa_node;       /* -1: unknown */
    bool no_vmm;
    bool no_stream_mem_ops_64;
} sim_cuda_gpu;

typedef struct sim_cuda_config {
    uint32_t n_gpus; /* 0: one; SIM_NO_GPU: none */
    sim_cuda_gpu gpus[SIM_MAX_GPUS];
    int driver_version; /* 0: 13000 */
    bool copy_batch;    /* the table has it; streams that are not NULL only, as in the driver */
    uint64_t register_limit; /* host_register of more at once is OUT_OF_MEMORY; 0: no limit */
    uint64_t pinned_limit;   /* the same for all pinned and registered memory together */
    uint32_t
        connections; /* hardware queues, which streams are dealt out to; 0: one for each stream */
    uint32_t queue_ops; /* a stream that holds so many makes its caller wait; 0: no limit */
    bool no_peers;      /* no GPU may be given access to another's memory */
    bool waits_tell; /* a wait for an event of a GPU that has failed returns that GPU's failure */
    bool kernels_reach_host; /* do not complain of kernel arguments that point to plain memory */
    uint64_t seed;           /* of all random orders */
} sim_cuda_config;

#define SIM_NO_GPU UINT32_MAX

/* NULL: the default machine. The table is valid until sim_cuda_close. */
const mp_cuda_driver *sim_cuda_open(const sim_cuda_config *config);

/* Lets all streams run to their end, and frees everything. Fails the running test when something
 * is left: pushed or retained contexts, streams, events, modules, graphs, memory, reservations,
 * registrations; or when there was misuse. */
void sim_cuda_close(void);

/* What sim_cuda_close would fail with, "" when all is well. Until the next call. */
const char *sim_cuda_left(void);

/* Uses that are undefined on a real driver (a destroyed stream, a free of what is not allocated, a
 * kernel argument that points to plain host memory ...), counted since the last call; each was
 * refused, and printed. A test that provokes some takes them away before sim_cuda_close. */
uint32_t sim_cuda_take_misuse(void);

/* ---- Counting and failing calls --------------------------------------------------------- */

typedef enum sim_cuda_call {
#define SIM_CALL(field, symbol, parameters) SIM_##field,
    MP_CU_FUNCTIONS(SIM_CALL)
#undef SIM_CALL
#define SIM_CALL(field, symbol, version, parameters) SIM_##field,
        MP_CU_OPTIONAL(SIM_CALL)
#undef SIM_CALL
            SIM_CALLS
} sim_cuda_call; /* SIM_mem_alloc ... */

const char *sim_cuda_call_name(sim_cuda_call call); /* "mem_alloc" */

/* The nth call from now on (1: the next one) does nothing but return `result`; with `for_ever` all
 * calls after it too. A result that sticks to a context (ILLEGAL_ADDRESS, LAUNCH_FAILED) does. */
void sim_cuda_fail(sim_cuda_call call, uint64_t nth, mp_cu_result result, bool for_ever);
/* The same over all calls that take a context, counted together: to fail each one in turn. */
void sim_cuda_fail_any(uint64_t nth, mp_cu_result result, bool for_ever);
void sim_cuda_fail_none(void);
/* An asynchronous, sticky failure of a GPU, as of a kernel that faults. */
void sim_cuda_break(uint32_t gpu, mp_cu_result result);

typedef struct sim_cuda_stats {
    uint64_t calls[SIM_CALLS];
    uint64_t memory_calls; /* of those: alloc, free, map, register ... whatever manages memory */
    uint64_t
        staged_copies;  /* copies from or to host memory that is neither pinned nor registered */
    uint64_t kernels;   /* launches that have run, replays included */
    uint64_t ops;       /* of all kinds that have run */
    uint64_t allocated; /* device bytes in use */
    uint64_t pinned;    /* host bytes, allocated and registered */
} sim_cuda_stats;
sim_cuda_stats sim_cuda_get_stats(void);

/* ---- Time ------------------------------------------------------------------------------- */

/* A held stream finishes the operation that it is at and starts no other. */
void sim_cuda_hold(mp_cu_stream stream);
void sim_cuda_release(mp_cu_stream stream);
/* All streams, and those created later. */
void sim_cuda_hold_all(bool hold);

/* Changes the machine's `connections`, for streams that are created from now on; earlier ones stay where they
 * were, the first queue if there were none. */
void sim_cuda_connect(uint32_t connections);

/* Changes the machine's `no_peers`; access that was given stays. */
void sim_cuda_allow_peers(bool allow);

/* Manual: no stream starts anything unless stepped. Leaving it lets all run. */
void sim_cuda_manual(bool on);
/* Runs one operation of the stream and returns when it is done; false when there is none that may
 * start, because the stream is empty or waits for an event. */
bool sim_cuda_step(mp_cu_stream stream);
/* The same for a random stream among those that can step. */
bool sim_cuda_step_any(void);

/* Random delays between operations; 0 = none. */
void sim_cuda_jitter(uint64_t seed);

/* Copies move so many bytes a second, each stream's on its own; 0 = as many as they can. */
void sim_cuda_bus(uint64_t bytes_per_s);

/* Streams that exist, NULL streams left out, in the order of their creation. */
uint32_t sim_cuda_streams(void);
mp_cu_stream sim_cuda_stream_at(uint32_t index);
/* Operations that a stream has not finished. */
uint64_t sim_cuda_pending(mp_cu_stream stream);
/* Threads inside the driver that wait for operations which have not finished. */
uint32_t sim_cuda_waiting(void);

/* ---- Memory ----------------------------------------------------------------------------- */

/* A kernel or copy may touch these bytes: device memory mapped and accessible, or pinned. */
bool sim_cuda_accessible(const void *at, uint64_t bytes);

/* For what runs kernels: whether the one that this thread runs may touch these bytes, which is so from
 * *first to *end; false as well where no machine is open. `*open`: one is, whose kernels reach nothing else. */
bool sim_cuda_reach(uint64_t at, uint64_t bytes, uint64_t *first, uint64_t *end, bool *open);
/* Pinned memory, which the host may look at while a kernel runs. */
bool sim_cuda_pinned(uint64_t at);
/* Counts as misuse, where a machine is open. */
void sim_cuda_complain(const char *text);

/* ---- Graphs ----------------------------------------------------------------------------- */

typedef struct sim_cuda_graph sim_cuda_graph;

/* Results of captures that cuda/driver.h does not name. */
enum {
    SIM_CAPTURE_INVALIDATED = 901,
    SIM_CAPTURE_MERGE = 902,
    SIM_CAPTURE_UNMATCHED = 903,
    SIM_CAPTURE_UNJOINED = 904,
    SIM_CAPTURE_ISOLATION = 905,
    SIM_CAPTURE_IMPLICIT = 906,
    SIM_CAPTURED_EVENT = 907,
    SIM_CAPTURE_WRONG_THREAD = 908
};

/* Who may not call what is unsafe during a capture (memory management, queries, synchronisation),
 * lest it be refused with CAPTURE_UNSUPPORTED and the capture be invalidated: every thread; the
 * thread that captures; nobody, except about what is being captured. GLOBAL is what frameworks use.
 * A thread's own mode (capture_mode in the table) lets it call more: THREAD, whatever others
 * capture; RELAXED, always. */
typedef enum sim_capture_mode {
    SIM_CAPTURE_GLOBAL,
    SIM_CAPTURE_THREAD,
    SIM_CAPTURE_RELAXED
} sim_capture_mode;

/* On the stream's context, which need not be current. */
mp_cu_result sim_cuda_capture_begin(mp_cu_stream stream, sim_capture_mode mode);
/* A failure ends the capture too. */
mp_cu_result sim_cuda_capture_end(mp_cu_stream stream, sim_cuda_graph **out);
uint32_t sim_cuda_graph_nodes(const sim_cuda_graph *graph);
/* Puts a run of the graph on a stream, as one operation: its nodes run in a random order among
 * those that their dependencies allow. */
mp_cu_result sim_cuda_graph_launch(sim_cuda_graph *graph, mp_cu_stream stream);
/* Once its launches have finished. */
void sim_cuda_graph_destroy(sim_cuda_graph *graph);

/* ---- Kernels (sim_kernels.c) ------------------------------------------------------------ */

/* What mp_cuda_device_open takes: all of cuda/kernels in CPU form. An image's bytes are an array of
 * mp_cpu_kernel that ends with one whose name is NULL. */
extern const mp_cuda_image sim_images[];
extern const uint32_t sim_n_images;

#endif
