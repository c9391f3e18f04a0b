/* A layer of a device-driven path: its kernels, on the caller's stream. Their arguments are values
 * that no replay changes. */
#include "base/status.h"
#include "kernels/elementwise_args.h"
#include "paths/path.h"

typedef struct run {
    moepage_cuda_path *path;
    const moepage_cuda_layer *layer;
    void *native;
    const void *x; /* operands: the caller's own where they can be used as they are */
} run;

static moepage_status launch(const run *r, const char *kernel, const void *args, uint32_t n_blocks,
                             uint32_t n_threads, uint32_t shared_bytes)
{
    mp_device *device = r->path->device;
    return device->ops->cuda->launch(device, kernel, args, n_blocks, n_threads, shared_bytes,
                                     r->native);
}

/* ---- which experts ---- */

static moepage_status plan(const run *r)
{
    const moepage_cuda_path *path = r->path;
    const mp_pool_shape *shape = &path->shape;
    const mp_ffn_layout *ffn = &shape->model->ffn;
    mp_gpu_path_plan_args args = {
        .ids = r->layer->ids,
        .state = path->memory.state,
        .mail = (mp_path_mail *)(uintptr_t)path->shared.device,
        .mail_stamps = (uint32_t *)(uintptr_t)(path->shared.device + sizeof(mp_path_mail)),
        .map = path->memory.map,
        .stamps = path->memory.stamps,
        .table = path->memory.table,
        .rows = path->memory.rows,
        .slots = shape->slots,
        .slot_bytes = shape->slot_bytes,
        .layout = {.gate = ffn->gate,
                   .up = ffn->up,
                   .down = ffn->down,
                   .gate_bias = ffn->gate_bias,
                   .up_bias = ffn->up_bias,
                   .down_bias = ffn->down_bias,
                   .gate_scale = UINT64_MAX,
                   .up_scale = UINT64_MAX,
                   .down_scale = UINT64_MAX},
        .timeout_ns = path->timeout_ms * 1000000ull,
        .n_keys = shape->keys,
        .experts = shape->experts,
        .layer = r->layer->layer,
        .n_rows = r->layer->n_tokens * r->layer->top_k,
    };
    if (ffn->scale.dtype != MOEPAGE_DTYPE_NONE) {
        args.layout.gate_scale = ffn->gate_scale;
        args.layout.up_scale = ffn->up_scale;
        args.layout.down_scale = ffn->down_scale;
    }
    return launch(r, "mp_gpu_path_plan", &args, 1, MP_PATH_THREADS, MP_PATH_SHARED);
}

/* ---- in and out ---- */

/* Blocks of a launch over all columns of all tokens. */
static uint32_t element_blocks(const run *r)
{
    uint32_t hidden = r->path->shape.model->info.hidden;
    return r->layer->n_tokens * ((hidden + MP_ELEMENTWISE_COLUMNS - 1) / MP_ELEMENTWISE_COLUMNS);
}

static moepage_status convert(run *r)
{
    const mp_session_scratch *scratch = &r->path->scratch;
    const moepage_cuda_layer *layer = r->layer;
    uint32_t hidden = r->path->shape.model->info.hidden;
    bool narrow = scratch->math != MOEPAGE_MATH_FP32;
    mp_gpu_convert_args args = {
        .x = layer->x,
        .out = scratch->x,
        .x_stride = layer->x_stride ? layer->x_stride : hidden,
        .x_dtype = layer->dtype,
        .to_bf16 = narrow,
        .n_tokens = layer->n_tokens,
        .hidden = hidden,
    };
    bool as_it_is = layer->dtype == (narrow ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32) &&
                    args.x_stride == hidden;
    r->x = as_it_is ? layer->x : args.out;
    return as_it_is ? MOEPAGE_OK
                    : launch(r, "mp_gpu_convert", &args, element_blocks(r), MP_ELEMENTWISE_THREADS,
                             sizeof(mp_gpu_elementwise_shared));
}

static moepage_status combine(const run *r)
{
    const mp_session_scratch *scratch = &r->path->scratch;
    const moepage_cuda_layer *layer = r->layer;
    uint32_t hidden = r->path->shape.model->info.hidden;
    mp_gpu_combine_args args = {
        .partial = scratch->partial,
        .weights = layer->weights,
        .ids = layer->ids,
        .given_up = &r->path->memory.state->failed,
        .y = layer->y,
        .y_stride = layer->y_stride ? layer->y_stride : hidden,
        .y_dtype = layer->dtype,
        .n_tokens = layer->n_tokens,
        .top_k = layer->top_k,
        .hidden = hidden,
        .accumulate = layer->accumulate,
    };
    return launch(r, "mp_gpu_combine", &args, element_blocks(r), MP_ELEMENTWISE_THREADS,
                  sizeof(mp_gpu_elementwise_shared));
}

/* ---- experts ---- */

