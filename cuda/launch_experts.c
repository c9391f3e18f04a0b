/* The kernels of a step, CONVERT, EXPERTS and COMBINE: from their arguments to grids.
 *
 * BF16_FAST is the same as BF16, except that fast.c runs experts of many rows where it can. */
#include "launch.h"

#include <string.h>

#include "base/status.h"
#include "fast.h"
#include "kernels/elementwise.h"
#include "kernels/experts_args.h"
#include "kernels/fast_args.h"

_Static_assert(sizeof(mp_gpu_expert) == sizeof(mp_ffn_expert) &&
                   offsetof(mp_gpu_expert, gate) == offsetof(mp_ffn_expert, gate) &&
                   offsetof(mp_gpu_expert, up) == offsetof(mp_ffn_expert, up) &&
                   offsetof(mp_gpu_expert, down) == offsetof(mp_ffn_expert, down) &&
                   offsetof(mp_gpu_expert, gate_bias) == offsetof(mp_ffn_expert, gate_bias) &&
                   offsetof(mp_gpu_expert, up_bias) == offsetof(mp_ffn_expert, up_bias) &&
                   offsetof(mp_gpu_expert, down_bias) == offsetof(mp_ffn_expert, down_bias) &&
                   offsetof(mp_gpu_expert, gate_scale) == offsetof(mp_ffn_expert, gate_scale) &&
                   offsetof(mp_gpu_expert, up_scale) == offsetof(mp_ffn_expert, up_scale) &&
                   offsetof(mp_gpu_expert, down_scale) == offsetof(mp_ffn_expert, down_scale) &&
                   offsetof(mp_gpu_expert, first_row) == offsetof(mp_ffn_expert, first_row) &&
                   offsetof(mp_gpu_expert, n_rows) == offsetof(mp_ffn_expert, n_rows),
               "the host's table of experts is the kernels'");
_Static_assert((int)MP_SCALAR_F32 == (int)MOEPAGE_DTYPE_F32 &&
                   (int)MP_SCALAR_F16 == (int)MOEPAGE_DTYPE_F16 &&
                   (int)MP_SCALAR_BF16 == (int)MOEPAGE_DTYPE_BF16 &&
                   (int)MP_SCALAR_NONE == (int)MOEPAGE_DTYPE_NONE &&
                   (int)MP_EXPERTS_F8 == (int)MOEPAGE_DTYPE_F8_E4M3,
               "kernels and header number the types alike");

static uint32_t element_blocks(uint32_t n_tokens, uint32_t hidden)
{
    const uint64_t pieces = (hidden - 1) / MP_ELEMENTWISE_COLUMNS + 1;
    return mp_cuda_grid(n_tokens * pieces);
}

moepage_status mp_cuda_launch_convert(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_convert_args *gpu)
{
    if (gpu->n_tokens == 0 || gpu->hidden == 0)
        return MOEPAGE_OK;
    const mp_gpu_convert_args args = {
        .x = gpu->x,
        .out = gpu->out,
        .x_stride = gpu->x_stride,
        .x_dtype = gpu->x_dtype,
        .to_bf16 = gpu->math != MOEPAGE_MATH_FP32,
        .n_tokens = gpu->n_tokens,
        .hidden = gpu->hidden,
    };
    return mp_cuda_launch(cuda, stream, "mp_gpu_convert",
                          element_blocks(gpu->n_tokens, gpu->hidden), MP_ELEMENTWISE_THREADS,
                          MP_ELEMENTWISE_SHARED, &args);
}

moepage_status mp_cuda_launch_combine(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_combine_args *host,
                                      const mp_kernel_combine_args *gpu, const uint32_t *given_up)
{
    if (gpu->n_tokens == 0 || gpu->hidden == 0)
        return MOEPAGE_OK;
    mp_gpu_combine_args args = {
        .partial = gpu->partial,
        .weights = gpu->weights,
        .ids = gpu->ids,
        .given_up = given_up,
        .y = gpu->y,
        .y_stride = gpu->y_stride,
        .y_dtype = gpu->y_dtype,
        .n_tokens = gpu->n_tokens,
        .top_k = gpu->top_k,
        .hidden = gpu->hidden,
        .accumulate = gpu->accumulate,
    };
    if (!gpu->weights) { /* each by itself: what lies between them in host memory means nothing */
        const uint64_t n = (uint64_t)gpu->n_tokens * gpu->top_k;
        args.ids_at = (uint32_t)((uintptr_t)host->ids - (uintptr_t)host->weights);
        memcpy(args.tables, host->weights, n * sizeof *host->weights);
        memcpy(args.tables + args.ids_at, host->ids, n * sizeof *host->ids);
    }
    return mp_cuda_launch(cuda, stream, "mp_gpu_combine",
                          element_blocks(gpu->n_tokens, gpu->hidden), MP_ELEMENTWISE_THREADS,
                          MP_ELEMENTWISE_SHARED, &args);
}

/* ---- EXPERTS ---- */

