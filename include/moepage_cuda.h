/* moepage_cuda.h — what libmoepage does on CUDA devices besides moepage.h.
 *
 * Needs no CUDA header: a `void *stream` is a cudaStream_t (or CUstream) of the device's primary
 * context, NULL the default stream. That context need not be current, and the caller's is left as
 * it was. Functions that take a stream submit work to it and return; nothing here synchronises it
 * with the CPU. Those marked [capture] may be called while it is being captured into a graph, and
 * the graph replayed any number of times.
 *
 * Pointers to what GPUs read and write say so ("device memory"); structs themselves are the
 * host's. On a device that is not CUDA, functions that take a device or a session return
 * UNSUPPORTED. All else is as moepage.h says: statuses, struct_size, thread classes, ownership.
 * Since version 0.3. */
#ifndef MOEPAGE_CUDA_H
#define MOEPAGE_CUDA_H

#include "moepage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== CUDA ================================================================================= */

/* What only CUDA devices have. A host that runs its experts through sessions needs none of it. */

/* ---- The device ------------------------------------------------------------------------- */

/* How the arena's memory was allocated. */
enum {
    MOEPAGE_CUDA_ARENA_VMM = 1,   /* handles of handle_bytes, mapped once: views are possible */
    MOEPAGE_CUDA_ARENA_MALLOC = 2 /* one cudaMalloc: the driver has no VMM, or refused it */
};

typedef struct moepage_cuda_info {
    uint32_t struct_size;
    uint32_t ordinal;       /* N of "cuda:N" */
    uint32_t compute_major; /* compute capability, 9.0 = 9 and 0 */
    uint32_t compute_minor;
    uint32_t multiprocessors;
    uint32_t driver_version;  /* 12040 = 12.4 */
    uint32_t toolkit_version; /* that compiled the kernels, in the same form; 0 = not known */
    uint32_t cublas_version;  /* as cublasGetVersion gives it, 130100 = 13.1.0; 0 = not loaded */
    uint32_t arena_kind;      /* MOEPAGE_CUDA_ARENA_* */
    uint32_t copy_engines;    /* copies that the GPU can run at once, beside kernels */
    int32_t numa_node;        /* closest to the device; -1 = unknown */
    uint32_t poisoned;        /* 1: a sticky error; every call returns MOEPAGE_E_DEVICE */
    uint64_t handle_bytes;    /* of one VMM handle of the arena; 0 without VMM */
    uint64_t handle_ns;    /* measured: the average time to map one handle and give access to it */
    uint64_t device_bytes; /* memory of the whole device */
    uint64_t driver_calls; /* calls that took or gave memory since the device was opened */
    char name[64];         /* the GPU's, NUL-terminated */
} moepage_cuda_info;

/* Fills *info (its struct_size set by the caller); also of a poisoned device. [any] */
MOEPAGE_API moepage_status moepage_cuda_get_info(moepage_device *device, moepage_cuda_info *info);

/* ---- Kernels ---------------------------------------------------------------------------- */

/* Each function takes a struct, checks what the CPU can check of it (ARGUMENT, with a sentence),
 * and submits its work to `stream`; UNSUPPORTED on a device that is not CUDA. The struct is copied.
 * It points to device memory, which the work reads and writes when the stream comes to it: the
 * memory must still be there then, and for every replay of a graph. Arrays of numbers are aligned
 * to their elements, and to more where a field says so. Inputs and outputs must not overlap. If
 * there is nothing to do (0 jobs, rows or tokens), nothing is submitted and the call returns
 * MOEPAGE_OK; pointers may then be NULL. `reserved` fields are 0.
 *
 * Results depend neither on the GPU nor on what else runs: sums are taken in an order that is fixed
 * by the sizes that each comment names. */

/* One exph stream (docs/format-exph.md) to decode. This is the layout of the
 * device's job tables. */
typedef struct moepage_cuda_decode_job {
    const void *src; /* device memory, 64-byte aligned */
    uint64_t src_bytes;
    void *dst; /* device memory, 16-byte aligned */
    uint64_t elements;
    uint32_t form;  /* MOEPAGE_FORM_EXPH, or _DENSE: a copy */
    uint32_t dtype; /* of EXPH: BF16, F16, F8_E4M3 or F8_E5M2 */
} moepage_cuda_decode_job;

