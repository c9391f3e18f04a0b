/* experts_work.h — code shared by all forms of the expert kernels: pieces of work, and where
 * their sums go.
 *
 * All forms multiply two matrices with the same activations: gate and up, or two strips of down. */
#ifndef MP_KERNELS_EXPERTS_WORK_H
#define MP_KERNELS_EXPERTS_WORK_H

#include "experts_operands.h"

/* Some weight rows of an expert's two matrices, and some of its activation rows. */
typedef struct mp_experts_work {
    const mp_gpu_expert *expert;
    const char *weights[2]; /* the matrices: gate and up, or down twice */
    uint32_t first_row;     /* of the expert's */
    uint32_t n_rows;        /* of the expert */
    uint32_t length;        /* of rows: the sums' index */
    uint32_t first;         /* activation row, of the expert's */
} mp_experts_work;

MP_GPU uint32_t mp_experts_up(uint32_t n, uint32_t unit)
{
    return n / unit + (n % unit != 0);
}

MP_GPU uint32_t mp_experts_count(const mp_gpu_experts_args *args)
{
    return args->n_experts_at ? *args->n_experts_at : args->n_experts;
}

/* `n`, the number of an expert's rows, if this launch takes them, else 0. */
MP_GPU uint32_t mp_experts_rows(const mp_gpu_experts_args *args, uint32_t n)
{
    return n >= args->least_rows && n <= args->most_rows ? n : 0;
}

/* Reads what a piece of work begins with. */
MP_GPU void mp_experts_read(const mp_gpu_expert *expert, const void *weights[3], uint32_t rows[2])
{
#if MP_ON_GPU
    /* All at once: a compiler would put some of these loads behind the use of others. */
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(weights[0]), "=l"(weights[1])
                 : "l"(&expert->gate));
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(weights[2]) : "l"(&expert->down));
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(rows[0]), "=r"(rows[1])
                 : "l"(&expert->first_row));
#else
    weights[0] = expert->gate;
    weights[1] = expert->up;
    weights[2] = expert->down;
    rows[0] = expert->first_row;
    rows[1] = expert->n_rows;
#endif
}

MP_GPU void mp_experts_begin(const mp_gpu_experts_args *args, uint32_t index, mp_experts_work *work)
{
    const void *weights[3];
    uint32_t rows[2];
    work->expert = &args->experts[index];
    mp_experts_read(work->expert, weights, rows);
    work->weights[0] = (const char *)(args->down ? weights[2] : weights[0]);
    work->weights[1] = (const char *)(args->down ? weights[2] : weights[1]);
    work->first_row = rows[0];
    work->n_rows = rows[1];
    work->first = 0;
    work->length = args->down ? args->intermediate : args->hidden;
}

/* Weight row `i` of a piece's matrix 0 or 1, the last row for one past the end: such sums are not
 * stored. A piece is `strip` weight rows of gate and of up, or two such strips of down. */
MP_GPU mp_experts_row mp_experts_weight_row(const mp_gpu_experts_args *args,
                                            const mp_experts_work *work, const uint32_t dtype,
                                            const uint32_t strip, uint32_t piece, uint32_t matrix,
                                            uint32_t i)
{
    const uint32_t last = (args->down ? args->hidden : args->intermediate) - 1;
    const uint32_t wanted = args->down ? (2 * piece + matrix) * strip + i : piece * strip + i;
    const uint32_t row = wanted < last ? wanted : last;
    const mp_gpu_expert *expert = work->expert;
    const void *scales = args->down ? expert->down_scale
                         : matrix   ? expert->up_scale
                                    : expert->gate_scale;
    mp_experts_row out = {work->weights[matrix] +
                              row * mp_experts_row_bytes(dtype, args, work->length),
                          (char *)0};
    if (mp_coded_bits(dtype)) {
        const uint32_t groups = mp_experts_up(work->length, 1u << args->group_shift);
        out.scales = (const char *)scales + (uint64_t)row * groups * 2;
    }
    if (dtype == MP_EXPERTS_F8 && args->scale_dtype != MP_SCALAR_NONE && scales) {
        const uint64_t blocks = mp_experts_up(work->length, args->scale_columns);
        const uint32_t bytes = args->scale_dtype == MP_SCALAR_F32 ? 4 : 2;
        out.scales = (const char *)scales + row / args->scale_rows * blocks * bytes;
    }
    return out;
}

