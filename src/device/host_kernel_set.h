/* host_kernel_set.h — what an instruction set supplies to the host kernels: the inner loops.
 *
 * host_ffn.c and host_elementwise.c hold everything else: blocking, sharing among threads, order
 * of work. All sets compute every function below to the same bits (a NaN stays a NaN; which one
 * is unspecified). The arithmetic they must agree on is written out in host_math.h and
 * host_portable.c. */
#ifndef MP_DEVICE_HOST_KERNEL_SET_H
#define MP_DEVICE_HOST_KERNEL_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "device/host_fetch.h"
#include "device/host_int8.h"
#include "device/host_kernels.h"
#include "moepage.h"

/* A dot product is summed in this many lanes. */
#define MP_LANES 16
/* A tile is the dot products of up to TILE_ROWS activation rows with TILE_WEIGHTS weight rows: the
 * largest whose sums stay in 32 vector registers. */
#define MP_TILE_ROWS 6
#define MP_TILE_WEIGHTS 4

/* What is multiplied: type of x, type of weights, and the lanes' order. FP32: element i of a row
 * is the next fused multiply-add of lane i mod 16. DOT: elements 2i and 2i + 1 go to lane
 * i mod 16, 2i + 1 first, denormal operands and results taken as zero (VDPBF16PS). A row is
 * padded with zeros to a whole number of turns over the lanes. */
typedef enum mp_tile_kind {
    MP_TILE_F32,     /* FP32: float x, float weights */
    MP_TILE_F16,     /* FP32: float x, IEEE half weights */
    MP_TILE_BF16,    /* FP32: float x, bfloat16 weights */
    MP_TILE_DOT,     /* DOT: bfloat16 x and weights */
    MP_TILE_DOT_F16, /* DOT: bfloat16 x, IEEE half weights, rounded to bfloat16 */
    MP_TILE_DOT_F32, /* DOT: bfloat16 x, float weights, rounded to bfloat16 */
    MP_TILE_KINDS
} mp_tile_kind;

/* Elements that a kind consumes per turn over the lanes: MP_LANES or twice that. Pieces of a row
 * are cut at multiples of MP_TILE_STEP, which all kinds accept. */
#define MP_TILE_STEP (2 * MP_LANES)

/* Bytes of an element of x, and of one of the weights. */
static inline uint32_t mp_tile_x_bytes(mp_tile_kind kind)
{
    return kind < MP_TILE_DOT ? 4 : 2;
}

static inline uint32_t mp_tile_w_bytes(mp_tile_kind kind)
{
    return kind == MP_TILE_F32 || kind == MP_TILE_DOT_F32 ? 4 : 2;
}

typedef struct mp_tile {
    const void *x[MP_TILE_ROWS];         /* [n_rows] */
    const void *w[MP_TILE_WEIGHTS];      /* all set; a short tile repeats a row */
    mp_fetch fetch;                      /* of floats; those of integers and blocks prefetch */
    uint64_t ahead_bytes;                /* this far past each w; 0 = nothing to prefetch */
    const void *scales[MP_TILE_WEIGHTS]; /* of integers: FP16, of w's first group onwards */
    uint32_t group;                      /* weights per scale */
    uint32_t n_rows;                     /* 1..MP_TILE_ROWS */
    uint32_t k;  /* elements; a multiple of MP_TILE_STEP but in the last piece */
    bool resume; /* go on from acc rather than from zero */
    float *acc;  /* [n_rows][MP_TILE_WEIGHTS][MP_LANES], 64-byte aligned */
} mp_tile;

/* Integers of one row of weights, from the start of a group on. */
typedef struct mp_integers {
    const uint8_t *packed; /* as codec/quant.h packs a row */
    const void *scales;    /* FP16, of the first group and those behind it; any alignment */
    uint64_t ahead_bytes;  /* prefetch this far past what is read; 0 = nothing to prefetch */
    uint32_t group;        /* 32, 64 or 128 */
    uint32_t n;
} mp_integers;

/* out[i] = integer i times its group's scale. Writes whole steps: room for n rounded up to
 * MP_TILE_STEP, behind the n anything. */
