/* Compares the host kernels with oneDNN on the three matrix products of an expert, on one thread.
 * Not part of any suite; docs/host-kernels.md has the command and what came out.
 *
 * oneDNN does the matrix products only: its times leave out SwiGLU, conversions and rows gathered
 * by index, which ours include. "plain" reads weights as checkpoints store them, [out][in];
 * "packed" lets oneDNN choose its layout, and leaves out the time to bring weights into it.
 * Experts are taken in turn from a set larger than the last-level cache, as paging finds them. */
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/host_kernels.h"
#include "moepage.h"

#define MAX_ROWS 256
#define COLD_BYTES (256ull << 20)
#define RUNS 5
#define RUN_SECONDS 0.3

typedef struct shape {
    const char *name;
    uint32_t hidden;
    uint32_t intermediate;
} shape;

typedef struct bench {
    shape shape;
    uint32_t dtype; /* of weights */
    uint32_t math;
    uint32_t n_rows;
    uint32_t n_experts;
    char *weights; /* [n_experts][gate, up, down] */
    uint64_t expert_bytes;
    void *x;
    void *inner;
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

static uint64_t size_of(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
}

static void *aligned(uint64_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) & ~4095ull);
    if (!memory)
        exit(1);
    return memory;
}

/* Small numbers of either sign. */
static void fill(void *memory, uint32_t dtype, uint64_t n)
{
    uint32_t state = 12345;
    for (uint64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float value = ((float)(state >> 8) - 8388608.0f) * 0x1p-26f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == MOEPAGE_DTYPE_F32)
            ((float *)memory)[i] = value;
        else
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    }
}

static void open_bench(bench *b)
{
    const uint64_t each = (uint64_t)b->shape.hidden * b->shape.intermediate;
    b->expert_bytes = 3 * each * size_of(b->dtype);
    b->n_experts = (uint32_t)(COLD_BYTES / b->expert_bytes) + 1;
    b->weights = aligned(b->n_experts * b->expert_bytes);
    for (uint32_t e = 0; e < b->n_experts; e++)
        fill(b->weights + e * b->expert_bytes, b->dtype, 3 * each);
    b->x = aligned((uint64_t)MAX_ROWS * b->shape.hidden * 4);
    b->inner = aligned((uint64_t)MAX_ROWS * b->shape.intermediate * 4);
    const uint32_t wider =
        b->shape.hidden > b->shape.intermediate ? b->shape.hidden : b->shape.intermediate;
    b->out = aligned((uint64_t)MAX_ROWS * wider * 4);
    b->rows = aligned(MAX_ROWS * sizeof *b->rows);
    const uint32_t operand = b->math == MOEPAGE_MATH_BF16 ? MOEPAGE_DTYPE_BF16 : MOEPAGE_DTYPE_F32;
    fill(b->x, operand, (uint64_t)MAX_ROWS * b->shape.hidden);
    fill(b->inner, operand, (uint64_t)MAX_ROWS * b->shape.intermediate);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        b->rows[r] = r;
}

static void close_bench(bench *b)
{
    free(b->weights);
    free(b->x);
    free(b->inner);
    free(b->out);
    free(b->rows);
}

/* ---- Ours ---- */

static void run_ours(bench *b, const mp_host_kernel_set *set, uint32_t e)
{
    const uint64_t each = (uint64_t)b->shape.hidden * b->shape.intermediate * size_of(b->dtype);
    const char *weights = b->weights + e * b->expert_bytes;
    mp_ffn_expert expert = {.gate = weights, .up = weights + each, .down = weights + 2 * each};
    expert.n_rows = b->n_rows;
    mp_kernel_args args = {.experts = {.x = b->x,
                                       .experts = &expert,
                                       .rows = b->rows,
                                       .inner = b->inner,
                                       .partial = b->out,
                                       .n_experts = 1,
                                       .top_k = 1,
                                       .hidden = b->shape.hidden,
                                       .intermediate = b->shape.intermediate,
                                       MP_ONE_DTYPE(b->dtype),
                                       .math = b->math}};
    mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &args, 0, 0, 1);
    mp_host_kernel_run(set, MP_KERNEL_EXPERTS, &args, 1, 0, 1);
}

