/* dense.h — the part of a model outside its routed experts, as a table of operations: decoder.c
 * determines the order, a table the implementation. dense_host.c has the CPU's, examples/cuda a
 * GPU's.
 *
 * Activations are rows of floats in memory from `take`: where the model runs, which the CPU may not
 * be able to read. Operations may run later, in the order of the calls; `fetch` waits for them. A
 * failure is kept, and reported by `begin` and `fetch`. */
#ifndef EXAMPLE_DENSE_H
#define EXAMPLE_DENSE_H

#include "common/config.h"
#include "common/weights.h"
#include "common/workers.h"
#include "moepage.h"

typedef struct dense dense;

/* One sequence's share of a step. */
typedef struct dense_sequence {
    const uint32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    uint64_t position;      /* of the first token */
    const uint32_t *blocks; /* [n_blocks] of its KV, including those of the step's tokens */
    uint64_t n_blocks;
} dense_sequence;

/* The rows of a step, sequence by sequence. Valid until the next step begins. */
typedef struct dense_step {
    const dense_sequence *sequences; /* [n_sequences] */
    uint32_t n_sequences;
    uint32_t n_rows;
    const float *cosines, *sines; /* [n_rows][rope.dims / 2] angles of the rows' positions */
} dense_step;

/* Heads of one layer's attention. */
typedef struct dense_attention {
    const moepage_kv_layer_view *view;
    uint32_t window;    /* positions that a row sees, itself included */
    const float *sinks; /* [heads] scores of a position without value; NULL = none. Host only */
} dense_attention;

typedef struct dense_ops {
    /* Allocates zeroed rows; NULL with a line. `close` frees everything taken. */
    float *(*take)(dense *d, size_t rows, size_t width);

    /* Writes the embeddings of the step's tokens to `hidden`. */
    int (*begin)(dense *d, const dense_step *step, float *hidden);

    /* out[r] = norm(x[r]) for n rows of `width`, in place when out == x; `layer_norm` centres. */
    void (*norm)(dense *d, const float *x, uint32_t n, uint32_t width, const norm_weights *norm,
                 bool layer_norm, float *out);
    /* y[r] = w x[r] + bias for n rows; bias may be NULL. */
    void (*linear)(dense *d, const float *x, uint32_t n, const matrix *w, const float *bias,
                   float *y);
    /* Rounds x[i] to BF16 in BF16 math; does nothing otherwise. */
    void (*round)(dense *d, float *x, size_t n);
    void (*clip)(dense *d, float *x, size_t n, float limit);
    /* Rotates elements of the step's rows of `heads` heads of `width` to their positions: rope.dims of
     * each head, from `first` on. */
    void (*turn)(dense *d, float *x, uint32_t heads, uint32_t width, uint32_t first);
    /* Multiplies heads by the latent attention's matrices. Host only. absorb: q [rows][heads][plain +
     * turned] to queries of latents [rows][heads][rank + turned]. expand: sums of latents
     * [rows][heads][rank] to those of values [rows][heads][value]. */
    void (*absorb)(dense *d, const float *q, uint32_t n, const head_matrices *keys, float *out);
    void (*expand)(dense *d, const float *x, uint32_t n, const head_matrices *values, float *out);
    /* Writes the step's keys and values [rows][kv_heads][head_dim] to their blocks; of latents, k
     * [rows][turned] and v [rows][rank]. */
    void (*store)(dense *d, const dense_attention *a, const float *k, const float *v);
    /* Computes causal attention of the step's rows, q [rows][heads][head_dim] and out
     * [rows][heads][value_dim]. */
    void (*attend)(dense *d, const dense_attention *a, const float *q, float *out);
    /* gate[i] = silu(gate[i]) * up[i] */
    void (*swiglu)(dense *d, float *gate, const float *up, size_t n);
    /* x[r] *= sigmoid(gate[r]) for n rows of `width`. */
    void (*scale)(dense *d, float *x, uint32_t n, uint32_t width, const float *gate);
    void (*add)(dense *d, float *x, const float *added, size_t n);

    /* Waits for all earlier operations and returns n values from `x` where the CPU can read and
     * change them; valid until the next call. NULL with a line if anything failed. */
    float *(*fetch)(dense *d, float *x, size_t n);

    void (*close)(dense *d);
} dense_ops;

/* The common part of every table's state. */
struct dense {
    const dense_ops *ops;
    const model_weights *weights; /* in the form that the operations take */
    void *stream;                 /* for calls of the library; NULL on the host */
    uint64_t device_bytes;        /* device memory outside the library: weights, activations */
    const char *products;         /* name of the matrix products' implementation, for the report */
};

/* The type of fail() in fail.h, with which a plug-in reports errors. */
typedef int dense_fail_fn(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct dense_config {
    moepage_device *device; /* host: runs the products; borrowed */
    const model_config *model;
    const model_weights *weights;
    uint32_t math;          /* MOEPAGE_MATH_* */
    workers *workers;       /* host: borrowed, with dense_host_scratch floats per thread */
    uint32_t max_tokens;    /* rows of the largest step */
    uint64_t max_positions; /* of the longest sequence */
    uint64_t max_blocks;    /* KV blocks of all sequences of a step */
    uint32_t block_tokens;
    uint64_t max_fetch; /* values of the largest fetch */
    uint32_t ordinal;   /* CUDA: number of the GPU */
    bool cublas;        /* CUDA: use cuBLAS if it is found */
    dense_fail_fn *fail;
} dense_config;

/* Opens the operations on this machine's CPU. One line and RUN_FAILED on failure. */
size_t dense_host_scratch(uint64_t max_positions, uint32_t block_tokens);
int dense_host_open(const dense_config *config, dense **out);

/* ---- The plug-in for CUDA --------------------------------------------------------------- */

#define DENSE_CUDA_FILE "libmoepage-generate-cuda.so"
#define DENSE_CUDA_SYMBOL "dense_cuda_plugin"

/* The build of tool and plug-in; a plug-in with a different one is refused. */
#define DENSE_CUDA_BUILD "moepage-generate dense 5"

typedef struct dense_plugin {
    const char *build; /* DENSE_CUDA_BUILD */
    uint32_t config_bytes, dense_bytes, ops_bytes;
    int (*open)(const dense_config *config, dense **out);
} dense_plugin;

/* Returns true if the plug-in runs devices of this name; *ordinal is then set. */
bool dense_is_cuda(const char *device, uint32_t *ordinal);

/* Finds the plug-in, beside the tool or in the dynamic linker's path; it stays loaded. If it is
 * missing, one line that says what is missing and RUN_REFUSED. */
int dense_cuda_find(const char *device, const dense_plugin **out);

#endif
