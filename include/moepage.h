/* moepage.h — paging for Mixture-of-Experts inference: the one public header.
 *
 * libmoepage lets an MoE model run on a device whose memory cannot hold it. Two working sets, the
 * routed expert weights and the KV cache, share one byte budget. The host application steps the
 * model itself and lets the library run the routed experts, layer by layer.
 *
 *   moepage_engine_open("qwen3.moepack", "budget=8G", NULL, &engine);
 *   per step:   moepage_engine_begin(engine, n_tokens);
 *     per layer:  moepage_engine_experts(engine, layer, top_k, ids, weights, x, y);
 *               moepage_engine_end(engine, NULL);
 *   moepage_engine_close(engine);
 *
 * An engine is a device, a model, an expert pool, perhaps a KV pool, and a session, opened
 * together; a host that wants more control opens these itself, and may run experts with kernels
 * of its own:
 *
 *   device_open -> model_open -> expert_pool_create -> kv_pool_create -> session_create
 *   per step:   session_begin
 *     per layer:  session_route -> session_ffn (or the caller's own kernels) -> session_retire
 *               session_end
 *
 * This header has three parts: "Core" is for serving, "Advanced" for what a host may add to it, and
 * "For study" for experiments. All of it is stable.
 *
 * Conventions, which hold for every function unless its comment says otherwise:
 *   - A call returns MOEPAGE_OK (0) or a negative status; moepage_last_error() then holds one
 *     sentence of detail for the calling thread. A failed call changes nothing.
 *   - Structs begin with struct_size, which the caller sets to sizeof the struct it was compiled
 *     with: MOEPAGE_DEVICE_CONFIG() and its like, at the end of the header, do so. Zero in any other
 *     field of a config means "the default", and a NULL config all defaults, where these make sense.
 *     Fields are only ever appended. Reserved fields must be zero.
 *   - Pointers passed in are borrowed for the call only. Out-parameters are written on success
 *     only. Every object that a function returns through `**out` is owned by the caller and
 *     given back with the matching close/destroy call.
 *   - Thread classes: [any] may be called from any thread at any time; [one] by one thread at a
 *     time per object; [set-up] like [one], and not while a step is open on a session that uses
 *     the object. docs/threading.md has the whole contract.
 *   - The library never aborts, exits, prints, or reads the environment.
 *
 * The API exists since version 0.1, except for forms, packs, the codec and the tiers of expert
 * pools (0.2), PagedTensor (0.3), working sets and regimes (0.4), predictors, precision and
 * remapping (0.5), metrics (0.6), engines and initialisers (0.7), layers of different types,
 * slots of any form, metadata and external memory (0.8). moepage_cuda.h has the functions
 * of CUDA devices alone. */
#ifndef MOEPAGE_H
#define MOEPAGE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && defined(MOEPAGE_BUILD)
#define MOEPAGE_API __attribute__((visibility("default")))
#else
#define MOEPAGE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Core =============================================================================== */

/* What a host needs to serve a model: an engine, or the five objects it is made of. */

/* ---- Version ---------------------------------------------------------------------------- */

#define MOEPAGE_VERSION_MAJOR 0
#define MOEPAGE_VERSION_MINOR 8
#define MOEPAGE_VERSION_PATCH 0
#define MOEPAGE_VERSION \
    (MOEPAGE_VERSION_MAJOR * 10000 + MOEPAGE_VERSION_MINOR * 100 + MOEPAGE_VERSION_PATCH)

/* The version of the library that is linked, as MOEPAGE_VERSION; compare it with the macro to
 * detect a header/library mismatch. [any] */
MOEPAGE_API uint32_t moepage_version(void);

/* The same as text, "0.8.0". Static storage. [any] */
MOEPAGE_API const char *moepage_version_text(void);

/* ---- Status ----------------------------------------------------------------------------- */

/* Zero or a negative code. Codes never change their number or meaning. docs/errors.md says for
 * each what a caller can do. */
typedef int32_t moepage_status;

enum {
    MOEPAGE_OK = 0,
    MOEPAGE_E_ARGUMENT = -1,      /* an argument is out of its documented range */
    MOEPAGE_E_STATE = -2,         /* the call is out of order for this object */
    MOEPAGE_E_HANDLE = -3,        /* a stale, foreign or wrong-type handle or sequence id */
    MOEPAGE_E_BUSY = -4,          /* other objects or open plans still depend on this one */
    MOEPAGE_E_NO_MEMORY = -5,     /* host memory could not be allocated */
    MOEPAGE_E_BUDGET = -6,        /* the device budget cannot hold what was asked for */
    MOEPAGE_E_WOULD_NOT_FIT = -7, /* the KV pool has too few free blocks; nothing was taken */
    MOEPAGE_E_NOT_FOUND = -8,     /* no such file, tensor, device, policy or decoder */
    MOEPAGE_E_IO = -9,            /* the operating system failed a read, write or map */
    MOEPAGE_E_FORMAT = -10,       /* a file is malformed, truncated or contradicts itself */
    MOEPAGE_E_UNSUPPORTED = -11,  /* well-formed, but not something this build can do */
    MOEPAGE_E_VERSION = -12,      /* a file or struct is from an incompatible version */
    MOEPAGE_E_CALLBACK = -13,     /* a caller's read callback reported failure */
    MOEPAGE_E_DEVICE = -14,       /* the device failed; its handle is poisoned */
    MOEPAGE_E_END = -15           /* no more records in a trace */
};

/* Static text for a status, never NULL ("unknown status" for anything else). [any] */
MOEPAGE_API const char *moepage_status_text(moepage_status status);

/* One sentence on the last failure in this thread; "" before any failure. The text lives until
 * the thread's next failing call. [any] */
MOEPAGE_API const char *moepage_last_error(void);

/* ---- Logging ---------------------------------------------------------------------------- */

enum { MOEPAGE_LOG_ERROR = 1, MOEPAGE_LOG_WARNING = 2, MOEPAGE_LOG_INFO = 3 };

/* Receives messages worth an operator's attention: fallbacks taken, a device poisoned. `text` is
 * borrowed for the call. May be called from library threads, but never while a library lock that
 * the step path takes is held; it must not call back into the library. */
typedef void (*moepage_log_fn)(void *user, int32_t level, const char *text);

/* ---- Data types ------------------------------------------------------------------------- */

/* Element types of tensors. Values never change. */
enum {
    MOEPAGE_DTYPE_NONE = 0,
    MOEPAGE_DTYPE_F32 = 1,
    MOEPAGE_DTYPE_F16 = 2,
    MOEPAGE_DTYPE_BF16 = 3,
    MOEPAGE_DTYPE_F8_E4M3 = 4,
    MOEPAGE_DTYPE_F8_E5M2 = 5,
    MOEPAGE_DTYPE_F8_E8M0 = 6, /* power-of-two scales of MX formats */
    MOEPAGE_DTYPE_U8 = 7,      /* packed sub-byte weights, e.g. MXFP4 pairs */
    MOEPAGE_DTYPE_I8 = 8,
    MOEPAGE_DTYPE_I32 = 9,
    MOEPAGE_DTYPE_I64 = 10,
    /* versions of experts: a matrix's packed integers with their scales behind them, as
     * docs/format-moepack.md lays them out */
    MOEPAGE_DTYPE_INT8 = 11,
    MOEPAGE_DTYPE_INT4 = 12,
    MOEPAGE_DTYPE_INT2 = 13,
    /* block formats of GGUF files, since 0.8: weights in blocks that carry their scales. Blocks
     * lie along the last dimension, which is a multiple of a block's weights;
     * docs/format-blocks.md lays them out */
    MOEPAGE_DTYPE_Q4_0 = 16,
    MOEPAGE_DTYPE_Q4_1 = 17,
    MOEPAGE_DTYPE_Q5_0 = 18,
    MOEPAGE_DTYPE_Q5_1 = 19,
    MOEPAGE_DTYPE_Q8_0 = 20,
    MOEPAGE_DTYPE_Q2_K = 21,
    MOEPAGE_DTYPE_Q3_K = 22,
    MOEPAGE_DTYPE_Q4_K = 23,
    MOEPAGE_DTYPE_Q5_K = 24,
    MOEPAGE_DTYPE_Q6_K = 25,
    MOEPAGE_DTYPE_IQ4_NL = 26,
    MOEPAGE_DTYPE_IQ4_XS = 27,
    MOEPAGE_DTYPE_MXFP4 = 28,
    MOEPAGE_DTYPE_NVFP4 = 29,
    /* W4A16 weights, since 0.8: blocks of one group of 32, 64 or 128 four-bit integers along the last
     * dimension, with its scale, of which type is the last word of the name, and its zero-point. What
     * GPTQ, AWQ and compressed-tensors directories store is served in these; docs/format-blocks.md lays
     * them out */
    MOEPAGE_DTYPE_W4G32_F16 = 30,
    MOEPAGE_DTYPE_W4G64_F16 = 31,
    MOEPAGE_DTYPE_W4G128_F16 = 32,
    MOEPAGE_DTYPE_W4G32_BF16 = 33,
    MOEPAGE_DTYPE_W4G64_BF16 = 34,
    MOEPAGE_DTYPE_W4G128_BF16 = 35,
    /* NVFP4 with its tensor's scale, since 0.8: blocks of 64, 128 or 256 four-bit floats along the last
     * dimension, with a scale of eight bits for each 16 and an F32 factor for all. What ModelOpt and
     * compressed-tensors directories store is served in these; docs/format-blocks.md lays them out */
    MOEPAGE_DTYPE_NVFP4G64_F32 = 36,
    MOEPAGE_DTYPE_NVFP4G128_F32 = 37,
    MOEPAGE_DTYPE_NVFP4G256_F32 = 38
};

/* The role of a tensor in an expert. H = hidden size, I = expert intermediate size. */
enum {
    MOEPAGE_ROLE_NONE = 0,
    /* Fused [2I, H]: I gate rows, then I up rows (gpt_oss keeps its checkpoint's order: gate
     * and up interleaved). */
    MOEPAGE_ROLE_GATE_UP = 1,
    MOEPAGE_ROLE_GATE = 2,          /* [I, H] */
    MOEPAGE_ROLE_UP = 3,            /* [I, H] */
    MOEPAGE_ROLE_DOWN = 4,          /* [H, I] */
    MOEPAGE_ROLE_GATE_UP_SCALE = 5, /* scales belong to the weight of the same name */
    MOEPAGE_ROLE_GATE_SCALE = 6,
    MOEPAGE_ROLE_UP_SCALE = 7,
    MOEPAGE_ROLE_DOWN_SCALE = 8,
    MOEPAGE_ROLE_GATE_UP_BIAS = 9, /* [2I] */
    MOEPAGE_ROLE_GATE_BIAS = 10,   /* [I] */
    MOEPAGE_ROLE_UP_BIAS = 11,     /* [I] */
    MOEPAGE_ROLE_DOWN_BIAS = 12    /* [H] */
};

/* What an expert computes of its gate and up projections; down projects that. Values never change.
 * Since 0.8. */
enum {
    MOEPAGE_ACTIVATION_SWIGLU = 0, /* gate * sigmoid(gate) * up */
    /* gpt-oss: g * sigmoid(alpha * g) * (u + 1), where g = min(gate, limit) and u = up, bounded by
     * -limit and limit. */
    MOEPAGE_ACTIVATION_SWIGLU_CLAMPED = 1,
    MOEPAGE_ACTIVATION_OTHER = 2 /* none that the library computes; experts are paged */
};

#define MOEPAGE_MAX_EXPERT_TENSORS 8
#define MOEPAGE_MAX_RANK 4
#define MOEPAGE_MAX_DEVICES 16

/* A form in which an expert's weights are stored. Values never change. DENSE and EXPH are lossless:
 * both give the checkpoint's bits. The others are its group-quantised versions. */
enum {
    MOEPAGE_FORM_NONE = 0,
    MOEPAGE_FORM_DENSE = 1, /* the checkpoint's own numbers, laid out as in a slot */
    MOEPAGE_FORM_EXPH = 2,  /* exponents Huffman-coded: docs/format-exph.md */
    MOEPAGE_FORM_INT8 = 3,  /* symmetric integers with one FP16 scale per group of a row */
    MOEPAGE_FORM_INT4 = 4,
    MOEPAGE_FORM_INT2 = 5
};

/* A routed id that names no expert: the slot of a token's top-k is skipped. */
#define MOEPAGE_NO_EXPERT (-1)

/* ---- Handles ---------------------------------------------------------------------------- */

typedef struct moepage_engine moepage_engine;
typedef struct moepage_device moepage_device;
typedef struct moepage_model moepage_model;
typedef struct moepage_expert_pool moepage_expert_pool;
typedef struct moepage_kv_pool moepage_kv_pool;
typedef struct moepage_session moepage_session;
typedef struct moepage_trace moepage_trace;
typedef struct moepage_controller moepage_controller;
typedef struct moepage_predictor moepage_predictor;

/* A sequence in a KV pool. Ids are not used twice: those of freed sequences are refused. 0
 * means no sequence. */
typedef uint64_t moepage_seq;

/* ---- Engine ----------------------------------------------------------------------------- */

/* Described with sessions. */
struct moepage_session_stats;

/* How an engine is opened. Fields left 0 have their defaults; the configs that are pointed to are
 * read during the call only. The device's config must leave budget_bytes and workspace_bytes 0,
 * because the engine sets them. The KV pool's must give the number of blocks, unless `slots` and a
 * budget in bytes are given: KV then gets the rest. Since 0.7. */
typedef struct moepage_engine_config {
    uint32_t struct_size;
    uint32_t dtype; /* of x and y: MOEPAGE_DTYPE_F32, _F16 or _BF16; 0 = F32 */
    /* Of the device, with KV and workspaces; 0 = not given. MOEPAGE_BUDGET_AUTO: follows free memory; the
     * device's config may give max_budget_bytes and reserve_bytes. */
    uint64_t budget_bytes;
    /* Instead: this part of all experts has slots, everything else on top; 0 < p <= 100. */
    double budget_percent;
    const char *device_name; /* as in moepage_device_open; NULL = "host" */
    const struct moepage_device_config *device;
    const struct moepage_expert_pool_config *experts; /* slots 0 = as many as the budget allows */
    const struct moepage_kv_pool_config *kv;          /* NULL = no KV pool */
    const struct moepage_session_config *session;
    const struct moepage_predictor_config *predictor; /* made for the session; NULL = none */
    moepage_model *model;           /* instead of a path; the caller's, outlives the engine */
    uint64_t extra_workspace_bytes; /* workspace for what the caller adds, such as a path */
    uint64_t extra_arena_bytes; /* arena that the pools leave free; with slots or a percentage */
    uint32_t sessions; /* sessions like the engine's that will share the pool; 0 = 1, at most 64 */
    uint32_t reserved;
    void *stream; /* CUDA: the stream on which x is produced and y is read; ignored by "host" */
} moepage_engine_config;

/* Opens everything that is needed to serve a model's experts: the checkpoint or .moepack `path`, a
 * device, an expert pool, a KV pool if its config is given, and one session. NULL for `path` if
 * config->model is set. The budget is divided by the library: workspaces and staging get what the
 * sizing functions say, KV its blocks, and experts the rest. Without a budget, slots must be given,
 * and the budget is what all parts take together.
 *
 * `options` is the same as text, for command lines: "key=value" pairs separated by spaces, each key
 * at most once. It may be NULL; it takes precedence over the config.
 *
 *   budget=8G | budget=25%        budget_bytes (suffix K, M, G or T) or budget_percent; slots=N
 *   budget=auto                   MOEPAGE_BUDGET_AUTO; max_budget=BYTES reserve=BYTES, of the device
 *   device=NAME                   "host", "cuda:0", ...; threads=N io_threads=N bus=BYTES
 *   policy=NAME                   eviction; scope=global|layer scan_percent=N
 *   host_tier=BYTES               bus_form=auto|dense|exph compressed=N staging=N
 *   slot_form=auto|dense|exph|int8|int4|int2
 *   max_tokens=N                  max_sequences=N max_top_k=N math=fp32|bf16|bf16-fast|int8
 *   prefetch=off|hint|previous|predictor   prefetch_depth=N predictor=NAME
 *   regime=auto|cache|stream      miss=wait|low|host
 *   dtype=f32|f16|bf16            of x and y
 *   workspace=BYTES               extra_workspace_bytes; sessions=N
 *   kv_blocks=N                   kv_block_tokens=N; the rest of config->kv must be given
 *
 * Errors: ARGUMENT for an unknown key, an invalid value, or settings that contradict each other;
 * BUDGET for a missing or too small budget (the sentence says how many bytes are needed); and the
 * errors of the calls that open the parts. A failure leaves nothing open. Blocks for files and for
 * mapping the arena. Since 0.7. [any] */
