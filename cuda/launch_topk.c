/* The grid of the kernel that routes. */
#include "kernels/topk.h"
#include "launch.h"

_Static_assert((int)MP_TOPK_SOFTMAX_ALL == (int)MOEPAGE_CUDA_GATE_SOFTMAX_ALL &&
                   (int)MP_TOPK_SOFTMAX_ALL_NORM == (int)MOEPAGE_CUDA_GATE_SOFTMAX_ALL_NORM &&
                   (int)MP_TOPK_SOFTMAX_TOP == (int)MOEPAGE_CUDA_GATE_SOFTMAX_TOP &&
                   (int)MP_TOPK_SIGMOID_NORM == (int)MOEPAGE_CUDA_GATE_SIGMOID_NORM,
               "kernels and header number the gates alike");

moepage_status mp_cuda_call_topk(mp_cuda *cuda, mp_cu_stream stream, const moepage_cuda_topk *args)
{
    if (!args->n_tokens)
        return MOEPAGE_OK;
    const mp_gpu_topk_args gpu = {
        .gate = {.logits = args->logits,
                 .bias = args->bias,
                 .kind = args->gate,
                 .dtype = args->dtype,
                 .experts = args->experts,
                 .top_k = args->top_k,
                 .scale = args->scale != 0 ? args->scale : 1},
        .ids = args->ids,
        .weights = args->weights,
        .n_tokens = args->n_tokens,
    };
    const uint32_t warps = MP_TOPK_THREADS / MP_LANES;
    const uint32_t blocks = gpu.n_tokens / warps + (gpu.n_tokens % warps != 0);
    return mp_cuda_launch(cuda, stream, "mp_gpu_topk", mp_cuda_grid(blocks), MP_TOPK_THREADS,
                          sizeof(mp_gpu_topk_shared), &gpu);
}
