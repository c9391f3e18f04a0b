/* kernels.h — the operations that every device implements, with their argument structs.
 *
 * All are deterministic: each output element is one sum in one fixed order, a function of its own
 * row and weights alone. Which rows are computed together, by how many threads, and in how many
 * launches never changes a bit; but for EXPERTS with MATH_BF16_FAST, which says what may. */
#ifndef MP_DEVICE_KERNELS_H
#define MP_DEVICE_KERNELS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/activation.h"
#include "codec/blocks.h"
#include "codec/quant.h"

typedef enum mp_kernel {
    MP_KERNEL_CONVERT,
    MP_KERNEL_EXPERTS,
    MP_KERNEL_COMBINE,
    MP_KERNEL_DECODE,
    MP_KERNEL_LINEAR, /* with MP_CAP_ON_HOST only */
    MP_KERNEL_COUNT
} mp_kernel;

/* Operands start at multiples of this many bytes. */
#define MP_OPERAND_ALIGN 16u

/* Activations enter: out[t][h] = x[t][h] as the math's operand type (F32 exactly, or BF16 rounded
 * to nearest even). */
typedef struct mp_kernel_convert_args {
    const void *x; /* [n_tokens][hidden], rows x_stride elements apart */
    uint64_t x_stride;
    uint32_t x_dtype; /* MOEPAGE_DTYPE_F32, _F16 or _BF16 */
    uint32_t math;    /* MOEPAGE_MATH_*: FP32 writes float, the others BF16; INT8 rows of
                      device/host_int8.h */
    uint32_t n_tokens;
    uint32_t hidden;
    void *out; /* [n_tokens][hidden] dense */
} mp_kernel_convert_args;

/* The matrices of an expert. */
enum { MP_GATE, MP_UP, MP_DOWN, MP_MATRICES };

/* One expert's share of a launch. Weights are row-major in the launch's dtype of their matrix, or
 * integers in its `form`, packed row by row. */
typedef struct mp_ffn_expert {
    const void *gate;      /* [I, H] */
    const void *up;        /* [I, H] */
    const void *down;      /* [H, I] */
    const void *gate_bias; /* [I], [I], [H] in the launch's bias_dtype, or NULL */
    const void *up_bias;
    const void *down_bias;
    const void
        *gate_scale; /* block scales of FP8 weights, the groups' scales of integers (FP16, row
                               by row), else NULL */
    const void *up_scale;
    const void *down_scale;
    uint32_t first_row; /* its rows are rows[first_row .. first_row + n_rows) */
    uint32_t n_rows;
} mp_ffn_expert;

/* Experts: for each row r of expert e, with t = rows[r] / top_k and the launch's activation f,
 *   partial[rows[r]] = down_e( f(gate_e x_t + b, up_e x_t + b) ) + b.
 * Math FP32: weights widened exactly, blocks decoded, every dot product accumulated in FP32.
 * Math BF16: x and the values of f are BF16 operands, products accumulated in FP32. Weights
 * that are not BF16 are rounded to BF16, integers' and blocks' values too.
 * Math BF16_FAST: the same operands and accumulators. In which order a row's sums are taken may depend
 * on how many rows its expert has in this launch, and on the device's libraries. Devices that know no
 * faster way, CUDA's without `scratch` among them, run BF16.
 * Math INT8, with MP_CAP_INT8 only: matrices in blocks meet x and the SwiGLU product in 8 bits, as
 * docs/host-kernels.md says; the others are those of BF16. */
typedef struct mp_kernel_experts_args {
    const void *x;                /* [tokens][H] from MP_KERNEL_CONVERT, or as that makes it */
    const mp_ffn_expert *experts; /* [host] [n_experts] */
    const uint32_t *rows;         /* [host] token * top_k + k */
    void *inner;                  /* [scratch_rows][I] operand type of the math: row first_row + i
                                     of an expert uses line first_row + i - inner_base */
    float *partial;               /* [tokens * top_k][H] */
    uint32_t inner_base;
    uint32_t n_experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t dtypes[MP_MATRICES]; /* of weights: F32, F16, BF16, F8_E4M3, or blocks
                                     (codec/blocks.h), rows being whole ones */
    uint32_t bias_dtype;          /* F32, F16 or BF16; experts of F8_E4M3 have no biases */
    uint32_t math;
    mp_block_scale scale;
    mp_activation activation; /* its kind is not OTHER */
    uint32_t form;    /* of the matrices of all its experts: MOEPAGE_FORM_INT8, _INT4 or _INT2, each
                       weight its value by codec/quant.h, exactly; else they are `dtypes` */
    uint32_t group;   /* of integers: weights per scale, 32, 64 or 128 */
    uint32_t on_host; /* 1: the experts lie in host memory, and its processor computes them. With
                         MP_CAP_ON_HOST only */
    void *scratch;    /* for BF16_FAST, of this launch alone until its tick: device memory, or NULL;
                      device/fast_scratch.h says how much is of use */
    uint64_t scratch_bytes;
} mp_kernel_experts_args;

