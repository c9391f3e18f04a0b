/* cuda_ext.h — what CUDA devices do besides the vtable: kernels on the caller's own streams, and
 * layers that the device runs by itself. The functions of include/moepage_cuda.h call through it.
 *
 * Everything here submits to a `native` stream (cudaStream_t) and may be captured into a graph: it
 * allocates nothing, waits for nothing, and bakes no value into the graph that must change from one
 * replay to the next. */
#ifndef MP_DEVICE_CUDA_EXT_H
#define MP_DEVICE_CUDA_EXT_H

#include "device/path_mail.h"
#include "device/seam.h"
#include "moepage_cuda.h"

/* Kernels that callers launch themselves; `args` is the public struct of the same name. */
typedef enum mp_cuda_call {
    MP_CUDA_CALL_DECODE,
    MP_CUDA_CALL_DEQUANT,
    MP_CUDA_CALL_GEMV,
    MP_CUDA_CALL_GATHER,
    MP_CUDA_CALL_SCATTER,
    MP_CUDA_CALL_TOPK,
    MP_CUDA_CALL_REMAP
} mp_cuda_call;

/* The places of remapping's tables in the caller's scratch. */
typedef struct mp_cuda_remap_layout {
    uint64_t score; /* from the start; the bins are there */
    uint64_t first;
    uint64_t kept;
    uint64_t bytes;
} mp_cuda_remap_layout;

static inline mp_cuda_remap_layout mp_cuda_remap_layout_of(uint32_t n_tokens, uint32_t experts)
{
    const uint64_t align = 63;
    mp_cuda_remap_layout layout;
    layout.score = ((uint64_t)n_tokens * experts + align) & ~align;
    layout.first = (layout.score + sizeof(float) * (uint64_t)experts + align) & ~align;
    layout.kept = (layout.first + experts + align) & ~align;
    layout.bytes = (layout.kept + experts + align) & ~align;
    return layout;
}

/* Memory that the device and the host both read and write: `host` and `device` are its addresses on
 * the two sides; all devices of this kind find it at `device`. Uncached there; 64-byte aligned. */
typedef struct mp_cuda_shared {
    void *host;
    uint64_t device;
    uint64_t bytes;
} mp_cuda_shared;

/* A thread of the device that looks at shared memory for the caller. It calls `poll` again and
 * again: without a pause while something happens, more rarely when nothing has happened for a while.
 * `poll` returns whether something has happened since the last time. It may submit work, post tasks,
 * and wait for streams whose work does not wait for it. */
typedef struct mp_cuda_poller mp_cuda_poller;
typedef bool (*mp_cuda_poll_fn)(void *user);

#define MP_CUDA_PROBES 8u

/* What a handshake needs: words that are 0. */
typedef struct mp_cuda_handshake {
    const uint32_t *marks; /* [MP_CUDA_PROBES] shared memory, and its address on the device */
    uint64_t marks_gpu;
    uint64_t word; /* device memory; 0 again afterwards, in the order of the stream */
} mp_cuda_handshake;

/* A path's device memory. */
typedef struct mp_path_memory {
    mp_path_state *state;
    int32_t *map;         /* [keys] */
    uint32_t *stamps;     /* [keys] */
    mp_ffn_expert *table; /* [experts] */
    uint32_t *rows;       /* [max_tokens * max_top_k] */
} mp_path_memory;

/* One layer of a path. All addresses are the device's. */
typedef struct mp_cuda_path_layer {
    const moepage_cuda_layer *layer; /* the caller's, checked */
    mp_path_memory memory;
    uint64_t mail; /* mp_path_mail, and behind it [n_keys] stamps of its message */
    uint64_t timeout_ns;
    uint32_t n_keys;
    uint32_t experts; /* per layer */
    const void *slots;
    uint64_t slot_bytes;
    mp_path_layout layout; /* of a slot */
    /* Of the experts, whichever they will be: types, sizes, math, and scratch: inner and partial. */
    mp_kernel_experts_args kind;
    void *x; /* scratch for operands */
} mp_cuda_path_layer;

typedef struct mp_cuda_ext {
    moepage_status (*get_info)(mp_device *device, moepage_cuda_info *out);

    /* Runs a kernel on the caller's stream; the arguments have been checked. */
    moepage_status (*call)(mp_device *device, mp_cuda_call call, const void *args, void *native);

    /* UNSUPPORTED, with a sentence, if the device has no kernels for experts of this kind. */
    moepage_status (*check_experts)(mp_device *device, const mp_kernel_experts_args *kind);

    /* Submits the kernels of one layer of a path to the caller's stream. The description is read
     * before this returns. */
    moepage_status (*path_layer)(mp_device *device, const mp_cuda_path_layer *layer, void *native);

    /* Writes a word of device or shared memory in the order of the stream. */
    moepage_status (*write32)(mp_stream *stream, uint64_t at, uint32_t value);

    /* *is_shared: whether a kernel that waits on one stream holds up another stream, which is to write
     * what it waits for. Takes 50 ms where it does, and well below 1 ms where not. */
    moepage_status (*shake_hands)(mp_stream *answers, const mp_cuda_handshake *handshake,
                                  bool *is_shared);

    /* Zero-filled; see mp_cuda_shared. */
    moepage_status (*shared_alloc)(mp_device *device, uint64_t bytes, mp_cuda_shared *out);
    void (*shared_free)(mp_device *device, const mp_cuda_shared *memory);

    moepage_status (*poller_start)(mp_device *device, mp_cuda_poll_fn poll, void *user,
                                   mp_cuda_poller **out);
    /* Returns after the last poll has returned. */
    void (*poller_stop)(mp_cuda_poller *poller);

    /* Prepares for EXPERTS with MATH_BF16_FAST; never called on a step's path. *is_there: whether
     * there is cuBLAS, so that mp_kernel_experts_args.scratch is of use. */
    moepage_status (*fast_open)(mp_device *device, bool *is_there);

    /* Lets copies and kernels of `device` touch the workspaces of `other`, another device of this kind, from
     * now on; never called on a step's path. *can: whether the driver has a way. */
    moepage_status (*reach)(mp_device *device, mp_device *other, bool *can);

    /* Asks the driver whether the stream's device has failed, which it may have done since the last call
     * that would have told. Never blocks. */
    moepage_status (*ask)(mp_stream *stream);
} mp_cuda_ext;

#endif