MOEPAGE_API moepage_status moepage_engine_open(const char *path, const char *options,
                                               const moepage_engine_config *config,
                                               moepage_engine **out);

/* Opens a step of n_tokens tokens of one sequence; moepage_session_begin can open others. STATE if
 * one is open. Since 0.7. [one] */
MOEPAGE_API moepage_status moepage_engine_begin(moepage_engine *engine, uint32_t n_tokens);

/* Runs MoE layer `layer` (counted over MoE layers from 0) of the open step: y[n_tokens][hidden]
 * = sum over k of weights[t][k] * expert ids[t][k] of x[n_tokens][hidden]. ids and weights are
 * host memory, [n_tokens][top_k]; x and y are of the engine's dtype, in device memory on CUDA.
 * The same as moepage_session_route, moepage_session_ffn and moepage_session_retire together,
 * with their errors and their rules for streams; after a failure the layer is closed and the
 * call may be repeated. Blocks until absent experts are loaded; on "host" until y is complete.
 * Since 0.7. [one] */
MOEPAGE_API moepage_status moepage_engine_experts(moepage_engine *engine, uint32_t layer,
                                                  uint32_t top_k, const int32_t *ids,
                                                  const float *weights, const void *x, void *y);

/* Closes the step and reports what it did in `stats`, which may be NULL. An engine with
 * MOEPAGE_BUDGET_AUTO follows free memory after every 64th step (moepage_device_follow_memory); what cannot move
 * now moves later, and is no error. Since 0.7. [one] */
MOEPAGE_API moepage_status moepage_engine_end(moepage_engine *engine,
                                              struct moepage_session_stats *stats);

/* The number of the model's MoE layers; 0 for an invalid handle. Since 0.7. [any] */
MOEPAGE_API uint32_t moepage_engine_layers(const moepage_engine *engine);

/* The objects that the engine consists of, for whatever the engine itself has no function for: more
 * sessions, statistics, hints, KV. They belong to the engine: they are valid until it is closed,
 * and must not be destroyed. NULL for a part that it does not have, and for an invalid handle.
 * Since 0.7. [any] */
MOEPAGE_API moepage_device *moepage_engine_device(const moepage_engine *engine);
MOEPAGE_API moepage_model *moepage_engine_model(const moepage_engine *engine);
MOEPAGE_API moepage_expert_pool *moepage_engine_expert_pool(const moepage_engine *engine);
MOEPAGE_API moepage_kv_pool *moepage_engine_kv_pool(const moepage_engine *engine);
MOEPAGE_API moepage_predictor *moepage_engine_predictor(const moepage_engine *engine);
MOEPAGE_API moepage_session *moepage_engine_session(const moepage_engine *engine);

/* Closes the session, which cancels an open step, and then everything else in reverse order. BUSY
 * while an object of the caller's, such as a second session, uses a part; STATE if the open step
 * cannot be cancelled. Parts that were closed before the failure stay closed: destroy the object in
 * the way and call again. NULL is a no-op. Since 0.7. [set-up] */
MOEPAGE_API moepage_status moepage_engine_close(moepage_engine *engine);

/* ---- Device ----------------------------------------------------------------------------- */

/* Gives `bytes` bytes of memory at *base, a multiple of 64, or a status other than OK. */
typedef moepage_status (*moepage_external_alloc_fn)(void *user, uint64_t bytes, void **base);

/* Takes them back. */
typedef void (*moepage_external_free_fn)(void *user, void *base, uint64_t bytes);

/* Writes `bytes` bytes of host memory to the address `to`, a multiple of 64, and returns when they
 * are there. A status other than OK becomes that of the expert's load. */
typedef moepage_status (*moepage_external_write_fn)(void *user, void *to, const void *from,
                                                    uint64_t bytes);

/* Memory of another runtime's for experts, such as buffers of a GPU for which this library has no
 * device of its own: the arena of device "external". The library moves experts there and plans where
 * they are; the caller computes with them. Addresses from *base on stand for the memory; the library
 * follows none. alloc and free are called once each, in the threads that open and close the device;
 * write in a thread of the device's or in one that waits for a load, one call at a time. None may
 * call the library; all are required. Since 0.8. */
typedef struct moepage_external_memory {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    moepage_external_alloc_fn alloc;
    moepage_external_free_fn free;
    moepage_external_write_fn write;
    void *user;
} moepage_external_memory;

/* A budget that follows the system's free memory: as a device's budget_bytes. Since 0.8. */
#define MOEPAGE_BUDGET_AUTO 0x7fffffffffffffffull

typedef struct moepage_device_config {
    uint32_t struct_size;
    uint32_t threads; /* host: threads a kernel may use, at most 1024; 0 = one per online CPU */
    /* Hard limit of device bytes, all uses together; required. MOEPAGE_BUDGET_AUTO: what
     * moepage_device_follow_memory would set now, on a device that knows its free memory. */
    uint64_t budget_bytes;
    /* Part of the budget kept for sessions' scratch; 0 = budget/16, at most 256 MiB. The rest is
     * the arena for experts and KV. */
    uint64_t workspace_bytes;
    /* Host: throttle of copies between memory and the arena, so that transfer-bound behaviour can
     * be studied anywhere; 0 = off. */
    uint64_t bus_bytes_per_s;
    moepage_log_fn log; /* NULL = none */
    void *log_user;
    uint32_t io_threads; /* threads that read the cold tier; 0 = 4, at most 64 */
    /* 1: names loads, decodes and expert kernels to NVIDIA's profilers (NVTX); "cuda:N" only:
     * UNSUPPORTED elsewhere, and in a module that was built without NVTX. */
    uint32_t ranges;
    /* "external" only, and required there: the arena's memory; read during the call. NULL elsewhere.
     * Since 0.8. */
    const moepage_external_memory *external;
    /* The most bytes that moepage_device_set_budget may raise the budget to: addresses are reserved for them,
     * memory is not. 0 = budget_bytes, or with BUDGET_AUTO what is free when the device is opened. More than budget_bytes on
     * devices whose arena can get memory later: not "external", nor CUDA devices without virtual memory
     * management. Since 0.8. */
    uint64_t max_budget_bytes;
    /* Free memory that moepage_device_follow_memory leaves to others; 0 = a sixteenth of max_budget_bytes.
     * Since 0.8. */
    uint64_t reserve_bytes;
} moepage_device_config;

typedef struct moepage_device_info {
    uint32_t struct_size;
    uint32_t threads; /* threads that kernels use */
    uint64_t budget_bytes;
    uint64_t arena_bytes; /* experts and KV blocks are cut from this: what has memory now */
    uint64_t workspace_bytes;
    uint64_t used_bytes; /* held now by expert slots, KV blocks and workspaces */
    /* The most held since the budget last shrank; never above budget_bytes. */
    uint64_t peak_bytes;
    /* Side of the arena given to expert slots and compressed experts. */
    uint64_t arena_expert_bytes;
    uint64_t arena_kv_bytes; /* side of the arena given to KV blocks */
    uint64_t bus_bytes_per_s;
    const char *name;    /* "host"; lives as long as the device */
    const char *kernels; /* instruction set that kernels use, e.g. "avx512" */
    /* Host memory that could not be pinned: copies from it to the device are slower, and not
     * asynchronous; 0 on "host". */
    uint64_t pageable_bytes;
    /* What the budget moves to: less than budget_bytes while moepage_device_set_budget waits for something in
     * use, else the same. Since 0.8. */
    uint64_t budget_aim_bytes;
    uint64_t max_budget_bytes; /* since 0.8 */
    uint64_t reserve_bytes;    /* since 0.8 */
} moepage_device_info;

/* Opens a device by name: "host" is the CPU with a byte budget in RAM, "cuda:N" the Nth NVIDIA GPU
 * (docs/cuda.md), "external" memory of another runtime's: experts are loaded, cached and planned for
 * there as elsewhere, and computed by the caller alone. What would compute, decode or read there
 * (moepage_session_ffn, compressed forms, KV pools, PagedTensors) is UNSUPPORTED. Allocates and maps
 * the whole arena. Errors: NOT_FOUND for an unknown name, and for a missing GPU or driver;
 * UNSUPPORTED if libmoepage-cuda.so is missing, if the driver or the GPU is too old, for a max_budget_bytes or
 * a BUDGET_AUTO that the device cannot have, and for
 * "sim:FILE", a machine simulated in virtual time (docs/format-machine.md), which is a part of
 * moepage-sim and not of this library; VERSION for a module of another build; BUDGET for a zero
 * budget or one smaller than its own workspace; ARGUMENT for too many threads, for a bus throttle on
 * CUDA, and for external memory that is missing, incomplete or for another device; NO_MEMORY; what
 * `alloc` gave. [any] */
MOEPAGE_API moepage_status moepage_device_open(const char *name,
                                               const moepage_device_config *config,
                                               moepage_device **out);

/* Closes a device. BUSY while a pool or a PagedTensor lives on it. NULL is a no-op. [set-up] */
MOEPAGE_API moepage_status moepage_device_close(moepage_device *device);

/* Fills *info (its struct_size set by the caller). [any] */
MOEPAGE_API moepage_status moepage_device_get_info(moepage_device *device,
                                                   moepage_device_info *info);

/* Moves the budget of an open device while its pools serve; steps may be open. The workspace's part stays, the
 * arena gets or loses the difference. A budget that shrinks takes free bytes first, then experts, down to what
 * sessions, pins and one layer's top-k need, and then free KV blocks; live blocks in the way are relocated.
 * Memory past the budget goes back to the system: pages on "host", VMM handles on CUDA. A budget that grows gives
 * pools back what smaller ones took, KV blocks first, and what is left to an expert pool that was made with 0
 * slots; the rest is free for moepage_split_set. `stream`: of the caller's kernels, as in moepage_split_set.
 *
 * BUSY: something in use is in the way, as in moepage_split_set. The smaller budget is then the device's aim
 * (moepage_device_info.budget_aim_bytes): pools get no more than it allows, slots that are to go take no more
 * experts, and the same call, repeated between steps, goes on. A call with another budget changes the aim; one
 * with the present budget, and any failure but BUSY, gives it up. A pinned expert past the new end and a
 * device-driven path can keep it BUSY.
 *
 * Other errors: BUDGET for more than max_budget_bytes, and for less than what pools, a PagedTensor and the
 * workspace keep (the sentence says how much is needed); NO_MEMORY if the system does not give the memory: the old
 * budget stays; UNSUPPORTED if the arena's memory is given once and for all ("external", a CUDA arena in one
 * piece), and for less than a pool over several devices has; DEVICE. OK also where the budget has grown and a pool
 * has not, because there was no memory for its part of the arena: it grows with the next larger budget. Blocks
 * while memory is mapped or given back, and as moepage_split_set for KV, whose rule for callers that read KV
 * outside of steps holds here, too. Since 0.8. [any], one call at a time, moepage_split_set among them */
MOEPAGE_API moepage_status moepage_device_set_budget(moepage_device *device, uint64_t bytes,
                                                     void *stream);

/* Sets the budget that leaves reserve_bytes of free memory to others: on "host" of what the system and the limits
 * of the process's control groups leave, on CUDA of what the driver says is free. Nothing moves while free memory
 * is within half of reserve_bytes from it. The budget is at most max_budget_bytes, and at least what pools must keep. A
 * call reads a few files or asks the driver, and is meant for between steps, a few times a second; nothing calls
 * it but an engine with budget=auto. An aim that waits goes on. Errors: as moepage_device_set_budget; UNSUPPORTED
 * where free memory is not known. Since 0.8. [any], as moepage_device_set_budget */
MOEPAGE_API moepage_status moepage_device_follow_memory(moepage_device *device, void *stream);

/* A product of rows with a dense weight matrix, such as a host's projections of attention, routers
 * and heads: out[r] = w x[r] + bias. Rows are contiguous, unless x_stride says otherwise. Since 0.8. */
typedef struct moepage_linear {
    uint32_t struct_size;
    uint32_t math;    /* MOEPAGE_MATH_*, as in moepage_session_config; BF16_FAST is BF16 */
    uint32_t n_rows;  /* of x and out; 0 does nothing */
    uint32_t n_in;    /* elements of a row of x and of w; whole blocks of w */
    uint32_t n_out;   /* rows of w, elements of a row of out */
    uint32_t x_dtype; /* MOEPAGE_DTYPE_F32 or _BF16; 0 = F32 */
    uint32_t w_dtype; /* _F32, _F16, _BF16, _F8_E4M3, or a block format: _Q4_0 to _NVFP4G256_F32 */
    uint32_t bias_dtype; /* _F32, _F16 or _BF16; 0 = F32 */
    const void *x;       /* [n_rows][n_in] */
    uint64_t x_stride;   /* elements from one row of x to the next; 0 = n_in */
    const void *w;       /* [n_out][n_in] */
    const void *bias;    /* [n_out], or NULL */
    float *out;          /* [n_rows][n_out] */
    /* Of F8_E4M3: scales of blocks of w, [ceil(n_out / block_rows)][ceil(n_in / block_columns)]. A weight
     * counts as its value times its block's scale, rounded once to FP32. Else all of it is 0. */
    const void *scales;
    uint32_t scale_dtype;   /* _F32 or _BF16; 0 = F32 */
    uint32_t block_rows;    /* of a block, 1 or more; the last ones may reach past w */
    uint32_t block_columns; /* likewise */
    uint32_t reserved;      /* 0 */
} moepage_linear;

/* Computes a product on a host device, with its threads and in turn with its experts; out is complete
 * on return. It may overlap none of the operands, which are read during the call only and need no
 * more than the alignment of their elements. Every element of out is one sum in the order of
 * docs/host-kernels.md, the same as an expert's: its bits depend on its row and weights alone, not on
 * other rows, threads or instruction set. x is read in place if its rows are contiguous and of the
 * math's operand type, F32 for MATH_FP32 and BF16 for MATH_BF16; otherwise, and in MATH_INT8 over blocks,
 * the call takes workspace for n_rows * n_in operands, of up to 4 bytes. Errors: ARGUMENT for a dtype or
 * math that is none of these, a NULL pointer, a size of 0 or above 2^31 - 1, an n_in of no whole blocks,
 * an x_stride below n_in, F8_E4M3 without scales and scales of another type; UNSUPPORTED on a device that is
 * not "host"; BUDGET if the workspace is taken; NO_MEMORY; DEVICE if the device has failed. [any] */
MOEPAGE_API moepage_status moepage_device_linear(moepage_device *device,
                                                 const moepage_linear *linear);

/* ---- Model ------------------------------------------------------------------------------ */

typedef struct moepage_model_config {
    uint32_t struct_size;
    uint32_t reserved;
    moepage_log_fn log; /* NULL = none */
    void *log_user;
} moepage_model_config;

/* One tensor of every expert of a model: all experts have the same tensors in the same shapes. From
 * layer to layer their types may differ. */
typedef struct moepage_expert_tensor {
    uint32_t role;  /* MOEPAGE_ROLE_* */
    uint32_t dtype; /* MOEPAGE_DTYPE_* */
    uint32_t rank;  /* 1..MOEPAGE_MAX_RANK */
    uint32_t reserved;
    uint64_t shape[MOEPAGE_MAX_RANK]; /* row-major; unused entries 0 */
    uint64_t bytes;                   /* in: ignored; out: size of the tensor */
    uint64_t offset;                  /* in: ignored; out: place inside an expert's slot */
} moepage_expert_tensor;

typedef struct moepage_model_info {
    uint32_t struct_size;
    uint32_t layers;              /* transformer layers, dense ones included */
    uint32_t moe_layers;          /* layers with routed experts */
    uint32_t experts;             /* routed experts per MoE layer */
    uint32_t top_k;               /* experts per token that the model's router chooses */
    uint32_t hidden;              /* H */
    uint32_t expert_intermediate; /* I */
    uint32_t shared_experts;      /* always-active experts; resident, never paged */
    uint32_t expert_tensors;      /* 1..MOEPAGE_MAX_EXPERT_TENSORS */
    uint32_t vocabulary;          /* 0 when not known (banks) */
    uint64_t expert_bytes;        /* bytes of one expert's tensors, in the layer that needs most */
    uint64_t slot_bytes;          /* what a slot for it takes: expert_bytes and padding */
    uint64_t routed_bytes;        /* bytes of all experts' tensors, of all layers */
    uint64_t dense_bytes;         /* everything else in the checkpoint */
    const char *architecture;     /* "qwen3_moe", ...; "banks" for caller-held experts */
    uint32_t ffn_supported;       /* 1 when moepage_session_ffn can run these experts on "host" */
    uint32_t layouts;             /* different types of experts among the layers; since 0.8 */
    uint32_t activation;          /* MOEPAGE_ACTIVATION_*; since 0.8, as the rest */
    float activation_alpha;       /* of SWIGLU_CLAMPED, else 0 */
    float activation_limit;
    uint32_t reserved;
} moepage_model_info;

