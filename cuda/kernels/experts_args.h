/* experts_args.h — the arguments of the expert kernels: a table in device memory, and everything
 * else by value.
 *
 * Two launches in order run a layer's experts: one with `down` 0 (gate, up and SwiGLU into `inner`)
 * and one with `down` 1 (into `partial`). They learn from the table, on the device, how much work
 * there is. An earlier kernel on the stream may therefore write the table, and any grid is correct:
 * blocks take work until none is left. A row's bits do not depend on any of this, nor on which of
 * the forms below runs it. */
#ifndef MP_KERNELS_EXPERTS_ARGS_H
#define MP_KERNELS_EXPERTS_ARGS_H

#include "scalar.h"

/* An entry of the table, laid out as mp_ffn_expert of device/kernels.h, which
 * explains the fields. */
typedef struct mp_gpu_expert {
    const void *gate;
    const void *up;
    const void *down;
    const void *gate_bias;
    const void *up_bias;
    const void *down_bias;
    const void *gate_scale;
    const void *up_scale;
    const void *down_scale;
    uint32_t first_row; /* its rows are rows[first_row .. first_row + n_rows) */
    uint32_t n_rows;    /* 0: none, and the rest of the entry means nothing */
} mp_gpu_expert;

typedef struct mp_gpu_experts_args {
    const void *x;                /* [tokens][hidden]: float with FP32 math, else BF16 */
    const mp_gpu_expert *experts; /* device memory */
    const uint32_t *rows;         /* device memory: token * top_k + k */
    /* Device memory: how many entries the table has, at most n_experts; NULL: so many. */
    const uint32_t *n_experts_at;
    /* [rows][intermediate] operands: row first_row + i of an expert uses line first_row +
     * i - inner_base. */
    void *inner;
    float *partial;     /* [tokens * top_k][hidden] */
    uint32_t n_experts; /* that the table has room for */
    uint32_t inner_base;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t dtype;       /* of weights: MP_SCALAR_F32, _F16, _BF16, MP_EXPERTS_F8 or MP_CODED_* */
    uint32_t bias_dtype;  /* MP_SCALAR_F32, _F16 or _BF16 */
    uint32_t group_shift; /* log2 of an integer's group; of a block of W4 and NVFP4G */
    uint32_t scale_dtype; /* block scales of FP8 weights: MP_SCALAR_F32, _BF16 or _NONE */
    uint32_t scale_rows;
    uint32_t scale_columns;
    uint32_t down;       /* which of the two launches */
    uint32_t least_rows; /* experts with fewer rows, or more than most_rows, are another launch's */
    uint32_t most_rows;
    uint32_t clamped; /* gpt-oss's activation, with these two; else SwiGLU */
    float alpha;
    float limit;
} mp_gpu_experts_args;

/* The forms. THIN: BF16 math, all warps of a block share the length of 16 or 32 weight rows: for
 * experts of few rows. BROAD: BF16 math, each warp has weight rows of its own: for many rows.
 * PLAIN: FP32 math. Any form takes any number of rows; BROAD is for aligned operands only. */
enum { MP_EXPERTS_THIN, MP_EXPERTS_BROAD, MP_EXPERTS_PLAIN, MP_EXPERTS_FORMS };

/* Threads of a block in every form, and blocks that run at once on a multiprocessor, to
 * size a grid. */
#define MP_EXPERTS_THREADS 256
#define MP_EXPERTS_BLOCKS_PER_SM 2

/* Experts of up to this many rows go to THIN, where there is a choice. */
#define MP_EXPERTS_THIN_ROWS 32u

/* Activation rows that BROAD multiplies by every weight it loads. */
#define MP_EXPERTS_BROAD_ROWS 64u

/* Weights of F8 E4M3: MOEPAGE_DTYPE_F8_E4M3, besides scalar.h's. */
#define MP_EXPERTS_F8 4u

/* Weights in blocks, MOEPAGE_DTYPE_* of the same name, and integers; blocks of several lengths are one format.
 * Y(suffix of entries, name, value, and the other arguments). */
#define MP_CODED_FORMATS(Y, X, form, blocks) \
    Y(int8, INT8, 11, X, form, blocks)       \
    Y(int4, INT4, 12, X, form, blocks)       \
    Y(int2, INT2, 13, X, form, blocks)       \
    Y(q4_0, Q4_0, 16, X, form, blocks)       \
    Y(q4_1, Q4_1, 17, X, form, blocks)       \
    Y(q5_0, Q5_0, 18, X, form, blocks)       \
    Y(q5_1, Q5_1, 19, X, form, blocks)       \
    Y(q8_0, Q8_0, 20, X, form, blocks)       \
    Y(q2_k, Q2_K, 21, X, form, blocks)       \
    Y(q3_k, Q3_K, 22, X, form, blocks)       \
    Y(q4_k, Q4_K, 23, X, form, blocks)       \
    Y(q5_k, Q5_K, 24, X, form, blocks)       \
    Y(q6_k, Q6_K, 25, X, form, blocks)       \
    Y(iq4_nl, IQ4_NL, 26, X, form, blocks)   \
    Y(iq4_xs, IQ4_XS, 27, X, form, blocks)   \
    Y(mxfp4, MXFP4, 28, X, form, blocks)     \
    Y(nvfp4, NVFP4, 29, X, form, blocks)     \
    Y(w4_f16, W4_F16, 30, X, form, blocks)   \
    Y(w4_bf16, W4_BF16, 33, X, form, blocks) \
    Y(nvfp4g, NVFP4G, 36, X, form, blocks)