/* ---- oneDNN ---- */

typedef struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t x, w, y;
    void **packed; /* [n_experts] or NULL */
} product;

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void must(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: %s gave status %d\n", what, (int)status);
        exit(1);
    }
}

static dnnl_memory_desc_t matrix(uint64_t rows, uint64_t columns, dnnl_data_type_t type,
                                 dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t desc;
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    must(dnnl_memory_desc_init_by_tag(&desc, 2, dims, type, tag), "memory_desc_init");
    return desc;
}

static void pack_weights(bench *b, product *p, const dnnl_memory_desc_t *plain,
                         const dnnl_memory_desc_t *wanted, uint64_t offset)
{
    p->packed = calloc(b->n_experts, sizeof *p->packed);
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t reorder;
    must(dnnl_reorder_primitive_desc_create(&desc, plain, engine, wanted, engine, NULL), "reorder");
    must(dnnl_primitive_create(&reorder, desc), "reorder");
    for (uint32_t e = 0; e < b->n_experts; e++) {
        dnnl_memory_t from, to;
        p->packed[e] = aligned(dnnl_memory_desc_get_size(wanted));
        must(dnnl_memory_create(&from, plain, engine, b->weights + e * b->expert_bytes + offset),
             "memory");
        must(dnnl_memory_create(&to, wanted, engine, p->packed[e]), "memory");
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
        must(dnnl_primitive_execute(reorder, stream, 2, args), "reorder");
        dnnl_memory_destroy(from);
        dnnl_memory_destroy(to);
    }
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(desc);
}

static product open_product(bench *b, const void *x, uint32_t in, uint32_t out, uint64_t offset,
                            int pack)
{
    product p = {0};
    dnnl_data_type_t type = b->math == MOEPAGE_MATH_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t x_desc = matrix(b->n_rows, in, type, dnnl_ab);
    dnnl_memory_desc_t plain = matrix(in, out, type, dnnl_ba);
    dnnl_memory_desc_t w_desc = pack ? matrix(in, out, type, dnnl_format_tag_any) : plain;
    dnnl_memory_desc_t y_desc = matrix(b->n_rows, out, dnnl_f32, dnnl_ab);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc;
    must(dnnl_matmul_desc_init(&matmul, &x_desc, &w_desc, NULL, &y_desc), "matmul");
    must(dnnl_primitive_desc_create(&desc, &matmul, NULL, engine, NULL), "matmul");
    must(dnnl_primitive_create(&p.primitive, desc), "matmul");
    const dnnl_memory_desc_t *wanted = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    if (pack)
        pack_weights(b, &p, &plain, wanted, offset);
    must(dnnl_memory_create(&p.x, &x_desc, engine, (void *)(uintptr_t)x), "memory");
    must(dnnl_memory_create(&p.w, wanted, engine, NULL), "memory");
    must(dnnl_memory_create(&p.y, &y_desc, engine, b->out), "memory");
    dnnl_primitive_desc_destroy(desc);
    return p;
}

static void run_product(bench *b, product *p, uint32_t e, uint64_t offset)
{
    void *weights = p->packed ? p->packed[e] : b->weights + e * b->expert_bytes + offset;
    dnnl_memory_set_data_handle(p->w, weights);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w}, {DNNL_ARG_DST, p->y}};
    must(dnnl_primitive_execute(p->primitive, stream, 3, args), "matmul");
}

static void close_product(bench *b, product *p)
{
    for (uint32_t e = 0; p->packed && e < b->n_experts; e++)
        free(p->packed[e]);
    free(p->packed);
    dnnl_primitive_destroy(p->primitive);
    dnnl_memory_destroy(p->x);
    dnnl_memory_destroy(p->w);
    dnnl_memory_destroy(p->y);
}