/* A tensor of the checkpoint that is never paged. `data` is host memory owned by the model. */
typedef struct moepage_tensor_view {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t rank;
    uint32_t reserved;
    uint64_t shape[MOEPAGE_MAX_RANK];
    uint64_t bytes;
    const void *data;
} moepage_tensor_view;

/* Opens a Hugging Face checkpoint directory: config.json and one or many .safetensors files, with
 * or without an index. Files stay open, and are read when their bytes are needed; of the weights, only
 * routers are read now. Once a file has been truncated or changed, whatever reads it fails with IO;
 * renaming another file over it is safe. Recognised:
 * qwen3_moe, qwen2_moe, mixtral, olmoe, phimoe, deepseek_v2, deepseek_v3, glm4_moe, minimax_m2, gpt_oss.
 * If `path` is a file, it is a .gguf (docs/gguf.md), read like a checkpoint, or a .moepack
 * (docs/format-moepack.md), of which everything but the experts is checked now, and each expert when it
 * is first loaded. Errors name the file and the tensor or section: NOT_FOUND, IO, FORMAT, UNSUPPORTED,
 * VERSION for a pack of a newer major. [any] */
MOEPAGE_API moepage_status moepage_model_open(const char *path, const moepage_model_config *config,
                                              moepage_model **out);

/* Reads `bytes` bytes, from `offset`, of one expert's tensor into `out` (host memory). `tensor`
 * indexes moepage_banks.tensors; `layer` counts MoE layers from 0. Called from library threads: one
 * call at a time per device, but several at a time when the pool has a host tier; and from
 * moepage_pack_write's threads and moepage_model_read_expert's caller. It may block for I/O, and
 * must not call into the library. Returns 0 for success; after any other value the load fails with
 * MOEPAGE_E_CALLBACK and no slot is published. */
typedef int32_t (*moepage_read_fn)(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                                   uint64_t offset, uint64_t bytes, void *out);

/* A tensor that is never paged, of a model that the caller holds. */
typedef struct moepage_dense_tensor {
    const char *name; /* copied */
    uint32_t dtype;
    uint32_t rank;
    uint64_t shape[MOEPAGE_MAX_RANK];
    const void *data; /* aligned for its dtype; must outlive the model */
} moepage_dense_tensor;

/* Where a tensor of an expert begins in a file. Since 0.8. */
typedef struct moepage_file_place {
    uint32_t file; /* index into moepage_banks.files */
    uint32_t reserved;
    uint64_t offset; /* in bytes */
} moepage_file_place;

/* Experts that the caller holds, instead of a checkpoint. Exactly one of `data`, `read` and
 * `places` is set. */
typedef struct moepage_banks {
    uint32_t struct_size;
    uint32_t moe_layers;
    uint32_t experts; /* per layer */
    uint32_t top_k;
    uint32_t hidden;
    uint32_t expert_intermediate;
    uint32_t n_tensors; /* 1..MOEPAGE_MAX_EXPERT_TENSORS */
    uint32_t reserved;
    const moepage_expert_tensor *tensors; /* [n_tensors]; copied */
    /* [moe_layers][experts][n_tensors] host pointers; the array is copied, the bytes behind it must
     * outlive the model. */
    const void *const *data;
    moepage_read_fn read;
    void *read_user;
    /* The rest of a whole model, so that it can be packed and served like a checkpoint; all of it
     * may be left out. */
    const char *architecture;   /* "qwen3_moe"; NULL = "banks". Copied, at most 63 characters */
    const char *config_json;    /* copied */
    const int32_t *layer_index; /* [moe_layers] ascending; copied; NULL = 0, 1, 2 ... */
    uint32_t layers;            /* 0 = moe_layers */
    uint32_t shared_experts;
    uint32_t vocabulary;
    uint32_t n_dense;
    const moepage_dense_tensor *dense; /* [n_dense], names distinct; copied */
    /* [moe_layers][n_tensors] in place of `tensors`, where types differ from layer to layer; roles and
     * shapes must not. Copied. Since 0.8. */
    const moepage_expert_tensor *layer_tensors;
    uint32_t activation;    /* MOEPAGE_ACTIVATION_*; 0 = SWIGLU. Since 0.8, as the rest */
    float activation_alpha; /* of SWIGLU_CLAMPED, 2^-10 to 2^10; 0 = 1.702 */
    float activation_limit; /* of SWIGLU_CLAMPED, above 0, finite; 0 = 7 */
    uint32_t n_files;       /* of `files`; 0 without `places` */
    /* Experts in files of any format, whose tensors' bytes are as a slot holds them: [n_files] paths, each
     * opened once and kept open until the model is closed. A file that changes afterwards is an error of the
     * load that meets it, IO; renaming another file over it is safe. Copied. Since 0.8. */
    const char *const *files;
    /* [moe_layers][experts][n_tensors] where each tensor begins: at any offset, and tensors may share bytes.
     * Copied. Since 0.8. */
    const moepage_file_place *places;
} moepage_banks;

/* Describes a model by its expert banks. Any shapes and dtypes can be paged; moepage_session_ffn
 * needs GATE_UP (or GATE and UP) and DOWN, each of F32, F16, BF16 or a block format, or all of F8_E4M3
 * with block scales (docs/checkpoints.md), and an activation other than OTHER; on CUDA gate and up of one
 * type. With `places` also NOT_FOUND and IO for a file that cannot
 * be opened, and FORMAT for one that is not a regular file or ends before its last tensor does. [any] */
MOEPAGE_API moepage_status moepage_model_open_banks(const moepage_banks *banks,
                                                    const moepage_model_config *config,
                                                    moepage_model **out);

/* Closes a model. BUSY while an expert pool or a PagedTensor uses it. NULL is a no-op. [set-up] */
MOEPAGE_API moepage_status moepage_model_close(moepage_model *model);

/* Fills *info. [any] */
MOEPAGE_API moepage_status moepage_model_get_info(const moepage_model *model,
                                                  moepage_model_info *info);

/* Copies the tensors of an expert of the first MoE layer to out[0..expert_tensors). `capacity` is the
 * length of `out` and must be at least moepage_model_info.expert_tensors. [any] */
MOEPAGE_API moepage_status moepage_model_get_expert_tensors(const moepage_model *model,
                                                            moepage_expert_tensor *out,
                                                            uint32_t capacity);

/* The same of MoE layer `layer` (from 0): other types where moepage_model_info.layouts is more than 1, and
 * so other sizes and offsets. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_model_get_layer_tensors(const moepage_model *model,
                                                           uint32_t layer,
                                                           moepage_expert_tensor *out,
                                                           uint32_t capacity);

/* Finds a tensor by its checkpoint name. NOT_FOUND if there is none; UNSUPPORTED for a dtype or a
 * rank that moepage_tensor_view cannot express. The first call for a tensor of a file reads it to memory
 * that the model keeps until it is closed, at a multiple of 64: NO_MEMORY; IO if the file has changed
 * since it was opened; FORMAT if the bytes of a pack do not match their checksum. Threads that ask for
 * tensors at the same time wait for each other's reads. [any] */
MOEPAGE_API moepage_status moepage_model_find_tensor(const moepage_model *model, const char *name,
                                                     moepage_tensor_view *out);

/* Copies `bytes` bytes, from byte `offset` of its data on, of a tensor that is never paged to `out` (host
 * memory): the model keeps nothing of them. For tables of which a step needs a few rows, such as
 * embeddings. *view, unless it is NULL, gets what moepage_model_find_tensor gives but the data, which is
 * NULL: with `bytes` 0 and `out` NULL that is all. A file is read on each call, through the page cache.
 * ARGUMENT for bytes past the tensor's end; otherwise as moepage_model_find_tensor fails. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_model_read_tensor(const moepage_model *model, const char *name,
                                                     uint64_t offset, uint64_t bytes, void *out,
                                                     moepage_tensor_view *view);

/* The model's config.json, NUL-terminated, owned by the model; NULL if it has none. [any] */
MOEPAGE_API const char *moepage_model_config_json(const moepage_model *model);

/* Types of values in a model's metadata. Values never change. Since 0.8. */
enum {
    MOEPAGE_METADATA_INTEGER = 1,
    MOEPAGE_METADATA_REAL = 2,
    MOEPAGE_METADATA_TRUTH = 3,
    MOEPAGE_METADATA_TEXT = 4
};

/* One value of a model's metadata, or one element of an array there. Fields of other types than
 * `type` are 0. Since 0.8. */
typedef struct moepage_metadata {
    uint32_t type;       /* MOEPAGE_METADATA_* */
    uint32_t is_array;   /* 1: an element of an array */
    int64_t integer;     /* INTEGER; TRUTH: 0 or 1 */
    double real;         /* REAL; may be infinite or NaN */
    const char *text;    /* TEXT: any bytes without a NUL behind them; owned by the model */
    uint64_t text_bytes; /* TEXT */
} moepage_metadata;

/* Gives what the metadata of a GGUF file, or of a pack of one, has under `key`: elements `first` and on, at
 * most `capacity` of them, to `out`, and to *count how many there are in all: 1 for a value that is no array.
 * Arrays are read from the file's bytes on each call, texts from its first one on: ask for all of an array at
 * once. `out` may be NULL if `capacity` is 0. Every other model has no keys: its settings are in
 * moepage_model_config_json. Errors: NOT_FOUND for a key that is not there, ARGUMENT for a `first`
 * past *count, UNSUPPORTED for an integer past 2^63 - 1. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_model_get_metadata(const moepage_model *model, const char *key,
                                                      uint64_t first, moepage_metadata *out,
                                                      uint64_t capacity, uint64_t *count);

/* The index of MoE layer `moe_layer` among all transformer layers; -1 if out of range. [any] */
MOEPAGE_API int32_t moepage_model_layer_index(const moepage_model *model, uint32_t moe_layer);

/* How a model stores its experts in one form. */
typedef struct moepage_form_info {
    uint32_t struct_size;
    uint32_t form;        /* MOEPAGE_FORM_* */
    uint32_t present;     /* 1: every expert is stored in this form */
    uint32_t group_size;  /* weights per scale, of the integer forms */
    uint64_t image_bytes; /* of all experts' images, as kept in memory and moved over a bus */
    uint64_t most_bytes;  /* the largest image */
    /* In the file: less than image_bytes if they are stored as zstd frames. */
    uint64_t stored_bytes;
} moepage_form_info;

/* Tells whether the model's experts are stored in `form` (MOEPAGE_FORM_DENSE to _INT2), and how big
 * they are. A checkpoint has the DENSE form only. [any] */
MOEPAGE_API moepage_status moepage_model_get_form(const moepage_model *model, uint32_t form,
                                                  moepage_form_info *info);

/* Reads one expert's weights, from whichever lossless form they are stored in, into `out` (host
 * memory, at least moepage_model_info.slot_bytes long), laid out as in a slot. Checks what it
 * reads: FORMAT for a damaged expert; IO, CALLBACK, NO_MEMORY. Blocks for the file. [any] */
MOEPAGE_API moepage_status moepage_model_read_expert(const moepage_model *model, uint32_t layer,
                                                     uint32_t expert, void *out, uint64_t capacity);

/* The name, in out[0..capacity) with a NUL, of the index-th tensor that is never paged; NOT_FOUND
 * past the last, ARGUMENT when it is too long. [any] */
MOEPAGE_API moepage_status moepage_model_get_tensor_name(const moepage_model *model, uint64_t index,
                                                         char *out, uint64_t capacity);

/* ---- Expert pool ------------------------------------------------------------------------ */

enum {
    MOEPAGE_SCOPE_GLOBAL = 0, /* all layers compete for all slots */
    MOEPAGE_SCOPE_LAYER = 1   /* every MoE layer has an equal share of its own */
};

enum {
    MOEPAGE_PLACEMENT_EXPLICIT = 0, /* compressed_experts as given */
    /* By measured bandwidths, so that all backends finish together (FluxMoE eq. 8): in proportion, or, where EXPH
     * images cross the bus, and so pass the decoder too, as many off the device as the bus brings while the
     * decoder has all of them to decode. As far as the arena has room beside `slots`, which must then be given;
     * compressed_experts must be 0. */
    MOEPAGE_PLACEMENT_BANDWIDTH = 1
};

typedef struct moepage_expert_pool_config {
    uint32_t struct_size;
    uint32_t scope; /* MOEPAGE_SCOPE_* */
    /* Experts resident at once, over all devices; 0 = as many as the arenas still have room for.
     * With MOEPAGE_SCOPE_LAYER it is rounded down to a multiple of the number of MoE layers; where
     * layers' experts differ in size, up to a multiple of slot_step (moepage_expert_pool_info) if the
     * arena has room, else down. */
    uint64_t slots;
    /* Eviction: "lru" (NULL), "lfu", "lfu-aged", "sieve", "s3fifo", "lirs", "finemoe" (1/(p freq),
     * p from sessions' predictors), "cycle" (learns from the routing). */
    const char *policy;
    /* Protection against scans: the percentage of slots that prefill may take from decode, 1..99; 0
     * = off (the policy then decides alone). */
    uint32_t scan_percent;
    /* A prefetch is copied in pieces of this size, rounded up to 64 bytes; 0 = 2 MiB. */
    uint32_t chunk_bytes;
    uint32_t tp_rank; /* reserved for tensor-parallel slices: 0 */
    uint32_t tp_size; /* reserved: 0 or 1 */
    /* Host memory that caches experts of the cold tier (the model's file or read callback), divided
     * among the devices, and never more than all experts take. 0 = none: experts are loaded from
     * the model's files through the page cache, or from the caller's memory, or through a few entries
     * if neither holds them in the form that crosses the bus (the info says how many bytes). */
    uint64_t host_tier_bytes;
    /* Form in which experts are kept in the host tier and cross the bus: MOEPAGE_FORM_DENSE, or
     * _EXPH, which the device decodes; 0 = EXPH if the model has it. */
    uint32_t bus_form;
    /* Experts per layer whose EXPH image is kept in the arena and decoded into a slot on a miss
     * (FluxMoE's compressed backend). */
    uint32_t compressed_experts;
    uint32_t placement; /* MOEPAGE_PLACEMENT_* */
    /* EXPH images that may be on their way to the decoder at once, in the workspace: 2 to 1024,
     * 0 = 4. */
    uint32_t staging_experts;
    /* A second version of every expert; NULL = none. Copied. */
    const struct moepage_precision_config *precision;
    /* Form of the experts in slots: DENSE (0), as they are in the checkpoint, or _INT8, _INT4 or _INT2
     * if the pack has it: more experts fit, and outputs are those of these integers, an approximation.
     * It is also the form that crosses the bus. Not together with compressed experts or `precision`.
     * Since 0.8. */
    uint32_t slot_form;
    uint32_t reserved; /* 0 */
} moepage_expert_pool_config;

