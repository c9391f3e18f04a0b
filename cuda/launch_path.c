/* One layer of a device-driven path: finding its experts, converting operands, running experts,
 * combining results. Every launch's arguments are the same in all replays of a graph, and no grid
 * depends on the routing. */
#include "base/status.h"
#include "kernels/path_args.h"
#include "launch.h"

typedef struct run {
    mp_cuda *cuda;
    mp_cu_stream stream;
    const mp_cuda_path_layer *path;
    const moepage_cuda_layer *layer; /* path's */
    const void *x; /* operands: the caller's own where they can be used as they are */
} run;

static moepage_status plan(const run *r)
{
    const mp_cuda_path_layer *path = r->path;
    const mp_gpu_path_plan_args args = {
        .ids = r->layer->ids,
        .state = path->memory.state,
        .mail = (mp_path_mail *)(uintptr_t)path->mail,
        .mail_stamps = (uint32_t *)(uintptr_t)(path->mail + sizeof(mp_path_mail)),
        .map = path->memory.map,
        .stamps = path->memory.stamps,
        .table = (mp_gpu_expert *)(void *)path->memory.table,
        .rows = path->memory.rows,
        .slots = path->slots,
        .slot_bytes = path->slot_bytes,
        .layout = path->layout,
        .timeout_ns = path->timeout_ns,
        .n_keys = path->n_keys,
        .experts = path->experts,
        .layer = r->layer->layer,
        .n_rows = r->layer->n_tokens * r->layer->top_k,
    };
    return mp_cuda_launch(r->cuda, r->stream, "mp_gpu_path_plan", 1, MP_PATH_THREADS,
                          MP_PATH_SHARED, &args);
}

static moepage_status convert(run *r)
{
    const moepage_cuda_layer *layer = r->layer;
    const mp_kernel_convert_args args = {
        .x = layer->x,
        .x_stride = layer->x_stride ? layer->x_stride : r->path->kind.hidden,
        .x_dtype = layer->dtype,
        .math = r->path->kind.math,
        .n_tokens = layer->n_tokens,
        .hidden = r->path->kind.hidden,
        .out = r->path->x,
    };
    const uint32_t operand =
        args.math == MOEPAGE_MATH_FP32 ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
    const bool as_it_is = layer->dtype == operand && args.x_stride == args.hidden &&
                          (uintptr_t)layer->x % MP_OPERAND_ALIGN == 0;
    r->x = as_it_is ? layer->x : args.out;
    return as_it_is ? MOEPAGE_OK : mp_cuda_launch_convert(r->cuda, r->stream, &args);
}

static moepage_status combine(const run *r)
{
    const moepage_cuda_layer *layer = r->layer;
    const mp_kernel_combine_args args = {
        .partial = r->path->kind.partial,
        .weights = layer->weights,
        .ids = layer->ids,
        .y = layer->y,
        .y_stride = layer->y_stride ? layer->y_stride : r->path->kind.hidden,
        .y_dtype = layer->dtype,
        .n_tokens = layer->n_tokens,
        .top_k = layer->top_k,
        .hidden = r->path->kind.hidden,
        .accumulate = layer->accumulate,
    };
    return mp_cuda_launch_combine(r->cuda, r->stream, NULL, &args, &r->path->memory.state->failed);
}

/* ---- Experts ---- */

/* The bits that the address of any matrix of this half has. */
static uint64_t weights_bits(const run *r, uint32_t down)
{
    const mp_cuda_path_layer *path = r->path;
    return (down ? path->layout.down : path->layout.gate | path->layout.up) | path->slot_bytes |
           (uint64_t)(uintptr_t)path->slots;
}

/* Returns true if all that this half reads may be read 16 bytes at a time. */
static bool is_aligned(const run *r, const mp_gpu_experts_args *half)
{
    return mp_cuda_experts_aligned(half, weights_bits(r, half->down),
                                   half->down ? r->path->kind.inner : r->x);
}

static moepage_status launch_form(const run *r, mp_gpu_experts_args args, uint32_t form,
                                  uint32_t least_rows, uint32_t most_rows)
{
    const mp_cuda_path_layer *path = r->path;
    args.x = r->x;
    args.experts = (const mp_gpu_expert *)(const void *)path->memory.table;
    args.rows = path->memory.rows;
    args.n_experts = path->experts;
    args.n_experts_at = &path->memory.state->n_experts;
    args.inner = path->kind.inner;
    args.partial = path->kind.partial;
    args.least_rows = least_rows;
    args.most_rows = most_rows;
    return mp_cuda_launch(r->cuda, r->stream,
                          mp_gpu_experts_name(form, args.dtype, is_aligned(r, &args)),
                          r->cuda->info.multiprocessors * MP_EXPERTS_BLOCKS_PER_SM,
                          MP_EXPERTS_THREADS, mp_gpu_experts_shared(form), &args);
}

/* The number of an expert's rows is not known here: if there are two kernels to choose from, both
 * are launched, and each takes its own experts. */
static moepage_status run_half(const run *r, uint32_t down)
{
    const mp_gpu_experts_args half = mp_cuda_experts_half(&r->path->kind, down);
    const bool plain = r->path->kind.math == MOEPAGE_MATH_FP32;
    if (half.dtype >= MP_CODED_INT8 && weights_bits(r, down) % MP_CODED_ALIGN)
        return mp_cuda_misaligned(r->cuda);
    const bool few = r->layer->n_tokens * r->layer->top_k <= MP_EXPERTS_THIN_ROWS;
    if (plain || few || !is_aligned(r, &half))
        return launch_form(r, half, plain ? MP_EXPERTS_PLAIN : MP_EXPERTS_THIN, 0, UINT32_MAX);
    moepage_status status = launch_form(r, half, MP_EXPERTS_THIN, 0, MP_EXPERTS_THIN_ROWS);
    if (!status)
        status = launch_form(r, half, MP_EXPERTS_BROAD, MP_EXPERTS_THIN_ROWS + 1, UINT32_MAX);
    return status;
}

moepage_status mp_cuda_launch_path_layer(mp_cuda *cuda, mp_cu_stream stream,
                                         const mp_cuda_path_layer *layer)
{
    run r = {.cuda = cuda, .stream = stream, .path = layer, .layer = layer->layer};
    moepage_status status = plan(&r);
    if (!status)
        status = convert(&r);
    for (uint32_t down = 0; down < 2 && !status; down++)
        status = run_half(&r, down);
    return status ? status : combine(&r);
}
