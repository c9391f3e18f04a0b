/* seam.h — the seam between the library and a machine: what every device must do.
 *
 * A device is memory with a budget, in-order streams that move bytes and run kernels
 * asynchronously, tasks, and a clock. Every device implements this vtable; the suite in
 * tests/conformance defines it in code.
 *
 * Time on a stream is a count: every submission gets the next tick (1, 2, 3 ...), and a stream has
 * completed tick t when that submission and all before it have finished and their writes are
 * visible to every thread that has observed the completion. There are no event objects: a (stream,
 * tick) pair is the event. Publishing an expert after its copy means comparing two integers.
 *
 * Threads: every function may be called from any thread unless its comment says otherwise. No other
 * part of the library creates a thread or reads a clock. No callback runs inside a submission. */
#ifndef MP_DEVICE_SEAM_H
#define MP_DEVICE_SEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/log.h"
#include "device/kernels.h"
#include "moepage.h"

#define MP_DEVICE_OPS_VERSION 8u

typedef struct mp_device_ops mp_device_ops;

/* The part of a device that all implementations share; they embed it first. */
typedef struct mp_device {
    const mp_device_ops *ops;
    uint64_t caps;       /* MP_CAP_* */
    const char *name;    /* "host" */
    const char *kernels; /* instruction set or compute capability, for people */
    uint32_t threads;
    uint32_t io_threads; /* that run COLD streams */
    uint64_t bus_bytes_per_s;
    uint64_t arena_align; /* the arena's size must be a multiple; a power of two */
    uint64_t view_bytes;  /* granularity of views of the arena, once there is one; 0 = none */
    /* Granularity in which the arena, once there is one, gets memory and gives it back; 0 = it has all of
     * its memory as long as it lives. */
    uint64_t part_bytes;
    _Atomic uint64_t pageable_bytes; /* of host_map's memory that could not be pinned */
    mp_log log;
} mp_device;

enum {
    /* caller's memory is the device's memory: a plan's pointers may be read by the calling thread,
     * and x and y of an FFN too. The caller has no streams of its own: enter and follow do nothing.
     * Without it, streams order the caller's work and ours, and no step waits for the device. */
    MP_CAP_SYNC_CALLER = 1u << 0,
    /* A simulation: no bytes back device memory, nor host memory from the device, and neither is
     * read or written. */
    MP_CAP_NO_BYTES = 1u << 1,
    MP_CAP_ON_HOST = 1u << 2, /* runs EXPERTS with `on_host`; with SYNC_CALLER only */
    MP_CAP_INT8 = 1u << 3,    /* knows MATH_INT8 */
    /* Transfers write to the arena, and nothing here reads it; there are no kernels. */
    MP_CAP_WRITE_ONLY = 1u << 4
};

typedef struct mp_stream mp_stream;
typedef uint64_t mp_tick; /* 0: nothing to wait for */

/* Streams share engines. COMPUTE and BACKGROUND streams run kernels, and copies inside the device
 * in turn with them; BACKGROUND ones only while no COMPUTE stream has anything ready. DEMAND and
 * PREFETCH streams move bytes over the bus, DEMAND first. What runs is not interrupted, so callers
 * keep background work small. COLD streams fill host memory from storage: their transfers' fill
 * callbacks may block for I/O, do not hold the bus, and run on as many threads as the device has
 * for I/O, one per stream at a time. */
typedef enum mp_stream_class {
    MP_STREAM_COMPUTE,
    MP_STREAM_BACKGROUND,
    MP_STREAM_DEMAND,
    MP_STREAM_PREFETCH,
    MP_STREAM_COLD
} mp_stream_class;

/* A large range of host memory on the device's NUMA node, zero-filled, every page present, which
 * transfers reach at full speed. */
typedef struct mp_host_memory {
    unsigned char *base; /* page-aligned */
    uint64_t bytes;      /* at least what was asked for */
    uint32_t page_bytes; /* of the pages behind it: huge ones where the system has them */
    int32_t node;        /* that it is bound to and lies on; -1 = none */
    bool pageable;       /* the device pins such memory, and could not */
} mp_host_memory;