typedef struct moepage_expert_pool_info {
    uint32_t struct_size;
    uint32_t devices;
    uint64_t slots;      /* over all devices */
    uint64_t resident;   /* experts complete in a slot */
    uint64_t loading;    /* experts on their way */
    uint64_t pinned;     /* experts pinned by moepage_expert_pool_pin */
    uint64_t slot_bytes; /* of the largest slots */
    /* counters since creation */
    uint64_t hits;   /* routed experts found resident */
    uint64_t misses; /* routed experts that had to be loaded on demand */
    uint64_t late;   /* routed experts whose load was under way already */
    uint64_t evictions;
    uint64_t demand_bytes;       /* copied because a step needed them */
    uint64_t prefetch_bytes;     /* copied ahead of need; transition_bytes are not among them */
    uint64_t prefetch_useful;    /* prefetched experts that were then routed, in time or late */
    uint64_t prefetch_late;      /* of these, still loading when routed */
    uint64_t prefetch_wasted;    /* prefetched experts evicted before any use */
    uint64_t prefetch_cancelled; /* hints dropped, or given up half way */
    uint64_t prefetch_refused;   /* hints dropped because no slot was available */
    uint64_t failed_loads;       /* loads whose source failed */
    /* tiers */
    uint32_t bus_form; /* MOEPAGE_FORM_* that crosses the bus */
    /* Per layer, resident as EXPH in device memory; experts on their way there are not counted. */
    uint32_t compressed_experts;
    uint64_t compressed_bytes;  /* the device memory that they take, in whole slots */
    uint64_t staging_bytes;     /* device memory for images on their way */
    uint64_t host_tier_bytes;   /* host memory of the tier; 0 = none */
    uint64_t host_tier_experts; /* experts that fit in it */
    uint64_t host_tier_resident;
    /* Size of the pages behind the tier; the system's smallest if there were no huge pages. */
    uint32_t host_page_bytes;
    /* NUMA node that it is bound to, with several devices the first one's; -1 = some device's tier
     * is not bound. */
    int32_t host_node;
    uint64_t host_hits;        /* loads that found their expert in the host tier */
    uint64_t cold_reads;       /* experts read from the cold tier */
    uint64_t cold_bytes;       /* read for them */
    uint64_t decodes;          /* experts decoded on the device */
    uint64_t compressed_loads; /* of these, from device memory */
    /* measured when the pool was created; 0 = no such tier. Bytes of dense experts per second */
    uint64_t bus_bytes_per_s;    /* host memory to slot, decoding not counted */
    uint64_t decode_bytes_per_s; /* image in device memory to slot */
    uint64_t cold_bytes_per_s;   /* cold tier to host memory */
    /* the same, measured while serving: medians of the latest loads; 0 = none seen yet */
    uint64_t live_bus_bytes_per_s;
    uint64_t live_decode_bytes_per_s;
    uint64_t live_cold_bytes_per_s;
    /* precision; 0 without it */
    uint32_t hi_form; /* MOEPAGE_FORM_* */
    uint32_t lo_form;
    uint32_t hi_experts;          /* per layer, at most */
    uint32_t slot_form;           /* MOEPAGE_FORM_* of the experts in slots; since 0.8 */
    uint64_t hi_published;        /* experts that compute in the high version */
    uint64_t lo_bytes;            /* device memory of the low versions */
    uint64_t promotions;          /* published */
    uint64_t demotions;           /* published */
    uint64_t transitions_refused; /* put off because no place was free */
    uint64_t transitions_failed;  /* whose source failed: the earlier version stays in use */
    uint64_t transition_bytes;    /* moved for transitions */
    uint64_t decisions;           /* intervals that have passed */
    uint64_t windows;             /* windows in which a version was published */
    /* of prefetch_bytes, those of experts whose outcome is known */
    uint64_t prefetch_useful_bytes; /* resident when routed */
    uint64_t prefetch_late_bytes;   /* routed while still loading; the rest came on demand */
    uint64_t prefetch_wasted_bytes; /* evicted before any use */
    uint64_t resizes;               /* moves of the split that were made */
    uint64_t resizes_refused;       /* moves that were refused */
    uint64_t pins_refused;
    /* Of cold_reads, those through the page cache (the file system has no direct I/O) or out of a
     * model's own memory or callback. */
    uint64_t cold_buffered_reads;
    /* Slots come and go by so many: 1; one for each MoE layer with MOEPAGE_SCOPE_LAYER; or, if layers'
     * experts differ in size, as many as give every layer the same share. Since 0.8. */
    uint64_t slot_step;
    /* Of several CUDA devices, those whose rows cross to the first and back by way of host memory, because
     * the driver does not give all of them access to its memory; 0 = none. Since 0.8. */
    uint64_t indirect_devices;
} moepage_expert_pool_info;

enum { MOEPAGE_EXPERT_ABSENT = 0, MOEPAGE_EXPERT_LOADING = 1, MOEPAGE_EXPERT_RESIDENT = 2 };

typedef struct moepage_residency {
    uint32_t struct_size;
    uint32_t state;  /* MOEPAGE_EXPERT_* */
    int32_t slot;    /* on its device, as in plans; -1 when absent */
    uint32_t device; /* index into the pool's devices */
} moepage_residency;

/* Creates the pool of expert slots on one or several devices. Each expert lives on one of them: expert e
 * on device e mod n_devices where all arenas have room for equally many slots; else experts are dealt
 * out in proportion to that room, at least one of each layer to each device (moepage_residency.device). Slots
 * are shared out alike. A device holds one expert pool at a time. Errors: BUDGET if a device's arena
 * cannot hold the slots, or its workspace the staging (moepage_expert_pool_sizes says how much),
 * or if there would be no slot at all; NOT_FOUND for an unknown policy; BUSY; ARGUMENT;
 * UNSUPPORTED for a form that the model lacks; NO_MEMORY. The devices and the model must outlive
 * the pool. [set-up] */
MOEPAGE_API moepage_status moepage_expert_pool_create(moepage_device *const *devices,
                                                      uint32_t n_devices, moepage_model *model,
                                                      const moepage_expert_pool_config *config,
                                                      moepage_expert_pool **out);

/* Device bytes that a pool with this config takes from each of n_devices devices of one size.
 * *workspace_bytes: of its workspace, for staging; the sessions' scratch comes on top
 * (moepage_session_workspace). *arena_bytes: of its arena, for config->slots slots and for the
 * whole slots that compressed experts or low versions take, rounded up to an arena's pages of 4096
 * bytes. Experts that MOEPAGE_PLACEMENT_BANDWIDTH or hi_experts 0 would add are not counted, since
 * they are known only later. `config` and either pointer may be NULL. Errors: as
 * moepage_expert_pool_create for the config. [any] */
MOEPAGE_API moepage_status moepage_expert_pool_sizes(const moepage_model *model,
                                                     const moepage_expert_pool_config *config,
                                                     uint32_t n_devices, uint64_t *workspace_bytes,
                                                     uint64_t *arena_bytes);

/* Destroys the pool; BUSY while a session or a controller uses it. Waits for copies under way. NULL is
 * a no-op. [set-up] */
MOEPAGE_API moepage_status moepage_expert_pool_destroy(moepage_expert_pool *pool);

/* Fills *info; takes the pool's lock. [any] */
MOEPAGE_API moepage_status moepage_expert_pool_get_info(moepage_expert_pool *pool,
                                                        moepage_expert_pool_info *info);

/* Tells where an expert is now: a snapshot, which may be stale on return. [any] */
MOEPAGE_API moepage_status moepage_expert_pool_lookup(moepage_expert_pool *pool, uint32_t layer,
                                                      uint32_t expert, moepage_residency *out);

/* Loads an expert if it is absent and keeps it resident until it is unpinned as often as it was pinned;
 * blocks for the load. BUDGET if the pin would leave fewer evictable slots in its scope than top-k, or
 * than sessions need (one each, with GROUP_TOKENS a token's), BUSY if open plans hold them all. A pin
 * during a step can make that step's route, next_group or ffn fail with BUSY. With SERVE_VERSIONS a pin
 * waits for nothing: the expert is high before all others, as soon as there is a place, and stays so;
 * BUDGET if as many experts of its layer are pinned as can be high. [any] */
MOEPAGE_API moepage_status moepage_expert_pool_pin(moepage_expert_pool *pool, uint32_t layer,
                                                   uint32_t expert);
/* STATE when the expert has no pin. [any] */
MOEPAGE_API moepage_status moepage_expert_pool_unpin(moepage_expert_pool *pool, uint32_t layer,
                                                     uint32_t expert);

/* ---- KV pool ---------------------------------------------------------------------------- */

typedef struct moepage_kv_pool_config {
    uint32_t struct_size;
    uint32_t block_tokens;       /* tokens per block; 0 = 16 */
    uint32_t layers;             /* length of bytes_per_token; required */
    uint32_t blocks_per_granule; /* layer-major run inside a granule; 0 = chosen from the arena */
    /* [layers] bytes one token takes in one layer: keys and values together, laid out by the caller
     * inside a block; 0 for a layer that keeps no KV. */
    const uint32_t *bytes_per_token;
    /* Size of the pool, rounded up to whole granules; 0 = all that the arena still has. */
    uint64_t blocks;
    uint64_t max_sequences; /* live at once; 0 = 4096 */
} moepage_kv_pool_config;

typedef struct moepage_kv_pool_info {
    uint32_t struct_size;
    uint32_t block_tokens;
    uint64_t blocks;      /* capacity, with what is lent */
    uint64_t free_blocks; /* likewise */
    uint64_t peak_blocks; /* the most ever in use at once */
    uint64_t block_bytes; /* one block over all layers (s_k) */
    uint64_t granule_bytes;
    uint32_t blocks_per_granule;
    uint32_t sequences; /* live, swapped ones included */
    uint32_t swapped;   /* sequences swapped out */
    uint32_t reserved;
    uint64_t swap_bytes; /* host memory that swapped sequences hold */
    uint64_t copies_on_write;
    uint64_t relocated_blocks;
    uint64_t swapped_out_blocks;
    uint64_t swapped_in_blocks;
    uint64_t refused; /* appends, creations, forks and swap-ins that failed with WOULD_NOT_FIT */
    uint64_t resizes; /* changes of `blocks`, and of what is lent */
    /* Free blocks whose bytes are slots now: a controller with `admission` lends them to experts, and takes back what
     * an append or a swap-in is short of. Since 0.8. */
    uint64_t lent_blocks;
} moepage_kv_pool_info;

/* How to address one layer's blocks. The bytes of block b, one id from a block table, start at
 *   base + (b / id_stride) * granule_bytes + (b % id_stride) * block_bytes
 * and when every layer has the same bytes_per_token this equals base + b * block_bytes, so that
 * paged-attention kernels can index with the block table directly. */
typedef struct moepage_kv_layer_view {
    uint32_t struct_size;
    uint32_t id_stride;
    void *base;           /* device memory; NULL for a layer that keeps no KV */
    uint64_t block_bytes; /* distance between blocks inside a granule */
    uint64_t granule_bytes;
} moepage_kv_layer_view;

typedef struct moepage_kv_table {
    uint32_t struct_size;
    uint32_t swapped; /* 1: on the host; blocks is then NULL */
    /* [n_blocks] ids, borrowed until the next call that changes this sequence or, while no
     * session's step is open on the pool, one that resizes it: get them inside a step
     * where others may. */
    const uint32_t *blocks;
    uint64_t n_blocks;
    uint64_t n_tokens;
} moepage_kv_table;

/* Answer of the admission check. */
typedef struct moepage_kv_admission {
    uint32_t struct_size;
    /* 1 when needed_blocks <= free_blocks, and max_sequences, target_running and a move that a controller with
     * `admission` is about to make allow it */
    uint32_t fits;
    uint64_t needed_blocks;
    uint64_t free_blocks;
    /* Since 0.8: the most sequences that should run at once, of a controller with `admission`; 0 = no limit. And
     * those that do, if there is a limit: those of each session's last step, and those that have been created or
     * swapped in and in no step since. KV that is kept for later may so count until it is swapped out or freed, or
     * a step is without it: a host with nothing to run lets one run whatever `fits` says of the limit. */
    uint32_t target_running;
    uint32_t running;
} moepage_kv_admission;

/* Creates the pool on a device's arena. A device holds one KV pool at a time. Errors: BUDGET when
 * the arena cannot hold the blocks. The device must outlive the pool. [set-up] */
MOEPAGE_API moepage_status moepage_kv_pool_create(moepage_device *device,
                                                  const moepage_kv_pool_config *config,
                                                  moepage_kv_pool **out);

/* Bytes that a pool with this config takes of its device's arena if that has them: whole granules
 * for config->blocks, which must be given. Where the arena has room for the blocks alone, the pool
 * chooses smaller granules. Errors: as moepage_kv_pool_create for the config.
 * Since 0.7. [any] */
MOEPAGE_API moepage_status moepage_kv_pool_sizes(const moepage_kv_pool_config *config,
                                                 uint64_t *arena_bytes);

/* Destroys the pool and every sequence in it. The caller's kernels that use its blocks must be
 * done. BUSY while a session or a controller uses it. NULL is a no-op. [set-up] */
MOEPAGE_API moepage_status moepage_kv_pool_destroy(moepage_kv_pool *pool);

/* Fills *info. [any] */
MOEPAGE_API moepage_status moepage_kv_pool_get_info(moepage_kv_pool *pool,
                                                    moepage_kv_pool_info *info);

/* Tells how to address `layer`'s blocks; the answer is the same for the pool's whole life. [any] */
MOEPAGE_API moepage_status moepage_kv_pool_get_layer(moepage_kv_pool *pool, uint32_t layer,
                                                     moepage_kv_layer_view *view);

/* Creates an empty sequence. WOULD_NOT_FIT if max_sequences are live. [any] */
MOEPAGE_API moepage_status moepage_kv_create(moepage_kv_pool *pool, moepage_seq *out);

/* Makes room for `n_tokens` more tokens: takes blocks, and copies a shared last block first. All
 * or nothing: WOULD_NOT_FIT takes none, and its sentence says how many are needed and free. Blocks that
 * are lent come back for it, unless an open plan or a pin keeps the experts in them: WOULD_NOT_FIT.
 * `stream`: the device stream the caller's kernels run on, ignored by "host". [any], but one call
 * at a time per sequence. */
MOEPAGE_API moepage_status moepage_kv_append(moepage_kv_pool *pool, moepage_seq seq,
                                             uint64_t n_tokens, void *stream);

/* Drops tokens from the end, down to `n_tokens`, and gives whole blocks back. ARGUMENT if
 * the sequence has fewer. [any], one call at a time per sequence, as for all calls below
 * that name one. */
MOEPAGE_API moepage_status moepage_kv_truncate(moepage_kv_pool *pool, moepage_seq seq,
                                               uint64_t n_tokens);

/* Creates a second sequence with the same tokens; blocks are shared until one side writes. STATE if
 * the parent is swapped out, WOULD_NOT_FIT if max_sequences are live. */
MOEPAGE_API moepage_status moepage_kv_fork(moepage_kv_pool *pool, moepage_seq parent,
                                           moepage_seq *out);

/* Frees a sequence, swapped or not. */
MOEPAGE_API moepage_status moepage_kv_free(moepage_kv_pool *pool, moepage_seq seq);

/* Copies a sequence's blocks to host memory and frees them on the device. STATE if it is swapped
 * already. Blocks. */
MOEPAGE_API moepage_status moepage_kv_swap_out(moepage_kv_pool *pool, moepage_seq seq,
                                               void *stream);

/* Copies a sequence back into fresh blocks of its own; it shares none any more. WOULD_NOT_FIT
 * leaves it swapped and whole. Blocks. */
MOEPAGE_API moepage_status moepage_kv_swap_in(moepage_kv_pool *pool, moepage_seq seq, void *stream);

/* The sequence's blocks and tokens; see moepage_kv_table for how long they are valid. */
MOEPAGE_API moepage_status moepage_kv_get_table(moepage_kv_pool *pool, moepage_seq seq,
                                                moepage_kv_table *table);

/* Tells whether `n_sequences` new sequences of tokens[i] tokens each would fit right now, in blocks
 * and in max_sequences, and whether they should run now (target_running). Takes nothing. [any] */
MOEPAGE_API moepage_status moepage_kv_admit(moepage_kv_pool *pool, const uint64_t *tokens,
                                            uint32_t n_sequences, moepage_kv_admission *out);

/* ---- Session ---------------------------------------------------------------------------- */

enum {
    MOEPAGE_MATH_FP32 = 0, /* weights as stored, arithmetic in FP32 */
    MOEPAGE_MATH_BF16 = 1, /* activations rounded to BF16, products accumulated in FP32 */
    /* The same operands and accumulators, but on CUDA cuBLAS runs BF16 experts with many rows, and
     * sums each row in an order of its own: bits may differ with the batch, waves, GPU and version
     * of cuBLAS. The same as BF16 without cuBLAS, and on other devices. */
    MOEPAGE_MATH_BF16_FAST = 2,
    /* Weights in blocks meet activations that are rounded to 8 bits, 32 consecutive ones by one
     * scale: products are integers, sums over groups FP32. Faster than exact arithmetic, and as much
     * less precise as 8 bits are; docs/host-kernels.md has it to the bit, and bits depend on nothing
     * else. Other weights are computed as with BF16; so are all on devices other than the host. */
    MOEPAGE_MATH_INT8 = 3
};

enum {
    MOEPAGE_PREFETCH_OFF = 0,
    MOEPAGE_PREFETCH_HINT = 1,     /* only what moepage_session_hint names */
    MOEPAGE_PREFETCH_PREVIOUS = 2, /* hints, and the set that the layer used in the last step */
    /* Hints, and what the session's predictor names, as long as that pays, which is measured per
     * layer; otherwise it pauses and tries again later. */
    MOEPAGE_PREFETCH_PREDICTOR = 3
};