/* What the host learns from the table. */
typedef struct table_facts {
    uint32_t limit;     /* experts with more rows have been run */
    uint32_t most_rows; /* of the others */
    uintptr_t tensors;  /* bits that any weights' address has */
} table_facts;

static table_facts facts_of(const mp_kernel_experts_args *host, uint32_t limit)
{
    table_facts facts = {.limit = limit};
    for (uint32_t e = 0; e < host->n_experts; e++) {
        const mp_ffn_expert *expert = &host->experts[e];
        if (expert->n_rows == 0 || expert->n_rows > limit)
            continue;
        if (expert->n_rows > facts.most_rows)
            facts.most_rows = expert->n_rows;
        facts.tensors |= (uintptr_t)expert->gate | (uintptr_t)expert->up | (uintptr_t)expert->down;
    }
    return facts;
}

/* The number of blocks that have work: no more are launched. */
static uint32_t useful_blocks(const mp_kernel_experts_args *host, const mp_gpu_experts_args *args,
                              uint32_t form)
{
    const uint32_t warps = MP_EXPERTS_THREADS / 32;
    const uint32_t strip = form == MP_EXPERTS_PLAIN ? warps : 16;
    const uint32_t piece =
        (args->down ? 2 * strip : strip) * (form == MP_EXPERTS_BROAD ? warps : 1);
    const uint64_t pieces = ((args->down ? args->hidden : args->intermediate) - 1) / piece + 1;
    uint64_t n = 0;
    for (uint32_t e = 0; e < host->n_experts; e++) {
        const uint32_t rows = host->experts[e].n_rows;
        const uint32_t high = form == MP_EXPERTS_BROAD ? MP_EXPERTS_BROAD_ROWS : UINT32_MAX;
        if (rows > 0 && rows >= args->least_rows && rows <= args->most_rows)
            n += pieces * ((rows - 1) / high + 1);
    }
    return mp_cuda_grid(n);
}

static moepage_status launch_form(mp_cuda *cuda, mp_cu_stream stream,
                                  const mp_kernel_experts_args *host, uint32_t form, bool aligned,
                                  const mp_gpu_experts_args *args)
{
    const char *name = mp_gpu_experts_name(form, args->dtype, aligned);
    const uint32_t shared = mp_gpu_experts_shared(form);
    const uint32_t useful = useful_blocks(host, args, form);
    const uint32_t fit = mp_cuda_resident_blocks(cuda, name, MP_EXPERTS_THREADS, shared);
    return mp_cuda_launch(cuda, stream, name, useful < fit ? useful : fit, MP_EXPERTS_THREADS,
                          shared, args);
}

/* Launches one of the two halves: once for experts of few rows, once for those of many. */
static moepage_status launch_half(mp_cuda *cuda, mp_cu_stream stream,
                                  const mp_kernel_experts_args *host, const table_facts *facts,
                                  mp_gpu_experts_args *args)
{
    const bool aligned =
        mp_cuda_experts_aligned(args, facts->tensors, args->down ? args->inner : args->x);
    args->least_rows = 1;
    args->most_rows = facts->limit;
    if (host->math == MOEPAGE_MATH_FP32)
        return launch_form(cuda, stream, host, MP_EXPERTS_PLAIN, aligned, args);
    if (!aligned || facts->most_rows <= MP_EXPERTS_THIN_ROWS)
        return launch_form(cuda, stream, host, MP_EXPERTS_THIN, aligned, args);
    args->most_rows = MP_EXPERTS_THIN_ROWS;
    moepage_status status = launch_form(cuda, stream, host, MP_EXPERTS_THIN, aligned, args);
    args->least_rows = MP_EXPERTS_THIN_ROWS + 1;
    args->most_rows = facts->limit;
    return status ? status : launch_form(cuda, stream, host, MP_EXPERTS_BROAD, aligned, args);
}

/* Runs experts of many rows by cuBLAS where that is possible: *limit is then the most rows of the
 * experts that are left. */
static moepage_status run_many(mp_cuda *cuda, mp_cu_stream stream,
                               const mp_kernel_experts_args *host,
                               const mp_kernel_experts_args *gpu, uint32_t *limit)
{
    if (!mp_cuda_fast_takes(cuda, host))
        return MOEPAGE_OK;
    moepage_status status = mp_cuda_fast_launch(cuda, stream, host, gpu);
    if (status == MOEPAGE_E_UNSUPPORTED) /* the other kernels run all of them */
        return MOEPAGE_OK;
    if (!status)
        *limit = MP_FAST_LEAST_ROWS - 1;
    return status;
}

/* What kernels call the weights of a matrix. */
static uint32_t kernel_dtype(const mp_kernel_experts_args *args, uint32_t matrix)
{
    switch (mp_quant_bits_of(args->form)) {
    case 8: return MP_CODED_INT8;
    case 4: return MP_CODED_INT4;
    case 2: return MP_CODED_INT2;
    default: return mp_gpu_experts_dtype(args->dtypes[matrix]);
    }
}

static uint32_t group_shift(const mp_kernel_experts_args *args, uint32_t matrix)
{
    return mp_quant_bits_of(args->form) ? (uint32_t)__builtin_ctz(args->group)
                                        : mp_gpu_experts_block_shift(args->dtypes[matrix]);
}