/* May all that this half reads be read 16 bytes at a time? */
static bool is_aligned(const run *r, uint32_t down)
{
    const struct moepage_model *model = r->path->shape.model;
    const mp_ffn_layout *ffn = &model->ffn;
    uint32_t length = down ? model->info.expert_intermediate : model->info.hidden;
    uint64_t weights = down ? ffn->down : ffn->gate | ffn->up;
    const void *operands = down ? r->path->scratch.inner : r->x;
    uint64_t bits = (uint64_t)(uintptr_t)operands | weights | r->path->shape.slot_bytes |
                    (uint64_t)(uintptr_t)r->path->shape.slots;
    return bits % 16 == 0 &&
           mp_gpu_experts_aligned(length, ffn->dtype, ffn->scale.dtype, ffn->scale.columns);
}

static moepage_status launch_form(const run *r, uint32_t down, uint32_t form, uint32_t least_rows,
                                  uint32_t most_rows)
{
    const moepage_cuda_path *path = r->path;
    const struct moepage_model *model = path->shape.model;
    const mp_session_scratch *scratch = &path->scratch;
    mp_gpu_experts_args args = {
        .x = r->x,
        .experts = path->memory.table,
        .rows = path->memory.rows,
        .n_experts_at = &path->memory.state->n_experts,
        .inner = scratch->inner,
        .partial = scratch->partial,
        .top_k = r->layer->top_k,
        .hidden = model->info.hidden,
        .intermediate = model->info.expert_intermediate,
        .dtype = model->ffn.dtype,
        .scale_dtype = model->ffn.scale.dtype,
        .scale_rows = model->ffn.scale.rows,
        .scale_columns = model->ffn.scale.columns,
        .down = down,
        .least_rows = least_rows,
        .most_rows = most_rows,
    };
    const char *name = mp_gpu_experts_name(form, model->ffn.dtype, is_aligned(r, down));
    return launch(r, name, &args, path->blocks, MP_EXPERTS_THREADS, mp_gpu_experts_shared(form));
}

/* How many rows an expert has is not known here: where there is a choice of forms, each gets a
 * launch, and takes the experts that are its own. */
static moepage_status run_half(const run *r, uint32_t down)
{
    bool plain = r->path->scratch.math == MOEPAGE_MATH_FP32;
    bool few = r->layer->n_tokens * r->layer->top_k <= MP_EXPERTS_THIN_ROWS;
    if (plain || few || !is_aligned(r, down))
        return launch_form(r, down, plain ? MP_EXPERTS_PLAIN : MP_EXPERTS_THIN, 0, UINT32_MAX);
    moepage_status status = launch_form(r, down, MP_EXPERTS_THIN, 0, MP_EXPERTS_THIN_ROWS);
    if (!status)
        status = launch_form(r, down, MP_EXPERTS_BROAD, MP_EXPERTS_THIN_ROWS + 1, UINT32_MAX);
    return status;
}

/* ---- the layer ---- */

static moepage_status check_layer(const moepage_cuda_path *path, const moepage_cuda_layer *layer)
{
    uint32_t hidden = path->shape.model->info.hidden;
    if (layer->layer >= path->shape.layers)
        return mp_fail(MOEPAGE_E_ARGUMENT, "layer is %u, the model has %u MoE layers", layer->layer,
                       path->shape.layers);
    if (layer->n_tokens < 1 || layer->n_tokens > path->max_tokens)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n_tokens is %u, it must be 1 to max_tokens (%u)",
                       layer->n_tokens, path->max_tokens);
    if (layer->top_k < 1 || layer->top_k > path->max_top_k)
        return mp_fail(MOEPAGE_E_ARGUMENT, "top_k is %u, it must be 1 to max_top_k (%u)",
                       layer->top_k, path->max_top_k);
    if (layer->dtype != MOEPAGE_DTYPE_F32 && layer->dtype != MOEPAGE_DTYPE_F16 &&
        layer->dtype != MOEPAGE_DTYPE_BF16)
        return mp_fail(MOEPAGE_E_ARGUMENT, "dtype of x and y is %u, it must be F32, F16 or BF16",
                       layer->dtype);
    if (layer->accumulate > 1)
        return mp_fail(MOEPAGE_E_ARGUMENT, "accumulate is %u, it must be 0 or 1",
                       layer->accumulate);
    if (!layer->ids || !layer->weights || !layer->x || !layer->y)
        return mp_fail(MOEPAGE_E_ARGUMENT, "ids, weights, x or y is NULL");
    if ((layer->x_stride && layer->x_stride < hidden) ||
        (layer->y_stride && layer->y_stride < hidden))
        return mp_fail(MOEPAGE_E_ARGUMENT, "a stride is shorter than a row of %u elements", hidden);
    return MOEPAGE_OK;
}

moepage_status mp_path_layer(moepage_cuda_path *path, const moepage_cuda_layer *layer, void *stream)
{
    run r = {.path = path, .layer = layer, .native = stream};
    moepage_status status = check_layer(path, layer);
    if (!status)
        status = plan(&r);
    if (!status)
        status = convert(&r);
    for (uint32_t down = 0; down < 2 && !status; down++)
        status = run_half(&r, down);
    if (!status)
        status = combine(&r);
    return status;
}