/* Initialises dtypes and bias_dtype for experts of one dtype. */
#define MP_ONE_DTYPE(dtype) .dtypes = {(dtype), (dtype), (dtype)}, .bias_dtype = (dtype)

/* Returns the one dtype of all matrices; NONE if they differ. */
static inline uint32_t mp_experts_dtype(const mp_kernel_experts_args *args)
{
    const uint32_t *dtypes = args->dtypes;
    const bool same = dtypes[MP_GATE] == dtypes[MP_UP] && dtypes[MP_UP] == dtypes[MP_DOWN];
    return same ? dtypes[MP_GATE] : MOEPAGE_DTYPE_NONE;
}

/* Results leave: y[t] = (accumulate ? y[t] : 0) + sum over k of weights[t][k] * partial[t][k],
 * summed in that order in FP32 by fused multiply-adds from zero; slots whose id is negative are
 * skipped. */
typedef struct mp_kernel_combine_args {
    const float *partial; /* [n_tokens * top_k][hidden] */
    const float *weights; /* [host] [n_tokens][top_k] */
    const int32_t *ids;   /* [host] [n_tokens][top_k] */
    void *y;              /* rows y_stride elements apart */
    uint64_t y_stride;
    uint32_t y_dtype;
    uint32_t n_tokens;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t accumulate;
} mp_kernel_combine_args;

/* One tensor to be brought into a slot. */
typedef struct mp_decode_job {
    const void *src; /* device memory, MP_EXPH_ALIGN-aligned */
    uint64_t src_bytes;
    void *dst; /* device memory */
    uint64_t elements;
    uint32_t form;  /* MOEPAGE_FORM_EXPH, or _DENSE: src_bytes are copied as they are */
    uint32_t dtype; /* of EXPH */
} mp_decode_job;

/* Decodes tensors, many experts' in one launch. The streams have been checked on the host
 * (mp_exph_check): their bytes are trusted to be well-formed, never to be in range, so that nothing
 * outside src and dst is touched whatever they hold. A job whose transfer has failed is skipped:
 * skips[i] is the result of the one that job i depends on; `skips` is NULL if there is none. A result counts as it is
 * once the streams that the launch waits for have settled. The table, and what it points to, are host memory, and
 * live until the tick completes. */
typedef struct mp_kernel_decode_args {
    const mp_decode_job *jobs;           /* [host] [n_jobs] */
    const _Atomic int32_t *const *skips; /* [n_jobs] */
    uint32_t n_jobs;
} mp_kernel_decode_args;

static inline bool mp_decode_skips(const mp_kernel_decode_args *args, uint32_t job)
{
    return args->skips && atomic_load(args->skips[job]);
}

/* A dense product: out[r] = w x[r] + bias. Its operands and the order of its sums are those of one
 * matrix of EXPERTS. Math FP32 or BF16; INT8 where w is in blocks. n_rows, n_in and n_out are at most
 * 2^31 - 1. */
typedef struct mp_kernel_linear_args {
    const void *x;      /* [n_rows][n_in] operand type of the math */
    const void *w;      /* [n_out][n_in] */
    const void *bias;   /* [n_out], or NULL */
    const void *scales; /* of F8_E4M3's blocks, or NULL */
    float *out;         /* [n_rows][n_out] */
    uint32_t n_rows;
    uint32_t n_in;
    uint32_t n_out;
    uint32_t dtype;      /* of w: F32, F16, BF16, F8_E4M3, or blocks, rows being whole ones */
    uint32_t bias_dtype; /* F32, F16 or BF16 */
    uint32_t math;
    mp_block_scale scale;
} mp_kernel_linear_args;

/* The math of products with one matrix on the host, which knows no faster BF16, and multiplies in integers
 * only what is in blocks. */
static inline uint32_t mp_matrix_math(uint32_t math, uint32_t dtype)
{
    const bool rounded = math == MOEPAGE_MATH_INT8 && !mp_block_format_of(dtype);
    return rounded || math == MOEPAGE_MATH_BF16_FAST ? MOEPAGE_MATH_BF16 : math;
}

/* The biggest argument struct: queues hold kernels by value. */
typedef union mp_kernel_args {
    mp_kernel_convert_args convert;
    mp_kernel_experts_args experts;
    mp_kernel_combine_args combine;
    mp_kernel_decode_args decode;
    mp_kernel_linear_args linear;
} mp_kernel_args;

static inline void mp_kernel_args_copy(mp_kernel_args *to, mp_kernel kernel, const void *args)
{
    switch (kernel) {
    case MP_KERNEL_CONVERT: to->convert = *(const mp_kernel_convert_args *)args; break;
    case MP_KERNEL_EXPERTS: to->experts = *(const mp_kernel_experts_args *)args; break;
    case MP_KERNEL_COMBINE: to->combine = *(const mp_kernel_combine_args *)args; break;
    case MP_KERNEL_DECODE: to->decode = *(const mp_kernel_decode_args *)args; break;
    case MP_KERNEL_LINEAR: to->linear = *(const mp_kernel_linear_args *)args; break;
    case MP_KERNEL_COUNT: break;
    }
}

#endif