typedef struct moepage_cuda_decode {
    uint32_t struct_size;
    uint32_t n_jobs;
    const moepage_cuda_decode_job *jobs; /* [n_jobs] device memory, 8-byte aligned */
    uint64_t total_elements; /* of all jobs, or more: sizes the launch; 0 = fill the device */
} moepage_cuda_decode;

/* Decodes many tensors in one launch. Streams are trusted to be well-formed, which
 * moepage_exph_decode checks on the host; whatever they hold, nothing outside src and dst is
 * touched. [any] [capture] */
MOEPAGE_API moepage_status moepage_cuda_exph_decode(moepage_device *device,
                                                    const moepage_cuda_decode *args, void *stream);

/* Converts weights to F32, F16 or BF16, rounded to nearest even.
 *
 * INT8, INT4, INT2: a matrix of group-quantised rows as docs/format-moepack.md lays a part out;
 * each value, its integer times its group's scale (on the four levels of INT2 its integer plus 1/2 times
 * the scale's magnitude), is exact before it is rounded. DENSE of F8_E4M3
 * (the variant without infinities): the value times scales[r / block_rows][c / group], that product
 * rounded to FP32 first. A NaN stays a NaN, of no particular payload. */
typedef struct moepage_cuda_dequant {
    uint32_t struct_size;
    uint32_t form; /* MOEPAGE_FORM_INT8, _INT4, _INT2; or _DENSE with src_dtype F8_E4M3 */
    /* Columns per scale: 32, 64 or 128; of DENSE with scales any from 1 on: columns of a block. */
    uint32_t group;
    uint32_t src_dtype;   /* of DENSE: F8_E4M3; else 0 */
    uint32_t dst_dtype;   /* F32, F16 or BF16 */
    uint32_t scale_dtype; /* of DENSE: F32 or BF16; NONE = no scales; else 0 */
    uint64_t rows;        /* 1 .. 2^31 - 1, and rows * columns at most 2^34 */
    uint64_t columns;     /* 1 .. 2^31 - 1 */
    uint64_t block_rows;  /* of DENSE with scales: rows of a scale's block, 1 .. 2^31 - 1; else 0 */
    const void *src;      /* device memory; integers: 16-byte aligned */
    /* Of DENSE with scales: [ceil(rows / block_rows)][ceil(columns / group)]; else NULL. */
    const void *scales;
    void *dst; /* [rows][columns]; fastest when 16-byte aligned */
} moepage_cuda_dequant;

/* [any] [capture] */
MOEPAGE_API moepage_status moepage_cuda_dequantise(moepage_device *device,
                                                   const moepage_cuda_dequant *args, void *stream);

/* y[t][r] = sum over c of value(w[r][c]) * x[t][c], straight from the quantised form: for a few
 * tokens the weights are read once and never written. Fused multiply-adds in FP32, in an order that
 * depends on form and columns alone: a token's results are the same whatever tokens are with it.
 * y is rounded to nearest even. */
typedef struct moepage_cuda_gemv {
    uint32_t struct_size;
    uint32_t form;     /* MOEPAGE_FORM_INT8, _INT4 or _INT2 */
    uint32_t group;    /* columns per scale: 32, 64 or 128 */
    uint32_t dtype;    /* of x and y: F32, F16 or BF16 */
    uint32_t n_tokens; /* at most 16; 0 = nothing to do */
    uint32_t reserved;
    uint64_t rows;    /* 1 .. 2^31 - 1 */
    uint64_t columns; /* 1 .. 2^31 - 1 */
    const void *w;    /* as docs/format-moepack.md lays the form out, 16-byte aligned */
    const void *x;    /* [n_tokens][columns] */
    void *y;          /* [n_tokens][rows] */
} moepage_cuda_gemv;

/* [any] [capture] */
MOEPAGE_API moepage_status moepage_cuda_gemv_run(moepage_device *device,
                                                 const moepage_cuda_gemv *args, void *stream);

/* Moves rows by index: GATHER out[i] = in[index[i]]; SCATTER out[index[i]] = in[i]. An index that
 * is negative, or not below `limit`, is skipped: GATHER leaves its row of `out` as it is, SCATTER
 * writes its row nowhere. If two rows are scattered to one place, it gets bytes of either. */