enum {
    MOEPAGE_GROUP_EXPERTS = 0, /* waves of experts: each expert sees all its rows once */
    MOEPAGE_GROUP_TOKENS = 1   /* groups of tokens whose experts fit together (WiSP 3.2) */
};

typedef struct moepage_session_config {
    uint32_t struct_size;
    uint32_t max_tokens;    /* most tokens in one step; 0 = 256 */
    uint32_t max_sequences; /* most sequences in one step; 0 = max_tokens */
    uint32_t max_top_k;     /* most routed experts per token; 0 = the model's top-k */
    uint32_t math;          /* MOEPAGE_MATH_* of moepage_session_ffn */
    uint32_t prefetch;      /* MOEPAGE_PREFETCH_* */
    /* How many layers ahead the previous-set predictor looks; 0 = 1. With
     * MOEPAGE_PREFETCH_PREDICTOR: at most the predictor's distance; 0 = as many as loads are
     * measured to need. */
    uint32_t prefetch_depth;
    uint32_t grouping; /* MOEPAGE_GROUP_*, for callers that read plans */
    /* Study switch: experts held at once for one layer; 0 = as many as the pool allows. */
    uint32_t max_group_experts;
    uint32_t regime; /* MOEPAGE_REGIME_* */
    uint32_t miss;   /* MOEPAGE_MISS_* */
    uint32_t reserved;
    /* Of MOEPAGE_PREFETCH_PREDICTOR; may be shared; outlives the session. */
    moepage_predictor *predictor;
} moepage_session_config;

/* How a session serves an expert that is not on the device. */
enum {
    MOEPAGE_MISS_WAIT = 0, /* loads it and waits: exact */
    /* Computes with its low version and fetches it for the next time. Lossy; needs a
     * pool with MOEPAGE_SERVE_CACHE. */
    MOEPAGE_MISS_LOW = 1,
    /* Computes it in host memory with the host's kernels, and fetches it for the next time. Exact
     * in the host's arithmetic. Layers routed with a plan load and wait. CUDA devices share absent
     * experts with the host, by what either has taken, while all others compute: FP32 math has the
     * same bits as without, BF16 the host's sums for some rows; moepage_session_ffn then waits for
     * x, and for the host. Since 0.8 on CUDA. */
    MOEPAGE_MISS_HOST = 2
};

/* How a layer's experts are served. If a dense batch uses more experts than fit, a cache in any
 * order of recency has always just evicted the experts needed next. Then it is better to keep a
 * part of every layer and to stream the rest through a window of two layers, each loaded while the
 * one before it computes (FluxMoE 3.1). */
enum {
    /* Chosen from what turns load, and would have loaded: for steps of decode alone, and for the
     * others. */
    MOEPAGE_REGIME_AUTO = 0,
    MOEPAGE_REGIME_CACHE = 1, /* cache and reuse, always */
    /* Stream and evict, always, if the pool is smaller than the model. */
    MOEPAGE_REGIME_STREAM = 2
};

enum { MOEPAGE_PHASE_DECODE = 0, MOEPAGE_PHASE_PREFILL = 1 };

/* One sequence's share of a step; its tokens are consecutive in the batch. */
typedef struct moepage_step_sequence {
    moepage_seq seq; /* KV sequence, or 0 */
    uint32_t n_tokens;
    uint32_t phase; /* MOEPAGE_PHASE_* */
} moepage_step_sequence;

typedef struct moepage_step {
    uint32_t struct_size;
    uint32_t n_tokens;                      /* 1..max_tokens */
    uint32_t n_sequences;                   /* 0: one anonymous sequence in `phase` */
    uint32_t phase;                         /* used when n_sequences is 0 */
    const moepage_step_sequence *sequences; /* [n_sequences]; their n_tokens add up */
    /* [n_sequences][semantic_dim] embedding of each sequence, host memory, or
     * NULL (FineMoE 4.1). */
    const float *semantic;
    uint32_t semantic_dim;
    uint32_t reserved;
} moepage_step;

typedef struct moepage_routing {
    uint32_t struct_size;
    uint32_t top_k; /* 1..max_top_k */
    /* [n_tokens][top_k] host memory, each 0..experts-1 or MOEPAGE_NO_EXPERT; a repeated
     * id counts twice. */
    const int32_t *ids;
    /* [n_tokens][top_k] host memory, finite. With a plan it may be NULL (since 0.8), where the caller's
     * kernels need none: it is then taken for weights of 1, in plans, moepage_session_ffn, remapping and
     * traces alike. */
    const float *weights;
    const float *probabilities; /* [n_tokens][experts] the router's full output, or NULL */
    /* Of the caller's kernels that read the plan's slots: cudaStream_t on CUDA;
     * ignored by "host". */
    void *stream;
    /* [n_tokens][experts] what the router's gate was applied to, host memory: remapping needs
     * it; or NULL. */
    const float *logits;
    /* [n_tokens][hidden] the router's input, host memory: the "gate" predictor needs
     * it; or NULL. */
    const float *hidden;
} moepage_routing;

typedef struct moepage_plan_expert {
    uint32_t expert;    /* id within the layer */
    int32_t slot;       /* slot index on its device; -1: its low version, which has no slot */
    uint32_t device;    /* index into the pool's devices */
    uint32_t dtype;     /* numeric version: dtype of the weights, MOEPAGE_DTYPE_* */
    uint32_t first_row; /* its rows are rows[first_row .. first_row + n_rows) */
    uint32_t n_rows;
    const void *const *tensors; /* [expert_tensors] device pointers: weights, scales, biases */
} moepage_plan_expert;

/* One group of one layer of one step. Every pointer lives until the layer is retired or the next
 * group is taken. */
typedef struct moepage_plan {
    uint32_t struct_size;
    uint32_t layer;
    uint32_t group; /* 0..n_groups-1 */
    uint32_t n_groups;
    uint32_t n_experts; /* in this group */
    uint32_t n_rows;    /* in this group */
    uint32_t n_tokens;  /* in this group */
    uint32_t top_k;
    const moepage_plan_expert *experts; /* [n_experts] */
    const uint32_t *rows;               /* [n_rows] row = token * top_k + k, sorted by expert */
    const uint32_t *tokens;             /* [n_tokens] tokens of this group, ascending; NULL = all */
    const int32_t *ids;                 /* [step tokens][top_k] effective ids */
    const float *weights;               /* [step tokens][top_k] effective weights; 1 by default */
    /* [experts] slot of each expert of this group, else -1; of low versions -1 too:
     * experts[].tensors has those. */
    const int32_t *expert_map;
    /* With one device, the expert in slot s is at base + s * stride. The stride is slot_bytes if all slots
     * have that size, else the alignment of slots, and then not every number names a slot. */
    void *slot_base;
    uint64_t slot_stride_bytes;
} moepage_plan;

typedef struct moepage_ffn {
    uint32_t struct_size;
    uint32_t dtype;      /* of x and y: F32, F16 or BF16 */
    const void *x;       /* [n_tokens][hidden], rows x_stride elements apart */
    void *y;             /* [n_tokens][hidden]; y = sum over k of weight_k * expert_k(x) */
    uint64_t x_stride;   /* in elements; 0 = hidden */
    uint64_t y_stride;   /* in elements; 0 = hidden */
    uint32_t accumulate; /* 1: add to what y holds */
    uint32_t reserved;
    /* CUDA: cudaStream_t that x comes from; y is complete for what is submitted to it after the
     * call, which waits for cold reads alone, and x must stay until then. Ignored by "host", where
     * y is complete on return. */
    void *stream;
} moepage_ffn;

/* Counters of one step or, from moepage_session_get_stats, of all steps since creation. */
typedef struct moepage_session_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t steps;
    uint64_t tokens;
    uint64_t layers; /* layers routed */
    /* Distinct experts per group, summed: hits + misses + late + low_experts + host_experts. */
    uint64_t routed;
    uint64_t hits;         /* resident when routed */
    uint64_t misses;       /* absent when routed: loaded on demand */
    uint64_t late;         /* a prefetch or another session's load was under way */
    uint64_t groups;       /* waves of experts or groups of tokens run */
    uint64_t demand_bytes; /* moved because this session needed them */
    /* Because of absent experts: finding slots and submitting loads, and waiting for bytes with
     * nothing to compute. */
    uint64_t stall_ns;
    uint64_t compute_ns;      /* running expert kernels */
    uint64_t wall_ns;         /* between begin and end */
    uint64_t hint_experts;    /* absent experts that predictors or hints asked for */
    uint64_t streamed_layers; /* of `layers`, those served by streaming */
    uint64_t regime_changes;  /* layers that changed to the other regime */
    /* computed inexactly, or elsewhere */
    uint64_t low_experts;     /* of `routed`, computed in their low version */
    uint64_t low_rows;        /* token choices that used these */
    uint64_t host_experts;    /* of `routed`, computed in host memory */
    uint64_t remap_layers;    /* layers whose routing was considered for remapping */
    uint64_t remap_before;    /* distinct experts of those layers, as routed */
    uint64_t remap_after;     /* and after remapping */
    uint64_t remap_tokens;    /* tokens whose experts changed, per layer */
    uint64_t remap_rows;      /* choices that changed */
    uint64_t remap_ns;        /* spent on remapping */
    uint64_t predict_refused; /* layers that the predictor had no time for before newer ones came */
    /* stall_ns by cause: these add up to it */
    uint64_t stall_slot_ns; /* finding slots and submitting loads */
    uint64_t stall_load_ns; /* waiting for experts that were absent when routed */
    uint64_t stall_late_ns; /* waiting for experts whose load was under way when routed */
    uint64_t stall_cold_ns; /* waiting for either, if the cold tier had to be read */
} moepage_session_stats;

/* Device bytes of scratch that a session with this config takes from every device of a pool for
 * this model; moepage_device_config.workspace_bytes must hold this much per session. With
 * MATH_BF16_FAST the figure is that of CUDA devices with cuBLAS; elsewhere a session takes as much
 * as with MATH_BF16. With MATH_INT8 it is as with MATH_FP32. [any] */
MOEPAGE_API moepage_status moepage_session_workspace(const moepage_model *model,
                                                     const moepage_session_config *config,
                                                     uint64_t *bytes);

/* Creates a session over an expert pool and, unless NULL, a KV pool. Its scratch comes out of the
 * devices' workspace: BUDGET if that is too small (moepage_session_workspace says how much). With n
 * sessions on a pool, at most 64, each may hold 1/n of its slots in open plans; BUDGET when that
 * would be less than one, BUSY for the 65th. One more may leave sessions with GROUP_TOKENS too few for
 * a token: then their routes fail. ARGUMENT for a config that contradicts itself, the
 * model or the predictor; UNSUPPORTED for what the pool or its devices cannot do (misses, versions,
 * streaming), and for devices of several kinds: a session steps over hosts, or over CUDA devices. On
 * several CUDA devices x, y and streams are those of the pool's first. [set-up] */
MOEPAGE_API moepage_status moepage_session_create(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                                  const moepage_session_config *config,
                                                  moepage_session **out);

/* Destroys a session after cancelling an open step and waiting for the kernels that were submitted.
 * Fails as moepage_session_cancel does, and with BUSY while a device-driven path (moepage_cuda.h)
 * has the session. NULL is a no-op. [one] */
MOEPAGE_API moepage_status moepage_session_destroy(moepage_session *session);

/* Opens a step. STATE if one is open, or while a device-driven path has the session; HANDLE for a
 * sequence that is not live (one that is swapped out is live); DEVICE if one of several CUDA devices has
 * failed by now. [one] */
MOEPAGE_API moepage_status moepage_session_begin(moepage_session *session,
                                                 const moepage_step *step);

/* Announces the routing of MoE layer `layer` (counted over MoE layers). With `plan` the call
 * returns once the first group's experts are usable, and the plan describes them; with NULL the
 * loads only start, for moepage_session_ffn to wait on as it goes. When every routed expert is
 * resident this takes no lock, allocates nothing and makes no system call (unless hints are under
 * way, which it must call off). A layer is routed once at a time; up to 4 layers may be open
 * together, as far as the session's share of the slots suffices: a layer that takes several groups
 * uses all of it. BUSY: there is no slot, because all are pinned, in open plans (of other sessions
 * too, if these were opened before this session came), or held by plans whose loads failed. STATE:
 * no step is open, the layer is already open, or 4 others are. With a plan also BUDGET: the experts of
 * one token do not fit in the session's share, with MOEPAGE_GROUP_TOKENS; and a failed load's own
 * status: IO, FORMAT, CALLBACK, NO_MEMORY, DEVICE. [one] */
MOEPAGE_API moepage_status moepage_session_route(moepage_session *session, uint32_t layer,
                                                 const moepage_routing *routing,
                                                 moepage_plan *plan);

/* Where the rows of a product are: those that row r of a plan's group, rows[r], means. */
enum {
    MOEPAGE_ROWS_TOKENS = 0,  /* one for each token of the step: row rows[r] / top_k */
    MOEPAGE_ROWS_CHOICES = 1, /* one for each choice of a token: row rows[r] */
    MOEPAGE_ROWS_GROUP = 2    /* the group's own, one behind the other: row r */
};

/* The products of one matrix of every expert in a plan's group with the expert's rows, for a host that puts
 * a layer together from operations of its own, in threads of its own: out[r] = matrix x[r]. Since 0.8.
 *
 *   every thread:   moepage_session_convert(session, layer, &product, thread, n_threads);
 *   a barrier
 *   every thread:   moepage_session_multiply(session, layer, &product, thread, n_threads);   */
typedef struct moepage_product {
    uint32_t struct_size;
    /* MOEPAGE_MATH_*; BF16_FAST is BF16, and so is INT8 for a matrix that is not in blocks. */
    uint32_t math;
    uint32_t tensor;   /* of moepage_plan_expert.tensors: a matrix [n_out][n_in] of a dtype that
                           moepage_device_linear takes */
    uint32_t x_rows;   /* MOEPAGE_ROWS_* */
    uint32_t out_rows; /* MOEPAGE_ROWS_CHOICES or _GROUP */
    uint32_t reserved; /* 0 */
    const float *x;    /* rows of n_in */
    uint64_t x_stride; /* elements from one row of x to the next; 0 = n_in */
    float *out;     /* rows of n_out, one behind the other; those of other groups are left alone */
    void *operands; /* scratch for n_rows * n_in * 4 bytes, at a multiple of 64 */
} moepage_product;

/* Computes share `share` of `n_shares` of what a product's rows are multiplied as: all shares together fill
 * `operands`, for any products with the same x, x_rows, n_in, math and, with MATH_INT8, matrices that are
 * all in blocks or all not. ARGUMENT for a product that is none, a misplaced pointer or a share that does not
 * exist; STATE unless the layer is open with a plan; UNSUPPORTED for devices other than one "host", and for a
 * group with low versions. [any]: the calls for one group may run at the same time, while no other function
 * of the session does. */
MOEPAGE_API moepage_status moepage_session_convert(moepage_session *session, uint32_t layer,
                                                   const moepage_product *product, uint32_t share,
                                                   uint32_t n_shares);

/* Computes one share of the products, once all shares of `operands` are there. The bits of a sum are those
 * that docs/host-kernels.md says, whatever the shares, the group and the other rows. Errors and threads as
 * above. [any] */
MOEPAGE_API moepage_status moepage_session_multiply(moepage_session *session, uint32_t layer,
                                                    const moepage_product *product, uint32_t share,
                                                    uint32_t n_shares);

/* Gives the current group's slots back and takes the next group. STATE after the last. After any
 * other failure no group is held and the old plan's pointers are dead; the call may be repeated, or
 * the layer retired. [one] */
MOEPAGE_API moepage_status moepage_session_next_group(moepage_session *session, uint32_t layer,
                                                      moepage_plan *plan);

/* Runs the layer's routed experts (SwiGLU) over all groups: the result for a row has the same bits
 * whatever is resident, however many waves it takes, however many rows come with it, on any number
 * of threads. Needs the layer at its first group. After a failure no group is held; the call may be
 * repeated, or the layer retired. [one] */
MOEPAGE_API moepage_status moepage_session_ffn(moepage_session *session, uint32_t layer,
                                               const moepage_ffn *ffn);

/* Ends a layer: its slots may be evicted once submitted work has passed. Every kernel that reads
 * the plan's slots must have been submitted before. [one] */
MOEPAGE_API moepage_status moepage_session_retire(moepage_session *session, uint32_t layer);

