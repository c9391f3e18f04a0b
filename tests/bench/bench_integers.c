/* How fast the host kernels run experts of integer weights beside the same in BF16, on one thread.
 * Not part of any suite; docs/host-kernels.md has the command and what came out.
 *
 * Experts are taken in turn from a set larger than the last-level cache, as paging finds them; its
 * bytes are random, which no time depends on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/host_kernels.h"
#include "moepage.h"

#define MAX_ROWS 64
#define COLD_BYTES (256ull << 20)
#define RUNS 5
#define RUN_SECONDS 0.2
#define GROUP 64

typedef struct bench {
    const char *name;
    uint32_t hidden, intermediate;
    uint32_t form, math, n_rows;
    uint32_t n_experts;
    mp_ffn_expert *experts;
    char *weights;
    uint64_t expert_bytes;
    void *x, *inner;
    float *out;
    uint32_t *rows;
} bench;

/* The process's own time: it has one thread, and other processes' turns are not its work. */
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *aligned(uint64_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) & ~4095ull);
    if (!memory)
        exit(1);
    return memory;
}

/* Small numbers of either sign, as floats, bfloat16 or halves: none is denormal or infinite. */
static void fill(void *memory, uint64_t bytes)
{
    uint32_t state = 12345;
    for (uint64_t i = 0; i < bytes / 2; i++) {
        state = state * 1664525u + 1013904223u;
        ((uint16_t *)memory)[i] = (uint16_t)(0x3c00 | (state >> 16 & 0x80ff));
    }
}

/* Where a matrix's integers and scales lie, and its size; as `dtype` alone in the dense form. */
static uint64_t place(const bench *b, char *at, uint64_t rows, uint64_t columns,
                      const void **weights, const void **scales)
{
    *weights = at;
    if (b->form == MOEPAGE_FORM_DENSE)
        return rows * columns * 2;
    mp_quant_shape shape = {rows, columns, mp_quant_bits_of(b->form), GROUP};
    mp_quant_layout layout;
    if (!mp_quant_layout_of(&shape, &layout))
        exit(1);
    *scales = at + layout.scale_offset;
    return layout.bytes;
}

static uint64_t place_expert(const bench *b, char *at, mp_ffn_expert *out)
{
    char *from = at;
    *out = (mp_ffn_expert){0};
    at += place(b, at, b->intermediate, b->hidden, &out->gate, &out->gate_scale);
    at += place(b, at, b->intermediate, b->hidden, &out->up, &out->up_scale);
    at += place(b, at, b->hidden, b->intermediate, &out->down, &out->down_scale);
    return (uint64_t)(at - from);
}

static void open_bench(bench *b)
{
    mp_ffn_expert one;
    b->expert_bytes = place_expert(b, NULL, &one);
    b->n_experts = (uint32_t)(COLD_BYTES / b->expert_bytes) + 1;
    b->experts = aligned(b->n_experts * sizeof *b->experts);
    b->weights = aligned(b->n_experts * b->expert_bytes);
    fill(b->weights, b->n_experts * b->expert_bytes);
    for (uint32_t e = 0; e < b->n_experts; e++)
        place_expert(b, b->weights + e * b->expert_bytes, &b->experts[e]);
    b->x = aligned((uint64_t)MAX_ROWS * b->hidden * 4);
    b->inner = aligned((uint64_t)MAX_ROWS * b->intermediate * 4);
    b->out = aligned((uint64_t)MAX_ROWS * b->hidden * 4);
    b->rows = aligned(MAX_ROWS * sizeof *b->rows);
    fill(b->x, (uint64_t)MAX_ROWS * b->hidden * 4);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        b->rows[r] = r;
}

static void close_bench(bench *b)
{
    free(b->experts);
    free(b->weights);
    free(b->x);
    free(b->inner);
    free(b->out);
    free(b->rows);
}

static void run_one(bench *b, const mp_host_kernel_set *set, uint32_t e)
{
    mp_ffn_expert expert = b->experts[e];
    expert.n_rows = b->n_rows;
    mp_kernel_args args = {.experts = {.x = b->x,
                                       .experts = &expert,
                                       .rows = b->rows,
                                       .inner = b->inner,
                                       .partial = b->out,
                                       .n_experts = 1,
                                       .top_k = 1,
                                       .hidden = b->hidden,
                                       .intermediate = b->intermediate,
                                       MP_ONE_DTYPE(MOEPAGE_DTYPE_BF16),
                                       .math = b->math,
                                       .form = b->form,
                                       .group = GROUP}};
    mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &args, 0, 0, 1);
    mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &args, 1, 0, 1);
}

/* Seconds per expert: the best of RUNS runs of at least RUN_SECONDS, after one to warm up. */
static double time_one(bench *b, const mp_host_kernel_set *set)
{
    double best = 1e9;
    run_one(b, set, 0);
    for (int run = 0; run < RUNS; run++) {
        uint32_t n = 0;
        double begin = seconds();
        do {
            run_one(b, set, ++n % b->n_experts);
        } while (seconds() - begin < RUN_SECONDS);
        double each = (seconds() - begin) / n;
        best = each < best ? each : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t hidden, intermediate;
    } shapes[] = {{"H 2048, I 768", 2048, 768}, {"H 4096, I 14336", 4096, 14336}};
    static const uint32_t maths[] = {MOEPAGE_MATH_BF16, MOEPAGE_MATH_FP32};
    static const uint32_t forms[] = {MOEPAGE_FORM_DENSE, MOEPAGE_FORM_INT8, MOEPAGE_FORM_INT4,
                                     MOEPAGE_FORM_INT2};
    static const char *const names[] = {"BF16", "int8", "int4", "int2"};
    static const uint32_t counts[] = {1, 4, 16, 64};
    const mp_host_kernel_set *set =
        argc > 1 ? mp_host_kernels_find(argv[1]) : mp_host_kernels_best();
    if (!set) {
        fprintf(stderr, "usage: %s [portable|avx2|avx512|avx512-bf16]\n", argv[0]);
        return 1;
    }
    for (size_t s = 0; s < 2; s++)
        for (size_t m = 0; m < 2; m++) {
            printf("%s, %s, math %s: GFLOP/s at 1, 4, 16 and 64 rows; GB/s at 1\n", shapes[s].name,
                   mp_host_kernels_name(set), m ? "FP32" : "BF16");
            for (size_t f = 0; f < 4; f++) {
                bench b = {.hidden = shapes[s].hidden,
                           .intermediate = shapes[s].intermediate,
                           .form = forms[f],
                           .math = maths[m]};
                open_bench(&b);
                double once = 0;
                printf("  %s", names[f]);
                for (size_t i = 0; i < 4; i++) {
                    b.n_rows = counts[i];
                    double each = time_one(&b, set);
                    once = i == 0 ? each : once;
                    printf(" %7.1f", 6.0 * b.n_rows * b.hidden * b.intermediate / each * 1e-9);
                    fflush(stdout);
                }
                printf("  %5.1f\n", (double)b.expert_bytes / once * 1e-9);
                close_bench(&b);
            }
        }
    return 0;
}