typedef struct moepage_cuda_rows {
    uint32_t struct_size;
    uint32_t n;           /* rows to move; 0 = nothing to do */
    uint32_t limit;       /* rows on the indexed side, at most 2^31 - 1 */
    uint32_t row_bytes;   /* a multiple of 2, not 0 */
    const int32_t *index; /* [n] device memory */
    const void *in;       /* aligned, like out and both strides, to 2 bytes; fastest to 16 */
    void *out;
    uint64_t in_stride;  /* from row to row in bytes, at least row_bytes; 0 = row_bytes */
    uint64_t out_stride; /* likewise */
} moepage_cuda_rows;

/* [any] [capture] */
MOEPAGE_API moepage_status moepage_cuda_gather(moepage_device *device,
                                               const moepage_cuda_rows *args, void *stream);
MOEPAGE_API moepage_status moepage_cuda_scatter(moepage_device *device,
                                                const moepage_cuda_rows *args, void *stream);

/* Turns router logits into routing. The order of choices: larger logits first, NaN last, equal ones
 * by lower id (so that ids are valid and distinct whatever the logits are). Weights are computed in
 * FP32, in an order that depends on `experts` alone: a logit of minus infinity has weight 0, and
 * NaN and plus infinity turn the sums that they are in into NaN. */
enum {
    /* Softmax over all experts; the top k as they are. */
    MOEPAGE_CUDA_GATE_SOFTMAX_ALL = 0,
    /* The same, with the k weights scaled to sum to 1: the same bits as SOFTMAX_TOP. */
    MOEPAGE_CUDA_GATE_SOFTMAX_ALL_NORM = 1,
    /* The top k of the logits, softmax over these. */
    MOEPAGE_CUDA_GATE_SOFTMAX_TOP = 2,
    /* The top k of sigmoid + bias; without bias, of the logits. Weights: their sigmoids without the
     * bias, divided by (their sum + 1e-20). */
    MOEPAGE_CUDA_GATE_SIGMOID_NORM = 3
};

typedef struct moepage_cuda_topk {
    uint32_t struct_size;
    uint32_t gate;      /* MOEPAGE_CUDA_GATE_* */
    uint32_t dtype;     /* of logits: F32, F16 or BF16 */
    uint32_t n_tokens;  /* 0 = nothing to do */
    uint32_t experts;   /* 1..1024 */
    uint32_t top_k;     /* 1..min(experts, 32) */
    const void *logits; /* [n_tokens][experts] */
    const float *bias;  /* [experts] of SIGMOID_NORM, or NULL */
    float scale;        /* of the weights at the end, finite; 0 = 1 */
    uint32_t reserved;
    int32_t *ids;   /* [n_tokens][top_k], in the order of choices */
    float *weights; /* [n_tokens][top_k] */
} moepage_cuda_topk;

/* [any] [capture] */
MOEPAGE_API moepage_status moepage_cuda_topk_run(moepage_device *device,
                                                 const moepage_cuda_topk *args, void *stream);

/* Batch-level remapping (LYNX section 3 and appendix A) of a decode batch: the same k choices per
 * token, of fewer distinct experts in the batch. It changes outputs. With z a token's logits, and
 * choices and their order as moepage_cuda_topk_run's:
 *
 *   bin     for each of a token's own top k: max(-beta, ceil(alpha * (z_e - z_max)));
 *   score   of an expert: the sum over the batch's tokens, in order, of base^bin where it is among
 *           a token's own top k; base^0 = 1, base^-(i + 1) = base^-i / base, in FP32. Experts in
 *           `preferred` get `bonus` more;
 *   prune   z' = z + score. The batch keeps each token's first choice by z, and the union of all
 *           tokens' top k by z'. (The paper leaves this threshold open.) Of these, with `keep`: all
 *           first choices, and of the others those with the best scores (then those preferred, then
 *           lower ids) until there are `keep`;
 *   remap   each token's top k among the experts kept, by z, and their weights, as the gate says
 *           for a router that has no other experts.
 *
 * Where a gate has a bias, z' is sigmoid(z) + bias + score; bins are of z all the same. Smaller
 * alpha and beta make bins coarser, so that popular experts score more and as a rule fewer are
 * kept. A batch of one token is left unchanged: it is moepage_cuda_topk_run's. */