/* Closes the step. STATE while a layer is not retired; DEVICE if one of several CUDA devices has failed by
 * now: the step stays open, for moepage_session_cancel. `stats` may be NULL. [one] */
MOEPAGE_API moepage_status moepage_session_end(moepage_session *session,
                                               moepage_session_stats *stats);

/* Drops an open step after an error in the host's own code: retires every open layer. While the
 * stream of an open plan is being captured into a graph, it fails with STATE and the step stays
 * open. OK if no step is open. [one] */
MOEPAGE_API moepage_status moepage_session_cancel(moepage_session *session);

/* Sums over all ended or cancelled steps. [one] */
MOEPAGE_API moepage_status moepage_session_get_stats(moepage_session *session,
                                                     moepage_session_stats *stats);

/* Fills *stats with sums over the ended steps of all sessions that the pool has had. [any] */
MOEPAGE_API moepage_status moepage_expert_pool_get_stats(moepage_expert_pool *pool,
                                                         moepage_session_stats *stats);

/* ---- Metrics ---------------------------------------------------------------------------- */

/* The objects to report on; NULL ones are left out. */
typedef struct moepage_stats_source {
    uint32_t struct_size;
    uint32_t reserved;
    moepage_device *device;
    moepage_expert_pool *experts; /* with its sessions, including those destroyed since */
    moepage_kv_pool *kv;
    moepage_controller *controller;
    moepage_predictor *predictor;
    /* Put into every sample: "model=\"qwen3\",replica=\"0\""; at most 256 bytes; NULL = none. */
    const char *labels;
} moepage_stats_source;

/* Always enough for moepage_stats_text. */
#define MOEPAGE_STATS_TEXT_BYTES 65536

/* Writes every counter and gauge, in the text format that Prometheus scrapes (version 0.0.4), to
 * out[0..capacity) with a NUL, and the length without it to *length, which may be NULL. With `out`
 * NULL and `capacity` 0, only the length is returned; it may have grown by the next call. ARGUMENT
 * if `capacity` is too small or `labels` is malformed. docs/metrics.md lists the metrics. Takes the
 * locks of the objects, one after the other, so any thread may scrape while others serve. [any] */
MOEPAGE_API moepage_status moepage_stats_text(const moepage_stats_source *source, char *out,
                                              uint64_t capacity, uint64_t *length);

/* ==== Advanced =========================================================================== */

/* What a host may add: experts fetched ahead, memory that moves between experts and KV,
 * stable addresses, packs. */

/* ---- Hints and prefetching -------------------------------------------------------------- */

/* Names experts of `layer` that will probably be routed at that layer's next turn. The library
 * fetches the absent ones in the background, in the order given. A hint is dropped when the layer
 * is routed. ARGUMENT for ids out of range; STATE with MOEPAGE_PREFETCH_OFF, so that no hint is
 * silently ignored. [one] */
MOEPAGE_API moepage_status moepage_session_hint(moepage_session *session, uint32_t layer,
                                                const int32_t *experts, uint32_t n_experts);

/* The outcome of prefetching for a layer, in bytes of experts: used in time, used but waited for,
 * and evicted unused. */
typedef struct moepage_prefetch_info {
    uint32_t struct_size;
    uint32_t layer;
    /* How many layers ahead it is prefetched now; 0 = prefetching has backed off. */
    uint32_t distance;
    uint32_t backoffs; /* how often it has backed off */
    uint64_t useful_bytes;
    uint64_t late_bytes;
    uint64_t wasted_bytes;
    uint64_t guessed; /* experts named for the layer, resident ones included */
    uint64_t right;   /* of these, those routed */
} moepage_prefetch_info;

/* Fills *info for a layer; STATE without MOEPAGE_PREFETCH_PREDICTOR. [one] */
MOEPAGE_API moepage_status moepage_session_get_prefetch(moepage_session *session, uint32_t layer,
                                                        moepage_prefetch_info *info);

/* ---- Predictors ------------------------------------------------------------------------- */

typedef struct moepage_predictor_config {
    uint32_t struct_size;
    uint32_t distance; /* d: layers ahead; 0 = 3, or all layers if there are fewer */
    /* "none", "previous", "hit-count", "gate", "coactivation", "maps"; NULL = "maps". */
    const char *name;
    uint32_t capacity; /* of "maps": iterations kept; 0 = 1024 */
    /* Of "maps": of the embeddings that steps will bring, below 2^20; 0 = none. */
    uint32_t semantic_dim;
} moepage_predictor_config;

typedef struct moepage_predictor_info {
    uint32_t struct_size;
    uint32_t distance;
    char name[32];
    uint64_t bytes;      /* of memory */
    uint64_t iterations; /* learnt from */
    uint64_t asked;      /* predictions made */
} moepage_predictor_info;

/* Creates a predictor, which has learnt nothing yet, for models of this shape. NOT_FOUND for an
 * unknown name; ARGUMENT for a config out of range; UNSUPPORTED if the model lacks what the
 * predictor needs ("gate": its routers); NO_MEMORY. [any] */
MOEPAGE_API moepage_status moepage_predictor_create(const moepage_model *model,
                                                    const moepage_predictor_config *config,
                                                    moepage_predictor **out);

/* Frees it; BUSY while a session or a controller uses it. NULL is a no-op. [any] */
MOEPAGE_API moepage_status moepage_predictor_destroy(moepage_predictor *predictor);

/* Fills *info. [any] */
MOEPAGE_API moepage_status moepage_predictor_get_info(moepage_predictor *predictor,
                                                      moepage_predictor_info *info);

/* Writes what the predictor has learnt to a file, which appears under `path` once it is complete.
 * UNSUPPORTED for predictors that learn nothing between requests. [any] */
MOEPAGE_API moepage_status moepage_predictor_save(moepage_predictor *predictor, const char *path);

/* Loads what a predictor of the same name and shape has saved. FORMAT for a damaged file, VERSION
 * for a newer one, ARGUMENT for another shape or name, UNSUPPORTED for predictors that keep
 * nothing, NOT_FOUND, IO, NO_MEMORY; after a failure the predictor is as it was. [any] */
MOEPAGE_API moepage_status moepage_predictor_load(moepage_predictor *predictor, const char *path);

/* ---- The split -------------------------------------------------------------------------- */

/* Moves the boundary between experts and KV: afterwards the pools, which share one device, have
 * `expert_slots` slots and `kv_blocks` blocks, rounded up to whole granules (0 = leave that pool as it
 * is). The shrinking side gives bytes up before the other grows. Live KV blocks in the way are relocated;
 * experts in the way are dropped. Low versions of experts stay. BUDGET: the two do not fit together, live
 * blocks, pins or sessions (one slot each, with GROUP_TOKENS a token's) need more, MOEPAGE_SCOPE_LAYER or
 * SERVE_VERSIONS cannot divide the slots evenly, or low versions of `lo_fetched` would have no places;
 * BUSY: a slot in the way is pinned or in an open plan, open layers count on more slots than there would
 * be, high versions would have to go while a step is open, or live KV blocks would have to be copied
 * while a step of a session with that KV pool is open; UNSUPPORTED: an expert pool over several devices;
 * ARGUMENT: no pool, or on different devices; NO_MEMORY: with a budget below its maximum, the side that
 * grows needs memory that the other one gave back, and the system refuses it. A refused move leaves the
 * old split, but for what NO_MEMORY, or a budget that waits to shrink, has cost a side. Where a
 * controller lends KV's idle blocks, these are slots, and `kv_blocks` is what it lends from afterwards.
 * `experts` or `kv` may be NULL. Steps may be open. A caller that reads KV outside of steps must see to
 * it that nothing moves meanwhile (block tables may change). [any], one call at a time */
MOEPAGE_API moepage_status moepage_split_set(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                             uint64_t expert_slots, uint64_t kv_blocks,
                                             void *stream);

/* ---- Working sets ----------------------------------------------------------------------- */

/* A controller watches how a pair of pools is used, and moves the split between them, or the
 * experts between their states, while they serve. docs/working-sets.md explains how.
 *
 *   moepage_controller_create(experts, kv, &config, &controller);
 *   between steps:  moepage_controller_tick(controller, stream, &report);
 *
 * It measures reuse distances of routed experts and of KV sequences (sampled, in fixed memory), the
 * bandwidth of every tier, and the cost of misses; there is no constant to calibrate. */
enum {
    MOEPAGE_CONTROL_MV_WSA = 0, /* both sides buy the same latency per byte (WiSP 3.4, app. B) */
    MOEPAGE_CONTROL_DUAL_RESIZE = 1, /* KV's peak and headroom, the rest to experts (WiSP app. D) */
    /* The residency planner (FluxMoE 4.3): how many experts of each layer are dense, compressed, or
     * on the host; where steps use few of them, by which are used. */
    MOEPAGE_CONTROL_PLANNER = 2,
    MOEPAGE_CONTROL_OBSERVE = 3, /* measures and predicts, moves nothing */
    MOEPAGE_CONTROL_FIXED = 4,   /* baselines: expert_percent of the arena for experts, once */
    MOEPAGE_CONTROL_FLUX = 5     /* the experts' working set first, KV-blind (WiSP's Flux-prop) */
};

enum {
    MOEPAGE_KV_MISS_SWAP = 0,     /* KV that is not on the device was swapped out, and comes in */
    MOEPAGE_KV_MISS_RECOMPUTE = 1 /* or computed again by the host */
};

typedef struct moepage_controller_config {
    uint32_t struct_size;
    uint32_t mode;        /* MOEPAGE_CONTROL_* */
    uint32_t burst_steps; /* steps after which it may act; 0 = 64 */
    uint32_t kv_miss;     /* MOEPAGE_KV_MISS_*: what the host does */
    /* Of the longest sequence, 0 = the longest seen so far. With `concurrency` it gives the
     * admission floor: KV's share never falls below that, nor below what one step of the last burst had. */
    uint64_t context_tokens;
    uint32_t concurrency;    /* sequences served at once; 0 = 1 */
    uint32_t expert_percent; /* FIXED: 1..99 */
    uint32_t decay_permille; /* MV_WSA: weight of a burst one burst later, up to 1000; 0 = 700 */
    uint32_t gate_permille;  /* MV_WSA: least predicted gain; 0 = 20 */
    /* MV_WSA: the largest part of the experts' side moved at once; 0 = 250. */
    uint32_t rate_permille;
    /* MV_WSA, DUAL_RESIZE: smaller moves are not made: experts per layer, or with `admission` the steps that the
     * experts' side grows by; 0 = 1. */
    uint32_t dead_zone;
    /* MV_WSA, DUAL_RESIZE, PLANNER: of KV over what was used; 0 = 100. */
    uint32_t headroom_permille;
    uint32_t theta_permille; /* PLANNER: at most 1000; 0 = 900 */
    uint32_t max_samples;    /* keys whose reuse is tracked, per stream, at least 16; 0 = 16384 */
    /* 1: it also decides how many sequences run at once (WiSP 1, working-set admission), by the tokens per second
     * that it has measured with each number: moepage_kv_admit heeds it. MV_WSA then chooses the split with the fewest
     * jobs in the system instead of the least time for misses, KV's floor is one longest context, and KV's idle
     * blocks serve experts until sequences need them (lent_blocks of moepage_kv_pool_info). Begin with KV for no more
     * than that context, and give context_tokens if it may come late: what is longer than KV's side never gets in.
     * Needs a KV pool, and steps that name their sequences; one session should decode all of them, as the numbers that
     * are measured are those of single steps. 0: `concurrency` is the host's. Since 0.8. */
    uint32_t admission;
    /* Targets in ns, which need `admission` and another mode than PLANNER; 0 = none. Of the mean time to the first
     * token, with what queues wait, from the eighth turn on; and of the time between a sequence's tokens while
     * target_running run. How many run, and with MV_WSA the split, then follow from the fewest jobs in the system
     * and from what exceeds a target, a tenth of which outweighs any queue. predicted_ttft_ns and
     * predicted_tpot_ns of the info tell. Since 0.8. */
    uint64_t target_ttft_ns;
    uint64_t target_tpot_ns;
} moepage_controller_config;

/* The outcome of a controller's tick. */
enum {
    MOEPAGE_CONTROL_WAITS = 0, /* the burst is not over, or too little has been seen */
    MOEPAGE_CONTROL_STAYS = 1, /* the present split is the best, or nearly */
    MOEPAGE_CONTROL_MOVED = 2,
    /* A move waits for slots or blocks in use; the next ticks go on with it. If more than
     * target_blocks are used, the host should free or swap out what no running sequence needs. */
    MOEPAGE_CONTROL_DRAINING = 3,
    /* A move could not be made, or, with PLANNER, not completed: the split in use is that of
     * expert_slots and kv_blocks. */
    MOEPAGE_CONTROL_REFUSED = 4,
    MOEPAGE_CONTROL_INFEASIBLE = 5 /* no split has room for one layer's experts and KV's floor */
};

typedef struct moepage_controller_report {
    uint32_t struct_size;
    uint32_t outcome;      /* MOEPAGE_CONTROL_WAITS ... */
    uint64_t expert_slots; /* the split now; KV's blocks without those that are lent */
    uint64_t kv_blocks;
    uint64_t target_slots; /* predicted to be best, for now: without blocks that are to be lent */
    uint64_t target_blocks;
    uint32_t compressed_experts; /* per layer */
    uint32_t target_compressed;
    /* With `admission`: sequences that should run at once; 0 = no limit. Since 0.8. More than run now: the
     * host admits no other; it may also swap sequences out. */
    uint32_t target_running;
    uint32_t reserved;
} moepage_controller_report;

/* What a controller has measured. Times in ns; 0 = not seen yet. */
typedef struct moepage_controller_info {
    uint32_t struct_size;
    uint32_t mode;
    uint64_t steps; /* seen */
    uint64_t bursts;
    uint64_t moves;
    uint64_t refused;
    uint64_t floor_blocks;    /* KV's share never falls below this */
    uint64_t peak_blocks;     /* most used in the last burst */
    uint64_t expert_accesses; /* decayed, as the miss curve holds them */
    uint64_t expert_first;    /* first uses, counted separately */
    uint64_t kv_accesses;     /* in blocks */
    uint64_t kv_first;
    double expert_miss_ns;   /* cost of one miss to a step */
    double kv_miss_ns;       /* of one block: swapped out and in again, or computed again */
    double recompute_ns;     /* per token of prefill */
    double layer_compute_ns; /* of one layer of a decode step as they are now, without stalls */
    /* Predicted cost of a burst's misses at the present split, and at the target. */
    double predicted_now_ns;
    double predicted_best_ns;
    double rho;   /* PLANNER: compute to load */
    double alpha; /* PLANNER: share of experts in device memory */
    /* Tokens per second of decode steps, measured: with the target's sequences; 0 = not known. Since 0.8. */
    double target_tokens_per_s;
    uint32_t target_running; /* as in moepage_controller_report */
    uint32_t reserved;
    /* Right-sizing (moepage_controller_rightsize), at the last burst's end; since 0.8. */
    uint32_t users;                /* that it sizes */
    uint32_t sized_users;          /* of these, those whose needs are known surely */
    uint64_t largest_user_experts; /* that one of them needs, at most */
    uint64_t needed_experts;       /* that they need together, each counted once; 0 = not sure */
    uint64_t cap_slots;            /* that experts get at most; 0 = no cap */
    uint64_t recalls;              /* times that lent blocks came back for a call */
    /* With `admission`: what targets are about, as expected of the present split at the last burst's end. Since 0.8. */
    double predicted_ttft_ns;
    double predicted_tpot_ns;
} moepage_controller_info;

/* Creates a controller that watches both pools, on one device, until it is destroyed. `kv` may
 * be NULL; then no split moves. BUSY if either pool has a controller. UNSUPPORTED for an
 * expert pool over several devices, for PLANNER without an EXPH form if there is nothing else
 * to plan, and for PLANNER with SERVE_VERSIONS. [set-up] */
MOEPAGE_API moepage_status moepage_controller_create(moepage_expert_pool *experts,
                                                     moepage_kv_pool *kv,
                                                     const moepage_controller_config *config,
                                                     moepage_controller **out);

/* Destroys a controller, before its pools. NULL is a no-op. [set-up] */
MOEPAGE_API moepage_status moepage_controller_destroy(moepage_controller *controller);

/* Lets a controller act between steps: at the end of a burst it decides and moves, and a move that
 * had to wait for slots or blocks in use goes on. Never waits for them. `stream`: of the caller's
 * kernels, as in moepage_split_set. After any error but a failure of the device, the previous split
 * is in use. `report` may be NULL. [one] */
