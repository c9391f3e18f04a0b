/* Tables made on the host, put on the device once. */
#include "bare_layer.h"

#include <stdlib.h>
#include <string.h>

#include "exph_data.h"
#include "kernels/fast_args.h"
#include "launch.h"

static void *new_bytes(uint64_t n)
{
    void *bytes = calloc(1, n ? n : 1);
    if (!bytes)
        gpu_die("out of host memory");
    return bytes;
}

int32_t *bare_random_ids(const bare_shape *shape, uint64_t seed)
{
    exph_random random = exph_random_of(seed);
    int32_t *ids = new_bytes((uint64_t)shape->n_tokens * shape->top_k * sizeof *ids);
    for (uint32_t t = 0; t < shape->n_tokens; t++)
        for (uint32_t k = 0; k < shape->top_k; k++) {
            int32_t *own = ids + t * shape->top_k, id;
            uint32_t at;
            do {
                id = (int32_t)exph_below(&random, shape->experts);
                for (at = 0; at < k && own[at] != id;)
                    at++;
            } while (at < k);
            own[k] = id;
        }
    return ids;
}

enum {
    MEM_X,
    MEM_OPERANDS,
    MEM_INNER,
    MEM_PARTIAL,
    MEM_Y,
    MEM_EXPERTS,
    MEM_ROWS,
    MEM_ROUTING,
    MEM_FAST,
    MEMS
};

/* Rows by expert, as a plan has them. */
static void make_tables(bare_layer *l, const int32_t *ids, const unsigned char *base,
                        uint64_t stride)
{
    const bare_shape *s = &l->shape;
    const uint32_t n_rows = s->n_tokens * s->top_k;
    const uint64_t half = 2ull * s->intermediate * s->hidden;
    uint32_t placed = 0;
    l->n_experts = 0;
    for (uint32_t e = 0; e < s->experts; e++) {
        mp_ffn_expert *x = &l->experts[l->n_experts];
        const unsigned char *gate = base + stride * e;
        *x = (mp_ffn_expert){.gate = gate,
                             .up = gate + half,
                             .down = gate + 2 * half,
                             .first_row = placed};
        for (uint32_t r = 0; r < n_rows; r++)
            if (ids[r] == (int32_t)e)
                l->rows[placed++] = r;
        x->n_rows = placed - x->first_row;
        l->n_experts += x->n_rows > 0;
    }
    memcpy(l->ids, ids, n_rows * sizeof *ids);
    for (uint32_t r = 0; r < n_rows; r++)
        l->weights[r] = 1.0f / (float)s->top_k;
}

static void make_arguments(bare_layer *l)
{
    const bare_shape *s = &l->shape;
    const uint64_t n_rows = (uint64_t)s->n_tokens * s->top_k;
    l->convert = (mp_kernel_convert_args){.x = l->memory[MEM_X],
                                          .x_stride = s->hidden,
                                          .x_dtype = MOEPAGE_DTYPE_BF16,
                                          .math = s->math,
                                          .n_tokens = s->n_tokens,
                                          .hidden = s->hidden,
                                          .out = l->memory[MEM_OPERANDS]};
    l->host = (mp_kernel_experts_args){.x = l->memory[MEM_OPERANDS],
                                       .experts = l->experts,
                                       .rows = l->rows,
                                       .inner = l->memory[MEM_INNER],
                                       .partial = l->memory[MEM_PARTIAL],
                                       .n_experts = l->n_experts,
                                       .top_k = s->top_k,
                                       .hidden = s->hidden,
                                       .intermediate = s->intermediate,
                                       MP_ONE_DTYPE(MOEPAGE_DTYPE_BF16),
                                       .math = s->math,
                                       .scratch = l->memory[MEM_FAST],
                                       .scratch_bytes = l->fast_bytes};
    l->gpu = l->host;
    l->gpu.experts = l->memory[MEM_EXPERTS];
    l->gpu.rows = l->memory[MEM_ROWS];
    l->combine = (mp_kernel_combine_args){
        .partial = l->memory[MEM_PARTIAL],
        .ids = l->memory[MEM_ROUTING],
        .weights = (const float *)(const void *)((char *)l->memory[MEM_ROUTING] + 4 * n_rows),
        .y = l->memory[MEM_Y],
        .y_stride = s->hidden,
        .y_dtype = MOEPAGE_DTYPE_BF16,
        .n_tokens = s->n_tokens,
        .top_k = s->top_k,
        .hidden = s->hidden};
}