typedef struct moepage_cuda_remap {
    uint32_t struct_size;
    uint32_t gate;     /* MOEPAGE_CUDA_GATE_* */
    uint32_t dtype;    /* of logits: F32, F16 or BF16 */
    uint32_t n_tokens; /* at most 1024; 0 = nothing to do */
    uint32_t experts;  /* 1..1024 */
    uint32_t top_k;    /* 1..min(experts, 32) */
    /* Most experts of the batch, at least top_k (first choices are kept even past it); 0
     * = no limit. */
    uint32_t keep;
    float alpha;              /* > 0: bins are 1 / alpha wide */
    float beta;               /* the last bin: a whole number, 1..63, at most 3 * alpha */
    float base;               /* at least 1; 0 = n_tokens, as in the paper */
    float bonus;              /* at least 0; 0 = `preferred` breaks ties of score alone */
    float scale;              /* of the weights at the end, finite; 0 = 1 */
    const void *logits;       /* [n_tokens][experts] */
    const float *bias;        /* [experts] of SIGMOID_NORM, or NULL */
    const uint8_t *preferred; /* [experts] not 0: on the device already, say; or NULL */
    int32_t *ids;             /* [n_tokens][top_k] */
    float *weights;           /* [n_tokens][top_k] */
    /* moepage_cuda_remap_scratch bytes, 64-byte aligned, of this call alone until its
     * work is done. */
    void *scratch;
} moepage_cuda_remap;

/* Bytes of scratch that moepage_cuda_remap_run needs; 0 for more than 1024 tokens
 * or experts. [any] */
MOEPAGE_API uint64_t moepage_cuda_remap_scratch(uint32_t n_tokens, uint32_t experts);

/* [any] [capture] */
MOEPAGE_API moepage_status moepage_cuda_remap_run(moepage_device *device,
                                                  const moepage_cuda_remap *args, void *stream);

/* ---- Layers that the device runs by itself ------------------------------------------------ */

/* A path: routed layers whose ids and weights never leave the device. A kernel looks the routed
 * experts up in a slot map on the device; if all are resident, the experts run without any part of
 * the CPU's. Otherwise the device leaves a message in a mailbox and waits; a library thread reads
 * it, loads the missing experts and answers. All of it may be captured: a whole decode step replays
 * as one graph while experts come and go. */
typedef struct moepage_cuda_path moepage_cuda_path;

typedef struct moepage_cuda_path_config {
    uint32_t struct_size;
    uint32_t max_tokens; /* per call, at most the session's; 0 = the session's */
    /* Most experts that the map holds at once, at most the session's share of the pool; 0 = all of
     * it. Other sessions divide the rest. */
    uint32_t slots;
    /* How long the device waits for missing experts before it gives a layer up; 0 = 10000. */
    uint32_t timeout_ms;
} moepage_cuda_path_config;

typedef struct moepage_cuda_path_stats {
    uint32_t struct_size;
    int32_t status; /* MOEPAGE_OK, or why a layer was given up; moepage_cuda_path_check says more */
    uint64_t layers;    /* run to their end */
    uint64_t all_hit;   /* of these, without involving the CPU */
    uint64_t routed;    /* distinct experts */
    uint64_t misses;    /* of these, not resident */
    uint64_t evictions; /* experts that gave up a slot for one of these */
} moepage_cuda_path_stats;

typedef struct moepage_cuda_layer {
    uint32_t struct_size;
    uint32_t layer;       /* MoE layer */
    uint32_t n_tokens;    /* 1..max_tokens */
    uint32_t top_k;       /* 1..the session's max_top_k */
    uint32_t dtype;       /* of x and y: F32, F16 or BF16 */
    uint32_t accumulate;  /* 1: add to what y holds */
    const int32_t *ids;   /* [n_tokens][top_k] device memory; MOEPAGE_NO_EXPERT is skipped */
    const float *weights; /* [n_tokens][top_k] device memory */
    const void *x;        /* [n_tokens][hidden] device memory, rows x_stride elements apart */
    void *y;              /* [n_tokens][hidden] device memory, rows y_stride elements apart */
    uint64_t x_stride;    /* at least hidden; 0 = hidden */
    uint64_t y_stride;    /* likewise */
} moepage_cuda_layer;