/* The line of x, or of inner, with activation row work->first + i; the last row for one past the
 * end. */
MP_GPU uint32_t mp_experts_line(const mp_gpu_experts_args *args, const mp_experts_work *work,
                                uint32_t i)
{
    uint32_t row = work->first + i;
    row = work->first_row + (row < work->n_rows ? row : work->n_rows - 1);
    return args->down ? row - args->inner_base : args->rows[row] / args->top_k;
}

/* That line's element k, of `operand` bytes. */
MP_GPU const char *mp_experts_activation(const mp_gpu_experts_args *args, uint32_t line,
                                         uint32_t length, const uint32_t operand, uint32_t k)
{
    const void *base = args->down ? args->inner : args->x;
    return (const char *)base + ((uint64_t)line * length + k) * operand;
}

/* silu(g) * u with silu(g) = g / (1 + e^-g). Below -128 silu is 0 in FP32; so is its limit. This and the next
 * take the host's steps (device/host_math.h), and have its bits. */
MP_GPU float mp_experts_swiglu(float gate, float up)
{
    const float bounded = gate < -128.0f ? -128.0f : gate;
    return mp_scalar_mul(mp_scalar_times_sigmoid(bounded, gate), up);
}

/* g * sigmoid(alpha g) * (u + 1) with g = min(gate, limit) and u = up within +-limit: gpt-oss's. Below -128
 * the sigmoid's product with g is 0 in FP32; so is its limit. */
MP_GPU float mp_experts_clamped(float gate, float up, float alpha, float limit)
{
    const float g = gate > limit ? limit : gate;
    const float below = up > limit ? limit : up;
    const float u = below < -limit ? -limit : below;
    const float z = mp_scalar_mul(alpha, g);
    return mp_scalar_mul(mp_scalar_times_sigmoid(z < -128.0f ? -0.0f : g, z),
                         mp_scalar_add(u, 1.0f));
}

MP_GPU float mp_experts_activate(const mp_gpu_experts_args *args, float gate, float up)
{
    return args->clamped ? mp_experts_clamped(gate, up, args->alpha, args->limit)
                         : mp_experts_swiglu(gate, up);
}

/* With a bias_dtype of NONE there is no bias. */
MP_GPU float mp_experts_biased(const uint32_t bias_dtype, const void *bias, uint32_t i, float sum)
{
    if (bias_dtype == MP_SCALAR_NONE || !bias)
        return sum;
    return mp_scalar_add(sum, mp_scalar_load(bias_dtype, bias, i));
}

/* Stores the sums of activation row work->first + n with weight row i of both matrices of a piece. */
MP_GPU void mp_experts_emit(const mp_gpu_experts_args *args, const mp_experts_work *work,
                            const uint32_t dtype, const uint32_t operand, const uint32_t strip,
                            uint32_t piece, uint32_t n, uint32_t i, float sum0, float sum1)
{
    const mp_gpu_expert *expert = work->expert;
    const uint32_t biases = dtype == MP_EXPERTS_F8 ? MP_SCALAR_NONE : args->bias_dtype;
    if (work->first + n >= work->n_rows)
        return;
    const uint32_t line = work->first_row + work->first + n;
    if (!args->down) {
        const uint32_t at = piece * strip + i;
        if (at >= args->intermediate)
            return;
        const float gate = mp_experts_biased(biases, expert->gate_bias, at, sum0);
        const float up = mp_experts_biased(biases, expert->up_bias, at, sum1);
        mp_scalar_store(operand == 4 ? MP_SCALAR_F32 : MP_SCALAR_BF16, args->inner,
                        (uint64_t)(line - args->inner_base) * args->intermediate + at,
                        mp_experts_activate(args, gate, up));
        return;
    }
    float *out = args->partial + (uint64_t)args->rows[line] * args->hidden;
    const uint32_t at = 2 * piece * strip + i;
    if (at < args->hidden)
        out[at] = mp_experts_biased(biases, expert->down_bias, at, sum0);
    if (at + strip < args->hidden)
        out[at + strip] = mp_experts_biased(biases, expert->down_bias, at + strip, sum1);
}

/* The number of pieces of work in an expert's weight rows. */
MP_GPU uint32_t mp_experts_pieces(const mp_gpu_experts_args *args, uint32_t strip)
{
    return args->down ? mp_experts_up(args->hidden, 2 * strip)
                      : mp_experts_up(args->intermediate, strip);
}

#endif
