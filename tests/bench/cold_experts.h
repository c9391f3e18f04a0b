/* cold_experts.h — experts of one block format, or of floats, more of them than the last-level cache holds,
 * for programs that time kernels on them as paging finds them: each in its turn. */
#ifndef COLD_EXPERTS_H
#define COLD_EXPERTS_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "codec/blocks.h"
#include "device/host_kernels.h"
#include "moepage.h"
#include "random_blocks.h"

#define MAX_ROWS 512
#ifndef COLD_BYTES
#define COLD_BYTES (256ull << 20)
#endif

typedef struct cold_experts {
    const mp_host_kernel_set *set;
    const char *name;
    uint32_t dtype, hidden, intermediate, math, n_rows, n_threads;
    uint32_t n_experts;
    uint8_t *weights; /* gate, up and down of each in turn */
    uint64_t matrix_bytes, expert_bytes;
    float *from; /* x before conversion */
    void *x, *inner;
    float *out;
    uint32_t *rows;
} cold_experts;

/* Of one thread the process's own time: other processes' turns are not its work. */
static inline double cold_seconds(uint32_t n_threads)
{
    struct timespec now;
    clock_gettime(n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* In huge pages where the system has them, as the library's own. */
static inline void *cold_memory(uint64_t bytes)
{
    const uint64_t page = 2ull << 20, whole = (bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, whole);
    if (!memory)
        exit(1);
    (void)madvise(memory, whole, MADV_HUGEPAGE);
    return memory;
}

/* Small numbers of either sign, as floats or bfloat16: none is denormal or infinite. */
static inline void cold_fill(void *memory, uint64_t bytes)
{
    uint32_t state = 12345;
    for (uint64_t i = 0; i < bytes / 2; i++) {
        state = state * 1664525u + 1013904223u;
        ((uint16_t *)memory)[i] = (uint16_t)(0x3c00 | (state >> 16 & 0x80ff));
    }
}

/* One expert of random weights, and copies of it. */
static inline void cold_fill_weights(cold_experts *c, const mp_block_format *format)
{
    if (format)
        random_blocks(c->dtype, c->expert_bytes / format->bytes, c->weights);
    else
        cold_fill(c->weights, c->expert_bytes);
    for (uint32_t e = 1; e < c->n_experts; e++)
        memcpy(c->weights + e * c->expert_bytes, c->weights, c->expert_bytes);
}

/* Opens what dtype and shape say. */
static inline void cold_open(cold_experts *c)
{
    const mp_block_format *format = mp_block_format_of(c->dtype);
    const uint64_t n = (uint64_t)c->hidden * c->intermediate;
    c->matrix_bytes = format                          ? n / format->weights * format->bytes
                      : c->dtype == MOEPAGE_DTYPE_F32 ? n * 4
                                                      : n * 2;
    c->expert_bytes = 3 * c->matrix_bytes;
    c->n_experts = (uint32_t)(COLD_BYTES / c->expert_bytes) + 1;
    c->weights = cold_memory(c->n_experts * c->expert_bytes);
    cold_fill_weights(c, format);
    c->from = cold_memory((uint64_t)MAX_ROWS * c->hidden * 4);
    c->x = cold_memory((uint64_t)MAX_ROWS * c->hidden * 4);
    c->inner = cold_memory((uint64_t)MAX_ROWS * c->intermediate * 4);
    c->out = cold_memory((uint64_t)MAX_ROWS * c->hidden * 4);
    c->rows = cold_memory(MAX_ROWS * sizeof *c->rows);
    cold_fill(c->from, (uint64_t)MAX_ROWS * c->hidden * 4);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        c->rows[r] = r;
}

static inline void cold_close(cold_experts *c)
{
    free(c->weights);
    free(c->from);
    free(c->x);
    free(c->inner);
    free(c->out);
    free(c->rows);
}

/* Converts a thread's share of x. */
static inline void cold_convert(const cold_experts *c, uint32_t part)
{
    const mp_kernel_args args = {.convert = {.x = c->from,
                                             .x_stride = c->hidden,
                                             .x_dtype = MOEPAGE_DTYPE_F32,
                                             .math = c->math,
                                             .n_tokens = c->n_rows,
                                             .hidden = c->hidden,
                                             .out = c->x}};
    mp_host_kernel_run(c->set, MP_KERNEL_CONVERT, &args, 0, part, c->n_threads);
}

/* The arithmetic of that name, or FP32. */
static inline uint32_t cold_math(const char *name)
{
    return name && strcmp(name, "bf16") == 0   ? MOEPAGE_MATH_BF16
           : name && strcmp(name, "int8") == 0 ? MOEPAGE_MATH_INT8
                                               : MOEPAGE_MATH_FP32;
}

/* Reads a thread's share of expert e, and nothing else. */
__attribute__((target("avx2"))) static inline void cold_read(const cold_experts *c, uint32_t e,
                                                             uint32_t part)
{
    const uint64_t bytes = c->expert_bytes / c->n_threads & ~255ull;
    const uint8_t *from = c->weights + e * c->expert_bytes + part * bytes;
    __m256i sum[4] = {_mm256_setzero_si256()};
    for (uint64_t i = 0; i < bytes; i += 128)
        for (uint32_t j = 0; j < 4; j++)
            sum[j] =
                _mm256_xor_si256(sum[j], _mm256_loadu_si256((const void *)(from + i + 32 * j)));
    sum[0] = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    __asm__ volatile("" ::"x"(sum[0]));
}

/* Runs a thread's share of one phase of expert e. */
static inline void cold_run(const cold_experts *c, uint32_t e, uint32_t phase, uint32_t part)
{
    const uint8_t *at = c->weights + e * c->expert_bytes;
    const mp_ffn_expert expert = {.gate = at,
                                  .up = at + c->matrix_bytes,
                                  .down = at + 2 * c->matrix_bytes,
                                  .n_rows = c->n_rows};
    const mp_kernel_args args = {.experts = {.x = c->x,
                                             .experts = &expert,
                                             .rows = c->rows,
                                             .inner = c->inner,
                                             .partial = c->out,
                                             .n_experts = 1,
                                             .top_k = 1,
                                             .hidden = c->hidden,
                                             .intermediate = c->intermediate,
                                             MP_ONE_DTYPE(c->dtype),
                                             .math = c->math}};
    mp_host_kernel_run(c->set, MP_KERNEL_EXPERTS, &args, phase, part, c->n_threads);
}

/* Returns what follows "name=" among the arguments, or NULL. */
static inline const char *cold_option(int argc, char **argv, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return NULL;
}

#endif