/* ---- Measuring ---- */

/* Seconds per expert: the best of RUNS runs of at least RUN_SECONDS, after one to warm up. */
static double time_ours(bench *b, const mp_host_kernel_set *set)
{
    double best = 1e9;
    run_ours(b, set, 0);
    for (int run = 0; run < RUNS; run++) {
        uint32_t n = 0;
        double begin = seconds();
        do {
            run_ours(b, set, ++n % b->n_experts);
        } while (seconds() - begin < RUN_SECONDS);
        double each = (seconds() - begin) / n;
        best = each < best ? each : best;
    }
    return best;
}

static double time_onednn(bench *b, int pack)
{
    const uint32_t h = b->shape.hidden, i = b->shape.intermediate;
    const uint64_t matrix_bytes = (uint64_t)h * i * size_of(b->dtype);
    product products[3] = {open_product(b, b->x, h, i, 0, pack),
                           open_product(b, b->x, h, i, matrix_bytes, pack),
                           open_product(b, b->inner, i, h, 2 * matrix_bytes, pack)};
    double best = 1e9;
    for (int run = -1; run < RUNS; run++) {
        uint32_t n = 0;
        double begin = seconds();
        do {
            n++;
            for (uint32_t p = 0; p < 3; p++)
                run_product(b, &products[p], n % b->n_experts, p * matrix_bytes);
        } while (run >= 0 && seconds() - begin < RUN_SECONDS);
        double each = (seconds() - begin) / n;
        best = run >= 0 && each < best ? each : best;
    }
    for (uint32_t p = 0; p < 3; p++)
        close_product(b, &products[p]);
    return best;
}

static void print_rates(const char *who, const bench *b, double each)
{
    double flops = 6.0 * b->n_rows * b->shape.hidden * b->shape.intermediate;
    printf("  %s %.1f GFLOP/s %.1f GB/s", who, flops / each * 1e-9,
           (double)b->expert_bytes / each * 1e-9);
    fflush(stdout);
}

static void compare(bench *b, const mp_host_kernel_set *set, int onednn)
{
    static const uint32_t counts[] = {1, 4, 16, 64, 256};
    open_bench(b);
    printf("%s, weights %s, math %s\n", b->shape.name, size_of(b->dtype) == 4 ? "F32" : "BF16",
           b->math == MOEPAGE_MATH_BF16 ? "BF16" : "FP32");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        b->n_rows = counts[i];
        printf("%4u rows", b->n_rows);
        print_rates(mp_host_kernels_name(set), b, time_ours(b, set));
        if (onednn) {
            print_rates("oneDNN plain", b, time_onednn(b, 0));
            print_rates("packed", b, time_onednn(b, 1));
        }
        printf("\n");
    }
    close_bench(b);
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {{"H 2048, I 768", 2048, 768}, {"H 4096, I 14336", 4096, 14336}};
    const mp_host_kernel_set *set =
        argc > 1 ? mp_host_kernels_find(argv[1]) : mp_host_kernels_best();
    const char *threads = getenv("OMP_NUM_THREADS");
    if (!set || !threads || strcmp(threads, "1") != 0) {
        fprintf(stderr, "usage: OMP_NUM_THREADS=1 %s [portable|avx2|avx512|avx512-bf16]\n",
                argv[0]);
        return 1;
    }
    must(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    must(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bench fp32 = {.shape = shapes[i], .dtype = MOEPAGE_DTYPE_F32, .math = MOEPAGE_MATH_FP32};
        bench mixed = {.shape = shapes[i], .dtype = MOEPAGE_DTYPE_BF16, .math = MOEPAGE_MATH_FP32};
        bench bf16 = {.shape = shapes[i], .dtype = MOEPAGE_DTYPE_BF16, .math = MOEPAGE_MATH_BF16};
        compare(&fp32, set, 1);
        compare(&mixed, set, 0); /* oneDNN 2.6 does not multiply F32 by BF16 */
        compare(&bf16, set, 1);
    }
    return 0;
}
