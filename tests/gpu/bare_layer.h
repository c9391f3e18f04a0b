/* bare_layer.h — a layer's experts as nothing but the kernels: weights that lie in device memory,
 * tables that are there already. What paging is compared with. */
#ifndef MP_TESTS_BARE_LAYER_H
#define MP_TESTS_BARE_LAYER_H

#include "gpu_bench.h"

typedef struct bare_shape {
    uint32_t experts, top_k, hidden, intermediate, n_tokens, math;
} bare_shape;

/* Experts' weights: expert e's gate and up at base + e * stride, its down behind them. */
typedef struct bare_layer {
    bare_shape shape;
    uint32_t n_experts; /* distinct ones that are routed */
    mp_ffn_expert *experts;
    uint32_t *rows;
    int32_t *ids;
    float *weights;
    mp_kernel_convert_args convert;
    mp_kernel_experts_args host, gpu;
    mp_kernel_combine_args combine;
    void *memory[9];
    uint64_t fast_bytes; /* scratch of MATH_BF16_FAST; 0 = none */
} bare_layer;

/* `ids` [n_tokens][top_k], host memory, copied. */
void bare_open(gpu_bench *b, const bare_shape *shape, const int32_t *ids, const void *base,
               uint64_t stride, bare_layer *out);
/* Points it at other weights and routes it to other experts; done when it returns. */
void bare_set(gpu_bench *b, bare_layer *layer, const int32_t *ids, const void *base,
              uint64_t stride);
void bare_close(gpu_bench *b, bare_layer *layer);

/* Submits the layer to b->stream, or to `stream`. */
void bare_run(gpu_bench *b, void *layer);
void bare_run_on(gpu_bench *b, bare_layer *layer, mp_cu_stream stream);
/* The experts' kernels alone. */
void bare_experts(gpu_bench *b, void *layer);

/* [n_tokens][top_k] distinct random experts per token. */
int32_t *bare_random_ids(const bare_shape *shape, uint64_t seed);

#endif
