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
        .x_stride = layer->x_stride ? layer->x_stride : r->path->hidden,
        .x_dtype = layer->dtype,
        .math = r->path->math,
        .n_tokens = layer->n_tokens,
        .hidden = r->path->hidden,
        .out = r->path->x,
    };
    const uint32_t operand =
        args.math == MOEPAGE_MATH_FP32 ? MOEPAGE_DTYPE_F32 : MOEPAGE_DTYPE_BF16;
    const bool as_it_is = layer->dtype == operand && args.x_stride == args.hidden;
    r->x = as_it_is ? layer->x : args.out;
    return as_it_is ? MOEPAGE_OK : mp_cuda_launch_convert(r->cuda, r->stream, &args);
}

static moepage_status combine(const run *r)
{
    const moepage_cuda_layer *layer = r->layer;
    const mp_kernel_combine_args args = {
        .partial = r->path->partial,
        .weights = layer->weights,
        .ids = layer->ids,
        .y = layer->y,
        .y_stride = layer->y_stride ? layer->y_stride : r->path->hidden,
        .y_dtype = layer->dtype,
        .n_tokens = layer->n_tokens,
        .top_k = layer->top_k,
        .hidden = r->path->hidden,
        .accumulate = layer->accumulate,
    };
    return mp_cuda_launch_combine(r->cuda, r->stream, &args, &r->path->memory.state->failed);
}

/* ---- Experts ---- */

/* Returns true if all that this half reads may be read 16 bytes at a time. */
static bool is_aligned(const run *r, uint32_t down)
{
    const mp_cuda_path_layer *path = r->path;
    const uint32_t length = down ? path->intermediate : path->hidden;
    const uint64_t weights = down ? path->layout.down : path->layout.gate | path->layout.up;
    const void *operands = down ? path->inner : r->x;
    const uint64_t bits = (uint64_t)(uintptr_t)operands | weights | path->slot_bytes |
                          (uint64_t)(uintptr_t)path->slots;
    return bits % 16 == 0 &&
           mp_gpu_experts_aligned(length, path->dtype, path->scale.dtype, path->scale.columns);
}

static moepage_status launch_form(const run *r, uint32_t down, uint32_t form, uint32_t least_rows,
                                  uint32_t most_rows)
{
    const mp_cuda_path_layer *path = r->path;
    const mp_gpu_experts_args args = {
        .x = r->x,
        .experts = (const mp_gpu_expert *)(const void *)path->memory.table,
        .rows = path->memory.rows,
        .n_experts = path->experts,
        .n_experts_at = &path->memory.state->n_experts,
        .inner = path->inner,
        .partial = path->partial,
        .top_k = r->layer->top_k,
        .hidden = path->hidden,
        .intermediate = path->intermediate,
        .dtype = path->dtype,
        .bias_dtype = path->dtype,
        .scale_dtype = path->scale.dtype,
        .scale_rows = path->scale.rows,
        .scale_columns = path->scale.columns,
        .down = down,
        .least_rows = least_rows,
        .most_rows = most_rows,
    };
    return mp_cuda_launch(r->cuda, r->stream,
                          mp_gpu_experts_name(form, path->dtype, is_aligned(r, down)),
                          r->cuda->info.multiprocessors * MP_EXPERTS_BLOCKS_PER_SM,
                          MP_EXPERTS_THREADS, mp_gpu_experts_shared(form), &args);
}

/* The number of an expert's rows is not known here: if there are two kernels to choose from, both
 * are launched, and each takes its own experts. */
static moepage_status run_half(const run *r, uint32_t down)
{
    const bool plain = r->path->math == MOEPAGE_MATH_FP32;
    const bool few = r->layer->n_tokens * r->layer->top_k <= MP_EXPERTS_THIN_ROWS;
    if (plain || few || !is_aligned(r, down))
        return launch_form(r, down, plain ? MP_EXPERTS_PLAIN : MP_EXPERTS_THIN, 0, UINT32_MAX);
    moepage_status status = launch_form(r, down, MP_EXPERTS_THIN, 0, MP_EXPERTS_THIN_ROWS);
    if (!status)
        status = launch_form(r, down, MP_EXPERTS_BROAD, MP_EXPERTS_THIN_ROWS + 1, UINT32_MAX);
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