typedef enum mp_memory_kind {
    MP_MEMORY_ARENA,     /* device memory, page-aligned, mapped once; one per device */
    MP_MEMORY_WORKSPACE, /* device memory, 64-byte aligned */
    MP_MEMORY_HOST       /* host memory that transfers reach at full speed */
} mp_memory_kind;

/* One transfer. Either `src` is readable memory, or `fill` produces the bytes: it is called on a
 * device thread with this struct, writes copy->bytes bytes to `out`, and returns MOEPAGE_OK or the
 * status that the transfer fails with. */
typedef struct mp_copy mp_copy;
struct mp_copy {
    void *dst;
    const void *src;
    uint64_t bytes;
    moepage_status (*fill)(const mp_copy *copy, void *out);
    const void *fill_user; /* for `fill` */
    uint32_t fill_key[3];  /* for `fill`: layer, expert, tensor */
    /* For `fill`: in bytes. Unless the stream is COLD, a device may have the transfer filled in
     * parts, each with its own dst, bytes and offset. */
    uint64_t fill_offset;
    /* Set (and only set) to the failure's status if this transfer fails; NULL = poison the
     * device. Outlives the transfer. Visible once the tick has completed. */
    _Atomic int32_t *result;
};

/* A piece of work to run once on a device thread. Intrusive: the owner keeps it alive until it
 * has run, and may then post it again. */
typedef struct mp_task mp_task;
struct mp_task {
    void (*run)(mp_task *task);
    mp_task *next; /* the device's */
    mp_tick due;   /* the device's */
    /* The lock that `run` takes, or NULL. If tasks run on a thread that waits for something else, a
     * task whose lock that thread holds is put off. */
    pthread_mutex_t *lock;
};

struct mp_device_ops {
    uint32_t version; /* MP_DEVICE_OPS_VERSION */

    /* Waits for submitted work and posted tasks, then frees the device. Streams and memory have
     * been given back before. */
    void (*close)(mp_device *device);

    /* `bytes` > 0. NO_MEMORY with a sentence. The caller keeps the budget. */
    moepage_status (*alloc)(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out);
    void (*free)(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes);

    /* An arena of `bytes` bytes of addresses without memory; `free` gives it back with what memory it has.
     * UNSUPPORTED, NO_MEMORY; NULL without part_bytes. */
    moepage_status (*reserve)(mp_device *device, uint64_t bytes, void **out);
    /* Gives memory to a range of the arena that has none, with any bytes in it; takes it away again.
     * The system has it back then. Offsets are multiples of part_bytes; so are sizes, unless the range ends with the
     * arena. Work that uses a range has completed before its memory goes. Both may block for long, but wait for no
     * task and for no other work: the caller may hold locks. NO_MEMORY; a failed `back` has given nothing. NULL without part_bytes. */
    moepage_status (*back)(mp_device *device, uint64_t offset, uint64_t bytes);
    void (*unback)(mp_device *device, uint64_t offset, uint64_t bytes);
    /* How many bytes the system could still give to this device; may read files or call the driver.
     * UNSUPPORTED if it is not known. NULL where nobody can say. */
    moepage_status (*available)(mp_device *device, uint64_t *out);

    /* Host memory for a tier of experts, `bytes` > 0; see mp_host_memory. Falls back to smaller
     * pages, no binding or pageable memory rather than fail, and says so there. NO_MEMORY with a sentence. */
    moepage_status (*host_map)(mp_device *device, uint64_t bytes, mp_host_memory *out);
    void (*host_unmap)(mp_device *device, const mp_host_memory *memory);

    /* NO_MEMORY, also for the threads that a COLD stream may need. */
    moepage_status (*stream_create)(mp_device *device, mp_stream_class cls, mp_stream **out);
    /* Waits for the stream's work and for the tasks that follow it. */
    void (*stream_destroy)(mp_stream *stream);

    /* Submits `n` transfers in order; *out is the last one's tick. Does not wait for them; may
     * wait for room in the stream's queue. The array is copied. A refusal has submitted none of
     * them and leaves *out. */
    moepage_status (*copy)(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out);