/* Device bytes that a path takes from the workspace, besides its session's (which
 * moepage_session_workspace gives). Either config may be NULL. [any] */
MOEPAGE_API moepage_status moepage_cuda_path_workspace(const moepage_model *model,
                                                       const moepage_session_config *session,
                                                       const moepage_cuda_path_config *config,
                                                       uint64_t *bytes);

/* Creates a path, which takes a session over: until the path is destroyed, the session opens no
 * step and cannot be destroyed; hints go on working. `config` NULL = the defaults. The session's
 * pool must be on one CUDA device. The layers of a path run one after the other: the caller orders
 * the streams that they are submitted to. Work of the pool's other sessions must not have to wait
 * for a layer of the path that has yet to run. BUDGET when a layer's worst case, min(max_tokens *
 * max_top_k, experts), does not fit the slots, or the path's memory the workspace; STATE while a
 * step is open, or another path has the session; UNSUPPORTED for experts that the library cannot
 * run, for more than 1024 of them per layer, and for a session that computes in low versions. [set-up] */
MOEPAGE_API moepage_status moepage_cuda_path_create(moepage_session *session,
                                                    const moepage_cuda_path_config *config,
                                                    moepage_cuda_path **out);

/* Destroys a path after waiting for loads under way. Its layers must have completed, those in
 * graphs included, and no graph with them may be launched again. NULL is a no-op. [one] */
MOEPAGE_API moepage_status moepage_cuda_path_destroy(moepage_cuda_path *path);

/* Runs a layer's routed experts: same bits as moepage_session_ffn (with MATH_BF16_FAST: those of
 * MATH_BF16). A layer that is given up fills y with NaN, and so do all later ones until
 * moepage_cuda_path_check has been called. A refused call may have submitted part of the layer: y
 * is then undefined. [one] [capture] */
MOEPAGE_API moepage_status moepage_cuda_path_layer(moepage_cuda_path *path,
                                                   const moepage_cuda_layer *layer, void *stream);

/* Reports what has happened so far (`stats` may be NULL) and, if a layer was given up since the
 * last call, returns the reason: the status of its load; ARGUMENT for an id out of range; BUSY if
 * time ran out, or if there was no slot. Layers submitted from then on run again; after a timeout,
 * the next one first waits for the experts that the earlier one waited for, no longer than that
 * did. Waits for nothing itself. The device tells its counts with the model's last layer, with a layer
 * that does not come behind the one before it, and with a miss: between them they are those of the
 * last time. [one] */
MOEPAGE_API moepage_status moepage_cuda_path_check(moepage_cuda_path *path,
                                                   moepage_cuda_path_stats *stats);

#ifdef __cplusplus
}
#endif

/* ---- Initialisers ----------------------------------------------------------------------- */

/* As in moepage.h. Since 0.7. */
#define MOEPAGE_CUDA_INFO(...) MOEPAGE_INIT(moepage_cuda_info, __VA_ARGS__)
#define MOEPAGE_CUDA_DECODE(...) MOEPAGE_INIT(moepage_cuda_decode, __VA_ARGS__)
#define MOEPAGE_CUDA_DEQUANT(...) MOEPAGE_INIT(moepage_cuda_dequant, __VA_ARGS__)
#define MOEPAGE_CUDA_GEMV(...) MOEPAGE_INIT(moepage_cuda_gemv, __VA_ARGS__)
#define MOEPAGE_CUDA_ROWS(...) MOEPAGE_INIT(moepage_cuda_rows, __VA_ARGS__)
#define MOEPAGE_CUDA_TOPK(...) MOEPAGE_INIT(moepage_cuda_topk, __VA_ARGS__)
#define MOEPAGE_CUDA_REMAP(...) MOEPAGE_INIT(moepage_cuda_remap, __VA_ARGS__)
#define MOEPAGE_CUDA_PATH_CONFIG(...) MOEPAGE_INIT(moepage_cuda_path_config, __VA_ARGS__)
#define MOEPAGE_CUDA_PATH_STATS(...) MOEPAGE_INIT(moepage_cuda_path_stats, __VA_ARGS__)
#define MOEPAGE_CUDA_LAYER(...) MOEPAGE_INIT(moepage_cuda_layer, __VA_ARGS__)

#endif /* MOEPAGE_CUDA_H */