typedef void mp_value_integers(const mp_integers *in, void *out);

typedef void mp_run_tile(const mp_tile *tile);

/* Indexed by form, from MOEPAGE_FORM_INT8 on. Tiles that read integers themselves spare a trip
 * through memory; without them (NULL), the tiles of the values' type are used. */
#define MP_INTEGER_FORMS 3
typedef struct mp_integer_set {
    mp_value_integers *as_f32[MP_INTEGER_FORMS];  /* exact */
    mp_value_integers *as_bf16[MP_INTEGER_FORMS]; /* that, rounded to nearest even */
    mp_run_tile *tile_f32[MP_INTEGER_FORMS];      /* as MP_TILE_F32 with those, w being packed */
    mp_run_tile *tile_dot[MP_INTEGER_FORMS];      /* as MP_TILE_DOT with those */
} mp_integer_set;

/* Whole blocks of one row of weights: codec/blocks.h. */
typedef struct mp_blocks {
    const uint8_t *blocks;
    uint32_t dtype;
    uint32_t n;           /* weights */
    uint64_t ahead_bytes; /* prefetch this far past what is read; 0 = nothing to prefetch */
} mp_blocks;

typedef void mp_value_blocks(const mp_blocks *in, float *out);

/* Indexed by dtype, from MOEPAGE_DTYPE_Q4_0 on. Tiles that read blocks themselves are for rows of x that
 * meet each weight once, up to tile_rows of them; other tiles, and sets without them (NULL), take the
 * values. */
#define MP_BLOCK_FORMATS (MOEPAGE_DTYPE_NVFP4G256_F32 - MOEPAGE_DTYPE_Q4_0 + 1)
typedef struct mp_block_set {
    mp_value_blocks *as_f32[MP_BLOCK_FORMATS]; /* as the format's decoder has them */
    uint32_t tile_rows;
    mp_run_tile *tile_f32[MP_BLOCK_FORMATS]; /* as MP_TILE_F32 with those, w being blocks */
    mp_run_tile *tile_dot[MP_BLOCK_FORMATS]; /* as MP_TILE_DOT with those rounded */
} mp_block_set;

/* X(name, dtype) for every block format, in the order of the dtypes. */
#define MP_EVERY_BLOCK_FORMAT(X)                  \
    X(q4_0, MOEPAGE_DTYPE_Q4_0)                   \
    X(q4_1, MOEPAGE_DTYPE_Q4_1)                   \
    X(q5_0, MOEPAGE_DTYPE_Q5_0)                   \
    X(q5_1, MOEPAGE_DTYPE_Q5_1)                   \
    X(q8_0, MOEPAGE_DTYPE_Q8_0)                   \
    X(q2_k, MOEPAGE_DTYPE_Q2_K)                   \
    X(q3_k, MOEPAGE_DTYPE_Q3_K)                   \
    X(q4_k, MOEPAGE_DTYPE_Q4_K)                   \
    X(q5_k, MOEPAGE_DTYPE_Q5_K)                   \
    X(q6_k, MOEPAGE_DTYPE_Q6_K)                   \
    X(iq4_nl, MOEPAGE_DTYPE_IQ4_NL)               \
    X(iq4_xs, MOEPAGE_DTYPE_IQ4_XS)               \
    X(mxfp4, MOEPAGE_DTYPE_MXFP4)                 \
    X(nvfp4, MOEPAGE_DTYPE_NVFP4)                 \
    X(w4g32_f16, MOEPAGE_DTYPE_W4G32_F16)         \
    X(w4g64_f16, MOEPAGE_DTYPE_W4G64_F16)         \
    X(w4g128_f16, MOEPAGE_DTYPE_W4G128_F16)       \
    X(w4g32_bf16, MOEPAGE_DTYPE_W4G32_BF16)       \
    X(w4g64_bf16, MOEPAGE_DTYPE_W4G64_BF16)       \
    X(w4g128_bf16, MOEPAGE_DTYPE_W4G128_BF16)     \
    X(nvfp4g64_f32, MOEPAGE_DTYPE_NVFP4G64_F32)   \
    X(nvfp4g128_f32, MOEPAGE_DTYPE_NVFP4G128_F32) \
    X(nvfp4g256_f32, MOEPAGE_DTYPE_NVFP4G256_F32)