    /* Submits a kernel to a COMPUTE or BACKGROUND stream; ARGUMENT on another. `args` (struct
     * mp_kernel_<name>_args) is copied. Its tables, which kernels.h marks [host], are host memory;
     * with MP_CAP_SYNC_CALLER they must live until the tick completes, otherwise until launch
     * returns. Everything else that it points to is device memory and lives until the tick. */
    moepage_status (*launch)(mp_stream *stream, mp_kernel kernel, const void *args, mp_tick *out);

    /* Runs share `part` of `n_parts` of one phase of a kernel in the calling thread, outside of all streams.
     * With MP_CAP_ON_HOST only, elsewhere NULL. */
    void (*run_part)(mp_device *device, mp_kernel kernel, const mp_kernel_args *args,
                     uint32_t phase, uint32_t part, uint32_t n_parts);

    /* Work submitted to `stream` from now on starts after `other` has completed `tick`. Both on
     * this device; or, of CUDA devices, on any two. */
    moepage_status (*wait)(mp_stream *stream, mp_stream *other, mp_tick tick);

    /* Submits nothing: *out is a tick that completes when all that was submitted and waited for
     * before has. */
    moepage_status (*mark)(mp_stream *stream, mp_tick *out);

    /* `native`: a stream of the caller's (cudaStream_t on CUDA; ignored, and NULL, where the device
     * has none). What is submitted to `stream` from now on starts after what `native` holds now.
     * STATE while `native` is being captured into a graph. */
    moepage_status (*enter)(mp_stream *stream, void *native);

    /* What the caller submits to `native` from now on starts after `stream` has completed `tick`. */
    moepage_status (*follow)(void *native, mp_stream *stream, mp_tick tick);

    /* The last tick completed. Never blocks, takes no lock. */
    mp_tick (*completed)(const mp_stream *stream);

    /* Blocks until nothing submitted to `stream` up to `tick` can fail any more but by the device's
     * own failure: fills have run, and results of transfers are written. `sync` implies it; where
     * fills run with the transfers it is `sync`. */
    moepage_status (*settle)(mp_stream *stream, mp_tick tick);

    /* Blocks until `tick`, which has been submitted, has completed; the waiting thread
     * may be put to work. DEVICE when the device is poisoned: work is then skipped, but
     * ticks still complete. */
    moepage_status (*sync)(mp_stream *stream, mp_tick tick);

    /* Runs `task` once on a device thread, after `stream` (NULL: as soon as possible) has
     * completed `tick`. A task may submit work and post tasks; it must not sync. Tasks of a device
     * run one at a time. */
    void (*post)(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task);

    /* Nanoseconds since some fixed moment; monotonic. Never blocks. */
    uint64_t (*now_ns)(mp_device *device);

    /* Views: addresses at which parts of the arena appear a second time. view_reserve gives `bytes`
     * of address space that nothing backs; view_map shows `bytes` of the arena from `offset` on at
     * `at` inside it; view_unmap takes that away again, exactly as it was mapped. All sizes, offsets
     * and addresses are multiples of view_bytes. They may block for long and call the driver: never
     * on a step's path. Work that uses a mapping has completed before it goes. NO_MEMORY; a failed
     * view_map has mapped nothing. NULL without view_bytes. */
    moepage_status (*view_reserve)(mp_device *device, uint64_t bytes, void **out);
    void (*view_release)(mp_device *device, void *base, uint64_t bytes);
    moepage_status (*view_map)(mp_device *device, void *at, uint64_t offset, uint64_t bytes);
    void (*view_unmap)(mp_device *device, void *at, uint64_t bytes);

    /* What CUDA devices can do besides: device/cuda_ext.h. NULL on others. */
    const struct mp_cuda_ext *cuda;
};

/* Opens the implementation that `name` asks for. `config` has been validated. */
moepage_status mp_device_open(const char *name, const moepage_device_config *config,
                              mp_device **out);

/* Opens the machine that a file describes. */
typedef moepage_status mp_simulation_fn(const char *path, const moepage_device_config *config,
                                        mp_device **out);

/* Registers `open` for devices named "sim:PATH". The shipped library registers nothing. */
void mp_device_register_simulation(mp_simulation_fn *open);

#endif