void bare_set(gpu_bench *b, bare_layer *l, const int32_t *ids, const void *base, uint64_t stride)
{
    const uint64_t n_rows = (uint64_t)l->shape.n_tokens * l->shape.top_k;
    make_tables(l, ids, base, stride);
    make_arguments(l);
    gpu_copy(b, l->memory[MEM_EXPERTS], l->experts, l->n_experts * sizeof *l->experts);
    gpu_copy(b, l->memory[MEM_ROWS], l->rows, n_rows * sizeof *l->rows);
    gpu_copy(b, l->memory[MEM_ROUTING], l->ids, n_rows * 4);
    gpu_copy(b, (char *)l->memory[MEM_ROUTING] + 4 * n_rows, l->weights, n_rows * 4);
}

/* As a session does. */
static uint64_t open_fast(gpu_bench *b, const bare_shape *s, uint64_t n_rows)
{
    bool is_there = false;
    if (s->math != MOEPAGE_MATH_BF16_FAST || !mp_fast_serves(s->hidden, s->intermediate))
        return 0;
    gpu_must(b->home->device->ops->cuda->fast_open(b->home->device, &is_there), "cuBLAS");
    return is_there ? mp_fast_scratch_bytes(s->hidden, s->intermediate, n_rows) : 0;
}

void bare_open(gpu_bench *b, const bare_shape *shape, const int32_t *ids, const void *base,
               uint64_t stride, bare_layer *out)
{
    const uint64_t n = (uint64_t)shape->n_tokens * shape->hidden;
    const uint64_t n_rows = (uint64_t)shape->n_tokens * shape->top_k;
    *out = (bare_layer){.shape = *shape};
    out->experts = new_bytes((shape->experts + 1) * sizeof *out->experts);
    out->rows = new_bytes(n_rows * sizeof *out->rows);
    out->ids = new_bytes(n_rows * sizeof *out->ids);
    out->weights = new_bytes(n_rows * sizeof *out->weights);
    out->fast_bytes = open_fast(b, shape, n_rows);
    uint16_t *x = gpu_weights(n, 3);
    const uint64_t bytes[] = {[MEM_X] = 2 * n,
                              [MEM_OPERANDS] = 4 * n,
                              [MEM_INNER] = 4 * n_rows * shape->intermediate,
                              [MEM_PARTIAL] = 4 * n_rows * shape->hidden,
                              [MEM_Y] = 4 * n,
                              [MEM_EXPERTS] = (shape->experts + 1) * sizeof *out->experts,
                              [MEM_ROWS] = 4 * n_rows,
                              [MEM_ROUTING] = 8 * n_rows,
                              [MEM_FAST] = out->fast_bytes};
    for (uint32_t i = 0; i < MEMS; i++)
        out->memory[i] = bytes[i] ? gpu_device_memory(b, bytes[i]) : NULL;
    gpu_copy(b, out->memory[MEM_X], x, 2 * n);
    free(x);
    bare_set(b, out, ids, base, stride);
}

void bare_close(gpu_bench *b, bare_layer *l)
{
    gpu_wait(b);
    for (uint32_t i = 0; i < MEMS; i++)
        gpu_free_device(b, l->memory[i]);
    free(l->experts);
    free(l->rows);
    free(l->ids);
    free(l->weights);
}

void bare_run_on(gpu_bench *b, bare_layer *l, mp_cu_stream stream)
{
    gpu_must(mp_cuda_launch_convert(b->cuda, stream, &l->convert), "CONVERT");
    gpu_must(mp_cuda_launch_experts(b->cuda, stream, &l->host, &l->gpu), "EXPERTS");
    gpu_must(mp_cuda_launch_combine(b->cuda, stream, NULL, &l->combine, NULL), "COMBINE");
}

void bare_run(gpu_bench *b, void *layer)
{
    bare_run_on(b, layer, b->stream);
}

void bare_experts(gpu_bench *b, void *layer)
{
    bare_layer *l = layer;
    gpu_must(mp_cuda_launch_experts(b->cuda, b->stream, &l->host, &l->gpu), "EXPERTS");
}