#define MP_CODED_ALIGN 4u /* where their matrices start */
#define MP_CODED_CONSTANT(suffix, name, value, X, form, blocks) MP_CODED_##name = value,
enum { MP_CODED_FORMATS(MP_CODED_CONSTANT, , , ) MP_CODED_END };
#undef MP_CODED_CONSTANT

/* Dynamic shared memory of a block, by form. */
#define MP_EXPERTS_THIN_SHARED 16384u
#define MP_EXPERTS_BROAD_SHARED 65536u
#define MP_EXPERTS_PLAIN_SHARED 43520u

/* ---- The host's side, hidden from runtime compilers ---- */
#if !defined(__CUDACC_RTC__)

/* What kernels call weights of a MOEPAGE_DTYPE_*: blocks of one format, whatever their length, are one. */
static inline uint32_t mp_gpu_experts_dtype(uint32_t dtype)
{
    if (dtype >= MP_CODED_NVFP4G)
        return dtype < MP_CODED_NVFP4G + 3 ? MP_CODED_NVFP4G : 0;
    return dtype >= MP_CODED_W4_BF16  ? MP_CODED_W4_BF16
           : dtype >= MP_CODED_W4_F16 ? MP_CODED_W4_F16
                                      : dtype;
}

/* log2 of the weights of a block, for formats that have blocks of several lengths; else 0. */
static inline uint32_t mp_gpu_experts_block_shift(uint32_t dtype)
{
    return dtype >= MP_CODED_NVFP4G   ? dtype - MP_CODED_NVFP4G + 6
           : dtype >= MP_CODED_W4_F16 ? (dtype - MP_CODED_W4_F16) % 3 + 5
                                      : 0;
}

/* Returns whether rows may be read 16 bytes at a time, if they and the activations start
 * at multiples of 16. Rows have `length` weights: hidden in the first launch, intermediate
 * in the second. */
static inline uint32_t mp_gpu_experts_aligned(uint32_t length, uint32_t dtype, uint32_t scale_dtype,
                                              uint32_t scale_columns)
{
    const uint32_t scaled = dtype == MP_EXPERTS_F8 && scale_dtype;
    return length % 8 == 0 && (!scaled || scale_columns % 8 == 0);
}

/* The entry's name for weights of a dtype; NULL for one that has none. `aligned`: that all rows of
 * weights, x, or inner, that the launch reads may be read 16 bytes at a time. Otherwise there is no
 * BROAD, and nothing for blocks and integers. */
static inline const char *mp_gpu_experts_name(uint32_t form, uint32_t dtype, uint32_t aligned)
{
#define MP_EXPERTS_NAME(suffix)                                  \
    form == MP_EXPERTS_THIN    ? "mp_gpu_experts_thin_" #suffix  \
    : form == MP_EXPERTS_BROAD ? "mp_gpu_experts_broad_" #suffix \
                               : "mp_gpu_experts_plain_" #suffix
#define MP_EXPERTS_CASE(suffix, name, value, X, form, blocks) \
    case value: return aligned ? MP_EXPERTS_NAME(suffix) : 0;
    if (!aligned && dtype && dtype <= MP_EXPERTS_F8)
        return form == MP_EXPERTS_BROAD ? 0 : MP_EXPERTS_NAME(any);
    switch (dtype) {
    case MP_SCALAR_F32: return MP_EXPERTS_NAME(f32);
    case MP_SCALAR_F16: return MP_EXPERTS_NAME(f16);
    case MP_SCALAR_BF16: return MP_EXPERTS_NAME(bf16);
    case MP_EXPERTS_F8: return MP_EXPERTS_NAME(f8); MP_CODED_FORMATS(MP_EXPERTS_CASE, , form, )
    default: return 0;
    }
#undef MP_EXPERTS_CASE
#undef MP_EXPERTS_NAME
}

/* Dynamic shared memory of a block. */
static inline uint32_t mp_gpu_experts_shared(uint32_t form)
{
    return form == MP_EXPERTS_THIN    ? MP_EXPERTS_THIN_SHARED
           : form == MP_EXPERTS_PLAIN ? MP_EXPERTS_PLAIN_SHARED
                                      : MP_EXPERTS_BROAD_SHARED;
}

#endif

#endif