moepage_status mp_cuda_misaligned(const mp_cuda *cuda)
{
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "%s: quantised experts' matrices must start at multiples of %u bytes",
                   cuda->name, MP_CODED_ALIGN);
}

static moepage_status check_coded(const mp_cuda *cuda, const mp_kernel_experts_args *args)
{
    const uint32_t bits = mp_quant_bits_of(args->form);
    if (bits && (args->hidden % 8 || args->intermediate % 8))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: experts in int%u have rows of %u and %u weights; this device's kernels "
                       "need multiples of 8",
                       cuda->name, bits, args->hidden, args->intermediate);
    uintptr_t all = 0;
    for (uint32_t e = 0; e < args->n_experts; e++) {
        const mp_ffn_expert *expert = &args->experts[e];
        if (expert->n_rows)
            all |= (uintptr_t)expert->gate | (uintptr_t)expert->up | (uintptr_t)expert->down;
    }
    return all % MP_CODED_ALIGN ? mp_cuda_misaligned(cuda) : MOEPAGE_OK;
}

moepage_status mp_cuda_check_experts(const mp_cuda *cuda, const mp_kernel_experts_args *args)
{
    const uint32_t *dtypes = args->dtypes;
    if (args->on_host)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: experts in host memory cannot be launched on this device", cuda->name);
    for (uint32_t m = 0; m < MP_MATRICES; m++)
        if (!mp_gpu_experts_name(MP_EXPERTS_THIN, kernel_dtype(args, m), 1))
            return mp_fail(MOEPAGE_E_UNSUPPORTED,
                           "%s: experts' gate, up and down have dtypes %u, %u and %u, and this "
                           "device has no kernel for %u",
                           cuda->name, dtypes[MP_GATE], dtypes[MP_UP], dtypes[MP_DOWN], dtypes[m]);
    if (kernel_dtype(args, MP_GATE) != kernel_dtype(args, MP_UP) ||
        group_shift(args, MP_GATE) != group_shift(args, MP_UP))
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: experts' gate has dtype %u and up %u; this device's kernels read both "
                       "at once and need one",
                       cuda->name, dtypes[MP_GATE], dtypes[MP_UP]);
    if (args->activation.kind > MOEPAGE_ACTIVATION_SWIGLU_CLAMPED)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "%s: experts have activation %u, which this device's kernels do not compute",
                       cuda->name, args->activation.kind);
    const bool coded =
        kernel_dtype(args, MP_GATE) >= MP_CODED_INT8 || kernel_dtype(args, MP_DOWN) > MP_EXPERTS_F8;
    return coded ? check_coded(cuda, args) : MOEPAGE_OK;
}

mp_gpu_experts_args mp_cuda_experts_half(const mp_kernel_experts_args *of, uint32_t down)
{
    const uint32_t matrix = down ? MP_DOWN : MP_GATE;
    return (mp_gpu_experts_args){
        .top_k = of->top_k,
        .hidden = of->hidden,
        .intermediate = of->intermediate,
        .dtype = kernel_dtype(of, matrix),
        .bias_dtype = of->bias_dtype,
        .group_shift = group_shift(of, matrix),
        .scale_dtype = of->scale.dtype,
        .scale_rows = of->scale.rows,
        .scale_columns = of->scale.columns,
        .down = down,
        .clamped = of->activation.kind == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED,
        .alpha = of->activation.alpha,
        .limit = of->activation.limit,
    };
}

bool mp_cuda_experts_aligned(const mp_gpu_experts_args *half, uint64_t weights,
                             const void *operands)
{
    const uint32_t length = half->down ? half->intermediate : half->hidden;
    if (half->dtype >= MP_CODED_INT8)
        return true;
    return (weights | (uintptr_t)operands) % 16 == 0 &&
           mp_gpu_experts_aligned(length, half->dtype, half->scale_dtype, half->scale_columns);
}

moepage_status mp_cuda_launch_experts(mp_cuda *cuda, mp_cu_stream stream,
                                      const mp_kernel_experts_args *host,
                                      const mp_kernel_experts_args *gpu)
{
    uint32_t limit = UINT32_MAX;
    moepage_status status = run_many(cuda, stream, host, gpu, &limit);
    if (status)
        return status;
    const table_facts facts = facts_of(host, limit);
    if (facts.most_rows == 0 || host->hidden == 0 || host->intermediate == 0)
        return MOEPAGE_OK;
    for (uint32_t down = 0; down < 2 && !status; down++) {
        mp_gpu_experts_args args = mp_cuda_experts_half(host, down);
        args.x = gpu->x;
        args.experts = (const mp_gpu_expert *)(const void *)gpu->experts;
        args.rows = gpu->rows;
        args.inner = gpu->inner;
        args.partial = gpu->partial;
        args.n_experts = host->n_experts;
        args.inner_base = host->inner_base;
        status = launch_half(cuda, stream, host, &facts, &args);
    }
    return status;
}