MOEPAGE_API moepage_status moepage_controller_tick(moepage_controller *controller, void *stream,
                                                   moepage_controller_report *report);

/* Tells a controller that a prefix was used: `key` is the host's own name for it, and `tokens` its
 * length. For hosts that keep prefixes longer than their sequences. From the first call on, the KV
 * sequences that steps name are no longer counted. STATE without a KV pool. [any] */
MOEPAGE_API moepage_status moepage_controller_kv_use(moepage_controller *controller, uint64_t key,
                                                     uint64_t tokens);

/* Fills *info. [any] */
MOEPAGE_API moepage_status moepage_controller_get_info(moepage_controller *controller,
                                                       moepage_controller_info *info);

/* Predicts the warm misses of one burst at each of `n` sizes: of experts (`kv` 0) at sizes[i]
 * slots, or of KV (`kv` 1) at sizes[i] blocks, in blocks. STATE for KV without a KV pool. [any] */
MOEPAGE_API moepage_status moepage_controller_get_curve(moepage_controller *controller, uint32_t kv,
                                                        const uint64_t *sizes, uint32_t n,
                                                        double *misses);

/* ---- PagedTensor ------------------------------------------------------------------------ */

/* Expert weights at addresses that never change (FluxMoE 4.1), for callers whose kernels take a
 * layer's experts as one dense tensor and know nothing of paging. For each expert tensor there is a
 * range of addresses in which layer i, expert j lies at
 *
 *   base + i * layer_stride + j * expert_stride                                    (equation 4)
 *
 * with expert_stride the tensor's own size, and layer_stride `experts` times that, rounded up to
 * the device's mapping granularity, since a layer's tensor is mapped as a whole. (Tensors smaller
 * than the granularity, as biases may be, share one such range: their layers are then further
 * apart.) Only a few layers have memory at a time: buffers in the device's arena, each mapped at
 * the addresses of the layer that it belongs to.
 *
 *   moepage_paged_materialise(p, 0); moepage_paged_materialise(p, 1);
 *   per layer i, again and again:
 *     moepage_paged_acquire(p, i, stream);         reads on `stream` wait for the layer's bytes
 *     ... the caller's kernels read layer i ...
 *     moepage_paged_release(p, i, stream);         its buffer may go once these kernels are done
 *     moepage_paged_materialise(p, (i + 2) % n);   takes layer i's buffer over
 *
 * A layer is UNMAPPED at first; LOADING from its materialisation until its bytes have landed; then
 * RESIDENT; and EVICTING from the moment when another layer takes its buffer over until its readers
 * are done; then UNMAPPED again. Buffers change hands in the order in which layers were last
 * materialised: with two of them, layer i's comes from layer i - 2, across the end of a step as well
 * (algorithm 1), and the first two layers wait for no other. It always holds that
 *
 *   - addresses never change;
 *   - a layer has at most one buffer, a buffer belongs to at most one layer;
 *   - no buffer is overwritten, and no address mapped anew, before the work that was submitted for the
 *     layer up to its release is done; no reader behind an acquire starts before its bytes are
 *     there;
 *   - the number of buffers is fixed; nothing is allocated after creation.
 *
 * A layer's addresses stay mapped to the last buffer that it had (since 0.8), so that a layer that gets the
 * same one again costs no call of the driver: in cyclic order that is every layer, from the second step on,
 * if the number of buffers divides the number of layers (with an odd number of layers take three or more).
 * Therefore addresses of a layer that is not acquired must not be read: before its first time they fault,
 * later they may show another layer's bytes. On "host" they cannot be written.
 *
 * Besides the buffers, experts may be kept in the compressed tier, coded in device memory from where they are
 * decoded (FluxMoE 4.2), and in the host tier, read from a pack or file; both as in an expert pool. The
 * compressed tier may grow and shrink while layers come and go, beside a KV pool that has the rest of the
 * arena: moepage_paged_resize, or moepage_paged_balance.
 *
 * Loads and mapping happen in the background. While a stream is being captured into a
 * CUDA graph, call nothing here. */
typedef struct moepage_paged moepage_paged;

enum {
    MOEPAGE_PAGED_UNMAPPED = 0,
    MOEPAGE_PAGED_LOADING = 1,
    MOEPAGE_PAGED_RESIDENT = 2,
    MOEPAGE_PAGED_EVICTING = 3
};

typedef struct moepage_paged_config {
    uint32_t struct_size;
    /* Layers that have memory at once: at least 2 (1 in a model of one layer), at most all; 0 = 2,
     * the paper's 2L blocks per tensor type. */
    uint32_t buffers;
    /* The rest as in moepage_expert_pool_config; since 0.8. EXPH and compressed experts are UNSUPPORTED if a
     * tensor's bytes are no multiple of 16. The host tier keeps what is needed soonest in cyclic order. */
    uint32_t bus_form;           /* MOEPAGE_FORM_DENSE or _EXPH; 0 = EXPH if the model has it */
    uint32_t compressed_experts; /* per layer, kept compressed in device memory */
    uint32_t staging_experts;    /* images between bus and decoder; 0 = 4 */
    uint32_t reserved;
    uint64_t host_tier_bytes; /* 0 = none */
} moepage_paged_config;

/* The addresses of one tensor, for all experts of all layers. */
typedef struct moepage_paged_tensor {
    uint32_t struct_size;
    uint32_t role;  /* MOEPAGE_ROLE_* */
    uint32_t dtype; /* MOEPAGE_DTYPE_* */
    uint32_t rank;  /* of one expert's tensor */
    uint64_t shape[MOEPAGE_MAX_RANK];
    void *base;             /* device address of layer 0, expert 0 */
    uint64_t expert_stride; /* bytes: a layer is a dense [experts, shape...] tensor */
    uint64_t layer_stride;
} moepage_paged_tensor;

/* A PagedTensor's memory, and what it has done since creation. Since 0.8. */
typedef struct moepage_paged_info {
    uint32_t struct_size;
    uint32_t buffers;
    uint32_t bus_form;           /* MOEPAGE_FORM_DENSE or _EXPH */
    uint32_t compressed_experts; /* per layer, whose images have landed */
    uint32_t compressed_target;  /* per layer */
    uint32_t reserved;
    uint64_t mappings;         /* views mapped: in the steady state it stands still */
    uint64_t arena_bytes;      /* of buffers and compressed experts */
    uint64_t staging_bytes;    /* of the workspace */
    uint64_t loaded_bytes;     /* that crossed the bus for layers */
    uint64_t decodes;          /* experts decoded */
    uint64_t compressed_loads; /* of these, from device memory */
    uint64_t host_tier_bytes;
    uint64_t host_tier_experts; /* its capacity */
    uint64_t host_tier_resident;
    uint64_t host_hits; /* loads that found their expert in the host tier */
    uint64_t cold_reads;
    uint64_t cold_bytes;
} moepage_paged_info;

/* Bytes that moepage_paged_create would take: of the arena for all buffers, and of the workspace
 * for a model whose images are decoded on the device (EXPH). Either pointer may be NULL. `config`
 * NULL = the defaults. [any] */
MOEPAGE_API moepage_status moepage_paged_sizes(moepage_device *device, const moepage_model *model,
                                               const moepage_paged_config *config,
                                               uint64_t *workspace_bytes, uint64_t *arena_bytes);

/* Creates a PagedTensor, which has the experts' side of the device's arena until it is destroyed:
 * BUSY if an expert pool or another PagedTensor has it. The device and the model must outlive it.
 * BUDGET if the arena or the workspace is too small; UNSUPPORTED on a device that cannot map memory
 * at a second address, and for a pack without a lossless form. [set-up] */
MOEPAGE_API moepage_status moepage_paged_create(moepage_device *device, moepage_model *model,
                                                const moepage_paged_config *config,
                                                moepage_paged **out);

/* Destroys a PagedTensor after waiting for loads under way. The caller's kernels must have
 * completed. BUSY while a layer is acquired. NULL is a no-op. [set-up] */
MOEPAGE_API moepage_status moepage_paged_destroy(moepage_paged *paged);

/* Fills *out for one of the model's expert tensors, by index. The answer is the same for the
 * object's whole life. [any] */
MOEPAGE_API moepage_status moepage_paged_get_tensor(const moepage_paged *paged, uint32_t tensor,
                                                    moepage_paged_tensor *out);

/* Begins to load a layer into a free buffer, or into that of the layer materialised longest ago.
 * Returns at once. A layer that is LOADING or RESIDENT just goes to the end of the order, and stays
 * until it has been acquired (again) and released. BUSY, and nothing has changed, if the buffer's
 * layer is acquired, or has not been acquired since it was materialised (to give up such a layer,
 * acquire and release it); and for a moment after a failed load, until its transfers under way have
 * landed (an acquire of the failed layer waits for that). [one] */
MOEPAGE_API moepage_status moepage_paged_materialise(moepage_paged *paged, uint32_t layer);

/* Makes a layer readable by work that is submitted to `stream` from now on. Waits until its
 * addresses are mapped and nothing but a failure of the device can still fail its load; on "host",
 * until the bytes are there. It waits for kernels only if the layer comes back while its own last
 * readers are still at work. STATE if the layer was not materialised or is acquired. A load's own
 * failure (CALLBACK, FORMAT, IO, NO_MEMORY, DEVICE) is returned here, with a sentence, until the
 * layer is materialised again; the layer is then UNMAPPED, and all others are as they were. After
 * any other failure nothing has changed. [one] */
MOEPAGE_API moepage_status moepage_paged_acquire(moepage_paged *paged, uint32_t layer,
                                                 void *stream);

/* Ends the reading of a layer: work submitted to `stream` so far is the last to read it. `stream` is the one that
 * acquired it, or one that waits for that. The layer
 * may be acquired again as long as no other has taken its buffer over. STATE if it is not acquired;
 * after a failure it still is. [one] */
MOEPAGE_API moepage_status moepage_paged_release(moepage_paged *paged, uint32_t layer,
                                                 void *stream);

/* Keeps `compressed` experts of each layer compressed in device memory: images of more are copied in the
 * background, and count once they have landed; fewer give arena back. Layers' addresses and buffers stay.
 * BUSY while images that are to go are still decoded or copied (no more is decoded from them: the same call
 * succeeds soon; another number takes it back); BUDGET if the arena has no room; UNSUPPORTED without the EXPH
 * form or staging. Never waits. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_paged_resize(moepage_paged *paged, uint32_t compressed);

/* Divides the arena between a PagedTensor's compressed experts and a KV pool of the same device, at the end of a
 * burst of steps: KV gets the most blocks that it has used since the last call, and `headroom_permille` more;
 * experts get what is left, and KV what these cannot use (dual resize, WiSP app. D). Never waits for loads; a KV
 * pool that shrinks waits as in moepage_split_set, whose rules for `stream` hold too. `report` may be NULL: its
 * slots are 0; DRAINING: the next call goes on; REFUSED: live blocks are in the way. BUSY if the KV pool has a
 * controller. Since 0.8. [one] */
MOEPAGE_API moepage_status moepage_paged_balance(moepage_paged *paged, moepage_kv_pool *kv,
                                                 uint32_t headroom_permille, void *stream,
                                                 moepage_controller_report *report);

/* Fills *info. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_paged_get_info(moepage_paged *paged, moepage_paged_info *info);

/* Gives a layer's state, MOEPAGE_PAGED_*. [any] */
MOEPAGE_API moepage_status moepage_paged_get_state(moepage_paged *paged, uint32_t layer,
                                                   uint32_t *state);

/* ---- Packs ------------------------------------------------------------------------------ */

/* Reports progress now and then, on the calling thread: the work done so far and in all, in bytes
 * of tensors that are never paged, and of experts once for each form and once more for each to be
 * verified. A non-zero return ends the call with MOEPAGE_E_CALLBACK. */
