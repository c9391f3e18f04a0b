/* Launches of remapping: one for a small batch, four for a large one. A single token has nothing to
 * remap, and is routed by the router's kernel. */
#include "kernels/remap.h"
#include "launch.h"

/* For so many tokens one block is faster than four launches. */
#define SMALL_BATCH 32u

static void describe(const moepage_cuda_remap *args, mp_gpu_remap_args *out)
{
    const mp_cuda_remap_layout layout = mp_cuda_remap_layout_of(args->n_tokens, args->experts);
    unsigned char *scratch = args->scratch;
    *out = (mp_gpu_remap_args){
        .gate = {.logits = args->logits,
                 .bias = args->bias,
                 .kind = args->gate,
                 .dtype = args->dtype,
                 .experts = args->experts,
                 .top_k = args->top_k,
                 .scale = args->scale != 0 ? args->scale : 1},
        .preferred = args->preferred,
        .ids = args->ids,
        .weights = args->weights,
        .bins = scratch,
        .score = (float *)(void *)(scratch + layout.score),
        .first = scratch + layout.first,
        .kept = scratch + layout.kept,
        .n_tokens = args->n_tokens,
        .keep = args->keep,
        .alpha = args->alpha,
        .bonus = args->bonus,
        .beta = (uint32_t)args->beta,
    };
    const float base = args->base != 0 ? args->base : (float)args->n_tokens;
    out->power[0] = 1;
    for (uint32_t i = 1; i <= MP_REMAP_MAX_BIN; i++)
        out->power[i] = out->power[i - 1] / base;
}

static moepage_status launch_step(mp_cuda *cuda, mp_cu_stream stream, const char *name, uint32_t n,
                                  uint32_t each, const mp_gpu_remap_args *gpu)
{
    return mp_cuda_launch(cuda, stream, name, n / each + (n % each != 0), MP_REMAP_THREADS,
                          sizeof(mp_gpu_remap_shared), gpu);
}

static moepage_status launch_steps(mp_cuda *cuda, mp_cu_stream stream, const mp_gpu_remap_args *gpu)
{
    const uint32_t tokens = gpu->n_tokens, warps = MP_REMAP_THREADS / MP_LANES;
    moepage_status status = launch_step(cuda, stream, "mp_gpu_remap_bin", tokens, warps, gpu);
    if (!status)
        status = launch_step(cuda, stream, "mp_gpu_remap_score", gpu->gate.experts,
                             MP_REMAP_THREADS, gpu);
    if (!status)
        status = launch_step(cuda, stream, "mp_gpu_remap_prune", tokens, warps, gpu);
    if (!status)
        status = launch_step(cuda, stream, "mp_gpu_remap_apply", tokens, warps, gpu);
    return status;
}

static moepage_status launch_topk(mp_cuda *cuda, mp_cu_stream stream,
                                  const moepage_cuda_remap *args)
{
    const moepage_cuda_topk topk = {
        .struct_size = sizeof topk,
        .gate = args->gate,
        .dtype = args->dtype,
        .n_tokens = args->n_tokens,
        .experts = args->experts,
        .top_k = args->top_k,
        .logits = args->logits,
        .bias = args->bias,
        .scale = args->scale,
        .ids = args->ids,
        .weights = args->weights,
    };
    return mp_cuda_call_topk(cuda, stream, &topk);
}

moepage_status mp_cuda_call_remap(mp_cuda *cuda, mp_cu_stream stream,
                                  const moepage_cuda_remap *args)
{
    if (args->n_tokens <= 1)
        return launch_topk(cuda, stream, args);
    mp_gpu_remap_args gpu;
    describe(args, &gpu);
    if (args->n_tokens <= SMALL_BATCH)
        return mp_cuda_launch(cuda, stream, "mp_gpu_remap", 1, MP_REMAP_BATCH_THREADS,
                              sizeof(mp_gpu_remap_shared), &gpu);
    return launch_steps(cuda, stream, &gpu);
}