/* Initialises a table with the functions of a file that are named after the formats. */
#define MP_BLOCK_FUNCTIONS(what)                                                                   \
    {                                                                                              \
        q4_0_##what, q4_1_##what, q5_0_##what, q5_1_##what, q8_0_##what, q2_k_##what, q3_k_##what, \
            q4_k_##what, q5_k_##what, q6_k_##what, iq4_nl_##what, iq4_xs_##what, mxfp4_##what,     \
            nvfp4_##what, w4g32_f16_##what, w4g64_f16_##what, w4g128_f16_##what,                   \
            w4g32_bf16_##what, w4g64_bf16_##what, w4g128_bf16_##what, nvfp4g64_f32_##what,         \
            nvfp4g128_f32_##what, nvfp4g256_f32_##what                                             \
    }

struct mp_host_kernel_set {
    const char *name;

    void (*tile[MP_TILE_KINDS])(const mp_tile *tile);
    /* Most rows of x that are best met by tiles which round weights, MP_TILE_DOT_F16 and _F32; for more
     * rows, rounding once is. */
    uint32_t rounding_rows;

    /* sums[i] = the lanes of acc[i] added by halves: l + (l + 8), then 4, 2, 1. `n` is a multiple
     * of MP_TILE_WEIGHTS; acc is 64-byte aligned. */
    void (*reduce)(const float *acc, float *sums, uint32_t n);

    /* out[i] = silu(gate[i]) * up[i]; `n` is a multiple of MP_LANES. */
    void (*swiglu)(const float *gate, const float *up, float *out, uint32_t n);
    /* out[i] = mp_swiglu_clamped(gate[i], up[i], alpha, limit); likewise. */
    void (*swiglu_clamped)(const float *gate, const float *up, float alpha, float limit, float *out,
                           uint32_t n);

    /* out[i] = fma(scale, in[i], out[i]) */
    void (*axpy)(float scale, const float *in, float *out, uint64_t n);

    /* Exact conversions to float, and back rounding to nearest even. Indexed by MOEPAGE_DTYPE_F32,
     * _F16, _BF16; F32 copies. */
    void (*widen[4])(const void *in, float *out, uint64_t n);
    void (*narrow[4])(const float *in, void *out, uint64_t n);

    /* out[i] = the E4M3 value in[i] times scale, rounded once. */
    void (*widen_f8)(const void *in, float scale, float *out, uint64_t n);

    const mp_integer_set *integers;
    const mp_block_set *blocks;
    const mp_int8_set *int8;
};

/* A value is 0 or between 2^-24 and 127 * 65504 as long as scales are finite: neither denormal nor
 * NaN, whatever the floating-point mode. */
extern const mp_integer_set mp_integers_portable;
#if defined(__x86_64__)
extern const mp_integer_set mp_integers_avx2;
extern const mp_integer_set mp_integers_avx512;
extern const mp_integer_set mp_integers_avx512_bf16;
#endif

extern const mp_block_set mp_blocks_portable;
#if defined(__x86_64__)
extern const mp_block_set mp_blocks_avx2;
extern const mp_block_set mp_blocks_avx512;
extern const mp_block_set mp_blocks_avx512_bf16;
#endif

extern const mp_host_kernel_set mp_host_set_portable;
#if defined(__x86_64__)
extern const mp_host_kernel_set mp_host_set_avx2;
extern const mp_host_kernel_set mp_host_set_avx512;
extern const mp_host_kernel_set mp_host_set_avx512_vnni;
extern const mp_host_kernel_set mp_host_set_avx512_bf16;
extern const mp_host_kernel_set mp_host_set_avx512_bf16_fma;

/* Words of MXCSR: nearest even, denormals kept, exceptions masked; and with flush-to-zero and
 * denormals-are-zero. */
#define MP_MODE_DEFAULT 0x1f80u
#define MP_MODE_FLUSH 0x9fc0u

/* Runs a tile with denormals taken as zero and flushed, as VDPBF16PS does by itself. In another
 * file than the tiles, so that none of their arithmetic can be moved out. */