typedef int32_t (*moepage_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

/* Gives the second moments of what one matrix of an expert is multiplied with: the sum of x x' over inputs
 * x, times any positive number, in `out`, [columns][columns] of zeros. Its upper triangle, with the diagonal,
 * is what counts. `tensor` indexes the expert's tensors, `columns` is the matrix's last dimension, and `slot`
 * has the tensors where moepage_model_get_layer_tensors says. Called from moepage_pack_write's threads,
 * several at a time; of the library it may call moepage_model_get_layer_tensors and
 * moepage_model_read_expert. Returns 0 for success; after any other value the call fails with
 * MOEPAGE_E_CALLBACK. Since 0.8. */
typedef int32_t (*moepage_moments_fn)(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                                      const void *slot, uint64_t columns, float *out);

typedef struct moepage_pack_config {
    uint32_t struct_size;
    /* Of the experts, a set of 1u << MOEPAGE_FORM_*; at least one lossless; 0 = EXPH, or DENSE where EXPH
     * would code none of their weights (docs/format-exph.md lists the types). */
    uint32_t forms;
    int32_t cold_level;  /* zstd level at which DENSE images are stored, 1..19; 0 = stored plain */
    uint32_t group_size; /* of the integer forms: 32, 64 or 128; 0 = 64 */
    uint32_t threads;    /* threads that encode; 0 = one per online CPU */
    /* 1: reads the written file back and compares experts and tensors with the model's before it
     * gets its name. */
    uint32_t verify;
    /* Integer forms: 1 = scales of least squared error, 0 = of the group's largest magnitude. */
    uint32_t scale_search;
    uint32_t reserved;
    moepage_progress_fn progress; /* NULL = none */
    void *progress_user;
    /* Integer forms: rounds each matrix for the least error of its products with inputs of these moments
     * (GPTQ) instead of that of each weight by itself; NULL = the latter. Asked for once for each matrix and
     * integer form, and again with `verify`. Each thread takes 4 * columns^2 bytes. Since 0.8. */
    moepage_moments_fn moments;
    void *moments_user;
} moepage_pack_config;

typedef struct moepage_pack_stats {
    uint32_t struct_size;
    uint32_t threads;
    uint64_t file_bytes;
    uint64_t dense_bytes;   /* of tensors that are never paged */
    uint64_t routed_bytes;  /* of the model's experts */
    uint64_t form_bytes[8]; /* stored, by MOEPAGE_FORM_* */
    uint64_t raw_parts;     /* experts' tensors that EXPH would not have made smaller: kept raw */
    uint64_t wall_ns;
} moepage_pack_stats;

/* Writes a model, however it was opened, to a .moepack file. The file gets its name when it is
 * complete and on disk: an interrupted or failed call leaves an earlier file at `path` as it was. A
 * symbolic link there is replaced, not followed. Errors: ARGUMENT for a config that contradicts
 * itself or a `path` where no file can be, UNSUPPORTED for an integer form of experts that are not
 * F32, F16 or BF16, FORMAT for a model that is damaged, IO (disk full, ...), CALLBACK, NO_MEMORY.
 * `config` and `stats` may be NULL. [any] */
MOEPAGE_API moepage_status moepage_pack_write(const moepage_model *model, const char *path,
                                              const moepage_pack_config *config,
                                              moepage_pack_stats *stats);

/* ---- Codec ------------------------------------------------------------------------------ */

/* The exponent-Huffman codec, in the caller's memory (docs/format-exph.md). dtype is BF16, F16,
 * F8_E4M3 or F8_E5M2. */

/* The most bytes that a stream of n elements can take; 0 for another dtype or an n
 * past 2^40. [any] */
MOEPAGE_API uint64_t moepage_exph_bound(uint32_t dtype, uint64_t n);

/* Encodes in[0..n) to out; `capacity` at least moepage_exph_bound. [any] */
MOEPAGE_API moepage_status moepage_exph_encode(uint32_t dtype, const void *in, uint64_t n,
                                               void *out, uint64_t capacity, uint64_t *out_bytes);

/* Decodes a stream of n elements of `dtype` to out, after checking it: FORMAT for a damaged stream
 * and VERSION for one of another version; nothing is written then. Neither pointer need be aligned.
 * `decoder` is NULL for the fastest or "portable", "avx2", "avx512"; NOT_FOUND for one that this
 * CPU cannot run. All give the same bits. [any] */
MOEPAGE_API moepage_status moepage_exph_decode(const char *decoder, uint32_t dtype, const void *in,
                                               uint64_t bytes, void *out, uint64_t n);

/* Decodes n weights of a block format (MOEPAGE_DTYPE_Q4_0 to _NVFP4G256_F32) from the blocks in
 * in[0..bytes), which may lie at any address, to out: the values of docs/format-blocks.md. n is a
 * multiple of a block's weights, and `bytes` what n weights take; ARGUMENT for anything else.
 * Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_blocks_decode(uint32_t dtype, const void *in, uint64_t bytes,
                                                 float *out, uint64_t n);

/* ==== For study ========================================================================== */

/* For experiments: outputs that are not exact, measurements, recordings. As stable as the rest, but
 * not needed for serving. */

/* ---- Two versions of an expert ---------------------------------------------------------- */

enum {
    /* DynaExq: slots hold each layer's hottest experts, and all others compute in their low
     * versions; no step ever waits for an expert. */
    MOEPAGE_SERVE_VERSIONS = 0,
    /* The slots are a cache as usual; the low versions are for sessions with MOEPAGE_MISS_LOW. */
    MOEPAGE_SERVE_CACHE = 1
};

/* How an expert's hotness is measured. */
enum {
    MOEPAGE_HOTNESS_CHOICES = 0, /* how often it is chosen */
    MOEPAGE_HOTNESS_WEIGHTS = 1  /* the sum of the weights it is chosen with */
};

/* Experts in two versions (DynaExq section 3): a high one in slots, and a low one, of fewer bits,
 * in another part of the arena. Sessions then compute approximations, and their stats say how many. */
typedef struct moepage_precision_config {
    uint32_t struct_size;
    uint32_t serve; /* MOEPAGE_SERVE_* */
    /* That slots hold: MOEPAGE_FORM_DENSE, _INT8 or _INT4; 0 = DENSE. Below DENSE
     * with SERVE_VERSIONS only. */
    uint32_t hi_form;
    uint32_t lo_form; /* MOEPAGE_FORM_INT8, _INT4 or _INT2, smaller than hi_form */
    /* 0: every expert's low version is always resident. 1: only those of experts without a high
     * one; a low version is fetched before the high one is given up. */
    uint32_t lo_fetched;
    /* SERVE_VERSIONS: high versions per layer at first, until the split moves, of all devices; 0 = all
     * that each arena has room for beside the low ones. The pool's `slots` must be 0. */
    uint32_t hi_experts;
    uint32_t interval_us;  /* T_u, between decisions; 0 = 1 s */
    uint32_t window_steps; /* versions change between steps, once in this many; 0 = 1 */
    double alpha;          /* of the moving average of hotness, 0 <= alpha < 1; 0 = 0.5 */
    double margin;        /* hysteresis: how much hotter, as a fraction; 0 = 0.1; negative = none */
    uint32_t transitions; /* most under way at once, up to 1024; 0 = 4 */
    uint32_t hotness;     /* MOEPAGE_HOTNESS_* */
} moepage_precision_config;

/* ---- Remapping -------------------------------------------------------------------------- */

enum { MOEPAGE_GATE_SOFTMAX = 0, MOEPAGE_GATE_SIGMOID = 1 };

/* Remapping of decode batches (LYNX 3, app. A) avoids experts that matter to few tokens. It changes
 * outputs, so nothing else turns it on. docs/quality.md says what it costs. */
typedef struct moepage_remap_config {
    uint32_t struct_size;
    uint32_t gate; /* MOEPAGE_GATE_*: how the router's logits become weights */
    double alpha;  /* bins per e-fold of probability, > 0 */
    double beta;   /* the last bin, > 0; beta / alpha <= 3 */
    /* [moe_layers] instead, and `betas`; 0 = that layer is left alone; copied; NULL =
     * the same everywhere. */
    const float *alphas;
    const float *betas;
    double resident; /* logits by which experts on the device are preferred; 0 = not at all */
} moepage_remap_config;

/* Turns remapping on from the next step on; NULL turns it off. Steps with any prefill tokens and
 * batches of one are left alone. While it is on, layers must be routed with `logits`, or with
 * `probabilities` of a softmax gate: ARGUMENT otherwise. STATE while a step is open. [one] */
MOEPAGE_API moepage_status moepage_session_set_remap(moepage_session *session,
                                                     const moepage_remap_config *config);

/* ---- Right-sizing ----------------------------------------------------------------------- */

/* The working set that routing converges to, estimated from a co-activation table (WiSP 5.4). */
typedef struct moepage_rightsize {
    uint32_t struct_size;
    uint32_t layers;
    double coverage; /* in: part of the routed choices that the set must cover, below 1; 0 = 0.99 */
    uint64_t experts; /* out: the smallest set over all layers estimated to cover it */
    uint64_t bytes;   /* out: bytes of slots for that many */
    uint64_t freed;   /* out: bytes of slots for all experts, less `bytes`: what KV can have */
    double unseen;    /* out: estimated chance that a choice is of an expert never seen */
} moepage_rightsize;

/* Estimates a model's working set. UNSUPPORTED for predictors other than "coactivation", STATE
 * before anything was learnt. [any] */
MOEPAGE_API moepage_status moepage_predictor_rightsize(moepage_predictor *predictor,
                                                       moepage_rightsize *size);

/* Names the users, or tenants, that a controller serves: predictors "coactivation", of sessions with these pools, each of
 * which learns from one user's routing. Replaces those named before; none (`n` 0) ends it. At a burst's end the experts
 * that cover `coverage_permille` of each user's choices (below 1000; 0 = 990) are determined, and experts then get no
 * more slots than all users' together: KV gets the rest, and what is missing is loaded. No cap holds while the sample
 * of a user who runs is too small to bound the chance of experts not seen yet (docs/working-sets.md). OBSERVE and PLANNER
 * move nothing because of it; FIXED divides anew when the cap changes. The predictors are used until the controller is
 * destroyed or other users are named. UNSUPPORTED for other predictors, ARGUMENT for those of another shape, NO_MEMORY;
 * the users then stay. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_controller_rightsize(moepage_controller *controller,
                                                        moepage_predictor *const *predictors,
                                                        uint32_t n, uint32_t coverage_permille);

/* Fills *size with what predictors[user] needs: `unseen` is a bound, with a confidence of 95 %, and `coverage` the one
 * asked for; `experts` 0 = not sure yet, then `bytes` and `freed` are 0 too. Since 0.8. [any] */
MOEPAGE_API moepage_status moepage_controller_get_rightsize(moepage_controller *controller,
                                                            uint32_t user, moepage_rightsize *size);

/* ---- Traces ----------------------------------------------------------------------------- */

/* The shape of a recorded model, at most 4096 layers of 65535 experts; docs/format-trace.md
 * specifies the file. */
typedef struct moepage_trace_info {
    uint32_t struct_size;
    uint32_t moe_layers;
    uint32_t experts;
    uint32_t max_top_k;
    uint32_t semantic_dim;      /* 0 = none recorded */
    uint32_t has_probabilities; /* 1: full router output recorded */
    char model[64];             /* architecture name, NUL-terminated */
} moepage_trace_info;

/* One step as read back. Arrays are owned by the reader and live until the next call on it. */
typedef struct moepage_trace_step {
    uint32_t struct_size;
    uint32_t n_tokens;
    uint32_t n_sequences;
    uint32_t top_k;
    uint64_t step;                          /* counts from 0 */
    const moepage_step_sequence *sequences; /* [n_sequences] */
    const uint8_t *layer_present;           /* [moe_layers] 1 where the layer was routed */
    const int32_t *ids;                     /* [moe_layers][n_tokens][top_k] */
    const float *weights;                   /* [moe_layers][n_tokens][top_k] */
    const float *probabilities;             /* [moe_layers][n_tokens][experts] or NULL */
    const float *semantic;                  /* [n_sequences][semantic_dim] or NULL */
} moepage_trace_step;

/* Creates a trace file; it appears under `path` when it is closed. [any] */
MOEPAGE_API moepage_status moepage_trace_create(const char *path, const moepage_trace_info *info,
                                                moepage_trace **out);

/* Opens a trace file for reading. FORMAT for a damaged one, VERSION for a newer major. [any] */
MOEPAGE_API moepage_status moepage_trace_open(const char *path, moepage_trace **out);

/* The recorded model's shape. [any] */
MOEPAGE_API moepage_status moepage_trace_get_info(const moepage_trace *trace,
                                                  moepage_trace_info *info);

/* Reads the next step; MOEPAGE_E_END after the last. [one] */
MOEPAGE_API moepage_status moepage_trace_next(moepage_trace *trace, moepage_trace_step *step);

/* Ends a trace and frees it, whatever it returns, except for BUSY and HANDLE. For a writer this
 * finishes the file; a failure (disk full, or one while recording) is reported here and leaves no
 * file. BUSY while a session records to it. NULL is a no-op. [one] */
MOEPAGE_API moepage_status moepage_trace_close(moepage_trace *trace);

/* Records every step of the session from now on; NULL stops recording. STATE while a step is open,
 * ARGUMENT if the trace's shape is not the model's. The trace must outlive the recording. [one] */
MOEPAGE_API moepage_status moepage_session_record(moepage_session *session, moepage_trace *trace);

#ifdef __cplusplus
}
#endif

/* ---- Initialisers ----------------------------------------------------------------------- */

/* Initialisers for every struct with a struct_size, which they set; all other fields are 0. In C
 * the parentheses take designated fields; in C++ they stay empty, and fields are set afterwards:
 *
 *   moepage_plan plan = MOEPAGE_PLAN();
 *   moepage_device_config config = MOEPAGE_DEVICE_CONFIG(.budget_bytes = 8ull << 30);     C
 *
 * Three take required fields as arguments: MOEPAGE_STEP(n_tokens), MOEPAGE_ROUTING(top_k, ids,
 * weights), MOEPAGE_FFN(dtype, x, y). In C they are compound literals, for use in functions; calls
 * may take their address: moepage_session_begin(session, &MOEPAGE_STEP(4)). Since 0.7. */
#ifdef __cplusplus

template <class T> inline T moepage_sized()
{
    T made = T();
    made.struct_size = (uint32_t)sizeof(T);
    return made;
}

inline moepage_step moepage_make_step(uint32_t n_tokens)
{
    moepage_step made = moepage_sized<moepage_step>();
    made.n_tokens = n_tokens;
    return made;
}

inline moepage_routing moepage_make_routing(uint32_t top_k, const int32_t *ids,
                                            const float *weights)
{
    moepage_routing made = moepage_sized<moepage_routing>();
    made.top_k = top_k;
    made.ids = ids;
    made.weights = weights;
    return made;
}

inline moepage_ffn moepage_make_ffn(uint32_t dtype, const void *x, void *y)
{
    moepage_ffn made = moepage_sized<moepage_ffn>();
    made.dtype = dtype;
    made.x = x;
    made.y = y;
    return made;
}

#define MOEPAGE_INIT(type, ...) (moepage_sized<type>(__VA_ARGS__))
#define MOEPAGE_STEP(tokens) (moepage_make_step(tokens))
#define MOEPAGE_ROUTING(k, choices, shares) (moepage_make_routing(k, choices, shares))
#define MOEPAGE_FFN(type, in, out) (moepage_make_ffn(type, in, out))
#else
#define MOEPAGE_INIT(type, ...) ((type){.struct_size = sizeof(type), __VA_ARGS__})
#define MOEPAGE_STEP(tokens) MOEPAGE_INIT(moepage_step, .n_tokens = (tokens))
#define MOEPAGE_ROUTING(k, choices, shares) \
    MOEPAGE_INIT(moepage_routing, .top_k = (k), .ids = (choices), .weights = (shares))
#define MOEPAGE_FFN(type, in, out) MOEPAGE_INIT(moepage_ffn, .dtype = (type), .x = (in), .y = (out))
#endif

#define MOEPAGE_ENGINE_CONFIG(...) MOEPAGE_INIT(moepage_engine_config, __VA_ARGS__)
#define MOEPAGE_EXTERNAL_MEMORY(...) MOEPAGE_INIT(moepage_external_memory, __VA_ARGS__)
#define MOEPAGE_DEVICE_CONFIG(...) MOEPAGE_INIT(moepage_device_config, __VA_ARGS__)
#define MOEPAGE_DEVICE_INFO(...) MOEPAGE_INIT(moepage_device_info, __VA_ARGS__)
#define MOEPAGE_LINEAR(...) MOEPAGE_INIT(moepage_linear, __VA_ARGS__)
#define MOEPAGE_MODEL_CONFIG(...) MOEPAGE_INIT(moepage_model_config, __VA_ARGS__)
#define MOEPAGE_MODEL_INFO(...) MOEPAGE_INIT(moepage_model_info, __VA_ARGS__)
#define MOEPAGE_TENSOR_VIEW(...) MOEPAGE_INIT(moepage_tensor_view, __VA_ARGS__)
#define MOEPAGE_BANKS(...) MOEPAGE_INIT(moepage_banks, __VA_ARGS__)
#define MOEPAGE_FORM_INFO(...) MOEPAGE_INIT(moepage_form_info, __VA_ARGS__)
#define MOEPAGE_EXPERT_POOL_CONFIG(...) MOEPAGE_INIT(moepage_expert_pool_config, __VA_ARGS__)
#define MOEPAGE_EXPERT_POOL_INFO(...) MOEPAGE_INIT(moepage_expert_pool_info, __VA_ARGS__)
#define MOEPAGE_RESIDENCY(...) MOEPAGE_INIT(moepage_residency, __VA_ARGS__)
#define MOEPAGE_KV_POOL_CONFIG(...) MOEPAGE_INIT(moepage_kv_pool_config, __VA_ARGS__)
#define MOEPAGE_KV_POOL_INFO(...) MOEPAGE_INIT(moepage_kv_pool_info, __VA_ARGS__)
#define MOEPAGE_KV_LAYER_VIEW(...) MOEPAGE_INIT(moepage_kv_layer_view, __VA_ARGS__)
#define MOEPAGE_KV_TABLE(...) MOEPAGE_INIT(moepage_kv_table, __VA_ARGS__)
#define MOEPAGE_KV_ADMISSION(...) MOEPAGE_INIT(moepage_kv_admission, __VA_ARGS__)
#define MOEPAGE_SESSION_CONFIG(...) MOEPAGE_INIT(moepage_session_config, __VA_ARGS__)
#define MOEPAGE_PLAN(...) MOEPAGE_INIT(moepage_plan, __VA_ARGS__)
#define MOEPAGE_PRODUCT(...) MOEPAGE_INIT(moepage_product, __VA_ARGS__)
#define MOEPAGE_SESSION_STATS(...) MOEPAGE_INIT(moepage_session_stats, __VA_ARGS__)
#define MOEPAGE_STATS_SOURCE(...) MOEPAGE_INIT(moepage_stats_source, __VA_ARGS__)
#define MOEPAGE_PREFETCH_INFO(...) MOEPAGE_INIT(moepage_prefetch_info, __VA_ARGS__)
#define MOEPAGE_PREDICTOR_CONFIG(...) MOEPAGE_INIT(moepage_predictor_config, __VA_ARGS__)
#define MOEPAGE_PREDICTOR_INFO(...) MOEPAGE_INIT(moepage_predictor_info, __VA_ARGS__)
#define MOEPAGE_CONTROLLER_CONFIG(...) MOEPAGE_INIT(moepage_controller_config, __VA_ARGS__)
#define MOEPAGE_CONTROLLER_REPORT(...) MOEPAGE_INIT(moepage_controller_report, __VA_ARGS__)
#define MOEPAGE_CONTROLLER_INFO(...) MOEPAGE_INIT(moepage_controller_info, __VA_ARGS__)
#define MOEPAGE_PAGED_CONFIG(...) MOEPAGE_INIT(moepage_paged_config, __VA_ARGS__)
#define MOEPAGE_PAGED_INFO(...) MOEPAGE_INIT(moepage_paged_info, __VA_ARGS__)
#define MOEPAGE_PAGED_TENSOR(...) MOEPAGE_INIT(moepage_paged_tensor, __VA_ARGS__)
#define MOEPAGE_PACK_CONFIG(...) MOEPAGE_INIT(moepage_pack_config, __VA_ARGS__)
#define MOEPAGE_PACK_STATS(...) MOEPAGE_INIT(moepage_pack_stats, __VA_ARGS__)
#define MOEPAGE_PRECISION_CONFIG(...) MOEPAGE_INIT(moepage_precision_config, __VA_ARGS__)
#define MOEPAGE_REMAP_CONFIG(...) MOEPAGE_INIT(moepage_remap_config, __VA_ARGS__)
#define MOEPAGE_RIGHTSIZE(...) MOEPAGE_INIT(moepage_rightsize, __VA_ARGS__)
#define MOEPAGE_TRACE_INFO(...) MOEPAGE_INIT(moepage_trace_info, __VA_ARGS__)
#define MOEPAGE_TRACE_STEP(...) MOEPAGE_INIT(moepage_trace_step, __VA_ARGS__)

#endif /* MOEPAGE_H */