void mp_tile_under_flush(void (*run)(const mp_tile *tile), const mp_tile *tile);
#endif

/* For every set: float to float is a copy. */
void mp_widen_f32(const void *in, float *out, uint64_t n);
void mp_narrow_f32(const float *in, void *out, uint64_t n);

/* For the vector sets: a loop that is unrolled whole. Those over a tile's rows and weights must
 * disappear for its sums to live in registers. */
#if defined(__clang__)
#define MP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MP_UNROLL _Pragma("GCC unroll 8")
#endif
#define MP_EACH(index, n) \
    MP_UNROLL             \
    for (uint32_t index = 0; index < (n); index++)

/* A tile function of one kind: `run(kind, tile)` and `target` are the file's. */
#define MP_TILE_OF(target, name, run, kind)      \
    target static void name(const mp_tile *tile) \
    {                                            \
        run(kind, tile);                         \
    }

/* The tile function of DOT that runs name_flushed as below. */
#define MP_TILE_UNDER_FLUSH(name)                  \
    static void name(const mp_tile *tile)          \
    {                                              \
        mp_tile_under_flush(name##_flushed, tile); \
    }

/* One function for each number of rows of a tile, each unrolled on its own: `tile_rows(a, b, rows, tile)`
 * and `target` are the file's. */
#define MP_TILE_FUNCTION(target, name, a, b)          \
    target static void name(const mp_tile *tile)      \
    {                                                 \
        switch (tile->n_rows) {                       \
        case 1: tile_rows(a, b, 1, tile); break;      \
        case 2: tile_rows(a, b, 2, tile); break;      \
        case 3: tile_rows(a, b, 3, tile); break;      \
        case 4: tile_rows(a, b, 4, tile); break;      \
        case 5: tile_rows(a, b, 5, tile); break;      \
        default: tile_rows(a, b, MP_TILE_ROWS, tile); \
        }                                             \
    }

/* The kernels themselves; run under the default floating-point mode. */
void mp_host_convert(const mp_host_kernel_set *set, const mp_kernel_convert_args *args,
                     uint32_t part, uint32_t n_parts);
void mp_host_combine(const mp_host_kernel_set *set, const mp_kernel_combine_args *args,
                     uint32_t part, uint32_t n_parts);
void mp_host_experts(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                     uint32_t phase, uint32_t part, uint32_t n_parts);
void mp_host_linear(const mp_host_kernel_set *set, const mp_kernel_linear_args *args, uint32_t part,
                    uint32_t n_parts);

static inline uint64_t mp_element_bytes(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 ? 4 : dtype == MOEPAGE_DTYPE_F8_E4M3 ? 1 : 2;
}

/* What an expert's rows cost, in multiplications with one cached weight: reading the weight from
 * memory is worth eight. */
static inline uint64_t mp_host_rows_cost(uint32_t n_rows)
{
    return n_rows == 0 || n_rows > 8 ? n_rows : 8;
}

/* The first unit of `part` when `n` units are cut into n_parts; part n_parts gives n. */
static inline uint64_t mp_share_start(uint64_t n, uint32_t part, uint32_t n_parts)
{
    return n / n_parts * part + n % n_parts * part / n_parts;
}

/* Initialises a set with the functions of its file, which are named after the fields; `rounding` are DOT's with
 * weights that are rounded. */
#define MP_HOST_KERNEL_SET(isa, dot, rounding, most, integer_set, block_set, int8_set)             \
    {                                                                                              \
        .name = isa, .tile = {tile_f32, tile_f16, tile_bf16, dot, rounding##_f16, rounding##_f32}, \
        .rounding_rows = most, .reduce = reduce, .swiglu = swiglu,                                 \
        .swiglu_clamped = swiglu_clamped, .axpy = axpy,                                            \
        .widen = {NULL, mp_widen_f32, widen_f16, widen_bf16},                                      \
        .narrow = {NULL, mp_narrow_f32, narrow_f16, narrow_bf16}, .widen_f8 = widen_f8,            \
        .integers = &integer_set, .blocks = &block_set, .int8 = &int8_set,                         \
    }

#endif
